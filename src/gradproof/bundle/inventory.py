"""What a bundle says of the installation: distributions with the digests of their own file lists, and the wheel."""

from __future__ import annotations

import hashlib
import importlib.metadata
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradproof.bundle.document import Wheel
from gradproof.core import GradproofError
from gradproof.environment import environment
from gradproof.packages import normal
from gradproof.workspace import sha256_of


def ran_on() -> dict[str, Any]:
    """This machine's versions, and every installed distribution: version, and sha256 of its RECORD (null without)."""
    found = {}
    for one in importlib.metadata.distributions():
        name, record = one.metadata["Name"], one.read_text("RECORD")
        if name and normal(name) not in found:
            digest = hashlib.sha256(record.encode()).hexdigest() if record else None
            found[normal(name)] = {"version": one.version, "record_sha256": digest}
    return {"environment": environment(), "distributions": dict(sorted(found.items()))}


def wheel_of(path: Path, files: Mapping[str, str]) -> Wheel:
    """The wheel, if it holds every file of the engine in `files`, as it ran. Raises GradproofError GP442."""
    try:
        with zipfile.ZipFile(path) as held:
            members = set(held.namelist())
            other = [key for key, digest in files.items() if not _holds(held, members, key, digest)]
        size = path.stat().st_size
        digest = sha256_of(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise _refused(path, f"it is no wheel that can be read: {error}") from error
    if other:
        raise _refused(path, f"{len(other)} files that ran are not in it as they ran, {other[0]} first")
    return Wheel(name=path.name, sha256=digest, bytes=size)


def _holds(held: zipfile.ZipFile, members: set[str], key: str, digest: str) -> bool:
    kind, _, name = key.partition(":")
    if kind != "gp" or not digest:
        return True
    inside = f"gradproof/{name}"
    return inside in members and hashlib.sha256(held.read(inside)).hexdigest() == digest


def _refused(path: Path, found: str) -> GradproofError:
    mend = "build the wheel of the sources that ran, or run the checks with that wheel installed"
    return GradproofError("GP442", found, "the wheel whose files the evidence rests on", mend, str(path))
