"""The rounding error of a recorded step: a bound, the measured error, and the operators that add most to the bound.

The bound is of |machine - exact| for every leaf in its range (`domains.rounding`). The measured error is the distance
of the recorded tensor from its exact value at the recorded leaves, which the same domain encloses to about 1e-14. The
share of an operator is what the bound loses when its own roundings are left out: shares are approximate and need not
sum to one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gradproof.core.errors import GradproofError
from gradproof.shadow.algebra import Array, Beyond, Value
from gradproof.shadow.domains.interpreter import Interpreter, NoRow, Observation
from gradproof.shadow.domains.rounding import Key, Radius, Ranges, RoundingDomain
from gradproof.shadow.domains.rounding_kernels import ASSUMED, table
from gradproof.shadow.ops.table import OperatorRow
from gradproof.shadow.request import RANGE
from gradproof.shadow.tape import Event, Item, Tape

TOP = 4
"""Operators named for each tensor, and twice this many evaluations to find their shares: reading more helps nobody."""

KINDS = frozenset({"data", "param", "buffer"})
QUANTITIES = {"step": "grad/", "stepped": "param/"}
"""What is reported at which event."""


@dataclass(frozen=True, slots=True)
class RoundingOptions:
    """How to evaluate: ranges, operator table, flushing to zero, TF32 products, fp32 inside 16-bit operators.

    `scale` is a factor on every charge, for the test that a bound which is too small is found out.
    """

    ranges: Ranges
    rows: Mapping[str, OperatorRow]
    flush: bool = False
    tf32: bool = False
    wide: bool = False
    scale: float = 1.0

    def domain(self, ranges: Ranges | None = None, silent: frozenset[Key] = frozenset()) -> RoundingDomain:
        """A fresh domain."""
        chosen = self.ranges if ranges is None else ranges
        options = {"flush": self.flush, "tf32": self.tf32, "wide": self.wide}
        return RoundingDomain(chosen, **options, silent=silent, scale=self.scale)


def report(
    tape: Tape,
    ranges: Ranges | None = None,
    *,
    rows: Mapping[str, OperatorRow] | None = None,
    flush: bool = False,
    tf32: bool = False,
    wide: bool = False,
    scale: float = 1.0,
    top: int = TOP,
) -> list[dict[str, Any]]:
    """One entry for each gradient handed to a step and each weight after it.

    Keys: `quantity` (grad, weight), `param`, `window` (from 1), `place`, `dtype`, `bound`, `measured` (floats, maxima
    over the elements), `within` (the recorded tensor lies inside the enclosure: anything else refutes the bound), `top`
    (dicts of op, place, share), `reason` (why there is no bound; then `bound` and `within` are None). Without `ranges`
    the bound is for the recorded values alone. Raises nothing of its own.
    """
    options = RoundingOptions(ranges or Ranges(), table() if rows is None else rows, flush, tf32, wide, scale)
    found: list[dict[str, Any]] = []
    for kind, prefix in QUANTITIES.items():
        found += _group(only(tape, kind, prefix), prefix, options, top)
    return found


def ranges_of(texts: Sequence[str], tape: Tape) -> Ranges | None:
    """Ranges as a user writes them (`request.RANGE`); None for none.

    Raises ValueError for a text that is no range, and GradproofError GP406 for a name that the tape has not.
    """
    known = KINDS | {leaf.source.name for leaf in tape.leaves() if leaf.source.kind == "param"}
    kinds: dict[str, Radius] = {}
    names: dict[str, Radius] = {}
    for text in texts:
        match = RANGE.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is no range")
        if match["name"] not in known:
            expected = f"one of {', '.join(sorted(known))}"
            raise GradproofError("GP406", f"range of {match['name']!r}", expected, "change the name before the =")
        given = {key: float(match[key]) for key in ("absolute", "relative", "box") if match[key]}
        if "relative" in given:
            given["relative"] /= 100
        (kinds if match["name"] in KINDS else names)[match["name"]] = Radius(**given)
    return Ranges(kinds=kinds, names=names) if texts else None


def assumptions(wide: bool = False) -> list[str]:
    """What every bound takes for granted, in words."""
    more = ["operators with 16-bit results compute in fp32 and round once, when they store"] if wide else []
    return [*ASSUMED, *more]


def only(tape: Tape, kind: str, prefix: str) -> Tape:
    """The tape with the events of one kind, and of these only the tensors whose name begins with `prefix`."""
    items: list[Item] = []
    for item in tape.items:
        if not isinstance(item, Event):
            items.append(item)
        elif item.kind == kind:
            refs = {name: ref for name, ref in item.refs.items() if name.startswith(prefix)}
            items.append(replace(item, refs=refs))
    return Tape(items=items)


def _read(tape: Tape, domain: RoundingDomain, rows: Mapping[str, OperatorRow]) -> list[Observation]:
    return Interpreter(domain, rows).run(tape).observations


def _group(tape: Tape, prefix: str, options: RoundingOptions, top: int) -> list[dict[str, Any]]:
    if not any(event.refs for event in tape.events()):
        return []
    domain = options.domain()
    try:
        observations = _read(tape, domain, options.rows)
        points = observations
        if options.ranges != Ranges():
            points = _read(tape, options.domain(Ranges()), options.rows)
    except (Beyond, NoRow) as error:
        return [_blank(event, window, name, prefix, str(error)) for event, window, name in _names(tape)]
    bounds = _bounds(observations)
    shares = {key: _silenced(tape, options, key) for key in _loudest(domain.charged, 2 * top)}
    found = []
    for window, (seen, point) in enumerate(zip(observations, points, strict=True), 1):
        for name in seen.values:
            if isinstance(seen.values[name], Value):
                found.append(_entry(seen, point, window, name, prefix, bounds, shares, top))
    return found


def _entry(
    seen: Observation, point: Observation, window: int, name: str, prefix: str,
    bounds: Mapping[tuple[int, str], float], shares: Mapping[Key, Mapping[tuple[int, str], float]], top: int,
) -> dict[str, Any]:  # fmt: skip
    made = _blank(seen.event, window, name, prefix, "")
    bound = bounds[(window, name)]
    parts, exact = seen.values[name].parts, point.values[name].parts
    stored = seen.event.values.get(name)
    made["bound"] = bound
    if stored is not None:
        value = np.asarray(stored, dtype=np.float64).reshape(parts[0].shape)
        made["measured"] = largest(np.maximum(value - exact[1], exact[0] - value))
        inside = (value >= parts[0] - parts[2]) & (value <= parts[1] + parts[2])
        near = (value >= exact[0] - exact[2]) & (value <= exact[1] + exact[2])
        made["within"] = bool(np.all(inside & near))
    parted = [(key, _share(bound, lost.get((window, name), bound))) for key, lost in shares.items()]
    parted.sort(key=lambda pair: -pair[1])
    made["top"] = [{"op": key[0], "place": str(key[1]), "share": share} for key, share in parted[:top] if share > 0]
    return made


def largest(x: Array) -> float:
    """Largest element, or 0."""
    return max(0.0, float(np.max(x))) if x.size else 0.0


def _share(bound: float, without: float) -> float:
    return max(0.0, (bound - without) / bound) if bound > 0 else 0.0


def _blank(event: Event, window: int, name: str, prefix: str, reason: str) -> dict[str, Any]:
    return {
        "quantity": "grad" if prefix == "grad/" else "weight", "param": name.removeprefix(prefix), "window": window,
        "place": str(event.place), "dtype": getattr(event.refs.get(name), "dtype", ""), "bound": None, "measured": None,
        "within": None, "top": [], "reason": reason,
    }  # fmt: skip


def _names(tape: Tape) -> Iterator[tuple[Event, int, str]]:
    for window, event in enumerate((e for e in tape.events() if e.refs), 1):
        for name in event.refs:
            yield event, window, name


def _bounds(observations: list[Observation]) -> dict[tuple[int, str], float]:
    made = {}
    for window, seen in enumerate(observations, 1):
        for name, value in seen.values.items():
            if isinstance(value, Value):
                made[(window, name)] = largest(value.parts[2])
    return made


def _loudest(charged: Mapping[Key, float], count: int) -> list[Key]:
    return sorted((key for key in charged if charged[key] > 0), key=lambda key: -charged[key])[:count]


def _silenced(tape: Tape, options: RoundingOptions, key: Key) -> dict[tuple[int, str], float]:
    try:
        return _bounds(_read(tape, options.domain(silent=frozenset({key})), options.rows))
    except Beyond:
        return {}
