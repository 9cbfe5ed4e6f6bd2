"""Temperatures for an endpoint's probabilities, fitted on labelled decisions, and what averaging over orders brings."""
