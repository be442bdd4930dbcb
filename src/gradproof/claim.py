"""What a run rests on: the files that it imported or read, by content, and the packages that it imported.

Files below the workspace root and elsewhere outside the Python installation are named in the claim. Of installed
packages, the solvers, PyTorch and what those need count by their versions (`gradproof.environment`); every other one
that is imported counts by its files and its version.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

from gradproof.core import Check, Layer
from gradproof.packages import in_stack, owner_of
from gradproof.search import searched
from gradproof.workspace import (
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

ABSENT = ""
REFERENCE = PACKAGE / "_reference"
TICK = 0.01  # seconds that a file's time stamp may lag behind the clock
_PASSED_OVER = frozenset({"__pycache__", ".git", ".hypothesis"})
_WRITTEN = frozenset({"evidence", "gpu"})  # below reports/: what a run writes, as report.* is
_SYSTEM = (
    "/proc/", "/sys/", "/dev/", "/etc/", "/bin/", "/sbin/", "/usr/bin/", "/usr/sbin/", "/usr/libexec/", "/usr/share/",
    *(f"{above}/{name}/" for above in ("", "/usr") for name in ("lib", "lib32", "lib64", "libx32")),
)  # fmt: skip
_seen: set[str] = set()
_made: set[str] = set()
_loose: set[str] = set()  # relative names that the working directory does not have: opened from a folder's descriptor
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
    return _get_code(loader, fullname) if _by_version(path) else compiled(loader, fullname)


@cache
def _by_version(place: str) -> bool:
    """Whether a module is one of Python, of gradproof, or of the solvers, PyTorch and what those need."""
    path = Path(place)
    if path.is_relative_to(REFERENCE):
        return False
    if installed(path):
        return in_stack(owner_of(path))
    return path.is_relative_to(PACKAGE) or path.is_relative_to(STDLIB)


def _note(event: str, args: tuple[Any, ...]) -> None:
    """The audit hook. What the process itself makes anew, before it reads it, is not read from elsewhere."""
    if event == "open":
        place, flags = args[0], args[2]
    elif event in ("ctypes.dlopen", "sqlite3.connect"):
        place, flags = args[0], os.O_RDONLY
    elif event in ("os.rename", "os.link"):
        return _renamed(*args[:2])
    else:
        return
    if isinstance(place, (str, bytes)) and os.fsdecode(place).startswith("<"):  # the name of code without a file
        return
    if not isinstance(place, (str, bytes)) or not place or (event != "open" and "/" not in os.fsdecode(place)):
        return
    try:
        name, how = os.path.abspath(os.fsdecode(place)), int(flags or 0)
    except (OSError, TypeError, ValueError):
        return
    if _makes(name, how):
        _made.add(name)
    elif how & os.O_ACCMODE != os.O_WRONLY and name not in _made:
        _seen.update((name, os.path.realpath(name)))
        if not os.path.isabs(os.fsdecode(place)) and not os.path.exists(name):
            _loose.add(os.fsdecode(place))


def _makes(name: str, how: int) -> bool:
    """Whether opening a file this way makes it anew: with O_EXCL only where there is none, else where it may."""
    if how & os.O_EXCL:
        return not os.path.lexists(name)
    return bool(how & os.O_TRUNC) and (os.access(name, os.W_OK) or not os.path.exists(name))


def _renamed(source: Any, target: Any) -> None:
    """A file that has another name now: what is read under the new one is what lay under the old one."""
    try:
        old, new = (os.path.abspath(os.fsdecode(place)) for place in (source, target))
    except (OSError, TypeError, ValueError):
        return
    if old in _made:
        _made.add(new)
    else:
        _made.discard(new)
        _seen.update((old, os.path.realpath(old)))


def reads(root: Path, reports: Path, scratch: str) -> dict[str, Path]:
    """Claim keys of the files that were opened for reading, outside evidence, scratch space and the installation.

    Below models/ and symbolic/ nothing is passed over but an installation that is in use.
    """
    found: dict[str, Path] = {}
    inner, own = installations_in(root), (*_SYSTEM, *(f"{p}{os.sep}" for p in (*installations(), scratch)))
    apart = tuple(p for p in own if not f"{root}{os.sep}".startswith(p))  # a workspace may lie in any folder
    for name in sorted(_seen | _from_folders()):
        within = name.startswith(f"{root}{os.sep}")
        if name.startswith(inner if within else apart):
            continue
        path = Path(name) if within else Path(os.path.realpath(name))
        within = path.is_relative_to(root)
        if path.is_dir() or _passed_over(path, root, reports):
            continue
        key = key_of(path, root) or (f"ws:{path.relative_to(root).as_posix()}" if within else None)
        if key is not None and (within or path.is_file()):
            found[key] = path
    return found


def _from_folders() -> set[str]:
    """Where the files are that were opened by a name within a folder that was opened before."""
    folders = [name for name in _seen if os.path.isdir(name)] if _loose else []
    return {os.path.realpath(p) for f in folders for n in _loose if os.path.isfile(p := os.path.join(f, n))}


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
    """How a claim names a file: `ws:` below the root, `gp:` in gradproof, `ext:` elsewhere; None when installed."""
    if path.is_relative_to(PACKAGE) and not path.is_relative_to(REFERENCE):
        return f"gp:{path.relative_to(PACKAGE).as_posix()}"
    if path.is_relative_to(root):
        inside = path.relative_to(root)
        return None if installed(inside) else f"ws:{inside.as_posix()}"
    if installed(path) or path.is_relative_to(STDLIB) or path.is_relative_to(PACKAGE):
        return None
    return f"ext:{path.as_posix()}"


def named_by(check: Check) -> set[str]:
    """Top-level packages that a check names: its harness, its subject, and every subject of its contract."""
    names = [check.harness, check.subject, *map(str, check.params.get("subjects", {}).values())]
    return {name.partition(":")[0].partition(".")[0] for name in names if name}


def claim_of(
    check: Check,
    root: Path,
    finder: Finder,
    start: Iterable[str],
    also: Iterable[str] = (),
    read: Mapping[str, Path] | None = None,
) -> dict[str, Any]:
    """What the run rests on: every file outside the installation that was imported, read or declared read.

    A package that the check names counts wherever it is installed. A module that was loaded under another name than
    its file's counts by its content alone. A file that was looked for in vain has the digest ABSENT. `finder`:
    what was asked for, and when. `start`: sys.path as the run began. Raises OSError when a file that was imported or
    declared is gone.
    """
    files: dict[str, str] = {}
    modules: dict[str, str] = {}
    named = named_by(check)
    for name, module in sorted(sys.modules.items()):
        origin = getattr(module, "__file__", None)
        if not origin or not Path(origin).is_file():
            continue
        path = Path(origin).resolve()
        key = key_of(path, root)
        if key is None and (name.partition(".")[0] in named or counted(check, path)):
            key = f"ext:{path.as_posix()}"
        if key is None:
            continue
        files[key] = Finder.loaded.get(str(path)) or sha256_of(path)
        modules |= _named(name, Path(origin), key)
    for place, digest in Finder.loaded.items():
        key = key_of(Path(place), root)
        if key is not None:
            files[key] = digest
    for name, origin in Finder.named.items():  # also what failed, or was taken out again
        key = None if name in modules else key_of(Path(origin).resolve(), root)
        modules |= {} if key is None else _named(name, Path(origin), key)
    for name in also:
        path = (root / name).resolve()
        files[key_of(path, root) or f"ext:{path.as_posix()}"] = sha256_of(path)
    for key, path in (read or {}).items():
        if check.layer is not Layer.CUDA or not key.startswith("ext:"):
            files.setdefault(key, sha256_of(path) if path.exists() else ABSENT)
    wanted = [name for place, names in list(finder.wanted.items()) if not _by_version(place) for name in names]
    search = searched(modules, root, start, finder, wanted, lambda key: place_of(key, root))
    return {"spec": check.digest, "files": files, "modules": modules, "absent": sorted(finder.absent), "search": search}


def _named(name: str, origin: Path, key: str) -> dict[str, str]:
    """A row of a claim's modules: a name that is its file's, of a file that is not the engine's."""
    own = origin.name.partition(".")[0] in (name.rpartition(".")[2], "__init__")
    return {name: key} if own and not key.startswith("gp:") else {}


def counted(check: Check, path: Path) -> bool:
    """Whether an installed file counts by its content. GPU evidence is read on machines with other installations."""
    return check.layer is not Layer.CUDA and installed(path) and not in_stack(owner_of(path))


def place_of(key: str, root: Path) -> Path | None:
    """The file that a key of a claim names; None for a key of no known kind."""
    kind, _, name = key.partition(":")
    home = {"gp": PACKAGE, "ws": root, "ext": Path("/")}.get(kind)
    return None if home is None else home / name


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
