"""Records what a step does: its operators, events, batches, state and ranks, each with its line."""
