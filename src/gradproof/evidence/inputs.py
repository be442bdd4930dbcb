"""What a run rests on: the files that it imported or read, by content, and the packages that it imported.

Files below the workspace root and elsewhere outside the Python installation are inputs. Of installed
packages, the solvers, PyTorch and what those need count by their versions (`gradproof.evidence.environment`); every
other one that is imported counts by its files and its version.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any
from urllib.parse import unquote, urlsplit

from gradproof.core.check import Check
from gradproof.core.outcome import Layer
from gradproof.core.workspace import (
    CONTENT,
    PACKAGE,
    STDLIB,
    Finder,
    compiled,
    installations,
    installations_in,
    installed,
    sha256_of,
)
from gradproof.evidence.environment import generated, in_stack, owner_of

ABSENT = ""
REFERENCE = PACKAGE / "_reference"
TICK = 0.01  # seconds that a file's time stamp may lag behind the clock
_PASSED_OVER = frozenset({"__pycache__", ".git", ".hypothesis"})
_WRITTEN = frozenset({"evidence", "gpu"})  # below reports/: what a run writes, as report.* is
_SYSTEM = (
    "/proc/", "/sys/", "/dev/", "/etc/", "/bin/", "/sbin/", "/usr/bin/", "/usr/sbin/", "/usr/libexec/", "/usr/share/",
    *(f"{above}/{name}/" for above in ("", "/usr") for name in ("lib", "lib32", "lib64", "libx32")),
)  # fmt: skip
_SHARED = "/dev/shm/"  # memory that looks like files, which anybody may write
_seen: set[str] = set()
_there: set[str] = set()  # those of them that were files when they were opened
_made: dict[str, int | None] = {}  # files that this process made, and when each was last written before that
_moved: dict[str, str] = {}  # folders that have another name now: the new one, and the one before
_ANEW = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
_DESCRIPTORS = "/proc/self/fd"
_watching: list[bool] = []
_get_code = SourceFileLoader.get_code


def watch() -> None:
    """Once a process: note every path that Python opens for reading, and compile from source what counts by content."""
    if not _watching:
        _watching.append(True)
        sys.addaudithook(_note)
        setattr(SourceFileLoader, "get_code", _code)  # noqa: B010  (mypy takes no assignment to a method)


def _code(loader: SourceFileLoader, fullname: str) -> CodeType | None:
    """In the place of SourceFileLoader.get_code, which believes bytecode."""
    path = loader.get_filename(fullname)
    return _get_code(loader, fullname) if by_version(path) else compiled(loader, fullname)


@cache
def by_version(place: str) -> bool:
    """Whether a module is one of Python, of gradproof, or of the solvers, PyTorch and what those need."""
    path = Path(place)
    if path.is_relative_to(REFERENCE):
        return False
    if installed(path):
        return in_stack(owner_of(path))
    return path.is_relative_to(PACKAGE) or path.is_relative_to(STDLIB)


def _note(event: str, args: tuple[Any, ...]) -> None:
    """The audit hook. What the process itself makes anew, before it reads it, is not read from elsewhere."""
    try:
        if event == "open":
            _opened(args[0], int(args[2] or 0), named=args[1] is None)
        elif event in ("ctypes.dlopen", "sqlite3.connect"):
            _loaded(event, args[0])
        elif event in ("os.rename", "os.link"):
            _renamed(_entry(*args[::2]), _entry(*args[1::2]))
        elif event in ("os.utime", "os.truncate"):
            _own(os.path.realpath(_entry(args[0], args[3] if event == "os.utime" else -1)))
    except (OSError, TypeError, ValueError, RecursionError):  # no name of a file: the call itself raises, too
        return


def _opened(place: Any, how: int, *, named: bool) -> None:
    """`named`: by os.open, for which a relative name may be one within a folder that is open."""
    if isinstance(place, int) or not (text := os.fsdecode(place)) or text.startswith("<"):  # code without a file
        return
    writes, inner = how & os.O_ACCMODE == os.O_WRONLY, named and not os.path.isabs(text)
    for folder in [os.getcwd(), *(_folders() if inner else ())]:
        raw = os.path.join(folder, text)
        real = os.path.realpath(raw)
        if inner and folder != os.getcwd() and not os.path.lexists(os.path.dirname(real)):
            continue
        if how & os.O_TRUNC and not how & ~_ANEW and (os.access(real, os.W_OK) or not os.path.exists(real)):
            _made.setdefault(real, _written(real))
        elif how & os.O_CREAT and how & os.O_EXCL and not how & ~_ANEW and not os.path.lexists(raw):
            _made.setdefault(real, None)
        elif not _own(real) and not writes:
            _read(raw, real)


def _written(real: str) -> int | None:
    """When a file was last written, in ns; None where there is none."""
    try:
        return os.stat(real).st_mtime_ns
    except OSError:
        return None


def _own(real: str) -> bool:
    """Whether a file has nothing but what this process wrote. An opening anew that failed has left it as it was."""
    if real in _made and _made[real] is not None and _made[real] == _written(real):
        del _made[real]
    return real in _made


def _read(raw: str, real: str) -> None:
    """A file that was opened for reading, by its name and where that leads, and by the name that it had before."""
    name = os.path.abspath(raw)
    names = {real, name} if os.path.realpath(name) == real else {real}
    _seen.update(names)
    _there.update(names if os.path.isfile(real) else ())
    for _ in range(len(_moved)):
        for new, old in _moved.items():
            if real.startswith(f"{new}{os.sep}"):
                real = f"{old}{real[len(new) :]}"
                _seen.add(real)


def _folders() -> set[str]:
    """The folders that are open."""
    found = {name for name in _seen if os.path.isdir(name)}
    for number in os.listdir(_DESCRIPTORS) if os.path.isdir(_DESCRIPTORS) else ():
        with suppress(OSError):
            found.add(os.readlink(f"{_DESCRIPTORS}/{number}"))
    return {name for name in found if os.path.isdir(name)}


def _loaded(event: str, place: Any) -> None:
    """A library or a database. A name alone is a library of the system; `file:` begins the address of a database."""
    name = os.fsdecode(place)
    if event == "sqlite3.connect" and name.startswith("file:"):
        address = urlsplit(name)
        name = unquote(address.path)
    if name in ("", ":memory:") or (event == "ctypes.dlopen" and os.sep not in name):
        return
    raw = os.path.join(os.getcwd(), name)
    if not _own(os.path.realpath(raw)):
        _read(raw, os.path.realpath(raw))


def _entry(place: Any, folder: int) -> str:
    """The name of an entry of a folder, which may be an open one: what it is, if a link, is not asked."""
    if isinstance(place, int):
        return os.readlink(f"{_DESCRIPTORS}/{place}")
    base = os.getcwd() if folder < 0 else os.readlink(f"{_DESCRIPTORS}/{folder}")
    above, name = os.path.split(os.path.join(base, os.fsdecode(place)))
    return os.path.join(os.path.realpath(above), name)


def _renamed(old: str, new: str) -> None:
    """A file or folder that has another name now: what is read under the new one is what lay under the old one."""
    own = {name: when for name, when in _made.items() if name == old or name.startswith(f"{old}{os.sep}")}
    for name in [n for n in _made if n == new or n.startswith(f"{new}{os.sep}")]:
        del _made[name]
    _moved.pop(new, None)
    _made.update({f"{new}{name[len(old) :]}": when for name, when in own.items()})
    if os.path.isdir(old):
        _moved[new] = old
    elif old not in own:
        _read(old, os.path.realpath(old))


def reads(root: Path, reports: Path, scratch: str) -> dict[str, Path]:
    """Claim keys of the files that were opened for reading, outside evidence, scratch space and the installation.

    Below models/ and symbolic/ nothing is passed over but an installation that is in use.
    """
    found: dict[str, Path] = {}
    inner, own = installations_in(root), (*_SYSTEM, *(f"{p}{os.sep}" for p in (*installations(), scratch)))
    apart = tuple(p for p in own if not f"{root}{os.sep}".startswith(p))  # a workspace may lie in any folder
    for name in sorted(_seen):
        within = name.startswith(f"{root}{os.sep}")
        if name.startswith(inner if within else apart) and not name.startswith(_SHARED):
            continue
        path = Path(name) if within else Path(os.path.realpath(name))
        within = path.is_relative_to(root)
        if path.is_dir() or _passed_over(path, root, reports):
            continue
        key = key_of(path, root) or (f"ws:{path.relative_to(root).as_posix()}" if within else None)
        if key is not None and (within or path.is_file()):
            found[key] = path
    return found


def _passed_over(path: Path, root: Path, reports: Path) -> bool:
    """Whether a file is one that tools keep for themselves, or one that a run writes."""
    within = path.is_relative_to(root)
    parts = path.relative_to(root).parts if within else path.parts
    if within and parts[0] in CONTENT:
        return False
    if path.name.startswith("__editable__.") and not path.exists():  # setuptools' entry of sys.path, which is no place
        return True
    for home in (reports, root / "reports"):
        if path.is_relative_to(home):
            below = path.relative_to(home).parts
            return below[0] in _WRITTEN or below[-1].startswith("report.")
    apart = path.parent.suffix in (".dist-info", ".egg-info")
    return bool(_PASSED_OVER & set(parts)) or apart or (not within and any(part.startswith(".") for part in parts))


def key_of(path: Path, root: Path) -> str | None:
    """How inputs name a file: `ws:` below the root, `gp:` in gradproof, `ext:` elsewhere; None when installed.

    A module that torch itself has written counts by torch's version, as an installed one does.
    """
    if path.is_relative_to(PACKAGE) and not path.is_relative_to(REFERENCE):
        return f"gp:{path.relative_to(PACKAGE).as_posix()}"
    if path.is_relative_to(root):
        inside = path.relative_to(root)
        return None if installed(inside) else f"ws:{inside.as_posix()}"
    if installed(path) or path.is_relative_to(STDLIB) or path.is_relative_to(PACKAGE) or path == generated():
        return None
    return f"ext:{path.as_posix()}"


def inputs_of(
    check: Check, root: Path, also: Iterable[str] = (), read: Mapping[str, Path] | None = None
) -> dict[str, Any]:
    """What the run rests on: every file outside the installation that was imported, read or declared read.

    A package that the check names, in its harness or in a subject of its contract, counts wherever it is installed. A
    file that was looked for in vain has the digest ABSENT. Raises OSError when a file that was imported, read or
    declared is gone.
    """
    files: dict[str, str] = {}
    about = [check.harness, check.subject, *map(str, check.params.get("subjects", {}).values())]
    named = {name.partition(":")[0].partition(".")[0] for name in about if name}
    for name, module in sorted(sys.modules.items()):
        origin = getattr(module, "__file__", None)
        if not origin or not Path(origin).is_file():
            continue
        path = Path(origin).resolve()
        key = key_of(path, root)
        # GPU evidence is read on machines with other installations.
        counted = check.layer is not Layer.CUDA and installed(path) and not in_stack(owner_of(path))
        if key is None and (name.partition(".")[0] in named or counted):
            key = f"ext:{path.as_posix()}"
        if key is not None:
            files[key] = Finder.loaded.get(str(path)) or sha256_of(path)
    for place, digest in Finder.loaded.items():
        key = key_of(Path(place), root)
        if key is not None:
            files[key] = digest
    for name in also:
        path = (root / name).resolve()
        files[key_of(path, root) or f"ext:{path.as_posix()}"] = sha256_of(path)
    for key, path in (read or {}).items():
        if check.layer is not Layer.CUDA or not key.startswith("ext:"):
            files.setdefault(key, sha256_of(path) if path.exists() or str(path) in _there else ABSENT)
    return {"spec": check.digest, "files": files}


def place_of(key: str, root: Path) -> Path | None:
    """The file that an input key names; None for a key of no known kind, or with `..`."""
    kind, _, name = key.partition(":")
    home = {"gp": PACKAGE, "ws": root, "ext": Path("/")}.get(kind)
    return None if home is None or ".." in Path(name).parts else home / name


def edited(files: Mapping[str, str], root: Path, since: float, engine: float | None = None) -> list[str]:
    """Keys of the files that were written after `since` (seconds, epoch), those of the engine after `engine`."""
    found = []
    for key, digest in files.items():
        start = since if engine is None or not key.startswith("gp:") else engine
        path = place_of(key, root) or Path(key.partition(":")[2])
        if digest == ABSENT and not path.exists():
            continue
        if not path.is_file() or _changed(path, key) > start - TICK:
            found.append(key)
    return found


def _changed(path: Path, key: str) -> float:
    """When a file was last written; of the workspace's own also when its time stamp was set, as a cheat does."""
    stat = path.stat()
    return max(stat.st_mtime, stat.st_ctime) if key.startswith("ws:") else stat.st_mtime
