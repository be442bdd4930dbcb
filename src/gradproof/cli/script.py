"""A script as a function of a `Run`, for `gradproof check --script`: it runs by its own arguments in a child process.

Two short runs without the engine show what the arguments do. Then the script is judged as any function is. Each run
ends when its windows are complete. Where two saw other samples, or began with other weights, nothing is decided.
"""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stdout, suppress
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Outcome
from gradproof.shadow.locations import NOWHERE, USER, Location, owner, raised_at, stated, user_location
from gradproof.shadow.ops.schema import tensors_in
from gradproof.shadow.process.check import SCRIPT, Script, run
from gradproof.shadow.record.patches import params_of
from gradproof.shadow.record.run import Run, first_call, seed
from gradproof.shadow.request import Request
from gradproof.shadow.result import Result, Verification
from gradproof.shadow.verify.check import check_whole, run_of
from gradproof.shadow.whole.unseen import digest, replaced, steps

HELP = "give both runs the same; gradproof watch -- python SCRIPT decides by one run"


class Complete(BaseException):
    """The windows are complete, and the script begins another one."""


class Seen:
    """What one run of a script did, until each of its windows had a step.

    Of each window: `passes`, how many backward passes; `samples`, a digest of each row that its forward passes began
    with; `at`, the line of the first. `rows`: of the first forward pass. `weights`: digests of what the run began with.
    """

    def __init__(self, windows: int) -> None:
        self.windows, self.rows, self.waits = windows, 0, True
        self.passes, self.samples, self.at = [0], [list[str]()], dict[int, Location]()
        self.weights, self.steps = list[str](), Counter[int]()

    def digests(self, tensors: Sequence[torch.Tensor]) -> list[str]:
        """What tensors hold, unseen by an engine."""
        with torch._C.DisableTorchFunction(), torch.no_grad(), _disable_current_modes():
            return [digest(tensor) for tensor in tensors]

    def entered(self, module: torch.nn.Module, given: Any) -> None:
        """A forward pass: the first one that trains since the last backward pass takes a micro-batch."""
        if not (module.training and torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters())):
            return
        if max(self.steps.values(), default=0) >= self.windows:
            raise Complete
        tensors = [tensor for tensor in tensors_in(given) if tensor.dim()]
        if self.waits and tensors:
            with torch._C.DisableTorchFunction(), torch.no_grad(), _disable_current_modes():
                rows = zip(*(tensor.unbind() for tensor in tensors if len(tensor) == len(tensors[0])), strict=True)
            self.samples[-1] += [" ".join(self.digests(row)) for row in rows]
            self.waits, self.rows = False, self.rows or len(tensors[0])
            self.at.setdefault(len(self.samples), user_location())

    def before_step(self, optimizer: Any) -> None:
        """An optimizer is about to step; its step may run the forward pass itself."""
        if self.steps[id(optimizer)] >= self.windows:
            raise Complete
        self.weights += self.digests(params_of(optimizer)) if not self.steps[id(optimizer)] else []

    def after_step(self, optimizer: Any) -> None:
        """An optimizer has stepped: the windows are as many as the steps of the one that stepped most."""
        self.steps[id(optimizer)] += 1
        if max(self.steps.values()) == len(self.passes) < self.windows:
            self.passes.append(0)
            self.samples.append([])

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Forward passes, backward passes and steps are noted while this runs."""
        name, inside = "_engine_run_backward", [0]
        call, backward = torch.nn.Module.__call__, torch.autograd.graph._engine_run_backward

        def called(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not inside[0]:
                self.entered(module, (args, kwargs))
            inside[0] += 1
            try:
                return call(module, *args, **kwargs)
            finally:
                inside[0] -= 1

        def ran(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("accumulate_grad") and torch._C._current_graph_task_id() == -1:
                self.passes[-1], self.waits = self.passes[-1] + 1, True
            return backward(*args, **kwargs)

        with (
            torch.compiler.set_stance("force_eager"),
            replaced(torch.nn.Module, "__call__", called),
            replaced(torch.autograd.graph, name, ran),
            replaced(torch.autograd, name, ran),
            steps(self.before_step, self.after_step),
        ):
            every: Any = torch.optim.optimizer._global_optimizer_pre_hooks
            every.move_to_end(next(reversed(every)), last=False)  # this one before an engine's
            yield


class Twice:
    """A script as a function of a Run: by micro-batches with the arguments `ours`, by the full batch with `full`."""

    def __init__(self, name: str, ours: Sequence[str], full: Sequence[str]) -> None:
        self.name, self.arguments, self.runs = name, (tuple(ours), tuple(full)), list[tuple[int, Seen]]()
        self.shown = [f"run {at}: {shlex.join(['python', name, *of])}" for at, of in (("A", ours), ("B", full))]

    def __call__(self, given: Run) -> None:
        """Run the script until the windows are complete. What it prints is no loss that it reports."""
        seen, modules = Seen(given.windows), {*sys.modules}
        self.runs.append((given.seed, seen))
        place, words, path = chdir("."), replaced(sys, "argv", []), replaced(sys, "path", [*sys.path])
        try:
            with suppress(Complete), place, words, path, redirect_stdout(self.out), seen.watching():
                run(Script((), self.name, False, self.arguments[given.accum_steps == 1]))
        except SystemExit as ended:
            if ended.code not in (None, 0):
                raise RuntimeError(f"the script ended with exit code {ended.code}") from ended
        finally:
            for name in {*sys.modules} - modules:  # the user's own begin anew
                if owner(getattr(sys.modules[name], "__file__", None) or "<") == USER:
                    del sys.modules[name]

    def verified_as_script(self, request: Request, subject: str) -> Verification:
        """The verification. Raises GradproofError GP416 where the script or its arguments do not do as they have to."""
        given = run_of(request)
        with first_call(self) as once:
            self.out = sys.stdout
            ours, full = (self._tried(once, one) for one in (given, given.full_batch()))
            self._expect(request.accum_steps, ours, full)
            made = check_whole(once, subject, replace(request, micro_batch=ours.rows, tables=True))
        reason, line = self._unlike()
        for at, one in enumerate(made.results):
            if reason:
                made.results[at] = Result(one.obligation, Outcome.UNKNOWN, reason, line, HELP)
            elif not one.applies:
                one.reason = "no reported loss: what a script prints is not followed"
        made.notes += self.shown
        made.uncovered.append(f"windows after the first {request.windows} of each run, and a short last one")
        return made

    def _tried(self, once: Any, given: Run) -> Seen:
        """One run of the script with nothing around it."""
        ended, where = "", NOWHERE
        seed(given.seed)
        try:
            once(given)
        except Exception as error:
            ended, where = stated(error), raised_at(error)
        seen = self.runs.pop()[-1]
        if ended or not seen.rows or max(seen.steps.values(), default=0) < given.windows:
            found = f"{self.shown[given.accum_steps == 1]} ended with {ended or 'fewer optimizer steps'}"
            expected = f"{given.windows} steps of a torch.optim optimizer, after forward passes of modules"
            at = "" if where is NOWHERE else str(where)
            raise GradproofError(SCRIPT, found, expected, "run it so by itself; --windows 1 needs one step", at)
        return seen

    def _expect(self, n: int, ours: Seen, full: Seen) -> None:
        """A window of run A has N times the backward passes of run B, of an N-th of its samples."""
        passes, rows = (max(ours.passes), max(full.passes)), (ours.rows, full.rows)
        batch = f"give run B the full batch: --batch-arg NAME={n * ours.rows}, by the script's name of its batch size"
        for right, what, (mine, other), more, help in (
            (passes[0] == n * passes[1], "backward passes in a window", passes, "A", "correct --accum-arg"),
            (n * rows[0] == rows[1], "samples in a forward pass", rows, "B", batch),
        ):
            if not right:
                found = f"{mine} {what} of {self.shown[0]}; {other} of {self.shown[1]}"
                raise GradproofError(SCRIPT, found, f"{n} times as many in run {more}", help)

    def _unlike(self) -> tuple[str, Location | None]:
        """How two runs of one seed differ in what they began with, and where; nothing where they do not."""
        first: dict[int, Seen] = {}
        for number, seen in self.runs:
            mine = first.setdefault(number, seen)
            if seen.weights != mine.weights:
                return "the two runs began with other weights", None
            own, other = ([*chain.from_iterable(each.samples)] for each in (mine, seen))
            pairs = zip(mine.samples, seen.samples, strict=False) if own[: len(other)] != other[: len(own)] else ()
            for at, (own, other) in enumerate(pairs, 1):  # not in one order, as where a step comes too early
                if many := (Counter(other) - Counter(own)).total():
                    return f"the two runs saw other samples: {many} of {len(other)} in window {at}", seen.at.get(at)
        return "", None
