"""A script as a function of a `Run`, for `gradproof check --script`: it runs by its own arguments in a child process.

Two short runs without the engine show what the arguments do. Then the script is judged as any function is: it runs by
micro-batches and by the full batch, each time until the windows are complete. Where two runs saw other samples, or
began with other weights, nothing is decided.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import torch
from torch.optim import optimizer
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Outcome
from gradproof.shadow.locations import NOWHERE, USER, Location, initialising, owner, raised_at, stated, user_location
from gradproof.shadow.ops.schema import tensors_in
from gradproof.shadow.process.check import SCRIPT as CODE, Script, run
from gradproof.shadow.record.patches import params_of
from gradproof.shadow.record.run import Run, first_call, seed
from gradproof.shadow.request import Request
from gradproof.shadow.result import Result, Verification
from gradproof.shadow.verify.check import check_whole, run_of
from gradproof.shadow.whole.unseen import digest, replaced, steps

HELP = "give each run the same samples in one order; gradproof watch -- python SCRIPT decides by one run"


class Complete(BaseException):
    """The windows are complete, and the script begins another one."""


@dataclass
class Seen:
    """What a run of the script did until `windows` windows were complete.

    `passes`: backward passes of each window. `samples`: of each window, the digests of the rows that its forward passes
    began with. `rows`: how many a forward pass had. `weights`: the digests of those that each optimizer began with.
    `lengths`: of the tensors that were made before the first forward pass. `at`: the line of each window's first one.
    """

    windows: int
    passes: list[int] = field(default_factory=lambda: [0])
    samples: list[list[str]] = field(default_factory=lambda: [[]])
    rows: list[int] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    lengths: set[int] = field(default_factory=set)
    at: list[Location] = field(default_factory=list)
    steps: Counter[int] = field(default_factory=Counter)
    waits: bool = True

    @property
    def complete(self) -> bool:
        """Whether all windows had their step."""
        return max(self.steps.values(), default=0) >= self.windows

    def entered(self, module: torch.nn.Module, given: Any) -> None:
        """A forward pass: the first one that trains since the last backward pass takes a micro-batch."""
        trains = module.training and torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters())
        if trains and self.complete:
            raise Complete
        tensors = [tensor for tensor in tensors_in(given) if tensor.dim()]
        if not (trains and self.waits and tensors):
            return
        self.waits, rows = False, len(tensors[0])
        own = [tensor for tensor in tensors if len(tensor) == rows]
        with aside():
            self.samples[-1] += [" ".join(digest(tensor[at]) for tensor in own) for at in range(rows)]
        self.rows.append(rows)
        self.at += [user_location()] * (len(self.samples) - len(self.at))

    def stops(self, optimizer: Any, *_: Any) -> None:
        """An optimizer that had its steps is asked for another one, as where a step runs the forward pass itself."""
        if self.steps[id(optimizer)] >= self.windows:
            raise Complete

    def before_step(self, optimizer: Any) -> None:
        """An optimizer is about to step."""
        if not self.steps[id(optimizer)]:
            with aside():
                self.weights += [digest(parameter) for parameter in params_of(optimizer)]

    def after_step(self, optimizer: Any) -> None:
        """An optimizer has stepped: the windows are as many as the steps of the one that stepped most."""
        self.steps[id(optimizer)] += 1
        if max(self.steps.values()) == len(self.passes) < self.windows:
            self.passes.append(0)
            self.samples.append([])


class Lengths(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes how long the tensors are that a script makes before its first forward pass: tables of samples are."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self.seen.rows and not initialising():
            self.seen.lengths |= {len(tensor) for tensor in tensors_in(out) if tensor.dim()}
        return out


@contextmanager
def aside() -> Iterator[None]:
    """What gradproof computes by itself."""
    with torch._C.DisableTorchFunction(), torch.no_grad(), _disable_current_modes():
        yield


@contextmanager
def watched(seen: Seen) -> Iterator[None]:
    """Forward passes, backward passes and steps are noted while this runs."""
    call, backward, depth = torch.nn.Module.__call__, torch.autograd.graph._engine_run_backward, [0]

    def called(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not depth[0]:
            seen.entered(module, (args, kwargs))
        depth[0] += 1
        try:
            return call(module, *args, **kwargs)
        finally:
            depth[0] -= 1

    def ran(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("accumulate_grad") and torch._C._current_graph_task_id() == -1:
            seen.passes[-1], seen.waits = seen.passes[-1] + 1, True
        return backward(*args, **kwargs)

    name, first = "_engine_run_backward", optimizer.register_optimizer_step_pre_hook(seen.stops)
    hooks: Any = optimizer._global_optimizer_pre_hooks
    hooks.move_to_end(first.id, last=False)  # before the engine sees a step
    with (
        first,
        torch.compiler.set_stance("force_eager"),
        steps(seen.before_step, seen.after_step),
        replaced(torch.nn.Module, "__call__", called),
        replaced(torch.autograd.graph, name, ran),
        replaced(torch.autograd, name, ran),
    ):
        yield


class Twice:
    """A script as a function of a Run: by N micro-batches with the arguments `ours`, by the full batch with `full`."""

    def __init__(self, name: str, ours: Sequence[str], full: Sequence[str]) -> None:
        self.scripts = (Script((), name, False, tuple(ours)), Script((), name, False, tuple(full)))
        self.shown = [f"run {at}: {shlex.join(['python', name, *of])}" for at, of in (("A", ours), ("B", full))]
        self.runs: list[tuple[int, Seen]] = []
        self.out = sys.stdout

    def __call__(self, given: Run) -> None:
        """Run the script until the windows are complete."""
        at = given.accum_steps == 1
        seen = Seen(given.windows)
        self.runs.append((given.seed, seen))
        before, modules, folder, words = [*sys.path], {*sys.modules}, os.getcwd(), sys.argv
        try:
            with suppress(Complete), watched(seen), Lengths(seen), redirect_stdout(self.out):
                run(self.scripts[at])
        except SystemExit as ended:
            if ended.code not in (None, 0):
                raise RuntimeError(f"the script ended with exit code {ended.code}") from ended
        finally:
            os.chdir(folder)
            sys.path[:], sys.argv = before, words
            for name in {*sys.modules} - modules:
                if owner(getattr(sys.modules[name], "__file__", None) or "<") == USER:
                    del sys.modules[name]

    def verified_as_script(self, request: Request, subject: str) -> Verification:
        """The verification. Raises GradproofError GP416 where the arguments do not do what they have to."""
        with first_call(self) as once:
            self.out = sys.stdout  # what a script prints is no reported loss
            ours, full = (self._tried(once, run) for run in (run_of(request), run_of(request).full_batch()))
            self._expect(request, ours, full)
            tables = tuple(sorted(length for length in ours.lengths if length > full.rows[0]))
            made = check_whole(once, subject, replace(request, micro_batch=ours.rows[0], tables=tables))
        reason, line = self._unlike()
        if reason:
            made.results = [Result(r.obligation, Outcome.UNKNOWN, reason, line, HELP) for r in made.results]
        for one in made.results:
            one.reason = one.reason if one.applies else "no reported loss: what a script prints is not followed"
        made.notes += self.shown
        made.uncovered.append(f"windows after the first {request.windows} of each run, and a short last one")
        return made

    def _tried(self, once: Any, given: Run) -> Seen:
        """One run of the script with nothing around it."""
        seed(given.seed)
        try:
            once(given)
        except Exception as error:
            line = raised_at(error)
            where = str(line) if line is not NOWHERE else ""
            found = f"{self.shown[given.accum_steps == 1]} ended with {stated(error)}"
            raise GradproofError(CODE, found, "a script that trains with both", "run it so by itself", where) from error
        return self.runs.pop()[-1]

    def _expect(self, request: Request, ours: Seen, full: Seen) -> None:
        """The arguments do what they have to."""
        n, windows = request.accum_steps, request.windows
        for seen, shown in ((ours, self.shown[0]), (full, self.shown[1])):
            if not seen.complete or not seen.rows:
                steps = f"{max(seen.steps.values(), default=0)} optimizer steps"
                found = steps if not seen.complete else "no forward pass of a module with a tensor"
                expected = f"{windows} steps of a torch.optim optimizer, after forward passes of modules"
                raise GradproofError(CODE, f"{found} in {shown}", expected, "give it more data, or --windows 1")
        if max(ours.passes) != n * max(full.passes):
            found = f"{max(ours.passes)} backward passes in a window of {self.shown[0]}, {max(full.passes)} of run B"
            help = "correct the name in --accum-arg: the script ignores it, or does not step once a window"
            raise GradproofError(CODE, found, f"{n} in run A for each one in run B", help)
        if full.rows[0] != n * ours.rows[0]:
            found = f"{full.rows[0]} samples in a forward pass of {self.shown[1]}, {ours.rows[0]} of run A"
            whole = n * ours.rows[0]
            help = f"name the script's argument for it: --batch-arg batch_size={whole}"
            raise GradproofError(CODE, found, f"{whole} samples in run B: a window of run A has {n} times", help)

    def _unlike(self) -> tuple[str, Location | None]:
        """How two runs of one seed differ before anything is trained, and where; nothing where they do not."""
        first: dict[int, Seen] = {}
        for number, seen in self.runs:
            mine = first.setdefault(number, seen)
            if seen.weights != mine.weights:
                return "the two runs began with other weights", None
            own, other = ([*chain.from_iterable(each.samples)] for each in (mine, seen))
            if own[: len(other)] == other[: len(own)]:
                continue  # one order, also where a step comes too early
            for at, (own, other) in enumerate(zip(mine.samples, seen.samples, strict=True)):
                if many := (Counter(other) - Counter(own)).total():
                    return f"the two runs saw other samples: {many} of {len(other)} in window {at + 1}", seen.at[at]
        return "", None
