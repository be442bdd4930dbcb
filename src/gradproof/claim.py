"""What a run rests on: the files that it imported or read, by content, and the packages that it imported.

Files below the workspace root and elsewhere outside the Python installation are named in the claim. Of installed
packages, the solvers, PyTorch and what those need count by their versions (`gradproof.environment`); every other one
that is imported counts by its files and its version.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gradproof.core import Check, Layer
from gradproof.packages import in_stack, owner_of
from gradproof.workspace import PACKAGE, Finder, installed, sha256_of

ABSENT = ""
TICK = 0.01  # seconds that a file's time stamp may lag behind the clock
_STDLIB = Path(os.__file__).resolve().parent
_PASSED_OVER = frozenset({"__pycache__", ".git", ".hypothesis"})
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/run/", "/etc/", "/usr/", "/lib", "/var/", "/bin/")
_seen: set[str] = set()
_made: set[str] = set()
_watching: list[bool] = []


def watch() -> None:
    """Note, from now on and once a process, every path that Python opens for reading."""
    if not _watching:
        _watching.append(True)
        sys.addaudithook(_note)


def _note(event: str, args: tuple[Any, ...]) -> None:
    """The audit hook. What the process itself makes anew, before it reads it, is not read from elsewhere."""
    if event == "open":
        place, flags = args[0], args[2]
    elif event in ("ctypes.dlopen", "sqlite3.connect"):
        place, flags = args[0], os.O_RDONLY
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
    if how & (os.O_TRUNC | os.O_EXCL):
        _made.add(name)
    elif how & os.O_ACCMODE != os.O_WRONLY and name not in _made:
        _seen.add(name)


def reads(root: Path, reports: Path, scratch: str) -> dict[str, Path]:
    """Claim keys of the files that were opened for reading, outside reports, scratch space and the installation."""
    found: dict[str, Path] = {}
    apart = tuple(f"{p}{os.sep}" for p in (sys.prefix, sys.base_prefix, _STDLIB, scratch))
    for name in sorted(_seen):
        within = name.startswith(f"{root}{os.sep}")
        if not within and name.startswith((*_SYSTEM, *apart)):
            continue
        path = Path(name) if within else Path(os.path.realpath(name))
        within = path.is_relative_to(root)
        if path.is_dir() or path.is_relative_to(reports) or path.is_relative_to(root / "reports"):
            continue
        parts = path.relative_to(root).parts if within else path.parts
        if (
            _PASSED_OVER & set(parts)
            or path.parent.suffix in (".dist-info", ".egg-info")
            or (not within and any(part.startswith(".") for part in parts))
        ):
            continue
        key = key_of(path, root)
        if key is not None and (within or path.is_file()):
            found[key] = path
    return found


def key_of(path: Path, root: Path) -> str | None:
    """How a claim names a file: `ws:` below the root, `gp:` in gradproof, `ext:` elsewhere; None when installed."""
    reference = PACKAGE / "_reference"
    if path.is_relative_to(PACKAGE) and not path.is_relative_to(reference):
        return f"gp:{path.relative_to(PACKAGE).as_posix()}"
    if path.is_relative_to(root):
        inside = path.relative_to(root)
        return None if installed(inside) else f"ws:{inside.as_posix()}"
    if installed(path) or path.is_relative_to(_STDLIB) or path.is_relative_to(PACKAGE):
        return None
    return f"ext:{path.as_posix()}"


def named_by(check: Check) -> set[str]:
    """Top-level packages that a check names: its harness, its subject, and every subject of its contract."""
    names = [check.harness, check.subject, *map(str, check.params.get("subjects", {}).values())]
    return {name.partition(":")[0].partition(".")[0] for name in names if name}


def claim_of(
    check: Check, root: Path, absent: Iterable[str], also: Iterable[str] = (), read: Mapping[str, Path] | None = None
) -> dict[str, Any]:
    """What the run rests on: every file outside the installation that was imported, read or declared read.

    A package that the check names counts wherever it is installed. A module that was loaded under another name than
    its file's counts by its content alone. A file that was looked for in vain has the digest ABSENT. Raises OSError
    when a file that was imported or declared is gone.
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
        if key is None and name.partition(".")[0] in named:
            key = f"ext:{path.as_posix()}"
        elif key is None and counted(check, path):
            files[f"ext:{path.as_posix()}"] = sha256_of(path)
        if key is None:
            continue
        files[key] = Finder.loaded.get(str(path)) or sha256_of(path)
        if not key.startswith("gp:") and Path(origin).name.partition(".")[0] in (name.rpartition(".")[2], "__init__"):
            modules[name] = key
    for place, digest in Finder.loaded.items():
        key = key_of(Path(place), root)
        if key is not None:
            files[key] = digest
    for name in also:
        path = (root / name).resolve()
        files[key_of(path, root) or f"ext:{path.as_posix()}"] = sha256_of(path)
    for key, path in (read or {}).items():
        if check.layer is not Layer.CUDA or not key.startswith("ext:"):
            files.setdefault(key, sha256_of(path) if path.exists() else ABSENT)
    return {"spec": check.digest, "files": files, "modules": modules, "absent": sorted(absent)}


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
        if not path.is_file() or path.stat().st_mtime > start - TICK:
            found.append(key)
    return found
