"""`gradproof attest`: the stored evidence as a bundle, in a folder that appears whole or not at all.

A check of a bundle, run again from the bundle's own sources; its recorded queries, put to a solver again.

This executes what the bundle carries. The rest of `verify-bundle` executes nothing.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gradproof import __version__
from gradproof.core.check import Check
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Effect, Exit, Kind, Layer, Outcome
from gradproof.core.schemas.evidence import Evidence, EvidenceFinding
from gradproof.core.workspace import PACKAGE, Workspace, sha256_of
from gradproof.evidence.audit import audit
from gradproof.evidence.environment import cuda_absent
from gradproof.evidence.record import now
from gradproof.evidence.store import parse as parse_json, safe
from gradproof.execution.local import Worker
from gradproof.execution.pool import Listener, Pool, able
from gradproof.execution.queries import HEAD, Query, counts, parse, script
from gradproof.extras.attest import manifest as listing, verify as derived
from gradproof.extras.attest.manifest import ENVELOPE, MANIFEST, BundleProblem, Manifest, Signer, dumped
from gradproof.extras.attest.verify import FILES, INDEX, SOURCES, Carried, Contents, Kept, contradictions
from gradproof.rounding.solvers import answered, version_of
from gradproof.session import Session

# -- Checks run once more, so that their queries can be recorded. What they find is compared, and never stored.
SECOND = "cvc5"
SECOND_LIMIT = 20.0
"""Seconds of the second solver for each check."""
NOT_RECORDED: Mapping[Kind, str] = {
    Kind.CROSSHAIR: "CrossHair asks z3 by itself, and gives no text of its queries",
    Kind.TRACE: "a recorded step is decided by normal forms first; where it asks z3, the text is not kept",
    Kind.TORCH: "a measured run asks no solver",
    Kind.GATE: "the gate's falsification asks the proofs again, of its seeded bug",
}
NONE_ASKED = "its evidence rests on no query of its own run"


@dataclass(frozen=True)
class Heard:
    """What a repeated run found, and what its solver was asked. `asked` is None where the run wrote nothing."""

    outcome: Outcome
    asked: int | None
    left_out: int
    queries: tuple[Query, ...]


def repeated(
    workspace: Workspace, checks: Sequence[Check], jobs: int, listener: Listener = lambda progress: None
) -> dict[str, Heard]:
    """Run checks again, each in a process of its own, with its queries. The stubs they rest on are taken as given."""
    written: dict[str, dict[str, Any]] = {}

    class RecordedQueries(Worker):
        """A worker that is asked for the queries too."""

        def _job(self, result: Path) -> dict[str, Any]:
            return {**super()._job(result), "queries": str(result.with_name("queries.json"))}

        def _read(self, result: Path) -> Evidence:
            evidence = super()._read(result)
            written[self.check.id] = json.loads(result.with_name("queries.json").read_text(encoding="utf-8"))
            return evidence

    by_id = {check.id: check for check in checks}
    effects = {name: Effect.DISCHARGED for check in checks for name in check.depends if name not in by_id}
    able(checks)
    pool = Pool(workspace, jobs, status=effects, listener=listener, worker=RecordedQueries)
    done = pool.run(checks, lambda evidence: None)
    if done.interrupted:
        raise KeyboardInterrupt
    heard = {}
    for name, evidence in done.evidence.items():
        said = written.get(name, {"asked": None, "left_out": 0, "queries": ()})
        queries, outcome = tuple(Query(**q) for q in said["queries"]), audit(by_id[name], evidence.finding)[0]
        heard[name] = Heard(outcome, said["asked"], said["left_out"], queries)
    return heard


def index_row(check: Check, finding: EvidenceFinding, heard: Heard | None, unasked: str) -> dict[str, Any]:
    """What the index says of one check. `unasked`: why it was not run again."""
    base: dict[str, Any] = {"check": check.id, "file": None, "not_included": unasked}
    if heard is None:
        return base
    again = {"outcome": str(heard.outcome), "same": heard.outcome is audit(check, finding)[0]}
    if heard.asked is None:
        return base | {"again": again, "not_included": f"the repeated run ended {heard.outcome} and wrote no query"}
    from gradproof.arith import smt

    more = "" if heard.queries else "the repeated run asked no query in its own process"
    return base | {
        "file": f"queries/{safe(check.id)}.smt2" if heard.queries else None,
        "not_included": f"{heard.left_out} more: a script is at most a megabyte" if heard.left_out else more,
        "again": again,
        "asked": heard.asked,
        "included": len(heard.queries),
        "read_back": sum(smt.readable(HEAD + query.text) for query in heard.queries),
        "expected": dict(counts(heard.queries)),
        "options": {"solver": finding.stats.solver or "z3", "per_query": "a solver of its own, no other option",
                    "seconds_at_most": check.time_limit},
        "second": second(heard.queries, SECOND, SECOND_LIMIT),
    }  # fmt: skip


def text_of(check: Check, stated: Mapping[str, Any], heard: Heard) -> str:
    """The script of one check."""
    more = f", not included: {stated['not_included']}" if stated["not_included"] else ""
    title = [
        f"{check.id}: the distinct queries of one run, {stated['asked']} asked{more}",
        f"{stated['options']['solver']}, a solver of its own for each, at most {check.time_limit:g} s, no other option",
    ]
    return script(title, heard.queries)


EACH = 5.0
VERDICTS = ("agree", "differ", "unknown", "not_asked")


def verdict(status: str, said: str) -> str:
    """What an answer says of z3's status: agree, differ, or unknown where either of them gave none."""
    if not {status, said} <= {"sat", "unsat"}:
        return "unknown"
    return "agree" if status == said else "differ"


def tally(queries: Sequence[Query], said: Sequence[str]) -> Counter[str]:
    """How many queries have each verdict. `said`: the answers, fewer where no more came."""
    found = Counter(verdict(query.status, answer) for query, answer in zip(queries, said, strict=False))
    return found + Counter(not_asked=len(queries) - len(said))


def second(queries: Sequence[Query], solver: str, seconds: float) -> dict[str, Any]:
    """Solver, version, and how many queries have each verdict. An absent solver was asked nothing, and says so."""
    version = version_of(solver)
    found = tally(queries, answers(queries, solver, seconds) if version and queries else [])
    return {"solver": solver, "version": version or "absent", **{name: found[name] for name in VERDICTS}}


def answers(queries: Sequence[Query], solver: str, seconds: float, each: float = EACH) -> list[str]:
    """A solver's answers; fewer than the queries where time ran out or the process crashed."""
    return answered([HEAD + q.text for q in queries], solver, seconds, each)[0][: len(queries)]


def chosen(carried: Carried, name: str) -> Check:
    """A check that can be run again here. Raises GradproofError GP441: unknown, without evidence, another engine."""
    check = {check.id: check for check in carried.checks()}.get(name)
    evidence = {check: evidence for check, _, evidence in carried.evidence()}.get(name)
    if check is None or evidence is None:
        found, expected = f"there is no evidence of {name}", "the id of a check of the bundle"
        raise GradproofError("GP441", found, expected, "see reports/")
    if check.layer is Layer.CUDA and (why := cuda_absent()):
        raise GradproofError("GP441", f"{name} needs a GPU: {why}", "a machine with a GPU", "run it on one")
    engine = {key: PACKAGE / key[3:] for key in evidence.claim.files if key.startswith("gp:")}
    here = {key: sha256_of(path) if path.is_file() else "" for key, path in engine.items()}
    if changed := [key for key, digest in here.items() if digest != carried.store.files[key]]:
        found = f"{len(changed)} files of the installed gradproof are not those that ran, {changed[0]} first"
        help = "install the gradproof that made the bundle"
        raise GradproofError("GP441", found, "the engine that the evidence rests on", help)
    return check


def rerun(root: Path, carried: Carried, check: Check) -> tuple[str, BundleProblem | None]:
    """Run a check from the bundle's sources: what it found in words, and the problem where the evidence disagrees."""
    evidence = carried.statuses[check.id].evidence
    assert evidence is not None
    with tempfile.TemporaryDirectory(prefix="gradproof-bundle-") as folder:
        home = Path(folder).resolve()
        shutil.copytree(root / SOURCES, home / "workspace")
        workspace = Workspace(home / "workspace", home / "reports")
        finding = Worker(check, workspace, check.time_limit).run().finding
    then, now = audit(check, evidence.finding), audit(check, finding)
    stated = f"{check.id} is {now[0]} again: {now[1]}"
    if now[0] is not then[0] or finding.clauses != evidence.finding.clauses:
        words = f"{check.id} was run again: {now[0]}, {now[1]}; the evidence says {then[0]}, {then[1]}"
        return words, BundleProblem("GP449", str(check.id), words)
    return stated, None


def ask(root: Path, solver: str, seconds: float, limits: Mapping[str, float]) -> Iterator[BundleProblem | str]:
    """Put every recorded query to a solver: a line for each script, or a problem. No answer is a problem too.

    A query has as long as its check has by the contract (`limits`), and each script has at most `seconds`.
    """
    rows = parse_json((root / INDEX).read_text(encoding="utf-8"))
    for check, file in ((row["check"], row["file"]) for row in rows if row["file"] is not None):
        queries = parse((root / file).read_text(encoding="utf-8"))
        each = limits[check]
        found = tally(queries, answers(queries, solver, seconds, each))
        known = sum(query.status != "unknown" for query in queries)
        words = f"{found['agree']} of {known} answers are the same, {found['differ']} differ ({solver})"
        if silent := known - found["agree"] - found["differ"]:
            words += f"; no answer within {each:g} s, or none that can be read: {silent}"
        yield f"{check}: {words}" if found["agree"] == known else BundleProblem("GP449", file, words)


# -- The bundle itself.
NO_QUERIES = "left out with --no-queries"
AS_THEY_ARE = "evidence of the sources as they are"


@dataclass(frozen=True)
class Wanted:
    """What `gradproof attest` is asked for. `signer`: the key that signs it; None for a bundle without a signature."""

    out: Path
    wheel: Path | None = None
    queries: bool = True
    jobs: int = 1
    signer: Signer | None = None


@dataclass(frozen=True)
class MadeBundle:
    """A bundle that was written: its verdicts, what it left out, and what its repeated queries contradict."""

    manifest: Manifest
    digest: str
    reports: Mapping[str, dict[str, Any]]
    contradictions: tuple[str, ...]


def attest(session: Session, wanted: Wanted, listener: Listener = lambda progress: None) -> MadeBundle:
    """Write the bundle.

    Raises GradproofError: GP440 for the folder, GP441 without evidence, GP442 for the wheel, GP475 for the key.
    """
    made_at = stated_time()
    out = free(wanted.out)
    statuses = session.statuses(derived.planned(session).values())
    kept = {name: status for name, status in statuses.items() if status.fresh}
    if not kept:
        raise GradproofError("GP441", "no check has fresh evidence", AS_THEY_ARE, "run gradproof verify first")
    _honest(session, statuses, made_at)
    stage = out.with_name(f".{out.name[:40]}.{secrets.token_hex(8)}.tmp")
    try:
        stage.mkdir()
        made = _fill(stage, session, statuses, kept, wanted, made_at, listener)
        os.rename(stage, out)
    except OSError as error:
        raise listing.refused("GP440", out, f"it cannot be written: {error}") from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return made


def stated_time() -> str:
    """The time that a bundle states: SOURCE_DATE_EPOCH (seconds, UTC) where it is set. Raises GradproofError GP440."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        return now() if given is None else datetime.fromtimestamp(int(given), UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError) as error:
        found, help = f"SOURCE_DATE_EPOCH={given!r}", "set it right, or unset it"
        raise GradproofError("GP440", found, "whole seconds since 1970", help) from error


def _honest(session: Session, statuses: Kept, made_at: str) -> None:
    """Raises GradproofError GP440 where a gate is met on the day that a bundle states, and is not today."""
    stated = replace(session.demands, now=derived.clock(made_at, statuses))
    today = session.verdicts(statuses, *session.contracts)
    then = session.under(stated).verdicts(statuses, *session.contracts)
    for contract in session.contracts:
        if then[contract.id].exit is Exit.MET and today[contract.id].exit is not Exit.MET:
            reason = next(iter(today[contract.id].reasons), "")
            found = f"SOURCE_DATE_EPOCH of {made_at[:10]}, when the gate of {contract.id} was met; today: {reason}"
            help = "renew what has run out, or set SOURCE_DATE_EPOCH to today"
            raise GradproofError("GP440", found, "a day on which the gate stands as it does today", help)


def free(out: Path) -> Path:
    """The folder to write. Raises GradproofError GP440 where something is there already."""
    out = Path(os.path.abspath(out))
    if out.is_symlink() or out.exists() is not out.is_dir():
        raise listing.refused("GP440", out, "it is no folder")
    if out.is_dir() and any(out.iterdir()):
        raise listing.refused("GP440", out, "it is not empty")
    if not out.parent.is_dir():
        raise listing.refused("GP440", out, f"{out.parent} is no folder")
    return out


def _fill(
    stage: Path, session: Session, statuses: Kept, kept: Kept, wanted: Wanted, made_at: str, listener: Listener
) -> MadeBundle:
    for entry in derived.ENTRIES:
        _put(stage, entry.taken(session, kept))
    wheel = listing.wheel_of(wanted.wheel, derived.claimed(kept)) if wanted.wheel else None
    contradicted = _queries(stage, session, kept, wanted, listener)
    left_out = [{"check": name, "reason": statuses[name].reason} for name in sorted({*statuses} - {*kept})]
    manifest = Manifest.model_validate(
        {"schema": listing.BUNDLE, "says": listing.SAYS, "gradproof": __version__, "made_at": made_at, "wheel": wheel,
         "profile": session.options.profile, "packaged": session.workspace.packaged, "files": [],
         "contracts": [c.id for c in session.contracts], "sources": sha256_of(stage / FILES), "left_out": left_out}
    )  # fmt: skip
    carried = derived.opened(stage, manifest)
    for name, status in ((name, carried.statuses.get(name)) for name in kept):
        if status is None or not status.fresh:  # what was copied is not what the evidence is about
            why = status.reason if status else "no contract of the bundle plans it"
            help = "run gradproof verify again, and leave the files alone meanwhile"
            raise GradproofError("GP441", f"{name}: {why}", AS_THEY_ARE, help)
    made = derived.reports(carried, manifest)
    documents = derived.documents(carried, made, manifest)
    _put(stage, documents)
    manifest = manifest.model_copy(update={"files": listing.entries(stage)})
    signer, texts = wanted.signer, {name: documents[listing.statement_path(name)] for name in made}
    if signer is not None and (own := next((e.path for e in manifest.files if e.sha256 == signer.digest), None)):
        found, help = f"{own} of the bundle would be the private key", "keep the key outside of the workspace"
        raise GradproofError("GP475", found, "no key in a bundle", help)
    _put(stage, {MANIFEST: dumped(manifest.model_dump(mode="json", by_alias=True))})
    digest = sha256_of(stage / MANIFEST)
    if signer is not None:
        _put(stage, {ENVELOPE: dumped(signer.envelope(dumped(listing.of_manifest(digest, texts)).encode()))})
    return MadeBundle(manifest, digest, made, tuple(contradicted))


def _put(stage: Path, contents: Contents) -> None:
    """Write files by their place: texts, and copies of others."""
    for name, what in contents.items():
        path = stage / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(what.read_bytes() if isinstance(what, Path) else what.encode())


def _queries(stage: Path, session: Session, kept: Kept, wanted: Wanted, listener: Listener) -> list[str]:
    """Write the scripts and their index. Gives what contradicts the evidence, one line each."""
    planned = derived.planned(session)
    checks = [planned[name] for name in sorted(kept)]
    findings = {name: status.evidence.finding for name, status in kept.items() if status.evidence is not None}
    rests = {name: "" if finding.stats.queries else NONE_ASKED for name, finding in findings.items()}
    refusals = {c.id: NOT_RECORDED.get(c.kind, rests[c.id]) or ("" if wanted.queries else NO_QUERIES) for c in checks}
    due = [check for check in checks if not refusals[check.id]]
    heard = repeated(session.workspace, due, wanted.jobs, listener) if due else {}
    rows = [index_row(check, findings[check.id], heard.get(check.id), refusals[check.id]) for check in checks]
    pairs = [(check, row) for check, row in zip(checks, rows, strict=True) if row["file"]]
    _put(stage, {row["file"]: text_of(check, row, heard[check.id]) for check, row in pairs} | {INDEX: dumped(rows)})
    return contradictions(rows)
