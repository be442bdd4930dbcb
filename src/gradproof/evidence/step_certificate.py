"""Checks the certificate of a training step: `python -m gradproof.evidence.step_certificate FILE`.

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
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Any

from gradproof.evidence.step_laws import (
    BLANK,
    FILLED,
    GIVEN,
    IGNORED,
    LAWS,
    MADE,
    NOBODY,
    REDUCTIONS,
    RESHAPED,
    SAME,
    SEVERAL,
    VIEWS,
    Content,
    Items,
    NotFollowed,
    OperatorCall,
    SampleRows,
    Shape,
    TermSum,
    TermTable,
    is_reference,
)

FORMAT = "gradproof-certificate/1"
EQUAL, STALE, DATA, WIDTH, CLIP = "GA-EQ-001", "GA-INV-002", "GA-DATA-001", "GA-INV-004", "GA-INV-005"
OBLIGATIONS = (DATA, EQUAL, STALE, WIDTH, CLIP)
ACCEPTED, OPEN, REFUSED = "accepted", "not checked", "refused"
CODES = {ACCEPTED: 0, REFUSED: 1, OPEN: 4}
MALFORMED = 2
NEAR = Fraction(1, 2**20)
"""A constant of Python's may be a rounded number: 1/3 is."""
MOST = 2**30
"""Bytes of a log."""
NARROW = ("float16", "bfloat16", "float8")
ZERO = TermSum({})


class Malformed(Exception):
    """The file is no certificate, or not a whole one."""


class Contradiction(Exception):
    """A record does not follow from those before it."""


class LostSight(Exception):
    """The recorder lost sight of a value: nothing is known from here on."""


class Laws:
    """What operators make of values."""

    def __init__(self) -> None:
        self.terms = TermTable()
        self.kinds: dict[int, str] = {}
        """Whether the loss of a sample was summed up, or averaged, over the samples."""

    def number(self, by: Fraction | int) -> TermSum:
        """One number everywhere."""
        return TermSum({(self.terms.one, NOBODY): Fraction(by)}) if by else ZERO

    def plain(self, value: Content) -> Fraction | None:
        """The number that a value is everywhere, or None."""
        if (
            not isinstance(value, TermSum)
            or value.factors
            or any(key != (self.terms.one, NOBODY) for key in value.items)
        ):
            return None
        return next(iter(value.items.values()), Fraction(0))

    def result(self, call: OperatorCall) -> list[Content]:
        """The values of the results of an operator."""
        lost = next((value for value in call.values if isinstance(value, NotFollowed)), None)
        name = call.name
        if name in FILLED or name in GIVEN:
            by = FILLED[name] if name in FILLED else call.arg(GIVEN[name], "value")
            return [self.filled(call, by)] * len(call.outs)
        if name in BLANK:
            return [NotFollowed(f"{name} makes memory that nothing was written to")] * len(call.outs)
        if lost is not None:
            return [lost] * len(call.outs)
        if name in MADE:
            return [self.one_term(name, call.attributes, call.outs[0])]
        special = {"add": self.added, "sub": self.added, "mul": self.multiplied, "div": self.multiplied}
        rule = special.get(name) or (self.reshaped if name in RESHAPED else self.parts if name in VIEWS else None)
        found = [call.values[0]] if name in SAME else None if rule is None else rule(call)
        if found is not None:
            return found
        if name in LAWS:
            return self.applied(call)
        if any(
            isinstance(value, SampleRows) or value.owned for value in call.values if not isinstance(value, NotFollowed)
        ):
            return [NotFollowed(name)] * len(call.outs)
        return self.shared(call, ())

    def filled(self, call: OperatorCall, by: Any) -> Content:
        """One number in every element."""
        if isinstance(by, bool | int | float) and abs(by) != float("inf"):
            return self.number(Fraction(by))
        return call.values[-1] if call.name == "fill" else self.one_term("full", str(by), call.outs[0])

    def one_term(self, name: str, attributes: Any, shape: Shape) -> TermSum:
        """A constant."""
        return TermSum({(self.terms.make(name, attributes, (), shape), NOBODY): Fraction(1)})

    def applied(self, call: OperatorCall) -> list[Content]:
        """An operator by its law."""
        law, outs = LAWS[call.name], list[Content]()
        ins, letters = law.letters(call)
        rows = [(i, v) for i, v in enumerate(call.values) if isinstance(v, SampleRows)]
        linear = (0,) if call.name == "masked_fill" and call.arg(2) == 0 else law.linear
        if call.name.startswith("nll") and call.arg(2 if call.name == "nll_loss_forward" else 3) is not None:
            return [NotFollowed(f"{call.name} with weights of classes")] * len(call.outs)
        if call.name in IGNORED and not self.counts(
            call.values[IGNORED[call.name][0]], call.arg(IGNORED[call.name][1], "ignore_index", -100)
        ):
            return [NotFollowed(f"{call.name} with labels that may be ignored")] * len(call.outs)
        if not rows:
            return self.shared(call, linear)
        letter, owners = ins[rows[0][0]][rows[0][1].axis], rows[0][1].owners
        why = self.coupled(call, ins, letter, owners)
        if why:
            return [NotFollowed(f"{call.name} {why}")] * len(call.outs)
        lead, by = rows[0][1].by if law.joint else Fraction(1), Fraction(1)
        kids = []
        for at, (value, shape) in enumerate(zip(call.values, call.shapes, strict=True)):
            own, kid = self.kid(value, shape)
            by *= own if at in linear else 1
            kids.append(kid if at in linear else self.terms.times(own / lead, kid))
        if not by:
            return [ZERO] * len(call.outs)
        count = Fraction(1, len(owners))
        average = call.name == "mean" or (
            call.name in REDUCTIONS and call.arg(REDUCTIONS[call.name], "reduction", 1) == 1
        )
        for at, text in enumerate(letters[: len(call.outs)]):
            axis, shape = text.find(letter), call.outs[at]
            each = shape[axis] // len(owners) if axis >= 0 else 0
            part = shape if axis < 0 else (*shape[:axis], each, *shape[axis + 1 :])
            term = self.terms.make(call.name, (at, call.attributes), kids, part)
            scaled = by * lead * (count if average and (axis < 0 or "backward" in call.name) else 1)
            outs.append(
                SampleRows(axis, each, owners, scaled, term)
                if axis >= 0
                else TermSum(dict.fromkeys(((term, s) for s in owners), scaled))
            )
            if axis < 0 and len(set(owners)) != len(owners):
                outs[-1] = NotFollowed(f"{call.name} of one sample twice")
            if axis < 0:
                self.kinds.setdefault(term, "mean" if average else "sum")
        if call.name == "nll_loss_forward" and letters[0] == "":
            outs[1] = self.number(prod(call.shapes[1]))
        return outs

    def counts(self, labels: Content, ignored: int) -> bool:
        """Whether no label can be the ignored one: they are data of which the least number is known."""
        if not isinstance(labels, SampleRows):
            return False
        key = self.terms.keys[labels.term]
        while key[0] in ("view", *VIEWS):
            key = self.terms.keys[key[2][0]]
        return key[0] == "data" and key[1][2] is not None and bool(ignored < key[1][2])

    def kid(self, value: Content, shape: Shape) -> tuple[Fraction, int]:
        """A coefficient and a term for an argument of no sample, or of a row of each."""
        if isinstance(value, SampleRows):
            return value.by, value.term
        assert isinstance(value, TermSum)
        if len(value.items) == 1 and not value.factors:
            (((term, _), by),) = value.items.items()
            return by, self.terms.make("number") if term == self.terms.one else term
        return Fraction(1) if value.items else Fraction(0), self.terms.named(value, shape)

    def coupled(self, call: OperatorCall, ins: Sequence[str], letter: str, owners: tuple[int, ...]) -> str:
        """Why an operator is not one operator on the rows of each sample; empty where it is."""
        if not letter.islower():
            return "makes samples of one another"
        sizes = {shape[text.index(letter)] for text, shape in zip(ins, call.shapes, strict=True) if letter in text}
        for value, text in zip(call.values, ins, strict=True):
            if isinstance(value, SampleRows) and (text[value.axis] != letter or value.owners != owners):
                return "meets samples in two orders"
            if isinstance(value, TermSum) and value.owned:
                return "meets a sum over samples"
            if isinstance(value, TermSum) and letter in text and self.plain(value) is None:
                return "meets a constant that differs from row to row"
        return "" if len(sizes) == 1 else "has rows of two lengths"

    def shared(self, call: OperatorCall, linear: tuple[int, ...]) -> list[Content]:
        """A function of whole arguments: of each term of a sum, where it is linear in it; else of the sum."""
        sums = [v for v in call.values if isinstance(v, TermSum)]
        owned = [at for at, value in enumerate(sums) if value.owned]
        kids = [self.terms.named(value, shape) for value, shape in zip(sums, call.shapes, strict=True)]
        outs: list[Content] = []
        for at, shape in enumerate(call.outs):
            if len(owned) == 1 and owned[0] in linear:
                made: Items = {}
                for (term, owner), by in sums[owned[0]].items.items():
                    kids[owned[0]] = (
                        self.terms.make("number", "", (term,), call.shapes[owned[0]])
                        if term == self.terms.one
                        else term
                    )
                    made[self.terms.make(call.name, (at, call.attributes), kids, shape), owner] = by
                outs.append(TermSum(made, sums[owned[0]].factors))
            else:
                term = self.terms.make(call.name, (at, call.attributes), kids, shape)
                outs.append(TermSum({(term, SEVERAL if owned else NOBODY): Fraction(1)}))
        return outs

    def added(self, call: OperatorCall) -> list[Content] | None:
        """A sum of two values."""
        sign, given = (-1 if call.name == "sub" else 1), [*call.values]
        if len(given) == 1:
            given.append(self.number(Fraction(call.args[1])))
        by, out = sign * Fraction(call.named.get("alpha", 1)), call.outs[0]
        left, right = given
        if not isinstance(left, TermSum) or not isinstance(right, TermSum):
            other = left if isinstance(right, TermSum) else right
            small = right if isinstance(right, TermSum) else left
            same = isinstance(small, TermSum) and not small.items and isinstance(other, SampleRows)
            if same and call.shapes[call.values.index(other)] == out:
                return [replace(other, by=other.by * (by if other is right else 1))]  # type: ignore[type-var]
            return (
                None if len(call.values) == 2 else self.applied(replace(call, values=given, shapes=[*call.shapes, ()]))
            )
        if left.factors != right.factors and left.items and right.items:
            return None
        shapes = [*call.shapes, ()]
        items = dict(self.stretched(left, shapes[0], out))
        for key, own in self.stretched(right, shapes[1], out).items():
            items[key] = items.get(key, Fraction(0)) + by * own
        return [TermSum({key: own for key, own in items.items() if own}, left.factors if left.items else right.factors)]

    def stretched(self, value: TermSum, shape: Shape, out: Shape) -> Items:
        """The terms of a sum, repeated to a shape."""
        if shape == out:
            return value.items
        return {
            (t if t == self.terms.one else self.terms.make("expand", "", (t,), out), s): by
            for (t, s), by in value.items.items()
        }

    def multiplied(self, call: OperatorCall) -> list[Content] | None:
        """A product or quotient with a number, or with a scalar that is made of several samples."""
        power = -1 if call.name == "div" else 1
        given = [*call.values, *([self.number(Fraction(call.args[1]))] if len(call.values) == 1 else [])]
        shapes = [*call.shapes, ()]
        if call.named.get("rounding_mode"):
            return [NotFollowed("div that rounds")]
        for at in (1, 0)[: 1 if power < 0 else 2]:
            value, other, by = given[1 - at], given[at], self.plain(given[at])
            whole = shapes[1 - at] == call.outs[0] or self.plain(value) is not None
            if by is not None and whole and not (power < 0 and not by):
                return [self.scaled(value, by if power > 0 else 1 / by)]
            if not isinstance(other, TermSum) or not isinstance(value, TermSum) or prod(shapes[at]) != 1 or not whole:
                continue
            if len(other.items) == 1 and not other.factors and value.owned:
                (((term, owner), own),) = other.items.items()
                if owner == SEVERAL:
                    powers = Counter(dict(value.factors))
                    powers[term] += power
                    made = self.scaled(value, own if power > 0 else 1 / own)
                    assert isinstance(made, TermSum)
                    return [TermSum(made.items, frozenset((t, n) for t, n in powers.items() if n))]
        return None

    def scaled(self, value: Content, by: Fraction) -> Content:
        """A value times a number."""
        if isinstance(value, SampleRows):
            return replace(value, by=value.by * by) if by else ZERO
        return (
            replace(value, items={key: own * by for key, own in value.items.items() if by})
            if isinstance(value, TermSum)
            else value
        )

    def reshaped(self, call: OperatorCall) -> list[Content]:
        """The same elements in order, in another shape."""
        (value,), (old,), (new,) = call.values, call.shapes, call.outs
        if len(call.args) > 1 and isinstance(call.args[1], str):
            return [NotFollowed("a tensor whose bytes are read as another type")]
        if not isinstance(value, SampleRows):
            assert isinstance(value, TermSum)
            return [
                value
                if old == new
                else TermSum({(self.viewed(t, new), s): by for (t, s), by in value.items.items()}, value.factors)
            ]
        before, behind, count = prod(old[: value.axis]), prod(old[value.axis :]), len(value.owners)
        for axis, size in enumerate(new):
            if prod(new[:axis]) == before and size % count == 0 and prod(new[axis:]) == behind:
                each = size // count
                part, was = (
                    (*new[:axis], each, *new[axis + 1 :]),
                    (*old[: value.axis], value.each, *old[value.axis + 1 :]),
                )
                return [
                    SampleRows(
                        axis, each, value.owners, value.by, value.term if part == was else self.viewed(value.term, part)
                    )
                ]
        return [NotFollowed(f"{call.name} mixes rows of samples")]

    def viewed(self, term: int, shape: Shape) -> int:
        """A term in another shape."""
        if term == self.terms.one:
            return term
        return self.terms.make(
            "view", "", (self.terms.keys[term][2] if self.terms.keys[term][0] == "view" else (term,)), shape
        )

    def parts(self, call: OperatorCall) -> list[Content] | None:
        """Views of one number are that number; a part of the axis of samples has the samples of its rows."""
        (value,) = call.values
        if self.plain(value) is not None:
            return [value] * len(call.outs)
        if not isinstance(value, SampleRows) or call.name not in ("slice", "split", "split_with_sizes"):
            return None
        rank, at = len(call.shapes[0]), 1 if call.name == "slice" else 2
        if call.arg(at, "dim", 0) % rank != value.axis or (call.name == "slice" and call.arg(4, "step", 1) != 1):
            return None
        start = call.arg(2, "start", 0) or 0 if call.name == "slice" else 0
        start, found = max(start + call.shapes[0][value.axis], 0) if start < 0 else start, list[Content]()
        for shape in call.outs:
            first, count = divmod(start, value.each)[0], shape[value.axis] // value.each
            even = start % value.each == 0 and shape[value.axis] % value.each == 0 and count
            found.append(
                replace(value, owners=value.owners[first : first + count])
                if even
                else NotFollowed(f"{call.name} of a part of a sample")
            )
            start += shape[value.axis]
        return found


Place = tuple[int, Shape, Shape]
"""Where a tensor lies in its storage: offset, sizes and strides, in elements."""


def span(place: Place) -> int:
    """Elements from the first to the last of a tensor, both included."""
    return 0 if 0 in place[1] else 1 + sum((n - 1) * by for n, by in zip(place[1], place[2], strict=True))


def contiguous(shape: Shape) -> Shape:
    """The strides of a tensor without gaps in the order of its axes."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


CUT = frozenset("select slice split split_with_sizes unbind".split())


def cut_axis(call: OperatorCall) -> int:
    """The axis that an operator cuts."""
    return int(call.arg(1 if call.name in ("select", "slice", "unbind") else 2, "dim", 0)) % len(call.shapes[0])


def offset_of(call: OperatorCall, whole: Place, part: Place, taken: int) -> int:
    """Where the view of a tensor begins; -1 where it is none. `taken`: the rows of views before it."""
    (start, shape, stride), (_, own, steps) = whole, part
    pairs, inner = (sorted(x for x in zip(*side, strict=True) if x[0] != 1) for side in ((shape, stride), (own, steps)))
    if call.name not in CUT:
        same = prod(own) == prod(shape) and span(whole) == span(part) if call.name in RESHAPED else inner == pairs
        return start if same or (call.name == "expand" and all(x in pairs or not x[1] for x in inner)) else -1
    axis = cut_axis(call)
    size, first, step, count = shape[axis], taken, 1, own[axis] if len(own) == len(shape) else 0
    if call.name in ("select", "slice"):
        at = call.arg(2, "start" if call.name == "slice" else "index") or 0
        first = min(at + size if at < 0 else at, size)
    if call.name == "slice":
        last, step = call.arg(3, "end", size), call.arg(4, "step", 1)
        last = size if last is None else min(last + size if last < 0 else last, size)
        count = max(0, -(-(last - first) // step))
    rest, kept = [
        [x for i, x in enumerate(zip(*side, strict=True)) if i != axis or not count]
        for side in ((shape, stride), (own, steps))
    ]
    rest = rest if count else rest[:axis] + rest[axis + 1 :]
    right = rest == kept and (not count or (own[axis], steps[axis]) == (count, stride[axis] * step))
    return start + first * stride[axis] if right and first + (count - 1) * step < size else -1


@dataclass(slots=True)
class StorageContent:
    """What one storage holds: what was written, and the values of views since then. `version` counts the writes."""

    version: int = 0
    written: dict[Place, Content] = field(default_factory=dict)
    views: dict[Place, Content] = field(default_factory=dict)


@dataclass(slots=True)
class PassRecord:
    """A backward pass: the weight of each sample in what it began at, and the gradients before it."""

    weights: dict[int, Fraction] = field(default_factory=dict)
    before: dict[str, Items] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """A tensor of the log."""

    storage: int
    place: Place
    dtype: str

    @property
    def narrow(self) -> bool:
        """Whether its type is below fp32."""
        return self.dtype.startswith(NARROW)


class Memory:
    """The tensors of the log, and what their storages hold."""

    def __init__(self, laws: Laws) -> None:
        self.laws = laws
        self.tensors: list[TensorRecord] = []
        self.storages: dict[int, StorageContent] = {}

    def tensor(self, reference: dict[str, int]) -> TensorRecord:
        """The tensor of a reference. Raises Contradiction where another version is there."""
        ((number, version),) = reference.items()
        found = self.tensors[int(number)]
        there = self.storages.setdefault(found.storage, StorageContent()).version
        if there != version:
            raise Contradiction(f"version {version} of storage {found.storage} is meant, and it is at {there}")
        return found

    def read(self, tensor: TensorRecord) -> Content:
        """What a tensor holds."""
        held, place = self.storages[tensor.storage], tensor.place
        if place in held.views:
            return held.views[place]
        for own, value in held.written.items():
            if own == place:
                return value
            inside = own[0] <= place[0] and place[0] + span(place) <= own[0] + span(own) == own[0] + prod(own[1])
            if inside and self.laws.plain(value) is not None:
                return value
            plain = all(stride == contiguous(shape) for _, shape, stride in (own, place))
            if inside and plain and own[0] == place[0] and prod(own[1]) == prod(place[1]):
                return self.laws.reshaped(OperatorCall("view", [value], [own[1]], [], {}, [place[1]]))[0]
        return NotFollowed("a tensor that no record made" if not held.written else "a tensor across what was written")

    def write(self, tensor: TensorRecord, value: Content) -> None:
        """A tensor holds a value now; what it shares memory with is read anew."""
        held, (start, shape, _) = self.storages[tensor.storage], tensor.place
        held.views.clear()
        whole = span(tensor.place) == prod(shape)
        for own in list(held.written):
            apart = own[0] + span(own) <= start or start + span(tensor.place) <= own[0]
            covered = whole and start <= own[0] and own[0] + span(own) <= start + span(tensor.place)
            if not apart and (covered or own == tensor.place):
                del held.written[own]
            elif not apart and (self.laws.plain(held.written[own]) is None or held.written[own] != value):
                held.written[own] = NotFollowed("a write to a part of a tensor")
        held.written[tensor.place] = value
        held.views[tensor.place] = value


class StepChecker:
    """Reads the records in order, and judges each optimizer step."""

    def __init__(self) -> None:
        self.laws = Laws()
        self.memory = Memory(self.laws)
        self.found: dict[str, dict[str, list[str]]] = {name: {} for name in OBLIGATIONS}
        self.run: dict[str, int] = {}
        self.claim: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self.reads: list[str] = []
        self.versions: dict[str, int] = {}
        self.types: dict[int, str] = {}
        self.numbers = 0
        self.gained: set[str] = set()
        self.passes: list[PassRecord] = []
        self.shares: dict[tuple[str, int], set[Fraction]] = {}
        self.losses: set[str] = set()
        self.steps: list[dict[int, Fraction]] = []
        self.ended = False
        self.blind = False

    def note(self, status: str, why: str, *names: str) -> None:
        """Something that keeps obligations from being accepted."""
        for name in names or OBLIGATIONS:
            self.found[name].setdefault(status, []).append(why)

    def check(self, lines: Sequence[str]) -> None:
        """Check every record. Raises Malformed for one that is none."""
        rules: dict[str, Callable[..., None]] = {
            "tensor": self.tensor, "source": self.source, "operator": self.operator, "backward": self.backward,
            "ended": self.after, "step": self.step, "stepped": self.stepped, "end": self.end,
            "read": lambda at, how: self.reads.append(how),
            "lost": self.lost,
            "hook": lambda at: self.note(OPEN, "code of the user's runs inside a backward pass", EQUAL, CLIP),
            FORMAT: self.run.update,
        }  # fmt: skip
        for number, line in enumerate(lines):
            try:
                kind, *rest = json.loads(line)
                if (kind == FORMAT) != (number == 0) or kind not in rules or self.ended:
                    raise Malformed(f"record {number} is out of place")
                if kind == "end":
                    rest[0] -= number
                rules[kind](*rest)
            except Contradiction as found:
                self.note(REFUSED, f"record {number}: {found}")
                return
            except LostSight as found:
                self.found = {name: {OPEN: [str(found)]} for name in OBLIGATIONS}
                return
            except (
                TypeError,
                ValueError,
                KeyError,
                IndexError,
                AttributeError,
                AssertionError,
                ArithmeticError,
                RecursionError,
            ) as found:
                raise Malformed(f"record {number} cannot be read: {type(found).__name__}: {found}") from found
        if not self.ended:
            raise Malformed("the last record is missing")

    def lost(self, *why: str) -> None:
        """The recorder lost sight of a value."""
        raise LostSight(why[-1])

    def tensor(self, storage: int, offset: int, shape: list[int], stride: list[int], dtype: str) -> None:
        """A tensor."""
        if self.types.setdefault(storage, dtype) != dtype:
            raise Contradiction(f"storage {storage} has two types")
        self.memory.tensors.append(TensorRecord(storage, (offset, tuple(shape), tuple(stride)), dtype))

    def source(self, reference: dict[str, int], writes: int, kind: str, *rest: Any) -> None:
        """A tensor that no operator made: data, a parameter, a number or a constant."""
        ((number, version),) = reference.items()
        tensor = self.memory.tensor({number: version - writes})
        held, shape = self.memory.storages[tensor.storage], tensor.place[1]
        value: Content
        if kind == "data":
            name, axis, owners, least = rest
            each = shape[axis] // len(owners) if axis >= 0 else 0
            if axis >= 0 and each * len(owners) != shape[axis]:
                raise Contradiction("data whose rows are not those of its samples")
            part = (*shape[:axis], each, *shape[axis + 1 :]) if axis >= 0 else shape
            term = self.laws.terms.make("data", (name, tensor.dtype, least), (), part)
            one = Fraction(1)
            value = SampleRows(axis, each, tuple(owners), one, term) if axis >= 0 else TermSum({(term, owners[0]): one})
        elif kind == "parameter":
            if rest[0] in self.versions or rest[1]:
                raise Contradiction(f"{rest[0]} is made twice")
            self.versions[rest[0]] = 0
            value = self.laws.one_term("parameter", tuple(rest), shape)
        elif kind == "number":
            value = self.laws.number(Fraction(*map(int, rest[0].split("/"))))
        else:
            value = self.laws.one_term("constant", rest[0], shape) if kind == "constant" else NotFollowed(rest[0])
        if writes:
            before = self.memory.read(tensor)
            if isinstance(before, SampleRows) or (isinstance(before, TermSum) and before.owned):
                raise Contradiction("something that is no operator writes over samples")
            held.version += 1
            self.memory.write(tensor, value)
        elif held.written:
            raise Contradiction("a source over what was written")
        else:
            held.views[tensor.place] = value

    def operator(
        self, full: str, args: list[Any], named: dict[str, Any], results: list[Any], touched: list[Any]
    ) -> None:
        """An operator. One on lists of tensors is the same operator on each."""
        self.counts[full] += 1
        base = full.partition(".")[0].removeprefix("unsafe_")
        inside = base.endswith("_") and not base.endswith("__")
        name = base.removesuffix("_") if inside else base
        given = {id(one): self.memory.tensor(one) for one in references([args, named])}
        written = [self.memory.tensor(one) for one in touched]
        if base.startswith("_foreach_"):
            listed = [one for one in args if isinstance(one, list)]
            count = len(listed[0])
            targets = [self.memory.tensor(one) for one in args[0]] if inside else []
            made = targets or [self.fresh(one) for one in results]
            if [t.storage for t in written] != [t.storage for t in targets] or len(made) != count:
                raise Contradiction(f"{full} writes other tensors than it has to")
            calls = [[a[i] if isinstance(a, list) and len(a) == count else a for a in args] for i in range(count)]
            values = [
                self.values(name.removeprefix("_foreach_"), own, named, given, [made[i]])[0]
                for i, own in enumerate(calls)
            ]
            self.put(made, values)
            return
        inside = inside and is_reference(args[0])
        target = [self.memory.tensor(args[0])] if inside else []
        known = name in LAWS or name in FILLED or name in GIVEN or name in SAME or name in RESHAPED or name == "copy"
        if known and [t.storage for t in written] != [t.storage for t in target]:
            raise Contradiction(f"{full} writes other tensors than it has to")
        if name == "_local_scalar_dense":
            value = self.memory.read(given[id(args[0])])
            self.numbers += isinstance(value, SampleRows) or (isinstance(value, TermSum) and value.owned)
        if name in VIEWS or name in RESHAPED or name in ("detach", "alias", "lift_fresh"):
            self.views(name, args, named, given, results)
            return
        made = target or [self.fresh(one) for one in results]
        if any(
            t.dtype != given[id(args[0])].dtype for t in made if name in ("add", "sub") and given[id(args[0])].narrow
        ):
            if len({t.dtype for t in given.values()}) == 1:
                raise Contradiction(f"{full} makes another type")
        self.put(
            [*made, *([] if known else written)],
            self.values(name, args, named, given, [*made, *([] if known else written)]),
        )

    def values(
        self,
        name: str,
        args: list[Any],
        named: dict[str, Any],
        given: dict[int, TensorRecord],
        made: list[TensorRecord],
    ) -> list[Content]:
        """What an operator makes."""
        own = [given[id(one)] for one in references([args, named])]
        if name == "copy":
            own, name = own[1:], "expand" if own[1].place[1] != own[0].place[1] else "clone"
        if (
            name in ("_to_copy", "clone")
            and made
            and made[0].dtype != own[0].dtype
            and not all("float" in t.dtype for t in (own[0], made[0]))
        ):
            name = "cast"
        shapes, outs = [t.place[1] for t in own], [t.place[1] for t in made]
        return self.laws.result(OperatorCall(name, [self.memory.read(t) for t in own], shapes, args, named, outs))

    def fresh(self, reference: dict[str, int]) -> TensorRecord:
        """A result with a storage of its own."""
        ((number, _),) = reference.items()
        found = self.memory.tensors[int(number)]
        if found.storage in self.memory.storages:
            raise Contradiction(f"storage {found.storage} is made twice")
        return found

    def put(self, tensors: list[TensorRecord], values: Sequence[Content]) -> None:
        """Write results. A sum over two micro-batches below fp32 is noted."""
        for storage in {t.storage for t in tensors}:
            self.memory.storages.setdefault(storage, StorageContent()).version += 1
        for tensor, value in zip(tensors, values, strict=True):
            self.memory.write(tensor, value)
            if tensor.narrow and isinstance(value, TermSum):
                every = [value, *self.laws.terms.aggregates(term for term, _ in value.items)]
                size = self.run["micro_batch_size"]
                if len({owner // size for one in every for _, owner in one.items if owner >= 0}) > 1:
                    self.note(REFUSED, f"a {tensor.dtype} tensor holds a sum over micro-batches", WIDTH)

    def views(
        self, name: str, args: list[Any], named: dict[str, Any], given: dict[int, TensorRecord], results: list[Any]
    ) -> None:
        """Results that share the storage of the argument, and lie where they have to."""
        whole, made = given[id(args[0])], [self.memory.tensor(one) for one in results]
        values = self.values(name, args, named, given, made)
        call = OperatorCall(name, [], [whole.place[1]], args, named, [])
        held, taken = self.memory.storages[whole.storage], 0
        for tensor, value in zip(made, values, strict=True):
            offset = offset_of(call, whole.place, tensor.place, taken)
            taken += 1 if name == "unbind" else tensor.place[1][cut_axis(call)] if name.startswith("split") else 0
            if tensor.storage != whole.storage or tensor.place[0] != offset:
                raise Contradiction(f"the result of {name} does not lie where it has to")
            if tensor.place not in held.written:
                held.views.setdefault(tensor.place, value)

    # Backward passes and optimizer steps

    def held(self, gradients: list[Any]) -> dict[str, Items]:
        """The terms of gradients that are sums, before common factors."""
        found = {}
        for name, reference in gradients:
            value = self.memory.read(self.memory.tensor(reference))
            if isinstance(value, TermSum):
                found[name] = value.items
        return found

    def backward(self, roots: list[Any], seeds: list[Any], gradients: list[Any]) -> None:
        """A backward pass begins: how its loss weighs each sample."""
        made = PassRecord(before=self.held(gradients))
        factors = [self.laws.plain(self.memory.read(self.memory.tensor(seed))) for seed in seeds] or [
            Fraction(1)
        ] * len(roots)
        for root, factor in zip(roots, factors, strict=True):
            value = self.memory.read(self.memory.tensor(root))
            if not isinstance(value, TermSum) or value.factors or factor is None:
                why = value.why if isinstance(value, NotFollowed) else "a loss that is no plain sum over samples"
                self.note(OPEN, why, EQUAL, STALE, DATA, CLIP)
                self.blind = True
                continue
            for (term, owner), by in value.items.items():
                if owner < 0 or owner in made.weights:
                    self.note(OPEN, "a loss with several terms of a sample, or with terms of none", EQUAL)
                made.weights[owner] = by * factor
                self.losses.add(self.kind(term))
        self.passes.append(made)

    def kind(self, term: int) -> str:
        """Whether a loss is a sum or a mean over samples."""
        while term not in self.laws.kinds and self.laws.terms.keys[term][0] in ("view", *VIEWS):
            term = self.laws.terms.keys[term][2][0]
        return self.laws.kinds.get(term, "")

    def after(self, gradients: list[Any], returned: list[Any]) -> None:
        """A backward pass has ended: what one unit of a sample's loss brought to each gradient."""
        own = self.passes[-1]
        for name, items in [*self.held(gradients).items(), *self.held([("", one) for one in returned]).items()]:
            for (term, owner), by in items.items():
                gain = by - own.before.get(name, {}).get((term, owner), Fraction(0))
                if gain and own.weights.get(owner):
                    self.gained.add(name)
                    self.shares.setdefault((name, term), set()).add(gain / own.weights[owner])

    def step(self, optimizer: int, rows: list[Any]) -> None:
        """An optimizer steps: what its gradients are made of."""
        window = {owner for own in self.passes for owner in own.weights}
        at, size, tail = len(self.steps), self.run["accum_steps"] * self.run["micro_batch_size"], self.run["tail"]
        last = tail * self.run["micro_batch_size"] if tail and at == self.run["windows"] else size
        right = len(window) == last and {min(window), max(window)} == {at * size, at * size + last - 1}
        if not right and not self.blind:
            self.note(
                REFUSED,
                f"window {at + 1} is made of samples {shown(window)}, not {at * size} to {at * size + last - 1}",
                DATA,
                EQUAL,
            )
        if optimizer:
            self.note(OPEN, "several optimizers")
        found = dict[int, set[Fraction]]()
        gradients = [
            (name, self.memory.read(self.memory.tensor(one))) for name, version, one in rows if one is not None
        ]
        for name, version, one in rows:
            if one is None and name in self.gained:
                self.note(REFUSED, f"the gradient of {name} is not handed to the optimizer", EQUAL, DATA)
            if self.versions.get(name, 0) != version:
                raise Contradiction(f"{name} is stepped at version {version}")
        self.blind |= any(not isinstance(value, TermSum) for _, value in gradients)
        for name, value in gradients:
            if isinstance(value, NotFollowed):
                self.note(OPEN, value.why)
            elif isinstance(value, SampleRows):
                self.note(OPEN, f"the gradient of {name} has rows of samples")
            else:
                self.judge(name, value, window, found)
        self.clipped([value for _, value in gradients if isinstance(value, TermSum)], window)
        weights = {owner: by.pop() for owner, by in found.items() if len(by) == 1}
        self.steps.append(weights)
        self.passes, self.gained = [], set()
        if self.blind:
            return
        if set(found) != window or not found:
            self.note(
                REFUSED, f"samples {shown(window - set(found))} are in no gradient of window {at + 1}", EQUAL, DATA
            )
        elif set(weights) != window:
            self.note(REFUSED, f"samples {shown(window - set(weights))} have several weights in window {at + 1}", EQUAL)
        elif max(weights.values()) - min(weights.values()) > NEAR * max(weights.values()):
            self.note(REFUSED, f"the samples of window {at + 1} have unequal weights", EQUAL)

    def judge(self, name: str, value: TermSum, window: set[int], found: dict[int, set[Fraction]]) -> None:
        """The terms of one gradient."""
        at, by_term = len(self.steps) + 1, dict[int, set[int]]()
        for (term, owner), by in value.items.items():
            older = [own for own, version in self.laws.terms.versions[term] if version != self.versions.get(own)]
            if older:
                self.note(
                    REFUSED, f"the gradient of {name} in window {at} is made of an older {older[0]}", STALE, EQUAL
                )
            if owner == SEVERAL:
                self.note(OPEN, f"{self.laws.terms.keys[term][0]} of several samples", EQUAL, STALE, DATA)
                self.blind = True
                continue
            if owner not in window:
                what = "no sample" if owner < 0 else f"sample {owner}, of another window"
                self.note(REFUSED, f"the gradient of {name} in window {at} has a part of {what}", STALE, EQUAL)
                continue
            by_term.setdefault(term, set()).add(owner)
            shares = self.shares.get((name, term)) or self.shares.get(("", term)) or set()
            if not shares and name not in {own for own, _ in self.shares}:
                shares = {share for (_, known), own in self.shares.items() if known == term for share in own}
            if len(shares) != 1:
                self.note(OPEN, f"the gradient of {name} was changed after its backward passes", EQUAL)
            for share in shares:
                found.setdefault(owner, set()).add(by / share)
        for owners in by_term.values():
            if owners != window and not self.blind:
                self.note(
                    REFUSED,
                    f"the gradient of {name} in window {at} lacks samples {shown(window - owners)}",
                    EQUAL,
                    DATA,
                )

    def clipped(self, gradients: list[TermSum], window: set[int]) -> None:
        """Whether what scales gradients is made of whole gradients of the window."""
        if len({value.factors for value in gradients}) > 1:
            self.note(OPEN, "the gradients of a step are scaled by different numbers", EQUAL, CLIP)
        factors = {term for value in gradients for term, _ in value.factors}
        several = {term for value in gradients for term, owner in value.items if owner == SEVERAL}
        applied = {key: by for value in gradients for key, by in value.items.items()}
        owned = [
            {key: by for key, by in one.items.items() if key[1] >= 0}
            for one in self.laws.terms.aggregates(factors | several)
        ]
        for own in (own for own in owned if own):
            owners = dict[int, set[int]]()
            for term, owner in own:
                owners.setdefault(term, set()).add(owner)
            if any(each != window for each in owners.values()):
                self.note(
                    REFUSED, f"a number of window {len(self.steps) + 1} is made of a part of its gradients", CLIP, EQUAL
                )
            elif len({by / applied[key] if key in applied else None for key, by in own.items()}) > 1:
                self.note(OPEN, "a number is made of something else than the gradients of its window", CLIP, EQUAL)
        if factors and set(applied) - {key for own in owned for key in own}:
            self.note(OPEN, "gradients are scaled by a number that is not made of all of them", CLIP, EQUAL)

    def stepped(self, own: list[Any], rest: list[Any]) -> None:
        """An optimizer has stepped: parameters and states are others."""
        named = [(name, self.moved(one)) for name, one in own]
        for name, tensor in named:
            self.versions[name] = self.versions.get(name, 0) + 1
            self.memory.write(tensor, self.laws.one_term("parameter", (name, self.versions[name]), tensor.place[1]))
        for at, one in enumerate(rest):
            tensor = self.moved(one)
            self.memory.write(tensor, self.laws.one_term("state", f"{len(self.steps)} {at}", tensor.place[1]))

    def moved(self, reference: dict[str, int]) -> TensorRecord:
        """A tensor that a step wrote."""
        ((number, version),) = reference.items()
        found = self.memory.tensors[int(number)]
        self.memory.storages.setdefault(found.storage, StorageContent()).version = version
        return found

    def end(self, missing: int, laws: dict[str, int], claim: dict[str, str]) -> None:
        """The last record: what was logged, and what is claimed."""
        self.ended = True
        if missing or laws != dict(self.counts):
            raise Contradiction("the log is not what its last record says")
        if self.numbers > len(self.reads):
            raise Contradiction("Python reads a number of samples, and no record says so")
        wanted = self.run["windows"] + bool(self.run["tail"])
        if len(self.steps) != wanted:
            self.note(REFUSED, f"{len(self.steps)} optimizer steps in {wanted} windows")
        kind, total = claim["loss"], claim["total"]
        if self.losses - {""} != {kind} - {""} and not self.blind:
            self.note(
                REFUSED,
                f"the loss is claimed to be a {kind or 'number'}, and is a {' and a '.join(sorted(self.losses))}",
                EQUAL,
            )
        if "" in self.losses or (kind, total) not in (("mean", "1"), ("sum", "1"), ("sum", "samples")):
            self.note(OPEN, "a loss of which it is not known whether it is a sum or a mean", EQUAL)
        for at, weights in enumerate([] if self.blind else self.steps):
            expected, whole = Fraction(1 if total == "1" else len(weights)), sum(weights.values(), Fraction(0))
            if abs(whole - expected) > NEAR * expected:
                self.note(REFUSED, f"the weights of window {at + 1} add up to {whole}, not to {expected}", EQUAL)

    def verdicts(self) -> list[tuple[str, str, str]]:
        """Each obligation with its status, and why."""
        rows = []
        for name, found in self.found.items():
            status = next((one for one in (REFUSED, OPEN) if one in found), ACCEPTED)
            rows.append((name, status, found[status][0] if found else self.accepted(name)))
        return rows

    def accepted(self, name: str) -> str:
        """What an accepted obligation says."""
        samples = sum(map(len, self.steps))
        weights = ", ".join(sorted({str(by.limit_denominator(10**6)) for step in self.steps for by in step.values()}))
        return {
            DATA: f"{samples} samples, each in the gradients of one window",
            EQUAL: f"{len(self.steps)} steps; the weight of each sample: {weights}",
            STALE: "no gradient has a part of another window",
            WIDTH: "no sum over micro-batches below fp32",
            CLIP: "no scalar of a part of a window",
        }[name]


def references(value: Any) -> list[dict[str, int]]:
    """The tensors in arguments, in order."""
    if is_reference(value):
        return [value]
    rest = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [one for part in rest for one in references(part)]


def shown(samples: set[int]) -> str:
    """Samples in words."""
    return ", ".join(map(str, sorted(samples)[:8])) + (" ..." if len(samples) > 8 else "") or "of none"


def lines_of(data: bytes) -> list[str]:
    """The records of a file. Raises Malformed."""
    try:
        stream = zlib.decompressobj()
        head, _, body = stream.decompress(data, MOST).partition(b"\n")
        text = body.decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise Malformed(f"it is cut, or no certificate: {error}") from error
    if not stream.eof or stream.unused_data:
        raise Malformed("it is cut, or has more behind its end")
    if hashlib.sha256(body).hexdigest().encode() != head:
        raise Malformed("its digest is not that of its records")
    return text.splitlines()


def checked(data: bytes) -> StepChecker:
    """Check a certificate. Raises Malformed."""
    made = StepChecker()
    made.check(lines_of(data))
    return made


def main(words: Sequence[str]) -> int:
    """Check the certificate of a file, and print a line for each obligation."""
    try:
        if len(words) != 1:
            raise Malformed("give the path of one certificate")
        made = checked(Path(words[0]).read_bytes())
    except (OSError, Malformed) as error:
        print(f"GP409: {error}\n  expected: a certificate that gradproof check --certificate wrote", file=sys.stderr)
        return MALFORMED
    rows = made.verdicts()
    for name, status, why in rows:
        print(f"{name:12} {status:12} {why}")
    if made.reads:
        print(f"on the recorded path: Python read {len(made.reads)} numbers")
    return next(CODES[one] for one in (REFUSED, OPEN, ACCEPTED) if any(status == one for _, status, _ in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
