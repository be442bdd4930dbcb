"""Integer data that is padded to the longest sample of a batch: other shapes in the two runs, the same samples.

The runs are matched by site, and a site's name has the shape of a sample. Where a line makes samples of several
lengths, its arrays are compared sample by sample: the shorter row must be the longer one without its padding.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradproof.shadow.layout import Array
from gradproof.shadow.tape import Tape

RESHAPED = "samples of other lengths in the two runs, and not by padding alone"


@dataclass(slots=True)
class Repadded:
    """Sites that are the same samples, padded to other lengths; and what is not, in words."""

    alike: set[str] = field(default_factory=set)
    apart: list[str] = field(default_factory=list)


def stem(site: str) -> tuple[str, str]:
    """A site without the shape of its samples: the line, and the dtype."""
    return site[: site.rindex(" (")] if " (" in site else site, site.rpartition(" ")[2]


def repadded(accumulated: Tape, full: Tape) -> Repadded:
    """Lines that make integers of other lengths in one run than in the other, and in both."""
    found = Repadded()
    mine, theirs = (lengths(tape) for tape in (accumulated, full))
    for key in mine.keys() & theirs.keys():
        if mine[key] == theirs[key]:
            continue
        ours, others = (rows_of(tape, key) for tape in (accumulated, full))
        if alike(ours, others):
            found.alike |= mine[key] | theirs[key]
        else:
            found.apart.append(f"integers of {key[0]}: {RESHAPED}")
            found.alike |= mine[key] | theirs[key]
    return found


def lengths(tape: Tape) -> dict[tuple[str, str], set[str]]:
    """The sites of every line."""
    found: dict[tuple[str, str], set[str]] = {}
    for site in tape.integers:
        found.setdefault(stem(site), set()).add(site)
    return found


def rows_of(tape: Tape, key: tuple[str, str]) -> list[Array] | None:
    """The samples of a line in the order in which they were made; None where an array is no table of samples."""
    taken: Counter[str] = Counter()
    rows: list[Array] = []
    for site in tape.drawn:
        array = tape.integers[site][taken[site]]
        taken[site] += 1
        if stem(site) == key:
            if np.ndim(array) != 2:
                return None
            rows.extend(np.asarray(array))
    return rows


def alike(ours: list[Array] | None, others: list[Array] | None) -> bool:
    """Whether the samples are the same but for their padding, which is one number, on one side."""
    if ours is None or others is None or len(ours) != len(others):
        return False
    return any(_padded(ours, others, left) for left in (False, True))


def _padded(ours: list[Array], others: list[Array], left: bool) -> bool:
    pads: set[Any] = set()
    for a, b in zip(ours, others, strict=True):
        x, y = sorted((a[::-1], b[::-1]) if left else (a, b), key=len)
        if not np.array_equal(x, y[: len(x)]):
            return False
        pads |= set(y[len(x) :].tolist())
    return len(pads) <= 1
