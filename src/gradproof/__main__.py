"""`gradproof` and `python -m gradproof`."""

from __future__ import annotations

from gradproof.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
