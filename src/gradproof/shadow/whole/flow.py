"""What one run showed: its optimizer steps, what they were handed, and everything else that a judge reads of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from gradproof.shadow.tape import Location
from gradproof.shadow.whole.terms import Combination, Powers, Shape


@dataclass(frozen=True, slots=True)
class Gradient:
    """What an optimizer was handed for one parameter."""

    name: str
    value: Combination


@dataclass(slots=True)
class Update:
    """One optimizer step: its line, the gradients, and what the parameters held afterwards (the term of each).

    `leaves`: the parameters that the gradients were computed at, and that the step replaced. `passes`: the backward
    passes since the step before of this optimizer, which has the number `optimizer`. `order`: its parameters.
    `begun_with`: the gradients that were there when the first of them began.
    """

    place: Location
    gradients: dict[str, Gradient]
    after: dict[str, int] = field(default_factory=dict)
    leaves: set[int] = field(default_factory=set)
    passes: int = 0
    begun_with: Mapping[str, Combination] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    optimizer: int = 0


@dataclass(slots=True)
class Kept:
    """A tensor that the user's code wrote outside of autograd and optimizers, and the windows of its writes."""

    weak: Any
    place: Location
    first: int
    last: int = 0
    shape: Shape = ()
    value: int = 0
    numbers: Any = None


@dataclass(slots=True)
class Flow:
    """What one run showed.

    `roots`: what each backward pass began at, with the number of optimizer steps before it. `counted`: whole
    numbers of a tensor became plain numbers of Python. `free`: Python read numbers that may lead elsewhere at other
    data. `lines`: those of the backward passes. `scaled`: the scalars by which the function itself scaled
    gradients. `repeated`: where data from outside hold what earlier data held. `again`: data that a generator drew
    before. `escaped`: where Python got at the numbers of a gradient or a parameter. `unscaled`: by what a loss
    scaler multiplied the gradients of a window.
    """

    updates: list[Update] = field(default_factory=list)
    reads: list[tuple[Location, str]] = field(default_factory=list)
    lost: list[tuple[Location, str]] = field(default_factory=list)
    coupled: dict[str, Location] = field(default_factory=dict)
    narrow: list[tuple[Location, str, bool]] = field(default_factory=list)
    opaque: Counter[str] = field(default_factory=Counter)
    laws: Counter[str] = field(default_factory=Counter)
    sources: dict[str, int] = field(default_factory=dict)
    operators: int = 0
    counted: bool = False
    free: bool = False
    lines: list[Location] = field(default_factory=list)
    scaled: dict[int, Location] = field(default_factory=dict)
    unscaled: dict[int, tuple[Fraction, Powers]] = field(default_factory=dict)
    roots: list[tuple[int, Combination]] = field(default_factory=list)
    kept: dict[str, tuple[Location, int, Any]] = field(default_factory=dict)
    parameters: int = 0
    final: dict[str, int] = field(default_factory=dict)
    repeated: Location | None = None
    escaped: Location | None = None
    again: set[int] = field(default_factory=set)
