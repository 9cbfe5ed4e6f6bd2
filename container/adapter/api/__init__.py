"""HTTP: paths, wire shapes and errors. Knows nothing of tokens."""
