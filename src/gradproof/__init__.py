"""gradproof: formal and bounded verification of gradient accumulation."""

__version__ = "0.1.0"
