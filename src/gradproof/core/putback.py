"""Files as they were before a script ran: what a probe of a few windows writes, renames or removes is put back.

An audit hook in the script's process, and in those that it forks, sees a change before it is made (PEP 578). What is at
the path is kept first; where that fails, the change is refused. The parent puts all back when that process is gone,
however it ended. Other programs, and code in C that opens files by itself, are not seen: sizes and times show them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

LARGE = 1 << 30
"""Bytes above which a file is not copied."""
FILES = 50_000
"""Files whose sizes and times are compared."""
PATHS: Mapping[str, Sequence[int]] = {
    "open": (0,), "os.rename": (0, 1), "os.remove": (0,), "os.rmdir": (0,), "os.mkdir": (0,), "os.link": (1,),
    "os.symlink": (1,), "os.truncate": (0,), "os.utime": (0,), "os.chmod": (0,), "shutil.rmtree": (0,),
    "sqlite3.connect": (0,),
}  # fmt: skip
"""Which arguments of an audit event are paths that change."""
WRITERS = (("torch._C", "PyTorchFileWriter", 0), ("safetensors", "serialize_file", 1))
"""Functions in C that write a file, and which argument names it: they raise no event of their own."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def keep_changes(folder: Path, homes: Sequence[str]) -> None:
    """Keep in `folder` what this process changes below `homes`, and elsewhere but in temporary and cache folders.

    A change of what cannot be kept is an OSError.
    """
    caches = [os.environ.get(name) or "/dev" for name in ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME")]
    others = ((str(folder.parent), "/dev", "/proc", os.path.expanduser("~/.cache"), *caches), homes)
    never, own = (tuple(os.path.join(os.path.realpath(one), "") for one in each) for each in others)
    passing = os.path.join(os.path.realpath(tempfile.gettempdir()), "")  # asked here: it holds a lock while it writes
    busy = threading.local()

    def seen(event: str, args: tuple[Any, ...]) -> None:
        if event not in PATHS or getattr(busy, "on", False):
            return
        if event == "open" and not ((args[2] or 0) & WRITES or {*(args[1] or "")} & {*"wax+"}):
            return
        busy.on = True
        try:
            given = [os.fsdecode(args[at]) for at in PATHS[event] if isinstance(args[at], str | bytes | os.PathLike)]
            paths = [_real(path, event in ("open", "os.truncate", "sqlite3.connect")) for path in given]
            for path in paths:
                at = os.path.join(path, "")
                if not at.startswith(never) and (at.startswith(own) or not at.startswith(passing)):
                    inner = [*_inside(path)] if event in ("os.rename", "shutil.rmtree") else []
                    moved = [paths[-1] + one[len(path) :] for one in inner] if event == "os.rename" else []
                    for one in (os.path.dirname(path), path, *inner, *moved):
                        _keep(one, folder)
        finally:
            busy.on = False

    for module, name, at in WRITERS:
        with suppress(ImportError):
            owner: Any = import_module(module)
            setattr(owner, name, _announced(getattr(owner, name), at))
    sys.addaudithook(seen)


def _announced(write: Any, at: int) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        sys.audit("open", args[at] if len(args) > at else kwargs.get("filename"), "w", 0)
        return write(*args, **kwargs)

    return call


def _real(path: str, follow: bool) -> str:
    """The path that changes: what a link leads to, where a file is written, and else the link itself."""
    whole = os.path.abspath(path)
    above, name = os.path.split(whole)
    return os.path.realpath(whole) if follow else os.path.join(os.path.realpath(above), name)


def _inside(path: str) -> Iterator[str]:
    """All folders and files below a folder."""
    for top, folders, files in os.walk(path):
        yield from (os.path.join(top, name) for name in (*folders, *files))


def _is_folder(path: str | Path) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _keep(path: str, folder: Path) -> None:
    """Keep what is at a path, once: a link that names the path, and beside it a copy of what is there."""
    record = folder / hashlib.sha256(os.fsencode(path)).hexdigest()
    copy, made = record.with_suffix(".copy"), record.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
    if record.is_symlink():
        return
    with suppress(FileExistsError):  # of two at a time the first
        if _is_folder(path):
            copy.mkdir()
            shutil.copystat(path, copy)
        elif os.path.isfile(path) or os.path.islink(path):
            if os.lstat(path).st_size > LARGE:
                why = "gradproof --stop-after puts back no file above 1 GiB, and lets nobody change it"
                raise OSError(errno.EFBIG, why, path)
            shutil.copy2(path, made, follow_symlinks=False)
            os.link(made, copy, follow_symlinks=False)
        record.symlink_to(path)


@contextmanager
def probed(folder: Path, homes: Sequence[str]) -> Iterator[list[str]]:
    """What a script changes meanwhile is put back, whatever ends it; then the list says what could not be.

    SIGTERM and SIGHUP interrupt this process as ctrl-C does, with the signal as the argument of KeyboardInterrupt.
    """

    def end(number: int, _: Any) -> None:
        raise KeyboardInterrupt(number)

    folder.mkdir()
    left, before = list[str](), snapshot(homes)
    usual = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    usual[signal.SIGINT] = signal.getsignal(signal.SIGINT)
    try:
        yield left
    finally:
        for number in usual:
            signal.signal(number, signal.SIG_IGN)
        if failed := put_back(folder):
            left += [*failed, f"copies are in {shutil.move(folder, tempfile.mkdtemp(prefix='gradproof-kept-'))}"]
        after = snapshot(homes)
        paths = {*before, *after} if before and after else {}
        left += [
            f"{path} (changed by another program, or by code in C)"
            for path in paths
            if before.get(path) != after.get(path)
        ]
        for number, handler in usual.items():
            signal.signal(number, handler)


def put_back(folder: Path) -> list[str]:
    """Put back what was kept; what could not be, and why."""
    kept = {os.readlink(record): record.with_suffix(".copy") for record in folder.glob("*") if not record.suffix}
    order, failed = sorted(kept, key=len), list[str]()
    for step, paths in ((_new, order[::-1]), (_changed, order), (_times, order[::-1])):
        for path in paths:
            try:
                step(path, kept[path])
            except OSError as error:
                failed.append(f"{path} ({error.strerror})")
    return failed


def _new(path: str, copy: Path) -> None:
    """What was not there goes, the deepest first."""
    if os.path.lexists(path) and (not os.path.lexists(copy) or _is_folder(path) != _is_folder(copy)):
        (os.rmdir if _is_folder(path) else os.remove)(path)


def _changed(path: str, copy: Path) -> None:
    """What was there is there again, folders before what they hold."""
    if _is_folder(copy):
        os.makedirs(path, exist_ok=True)
    elif os.path.lexists(copy):
        if os.path.lexists(path) and (os.path.islink(path) or copy.is_symlink()):
            os.remove(path)
        shutil.copy2(copy, path, follow_symlinks=False)


def _times(path: str, copy: Path) -> None:
    if os.path.lexists(copy):
        shutil.copystat(copy, path, follow_symlinks=False)


def snapshot(homes: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Size and time of each file below folders, but in hidden ones; nothing where there are more than FILES."""
    found = dict[str, tuple[int, int]]()
    for top, folders, files in (each for home in homes for each in os.walk(home)):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (os.path.join(top, name) for name in files):
            with suppress(OSError):
                found[path] = (os.lstat(path).st_size, os.lstat(path).st_mtime_ns)
        if len(found) > FILES:
            return {}
    return found
