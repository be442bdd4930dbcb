"""Orders of summation, written once: the same text runs on software floats, linear floats and NumPy scalars.

Sources: Higham, Accuracy and Stability of Numerical Algorithms (2nd ed.), chapter 4 (recursive, pairwise, blocked,
compensated summation); Kahan 1965; Neumaier 1974.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Numbers = Sequence[Any]


def sequential(x: Numbers) -> Any:
    """Left to right."""
    total = x[0]
    for term in x[1:]:
        total = total + term
    return total


def pairwise(x: Numbers) -> Any:
    """The sum of the sums of both halves, the first one the shorter where they differ."""
    if len(x) == 1:
        return x[0]
    half = len(x) // 2
    return pairwise(x[:half]) + pairwise(x[half:])


def blocked(x: Numbers, size: int) -> Any:
    """Blocks of `size` left to right, then the blocks' sums left to right."""
    return sequential([sequential(x[i : i + size]) for i in range(0, len(x), size)])


def residual(t: Any, s: Any, y: Any) -> Any:
    """(t - s) - y, the error of t = s + y as a number."""
    from gradproof.arith import linear

    return linear.residual(t, s, y) if isinstance(t, linear.Linear) else (t - s) - y


def kahan(x: Numbers) -> Any:
    """Compensated: the error of each addition is taken from the next term."""
    total, late = x[0], None
    for term in x[1:]:
        y = term if late is None else term - late
        t = total + y
        late, total = residual(t, total, y), t
    return total


def neumaier(x: Numbers) -> Any:
    """The errors of the additions are summed beside the sum and taken off at the end."""
    total, late = x[0], None
    for term in x[1:]:
        t = total + term
        error = exact_residual(t, total, term)
        late, total = error if late is None else late + error, t
    return total if late is None else total - late


def exact_residual(t: Any, s: Any, y: Any) -> Any:
    """The error of t = s + y, exactly: of the larger one first."""
    from gradproof.arith import linear

    if isinstance(t, linear.Linear):
        return linear.residual(t, s, y, ordered=True)
    return (t - s) - y if abs(s) >= abs(y) else (t - y) - s


def ordered_sum(order: str) -> Callable[[Numbers], Any]:
    """The order called `order`: sequential, pairwise, kahan, neumaier, or blocked:SIZE. Raises ValueError."""
    if order in PLAIN:
        return PLAIN[order]
    name, _, size = order.partition(":")
    if name == "blocked" and size.isdigit() and int(size) > 0:
        return lambda x: blocked(x, int(size))
    raise ValueError(f"no order {order!r}; known: {', '.join(PLAIN)}, blocked:SIZE, any")


PLAIN: dict[str, Callable[[Numbers], Any]] = {
    "sequential": sequential, "pairwise": pairwise, "kahan": kahan, "neumaier": neumaier,
}  # fmt: skip
