"""The gate fails on an input that no harness frees, and on a reason that excuses nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_judge import GATE, POLICY, stands, verdict
from toy_workspace import answer, check, refutation

from gradproof.contract.schema import InputsShape
from gradproof.core.outcome import Exit
from gradproof.evidence.record import EvidenceStatus
from gradproof.verdict.judge import Verdict

KIND = "models.loop:Config"


def row(field: str, free: bool, *values: str, kind: str = KIND) -> dict[str, Any]:
    return {"type": kind, "field": field, "free": free, "values": list(values)}


def judged(
    *cases: list[dict[str, Any]], fixed: dict[str, Any] | None = None, of: str = KIND, **changed: Any
) -> Verdict:
    """The verdict on proofs with these cases, under a gate that asks for the fields of one dataclass."""
    pairs: list[tuple[Any, EvidenceStatus | None]] = [(GATE, stands(GATE))]
    for i, rows in enumerate(cases):
        one = check(f"K-{i + 1}")
        pairs.append((one, stands(one, answer(one, stats={"fields": rows}))))
    asked = InputsShape.model_validate({"of": [of], "fixed": fixed or {}})
    return verdict(*pairs, policy=replace(POLICY, inputs=asked), gate=False)


def test_a_gate_is_met_where_each_field_is_free_in_some_harness() -> None:
    one, two = [row("n", True, "1", "2"), row("rate", False, "1")], [row("n", False, "4"), row("rate", True)]
    assert judged(one, two).exit is Exit.MET


def test_a_field_that_no_harness_frees_opens_the_gate() -> None:
    made = judged([row("n", True, "1", "2"), row("rate", False, "1")], [row("rate", False, "2")])
    assert made.exit is Exit.OPEN
    [reason] = made.reasons
    assert reason.startswith(
        "input Config.rate: every harness has 1, 2; expected: a symbolic number in a harness that holds"
    )
    assert reason.endswith("free it in one of K-1, K-2, or give a reason under inputs.fixed")


def test_a_reason_excuses_a_fixed_field_at_its_value_alone() -> None:
    reason = {"Config.rate": {"value": "1", "reason": "every clause is homogeneous in it"}}
    rows = [row("n", True), row("rate", False, "1")]
    assert judged(rows, fixed=reason).exit is Exit.MET
    other = judged([row("n", True), row("rate", False, "2")], fixed=reason)
    assert other.reasons == ("input Config.rate: it is fixed at 1, and the harnesses have 2; correct the value",)
    stale = judged([row("n", True), row("rate", True)], fixed=reason)
    assert (stale.exit, len(stale.reasons)) == (Exit.OPEN, 1)
    assert "K-1 frees it; remove it from inputs.fixed" in stale.reasons[0]
    unknown = judged([row("n", True)], fixed=reason)
    assert unknown.reasons == ("input Config.rate: it is fixed with a reason, and no harness has it; remove it",)


def test_a_type_that_no_case_has_opens_the_gate() -> None:
    made = judged([row("n", True)], of="models.loop:MicroBatch")
    assert made.reasons[0].startswith("input models.loop:MicroBatch: no harness that holds has one in its case")


def test_a_dataclass_that_the_contract_does_not_name_opens_the_gate() -> None:
    other = row("size", True, kind="models.loop:MicroBatch")
    made = judged([row("n", True), other])
    assert made.reasons == ("input models.loop:MicroBatch: a harness has one in its case; name it under inputs.of",)


def test_arguments_count_by_their_names() -> None:
    rows = [row("params", False, "0", kind="")]
    assert judged(rows, of="params").reasons[0].startswith("input params: every harness has 0")
    assert judged([row("params", True, kind="")], of="params").exit is Exit.MET


@pytest.mark.parametrize("state", ["stale", "refuted", "weak"])
def test_a_proof_that_does_not_hold_frees_nothing(state: str) -> None:
    good, one = check("K-1"), check("K-2", obligations=())
    free = answer(one, stats={"fields": [row("rate", True)]}, clauses={"other": "HOLDS"})
    status = {
        "stale": replace(stands(one, free), fresh=False),
        "refuted": stands(one, replace(refutation(one), stats=free.stats)),
        "weak": stands(one, replace(free, controls=[])),
    }[state]
    fixed = answer(good, stats={"fields": [row("rate", False, "1")]})
    asked = InputsShape.model_validate({"of": [KIND]})
    pairs = [(GATE, stands(GATE)), (good, stands(good, fixed)), (one, status)]
    made = verdict(*pairs, policy=replace(POLICY, inputs=asked), gate=False)
    assert made.exit is not Exit.MET
    assert any(reason.startswith("input Config.rate: every harness has 1") for reason in made.reasons)
