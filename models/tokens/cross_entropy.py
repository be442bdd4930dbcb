"""The gradient of mean cross-entropy at the logits: (p - one_hot) / N, N the valid targets, ignored rows zero.

A row is given by the exponentials e_j > 0 of its logits (any positive numbers, one a class), so p_j = e_j / sum e.
Where no target of the batch is valid the gradient is zero, as PyTorch's is, although its mean loss is then 0 / 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.registry import Mutant, registered

Number = Any
Rows = list[tuple[Any, ...]]
IGNORED = -100


class CrossEntropy:
    """The reference backward pass."""

    def backward(self, exps: Rows, targets: Sequence[int]) -> Rows:
        """One gradient a logit, of rows x classes exponentials and a target a row (IGNORED: none).

        Raises IndexError for a target that is neither a class nor IGNORED, as PyTorch does.
        """
        count = self.count(targets)
        return [self.row(e, t, count) for e, t in zip(exps, targets, strict=True)]

    def count(self, targets: Sequence[int]) -> int:
        """The number of valid targets."""
        return sum(t != IGNORED for t in targets)

    def row(self, exps: tuple[Number, ...], target: int, count: int) -> tuple[Number, ...]:
        """(p - one_hot) / N, or zeros."""
        if target == IGNORED:
            return (0,) * len(exps)
        total, hot = sum(exps[1:], exps[0]), self.one_hot(target, len(exps))
        return tuple((e / total - h) / count for e, h in zip(exps, hot, strict=True))

    def one_hot(self, target: int, classes: int) -> list[int]:
        """1 at the target. Raises IndexError where the target is no class."""
        if not 0 <= target < classes:
            raise IndexError(f"target {target} is out of bounds")
        return [0] * target + [1] + [0] * (classes - target - 1)


class Empty(CrossEntropy):
    """The empty body: no gradient at all."""

    def backward(self, exps: Rows, targets: Sequence[int]) -> Rows:
        """Zeros."""
        return [tuple(0 * e for e in row) for row in exps]


class DividesByRows(CrossEntropy):
    """N counts the ignored rows too."""

    def count(self, targets: Sequence[int]) -> int:
        """All of them."""
        return len(targets)


class NotDivided(CrossEntropy):
    """The gradient of the sum."""

    def count(self, targets: Sequence[int]) -> int:
        """Nothing to divide by."""
        return 1


class IgnoredLeaks(CrossEntropy):
    """An ignored row is pushed towards no class, but pushed: p / N."""

    def row(self, exps: tuple[Number, ...], target: int, count: int) -> tuple[Number, ...]:
        """The one-hot part alone is masked."""
        if target != IGNORED:
            return super().row(exps, target, count)
        total = sum(exps[1:], exps[0])
        return tuple(e / total / max(count, 1) for e in exps)


class IgnoredIsFirstClass(CrossEntropy):
    """An ignored label is clamped to class 0 and counted."""

    def backward(self, exps: Rows, targets: Sequence[int]) -> Rows:
        """After the clamp."""
        return super().backward(exps, [max(t, 0) for t in targets])


_ROWS = [
    ("divides_by_rows", "GA-CE-001", "TransformerEngine#2476", DividesByRows),
    ("not_divided", "GA-CE-001", "torchtune#1917", NotDivided),
    ("ignored_leaks", "GA-CE-001", "Paddle#28622", IgnoredLeaks),
    ("ignored_is_first_class", "GA-CE-001", "pytorch#63004", IgnoredIsFirstClass),
]

CE_MUTANTS: Mapping[str, Mutant] = registered(_ROWS)
