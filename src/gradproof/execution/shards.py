"""Shards: a plan cut into parts that run on machines of their own, the same cut on every machine.

The cut is a function of the plan, of the number of shards and of seconds that are the same everywhere: those of one
report that every machine is given, and the time limits of the contract where there is none. Stored evidence is no
such source: machines have different evidence, so their cuts would leave a check to nobody. A shared stub goes with
every shard that needs it; every other check is in exactly one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradproof.core.check import Check, digest_of
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Layer

MOST = 1000
_SHARD = re.compile(r"([1-9]\d{0,3})/([1-9]\d{0,3})", re.ASCII)


@dataclass(frozen=True)
class Shard:
    """Shard number `index`, from 1, of `of`."""

    index: int
    of: int

    def __str__(self) -> str:
        return f"{self.index}/{self.of}"


def parse(text: str) -> Shard:
    """`i/n`. Raises GradproofError GP480."""
    match = _SHARD.fullmatch(text)
    shard = Shard(int(match[1]), int(match[2])) if match else Shard(0, 0)
    if not 1 <= shard.index <= shard.of <= MOST:
        raise GradproofError("GP480", f"--shard {text!r}", f"i/n with 1 <= i <= n <= {MOST}", "such as --shard 1/4")
    return shard


def partition(checks: Sequence[Check], of: int, seconds: Mapping[str, float]) -> list[list[Check]]:
    """The checks of each shard, in the plan's order. Checks of a GPU are spread apart from the others.

    The longest first, each to the shard that is done soonest with it and the stubs that it is the first there to need.
    """
    known = {check.id: check for check in checks}
    shared = {name for check in checks for name in check.depends if name in known}
    held: list[set[str]] = [set() for _ in range(of)]
    loads = {gpu: [0.0] * of for gpu in (False, True)}
    weight = {c.id: seconds.get(c.id) or c.time_limit for c in checks}
    for check in sorted(checks, key=lambda c: (c.id in shared, -weight[c.id], c.id)):
        if check.id in shared and any(check.id in names for names in held):
            continue
        needs, load = _needs(check, known), loads[check.layer is Layer.CUDA]
        costs = [load[i] + sum(weight[name] for name in needs - held[i]) for i in range(of)]
        chosen = costs.index(min(costs))
        held[chosen] |= needs
        load[chosen] = costs[chosen]
    return [[check for check in checks if check.id in names] for names in held]


def _needs(check: Check, known: Mapping[str, Check]) -> set[str]:
    names = {check.id}
    while more := {d for name in names for d in known[name].depends if d in known} - names:
        names |= more
    return names


def fingerprint(parts: Iterable[Iterable[Check]]) -> str:
    """The same on two machines exactly where their cuts are."""
    return digest_of([[check.id for check in part] for part in parts])[:12]


def seconds_of(path: Path) -> dict[str, float]:
    """Seconds by check id, from a report.json or a folder of reports. Raises GradproofError GP485."""
    places = [path] if path.is_file() else [p for p in [path / "report.json", *sorted(path.glob("*/report.json"))]]
    found: dict[str, float] = {}
    for place in [p for p in places if p.is_file()]:
        try:
            rows = json.loads(place.read_text(encoding="utf-8"))["checks"]
            found |= {str(row["id"]): float(row["seconds"]) for row in rows if _positive(row["seconds"])}
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as e:
            raise _useless(path, f"{place.name} is no report: {type(e).__name__}: {e}") from e
    if not found:
        raise _useless(path, "it tells the seconds of no check")
    return found


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _useless(path: Path, why: str) -> GradproofError:
    expected = "a report.json of an earlier run, or a folder of them, the same for every shard"
    return GradproofError("GP485", f"{path}: {why}", expected, "leave --shard-seconds out: time limits are taken then")
