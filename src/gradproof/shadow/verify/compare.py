"""What two readings must agree in: the N-run and the full batch, window by window, in any domain.

A window ends with the first optimizer step after a backward pass; steps of further optimizers belong to it. Compared
are the gradients handed to each step, the weights and the optimizer's state after it, the sum of the roots of the
window's backward passes, and the weights at the end, which a step written by hand changes too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any
from zlib import crc32

import numpy as np

from gradproof.core.outcome import Outcome
from gradproof.shadow.algebra import Value
from gradproof.shadow.domains.interpreter import Observation, Reading
from gradproof.shadow.record.leaves import MIXED
from gradproof.shadow.tape import (
    NOWHERE,
    Array,
    Const,
    Entry,
    Event,
    Key,
    Leaf,
    Location,
    Ref,
    Shape,
    Streams,
    Tape,
    blocks_of,
    in_order,
    streams,
)

# -- Two tapes side by side: the same samples, the same operators.
#
# The run with N micro-batches and the full batch are matched by leaves (`Source` and place in its stream) and by the
# integers of each site, never by value. Two recordings of one run at different leaves must be the same tape: a constant
# or a Python number that moved with the leaves is a value that flowed past the recorder.

# -- Integer data that is padded to the longest sample of a batch: other shapes in the two runs, the same samples.
RESHAPED = "samples of other lengths in the two runs, and not by padding alone"


@dataclass(slots=True)
class Repadded:
    """Sites that are the same samples, padded to other lengths; and what is not, in words."""

    alike: set[str] = field(default_factory=set)
    apart: list[str] = field(default_factory=list)


def stem(site: str) -> tuple[str, str]:
    """A site without the shape of its samples: the line, and the dtype."""
    return site[: site.rindex(" (")] if " (" in site else site, site.rpartition(" ")[2]


def repadded(accumulated: Tape, full: Tape) -> Repadded:
    """Lines that make integers of other lengths in one run than in the other, and in both."""
    found = Repadded()
    mine, theirs = (lengths(tape) for tape in (accumulated, full))
    for key in mine.keys() & theirs.keys():
        if mine[key] == theirs[key]:
            continue
        ours, others = (rows_of(tape, key) for tape in (accumulated, full))
        if same_arrays(ours, others):
            found.alike |= mine[key] | theirs[key]
        else:
            found.apart.append(f"integers of {key[0]}: {RESHAPED}")
            found.alike |= mine[key] | theirs[key]
    return found


def lengths(tape: Tape) -> dict[tuple[str, str], set[str]]:
    """The sites of every line."""
    found: dict[tuple[str, str], set[str]] = {}
    for site in tape.integers:
        found.setdefault(stem(site), set()).add(site)
    return found


def rows_of(tape: Tape, key: tuple[str, str]) -> list[Array] | None:
    """The samples of a line in the order in which they were made; None where an array is no table of samples."""
    taken: Counter[str] = Counter()
    rows: list[Array] = []
    for site in tape.drawn:
        array = tape.integers[site][taken[site]]
        taken[site] += 1
        if stem(site) == key:
            if np.ndim(array) != 2:
                return None
            rows.extend(np.asarray(array))
    return rows


def same_arrays(ours: list[Array] | None, others: list[Array] | None) -> bool:
    """Whether the samples are the same but for their padding, which is one number, on one side."""
    if ours is None or others is None or len(ours) != len(others):
        return False
    return any(_padded(ours, others, left) for left in (False, True))


def _padded(ours: list[Array], others: list[Array], left: bool) -> bool:
    pads: set[Any] = set()
    for a, b in zip(ours, others, strict=True):
        x, y = sorted((a[::-1], b[::-1]) if left else (a, b), key=len)
        if not np.array_equal(x, y[: len(x)]):
            return False
        pads |= set(y[len(x) :].tolist())
    return len(pads) <= 1


# -- Samples of a window in another order: no other data, but places in the streams that do not match.
SHUFFLED = "the samples of every window are those of the full batch, in another order: they cannot be matched"


def arrays_of(tape: Tape, kind: str, name: str) -> list[Array]:
    """What the function itself made for a source, array by array: floats of a leaf, or the integers of a site."""
    if kind == "integers":
        return list(tape.integers.get(name, []))
    leaves = [leaf for leaf in tape.leaves() if (leaf.source.kind, leaf.source.name) == (kind, name)]
    leaves.sort(key=lambda leaf: leaf.source.first)
    return [np.asarray(leaf.value if leaf.natural is None else leaf.natural) for leaf in leaves]


def shuffled(accumulated: Tape, full: Tape, kind: str, name: str) -> bool:
    """Whether each array of the full batch has the rows of as many samples of the micro-batches, in another order."""
    ours, theirs = (arrays_of(tape, kind, name) for tape in (accumulated, full))
    if len(ours) <= len(theirs) or any(a.ndim == 0 for a in (*ours, *theirs)):
        return False
    rows = [row.tobytes() for a in ours for row in a]
    return len(rows) == sum(map(len, theirs)) and _windows(rows, theirs)


def _windows(rows: Sequence[bytes], theirs: Sequence[Array]) -> bool:
    begin = 0
    for array in theirs:
        if Counter(rows[begin : begin + len(array)]) != Counter(row.tobytes() for row in array):
            return False
        begin += len(array)
    return True


OVERWRITES = frozenset({"copy_", "zero_", "fill_", "set_"})
"""Operators whose first argument is only written: what it held, perhaps nothing yet, does not count."""

OTHERS = "not the numbers that the full batch takes"
REPEATED = "several micro-batches are the same numbers"
FRESH = "most of these numbers occur in one run only: what is made at random in other portions cannot be matched"
DRAWN = "the two runs draw other random integers: whether they choose the same samples cannot be seen"


@dataclass(frozen=True, slots=True)
class TapeDifference:
    """Where two tapes part: what, and the user's line. `kind`: value, operator, length."""

    kind: str
    what: str
    place: Location


def unmatched(accumulated: Tape, full: Tape) -> list[str]:
    """Sources of which the two runs took different amounts, in words; integers that differ too."""
    ours, theirs = streams(accumulated), streams(full)
    wrong = []
    for key in sorted(ours.keys() | theirs.keys()):
        a, b = ours.get(key), theirs.get(key)
        if a is None or b is None or a.size != b.size:
            counts = f"{0 if a is None else a.size} against {0 if b is None else b.size} numbers"
            wrong.append(f"{described(key)}: {counts} in the full batch's run")
    padding = repadded(accumulated, full)
    return wrong + padding.apart + integers_apart(accumulated, full, padding.alike)


def described(key: Key) -> str:
    """A source in words."""
    kind, name = key
    return f"parameter {name}" if kind == "param" else f"{kind} of {name}"


def integers_apart(accumulated: Tape, full: Tape, aside: Set[str] = frozenset()) -> list[str]:
    """Sites whose integer data are not the same stream in both runs, but for some that were compared otherwise."""
    wrong = []
    for site in sorted((accumulated.integers.keys() | full.integers.keys()) - aside):
        mine, theirs = (t.integers.get(site, []) for t in (accumulated, full))
        block = blocks_of({site: {np.shape(a) for a in mine}}).get(site, ())
        a, b = joined(mine, ()), joined(theirs, block)
        if a.shape != b.shape or not np.array_equal(a, b):
            other = f"{a.size} and {b.size} numbers, not the same stream"
            other = DRAWN if site in accumulated.chance & full.chance and not alike(mine) else other
            words = SHUFFLED if shuffled(accumulated, full, "integers", site) else other
            wrong.append(f"integers of {site}: {words}")
    return wrong


def alike(arrays: Sequence[Array]) -> bool:
    """Whether several arrays are all the same: not by chance."""
    return len(arrays) > 1 and all(np.array_equal(arrays[0], other) for other in arrays[1:])


def joined(arrays: list[Array], block: Shape) -> Array:
    """A stream of arrays as one flat array, micro-batch by micro-batch."""
    return np.concatenate([in_order(a, block) for a in arrays]) if arrays else np.zeros(0, dtype=np.int64)


def naturals(tape: Tape) -> dict[Key, list[tuple[int, bool, Array]]]:
    """What the user's function itself put into each data leaf: place in its stream, whether it came from outside."""
    found: dict[Key, list[tuple[int, bool, Array]]] = {}
    for leaf in tape.leaves():
        if leaf.source.kind == "data":
            own = leaf.value if leaf.natural is None else leaf.natural
            item = (leaf.source.first, leaf.unseen, in_order(np.asarray(own, dtype=np.float64), leaf.laid))
            found.setdefault((leaf.source.kind, leaf.source.name), []).append(item)
    return {key: sorted(items, key=lambda item: item[0]) for key, items in found.items()}


def contents_apart(accumulated: Tape, full: Tape) -> list[str]:
    """Data that the function made otherwise in the two runs, in words.

    What entered from outside torch must be the same numbers. Random numbers drawn in other shapes need not be; but the
    micro-batches must not be one draw again and again.
    """
    ours, theirs = naturals(accumulated), naturals(full)
    wrong = []
    for key in sorted(ours.keys() & theirs.keys()):
        a, b = (np.concatenate([item[2] for item in side[key]]) for side in (ours, theirs))
        outside = any(item[1] for item in (*ours[key], *theirs[key]))
        if a.size == b.size and outside and not same(a, b):
            words = SHUFFLED if shuffled(accumulated, full, *key) else OTHERS
            words = FRESH if np.intersect1d(a, b).size * 2 <= np.unique(a).size else words
            wrong.append(f"{described(key)}: {words}")
        elif a.size == b.size and np.unique(a).size < 0.9 * np.unique(b).size:
            wrong.append(f"{described(key)}: {REPEATED}")
    return wrong


def same(a: Any, b: Any) -> bool:
    """Equal bit for bit as numbers, NaN included."""
    x, y = np.asarray(a), np.asarray(b)
    return x.shape == y.shape and np.array_equal(x, y, equal_nan=x.dtype.kind == "f")


def differences(one: Tape, other: Tape, limit: int = 5) -> list[TapeDifference]:
    """Where two recordings of one run part; leaves and events may hold other values, nothing else may."""
    found: list[TapeDifference] = []
    numbering: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for a, b in zip_longest(_structure(one), _structure(other)):
        if a is None or b is None:
            extra = a if a is not None else b
            found.append(TapeDifference("length", "one recording goes on where the other ends", _place(extra)))
            return found
        what = _apart(a, b, numbering)
        if what:
            found.append(TapeDifference(*what, _place(a)))
        if what and (what[0] == "operator" or len(found) >= limit):
            return found
    return found


def _structure(tape: Tape) -> Iterator[Entry | Leaf | Event]:
    for item in tape.items:
        if isinstance(item, Entry | Leaf) or (isinstance(item, Event) and item.kind == "item"):
            yield item


def _place(item: Any) -> Location:
    return getattr(item, "place", NOWHERE)


Numbering = tuple[dict[int, int], dict[int, int]]


def _apart(a: Any, b: Any, numbering: Numbering) -> tuple[str, str] | None:
    if type(a) is not type(b):
        return "operator", "other operators run"
    if isinstance(a, Leaf):
        return _leaf(a, b)
    if isinstance(a, Event):
        return _branch(a, b)
    if a.op != b.op:
        return "operator", f"{a.op} against {b.op}"
    first = 1 if a.op.split(".")[1] in OVERWRITES else 0
    for x, y in ((a.args[first:], b.args[first:]), (dict(a.kwargs), dict(b.kwargs)), (a.outs, b.outs)):
        what = _argument(x, y, numbering)
        if what:
            return what[0], f"{a.op}: {what[1]}"
    if not all(same(v, b.seen.get(k, v)) for k, v in a.seen.items() if v.dtype.kind in "iu"):
        return "operator", f"{a.op} chose other elements"
    return None


def _leaf(a: Leaf, b: Leaf) -> tuple[str, str] | None:
    """What a leaf was before other numbers were put there must not depend on other leaves.

    A parameter may: it is made from random numbers that are leaves too, and it is a leaf from its first use on.
    """
    if a.source != b.source or a.ref.shape != b.ref.shape:
        return "operator", f"{described((a.source.kind, a.source.name))} is not made alike"
    mine, other = (leaf.value if leaf.natural is None else leaf.natural for leaf in (a, b))
    if a.source.kind != "param" and not same(mine, other):
        return "value", f"{described((a.source.kind, a.source.name))} changed with other leaves"
    return None


def _branch(a: Event, b: Event) -> tuple[str, str] | None:
    x, y = a.values.get("value"), b.values.get("value")
    if x is not None and y is not None and a.detail.get("dtype") == "bool" and bool(x.any()) != bool(y.any()):
        return "operator", "a branch on data goes the other way"
    return None


def _argument(x: Any, y: Any, numbering: Numbering) -> tuple[str, str] | None:
    if isinstance(x, Ref) and isinstance(y, Ref):
        return _ref(x, y, numbering)
    if isinstance(x, Const) and isinstance(y, Const):
        return None if same(x.value, y.value) else ("value", f"a constant of {x.dtype} moved with the leaves")
    if isinstance(x, Mapping) and isinstance(y, Mapping):
        return _argument([x[k] for k in sorted(x)], [y[k] for k in sorted(y)], numbering)
    if isinstance(x, list | tuple) and isinstance(y, list | tuple) and len(x) == len(y):
        return next((w for p, q in zip(x, y, strict=True) if (w := _argument(p, q, numbering))), None)
    if isinstance(x, float) and isinstance(y, float):
        return None if same(x, y) else ("value", f"a Python number moved with the leaves: {x!r} against {y!r}")
    if type(x) is not type(y) or x != y:
        return "operator", f"{x!r} against {y!r}"
    return None


def _ref(x: Ref, y: Ref, numbering: Numbering) -> tuple[str, str] | None:
    a = numbering[0].setdefault(x.storage, len(numbering[0]))
    b = numbering[1].setdefault(y.storage, len(numbering[1]))
    if a != b or (x.dtype, x.offset, x.shape, x.stride) != (y.dtype, y.offset, y.shape, y.stride):
        return "operator", "another tensor"
    return None


def _number(name: Key) -> int:
    """A seed for a leaf: the same wherever the user's file lies."""
    return crc32("/".join(name).rpartition("/")[2].encode(errors="surrogatepass"))


def near(values: Mapping[Key, Array], key: int, size: float) -> dict[Key, Array]:
    """Every leaf moved by at most `size` of itself (of 1, where it is 0): so little that the path stays. fp32-exact."""
    found: dict[Key, Array] = {}
    for name in sorted(values):
        stream, generator = values[name], np.random.default_rng([key, _number(name)])
        shift = generator.uniform(-size, size, stream.size) * np.where(stream == 0, 1.0, np.abs(stream))
        found[name] = (stream + shift).astype(np.float32).astype(np.float64)
    return values.with_values(found) if isinstance(values, Streams) else Streams(found, {})


def moved(values: Mapping[Key, Array], key: int, scale: float = 1.0) -> dict[Key, Array]:
    """Other values for every leaf: each stream's own numbers in another order, moved a little, times `scale`.

    The numbers keep their range, so that a logarithm or a square root of them still exists. fp32-exact.
    """
    found: dict[Key, Array] = {}
    for name in sorted(values):
        stream, generator = values[name], np.random.default_rng([key, _number(name)])
        factor = generator.uniform(0.75, 1.25, stream.size)
        spread = generator.uniform(-0.25, 0.25, stream.size) * (np.abs(stream).mean() + 0.1) if stream.size else 0.0
        shift = spread if np.any(stream < 0) or not np.any(stream) else 0.0
        found[name] = np.asarray((generator.permutation(stream) * factor + shift) * scale, dtype=np.float32).astype(
            np.float64
        )
    return values.with_values(found) if isinstance(values, Streams) else Streams(found, {})


# -- The roots of the two runs, window by window.

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

    def place(self) -> Location:
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
    place: Location
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


@dataclass(slots=True)
class Decision:
    """What a domain says of every quantity. `constants`: equal up to constants, each with its bound, in words."""

    domain: str
    reach: str
    equal: list[Quantity] = field(default_factory=list)
    apart: list[Quantity] = field(default_factory=list)
    constants: list[tuple[Quantity, str]] = field(default_factory=list)
    unknown: list[tuple[Quantity | None, Outcome, str]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    error_bound: str = ""
    examples: dict[str, Any] = field(default_factory=dict)

    def of(self, group: str, among: Sequence[Quantity]) -> list[Quantity]:
        """Quantities of one group."""
        return [q for q in among if q.group == group]


MOST_OPERATIONS = 150_000
"""Scalar operations of a tape up to which the real domain is tried, unless a user asks for another bound."""


def operations(entry: Entry) -> int:
    """Scalar operations of an operator, roughly: the elements that it touches, products summed over included."""
    outs = sum(ref.count for ref in entry.writes)
    name = entry.op.split(".")[1]
    if any(word in name for word in ("mm", "mv", "linear", "conv", "attention")):
        tensors = [ref for ref in _refs(entry.args) if ref.shape]
        return outs * max((ref.shape[-1] for ref in tensors), default=1)
    return outs + sum(ref.count for ref in _refs(entry.args))


def _refs(args: Iterable[Any]) -> Iterable[Ref]:
    for a in args:
        if isinstance(a, Ref):
            yield a
        elif isinstance(a, list | tuple):
            yield from _refs(a)


def size_of(tape: Tape) -> int:
    """Scalar operations of a tape."""
    return sum(map(operations, tape.entries()))
