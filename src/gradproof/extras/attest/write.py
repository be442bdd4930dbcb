"""`gradproof attest`: the evidence at hand as a bundle, in a folder that appears whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradproof import __version__
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Exit
from gradproof.core.workspace import CONTENT, sha256_of
from gradproof.evidence.record import Standing, now
from gradproof.execution.pool import Listener
from gradproof.extras.attest import rerun, signing, statement
from gradproof.extras.attest.manifest import (
    BUNDLE,
    ENVELOPE,
    MANIFEST,
    SAYS,
    LeftOut,
    Manifest,
    entries,
    entry_of,
    ran_on,
    wheel_of,
)
from gradproof.extras.attest.statement import (
    BESIDE,
    DISTRIBUTIONS,
    FILES,
    NOTHING,
    SOURCES,
    Carried,
    claimed,
    clock,
    files_text,
    opened,
)
from gradproof.session import Session

if TYPE_CHECKING:
    from gradproof.extras.attest.signing import Signer

NO_QUERIES = "left out with --no-queries"


@dataclass(frozen=True)
class Wanted:
    """What `gradproof attest` is asked for. `second_limit`: seconds of the second solver for each check.

    `signer`: the key that signs it; None for a bundle without a signature.
    """

    out: Path
    wheel: Path | None = None
    queries: bool = True
    second_limit: float = 20.0
    jobs: int = 1
    signer: Signer | None = None


@dataclass(frozen=True)
class Made:
    """A bundle that was written: its verdicts, what it left out, and what its repeated queries contradict."""

    manifest: Manifest
    digest: str
    reports: Mapping[str, dict[str, Any]]
    contradictions: tuple[str, ...]


def attest(session: Session, wanted: Wanted, listener: Listener = lambda progress: None) -> Made:
    """Write the bundle.

    Raises GradproofError: GP440 for the folder, GP441 without evidence, GP442 for the wheel, GP475 for the key.
    """
    made_at = stated_time()
    out = free(wanted.out)
    standings = session.standings(c for checks in session.plans.values() for c in checks)
    if not any(s.fresh for s in standings.values()):
        mend = "run gradproof verify first"
        raise GradproofError("GP441", "no check has fresh evidence", "evidence of the sources as they are", mend)
    _honest(session, standings, made_at)
    stage = out.with_name(f".{out.name[:40]}.{secrets.token_hex(8)}.tmp")
    try:
        stage.mkdir()
        made = _fill(stage, session, standings, wanted, made_at, listener)
        os.rename(stage, out)
    except OSError as error:
        raise _refused(out, f"it cannot be written: {error}") from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return made


def stated_time() -> str:
    """The time that a bundle states: SOURCE_DATE_EPOCH (seconds, UTC) where it is set. Raises GradproofError GP440."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is None:
        return now()
    try:
        return datetime.fromtimestamp(int(given), UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError) as error:
        found = f"SOURCE_DATE_EPOCH={given!r}"
        raise GradproofError("GP440", found, "whole seconds since 1970", "set it right, or unset it") from error


def _honest(session: Session, standings: Mapping[str, Standing], made_at: str) -> None:
    """Raises GradproofError GP440 where a gate is met on the day that a bundle states, and is not today."""
    stated = replace(session.demands, now=clock(made_at, standings))
    today = session.verdicts(standings, *session.contracts)
    then = session.under(stated).verdicts(standings, *session.contracts)
    for contract in session.contracts:
        if then[contract.id].exit is Exit.MET and today[contract.id].exit is not Exit.MET:
            reason = next(iter(today[contract.id].reasons), "")
            found = f"SOURCE_DATE_EPOCH of {made_at[:10]}, when the gate of {contract.id} was met; today: {reason}"
            mend = "renew what has run out, or set SOURCE_DATE_EPOCH to today"
            raise GradproofError("GP440", found, "a day on which the gate stands as it does today", mend)


def free(out: Path) -> Path:
    """The folder to write. Raises GradproofError GP440 where something is there already."""
    out = Path(os.path.abspath(out))
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise _refused(out, "it is no folder")
    if out.is_dir() and any(out.iterdir()):
        raise _refused(out, "it is not empty")
    if not out.parent.is_dir():
        raise _refused(out, f"{out.parent} is no folder")
    return out


def _refused(out: Path, found: str) -> GradproofError:
    return GradproofError("GP440", found, "a new or an empty folder", "name another folder", str(out))


def _fill(
    stage: Path, session: Session, standings: Mapping[str, Standing], wanted: Wanted, made_at: str, listener: Listener
) -> Made:
    kept = {name: s for name, s in standings.items() if s.fresh}
    left_out = {name: s.reason for name, s in sorted(standings.items()) if not s.fresh}
    _copy_evidence(stage, session, kept)
    files = claimed(kept)
    _copy_sources(stage, session, files)
    installed = ran_on()
    _put(stage, DISTRIBUTIONS, statement.dumped(installed))
    _put(stage, FILES, files_text(files))
    wheel = wheel_of(wanted.wheel, files) if wanted.wheel else None
    contradictions = _queries(stage, session, kept, wanted, listener)
    names, profile, packaged = [c.id for c in session.contracts], session.options.profile, session.workspace.packaged
    carried = opened(stage, names, profile, files, installed, left_out, made_at, packaged=packaged)
    _unchanged(carried, kept)
    sources = sha256_of(stage / FILES)
    made = statement.reports(carried, made_at, __version__)
    documents = statement.documents(carried, made, wheel, sources)
    for name, text in documents.items():
        _put(stage, name, text)
    for name, report in made.items():
        _put(stage, statement.report_path(name), statement.dumped(report))
    texts = {name: documents[statement.statement_path(name)] for name in made}
    if wanted.signer is not None:
        _signed_statements(stage, wanted.signer, texts)
    manifest = Manifest.model_validate(
        {"schema": BUNDLE, "says": SAYS, "gradproof": __version__, "made_at": made_at, "profile": profile,
         "packaged": packaged, "contracts": names, "sources": sources, "wheel": wheel, "files": entries(stage),
         "left_out": [LeftOut(check=k, reason=v) for k, v in left_out.items()]}
    )  # fmt: skip
    _put(stage, MANIFEST, statement.dumped(manifest.model_dump(mode="json", by_alias=True)))
    digest = entry_of(stage, MANIFEST).sha256
    if wanted.signer is not None:
        _put(stage, ENVELOPE, _enclosed(wanted.signer, signing.payloads(digest, texts)[ENVELOPE]))
    return Made(manifest, digest, made, tuple(contradictions))


def _signed_statements(stage: Path, signer: Signer, texts: Mapping[str, str]) -> None:
    """An envelope of each statement. Raises GradproofError GP475 where the key's own file came into the bundle."""
    from gradproof.extras.attest.signing import kept_apart

    kept_apart(signer, {e.path: e.sha256 for e in entries(stage)})
    for name, text in texts.items():
        _put(stage, signing.envelope_path(name), _enclosed(signer, text.encode()))


def _enclosed(signer: Signer, payload: bytes) -> str:
    return statement.dumped(signer.envelope(payload))


def _put(stage: Path, name: str, text: str) -> None:
    path = stage / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(source.read_bytes())


def _copy_evidence(stage: Path, session: Session, kept: Mapping[str, Standing]) -> None:
    """Evidence in the layout of the store."""
    for checks in session.plans.values():
        for check in (c for c in checks if c.id in kept):
            path = Path(str(kept[check.id].path))
            kind = "gpu" if check.layer == "cuda" else "evidence"
            _copy(path, stage / kind / path.parent.name / path.name)


def _copy_sources(stage: Path, session: Session, files: Mapping[str, str]) -> None:
    """Contracts with what lies beside them, the workspace's files that the evidence rests on, settings and lock."""
    root = session.workspace.root
    for contract in session.known.values():
        folder = stage / SOURCES / "proofs" / contract.id
        _copy(contract.path, folder / "contract.yaml")
        for path in sorted((contract.path.parent / "witnesses").rglob("*.json")):
            _copy(path, folder / path.relative_to(contract.path.parent))
    names = [key.removeprefix("ws:") for key, digest in files.items() if key.startswith("ws:") and digest]
    studies = [p.relative_to(root).as_posix() for p in (root / "reports/rounding.json",) if p.is_file()]
    studies += [p.relative_to(root).as_posix() for p in sorted((root / "reports/kernels").glob("*.json"))]
    for name in [*names, *studies, *(n for n in BESIDE if (root / n).is_file())]:
        _copy(root / name, stage / SOURCES / name)
    for name in CONTENT:
        if not (stage / SOURCES / name).is_dir():
            _put(stage, f"{SOURCES}/{name}/{NOTHING}", "No evidence of this bundle rests on a file of this folder.\n")


def _unchanged(carried: Carried, kept: Mapping[str, Standing]) -> None:
    """Raises GradproofError GP441 where what was copied is not what the evidence is about."""
    for name in kept:
        standing = carried.standings.get(name)
        if standing is None or not standing.fresh:
            why = standing.reason if standing else "no contract of the bundle plans it"
            mend = "run gradproof verify again, and leave the files alone meanwhile"
            raise GradproofError("GP441", f"{name}: {why}", "evidence of the sources as they are", mend)


def _queries(
    stage: Path, session: Session, kept: Mapping[str, Standing], wanted: Wanted, listener: Listener
) -> list[str]:
    """Write the scripts and their index. Gives what contradicts the evidence, one line each."""
    checks = sorted((c for cs in session.plans.values() for c in cs if c.id in kept), key=lambda c: c.id)
    findings = {c.id: (kept[c.id].evidence or {})["finding"] for c in checks}
    refusals = {c.id: rerun.why_not(c, findings[c.id]) or ("" if wanted.queries else NO_QUERIES) for c in checks}
    due = [c for c in checks if not refusals[c.id]]
    heard = rerun.repeated(session.workspace, due, wanted.jobs, listener) if due else {}
    rows = []
    for check in checks:
        said = heard.get(check.id)
        told = rerun.row(check, findings[check.id], said, refusals[check.id], wanted.second_limit)
        rows.append(told)
        if told["file"] and said is not None:
            _put(stage, told["file"], rerun.text_of(check, told, said))
    _put(stage, rerun.INDEX, statement.dumped(rows))
    return rerun.contradictions(rows)
