"""What a mutant is: a bug that somebody shipped, named, with its thread and the obligation that it breaks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

CROSSING = "a crossing"
"""What stands for the thread of a mutant that nobody reported: it needs two settings at once, or a later window."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """`subject` is a class with the interface of the reference subject; `reference` names the public thread."""

    name: str
    obligation: str
    reference: str
    subject: Any


def registered(rows: Iterable[tuple[str, str, str, Any]]) -> Mapping[str, Mutant]:
    """Mutants by name, from rows of name, obligation, thread and subject. Raises ValueError for a name used twice."""
    made: dict[str, Mutant] = {}
    for name, obligation, reference, subject in rows:
        if name in made:
            raise ValueError(f"two mutants are called {name!r}")
        made[name] = Mutant(name, obligation, reference, subject)
    return made


def registered_for(obligation: str, rows: Iterable[tuple[str, str, Any]]) -> Mapping[str, Mutant]:
    """Mutants of one obligation, from rows of name, thread and subject. Raises ValueError for a name used twice."""
    return registered((name, obligation, reference, subject) for name, reference, subject in rows)
