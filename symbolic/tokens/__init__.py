"""Harnesses of the training contract about tokens, cross-entropy and the rate."""
