"""Container images without a container runtime: building, pushing and unpacking them. Standard library only."""
