"""The rounding error of a recorded step: a bound, the measured error, and the operators that add most to the bound.

The bound is of |machine - exact| for every leaf in its range (`bounds.domain`). The measured error is the distance of
the recorded tensor from its exact value at the recorded leaves, which the same domain encloses to about 1e-14. The
share of an operator is what the bound loses when its own roundings are left out: shares are approximate and need not
sum to one. The function is called once for the bound, once more where ranges are given, and once for each share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradproof.core.errors import GradproofError
from gradproof.shadow.bounds.domain import Box, Domain, Key, NoBound, Radius, Rule
from gradproof.shadow.bounds.follow import Follow, Which, follow
from gradproof.shadow.record.run import Run, Step
from gradproof.shadow.request import RANGE

TOP = 4
"""Operators named for each tensor, each of which costs one more run: reading more helps nobody."""
KINDS = frozenset({"data", "param", "buffer"})


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
        without = _bounds(follow(step, run, Domain(chosen, frozenset({key}), scale), rules))
        shares[key] = {which: 1 - without.get(which, bound) / bound for which, bound in bounds.items() if bound > 0}
    rows = [_entry(wide, point, which, shares) for which in sorted(wide.seen, key=lambda which: which[:2])]
    return rows, ""


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


def _alike(one: Follow, other: Follow) -> bool:
    """Whether two runs stepped the same parameters by the same numbers."""
    mine, theirs = ([seen.numbers.nan_to_num() for seen in run.seen.values()] for run in (one, other))
    return [*one.seen] == [*other.seen] and all(map(torch.equal, mine, theirs))


def _bounds(run: Follow) -> dict[Which, float]:
    return {which: largest(seen.value.parts[2]) for which, seen in run.seen.items() if isinstance(seen.value, Box)}


def _entry(wide: Follow, point: Follow, which: Which, shares: Mapping[Key, Mapping[Which, float]]) -> dict[str, Any]:
    seen, exact = wide.seen[which], point.seen[which]
    made: dict[str, Any] = {
        "quantity": which[0], "param": which[2], "window": which[1], "location": str(seen.location),
        "dtype": seen.dtype, "bound": None, "measured": None, "within": None, "top": [], "reason": "",
    }  # fmt: skip
    if not isinstance(seen.value, Box) or not isinstance(exact.value, Box):
        return made | {"reason": str(seen.value if isinstance(seen.value, NoBound) else exact.value)}
    low, high, _ = exact.value.parts
    parts = sorted(((by.get(which, 0.0), str(at), op) for (op, at), by in shares.items()), reverse=True)
    return made | {
        "bound": largest(seen.value.parts[2]),
        "measured": largest(torch.maximum(seen.numbers - low, high - seen.numbers)),
        "within": not (wide.outside or point.outside)
        and seen.value.around(seen.numbers) and exact.value.around(exact.numbers),
        "top": [{"op": op, "location": at, "share": share} for share, at, op in parts[:TOP] if share > 0],
    }  # fmt: skip


def largest(x: Tensor) -> float:
    """Largest element, or 0."""
    return max(0.0, float(x.max())) if x.numel() else 0.0
