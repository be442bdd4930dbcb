"""Symbolic execution of a real PyTorch training step. Importing this package imports neither torch nor a solver."""
