"""Harnesses of the training contract about data and sampling."""
