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

from gradproof.core import Check, Layer, Reach

REACHES = (Reach.ALL_INPUTS, Reach.BOUNDED, Reach.SAMPLED)
SKEW = timedelta(hours=1)


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
    """Demands from their shapes (contract_gate), in a contract or in a file."""
    asked = {
        name: Least(
            tuple(Layer(x) for x in row.layers), {Layer(k): Reach(v) for k, v in row.reach.items()}, dict(row.bounds)
        )
        for name, row in least.items()
    }
    excused = tuple(
        Waiver(w.obligation, Layer(w.layer) if w.layer else None, w.owner, w.reason, date.fromisoformat(w.expires))
        for w in waivers
    )
    return Demands(asked, timedelta(days=gpu_max_age_days) if gpu_max_age_days else None, excused)


def shortcoming(asked: Least, layer: Layer, proofs: Sequence[tuple[Check, Reach | None]]) -> str:
    """Why proofs that hold do not reach as far as is asked; an empty text where one of them does.

    Bounds are asked of the layers of proofs, and count where a check states a bound of that name.
    """
    wanted = asked.reach.get(layer)
    far = [(c, r) for c, r in proofs if wanted is None or (r is not None and REACHES.index(r) <= REACHES.index(wanted))]
    if not far:
        return f"its reach is {_best(proofs)}, and {wanted} is asked for"
    for name, least in asked.bounds.items() if layer in PROOFS else ():
        held = [b.value for c, r in far for b in c.bounds if b.name == name]
        everything = any(r is Reach.ALL_INPUTS for _, r in far)
        if not everything and max(held, default=0) < least:
            return f"its largest bound {name} is {max(held, default=0)}, and {least} is asked for"
    return ""


def _best(proofs: Sequence[tuple[Check, Reach | None]]) -> str:
    reaches = [r for _, r in proofs if r is not None]
    return str(min(reaches, key=REACHES.index)) if reaches else "not stated"


def outdated(finished_at: str, layer: Layer, demands: Demands) -> str:
    """Why evidence of that date does not count; an empty text where it does. A date ahead of the clock never counts."""
    if demands.now is None:
        return ""
    try:
        finished = datetime.fromisoformat(finished_at)
    except ValueError:
        return f"its date {finished_at!r} is none"
    if finished.tzinfo is None:
        return f"its date {finished_at!r} has no time zone"
    if finished > demands.now + SKEW:
        return f"it is dated {finished_at}, ahead of this machine's clock"
    if layer is Layer.CUDA and demands.gpu_max_age is not None and demands.now - finished > demands.gpu_max_age:
        return f"it is of {finished_at}, and at most {demands.gpu_max_age.days} days are allowed"
    return ""
