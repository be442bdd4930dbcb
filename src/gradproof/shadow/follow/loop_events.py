"""What the function did to gradients and parameters, and at which lines: the lines that a refutation names.

An event is noted where the function itself acts: what autograd and an optimizer's step do is theirs. A tensor of one
element remembers the line that made it, for the losses that a backward pass begins at and that the function returns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import lr_scheduler

from gradproof.core.timeline import Tick, Timeline, as_json, shortened
from gradproof.shadow.follow.memory import weakly
from gradproof.shadow.follow.terms import NOBODY
from gradproof.shadow.follow.values import Value
from gradproof.shadow.locations import NOWHERE, Location, by_torch, initialising, recomputing, user_location
from gradproof.shadow.ops.schema import Spec, tensors_in
from gradproof.shadow.result import Result
from gradproof.shadow.tape.calls import PASS, SCHEDULE, STEP, ZERO, Nested, seen
from gradproof.shadow.tape.run_events import SeenEvent

if TYPE_CHECKING:
    from gradproof.shadow.follow.engine import Engine

WRITE, MADE, HOOK, WEIGHTS, READ = "write", "made", "hook", "weights", "read"
WORDS = {PASS: "backward", ZERO: "zero", WRITE: "write .grad", WEIGHTS: "weights change", SCHEDULE: "lr changes"}
NOTHING = "none"
AT_FAULT, EACH = "this line is at fault", "each time that it runs in the window"
HANDED_ON = frozenset({
    "clone", "copy_", "_to_copy", "detach", "alias", "view", "stack", "cat", "reshape", "unsqueeze", "squeeze",
    "select", "expand", "lift_fresh", "t", "transpose", "permute", "numpy_T", "contiguous", "slice", "unbind",
    "c10d.allreduce_", "c10d.broadcast_", "c10d.reduce_", "c10d.allgather_",
})  # fmt: skip
"""Operators that hand a number on: the line that made it is at fault, not theirs."""
EMPTIED = frozenset({"zero_", "_foreach_zero_", "fill_"})


def states(events: list[SeenEvent]) -> Iterator[str]:
    """After each event, how many micro-batches are in a gradient, and how many of them were applied, in words."""
    old, new, clipped = 0, 0, False
    for event in events:
        if event.kind in (PASS, STEP, ZERO):
            clipped = False
        if event.kind in (STEP, ZERO):
            old, new = (old + new, 0) if event.kind == STEP else (0, 0)
        new += event.kind == PASS
        clipped |= event.kind == WRITE and event.scaled
        parts = [f"{old} applied"] * bool(old) + [str(new)] * bool(new)
        yield (" + ".join(parts) or NOTHING) + (" clipped" if clipped else "")


class LoopEvents:
    """The events of one run. `first`: the line where data first met a parameter."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.list: list[SeenEvent] = []
        self.first = NOWHERE
        self._lines: dict[int, tuple[Any, Location, Location]] = {}
        self._gradients, self._weights = dict[int, Any](), dict[int, Any]()
        self._shapes, self._applied = set[Any](), set[int]()

    def of(self, window: int, *kinds: str) -> list[SeenEvent]:
        """The events before an optimizer step, of some kinds. What made a gradient that was applied wrote it."""
        found = [
            replace(event, kind=WRITE) if event.kind == MADE else event
            for event in self.list
            if event.window == window and (event.kind != MADE or event.storage in self._applied)
        ]
        return [event for event in found if event.kind in kinds or not kinds]

    def add(self, kind: str, location: Location | None = None, **more: Any) -> None:
        """Note an event."""
        engine = self.engine
        self.list.append(SeenEvent(kind, location or engine.location(), engine.window, **more))

    def began(self, root: torch.Tensor | None) -> None:
        """A backward pass begins."""
        self.add(PASS, root=NOWHERE if root is None else self.line(root, root=True))

    def held(self) -> None:
        """The gradients and parameters of now are those that are looked for."""
        for parameter in (one for one in self.engine.kept if one.requires_grad):
            weights = parameter.untyped_storage()
            self._shapes.add(tuple(parameter.shape))
            self._weights[weights._cdata] = (weakly(weights),)
            if parameter.is_leaf and parameter.grad is not None:
                grad = parameter.grad.untyped_storage()
                self._gradients[grad._cdata] = (weakly(grad),)

    def stepping(self, own: list[torch.Tensor]) -> None:
        """An optimizer is about to apply gradients."""
        self._applied |= {p.grad.untyped_storage()._cdata for p in own if p.grad is not None}
        self.add(STEP)

    def readable(self) -> list[dict[str, Any]]:
        """The events as plain data."""
        return [
            {"event": event.kind, "location": str(event.location), "window": event.window} for event in self._notable()
        ]

    def inside(self, window: int, *kinds: str) -> list[SeenEvent]:
        """The events of some kinds between the first and the last backward pass of a window."""
        events = self.of(window)
        passes = [at for at, event in enumerate(events) if event.kind == PASS] or [0]
        return [event for event in events[passes[0] : passes[-1]] if event.kind in kinds]

    def early(self, window: int) -> list[SeenEvent]:
        """The writes of gradients before the first backward pass of a window, those that only empty them left out."""
        events = self.of(window)
        first = next((at for at, event in enumerate(events) if event.kind == PASS), len(events))
        return [event for event in events[:first] if event.kind == WRITE and event.operator not in EMPTIED]

    def last_root(self, window: int, root: bool = True) -> Location | None:
        """The line that made what the last backward pass of a window began at, or that of the pass itself."""
        last = next(reversed(self.of(window, PASS)), None)
        return None if last is None else last.root if root and last.root is not NOWHERE else last.location

    def _notable(self) -> list[SeenEvent]:
        """The events but those that concern no gradient; what one line does at once is one event."""
        found: list[SeenEvent] = []
        for window in range(self.list[-1].window + 1 if self.list else 0):
            for event in self.of(window):
                if event.kind in (PASS, STEP) or not found or replace(found[-1], operator=event.operator) != event:
                    found.append(event)
        return found

    def timeline(self, result: Result, window: int) -> dict[str, Any] | None:
        """The run up to a step at which something is wrong, as JSON of a Timeline; None where nothing was seen."""
        events = [event for event in self._notable() if event.window <= window]
        pairs = zip(events, states(events), strict=True)
        ticks = [Tick(WORDS.get(event.kind, event.kind), state, event.location.short) for event, state in pairs]
        if not ticks:
            return None
        here = [
            at for at, e in enumerate(events)
            if e.window == window and result.location not in (None, NOWHERE) and result.location in (e.location, e.root)
        ]  # fmt: skip
        if here:
            at = events[here[0]]
            what = AT_FAULT if at.location == result.location else f"the loss of {at.root.short} is at fault"
            words = what if len(here) == 1 else f"{what}, {EACH}"
            ticks[here[0]] = replace(ticks[here[0]], refused=words)
        ticks[-1] = replace(ticks[-1], harm=result.reason)
        return as_json(Timeline(f"{result.obligation}, window {window + 1}", NOTHING, shortened(ticks)))

    def operated(self, spec: Spec, args: Any, kwargs: Any, out: Any, values: Mapping[int, Value]) -> None:
        """An operator of the function's own has run."""
        base, given, written = spec.short, tensors_in((args, kwargs)), spec.targets(args, kwargs)
        met = self.first is NOWHERE and any(value.shared and self._trained(value) for value in values.values())
        if met and any(not value.shared for value in values.values()):
            self.first = self.engine.location()
        others = [t for t in given if not any(t is one for one in written)]
        scaled = any(t.numel() == 1 and self._trained(values.get(id(t))) for t in others)
        for tensor in written or tensors_in(out):
            if tensor.numel() == 1 and tensor.is_floating_point():
                self._made(base, tensor, given)
            if (
                tuple(tensor.shape) in self._shapes
                and not tensor.requires_grad
                and (written or base not in HANDED_ON)
                and base not in EMPTIED
            ):
                self.add(MADE, operator=base, storage=tensor.untyped_storage()._cdata, scaled=scaled)
        self.keeps(base, given, written or tensors_in(out))
        for kind, known in ((WRITE, self._gradients), (WEIGHTS, self._weights)):
            if any(_among(tensor, known) for tensor in written):
                whole = base in EMPTIED and all(_emptied(tensor) for tensor in written)
                if kind == WRITE or not initialising():
                    self.add(ZERO if kind == WRITE and whole else kind, operator=base, scaled=scaled)

    def _trained(self, value: Value | None) -> bool:
        terms = self.engine.terms
        return value is not None and any(terms.trained[term] for part in value.parts for term in part)

    def read_out(self, tensor: torch.Tensor) -> None:
        """Python has read all numbers of a tensor: those of a parameter may be kept."""
        if tensor.numel() > 1 and _among(tensor, self._weights):
            self.add(READ)

    def keeps(
        self, base: str, given: list[torch.Tensor], made: list[torch.Tensor], location: Location | None = None
    ) -> None:
        """Parameters are computed with, outside of autograd and without data: what comes of it may be kept.

        A number that is made of a larger parameter, as its norm, is not looked at.
        """
        graded = self.engine.grads and any(tensor.requires_grad for tensor in given)
        if graded or base in HANDED_ON or not any(_among(tensor, self._weights) for tensor in given) or initialising():
            return
        memory, owners = self.engine.memory, self.engine.terms.owners
        single = all(tensor.numel() == 1 for tensor in given)
        for tensor in made:
            value = None if tensor.numel() == 1 and not single else memory.read(tensor)
            if value is not None and all(owners[term] == NOBODY for part in value.parts for term in part):
                self.add(READ, location)

    def hooked(self, spec: Spec, args: Any, kwargs: Any, out: Any) -> None:
        """An operator has run while autograd ran: the function's own where a hook of its own called it."""
        location = user_location()
        if location in (NOWHERE, self.engine.location()) or location.function == "backward" or recomputing():
            return
        if not self.list or self.list[-1].location != location:
            self.add(HOOK, location)
        self.keeps(spec.short, tensors_in((args, kwargs)), spec.targets(args, kwargs) or tensors_in(out), location)

    def _made(self, base: str, tensor: torch.Tensor, given: list[torch.Tensor]) -> None:
        location = self.engine.location()
        before = [self._lines[t.untyped_storage()._cdata][1:] for t in given if _among(t, self._lines)]
        root = before[0][1] if len(before) == 1 and base in ("mul", "mul_") and by_torch() else location
        if before and base in HANDED_ON:
            location, root = before[-1]
        elif before and location.via:
            location = next((shown for shown, _ in reversed(before) if not shown.via), location)
        storage = tensor.untyped_storage()
        self._lines[storage._cdata] = (weakly(storage), location, root)

    def line(self, tensor: torch.Tensor, root: bool = False) -> Location:
        """The line that made a tensor of one element.

        What a library made is the line of the number that it was given, but for a `root` of a backward pass, where a
        loss scale is looked through.
        """
        known = _among(tensor, self._lines)
        return NOWHERE if not known else self._lines[tensor.untyped_storage()._cdata][2 if root else 1]


def _among(tensor: torch.Tensor, known: dict[int, Any]) -> bool:
    found = known.get(tensor.untyped_storage()._cdata)
    return found is not None and not found[0].expired()


def _emptied(tensor: torch.Tensor) -> bool:
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return whole and not bool(torch.count_nonzero(tensor.detach()))


@contextmanager
def noted(events: LoopEvents) -> Iterator[None]:
    """`zero_grad` and the steps of schedules are events while this runs; a schedule given its place counts no steps."""
    busy = Nested()

    def note(kind: str, original: Callable[..., Any], owner: Any, *args: Any, **kwargs: Any) -> Any:
        placed = kind == SCHEDULE and (args or kwargs) and not isinstance(owner, lr_scheduler.ReduceLROnPlateau)
        if not busy and not placed and not initialising():
            events.add(kind)
        return busy.call(original, owner, *args, **kwargs)

    with seen({kind: functools.partial(note, kind) for kind in (ZERO, SCHEDULE)}):
        yield
