"""What the CrossHair contracts share: case distinctions, runs of a subject on plain integers, comparisons.

A row is the gradient of one micro-batch: an integer an element.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from fractions import Fraction
from typing import Any

from gradproof.core.protocol import Event
from gradproof.harness import Ratio, exact
from models.accumulation.loop import Config, MicroBatch, Record, Vector

Numbers = Callable[[int], Any]
Contract = Callable[..., bool]
Row = tuple[int, ...]

START, RATE = (5, -7), 2  # weights before the first step, and the learning rate, where both are judged
FLOAT_SLACK = 1e-4  # float32 replays only: some hundred roundings, and far below any violation by an integer
CLIP_ROOM = Fraction("1e-6")  # torch's clip_grad_norm_ divides by norm + 1e-6


def pick(x: int, low: int, high: int) -> int:
    """The concrete value of x in low..high, by a case distinction. Raises ValueError outside."""
    for k in range(low, high + 1):
        if x == k:
            return k
    raise ValueError(f"outside {low}..{high}")


def within(bound: int, *numbers: int) -> bool:
    """Whether every number has magnitude at most `bound`; one branch a number, where all() makes several."""
    for x in numbers:  # noqa: SIM110
        if abs(x) > bound:
            return False
    return True


def same(a: Any, b: Any) -> bool:
    """Exact equality of exact numbers; equality up to FLOAT_SLACK of real floats."""
    gap = a - b
    if isinstance(gap, Ratio | int):
        return bool(gap == 0)
    return bool(abs(gap) <= FLOAT_SLACK * (1 + abs(float(b))))


def pairs(firsts: Sequence[int], seconds: Sequence[int]) -> list[Row]:
    """Rows of two elements."""
    return list(zip(firsts, seconds, strict=True))


def singles(items: Sequence[int]) -> list[Row]:
    """Rows of one element."""
    return [(x,) for x in items]


def vector(row: Row, number: Numbers) -> Vector:
    """The row in a number system."""
    return tuple(number(g) for g in row)


def batches_of(rows: Sequence[Row], number: Numbers, losses: Sequence[int] | None = None) -> list[MicroBatch]:
    """Micro-batches with these gradients; a loss is given, or else the sum of its row, which no element equals."""
    losses = [sum(row) for row in rows] if losses is None else losses
    return [MicroBatch(number(loss), vector(row, number)) for loss, row in zip(losses, rows, strict=True)]


def train(
    subject: Any,
    n: int,
    rows: Sequence[Row],
    number: Numbers,
    left: Row | None = None,
    losses: Sequence[int] | None = None,
    start: Row | None = None,
    **setup: Any,
) -> Record:
    """The subject's run over these gradients, from weights `start` and buffer `left`, which are zero by default."""
    zero = (0,) * len(rows[0])
    weights, buffer = vector(start or zero, number), vector(left or zero, number)
    record: Record = subject.run(weights, batches_of(rows, number, losses), Config(n=n, **setup), buffer)
    return record


def windows(rows: Sequence[Row], n: int) -> list[Sequence[Row]]:
    """The rows of each window: full ones, then the tail."""
    return [rows[i : i + n] for i in range(0, len(rows), n)]


def kept(parts: Sequence[Sequence[Row]], skip: Collection[int]) -> list[Sequence[Row]]:
    """The windows whose step is not skipped."""
    return [part for i, part in enumerate(parts) if i not in skip]


def means(vectors: Sequence[Vector], parts: Sequence[Sequence[Row]], number: Numbers) -> bool:
    """Whether vector i is the mean of part i, element by element, and there are as many vectors as parts."""
    return len(vectors) == len(parts) and all(
        len(v) == len(part[0])
        and all(same(x * len(part), number(sum(row[e] for row in part))) for e, x in enumerate(v))
        for v, part in zip(vectors, parts, strict=True)
    )


def applied(record: Record) -> list[Vector]:
    """The applied gradients, one vector a step."""
    return list(record.updates)


def moved(record: Record, start: Row, rate: int, number: Numbers) -> bool:
    """Whether the weights are start - rate * (the sum of the applied gradients): no more, no less."""
    return len(record.params) == len(start) and all(
        same(w, number(s) - rate * sum((u[e] for u in record.updates), number(0)))
        for e, (w, s) in enumerate(zip(record.params, start, strict=True))
    )


def plain(x: Any) -> Any:
    """The exact value of a rounded number."""
    return Ratio(x.num, x.den) if isinstance(x, Ratio) else exact(x)


def clip_inputs(record: Record, n: int) -> list[Vector]:
    """What each clip was given, one a step; empty if a step has no clip of its own after its last micro-batch."""
    given: list[Vector] = []
    filled, clips, before = 0, 0, ()
    for event, value in zip(record.events, record.values, strict=True):
        if event in (Event.STEP, Event.SKIP):
            if clips != 1:
                return []
            filled = clips = 0
        elif event is Event.CLIP:
            given.append(before)
            clips += 1
        elif event is Event.ACCUMULATE:
            filled += 1
            if clips or filled > n:
                return []
        before = value
    return given


def clipped(x: Any, mean: Any) -> bool:
    """Whether x is `mean` clipped to norm 1: itself where |mean| + 1e-6 <= 1, else of its sign and norm 1 - 1e-6 to 1.

    The exact norm there is |mean| / (|mean| + 1e-6) = 1 - 1e-6 / (|mean| + 1e-6), which is more than 1 - 1e-6.
    """
    slack = 0 if isinstance(x, Ratio | int) else FLOAT_SLACK
    size, along = (mean, x) if mean > 0 else (-mean, -x)
    if size + CLIP_ROOM <= 1:
        return same(x, mean)
    return bool(1 - CLIP_ROOM - slack <= along <= 1 + slack)
