"""The weight of each sample in the gradients of one window of a real run.

A gradient is a combination of terms. A term of one sample has a skeleton: the term with the sample left out. Samples of
which the terms have one skeleton went through the same function. A combination in which, for each skeleton, every
sample of the window has one weight is *complete*; what is made of complete ones alone (a norm, a clip factor, a count)
counts as a constant of the window.

Where batches are padded to lengths of their own, samples also have one skeleton that differ by that length alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property, partial
from typing import Any

from gradproof.shadow.follow.facts import BackwardPass, Update
from gradproof.shadow.follow.laws import LAWS
from gradproof.shadow.follow.recorded import Recorded
from gradproof.shadow.follow.samples import MICRO
from gradproof.shadow.follow.terms import (
    NOBODY,
    NORMS,
    SEVERAL,
    TRAINED,
    UNIT,
    ZERO,
    Combination,
    Powers,
    Terms,
    multiplied,
    pending,
    plus,
)
from gradproof.shadow.judge.losses import LossPart, close, counted, loss_parts
from gradproof.shadow.judge.scale import Alike, groups, unnamed
from gradproof.shadow.locations import Location

LINEAR: Mapping[str, tuple[int, ...]] = {
    "mul": (0, 1), "div": (0,), "sum": (0,), "where_true": (1,), "where_false": (1,), "reshape": (0,), "permute": (0,),
    "slice": (0,), "expand": (0,), "scaled": (0,), "rows": (0,), **{name: law.linear for name, law in LAWS.items()},
}  # fmt: skip
"""Operators, and the kids in which each is linear while the others are held."""
CLAMPS = ("clamp", "clamp_min", "clamp_max", "hardtanh", "minimum", "maximum")
MOVES = frozenset({"slice", "slice_backward", "select_backward", "constant_pad_nd"})
"""Operators whose attributes are places and sizes: no number in them is one that is computed with."""
SUMS = ("sum", "count", "one")
OF_SUMS = ("combination", "filled", "reshape", "slice", "expand", "clamp", "clamp_min", "maximum")
"""What a count is, and what may be done to it before it divides."""


class WindowWeights:
    """What the gradients of one optimizer step are made of. `samples`: those of the window.

    `runs`: backward passes that brought something to its gradients; `idle`: those that brought nothing. `losses`: the
    scalars that the losses brought. `lengths`: that of each micro-batch, where these differ.
    """

    def __init__(
        self, engine: Recorded, step: Update, runs: Sequence[BackwardPass], skeletons: dict[Any, int],
        lengths: Mapping[int, int],
    ) -> None:  # fmt: skip
        self.engine, self.terms, self.step = engine, engine.terms, step
        self.skeletons, self.lengths = skeletons, lengths
        brought = [run for run in runs if run.returned or run.gains.keys() & step.gradients.keys()]
        self.runs = [run for run in brought if not run.emptied or self.terms.summed(run.gains.values())]  # no score
        self.idle = [run for run in runs if not (run.gains or run.returned)]
        self.unit: dict[int, int] = {}
        self.shape: dict[int | None, dict[int, int]] = {}
        self.samples = self.terms.summed(step.gradients.values())
        gained = [(run, *self.terms.bare(term)) for run in self.runs for gain in run.gains.values() for term in gain]
        self.arrived = {bare for _, bare, _ in gained}
        self.losses = {scalar for run, _, powers in gained for scalar in powers if scalar < run.before}
        self.own = self.terms.samples(self.arrived)

    @property
    def shown(self) -> int:
        """The number of the window, counted from 1."""
        return self.step.window + 1

    def weights(self, value: Combination) -> dict[int, dict[int, Combination]]:
        """The weight of each sample in a combination, by skeleton, but for scalars of all its terms.

        A constant of the window that not all terms have is a part of the weight, as another entry of a table is.
        """
        found, common = dict[int, dict[int, Combination]](), self.terms.common(value)
        for term, by in value.items():
            bare, powers = self.terms.bare(term)
            unit = self.top(bare)
            if unit == NOBODY:
                continue
            weight = self.terms.of(self.terms.scaled(self.terms.one, multiplied(powers, common, -1)))
            each = found.setdefault(self.skeleton(bare, unit), {})
            each[unit] = plus(each.get(unit, ZERO), weight, by)
        return found

    def kept(self, powers: Powers) -> Powers:
        """The scalars that are no constants of the window."""
        some = (scalar for scalar in powers if self.terms.owners[scalar] != NOBODY)
        return {scalar: powers[scalar] for scalar in some if self.of(scalar) != NOBODY}

    def clips(self, scalar: int) -> bool:
        """Whether a scalar is made of a norm of the whole window's gradients."""
        return self.terms.made_with(scalar, NORMS) and self.of(scalar) == NOBODY

    def complete(self, value: Combination) -> bool:
        """Whether each sample of the window has one weight, for each skeleton."""
        found = self.weights(value)
        return bool(found) and all(
            each.keys() == self.samples and alike(self.terms, list(each.values())) for each in found.values()
        )

    def top(self, term: int) -> int:
        """The sample of a summand of a gradient: what stands for all rows of a micro-batch may be linear in it."""
        terms = self.terms
        if not terms.marked[term]:
            return self.of(term)
        kids = [kid for kid in terms.kids[term] if terms.marked[kid]]
        if terms.operators[term] == "rows":
            return self.of(terms.kids[term][0])
        if terms.operators[term] == "combination":
            return joined({self.top(kid) for kid in terms.kids[term]})
        if len(kids) != 1 or terms.kids[term].index(kids[0]) not in LINEAR.get(terms.operators[term], ()):
            return self.of(term)
        others = {self.of(kid) for kid in terms.kids[term] if kid != kids[0]}
        return self.top(kids[0]) if others <= {NOBODY} else SEVERAL

    def of(self, term: int) -> int:
        """The sample that a term is made of: SEVERAL where they meet, NOBODY where it is a constant of the window."""
        terms, stack = self.terms, [term]
        while stack:
            one = stack[-1]
            if one in self.unit:
                stack.pop()
                continue
            if terms.owners[one] != SEVERAL and not (terms.owners[one] >= 0 and terms.marked[one]):
                self.unit[one] = terms.owners[one]
                continue
            if terms.operators[one] == "combination":
                value = terms.parts_of(one)
                single = all(terms.owners[terms.bare(kid)[0]] != SEVERAL for kid in value)
                if single and self.complete(value):
                    self.unit[one] = NOBODY
                    continue
            left = [kid for kid in terms.kids[one] if kid not in self.unit]
            if left:
                stack.extend(left)
                continue
            marked = terms.operators[one] == "rows" or (terms.owners[one] >= 0 and terms.marked[one])
            self.unit[one] = SEVERAL if marked else joined({self.unit[kid] for kid in terms.kids[one]})
        return self.unit[term]

    def skeleton(self, term: int, sample: int) -> int:
        """A number for a term with its sample left out: equal for the terms of samples that took one way."""
        self.terms.clock.look()
        length = self.lengths.get(sample // MICRO)
        leaf, made = partial(self._constant, length), self.shape.setdefault(length, {})
        return numbered(self.terms, [term], leaf, made, self.skeletons, length)[term]

    def form(self, term: int) -> tuple[int, object]:
        """The sample of a term of a loss, and its skeleton; a term of no sample, or of several, is its own."""
        sample = self.top(term)
        return sample, self.skeleton(term, sample) if sample >= 0 else ("shared", term)

    def _constant(self, length: int | None, term: int) -> tuple[Any, ...] | None:
        terms, owner = self.terms, self.terms.owners[term]
        if owner == NOBODY and length is not None:
            own = (terms.operators[term], terms.attributes[term], resized(terms.shapes[term], length))
            return None if terms.kids[term] else ("constant", *own)
        constant = owner == NOBODY or (owner == SEVERAL and self.of(term) == NOBODY)
        return ("constant", term) if constant else None

    def again(self) -> Iterator[Location]:
        """Lines at which two backward passes brought the same of the same samples."""
        terms, known = self.terms, dict[Any, BackwardPass]()

        def ways(run: BackwardPass) -> set[tuple[str, int]]:
            gains = run.gains.items()
            bare = ((name, terms.bare(term)[0]) for name, gain in gains for term in gain)
            return {(name, self.skeleton(term, self.top(term))) for name, term in bare}

        for run in self.runs:
            one = known.setdefault((run.location, frozenset(terms.summed(run.gains.values()))), run)
            if one is not run and ways(one) == ways(run):
                yield run.location

    # The scale of the losses

    def parts(self, factor: tuple[Fraction, Powers] | None) -> list[LossPart] | None:
        """The parts of the window's losses, times a factor; None where something is no loss."""
        strange = any(run.seeded or run.returned or not run.roots for run in self.runs)
        if factor is None or strange:
            return None
        return loss_parts(self.engine.laws, (run.roots for run in self.runs), factor)

    def grouped(self, parts: Sequence[LossPart] | None) -> list[Alike] | None:
        """Parts of the losses, those that are scaled alike together; None where they are not known."""
        return groups(self.terms, parts, self.form, self._rows_of) if parts else None

    def _rows_of(self, sample: int) -> int:
        """The rows of the micro-batch of a sample; 0 where there is none."""
        return self.engine.rows.get(sample // MICRO) or 0 if sample >= 0 else 0

    def own_means(self) -> bool:
        """Whether every loss is a sum that is divided by a sum of data of the samples of its own pass, as of a mask."""
        terms = self.terms
        parts = [unnamed(terms, part) for part in self.parts(self.factor and (UNIT, {})) or []]
        own = {
            one: terms.samples(part.term for part in parts if part.micro == one) for one in range(1 + len(self.runs))
        }
        return bool(parts) and all(
            part.kind == "sum" and close(part.by, parts[0].by) and power == -1 and len(part.powers) == 1
            and counted(terms, scalar, SUMS, OF_SUMS) and terms.samples([scalar]) == own[part.micro]
            for part in parts for scalar, power in (part.powers or {terms.one: 0}).items()
        )  # fmt: skip

    def others(self) -> bool:
        """Whether a number of other samples than all of the window scales the losses."""
        return any(self.kept(part.powers) for part in self.parts(self.factor) or ())

    @cached_property
    def factor(self) -> tuple[Fraction, Powers] | None:
        """By what each gradient was multiplied between the backward passes and the step; one factor for all."""
        gained = dict[int, tuple[Fraction, Powers]]()
        for bare, powers, by in self._summands(gain for run in self.runs for gain in run.gains.values()):
            total, own = gained.get(bare, (Fraction(0), powers))
            if own != powers:
                return None
            gained[bare] = (total + by, own)
        found = list[tuple[Fraction, Powers]]()
        for bare, powers, by in self._summands(map(self._unclamped, self.step.gradients.values())):
            total, own = gained.get(bare, (Fraction(0), {}))
            if not total:
                return None
            left = {s: power for s, power in multiplied(powers, own, -1).items() if not self.clips(s)}
            found.append((by / total, left))
        return found[0] if found and all(each == found[0] for each in found) else None

    def _unclamped(self, value: Combination) -> Combination:
        """What was clamped element by element as a whole, and then scaled by nothing but a clip of the window."""
        for term, by in value.items() if len(value) == 1 else ():
            bare, powers = self.terms.bare(term)
            alone = by == 1 and all(map(self.clips, powers)) and len(self.terms.kids[bare]) == 1
            if alone and self.terms.operators[bare] in CLAMPS:
                return self._unclamped(self.terms.opened(self.terms.of(self.terms.kids[bare][0])))
        return value

    def _summands(self, values: Iterable[Combination]) -> Iterator[tuple[int, Powers, Fraction]]:
        return ((*self.terms.bare(term), by) for value in values for term, by in value.items())


def overlap(sets: Sequence[set[int]]) -> bool:
    """Whether two of these sets have something in common."""
    return sum(map(len, sets)) > len(set().union(*sets))


def joined(units: set[int]) -> int:
    """The sample of what is made of parts of these samples."""
    found = units - {NOBODY}
    return NOBODY if not found else next(iter(found)) if len(found) == 1 else SEVERAL


def alike(terms: Terms, weights: Sequence[Combination]) -> bool:
    """Whether weights are one weight; plain numbers may differ by the rounding of what Python computed."""
    first = weights[0]
    if all(weight == first for weight in weights):
        return True
    plain = all(len(weight) == 1 and terms.one in weight for weight in weights)
    return plain and all(close(weight[terms.one], first[terms.one]) for weight in weights)


def assumptions(laws: Collection[str], opaque: Collection[str]) -> list[str]:
    """What every proof over whole tensors rests on."""
    return [
        "real and whole numbers: rounding, overflow and the difference between kernels are not part of it",
        f"the laws of {len(laws)} operators (gradproof.shadow.follow.laws), and that each of them is deterministic",
        f"{len(opaque)} operators are uninterpreted functions of whole tensors: {', '.join(sorted(opaque)) or 'none'}",
        "no denominator is zero",
    ]


def rationals(near: Mapping[float, Fraction]) -> list[str]:
    """The float constants that stand for another rational than the one that they are."""
    shown = ", ".join(f"{number:g} as {held}" for number, held in sorted(near.items())[:8])
    return [f"float constants stand for rationals: {shown}"] if near else []


def other_lengths(terms: Terms, updates: Iterable[Update]) -> str:
    """What the gradients of some steps say of windows with another number of micro-batches."""
    gradients = [held for update in updates for held in update.gradients.items()]
    bare = [(name, [terms.bare(term)[0] for term in value]) for name, value in gradients]
    made = numbered(terms, [term for _, value in bare for term in value], partial(_leaf, terms), {}, {})
    seen: dict[tuple[str, int], set[frozenset[int]]] = {}
    for name, value in bare:
        own: dict[int, set[int]] = {}
        for term in value:
            own.setdefault(terms.owners[term], set()).add(made[term])
        for owner, found in own.items():
            seen.setdefault((name, min(owner, 0)), set()).add(frozenset(found))
    same = all(len(found) == 1 and owner != SEVERAL for (_, owner), found in seen.items())
    how = "the same operators: another number sums the same functions" if same else "other operators"
    return f"each window has as many micro-batches as in this run; their samples went through {how}"


def _leaf(terms: Terms, term: int) -> tuple[Any, ...] | None:
    """What the leaves are called where the names of samples and the versions of weights say nothing."""
    operator = terms.operators[term]
    kind = "weights" if operator in TRAINED else operator
    return (kind, terms.shapes[term]) if kind in ("weights", "data", "draw") else None


def numbered(
    terms: Terms,
    of: Iterable[int],
    leaf: Callable[[int], tuple[Any, ...] | None],
    made: dict[int, int],
    numbers: dict[Any, int],
    length: int | None = None,
) -> dict[int, int]:
    """A number for each term: equal for terms that are made alike of leaves that `leaf` calls alike.

    `length`: a size that has a name of its own, as that of a batch that is padded.
    """
    for one in pending(of, made, lambda term: terms.kids[term] if leaf(term) is None else ()):
        made[one] = numbers.setdefault(leaf(one) or form(terms, one, made, length), len(numbers))
    return made


def resized(sizes: Any, length: int) -> Any:
    """Sizes, or places along an axis, with a name for a length, and for what is one more or less."""
    if isinstance(sizes, tuple):
        return tuple(resized(one, length) for one in sizes)
    near = type(sizes) is int and abs(sizes - length) < 2
    return ("length", sizes - length) if near else sizes


def lengths_of(terms: Terms, batches: Collection[int]) -> dict[int, int]:
    """The one size of the data of each micro-batch that others have not; nothing where it is none, or several.

    Labels that were shifted may be one shorter.
    """
    sizes = {number: set[int]() for number in batches}
    for term, operator in enumerate(terms.operators):
        if operator == "data" and terms.owners[term] // MICRO in sizes:
            sizes[terms.owners[term] // MICRO].update(terms.shapes[term] or ())
    common = set[int].intersection(*sizes.values()) if sizes else set[int]()
    left = {number: own - common for number, own in sizes.items()}
    one = all(own and max(own) - min(own) < 2 for own in left.values())
    return {number: max(own) for number, own in left.items()} if one else {}


def form(terms: Terms, term: int, kids: Mapping[int, int], length: int | None = None) -> tuple[Any, ...]:
    """What a term is called by what it is made of; the order of summands and of factors says nothing."""
    operator, attributes, shape = terms.operators[term], terms.attributes[term], terms.shapes[term]
    if length is not None:
        attributes, shape = resized(attributes, length) if operator in MOVES else attributes, resized(shape, length)
    own = tuple(kids[kid] for kid in terms.kids[term])
    if operator == "data":
        attributes = attributes[:3]
    if operator == "draw":
        site, named, _, count, within = attributes
        attributes = (site, named, count, within)
    if operator == "combination":
        attributes, own = tuple(sorted(zip(own, attributes, strict=True))), ()
    return (operator, attributes, tuple(sorted(own)) if operator == "mul" else own, shape)
