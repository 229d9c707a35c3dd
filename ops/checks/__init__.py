"""Checks that `make check` runs beside the linters."""
