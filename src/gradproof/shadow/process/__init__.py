"""Both sides of the process in which a user's step or script is recorded and verified."""
