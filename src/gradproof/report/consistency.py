"""What must agree inside a report before any renderer may show it.

A report is rebuilt from evidence by the judge. A renderer trusts none of its conclusions: each one is derived again
from the part below it (check, cell, obligation, criterion, verdict), and a conclusion that is better than its parts is
refused with GradproofError. A conclusion that is worse than its parts is shown as it is. A run that is not complete
has no verdict on the gate (`views.banner` says so), so `met` may be true there of the selected checks alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from gradproof.core.errors import GradproofError
from gradproof.core.outcome import DECISION, EXIT_CODE, REPORT_SCHEMA, Effect, Exit, Expect, Layer, Outcome
from gradproof.report.studies import ABSENT, FRESH, HOLDS, REJECTED, STALE, kernels_of

Report = Mapping[str, Any]
STANDINGS = (FRESH, STALE, REJECTED, ABSENT)
RUN_STATES = ("complete", "partial", "running")

SHAPE: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "": {
        "schema": str,
        "run_state": str,
        "generated_at": str,
        "gradproof": str,
        "profile": str,
        "contract": dict,
        "verdict": dict,
        "gate": (dict, type(None)),
        "obligations": list,
        "checks": list,
        "mutants": list,
        "measurements": list,
        "rounding": dict,
        "kernels": dict,
        "studies": list,
        "totals": dict,
        "environment": dict,
        "seconds": (int, float),
    },
    "verdict": {"exit": str, "code": int, "met": bool, "reasons": list},
    "contract": {"id": str, "version": str, "warnings": list},
    "obligations": {"id": str, "property": str, "effect": str, "cells": dict},
    "checks": {"id": str, "layer": str, "expect": str, "outcome": str, "effect": str, "reason": str},
    "mutants": {"name": str, "killed_by": list, "survived": list},
    "measurements": {"column": str, "device": str, "dtype": str, "net": str, "n": int, "measured": (int, float)},
    "rounding": {"status": str, "reason": str, "document": (dict, type(None))},
    "kernels": {"documents": list, "relies": list},
    "studies": {"name": str, "status": str, "reason": str},
    "totals": {"checks": int, "discharged": int, "broken": int, "open": int},
}


def require(report: Report) -> None:
    """Raise GradproofError when the report has a wrong shape or concludes more than its parts carry."""
    if report.get("schema") != REPORT_SCHEMA and str(report.get("schema")).startswith(REPORT_SCHEMA[:-1]):
        wrong = [f"schema {report['schema']!r}, which another version of gradproof wrote: run gradproof verify"]
    else:
        wrong = list(_shape(report))
    if wrong:
        raise _refusal("REPORT-SHAPE", wrong, f"a report of schema {REPORT_SCHEMA}")
    wrong = [*_checks(report), *_cells(report), *_obligations(report), *_verdict(report), *_studies(report)]
    if report["verdict"]["met"] and report["run_state"] == "complete":
        wrong += [*_met(report), *_met_gate(report)]
    if wrong:
        raise _refusal("REPORT-INCONSISTENT", wrong, "every conclusion at most as good as the parts below it")


def as_json(report: Report) -> str:
    """The report as JSON, schema gradproof-report/2 (reports/report.schema.json). History: 1, the first.

    Top-level keys come in the order of the schema, keys below them in alphabetical order, so that two reports of one
    state differ in nothing but their times. Raises GradproofError as `require` does, and for NaN or infinity.
    """
    require(report)
    try:
        plain = json.loads(json.dumps(report, sort_keys=True, allow_nan=False))
    except (TypeError, ValueError) as error:
        help = "record such a number as null, with a note"
        raise GradproofError("REPORT-NUMBER", str(error), "finite numbers and plain JSON values", help) from error
    return json.dumps({key: plain.pop(key) for key in SHAPE[""]} | plain, indent=1, ensure_ascii=False) + "\n"


def effect_of(check: Mapping[str, Any]) -> Effect:
    """The effect that the decision table gives to a check's expectation and outcome."""
    return DECISION[Expect(check["expect"]), Outcome(check["outcome"])]


def exceeds(row: Mapping[str, Any]) -> bool:
    """Whether a measured row is above its own bound; a NaN is."""
    return row.get("bound") is not None and not row["measured"] <= row["bound"]


def worst(effects: list[Effect]) -> Effect:
    """BROKEN before OPEN before DISCHARGED; nothing at all is OPEN."""
    for effect in (Effect.BROKEN, Effect.OPEN):
        if effect in effects:
            return effect
    return Effect.DISCHARGED if effects else Effect.OPEN


def required_ids(report: Report) -> set[str]:
    """Checks called required, those of required cells, and those in no cell (stubs, the gate's falsification)."""
    cells = [stated for ob in report["obligations"] for stated in ob["cells"].values()]
    placed = {c for stated in cells for c in stated["checks"]}
    needed = {c for stated in cells if stated["required"] for c in stated["checks"]}
    return needed | {c["id"] for c in report["checks"] if c.get("required") or c["id"] not in placed}


def _refusal(code: str, wrong: list[str], expected: str) -> GradproofError:
    shown = "; ".join(wrong[:5]) + (f"; and {len(wrong) - 5} more" if len(wrong) > 5 else "")
    return GradproofError(code, shown, expected, "make the report again from its evidence: gradproof report")


def _shape(report: Report) -> Iterator[str]:
    for section, keys in SHAPE.items():
        if section and not isinstance(report.get(section), dict | list):
            continue  # the top level has already said so
        value: Any = report if section == "" else report[section]
        for place, item in enumerate(value) if isinstance(value, list) else [(-1, value)]:
            where = f"{section or 'report'}{f'[{place}]' if place >= 0 else ''}"
            if not isinstance(item, Mapping):
                yield f"{where} is no mapping"
                continue
            for key, kind in keys.items():
                if key not in item:
                    yield f"{where}.{key} is missing"
                elif not isinstance(item[key], kind) or (isinstance(item[key], bool) and kind is not bool):
                    yield f"{where}.{key} has the wrong type"
    yield from _words(report)


def _words(report: Report) -> Iterator[str]:
    if report.get("schema") != REPORT_SCHEMA:
        yield f"schema {report.get('schema')!r} is not {REPORT_SCHEMA}"
    if report.get("run_state") not in RUN_STATES:
        yield f"run_state {report.get('run_state')!r} is none of {', '.join(RUN_STATES)}"
    for row in report.get("measurements") or []:
        if isinstance(row, Mapping) and (row.get("n", 1) < 1 or row.get("measured", 0) < 0):
            yield f"measurement {row.get('net')} has N {row.get('n')} and error {row.get('measured')}"
    checks = [c for c in report.get("checks") or [] if isinstance(c, Mapping)]
    for key, words in (("outcome", Outcome), ("expect", Expect), ("effect", Effect), ("layer", Layer)):
        for check in checks:
            if check.get(key) not in list(words):
                yield f"check {check.get('id')}: {key} {check.get(key)!r} is unknown"
    for ob in report.get("obligations") or []:
        if isinstance(ob, Mapping) and isinstance(ob.get("cells"), Mapping):
            yield from _cell_shape(ob)


def _cell_shape(ob: Mapping[str, Any]) -> Iterator[str]:
    for layer, cell in ob["cells"].items():
        where = f"cell {ob.get('id')} x {layer}"
        if layer not in list(Layer):
            yield f"{where}: layer is unknown"
        if not isinstance(cell, Mapping) or {"effect", "required", "checks"} - set(cell):
            yield f"{where} lacks effect, required or checks"
        elif cell["effect"] not in (*Effect, None):
            yield f"{where}: effect {cell['effect']!r} is unknown"


def _checks(report: Report) -> Iterator[str]:
    seen: set[str] = set()
    for check in report["checks"]:
        name = check["id"]
        if name in seen:
            yield f"check {name} stands twice"
        seen.add(name)
        if check["effect"] != effect_of(check):
            yield f"check {name} reads {check['effect']} where {check['outcome']} makes it {effect_of(check)}"
        if check["outcome"] != Outcome.NOT_RUN and check.get("fresh") is not True:
            yield f"check {name} reads {check['outcome']} on evidence that is not fresh"


def _cells(report: Report) -> Iterator[str]:
    effects = {c["id"]: effect_of(c) for c in report["checks"]}
    subjects = {c["id"]: c.get("subject") for c in report["checks"]}
    for ob in report["obligations"]:
        for layer, cell in ob["cells"].items():
            where = f"cell {ob['id']} x {layer}"
            unknown = [c for c in cell["checks"] if c not in effects]
            if unknown:
                yield f"{where} names {unknown[0]}, which is no check of this report"
                continue
            truth = worst([effects[c] for c in cell["checks"]])
            if cell["effect"] == Effect.DISCHARGED and truth is not Effect.DISCHARGED:
                yield f"{where} reads DISCHARGED where its checks make it {truth}"
            elif truth is Effect.BROKEN and cell["effect"] != Effect.BROKEN:
                yield f"{where} reads {cell['effect']} where one of its checks is BROKEN"
            elif cell["effect"] == Effect.DISCHARGED and cell.get("subject") not in {
                None,
                *(subjects[c] for c in cell["checks"]),
            }:
                yield f"{where} reads DISCHARGED where none of its checks is about {cell['subject']}"


def _obligations(report: Report) -> Iterator[str]:
    for ob in report["obligations"]:
        cells = ob["cells"].values()
        counted = [Effect(c["effect"] or "OPEN") for c in cells if c["required"] or c["effect"] == Effect.BROKEN]
        truth = worst(counted)
        if ob["effect"] == Effect.DISCHARGED and truth is not Effect.DISCHARGED:
            yield f"obligation {ob['id']} reads DISCHARGED where its cells make it {truth}"
    effects = [c["effect"] for c in report["checks"]]
    stated = (report["totals"]["checks"], *(report["totals"][k] for k in ("discharged", "broken", "open")))
    real = (len(effects), *(effects.count(e) for e in (Effect.DISCHARGED, Effect.BROKEN, Effect.OPEN)))
    if stated != real:
        yield f"totals (checks, discharged, broken, open) read {stated} where the checks count {real}"


def _verdict(report: Report) -> Iterator[str]:
    verdict = report["verdict"]
    if verdict["exit"] not in list(Exit):
        yield f"exit {verdict['exit']!r} is unknown"
    elif verdict["code"] != EXIT_CODE[Exit(verdict["exit"])]:
        yield f"exit {verdict['exit']} has code {verdict['code']}"
    if verdict["met"] != (verdict["exit"] == Exit.MET):
        yield f"met is {verdict['met']} and exit is {verdict['exit']}"


def _studies(report: Report) -> Iterator[str]:
    """A study is fresh only as a document, and whole; an operator conforms only by rows that hold."""
    from gradproof.core.schemas.base import faults

    stated, document = report["rounding"]["status"], report["rounding"]["document"]
    if stated not in STANDINGS or (stated in (FRESH, STALE)) != (document is not None):
        yield f"the rounding study reads {stated} with {'a' if document else 'no'} document"
    elif document is not None:
        yield from (f"the rounding study: {why}" for why in faults(document))
    for row in report["studies"]:
        if row["status"] not in STANDINGS:
            yield f"{row['name']} reads {row['status']}"
    read = [d for d in report["kernels"]["documents"] if d["status"] == FRESH]
    held = {(r["device"], r["operator"], r["dtype"]) for d in read for r in d["rows"] if r["outcome"] == HOLDS}
    for r in report["kernels"]["relies"]:
        wanted = {(r["device"], *kernel) for kernel in kernels_of(r["operator"], r["dtype"])}
        if r["state"] == HOLDS and (not wanted or wanted - held):
            yield f"{r['check']} reads {r['operator']} on {r['device']} as conforming, and no row holds of it"


def _covering(report: Report, obligation: str, layer: str) -> bool:
    """Whether a waiver that holds on the day of the report covers a cell, and says so."""
    day = str(report["generated_at"])[:10]
    rows = [w for w in report.get("waivers", []) if w["state"] == "in force" and w["expires"] >= day]
    return any(w["obligation"] == obligation and w["layer"] in (None, layer) for w in rows)


def waived(report: Report, ob: Mapping[str, Any]) -> bool:
    """Whether an obligation is OPEN in waived cells alone, and says so."""
    cells = [(layer, c) for layer, c in ob["cells"].items() if c["required"] and c["effect"] != Effect.DISCHARGED]
    covered = all(c["effect"] == Effect.OPEN and _covering(report, ob["id"], layer) for layer, c in cells)
    return ob["effect"] == Effect.OPEN and ob.get("waived") is True and bool(cells) and covered


def waived_ids(report: Report) -> set[str]:
    """Checks that only waived cells ask for."""
    asked: dict[str, list[bool]] = {}
    for ob in report["obligations"]:
        held = waived(report, ob)
        for layer, cell in ob["cells"].items():
            covered = held and _covering(report, ob["id"], layer)
            for name in cell["checks"] if cell["required"] else ():
                asked.setdefault(name, []).append(covered)
    return {name for name, found in asked.items() if all(found)}


def _met(report: Report) -> Iterator[str]:
    if not report["obligations"] or not report["checks"]:
        yield "the gate reads met over nothing"
    needed, spared = required_ids(report), waived_ids(report)
    for check in report["checks"]:
        left = check["id"] in needed and check["id"] not in spared
        if check["effect"] == Effect.BROKEN or (check["effect"] == Effect.OPEN and left):
            yield f"the gate reads met and check {check['id']} is {check['effect']}"
    for ob in report["obligations"]:
        if ob["effect"] != Effect.DISCHARGED and not waived(report, ob):
            yield f"the gate reads met and obligation {ob['id']} is {ob['effect']}"
        if not any(c["required"] for c in ob["cells"].values()):
            yield f"the gate reads met and obligation {ob['id']} has no required cell"
    for mutant in report["mutants"]:
        if mutant["survived"]:
            yield f"the gate reads met and mutant {mutant['name']} survived {mutant['survived'][0]}"
    for row in report["measurements"]:
        if exceeds(row) or (row["column"] == "accumulation" and not math.isfinite(row["measured"])):
            yield f"the gate reads met and {row['net']} N={row['n']} {row['dtype']} measured above its bound"


def _met_gate(report: Report) -> Iterator[str]:
    gate = report["gate"] or {}
    good = {ob["id"] for ob in report["obligations"] if ob["effect"] == Effect.DISCHARGED or waived(report, ob)}
    effects = {ob["id"]: ob["effect"] for ob in report["obligations"]}
    for criterion in gate.get("criteria", []):
        if not criterion["met"]:
            yield f"the gate reads met and criterion {criterion['name']} is not"
        for name in criterion["obligations"]:
            if name not in good:
                yield f"criterion {criterion['name']} rests on {name}, which is {effects.get(name, 'absent')}"
    seeded = gate.get("falsification") or {}
    if seeded.get("text") and seeded.get("turned_red") is not True:
        yield "the gate reads met and its own falsification did not turn it red"
