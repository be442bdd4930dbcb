"""What two readings must agree in: the N-run and the full batch, window by window, in any domain.

A window ends with the first optimizer step after a backward pass; steps of further optimizers belong to it. Compared
are the gradients handed to each step, the weights and the optimizer's state after it, the sum of the roots of the
window's backward passes, and the weights at the end, which a step written by hand changes too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gradproof.shadow.algebra import Value
from gradproof.shadow.domains.interpreter import Observation, Reading
from gradproof.shadow.record.averages import MIXED
from gradproof.shadow.tape import NOWHERE, Event, Place, Tape

WANTED = ("backward", "step", "stepped", "end", "loss", "item")


@dataclass(slots=True)
class ReadWindow:
    """One accumulation window of a reading."""

    roots: list[Observation] = field(default_factory=list)
    steps: list[Observation] = field(default_factory=list)
    stepped: list[Observation] = field(default_factory=list)

    def loss(self) -> Value | None:
        """Sum of the roots of the backward passes, as one number."""
        total: Value | None = None
        for root in self.roots:
            for name, value in root.values.items():
                if name.startswith("root"):
                    part = value.sum()
                    total = part if total is None else total + part
        return total

    def place(self) -> Place:
        """Where the window's step is."""
        return self.steps[0].event.place if self.steps else NOWHERE


def windows(observations: Sequence[Observation]) -> list[ReadWindow]:
    """The windows of a reading; backward passes without a step after them make a last window without steps."""
    found: list[ReadWindow] = []
    current = ReadWindow()
    for seen in observations:
        kind = seen.event.kind
        if kind == "backward":
            if current.steps:
                found.append(current)
                current = ReadWindow()
            current.roots.append(seen)
        elif kind == "step" and not seen.event.detail.get("skipped"):
            current.steps.append(seen)
        elif kind == "stepped" and current.steps:
            current.stepped.append(seen)
    if current.roots or current.steps:
        found.append(current)
    return found


@dataclass(slots=True)
class Quantity:
    """Something that must be equal: which, in which window, and both values. `group`: grad, weights, state,
    average, loss, or sync (`full` is then what rank 0 has).

    `event` is the kind of the event that it was read at; `name` the parameter, or the name that the event has for it.
    """

    group: str
    window: int
    name: str
    ours: Value
    full: Value
    place: Place
    event: str
    rank: int = 0

    def __str__(self) -> str:
        if self.group == "loss":
            return f"loss of window {self.window + 1}" + (f" on rank {self.rank}" if self.rank else "")
        words = {"grad": "gradient of", "weights": "weights of", "state": "optimizer state", "sync": "synchrony of"}
        words["average"] = "running average of"
        rank = f" on rank {self.rank}" if self.rank else ""
        return f"{words[self.group]} {self.name} in window {self.window + 1}{rank}"


@dataclass(slots=True)
class Pairs:
    """The quantities of two readings, and what has no counterpart, in words."""

    quantities: list[Quantity] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def pairs(ours: Reading, full: Reading) -> Pairs:
    """Match two readings. Raises nothing: what does not match is in `missing`."""
    found = Pairs()
    mine, theirs = windows(ours.observations), windows(full.observations)
    stepped = [[w for w in side if w.steps] for side in (mine, theirs)]
    if len(stepped[0]) != len(stepped[1]):
        found.missing.append(f"{len(stepped[0])} windows were stepped, {len(stepped[1])} with the full batch")
    for index, (a, b) in enumerate(zip(stepped[0], stepped[1], strict=False)):
        _window(found, index, a, b)
    ends = [[o for o in r.observations if o.event.kind == "end"] for r in (ours, full)]
    for a_end, b_end in zip(ends[0], ends[1], strict=False):
        _tensors(found, "weights", max(len(stepped[0]) - 1, 0), a_end, b_end, "param/")
        _tensors(found, "average", max(len(stepped[0]) - 1, 0), a_end, b_end, "average/")
    _losses(found, ours, full, stepped if any(stepped) else [mine, theirs])
    return found


def _losses(found: Pairs, ours: Reading, full: Reading, stepped: list[list[ReadWindow]]) -> None:
    """The losses that the function returned, or the roots of its backward passes: of a function that returns none, or
    one for each micro-batch, for which the full batch has no counterpart."""
    stated = [[o for o in r.observations if o.event.kind == "loss" and o.values] for r in (ours, full)]
    passes = sum(len(window.roots) for window in stepped[0])
    if stated[0] and stated[1] and not len(stated[0][0].values) == passes != len(stated[1][0].values):
        _tensors(found, "loss", 0, stated[0][0], stated[1][0], "loss/")
        _stated(found, stated[1][0], stepped[1])
        return
    for index, (a, b) in enumerate(zip(stepped[0], stepped[1], strict=False)):
        a_loss, b_loss = a.loss(), b.loss()
        if a_loss is not None and b_loss is not None:
            place = a.roots[0].event.place
            found.quantities.append(Quantity("loss", index, "root", a_loss, b_loss, place, "backward"))


def _stated(found: Pairs, stated: Observation, full: list[ReadWindow]) -> None:
    """Where the first returned loss of the full batch is the root of its window, the others must be that too."""
    names = sorted(stated.values)
    roots = [window.loss() for window in full]
    if len(names) != len(roots) or not roots or not identical(stated.values[names[0]], roots[0]):
        return
    for index, (name, root) in enumerate(zip(names, roots, strict=True)):
        if root is not None and stated.values[name].size == 1:
            value = stated.values[name].reshape(())
            found.quantities.append(Quantity("loss", index, name, value, root, stated.event.place, "stated"))


def identical(a: Value | None, b: Value | None) -> bool:
    """Whether two values are the same residues or terms, each of one element."""
    if a is None or b is None or a.size != 1 or b.size != 1:
        return False
    return bool(a.parts[0].reshape(-1)[0] == b.parts[0].reshape(-1)[0])


def _window(found: Pairs, index: int, ours: ReadWindow, full: ReadWindow) -> None:
    for a, b in zip(ours.steps, full.steps, strict=False):
        _tensors(found, "grad", index, a, b, "grad/")
        _tensors(found, "weights", index, a, b, "param/")
    for a, b in zip(ours.stepped, full.stepped, strict=False):
        _tensors(found, "weights", index, a, b, "param/")
        _tensors(found, "state", index, a, b, "state/")
    if len(ours.steps) != len(full.steps):
        found.missing.append(
            f"window {index + 1}: {len(ours.steps)} optimizer steps, {len(full.steps)} in the full batch"
        )


def _tensors(found: Pairs, group: str, index: int, ours: Observation, full: Observation, prefix: str) -> None:
    names = sorted(n for n in ours.values.keys() | full.values.keys() if n.startswith(prefix))
    for name in names:
        a, b = ours.values.get(name), full.values.get(name)
        short = name if group == "loss" else name.removeprefix(prefix)
        window = int(name.removeprefix(prefix)) if group == "loss" else index
        if not isinstance(a, Value) or not isinstance(b, Value):
            if (a is None) != (b is None) and MIXED not in name:
                found.missing.append(f"window {index + 1}: {group} of {short} exists in one run only")
            continue
        if a.shape != b.shape:
            found.missing.append(f"window {index + 1}: {group} of {short} is {a.shape} and {b.shape}")
            continue
        found.quantities.append(Quantity(group, window, short, a, b, ours.event.place, ours.event.kind))


def roots(tape: Tape) -> Iterator[Event]:
    """The backward passes of a tape."""
    return tape.events("backward")


def wanted(event: Event) -> bool:
    """Events that a comparison reads."""
    return event.kind in WANTED and bool(event.refs)
