"""`celeriac doctor`: looks at everything that Celeriac needs here, and says what to do about what is not right."""
