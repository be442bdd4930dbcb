"""One verification of a user's file in a process of its own: `python -m gradproof.shadow.process.check`.

The job is JSON on the first line of stdin: file, function, options (fields of `Request`), result, package. The answer
goes to the file `result`, which appears complete or not at all: `verification` (`result.to_json`), or `mistake`, the
fields of a GradproofError. The end of stdin means that the parent is gone: the process group ends. What the user's code
prints goes where the parent sent stdout and stderr.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradproof.core.errors import GradproofError
from gradproof.core.files import write_json
from gradproof.core.outcome import Outcome
from gradproof.core.processes import PREFIX, bury, end_group, exceeded, job_of_stdin, killed_by, time_limit
from gradproof.core.workspace import PACKAGE
from gradproof.laws import CODE as LAW
from gradproof.shadow.locations import NOWHERE
from gradproof.shadow.request import Request, complete, function_of, load, own_fault, raised_at, stated, undecided
from gradproof.shadow.result import SEVERITY, Result, Verification, from_json, plain, to_json

Answer = dict[str, Any]
NUMBERS = "GP406"
"""A number or word that does not fit, found out only when the step had been recorded."""
MISTAKE = ("code", "found", "expected", "help", "where")
"""Fields of a user's mistake, which the parent raises again."""


def perform(job: Mapping[str, Any]) -> Answer:
    """Import the file, verify its function. Whatever goes wrong is in the answer."""
    path, name = Path(job["file"]), str(job["function"])
    subject, options, loaded = str(job["subject"]), dict(job["options"]), False
    try:
        if Path(job["package"]) != PACKAGE:
            return _failed(subject, options, f"the child imported another gradproof, from {PACKAGE}")
        request = Request(**options)
        function = function_of(load(path), name, str(job.get("shown", path)))
        loaded = True
        found = verified(function, request, subject)
        if not isinstance(found, Verification):
            return _failed(subject, options, f"the engine returned a {type(found).__name__}, not a Verification")
        found.subject = subject
        return {"verification": to_json(complete(found, request.ranks))}
    except BaseException as e:
        if isinstance(e, GradproofError) and (not loaded or e.code in (NUMBERS, LAW)):
            return {"mistake": {name: getattr(e, name) for name in MISTAKE}}
        return ended(e, subject, options, path)


def ended(error: BaseException, subject: str, options: Mapping[str, Any], path: Path) -> Answer:
    """An ERROR that says what the user's code, or gradproof, ended with. The traceback goes to stderr."""
    if isinstance(error, MemoryError):
        return _failed(subject, options, "the verification ran out of memory")
    if isinstance(error, GradproofError):
        return _failed(subject, options, f"{error.code}: {error.found}; expected {error.expected}", error.help)
    traceback.print_exception(error)
    if own_fault(error):
        return _failed(subject, options, f"gradproof itself raised {type(error).__name__}: {error}", "please report it")
    help, location = "run the function by itself first", raised_at(error, path)
    return {"verification": to_json(undecided(subject, options, Outcome.ERROR, stated(error), location, help))}


def _failed(subject: str, options: Mapping[str, Any], reason: str, help: str = "") -> Answer:
    return {"verification": to_json(undecided(subject, options, Outcome.ERROR, reason, help=help))}


def main() -> None:
    """Read the job, do it, write the answer, and end without waiting for what the user's code left running.

    A forked child of the user's code that comes back here ends without an answer.
    """
    own = os.getpid()
    job = job_of_stdin()
    answer = perform(job)
    if os.getpid() != own:
        os._exit(1)
    sys.stdout.flush()
    sys.stderr.flush()
    write_json(Path(job["result"]), answer)
    os._exit(0)


# -- The parent's side: start the child, limit its time, leave nothing of it alive, and read what it answered.


def command() -> list[str]:
    """How the child is started: with no folder of the caller's on its import path but those of PYTHONPATH."""
    return [sys.executable, "-P", "-m", "gradproof.shadow.process.check"]


@dataclass(frozen=True, slots=True)
class Target:
    """A function of a file: the absolute path, the name, and the path as the user wrote it."""

    path: Path
    function: str
    shown: str

    @property
    def subject(self) -> str:
        """FILE:FUNCTION as the user wrote it."""
        return f"{self.shown}:{self.function}"


def target_of(text: str) -> Target:
    """FILE.py:FUNCTION taken apart. Raises GradproofError GP402 for another form, GP403 when it is no Python file."""
    shown, colon, function = text.rpartition(":")
    if not colon or not shown or not all(part.isidentifier() for part in function.split(".")):
        found = f"{text!r}" + ("" if colon else ", which names no function")
        raise GradproofError("GP402", found, "FILE.py:FUNCTION", "write for example train.py:step")
    path = Path(shown)
    help = "give the path of the file that has the training function"
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no such file"
        raise GradproofError("GP403", found, "a Python file", help, shown)
    if path.suffix != ".py":
        raise GradproofError("GP403", f"a file that ends in {path.suffix or 'nothing'}", "a .py file", help, shown)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(path.read_bytes(), shown, "exec", dont_inherit=True)
    except OSError as e:
        raise GradproofError("GP403", f"a file that cannot be read: {e.strerror}", "a Python file", help, shown) from e
    except (SyntaxError, ValueError) as e:
        line = getattr(e, "lineno", None)
        where = f"{shown}:{line}" if line else shown
        said = getattr(e, "msg", None) or str(e)
        raise GradproofError("GP403", f"no Python: {said}", "a Python file", "correct the file", where) from e
    return Target(path.resolve(), function, shown)


def verify(target: Target, request: Request, limit: float) -> Verification:
    """The verification of a function within `limit` seconds of CPU time. Raises GradproofError for a user's mistake."""
    config, limit = plain(request.options()), time_limit(limit)
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as folder:
        result = Path(folder) / "result.json"
        job = {
            "file": str(target.path), "shown": target.shown, "function": target.function, "subject": target.subject,
            "options": config, "result": str(result), "package": str(PACKAGE), "lifeline": True,
        }  # fmt: skip
        outcome, reason = _attend(job, folder, limit)
        if outcome is None:
            try:
                return answered(result, target.subject)
            except ValueError as e:
                outcome, reason = Outcome.ERROR, f"the verification left no answer: {e}"
    help = "raise --time-limit, or check a smaller model" if outcome is Outcome.TIMEOUT else ""
    return undecided(target.subject, config, outcome, reason, help=help)


def _attend(job: Mapping[str, Any], scratch: str, limit: float) -> tuple[Outcome | None, str]:
    """Start, wait, kill what is left. The outcome is None when the child ended well.

    The environment is the user's own; TMPDIR marks its children, which end with it.
    """
    environment = {"PYTHONHASHSEED": "0", **os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": scratch}
    try:
        process = subprocess.Popen(
            command(), stdin=subprocess.PIPE, stdout=2, stderr=2, env=environment, start_new_session=True
        )
    except OSError as e:
        return Outcome.ERROR, f"the verification could not be started: {e}"
    assert process.stdin is not None
    try:
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
        if late := exceeded(process, limit):
            end_group(process)
            return Outcome.TIMEOUT, f"{late}; the process was killed"
    finally:
        bury(process, scratch)
        with suppress(OSError):
            process.stdin.close()
    code = process.returncode
    how = f"ended with exit code {code} and left no answer" if code > 0 else f"was {killed_by(code)}"
    return (None, "") if code == 0 else (Outcome.ERROR, f"the process {how}")


def answered(result: Path, subject: str) -> Verification:
    """What a child wrote. Raises GradproofError for a user's mistake, ValueError when it is no answer to this job."""
    try:
        data = json.loads(result.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise ValueError("the process ended early" if isinstance(e, FileNotFoundError) else str(e)) from e
    if not isinstance(data, dict) or set(data) not in ({"verification"}, {"mistake"}):
        raise ValueError("it is neither a verification nor a mistake")
    if "mistake" in data:
        fields = data["mistake"]
        if not isinstance(fields, dict) or not all(isinstance(fields.get(name), str) for name in MISTAKE):
            raise ValueError("it is no mistake of the known shape")
        raise GradproofError(*(fields[name] for name in MISTAKE))
    found = from_json(data["verification"])
    if found.subject != subject:
        raise ValueError(f"it is about {found.subject!r}")
    return found


# -- One training function, verified; with rounding, one recording of it is bounded as well.


def verified(function: Callable[[Any], Any], request: Request, subject: str = "") -> Verification:
    """Verify a training function, which takes a `Run`. It is called several times in this process.

    Source: GA-EQ-001 to GA-INV-005 of the contract gradient-accumulation-kernel-v1.
    """
    from gradproof.shadow.verify.check import check_whole

    subject = subject or getattr(function, "__qualname__", "function")
    if request.ranks > 1:
        return _on_ranks(function, request, subject)
    made = check_whole(function, subject, request)
    equal = [result for result in made.results if result.obligation == "GA-EQ-001"]
    if any(one.outcome is Outcome.OUTSIDE and one.location in (None, NOWHERE) for one in equal) and not request.fake:
        _by_one_run(function, request, made)
    if request.rounding:
        _bounded(function, request, made)
    return made


def _by_one_run(function: Callable[[Any], Any], request: Request, made: Verification) -> None:
    """What one call refutes of a function that does the same by micro-batches and by the full batch."""
    from gradproof.shadow.process.watch import ScriptWatch
    from gradproof.shadow.record.run import seed
    from gradproof.shadow.verify.check import run_of

    seed(request.seed)
    with redirect_stdout(io.StringIO()), ScriptWatch() as watch:
        function(run_of(request))
    refuted = {r.obligation: r for r in watch.verification().results if r.outcome is Outcome.REFUTED}
    made.results = [refuted.get(result.obligation, result) for result in made.results]


def _bounded(function: Callable[[Any], Any], request: Request, made: Verification) -> None:
    """Bound the rounding error of one recording; a bound that does not hold is an error of gradproof's own."""
    from gradproof.shadow.bounds.follow import report
    from gradproof.shadow.bounds.rules import ASSUMED
    from gradproof.shadow.verify.check import run_of

    began = time.perf_counter()
    made.rounding, lost = report(function, run_of(request), request.ranges)
    if lost:
        made.notes.append(f"no rounding bound: {lost}")
        return
    made.assumptions += ASSUMED
    made.assumptions.append(f"rounding is bounded for {', '.join(request.ranges) or 'the recorded numbers'}")
    for row in made.rounding:
        if row.get("within") is False:
            words = f"the rounding bound of {row['param']} does not hold: {row['measured']} is above {row['bound']}"
            broken = Result("GA-EQ-001", Outcome.ERROR, words, None, "please report this", "rounding")
            made.results = [broken if r.obligation == broken.obligation else r for r in made.results]
            break
    made.seconds["rounding"] = round(time.perf_counter() - began, 3)


MODULE = "gradproof.shadow.process.check"
"""This module by its name, which is `__main__` in a child."""
RANKS_WITHIN = 600.0
"""Seconds for all runs of all ranks."""


def _on_ranks(function: Callable[[Any], Any], request: Request, subject: str) -> Verification:
    """Every rank verifies the function, together with the others: the worst result of each obligation, and its rank."""
    from gradproof.shadow.record.ranks import each_rank

    step = inspect.unwrap(function)
    file, name = inspect.getsourcefile(step) or "", getattr(step, "__name__", "")
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        jobs = [(file, name, request, subject, folder, rank) for rank in range(request.ranks)]
        every: list[Verification] = each_rank(f"{MODULE}:verified_rank", jobs, RANKS_WITHIN)
    made = every[0]
    made.results = worst_of([each.results for each in every])
    made.seconds["all"] = max(other.seconds["all"] for other in every)
    return made


def worst_of(every: Sequence[Sequence[Result]]) -> list[Result]:
    """The worst result of each obligation over the ranks; the reason names the rank where it is not the first."""
    found: dict[str, Result] = {}
    for rank, results in enumerate(every):
        for result in results:
            known = found.get(result.obligation)
            if known is None or SEVERITY.index(result.outcome) < SEVERITY.index(known.outcome):
                found[result.obligation] = replace(result, reason=f"rank {rank}: {result.reason}") if rank else result
    return list(found.values())


def verified_rank(job: tuple[str, str, Request, str, str, int]) -> Verification:
    """What one rank finds. `job`: file, function, request, subject, the folder of messages, and its number."""
    from gradproof.shadow.verify.check import check_whole
    from gradproof.shadow.whole.group import Group

    file, name, request, subject, folder, rank = job
    function = function_of(load(Path(file)), name, file)
    return check_whole(function, subject, request, Group(rank, request.ranks, Path(folder)))


if __name__ == "__main__":
    main()
