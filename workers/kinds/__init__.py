"""One module for each form of task that a worker can run."""
