"""`gradproof verify-bundle`: is a bundle whole, and does its evidence carry its verdicts? Offline; nothing is executed.

In this order, each only where the one before found nothing: the signature where keys are given, the listing, the files,
the evidence against contracts and sources, and everything that follows from the evidence, made anew and compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradproof import __version__
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EVIDENCE_SCHEMA
from gradproof.core.workspace import CONTENT
from gradproof.evidence.store import parse as parse_json
from gradproof.execution.queries import counts, parse
from gradproof.extras.attest import manifest as listing, signing, statement
from gradproof.extras.attest.manifest import MANIFEST, BundleProblem, Manifest
from gradproof.extras.attest.statement import (
    BESIDE,
    DISTRIBUTIONS,
    FILES,
    INDEX,
    NOTHING,
    QUERIES,
    SOURCES,
    Carried,
    contradictions,
    files_of,
    opened,
)

if TYPE_CHECKING:
    from gradproof.extras.attest.signing import PublicKey

_GIVEN = ("evidence/", "gpu/", f"{QUERIES}/", f"{SOURCES}/proofs/", f"{SOURCES}/reports/")
_BESIDE = {f"{SOURCES}/{name}" for name in (*BESIDE, *(f"{folder}/{NOTHING}" for folder in CONTENT))}
_SHOWN = 160
EVIDENCE = ("evidence/", "gpu/")
"""Folders of a bundle that hold evidence."""
_MALFORMED = (GradproofError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OSError)
"""What data of another shape may raise where it is read: each becomes a problem, none is passed over."""


@dataclass(frozen=True)
class Judged:
    """A bundle that was read: what is wrong with it, and its own reports where nothing is.

    `key`: whose signature covers it; None where no key was given.
    """

    manifest: Manifest
    problems: tuple[BundleProblem, ...]
    carried: Carried | None = None
    reports: Mapping[str, dict[str, Any]] | None = None
    key: PublicKey | None = None


def verify(root: Path, keys: Sequence[PublicKey] = ()) -> Judged:
    """Judge a bundle. With `keys`, a valid signature of one of them over this very manifest is demanded.

    Raises GradproofError: GP443 where there is none to judge, GP444 for an unknown version.
    """
    manifest = listing.open_manifest(root)
    if not keys:
        return _judged(root, manifest)
    key, problem = signing.signed(root, listing.entry_of(root, MANIFEST).sha256, keys)
    if problem is not None:
        return Judged(manifest, (problem,))
    return replace(_judged(root, manifest), key=key)


def _judged(root: Path, manifest: Manifest) -> Judged:
    found = listing.problems(root, manifest)
    if found:
        return Judged(manifest, tuple(found))
    try:
        carried = _opened(root, manifest)
    except _MALFORMED as error:
        words = error.render() if isinstance(error, GradproofError) else f"{type(error).__name__}: {error}"
        return Judged(manifest, (BundleProblem("GP448", SOURCES, f"it cannot be judged: {words}"),))
    found = list(_evidence(manifest, carried))
    if found:
        return Judged(manifest, tuple(_of_another_format(root, manifest)) or tuple(found))
    found = list(_conclusions(root, manifest, carried))
    reports = {} if found else statement.reports(carried, manifest.made_at, manifest.gradproof)
    return Judged(manifest, tuple(found), carried, reports)


def _of_another_format(root: Path, manifest: Manifest) -> Iterator[BundleProblem]:
    """The first evidence file that another version wrote: no other problem says more."""
    for name in (e.path for e in manifest.files if e.path.startswith(EVIDENCE)):
        try:
            stated = parse_json(_text(root, name))
        except (ValueError, RecursionError):
            continue  # it is judged with the rest
        schema = str(stated.get("schema")) if isinstance(stated, dict) else ""
        if schema != EVIDENCE_SCHEMA and schema.startswith("gradproof-evidence/"):
            help = "judge the bundle with the gradproof that made it, or ask for a new one"
            yield BundleProblem("GP448", name, f"its format is {schema}, and not {EVIDENCE_SCHEMA}: {help}")
            return


def _opened(root: Path, manifest: Manifest) -> Carried:
    listed = {e.path for e in manifest.files}
    for name in manifest.contracts:
        if f"{SOURCES}/proofs/{name}/contract.yaml" not in listed:
            raise ValueError(f"it has no contract {name!r}")
    files = files_of(_text(root, FILES))
    installed = parse_json(_text(root, DISTRIBUTIONS))
    left_out = {row.check: row.reason for row in manifest.left_out}
    given = (manifest.contracts, manifest.profile, files, installed, left_out, manifest.made_at)
    return opened(root, *given, packaged=manifest.packaged)


def _text(root: Path, name: str) -> str:
    """A file of the bundle. Raises ValueError."""
    try:
        return (root / name).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from error


def _evidence(manifest: Manifest, carried: Carried) -> Iterator[BundleProblem]:
    """Every evidence file is believed, is about a planned check, and agrees with contracts, sources and versions."""
    held = {statement.place_of(carried, s): (n, s) for n, s in carried.statuses.items() if s.path}
    for name in (e.path for e in manifest.files if e.path.startswith(EVIDENCE)):
        if name not in held:
            own = next((c for c in carried.checks() if carried.store.folder(c).name == Path(name).parent.name), None)
            why = "no contract of the bundle plans its check"
            if own is not None:
                why = carried.store.status(own).reason or "there is more than one evidence file of this check"
            yield BundleProblem("GP448", name, why)
        elif not held[name][1].fresh:
            yield BundleProblem("GP448", name, f"it is no evidence of this bundle: {held[name][1].reason}")
    missing = {row.check for row in manifest.left_out}
    for name, status in carried.statuses.items():
        if (status.evidence is None) is not (name in missing):
            words = "is listed as left out, and is there" if status.evidence else "is neither there nor left out"
            yield BundleProblem("GP448", "evidence", f"the evidence of {name} {words}")


def _conclusions(root: Path, manifest: Manifest, carried: Carried) -> Iterator[BundleProblem]:
    """What follows from the evidence is what the bundle says."""
    try:
        made = statement.reports(carried, manifest.made_at, manifest.gradproof)
        expected = statement.documents(carried, made, manifest.wheel, manifest.sources)
    except _MALFORMED as error:
        yield BundleProblem("GP449", "reports", f"the evidence makes no report: {error}")
        return
    for name, report in made.items():
        yield from _report(root, statement.report_path(name), report)
    for name, text in expected.items():
        if not (root / name).is_file():
            yield BundleProblem("GP449", name, "it follows from the evidence, and is not there")
        elif (root / name).read_bytes() != text.encode():
            other = f" (the bundle is of gradproof {manifest.gradproof}, this is {__version__})"
            more = "" if manifest.gradproof == __version__ else other
            yield BundleProblem("GP449", name, f"it is not what follows from the evidence{more}")
    if listing.entry_of(root, FILES).sha256 != manifest.sources:
        yield BundleProblem("GP449", FILES, "its digest is not the manifest's digest of the sources")
    known = {*expected, *_BESIDE, DISTRIBUTIONS, *map(statement.report_path, made)}
    known |= {f"{SOURCES}/{key[3:]}" for key in carried.store.files if key.startswith("ws:")}
    for name in sorted(e.path for e in manifest.files):
        if name not in known and not name.startswith(_GIVEN):
            yield BundleProblem("GP449", name, "it follows from nothing in the bundle")
    yield from _queries(root, manifest, carried)
    texts = {name: expected[listing.statement_path(name)] for name in made}
    yield from signing.problems(root, listing.entry_of(root, MANIFEST).sha256, texts)


def _report(root: Path, name: str, made: Mapping[str, Any]) -> Iterator[BundleProblem]:
    """The report of the bundle against the one that its evidence makes. A malformed one differs."""
    try:
        stated = parse_json(_text(root, name))
    except (ValueError, RecursionError) as error:
        yield BundleProblem("GP449", name, f"it cannot be read: {error}")
        return
    if not isinstance(stated, dict) or set(stated) != set(made):
        yield BundleProblem("GP449", name, "its keys are not those of a report")
        return
    for key, value in made.items():
        if place := _study(stated[key], value) if key == "rounding" else _differs(key, stated[key], value):
            yield BundleProblem("GP449", name, place)


def _study(stated: Any, made: Mapping[str, Any]) -> str:
    """The rounding study, but for its status, which is that of the gradproof that wrote it."""
    if not isinstance(stated, dict) or set(stated) != set(made):
        return "rounding has other keys"
    return _differs("rounding.document", stated["document"], made["document"])


def _differs(place: str, stated: Any, made: Any) -> str:
    """The first place where two JSON values differ, in words, or an empty text."""
    if isinstance(stated, dict) and isinstance(made, dict) and set(stated) == set(made):
        return next((d for key in made if (d := _differs(f"{place}.{key}", stated[key], made[key]))), "")
    if isinstance(stated, list) and isinstance(made, list) and len(stated) == len(made):
        rows = enumerate(zip(stated, made, strict=True))
        named = ((b.get("id", i) if isinstance(b, dict) else i, a, b) for i, (a, b) in rows)
        return next((d for n, a, b in named if (d := _differs(f"{place}[{n}]", a, b))), "")
    same = type(stated) is type(made) and stated == made
    return "" if same else f"{place} is {_short(stated)}, and the evidence carries {_short(made)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _queries(root: Path, manifest: Manifest, carried: Carried) -> Iterator[BundleProblem]:
    """The index names every script, counts what is in it, and nothing in it contradicts the evidence."""
    place = INDEX
    try:
        rows = parse_json(_text(root, place))
        wanted = sorted(name for name, s in carried.statuses.items() if s.evidence is not None)
        if [row["check"] for row in rows] != wanted:
            raise ValueError("its rows are not those of the evidence")
        scripts = {row["file"]: row for row in rows if row["file"] is not None}
        listed = {e.path for e in manifest.files if e.path.startswith(f"{QUERIES}/")} - {place}
        if set(scripts) != listed:
            raise ValueError(f"it does not name {', '.join(sorted(set(scripts) ^ listed)[:3])}")
        contradicted = contradictions(rows)
    except _MALFORMED as error:
        yield BundleProblem("GP449", place, f"it is not the index of the queries: {error}")
        return
    for name, row in scripts.items():
        try:
            queries = parse(_text(root, name))
        except ValueError as error:
            yield BundleProblem("GP449", name, str(error))
            continue
        if dict(counts(queries)) != row.get("expected") or len(queries) != row.get("included"):
            yield BundleProblem("GP449", name, "its queries are not those that the index counts")
    for words in contradicted:
        yield BundleProblem("GP449", place, words)
