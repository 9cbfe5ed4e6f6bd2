"""The operator's command line `decide`, and the client that it is built on. Imports nothing of the adapter."""
