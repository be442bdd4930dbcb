"""From the events that the hooks reported to the acts of the window protocol."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gradproof.shadow.tape import Event, Location, Tape

NARROW = frozenset({"float16", "bfloat16", "complex32"})
OF_GRADIENTS = ("GA-INV-002", "GA-INV-004", "GA-INV-005")
"""Obligations of the window protocol that are about what gradients hold."""
PLAIN = frozenset({"assign", "touch", "unscale", "rewrite"})
"""Events that are acts as they are; of these no detail is read."""
DETAILED = frozenset({"step", "schedule", "rate"})
"""Events that are acts as they are, with all that is known."""


@dataclass(slots=True, eq=False)
class Act:
    """Something that the protocol speaks about: to which parameters, at which item of the tape, after `micro` arrivals.

    `kind`: arrive, zero, assign, touch, unscale, clip, step, schedule, rate, rewrite, sync, end.
    """

    kind: str
    params: frozenset[str]
    place: Location
    index: int
    micro: int
    detail: dict[str, Any] = field(default_factory=dict)


class Flow:
    """One pass over a tape."""

    def __init__(self) -> None:
        self.acts: list[Act] = []
        self.micro = 0

    def act(self, kind: str, params: Iterable[str], event: Event, index: int, **detail: Any) -> None:
        """Note an act."""
        self.acts.append(Act(kind, frozenset(params), event.place, index, self.micro, detail))

    def event(self, index: int, event: Event) -> None:
        """One event of the tape."""
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


def acts_of(tape: Tape) -> list[Act]:
    """The acts of a tape, in order."""
    flow = Flow()
    for index, event in enumerate(tape.items):
        flow.event(index, event)
    return flow.acts
