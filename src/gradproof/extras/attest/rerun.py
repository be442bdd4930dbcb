"""A check of a bundle, run again from the bundle's own sources; its recorded queries, put to a solver again.

This executes what the bundle carries. The rest of `verify-bundle` executes nothing.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradproof.core.check import Check
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Effect, Kind, Layer, Outcome
from gradproof.core.workspace import PACKAGE, Workspace, sha256_of
from gradproof.evidence.audit import audit
from gradproof.evidence.environment import cuda_absent
from gradproof.evidence.record import ANSWERS
from gradproof.evidence.store import parse as parse_json, safe
from gradproof.execution.pool import Evidence, Listener, Pool, Worker
from gradproof.execution.queries import HEAD, Query, counts, parse, script
from gradproof.extras.attest.manifest import Problem
from gradproof.extras.attest.statement import SOURCES, Carried
from gradproof.rounding.solvers import answered, version_of

# -- Checks run once more, so that their queries can be recorded. What they find is compared, and never stored.
FOLDER = "queries"
INDEX = f"{FOLDER}/index.json"
SECOND = "cvc5"
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


def why_not(check: Check, finding: Mapping[str, Any]) -> str:
    """Why the queries of a check are not recorded; an empty text where they are."""
    if check.kind in NOT_RECORDED:
        return NOT_RECORDED[check.kind]
    return "" if finding["stats"].get("queries") else NONE_ASKED


def repeated(
    workspace: Workspace, checks: Sequence[Check], jobs: int, listener: Listener = lambda progress: None
) -> dict[str, Heard]:
    """Run checks again, each in a process of its own, with its queries. The stubs they rest on are taken as given."""
    written: dict[str, dict[str, Any]] = {}

    class Recording(Worker):
        """A worker that is asked for the queries too."""

        def _job(self, result: Path) -> dict[str, Any]:
            return {**super()._job(result), "queries": str(result.with_name("queries.json"))}

        def _read(self, result: Path) -> Evidence:
            evidence = super()._read(result)
            written[self.check.id] = json.loads(result.with_name("queries.json").read_text(encoding="utf-8"))
            return evidence

    by_id = {check.id: check for check in checks}
    effects = {name: Effect.DISCHARGED for check in checks for name in check.depends if name not in by_id}
    pool = Pool(workspace, jobs, standing=effects, listener=listener, worker=Recording)
    done = pool.run(checks, lambda evidence: None)
    if done.interrupted:
        raise KeyboardInterrupt
    return {name: _heard(by_id[name], evidence, written.get(name)) for name, evidence in done.evidence.items()}


def _heard(check: Check, evidence: Evidence, said: Mapping[str, Any] | None) -> Heard:
    outcome = audit(check, evidence["finding"])[0]
    if said is None:
        return Heard(outcome, None, 0, ())
    return Heard(outcome, said["asked"], said["left_out"], tuple(Query(**q) for q in said["queries"]))


def row(check: Check, finding: Mapping[str, Any], heard: Heard | None, unasked: str, limit: float) -> dict[str, Any]:
    """What the index says of one check. `unasked`: why it was not run again. `limit`: seconds for a second solver."""
    base: dict[str, Any] = {"check": check.id, "file": None, "not_included": unasked}
    if heard is None:
        return base
    settled = audit(check, finding)[0]
    again = {"outcome": str(heard.outcome), "same": heard.outcome is settled}
    if heard.asked is None:
        return base | {"again": again, "not_included": f"the repeated run ended {heard.outcome} and wrote no query"}
    from gradproof.arith import smt

    more = f"{heard.left_out} more: a script is at most a megabyte" if heard.left_out else ""
    return base | {
        "file": f"{FOLDER}/{safe(check.id)}.smt2" if heard.queries else None,
        "not_included": more or ("" if heard.queries else "the repeated run asked no query in its own process"),
        "again": again,
        "asked": heard.asked,
        "included": len(heard.queries),
        "read_back": sum(smt.readable(HEAD + query.text) for query in heard.queries),
        "expected": dict(counts(heard.queries)),
        "options": {"solver": finding["stats"].get("solver", "z3"), "per_query": "a solver of its own, no other option",
                    "seconds_at_most": check.time_limit},
        "second": second(heard.queries, SECOND, limit),
    }  # fmt: skip


def text_of(check: Check, told: Mapping[str, Any], heard: Heard) -> str:
    """The script of one check."""
    more = f", not included: {told['not_included']}" if told["not_included"] else ""
    title = [
        f"{check.id}: the distinct queries of one run, {told['asked']} asked{more}",
        f"{told['options']['solver']}, a solver of its own for each, at most {check.time_limit:g} s, no other option",
    ]
    return script(title, heard.queries)


EACH = 5.0
VERDICTS = ("agree", "differ", "unknown", "not_asked")


def verdict(status: str, said: str) -> str:
    """What an answer says of z3's status: agree, differ, or unknown where either of them gave none."""
    if status not in ("sat", "unsat") or said not in ("sat", "unsat"):
        return "unknown"
    return "agree" if status == said else "differ"


def second(queries: Sequence[Query], solver: str, seconds: float) -> dict[str, Any]:
    """Solver, version, and how many queries have each verdict. An absent solver was asked nothing, and says so."""
    version = version_of(solver)
    said = answers(queries, solver, seconds) if version and queries else []
    found = Counter(verdict(q.status, a) for q, a in zip(queries, said, strict=False))
    found["not_asked"] = len(queries) - len(said)
    return {"solver": solver, "version": version or "absent", **{name: found[name] for name in VERDICTS}}


def answers(queries: Sequence[Query], solver: str, seconds: float, each: float = EACH) -> list[str]:
    """A solver's answers; fewer than the queries where time ran out or the process crashed."""
    return answered([HEAD + q.text for q in queries], solver, seconds, each)[0][: len(queries)]


def contradictions(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What in an index contradicts the evidence, or cannot be asked again.

    Another answer of the repeated run, another one of the second solver, queries that z3 could not read back.
    """
    found = []
    for told in rows:
        again = told.get("again")
        if again and not again["same"] and again["outcome"] in ANSWERS:
            found.append(f"{told['check']}: the repeated run found {again['outcome']}, the evidence says otherwise")
        if told.get("read_back") != told.get("included"):
            found.append(f"{told['check']}: {told.get('read_back', 0)} of {told['included']} queries can be read back")
        if told.get("second", {}).get("differ"):
            second_ = told["second"]
            found.append(f"{told['check']}: {second_['solver']} contradicts z3 on {second_['differ']} queries")
    return found


def chosen(carried: Carried, name: str) -> Check:
    """A check that can be run again here. Raises GradproofError GP441: unknown, without evidence, another engine."""
    check = next((c for c in carried.checks() if c.id == name), None)
    evidence = None if check is None else carried.standings[name].evidence
    if check is None or evidence is None:
        raise _refused(f"there is no evidence of {name}", "the id of a check of the bundle", "see reports/")
    if check.layer is Layer.CUDA and (why := cuda_absent()):
        raise _refused(f"{name} needs a GPU: {why}", "a machine with a GPU", "run it on one")
    engine = [key for key in evidence["claim"]["files"] if key.startswith("gp:")]
    changed = [key for key in engine if not _same(key, carried.store.files[key])]
    if changed:
        found = f"{len(changed)} files of the installed gradproof are not those that ran, {changed[0]} first"
        raise _refused(found, "the engine that the evidence rests on", "install the gradproof that made the bundle")
    return check


def _refused(found: str, expected: str, mend: str) -> GradproofError:
    return GradproofError("GP441", found, expected, mend)


def _same(key: str, digest: str) -> bool:
    path = PACKAGE / key.removeprefix("gp:")
    return (sha256_of(path) if path.is_file() else "") == digest


def rerun(root: Path, carried: Carried, check: Check) -> tuple[str, Problem | None]:
    """Run a check from the bundle's sources: what it found in words, and the problem where the evidence disagrees."""
    evidence = carried.standings[check.id].evidence
    assert evidence is not None
    with tempfile.TemporaryDirectory(prefix="gradproof-bundle-") as folder:
        home = Path(folder).resolve()
        shutil.copytree(root / SOURCES, home / "workspace")
        workspace = Workspace(home / "workspace", home / "reports")
        finding = Worker(check, workspace, check.time_limit).run()["finding"]
    then, now = audit(check, evidence["finding"]), audit(check, finding)
    told = f"{check.id} is {now[0]} again: {now[1]}"
    if now[0] is not then[0] or finding["clauses"] != evidence["finding"]["clauses"]:
        words = f"{check.id} was run again: {now[0]}, {now[1]}; the evidence says {then[0]}, {then[1]}"
        return words, Problem("GP449", str(check.id), words)
    return told, None


def ask(root: Path, solver: str, seconds: float, limits: Mapping[str, float]) -> Iterator[Problem | str]:
    """Put every recorded query to a solver: a line for each script, or a problem. No answer is a problem too.

    A query has as long as its check has by the contract (`limits`), and each script has at most `seconds`.
    """
    for row in parse_json((root / INDEX).read_text(encoding="utf-8")):
        if row["file"] is None:
            continue
        queries = parse((root / row["file"]).read_text(encoding="utf-8"))
        each = limits[row["check"]]
        said = answers(queries, solver, seconds, each)
        found = [verdict(q.status, a) for q, a in zip(queries, said, strict=False)]
        agree, known = found.count("agree"), sum(q.status != "unknown" for q in queries)
        differ = found.count("differ")
        words = f"{agree} of {known} answers are the same, {differ} differ ({solver})"
        if silent := known - agree - differ:
            words += f"; no answer within {each:g} s, or none that can be read: {silent}"
        yield f"{row['check']}: {words}" if agree == known else Problem("GP449", row["file"], words)
