"""Terms: whole tensors as applications of operators to other tensors, each stored once.

Rules. Two terms with one number are the same function of the same leaves, so they have equal values over the reals.
Two numbers say nothing: `h*h + h` and `h*(h + 1)` are two terms. A term has the shape of the tensor that it stands for;
`ONE` alone has none: it is all ones in any shape. The owner of a term is the one sample that it was made from, `NOBODY`
where it was made from none, `SEVERAL` where from more than one.

A linear combination maps terms to exact rational coefficients. Over the reals a cast between floating-point types is
the identity; integers and booleans never enter a combination with another coefficient than one.

A product with scalars of which nothing is known (counts, norms, loss scales) is one term, "scaled": the other factor,
and the power of each scalar. Linear operators keep it outermost, so that a scalar and its inverse cancel.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from time import perf_counter, thread_time
from typing import Any

import torch

Shape = tuple[int, ...]
Combination = Mapping[int, Fraction]
"""Term to coefficient, without zeros; the empty combination is zero."""
Powers = dict[int, int]
"""Scalar term to its power, without zeros."""

NOBODY, SEVERAL = -1, -2
ROUNDED = Fraction(1, 10**6)
"""Below this a factor is the rounding of a float constant."""
TRAINED = ("parameter", "state", "unknown")
SEED = "random random ()"
"""What a draw is called of any whole number, without bounds."""
COMPUTED = ("computed", "computed count")
"""Constants that were computed from more samples than a window has, before training."""
COUNTED = ("count", "ne", "eq", "gt", "lt", "ge", "le", COMPUTED[1])
"""What a count of labels, as a float, is made of."""
NORMS = ("linalg_vector_norm", "norm")
APART = 4
"""Summands that the same samples made, and that are followed apart."""
UNIT = Fraction(1)
ZERO: Combination = {}


# -- Numbers of a script that scale a tensor: an application of "named" to nothing.

LONG = 24
WRITTEN, NAMED, SIZE, UNREAD = "written", "named", "size", "unread"
"""A number in the text; one with a name, of which the text or a parser gives the number; a size of a tensor; others."""


@dataclass(frozen=True, slots=True)
class Number:
    """A leaf of an expression. `text` and `line` are for messages; `shapes`: what it shapes in its file.

    `axis`: of a size, the axis of the tensor. `rows`: how many rows of a micro-batch lie along it; 0: none, -1: nothing
    is known of the tensor. `whole`: it scaled a whole loss, or gradients, first. One text is one number.
    """

    kind: str
    text: str
    file: str
    line: int = field(compare=False)
    value: float
    shapes: frozenset[str] = frozenset()
    axis: int = -1
    rows: int = 0
    whole: bool = field(default=False, compare=False)

    @property
    def place(self) -> str:
        """Where it stands, with the file's name alone."""
        return f"{self.file.rpartition('/')[2]}:{self.line}"

    @property
    def shown(self) -> str:
        """Its text, if it is short."""
        return self.text if len(self.text) <= LONG else f"{self.text[: LONG - 3]}..."


class Terms:
    """The store of terms that two runs share: `make` gives a term that is there already its number again.

    `named_alike`: several processes have a store each, in which the kids of a term have to stand in one order.
    """

    def __init__(self, named_alike: bool = False) -> None:
        self.keys: list[tuple[str, str]] | None = [] if named_alike else None
        self.known: dict[tuple[Any, ...], int] = {}
        self.operators, self.attributes = list[str](), list[tuple[Any, ...]]()
        self.kids, self.shapes, self.owners = list[tuple[int, ...]](), list[Shape | None](), list[int]()
        self.trained, self.marked = list[bool](), list[bool]()
        self._with: dict[tuple[str, ...], dict[int, bool]] = {}
        self.orders: set[str] = set()
        self._below: dict[frozenset[int], set[int]] = {}
        self._samples: dict[int, frozenset[int]] = {}
        self._sets: dict[frozenset[int], frozenset[int]] = {}
        self._closed: dict[int, bool] = {}
        self.clock = Clock()
        self.one = self.make("one", (), (), None)

    def __len__(self) -> int:
        return len(self.operators)

    def make(
        self,
        operator: str,
        attributes: tuple[Any, ...],
        kids: tuple[int, ...],
        shape: Shape | None,
        owner: int = NOBODY,
    ) -> int:
        """The number of a term. `owner` is read of a leaf only: other terms have the owner of their kids."""
        key = (operator, attributes, kids, shape)
        found = self.known.get(key)
        if found is not None:
            return found
        number = self.known[key] = len(self.operators)
        if not number % 1024:
            self.clock.look()
        self.operators.append(operator)
        self.attributes.append(attributes)
        self.kids.append(kids)
        self.shapes.append(shape)
        self.owners.append(self._owner(kids) if kids and operator != "state" else owner)
        self.marked.append(operator == "rows" or (operator != "state" and any(self.marked[kid] for kid in kids)))
        self.trained.append(operator in TRAINED or any(self.trained[kid] for kid in kids))
        if self.keys is not None:
            self.keys.append(self._key(operator, attributes, kids, shape))
        return number

    def _key(self, operator: str, attributes: tuple[Any, ...], kids: Sequence[int], shape: Shape | None) -> Any:
        """What a term is called in every store: first without the names of its leaves, then with them."""
        assert self.keys is not None
        rest = () if operator in ("data", "draw") else attributes
        below = [self.keys[kid] for kid in kids]
        form = (operator, rest, shape, [form for form, _ in below])
        whole = (operator, attributes, shape, [name for _, name in below])
        return tuple(hashlib.blake2b(repr(one).encode(), digest_size=12).hexdigest() for one in (form, whole))

    def order(self, term: int) -> Any:
        """By what terms are sorted: their age, or what they are called in every store."""
        return term if self.keys is None else self.keys[term]

    def _owner(self, kids: Sequence[int]) -> int:
        found = NOBODY
        for owner in [self.owners[kid] for kid in kids]:
            if owner not in (NOBODY, found):
                if found != NOBODY:
                    return SEVERAL
                found = owner
        return found

    def of(self, term: int) -> Combination:
        """The combination that is one term."""
        return {term: UNIT}

    def bare(self, term: int) -> tuple[int, Powers]:
        """A term without its scalars, and their powers."""
        if self.operators[term] != "scaled":
            return term, {}
        first, *scalars = self.kids[term]
        return first, dict(zip(scalars, self.attributes[term], strict=True))

    def inner(self, term: int, *operators: str) -> int:
        """What some operators were applied to, one after the other: their first argument."""
        while self.operators[term] in operators:
            term = self.kids[term][0]
        return term

    def uncounted(self, term: int) -> int:
        """A term of samples without the counts that scale it, which are numbers of the whole window."""
        bare, powers = self.bare(term)
        if self.owners[bare] == NOBODY:
            return term
        return self.scaled(bare, {scalar: by for scalar, by in powers.items() if self.trained[scalar]})

    def scaled(self, term: int, powers: Powers) -> int:
        """A term times powers of scalars."""
        if not powers:
            return term
        term, own = self.bare(term)
        powers = multiplied(own, powers)
        order = sorted(powers, key=self.order)
        kids = (term, *order)
        return self.make("scaled", tuple(powers[s] for s in order), kids, self.shapes[term]) if order else term

    def common(self, combination: Combination) -> Powers:
        """The powers of scalars that all terms of a combination share."""
        found: Powers | None = None
        for term in combination:
            own = self.bare(term)[1]
            found = own if found is None else {s: by for s, by in found.items() if own.get(s) == by}
            if not found:
                break
        return found or {}

    def rescaled(self, combination: Combination, powers: Powers) -> Combination:
        """A combination times powers of scalars."""
        if not powers:
            return combination
        return mapped(combination, lambda term: self.scaled(term, powers))

    def named(self, combination: Combination, shape: Shape) -> int:
        """One term for a whole combination, its coefficients included."""
        if len(combination) == 1:
            ((term, by),) = combination.items()
            if by is UNIT or by == 1:
                return term
        order = sorted(combination, key=self.order)
        by_order = tuple(combination[term].as_integer_ratio() for term in order)
        uniform = order == [self.one] or not order
        return self.make("combination", by_order, tuple(order), None if uniform else shape)

    def factored(self, combination: Combination, shape: Shape) -> Combination:
        """The same as one coefficient times one term: the coefficient of the leading term is taken out."""
        if len(combination) < 2:
            return combination
        powers = self.common(combination)
        combination = self.rescaled(combination, multiplied({}, powers, -1))
        first = combination[self.leading(combination)]
        inner = self.named({term: by / first for term, by in combination.items()}, shape)
        return {self.scaled(inner, powers): first}

    def leading(self, combination: Combination) -> int:
        """The oldest term of a sample, else the oldest: samples that took one way have the same one."""
        return min(combination, key=lambda term: (self.owners[term] < 0, self.order(term)))

    def opened(self, combination: Combination) -> Combination:
        """The same, with the summands of each named sum in which samples meet."""
        if not any(self._meets(term) for term in combination):
            return combination
        found: Combination = ZERO
        for term, by in combination.items():
            inner: Combination = {term: UNIT}
            if self._meets(term):
                bare, powers = self.bare(term)
                inner = self.rescaled(self.opened(self.parts_of(bare)), powers)
            found = plus(found, inner, by)
        return found

    def parts_of(self, term: int) -> Combination:
        """The summands of a named sum; another term is its own only one."""
        if self.operators[term] == "filled":
            return self.parts_of(self.kids[term][0])
        if self.operators[term] != "combination":
            return self.of(term)
        parts = zip(self.kids[term], self.attributes[term], strict=True)
        return {kid: Fraction(*exactly) for kid, exactly in parts}

    def _meets(self, term: int) -> bool:
        if self.operators[term] == "scaled":
            term = self.kids[term][0]
        return self.operators[term] == "combination" and self.owners[term] == SEVERAL and not self.closed(term)

    def closed(self, term: int) -> bool:
        """Whether a named sum has one name only because so many summands are made of the same samples."""
        kids = self.kids[term]
        if len(kids) <= APART:
            return False
        if term not in self._closed:
            self._closed[term] = len({self._sample_set(self.bare(kid)[0]) for kid in kids}) == 1
        return self._closed[term]

    def merged(self, combination: Combination, shape: Shape) -> Combination:
        """The same, with one name for the summands that the same samples made, where these are too many.

        In a recurrence each operator multiplies them: every way through it would be a summand of its own.
        """
        if len(combination) <= APART:
            return combination
        groups: dict[Any, dict[int, Fraction]] = {}
        for term, by in combination.items():
            bare, powers = self.bare(term)
            groups.setdefault((self._sample_set(bare), *sorted(powers.items())), {})[term] = by
        if len(groups) == len(combination):
            return combination
        return added(self.factored(own, shape) if len(own) > APART else own for own in groups.values())

    def _sample_set(self, term: int) -> frozenset[int]:
        """The samples that a term was made from."""
        known, owners = self._samples, self.owners
        for one in pending([term], known, lambda one: self.kids[one] if owners[one] == SEVERAL else ()):
            below = (
                {known[kid] for kid in self.kids[one]}
                if owners[one] == SEVERAL
                else {frozenset({owners[one]} - {NOBODY})}
            )
            found = below.pop() if len(below) == 1 else frozenset[int]().union(*below)
            known[one] = self._sets.setdefault(found, found)
        return known[term]

    def samples(self, terms: Iterable[int]) -> set[int]:
        """The samples that terms were made from. What a step put into a parameter or a state counts as none."""
        return set().union(*map(self._sample_set, terms))

    def summed(self, values: Iterable[Combination]) -> set[int]:
        """The samples of the summands of combinations, those of their scalars left out."""
        return self.samples(self.bare(term)[0] for value in values for term in value)

    def unscaled(self, value: Combination) -> set[int]:
        """The samples of a combination, those of what scales a term on the way, as a count, left out."""

        def below(term: int) -> Sequence[int]:
            return self.kids[term][: 1 if self.operators[term] == "scaled" else None] * (self.owners[term] == SEVERAL)

        rest = self.walked((self.bare(term)[0] for term in value), below)
        return {self.owners[term] for term in rest if self.owners[term] >= 0}

    def plain(self, combination: Combination) -> bool:
        """Whether a combination is made of no parameter and no state."""
        return not any(self.trained[term] for term in combination)

    def reached(self, terms: Iterable[int]) -> set[int]:
        """Every term from which terms were made, but what a step put into a parameter or a state."""
        return self.walked(terms, lambda term: () if self.operators[term] == "state" else self.kids[term])

    def alike(self, leaves: Collection[int], reached: Iterable[int]) -> bool:
        """Whether as many terms are made from each of these leaves. `reached`: with all that terms are made of."""
        bits = {leaf: 1 << at for at, leaf in enumerate(leaves)}
        whole, made, counts = (1 << len(bits)) - 1, dict[int, int](), Counter[int]()
        for term in sorted(reached):  # a term comes after those that it is made of
            made[term] = bits.get(term, 0)
            for kid in self.kids[term] if self.operators[term] != "state" else ():
                made[term] |= made[kid]
            counts[made[term]] += 0 < made[term] < whole
        each = [sum(count for mask, count in counts.items() if mask & bit) for bit in bits.values()]
        return len({*each}) == 1

    def walked(self, terms: Iterable[int], below: Callable[[int], Sequence[int]]) -> set[int]:
        """Terms, and what is below them."""
        self.clock.look()
        seen, stack = set[int](), list(terms)
        while stack:
            term = stack.pop()
            if term not in seen:
                seen.add(term)
                stack.extend(below(term))
        return seen

    def below(self, terms: frozenset[int]) -> set[int]:
        """What `reached` gives. It is kept, for terms do not change."""
        if terms not in self._below:
            self._below[terms] = self.reached(terms)
        return self._below[terms]

    def scaled_by_others(self, value: Combination, own: Powers) -> bool:
        """Whether some scalars of a combination are made of other things than of the combination without them."""
        if not own:
            return False
        rest = self.rescaled(value, multiplied({}, own, -1))
        return self.named(rest, self.shapes[next(iter(rest))] or ()) not in self.below(frozenset(own))

    def found(self, terms: Iterable[int], operators: Sequence[str]) -> list[int]:
        """The terms of some operators from which terms were made."""
        return sorted(term for term in self.reached(terms) if self.operators[term] in operators)

    def counting(self, value: Combination) -> bool:
        """Whether a count of labels is among what a number is made of."""
        return any(self.made_with(term, COUNTED) for term in value)

    def ordering(self, made: Collection[int]) -> bool:
        """Whether numbers order samples, and count none: a permutation or a seed that a data loader read."""
        return len(made) > 0 and self.orders >= self._drawn(made)

    def orders_by(self, made: Collection[int]) -> None:
        """A data loader reads a permutation as it was drawn, or a seed of any size."""
        self.orders |= {one for one in self._drawn(made) if " randperm " in one or one == SEED}

    def _drawn(self, made: Collection[int]) -> set[str]:
        return {str(self.attributes[one][0]) if self.operators[one] in ("data", "draw") else "" for one in made}

    def made_with(self, term: int, operators: tuple[str, ...]) -> bool:
        """Whether a term was made from one of some operators. It is kept, for terms do not change."""
        known = self._with.setdefault(operators, {})
        return self._made(term, lambda one: self.operators[one] in operators, known)

    def made_of(self, term: int, others: Container[int], known: dict[int, bool]) -> bool:
        """Whether a term was made from one of others, or is one. `known`: what was found before."""
        return self._made(term, lambda one: one in others, known)

    def _made(self, term: int, is_one: Callable[[int], bool], known: dict[int, bool]) -> bool:
        def kids(one: int) -> Sequence[int]:
            return () if is_one(one) or self.operators[one] == "state" else self.kids[one]

        for one in pending([term], known, kids):
            known[one] = is_one(one) or any(known[kid] for kid in kids(one))
        return known[term]


def pending(of: Iterable[int], known: Container[int], kids: Callable[[int], Sequence[int]]) -> Iterator[int]:
    """What terms are made of, as far as it is not known: each after its kids, and the caller makes it known."""
    stack = [*of]
    while stack:
        left = [] if stack[-1] in known else [kid for kid in kids(stack[-1]) if kid not in known]
        stack += left
        if not left and (one := stack.pop()) not in known:
            yield one


def plus(left: Combination, right: Combination, by: Fraction = UNIT) -> Combination:
    """left + by * right."""
    if not right or not by:
        return left
    found = dict(left)
    for term, coefficient in right.items():
        added = coefficient if by is UNIT else by * coefficient
        total = found[term] + added if term in found else added
        if total:
            found[term] = total
        else:
            found.pop(term, None)
    return found


def added(values: Iterable[Combination]) -> Combination:
    """The sum of combinations."""
    total: Combination = ZERO
    for one in values:
        total = plus(total, one)
    return total


def mapped(combination: Combination, rule: Callable[[int], int]) -> Combination:
    """A linear operator on every term of a combination."""
    if len(combination) == 1:
        ((term, by),) = combination.items()
        return {rule(term): by}
    found: dict[int, Fraction] = {}
    for term, by in combination.items():
        made = rule(term)
        found[made] = found[made] + by if made in found else by
    return {term: by for term, by in found.items() if by}


def multiplied(left: Powers, right: Powers, by: int = 1) -> Powers:
    """left * right ** by."""
    found = dict(left)
    for scalar, power in right.items():
        found[scalar] = found.get(scalar, 0) + by * power
        if not found[scalar]:
            del found[scalar]
    return found


def times(combination: Combination, by: Fraction) -> Combination:
    """A combination times a rational."""
    if by is UNIT or by == 1:
        return combination
    return {term: by * coefficient for term, coefficient in combination.items()} if by else ZERO


def frozen(value: Any) -> Any:
    """An attribute of an operator as a part of a key. Numbers that differ though they compare equal (-0.0) differ."""
    if isinstance(value, list | tuple):
        return tuple(frozen(part) for part in value)
    if isinstance(value, dict):
        return tuple((name, frozen(part)) for name, part in sorted(value.items()))
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, float):
        return ("float", value.hex())
    if isinstance(value, int | str) or value is None:
        return value
    return str(value)


def bared(value: Any) -> Any:
    """An argument as a part of a key, a tensor as a mark."""
    if type(value) is int or value is None:
        return value
    if isinstance(value, torch.Tensor):
        return ("tensor",)
    if isinstance(value, list | tuple):
        return tuple(bared(part) for part in value)
    return frozen(value)


def exact(number: Any) -> Fraction | None:
    """A Python number as the rational that it is; None for infinities, NaN and complex numbers."""
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    try:
        return Fraction(number)
    except (ValueError, OverflowError):
        return None


def ratio(mine: Combination, other: Combination) -> Fraction | None:
    """The rational by which one combination is another, where there is one and it is not 1."""
    if not mine or not other or set(mine) != set(other):
        return None
    first = next(iter(mine))
    by = mine[first] / other[first]
    return by if abs(by - 1) > ROUNDED and mine == times(other, by) else None


# -- A limit on the time that gradproof itself takes of a script: what was decided before it passed stays.
#
# Time counts while the engine works at a call, and none of the operators of the script. It is looked at where a call
# begins, and where terms are made or walked, for one operator may take for ever. A machine that is busy with other work
# takes none of it: when as many seconds have passed on the clock, the thread must have had as many of CPU time.
LATE = "the time limit of {:g} s passed before an answer came"
HELP = "raise --time-limit, or watch a smaller model"


class TimeLimit(Exception):
    """The time limit has passed."""


class Clock:
    """Seconds that were spent since `begin`. Used as a context it runs, and raises TimeLimit when they are too many."""

    def __init__(self) -> None:
        self.limit, self.spent, self.since, self.depth = math.inf, 0.0, 0.0, 0
        self.used = thread_time()

    def __enter__(self) -> None:
        if not self.depth:
            self.since = perf_counter()
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        if not self.depth:
            self.spent += perf_counter() - self.since

    def begin(self) -> None:
        """Something else begins, which has all of the time."""
        self.spent, self.since, self.used = 0.0, perf_counter(), thread_time()

    def look(self) -> None:
        """Raises TimeLimit when the time is over."""
        late = self.depth and self.spent + perf_counter() - self.since > self.limit
        if late and thread_time() - self.used > self.limit:
            raise TimeLimit(LATE.format(self.limit))
