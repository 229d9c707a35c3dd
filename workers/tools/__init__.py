"""The tools of a worker: one module and one description file each."""
