"""Files of a bundle against its manifest: nothing missing, nothing more, no link, and every byte as it was.

A problem has a code of `gradproof explain`. Whatever is not an ordinary file or folder is one.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from gradproof.core.errors import GradproofError
from gradproof.core.schemas.base import DocumentModel, Sha256
from gradproof.core.workspace import sha256_of
from gradproof.evidence.environment import environment, normal
from gradproof.evidence.store import parse, safe

# -- `MANIFEST.json`, format `gradproof-bundle/1`: every other file of a bundle with its digest.
BUNDLE = "gradproof-bundle/1"
MANIFEST = "MANIFEST.json"
ENVELOPE = "MANIFEST.dsse.json"
"""The signature over the manifest: beside the manifest the one file that no manifest lists."""
SAYS = "The evidence in this folder supports the verdicts in reports/, as far as each check reaches."
Text = Annotated[str, Field(min_length=1)]


class ManifestEntry(DocumentModel):
    """A file: its place in the bundle with forward slashes, sha256 in hex, size in bytes."""

    path: Text
    sha256: Sha256
    bytes: Annotated[int, Field(ge=0)]


class Wheel(DocumentModel):
    """The wheel that was named: each file of the engine that a verdict depends on is in it, byte for byte."""

    name: Text
    sha256: Sha256
    bytes: Annotated[int, Field(ge=1)]


class LeftOut(DocumentModel):
    """A planned check of which the bundle carries no evidence."""

    check: Text
    reason: Text


class Manifest(DocumentModel):
    """What the bundle holds. `sources`: sha256 of files.sha256, which names every file that a verdict depends on.

    `packaged`: there was no workspace, and the packaged reference was judged; each report says so as well.

    History: 1, the first.
    """

    document: Literal["gradproof-bundle/1"] = Field(alias="schema")
    says: Literal["The evidence in this folder supports the verdicts in reports/, as far as each check reaches."]
    gradproof: Text
    made_at: Text
    profile: Literal["ci", "release"]
    packaged: bool
    contracts: Annotated[list[Text], Field(min_length=1)]
    sources: Sha256
    wheel: Wheel | None
    left_out: list[LeftOut]
    files: list[ManifestEntry]


# -- What a bundle says of the installation: distributions with the digests of their own file lists, and the wheel.
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
    help = "build the wheel of the sources that ran, or run the checks with that wheel installed"
    return GradproofError("GP442", found, "the wheel whose files the evidence rests on", help, str(path))


_APART = (MANIFEST, ENVELOPE)
_STRANGE = {"link": "it is a link", "empty folder": "it is an empty folder", "other": "it is no file, link or folder"}


@dataclass(frozen=True)
class BundleProblem:
    """What is wrong with a bundle: an error code, the place in the bundle, and what was found there."""

    code: str
    path: str
    found: str

    def __str__(self) -> str:
        return f"{self.code} {self.path}: {self.found}".encode(errors="backslashreplace").decode()


def entry_of(root: Path, path: str) -> ManifestEntry:
    """The entry of a file as it is now. Raises OSError."""
    with (root / path).open("rb") as f:
        return ManifestEntry(path=path, sha256=hashlib.file_digest(f, "sha256").hexdigest(), bytes=f.tell())


def entries(root: Path) -> list[ManifestEntry]:
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
        help = "judge it with the release of gradproof that wrote it"
        raise GradproofError("GP444", f"the schema {version!r}", BUNDLE, help, str(place))
    try:
        return Manifest.model_validate_json(json.dumps(data))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "document"
        raise _unreadable(root, f"{MANIFEST}: {where}: {first['msg']}") from error


def _unreadable(root: Path, found: str) -> GradproofError:
    help = "name a folder that gradproof attest wrote, whole"
    return GradproofError("GP443", found, "a bundle of evidence", help, str(root))


def problems(root: Path, manifest: Manifest) -> list[BundleProblem]:
    """What is wrong with the files. Contents are read only where the listing itself is sound."""
    found = list(_listed(manifest.files))
    try:
        return found or list(_present(root, manifest.files))
    except OSError as error:
        return [BundleProblem("GP446", str(error.filename), f"it cannot be read: {error.strerror}")]


def _listed(files: Sequence[ManifestEntry]) -> Iterator[BundleProblem]:
    names = [e.path for e in files]
    for name in dict.fromkeys(n for n in names if names.count(n) > 1):
        yield BundleProblem("GP445", name, "the manifest lists it twice")
    for name in names:
        parts = PurePosixPath(name).parts
        plain = "/".join(parts) == name and ".." not in parts and "\\" not in name and name.isprintable()
        if not plain or name in _APART or ":" in parts[0]:
            yield BundleProblem("GP445", name, "it is no place inside of the bundle")
    if names != sorted(names):
        yield BundleProblem("GP445", MANIFEST, "its files are not sorted")


def _present(root: Path, files: Sequence[ManifestEntry]) -> Iterator[BundleProblem]:
    wanted = {e.path: e for e in files}
    there = dict(walk(root))
    for name, kind in there.items():
        if kind != "file":
            yield BundleProblem("GP446", name, _STRANGE[kind])
        elif name not in wanted and name not in _APART:
            yield BundleProblem("GP446", name, "the manifest does not list it")
    for name, entry in wanted.items():
        if name not in there:
            yield BundleProblem("GP446", name, "it is missing")
        elif there[name] == "file":
            try:
                now = entry_of(root, name)
            except OSError as error:
                yield BundleProblem("GP446", name, f"it cannot be read: {error.strerror}")
                continue
            if now != entry:
                words = f"{now.bytes} bytes with sha256 {now.sha256[:16]}, not {entry.bytes} with {entry.sha256[:16]}"
                yield BundleProblem("GP447", name, words)


def dumped(data: Any) -> str:
    """JSON as every file of a bundle has it. Raises ValueError for NaN and infinity."""
    return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def statement_path(contract: str) -> str:
    """Where the in-toto statement of a contract lies."""
    return f"statements/{safe(contract)}.json"


# -- In-toto statements: v1, with a test-result predicate v0.1.
TYPE, PREDICATE = "https://in-toto.io/Statement/v1", "https://in-toto.io/attestation/test-result/v0.1"
RESULTS = ("FAILED", "WARNED", "PASSED")  # the worst first


def stated(
    subject: dict[str, Any], result: str, configuration: list[dict[str, Any]],
    passed: list[str], warned: list[str], failed: list[str],
) -> dict[str, Any]:  # fmt: skip
    """An in-toto statement with a test-result predicate."""
    return {
        "_type": TYPE,
        "subject": [subject],
        "predicateType": PREDICATE,
        "predicate": {
            "result": result,
            "configuration": configuration,
            "passedTests": passed,
            "warnedTests": warned,
            "failedTests": failed,
        },
    }


def of_manifest(digest: str, statements: Mapping[str, str]) -> dict[str, Any]:
    """The statement about a whole bundle. Its subject is the manifest, by `digest` (sha256 in hex).

    `statements`: the text of each contract's, by its id. The tests are the contracts.
    """
    results = {name: json.loads(text)["predicate"]["result"] for name, text in statements.items()}
    named = {word: [name for name, result in results.items() if result == word] for word in RESULTS}
    result = next((word for word in RESULTS if named[word]), "FAILED")
    texts = [described(statement_path(n), hashlib.sha256(text.encode()).hexdigest()) for n, text in statements.items()]
    return stated(described(MANIFEST, digest), result, texts, named["PASSED"], named["WARNED"], named["FAILED"])


def described(name: str, digest: str) -> dict[str, Any]:
    """A file as in-toto describes one. `digest`: sha256 in hex."""
    return {"name": name, "digest": {"sha256": digest}}
