"""Benchmarks: ours against raw baselines in the same run."""
