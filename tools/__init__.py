"""What stands behind the Makefile's targets."""
