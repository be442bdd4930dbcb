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
UNNAMED = "has one in its case; expected: its name under inputs.of; name it there, or take it out of k.scenario"


def row(field: str, free: bool, *values: str, kind: str = KIND) -> dict[str, Any]:
    return {"type": kind, "field": field, "free": free, "values": list(values)}


def judged(
    *cases: list[dict[str, Any]],
    fixed: dict[str, Any] | None = None,
    of: str = KIND,
    subjects: tuple[str, ...] = (),
) -> Verdict:
    """The verdict on proofs with these cases, under a gate that asks for the fields of one dataclass.

    `subjects`: what each proof is about, where it is not the contract's own model.
    """
    pairs: list[tuple[Any, EvidenceStatus | None]] = [(GATE, stands(GATE))]
    for i, rows in enumerate(cases):
        one = check(f"K-{i + 1}", **({"subject": subjects[i]} if i < len(subjects) else {}))
        pairs.append((one, stands(one, answer(one, stats={"fields": rows}))))
    asked = InputsShape.model_validate({"of": [of] if of else [], "fixed": fixed or {}})
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
    assert made.reasons == (f"input models.loop:MicroBatch: K-1 {UNNAMED}",)


def test_arguments_count_by_their_names() -> None:
    rows = [row("params", False, "0", kind="")]
    assert judged(rows, of="params").reasons[0].startswith("input params: every harness has 0")
    assert judged([row("params", True, kind="")], of="params").exit is Exit.MET


def test_what_another_model_frees_is_not_free_in_the_contracts_own() -> None:
    """Another subject, with the own one: as MicroBatch.count under weights, which the plain loop never reads."""
    fixed, free = [row("count", False, "1")], [row("count", True)]
    other = judged(free, fixed, subjects=("models.a:OTHER",))
    assert other.reasons[0].startswith("input Config.count: every harness has 1;")
    assert judged(free, fixed).exit is Exit.MET
    excused = {"Config.count": {"value": "1", "reason": "the own model does not read it"}}
    assert judged(free, fixed, fixed=excused, subjects=("models.a:OTHER",)).exit is Exit.MET


def test_an_input_of_other_models_alone_is_judged_by_them() -> None:
    plain = [row("n", True, kind="models.loop:Plan")]
    asked = InputsShape.model_validate({"of": [KIND, "models.loop:Plan"]})
    pairs = [(GATE, stands(GATE))]
    for name, subject, rows in (("K-1", "models.a:VALUE", plain), ("K-2", "models.a:OTHER", [row("rate", True)])):
        one = check(name, subject=subject)
        pairs.append((one, stands(one, answer(one, stats={"fields": rows}))))
    assert verdict(*pairs, policy=replace(POLICY, inputs=asked), gate=False).exit is Exit.MET


def test_a_case_that_is_stated_where_the_contract_lists_no_inputs_opens_the_gate() -> None:
    made = judged([row("n", True), row("g", True, kind="")], of="")
    assert made.exit is Exit.OPEN
    assert set(made.reasons) == {f"input {KIND}: K-1 {UNNAMED}", f"input g: K-1 {UNNAMED}"}


def test_an_argument_that_the_contract_does_not_list_opens_the_gate() -> None:
    made = judged([row("n", True), row("params", True, kind="")])
    assert made.reasons == (f"input params: K-1 {UNNAMED}",)


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
