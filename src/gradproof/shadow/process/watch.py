"""Watching a whole script that cannot be called twice: a few windows are recorded, and what one run decides is decided.

Every operator of these windows is followed (`Recorded`), and the weight of each sample is read off the gradients
(`OneRun`). The rest of the script runs without it. Hooks and patched functions see the order of backward passes, clips,
steps and zeroes: they show whether each step follows a window, and a broken rule (`WatchRuling`).

Every obligation has a result. Where the number of micro-batches is not given it is what most windows show. Then a step
after every micro-batch looks like a loop that does not accumulate, and the number of steps is not decided. Where it is
given, a shorter window may be the tail of an epoch: the end of a data loader shows it, and without one it is not
decided.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.data import dataloader

from gradproof.core.outcome import Outcome
from gradproof.shadow.locations import Location, user_location
from gradproof.shadow.process.chosen import Chosen, chosen, first
from gradproof.shadow.protocol.monitor import Arrival, Monitor
from gradproof.shadow.protocol.ruling import FUNCTION, UNSHOWN, WatchedRun, WatchRuling
from gradproof.shadow.protocol.turns import PASS
from gradproof.shadow.record.events import Event, EventLog
from gradproof.shadow.record.hooks import Hooks
from gradproof.shadow.result import RECORDED, Result, Verification, assuming
from gradproof.shadow.verify.one_run import OneRun, spans
from gradproof.shadow.whole.recorded import Recorded
from gradproof.shadow.whole.unseen import frozen_heap, made, ran, replaced, ways_out

WINDOW = ("GA-INV-002", "GA-INV-003", "GA-INV-005", "GA-SYNC-001")
RESTS_ON = {
    "GA-EQ-001": WINDOW, "GA-TOK-001": WINDOW, "GA-DATA-001": ("GA-EQ-001", *WINDOW), "GA-INV-001": ("GA-EQ-001",),
}  # fmt: skip
"""What does not hold where one of others is refuted."""
NO_LENGTH = "no data loader has a length; give --epoch-batches"


class Events:
    """A sink that keeps events. `stated` gets the kind of each, and the number of its pass."""

    def __init__(self, log: EventLog, stated: Callable[[str, int], None] | None = None) -> None:
        self.log, self.stated = log, stated

    def event(self, kind: str, location: Location | None = None, **detail: Any) -> None:
        """Keep an event."""
        self.log.items.append(Event(kind, location or user_location(), detail))
        if self.stated is not None:
            self.stated(kind, int(detail.get("number", 0)))


class ScriptWatch:
    """Watches whatever trains inside `with ScriptWatch(...) as watch:`; afterwards `watch.verification()` judges it.

    `accum_steps` None is read from the run. `chosen`: the windows that are recorded, each with the first micro-batch of
    the window after it; by default the first `windows`. Meanwhile torch is as it was, but for hooks that count.
    """

    def __init__(
        self,
        accum_steps: int | None = None,
        windows: int = 3,
        epoch_batches: int | None = None,
        opened: Callable[[Monitor], None] | None = None,
        chosen: Chosen | None = None,
    ) -> None:
        self.accum_steps, self.windows = accum_steps, windows
        self.chosen = chosen or first(windows)
        self.monitor = Monitor(None, windows, accum_steps, epoch_batches, opened)
        self.run = self.monitor.run
        self.engine, self.log = Recorded(), EventLog()
        self.engine.window_of = lambda: self.run.number
        self.hooks = Hooks(Events(self.log, self._seen))
        self.on, self.ended = 0 in self.chosen.numbers, False
        self.arrivals: dict[int, Arrival] = {}
        self._stack, self._following = ExitStack(), ExitStack()

    def __enter__(self) -> ScriptWatch:
        with ExitStack() as stack:
            stack.enter_context(self.monitor)
            stack.enter_context(made(self.engine))
            stack.enter_context(ways_out(self.engine.exported, self.engine.stored))
            stack.enter_context(awaking(self.engine))
            stack.callback(self._following.close)
            stack.enter_context(self.hooks)
            handle = register_optimizer_step_post_hook(lambda *_: self.turned())
            stack.callback(handle.remove)
            self.monitor.turned = self.turned
            if self.on:
                self.run.recorded.add(0)
                self._following.enter_context(recording(self.engine))
            else:
                self.engine.close()
                self.hooks.stop()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.on and error is None:
            self.hooks.end()
        self.on = False
        self._stack.close()

    def _seen(self, kind: str, number: int) -> None:
        """A backward pass of a window that is not recorded: it is the last that is followed for now."""
        if kind == "accumulate":
            self.arrivals.setdefault(number, self.monitor.arrival())
        if self.on and kind in PASS and self.run.number not in self.run.recorded:
            self.on = False
            self.hooks.stop()
            self._unfollowed()

    def turned(self) -> None:
        """A window has ended: the next one is recorded, or not. A backward pass that steps has to end before."""
        if not self.run.stepped or torch._C._current_graph_task_id() != -1:
            return
        following, last = self.run.number + 1, self._is_last()
        if following in self.run.recorded or not (following in self.chosen.numbers or last) or not self._goes_on():
            return
        self.ended |= last
        self.run.recorded.add(following)
        self.monitor.look()

    def _goes_on(self) -> bool:
        """Whether everything is followed: it is already, or is again from here on."""
        apart = _get_current_dispatch_mode() is not None or self.hooks.within_call or self.engine.facts.lost
        if not self.on and not apart:
            self.on = True
            self.engine.go_on(self.monitor.parameters())
            self._following.enter_context(recording(self.engine))
            self.hooks.go_on()
        return self.on

    def _is_last(self) -> bool:
        """Whether the next window is the last of the first epoch, as far as its length is known."""
        return self.chosen.last and self.monitor.ends(self.accum_steps)

    def _unfollowed(self) -> None:
        """Follow no operator for now. A mode that the script entered meanwhile keeps the engine in its place.

        A backward pass gives back, when it ends, the modes that it began with: until then the engine stays as well.
        """
        self.engine.close()
        if self.engine.calls:
            self.engine.afterwards.append(self._unfollowed)
        elif _get_current_dispatch_mode() is self.engine:
            self._following.close()

    def verification(self) -> Verification:
        """A result for every obligation; those that this run does not decide are undecided."""
        judge = OneRun(self.engine, any(self.log.events("clip")), self.run.windows)
        doubt = interfered(self.log, self.engine)
        watched = WatchedRun(
            self.log, self.monitor, self.accum_steps, self.arrivals,
            doubt is None and judge.in_passes(), next(iter(self.engine.facts.lost), None),
        )  # fmt: skip
        found = WatchRuling(watched).verification()
        with_values(found, judge, doubt, bool(self.monitor.reports))
        beside_refuted(found.results)
        self._disclose(found)
        return found

    def _disclose(self, found: Verification) -> None:
        """Say of which windows the results are, and what is known of the others."""
        run, chosen = self.run, self.chosen
        named = chosen != first(self.windows)
        found.config |= {"windows_at": chosen.words} if named else {"windows": self.windows}
        recorded = [number for number in run.recorded if number < run.windows]
        for result in found.results:
            if result.outcome is Outcome.HOLDS and result.reach == RECORDED:
                result.reach = f"{RECORDED}, {spans(recorded, run.windows)}"
        others = list(run.others())
        for one in others:
            more = f" and {one.count - 1} more like it" if one.count > 1 else ""
            said = f"window {one.first + 1}{more}: it {one.reason}; not judged: record it with --windows-at {one.first}"
            found.uncovered.append(said)
        rest = run.windows - len(recorded)
        if recorded and rest:
            alike = rest - sum(one.count for one in others)
            found.notes.append(
                f"{rest} of {run.windows} windows were not recorded, and none of them is judged; {alike} of them have "
                "the backward passes, zeroes, clips, unscalings, steps and schedules of a recorded one, line by line"
            )
        for number in sorted(chosen.numbers - run.recorded if named else ()):
            why = "reached" if number >= run.windows else "recorded: the script was in a call, or a value was lost"
            found.notes.append(f"window {number} of --windows-at was not {why}")
        for number in sorted(run.recorded if named else ()):
            if number >= run.windows:
                found.notes.append(f"window {number} of --windows-at was not reached")
        if chosen.last and not self.ended:
            why = "the run has no window after its length was known" if self.monitor.known else NO_LENGTH
            found.notes.append(f"`last` of --windows-at was not recorded: {why}")


def beside_refuted(results: list[Result]) -> None:
    """What rests on an obligation that is refuted does not hold, though the recorded values alone would show it."""
    refuted = {result.obligation: result for result in results if result.outcome is Outcome.REFUTED}
    for result in results:
        cause = next((refuted[name] for name in RESTS_ON.get(result.obligation, ()) if name in refuted), None)
        if cause is not None and result.outcome is Outcome.HOLDS:
            result.outcome, result.location, result.help, result.reach = Outcome.UNKNOWN, cause.location, "", ""
            result.reason = f"it rests on {cause.obligation}, which is refuted; else: {result.reason}"


def with_values(found: Verification, judge: OneRun, doubt: tuple[str, Location] | None, reported: bool) -> None:
    """What the values of the run decide stands before what its events show; a refutation by events stays.

    `doubt`: why the values are not all that reached the gradients, and where. Then nothing holds by them. `reported`:
    the script reported its losses, which were compared.
    """
    results = [r for r in judge.results() if not (reported and r.obligation == "GA-INV-001")]
    found.assumptions += judge.assumptions() if results else []
    for result in results:
        if doubt is not None and result.outcome is Outcome.HOLDS:
            result.outcome, (result.reason, result.location), result.help = Outcome.OPAQUE, doubt, FUNCTION
        at = next((i for i, r in enumerate(found.results) if r.obligation == result.obligation), None)
        if at is None:
            found.results.append(result)
        elif found.results[at].outcome is not Outcome.REFUTED or result.outcome is Outcome.REFUTED:
            found.results[at] = result
    found.assumptions += assuming(judge.engine.facts.assumed.values(), found.results)


def interfered(log: EventLog, engine: Recorded) -> tuple[str, Location] | None:
    """What wrote into a gradient while it arrived, besides the derivative; None where nothing was seen."""
    if engine.overwritten is not None:
        return UNSHOWN["written"], engine.overwritten
    for event in log.events("accumulate"):
        for name, why in UNSHOWN.items():
            if event.detail.get(name):
                return why, event.location
    return None


@contextmanager
def awaking(engine: Recorded) -> Iterator[None]:
    """An engine follows from the first optimizer on."""
    making = torch.optim.Optimizer.__init__

    def begun(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        making(self, *args, **kwargs)
        engine.awake = True

    with replaced(torch.optim.Optimizer, "__init__", begun):
        yield


@contextmanager
def recording(engine: Recorded) -> Iterator[None]:
    """Operators, modules, data loaders and backward passes are followed while this runs."""
    call, following = nn.Module.__call__, dataloader._BaseDataLoaderIter.__next__

    def called(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not engine.depth:
            engine.forward(self, args, kwargs)
        engine.depth += 1
        try:
            return call(self, *args, **kwargs)
        finally:
            engine.depth -= 1

    def gave(self: Any) -> Any:
        batch = following(self)
        engine.took(batch)
        return batch

    with ExitStack() as stack:
        stack.enter_context(frozen_heap())
        stack.enter_context(torch.compiler.set_stance("force_eager"))  # or Dynamo skips what it met for good
        stack.enter_context(ran(engine))
        stack.enter_context(replaced(nn.Module, "__call__", called))
        stack.enter_context(replaced(dataloader._BaseDataLoaderIter, "__next__", gave))
        stack.enter_context(engine)
        yield


def watch(
    target: Callable[[], Any] | Sequence[str],
    accum_steps: int | None = None,
    windows: int = 3,
    epoch_batches: int | None = None,
    windows_at: str | None = None,
) -> Verification:
    """Run a function, or a script (`["train.py", "--epochs", "1"]`) as `python` would, and judge what was seen.

    Whatever it raises passes through.
    """
    named = None if windows_at is None else chosen(windows_at)
    watcher = ScriptWatch(accum_steps, windows, epoch_batches, None, named)
    with watcher:
        if callable(target):
            target()
        else:
            run_script(target)
    return watcher.verification()


def run_script(argv: Sequence[str]) -> None:
    """Run a script under its own arguments; `sys.argv` is put back."""
    before = sys.argv
    sys.argv = list(argv)
    try:
        runpy.run_path(argv[0], run_name="__main__")
    finally:
        sys.argv = before
