"""gradproof: formal and bounded verification of gradient accumulation."""

__version__ = "0.1.0"

BARE: frozenset[str] = frozenset()
"""The modules that Python had as a worker began."""
STARTED: tuple[str, ...] | None = None
"""sys.path as the command line began, where a worker would begin with the same; None where that is not known."""
