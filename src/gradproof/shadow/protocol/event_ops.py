"""What the flow of gradients over a tape asks of single operators and tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gradproof.shadow.tape import Const, Entry, Event, Location, Ref, Tape

NARROW = frozenset({"float16", "bfloat16", "complex32"})
OF_GRADIENTS = ("GA-INV-002", "GA-INV-004", "GA-INV-005")
"""Obligations of the window protocol that are about what gradients hold."""
FOLLOWED = ("GA-INV-002", "GA-INV-003", "GA-INV-005")
"""Obligations that are read from the order of events, which is followed up to the first that does not fit."""
FACTORS = frozenset({"mul", "div", "true_divide", "_foreach_mul", "_foreach_div"})
BOUNDS = frozenset(
    {
        "clamp", "clamp_min", "clamp_max", "clip", "hardtanh", "minimum", "maximum", "renorm", "_foreach_clamp_min",
        "_foreach_clamp_max", "_foreach_minimum", "_foreach_maximum",
    }
)  # fmt: skip
REDUCTIONS = frozenset(
    {
        "linalg_vector_norm", "norm", "sum", "mean", "_foreach_norm", "amax", "amin", "max", "min", "dot", "var", "std",
        "any", "all", "prod", "isfinite", "_foreach_max",
    }
)  # fmt: skip
OVERWRITES = frozenset({"zero", "fill", "copy", "_foreach_zero", "_foreach_copy", "normal", "uniform"})
JOINS = frozenset({"cat", "stack", "copy", "_foreach_copy", "constant_pad_nd", "_pack_padded_sequence"})
AVERAGES = frozenset({"lerp", "add", "_foreach_lerp", "_foreach_add"})
CHANGED = "the weights were changed between two micro-batches of a window"
AVERAGED = "a running average of the weights was advanced between two micro-batches of a window"

Token = tuple[str, int]


@dataclass(slots=True, eq=False)
class Act:
    """Something that the protocol speaks about: to which parameters, at which item of the tape, after `micro` arrivals.

    `kind`: arrive, zero, assign, unscale, clip, step, schedule, rate, rewrite, sync, end. `held` are, at a step, the
    arrivals in the gradient that was applied, by parameter.
    """

    kind: str
    params: frozenset[str]
    place: Location
    index: int
    micro: int
    detail: dict[str, Any] = field(default_factory=dict)
    held: dict[str, frozenset[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Narrowed:
    """Gradients were added, or kept, in fewer bits than fp32: of which parameter and where."""

    param: str
    why: str
    place: Location
    index: int
    micro: int


@dataclass(slots=True)
class Acts:
    """Everything found, in the order of the run. `sighted`: operators were recorded, not only events.

    `doubts`: obligations that nothing broke, and that what is known of the gradients does not show; why, and where.
    """

    acts: list[Act] = field(default_factory=list)
    narrowed: list[Narrowed] = field(default_factory=list)
    outside: list[Act] = field(default_factory=list)
    lost: dict[Token, Location] = field(default_factory=dict)
    sighted: bool = False
    doubts: dict[str, tuple[str, Location]] = field(default_factory=dict)


NO_PASS: frozenset[int] = frozenset()
EARLIER = 0
"""The number of a backward pass before the recorded run."""


class Passes:
    """On which backward passes the elements of each storage depend: an upper bound, by intervals of a storage.

    Weights, the optimizer's state and the scale of a GradScaler are state: a dependence ends there (`forget`).
    """

    def __init__(self) -> None:
        self._held: dict[int, list[tuple[int, int, frozenset[int]]]] = {}

    def of(self, ref: Ref) -> frozenset[int]:
        """The passes on which a tensor depends."""
        low, high = span(ref)
        held = self._held.get(ref.storage, [])
        return NO_PASS.union(*(numbers for a, b, numbers in held if a < high and low < b))

    def write(self, ref: Ref, numbers: frozenset[int]) -> None:
        """A tensor holds something new. What it does not cover without a gap is only added to."""
        low, high = span(ref)
        held = self._held.get(ref.storage, [])
        if high - low != ref.count:
            self._held[ref.storage] = [*held, (low, high, numbers)] if numbers else held
            return
        kept = [(a, min(b, low), n) for a, b, n in held if a < low] + [
            (max(a, high), b, n) for a, b, n in held if b > high
        ]
        self._held[ref.storage] = kept + ([(low, high, numbers)] if numbers else [])

    def add(self, ref: Ref, numbers: frozenset[int]) -> None:
        """A tensor depends on more passes."""
        self._held.setdefault(ref.storage, []).append((*span(ref), numbers))

    def forget(self, storage: int) -> None:
        """A storage holds state from here on."""
        self._held.pop(storage, None)


def held_before(entry: Entry) -> bool:
    """Whether an operator adds in place to a tensor that held numbers which no recorded operator made."""
    first = entry.args[0] if entry.args else None
    name = entry.op.split(".")[1] if "." in entry.op else entry.op
    inside = name.endswith("_") and base(entry.op) not in OVERWRITES
    return inside and isinstance(first, Const) and bool(first.value.any())


def narrow(ref: Ref) -> bool:
    """Whether a tensor has fewer bits than fp32, for a sum of gradients."""
    return ref.dtype in NARROW or ref.dtype.startswith(("float8", "int8", "uint8", "int16"))


def first_narrow(tape: Tape) -> tuple[str, Location] | None:
    """The dtype and line of the first operator that writes fewer bits than fp32, if there is one."""
    return next(
        ((ref.dtype, e.place) for e in tape.entries() for ref in e.writes if ref.floating and narrow(ref)), None
    )


@dataclass(slots=True)
class LossScaling:
    """A product of a gradient: with a factor of the gradients (`factor` None), or with the number `factor`."""

    place: Location
    index: int
    micro: int
    bound: bool
    factor: float | None
    norms: tuple[float, ...] = ()


def hook_line(entry: Entry, backward: Location) -> Location:
    """Where an operator was called: inside the backward pass begun at `backward`, the line of the hook, if any."""
    file, _, line = entry.place.via.rpartition(":")
    if not entry.backward or entry.place.via == backward.via or not line.isdigit():
        return entry.place
    return Location(file, int(line), "", str(entry.place))


def rest(event: Event) -> dict[str, Any]:
    """The detail of an event, but for the parameters."""
    return {k: v for k, v in event.detail.items() if k not in ("params", "place", "index")}


def base(op: str) -> str:
    """`aten.mul_.Tensor` is `mul`; `aten._foreach_mul_` is `_foreach_mul`."""
    return op.split(".")[1].rstrip("_") if "." in op else op


def span(ref: Ref) -> tuple[int, int]:
    """First element of the storage that a tensor may touch, and one past the last."""
    reach = sum((n - 1) * s for n, s in zip(ref.shape, ref.stride, strict=True) if n)
    return ref.offset, ref.offset + reach + 1


def pairings(entry: Entry) -> Iterator[tuple[Ref, list[Any]]]:
    """Each written tensor with the arguments that it comes from; lists of a foreach operator pair up by position."""
    given = [*entry.args, *entry.kwargs.values()]
    many = base(entry.op).startswith("_foreach") or "_fused_" in entry.op
    if not many:
        for out in entry.writes:
            yield out, given
        return
    lists = [list(a) for a in given if isinstance(a, list | tuple) and len(a) and isinstance(a[0], Ref)]
    width = max((len(a) for a in lists), default=0)
    written = list(entry.writes)
    for position, out in enumerate(written):
        at = position % width if width else 0
        yield out, [a[at] if isinstance(a, list | tuple) and len(a) == width else a for a in given]


def zeroes(name: str, given: list[Any]) -> bool:
    """Whether an overwriting operator writes zeros."""
    return "zero" in name or (len(given) > 1 and given[1] == 0)


def simple(x: float, tolerance: float = 1e-4) -> bool:
    """Whether a number is one that people write: two digits, or one over an integer."""
    if not x or x != x or abs(x) == float("inf"):
        return True
    near = [float(f"{x:.1e}")]
    if abs(x) < 1:
        near.append(1 / round(1 / x))
    return any(abs(x - n) <= tolerance * abs(x) for n in near)


def from_norm(scaling: LossScaling) -> bool:
    """Whether a factor looks as if it was computed from a norm that was read: limit / (norm + tiny)."""
    factor = scaling.factor
    if factor is None or simple(factor):
        return False
    return any(simple(factor * norm) for norm in scaling.norms)


def clips_in(maybe: list[tuple[Act, LossScaling]]) -> Iterator[Act]:
    """Of products with a Python number, those whose number was read from the gradients before."""
    yield from (act for act, scaling in maybe if from_norm(scaling))
