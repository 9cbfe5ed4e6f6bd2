"""The container image, built and run on this machine: `make image` and `make image-test`."""
