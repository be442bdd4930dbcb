"""What a harness frees: for each field of the dataclasses in its case, whether it is an input or a constant.

Fields come from the dataclasses themselves. A number is free where it is a term in the harness's inputs that the
assumptions leave several values; a field that is annotated with whole numbers, words or truth values alone is also
free where it has several values over the paths.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

from gradproof.arith.context import ManyValued
from gradproof.arith.symbolic import SymBool

SHOWN = 8
"""Concrete values that are listed at most."""
_DISCRETE = (int, str, bool, type(None), Enum)
_LISTS = (list, tuple, set, frozenset)


@dataclass
class CaseField:
    """A field on all paths so far. `number`: it has to be a free term; concrete values do not free it."""

    number: bool
    varied: bool = False
    values: dict[str, None] = field(default_factory=dict)

    @property
    def free(self) -> bool:
        """Whether some harness input decides it, or several values of it were tried."""
        return self.varied or (not self.number and len(self.values) > 1)


Row = tuple[str, str, bool, Any]


def rows(case: Iterable[Any], named: Mapping[str, Any]) -> Iterator[Row]:
    """(type, field, whether it is a number, value) of every dataclass in a case, and of its named arguments."""
    for value in case:
        yield from _of(value)
    for name, value in named.items():
        inner = [*_of(value)]
        yield from inner or [("", name, not isinstance(value, (str, bool, Enum, frozenset)), value)]


def _of(value: Any) -> Iterator[Row]:
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _of(one)
    if not is_dataclass(value) or isinstance(value, type):
        return
    kind = type(value)
    for name, number in numeric(kind).items():
        inner = [*_of(made := getattr(value, name))]
        yield from inner or [(f"{kind.__module__}:{kind.__qualname__}", name, number, made)]


@cache
def numeric(kind: type) -> Mapping[str, bool]:
    """The fields of a dataclass, and whether each is a number: annotated with more than whole numbers and words."""
    try:
        hints = typing.get_type_hints(kind)
    except (NameError, TypeError):
        hints = {}
    return {f.name: not _discrete(hints.get(f.name, Any)) for f in fields(kind)}


def _discrete(hint: Any) -> bool:
    arguments = [a for a in typing.get_args(hint) if a is not ...]
    if arguments and typing.get_origin(hint) is not typing.Literal:
        return all(map(_discrete, arguments))
    return typing.get_origin(hint) is typing.Literal or (isinstance(hint, type) and issubclass(hint, _DISCRETE))


def settle(
    seen: dict[tuple[str, str], CaseField], case: Sequence[Row], varied: Callable[[Sequence[Any]], set[int]]
) -> None:
    """Take in what one path had. `varied` tells the places of those values that the path leaves several values."""
    asked: list[tuple[CaseField, Any]] = []
    for kind, name, number, value in case:
        row = seen.setdefault((kind, name), CaseField(number))
        for one in [*_flat(value)] if number else [value]:
            if isinstance(one, (ManyValued, SymBool)):
                asked += [] if row.varied else [(row, one)]
            elif len(row.values) <= SHOWN:
                row.values.setdefault(_word(one))
    for place in varied([one for _, one in asked]):
        asked[place][0].varied = True


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, _LISTS):
        for one in value:
            yield from _flat(one)
    else:
        yield value


def _word(value: Any) -> str:
    return str(sorted(value, key=str) if isinstance(value, (set, frozenset)) else getattr(value, "name", value))[:60]


def stated(seen: Mapping[tuple[str, str], CaseField]) -> list[dict[str, Any]]:
    """The rows as evidence holds them."""
    return [
        {"type": kind, "field": name, "free": row.free, "values": [*row.values][:SHOWN]}
        for (kind, name), row in sorted(seen.items())
    ]
