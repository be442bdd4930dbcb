"""GradScaler's operators. A gradient is a real number here, so that none is infinite: that is assumed, and said."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradproof.shadow.algebra import Beyond, Value, where
from gradproof.shadow.table import Example, Int, Ops, T, register

GRADS = [T((2, 3)), T((3,))]
ZERO = T((), 0.0, 0.0)


@register(
    "aten._amp_foreach_non_finite_check_and_unscale_",
    examples=[
        Example(GRADS, ZERO, T((), 0.25, 0.5), untracked=[1]),
        Example(GRADS, ZERO, T((), 0.25, 0.5), untracked=[1, 2]),
    ],
)
def unscale(k: Ops, grads: list[Any], found_inf: Any, inv_scale: Any) -> tuple[list[Value], Value]:
    """Every gradient times the inverse scale; `found_inf` keeps what it was."""
    k.note("no scaled gradient is infinite or NaN")
    return [k.lift(g) * k.lift(inv_scale) for g in grads], k.lift(found_inf)


@register(
    "aten._amp_update_scale_",
    examples=[
        Example(T((), 4.0, 8.0), Int((), 3, dtype="int32"), ZERO, 2.0, 0.5, n, untracked=[1]) for n in (1, 2, 2000)
    ],
)
def update_scale(
    k: Ops, scale: Any, tracker: Any, found_inf: Any, growth: float, backoff: float, interval: int
) -> tuple[Value, Any]:
    """The scale backs off after an infinity, and grows after `interval` steps without one."""
    if isinstance(tracker, Value):
        raise Beyond("a growth tracker that depends on a leaf")
    finite, old, after = k.lift(found_inf).same(0.0), k.lift(scale), k.seen(1)
    steps = int(np.asarray(tracker)) + 1
    grows = steps == interval
    if int(np.asarray(after)) != (0 if grows else steps):
        k.assume(~finite, "a scaled gradient was infinite")
    elif not grows:
        k.assume(finite, "no scaled gradient was infinite")
    return where(finite, old * growth if grows else old, old * backoff), after
