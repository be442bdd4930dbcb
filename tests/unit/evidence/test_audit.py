"""Each objection of the audit by itself, beside evidence that it has nothing against."""

from __future__ import annotations

from typing import Any

import pytest
from toy_workspace import MEASURED, answer, check, control, recorded, refutation

from gradproof.core.check import Check, Finding
from gradproof.core.outcome import Kind, Layer, Outcome
from gradproof.evidence.audit import audit

PROOFS = (Kind.SMT, Kind.CROSSHAIR, Kind.TRACE)
INF = float("inf")


def audited(of: Check, finding: Finding) -> tuple[Outcome, str]:
    return audit(of, recorded(of, finding).finding)


def held(kind: Kind, **changed: Any) -> tuple[Outcome, str]:
    """What is left of a HOLDS of this kind, with something of it changed."""
    one = check(kind=kind, layer=Layer.CPU if kind is Kind.TORCH else Layer.SMT)
    return audited(one, answer(one, **changed))


@pytest.mark.parametrize("kind", [k for k in Kind if k is not Kind.GATE])
def test_what_each_kind_of_check_must_show(kind: Kind) -> None:
    assert held(kind)[0] is Outcome.HOLDS
    assert held(kind, covers=[])[0] is (Outcome.VACUOUS if kind in PROOFS else Outcome.HOLDS)
    bare = held(kind, controls=[control()])
    assert bare[0] is (Outcome.HOLDS if kind is Kind.STUB else Outcome.WEAK)
    assert held(kind, controls=[control(kind="empty body"), control("empty", "empty")])[0] is Outcome.HOLDS


def test_the_falsification_of_a_gate_is_taken_at_its_word() -> None:
    """It asks no clause, cover or control of its own."""
    gate = check(kind=Kind.GATE, obligations=(), mutants=())
    assert audited(gate, Finding(Outcome.HOLDS, "it turned red")) == (Outcome.HOLDS, "it turned red")
    assert audited(gate, Finding(Outcome.REFUTED, "it stayed green")) == (Outcome.REFUTED, "it stayed green")


@pytest.mark.parametrize(
    ("kind", "device", "outcome"),
    [
        (Kind.TORCH, "cuda", Outcome.ERROR),
        (Kind.TORCH, "cpu", Outcome.HOLDS),
        (Kind.TORCH, None, Outcome.HOLDS),
        (Kind.SMT, "cuda", Outcome.HOLDS),
    ],
)
def test_a_run_is_evidence_of_the_device_that_it_ran_on(kind: Kind, device: str | None, outcome: Outcome) -> None:
    found, why = held(kind, stats={} if device is None else {"device": device})
    assert found is outcome
    assert ("ran on cuda" in why) is (outcome is Outcome.ERROR)


def row(**changed: Any) -> dict[str, Any]:
    return {**MEASURED, "column": "accumulation", "measured": 1.0, "bound": 1.0, **changed}


@pytest.mark.parametrize(
    ("rows", "outcome"),
    [
        ([row()], Outcome.HOLDS),
        ([row(measured=1.0000001)], Outcome.ERROR),
        ([row(), row(measured=2)], Outcome.ERROR),
        ([row(measured=None)], Outcome.ERROR),
        ([row(measured=None, note="late")], Outcome.ERROR),
        ([row(measured=None, note="NOT_RUN: no memory")], Outcome.HOLDS),
        ([row(measured=2.0, note="NOT_RUN: no memory")], Outcome.ERROR),
        ([row(bound=None, measured=9.0)], Outcome.HOLDS),
        ([row(column="end_to_end", bound=None, measured=9.0)], Outcome.HOLDS),
        ([row(column="peak bytes", measured=9.0)], Outcome.ERROR),
    ],
)
def test_a_measurement_keeps_its_bound(rows: list[dict[str, Any]], outcome: Outcome) -> None:
    assert held(Kind.TORCH, measurements=rows)[0] is outcome


@pytest.mark.parametrize("measured", [INF, -INF, float("nan")])
def test_a_measurement_is_a_number(measured: float) -> None:
    """Evidence holds no other value: a backend that hands one over is an ERROR."""
    assert held(Kind.TORCH, measurements=[row(measured=measured)])[0] is Outcome.ERROR


def test_without_an_obligation_some_clause_is_still_to_be_checked() -> None:
    stub = check(kind=Kind.STUB, obligations=())
    assert audited(stub, answer(stub))[0] is Outcome.HOLDS
    assert audited(stub, answer(stub, clauses={})) == (Outcome.VACUOUS, "no clause was checked")


def test_every_obligation_has_a_clause_and_every_clause_holds() -> None:
    one = check(obligations=("T-1", "T-2"))
    both = {"T-1/fp16": "HOLDS", "T-2": "held on 8 examples"}
    assert audited(one, answer(one, clauses=both))[0] is Outcome.HOLDS
    for clauses, told in (({"T-1": "HOLDS"}, "T-2"), ({**both, "T-3": "not HOLDS"}, "T-3 ")):
        found, why = audited(one, answer(one, clauses=clauses))
        assert (found, told in why) == (Outcome.VACUOUS, True)


def test_the_worst_objection_is_told() -> None:
    """A contradiction before what shows nothing, and that before a bug that survives."""
    found: dict[str, Any] = {"controls": []}
    for more, outcome in (({}, Outcome.WEAK), ({"reach": None}, Outcome.VACUOUS),
                          ({"counterexample": {"clause": "T-1", "values": {}}}, Outcome.ERROR)):  # fmt: skip
        found |= more
        assert held(Kind.SMT, **found)[0] is outcome


def test_a_refutation_is_of_a_clause_that_the_check_claims() -> None:
    stub, two = check(kind=Kind.STUB, obligations=()), check(obligations=("T-1", "T-2"))
    assert audited(stub, refutation(stub))[0] is Outcome.REFUTED
    for clause in ("T-1", "T-2/fp16"):
        assert audited(two, refutation(two, counterexample={"clause": clause, "values": {}}))[0] is Outcome.REFUTED
    for clause, stated in (("T-3", "T-3"), ("", "no clause")):
        found, why = audited(two, refutation(two, counterexample={"clause": clause, "values": {}}))
        assert (found, f"to {stated}," in why) == (Outcome.SPURIOUS, True)
