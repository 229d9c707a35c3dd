"""Twins, fakes and conformance suites for tests; shipped as the extra celeriac[testing]."""
