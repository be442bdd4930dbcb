"""The rounding error of a recorded step: a bound, the measured error, and the operators that add most to the bound.

The bound is of |machine - exact| for every leaf in its range (`bounds.domain`). The measured error is the distance of
the recorded tensor from its exact value at the recorded leaves, which the same domain encloses to about 1e-14. The
share of an operator is what the bound loses when its own roundings are left out: shares are approximate and need not
sum to one. The function is called once for the bound, once more where ranges are given, and once for each share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradproof.core.errors import GradproofError
from gradproof.shadow.bounds.domain import Box, Domain, Key, NoBound, Radius, Rule
from gradproof.shadow.bounds.follow import Follow, Seen, follow
from gradproof.shadow.record.run import Run, Step
from gradproof.shadow.request import RANGE

TOP = 4
"""Operators named for each tensor, each of which costs one more run: reading more helps nobody."""
KINDS = frozenset({"data", "param", "buffer"})
Which = tuple[str, int, str]
"""Quantity (grad, weight), step from 1, parameter."""


def report(
    step: Step, run: Run, ranges: Sequence[str] = (), rules: Mapping[str, Rule] | None = None, scale: float = 1.0
) -> tuple[list[dict[str, Any]], str]:
    """One entry for each gradient that a step is given and each weight after it; and why there is none, or nothing.

    Keys: `quantity` (grad, weight), `param`, `window` (from 1), `location`, `dtype`, `bound`, `measured` (floats,
    maxima over the elements), `within` (the recorded tensors lie inside their enclosures: anything else refutes the
    bound), `top` (dicts of op, location, share), `reason` (why there is no bound; then `bound` and `within` are None).
    `ranges`: as a user writes them (`request.RANGE`); without, the bound is for the recorded values alone. `rules`:
    instead of the table of rules. `scale`: a factor on every charge, for the test that a bound which is too small is
    found out. Raises GradproofError GP406 for a range of a name that no parameter has.
    """
    point = follow(step, run, Domain(scale=scale), rules)
    if point.lost:
        return [], point.lost
    wide, chosen = point, dict[str, Radius]()
    if ranges:
        chosen = _ranges(ranges, {name for _, name in point.names.values()})
        wide = follow(step, run, Domain(chosen, scale=scale), rules)
    if wide.lost or not _alike(wide, point):
        return [], wide.lost or "the function does not do the same when it is called again"
    bounds, shares = _bounds(wide), dict[Key, dict[Which, float]]()
    charged = wide.domain.charged
    for key in sorted((key for key in charged if charged[key] > 0), key=lambda key: -charged[key])[: 2 * TOP]:
        silent = Domain(chosen, frozenset({key}), scale)
        shares[key] = _bounds(follow(step, run, silent, rules))
    pairs = zip(_tensors(wide), _tensors(point), strict=True)
    sound = not (wide.outside or point.outside)
    return [_entry(seen, exact, which, bounds, shares, sound) for (which, seen), (_, exact) in pairs], ""


def _ranges(texts: Sequence[str], names: set[str]) -> dict[str, Radius]:
    found: dict[str, Radius] = {}
    for text in texts:
        match = RANGE.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is no range")
        if match["name"] not in KINDS | names:
            expected = f"one of {', '.join(sorted(KINDS | names))}"
            raise GradproofError("GP406", f"range of {match['name']!r}", expected, "change the name before the =")
        given = {key: float(match[key]) for key in ("absolute", "relative", "box") if match[key]}
        if "relative" in given:
            given["relative"] /= 100
        found[match["name"]] = Radius(**given)
    return found


def _tensors(run: Follow) -> Iterator[tuple[Which, Seen]]:
    """Every tensor that was observed, gradients first."""
    for kind in ("grad", "weight"):
        for number, seen in enumerate((s for s in run.seen if s.kind == kind), 1):
            for name in seen.values:
                yield (kind, number, name), seen


def _alike(one: Follow, other: Follow) -> bool:
    """Whether two runs stepped the same parameters by the same numbers."""
    mine, theirs = list(_tensors(one)), list(_tensors(other))
    return [which for which, _ in mine] == [which for which, _ in theirs] and all(
        torch.equal(a.numbers[name][1].nan_to_num(), b.numbers[name][1].nan_to_num())
        for ((_, _, name), a), (_, b) in zip(mine, theirs, strict=True)
    )


def _bounds(run: Follow) -> dict[Which, float]:
    values = ((which, seen.values[which[2]]) for which, seen in _tensors(run))
    return {which: largest(value.parts[2]) for which, value in values if isinstance(value, Box)}


def _entry(
    seen: Seen, exact: Seen, which: Which, bounds: Mapping[Which, float],
    shares: Mapping[Key, Mapping[Which, float]], sound: bool,
) -> dict[str, Any]:  # fmt: skip
    quantity, window, name = which
    dtype, numbers = seen.numbers[name]
    made: dict[str, Any] = {
        "quantity": quantity, "param": name, "window": window, "location": str(seen.location), "dtype": dtype,
        "bound": None, "measured": None, "within": None, "top": [], "reason": "",
    }  # fmt: skip
    wide, point = seen.values[name], exact.values[name]
    if not isinstance(wide, Box) or not isinstance(point, Box):
        return made | {"reason": str(wide if isinstance(wide, NoBound) else point)}
    bound = bounds[which]
    parts = [(key, _share(bound, lost.get(which, bound))) for key, lost in shares.items()]
    parts.sort(key=lambda pair: -pair[1])
    return made | {
        "bound": bound,
        "measured": largest(torch.maximum(numbers - point.parts[0], point.parts[1] - numbers)),
        "within": sound and wide.around(numbers) and point.around(exact.numbers[name][1]),
        "top": [{"op": key[0], "location": str(key[1]), "share": share} for key, share in parts[:TOP] if share > 0],
    }


def largest(x: Tensor) -> float:
    """Largest element, or 0."""
    return max(0.0, float(x.max())) if x.numel() else 0.0


def _share(bound: float, without: float) -> float:
    return max(0.0, (bound - without) / bound) if bound > 0 else 0.0
