"""What is sent to another machine, and what runs there: the workspace by content, and one process for each job.

A workspace is named by the sha256 over the paths and digests of its files, so that an archive, and a copy that was
unpacked, can be compared with the name at every use. A job runs there as it runs here: the same process, limits and
seal. Functions of this module are called inside a worker of the engine; nothing here imports that engine.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradproof.core.check import Check, digest_of
from gradproof.core.errors import GradproofError
from gradproof.core.processes import MIB, PREFIX
from gradproof.core.workspace import PACKAGE, Workspace, sha256_of
from gradproof.evidence.environment import KEYS, differ, environment, variables
from gradproof.execution.engine import WorkItem
from gradproof.execution.local import ForkServers, Worker, process_of

MOST_BYTES = 256 * MIB
KEPT = 8  # workspaces in a worker, which may live for months


# -- The workspace by content.


def shipped(root: Path) -> Iterator[tuple[str, Path]]:
    """Place and path of every file that a check may read, in order.

    Left out: hidden files, bytecode, virtual environments, evidence and reports of runs, and gradproof's own package,
    which every worker has. A link to a file counts as that file. Raises GradproofError GP499 for a link that leads out.
    """
    root = root.resolve()
    for home, below, names in os.walk(root):
        folder = Path(home)
        inside = folder.relative_to(root)
        below[:] = sorted(name for name in below if _enters(folder / name, inside))
        reports = inside.parts[:1] == ("reports",)
        names = [n for n in sorted(names) if not n.startswith(".") and not (reports and n.startswith("report."))]
        for name in [*below, *names]:
            path = folder / name
            if path.is_symlink() and not (leads := path.resolve()).is_relative_to(root):
                found = f"{inside / name} is a link to {leads}, outside of the workspace"
                help = "put a copy in its place, or the link into a folder whose name begins with a dot"
                raise GradproofError("GP499", found, "nothing from outside of the workspace to send to workers", help)
        yield from (((inside / n).as_posix(), folder / n) for n in names if (folder / n).is_file())


def _enters(folder: Path, above: Path) -> bool:
    left_out = ("__pycache__", "evidence") if above.parts == ("reports",) else ("__pycache__",)
    if folder.name.startswith(".") or folder.name in left_out:
        return False
    return not (folder / "pyvenv.cfg").exists() and folder.resolve() != PACKAGE


def name_of(root: Path) -> str:
    """The name of a workspace's content: a digest over the place and digest of every file that is sent."""
    return digest_of({place: sha256_of(path) for place, path in shipped(root)})


@dataclass(frozen=True)
class Archive:
    """A workspace as the bytes of a compressed tar file, and the name of its content."""

    name: str
    data: bytes


def packed(root: Path) -> Archive:
    """The archive of a workspace. Raises GradproofError: GP497 for more than MOST_BYTES, GP499 for a link out of it."""
    digests: dict[str, str] = {}
    size, buffer = 0, io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for place, path in shipped(root):
            size += path.stat().st_size
            if size > MOST_BYTES:
                found = f"the files of {root} have more than {MOST_BYTES // MIB} MiB, counted up to {place}"
                help = "move what no check reads out of the workspace, or into a folder whose name begins with a dot"
                raise GradproofError("GP497", found, f"at most {MOST_BYTES // MIB} MiB to send to workers", help)
            content = path.read_bytes()
            digests[place] = hashlib.sha256(content).hexdigest()
            entry = tarfile.TarInfo(place)
            entry.size, entry.mode = len(content), 0o755 if os.access(path, os.X_OK) else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return Archive(digest_of(digests), gzip.compress(buffer.getvalue(), 6, mtime=0))


def _intact(place: Path, name: str) -> bool:
    """Whether a folder holds the files of this name, and no link that leads out of it."""
    try:
        return place.is_dir() and name_of(place) == name
    except GradproofError:
        return False


def unpacked(archive: Archive, folder: Path) -> Path:
    """A new folder below `folder` with the files of an archive. Raises ValueError for other files than its name's."""
    place = Path(tempfile.mkdtemp(prefix=f"{PREFIX}workspace-", dir=folder)).resolve()
    try:
        with tarfile.open(fileobj=io.BytesIO(archive.data), mode="r:gz") as tar:
            tar.extractall(place, filter="data")
        if (found := name_of(place)) != archive.name:
            raise ValueError(f"the archive holds workspace {found[:12]}, and its name says {archive.name[:12]}")
    except (tarfile.TarError, EOFError, OSError, ValueError) as e:
        shutil.rmtree(place, ignore_errors=True)
        raise ValueError(f"the archive of the workspace is refused: {e}") from e
    return place


# -- What counts on both sides.


def engine_here() -> dict[str, Any]:
    """This machine as evidence sees it: versions, variables, and a digest of each file of the installed gradproof."""
    files = (p for p in sorted(PACKAGE.rglob("*")) if p.is_file() and p.suffix != ".pyc")
    own = {p.relative_to(PACKAGE).as_posix(): sha256_of(p) for p in files}
    sources = {place: digest for place, digest in own.items() if not place.startswith("_reference/")}
    return {**environment(), "variables": variables(""), "sources": sources}


def differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """Why evidence of that machine would not count here, in words; empty where it would."""
    names = sorted({key for keys in KEYS.values() for key in keys})
    found = [f"{n} {there.get(n)} there, {here.get(n)} here" for n in names if differ(n, there.get(n), here.get(n))]
    if here["variables"] != there.get("variables"):
        found.append(f"variables {there.get('variables')} there, {here['variables']} here")
    ours, theirs = here["sources"], there.get("sources", {})
    if changed := sorted(place for place in {*ours, *theirs} if ours.get(place) != theirs.get(place)):
        versions = f"{there.get('gradproof')} there, {here['gradproof']} here"
        found.insert(0, f"gradproof differs ({versions}) in {len(changed)} of its files, {changed[0]} first")
    return found


# -- Inside of a worker of the engine.
PROCESS = uuid.uuid4().hex  # which one this is: another one may answer at its address later
_LOCK = threading.Lock()
_archives: dict[str, Archive] = {}
_places: dict[str, Path] = {}
_users: Counter[Path] = Counter()
_running: dict[str, dict[str, Worker]] = {}
_servers: dict[tuple[str, Path], ForkServers] = {}  # of a run, and of the folder that they run in


def meet(name: str) -> dict[str, Any]:
    """What this worker is, which process, and whether it holds a workspace already."""
    return {**engine_here(), "process": PROCESS, "holds": name in _archives}


def hold(name: str, data: bytes, folder: str) -> str:
    """Unpack a workspace below a folder of this worker, once, and drop the one that was used the longest time ago.

    Returns which process this is. Raises ValueError for an archive that is not it.
    """
    archive = Archive(name, data)
    with _LOCK:
        if name not in _archives:
            _places[name] = unpacked(archive, Path(folder))
            _archives[name] = archive
            for old in list(_archives)[:-KEPT]:
                del _archives[old]
                _drop(_places.pop(old))
    return PROCESS


@contextmanager
def _copy(name: str) -> Iterator[Path]:
    """The workspace's folder; where a job has written into it, another one. Raises KeyError, ValueError."""
    with _LOCK:
        place = _places[name]
        if not _intact(place, name):
            _places[name] = unpacked(_archives[name], place.parent)
            _drop(place)
            place = _places[name]
        _users[place] += 1
        _archives[name] = _archives.pop(name)  # the last that was used is the last to go
    try:
        yield place
    finally:
        with _LOCK:
            _users[place] -= 1
            if place not in _places.values():
                _drop(place)


def _drop(place: Path) -> None:
    """Remove a folder that no job uses."""
    if not _users[place]:
        for key in [key for key in _servers if key[1] == place]:
            _servers.pop(key).close()
        shutil.rmtree(place, ignore_errors=True)


def perform(stated: str, seconds: float, memory: int | None, name: str, session: str) -> str:
    """Run a check, stated as JSON, in a workspace that this worker holds. `session`: the run that it is of.

    Returns JSON: the evidence, and which process this is.
    """
    job = WorkItem(Check.from_json(json.loads(stated)), seconds, memory)
    with _copy(name) as root:
        with _LOCK:
            servers = _servers.setdefault((session, root), ForkServers(root))
            process = process_of(job, Workspace(root, root / "reports"), servers)
            _running.setdefault(session, {})[job.name] = process
        try:
            return json.dumps({"process": PROCESS, "evidence": process.run().stated()})
        finally:
            with _LOCK:
                _running.get(session, {}).pop(job.name, None)


def end(session: str) -> None:
    """Kill what still runs of a run, and what was started for it."""
    with _LOCK:
        processes = list(_running.pop(session, {}).values())
        servers = [_servers.pop(key) for key in list(_servers) if key[0] == session]
    for process in processes:
        process.kill()
    for server in servers:
        server.close()
