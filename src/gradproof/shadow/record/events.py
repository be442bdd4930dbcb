"""What hooks report of a run, in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gradproof.shadow.locations import Location


@dataclass(slots=True, eq=False)
class Event:
    """Something that the window protocol speaks about.

    `kind`: zero, accumulate, unscale, clip, step, stepped, schedule, sync, end. `detail`: whatever else is known
    (parameter names, learning rate, dtype, limit).
    """

    kind: str
    location: Location
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class EventLog:
    """The events of a run, in order."""

    items: list[Event] = field(default_factory=list)

    def events(self, kind: str) -> Iterator[Event]:
        """The events of a kind."""
        return (event for event in self.items if event.kind == kind)
