"""From the events that the hooks reported to the acts of the window protocol."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gradproof.shadow.locations import Location
from gradproof.shadow.record.events import Event, EventLog

NARROW = frozenset({"float16", "bfloat16", "complex32"})
OF_GRADIENTS = ("GA-INV-002", "GA-INV-004", "GA-INV-005")
"""Obligations of the window protocol that are about what gradients hold."""
PLAIN = frozenset({"assign", "touch", "unscale", "rewrite"})
"""Events that are acts as they are; of these no detail is read."""
DETAILED = frozenset({"step", "schedule", "rate"})
"""Events that are acts as they are, with all that is known."""


@dataclass(slots=True, eq=False)
class ProtocolEvent:
    """Something that the protocol speaks about: to which parameters, at which item of the log, after `micro` arrivals.

    `kind`: arrive, zero, assign, touch, unscale, clip, step, schedule, rate, rewrite, sync, end.
    """

    kind: str
    params: frozenset[str]
    location: Location
    index: int
    micro: int
    detail: dict[str, Any] = field(default_factory=dict)


class EventReader:
    """One pass over a log."""

    def __init__(self) -> None:
        self.acts: list[ProtocolEvent] = []
        self.micro = 0

    def act(self, kind: str, params: Iterable[str], event: Event, index: int, **detail: Any) -> None:
        """Note an act."""
        self.acts.append(ProtocolEvent(kind, frozenset(params), event.location, index, self.micro, detail))

    def event(self, index: int, event: Event) -> None:
        """One event of the log."""
        kind, detail = event.kind, event.detail
        params = detail.get("params", ())
        if kind in ("accumulate", "gradients"):
            number = int(detail.get("number", self.micro + 1))
            self.micro = max(self.micro, number)
            more = {"taken": True} if kind == "gradients" else {}
            self.act("arrive", params, event, index, **{"number": number, "dtypes": {}, **rest(event), **more})
        elif kind in PLAIN:
            self.act(kind, params, event, index)
        elif kind in DETAILED:
            self.act(kind, params, event, index, **rest(event))
        elif kind == "zero" and params:
            self.act("zero", params, event, index, how=detail.get("how", ""))
        elif kind == "clip" and (detail.get("limit") is None or float(detail["limit"]) != float("inf")):
            self.act("clip", params, event, index, limit=detail.get("limit"))
        elif kind == "sync":
            own = frozenset(params if detail.get("whole", True) else ())
            self.act("sync", params, event, index, own=own, **rest(event))
        elif kind == "end":
            self.act("end", (), event, index, optimizers=detail.get("optimizers", {}))


def rest(event: Event) -> dict[str, Any]:
    """The detail of an event, but for the parameters."""
    return {k: v for k, v in event.detail.items() if k not in ("params", "place", "index")}


def acts_of(log: EventLog) -> list[ProtocolEvent]:
    """The acts of a log, in order."""
    flow = EventReader()
    for index, event in enumerate(log.items):
        flow.event(index, event)
    return flow.acts
