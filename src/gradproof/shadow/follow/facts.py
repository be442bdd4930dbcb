"""What one run showed: its optimizer steps, what they were handed, and the numbers beside the terms.

Nothing is proved by numbers. Gradients that terms prove equal have to be equal in numbers as well; where they are not,
nothing holds. Numbers that a function returns and that were not followed (`float(loss)` made plain numbers of them) are
compared as they are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import reduce
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from gradproof.shadow.follow.terms import COMPUTED, Combination, Powers, Shape, Terms
from gradproof.shadow.locations import Location

DOMAIN = "whole tensors"
"""How results are called that whole tensors decide."""
SAMPLED = 4096
"""Elements of a tensor that are compared, at the most."""
CLOSE, LATER, NARROW = 1e-3, 5e-2, 1e-1
"""Relative differences that rounding may make: in the first window, in later ones, and where a tensor is below fp32."""
VANISHING = 1e-6
"""The largest number of a gradient that is nothing but rounding, relative to the largest of its step."""
SHOWN = 8
LEAVES = ("data", "draw", "outside", "constant", *COMPUTED, "unknown")
ROUNDED = 1e-4
"""The relative difference that rounding may make of a loss."""


@dataclass(slots=True)
class Update:
    """One optimizer step: its line, what the gradients are made of, and what the parameters held afterwards (terms).

    `leaves`: the parameters that the gradients were computed at, and that the step replaced. `passes`: the backward
    passes since the step before of this optimizer, which has the number `optimizer`. `order`: its parameters.
    `begun_with`: the gradients that were there when the first of them began.
    Where there are numbers: `numbers` of the gradients; `weights` before the step, and as it `moved` them; `begun`, of
    `begun_with`; learning `rates`. `peak`: the largest of a gradient while the window was summed; what scaled the
    gradients after that scales it as well.
    Of a watched run: its `window`, counted from 0; `until`: the backward passes before the step; `part`: how often the
    recording went on after windows that were not recorded; `fetches`: the number of the micro-batch at which it went on
    last, and of the one that was fetched last before the step.
    """

    location: Location
    gradients: dict[str, Combination]
    numbers: dict[str, torch.Tensor] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)
    leaves: set[int] = field(default_factory=set)
    passes: int = 0
    begun_with: Mapping[str, Combination] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    optimizer: int = 0
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    moved: dict[str, torch.Tensor] = field(default_factory=dict)
    begun: dict[str, torch.Tensor] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)
    peak: float = 0.0
    until: int = 0
    window: int = 0
    part: int = 0
    fetches: tuple[int, int] = (0, 0)

    @property
    def at_rest(self) -> bool:
        """Whether every learning rate is 0, as at the begin of a warm-up: such a step moves nothing, and is a step."""
        return bool(self.rates) and not any(self.rates)


@dataclass(slots=True)
class BackwardPass:
    """One backward pass: its line, the losses that it began at, and what it brought to each parameter.

    `seeded`: it began with gradients of the caller's own. `returned`: it returned gradients and accumulated none.
    `emptied`: where a gradient was zeroed, or taken away, before the next pass or step. `window`: as of an `Update`.
    `before`: how many terms there were when it began.
    """

    location: Location
    roots: list[Combination]
    gains: dict[str, Combination] = field(default_factory=dict)
    seeded: bool = False
    returned: bool = False
    emptied: Location | None = None
    window: int = 0
    before: int = 0


def together(updates: Sequence[Update]) -> list[Update]:
    """The steps of a run, where those of several optimizers with no backward pass between them are one.

    They are where the same optimizers, each with weights of its own, step so each time, and once.
    """
    groups: dict[tuple[int, int], list[Update]] = {}
    for update in updates:
        groups.setdefault((update.window, update.until), []).append(update)
    found = [[one.optimizer for one in group] for group in groups.values()]
    shared = any(set(a.order) & set(b.order) for group in groups.values() for a, b in combinations(group, 2))
    if shared or any(sorted(one) != sorted(set(found[0])) for one in found):
        return list(updates)
    return [reduce(_with, group) for group in groups.values()]


def _with(one: Update, other: Update) -> Update:
    return replace(
        one, gradients=one.gradients | other.gradients, after=one.after | other.after, leaves=one.leaves | other.leaves,
        begun_with={**one.begun_with, **other.begun_with}, order=(*one.order, *other.order),
        optimizer=min(one.optimizer, other.optimizer),
    )  # fmt: skip


def leaves(terms: Terms, update: Update) -> set[int]:
    """The data, draws and constants that the gradients of a step are made of."""
    return set(terms.found((term for value in update.gradients.values() for term in value), LEAVES))


class PassedLimit(NamedTuple):
    """The time limit passed: why, in which window, and where."""

    reason: str
    window: int
    location: Location | None


@dataclass(slots=True)
class Kept:
    """A tensor that the user's code wrote outside of autograd and optimizers, and the windows of its writes."""

    weak: Any
    location: Location
    first: int
    last: int = 0
    shape: Shape = ()
    value: int = 0
    numbers: Any = None


@dataclass(slots=True)
class RunFacts:
    """What one run showed.

    `roots`: what backward passes began at, by the number of optimizer steps before them. `counted`: where whole numbers
    of a tensor first became plain numbers of Python. `shown`: where Python read a count. `gated`: numbers of gradients
    became plain. `free`: Python read numbers that may lead elsewhere at other data. `narrow`: the lines that store a
    sum below fp32, the type, whether it is a sum for certain, and the step and the backward passes before. `line`: that
    of the first backward pass. `coupled`: the first operator in which samples meet; `crossed`: as rows of samples lie
    along two axes of what it broadcasts, such as labels (B,) against scores (B, 1). `scaled`: the scalars by which the
    function itself scaled gradients. `repeated`: where data from outside hold what earlier data held. `again`: data
    that a generator drew before. `escaped`: where Python got at the numbers of a gradient or a parameter. `unscaled`:
    by what a loss scaler multiplied the gradients of a window. `assumed`: operators whose laws are registered, or
    sampled, and the words that say so. `below`: where a tensor below fp32 was made first. `last`, `last_rates`: the
    numbers of parameters, and learning rates, at the end. `there`: the most rows that a line drew, or infinity where
    data come from outside. `fixed`: where constants have more rows than a window has
    samples, or are computed from as many. `passed`: what the backward passes of each window began with, in numbers.
    `numbered`: a count is that of this run alone.
    """

    updates: list[Update] = field(default_factory=list)
    reads: list[tuple[Location, str]] = field(default_factory=list)
    lost: list[tuple[Location, str]] = field(default_factory=list)
    coupled: tuple[str, Location] | None = None
    crossed: bool = False
    narrow: list[tuple[Location, str, bool, tuple[int, int]]] = field(default_factory=list)
    opaque: Counter[str] = field(default_factory=Counter)
    laws: Counter[str] = field(default_factory=Counter)
    sources: dict[str, int] = field(default_factory=dict)
    there: float = 0
    operators: int = 0
    counted: Location | None = None
    shown: Location | None = None
    free: bool = False
    gated: bool = False
    line: Location | None = None
    scaled: dict[int, Location] = field(default_factory=dict)
    unscaled: dict[int, tuple[Fraction, Powers]] = field(default_factory=dict)
    roots: dict[int, list[Combination]] = field(default_factory=dict)
    kept: dict[str, tuple[Location, int, Any]] = field(default_factory=dict)
    final: dict[str, int] = field(default_factory=dict)
    repeated: Location | None = None
    escaped: Location | None = None
    again: set[int] = field(default_factory=set)
    assumed: Mapping[str, str] = field(default_factory=dict)
    below: Location | None = None
    last: dict[str, torch.Tensor] = field(default_factory=dict)
    last_rates: list[float] = field(default_factory=list)
    fixed: dict[Location, None] = field(default_factory=dict)
    numbered: bool = False
    passed: dict[int, float] = field(default_factory=lambda: defaultdict(float))

    def unscaled_of(self, step: Update) -> tuple[Fraction, Powers] | None:
        """By what a loss scaler multiplied the gradients of a step, or of those that are one with it."""
        own = (at for at, one in enumerate(self.updates) if (one.window, one.until) == (step.window, step.until))
        return next((self.unscaled[at] for at in own if at in self.unscaled), None)

    @property
    def losses(self) -> list[float]:
        """The losses of the windows. Where several optimizers step in a window, the passes come before the first."""
        return [loss for loss in self.passed.values() if loss]

    @property
    def rates(self) -> list[list[float]]:
        """The learning rates of each step, and those at the end."""
        return [*(update.rates for update in self.updates), self.last_rates]

    def heard(self, name: str, of: torch.Tensor) -> torch.Tensor:
        """Numbers of a parameter whose gradients are more than rounding beside the others, once at least.

        Of an optimizer that divides by the size of gradients the rest is rounding as well.
        """
        every = [update.numbers for update in self.updates if name in update.numbers]
        steps = [(step[name], largest([*step.values()])) for step in every]
        masks = [own.abs() > VANISHING * top for own, top in steps if own.shape == of.shape]
        return of[torch.stack(masks).any(0)] if masks and len(masks) == len(steps) else of

    def differ(self, mine: torch.Tensor, other: torch.Tensor) -> bool:
        """Whether two tensors differ by more than rounding."""
        allowed = CLOSE if self.below is None else NARROW
        return bool(((mine - other).abs() > allowed * largest([other])).any())


@dataclass(frozen=True, slots=True)
class Hints:
    """What an earlier attempt showed.

    `by_hand`: the function steps without an optimizer. `common`: the lines whose random numbers are no samples. `rows`:
    each row of a first axis is a sample until its use shows that all samples have it, whatever its size.
    `integers`: counts are the numbers of this run. `apart`: the draws that are other ones on other ranks. `fixed`:
    tensors that one run took for constants, by their numbers. `log`: takes the records of the run.
    """

    by_hand: bool = False
    common: frozenset[str] = frozenset()
    rows: bool = False
    integers: bool = False
    apart: frozenset[str] = frozenset()
    fixed: frozenset[str] = frozenset()
    log: list[str] | None = field(default=None, compare=False)


# -- Numbers.


def shaped(mine: torch.Tensor, other: torch.Tensor, allowed: float) -> bool:
    """Whether two tensors are the same but for a relative difference; tensors of two shapes are not compared."""
    if mine.shape != other.shape or not mine.numel():
        return True
    return bool((mine - other).abs().max() <= allowed * largest([mine, other]))


def largest(tensors: Sequence[torch.Tensor]) -> float:
    """The largest number of some tensors."""
    return max((float(one.abs().max()) for one in tensors if one.numel()), default=0.0)


def sampled(tensor: torch.Tensor) -> torch.Tensor:
    """At most SAMPLED elements of a tensor, in float64."""
    with torch.no_grad(), _disable_current_modes():
        whole = tensor.detach().resolve_conj()
        flat = (torch.view_as_real(whole) if whole.is_complex() else whole).reshape(-1)
        return flat[:: max(1, flat.numel() // SAMPLED)].to("cpu", torch.float64, copy=True)


@dataclass(frozen=True, slots=True)
class Difference:
    """A gradient that differs by more than rounding. `size`: relative to the largest number of both runs' step."""

    name: str
    size: float
    ours: torch.Tensor
    full: torch.Tensor

    def factor(self) -> Fraction | None:
        """The one number by which the gradient is the full batch's, where there is one."""
        square = float(self.full @ self.full)
        if not square:
            return None
        by = float(self.ours @ self.full) / square
        rest = float((self.ours - by * self.full).norm()) / square**0.5
        near = Fraction(by).limit_denominator(64)
        return near if rest <= ROUNDED * max(1.0, abs(by)) and abs(float(near) - by) <= ROUNDED else None

    def shown(self) -> dict[str, Any]:
        """The elements that differ most, as plain data."""
        order = (self.ours - self.full).abs().argsort(descending=True, stable=True)[:SHOWN].sort().values
        return {
            "quantity": f"the gradient of {self.name}",
            "elements": order.tolist(),
            "accumulated": self.ours[order].tolist(),
            "full_batch": self.full[order].tolist(),
            "relative_difference": float((self.ours - self.full).abs().max()) / (largest([self.full]) or 1.0),
            "replayed": "both runs, on the same data and draws",
        }


def difference(ours: RunFacts, full: RunFacts, at: int, weights: bool = False) -> Difference | None:
    """The gradient, or weight, of an optimizer step that differs most, where one does by more than rounding.

    A difference is relative to the largest number of the step.
    """
    if at >= min(len(ours.updates), len(full.updates)):
        return None
    steps = [ours.updates[at], full.updates[at]]
    mine, other = (step.weights if weights else step.numbers for step in steps)
    narrow = not weights and (ours.below or full.below) is not None
    allowed = NARROW if narrow else CLOSE if at == 0 else LATER
    top = max(largest([*mine.values(), *other.values()]), *(0.0 if weights else step.peak for step in steps))
    found: Difference | None = None
    for name in mine.keys() & other.keys():
        if mine[name].shape != other[name].shape or not top or not mine[name].numel():
            continue
        size = float((mine[name] - other[name]).abs().max()) / top
        if size > max(allowed, 0.0 if found is None else found.size):
            found = Difference(name, size, mine[name], other[name])
    return found


def same_gradients(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor], narrow: bool = False) -> bool:
    """Whether the gradients of one step are the same in two recordings of one run, which may have `narrow` tensors."""
    if len(one) != len(other) or any(a.shape != b.shape for a, b in zip(one, other, strict=True)):
        return False
    allowed = (NARROW if narrow else CLOSE) * largest([*one, *other])
    return all(bool(((a - b).abs() <= allowed).all()) for a, b in zip(one, other, strict=True))


def near(one: float, other: float) -> bool:
    """Equal within rounding."""
    return abs(one - other) <= ROUNDED * max(abs(one), abs(other)) + 1e-9


def alike(ours: Sequence[float], full: Sequence[float]) -> bool:
    """Whether two lists of numbers are equal within rounding."""
    return len(ours) == len(full) and all(near(a, b) for a, b in zip(ours, full, strict=True))


def proportional(numbers: Sequence[float], losses: Sequence[float]) -> bool:
    """Whether numbers are one multiple of the losses, from window to window."""
    ratios = [number / loss for number, loss in zip(numbers, losses, strict=True)]
    whole = all(float(number).is_integer() for number in numbers) and max(map(abs, numbers)) >= 10
    allowed = [1e-3 * abs(ratios[0]) + whole / abs(loss) for loss in losses]
    return any(ratios) and all(abs(r - ratios[0]) <= a for r, a in zip(ratios, allowed, strict=True))


def alike_in_print(ours: Sequence[tuple[float, float]], full: Sequence[tuple[float, float]]) -> bool:
    """Whether two runs print the same decimal fractions, but for their last places."""
    pairs = zip(ours, full, strict=False)
    return len(ours) == len(full) and all(abs(a - b) <= 1.01 * max(u, v) + 1e-5 * abs(b) for (a, u), (b, v) in pairs)
