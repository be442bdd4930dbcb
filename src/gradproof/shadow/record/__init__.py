"""Records what a step does: operators, hooks, data, names, reads of values."""
