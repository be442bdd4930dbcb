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
    from gradproof.shadow.result import Verification


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
    ranks: int = 1,
    optimizer: str | None = None,
    rounding: bool = False,
    ranges: Iterable[str] = (),
    allow_undecided: Iterable[str] = (),
) -> Verification:
    """The verification of a training function, whatever its outcome. An obligation of which nothing is said is NOT_RUN.

    `allow_undecided` are ids of obligations that may stay undecided. Raises GradproofError (GP405, GP406) for a
    function that takes no Run, for numbers out of range and for an id that is none.
    """
    from gradproof.shadow.process.check import verified
    from gradproof.shadow.request import Request, allowed, complete, takes_run

    names = allowed(allow_undecided)
    request = Request(
        accum_steps, micro_batch, windows, tail, device, dtype, seed, ranks, optimizer, rounding, tuple(ranges),
    )  # fmt: skip
    found = complete(verified(takes_run(function), request), request.ranks)
    found.allow_undecided = names
    return found


def assert_accumulates(function: Callable[[Any], Any], **options: Any) -> Verification:
    """Raise AssertionError with the text of `gradproof check` unless every obligation HOLDS; return it otherwise.

    Options are those of `check`. What could not be decided is an AssertionError too, and says what is missing, but for
    the obligations that `allow_undecided` names.
    Raises GradproofError as `check` does.
    """
    __tracebackhide__ = True
    found = check(function, **options)
    judge(found)
    return found


def judge(found: Verification) -> None:
    """Raise AssertionError unless every obligation of a verification HOLDS or is allowed, and one of them HOLDS."""
    from gradproof.core.outcome import Exit, Outcome

    __tracebackhide__ = True
    if found.exit is Exit.MET:
        return
    from gradproof.report.formats.brief import text

    open_ = [r for r in found.results if r.applies and r.outcome is not Outcome.HOLDS and r not in found.allowed]
    lost = [f"{r.obligation} {r.outcome}" for r in open_]
    said = text(found, "gradproof.testing.check returns all results and numbers")
    raise AssertionError(f"not every obligation holds: {', '.join(lost) or 'none was judged'}\n{said}")
