"""One check in one process: `python -m gradproof.worker` with a job on the first line of stdin.

The job is JSON: check, root, reports, package, result. The evidence goes to the file `result`, which appears
complete or not at all. With `lifeline`, the end of stdin means that the parent is gone: the process group ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gradproof import backends
from gradproof.core import Check, Finding, GradproofError, Outcome
from gradproof.environment import environment, torch_device
from gradproof.evidence import now, record
from gradproof.workspace import PACKAGE, Finder, Workspace, installed, sha256_of

TAIL = 4000
_STDLIB = Path(os.__file__).resolve().parent


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


def claim_of(check: Check, root: Path, absent: Iterable[str], also: Iterable[str] = ()) -> dict[str, Any]:
    """What the run rests on: every file outside site-packages that was imported or declared read.

    A package that the check names counts wherever it is installed. Raises OSError when such a file is gone.
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
        if key is None:
            continue
        files[key] = Finder.loaded.get(str(path)) or sha256_of(path)
        if not key.startswith("gp:") and name != "__main__":
            modules[name] = key
    for place, digest in Finder.loaded.items():
        key = key_of(Path(place), root)
        if key is not None:
            files[key] = digest
    for name in also:
        path = (root / name).resolve()
        files[key_of(path, root) or f"ext:{path.as_posix()}"] = sha256_of(path)
    return {"spec": check.digest, "files": files, "modules": modules, "absent": sorted(absent)}


def attempt(check: Check, workspace: Workspace) -> Finding:
    """Run the backend. Whatever it raises is an ERROR with the end of the traceback."""
    try:
        finding = backends.run(check, workspace)
    except GradproofError as e:
        return Finding(Outcome.ERROR, f"{e.code}: {e.found}; expected {e.expected}", stats={"error": e.render()})
    except MemoryError:
        return Finding(Outcome.ERROR, "the check ran out of memory")
    except BaseException as e:
        tail = "".join(traceback.format_exception(e))[-TAIL:]
        return Finding(Outcome.ERROR, f"the backend raised {type(e).__name__}: {e}", stats={"traceback": tail})
    if not isinstance(finding, Finding):
        return Finding(Outcome.ERROR, f"the backend returned a {type(finding).__name__}, not a Finding")
    return finding


def edited(files: Mapping[str, str], root: Path, since: float) -> list[str]:
    """Keys of the engine's and the workspace's files that were written after `since` (seconds, epoch)."""
    places = {"gp": PACKAGE, "ws": root}
    found = []
    for key in files:
        kind, _, name = key.partition(":")
        path = places.get(kind, Path()) / name
        if not path.is_file() or path.stat().st_mtime > since:
            found.append(key)
    return found


def perform(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run the job's check and return its evidence."""
    began, started_at, clock = time.time(), now(), time.monotonic()
    check = Check.from_json(job["check"])
    workspace = Workspace(Path(job["root"]).resolve(), Path(job["reports"]))
    if Path(job["package"]) != PACKAGE:
        return record(check, Finding(Outcome.ERROR, f"the worker imported another gradproof, from {PACKAGE}"))
    finding, claim = Finding(Outcome.ERROR, "no run"), {}
    try:
        absent = workspace.enter().absent
        finding = attempt(check, workspace)
        claim = claim_of(check, workspace.root, absent, finding.stats.get("files_read", ()))
        late = edited(claim["files"], workspace.root, began)
        if late:
            finding = Finding(Outcome.ERROR, f"edited while the check ran: {', '.join(late[:5])}")
    except (GradproofError, OSError) as e:
        finding = Finding(Outcome.ERROR, f"{type(e).__name__}: {e}")
    seen = {**environment(), **torch_device(str(check.layer))}
    return record(
        check, finding, claim=claim, environment=seen, started_at=started_at, seconds=time.monotonic() - clock
    )


def _watch(descriptor: int) -> None:
    """End the process group when the parent closes its end of the pipe, which its death does too."""
    while os.read(descriptor, 1):
        continue
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def write_whole(path: Path, data: Any) -> None:
    """Write JSON so that `path` holds all of it or does not exist."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as f:
        json.dump(data, f, ensure_ascii=False, allow_nan=False)
        f.flush()
        os.fsync(f.fileno())
    os.replace(temporary, path)


def main() -> None:
    """Read the job, run it, write the evidence, and end without the interpreter's own teardown."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1 << 16)
        if not byte:
            break
        line += byte
    job = json.loads(line)
    lifeline = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if job.get("lifeline"):
        threading.Thread(target=_watch, args=(lifeline,), daemon=True).start()
    write_whole(Path(job["result"]), perform(job))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
