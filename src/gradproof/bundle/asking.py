"""Checks run once more, so that their queries can be recorded. What they find is compared, and never stored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradproof.audit import audit
from gradproof.bundle.queries import HEAD, Query, counts, script
from gradproof.bundle.second import second
from gradproof.core import Check, Effect, Kind, Outcome
from gradproof.evidence import ANSWERS
from gradproof.runner import Evidence, Listener, Pool, Worker
from gradproof.store import safe
from gradproof.workspace import Workspace

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
    from gradproof import smt

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
