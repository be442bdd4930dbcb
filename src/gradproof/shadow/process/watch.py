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

import random
import sys
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial, partialmethod
from types import TracebackType
from typing import Any

import numpy
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher

from gradproof.core.outcome import Outcome
from gradproof.shadow.follow.facts import DOMAIN, PassedLimit
from gradproof.shadow.follow.recorded import Recorded
from gradproof.shadow.follow.rows import digests
from gradproof.shadow.follow.terms import HELP, TimeLimit
from gradproof.shadow.follow.unseen import TAKEN, copies, frozen_heap, made, ran, replaced, taken_away, ways_out
from gradproof.shadow.judge.by_events import WithEvents, beside_iterations, beside_refuted, reported, summed
from gradproof.shadow.judge.one_run import OneRun
from gradproof.shadow.judge.seen_windows import left_over
from gradproof.shadow.judge.steps import StepRuling
from gradproof.shadow.locations import Location, user_location, users_warnings
from gradproof.shadow.ops.schema import tensors_in
from gradproof.shadow.request import LAST, chosen, expected_obligations
from gradproof.shadow.result import (
    FUNCTION,
    NO_LOSS,
    OBLIGATIONS,
    RECORDED,
    Result,
    Verification,
    assuming,
    judged_windows,
    leave_open,
    spans,
)
from gradproof.shadow.tape.calls import CLIP, PASS
from gradproof.shadow.tape.checksums import plain
from gradproof.shadow.tape.monitor import Monitor
from gradproof.shadow.tape.monitor_report import heard, monitored

NO_LENGTH = "no data loader has a length; give --epoch-batches"
MOST_AHEAD = 4096
"""So many batches that a script reads before it trains on them are known where a later window is recorded."""
DRAWN = 1, 4
"""One window is drawn among those that follow the first ones, and one among four times as many."""
MOST_NAMED = 4
"""Windows that are like no recorded one, and that an option is shown for."""
BLIND = (
    "what hooks, custom autograd functions, communication hooks and callbacks of the engine do to a gradient while it "
    "arrives in `.grad`"
)
UNFOLLOWED = "no backward pass was seen to bring the gradients that were applied"
UNREPORTED = "the losses were not followed, and no mean of each window was reported"
ALONE = "run the script by itself first"
PRINTED = "no reported loss was seen: what the script prints was not followed"
FURTHER = "report the mean of each window with gradproof.monitoring.report_loss"
HOOKED = "a hook of a parameter ran in the backward pass; one run does not show what it did to the gradient"
WRITTEN = "gradients were written in a backward pass by more than accumulation; one run does not show how"


Reason = tuple[str, Location]


class ScriptWatch(Monitor):
    """Watches whatever trains inside `with ScriptWatch(...) as watch:`; afterwards `watch.verification()` judges it.

    `accum_steps` None is read from the run. `windows_at`: the windows that are recorded, each with the first
    micro-batch of the window after it; by default the first `windows`, the last one of the first epoch, and those that
    `seed` draws. Meanwhile torch is as it was, but for hooks.
    Where following one window, or judging, takes more than `time_limit` seconds of CPU time, no more is followed.
    After `stop_after` windows, and the first backward pass of the next one, it calls `stopping`, which asks for the
    verification, and raises SystemExit.
    """

    def __init__(
        self, accum_steps: int | None = None, windows: int = 3, windows_at: str | None = None, **options: Any
    ) -> None:
        self.stop_after: int | None = options.pop("stop_after", None)
        self.seed: int = options.pop("seed", 0)
        self.stopping: Callable[[], None] = lambda: None
        self.failed: Reason | None = None
        limit = options.pop("time_limit", 120.0)
        windows = min(windows, self.stop_after or windows)
        super().__init__(None, windows, accum_steps, **options)
        self.asked, self.named = windows, windows_at is not None
        self.drawn = drawn(self.seed, windows) if windows_at is None else frozenset[int]()
        first = frozenset([*range(windows), LAST]) | self.drawn
        self.chosen = first if windows_at is None else chosen(windows_at)
        self.engine = Recorded()
        self.engine.window_of = lambda: self.run.number
        self.engine.passed, self.engine.terms.clock.limit = self._passed, limit
        self.engine.reaching, self.engine.held = self.details.reaching, self.details.state
        self.details.starts = partial(setattr, self.engine, "awake", True)
        self.on, self.ended, self.left = 0 in self.chosen, False, False
        self._given = deque[tuple[Any, list[Any]]](maxlen=MOST_AHEAD)  # by iteration, with weak references
        self._last: Any = None  # the last batch, whose tensors a script may have viewed
        self._following = ExitStack()

    def enters(self, stack: ExitStack) -> None:
        """Follow the first window, or nothing for now."""
        stack.enter_context(users_warnings())
        stack.enter_context(made(self.engine))
        stack.enter_context(ways_out(self.engine, TAKEN, self.engine.comes))
        stack.callback(self._following.close)
        if self.on:
            self.run.recorded.add(0)
            self._following.enter_context(recording(self.engine))
        else:
            self.engine.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.left = self.on and error is None and self.holds_gradients()
        self.on = False
        super().__exit__(kind, error, tb)

    def gave(self, batch: Any) -> None:
        """The engine takes the samples of a batch."""
        self._last, it, leaves = batch, self._iteration, tree_leaves(batch)
        (of, asked), self.engine.fetched = self.engine.fetched, (None, [])
        numbers = [0] * any(isinstance(one, int | float | numpy.ndarray) for one in leaves)
        self._given.append((it, [*map(weakref.ref, tensors_in(batch)), *numbers]))
        self.engine.took(batch, it, len(asked))
        if not self.on or it is None or not torch.is_grad_enabled():
            return
        with self.engine.own_work():
            rows = [digests(t, 0) for t in tensors_in(batch) if plain(t) and t.dim() and len(t) == it.rows]
            held = torch.stack(rows).sum(0).tolist() if rows else []
        it.data = of  # so that its identity stays
        numbered = [(id(of), row) for row in asked if isinstance(row, int)]
        names = [*((name, it.shared) for name in held), *((name, not it.redraws) for name in numbered)]
        for name, once in names:
            known, first = it.held.setdefault(name, (it, self.engine.fetch))
            if (known is not it and not known.cut) or (once and known is it and first != self.engine.fetch):
                self.engine.meetings.repeats[self.engine.fetch] = first, user_location(), known is it

    def turned(self) -> None:
        """A window has ended: the next one is recorded, or not. A backward pass that steps has to end before.

        A backward pass of a window that is not recorded is the last that is followed for now.
        """
        following = self.run.number + 1
        if self.on and self.run.open and not self.run.recorded & {self.run.number, following}:
            self.on = False
            self._unfollowed()
        if not self.run.stepped or torch._C._current_graph_task_id() != -1:
            return
        last = LAST in self.chosen and self.ends()  # of the first epoch, as far as is known
        if following in self.run.recorded or not (following in self.chosen or last) or not self._goes_on():
            return
        self.ended |= last
        self.run.recorded.add(following)
        self.look()

    def passed(self) -> None:
        """The first backward pass after `stop_after` windows showed whether gradients were zeroed: it is the last."""
        if self.stop_after and self.run.number >= self.stop_after and torch._C._current_graph_task_id() == -1:
            if not self.stopped:
                self.stopped = self.run.windows
                end = register_optimizer_step_pre_hook(lambda *_: sys.exit(0))  # for scripts that catch everything
                self._undo.callback(end.remove)
                with _disable_current_modes():
                    self.stopping()
            sys.exit(0)

    def _goes_on(self) -> bool:
        """Whether everything is followed: it is already, or is again from here on."""
        apart = _get_current_dispatch_mode() is not None or self.inside or self.engine.facts.lost or self.engine.late
        if not self.on and not apart:
            self.on = True
            self.engine.go_on(self.parameters())
            self._take_again()
            self._following.enter_context(recording(self.engine))
        return self.on

    def _passed(self) -> int:
        """The time limit passed: the present window is not recorded. One begins right after a step."""
        number = self.run.number + (self.run.stepped and not self.engine.steps)
        self.run.recorded -= {one for one in self.run.recorded if one >= number}
        return number

    def _take_again(self) -> None:
        """The engine takes the batches that were read before, and of which no backward pass was seen."""
        it = self._iteration
        left = 0 if it is None else max(it.read - it.passes, 0)
        for batch in [batch for of, batch in self._given if of is it][-left:] if left else ():
            held = [one() if isinstance(one, weakref.ref) else one for one in batch]
            if not any(one is None for one in held):
                self.engine.took(held, it)

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
        rests = {number: left_over(own, self.epoch_batches) for number, own in self.run.seen.items()}
        left = {n: sum(event.kind == PASS for event in self.run.seen[n][:at]) for n, at in rests.items()}
        judge = self._judge_of(any(e.kind == CLIP for e in events), left)
        doubt = self._interfered()
        shown, dropped = doubt is None and judge.in_passes(), {n: rests[n] for n in judge.left}
        ruling = StepRuling(self, self.accum_steps, self.left, shown, dropped, judge.each())
        found = Verification("", {"inferred": self.accum_steps is None})
        found.config |= {"accum_steps": ruling.n} if ruling.windows or self.accum_steps else {}
        found.config |= {"failed": f"at {self.failed[1]}: {self.failed[0]}"} if self.failed else {}
        found.uncovered, found.versions = [BLIND], {"torch": torch.__version__}
        found.monitoring, found.notes = monitored(self), heard(self)
        rows = Counter((event.kind, str(event.location)) for event in events)
        found.events = [{"event": kind, "location": at, "times": times} for (kind, at), times in rows.items()]
        results = self._judge(found, judge, ruling, doubt) if ruling.windows else {}
        found.assumptions += assuming(self.engine.facts.assumed.values(), results.values())
        for name in expected_obligations(self.world):
            results.setdefault(name, self._undecided(name, bool(ruling.windows)))
        beside_refuted(results)
        self._unlike(results)
        found.results = [results[name] for name in OBLIGATIONS if name in results]
        self._disclose(found)
        return found

    def _judge_of(self, clips: bool, left: dict[int, int]) -> OneRun:
        """The judge of the values that were recorded; of none where it takes too long."""
        clock = self.engine.terms.clock
        clock.begin()
        try:
            with clock:
                return OneRun(self.engine, clips, self._total(), self.run.recorded, left)
        except TimeLimit as error:
            self.engine.late = self.engine.late or PassedLimit(str(error), 0, None)
            return OneRun(self.engine, clips, self._total(), set(), left)

    def _judge(self, found: Verification, judge: OneRun, ruling: StepRuling, doubt: Reason | None) -> dict[str, Result]:
        """The results of the values, and of the events beside them. Where there is a doubt, nothing holds by values."""
        with self.engine.terms.clock:
            results = {one.obligation: one for one in judge.results()}
        found.assumptions += [*judge.assumptions(), *ruling.assumptions] if results else []
        found.taken = judge.taken() if results else []
        decided = {one.obligation for one in results.values() if one.outcome in (Outcome.HOLDS, Outcome.REFUTED)}
        found.weights = judge.shares() if "GA-EQ-001" in decided else []
        for one in results.values():
            if doubt is not None:
                one.doubt(*doubt, FUNCTION, Outcome.OPAQUE)
        for one in WithEvents(judge, ruling).results() if doubt is None else ():
            if one.obligation not in results or results[one.obligation].outcome is not Outcome.REFUTED:
                results[one.obligation] = one
        equal = "GA-EQ-001" in results and results["GA-EQ-001"].outcome is Outcome.HOLDS
        sums = summed(self.details.sums, FUNCTION) if self.world > 1 else None
        beside_iterations(results, self)
        others = (ruling.result(), reported(self, equal), sums)
        return results | {one.obligation: one for one in others if one is not None}

    def _undecided(self, name: str, judged: bool) -> Result:
        """An obligation that neither values nor events decide. `judged`: there is a window to judge."""
        lost, run, late = next(iter(self.engine.facts.lost), None), self.run, self.engine.late
        if not judged and self.failed is not None:
            return Result(name, Outcome.ERROR, f"the script failed: {self.failed[0]}", self.failed[1], ALONE, "events")
        if late is not None and (name != "GA-INV-001" or not judged):
            return Result(name, Outcome.TIMEOUT, late.reason, late.location, HELP, DOMAIN)
        if not judged:
            why = f"no {'backward pass' if self.types else 'optimizer step'} was seen"
            if run.windows and not run.recorded & set(range(run.windows)):
                why = f"none of the windows was recorded that were asked for; the run has {run.windows}"
            return Result(name, Outcome.OPAQUE, why, domain="events")
        if name == "GA-INV-001" and not self.reports:
            return Result(name, Outcome.UNKNOWN, PRINTED, domain=DOMAIN, details={"code": NO_LOSS})
        if name == "GA-INV-001":
            return Result(name, Outcome.UNKNOWN, UNREPORTED, None, FURTHER, "events", RECORDED)
        if lost is None:
            return Result(name, Outcome.UNKNOWN, UNFOLLOWED, None, FUNCTION, "events", RECORDED)
        return Result(name, Outcome.OPAQUE, f"a value was lost: {lost[1]}", lost[0], FUNCTION, "events", RECORDED)

    def _interfered(self) -> Reason | None:
        """What wrote into a gradient while it arrived, besides the derivative; None where nothing was seen."""
        if self.engine.overwritten is not None:
            return WRITTEN, self.engine.overwritten
        passes = (event for own in self.run.seen.values() for event in own if event.kind == PASS and event.about)
        return next(((HOOKED, event.location) for event in passes if event.about.hooked), None)

    def _unlike(self, results: Mapping[str, Result]) -> None:
        """What a window may break that was not recorded, and is like none that was, does not hold."""
        self.others = list(self.run.others())
        named = {at for _, at, _ in self.others[:MOST_NAMED]}
        numbers = {number for number in self.run.recorded if number < self.run.windows} | named
        option = f"record it: --windows-at {','.join(map(str, sorted(numbers)))}"
        leave_open(results.values(), self.others, "recorded", option)

    def _total(self) -> str:
        """The windows of the run, in words: those of a run that was shortened are no whole run."""
        return f"{self.run.windows} until it was stopped" if self.stopped else str(self.run.windows)

    def _disclose(self, found: Verification) -> None:
        """Say of which windows the results are, and what is known of the others."""
        run, words = self.run, sorted(self.chosen, key=lambda word: (word == LAST, word))
        found.config |= {"windows_at": words} if self.named else {"windows": self.asked, "seed": self.seed}
        recorded = [number for number in run.recorded if number < run.windows]
        if self.stopped:
            found.config["stopped_after"] = self.stopped
            said = "the script was ended after them, as --stop-after asks: nothing is known of what would follow"
            found.notes.append(f"windows that ran: {run.windows}; {said}")
        for result in found.results:
            if result.outcome is Outcome.HOLDS and result.reach == RECORDED:
                result.reach = f"{RECORDED}, {spans(recorded, self._total())}"
        late = self.engine.late
        if late is not None and late.location is not None:
            where = f"window {late.window + 1}, at {late.location}"
            found.notes.append(f"{late.reason} in {where}: neither it nor a later window was recorded; {HELP}")
        rest = run.windows - len(recorded)
        alike = rest - sum(count for count, _, _ in self.others) - run.more
        if recorded and rest:
            found.notes.append(
                f"{rest} of {run.windows} windows were not recorded, and none of them is judged; {alike} of them have "
                "the backward passes, zeroes, clips, unscalings, steps and schedules of a recorded one, line by line, "
                "rows, losses and modes alike"
            )
        if recorded:
            others = f"{alike} by events alone" if alike == rest else f"{alike} of the other {rest} by events alone"
            others = others if rest else "there is no other"
            by_seed = self.drawn.intersection(recorded)
            found.windows = judged_windows(recorded, self._total(), by_seed, self.seed, others)
        numbers = {word for word in words if isinstance(word, int)} | run.recorded
        for number in sorted(numbers if self.named else ()):
            if number >= run.windows or number not in run.recorded:
                lost = "the time limit passed" if late is not None else "the script was in a call, or a value was lost"
                why = "reached" if number >= run.windows else f"recorded: {lost}"
                found.notes.append(f"window {number} of --windows-at was not {why}")
        if self.named and LAST in words and not self.ended:
            why = "the run has no window after its length was known" if self.known else NO_LENGTH
            found.notes.append(f"`last` of --windows-at was not recorded: {why}")


def drawn(seed: int, windows: int) -> frozenset[int]:
    """Further windows that are recorded, by a seed: how many a run has is not known when it begins."""
    numbers, least = random.Random(seed), max(windows, 2)
    return frozenset(numbers.randrange(least * by, least * 4 * by) for by in DRAWN)


@contextmanager
def recording(engine: Recorded) -> Iterator[None]:
    """Operators, modules and backward passes are followed while this runs."""
    call = nn.Module.__call__

    def called(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not engine.depth:
            engine.forward(self, args, kwargs)
        return engine.depth.call(call, self, *args, **kwargs)

    with ExitStack() as stack:
        stack.enter_context(copies(engine))
        for kind in (_MapDatasetFetcher, _IterableDatasetFetcher):
            stack.enter_context(replaced(kind, "fetch", partialmethod(partial(engine.fetching, kind.fetch))))
        stack.enter_context(frozen_heap())
        stack.enter_context(ran(engine))
        stack.enter_context(taken_away(engine.emptied))
        stack.enter_context(replaced(nn.Module, "__call__", called))
        function: Any = torch.autograd.function.BackwardCFunction
        stack.enter_context(replaced(function, "apply", engine.own.following(function.apply)))
        stack.enter_context(engine)
        yield
