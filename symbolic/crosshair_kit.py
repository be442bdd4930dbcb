"""What the CrossHair contracts share: case distinctions, runs of a subject on plain integers, comparisons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from gradproof.arith import exact
from gradproof.arith.ratio import Ratio
from models.accumulation import Config, MicroBatch, Record
from models.window import Event

Numbers = Callable[[int], Any]
Contract = Callable[..., bool]

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


def train(subject: Any, n: int, grads: Sequence[int], number: Numbers, left: int = 0, **setup: Any) -> Record:
    """The subject's run over one-element gradients that are their own losses, from weight 0 and buffer `left`."""
    batches = [MicroBatch(number(g), (number(g),)) for g in grads]
    record: Record = subject.run((number(0),), batches, Config(n=n, **setup), (number(left),))
    return record


def windows(items: Sequence[int], n: int) -> list[Sequence[int]]:
    """The items of each window: full ones, then the tail."""
    return [items[i : i + n] for i in range(0, len(items), n)]


def means(values: Sequence[Any], parts: Sequence[Sequence[int]], number: Numbers) -> bool:
    """Whether value i is the mean of part i, and there are as many values as parts."""
    return len(values) == len(parts) and all(
        same(v * len(p), number(sum(p))) for v, p in zip(values, parts, strict=True)
    )


def applied(record: Record) -> list[Any]:
    """The applied gradients, one number a step."""
    return [update[0] for update in record.updates]


def plain(x: Any) -> Any:
    """The exact value of a rounded number."""
    return Ratio(x.num, x.den) if isinstance(x, Ratio) else exact(x)


def clip_inputs(record: Record, n: int) -> list[Any]:
    """What each clip was given, one a step; empty if a step has no clip of its own after its last micro-batch."""
    given, filled, clips, before = [], 0, 0, 0
    for event, value in zip(record.events, record.values, strict=True):
        if event is Event.STEP:
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
        before = value[0]
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
