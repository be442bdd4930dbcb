"""One verification of a user's file in a process of its own: `python -m gradproof.shadow.job`.

The job is JSON on the first line of stdin: file, function, options (of `verify.check`), result, package. The answer
goes to the file `result`, which appears complete or not at all: `verification` (see `wire`), or `mistake`, the fields
of a GradproofError. The end of stdin means that the parent is gone: the process group ends. What the user's code
prints goes where the parent sent stdout and stderr.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from gradproof.core import GradproofError, Outcome
from gradproof.files import write_json
from gradproof.processes import end_strays
from gradproof.shadow.request import Request, complete, function_of, undecided
from gradproof.shadow.tape import Place
from gradproof.shadow.verdict import Verification
from gradproof.shadow.wire import to_json

PACKAGE = Path(__file__).resolve().parent.parent
Answer = dict[str, Any]
NUMBERS = "GP406"
"""A number or word that does not fit, found out only when the step had been recorded."""


def perform(job: Mapping[str, Any]) -> Answer:
    """Import the file, verify its function. Whatever goes wrong is in the answer."""
    path, name = Path(job["file"]), str(job["function"])
    subject, options = str(job["subject"]), dict(job["options"])
    try:
        if Path(job["package"]) != PACKAGE:
            return _failed(subject, options, f"the child imported another gradproof, from {PACKAGE}")
        request = Request(**options)
        function = function_of(load(path), name, str(job.get("shown", path)))
    except GradproofError as e:
        return mistake(e)
    except BaseException as e:
        return ended(e, subject, options, path)
    try:
        from gradproof.shadow.verify import check

        found = check(function, **request.options())
        if not isinstance(found, Verification):
            return _failed(subject, options, f"the engine returned a {type(found).__name__}, not a Verification")
        found.subject = subject
        return {"verification": to_json(complete(found, request.ranks))}
    except GradproofError as e:
        return mistake(e) if e.code == NUMBERS else ended(e, subject, options, path)
    except BaseException as e:
        return ended(e, subject, options, path)


def ended(error: BaseException, subject: str, options: Mapping[str, Any], path: Path) -> Answer:
    """An ERROR that says what the user's code, or gradproof, ended with. The traceback goes to stderr."""
    if isinstance(error, MemoryError):
        return _failed(subject, options, "the verification ran out of memory")
    if isinstance(error, GradproofError):
        return _failed(subject, options, f"{error.code}: {error.found}; expected {error.expected}", error.mend)
    traceback.print_exception(error)
    if own_fault(error):
        return _failed(subject, options, f"gradproof itself raised {type(error).__name__}: {error}", "please report it")
    mend, place = "run the function by itself first", blamed(error, path)
    return {"verification": to_json(undecided(subject, options, Outcome.ERROR, told(error), place, mend))}


def mistake(error: GradproofError) -> Answer:
    """A user's mistake, to be raised again by the parent."""
    names = ("code", "found", "expected", "mend", "where")
    return {"mistake": {name: getattr(error, name) for name in names}}


def _failed(subject: str, options: Mapping[str, Any], reason: str, mend: str = "") -> Answer:
    return {"verification": to_json(undecided(subject, options, Outcome.ERROR, reason, mend=mend))}


def load(path: Path) -> ModuleType:
    """The user's file as a module, its folder first on the import path. Raises GradproofError GP403; lets others pass.

    A file inside a package is imported by its dotted name, so that relative imports work.
    """
    folder, names = path.parent, [path.stem]
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        names.insert(0, folder.name)
        folder = folder.parent
    sys.path[:0] = [str(path.parent)] if folder == path.parent else [str(path.parent), str(folder)]
    name = ".".join(names)
    if name in sys.modules or not all(part.isidentifier() for part in names):
        name = f"gradproof_subject_{len(sys.modules)}"
    elif len(names) > 1:
        importlib.import_module(name.rpartition(".")[0])
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise GradproofError("GP403", f"{path} cannot be imported", "a Python file", "give the path of a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def told(error: BaseException) -> str:
    """What the user's code ended with, in one line."""
    if isinstance(error, SystemExit):
        return f"the function ended the process with exit code {error.code}"
    text = " ".join(str(error).split())
    return f"the function raised {type(error).__name__}" + (f": {text[:300]}" if text else "")


def own_fault(error: BaseException) -> bool:
    """Whether an exception began in gradproof, and not in the user's code or a library that it called."""
    innermost = _frames(error.__traceback__)[-1:]
    return isinstance(error, Exception) and all(Path(p.file).is_relative_to(PACKAGE) for p in innermost)


def blamed(error: BaseException, path: Path) -> Place | None:
    """The innermost line of the user's own folder in the traceback, or the innermost line of any other code."""
    if isinstance(error, SyntaxError) and error.filename:
        return Place(error.filename, error.lineno or 1)
    places = [*_frames(error.__traceback__)]
    own = [p for p in places if Path(p.file) == path] or [p for p in places if Path(p.file).is_relative_to(path.parent)]
    others = [p for p in places if not Path(p.file).is_relative_to(PACKAGE) and not p.file.startswith("<")]
    return next(reversed(own or others), None)


def _frames(trace: TracebackType | None) -> list[Place]:
    found = []
    while trace is not None:
        code = trace.tb_frame.f_code
        found.append(Place(code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    return found


def _watch(descriptor: int) -> None:
    """End the process group when the parent closes its end of the pipe, which its death does too."""
    while os.read(descriptor, 1):
        continue
    end_strays(os.environ.get("TMPDIR", ""))
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def take() -> dict[str, Any]:
    """The job from the first line of stdin; afterwards stdin is empty, and its end ends this process."""
    line = b""
    while not line.endswith(b"\n"):
        some = os.read(0, 1 << 16)
        if not some:
            break
        line += some
    lifeline = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    threading.Thread(target=_watch, args=(lifeline,), daemon=True).start()
    return dict(json.loads(line))


def main() -> None:
    """Read the job, do it, write the answer, and end without waiting for what the user's code left running.

    A forked child of the user's code that comes back here ends without an answer.
    """
    own = os.getpid()
    job = take()
    answer = perform(job)
    if os.getpid() != own:
        os._exit(1)
    sys.stdout.flush()
    sys.stderr.flush()
    write_json(Path(job["result"]), answer)
    os._exit(0)


if __name__ == "__main__":
    main()
