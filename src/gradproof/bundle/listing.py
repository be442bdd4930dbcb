"""Files of a bundle against its manifest: nothing missing, nothing more, no link, and every byte as it was.

A problem has a code of `gradproof explain`. Whatever is not an ordinary file or folder is one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from gradproof.bundle.document import BUNDLE, ENVELOPE, MANIFEST, Entry, Manifest
from gradproof.core import GradproofError
from gradproof.store import parse

_BLOCK = 1 << 20
_APART = (MANIFEST, ENVELOPE)
_STRANGE = {"link": "it is a link", "empty folder": "it is an empty folder", "other": "it is no file, link or folder"}


@dataclass(frozen=True)
class Problem:
    """What is wrong with a bundle: an error code, the place in the bundle, and what was found there."""

    code: str
    path: str
    found: str

    def __str__(self) -> str:
        return f"{self.code} {self.path}: {self.found}".encode(errors="backslashreplace").decode()


def entry_of(root: Path, path: str) -> Entry:
    """The entry of a file as it is now. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    with (root / path).open("rb") as f:
        while block := f.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return Entry(path=path, sha256=digest.hexdigest(), bytes=size)


def entries(root: Path) -> list[Entry]:
    """An entry for every file below `root` but the manifest and its envelope, sorted.

    Raises ValueError for what is no plain file.
    """
    found = list(walk(root))
    strange = [name for name, kind in found if kind != "file"]
    if strange:
        raise ValueError(f"{strange[0]} is no plain file")
    return [entry_of(root, name) for name in sorted(n for n, _ in found if n not in _APART)]


def walk(root: Path, below: str = "") -> Iterator[tuple[str, str]]:
    """Places below `root` and what each is: file, link, empty folder or other. Links are not followed."""
    with os.scandir(root / below) as scan:
        found = sorted(scan, key=lambda e: e.name)
    if not found and below:
        yield below, "empty folder"
    for item in found:
        name = f"{below}/{item.name}" if below else item.name
        if item.is_symlink():
            yield name, "link"
        elif item.is_dir(follow_symlinks=False):
            yield from walk(root, name)
        else:
            yield name, "file" if item.is_file(follow_symlinks=False) else "other"


def open_manifest(root: Path) -> Manifest:
    """The manifest of a bundle. Raises GradproofError: GP443 where there is none, GP444 for another version of it."""
    place = root / MANIFEST
    if place.is_symlink() or not place.is_file():
        raise _unreadable(root, f"there is no {MANIFEST}")
    try:
        data = parse(place.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(root, f"{MANIFEST} cannot be read: {error}") from error
    version = data.get("schema") if isinstance(data, dict) else None
    if isinstance(version, str) and version != BUNDLE:
        mend = "judge it with the release of gradproof that wrote it"
        raise GradproofError("GP444", f"the schema {version!r}", BUNDLE, mend, str(place))
    try:
        return Manifest.model_validate_json(json.dumps(data))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "document"
        raise _unreadable(root, f"{MANIFEST}: {where}: {first['msg']}") from error


def _unreadable(root: Path, found: str) -> GradproofError:
    mend = "name a folder that gradproof attest wrote, whole"
    return GradproofError("GP443", found, "a bundle of evidence", mend, str(root))


def problems(root: Path, manifest: Manifest) -> list[Problem]:
    """What is wrong with the files. Contents are read only where the listing itself is sound."""
    found = list(_listed(manifest.files))
    try:
        return found or list(_present(root, manifest.files))
    except OSError as error:
        return [Problem("GP446", str(error.filename), f"it cannot be read: {error.strerror}")]


def _listed(files: Sequence[Entry]) -> Iterator[Problem]:
    names = [e.path for e in files]
    for name in dict.fromkeys(n for n in names if names.count(n) > 1):
        yield Problem("GP445", name, "the manifest lists it twice")
    for name in names:
        parts = PurePosixPath(name).parts
        plain = "/".join(parts) == name and ".." not in parts and "\\" not in name and name.isprintable()
        if not plain or name in _APART or ":" in parts[0]:
            yield Problem("GP445", name, "it is no place inside of the bundle")
    if names != sorted(names):
        yield Problem("GP445", MANIFEST, "its files are not sorted")


def _present(root: Path, files: Sequence[Entry]) -> Iterator[Problem]:
    wanted = {e.path: e for e in files}
    there = dict(walk(root))
    for name, kind in there.items():
        if kind != "file":
            yield Problem("GP446", name, _STRANGE[kind])
        elif name not in wanted and name not in _APART:
            yield Problem("GP446", name, "the manifest does not list it")
    for name, entry in wanted.items():
        if name not in there:
            yield Problem("GP446", name, "it is missing")
        elif there[name] == "file":
            yield from _same(root, entry)


def _same(root: Path, entry: Entry) -> Iterator[Problem]:
    try:
        now = entry_of(root, entry.path)
    except OSError as error:
        yield Problem("GP446", entry.path, f"it cannot be read: {error.strerror}")
        return
    if now != entry:
        words = f"{now.bytes} bytes with sha256 {now.sha256[:16]}, not {entry.bytes} with {entry.sha256[:16]}"
        yield Problem("GP447", entry.path, words)
