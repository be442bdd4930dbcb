"""Terms: whole tensors as applications of operators to other tensors, each stored once.

Rules. Two terms with one number are the same function of the same leaves, so they have equal values over the reals.
Two numbers say nothing: `h*h + h` and `h*(h + 1)` are two terms. A term has the shape of the tensor that it stands for;
`ONE` alone has none: it is all ones in any shape. The owner of a term is the one sample that it was made from, `NOBODY`
where it was made from none, `SEVERAL` where from more than one.

A linear combination maps terms to exact rational coefficients. Over the reals a cast between floating-point types is
the identity; integers and booleans never enter a combination with another coefficient than one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

Shape = tuple[int, ...]
Combination = Mapping[int, Fraction]
"""Term to coefficient, without zeros; the empty combination is zero."""

NOBODY, SEVERAL = -1, -2
UNIT = Fraction(1)
ZERO: Combination = {}


class Terms:
    """The store of terms that two runs share: `make` gives a term that is there already its number again."""

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], int] = {}
        self.operators: list[str] = []
        self.attributes: list[tuple[Any, ...]] = []
        self.kids: list[tuple[int, ...]] = []
        self.shapes: list[Shape | None] = []
        self.owners: list[int] = []
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
        self.operators.append(operator)
        self.attributes.append(attributes)
        self.kids.append(kids)
        self.shapes.append(shape)
        self.owners.append(self._owner(kids) if kids and operator != "state" else owner)
        return number

    def _owner(self, kids: Sequence[int]) -> int:
        found = {self.owners[kid] for kid in kids} - {NOBODY}
        return NOBODY if not found else found.pop() if len(found) == 1 else SEVERAL

    def of(self, term: int) -> Combination:
        """The combination that is one term."""
        return {term: UNIT}

    def named(self, combination: Combination, shape: Shape) -> int:
        """One term for a whole combination, its coefficients included."""
        if len(combination) == 1:
            ((term, by),) = combination.items()
            if by == 1:
                return term
        order = sorted(combination)
        by_order = tuple(_exact(combination[term]) for term in order)
        uniform = order == [self.one] or not order
        return self.make("combination", by_order, tuple(order), None if uniform else shape)

    def factored(self, combination: Combination, shape: Shape) -> Combination:
        """The same as one coefficient times one term: the coefficient of the oldest term is taken out."""
        if len(combination) < 2:
            return combination
        first = combination[min(combination)]
        return {self.named({term: by / first for term, by in combination.items()}, shape): first}

    def opened(self, combination: Combination) -> Combination:
        """The same, with the summands of each named sum in which samples meet."""
        if not any(self._meets(term) for term in combination):
            return combination
        found: Combination = ZERO
        for term, by in combination.items():
            inner: Combination = {term: UNIT}
            if self._meets(term):
                parts = zip(self.kids[term], self.attributes[term], strict=True)
                inner = self.opened({kid: Fraction(*exactly) for kid, exactly in parts})
            found = plus(found, inner, by)
        return found

    def _meets(self, term: int) -> bool:
        return self.operators[term] == "combination" and self.owners[term] == SEVERAL

    def samples(self, terms: Iterable[int]) -> set[int]:
        """The samples that terms were made from. What a step put into a parameter or a state counts as none."""
        found: set[int] = set()
        seen: set[int] = set()
        stack = list(terms)
        while stack:
            term = stack.pop()
            if term in seen or self.owners[term] == NOBODY:
                continue
            seen.add(term)
            if self.owners[term] >= 0:
                found.add(self.owners[term])
            else:
                stack.extend(self.kids[term])
        return found

    def reached(self, terms: Iterable[int]) -> set[int]:
        """Every term from which terms were made, but what a step put into a parameter or a state."""
        seen: set[int] = set()
        stack = list(terms)
        while stack:
            term = stack.pop()
            if term not in seen:
                seen.add(term)
                if self.operators[term] != "state":
                    stack.extend(self.kids[term])
        return seen

    def found(self, terms: Iterable[int], operators: Sequence[str]) -> list[int]:
        """The terms of some operators from which terms were made."""
        return sorted(term for term in self.reached(terms) if self.operators[term] in operators)


def _exact(number: Fraction) -> tuple[int, int]:
    return (number.numerator, number.denominator)


def plus(left: Combination, right: Combination, by: Fraction = UNIT) -> Combination:
    """left + by * right."""
    if not right or not by:
        return left
    found = dict(left)
    for term, coefficient in right.items():
        total = found.get(term, 0) + by * coefficient
        if total:
            found[term] = Fraction(total)
        else:
            found.pop(term, None)
    return found


def times(combination: Combination, by: Fraction) -> Combination:
    """A combination times a rational."""
    if by == 1:
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


def exact(number: Any) -> Fraction | None:
    """A Python number as the rational that it is; None for infinities, NaN and complex numbers."""
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    try:
        return Fraction(number)
    except (ValueError, OverflowError):
        return None
