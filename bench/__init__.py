"""Benchmarks of the scoring engine: `python -m bench`."""
