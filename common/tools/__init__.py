"""The tool Protocol, the toolbox and the middleware around each call."""
