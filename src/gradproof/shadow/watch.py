"""Watching a whole script that cannot be called twice: a few windows are recorded, and what one run decides is decided.

`events` costs next to nothing: hooks and patched functions, no dispatch mode, no copies. It decides what the events
alone show (BLIND says what they do not), and what it cannot decide it leaves out of the results and lists as uncovered.
`full` records every operator of these windows, so that steps, clips and accumulators written by hand are seen too.

Where the number of micro-batches is not given it is what most windows show. Then a step after every micro-batch looks
like a loop that does not accumulate, and the number of steps is not decided.
"""

from __future__ import annotations

import runpy
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from gradproof.core import Outcome
from gradproof.shadow.flow import acts_of
from gradproof.shadow.flow_ops import Acts
from gradproof.shadow.hooks import Hooks
from gradproof.shadow.monitor import Monitor
from gradproof.shadow.monitored import heard, monitored, reported
from gradproof.shadow.places import user_place
from gradproof.shadow.protocol import Judgement, clusters, judge
from gradproof.shadow.recorder import Recorder
from gradproof.shadow.tape import Event, Place, Tape
from gradproof.shadow.verdict import OBLIGATIONS, RECORDED, Result, Verification
from gradproof.shadow.windows import Broken, Cluster, Windows

PROTOCOL = ("GA-INV-002", "GA-INV-003", "GA-INV-004", "GA-INV-005")
BLIND = (
    "the values of losses and gradients: the scale of the loss, equality with the full batch (GA-EQ-001)",
    "the loss that is reported (GA-INV-001) and the samples of a window (GA-DATA-001): one run has nothing to compare",
    "writes past the version counter (`p.grad.data`, NumPy): clipping, rescaling and casts by hand",
    "accumulators, optimizers and schedules of the user's own, and what happens inside `torch.func`",
)
BEYOND = BLIND[:2]
REPORT_TOLD = "the samples of a window (GA-DATA-001): one run has nothing to compare"
MORE = 1000
MENDS = {
    "GA-EQ-001": "unscale once, after the last micro-batch",
    "GA-INV-002": "call optimizer.zero_grad() once a window, right after optimizer.step()",
    "GA-INV-003": "step the optimizer, and the schedule, once a window, after its last micro-batch",
    "GA-INV-004": "accumulate in float32",
    "GA-INV-005": "clip once a window, after the last micro-batch, the unscaling and the sum over the ranks",
    "GA-SYNC-001": "let the last micro-batch of every window synchronise",
}


class Events:
    """A sink that keeps events and no tensors."""

    tensors = False

    def __init__(self, tape: Tape) -> None:
        self.tape = tape

    def event(self, kind: str, tensors: Mapping[str, Tensor], place: Place | None = None, **detail: Any) -> None:
        """Keep an event."""
        self.tape.items.append(Event(kind, place or user_place(), 0, detail))


class Watch:
    """Watches whatever trains inside `with Watch(...) as watch:`; afterwards `watch.verification()` judges it.

    `accum_steps` None is read from the run. It stops, and gives torch back as it was, after `windows` windows and the
    first micro-batch of the next.
    """

    def __init__(
        self,
        accum_steps: int | None = None,
        windows: int = 3,
        mode: str = "events",
        epoch_batches: int | None = None,
        opened: Callable[[Monitor], None] | None = None,
    ) -> None:
        self.accum_steps, self.windows, self.mode = accum_steps, windows, mode
        self.monitor = Monitor(None, windows, accum_steps, epoch_batches, opened)
        self.recorder = Recorder() if mode == "full" else None
        self.tape = Tape() if self.recorder is None else self.recorder.tape
        sink: Any = Events(self.tape) if self.recorder is None else self.recorder
        self.hooks = Hooks(Counting(sink, self._seen))
        self.stopped = False
        self._steps = 0
        self._open = False
        self._stack = ExitStack()

    def __enter__(self) -> Watch:
        with ExitStack() as stack:
            stack.enter_context(self.monitor)
            if self.recorder is not None:
                stack.enter_context(self.recorder)
            stack.enter_context(self.hooks)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if not self.stopped and error is None:
            self.hooks.end()
        self.stopped = True
        self._stack.close()

    def _seen(self, kind: str) -> None:
        """Count windows: a step after an arrival ends one."""
        if kind == "step" and self._open:
            self._steps, self._open = self._steps + 1, False
        elif kind == "accumulate":
            self._open = True
            if self._steps >= self.windows and not self.stopped:
                self.stopped = True
                self.hooks.stop()
                if self.recorder is not None:
                    self.recorder.quiet += 1

    def verification(self) -> Verification:
        """Every obligation that this run decides; the others are in `uncovered`."""
        return Ruling(self).verification()


class Counting:
    """A sink that tells the kind of every event after it was taken."""

    def __init__(self, sink: Any, told: Callable[[str], None]) -> None:
        self.sink, self.told = sink, told
        self.tensors = bool(getattr(sink, "tensors", True))

    def event(self, kind: str, tensors: Mapping[str, Tensor], place: Place | None = None, **detail: Any) -> None:
        """Pass an event on."""
        self.sink.event(kind, tensors, place, **detail)
        self.told(kind)


class Ruling:
    """What the events of one watched run decide."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.acts = acts_of(watch.tape)
        self.groups = list(clusters(self.acts))
        self.counts = {c.optimizer: lengths(self.acts, c) for c in self.groups}
        self.given = watch.accum_steps
        self.n = watch.accum_steps or self._inferred()
        self.steps = [a for a in self.acts.acts if a.kind == "step"]

    def _inferred(self) -> int:
        seen = Counter(n for counts in self.counts.values() for n, _ in counts)
        return max(seen, key=lambda n: (seen[n], n)) if seen else 1

    def sizes(self, acts: Acts, cluster: Cluster) -> list[int]:
        """The windows that a cluster is held to: a short one only where a data loader came to its end in it."""
        counts = self.counts[cluster.optimizer]
        if self.given is None or self._multiple(counts):
            return [n for n, _ in counts] + [self.n] * MORE
        return [n if ended and n < self.n else self.n for n, ended in counts] + [self.n] * MORE

    def _multiple(self, counts: list[tuple[int, bool]]) -> bool:
        return bool(counts) and all(n > self.n and n % self.n == 0 for n, _ in counts)

    def verification(self) -> Verification:
        """Judge."""
        watch = self.watch
        config = {"accum_steps": self.n, "inferred": self.given is None, "windows": watch.windows, "mode": watch.mode}
        made = Verification("", config)
        made.uncovered = list(BLIND if watch.recorder is None else BEYOND)
        made.versions = {"torch": torch.__version__}
        made.monitoring = monitored(watch.monitor)
        if not self.steps or not self.groups:
            why = "no backward pass was seen" if self.steps else "no optimizer step was seen"
            made.results = [Result("GA-INV-003", Outcome.OPAQUE, why, mend=self._further(), domain="events")]
            return made
        found = judge(self.acts, [self.n] * 2 if self.n > 1 else [1], self.sizes)
        made.events = found.events
        made.results = [self._refuted(b) for b in found.broken]
        made.results += [r for name in PROTOCOL if (r := self._kept(name, found)) is not None]
        if any(a.detail.get("world", 1) > 1 for a in self.acts.acts if a.kind == "sync"):
            made.results += self._held("GA-SYNC-001", "every step followed a sum over the ranks", found)
        told, made.notes = reported(watch.monitor), heard(watch.monitor)
        if told is not None:
            made.results.append(told)
            made.uncovered = [REPORT_TOLD if line == BLIND[1] else line for line in made.uncovered]
        decided = {r.obligation for r in made.results}
        made.uncovered += [f"{name}: {words}" for name, words in OBLIGATIONS.items() if name not in decided]
        made.results.sort(key=lambda r: list(OBLIGATIONS).index(r.obligation))
        return made

    def _further(self) -> str:
        return "watch it with --mode full" if self.watch.recorder is None else ""

    def _refuted(self, broken: Broken) -> Result:
        details = {"event": broken.event, "micro": broken.micro, "params": list(broken.params)}
        mend = MENDS.get(broken.obligation, "")
        return Result(broken.obligation, Outcome.REFUTED, broken.why, broken.place, mend, "events", RECORDED, details)

    def _held(self, name: str, why: str, found: Judgement) -> list[Result]:
        if any(b.obligation == name for b in found.broken):
            return []
        details = {"accum_steps": self.n, "inferred": self.given is None}
        return [Result(name, Outcome.HOLDS, why, domain="events", reach=RECORDED, details=details)]

    def _kept(self, name: str, found: Judgement) -> Result | None:
        """An obligation that nothing broke: kept, or beyond the events; None where there was too little to see."""
        if any(b.obligation == name for b in found.broken):
            return None
        hidden = self._hidden(name)
        if hidden is not None:
            why, place = hidden
            return Result(name, Outcome.OPAQUE, why, place, self._further(), "events", RECORDED)
        if name == "GA-INV-003":
            return self._counted(found)
        windows = max((len(counts) for counts in self.counts.values()), default=0)
        if name == "GA-INV-002" and found.arrivals <= sum(n for n, _ in next(iter(self.counts.values()), [])):
            windows -= 1
        if windows < 1:
            return None
        clips = sum(a.kind == "clip" for a in self.acts.acts)
        words = {
            "GA-INV-002": f"no gradient outlived its step, over {windows} ends of windows",
            "GA-INV-004": "every .grad was accumulated in fp32 or wider, or held one micro-batch",
            "GA-INV-005": f"{clips} clips, each of a whole window" if clips else "nothing was clipped",
        }
        return self._held(name, words[name], found)[0]

    def _hidden(self, name: str) -> tuple[str, Place] | None:
        """Something of which the events say no more than that it happened."""
        if self.acts.sighted:
            return None
        for act in self.acts.acts:
            if act.kind == "touch" and name == "GA-INV-005":
                return "gradients were written by something whose meaning the events do not show", act.place
            if act.kind == "assign" and name in ("GA-INV-004", "GA-INV-005"):
                return "gradients were replaced by something whose meaning the events do not show", act.place
            if act.kind == "arrive" and act.detail.get("taken"):
                return "gradients were returned, not accumulated; the events do not show where they went", act.place
        return None

    def _counted(self, found: Judgement) -> Result | None:
        counts = [c for each in self.counts.values() for c in each]
        if not counts:
            return None
        shown = ", ".join(str(n) for n, _ in counts)
        even = all(n == self.n or (ended and n < self.n) for n, ended in counts)
        if self.given is None and self.n == 1 and even:
            why = "every backward pass was followed by a step: no accumulation, or a step after each micro-batch"
        elif not even:
            why = (
                f"the windows have {shown} backward passes: tails, or several passes a micro-batch, or a wrong boundary"
            )
        else:
            return self._held(
                "GA-INV-003", f"{found.steps} steps, one for each window of {self.n} micro-batches", found
            )[0]
        place = self.steps[0].place
        return Result("GA-INV-003", Outcome.UNKNOWN, why, place, "give --accum-steps", "events", RECORDED)


def lengths(acts: Acts, cluster: Cluster) -> list[tuple[int, bool]]:
    """Arrivals in each complete window of a cluster, and whether a data loader ended in it."""
    found: list[tuple[int, bool]] = []
    run = Windows(acts, cluster, [])
    told, count, ended = set[int](), 0, False
    for act in acts.acts:
        number = act.detail.get("number")
        if act.kind == "arrive" and number in run.numbers and number not in told:
            told.add(number)
            count += 1
        elif act.kind == "epoch":
            ended = True
        elif act in run.steps and count:
            found.append((count, ended))
            count, ended = 0, False
    return found


def watch(
    target: Callable[[], Any] | Sequence[str],
    accum_steps: int | None = None,
    windows: int = 3,
    mode: str = "events",
    epoch_batches: int | None = None,
) -> Verification:
    """Run a function, or a script (`["train.py", "--epochs", "1"]`) as `python` would, and judge what was seen.

    Whatever it raises passes through.
    """
    watcher = Watch(accum_steps, windows, mode, epoch_batches)
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
