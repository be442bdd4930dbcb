"""A bundle as a workspace, what follows from it, and `gradproof verify-bundle`: is it whole, and does it carry that?

Contracts and sources lie in `sources/`, evidence beside it, judged like any other. Evidence counts as fresh when its
claim agrees with what the bundle carries: workspace files by content, files of the engine and of other folders by the
digests of files.sha256, versions by distributions.json. Nothing is imported, and nothing is executed.

A report becomes an in-toto Statement v1 with a test-result v0.1 predicate: plain JSON, to be put into an envelope.
The predicate knows passed, warned and failed, and nothing between: whatever gave no answer is failed. A check that
nothing demands and that did not run is in no list. A waived one is warned.
Source: https://in-toto.io/Statement/v1 and https://in-toto.io/attestation/test-result/v0.1

A bundle is judged in this order, each only where the one before found nothing: the signature where keys are given, the
listing, the files, the evidence against contracts and sources, and all that follows from it, made anew and compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gradproof import __version__
from gradproof.core.check import Check
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EVIDENCE_SCHEMA, Layer
from gradproof.core.schemas.evidence import Environment, Evidence, EvidenceControl, EvidenceFinding
from gradproof.core.workspace import CONTENT, Workspace, sha256_of
from gradproof.evidence.environment import KEYS, differ, normal
from gradproof.evidence.record import ANSWERS, EvidenceStatus
from gradproof.evidence.store import Store, parse as parse_json, safe
from gradproof.execution.queries import counts, parse
from gradproof.extras.attest import manifest as listing
from gradproof.extras.attest.manifest import (
    MANIFEST,
    BundleProblem,
    Manifest,
    PublicKey,
    Wheel,
    described,
    dumped,
    stated,
    statement_path,
)
from gradproof.report import studies
from gradproof.report.consistency import as_json, waived_ids
from gradproof.report.views import RowStatus, rows
from gradproof.session import Options, Outcomes, Session

SOURCES = "sources"
FILES = "files.sha256"
DISTRIBUTIONS = "distributions.json"
BESIDE = ("pyproject.toml", "constraints.txt")
NOTHING = "README"
"""Stands in a folder of the workspace that no evidence rests on."""
QUERIES = "queries"
INDEX = f"{QUERIES}/index.json"


class CarriedStore(Store):
    """The evidence of a bundle. `files`: digests by claim key. `ran_on`: environment and distributions."""

    _here = False

    def __init__(self, workspace: Workspace, files: Mapping[str, str], ran_on: Mapping[str, Any]) -> None:
        super().__init__(workspace)
        self.files, self.ran_on = files, ran_on

    def _file(self, key: str, digest: str) -> str | None:
        if key.startswith("ws:") and (said := super()._file(key, digest)) is not None:
            return said
        if key not in self.files:
            return f"{key} is not in {FILES}"
        return None if self.files[key] == digest else f"{key} has another digest in {FILES}"

    def _environment(self, check: Check, recorded: Environment) -> list[str]:
        then = recorded.stated()
        here, installed = self.ran_on["environment"], self.ran_on["distributions"]
        pairs = [(key, then.get(key), here.get(key)) for key in KEYS[check.kind]]
        held = {normal(name): row["version"] for name, row in installed.items()}
        pairs += [(name, version, held.get(normal(name))) for name, version in recorded.distributions.items()]
        return [f"{key} {was} then, {now} in {DISTRIBUTIONS}" for key, was, now in pairs if differ(key, was, now)]


@dataclass(frozen=True)
class Carried:
    """A bundle that was opened: its session, its store, and the status of every check."""

    session: Session
    store: CarriedStore
    statuses: Mapping[str, EvidenceStatus]

    def checks(self) -> list[Check]:
        """Every check of every contract in the bundle."""
        return [check for checks in self.session.plans.values() for check in checks]


def opened(root: Path, manifest: Manifest) -> Carried:
    """Open a bundle, to be judged by the clock of when it was made.

    Raises GradproofError for unreadable contracts, ValueError for other files that cannot be read.
    """
    root, left_out = root.resolve(), {row.check: row.reason for row in manifest.left_out}
    files, ran_on = files_of(_text(root, FILES)), parse_json(_text(root, DISTRIBUTIONS))
    session = Session(Options(workspace=root / SOURCES, contracts=tuple(manifest.contracts), profile=manifest.profile))
    session.workspace = replace(session.workspace, reports=root, packaged=manifest.packaged)
    store = CarriedStore(session.workspace, files, ran_on)
    statuses = {}
    for check in (c for checks in session.plans.values() for c in checks):
        status = store.status(check)
        if status.evidence is None and check.id in left_out:
            status = EvidenceStatus(None, False, f"the bundle carries no evidence of it: {left_out[check.id]}")
        statuses[check.id] = status
    session.demands = replace(session.demands, now=clock(manifest.made_at, statuses))
    return Carried(session, store, statuses)


def clock(made_at: str, statuses: Mapping[str, EvidenceStatus]) -> datetime:
    """When the bundle was made: by its own word, and not before the newest of its evidence."""
    return max([_time(made_at), *(s.evidence.ended for s in statuses.values() if s.evidence is not None)])


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def claimed(statuses: Mapping[str, EvidenceStatus]) -> dict[str, str]:
    """Digests of every file that the evidence rests on, by claim key, sorted. One digest a key, where all is fresh."""
    files: dict[str, str] = {}
    for status in statuses.values():
        files |= status.evidence.claim.files if status.evidence is not None else {}
    return dict(sorted(files.items()))


def files_text(files: Mapping[str, str]) -> str:
    """One line a file, as sha256sum prints them; a file that was looked for in vain has dashes."""
    return "".join(f"{digest or '-' * 64}  {key}\n" for key, digest in sorted(files.items()))


def files_of(text: str) -> dict[str, str]:
    """Inverse of `files_text`. Raises ValueError."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        digest, gap, key = line[:64], line[64:66], line[66:]
        if gap != "  " or not key or key in found:
            raise ValueError(f"{FILES} has a line that is none of a file: {line[:80]!r}")
        found[key] = "" if digest == "-" * 64 else digest
    return found


def statement(
    report: Mapping[str, Any], wheel: Wheel | None, sources: str, configuration: list[dict[str, Any]]
) -> dict[str, Any]:
    """The statement. Its subject is the wheel, else the list of sources. `configuration`: contracts and evidence."""
    subject = {"name": wheel.name, "digest": {"sha256": wheel.sha256}} if wheel else described("files.sha256", sources)
    passed, warned, failed = sorted_rows(report)
    result = "FAILED" if failed or not report["verdict"]["met"] else "WARNED" if warned else "PASSED"
    return stated(subject, result, configuration, passed, warned, failed)


def sorted_rows(report: Mapping[str, Any]) -> tuple[list[str], list[str], list[str]]:
    """Names of what passed, what is waived, and everything else that was asked for."""
    waived = waived_ids(report)
    passed: list[str] = []
    warned: list[str] = []
    failed: list[str] = []
    for row in rows(report):
        if row.id in waived:
            warned.append(row.id)
        elif row.status is not RowStatus.SKIPPED:
            (passed if row.status is RowStatus.PASSED else failed).append(row.id)
    return passed, warned, failed


# -- What a bundle says, made of its contracts and evidence alone: reports, statements, witnesses, mutants, devices.
Report = dict[str, Any]
_REPLAY = '''\
"""Replay one counterexample on the sources of this bundle. The exit code is that of gradproof replay."""

import subprocess
import sys
from pathlib import Path

BUNDLE = Path(__file__).resolve().parent.parent
EVIDENCE = BUNDLE / {evidence!r}
COMMAND = [sys.executable, "-B", "-P", "-m", "gradproof", "replay", str(EVIDENCE)]
SOURCES = ["--workspace", str(BUNDLE / "sources")]
OPTIONS = {options!r}
sys.exit(subprocess.call([*COMMAND, *SOURCES, *OPTIONS]))
'''


def reports(carried: Carried, manifest: Manifest) -> dict[str, Report]:
    """The report of each contract by id, without the place on this machine.

    Only the status of the rounding study depends on the gradproof that is installed here.
    """
    found = {}
    here = carried.store.ran_on["environment"]
    run = Outcomes(carried.statuses, frozenset(), True, False, 0.0)
    for contract in carried.session.contracts:
        report = carried.session.reported(contract, run)
        report |= {"workspace": SOURCES, "generated_at": manifest.made_at, "seconds": 0.0}
        report |= {"gradproof": manifest.gradproof}
        report |= {"environment": here, "kernels": studies.kernels(carried.session.workspace, report["checks"], here)}
        root = json.dumps(f"{carried.session.workspace.root}/", ensure_ascii=False)[1:-1]
        found[contract.id] = json.loads(as_json(report).replace(root, ""))
    return found


def report_path(contract: str) -> str:
    """Where the report of a contract lies."""
    return f"reports/{safe(contract)}.json"


def documents(carried: Carried, made: Mapping[str, Report], manifest: Manifest) -> dict[str, str]:
    """Every derived file but the reports, by its place in the bundle."""
    found = {FILES: files_text(claimed(carried.statuses))}
    materials = [f"{SOURCES}/proofs/{c.id}/contract.yaml" for c in carried.session.contracts]
    materials += [place_of(carried, status) for _, status, _ in _rows(carried)]
    root = carried.session.workspace.reports
    configuration = [described(name, sha256_of(root / name)) for name in sorted(materials)]
    for name, report in made.items():
        found[statement_path(name)] = dumped(statement(report, manifest.wheel, manifest.sources, configuration))
    witnesses = list(_witnesses(carried))
    found["witnesses.json"] = dumped([row for row, _ in witnesses])
    found |= {row["replay"]: text for row, text in witnesses}
    found["mutants.json"] = dumped({name: _matrix(report) for name, report in made.items()})
    found["devices.json"] = dumped(_devices(carried))
    found["waivers.json"] = dumped({name: report.get("waivers", []) for name, report in made.items()})
    return found


def _rows(carried: Carried) -> Iterator[tuple[str, EvidenceStatus, Evidence]]:
    """Every check of which there is evidence, sorted."""
    for name, status in sorted(carried.statuses.items()):
        if status.evidence is not None:
            yield name, status, status.evidence


def place_of(carried: Carried, status: EvidenceStatus) -> str:
    """Where an evidence file lies in the bundle."""
    return str(status.path).removeprefix(f"{carried.session.workspace.reports}/")


def _witnesses(carried: Carried) -> Iterator[tuple[dict[str, Any], str]]:
    """Each counterexample, of a check or of a control, with the script that replays it."""
    for name, status, evidence in _rows(carried):
        place = place_of(carried, status)
        finding: list[EvidenceFinding | EvidenceControl] = [evidence.finding, *evidence.finding.controls]
        for found in finding:
            if found.counterexample is None:
                continue
            control = found.name if isinstance(found, EvidenceControl) else None
            called = safe(name if control is None else f"{name}--{control}")
            named = () if control is None else ("--control", "empty" if control == "empty body" else control)
            text = _REPLAY.format(evidence=place, options=named)
            row = {"check": name, "control": control, "evidence": place, "replay": f"replay/{called}.py"}
            replays = [replay.stated() for replay in found.replays]
            yield row | {"counterexample": found.counterexample.stated(), "replays": replays}, text


def _matrix(report: Report) -> list[dict[str, Any]]:
    """One row a mutant, with what each check made of it: killed, survived or not tried."""
    words = {"killed_by": "killed", "survived": "survived", "not_tried": "not tried"}
    return [
        {"mutant": row["name"], "obligation": row["obligation"], "reference": row["reference"],
         "checks": {check: word for key, word in words.items() for check in row[key]}}
        for row in report["mutants"]
    ]  # fmt: skip


def _devices(carried: Carried) -> dict[str, Any]:
    """Device, driver and versions of each measured run."""
    layers = {c.id: c.layer for c in carried.checks()}
    measured = (Layer.STEP, Layer.CPU, Layer.CUDA)
    keys = ("device", "capability", "cuda", "driver", "threads", "torch", "python", "platform", "machine")
    return {
        name: {"layer": str(layers[name]), **{key: evidence.environment.stated().get(key) for key in keys}}
        for name, _, evidence in _rows(carried)
        if layers[name] in measured
    }


def contradictions(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What in an index contradicts the evidence, or cannot be asked again.

    Another answer of the repeated run, another one of the second solver, queries that z3 could not read back.
    """
    found = []
    for row in rows:
        again = row.get("again")
        if again and not again["same"] and again["outcome"] in ANSWERS:
            found.append(f"{row['check']}: the repeated run found {again['outcome']}, the evidence says otherwise")
        if row.get("read_back") != row.get("included"):
            found.append(f"{row['check']}: {row.get('read_back', 0)} of {row['included']} queries can be read back")
        if row.get("second", {}).get("differ"):
            second_ = row["second"]
            found.append(f"{row['check']}: {second_['solver']} contradicts z3 on {second_['differ']} queries")
    return found


# -- Whether a bundle is what it says.
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
    key, problem = listing.signed(root, listing.entry_of(root, MANIFEST).sha256, keys)
    if problem is not None:
        return Judged(manifest, (problem,))
    return replace(_judged(root, manifest), key=key)


def _judged(root: Path, manifest: Manifest) -> Judged:
    found = listing.problems(root, manifest)
    if found:
        return Judged(manifest, tuple(found))
    try:
        listed = {e.path for e in manifest.files}
        for name in manifest.contracts:
            if f"{SOURCES}/proofs/{name}/contract.yaml" not in listed:
                raise ValueError(f"it has no contract {name!r}")
        carried = opened(root, manifest)
    except _MALFORMED as error:
        words = error.render() if isinstance(error, GradproofError) else f"{type(error).__name__}: {error}"
        return Judged(manifest, (BundleProblem("GP448", SOURCES, f"it cannot be judged: {words}"),))
    found = list(_evidence(manifest, carried))
    if found:
        return Judged(manifest, tuple(_of_another_format(root, manifest)) or tuple(found))
    found = list(_conclusions(root, manifest, carried))
    return Judged(manifest, tuple(found), carried, {} if found else reports(carried, manifest))


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


def _text(root: Path, name: str) -> str:
    """A file of the bundle. Raises ValueError."""
    try:
        return (root / name).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from error


def _evidence(manifest: Manifest, carried: Carried) -> Iterator[BundleProblem]:
    """Every evidence file is believed, is about a planned check, and agrees with contracts, sources and versions."""
    held = {place_of(carried, s): (n, s) for n, s in carried.statuses.items() if s.path}
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
        made = reports(carried, manifest)
        expected = documents(carried, made, manifest)
    except _MALFORMED as error:
        yield BundleProblem("GP449", "reports", f"the evidence makes no report: {error}")
        return
    for name, report in made.items():
        yield from _report(root, report_path(name), report)
    for name, text in expected.items():
        if not (root / name).is_file():
            yield BundleProblem("GP449", name, "it follows from the evidence, and is not there")
        elif (root / name).read_bytes() != text.encode():
            other = f" (the bundle is of gradproof {manifest.gradproof}, this is {__version__})"
            more = "" if manifest.gradproof == __version__ else other
            yield BundleProblem("GP449", name, f"it is not what follows from the evidence{more}")
    if listing.entry_of(root, FILES).sha256 != manifest.sources:
        yield BundleProblem("GP449", FILES, "its digest is not the manifest's digest of the sources")
    known = {*expected, *_BESIDE, DISTRIBUTIONS, *map(report_path, made)}
    known |= {f"{SOURCES}/{key[3:]}" for key in carried.store.files if key.startswith("ws:")}
    for name in sorted(e.path for e in manifest.files):
        if name not in known and not name.startswith(_GIVEN):
            yield BundleProblem("GP449", name, "it follows from nothing in the bundle")
    yield from _queries(root, manifest, carried)
    texts = {name: expected[statement_path(name)] for name in made}
    yield from listing.envelope_problems(root, listing.entry_of(root, MANIFEST).sha256, texts)


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
