"""Evidence of runs: its inputs, whether it is fresh, where it is stored, and the seal of the engine."""
