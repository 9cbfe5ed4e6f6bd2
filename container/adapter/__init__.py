"""The decision server that runs inside the container."""
