"""What a harness frees: for each field of the dataclasses in its case, whether it is an input or a constant.

Fields come from the dataclasses themselves. A number is free where it is a term in the harness's inputs that the
assumptions leave several values, and a list of numbers, or of dataclasses, where each of its elements is so on one
path; a field that is annotated with whole numbers, words or truth values alone is also free where its value at one
place of the case differs between paths: several constants on one path are constants.
"""

from __future__ import annotations

import typing
from collections import Counter
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
    """A field on all paths so far. `number`: it has to be a free term; concrete values do not free it.

    `tried`: its concrete values at each place that it has in the case, as in each of several micro-batches.
    """

    number: bool
    varied: bool = False
    values: dict[str, None] = field(default_factory=dict)
    tried: dict[int, set[str]] = field(default_factory=dict)

    @property
    def free(self) -> bool:
        """Whether some harness input decides it, or several values of it were tried at one place."""
        return self.varied or (not self.number and any(len(words) > 1 for words in self.tried.values()))


Row = tuple[str, str, bool, Any]


def rows(case: Iterable[Any], named: Mapping[str, Any]) -> Iterator[Row]:
    """(type, field, whether it is a number, value) of every dataclass in a case, and of its named arguments.

    Raises TypeError for a part of the case that holds something and no dataclass: it needs a name.
    """
    for value in case:
        inner = [*_of(value)]
        if not inner and not (isinstance(value, (list, tuple)) and not value):
            raise TypeError(f"k.scenario: {type(value).__name__} holds no dataclass; give it a name")
        yield from inner
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
    """Take in what one path had. `varied` tells the places of those values that the path leaves several values.

    A field varies on a path where each of its values does: every element of a list, in every dataclass of the case.
    """
    asked: list[Any] = []
    places: dict[tuple[str, str], set[int]] = {}
    constant: set[tuple[str, str]] = set()
    count: Counter[tuple[str, str]] = Counter()
    for kind, name, number, value in case:
        row, inner = seen.setdefault((kind, name), CaseField(number)), [*_flat(value)]
        count[kind, name] += 1
        if not any(map(_symbolic, inner)):
            row.tried.setdefault(count[kind, name], set()).add(_word(value))
        for one in inner if number or any(map(_symbolic, inner)) else [value]:
            if not _symbolic(one):
                constant.add((kind, name))
                if len(row.values) <= SHOWN:
                    row.values.setdefault(_word(one))
            elif not row.varied:
                places.setdefault((kind, name), set()).add(len(asked))
                asked.append(one)
    free = varied(asked)
    for key, own in places.items():
        seen[key].varied = key not in constant and own <= free


def _symbolic(value: Any) -> bool:
    return isinstance(value, (ManyValued, SymBool))


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
