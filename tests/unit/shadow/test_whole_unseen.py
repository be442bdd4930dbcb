"""Writes that are no operators: what is compared of a tensor, and whose memory somebody else can reach."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest
import torch

from gradproof.shadow.follow.interpreter import Interpreter
from gradproof.shadow.follow.memory import SAMPLED, Unchanged, fingerprint
from gradproof.shadow.follow.terms import Terms
from gradproof.shadow.tape.checksums import same

BIG = 64 * SAMPLED
SHAPES: dict[str, Callable[[], torch.Tensor]] = {
    "flat": lambda: torch.randn(BIG),
    "square": lambda: torch.randn(256, BIG // 256),
    "transposed": lambda: torch.randn(256, BIG // 256).t(),
    "with gaps": lambda: torch.randn(256, BIG // 128)[:, ::2],
    "half": lambda: torch.randn(BIG).half(),
    "complex": lambda: torch.randn(BIG, dtype=torch.complex64),
    "scalar": lambda: torch.randn(()),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_write_of_a_whole_tensor_is_seen(shape: str) -> None:
    tensor = SHAPES[shape]()
    before = fingerprint(tensor)
    assert same(before, fingerprint(tensor))
    tensor.mul_(1.5)
    assert not same(before, fingerprint(tensor))


def test_at_most_so_many_elements_are_compared_and_nan_is_itself() -> None:
    tensor = torch.full((BIG,), float("nan"))
    found = fingerprint(tensor)
    assert found is not None
    assert 1 < found.numel() <= SAMPLED
    assert same(found, fingerprint(tensor))


def test_the_distance_of_the_elements_is_odd() -> None:
    """A kernel that writes each second column is seen."""
    tensor = torch.zeros(1024, 1024)
    before = fingerprint(tensor)
    tensor[:, ::2] = 1
    assert not same(before, fingerprint(tensor))


def test_an_array_reaches_memory_as_long_as_it_is_held() -> None:
    escapes, tensor = Unchanged(), torch.zeros(4)
    assert not escapes.reach(tensor)
    array = tensor.numpy()
    escapes.left(tensor.untyped_storage(), array)
    part = array[1:]
    del array
    assert escapes.reach(tensor)
    del part
    assert not escapes.reach(tensor)


def test_memory_of_another_owner_is_always_reached() -> None:
    escapes = Unchanged()
    assert escapes.reach(torch.from_numpy(numpy.zeros(4)))
    assert escapes.reach(torch.zeros(4).share_memory_())
    given = torch.from_numpy(numpy.zeros(4))
    escapes.left(given.untyped_storage(), given.numpy(), foreign=True)
    assert escapes.reach(given)
    given = torch.zeros(4)
    escapes.left(given.untyped_storage(), given.data_ptr())
    assert escapes.reach(given)


def test_one_element_is_seen_once_the_memory_was_given_away() -> None:
    value = Interpreter(Terms()).ones(1)
    for given in (False, True):
        tensor, kept = torch.zeros(BIG), Unchanged()
        kept.keep("gradient w", tensor, value)
        if given:
            kept.left(tensor.untyped_storage(), None)
        tensor[1] = 1
        assert [name for name, _ in kept.changed("gradient", lambda _: value)] == ["gradient w"] * given
        assert [name for name, _ in kept.changed("gradient", lambda _: value)] == []
