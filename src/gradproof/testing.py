"""For your own test suite: one assertion that a training function accumulates gradients correctly.

    from gradproof.testing import assert_accumulates

    def test_my_loop():
        assert_accumulates(train, accum_steps=4, micro_batch=2)

The function takes one argument, a Run, and trains with run.accum_steps and run.micro_batch_size. It runs in this
process, without a time limit: use the test runner's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradproof.shadow.verdict import Verification

DOMAINS = ("real", "field", "weight")


def check(
    function: Callable[[Any], Any],
    *,
    accum_steps: int = 4,
    micro_batch: int = 2,
    windows: int = 2,
    tail: int = 0,
    device: str = "cpu",
    dtype: str = "float32",
    seed: int = 0,
    domains: Iterable[str] = DOMAINS,
    ranks: int = 1,
    optimizer: str | None = None,
    ranges: Iterable[str] = (),
    operations: int = 150_000,
) -> Verification:
    """The verification of a training function, whatever its outcome. An obligation of which nothing is said is NOT_RUN.

    Raises GradproofError (GP405, GP406) for a function that takes no Run and for numbers out of range.
    """
    from gradproof.shadow.request import Request, complete, takes_run
    from gradproof.shadow.verify import check as verified

    request = Request(
        accum_steps, micro_batch, windows, tail, device, dtype, seed, tuple(domains), ranks, optimizer, tuple(ranges),
        operations,
    )  # fmt: skip
    return complete(verified(takes_run(function), **request.options()), request.ranks)


def assert_accumulates(function: Callable[[Any], Any], **options: Any) -> Verification:
    """Raise AssertionError with the rendered verification unless every obligation HOLDS; return it otherwise.

    Options are those of `check`. What could not be decided is an AssertionError too, and says what is missing.
    Raises GradproofError as `check` does.
    """
    __tracebackhide__ = True
    found = check(function, **options)
    judge(found)
    return found


def judge(found: Verification) -> None:
    """Raise AssertionError unless every obligation of a verification HOLDS, and there is one."""
    from gradproof.core import Outcome

    __tracebackhide__ = True
    if found.outcome is Outcome.HOLDS:
        return
    from gradproof.render.step import text

    lost = [f"{r.obligation} {r.outcome}" for r in found.results if r.applies and r.outcome is not Outcome.HOLDS]
    raise AssertionError(f"not every obligation holds: {', '.join(lost) or 'none was judged'}\n{text(found)}")
