"""A strict Messages API server that follows a script, for tests and demonstrations."""
