"""What the losses of a window weigh, beside the full batch: w(N, r) = w(1, N*r).

The weight w of a sample in the gradient is a product of numbers. It may depend on N, the micro-batches of a window,
and on r, the rows of a micro-batch, only by their product: the full batch is the same program with one micro-batch of
N*r rows. A mean brings r^-1 of its own, so a factor N^a * r^b is right where

    a = b      below a sum,
    a = b - 1  below a mean, and of a part of the loss that is made of no sample, as a penalty.

A part without samples that one micro-batch alone has is right where a = b. The length of a data loader is all rows by
r. All other numbers are in the full batch as they are: a factor 128, or 1/2, changes nothing. Where a and b say that
the loss is wrong, and every number of it has an origin, it is refuted. A number without origin refutes nothing; where
its value is that of N, or of r, nothing is proved either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import isclose, prod
from typing import cast

from gradproof.core.outcome import Outcome
from gradproof.shadow.follow.rules.losses import LOSSES
from gradproof.shadow.follow.samples import blocks
from gradproof.shadow.follow.terms import (
    NAMED,
    NOBODY,
    SEVERAL,
    SIZE,
    UNIT,
    UNREAD,
    WRITTEN,
    Combination,
    Number,
    Powers,
    Terms,
    plus,
)
from gradproof.shadow.judge.losses import LossPart, close, near
from gradproof.shadow.result import DIVIDE, FUNCTION
from gradproof.shadow.texts import COMPARED, LOADER, MIXED, MODULUS, ROWS, SHAPING, SLICE, TORCH

Weigh = Callable[[Combination], Fraction | None]
HELP = "divide the loss by N, as it is named in the script, as the last operator before backward"
WRITE_N = "write N by its name where it divides the loss, or use gradproof check"
OF_ROWS = "divide a sum by the rows of its micro-batch and by N, as by (len(x) * N); or by the tokens of the window"
UNSCALE = "call scaler.step(optimizer), or scaler.unscale_(optimizer) before the step: it divides by the loss scale"
SCALE = "loss scale"
MEAN = "each is that of a mean"
SUM = "each is that of a sum"
OF_ROWS_ALONE = "the rows of the window"
SHOWN = 6
FACTORS, UNREAD_FACTORS = "for factors of the loss itself:", "for numbers of the whole window:"
Taken = tuple[str, str]
"""What was taken, and of which number, with its line."""


@dataclass
class Alike:
    """Parts of the losses of a window that are scaled alike: by named numbers, by other scalars and by plain numbers.

    `rest`: the product of plain numbers, by pass; `units`: the samples of each pass, and the rows of their micro-batch.
    """

    mean: bool
    named: tuple[tuple[Number, int], ...]
    others: tuple[tuple[int, int], ...]
    rest: dict[int, Combination] = field(default_factory=dict)
    units: dict[int, tuple[set[int], int]] = field(default_factory=dict)
    signed: bool = False
    shared: bool = False

    def sizes(self) -> dict[int, int]:
        """The rows of the micro-batch of each pass: those that it has of a batch."""
        return {at: of if len(own) in (1, blocks(of)) else len(own) for at, (own, of) in self.units.items()}


@dataclass(frozen=True, slots=True)
class Scale:
    """What the losses of a window weigh: `outcome` HOLDS, REFUTED or UNKNOWN, and why.

    `total`: by what the weight of a sample is that of the full batch, where it is known. `taken`: what was assumed.
    `shared`: a part of the losses is made of no sample. `divisor`: the N of other windows, which divides.
    `own`: the names, and powers, of what scales a whole loss besides N and rows; `unnamed`: what numbers without a name
    are in this window.
    """

    outcome: Outcome
    words: str
    total: Fraction | None = None
    help: str = ""
    divisor: int = 0
    shared: bool = False
    own: frozenset[tuple[str, int]] = frozenset()
    unnamed: Mapping[str, str] = field(default_factory=dict)
    taken: tuple[Taken, ...] = ()

    @property
    def known(self) -> bool:
        """Whether the factor is known, right or wrong."""
        return self.outcome is not Outcome.UNKNOWN

    def unlike(self, other: Scale) -> list[str]:
        """What scales one of two windows, and not the other, or is another number there."""
        both = self.unnamed.keys() & other.unnamed.keys()
        changed = {text for text in both if self.unnamed[text] != other.unnamed[text]}
        return sorted({text for text, _ in self.own ^ other.own} | changed)


def groups(
    terms: Terms, parts: Iterable[LossPart], form: Callable[[int], tuple[int, object]], rows: Callable[[int], int]
) -> list[Alike] | None:
    """The parts of losses by what they are and what scales them; None where samples meet in one.

    `form`: the sample of a term, and what is the same of all samples. `rows`: those of a sample's micro-batch.
    """
    found = dict[tuple[object, ...], Alike]()
    for part in parts:
        sample, way = form(part.term)
        if sample == SEVERAL:
            return None
        whole = part.kind == "mean" and sample != NOBODY
        powers, mass = part.powers, cast(Combination, {terms.one: part.by})
        if whole:  # by all of its elements a mean is 1
            mass = terms.rescaled({term: by * part.by for term, by in part.total.items()}, part.powers)
            alone = terms.bare(next(iter(mass))) if len(mass) == 1 else (0, {})
            if alone[0] == terms.one:
                mass, powers = {terms.one: next(iter(mass.values()))}, alone[1]
            else:
                mass = {terms.one: part.by}
        mine = [(number_of(terms, s), by) for s, by in powers.items() if is_named(terms, s)]
        named, left = tuple(sorted(mine, key=str)), {s: by for s, by in powers.items() if not is_named(terms, s)}
        mean = part.kind == "mean" or sample == NOBODY
        key = (mean, way, named, tuple(sorted(left.items())), not whole and abs(part.by))
        group = found.setdefault(key, Alike(mean, named, tuple(sorted(left.items()))))
        group.rest[part.micro] = mass
        group.units.setdefault(part.micro, (set(), rows(sample)))[0].add(sample)
        group.shared |= sample == NOBODY
        group.signed |= terms.operators[part.term] in LOSSES
    return [*found.values()]


def is_named(terms: Terms, scalar: int) -> bool:
    """Whether a scalar is a plain number of the script, with an origin."""
    return terms.operators[scalar] == "named"


def number_of(terms: Terms, scalar: int) -> Number:
    """The number that a named scalar stands for."""
    number = terms.attributes[scalar][0]
    assert isinstance(number, Number)
    return number


def unnamed(terms: Terms, part: LossPart) -> LossPart:
    """A part with its named numbers as plain ones."""
    by, powers = part.by, Powers()
    for scalar, power in part.powers.items():
        if is_named(terms, scalar):
            by *= Fraction(number_of(terms, scalar).value).limit_denominator(10**9) ** power
        else:
            powers[scalar] = power
    return replace(part, by=by, powers=powers)


@dataclass
class Factors:
    """The numbers of one group: exponents of N and r, those that have neither's origin, and the plain rest.

    `total`: the rows of the window. `lengths`: the N of all windows. `off`: by what an N of other windows is not this.
    """

    n: int
    r: int
    total: int
    lengths: frozenset[int]
    off: float = 1.0
    a: int = 0
    b: int = 0
    taken: list[Number] = field(default_factory=list)
    of_window: list[Number] = field(default_factory=list)
    own: list[tuple[Number, int]] = field(default_factory=list)
    rest: Fraction = UNIT
    scaled: bool = False
    strongest: frozenset[str] | None = None

    def add_all(self, named: Sequence[tuple[Number, int]]) -> None:
        """The named numbers. Of those that may be N it is the one that shapes most: by a modulus, else a comparison."""
        found = [number.shapes & SHAPING for number, _ in named if number.value in self.lengths and number.kind != SIZE]
        most = max(
            found, key=lambda shapes: (MODULUS in shapes, COMPARED in shapes, len(shapes)), default=frozenset[str]()
        )
        self.strongest = most or None
        for number, power in named:
            self.add(number, power)

    def add(self, number: Number, power: int) -> None:
        """One more number, and its power."""
        kind = self.role(number)
        if kind == "N":
            self.a += power
            self.off *= (number.value / self.n) ** power
            self.taken.append(number)
        elif kind == "rows":
            self.b += power
        elif kind:
            self.b -= power * (kind == LOADER)  # all rows, by those of a micro-batch
            self.own.append((number, power))
            self.scaled |= kind == SCALE

    def role(self, number: Number) -> str:
        """What a number is: N, rows, "" for a size that all windows have or the rows of the window, or another."""
        value, shapes = number.value, number.shapes
        whole = value == self.total and self.total not in (self.n, self.r)
        if whole and (number.kind == UNREAD or number.rows < 0):
            self.of_window.append(number)
            return ""
        if number.kind == SIZE:
            rows = number.rows
            known = rows == 0 or (rows == self.total and rows != self.r)  # of one sample, or of the whole window
            return "" if known else "rows" if rows == self.r else "other"
        if number.file.endswith("grad_scaler.py"):
            return SCALE
        if LOADER in shapes and value not in self.lengths:
            return LOADER
        if TORCH in number.shapes and value == self.r:
            return "rows"
        if value == self.r and shapes & {ROWS, SLICE} and MODULUS not in shapes:
            return "rows"
        return "N" if value in self.lengths and shapes & SHAPING == self.strongest else "other"

    def values(self) -> list[float]:
        """Numbers that may stand for N or for rows: each that is written or has no origin, and their product."""
        each = [float(number.value**power) for number, power in self.own]
        rest = [] if self.rest == 1 else [float(self.rest)]
        return [*each, *rest, *([prod((*each, *rest))] if len(each) + len(rest) > 1 else [])]

    def unread(self) -> bool:
        """Whether some number has no origin, or is a name that counts the turns of another loop than the passes'."""
        whole = (number for number, power in self.own if number.whole and power < 0)
        turns = any(number.shapes & SHAPING and number.text.isidentifier() for number in whole)
        return self.rest != 1 or turns or any(number.kind in (UNREAD, SIZE) for number, _ in self.own)

    def odd(self) -> list[str]:
        """Numbers whose value is that of N, or of r, and that may stand for it: of another name, or of no origin.

        Where no N is seen to scale the loss, one that is written may as well; else it may be N once more, and divide.
        """
        some = (
            (number, power) for number, power in self.own
            if number.kind != WRITTEN or (number.whole and (not self.taken or (power < 0 and number.value == self.n)))
        )  # fmt: skip
        like = (number for number, _ in some if MIXED in number.shapes or self.stands(float(number.value)))
        found = [f"{number.value:g} at {number.place}" for number in like]
        plain = self.rest != 1 and self.stands(float(self.rest))
        return [*found, *([near(self.rest)] if plain else [])]

    def stands(self, value: float) -> bool:
        """Whether a number has the value of N, of the rows, or of one over them."""
        return any(close(value, by) for of in (self.n, self.r) if of > 1 for by in (of, 1 / of))

    def divisor(self, of: int, *kinds: str) -> list[Number]:
        """The numbers of some kinds, in the text or by a name, that divide the whole loss, and together are so many."""
        bare = [
            (number, power) for number, power in self.own if number.kind in kinds and number.whole
            and (number.kind != UNREAD or MIXED in number.shapes or number.text.isidentifier())
        ]  # fmt: skip
        by = [(number, power) for number, power in bare if power < 0 and number.value > 1]
        for number, power in by:
            if isclose(number.value**-power, of):
                return [number]
        whole = len(by) == len(self.own) and all(number.kind == WRITTEN for number, _ in by)
        return [n for n, _ in by] if whole and isclose(prod(n.value**-p for n, p in by), of) else []

    def explains(self, mean: bool) -> bool:
        """Whether a number that is written, or has no origin, may be the division that seems to be missing, or more.

        N, or N and rows together; below a sum also rows times the elements of one.
        """
        whole = [self.n, self.n**2, self.n * self.r, *([] if mean else [self.r])]
        for by in (side for value in self.values() for side in (value, 1 / value) if side > 1):
            of_rows = not mean and self.r > 1 and close(by / self.r, round(by / self.r))
            if of_rows or any(close(by, one) for one in whole):
                return True
        return False


def judged(
    found: list[Alike] | None, window: int, lengths: tuple[int, ...], weigh: Weigh, terms: Terms, hooked: bool
) -> Scale:
    """What the groups of a window say. `lengths`: its micro-batches, and those of every window."""
    if not found:
        return Scale(Outcome.UNKNOWN, "what the weights add up to was not shown", help=FUNCTION)
    rows = {micro: of for group in found for micro, of in group.sizes().items()}
    said = [_group(group, window, lengths, sum(rows.values()), weigh, terms) for group in found]
    for outcome in (Outcome.REFUTED, Outcome.UNKNOWN):
        bad = next((one for one in said if one.outcome is outcome), None)
        if bad is not None:
            return replace(bad, outcome=Outcome.UNKNOWN, total=None) if hooked else bad
    words = dict.fromkeys(one.words for one in said)
    taken = tuple(dict.fromkeys(line for one in said for line in one.taken))
    own = frozenset(one for group in found for one in _of_every_window(group, lengths))
    unnamed = dict(one for group in found for one in _as_it_is(group, lengths, sum(rows.values()), weigh))
    shared = any(group.shared for group in found)
    return Scale(Outcome.HOLDS, "; ".join(words), UNIT, shared=shared, own=own, unnamed=unnamed, taken=taken)


def _of_every_window(group: Alike, lengths: tuple[int, ...]) -> Iterator[tuple[str, int]]:
    """The names that scale a whole loss, with their powers: what scales one window has to scale each."""
    for number, power in group.named:
        if number.whole and number.kind == NAMED and number.value not in lengths:
            yield number.text, power


def _as_it_is(group: Alike, lengths: tuple[int, ...], total: int, weigh: Weigh) -> Iterator[tuple[str, str]]:
    """Numbers without a name, as one that the script counts up: what each is in a window, it has to be in all."""
    for number, _ in group.named:
        if number.whole and number.kind == UNREAD and number.value not in lengths:
            yield shown(number), OF_ROWS_ALONE if number.value == total else ""
    rest = weigh(next(iter(group.rest.values())))
    if rest is not None:
        yield "a number at no line", OF_ROWS_ALONE if close(abs(rest) * total, UNIT) else near(abs(rest))


def _group(group: Alike, window: int, lengths: tuple[int, ...], total: int, weigh: Weigh, terms: Terms) -> Scale:
    """One group: the exponents, and what they say."""
    numbers = [weigh(rest) for rest in group.rest.values()]
    rest = numbers[0]
    if rest is None or any(one is None or not close(one, rest) for one in numbers):
        return Scale(Outcome.UNKNOWN, "numbers that were not read, or that differ, scale the losses", help=FUNCTION)
    every, signed = {*group.sizes().values()}, rest if group.signed else abs(rest)
    r = every.pop() if len(every) == 1 else 0
    made = Factors(lengths[0], r, total, frozenset(lengths), rest=signed)
    if close(made.rest, UNIT):
        made.rest = UNIT
    made.add_all(group.named)
    constants = [s for s, _ in group.others if terms.operators[s] == "constant"]
    if made.scaled or any(SCALE in str(terms.attributes[s][:1]) for s in constants):
        return Scale(Outcome.UNKNOWN, "a loss scale is left in the gradients", help=UNSCALE)
    passes = len(group.rest)
    if group.shared and 1 < passes < made.n:
        some = f"made of no sample, and in {passes} of {made.n} micro-batches"
        return Scale(Outcome.UNKNOWN, f"a part of the losses of window {window} is {some}", help=FUNCTION)
    due = made.b - (group.mean and not (group.shared and passes == 1))
    right = isclose(made.n ** (made.a - due) * made.off, 1)
    for constant in constants:  # as a buffer that may hold 1/N
        held = weigh(terms.of(constant))
        if made.n > 1 and (not right or held is None or made.stands(float(held))):
            reason = f"whether a loss of window {window} is divided by N is not shown: {terms.attributes[constant][0]}"
            return Scale(Outcome.UNKNOWN, reason, help=WRITE_N)
    return _right(group, made, window) if right else _wrong(group, made, window, due)


def _right(group: Alike, made: Factors, window: int) -> Scale:
    odd = made.odd()
    if odd and made.n > 1:
        what = f"a factor {odd[0]} of the loss of window {window} has the value of N, or of the rows of a micro-batch"
        return Scale(Outcome.UNKNOWN, f"{what}, and its origin is not known", help=WRITE_N)
    words = MEAN if group.mean else SUM if not (made.a or group.others) else f"{SUM}, divided by a number of the window"
    return Scale(Outcome.HOLDS, words, UNIT, taken=(*_named(made), *_own(made)))


def shown(number: Number) -> str:
    """A number that was taken for another, and its line."""
    return f"{f'the {number.value:g}' if number.kind == WRITTEN else number.shown} at {number.place}"


def _named(made: Factors) -> Iterator[Taken]:
    yield from ((f"for N = {made.n}:", shown(number)) for number in made.taken)
    yield from (("for the rows of the window:", shown(number)) for number in made.of_window)


def _own(made: Factors) -> Iterator[Taken]:
    """Factors of the loss's own, which the full batch has as well."""
    for number, _ in made.own:
        known = number.text == f"{number.value:g}" or number.kind == UNREAD
        text = number.shown if known else f"{number.shown} = {number.value:g}"
        yield UNREAD_FACTORS if number.kind == UNREAD else FACTORS, f"{text} at {number.place}"
    if made.rest != 1:
        yield UNREAD_FACTORS, f"{near(made.rest)}, at no line"


def said(taken: Iterable[Taken]) -> list[str]:
    """What was taken, in sentences, for the first lines of a result."""
    found = dict[str, dict[str, None]]()
    for what, text in taken:
        found.setdefault(what, {})[text] = None
    return [
        f"{what} {', '.join([*texts][:SHOWN])}{f' and {len(texts) - SHOWN} more' * (len(texts) > SHOWN)}"
        for what, texts in found.items()
    ]


def _wrong(group: Alike, made: Factors, window: int, due: int) -> Scale:
    n, missing = made.n, made.a - due
    of_n, of_rows = missing == 1 and not made.taken, missing == -1
    for named, of, fits, kinds in (("N", n, of_n, (WRITTEN, UNREAD)), ("the rows", made.r, of_rows, (WRITTEN,))):
        divisor = made.divisor(of, *kinds) if fits and of > 1 else []
        own = replace(made, own=[one for one in made.own if one[0] not in divisor])
        if divisor and not own.odd() and (named == "N" or not group.mean):
            lines = ((f"for {named} = {of}:", shown(number)) for number in divisor)
            return Scale(Outcome.HOLDS, MEAN if group.mean else SUM, UNIT, taken=(*lines, *_named(made), *_own(own)))
    total = Fraction(n) ** missing * Fraction(made.off).limit_denominator(10**6)
    reason = f"the samples of window {window} weigh {near(total)} times what they weigh in its full batch"
    other = next((number for number in made.taken if number.value != n), None)
    if other is not None:
        reason = f"{reason}: {other.text} at {other.place} is {other.value:g}, and the window has {n} micro-batches"
    help = f"{DIVIDE}, once" if group.mean else OF_ROWS
    if made.unread() or made.explains(group.mean) or not (made.r or group.mean):
        doubt = "; ".join(text for _, text in [*_own(made)][:SHOWN]) or "the rows of its micro-batches differ"
        reason = f"whether a loss of window {window} is divided by N is not shown: {doubt}"
        return Scale(Outcome.UNKNOWN, reason, help=WRITE_N if group.mean else OF_ROWS)
    return Scale(Outcome.REFUTED, reason, total, help, int(other.value) if other is not None else 0)


def known_numbers(found: list[Alike], passes: int, weigh: Weigh) -> bool:
    """Whether all passes of a window are scaled by the same numbers, each of which has an origin."""
    kinds = {number.kind for group in found for number, _ in group.named}
    plain = [one for group in found for one in map(weigh, group.rest.values())]
    every = all(len(group.rest) == passes for group in found)
    bare = all(one is not None and close(abs(one), UNIT) for one in plain)
    return every and UNREAD not in kinds and bare


def factors_of(found: list[Alike], weigh: Weigh) -> list[float]:
    """By what each group is multiplied in numbers, besides the mean or the sum that it is."""
    made = list[float]()
    for group in found:
        rest = [float(one) for one in map(weigh, group.rest.values()) if one is not None]
        made += [one * prod(number.value**power for number, power in group.named) for one in rest]
    return made


def are_means(terms: Terms, parts: Iterable[LossPart], n: int, weigh: Weigh) -> bool:
    """Whether each of `n` passes weighs 1, N or 1/N as a whole, in numbers: it is a mean of its own elements."""
    totals = dict[int, Combination]()
    for part in parts:
        totals[part.micro] = plus(totals.get(part.micro, {}), part.mass(terms))
    numbers = [weigh(total) for total in totals.values()]
    shares = (1.0, float(n), 1 / n if n else 0.0)
    return len(numbers) == n and all(x is not None and any(close(float(x), one) for one in shares) for x in numbers)
