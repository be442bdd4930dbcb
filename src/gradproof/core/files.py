"""Files that are whole or not there, and where a command writes what a user asked for.

The text of a file goes to a neighbour, which then takes the name. A stream that is there already, such as /dev/null or
a pipe, is written to as it is. What a run is judged by is never written over: contracts, models, harnesses, evidence,
settings and code. It imports the standard library alone, for every part of the package writes through it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO, cast

from gradproof.core.errors import GradproofError
from gradproof.core.workspace import FOLDERS, is_workspace

PUBLIC = 0o644


def write_whole(path: Path, text: str, *, parents: bool = False, durable: bool = True, mode: int | None = None) -> None:
    """Write UTF-8 `text` so that `path` holds what it held before or all of the new text, whatever happens.

    `parents`: make the folders that are missing. `durable`: the text is on the disk before it takes the name. `mode`:
    permissions; None leaves them to the umask. A byte of a path that is no UTF-8 is written as an escape, `\\udcff`.
    Raises OSError; then nothing is left behind.
    """
    if parents:
        path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name[:40]}.{secrets.token_hex(8)}.tmp")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as f:
            f.write(text)
            f.flush()
            if durable:
                os.fsync(f.fileno())
        if mode is not None:
            os.chmod(beside, mode)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_json(path: Path, data: Any) -> None:
    """JSON on one line, whole or not there. Raises ValueError for NaN, TypeError for what is no JSON, OSError."""
    write_whole(path, json.dumps(data, ensure_ascii=False, allow_nan=False))


def replace_whole(path: Path, text: str) -> None:
    """A file of the user's: folders are made, and everybody may read it. Raises OSError."""
    write_whole(path, text, parents=True, mode=PUBLIC)


def write_all(texts: Mapping[Path, str]) -> None:
    """Write every file as `replace_whole` does, or leave everything as it was. Raises OSError."""
    before = {path: path.read_bytes() if path.is_file() else None for path in texts}
    folders = {folder for path in texts for folder in path.parents if not folder.exists()}
    try:
        for path, text in texts.items():
            replace_whole(path, text)
    except BaseException:
        for path, data in before.items():
            with suppress(OSError):
                path.unlink(missing_ok=True) if data is None else path.write_bytes(data)
        for folder in sorted(folders, key=lambda p: len(p.parts), reverse=True):
            with suppress(OSError):
                folder.rmdir()
        raise


EVIDENCE = (("reports", "evidence"), ("reports", "gpu"))
_REPORTS = (("reports",), *EVIDENCE)
SETTINGS = "pyproject.toml"
BY_HAND = (".yaml", ".yml", ".toml", ".py")
_DESCRIPTOR = re.compile(r"/dev/fd/(\d+)|/proc/self/fd/(\d+)")
_NAMED = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}


def allowed(path: Path, option: str = "--out") -> None:
    """Raises GradproofError GP433 for a place of what a run is judged by, GP407 for neither a file nor a stream."""
    if "\0" in str(path):
        raise GradproofError("GP407", "a name that holds a NUL", "the name of a file", f"name another {option}")
    if descriptor_of(path) is not None:
        return
    if why := _kept(path, option):
        wanted = "a file that is no part of what is judged"
        raise GradproofError("GP433", f"{option} would write over {why}", wanted, "name another file", str(path))
    mode = _mode(path)
    if mode is None or stat.S_ISREG(mode) or _streams(mode):
        return
    found = "a folder" if stat.S_ISDIR(mode) else "neither a file nor a stream"
    raise GradproofError("GP407", found, "a file, a pipe or a character device", f"name another {option}", str(path))


def _kept(path: Path, option: str) -> str:
    """What lies at a place that may not be written over, in words; an empty text where nothing does."""
    for place in (Path(os.path.abspath(path)), Path(os.path.realpath(path))):
        if place.name == SETTINGS:
            return "the settings of a project"
        if any(pair in EVIDENCE for pair in zip(place.parts, place.parts[1:-1], strict=False)):
            return "evidence"
        for folder in place.parents:
            inner = place.relative_to(folder).parts[0]
            if inner in FOLDERS and is_workspace(folder):
                return f"what a workspace has in {inner}/"
            if place.relative_to(folder).parts in _REPORTS and is_workspace(folder):
                return "the folder of a workspace's reports or evidence"
        by_hand = place.suffix in BY_HAND and not (option == "--write" and place.suffix == ".py")
        if by_hand and os.path.isfile(place):
            return f"a {place.suffix} file, which is written by hand"
    return ""


def _mode(path: Path) -> int | None:
    """What lies at a path, behind links; None where nothing does, or nothing that can be seen."""
    try:
        return path.stat().st_mode
    except OSError:
        return None


def _streams(mode: int | None) -> bool:
    return mode is not None and (stat.S_ISCHR(mode) or stat.S_ISFIFO(mode))


def descriptor_of(path: str | Path) -> int | None:
    """The open file of this process that a path names, such as 1 for /dev/stdout."""
    name = os.path.abspath(path)
    found = _DESCRIPTOR.fullmatch(name)
    return int(found[1] or found[2]) if found else _NAMED.get(name)


def is_stream(path: str | Path) -> bool:
    """Whether a path is written to as it is: an open file of this process, a character device or a pipe."""
    return descriptor_of(path) is not None or _streams(_mode(Path(path)))


def opened(path: Path, how: str) -> TextIO:
    """A stream as it is, or a file, open in the mode `how`: w or a. Raises OSError."""
    if not is_stream(path):
        return cast(TextIO, path.open(how, encoding="utf-8"))
    number = descriptor_of(path)
    if number is None:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_NOCTTY), "w", encoding="utf-8")
    for own in (sys.stdout, sys.stderr):
        if own is not None:
            own.flush()
    return os.fdopen(os.dup(number), "w", encoding="utf-8")


def writable(out: Path | None, option: str = "--out") -> None:
    """Raises GradproofError GP407 or GP433 when the result could not be written, before anything is run."""
    if out is None:
        return
    allowed(out, option)
    folder = out.parent
    if is_stream(out):
        return
    if not os.path.isdir(folder):
        found = f"{folder} is no folder"
    elif not os.access(folder, os.W_OK):
        found = f"{folder} may not be written to"
    else:
        return
    raise GradproofError(
        "GP407", found, "a file in a folder that can be written to", f"name another {option}", str(out)
    )


def cleared(path: Path) -> None:
    """Take away the file that an earlier run wrote, so that a run that ends early leaves none; a stream stays.

    Raises GradproofError GP407.
    """
    if is_stream(path):
        return
    try:
        path.unlink(missing_ok=True)
    except NotADirectoryError:  # so nothing can be there; writing says why
        return
    except OSError as error:
        raise unwritten(path, error) from error


def written(path: Path, text: str, option: str = "--out") -> None:
    """Write the result: a file whole or not at all. Raises GradproofError GP407 and GP433."""
    allowed(path, option)
    try:
        if not is_stream(path):
            replace_whole(path, text)
            return
        stream = opened(path, "w")
        try:
            stream.write(text)
            stream.flush()
        finally:
            with suppress(OSError):  # what could not be flushed was reported already
                stream.close()
    except OSError as error:
        raise unwritten(path, error) from error


def unwritten(path: Path | str, error: OSError) -> GradproofError:
    """GP407 for a file that cannot be written."""
    found = f"{path} cannot be written: {error.strerror or error}"
    return GradproofError("GP407", found, "a place that can be written", "name another one")
