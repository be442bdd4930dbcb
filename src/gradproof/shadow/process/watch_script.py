"""A command line of Python taken apart, and run in this process as Python would have run it.

`python FLAGS train.py ARGS`, `python FLAGS -m package.module ARGS` and `train.py ARGS` are understood.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from getopt import GetoptError, getopt
from pathlib import Path
from typing import Any

from gradproof.core.errors import GradproofError
from gradproof.core.files import write_json
from gradproof.core.outcome import EXIT_CODE, Exit, Outcome
from gradproof.core.processes import PREFIX
from gradproof.shadow.process.check import answer, answered, ended
from gradproof.shadow.request import chosen, undecided
from gradproof.shadow.result import Verification

PYTHON = re.compile(r"python(\d+(\.\d+)?)?t?(\.exe)?")
FLAGS = "uBEIsSOqvbdxiW:X:"
"""Of Python, in the form of getopt."""
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
        if rest and rest[0] == "-m":
            if len(rest) < 2:
                raise _refused("-m without a module", "name the module after -m")
            return Script(tuple(flags), rest[1], True, tuple(rest[2:]))
    if not rest or not (named or rest[0].endswith(".py")):
        kind = "no option of watch" if rest and rest[0].startswith("-") else "neither Python nor a .py file"
        found = f"{rest[0]!r}, which is {kind}" if rest else "Python without a script"
        raise _refused(found, "name the script itself; a launcher has to start gradproof, not the other way round")
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


# -- A user's script, watched: `python FLAGS -P -m gradproof.shadow.process.watch_script JOBFILE`.
def main() -> None:
    """Run the script under the watcher. Whatever the script raises passes through, after the answer is written."""
    from gradproof.shadow.process.watch import ScriptWatch
    from gradproof.shadow.protocol.monitor_report import effective, effective_line

    def opened(monitor: Any) -> None:
        print(f"gradproof watch: {effective_line(effective(monitor))}", file=sys.stderr, flush=True)

    job, own = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), os.getpid()
    script, options = Script(**job["script"]), job["options"]
    watcher = ScriptWatch(**options, opened=opened)
    try:
        with watcher:
            run(script)
    finally:
        if os.getpid() == own:
            try:
                made = answer(watcher.verification(), script.shown, 1)
            except Exception as e:
                made = ended(e, script.shown, options)
            write_json(Path(job["result"]), made)


# -- The parent's side: start the user's script, wait for it, read what was seen of it.
PATIENCE = 30.0
"""Seconds for an interrupted script to end by itself."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What was seen, the script's own exit code (negative for a signal), and whether it was interrupted."""

    verification: Verification
    status: int
    interrupted: bool = False

    @property
    def code(self) -> int:
        """The exit code: a refutation first, then a script that failed, then the verification's own."""
        broken, crash = EXIT_CODE[Exit.BROKEN], EXIT_CODE[Exit.CRASH]
        if self.verification.code == broken or self.status == 0:
            return self.verification.code
        return crash


def command(script: Script, job: Path) -> list[str]:
    """How the script is started: with its own flags of Python."""
    return [sys.executable, *script.flags, "-P", "-m", "gradproof.shadow.process.watch_script", str(job)]


def watch(script: Script, stdout: int | None = None, **options: Any) -> Watched:
    """Run a script to its end. `stdout` is where its output goes instead; the options are those of ScriptWatch.

    Raises GradproofError for a mistake.
    """
    if options["windows_at"] is not None:
        chosen(options["windows_at"])
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as folder:
        job, result = Path(folder) / "job.json", Path(folder) / "result.json"
        write_json(job, {"script": asdict(script), "result": str(result), "options": options})
        process = subprocess.Popen(command(script, job), stdout=stdout)
        status, interrupted = _wait(process)
        try:
            found = answered(result, script.shown)
        except (OSError, ValueError) as e:
            reason = f"the script's process ended with exit code {status} and left no answer: {e}"
            found = undecided(script.shown, options, Outcome.ERROR, reason)
    return Watched(found, status, interrupted)


def _wait(process: subprocess.Popen[bytes]) -> tuple[int, bool]:
    """Exit code, and whether it was interrupted; an interrupted script has a while to end, as it got the signal too."""
    try:
        return process.wait(), False
    except KeyboardInterrupt:
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            return process.wait(PATIENCE), True
        process.kill()
        return process.wait(), True


if __name__ == "__main__":
    main()
