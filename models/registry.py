"""What a mutant is: a bug that somebody shipped, named, with its thread and the obligation that it breaks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Mutant:
    """`subject` is a class with the interface of the reference subject; `reference` names the public thread."""

    name: str
    obligation: str
    reference: str
    subject: Any
