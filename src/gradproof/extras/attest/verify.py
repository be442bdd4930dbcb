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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
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
from gradproof.extras.attest.manifest import BundleProblem, Json, Manifest, PublicKey, Wheel, described, dumped
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
INDEX = "queries/index.json"
EVIDENCE = ("evidence/", "gpu/")
"""Folders of a bundle that hold evidence."""
Kept = Mapping[str, EvidenceStatus]
Reports = Mapping[str, Json]


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
    statuses: Kept

    def checks(self) -> list[Check]:
        """Every check of every contract in the bundle."""
        return [*planned(self.session).values()]

    def evidence(self) -> list[tuple[str, str, Evidence]]:
        """Every check of which there is evidence, sorted: its id, where its file lies in the bundle, what that says."""
        home, held = f"{self.session.workspace.reports}/", sorted(self.statuses.items())
        return [(n, str(s.path).removeprefix(home), s.evidence) for n, s in held if s.evidence is not None]


def planned(session: Session) -> dict[str, Check]:
    """Every check of every contract, by its id."""
    return {check.id: check for checks in session.plans.values() for check in checks}


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
    for check in planned(session).values():
        status = store.status(check)
        if status.evidence is None and check.id in left_out:
            status = EvidenceStatus(None, False, f"the bundle carries no evidence of it: {left_out[check.id]}")
        statuses[check.id] = status
    session.demands = replace(session.demands, now=clock(manifest.made_at, statuses))
    return Carried(session, store, statuses)


def clock(made_at: str, statuses: Kept) -> datetime:
    """When the bundle was made: by its own word, and not before the newest of its evidence."""
    try:
        made = datetime.fromisoformat(made_at)
    except ValueError:
        made = datetime.min
    ended = [s.evidence.ended for s in statuses.values() if s.evidence is not None]
    return max([made if made.tzinfo is not None else made.replace(tzinfo=UTC), *ended])


def claimed(statuses: Kept) -> dict[str, str]:
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


# -- The table of a bundle: what attest puts where, and what has to lie there by the contracts and the evidence.
Contents = Mapping[str, Any]
"""By its place in the bundle: a text, or a file to copy."""


@dataclass(frozen=True)
class BundleEntry:
    """A row of the table. `places`: files, and every file of a folder with a star.

    `taken`: what attest takes from a workspace. It is held by what reads it: evidence by its claims, contracts and
    sources by the evidence, queries by their index. `follows`: what has to lie there to the byte, and nothing else may,
    made of contracts and evidence alone. Reports are compared by their values.
    """

    places: tuple[str, ...]
    taken: Callable[[Session, Kept], Contents] = lambda session, kept: {}
    follows: Callable[[Carried, Reports, Manifest], Contents] | None = None


def documents(carried: Carried, made: Reports, manifest: Manifest) -> dict[str, str]:
    """The text of every file that follows from the evidence, by its place in the bundle. `made`: the reports."""
    rows = [entry.follows(carried, made, manifest) for entry in ENTRIES if entry.follows is not None]
    return {name: text for row in rows for name, text in row.items()}


def _stored(session: Session, kept: Kept) -> Contents:
    """Evidence in the layout of the store."""
    store, checks = Store(session.workspace), planned(session)
    paths = {name: Path(str(status.path)) for name, status in kept.items()}
    places = {store.folder(checks[name]) / path.name: path for name, path in paths.items()}
    return {place.relative_to(session.workspace.reports).as_posix(): path for place, path in places.items()}


def _sources(session: Session, kept: Kept) -> Contents:
    """Contracts with what lies beside them, the workspace's files that the evidence rests on, studies and settings."""
    found: dict[str, Path | str] = {}
    for contract in session.known.values():
        home, folder = contract.path.parent, f"{SOURCES}/proofs/{contract.id}"
        witnesses = {path.relative_to(home).as_posix(): path for path in (home / "witnesses").rglob("*.json")}
        found |= {f"{folder}/{name}": path for name, path in {"contract.yaml": contract.path, **witnesses}.items()}
    root = session.workspace.root
    names = [key[3:] for key, digest in claimed(kept).items() if key.startswith("ws:") and digest]
    names += [name for name in ("reports/rounding.json", *BESIDE) if (root / name).is_file()]
    names += [f"reports/kernels/{path.name}" for path in (root / "reports/kernels").glob("*.json")]
    found |= {f"{SOURCES}/{name}": root / name for name in names}
    bare = {*CONTENT} - {name.partition("/")[0] for name in names}
    note = "No evidence of this bundle rests on a file of this folder.\n"
    return found | {f"{SOURCES}/{folder}/{NOTHING}": note for folder in bare}


def reports(carried: Carried, manifest: Manifest) -> dict[str, Json]:
    """The report of each contract by id, without the place on this machine.

    Only the status of the rounding study depends on the gradproof that is installed here.
    """
    found = {}
    here, workspace = carried.store.ran_on["environment"], carried.session.workspace
    run = Outcomes(carried.statuses, frozenset(), True, False, 0.0)
    stated = {"workspace": SOURCES, "generated_at": manifest.made_at, "seconds": 0.0, "gradproof": manifest.gradproof}
    root = json.dumps(f"{workspace.root}/", ensure_ascii=False)[1:-1]
    for contract in carried.session.contracts:
        report = carried.session.reported(contract, run) | stated | {"environment": here}
        report["kernels"] = studies.kernels(workspace, report["checks"], here)
        found[contract.id] = json.loads(as_json(report).replace(root, ""))
    return found


def report_path(contract: str) -> str:
    """Where the report of a contract lies."""
    return f"reports/{safe(contract)}.json"


def _statements(carried: Carried, made: Reports, manifest: Manifest) -> Contents:
    """The statement of each contract. Its configuration: the contracts and the evidence."""
    root = carried.session.workspace.reports
    materials = [f"{SOURCES}/proofs/{contract.id}/contract.yaml" for contract in carried.session.contracts]
    materials += [place for _, place, _ in carried.evidence()]
    rows = [described(name, sha256_of(root / name)) for name in sorted(materials)]
    about = (manifest.wheel, manifest.sources, rows)
    return {listing.statement_path(name): dumped(statement(report, *about)) for name, report in made.items()}


def statement(report: Mapping[str, Any], wheel: Wheel | None, sources: str, configuration: list[Json]) -> Json:
    """The statement. Its subject is the wheel, else the list of sources. `configuration`: contracts and evidence."""
    subject = described(wheel.name, wheel.sha256) if wheel else described(FILES, sources)
    return listing.stated(subject, configuration, report["verdict"]["met"], sorted_rows(report))


def sorted_rows(report: Mapping[str, Any]) -> tuple[list[str], list[str], list[str]]:
    """Names of what passed, what is waived, and everything else that was asked for."""
    waived, passed, skipped = waived_ids(report), RowStatus.PASSED, RowStatus.SKIPPED
    found = [(row.id, "waived" if row.id in waived else row.status) for row in rows(report)]
    failed = [name for name, status in found if status not in (passed, skipped, "waived")]
    return [name for name, s in found if s is passed], [name for name, s in found if s == "waived"], failed


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
_CALLED = {"empty body": "empty"}  # as `gradproof replay --control` takes it


def _witnesses(carried: Carried, made: Reports, manifest: Manifest) -> Contents:
    """Each counterexample, of a check or of a control, and the script that replays it."""
    index: list[Json] = []
    scripts = {}
    for name, place, evidence in carried.evidence():
        finding: list[tuple[str | None, tuple[str, ...], EvidenceFinding | EvidenceControl]]
        finding = [(None, (), evidence.finding)]
        finding += [(c.name, ("--control", _CALLED.get(c.name, c.name)), c) for c in evidence.finding.controls]
        for control, options, found in finding:
            if found.counterexample is None:
                continue
            script = f"replay/{safe(name if control is None else f'{name}--{control}')}.py"
            scripts[script] = _REPLAY.format(evidence=place, options=options)
            index.append(
                {"check": name, "control": control, "evidence": place, "replay": script,
                 "counterexample": found.counterexample.stated(), "replays": [r.stated() for r in found.replays]}
            )  # fmt: skip
    return {"witnesses.json": dumped(index), **scripts}


def _shown(carried: Carried, made: Reports, manifest: Manifest) -> Contents:
    """What each check made of each mutant, device and versions of each measured run, and the waivers."""
    words = {"killed_by": "killed", "survived": "survived", "not_tried": "not tried"}
    mutants = {name: [
        {"mutant": row["name"], "obligation": row["obligation"], "reference": row["reference"],
         "checks": {check: word for key, word in words.items() for check in row[key]}}
        for row in report["mutants"]
    ] for name, report in made.items()}  # fmt: skip
    measured = {c.id: str(c.layer) for c in carried.checks() if c.layer in (Layer.STEP, Layer.CPU, Layer.CUDA)}
    keys = ("device", "capability", "cuda", "driver", "threads", "torch", "python", "platform", "machine")
    ran_on = {name: e.environment.stated() for name, _, e in carried.evidence() if name in measured}
    devices = {n: {"layer": measured[n]} | {key: on.get(key) for key in keys} for n, on in ran_on.items()}
    waivers = {name: report.get("waivers", []) for name, report in made.items()}
    found = {"mutants.json": mutants, "devices.json": devices, "waivers.json": waivers}
    return {name: dumped(data) for name, data in found.items()}


_LOOSE = (*BESIDE, *(f"{folder}/{NOTHING}" for folder in CONTENT))
ENTRIES = (
    BundleEntry(("evidence/*", "gpu/*"), _stored),
    BundleEntry(tuple(f"{SOURCES}/{name}" for name in ("proofs/*", "reports/*", *_LOOSE)), _sources),
    BundleEntry((DISTRIBUTIONS,), lambda of, kept: {DISTRIBUTIONS: dumped(listing.ran_on())}),
    BundleEntry(("queries/*",)),  # `write` hears them of a repeated run
    BundleEntry(("reports/*",), follows=lambda of, made, by: {report_path(n): dumped(row) for n, row in made.items()}),
    BundleEntry(
        (FILES,), lambda of, kept: {FILES: files_text(claimed(kept))},
        lambda of, made, by: {FILES: files_text(claimed(of.statuses))},
    ),
    BundleEntry(("statements/*",), follows=_statements),
    BundleEntry(("witnesses.json", "replay/*"), follows=_witnesses),
    BundleEntry(("mutants.json", "devices.json", "waivers.json"), follows=_shown),
)  # fmt: skip


def contradictions(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What in an index contradicts the evidence, or cannot be asked again.

    Another answer of the repeated run, another one of the second solver, queries that z3 could not read back.
    """
    found = []
    for row in rows:
        name, again = row["check"], row.get("again")
        if again and not again["same"] and again["outcome"] in ANSWERS:
            found.append(f"{name}: the repeated run found {again['outcome']}, the evidence says otherwise")
        if row.get("read_back") != row.get("included"):
            found.append(f"{name}: {row.get('read_back', 0)} of {row['included']} queries can be read back")
        if (other := row.get("second", {})).get("differ"):
            found.append(f"{name}: {other['solver']} contradicts z3 on {other['differ']} queries")
    return found


# -- Whether a bundle is what it says.
_SHOWN = 160
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
    key = listing.signed(root, keys) if keys else None
    if isinstance(key, BundleProblem):
        return Judged(manifest, (key,))
    if found := listing.problems(root, manifest):
        return Judged(manifest, tuple(found), key=key)
    try:
        places = {e.path for e in manifest.files}
        for name in (n for n in manifest.contracts if f"{SOURCES}/proofs/{n}/contract.yaml" not in places):
            raise ValueError(f"it has no contract {name!r}")
        carried = opened(root, manifest)
    except _MALFORMED as error:
        words = error.render() if isinstance(error, GradproofError) else f"{type(error).__name__}: {error}"
        return Judged(manifest, (BundleProblem("GP448", SOURCES, f"it cannot be judged: {words}"),), key=key)
    if found := list(_evidence(manifest, carried)):
        return Judged(manifest, tuple(_of_another_format(root, manifest)) or tuple(found), key=key)
    try:
        made = reports(carried, manifest)
        expected = documents(carried, made, manifest)
    except _MALFORMED as error:
        problem = BundleProblem("GP449", "reports", f"the evidence makes no report: {error}")
        return Judged(manifest, (problem,), carried, {}, key)
    found = list(_conclusions(manifest, carried, made, expected))
    return Judged(manifest, tuple(found), carried, {} if found else made, key)


def _text(root: Path, name: str) -> str:
    """A file of the bundle. Raises ValueError."""
    try:
        return (root / name).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from error


def _evidence(manifest: Manifest, carried: Carried) -> Iterator[BundleProblem]:
    """Every evidence file is believed, is about a planned check, and agrees with contracts, sources and versions."""
    names = [e.path for e in manifest.files if e.path.startswith(EVIDENCE)]
    held = {place: carried.statuses[check] for check, place, _ in carried.evidence()}
    for name in names:
        if name not in held:
            own = next((c for c in carried.checks() if carried.store.folder(c).name == Path(name).parent.name), None)
            why = "no contract of the bundle plans its check" if own is None else carried.store.status(own).reason
            yield BundleProblem("GP448", name, why or "there is more than one evidence file of this check")
        elif not held[name].fresh:
            yield BundleProblem("GP448", name, f"it is no evidence of this bundle: {held[name].reason}")
    missing = {row.check for row in manifest.left_out}
    for name, status in carried.statuses.items():
        if (status.evidence is None) is not (name in missing):
            words = "is listed as left out, and is there" if status.evidence else "is neither there nor left out"
            yield BundleProblem("GP448", "evidence", f"the evidence of {name} {words}")


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


def _conclusions(manifest: Manifest, carried: Carried, made: Reports, expected: Contents) -> Iterator[BundleProblem]:
    """What follows from the evidence is what the bundle says, and nothing lies there that the table does not know."""
    root, own = carried.session.workspace.reports, {report_path(name): report for name, report in made.items()}
    for name, text in expected.items():
        if name in own:
            yield from _report(root, name, own[name])
        elif not (root / name).is_file():
            yield BundleProblem("GP449", name, "it follows from the evidence, and is not there")
        elif (root / name).read_bytes() != text.encode():
            other = f" (the bundle is of gradproof {manifest.gradproof}, this is {__version__})"
            more = "" if manifest.gradproof == __version__ else other
            yield BundleProblem("GP449", name, f"it is not what follows from the evidence{more}")
    if sha256_of(root / FILES) != manifest.sources:
        yield BundleProblem("GP449", FILES, "its digest is not the manifest's digest of the sources")
    known = {*expected, *(f"{SOURCES}/{key[3:]}" for key in carried.store.files if key.startswith("ws:"))}
    given = [place for entry in ENTRIES if entry.follows is None for place in entry.places]
    known |= {e.path for e in manifest.files for place in given if fnmatchcase(e.path, place)}
    for name in sorted({e.path for e in manifest.files} - known):
        yield BundleProblem("GP449", name, "it follows from nothing in the bundle")
    yield from _queries(root, manifest, carried)
    yield from listing.envelope_problems(root, {name: expected[listing.statement_path(name)] for name in made})


def _report(root: Path, name: str, made: Json) -> Iterator[BundleProblem]:
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
        if key != "rounding":
            words = _differs(key, stated[key], value)
        elif isinstance(stated[key], dict) and set(stated[key]) == set(value):
            # Its status is that of the gradproof that wrote it.
            words = _differs("rounding.document", stated[key]["document"], value["document"])
        else:
            words = "rounding has other keys"
        if words:
            yield BundleProblem("GP449", name, words)


def _differs(place: str, stated: Any, made: Any) -> str:
    """The first place where two JSON values differ, in words, or an empty text."""
    if isinstance(stated, dict) and isinstance(made, dict) and set(stated) == set(made):
        return next((d for key in made if (d := _differs(f"{place}.{key}", stated[key], made[key]))), "")
    if isinstance(stated, list) and isinstance(made, list) and len(stated) == len(made):
        rows = enumerate(zip(stated, made, strict=True))
        named = ((b.get("id", i) if isinstance(b, dict) else i, a, b) for i, (a, b) in rows)
        return next((d for n, a, b in named if (d := _differs(f"{place}[{n}]", a, b))), "")
    if type(stated) is type(made) and stated == made:
        return ""
    texts = [json.dumps(value, ensure_ascii=False) for value in (stated, made)]
    theirs, ours = (text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..." for text in texts)
    return f"{place} is {theirs}, and the evidence carries {ours}"


def _queries(root: Path, manifest: Manifest, carried: Carried) -> Iterator[BundleProblem]:
    """The index names every script, counts what is in it, and nothing in it contradicts the evidence."""
    try:
        rows = parse_json(_text(root, INDEX))
        if [row["check"] for row in rows] != [check for check, _, _ in carried.evidence()]:
            raise ValueError("its rows are not those of the evidence")
        scripts = {row["file"]: row for row in rows if row["file"] is not None}
        listed = {e.path for e in manifest.files if e.path.startswith("queries/")} - {INDEX}
        if set(scripts) != listed:
            raise ValueError(f"it does not name {', '.join(sorted(set(scripts) ^ listed)[:3])}")
        contradicted = contradictions(rows)
    except _MALFORMED as error:
        yield BundleProblem("GP449", INDEX, f"it is not the index of the queries: {error}")
        return
    for name, row in scripts.items():
        try:
            queries = parse(_text(root, name))
            if dict(counts(queries)) != row.get("expected") or len(queries) != row.get("included"):
                raise ValueError("its queries are not those that the index counts")
        except ValueError as error:
            yield BundleProblem("GP449", name, str(error))
    yield from (BundleProblem("GP449", INDEX, words) for words in contradicted)
