"""A report as an in-toto Statement v1 with a test-result v0.1 predicate: plain JSON, to be put into an envelope.

The predicate knows passed, warned and failed, and nothing between: whatever gave no answer is failed. A check that
nothing demands and that did not run is in no list. A waived one is warned.
Source: https://in-toto.io/Statement/v1 and https://in-toto.io/attestation/test-result/v0.1
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradproof.core.outcome import Layer
from gradproof.core.workspace import sha256_of
from gradproof.evidence.record import Standing
from gradproof.evidence.store import safe
from gradproof.extras.attest.carried import FILES, SOURCES, Carried, claimed, files_text
from gradproof.extras.attest.manifest import MANIFEST, Wheel
from gradproof.report import studies
from gradproof.report.consistency import excused_ids
from gradproof.report.formats import jsonreport
from gradproof.report.views import Standing as RowStanding, rows

TYPE, PREDICATE = "https://in-toto.io/Statement/v1", "https://in-toto.io/attestation/test-result/v0.1"
RESULTS = ("FAILED", "WARNED", "PASSED")  # the worst first


def statement(
    report: Mapping[str, Any], wheel: Wheel | None, sources: str, materials: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """The statement. Its subject is the wheel, else the list of sources. `materials`: (name, file). Raises OSError."""
    subject = {"name": wheel.name, "digest": {"sha256": wheel.sha256}} if wheel else _described("files.sha256", sources)
    passed, warned, failed = sorted_rows(report)
    result = "FAILED" if failed or not report["verdict"]["met"] else "WARNED" if warned else "PASSED"
    return {
        "_type": TYPE,
        "subject": [subject],
        "predicateType": PREDICATE,
        "predicate": {
            "result": result,
            "configuration": [_described(name, sha256_of(Path(place))) for name, place in materials],
            "passedTests": passed,
            "warnedTests": warned,
            "failedTests": failed,
        },
    }


def of_manifest(digest: str, statements: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """The statement about a whole bundle. Its subject is the manifest, by `digest` (sha256 in hex).

    `statements`: of each contract, by its id, the place in the bundle and the text. The tests are the contracts.
    """
    results = {name: json.loads(text)["predicate"]["result"] for name, (_, text) in statements.items()}
    named = {word: [name for name, result in results.items() if result == word] for word in RESULTS}
    texts = statements.values()
    return {
        "_type": TYPE,
        "subject": [_described(MANIFEST, digest)],
        "predicateType": PREDICATE,
        "predicate": {
            "result": next((word for word in RESULTS if named[word]), "FAILED"),
            "configuration": [_described(place, hashlib.sha256(text.encode()).hexdigest()) for place, text in texts],
            "passedTests": named["PASSED"],
            "warnedTests": named["WARNED"],
            "failedTests": named["FAILED"],
        },
    }


def _described(name: str, digest: str) -> dict[str, Any]:
    return {"name": name, "digest": {"sha256": digest}}


def sorted_rows(report: Mapping[str, Any]) -> tuple[list[str], list[str], list[str]]:
    """Names of what passed, what is waived, and everything else that was asked for."""
    waived = excused_ids(report)
    passed: list[str] = []
    warned: list[str] = []
    failed: list[str] = []
    for row in rows(report):
        if row.id in waived:
            warned.append(row.id)
        elif row.standing is not RowStanding.SKIPPED:
            (passed if row.standing is RowStanding.PASSED else failed).append(row.id)
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


def dumped(data: Any) -> str:
    """JSON as every file of a bundle has it. Raises ValueError for NaN and infinity."""
    return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def reports(carried: Carried, made_at: str, version: str) -> dict[str, Report]:
    """The report of each contract by id, without the place on this machine. `version`: of the gradproof that attests.

    Only the standing of the rounding study depends on the gradproof that is installed here.
    """
    found = {}
    here = carried.store.ran_on["environment"]
    for contract in carried.session.contracts:
        report = carried.session.reported(contract, carried.run)
        report |= {"workspace": SOURCES, "generated_at": made_at, "seconds": 0.0, "gradproof": version}
        report |= {"environment": here, "kernels": studies.kernels(carried.session.workspace, report["checks"], here)}
        root = json.dumps(f"{carried.session.workspace.root}/", ensure_ascii=False)[1:-1]
        found[contract.id] = json.loads(jsonreport.render(report).replace(root, ""))
    return found


def report_path(contract: str) -> str:
    """Where the report of a contract lies."""
    return f"reports/{safe(contract)}.json"


def statement_path(contract: str) -> str:
    """Where the in-toto statement of a contract lies."""
    return f"statements/{safe(contract)}.json"


def documents(carried: Carried, made: Mapping[str, Report], wheel: Wheel | None, sources: str) -> dict[str, str]:
    """Every derived file but the reports, by its place in the bundle. `sources`: the digest of files.sha256."""
    found = {FILES: files_text(claimed(carried.standings))}
    for name, report in made.items():
        found[statement_path(name)] = dumped(statement(report, wheel, sources, _materials(carried)))
    witnesses = list(_witnesses(carried))
    found["witnesses.json"] = dumped([row for row, _ in witnesses])
    found |= {row["replay"]: text for row, text in witnesses}
    found["mutants.json"] = dumped({name: _matrix(report) for name, report in made.items()})
    found["devices.json"] = dumped(_devices(carried))
    found["waivers.json"] = dumped({name: report.get("waivers", []) for name, report in made.items()})
    return found


def _rows(carried: Carried) -> Iterator[tuple[str, Standing, dict[str, Any]]]:
    """Every check of which there is evidence, sorted."""
    for name, standing in sorted(carried.standings.items()):
        if standing.evidence is not None:
            yield name, standing, standing.evidence


def place_of(carried: Carried, standing: Standing) -> str:
    """Where an evidence file lies in the bundle."""
    return str(standing.path).removeprefix(f"{carried.session.workspace.reports}/")


def _materials(carried: Carried) -> list[tuple[str, str]]:
    """Contracts and evidence: (place in the bundle, place on disk)."""
    root = carried.session.workspace.reports
    contracts = [f"{SOURCES}/proofs/{c.id}/contract.yaml" for c in carried.session.contracts]
    names = [*contracts, *(place_of(carried, s) for _, s, _ in _rows(carried))]
    return [(name, str(root / name)) for name in sorted(names)]


def _witnesses(carried: Carried) -> Iterator[tuple[dict[str, Any], str]]:
    """Each counterexample, of a check or of a control, with the script that replays it."""
    for name, standing, evidence in _rows(carried):
        place, finding = place_of(carried, standing), evidence["finding"]
        held = [(None, finding["counterexample"], finding["replays"])]
        held += [(c["name"], c.get("counterexample"), c.get("replays", [])) for c in finding["controls"]]
        for control, example, replays in held:
            if example is None:
                continue
            called = safe(name if control is None else f"{name}--{control}")
            named = () if control is None else ("--control", "empty" if control == "empty body" else control)
            text = _REPLAY.format(evidence=place, options=named)
            row = {"check": name, "control": control, "evidence": place, "replay": f"replay/{called}.py"}
            yield row | {"counterexample": example, "replays": replays}, text


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
        name: {"layer": str(layers[name]), **{key: evidence["environment"].get(key) for key in keys}}
        for name, _, evidence in _rows(carried)
        if layers[name] in measured
    }
