"""A script as a function of a `Run`, for `gradproof check --script`: it runs by its own arguments in a child process.

Two short runs without the engine show what the arguments do. Then the script is judged as any function is. Each run
ends when its windows are complete. Where two saw other samples, or began with other weights, nothing is decided.
"""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stdout, suppress
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer, optimizer as optimizers
from torch.utils._python_dispatch import _disable_current_modes

from gradproof.core import putback
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Outcome
from gradproof.shadow.follow.facts import ROUNDED, sampled, shaped
from gradproof.shadow.follow.unseen import digest, replaced
from gradproof.shadow.judge.two_runs import check_whole, run_of
from gradproof.shadow.locations import NOWHERE, USER, Location, owner, raised_at, stated, user_location
from gradproof.shadow.ops.schema import tensors_in
from gradproof.shadow.process.check import SCRIPT, Script, run
from gradproof.shadow.request import Request
from gradproof.shadow.result import Result, Verification
from gradproof.shadow.tape.calls import PASS, params_of, seen, steps
from gradproof.shadow.tape.run import Run, first_call, seed

HELP = "give both runs the same; gradproof watch -- python SCRIPT decides by one run"


class Complete(BaseException):
    """The windows are complete, and the script begins another one."""


class ShortRun:
    """What one run of a script did, until each of its windows had a step.

    Of each window: `passes`, how many backward passes; `samples`, a digest of each row that its forward passes began
    with, and `numbers`, some of each row in float64; `at`, the line of the first. `rows`: of the first forward pass.
    `weights`: digests of what the run began with.
    """

    def __init__(self, windows: int) -> None:
        self.windows, self.rows, self.waits, self.complete = windows, 0, True, False
        self.passes, self.samples, self.at, self.weights = [0], [list[str]()], dict[int, Location](), list[str]()
        self.steps, self.numbers = Counter[int](), dict[str, torch.Tensor]()

    def entered(self, module: torch.nn.Module, given: Any) -> None:
        """A forward pass: the first one that trains since the last backward pass takes a micro-batch."""
        if not (module.training and torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters())):
            return
        if self.complete:
            raise Complete
        tensors = [tensor for tensor in tensors_in(given) if tensor.dim()]
        if self.waits and tensors:
            self.waits, rows = False, len(tensors[0])
            own = [digests(tensor) for tensor in tensors if len(tensor) == rows]
            names = [*map(" ".join, zip(*own, strict=True))]
            self.samples[-1] += names
            held = zip(*(some(tensor) for tensor in tensors if len(tensor) == rows), strict=True)
            self.numbers |= zip(names, map(torch.cat, held), strict=True)
            self.rows = self.rows or rows
            self.at.setdefault(len(self.samples), user_location())

    def near(self, own: Sequence[str], run: ShortRun, other: Sequence[str]) -> bool:
        """Whether rows are those of another run, in its order, but for the rounding of what computed them."""
        pairs = [(self.numbers[a], run.numbers[b]) for a, b in zip(own, other, strict=False) if a != b]
        same = all(a.shape == b.shape and shaped(a, b, ROUNDED) for a, b in pairs)
        return same and len(own) == len(other)

    def before_step(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step; its step may run the forward pass itself."""
        if self.steps[id(optimizer)] >= self.windows:
            raise Complete
        self.weights += [] if self.steps[id(optimizer)] else digests(params_of(optimizer))

    def after_step(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped: the windows are as many as the steps of the one that stepped most."""
        self.steps[id(optimizer)] += 1
        self.complete = max(self.steps.values()) >= self.windows
        if max(self.steps.values()) == len(self.passes) < self.windows:
            self.passes, self.samples = [*self.passes, 0], [*self.samples, []]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Forward passes, backward passes and steps are noted while this runs."""
        call = torch.nn.Module.__call__

        def called(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            self.entered(module, (args, kwargs))
            return call(module, *args, **kwargs)

        def ran(backward: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("accumulate_grad") and torch._C._current_graph_task_id() == -1:
                self.passes[-1], self.waits = self.passes[-1] + 1, True
            return backward(*args, **kwargs)

        with (
            torch.compiler.set_stance("force_eager"),
            replaced(torch.nn.Module, "__call__", called),
            seen({PASS: ran}),
            steps(self.before_step, self.after_step),
        ):
            hooks: Any = optimizers._global_optimizer_pre_hooks
            hooks.move_to_end(next(reversed(hooks)), last=False)  # before an engine sees a step that is not made
            yield


def digests(tensors: Iterable[torch.Tensor]) -> list[str]:
    """What each tensor holds, or each row of one, unseen by an engine."""
    with torch._C.DisableTorchFunction(), torch.no_grad(), _disable_current_modes():
        return [digest(tensor) for tensor in tensors]


def some(tensors: torch.Tensor) -> list[torch.Tensor]:
    """Some numbers of each row of a tensor."""
    with torch._C.DisableTorchFunction(), torch.no_grad(), _disable_current_modes():
        return [sampled(row.abs() if row.is_complex() else row) for row in tensors]


class Twice:
    """A script as a function of a Run: by micro-batches with the arguments `ours`, by the full batch with `full`.

    `kept`: the folder for what it changes below `homes`, which is put back after each run.
    """

    def __init__(self, name: str, ours: Sequence[str], full: Sequence[str], kept: str, homes: Sequence[str]) -> None:
        self.scripts = [Script((), name, False, tuple(ours)), Script((), name, False, tuple(full))]
        self.shown = [f"run {at}: {shlex.join(['python', name, *of])}" for at, of in (("A", ours), ("B", full))]
        self.runs, self.out, self.kept = list[tuple[int, ShortRun]](), sys.stdout, Path(kept)
        sys.dont_write_bytecode = True
        putback.keep_changes(self.kept, homes, "--script")

    def __call__(self, given: Run) -> None:
        """Run the script until the windows are complete. What it prints is no loss that it reports."""
        seen, modules = ShortRun(given.windows), {*sys.modules}
        argv, path = replaced(sys, "argv", [""]), replaced(sys, "path", [*sys.path])
        self.runs.append((given.seed, seen))
        try:
            with suppress(Complete), chdir("."), argv, path, redirect_stdout(self.out), seen.watching():
                run(self.scripts[given.accum_steps == 1])
        except SystemExit as ended:
            if ended.code not in (None, 0):
                raise RuntimeError(f"the script ended with exit code {ended.code}") from ended
        finally:
            putback.put_back(self.kept)
            for name in {*sys.modules} - modules:  # the user's own begin anew
                if owner(getattr(sys.modules[name], "__file__", None) or "<") == USER:
                    del sys.modules[name]

    def verified_as_script(self, request: Request, subject: str) -> Verification:
        """The verification. Raises GradproofError GP416 where the script or its arguments do not do as they have to."""
        once, given = first_call(self), run_of(request)
        ours, full = self._tried(once, given), self._tried(once, given.full_batch())
        n, batch = request.accum_steps, f"--batch-arg NAME={request.accum_steps * ours.rows} for run B, the full batch"
        for runs, what, more, fewer, help in (
            ("AB", "backward passes in a window", max(ours.passes), max(full.passes), "correct --accum-arg"),
            ("BA", "samples in a forward pass", full.rows, ours.rows, batch),
        ):
            if more != n * fewer:
                found = f"{more} {what} of run {runs[0]}, {fewer} of run {runs[1]}; {'; '.join(self.shown)}"
                raise GradproofError(SCRIPT, found, f"{n} times as many in run {runs[0]}", help)
        made = check_whole(once, subject, replace(request, micro_batch=ours.rows, tables=True))
        for reason, line in islice(self._unlike(), 1):
            made.results = [Result(one.obligation, Outcome.UNKNOWN, reason, line, HELP) for one in made.results]
        for one in made.results:
            one.reason = one.reason if one.applies else "no reported loss: what a script prints is not followed"
        made.notes += self.shown
        made.uncovered.append(f"windows after the first {request.windows} of each run, and a short last one")
        return made

    def _tried(self, once: Any, given: Run) -> ShortRun:
        """One run of the script with nothing around it."""
        ended, where = "fewer steps", NOWHERE
        seed(given.seed)
        try:
            once(given)
        except Exception as error:
            ended, where, self.runs[-1][1].rows = stated(error), raised_at(error), 0
        seen = self.runs.pop()[1]
        if not (seen.rows and seen.complete):
            found, at = f"{self.shown[given.accum_steps == 1]} ended with {ended}", str(where) * (where is not NOWHERE)
            expected = f"{given.windows} steps of a torch.optim optimizer, after forward passes of modules"
            raise GradproofError(SCRIPT, found, expected, "run it so by itself; --windows 1 needs one step", at)
        return seen

    def _unlike(self) -> Iterator[tuple[str, Location | None]]:
        """How two runs of one seed differ in what they began with, and where."""
        first: dict[int, ShortRun] = {}
        for number, short in (one for one in self.runs if one[1].complete):
            mine = first.setdefault(number, short)
            if short.weights != mine.weights:
                yield "the two runs began with other weights", None
            own, other = ([*chain.from_iterable(each.samples)] for each in (mine, short))
            pairs = zip(mine.samples, short.samples, strict=False) if own[: len(other)] != other[: len(own)] else ()
            for at, (own, other) in enumerate(pairs, 1):  # not in one order, as where a step comes too early
                if Counter(own) != Counter(other) and not mine.near(own, short, other):
                    apart = ((Counter(own) - Counter(other)) | (Counter(other) - Counter(own))).total()
                    yield f"the two runs saw other samples: {apart} of window {at} are in one alone", short.at.get(at)
