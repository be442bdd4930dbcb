"""For your own test suite and for notebooks: a training function, or a block of code, verified in this process.

    from gradproof.testing import assert_accumulates

    def test_my_loop():
        assert_accumulates(train, accum_steps=4, micro_batch=2)

The function takes one argument, a Run, and trains with run.accum_steps and run.micro_batch_size. There is no time
limit: use the test runner's own. `check` and `watch` are there as `gradproof.check` and `gradproof.watch` as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gradproof.core.outcome import Exit, Outcome
from gradproof.evidence.environment import STEP, need

if TYPE_CHECKING:
    from gradproof.report.formats.page import Checked
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
) -> Checked:
    """The verification of a training function, whatever its outcome. An obligation of which nothing is said is NOT_RUN.

    Args:
        function: trains with a `Run`: it takes `run.samples` samples, tensors of shape [samples, ...], and makes one
            optimizer step for each `run.accum_steps` batches of shape [run.micro_batch_size, ...].
        accum_steps: micro-batches of a window, N.
        micro_batch: samples of a micro-batch.
        windows: windows, each with one optimizer step.
        tail: micro-batches of a short last window, fewer than N.
        device: `cpu`, `cuda` or `cuda:N`; read as `run.device`.
        dtype: `float32`, `float64`, `float16` or `bfloat16`; read as `run.dtype`, a torch.dtype.
        seed: of every random stream.
        ranks: data-parallel ranks, each a process.
        optimizer: read as `run.optimizer`.
        rounding: bound the rounding error of each gradient as well.
        ranges: the numbers for which rounding is bounded, such as `data=0.1` or `param=5%`.
        allow_undecided: ids of obligations that may stay undecided.

    Raises:
        GradproofError: GP405 for a function that takes no Run, GP406 for a wrong number or id, GP409 without torch.
    """
    need(STEP, "to verify a training step")
    from gradproof.report.formats.page import Checked
    from gradproof.shadow.process.check import verified
    from gradproof.shadow.request import Request, allowed, complete, takes_run

    names = allowed(allow_undecided)
    request = Request(
        accum_steps, micro_batch, windows, tail, device, dtype, seed, ranks, optimizer, rounding, tuple(ranges),
    )  # fmt: skip
    return Checked("", {}).take(complete(verified(takes_run(function), request), request.ranks), names)


@contextmanager
def watch(
    *,
    accum_steps: int | None = None,
    windows: int = 3,
    windows_at: str | None = None,
    epoch_batches: int | None = None,
    allow_undecided: Iterable[str] = (),
) -> Iterator[Checked]:
    """Watch the code of a `with` block that trains. What it decides is there when the block has ended.

    Args:
        accum_steps: micro-batches of a window, N; read from the run by default.
        windows: how many windows to record, from the first; the last one of the first epoch is recorded as well.
        windows_at: which to record instead, counted from 0: `0,1,last`.
        epoch_batches: micro-batches of an epoch, where no DataLoader tells it.
        allow_undecided: ids of obligations that may stay undecided.

    Raises:
        GradproofError: GP406 for numbers out of range, and an id that is none; GP409 where torch is not installed.
    """
    need(STEP, "to verify a training step")
    from gradproof.report.formats.page import Checked
    from gradproof.shadow.process.watch import ScriptWatch
    from gradproof.shadow.request import allowed, complete, refused

    for name, number in (("accum_steps", accum_steps), ("windows", windows), ("epoch_batches", epoch_batches)):
        if number is not None and number < 1:
            raise refused(name, number, "a whole number, 1 or more")
    names, seen = allowed(allow_undecided), Checked("the watched code", {})
    watcher = ScriptWatch(accum_steps=accum_steps, windows=windows, windows_at=windows_at, epoch_batches=epoch_batches)
    try:
        with watcher:
            yield seen
    finally:
        found = watcher.verification()
        found.subject = seen.subject
        seen.take(complete(found, 1), names)


def assert_accumulates(function: Callable[[Any], Any], **options: Any) -> Checked:
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
    __tracebackhide__ = True
    if found.exit is Exit.MET:
        return
    from gradproof.report.formats.brief import text

    open_ = [r for r in found.results if r.applies and r.outcome is not Outcome.HOLDS and r not in found.allowed]
    lost = [f"{r.obligation} {r.outcome}" for r in open_]
    said = text(found, "gradproof.check returns all results and numbers", spent=1)
    raise AssertionError(f"not every obligation holds: {', '.join(lost) or 'none was judged'}\n{said}")
