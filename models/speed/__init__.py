"""Loops whose speed and convergence are measured."""
