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
from types import GenericAlias
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, ValidationError, create_model

from gradproof.contract.schema import ExpectName, LayerName
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import DECISION, EXIT_CODE, REPORT_SCHEMA, Effect, Exit, Expect, Outcome
from gradproof.core.schemas.base import Count
from gradproof.report.studies import ABSENT, FRESH, HOLDS, REJECTED, STALE, kernels_of

Report = Mapping[str, Any]
STANDINGS = (FRESH, STALE, REJECTED, ABSENT)


def _size(error: float) -> float:
    """A measured error. Raises ValueError for a negative one; a NaN is above every bound."""
    if error < 0:
        raise ValueError("an error is not negative")
    return error


Size = Annotated[float, AfterValidator(_size)]
OutcomeName, EffectName = Annotated[Outcome, Field(strict=False)], Annotated[Effect, Field(strict=False)]


def _row(title: str, /, **keys: Any) -> Any:
    """A mapping that has at least these keys. Nothing is coerced."""
    fields: dict[str, Any] = {key: (kind, ...) for key, kind in keys.items()}
    return create_model(title, __config__=ConfigDict(strict=True, defer_build=True), **fields)


def _rows(title: str, /, **keys: Any) -> Any:
    """A list of such mappings."""
    return GenericAlias(list, (_row(title, **keys),))


Cell = _row("Cell", effect=EffectName | None, required=bool, checks=list[str])
SHAPE: Any = _row(
    "Report",
    document=Annotated[Literal["gradproof-report/2"], Field(alias="schema")],
    run_state=Literal["complete", "partial", "running"],
    generated_at=str,
    gradproof=str,
    profile=str,
    contract=_row("Contract", id=str, version=str, warnings=list),
    verdict=_row("Verdict", exit=str, code=int, met=bool, reasons=list),
    gate=dict | None,
    obligations=_rows("Obligation", id=str, property=str, effect=str, cells=GenericAlias(dict, (LayerName, Cell))),
    checks=_rows(
        "Check", id=str, layer=LayerName, expect=ExpectName, outcome=OutcomeName, effect=EffectName, reason=str
    ),
    mutants=_rows("Mutant", name=str, killed_by=list, survived=list),
    measurements=_rows("Measured", column=str, device=str, dtype=str, net=str, n=Count, measured=Size),
    rounding=_row("Rounding", status=str, reason=str, document=dict | None),
    kernels=_row("Kernels", documents=list, relies=list),
    studies=_rows("Study", name=str, status=str, reason=str),
    totals=_row("Totals", checks=int, discharged=int, broken=int, open=int),
    environment=dict,
    seconds=float,
)
"""The keys of a report in their order, and what stands under them."""


def require(report: Report) -> None:
    """Raise GradproofError when the report has a wrong shape or concludes more than its parts carry."""
    if report.get("schema") != REPORT_SCHEMA and str(report.get("schema")).startswith(REPORT_SCHEMA[:-1]):
        wrong = [f"schema {report['schema']!r}, which another version of gradproof wrote: run gradproof verify"]
    else:
        wrong = _shape(report)
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
    keys = [field.alias or name for name, field in SHAPE.model_fields.items()]
    return json.dumps({key: plain.pop(key) for key in keys} | plain, indent=1, ensure_ascii=False) + "\n"


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


def _shape(report: Report) -> list[str]:
    try:
        SHAPE.model_validate(report)
    except ValidationError as error:
        rows = error.errors(include_url=False, include_input=False)
        return [f"{'.'.join(map(str, row['loc'])) or 'report'}: {row['msg']}" for row in rows]
    return []


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
