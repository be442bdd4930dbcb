"""A command line of Python taken apart, and run in this process as Python would have run it.

`python FLAGS train.py ARGS`, `python FLAGS -m package.module ARGS` and `train.py ARGS` are understood.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gradproof.core import GradproofError

PYTHON = re.compile(r"python(\d+(\.\d+)?)?t?(\.exe)?")
ALONE = frozenset("uBEIsSOqvbdxi")
WITH_VALUE = ("-W", "-X")
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
        while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-"):
            flags += _flag(rest)
        if rest and rest[0] == "-m":
            if len(rest) < 2:
                raise _refused("-m without a module", "name the module after -m")
            return Script(tuple(flags), rest[1], True, tuple(rest[2:]))
    if not rest or not (named or rest[0].endswith(".py")):
        found = f"{rest[0]!r}, which is neither Python nor a .py file" if rest else "Python without a script"
        raise _refused(found, "name the script itself; a launcher has to start gradproof, not the other way round")
    if not Path(rest[0]).is_file():
        raise _refused(f"{rest[0]!r}, and there is no such file", "mend the path of the script")
    return Script(tuple(flags), rest[0], False, tuple(rest[1:]))


def _refused(found: str, mend: str) -> GradproofError:
    return GradproofError("GP408", found, EXPECTED, mend)


def _same(named: str, executable: str) -> None:
    """An interpreter that is named by its path has to be the one of gradproof; a bare name means that one."""
    if os.sep not in named and named.removesuffix(".exe") in _names():
        return
    found = shutil.which(named)
    if found is None:
        raise _refused(f"{named!r}, and there is no such interpreter", "write python")
    if Path(found).absolute().parent != Path(executable).absolute().parent:
        mend = f"install gradproof there and start it from there: {named} -P -m gradproof watch -- ..."
        raise _refused(f"the interpreter {found}, and gradproof runs in {executable}", mend)


def _names() -> set[str]:
    major, minor = sys.version_info[:2]
    return {"python", f"python{major}", f"python{major}.{minor}"}


def _flag(rest: list[str]) -> list[str]:
    word = rest.pop(0)
    if word in WITH_VALUE and rest:
        return [word, rest.pop(0)]
    if word.startswith(WITH_VALUE) or (len(word) > 1 and set(word[1:]) <= ALONE):
        return [word]
    raise _refused(f"the flag {word} of Python", "leave the flag out, or put the code into a file")


def run(script: Script) -> None:
    """Run the script as `__main__`, with its own sys.argv and import path. Lets through whatever it raises."""
    if script.module:
        sys.argv = [script.name, *script.arguments]
        sys.path[0:0] = [str(Path.cwd())]
        runpy.run_module(script.name, run_name="__main__", alter_sys=True)
        return
    sys.argv = [script.name, *script.arguments]
    sys.path[0:0] = [str(Path(script.name).resolve().parent)]
    runpy.run_path(script.name, run_name="__main__")
