"""The Flower console configured for tasks of this system."""
