"""How two values of one field compare: stronger, weaker, words alone, or nothing that an order decides.

An order is a function (old, new) -> tellings. What no order decides is UNDECIDED and never passes as no weakening: a
reader has to look. ABSENT stands for a value that is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any

from gradproof.core import Effect, canonical


class Direction(StrEnum):
    """What a change does to what is claimed, or to what was shown."""

    WEAKENED = "weakened"
    UNDECIDED = "undecided"
    STRENGTHENED = "strengthened"
    NEUTRAL = "neutral"


class _Absent:
    def __repr__(self) -> str:
        return "nothing"


ABSENT = _Absent()
W, S, N, U = Direction.WEAKENED, Direction.STRENGTHENED, Direction.NEUTRAL, Direction.UNDECIDED
EFFECTS = (Effect.BROKEN, Effect.OPEN, Effect.DISCHARGED)


@dataclass(frozen=True)
class Telling:
    """One difference: its direction, one word for it, and both sides."""

    direction: Direction
    word: str
    old: Any
    new: Any


Order = Callable[[Any, Any], Iterable[Telling]]


def words(old: Any, new: Any) -> Iterator[Telling]:
    """Text for readers: nothing is judged by it."""
    yield Telling(N, "reworded", old, new)


def undecided(old: Any, new: Any) -> Iterator[Telling]:
    """A change of meaning that no order decides."""
    yield Telling(U, "changed", old, new)


def present(old: Any, new: Any) -> Iterator[Telling]:
    """Something that is better there than not."""
    yield Telling(W, "dropped", old, new) if new is ABSENT else Telling(S, "new", old, new)


def excuse(old: Any, new: Any) -> Iterator[Telling]:
    """Something that is better not there."""
    yield Telling(S, "dropped", old, new) if new is ABSENT else Telling(W, "new", old, new)


def unclear(old: Any, new: Any) -> Iterator[Telling]:
    """Something of which it is not known whether it is better there: a named limit may limit more, or show more."""
    yield Telling(U, "dropped" if new is ABSENT else "new", old, new)


def more(old: Any, new: Any) -> Iterator[Telling]:
    """A list of which every element asks or shows something."""
    before, after = _elements(old), _elements(new)
    yield from (Telling(W, "dropped", x, ABSENT) for x in before if x not in after)
    yield from (Telling(S, "added", ABSENT, x) for x in after if x not in before)
    if sorted(before) == sorted(after):
        yield Telling(N, "reordered", old, new)


def fewer(old: Any, new: Any) -> Iterator[Telling]:
    """A list of which every element takes something for granted."""
    turned = {W: S, S: W, N: N}
    yield from (Telling(turned[t.direction], t.word, t.old, t.new) for t in more(old, new))


def _elements(value: Any) -> list[str]:
    rows = [] if value is ABSENT else value if isinstance(value, list) else [value]
    return list(dict.fromkeys(x if isinstance(x, str) else canonical(x) for x in rows))


def larger(old: Any, new: Any) -> Iterator[Telling]:
    """A number that promises more the larger it is; one that is not there cannot be compared."""
    yield from _numbers(old, new, "smaller", "larger", 1)


def asked(old: Any, new: Any) -> Iterator[Telling]:
    """A least number that is asked for; none is 0."""
    yield from larger(*(0 if x is ABSENT else x for x in (old, new)))


def smaller(old: Any, new: Any) -> Iterator[Telling]:
    """A number that promises more the smaller it is, such as a tolerance; none is no promise."""
    if ABSENT in (old, new):
        yield from present(old, new)
    else:
        yield from _numbers(old, new, "looser", "tighter", -1)


def _numbers(old: Any, new: Any, weak: str, strong: str, sign: int) -> Iterator[Telling]:
    try:
        step = sign * (Fraction(str(new)) - Fraction(str(old)))
    except (ValueError, ZeroDivisionError):
        yield Telling(U, "changed", old, new)
        return
    if step:
        yield Telling(W, weak, old, new) if step < 0 else Telling(S, strong, old, new)
    else:
        yield Telling(N, "rewritten", old, new)


def ranked(*names: Any, worse: str = "lowered", better: str = "raised") -> Order:
    """An order by place in `names`, the weakest first. What is absent stands below them; other values are undecided."""

    def order(old: Any, new: Any) -> Iterator[Telling]:
        known = [ABSENT, *names]
        if old not in known or new not in known:
            yield Telling(U, "changed", old, new)
        elif known.index(new) < known.index(old):
            yield Telling(W, worse, old, new)
        else:
            yield Telling(S, better, old, new)

    return order


def later(old: Any, new: Any) -> Iterator[Telling]:
    """A last day, ISO 8601, of something that is better over sooner."""
    if not isinstance(old, str) or not isinstance(new, str):
        yield Telling(U, "changed", old, new)
    else:
        yield Telling(W, "later", old, new) if new > old else Telling(S, "sooner", old, new)


def standing(old: Any, new: Any) -> Iterator[Telling]:
    """`OUTCOME, EFFECT`: by the effect; another outcome of the same effect is neither."""
    before, after = (x.rpartition(", ")[2] for x in (old, new))
    if before == after:
        yield Telling(N, "changed", old, new)
    else:
        yield from ranked(*EFFECTS, worse="worse", better="better")(before, after)


def data(old: Any, new: Any) -> Iterator[Telling]:
    """Free data: of a list, every element asks something; other values are undecided."""
    lists = [x for x in (old, new) if x is not ABSENT]
    yield from (more if all(isinstance(x, list) for x in lists) else undecided)(old, new)
