"""Judges of whole-tensor values: obligations read off the gradients of one run, of two, and of several ranks."""
