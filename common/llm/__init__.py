"""Models behind one Protocol: the Messages API and replay files."""
