"""The loop that every model-driven task runs."""
