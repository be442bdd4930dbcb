"""The user's file: import it, find its function, and tell the user's exceptions from gradproof's own."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, TracebackType

from gradproof.core.errors import GradproofError
from gradproof.core.workspace import PACKAGE
from gradproof.shadow.tape import Location


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


def stated(error: BaseException) -> str:
    """What the user's code ended with, in one line."""
    if isinstance(error, SystemExit):
        return f"the function ended the process with exit code {error.code}"
    text = " ".join(str(error).split())
    return f"the function raised {type(error).__name__}" + (f": {text[:300]}" if text else "")


def own_fault(error: BaseException) -> bool:
    """Whether an exception began in gradproof, and not in the user's code or a library that it called."""
    innermost = _frames(error.__traceback__)[-1:]
    return isinstance(error, Exception) and all(Path(p.file).is_relative_to(PACKAGE) for p in innermost)


def blamed(error: BaseException, path: Path) -> Location | None:
    """The innermost line of the user's own folder in the traceback, or the innermost line of any other code."""
    if isinstance(error, SyntaxError) and error.filename:
        return Location(error.filename, error.lineno or 1)
    places = [*_frames(error.__traceback__)]
    own = [p for p in places if Path(p.file) == path] or [p for p in places if Path(p.file).is_relative_to(path.parent)]
    others = [p for p in places if not Path(p.file).is_relative_to(PACKAGE) and not p.file.startswith("<")]
    return next(reversed(own or others), None)


def _frames(trace: TracebackType | None) -> list[Location]:
    found = []
    while trace is not None:
        code = trace.tb_frame.f_code
        found.append(Location(code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    return found
