"""The parent's side of `job`: start it, limit its time, leave nothing of it alive, and read what it answered.

A child that hangs is TIMEOUT; one that crashes, answers garbage or nothing is ERROR. Neither is ever an answer.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradproof.core import GradproofError, Outcome
from gradproof.processes import PREFIX, end_strays, exceeded, time_limit
from gradproof.shadow.request import Request, undecided
from gradproof.shadow.verdict import Verification
from gradproof.shadow.wire import from_json, plain

PACKAGE = Path(__file__).resolve().parent.parent
GRACE = 0.2


def command() -> list[str]:
    """How the child is started: with no folder of the caller's on its import path but those of PYTHONPATH."""
    return [sys.executable, "-P", "-m", "gradproof.shadow.job"]


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
    mend = "give the path of the file that has the training function"
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no such file"
        raise GradproofError("GP403", found, "a Python file", mend, shown)
    if path.suffix != ".py":
        raise GradproofError("GP403", f"a file that ends in {path.suffix or 'nothing'}", "a .py file", mend, shown)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(path.read_bytes(), shown, "exec", dont_inherit=True)
    except OSError as e:
        raise GradproofError("GP403", f"a file that cannot be read: {e.strerror}", "a Python file", mend, shown) from e
    except (SyntaxError, ValueError) as e:
        line = getattr(e, "lineno", None)
        where = f"{shown}:{line}" if line else shown
        said = getattr(e, "msg", None) or str(e)
        raise GradproofError("GP403", f"no Python: {said}", "a Python file", "mend the file", where) from e
    return Target(path.resolve(), function, shown)


def verify(target: Target, request: Request, limit: float) -> Verification:
    """The verification of a function within `limit` seconds of CPU time. Raises GradproofError for a user's mistake."""
    config, limit = plain(request.options()), time_limit(limit)
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as folder:
        result = Path(folder) / "result.json"
        job = {
            "file": str(target.path),
            "shown": target.shown,
            "function": target.function,
            "subject": target.subject,
            "options": config,
            "result": str(result),
            "package": str(PACKAGE),
        }
        outcome, reason = _attend(job, folder, limit)
        if outcome is None:
            try:
                return answered(result, target.subject)
            except ValueError as e:
                outcome, reason = Outcome.ERROR, f"the verification left no answer: {e}"
    mend = "raise --time-limit, or check a smaller model" if outcome is Outcome.TIMEOUT else ""
    return undecided(target.subject, config, outcome, reason, mend=mend)


def _attend(job: Mapping[str, Any], scratch: str, limit: float) -> tuple[Outcome | None, str]:
    """Start, wait, kill what is left. The outcome is None when the child ended well."""
    try:
        process = subprocess.Popen(
            command(), stdin=subprocess.PIPE, stdout=2, stderr=2, env=_environ(scratch), start_new_session=True
        )
    except OSError as e:
        return Outcome.ERROR, f"the verification could not be started: {e}"
    assert process.stdin is not None
    try:
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
        if late := exceeded(process, limit):
            _signal(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
            return Outcome.TIMEOUT, f"{late}; the process was killed"
    finally:
        _signal(process.pid, signal.SIGKILL)
        process.wait()
        end_strays(scratch)
        with suppress(OSError):
            process.stdin.close()
    return (None, "") if process.returncode == 0 else (Outcome.ERROR, death(process.returncode))


def _environ(scratch: str) -> dict[str, str]:
    """The user's own environment; TMPDIR marks the child's children, so that none escapes."""
    return {"PYTHONHASHSEED": "0", **os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": scratch}


def answered(result: Path, subject: str) -> Verification:
    """What a child wrote. Raises GradproofError for a user's mistake, ValueError when it is no answer to this job."""
    try:
        data = json.loads(result.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise ValueError("the process ended early" if isinstance(e, FileNotFoundError) else str(e)) from e
    if isinstance(data, dict) and set(data) == {"mistake"}:
        raise mistaken(data["mistake"])
    if not isinstance(data, dict) or set(data) != {"verification"}:
        raise ValueError("it is neither a verification nor a mistake")
    found = from_json(data["verification"])
    if found.subject != subject:
        raise ValueError(f"it is about {found.subject!r}")
    return found


def mistaken(fields: Any) -> GradproofError:
    """A user's mistake that a child found. Raises ValueError when it is none."""
    names = ("code", "found", "expected", "mend", "where")
    if not isinstance(fields, dict) or not all(isinstance(fields.get(name), str) for name in names):
        raise ValueError("it is no mistake of the known shape")
    return GradproofError(*(fields[name] for name in names))


def death(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"the process ended with exit code {code} and left no answer"
    name = signal.Signals(-code).name if -code in list(signal.Signals) else str(-code)
    return f"the process was killed by {name}" + (" (out of memory?)" if -code == signal.SIGKILL else "")


def _signal(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
