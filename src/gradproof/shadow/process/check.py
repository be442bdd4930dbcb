"""A user's function, verified, or a user's script, watched, in a process of its own.

`python -m gradproof.shadow.process.check` with a job, which is JSON: on the first line of stdin for a function (file,
function, options of a `Request`, result, package), in a file for a script, which has stdin to itself. The answer goes
to the file `result`, which appears complete or not at all: `verification` (`result.to_json`), or `mistake`, the fields
of a GradproofError. Where stdin has the job, its end means that the parent is gone: the process group ends.
What the user's function prints goes where the parent sent stdout and stderr.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from getopt import GetoptError, getopt
from pathlib import Path
from threading import Timer
from typing import Any

from gradproof.core import putback
from gradproof.core.errors import GradproofError
from gradproof.core.files import write_json
from gradproof.core.outcome import Outcome
from gradproof.core.processes import PREFIX, bury, end_group, exceeded, job_of_stdin, killed_by, time_limit
from gradproof.core.workspace import PACKAGE
from gradproof.laws import CODE as LAW
from gradproof.shadow.locations import NOWHERE, of_user, own_fault, raised_at, stated, users_warnings
from gradproof.shadow.request import Request, chosen, complete, function_of, load, refused, undecided
from gradproof.shadow.result import SEVERITY, Result, Verification, from_json, plain, to_json

Answer = dict[str, Any]
NUMBERS, SCRIPT = "GP406", "GP416"
"""A number or word that does not fit, and a script of which two runs do not: found out only when the code had run."""


@users_warnings()
def perform(job: Mapping[str, Any]) -> Answer:
    """Import the file, verify its function. Whatever goes wrong is in the answer."""
    path, subject, options, loaded = Path(job["file"]), str(job["subject"]), dict(job["options"]), False
    try:
        if Path(job["package"]) != PACKAGE:
            raise ImportError(f"the child imported another gradproof, from {PACKAGE}")
        request = Request(**options)
        function = function_of(load(path), job["function"], job["shown"])
        loaded, own = True, getattr(function, "verified_as_script", None)
        made = own(request, subject) if own is not None else verified(function, request, subject)
        return answer(made, subject, request.ranks)
    except BaseException as e:
        if isinstance(e, GradproofError) and (not loaded or e.code in (NUMBERS, LAW, SCRIPT)):
            return {"mistake": vars(e)}  # which the parent raises again
        return ended(e, subject, options)


def answer(found: Any, subject: str, ranks: int) -> Answer:
    """What an engine found. Raises TypeError for what is no verification, ValueError where it is no plain data."""
    if not isinstance(found, Verification):
        raise TypeError(f"the engine returned a {type(found).__name__}, not a Verification")
    found.subject = subject
    return {"verification": to_json(complete(found, ranks))}


def ended(error: BaseException, subject: str, options: Mapping[str, Any]) -> Answer:
    """An ERROR that says what the user's code, or gradproof, ended with. The traceback goes to stderr."""
    reason, help, location = stated(error), "please report it", raised_at(error)
    if isinstance(error, MemoryError):
        reason, help = "the verification ran out of memory", ""
    elif isinstance(error, GradproofError):
        reason, help = f"{error.code}: {error.found}; expected {error.expected}", error.help
    else:
        traceback.print_exception(of_user(error))
        if not own_fault(error):
            reason, help = f"the code ended with {reason}", "run the function by itself first"
    return {"verification": to_json(undecided(subject, options, Outcome.ERROR, reason, location, help))}


def main() -> None:
    """Read the job, do it, write the answer, and end without waiting for what the user's code left running.

    A forked child of the user's code that comes back here ends without an answer.
    """
    if len(sys.argv) > 1:
        run_watched(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
        return
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


def command(*job: str, flags: Sequence[str] = ()) -> list[str]:
    """How a child is started: with no folder of the caller's on its import path but those of PYTHONPATH."""
    return [sys.executable, *flags, "-P", "-m", "gradproof.shadow.process.check", *job]


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
    kind = f"a file that ends in {path.suffix or 'nothing'}" if path.suffix != ".py" else ""
    found = kind if path.is_file() else "a folder" if path.is_dir() else "no such file"
    if found:
        help = "give the path of the file that has the training function"
        raise GradproofError("GP403", found, "a .py file", help, shown)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(path.read_bytes(), shown, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError) as e:
        said, where = (e.msg, f"{shown}:{e.lineno}") if isinstance(e, SyntaxError) and e.lineno else (e, shown)
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
        try:
            _attend(job, folder, limit)
            return answered(result, target.subject)
        except TimeoutError as e:
            outcome, reason, help = Outcome.TIMEOUT, str(e), "raise --time-limit, or check a smaller model"
        except (OSError, ValueError) as e:
            outcome, reason, help = Outcome.ERROR, f"the verification left no answer: {e}", ""
    return undecided(target.subject, config, outcome, reason, help=help)


def _attend(job: Mapping[str, Any], scratch: str, limit: float) -> None:
    """Start, wait, kill what is left. Raises TimeoutError, or OSError or ValueError for another end.

    The environment is the user's own; TMPDIR marks its children, which end with it.
    """
    environment = {"PYTHONHASHSEED": "0", **os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": scratch}
    process = subprocess.Popen(
        command(), stdin=subprocess.PIPE, stdout=2, stderr=2, env=environment, start_new_session=True
    )
    assert process.stdin is not None
    try:
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
        if late := exceeded(process, limit):
            end_group(process)
            raise TimeoutError(f"{late}; the process was killed")
    finally:
        bury(process, scratch)
        with suppress(OSError):
            process.stdin.close()
    if code := process.returncode:
        raise ValueError(f"the process ended with exit code {code}" if code > 0 else f"it was {killed_by(code)}")


def answered(result: Path, subject: str) -> Verification:
    """What a child wrote. Raises GradproofError for a user's mistake, OSError or ValueError for no answer."""
    if not result.is_file():
        raise ValueError("the process ended early")
    match json.loads(result.read_text(encoding="utf-8")):
        case {"mistake": {"code": code, "found": found, "expected": expected, "help": help, "where": where}}:
            raise GradproofError(code, found, expected, help, where)
        case {"verification": verification}:
            made = from_json(verification)
        case _:
            raise ValueError("it is neither a verification nor a mistake")
    if made.subject != subject:
        raise ValueError(f"it is about {made.subject!r}")
    return made


# -- One training function, verified; with rounding, one recording of it is bounded as well.


@users_warnings()
def verified(function: Callable[[Any], Any], request: Request, subject: str = "") -> Verification:
    """Verify a training function, which takes a `Run`. It is called several times in this process.

    Source: GA-EQ-001 to GA-INV-005 of the contract gradient-accumulation-kernel-v1.
    """
    from gradproof.shadow.judge.two_runs import check_whole
    from gradproof.shadow.tape.run import first_call

    subject = subject or getattr(function, "__qualname__", "function")
    if request.ranks > 1:
        return _on_ranks(function, request, subject)
    function = first_call(function)
    made = check_whole(function, subject, request)
    if request.accum_steps > 1 and not request.tail:
        made.uncovered.append(f"a short last window: --tail {request.accum_steps // 2} records one")
    equal = [result for result in made.results if result.obligation == "GA-EQ-001"]
    if any(one.outcome is Outcome.OUTSIDE and one.location in (None, NOWHERE) for one in equal) and not request.fake:
        _by_one_run(function, request, made)
    if request.rounding:
        _bounded(function, request, made)
    return made


def _by_one_run(function: Callable[[Any], Any], request: Request, made: Verification) -> None:
    """What one call refutes of a function that does the same by micro-batches and by the full batch."""
    from gradproof.shadow.judge.two_runs import run_of
    from gradproof.shadow.process.watch import ScriptWatch
    from gradproof.shadow.tape.run import seed

    seed(request.seed)
    with ScriptWatch() as watch:
        function(run_of(request))
    found = watch.verification()
    if found.config.get("accum_steps", 1) == 1:  # a step after each pass: longer windows were asked for
        watch.accum_steps = request.accum_steps
        found = watch.verification()
    refuted = {r.obligation: r for r in found.results if r.outcome is Outcome.REFUTED}
    made.results = [refuted.get(result.obligation, result) for result in made.results]


def _bounded(function: Callable[[Any], Any], request: Request, made: Verification) -> None:
    """Bound the rounding error of one recording; a bound that does not hold is an error of gradproof's own."""
    from gradproof.shadow.bounds.follow import report
    from gradproof.shadow.bounds.rules import ASSUMED
    from gradproof.shadow.judge.two_runs import run_of

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


VERIFIED_RANK = "gradproof.shadow.process.check:verified_rank"  # by its name: the module is `__main__` in a child
RANKS_WITHIN = 600.0
"""Seconds for all runs of all ranks."""


def _on_ranks(function: Callable[[Any], Any], request: Request, subject: str) -> Verification:
    """Every rank verifies the function, together with the others: the worst result of each obligation, and its rank."""
    from gradproof.shadow.tape.ranks import each_rank

    step = inspect.unwrap(function)
    file, name = inspect.getsourcefile(step) or "", getattr(step, "__name__", "")
    if not Path(file).is_file():
        raise refused("ranks", request.ranks, "1, or a function in a file: no other process can import a notebook's")
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        jobs = [(file, name, request, subject, folder, rank) for rank in range(request.ranks)]
        every: list[Verification] = each_rank(VERIFIED_RANK, jobs, RANKS_WITHIN)
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
    from gradproof.shadow.follow.group import Group
    from gradproof.shadow.judge.two_runs import check_whole
    from gradproof.shadow.tape.run import first_call

    file, name, request, subject, folder, rank = job
    function = function_of(load(Path(file)), name, file)
    function = first_call(function, heard=rank == 0)
    return check_whole(function, subject, request, Group(rank, request.ranks, Path(folder)))


# -- A whole script, watched: a command line of Python taken apart, and run as Python would have run it.
PYTHON = re.compile(r"python(\d+(\.\d+)?)?t?(\.exe)?")
FLAGS = "uBEIsSOqvbdxiW:X:"
"""Of Python, in the form of getopt."""
LAUNCHED = "name the script itself; a launcher has to start gradproof: torchrun ... -m gradproof watch -- train.py ..."
EXPECTED = "python FILE.py ARGS, python -m MODULE ARGS, or FILE.py ARGS"


@dataclass(frozen=True, slots=True)
class Script:
    """What to run: Python's own flags, a file or a module, and its arguments."""

    flags: tuple[str, ...]
    name: str
    module: bool
    arguments: tuple[str, ...]

    @property
    def shown(self) -> str:
        """The script as it is named in reports."""
        return f"-m {self.name}" if self.module else self.name


def script_of(words: Sequence[str], executable: str = sys.executable) -> Script:
    """The script of a command line. Raises GradproofError GP408 for any other, or another interpreter."""
    rest, flags = list(words), []
    if not rest:
        raise _refused("no command", "write it after two dashes: gradproof watch -- python train.py")
    named = PYTHON.fullmatch(Path(rest[0]).name)
    if named:
        _same(rest.pop(0), executable)
        before = rest[: rest.index("-m")] if "-m" in rest else rest
        try:
            _, left = getopt(before, FLAGS)
        except GetoptError as e:
            raise _refused(f"a flag of Python: {e}", "leave the flag out, or put the code into a file") from e
        flags, rest = before[: len(before) - len(left)], rest[len(before) - len(left) :]
        if flags[-1:] == ["--"]:
            raise _refused("the flag -- of Python", "leave it out")
        if rest and rest[0] == "-m":
            if len(rest) < 2:
                raise _refused("-m without a module", "name the module after -m")
            if rest[1].startswith("torch.distributed."):
                raise _refused(f"the launcher {rest[1]}", LAUNCHED)
            return Script(tuple(flags), rest[1], True, tuple(rest[2:]))
    if not rest or not (named or rest[0].endswith(".py")):
        kind = "no option of watch" if rest and rest[0].startswith("-") else "neither Python nor a .py file"
        found = f"{rest[0]!r}, which is {kind}" if rest else "Python without a script"
        raise _refused(found, LAUNCHED)
    if not Path(rest[0]).is_file():
        raise _refused(f"{rest[0]!r}, and there is no such file", "correct the path of the script")
    return Script(tuple(flags), rest[0], False, tuple(rest[1:]))


def _refused(found: str, help: str) -> GradproofError:
    return GradproofError("GP408", found, EXPECTED, help)


def _same(named: str, executable: str) -> None:
    """An interpreter that is named by its path has to be the one of gradproof; a bare name means that one."""
    major, minor = sys.version_info[:2]
    if os.sep not in named and named.removesuffix(".exe") in ("python", f"python{major}", f"python{major}.{minor}"):
        return
    found = shutil.which(named)
    if found is None:
        raise _refused(f"{named!r}, and there is no such interpreter", "write python")
    if Path(found).absolute().parent != Path(executable).absolute().parent:
        help = f"install gradproof there and start it from there: {named} -P -m gradproof watch -- ..."
        raise _refused(f"the interpreter {found}, and gradproof runs in {executable}", help)


def run(script: Script) -> None:
    """Run the script as `__main__`, with its own sys.argv and import path. Lets through whatever it raises."""
    sys.argv = [script.name, *script.arguments]
    sys.path[0:0] = [str(Path.cwd() if script.module else Path(script.name).resolve().parent)]
    if script.module:
        runpy.run_module(script.name, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(script.name, run_name="__main__")


def run_watched(job: Mapping[str, Any]) -> None:
    """Run the script under the watcher. Whatever the script raises passes through, after the answer is written."""
    from gradproof.shadow.process.watch import ScriptWatch
    from gradproof.shadow.tape.monitor_report import effective, effective_line

    def opened(monitor: Any) -> None:
        said = effective_line(effective(monitor)).partition(" (micro-batch: ")[0]
        print(f"gradproof watch: {said}", file=sys.stderr, flush=True)

    def finish() -> None:
        if os.getpid() == own:
            try:
                made = answer(watcher.verification(), script.shown, 1)
            except Exception as e:
                made = ended(e, script.shown, options)
            write_json(Path(job["result"]), made)

    def stopping() -> None:  # what the script does from here on changes neither the answer nor the exit code
        finish()
        late = Timer(PATIENCE, os._exit, (0,))
        late.daemon = True
        late.start()

    script, options, own = Script(**job["script"]), job["options"], os.getpid()
    watcher = ScriptWatch(**options, opened=opened)
    watcher.stopping = stopping
    try:
        if "kept" in job:
            putback.keep_changes(Path(job["kept"]), job["homes"], "--stop-after")
        with watcher:
            run(script)
    except BaseException as error:
        if not watcher.stopped:
            if not isinstance(error, KeyboardInterrupt) and getattr(error, "code", True) not in (None, 0):
                watcher.failed = stated(error), raised_at(error)
            hook = sys.excepthook
            sys.excepthook = lambda kind, error, tb: hook(kind, of_user(error), error.__traceback__)
            raise
    finally:
        if not watcher.stopped:
            finish()


PATIENCE = 30.0
"""Seconds for a script that was interrupted, or stopped, to end by itself."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What was seen, the script's own exit code (negative for a signal), and whether it was interrupted.

    `left`: of a probe, what was not put back.
    """

    verification: Verification
    status: int
    interrupted: bool = False
    left: tuple[str, ...] = ()


def watch(script: Script, stdout: int | None = None, **options: Any) -> Watched:
    """Run a script to its end. `stdout` is where its output goes instead; the options are those of ScriptWatch.

    Raises GradproofError for a mistake.
    """
    if options["windows_at"] is not None:
        chosen(options["windows_at"])
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as folder:
        job, result = Path(folder) / "job.json", Path(folder) / "result.json"
        kept = putback.shared() or Path(folder) / "kept"
        probe, homes = options.get("stop_after") is not None, [os.getcwd(), str(Path(script.name).resolve().parent)]
        task = {"script": asdict(script), "result": str(result), "options": options}
        write_json(job, task | ({"kept": str(kept), "homes": homes} if probe else {}))
        flags, began = (*script.flags, *(["-B"] if probe else [])), time.monotonic()  # -B: no __pycache__
        with putback.probed(kept, homes) if probe else nullcontext(list[str]()) as left:
            process = subprocess.Popen(command(str(job), flags=flags), stdout=stdout)
            status, interrupted = _wait(process)
        try:
            found = answered(result, script.shown)
        except (OSError, ValueError) as e:
            reason = f"the script's process ended with exit code {status} and left no answer: {e}"
            found = undecided(script.shown, options, Outcome.ERROR, reason)
    if status and not interrupted and "stopped_after" not in found.config:
        found.config.setdefault("failed", f"with exit code {status}")
    found.seconds["all"] = round(time.monotonic() - began, 3)
    return Watched(found, status, interrupted, tuple(left))


def _wait(process: subprocess.Popen[bytes]) -> tuple[int, bool]:
    """Exit code, and whether it was interrupted; an interrupted script has a while to end, as it got the signal too.

    A signal in the arguments of the exception went to this process alone, and is passed on.
    """
    try:
        return process.wait(), False
    except KeyboardInterrupt as error:
        for number in error.args:
            process.send_signal(number)
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            return process.wait(PATIENCE), True
        process.kill()
        return process.wait(), True


if __name__ == "__main__":
    main()
