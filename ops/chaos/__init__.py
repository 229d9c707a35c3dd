"""Kill tests: real processes die at chosen moments; nothing may be lost or doubled."""
