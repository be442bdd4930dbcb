"""Samples of a window in another order: no other data, but places in the streams that do not match.

A loop may sort or shuffle the samples of each micro-batch. Where every array of the full batch has the samples of the
micro-batches that it stands for, the data are the same and only their places are not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradproof.shadow.tape import Tape

SHUFFLED = "the samples of every window are those of the full batch, in another order: they cannot be matched"

Array = NDArray[Any]


def arrays_of(tape: Tape, kind: str, name: str) -> list[Array]:
    """What the function itself made for a source, array by array: floats of a leaf, or the integers of a site."""
    if kind == "integers":
        return list(tape.integers.get(name, []))
    leaves = [leaf for leaf in tape.leaves() if (leaf.source.kind, leaf.source.name) == (kind, name)]
    leaves.sort(key=lambda leaf: leaf.source.first)
    return [np.asarray(leaf.value if leaf.natural is None else leaf.natural) for leaf in leaves]


def shuffled(accumulated: Tape, full: Tape, kind: str, name: str) -> bool:
    """Whether each array of the full batch has the rows of as many samples of the micro-batches, in another order."""
    ours, theirs = (arrays_of(tape, kind, name) for tape in (accumulated, full))
    if len(ours) <= len(theirs) or any(a.ndim == 0 for a in (*ours, *theirs)):
        return False
    rows = [row.tobytes() for a in ours for row in a]
    return len(rows) == sum(map(len, theirs)) and _windows(rows, theirs)


def _windows(rows: Sequence[bytes], theirs: Sequence[Array]) -> bool:
    begin = 0
    for array in theirs:
        if Counter(rows[begin : begin + len(array)]) != Counter(row.tobytes() for row in array):
            return False
        begin += len(array)
    return True
