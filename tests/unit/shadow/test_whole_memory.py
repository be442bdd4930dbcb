"""What memory says that views of a storage hold, after random writes through other views, against the real numbers."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from gradproof.shadow.follow.memory import Frame, Meetings, Memory, weakly
from gradproof.shadow.follow.terms import UNIT
from gradproof.shadow.follow.values import SHARED, Algebra, Value, shared
from tests.laws.numbers import Traced
from tests.laws.trials import Wrong, compare, cut_up

SHAPES = ((4, 6), (4, 3, 4), (2, 4, 6), (8, 4), (4, 5, 3))


class Followed(Traced, Algebra):
    """Movements whose numbers can be computed."""


def given(x: Followed, tensor: Tensor, axis: int, by: random.Random, number: int) -> Value:
    """The value of a tensor of new numbers: one combination, or parts along an axis."""
    if axis == SHARED or tensor.shape[axis] % 4 or by.random() < 0.3:
        return shared({x.leaf(1000 + number, tensor.clone()): x.ones().parts[0][x.terms.one]})
    return cut_up(x, tensor.clone(), axis, 4, number, True)


def compared(x: Followed, value: Value | None, tensor: Tensor) -> bool:
    """Whether a value was compared with the numbers; it is lost where a view has rows of no axis."""
    if value is None:
        return False
    compare("memory", x, [value], [tensor])
    return True


def viewed(tensor: Tensor, by: random.Random) -> Tensor:
    """Some rows of a tensor along an axis or two, or every second of them, perhaps transposed."""
    for _ in range(by.choice([1, 1, 2])):
        axis = by.randrange(tensor.dim())
        count = by.randint(1, tensor.shape[axis])
        tensor = tensor.narrow(axis, by.randint(0, tensor.shape[axis] - count), count)
        if by.random() < 0.2:
            tensor = tensor[(slice(None),) * axis + (slice(None, None, 2),)]
    return tensor.transpose(0, 1) if by.random() < 0.2 else tensor


def played(seed: int, memory_of: Any = Memory) -> int:
    """Random writes and reads; how many reads were compared."""
    by, found = random.Random(seed), 0
    for turn in range(6):
        x = Followed()
        memory, base = memory_of(x), torch.randn(by.choice(SHAPES), dtype=torch.float64)
        samples = next(axis for axis, size in enumerate(base.shape) if size % 4 == 0)
        memory.write(base, given(x, base, samples, by, turn))
        for number in range(1, 6):
            view = viewed(base, by)
            view.copy_(torch.randn(view.shape, dtype=torch.float64))
            axes = [a for a in range(view.dim()) if view.shape[a] == 4 and view.stride(a) == base.stride(samples)]
            memory.write(view, given(x, view, axes[0] if axes else SHARED, by, 10 * turn + number))
            for other in (view, base, viewed(base, by)):
                found += compared(x, memory.read(other), other)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_views_hold_what_was_written_through_others(seed: int) -> None:
    assert played(seed) > 80


class Shifted(Memory):
    """Puts what is written one row further."""

    def _put(self, whole: Value, part: Value, frame: Frame) -> Value:
        first = [
            0 if size == count else at - 1 if at + (count - 1) * jump + 1 == size else at + 1
            for size, at, count, jump in zip(frame.sizes, frame.first, frame.counts, frame.jumps, strict=True)
        ]
        return super()._put(whole, part, replace(frame, first=tuple(first)))


def test_a_write_to_other_rows_is_seen() -> None:
    with pytest.raises(Wrong):
        _ = [played(seed, Shifted) for seed in range(40)]


def test_columns_are_no_function_of_the_whole() -> None:
    """Gates that are written one by one, as in a cell of an LSTM, are the gates again when they are read."""
    x = Followed()
    memory, gates = Memory(x), torch.randn(4, 6, dtype=torch.float64)
    memory.write(gates, cut_up(x, gates.clone(), 0, 4, 1, True))
    for at, part in enumerate(gates.split(2, 1)):
        part.copy_(torch.randn(4, 2, dtype=torch.float64))
        written = cut_up(x, part.clone(), 0, 4, 2 + at, True)
        memory.write(part, written)
        assert memory.read(gates.narrow(1, 2 * at, 2)) == written
    assert memory.read(gates.narrow(1, 2, 2)) == memory.read(gates.split(2, 1)[1])
    assert compared(x, memory.read(gates), gates)


def test_every_second_row_of_an_odd_axis_keeps_samples_apart() -> None:
    x = Followed()
    memory, labels = Memory(x), torch.randn(4, 5, 3, dtype=torch.float64)
    memory.write(labels, cut_up(x, labels.clone(), 0, 4, 1, True))
    view = labels[:, ::2, 1]
    view.copy_(torch.randn(4, 3, dtype=torch.float64))
    memory.write(view, cut_up(x, view.clone(), 0, 4, 2, True))
    for one in (labels, labels[:, 1::2], labels[:, ::2, 1:]):
        value = memory.read(one)
        assert value is not None
        assert len(value.parts) == 4
        assert compared(x, value, one)


def test_batches_that_were_met_are_freed() -> None:
    met, x, batch = Meetings(), Traced(), torch.randn(4, 3)
    met.data(batch, cut_up(x, batch.clone(), 0, 2, 1, False), 0, 0, "here")
    storage = weakly(batch.untyped_storage())
    del batch
    assert storage.expired()


def test_complex_numbers_and_their_parts_are_apart_until_one_is_written() -> None:
    x, lost = Followed(), list[bool]()
    memory, numbers = Memory(x), torch.randn(4, dtype=torch.complex128)
    memory.bytes_read = lambda: lost.append(True)
    parts, turned = torch.view_as_real(numbers), numbers.conj()
    first, second, third = (shared({x.terms.make("data", (name,), (), (4,), 0): UNIT}) for name in "abc")
    memory.write(numbers, first)
    memory.alias(turned, second)
    memory.alias(parts, third)
    assert [memory.read(one) for one in (numbers, turned, parts)] == [first, second, third]
    assert lost == []
    memory.write(parts, second)
    assert lost == [True]
    memory.write(turned, first)
    assert lost == [True, True]
