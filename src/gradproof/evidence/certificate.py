"""Checks the certificate of a training step: `python -m gradproof.evidence.certificate FILE`.

A certificate is the log of one run. From it alone this file works out what the gradient of each parameter is made of at
each optimizer step: with which exact weight each sample is in it. It has laws of its own (`step_laws`), and uses the
standard library alone. It believes nothing that it can work out: each argument has to be what an earlier record made,
in the version that is meant, and a claim has to be what follows.

Exit code 0: every obligation is accepted. 1: one is refused. 4: one is not checked. 2: the file is no certificate.
"""

from __future__ import annotations

import hashlib
import json
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from gradproof.evidence import step_laws as tables
from gradproof.evidence.step_laws import (
    NOBODY,
    SEVERAL,
    Contents,
    Items,
    Laws,
    OperatorCall,
    Shape,
    Unfollowed,
    is_reference,
)

FORMAT = "gradproof-step-log/1"
EQUAL, STALE, DATA, WIDTH, CLIP = "GA-EQ-001", "GA-INV-002", "GA-DATA-001", "GA-INV-004", "GA-INV-005"
ACCEPTED, OPEN, REFUSED = "accepted", "not checked", "refused"
CODES = {REFUSED: 1, OPEN: 4, ACCEPTED: 0}
MALFORMED = 2
OBLIGATIONS = {
    DATA: "each sample is in the gradients of one window",
    EQUAL: "every sample of a window has one weight",
    STALE: "no gradient has a part of another window",
    WIDTH: "no sum over micro-batches is below fp32",
    CLIP: "no number that scales gradients is made of a part of a window",
}
NEAR = Fraction(1, 2**20)
"""A constant of Python's may be a rounded number: 1/3 is."""
MOST = 2**30
"""Bytes of a log."""
KNOWN = frozenset([*tables.LAWS, *tables.FILLED, *tables.GIVEN, *tables.SAME, *tables.RESHAPED, *tables.FUNCTIONS])
Place = tuple[int, Shape, Shape]
"""Where a tensor lies in its storage: offset, sizes and strides, in elements."""
Reference = dict[str, int]
Value = Contents | Unfollowed
NARROW = ("float16", "bfloat16", "float8")


class Malformed(Exception):
    """The file is no certificate, or not a whole one."""


class Contradiction(Exception):
    """A record does not follow from those before it, or (`status`) nothing is known from there on."""

    def __init__(self, why: str, status: str = REFUSED) -> None:
        super().__init__(why)
        self.status = status


class TensorRecord(NamedTuple):
    """A tensor of the log."""

    storage: int
    place: Place
    dtype: str


@dataclass(slots=True)
class StorageContent:
    """What one storage holds: what was written, and the values of views since then. `version` counts the writes."""

    version: int = 0
    written: dict[Place, Value] = field(default_factory=dict)
    views: dict[Place, Value] = field(default_factory=dict)


def span(place: Place) -> int:
    """Elements from the first to the last of a tensor, both included."""
    return 0 if 0 in place[1] else 1 + sum((n - 1) * by for n, by in zip(place[1], place[2], strict=True))


def lies(c: OperatorCall, whole: Place, part: Place, taken: int) -> bool:
    """Whether a view lies where the operator puts it. `taken`: the rows of the views before it."""
    (start, shape, stride), (offset, own, steps) = whole, part
    if c.name in tables.SAME:
        return whole == part
    if c.name in tables.RESHAPED:
        return (offset, prod(own), span(part)) == (start, prod(shape), span(whole))
    (ins,), outs = tables.LAWS[c.name].letters(c)
    axis = tables.cut_axis(c) if c.name in tables.CUTS else -1
    rows = range(shape[axis]) if axis >= 0 else range(0)
    if c.name == "slice":
        rows = rows[c.arg(2, "start") : c.arg(3, "end") : c.arg(4, "step", 1)]
    elif c.name == "select":
        rows = rows[c.arg(2, "index") :][:1]
    elif axis >= 0:
        rows = rows[taken:][: own[axis] if c.name.startswith("split") else 1]
    for x, n, by in zip(outs[0], own, steps, strict=True):
        at = axis if x == "P" else -1 if x == "1" else ins.find(x)
        right = (len(rows), stride[at] * rows.step) if x == "P" else (shape[at], stride[at]) if at >= 0 else (n, 0)
        if (n != 1 or x == "P") and (n, by) != right:
            return False
    return offset == start + (rows.start * stride[axis] if axis >= 0 else 0)


class LoggedMemory:
    """The tensors of the log, and what their storages hold."""

    def __init__(self, laws: Laws) -> None:
        self.laws = laws
        self.tensors: list[TensorRecord] = []
        self.storages: dict[int, StorageContent] = {}

    def tensor(self, reference: Reference, rise: int = 0) -> TensorRecord:
        """The tensor of a reference. Raises Contradiction where another version is there."""
        ((number, version),) = reference.items()
        found = self.tensors[int(number)]
        there = self.storages.setdefault(found.storage, StorageContent()).version
        if there + rise != version:
            raise Contradiction(f"version {version} of storage {found.storage} is meant, and it is at {there}")
        return found

    def read(self, tensor: TensorRecord) -> Value:
        """What a tensor holds."""
        held, place = self.storages[tensor.storage], tensor.place
        if place in held.views:
            return held.views[place]
        for own, value in held.written.items():
            inside = own[0] <= place[0] and place[0] + span(place) <= own[0] + span(own) == own[0] + prod(own[1])
            if own == place or (inside and isinstance(value, Contents) and self.laws.plain(value) is not None):
                return value
        return Unfollowed("a tensor across what was written" if held.written else "a tensor that no record made")

    def write(self, tensor: TensorRecord, value: Value) -> None:
        """A tensor holds a value now; what it shares memory with is read anew."""
        held, (start, shape, _) = self.storages[tensor.storage], tensor.place
        end, whole = start + span(tensor.place), span(tensor.place) == prod(shape)
        held.views.clear()
        for own in list(held.written):
            if own == tensor.place or (whole and start <= own[0] and own[0] + span(own) <= end):
                del held.written[own]
            elif own[0] < end and start < own[0] + span(own):
                held.written[own] = Unfollowed("a write to a part of a tensor")
        held.written[tensor.place] = held.views[tensor.place] = value

    def sum_of(self, reference: Reference) -> Value:
        """What a gradient holds: rows of samples are none."""
        value = self.read(self.tensor(reference))
        return (
            value if isinstance(value, Unfollowed) or value.axis < 0 else Unfollowed("rows of samples for a gradient")
        )


class StepChecker:
    """Reads the records in order, and judges each optimizer step."""

    def __init__(self) -> None:
        self.laws = Laws()
        self.memory = LoggedMemory(self.laws)
        self.found: dict[str, dict[str, list[str]]] = {name: {} for name in OBLIGATIONS}
        self.run: dict[str, int] = {}
        self.counts: Counter[str] = Counter()
        self.types: dict[int, str] = {}
        self.reads, self.numbers = 0, 0
        self.versions: dict[str, int] = {}
        self.passes: list[tuple[dict[int, Fraction], dict[str, Items]]] = []
        """Of each backward pass the weight of each sample in what it began at, and the gradients before it."""
        self.shares: dict[tuple[str, int], set[Fraction]] = {}
        self.gained: set[str] = set()
        self.losses: set[str] = set()
        self.applied: set[int] = set()
        self.steps: list[dict[int, Fraction]] = []
        self.ended = self.blind = self.running = False

    def note(self, status: str, why: str, *names: str) -> None:
        """Something that keeps obligations from being accepted."""
        for name in names or OBLIGATIONS:
            self.found[name].setdefault(status, []).append(why)

    def unknown(self, why: str) -> None:
        """A value is not known: what seems to be missing from here on is no reason to refuse, and none to accept."""
        self.note(OPEN, why, EQUAL, DATA, STALE, CLIP)
        self.blind = True

    def check(self, lines: Sequence[str]) -> None:
        """Check every record. Raises Malformed for one that is none."""
        rules: dict[str, Callable[..., None]] = {
            "tensor": self.tensor, "source": self.source, "operator": self.operator, "backward": self.backward,
            "ended": self.after, "step": self.step, "stepped": self.stepped, "end": self.end, "read": self.read,
            "hook": lambda at: self.unknown(f"the user's code runs inside of a backward pass: {at}"),
            "repeat": lambda at: self.note(OPEN, f"data or draws hold what earlier ones held: {at}", DATA, EQUAL),
            "lost": self.lost, FORMAT: self.run.update,
        }  # fmt: skip
        try:
            for number, line in enumerate(lines):
                kind, *rest = json.loads(line)
                if (kind == FORMAT) != (number == 0) or self.ended:
                    raise Malformed(f"record {number} is out of place")
                rules[kind](*([rest[0] - number, *rest[1:]] if kind == "end" else rest))
        except Contradiction as found:
            self.found = {name: {found.status: [f"record {number}: {found}"]} for name in OBLIGATIONS}
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as found:
            raise Malformed(f"record {number} cannot be read: {type(found).__name__}: {found}") from found
        else:
            if not self.ended:
                raise Malformed("the last record is missing")

    def read(self, at: str, how: str) -> None:
        """Python has read numbers."""
        self.reads += 1

    def lost(self, *why: str) -> None:
        """The recorder lost sight of a value."""
        raise Contradiction(why[-1], OPEN)

    def tensor(self, storage: int, offset: int, shape: list[int], stride: list[int], dtype: str) -> None:
        """A tensor."""
        if self.types.setdefault(storage, dtype) != dtype:
            raise Contradiction(f"storage {storage} has two types")
        self.memory.tensors.append(TensorRecord(storage, (offset, tuple(shape), tuple(stride)), dtype))

    def source(self, reference: Reference, writes: int, kind: str, *rest: Any) -> None:
        """A tensor that no operator made: data, a parameter, a number or a constant."""
        tensor = self.memory.tensor(reference, writes)
        held, shape = self.memory.storages[tensor.storage], tensor.place[1]
        value: Value = Unfollowed(str(rest[0]))
        if kind == "data":
            name, axis, owners, least = rest
            each = shape[axis] // len(owners) if axis >= 0 else 0
            if len(set(owners)) != len(owners) or min(owners) < 0 or (axis >= 0 and each * len(owners) != shape[axis]):
                raise Contradiction("data whose rows are not those of its samples")
            part = (*shape[:axis], each, *shape[axis + 1 :])
            term = self.laws.make("data", (name, tensor.dtype, least), (), part)
            rows = Contents(dict.fromkeys([(term, owner) for owner in owners], Fraction(1)), axis, each)
            value = rows if axis >= 0 else Unfollowed("a sample that has no axis of samples")
        elif kind == "parameter":
            if rest[0] in self.versions or rest[1]:
                raise Contradiction(f"{rest[0]} is made twice")
            self.versions[rest[0]], value = 0, self.laws.leaf("parameter", (rest[0], 0), shape)
        elif kind in ("number", "constant"):
            plain = Fraction(*map(int, rest[0].split("/"))) if kind == "number" else None
            value = self.laws.leaf("constant", rest[0], shape) if plain is None else self.laws.number(plain)
        before = self.memory.read(tensor)
        made = isinstance(before, Contents) and before.owned and kind != "parameter"
        if made if writes else held.written:
            raise Contradiction("something that is no operator writes over what one made")
        if writes:
            held.version += 1
            self.memory.write(tensor, value)
        else:
            held.views[tensor.place] = value

    def operator(
        self, full: str, args: list[Any], named: dict[str, Any], results: list[Any], written: list[Any]
    ) -> None:
        """An operator. One on lists of tensors is the same operator on each."""
        self.counts[full] += 1
        name = full.partition(".")[0].removeprefix("unsafe_")
        listed = name.startswith("_foreach_")
        inside = name.endswith("_") and not name.endswith("__") and (listed or is_reference(args[0]))
        name = name.removeprefix("_foreach_").removesuffix("_" if inside else "")
        count = len(args[0]) if listed else 1
        calls = [
            [a[i] if listed and isinstance(a, list) and len(a) == count else a for a in args] for i in range(count)
        ]
        targets = [self.memory.tensor(own[0]) for own in calls] if inside else []
        others = [self.memory.tensor(one) for one in written]
        known = listed or name in KNOWN
        if known and [t.storage for t in others] != [t.storage for t in targets]:
            raise Contradiction(f"{full} writes other tensors than it has to")
        if name in tables.VIEWS or (not inside and self.aliases(args, results)):
            self.views(name, args, named, [self.memory.tensor(one) for one in results])
            return
        if name == "_local_scalar_dense":
            value = self.memory.read(self.memory.tensor(args[0]))
            self.numbers += isinstance(value, Contents) and value.owned
        made = (targets or [self.fresh(one) for one in results]) + ([] if known else others)
        each = [[one] for one in made] if listed else [made]
        found = [self.values(name, own, named, outs) for own, outs in zip(calls, each, strict=True)]
        self.rises(made)
        for tensor, value in zip(made, [one for own in found for one in own], strict=True):
            self.memory.write(tensor, value)
            self.narrow(tensor, value)

    def aliases(self, args: list[Any], results: list[Any]) -> bool:
        """Whether a result lies in the storage of the first argument."""
        both = [int(next(iter(one))) for one in (*args[:1], *results[:1]) if is_reference(one)]
        return len(both) == 2 and len({self.memory.tensors[number].storage for number in both}) == 1

    def rises(self, tensors: Sequence[TensorRecord]) -> None:
        """The storages of tensors have another version."""
        for storage in {t.storage for t in tensors}:
            self.memory.storages.setdefault(storage, StorageContent()).version += 1

    def values(self, name: str, args: list[Any], named: dict[str, Any], made: list[TensorRecord]) -> list[Value]:
        """What an operator makes."""
        own = [self.memory.tensor(one) for one in references([args, named])]
        if name == "copy":
            own, name = own[1:], "copy" if own[1].place[1] == own[0].place[1] else "expand"
        kinds = {t.dtype for t in (*own, *made)}
        if name in ("add", "sub") and len({t.dtype for t in own}) == 1 and len(kinds) > 1:
            raise Contradiction(f"{name} makes another type than that of its arguments")
        if name in tables.SAME and len(kinds) > 1 and any("float" not in kind for kind in kinds):
            name = "cast"
        held = [self.memory.read(t) for t in own]
        lost = next((value for value in held if isinstance(value, Unfollowed)), None)
        shapes, outs = [t.place[1] for t in own], [t.place[1] for t in made]
        try:
            if lost is not None and name not in tables.FILLED and name not in tables.GIVEN:
                raise lost
            plain = [value if isinstance(value, Contents) else Contents({}) for value in held]
            return [*self.laws.result(OperatorCall(name, plain, shapes, args, named, outs))]
        except Unfollowed as found:
            return [found] * len(outs)

    def fresh(self, reference: Reference) -> TensorRecord:
        """A result with a storage of its own."""
        found = self.memory.tensors[int(next(iter(reference)))]
        if found.storage in self.memory.storages:
            raise Contradiction(f"storage {found.storage} is made twice")
        return found

    def narrow(self, tensor: TensorRecord, value: Value) -> None:
        """A sum over two micro-batches below fp32 is refused."""
        if tensor.dtype.startswith(NARROW) and isinstance(value, Contents) and value.axis < 0:
            every = [value, *self.laws.aggregates(term for term, _ in value.items)]
            if len({owner // self.run["micro_batch_size"] for one in every for owner in one.owners if owner >= 0}) > 1:
                self.note(REFUSED, f"a {tensor.dtype} tensor holds a sum over micro-batches", WIDTH)

    def views(self, name: str, args: list[Any], named: dict[str, Any], made: list[TensorRecord]) -> None:
        """Results that share the storage of the argument, and lie where they have to."""
        whole, taken = self.memory.tensor(args[0]), 0
        if len(args) > 1 and isinstance(args[1], str):
            raise Contradiction("the bytes of a tensor are read as another type", OPEN)
        held = self.memory.storages[whole.storage]
        for tensor, value in zip(made, self.values(name, args, named, made), strict=True):
            c = OperatorCall(name, [], [whole.place[1]], args, named, [tensor.place[1]])
            known = name in tables.VIEWS or name in tables.SAME
            if tensor.storage != whole.storage or (known and not lies(c, whole.place, tensor.place, taken)):
                raise Contradiction(f"the result of {name} does not lie where it has to")
            taken += 1 if name == "unbind" else tensor.place[1][tables.cut_axis(c)] if name.startswith("split") else 0
            if tensor.place not in held.written:
                held.views.setdefault(tensor.place, value if known else Unfollowed(name))

    # Backward passes and optimizer steps

    def held(self, gradients: list[Any]) -> dict[str, Items]:
        """The terms of gradients."""
        found = {name: self.memory.sum_of(reference) for name, reference in gradients}
        return {name: value.items for name, value in found.items() if isinstance(value, Contents)}

    def turns(self, running: bool) -> None:
        """A backward pass begins or ends: one inside of another is not followed, nor a step inside of one."""
        if self.running == running:
            raise Contradiction("a backward pass inside of another, or without its end", OPEN)
        self.running = running

    def backward(self, roots: list[Any], seeds: list[Any], gradients: list[Any]) -> None:
        """A backward pass begins: how its loss weighs each sample."""
        self.turns(True)
        weights = dict[int, Fraction]()
        values = [self.memory.sum_of(one) for one in (*roots, *seeds)]
        ones: list[Value] = [self.laws.number(1)] * len(roots)
        for value, seed in zip(values[: len(roots)], values[len(roots) :] or ones, strict=True):
            factor = self.laws.plain(seed) if isinstance(seed, Contents) else None
            if isinstance(value, Unfollowed) or value.factors or factor is None:
                why = str(value) if isinstance(value, Unfollowed) else "a loss that is no plain sum"
                self.unknown(why)
                continue
            for (term, owner), by in value.items.items():
                if owner < 0 or owner in weights:
                    self.unknown("a loss with several terms of a sample, or of none or of several")
                weights[owner] = by * factor
                while term not in self.laws.kinds and self.laws.keys[term][0] in tables.VIEWS:
                    term = self.laws.keys[term][2][0]
                self.losses.add(self.laws.kinds.get(term, ""))
        self.passes.append((weights, self.held(gradients)))

    def after(self, gradients: list[Any], returned: list[Any]) -> None:
        """A backward pass has ended: what a unit of the loss of a sample brought to each gradient."""
        self.turns(False)
        weights, before = self.passes[-1]
        for name, items in [*self.held(gradients).items(), *self.held([("", one) for one in returned]).items()]:
            for (term, owner), by in items.items():
                gain = by - before.get(name, {}).get((term, owner), Fraction(0))
                if gain and weights.get(owner):
                    self.gained.add(name)
                    self.shares.setdefault((name, term), set()).add(gain / weights[owner])

    def step(self, optimizer: int, rows: list[Any]) -> None:
        """An optimizer steps: what its gradients are made of."""
        at, size = len(self.steps), self.run["accum_steps"] * self.run["micro_batch_size"]
        last = self.run["tail"] * self.run["micro_batch_size"] if at == self.run["windows"] else size
        window = {owner for weights, _ in self.passes for owner in weights}
        found, sums = dict[int, set[Fraction]](), dict[str, Contents]()
        if optimizer or self.running or at >= self.run["windows"] + bool(self.run["tail"]):
            raise Contradiction("several optimizers, more steps than windows, or a step in a backward pass", OPEN)
        for name, version, *grads in rows:
            one = grads[0] if grads else None
            if self.versions.get(name, 0) != version:
                raise Contradiction(f"{name} is stepped at version {version}")
            value = Unfollowed(f"the gradient of {name} is not handed on") if one is None else self.memory.sum_of(one)
            if isinstance(value, Contents):
                sums[name] = value
            elif one is not None or name in self.gained:
                self.note(OPEN if one else REFUSED, str(value))
                self.blind = True
        self.blind |= any(owner == SEVERAL for value in sums.values() for _, owner in value.items)
        for name, value in sums.items():
            self.judge(name, value, window, found)
        self.clipped(sums, window)
        weights = {owner: by.pop() for owner, by in found.items() if len(by) == 1}
        what, missing = f"window {at + 1}", shown(window - set(found))
        if not self.blind and (len(window) != last or {min(window), max(window)} != {at * size, at * size + last - 1}):
            self.note(REFUSED, f"{what} has samples {shown(window)}, not {last} from {at * size} on", DATA, EQUAL)
        if not self.blind and (set(found) != window or not found):
            self.note(REFUSED, f"samples {missing} are in no gradient of {what}", DATA, EQUAL)
            self.note(OPEN, f"{what} may have been zeroed inside", STALE)
        elif not self.blind and (set(weights) != window or min(weights.values()) < (1 - NEAR) * max(weights.values())):
            self.note(REFUSED, f"the samples of {what} have several weights", EQUAL)
        self.steps.append(weights)
        self.passes, self.gained = [], set()

    def judge(self, name: str, value: Contents, window: set[int], found: dict[int, set[Fraction]]) -> None:
        """The terms of one gradient."""
        what, by_term = f"the gradient of {name} in window {len(self.steps) + 1}", dict[int, set[int]]()
        for (term, owner), by in value.items.items():
            older = [own for own, version in self.laws.versions[term] if version != self.versions.get(own)]
            if older:
                self.note(REFUSED, f"{what} is made of an older {min(older)}", STALE, EQUAL)
            if owner == SEVERAL:
                self.unknown(f"{what}: {self.laws.keys[term][0]} of several samples")
            elif owner == NOBODY:
                self.note(OPEN, f"{what} has a part of no sample", STALE, EQUAL)
            elif owner not in window and not self.blind:
                self.note(REFUSED, f"{what} has a part of sample {owner}", STALE, EQUAL)
            else:
                by_term.setdefault(term, set()).add(owner)
                shares = self.shares.get((name, term)) or self.shares.get(("", term)) or set()
                if not shares and all(own != name for own, _ in self.shares):
                    shares = {share for (_, one), own in self.shares.items() if one == term for share in own}
                if len(shares) != 1:
                    self.note(OPEN, f"{what} was changed after its backward passes", EQUAL)
                found.setdefault(owner, set()).update(by / share for share in shares)
        for owners in by_term.values():
            if owners != window and not self.blind:
                self.note(REFUSED, f"{what} lacks samples {shown(window - owners)}", EQUAL, DATA)
                self.note(OPEN, f"{what} lacks samples: it may have been zeroed inside the window", STALE)

    def clipped(self, gradients: dict[str, Contents], window: set[int]) -> None:
        """Whether what scales gradients is made of whole gradients of the window."""
        several = {term for value in gradients.values() for term, owner in value.items if owner == SEVERAL}
        scaled = [*gradients.values(), *self.laws.aggregates(several)]
        factors = {term for value in scaled for term, _ in value.factors}
        self.applied |= factors
        applied = {key: by for value in gradients.values() for key, by in value.items.items()}
        sums = self.laws.aggregates(factors)
        owned = [{key: by for key, by in one.items.items() if key[1] >= 0} for one in sums]
        for own in (own for own in owned if own):
            parts = Counter(term for term, _ in own)
            if any(count != len(window) for count in parts.values()) or {owner for _, owner in own} != window:
                self.note(
                    REFUSED, f"a number of window {len(self.steps) + 1} is made of a part of its gradients", CLIP, EQUAL
                )
            elif len({by / applied[key] if key in applied else None for key, by in own.items()}) > 1:
                self.note(OPEN, "a number is made of something else than the gradients of its window", CLIP, EQUAL)
        alike = len({value.factors for value in gradients.values()}) == 1
        alike &= all(abs(power) == 1 for value in gradients.values() for _, power in value.factors)
        if factors and (not alike or set(applied) - {key for own in owned for key in own}):
            self.note(
                OPEN,
                "gradients are scaled by different numbers, twice by one, or by one that is not made of all",
                CLIP,
                EQUAL,
            )

    def stepped(self, own: list[Any], rest: list[Any]) -> None:
        """An optimizer has stepped: parameters and states are others."""
        every = [*own, *(("", one) for one in rest)]
        self.rises([self.memory.tensors[int(next(iter(one)))] for _, one in every])
        for at, (name, one) in enumerate(every):
            tensor = self.memory.tensor(one)
            if name:
                self.versions[name] = self.versions.get(name, 0) + 1
            kind, held = ("parameter", (name, self.versions[name])) if name else ("state", (f"{len(self.steps)}", at))
            self.memory.write(tensor, self.laws.leaf(kind, held, tensor.place[1]))

    def end(self, missing: int, laws: dict[str, int], claim: dict[str, str]) -> None:
        """The last record: what was logged, and what is claimed."""
        self.ended = True
        if missing or laws != dict(self.counts) or self.numbers > self.reads:
            raise Contradiction(
                "the log is not what its last record says, or Python reads a number and no record says so"
            )
        wanted, kind, total = self.run["windows"] + bool(self.run["tail"]), claim["loss"], claim["total"]
        if len(self.steps) != wanted:
            self.note(REFUSED, f"{len(self.steps)} optimizer steps in {wanted} windows")
        if self.laws.scalars - self.applied:
            self.note(OPEN, "a gradient is scaled by a number, and no step is handed what comes of it", CLIP)
        if not self.blind and self.losses != {kind}:
            self.note(
                REFUSED, f"the loss is claimed to be a {kind}, and is a {' and a '.join(sorted(self.losses))}", EQUAL
            )
        if (kind, total) not in (("mean", "1"), ("sum", "1"), ("sum", "samples")):
            self.note(OPEN, f"a loss of which it is not known whether it is a sum or a mean: {kind}, {total}", EQUAL)
        for at, weights in enumerate([] if self.blind else self.steps):
            expected, whole = 1 if total == "1" else len(weights), sum(weights.values(), Fraction(0))
            if abs(whole - expected) > NEAR * expected:
                self.note(REFUSED, f"the weights of window {at + 1} add up to {whole}, not to {expected}", EQUAL)

    def verdicts(self) -> list[tuple[str, str, str]]:
        """Each obligation with its status, and why."""
        weights = sorted({str(by.limit_denominator(10**6)) for step in self.steps for by in step.values()})
        said = {
            EQUAL: f": {', '.join(weights[:4])}",
            DATA: f": {sum(map(len, self.steps))} in {len(self.steps)} windows",
        }
        rows = []
        for name, found in self.found.items():
            status = next((one for one in (REFUSED, OPEN) if one in found), ACCEPTED)
            rows.append((name, status, found[status][0] if found else OBLIGATIONS[name] + said.get(name, "")))
        return rows


def references(value: Any) -> list[Reference]:
    """The tensors in arguments, in order."""
    if is_reference(value):
        return [value]
    rest = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [one for part in rest for one in references(part)]


def shown(samples: set[int]) -> str:
    """Samples in words."""
    return ", ".join(map(str, sorted(samples)[:8])) + (" ..." if len(samples) > 8 else "") or "of none"


def checked(data: bytes) -> StepChecker:
    """Check a certificate. Raises Malformed."""
    stream, made = zlib.decompressobj(), StepChecker()
    try:
        head, _, body = stream.decompress(data, MOST).partition(b"\n")
        lines = body.decode().splitlines()
    except (zlib.error, UnicodeDecodeError) as error:
        raise Malformed(f"it is no certificate: {error}") from error
    if not stream.eof or stream.unused_data or hashlib.sha256(body).hexdigest().encode() != head:
        raise Malformed("it is cut, or its digest is not that of its records")
    made.check(lines)
    return made


def main(words: Sequence[str]) -> int:
    """Check the certificate of a file, and print a line for each obligation."""
    try:
        if len(words) != 1:
            raise Malformed("give the path of one certificate")
        made = checked(Path(words[0]).read_bytes())
    except (OSError, Malformed) as error:
        print(f"GP415: {error}\n  expected: a certificate that gradproof check --certificate wrote", file=sys.stderr)
        return MALFORMED
    rows = made.verdicts()
    for name, status, why in rows:
        print(f"{name:12} {status:12} {why}")
    if made.reads:
        print(f"on the recorded path: Python read {made.reads} numbers")
    return next(code for one, code in CODES.items() if any(status == one for _, status, _ in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
