"""The harness: the subject is the training function itself."""

from __future__ import annotations

from typing import Any


class Trains:
    """Hands the run to the subject."""

    blamed: dict[str, str] = {}  # noqa: RUF012  (a constant)

    def step(self, subject: Any, setting: Any) -> Any:
        """The subject."""
        return subject

    def covers(self, settings: Any) -> list[str]:
        """None."""
        return []

    def reached(self, setting: Any) -> list[str]:
        """None."""
        return []


trains = Trains()
