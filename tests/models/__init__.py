"""Models for tests and benchmarks, made on demand."""
