"""Nouns of gradproof and the one table that turns an outcome into an effect.

No I/O, no solver and no torch are imported here. Every other module speaks in these words.

Sources of the vocabulary: Kani's check statuses, CrossHair's message types, sby's `expect`.
"""

from __future__ import annotations


class GradproofError(Exception):
    """A user's mistake, with a stable code, a place, what was found, what was expected and the help."""

    def __init__(self, code: str, found: str, expected: str, help: str, where: str = "") -> None:
        self.code, self.found, self.expected, self.help, self.where = code, found, expected, help, where
        super().__init__(self.render())

    def render(self) -> str:
        """One error as four short lines."""
        head = f"{self.where}: {self.code}" if self.where else self.code
        return f"{head}\n  found:    {self.found}\n  expected: {self.expected}\n  help:     {self.help}"
