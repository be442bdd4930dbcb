"""Files as they were before a script ran: what a probe of a few windows writes, renames or removes is put back.

An audit hook in the script's process, and in those that it forks, sees a change before it is made (PEP 578). What is at
the path is kept first; where that fails, the change is refused. The parent puts all back when that process is gone,
however it ended. Other programs, and code in C that opens files by itself, are not seen: sizes and times show them.
"""

from __future__ import annotations

import errno
import fcntl
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

from gradproof.core.processes import PREFIX

LARGE = 1 << 30
"""Bytes above which a file is not copied."""
FILES = 50_000
"""Files whose sizes and times are compared."""
OPEN, WRITES = os.open, os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
PATHS: Mapping[str, Mapping[int, int]] = {
    "open": {0: 3}, "os.rename": {0: 2, 1: 3}, "os.remove": {0: 1}, "os.rmdir": {0: 1}, "os.mkdir": {0: 2},
    "os.link": {0: 2, 1: 3}, "os.symlink": {1: 2}, "os.truncate": {0: 2}, "os.utime": {0: 3}, "os.chmod": {0: 2},
    "sqlite3.connect": {0: 1},
}  # fmt: skip
"""Which arguments of an audit event are paths that change, and which are the `dir_fd` of each, where it is there."""
WRITERS = (("torch._C", "PyTorchFileWriter", 0), ("safetensors", "serialize_file", 1), ("os", "open", 0))
"""Functions in C that write a file, and which argument names it: no event of their own says it, or its `dir_fd`."""


def keep_changes(folder: Path, homes: Sequence[str], option: str) -> None:
    """Keep in `folder` what this process changes below `homes`, and elsewhere but in temporary and cache folders.

    A change of what cannot be kept is an OSError, which names the `option` that asked for it.
    """
    caches = [os.environ.get(name) or "/dev" for name in ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME")]
    others, busy = ("/dev", "/proc", os.path.expanduser("~/.cache"), *caches), threading.local()
    temporary = [tempfile.gettempdir()]  # asked here: it holds a lock while it writes a file
    never, own, passing = (
        tuple(os.path.join(os.path.realpath(one), "") for one in each) for each in (others, homes, temporary)
    )
    never += (passing[0] + PREFIX,)  # gradproof's own

    def seen(event: str, args: tuple[Any, ...]) -> None:
        if event not in PATHS or getattr(busy, "on", False):
            return
        if event == "open" and not ((args[2] or 0) & WRITES or {*(args[1] or "")} & {*"wax+"}):
            return
        busy.on = True
        try:
            pairs = [(args[at], args[of] if of < len(args) else -1) for at, of in PATHS[event].items()]
            given = [_below(path, of) for path, of in pairs if isinstance(path, str | bytes | os.PathLike)]
            paths = [_real(path, event in ("open", "os.truncate", "sqlite3.connect")) for path in given]
            for path in paths:
                at = os.path.join(path, "")
                if not at.startswith(never) and (at.startswith(own) or not at.startswith(passing)):
                    walk = os.walk(path) if event == "os.rename" else ()
                    inner = [os.path.join(top, name) for top, *names in walk for name in (*names[0], *names[1])]
                    moved = [paths[-1] + one[len(path) :] for one in inner] if event == "os.rename" else []
                    for one in (os.path.dirname(path), path, *inner, *moved):
                        _keep(one, folder, option)
        finally:
            busy.on = False

    for module, name, at in WRITERS:
        with suppress(ImportError):
            owner: Any = import_module(module)
            setattr(owner, name, _announced(getattr(owner, name), at))
    sys.addaudithook(seen)


def _announced(write: Any, at: int) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        folder = kwargs.get("dir_fd")
        if write is not OPEN or folder is not None:
            sys.audit("open", args[at] if len(args) > at else kwargs.get("filename"), "w", 0, folder)
        return write(*args, **kwargs)

    return call


def _below(path: Any, of: Any) -> str:
    """A path as one below the folder of a `dir_fd`, where there is one."""
    if not isinstance(of, int) or of < 0:
        return os.fsdecode(path)
    mac = getattr(fcntl, "F_GETPATH", None)
    folder = os.readlink(f"/proc/self/fd/{of}") if mac is None else fcntl.fcntl(of, mac, bytes(1024)).rstrip(b"\0")
    return os.path.join(os.fsdecode(folder), os.fsdecode(path))


def _real(path: str, follow: bool) -> str:
    """The path that changes: what a link leads to, where a file is written, and else the link itself."""
    above, name = os.path.split(os.path.abspath(path))
    return os.path.realpath(path) if follow else os.path.join(os.path.realpath(above), name)


def _is_folder(path: str | Path) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _keep(path: str, folder: Path, option: str) -> None:
    """Keep what is at a path, once: a link that says whether it was there, and a copy."""
    record = folder / hashlib.sha256(os.fsencode(path)).hexdigest()
    copy, made = record.with_suffix(".copy"), record.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
    if record.is_symlink():
        return
    there = os.path.lexists(path)
    with suppress(FileExistsError):  # of two at a time the first
        if _is_folder(path):
            copy.mkdir()
            shutil.copystat(path, copy)
        elif os.path.isfile(path) or os.path.islink(path):
            if os.lstat(path).st_size > LARGE:
                raise OSError(errno.EFBIG, f"{option} puts back no file above 1 GiB: it may not be changed", path)
            shutil.copy2(path, made, follow_symlinks=False)
            os.link(made, copy, follow_symlinks=False)
        record.symlink_to(("+" if there else "-") + path)


def shared() -> Path | None:
    """The folder that the ranks of one torchrun share; None where none has started this process."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    import psutil

    launcher = psutil.Process(os.getppid())  # its number may have been another's before
    return Path(tempfile.gettempdir(), f"{PREFIX}{launcher.pid}-{launcher.create_time()}", "kept")


@contextmanager
def probed(folder: Path, homes: Sequence[str]) -> Iterator[list[str]]:
    """What a script changes meanwhile is put back, whatever ends it; then the list says what could not be.

    SIGTERM and SIGHUP interrupt this process as ctrl-C does, with the signal as the argument of KeyboardInterrupt.
    The ranks of a launcher share the folder: each puts back, and the last one removes it.
    """

    def end(number: int, _: Any) -> None:
        raise KeyboardInterrupt(number)

    folder.mkdir(parents=True, exist_ok=True)
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
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if shared() else 0
        with suppress(OSError):
            (folder / f"{os.getpid()}.ended").touch()
            if 0 < ranks <= len([*folder.glob("*.ended")]):
                shutil.rmtree(folder.parent)
        after = None if ranks or before is None else snapshot(homes)
        changes = before.items() ^ after.items() if before is not None and after is not None else set()
        others = sorted({path for path, _ in changes if not _own_output(path)})
        left += [f"{path} (changed by another program, or by code in C)" for path in others]
        for number, handler in usual.items():
            signal.signal(number, handler)


def _own_output(path: str) -> bool:
    """Whether stdout or stderr of this process goes to this file."""
    for stream in (1, 2):
        with suppress(OSError):
            if os.path.samestat(os.fstat(stream), os.stat(path)):
                return True
    return False


def put_back(folder: Path) -> list[str]:
    """Put back what was kept: what is new goes, the deepest first, then come files and times. What failed, and why."""
    links = {record: os.readlink(record) for record in folder.glob("*") if not record.suffix}
    kept = {link[1:]: record.with_suffix(".copy" if link[0] == "+" else ".none") for record, link in links.items()}
    order, failed = sorted(kept, key=len), list[str]()
    for step, paths in (("link", order), ("remove", order[::-1]), ("write", order), ("date", order[::-1])):
        for path in paths:
            try:
                if os.path.realpath(os.path.dirname(path)) == os.path.dirname(path):
                    _put(step, path, kept[path])
                elif step == "date":
                    failed.append(f"{path} (its folder is reached through a new link)")
            except OSError as error:
                failed.append(f"{path} ({error.strerror})")
    return failed


def _put(step: str, path: str, copy: Path) -> None:
    was, link = os.path.lexists(copy), copy.is_symlink()
    if step == "link" and os.path.islink(path):
        os.remove(path)
    elif step == "remove" and os.path.lexists(path) and (not was or link or _is_folder(path) != _is_folder(copy)):
        (os.rmdir if _is_folder(path) else os.remove)(path)
    elif step == "write" and _is_folder(copy):
        os.makedirs(path, exist_ok=True)
    elif step == "write" and was:
        shutil.copy2(copy, path, follow_symlinks=False)
    elif step == "date" and was:
        shutil.copystat(copy, path, follow_symlinks=False)


def snapshot(homes: Sequence[str]) -> dict[str, tuple[int, int]] | None:
    """Size and time of each file below folders, but in hidden ones; None where there are more than FILES."""
    found = dict[str, tuple[int, int]]()
    for top, folders, files in (each for home in homes for each in os.walk(home)):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (os.path.join(top, name) for name in files):
            with suppress(OSError):
                found[path] = (os.lstat(path).st_size, os.lstat(path).st_mtime_ns)
        if len(found) > FILES:
            return None
    return found
