"""What a release asks beyond a verdict: layers, reach, bounds, the age of evidence, and what it excuses. Pure.

Demands come from the contract's `qa_gate` and from `[tool.gradproof]`. Two demands add up to the stricter one; neither
takes anything away from the contract. A waiver excuses an obligation that is OPEN: never one that is BROKEN, and never
a crash. It has an owner, a reason and a last day, and after that day it is as if it were not there, but named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from gradproof.contract.dependencies import Premise
from gradproof.contract.requirements import NONE, PROOFS, REACHES, Demands, Least, together
from gradproof.core.check import Check
from gradproof.core.outcome import Layer, Reach
from gradproof.verdict.plan import falsification_id, plan
from gradproof.verdict.proof_basis import NOTHING, Required

if TYPE_CHECKING:
    from gradproof.contract.model import Contract
SKEW = timedelta(hours=1)


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


@dataclass(frozen=True)
class Clause:
    """An obligation, the layers that must discharge it, and the subjects that it is about beside the contract's."""

    id: str
    layers: tuple[Layer, ...]
    subjects: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Criterion:
    """A named part of the gate: met when all its obligations are discharged."""

    name: str
    obligations: tuple[str, ...]


@dataclass(frozen=True)
class Policy:
    """What is demanded. `restricted`: only the checks at hand are judged, on the layers in `demanded`.

    `backing`: what must stand behind the proofs of some strategies. `premises`: the contracts that this one builds on;
    one that is not discharged keeps the gate open. `demands`: what is asked and excused beyond the contract.
    """

    profile: str
    clauses: tuple[Clause, ...]
    criteria: tuple[Criterion, ...] = ()
    gate_check: str | None = None
    restricted: bool = False
    demanded: frozenset[Layer] = frozenset(Layer)
    backing: Required = NOTHING
    premises: tuple[Premise, ...] = ()
    demands: Demands = NONE


def policy_of(contract: Contract, profile: str, more: Demands = NONE) -> Policy:
    """What the contract's gate demands in a profile, `ci` or `release`, with what a release demands beside it.

    The clock of `more` is the one by which evidence and waivers are judged; without one neither is.
    """
    gate = contract.gate
    demands = together([more] if gate is None else [gate.demands, more], more.now)
    clauses = _clauses(contract, profile, demands)
    if gate is None:
        return Policy(profile, clauses, demands=demands)
    names = dict.fromkeys([*gate.checks, *gate.criteria])
    criteria = tuple(Criterion(name, tuple(gate.criteria.get(name, ()))) for name in names)
    required = Required(**{name: frozenset(strategies) for name, strategies in gate.backing.items()})
    return Policy(profile, clauses, criteria, falsification_id(gate), backing=required, demands=demands)


def _clauses(contract: Contract, profile: str, demands: Demands) -> tuple[Clause, ...]:
    """Each obligation with the layers that must discharge it: the contract's own, and those that a demand needs.

    A least reach needs its layer, but for a GPU's where the profile asks for no GPU at all. A least bound needs a
    layer of proofs: the first that has a check of the obligation, else the solver's.
    """
    least = demands.least
    own = {o.id: o.layers.stated().get(profile, ()) for o in contract.obligations}
    named = {name: [*layers, *least.get(name, Least()).layers] for name, layers in own.items()}
    gpu = any(Layer.CUDA in layers for layers in named.values())
    for name, asked in least.items():
        layers = named.setdefault(name, [])
        layers += [layer for layer in asked.reach if gpu or layer is not Layer.CUDA]
        if asked.bounds and not set(layers) & set(PROOFS):
            held = {check.layer for check in plan(contract) if name in check.obligations}
            layers.append(next((layer for layer in PROOFS if layer in held), Layer.SMT))
    return tuple(Clause(o.id, tuple(dict.fromkeys(named[o.id])), o.subjects.stated()) for o in contract.obligations)
