"""Watching a whole script that cannot be called twice: a few windows are recorded, and what one run decides is decided.

Every operator of these windows is followed (`Recorded`), and the weight of each sample is read off the gradients
(`OneRun`). The rest of the script runs without it. A monitor sees the order of backward passes, clips, steps and zeroes
(`RunEvents`): it shows whether each step follows a window (`StepRuling`), and places a refutation (`WithEvents`).

Every obligation has a result. Where the number of micro-batches is not given it is what most windows show. Then a step
after every micro-batch looks like a loop that does not accumulate, and the number of steps is not decided. Where it is
given, a shorter window may be the tail of an epoch: the end of a data loader shows it, and without one it is not
decided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from gradproof.core.outcome import Outcome
from gradproof.shadow.locations import Location
from gradproof.shadow.protocol.monitor import Monitor
from gradproof.shadow.protocol.monitor_report import heard, monitored, reported
from gradproof.shadow.protocol.ruling import StepRuling
from gradproof.shadow.protocol.run_events import CLIP, PASS
from gradproof.shadow.request import LAST, chosen, complete, expected_obligations
from gradproof.shadow.result import RECORDED, Result, Verification, assuming
from gradproof.shadow.verify.one_run import OneRun, spans
from gradproof.shadow.verify.with_events import WithEvents
from gradproof.shadow.whole.recorded import Recorded
from gradproof.shadow.whole.unseen import frozen_heap, made, ran, replaced, taken_away, ways_out

WINDOW = ("GA-INV-002", "GA-INV-003", "GA-INV-005", "GA-SYNC-001")
RESTS_ON = {
    "GA-EQ-001": WINDOW, "GA-TOK-001": WINDOW, "GA-DATA-001": ("GA-EQ-001", *WINDOW), "GA-INV-001": ("GA-EQ-001",),
    "GA-INV-003": ("GA-INV-002", "GA-INV-005"),
}  # fmt: skip
"""What does not hold where one of others is refuted."""
NO_LENGTH = "no data loader has a length; give --epoch-batches"
BLIND = (
    "what hooks, custom autograd functions, communication hooks and callbacks of the engine do to a gradient while it "
    "arrives in `.grad`"
)
UNFOLLOWED = "no backward pass was seen to bring the gradients that were applied"
UNREPORTED = "the losses were not followed, and no mean of each window was reported"
FUNCTION = "put the training step into a function of a Run, for gradproof check"
FURTHER = "report the mean of each window with gradproof.monitoring.report_loss"
HOOKED = "a hook of a parameter ran in the backward pass; one run does not show what it did to the gradient"
WRITTEN = "gradients were written in a backward pass by more than accumulation; one run does not show how"


class ScriptWatch:
    """Watches whatever trains inside `with ScriptWatch(...) as watch:`; afterwards `watch.verification()` judges it.

    `accum_steps` None is read from the run. `windows_at`: the windows that are recorded, each with the first
    micro-batch of the window after it; by default the first `windows`. Meanwhile torch is as it was, but for hooks.
    """

    def __init__(
        self,
        accum_steps: int | None = None,
        windows: int = 3,
        epoch_batches: int | None = None,
        windows_at: str | None = None,
        opened: Callable[[Monitor], None] = lambda monitor: None,
    ) -> None:
        self.accum_steps, self.windows = accum_steps, windows
        self.named = windows_at is not None
        self.chosen = frozenset(range(windows)) if windows_at is None else chosen(windows_at)
        self.monitor = Monitor(None, windows, accum_steps, epoch_batches, opened)
        self.run = self.monitor.run
        self.engine = Recorded()
        self.engine.window_of = lambda: self.run.number
        self.engine.reaching = self.monitor.details.reaching
        self.on, self.ended, self.left = 0 in self.chosen, False, False
        self._stack, self._following = ExitStack(), ExitStack()

    def __enter__(self) -> ScriptWatch:
        with ExitStack() as stack:
            stack.enter_context(self.monitor)
            stack.enter_context(made(self.engine))
            stack.enter_context(ways_out(self.engine.exported, self.engine.stored))
            stack.callback(self._following.close)
            self.monitor.turned, self.monitor.gave = self.turned, self.engine.took
            self.monitor.details.starts = partial(setattr, self.engine, "awake", True)
            if self.on:
                self.run.recorded.add(0)
                self._following.enter_context(recording(self.engine))
            else:
                self.engine.close()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.left = self.on and error is None and self.monitor.holds_gradients()
        self.on = False
        self._stack.close()

    def _passed(self) -> None:
        """A backward pass of a window that is not recorded is the last that is followed for now."""
        if self.on and self.run.open and not self.run.recorded & {self.run.number, self.run.number + 1}:
            self.on = False
            self._unfollowed()

    def turned(self) -> None:
        """A window has ended: the next one is recorded, or not. A backward pass that steps has to end before."""
        self._passed()
        if not self.run.stepped or torch._C._current_graph_task_id() != -1:
            return
        following = self.run.number + 1
        last = LAST in self.chosen and self.monitor.ends(self.accum_steps)  # of the first epoch, as far as is known
        if following in self.run.recorded or not (following in self.chosen or last) or not self._goes_on():
            return
        self.ended |= last
        self.run.recorded.add(following)
        self.monitor.look()

    def _goes_on(self) -> bool:
        """Whether everything is followed: it is already, or is again from here on."""
        apart = _get_current_dispatch_mode() is not None or self.monitor.inside or self.engine.facts.lost
        if not self.on and not apart:
            self.on = True
            self.engine.go_on(self.monitor.parameters())
            self._following.enter_context(recording(self.engine))
        return self.on

    def _unfollowed(self) -> None:
        """Follow no operator for now. A mode that the script entered meanwhile keeps the engine in its place.

        A backward pass gives back, when it ends, the modes that it began with: until then the engine stays as well.
        """
        if self.engine.calls:
            self.engine.afterwards.append(self._unfollowed)
            return
        self.engine.close()
        if _get_current_dispatch_mode() is self.engine:
            self._following.close()

    def verification(self) -> Verification:
        """A result for every obligation; those that this run does not decide are undecided."""
        events = [event for own in self.run.kept() for event in own]
        judge = OneRun(self.engine, any(e.kind == CLIP for e in events), self.run.windows, self.run.recorded)
        ruling, doubt = StepRuling(self.monitor, self.accum_steps, self.left), self._interfered()
        ruling.in_passes(doubt is None and judge.in_passes())
        found = Verification("", {"accum_steps": ruling.n, "inferred": self.accum_steps is None})
        found.uncovered, found.versions = [BLIND], {"torch": torch.__version__}
        found.monitoring, found.notes = monitored(self.monitor), heard(self.monitor)
        rows = Counter((event.kind, str(event.location)) for event in events)
        found.events = [{"event": kind, "location": at, "times": times} for (kind, at), times in rows.items()]
        names = expected_obligations(self.monitor.world)
        if ruling.windows:
            self._judge(found, judge, ruling, doubt)
            said = {result.obligation for result in found.results}
            found.results += [self._undecided(name) for name in names if name not in said]
        else:
            found.results = [Result(n, Outcome.OPAQUE, self._nothing(), domain="events") for n in names]
        beside_refuted(found.results)
        self._disclose(complete(found, self.monitor.world))
        return found

    def _judge(
        self, found: Verification, judge: OneRun, ruling: StepRuling, doubt: tuple[str, Location] | None
    ) -> None:
        """The results of the values, and of the events beside them. Where there is a doubt, nothing holds by values."""
        results = {one.obligation: one for one in judge.results()}
        found.assumptions += judge.assumptions() if results else []
        for one in results.values():
            if one.outcome is Outcome.HOLDS and doubt is not None:
                one.outcome, (one.reason, one.location), one.help = Outcome.OPAQUE, doubt, FUNCTION
        for one in WithEvents(judge, ruling).results() if doubt is None else ():
            if one.obligation not in results or results[one.obligation].outcome is not Outcome.REFUTED:
                results[one.obligation] = one
        equal = results.get("GA-EQ-001")
        stated = reported(self.monitor, equal is not None and equal.outcome is Outcome.HOLDS)
        if stated is not None or self.monitor.reports:
            results.pop("GA-INV-001", None)
        found.results = [*results.values(), ruling.result(), *([] if stated is None else [stated])]
        if self.monitor.world > 1:
            found.results.append(self.monitor.details.sums.result(FUNCTION))
        found.assumptions += assuming(judge.engine.facts.assumed.values(), found.results)

    def _nothing(self) -> str:
        """Why there is no window to judge."""
        if self.run.windows and not self.run.recorded & set(range(self.run.windows)):
            return f"none of the windows was recorded that were asked for; the run has {self.run.windows}"
        return f"no {'backward pass' if self.monitor.types else 'optimizer step'} was seen"

    def _undecided(self, name: str) -> Result:
        """An obligation that neither values nor events decide."""
        lost = next(iter(self.engine.facts.lost), None)
        help = FURTHER if name == "GA-INV-001" else FUNCTION
        if name == "GA-INV-001" or lost is None:
            why = UNREPORTED if name == "GA-INV-001" else UNFOLLOWED
            return Result(name, Outcome.UNKNOWN, why, None, help, "events", RECORDED)
        return Result(name, Outcome.OPAQUE, f"a value was lost: {lost[1]}", lost[0], help, "events", RECORDED)

    def _interfered(self) -> tuple[str, Location] | None:
        """What wrote into a gradient while it arrived, besides the derivative; None where nothing was seen."""
        if self.engine.overwritten is not None:
            return WRITTEN, self.engine.overwritten
        passes = (event for own in self.run.seen.values() for event in own if event.kind == PASS and event.about)
        return next(((HOOKED, event.location) for event in passes if event.about.hooked), None)

    def _disclose(self, found: Verification) -> None:
        """Say of which windows the results are, and what is known of the others."""
        run, words = self.run, sorted(self.chosen, key=lambda word: (word == LAST, word))
        found.config |= {"windows_at": words} if self.named else {"windows": self.windows}
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
            alike = rest - sum(one.count for one in others) - run.more
            found.notes.append(
                f"{rest} of {run.windows} windows were not recorded, and none of them is judged; {alike} of them have "
                "the backward passes, zeroes, clips, unscalings, steps and schedules of a recorded one, line by line"
            )
        numbers = {word for word in words if isinstance(word, int)} | run.recorded
        for number in sorted(numbers if self.named else ()):
            if number >= run.windows or number not in run.recorded:
                why = "reached" if number >= run.windows else "recorded: the script was in a call, or a value was lost"
                found.notes.append(f"window {number} of --windows-at was not {why}")
        if LAST in words and not self.ended:
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


@contextmanager
def recording(engine: Recorded) -> Iterator[None]:
    """Operators, modules and backward passes are followed while this runs."""
    call = nn.Module.__call__

    def called(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not engine.depth:
            engine.forward(self, args, kwargs)
        engine.depth += 1
        try:
            return call(self, *args, **kwargs)
        finally:
            engine.depth -= 1

    with ExitStack() as stack:
        stack.enter_context(frozen_heap())
        stack.enter_context(torch.compiler.set_stance("force_eager"))  # or Dynamo skips what it met for good
        stack.enter_context(ran(engine))
        stack.enter_context(taken_away(engine.emptied))
        stack.enter_context(replaced(nn.Module, "__call__", called))
        function: Any = torch.autograd.function.BackwardCFunction
        stack.enter_context(replaced(function, "apply", engine.own.following(function.apply)))
        stack.enter_context(engine)
        yield
