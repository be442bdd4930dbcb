"""Nouns of gradproof and the one table that turns an outcome into an effect.

No I/O, no solver and no torch are imported here. Every other module speaks in these words.

Sources of the vocabulary: Kani's check statuses, CrossHair's message types, sby's `expect`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from gradproof.core.outcome import Expect, Kind, Layer, Outcome, Reach


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit with a name, a value and the reason why it is that value."""

    name: str
    value: int
    reason: str


_PLAIN = frozenset({str, int, float, bool, type(None)})


def _copied(value: Any) -> Any:
    """What `dataclasses.asdict` makes of a field, at a tenth of its cost: a check is written out for every digest."""
    if type(value) in _PLAIN or isinstance(value, str):
        return value
    if isinstance(value, Bound):
        return {"name": value.name, "value": value.value, "reason": value.reason}
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)([_copied(item) for item in value])
    return asdict(_Held(value))["value"]


@dataclass(frozen=True, slots=True)
class _Held:
    """Any other value, for `asdict`."""

    value: Any


@dataclass(frozen=True)
class Check:
    """Clause x method x subject x bounds x stubs: the unit that is planned, run and cached.

    `harness` and `subject` are `module:attribute` names inside the workspace. `mutants` are names in the
    workspace's mutant registry. `text` carries the contract clauses that the check speaks about, so that
    a change of the contract's wording or tolerance makes older evidence stale.
    """

    id: str
    kind: Kind
    layer: Layer
    obligations: tuple[str, ...]
    title: str
    harness: str
    subject: str = ""
    expect: Expect = Expect.HOLDS
    strategy: str = ""
    bounds: tuple[Bound, ...] = ()
    stubs: tuple[str, ...] = ()
    mutants: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    text: Mapping[str, Any] = field(default_factory=dict)
    depends: tuple[str, ...] = ()
    time_limit: float = 60.0

    def bound(self, name: str) -> int:
        """Value of the bound called `name`. Raises KeyError when the claim states no such bound."""
        for b in self.bounds:
            if b.name == name:
                return b.value
        raise KeyError(f"check {self.id} states no bound called {name!r}")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON form; `Check.from_json` reads it back."""
        data = {name: _copied(value) for name, value in vars(self).items()}
        data["kind"], data["layer"], data["expect"] = str(self.kind), str(self.layer), str(self.expect)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Check:
        """Inverse of `to_json`. Raises TypeError or ValueError on a wrong shape."""
        d = dict(data)
        d["kind"], d["layer"], d["expect"] = Kind(d["kind"]), Layer(d["layer"]), Expect(d["expect"])
        d["bounds"] = tuple(Bound(**b) for b in d["bounds"])
        for key in ("obligations", "stubs", "mutants", "assumptions", "depends"):
            d[key] = tuple(d[key])
        return cls(**d)

    @property
    def digest(self) -> str:
        """sha256 of the claim's own text (contract clause, subject, harness, stubs, bounds, mutants)."""
        return digest_of(self.to_json())


@dataclass
class Control:
    """A mutant or the empty body, run through the same harness in the same run.

    `outcome` is what the harness said of it; `killed` is true only when it is REFUTED on the clause that
    it was made to break and the counterexample replays.
    """

    name: str
    kind: str
    clause: str
    outcome: Outcome
    killed: bool
    reference: str = ""
    reason: str = ""
    counterexample: dict[str, Any] | None = None
    replays: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0


@dataclass
class Finding:
    """What a backend returns: facts of one run and the outcome that follows from them."""

    outcome: Outcome
    reason: str
    reach: Reach | None = None
    domain: str = ""
    clauses: dict[str, str] = field(default_factory=dict)
    assumptions: list[str] = field(default_factory=list)
    covers: list[dict[str, Any]] = field(default_factory=list)
    controls: list[Control] = field(default_factory=list)
    counterexample: dict[str, Any] | None = None
    replays: list[dict[str, Any]] = field(default_factory=list)
    measurements: list[dict[str, Any]] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scope:
    """What a harness did over all its paths, from which the reach and the label of its answer follow.

    `inputs`: how many inputs were free, 0 where no check depends on one. `bounds`: those that it read. `numbers`: the
    choices that it made among numbers. `cases`: its paths. `base`, `step`, `direct` and `other`: the checks that it
    asked in an induction, in a direct claim, and elsewhere; of a step and of a direct claim those that ask of something
    free. `sizes`: the lengths of the lists of inputs that it drew, each length once. `fixed`: the inputs of the subject
    that its case has as constants, each with its value.
    """

    inputs: int
    bounds: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    cases: int = 1
    base: int = 0
    step: int = 0
    direct: int = 0
    other: int = 0
    sizes: tuple[int, ...] = ()
    fixed: tuple[str, ...] = ()

    @property
    def _named(self) -> bool:
        """Whether a size was read from a bound or chosen among numbers."""
        return bool({*self.bounds} - {"transitions"} or self.numbers)

    @property
    def _whole(self) -> bool:
        """Whether all was asked in inductions, of which base and step ask, and in direct claims."""
        parts = bool(self.base) is bool(self.step) and bool(self.step or self.direct)
        return parts and not self.other

    @property
    def reach(self) -> Reach:
        """All inputs by induction or direct claim, no size or constant beside it; nothing free is chosen values."""
        if not self.inputs:
            return Reach.CHOSEN
        beside = self._named or self.sizes or self.fixed
        return Reach.ALL_INPUTS if self._whole and not beside else Reach.BOUNDED

    @property
    def label(self) -> str:
        """The reach in words."""
        if self.reach is Reach.CHOSEN:
            return f"checked at {self.cases} chosen value{'s' * (self.cases != 1)}"
        by = " by induction" * bool(self._whole and self.step)
        if self.reach is Reach.ALL_INPUTS:
            return "proved for all inputs" + by
        if self._whole and not self._named:
            elements = f"{' and '.join(map(str, self.sizes))} element{'s' * (self.sizes != (1,))}"
            of = f"all values of {elements}" if self.sizes else "every input"
            return f"proved for {of}{' with ' * bool(self.fixed)}{' and '.join(self.fixed)}{by}"
        return "proved for every input up to the bounds" + by


def scope_words(scope: Scope) -> str:
    """What a harness did, in one line."""
    asked = [f"{part} {n}" for part in ("base", "step", "direct", "other") if (n := getattr(scope, part))]
    parts = [f"{scope.label}: {scope.inputs} free inputs", f"checks: {', '.join(asked) or 'none'}"]
    parts += [f"bounds read: {', '.join(scope.bounds)}"] if scope.bounds else []
    parts += [f"chosen among numbers: {', '.join(scope.numbers)}"] if scope.numbers else []
    parts += [f"lists of {', '.join(map(str, scope.sizes))} inputs"] if scope.sizes else []
    parts += [f"fixed: {', '.join(scope.fixed)}"] if scope.fixed else []
    return "; ".join(parts)


def reach_shown(scope: Scope | None, lemmas: Iterable[str]) -> Reach:
    """The reach that follows from what a harness did; without a scope, from the lemmas: those of a table have an N."""
    if scope is not None:
        return scope.reach
    return Reach.BOUNDED if any(name.endswith("/table") for name in lemmas) else Reach.ALL_INPUTS


class Resolver(Protocol):
    """What a method needs of the workspace."""

    def resolve(self, name: str) -> Any:
        """The object called `module:attribute`."""
        ...


def entry_of(check_id: str) -> str:
    """Id of the contract's own entry, of which a check is one run: X of X@cpu-fp32 and of X/seeded_bug."""
    return check_id.partition("@")[0].partition("/")[0]


def canonical(data: Any) -> str:
    """Canonical JSON: sorted keys, no spaces, no NaN. Raises ValueError on NaN and infinity."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest_of(data: Any) -> str:
    """sha256 in hex of the canonical JSON of `data`."""
    return hashlib.sha256(canonical(data).encode(errors="surrogatepass")).hexdigest()
