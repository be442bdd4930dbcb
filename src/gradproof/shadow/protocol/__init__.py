"""The order of events of a run: windows, steps, zeroing, and what a monitor reads off them."""
