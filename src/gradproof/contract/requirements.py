"""What a release asks beyond a verdict: layers, reach, bounds, the age of evidence, and what it excuses. Pure.

Demands come from the contract's `qa_gate` and from `[tool.gradproof]`. Two demands add up to the stricter one; neither
takes anything away from the contract. A waiver excuses an obligation that is OPEN: never one that is BROKEN, and never
a crash. It has an owner, a reason and a last day, and after that day it is as if it were not there, but named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

from gradproof.core.outcome import Layer, Reach

REACHES = (Reach.ALL_INPUTS, Reach.BOUNDED, Reach.SAMPLED)


@dataclass(frozen=True)
class Least:
    """Of one obligation: more layers, the least reach by layer, the least value of a named bound of a proof."""

    layers: tuple[Layer, ...] = ()
    reach: Mapping[Layer, Reach] = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Waiver:
    """`layer` None is every layer. `expires` is the last day on which it holds, in UTC."""

    obligation: str
    layer: Layer | None
    owner: str
    reason: str
    expires: date

    def covers(self, obligation: str, layer: Layer) -> bool:
        """Whether it speaks of this cell, in force or not."""
        return self.obligation == obligation and self.layer in (None, layer)

    def told(self) -> str:
        """Who excuses what, until when, and why."""
        where = f"{self.obligation} x {self.layer}" if self.layer else self.obligation
        return f"{where} is waived by {self.owner} until {self.expires}: {self.reason}"


@dataclass(frozen=True)
class Demands:
    """All that is asked and excused. `gpu_max_age` None asks for no age; `now` None judges nothing by the clock."""

    least: Mapping[str, Least] = field(default_factory=dict)
    gpu_max_age: timedelta | None = None
    waivers: tuple[Waiver, ...] = ()
    now: datetime | None = None

    def in_force(self, waiver: Waiver) -> bool:
        """Whether a waiver holds today. Without a clock none does."""
        return self.now is not None and self.now.astimezone(UTC).date() <= waiver.expires

    def excused(self, obligation: str, layer: Layer) -> Waiver | None:
        """The waiver in force for a cell."""
        return next((w for w in self.waivers if w.covers(obligation, layer) and self.in_force(w)), None)

    def lapsed(self, obligation: str, layer: Layer) -> Waiver | None:
        """A waiver for a cell that holds no longer."""
        return next((w for w in self.waivers if w.covers(obligation, layer) and not self.in_force(w)), None)


NONE = Demands()
PROOFS = (Layer.SMT, Layer.CROSSHAIR, Layer.STEP)
"""The layers of which a bound is asked."""


def stricter(one: Least, other: Least) -> Least:
    """Both demands at once."""
    reach = dict(one.reach)
    for layer, asked in other.reach.items():
        reach[layer] = min(asked, reach.get(layer, asked), key=REACHES.index)
    bounds = {n: max(one.bounds.get(n, 0), other.bounds.get(n, 0)) for n in {*one.bounds, *other.bounds}}
    return Least(tuple(dict.fromkeys([*one.layers, *other.layers])), reach, dict(sorted(bounds.items())))


def together(parts: Iterable[Demands], now: datetime | None) -> Demands:
    """Demands of several sources as one."""
    least: dict[str, Least] = {}
    ages: list[timedelta] = []
    waivers: list[Waiver] = []
    for part in parts:
        for name, asked in part.least.items():
            least[name] = stricter(least.get(name, Least()), asked)
        ages += [part.gpu_max_age] if part.gpu_max_age is not None else []
        waivers += part.waivers
    return Demands(least, min(ages, default=None), tuple(dict.fromkeys(waivers)), now)


def demands_of(least: Mapping[str, Any], gpu_max_age_days: int | None, waivers: Sequence[Any]) -> Demands:
    """Demands from their shapes (contract.schema), in a contract or in a file."""
    asked = {n: Least(tuple(row.layers), dict(row.reach), dict(row.bounds)) for n, row in least.items()}
    excused = tuple(Waiver(**dict(row)) for row in waivers)
    return Demands(asked, timedelta(days=gpu_max_age_days) if gpu_max_age_days else None, excused)
