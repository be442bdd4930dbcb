"""Trials of an operator of which no law is known: what it makes of samples at once, and of each alone.

A trial calls the operator on a few samples at once and on each alone: on the recorded samples, and on others in their
place (random, extreme, repeated, in another order, nought). Where every result is, each time, either the results side
by side or their sum, there is a law; it is an assumption and no proof.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

SAMPLES = 4
"""Samples of a trial that takes others than the recorded ones; never one, which shows nothing."""
RANDOM = 4
"""How often all samples are random ones: labels that were apart may meet then."""
EXTREMES = (10.0, -10.0, 1e3, -1e3, 1e6, -1e6, 1e12)
SCALES = (2.0**-40, 2.0**-10, -1.0, 2.0, 2.0**10, 2.0**40)
"""By what an argument is multiplied to see whether the operator is linear in it: powers of two, which round nothing."""
EXACT = 1e-9
"""The relative difference that rounding may make in float64."""
ROUNDED = {torch.float64: EXACT, torch.float32: 1e-4, torch.bfloat16: 1e-1, torch.float16: 2e-2}
SUMMED = -1
Tensors = list[torch.Tensor]


class Differs(Exception):
    """The operator does not do what a law says."""


@contextmanager
def undisturbed(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Nothing that a trial does is followed, and every generator of random numbers stands afterwards where it stood."""
    devices = sorted({t.device.index or 0 for t in tensors if t.is_cuda})
    python, numbers = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices), torch.no_grad(), _disable_current_modes():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numbers)


class Repeated:
    """The operator of a call, to be called with other tensors: each time with copies, and the same random state."""

    def __init__(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs
        self.state = torch.get_rng_state()

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        left = iter(t.clone() for t in tensors)
        torch.set_rng_state(self.state)
        args, kwargs = tree_map_only(torch.Tensor, lambda _: next(left), (self.args, self.kwargs))
        made = self.func(*args, **kwargs)
        results = made if isinstance(made, list | tuple) else [made]
        return [one if isinstance(one, torch.Tensor) else None for one in results]


class RowTrial:
    """The trial of one operator along one axis of some of its tensors.

    `cuts`: tensor to the axis of its samples; `pieces`: the samples of each tensor, of one that is not cut the whole;
    `double`: in float64.
    """

    def __init__(self, kernel: Repeated, cuts: Mapping[int, int], pieces: Sequence[Tensors], double: bool) -> None:
        self.kernel, self.cuts = kernel, cuts
        self.pieces = [[t.double() if double and t.is_floating_point() else t for t in each] for each in pieces]
        self.held = [each[0] for each in self.pieces]
        self.count = len(pieces[next(iter(cuts))])
        self.random = torch.Generator().manual_seed(0)

    def kinds(self, allowed: float) -> list[int]:
        """For each result the axis of its samples, or SUMMED. Raises Differs where it is neither."""
        batch = self._batch([*range(min(self.count, SAMPLES)), *([None] * (self.count < 2))])
        whole, parts = self._both(batch)
        found = [self._kind(whole[at], [part[at] for part in parts]) for at in range(len(whole))]
        self._agree(found, whole, parts, allowed)
        return found

    def _kind(self, whole: torch.Tensor | None, parts: Sequence[torch.Tensor | None]) -> int:
        small = parts[0]
        if whole is None and small is None:
            return SUMMED
        if whole is None or small is None or whole.dim() != small.dim():
            raise Differs("a result has another number of axes")
        axes = [axis for axis in range(whole.dim()) if whole.shape[axis] != small.shape[axis]]
        if not axes and whole.is_floating_point():
            return SUMMED
        if len(axes) != 1 or whole.shape[axes[0]] != len(parts) * small.shape[axes[0]]:
            raise Differs(f"{list(whole.shape)} and {list(small.shape)} are the shapes of a result for all and for one")
        return axes[0]

    def run(self, found: Sequence[int], recorded: Sequence[torch.Tensor | None], allowed: float) -> None:
        """Every trial. Raises Differs at the first that fails. `recorded`: the results of the recorded call."""
        if recorded:
            self._agree(found, recorded, list(map(self.kernel, self._batch(range(self.count)))), allowed)
        for batch in self.batches():
            try:
                whole, parts = self._both(batch)
            except Exception as error:
                raise Differs(f"it fails on other samples: {error}") from error
            self._agree(found, whole, parts, allowed)

    def batches(self) -> Iterator[list[Tensors]]:
        """The tensors of a call for each of some samples."""
        count = min(max(self.count, 2), SAMPLES)
        own: list[int | None] = [*range(min(self.count, count)), *([None] * (count - self.count))]
        same: list[int | None] = [0] * count
        chance: list[int | None] = [None] * count
        for names in [own, own[::-1], same, *[chance] * RANDOM]:
            yield self._batch(names)
        for real in (True, False):
            others = self._batch(chance)
            yield [
                [x if x.is_floating_point() is real else y for x, y in zip(one, others[0], strict=True)]
                for one in others
            ]
        for at in range(count):
            for by in (0.0, *EXTREMES):
                batch = self._batch(own)
                batch[at] = [_extreme(x, by) if t in self.cuts else x for t, x in enumerate(batch[at])]
                yield batch
        recorded = self.held
        for by in (1.0, *EXTREMES):
            self.held = [self._other([t]) * by if t.is_floating_point() else t for t in recorded]
            yield self._batch(own)
        self.held = recorded

    def _batch(self, names: Iterable[int | None]) -> list[Tensors]:
        """The recorded samples of these numbers, and random ones for None."""
        return [
            [
                held if t not in self.cuts else self._other(pieces) if i is None else pieces[i]
                for t, (held, pieces) in enumerate(zip(self.held, self.pieces, strict=True))
            ]
            for i in names
        ]

    def _other(self, pieces: Sequence[torch.Tensor]) -> torch.Tensor:
        """Another sample: random numbers. Of whole numbers a recorded sample: any others may be no valid indices."""
        like = pieces[0]
        if like.is_floating_point():
            return torch.randn(like.shape, generator=self.random, dtype=torch.float64).to(like)
        return pieces[int(torch.randint(len(pieces), (), generator=self.random))]

    def _whole(self, batch: list[Tensors]) -> Tensors:
        """The tensors of a call for all samples, side by side."""
        sides = enumerate(zip(*batch, strict=True))
        return [torch.cat(each, self.cuts[t]) if t in self.cuts else each[0] for t, each in sides]

    def _both(self, batch: list[Tensors]) -> tuple[list[Any], list[list[Any]]]:
        """The results for all samples at once, and for each alone."""
        return self.kernel(self._whole(batch)), list(map(self.kernel, batch))

    def _agree(
        self, found: Sequence[int], whole: Sequence[Any], parts: Sequence[Sequence[Any]], allowed: float
    ) -> None:
        for at, kind in enumerate(found):
            each = [part[at] for part in parts]
            if each[0] is None:
                continue
            if kind == SUMMED:
                _near(at, "the sum", whole[at], sum(each[1:], each[0]), max(map(_size, each)), allowed)
                continue
            rows = each[0].shape[kind]
            if whole[at] is None or whole[at].shape[kind] != rows * len(each):
                raise Differs(f"result {at} has another shape")
            for i, one in enumerate(each):
                _near(at, f"sample {i + 1}", whole[at].narrow(kind, i * rows, rows), one, _size(one), allowed)

    def linear_in(self, at: int, allowed: float) -> bool:
        """Whether the operator is linear in a tensor, as far as trials of a sum and of multiples show."""
        given = self._whole(self._batch(range(self.count)))
        mine, other = given[at], self._other([given[at]])

        def made(argument: torch.Tensor) -> list[torch.Tensor]:
            results = self.kernel([*given[:at], argument, *given[at + 1 :]])
            return [one for one in results if one is not None]

        try:
            its, others = made(mine), made(other)
            sizes = [max(_size(one), _size(two)) for one, two in zip(its, others, strict=True)]
            tries = [(mine + other, [one + two for one, two in zip(its, others, strict=True)], sizes)]
            for start, results in ((mine, its), (other, others)):
                for by in SCALES:
                    tries.append((start * by, [one * by for one in results], [abs(by) * _size(one) for one in results]))
            for argument, expected, sizes in tries:
                for result, one, size in zip(made(argument), expected, sizes, strict=True):
                    _near(at, "a sum or a multiple", result, one, size, allowed)
        except Exception:
            return False
        return all(one.is_floating_point() for one in its)


def _extreme(piece: torch.Tensor, by: float) -> torch.Tensor:
    """A piece with large numbers, all of one sign; numbers of other types stay."""
    if not piece.is_floating_point():
        return piece
    most = torch.finfo(piece.dtype).max ** 0.5
    return torch.mul(piece.abs() + 1, max(min(by, most), -most))


def _size(tensor: torch.Tensor) -> float:
    """The largest finite number of a result."""
    held = torch.where(torch.isfinite(tensor), tensor.abs(), 0) if tensor.is_floating_point() else tensor
    return float(held.max()) if held.numel() else 0.0


def _near(at: int, what: str, mine: Any, other: torch.Tensor, size: float, allowed: float) -> None:
    """Raise Differs where two results differ by more than rounding. Those that are not finite have to be the same."""
    if mine is None or mine.shape != other.shape:
        raise Differs(f"result {at} has another shape for {what}")
    close = mine == other
    if mine.is_floating_point():
        close = torch.isclose(mine.double(), other.double(), rtol=0.0, atol=allowed * size, equal_nan=True)
    if not bool(close.all()):
        where = int((~close).flatten().nonzero()[0])
        pair = f"{float(mine.flatten()[where]):.6g} and not {float(other.flatten()[where]):.6g}"
        raise Differs(f"result {at}, element {where} of {what}: {pair}")
