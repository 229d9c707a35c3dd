"""Owns sessions: the orchestrating model, its four tools, dispatch, supervision, and the client."""
