"""Rounding of a recorded step: enclosures of its numbers, and a bound on the error of each gradient."""
