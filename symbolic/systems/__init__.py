"""Harnesses of the training contract about epochs, schedules, state, ranks, memory and resuming."""
