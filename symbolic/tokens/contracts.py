"""CrossHair contracts of the training contract's part on tokens: GA-TOK-001 and -002, GA-CE-001 and GA-LR-001.

As in `symbolic.accumulation.contracts`, a factory takes a subject and gives a function of plain ints; the models run on
`Ratio`. Both sides of each claim are homogeneous in the gradients, so that it holds for all rationals. Counts, targets
and the exponentials of logits are small and distinguished by cases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradproof.harness import Ratio
from models.tokens.cross_entropy import IGNORED
from models.tokens.scaling import Setup, State
from models.tokens.window import TokenBatch
from symbolic.crosshair_kit import Contract, Numbers, pick, same


def token_batches(counts: Sequence[int], sums: Sequence[int], number: Numbers) -> list[TokenBatch]:
    """Micro-batches of these counts and sums, the sum zero where there is no valid token; an ignored label each."""
    return [TokenBatch((number(s if n else 0),), n, 1) for n, s in zip(counts, sums, strict=True)]


def token_weights(subject: Any, number: Numbers = Ratio) -> Contract:
    """GA-TOK-001 and -002: sum S_m / sum N_m in each window, equal counts included; no step where no token is valid."""

    def contract(k: int, n1: int, n2: int, s1: int, s2: int) -> bool:
        """
        pre: 1 <= k <= 2 and 0 <= n1 <= 2 and 0 <= n2 <= 2
        post: _
        """
        k, counts = pick(k, 1, 2), [pick(n1, 0, 2), pick(n2, 0, 2)]
        batches = token_batches(counts, (s1, s2), number)
        try:
            steps = subject.train((number(5),), batches, k, 3)
        except ZeroDivisionError:
            return False
        before, parts = number(5), [batches[first : first + k] for first in range(0, 2, k)]
        for step, part in zip(steps, parts, strict=True):
            valid, total = sum(b.valid for b in part), sum((b.total[0] for b in part), number(0))
            if step.steps != (valid > 0) or not same(step.gradient[0] * max(valid, 1), total):
                return False
            if not same((before - step.params[0]) * max(valid, 1), total * 3):
                return False
            before = step.params[0]
        return True

    return contract


def unequal(subject: Any, number: Numbers = Ratio) -> Contract:
    """A step of unequal counts whose gradient is not the mean of the means."""

    def contract(s1: int, s2: int) -> bool:
        """
        post: not _
        """
        (step,) = subject.train((number(0),), token_batches((1, 2), (s1, s2), number), 2, 1)
        return step.steps == 1 and not same(step.gradient[0] * 4, number(2 * s1 + s2))

    return contract


def gradient_at_logits(subject: Any, number: Numbers = Ratio) -> Contract:
    """GA-CE-001: N sum_k e_k g_j = e_j - [j = target] sum_k e_k, zero in ignored rows."""

    def contract(t1: int, t2: int, a: int, b: int) -> bool:
        """
        pre: -1 <= t1 <= 1 and -1 <= t2 <= 1 and 1 <= a <= 2 and 1 <= b <= 2
        post: _
        """
        targets = [IGNORED if t < 0 else t for t in (pick(t1, -1, 1), pick(t2, -1, 1))]
        exps = [(pick(a, 1, 2), 1), (3, pick(b, 1, 2))]
        grads = subject.backward([tuple(number(e) for e in row) for row in exps], targets)
        valid = sum(t != IGNORED for t in targets)
        for row, target, got in zip(exps, targets, grads, strict=True):
            for j, (e, g) in enumerate(zip(row, got, strict=True)):
                want = 0 if target == IGNORED else e - (sum(row) if j == target else 0)
                if not same(g * (sum(row) * max(valid, 1)), number(want)):
                    return False
        return len(grads) == 2

    return contract


def has_a_gradient(subject: Any, number: Numbers = Ratio) -> Contract:
    """An ignored row beside a valid one whose gradient is not zero."""

    def contract(t: int) -> bool:
        """
        pre: 0 <= t <= 1
        post: not _
        """
        one = (number(1), number(2))
        grads = subject.backward([one, one], [pick(t, 0, 1), IGNORED])
        return not same(grads[0][0], number(0)) and same(grads[1][0], number(0))

    return contract


def scaled_moments(subject: Any, number: Numbers = Ratio) -> Contract:
    """GA-LR-001: K times what enters gives K m, K^2 v and the same direction, eps = 0."""

    def contract(k: int, m: int, w: int, g: int) -> bool:
        """
        pre: 1 <= k <= 3 and -1 <= g <= 1
        post: _
        """
        k, g = pick(k, 1, 3), pick(g, -1, 1)
        setup = Setup(number(1), number(1) / 2, number(1) / 2, number(0), number(1), number(1))
        one, many = (State(number(w), number(c * m), number(c * c)) for c in (1, k))
        first = subject.moments(one, subject.gradient(number(g), one, setup), setup)
        second = subject.moments(many, subject.gradient(number(k * g), many, setup), setup)
        same_moments = same(second[0], first[0] * k) and same(second[1], first[1] * (k * k))
        directions = [subject.direction(number(c * m), number(2 * c), setup) for c in (1, k)]
        return same_moments and same(*directions)

    return contract


def moves(subject: Any, number: Numbers = Ratio) -> Contract:
    """A direction that is not zero."""

    def contract(m: int) -> bool:
        """
        post: not _
        """
        setup = Setup(number(1), number(1) / 2, number(1) / 2, number(0), number(0), number(1))
        return not same(subject.direction(number(m), number(2), setup), number(0))

    return contract


COVERS: Mapping[str, Sequence[Callable[..., Contract]]] = {
    "token_weights": (unequal,),
    "gradient_at_logits": (has_a_gradient,),
    "scaled_moments": (moves,),
}

BOUNDS: Mapping[str, Mapping[str, int]] = {
    "token_weights": {"micro_batches": 2, "windows": 2, "tokens": 2},
    "gradient_at_logits": {"rows": 2, "classes": 2, "exponentials": 2},
    "scaled_moments": {"micro_batches": 3, "gradients": 1},
}
