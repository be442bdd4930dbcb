"""The old name of `gradproof.execution.methods.user_loop`."""

from gradproof.execution.methods.user_loop import *  # noqa: F403
