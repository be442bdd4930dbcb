"""The judge: every expectation and outcome through to the exit code, and what takes an answer back."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from toy_workspace import MEASURED, answer, check, control, recorded, refutation

from gradproof.core.check import Check, Finding
from gradproof.core.outcome import DECISION, EXIT_CODE, Effect, Exit, Expect, Kind, Layer, Outcome, Reach
from gradproof.evidence.audit import audit, belongs
from gradproof.evidence.record import EvidenceStatus
from gradproof.verdict.judge import Verdict, judge, required
from gradproof.verdict.plan import Clause, GateCriterion, Policy

GATE = check("GATE-1/falsification", kind=Kind.GATE, obligations=(), harness="", mutants=())
POLICY = Policy("ci", (Clause("T-1", (Layer.SMT,)),), (GateCriterion("right", ("T-1",)),), GATE.id)


def finding_of(of: Check, outcome: Outcome) -> Finding:
    """A finding with this outcome that carries all that such a finding should."""
    if outcome is Outcome.HOLDS:
        return answer(of)
    return refutation(of) if outcome is Outcome.REFUTED else Finding(outcome, f"it is {outcome}")


def stands(of: Check, finding: Finding | None = None, **more: Any) -> EvidenceStatus:
    return EvidenceStatus(recorded(of, finding or answer(of)), more.pop("fresh", True), **more)


def verdict(*pairs: tuple[Check, EvidenceStatus | None], policy: Policy = POLICY, gate: bool = True) -> Verdict:
    """The verdict on these checks and a gate check that turned red as it should."""
    rows = [*pairs, *([(GATE, stands(GATE))] if gate else [])]
    return judge([c for c, _ in rows], {c.id: s for c, s in rows if s is not None}, policy)


EXIT = {Effect.BROKEN: Exit.BROKEN, Effect.OPEN: Exit.OPEN, Effect.DISCHARGED: Exit.MET}


@pytest.mark.parametrize(("expect", "outcome"), list(product(Expect, Outcome)))
def test_every_expectation_and_outcome_reaches_its_exit_code(expect: Expect, outcome: Outcome) -> None:
    """Beside a proof that holds, so that nothing but this check decides."""
    one, other = check("K-1", expect=expect), check("K-2")
    made = verdict((one, stands(one, finding_of(one, outcome))), (other, stands(other)))
    effect = DECISION[expect, outcome]
    assert made.rulings["K-1"].outcome is outcome
    assert made.rulings["K-1"].effect is effect
    want = Exit.CRASH if outcome is Outcome.ERROR else EXIT[effect]
    assert made.exit is want
    assert made.code == EXIT_CODE[want]
    assert made.criteria[0].met is (want is Exit.MET)
    assert made.obligations["T-1"].cells[Layer.SMT].effect is effect
    assert bool(made.reasons) is (want is not Exit.MET)


@pytest.mark.parametrize(("expect", "outcome"), list(product(Expect, Outcome)))
def test_only_a_proof_that_holds_gives_an_obligation_reach(expect: Expect, outcome: Outcome) -> None:
    one = check("K-1", expect=expect)
    made = verdict((one, stands(one, finding_of(one, outcome))))
    alone = expect is Expect.HOLDS and outcome is Outcome.HOLDS
    cell = made.obligations["T-1"].cells[Layer.SMT]
    assert (made.exit is Exit.MET) is alone
    assert (cell.effect is Effect.DISCHARGED) is alone
    assert cell.reach is (Reach.BOUNDED if alone else None)


def test_an_expected_refutation_alone_leaves_the_obligation_open() -> None:
    one = check(expect=Expect.REFUTED)
    made = verdict((one, stands(one, refutation(one))))
    assert made.rulings["K-1"].effect is Effect.DISCHARGED
    assert made.exit is Exit.OPEN
    assert any("only expected refutations" in r for r in made.reasons)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_the_priority_of_exit_codes(outcome: Outcome) -> None:
    """A refutation wins over a crash, a crash over an open check."""
    broken, crashed, open_ = check("B"), check("C"), check("O")
    rows = [
        (broken, stands(broken, refutation(broken))),
        (crashed, stands(crashed, Finding(Outcome.ERROR, "crash"))),
        (open_, stands(open_, Finding(Outcome.TIMEOUT, "late"))),
    ]
    other = check("X")
    extra = (other, stands(other, finding_of(other, outcome)))
    assert verdict(*rows, extra).exit is Exit.BROKEN
    worse = DECISION[Expect.HOLDS, outcome] is Effect.BROKEN
    assert verdict(*rows[1:], extra).exit is (Exit.BROKEN if worse else Exit.CRASH)
    crash = outcome is Outcome.ERROR
    assert verdict(rows[2], extra).exit is (Exit.BROKEN if worse else Exit.CRASH if crash else Exit.OPEN)


def test_nothing_selected() -> None:
    assert judge([], {}, POLICY).exit is Exit.NOTHING


@pytest.mark.parametrize(
    "status", [None, EvidenceStatus(None, False, "rejected: edited"), EvidenceStatus(None, True, "")]
)
def test_missing_evidence_is_not_run(status: EvidenceStatus | None) -> None:
    made = verdict((check(), status))
    assert made.rulings["K-1"].outcome is Outcome.NOT_RUN
    assert made.exit is Exit.OPEN


@pytest.mark.parametrize("outcome", list(Outcome))
def test_stale_evidence_is_not_run_whatever_it_says(outcome: Outcome) -> None:
    one = check()
    made = verdict((one, stands(one, finding_of(one, outcome), fresh=False, reason="models/a.py changed")))
    assert made.rulings["K-1"].outcome is Outcome.NOT_RUN
    assert "models/a.py changed" in made.rulings["K-1"].reason
    assert made.exit is Exit.OPEN


def stub(**more: Any) -> Check:
    return check("STUB-1", kind=Kind.STUB, obligations=(), **more)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_proof_counts_only_when_its_stub_is_discharged(outcome: Outcome) -> None:
    one, base = check(depends=("STUB-1",)), stub()
    made = verdict((one, stands(one)), (base, stands(base, finding_of(base, outcome))))
    if outcome is Outcome.HOLDS:
        assert made.exit is Exit.MET
        return
    assert made.rulings["K-1"].outcome is Outcome.NOT_RUN
    assert "STUB-1" in made.rulings["K-1"].reason
    assert made.obligations["T-1"].effect is Effect.OPEN
    assert made.exit is not Exit.MET


def test_a_stub_that_is_not_there_discharges_nothing() -> None:
    one = check(depends=("STUB-1",))
    assert verdict((one, stands(one))).rulings["K-1"].outcome is Outcome.NOT_RUN


def test_a_stale_stub_opens_what_rests_on_what_rests_on_it() -> None:
    one, middle, base = check(depends=("M",)), check("M", kind=Kind.STUB, obligations=(), depends=("STUB-1",)), stub()
    made = verdict((one, stands(one)), (middle, stands(middle)), (base, stands(base, fresh=False, reason="stale")))
    assert made.rulings["K-1"].outcome is Outcome.NOT_RUN


def test_a_refutation_stands_without_its_stub() -> None:
    one = check(depends=("STUB-1",))
    made = verdict((one, stands(one, refutation(one))))
    assert made.rulings["K-1"].effect is Effect.BROKEN


def test_a_circle_of_stubs_is_never_discharged() -> None:
    a, b = (check(n, kind=Kind.STUB, obligations=(), depends=(d,)) for n, d in (("A", "B"), ("B", "A")))
    made = verdict((a, stands(a)), (b, stands(b)))
    assert not any(r.effect is Effect.DISCHARGED for n, r in made.rulings.items() if n in "AB")


CHANGES: dict[str, tuple[dict[str, Any], Outcome]] = {
    "no clause": ({"clauses": {}}, Outcome.VACUOUS),
    "another clause": ({"clauses": {"T-2": "HOLDS"}}, Outcome.VACUOUS),
    "a clause that only starts alike": ({"clauses": {"T-10": "HOLDS"}}, Outcome.VACUOUS),
    "a clause that does not hold": ({"clauses": {"T-1": "UNKNOWN"}}, Outcome.VACUOUS),
    "no cover": ({"covers": []}, Outcome.VACUOUS),
    "an unreached cover": ({"covers": [{"name": "c", "reached": False, "witness": None}]}, Outcome.VACUOUS),
    "no reach": ({"reach": None}, Outcome.VACUOUS),
    "no control": ({"controls": []}, Outcome.WEAK),
    "no empty body": ({"controls": [control()]}, Outcome.WEAK),
    "no mutant": ({"controls": [control("empty body", "empty_body")]}, Outcome.WEAK),
    "a surviving mutant": (
        {"controls": [control("empty body", "empty_body"), control(outcome=Outcome.HOLDS, killed=False)]},
        Outcome.WEAK,
    ),
    "a mutant that crashed": (
        {"controls": [control("empty body", "empty_body"), control(outcome=Outcome.ERROR, killed=True)]},
        Outcome.WEAK,
    ),
    "a mutant that timed out": (
        {"controls": [control("empty body", "empty_body"), control(outcome=Outcome.TIMEOUT, killed=False)]},
        Outcome.WEAK,
    ),
    "a mutant refuted on another clause": (
        {"controls": [control("empty body", "empty_body"), control(killed=False)]},
        Outcome.WEAK,
    ),
    "a surviving empty body": (
        {"controls": [control("empty body", "empty_body", outcome=Outcome.HOLDS, killed=False), control()]},
        Outcome.WEAK,
    ),
    "a counterexample": ({"counterexample": {"clause": "T-1", "values": {}}}, Outcome.ERROR),
    "a row above its bound": (
        {"measurements": [{**MEASURED, "column": "accumulation", "measured": 2.0, "bound": 1.0}]},
        Outcome.ERROR,
    ),
    "a row without a number": (
        {"measurements": [{**MEASURED, "column": "accumulation", "measured": None}]},
        Outcome.ERROR,
    ),
}


@pytest.mark.parametrize("name", list(CHANGES))
@pytest.mark.parametrize("kind", [Kind.SMT, Kind.CROSSHAIR])
def test_a_hold_that_its_evidence_does_not_carry_is_taken_back(kind: Kind, name: str) -> None:
    changed, want = CHANGES[name]
    one = check(kind=kind)
    assert verdict((one, stands(one))).exit is Exit.MET
    made = verdict((one, stands(one, answer(one, **changed))))
    assert made.rulings["K-1"].outcome is want
    assert made.exit is (Exit.CRASH if want is Outcome.ERROR else Exit.BROKEN)


TORCH = ["no clause", "an unreached cover", "no reach", "no control", "no mutant", "a row above its bound"]


@pytest.mark.parametrize("name", list(TORCH))
def test_a_run_is_audited_too(name: str) -> None:
    changed, want = CHANGES[name]
    one = check("F@cpu-fp32", kind=Kind.TORCH, layer=Layer.CPU)
    assert audit(one, recorded(one, answer(one)).finding)[0] is Outcome.HOLDS
    assert audit(one, recorded(one, answer(one, **changed)).finding)[0] is want


def test_end_to_end_rows_have_no_bound_to_keep() -> None:
    one = check("F@cpu-fp32", kind=Kind.TORCH, layer=Layer.CPU)
    rows = [
        {**MEASURED, "column": "end_to_end", "measured": 2.0, "bound": None},
        {**MEASURED, "column": "accumulation", "measured": 0.5},
    ]
    assert audit(one, recorded(one, answer(one, measurements=rows)).finding)[0] is Outcome.HOLDS


REFUTATIONS: dict[str, dict[str, Any]] = {
    "no counterexample": {"counterexample": None},
    "no replay": {"replays": []},
    "a replay that fails": {"replays": [{"on": "toy", "reproduced": False, "detail": ""}]},
    "another clause": {"counterexample": {"clause": "T-2", "values": {}}},
    "no clause": {"counterexample": {"clause": "", "values": {}}},
}


@pytest.mark.parametrize("name", list(REFUTATIONS))
@pytest.mark.parametrize("expect", list(Expect))
def test_a_refutation_that_was_not_replayed_is_spurious(expect: Expect, name: str) -> None:
    one, other = check(expect=expect), check("K-2")
    made = verdict((one, stands(one, refutation(one, **REFUTATIONS[name]))), (other, stands(other)))
    assert made.rulings["K-1"].outcome is Outcome.SPURIOUS
    assert made.exit is Exit.OPEN


@pytest.mark.parametrize("outcome", [o for o in Outcome if o not in (Outcome.HOLDS, Outcome.REFUTED)])
def test_the_audit_repairs_no_bad_outcome(outcome: Outcome) -> None:
    full = replace(answer(check()), outcome=outcome, reason="as it was")
    assert audit(check(), recorded(check(), full).finding) == (outcome, "as it was")


def test_clauses_belong_to_their_own_obligation() -> None:
    assert belongs("GA-EQ-001", "GA-EQ-001")
    assert belongs("GA-EQ-001/fp16", "GA-EQ-001")
    assert not belongs("GA-EQ-0011", "GA-EQ-001")
    assert not belongs("GA-EQ", "GA-EQ-001")


def test_a_required_layer_without_a_check_is_open() -> None:
    policy = replace(POLICY, clauses=(Clause("T-1", (Layer.SMT, Layer.CROSSHAIR)),))
    one = check()
    made = verdict((one, stands(one)), policy=policy)
    assert made.exit is Exit.OPEN
    assert any(r.startswith("T-1 x crosshair: ") for r in made.reasons)
    row = made.obligations["T-1"]
    assert (row.effect, row.discharged, row.required) == (Effect.OPEN, 1, 2)


def test_an_obligation_that_requires_no_layer_is_open() -> None:
    one = check()
    made = verdict((one, stands(one)), policy=replace(POLICY, clauses=(Clause("T-1", ()),)))
    assert made.exit is Exit.OPEN
    assert made.obligations["T-1"].effect is Effect.OPEN


def test_a_contract_without_obligations_is_open() -> None:
    one = check()
    assert verdict((one, stands(one)), policy=Policy("ci", ())).exit is Exit.OPEN


def test_a_stub_and_a_gate_check_cover_nothing() -> None:
    """Even when they name an obligation."""
    one = check("STUB-1", kind=Kind.STUB)
    assert verdict((one, stands(one))).obligations["T-1"].effect is Effect.OPEN


def test_one_open_check_keeps_its_cell_open() -> None:
    one, late = check(), check("K-2")
    made = verdict((one, stands(one)), (late, stands(late, Finding(Outcome.TIMEOUT, "late"))))
    cell = made.obligations["T-1"].cells[Layer.SMT]
    assert (cell.effect, cell.reach) == (Effect.OPEN, None)


def test_the_best_reach_of_a_cell_is_shown() -> None:
    bounded, all_inputs = check(), check("K-2")
    made = verdict((bounded, stands(bounded)), (all_inputs, stands(all_inputs, answer(all_inputs, reach="all inputs"))))
    assert made.obligations["T-1"].cells[Layer.SMT].reach is Reach.ALL_INPUTS


TABLE = "gradproof.core.protocol:advance"


def test_a_check_of_another_subject_alone_leaves_its_cell_open() -> None:
    """However far it reaches: a proof about a table says nothing of a loop that does not keep to it."""
    one = check(subject=TABLE)
    made = verdict((one, stands(one, answer(one, reach="all inputs"))))
    cell = made.obligations["T-1"].cells[Layer.SMT]
    assert made.rulings["K-1"].effect is Effect.DISCHARGED
    assert (cell.effect, cell.reach, cell.beyond) == (Effect.OPEN, None, ())
    assert made.exit is Exit.OPEN
    assert any(r.startswith("T-1 x smt: ") and "model" in r for r in made.reasons)
    assert made.criteria[0].met is False


def test_an_obligation_may_have_a_model_of_its_own() -> None:
    """Then a proof about that model fills its cell, and one about the contract's no longer does."""
    own = replace(POLICY, clauses=(Clause("T-1", (Layer.SMT,), {"model": TABLE}),))
    of_table, of_contract = check(subject=TABLE), check()
    assert verdict((of_table, stands(of_table)), policy=own).obligations["T-1"].effect is Effect.DISCHARGED
    assert verdict((of_contract, stands(of_contract)), policy=own).obligations["T-1"].effect is Effect.OPEN


@pytest.mark.parametrize("layer", list(Layer))
def test_each_layer_has_its_own_model(layer: Layer) -> None:
    """The PyTorch step discharges no proof's cell, and the Python model no run's."""
    policy = replace(POLICY, clauses=(Clause("T-1", (layer,)),))
    params = {"subjects": {"model": "models.loop:Loop", "torch": "models.step:Step"}}
    right, wrong = ("Step", "Loop") if layer in (Layer.STEP, Layer.CPU, Layer.CUDA) else ("Loop", "Step")
    for name, exit_ in ((right, Exit.MET), (wrong, Exit.OPEN)):
        one = check(layer=layer, params=params, subject=f"models.{name.lower()}:{name}")
        assert verdict((one, stands(one)), policy=policy).exit is exit_


@pytest.mark.parametrize("layer", list(Layer))
def test_an_obligation_may_be_about_a_model_of_its_own(layer: Layer) -> None:
    """Then the contract's own model does not discharge it."""
    about = {"model": "models.tokens.window:Tokens", "torch": "models.tokens.torch_window:Tokens"}
    policy = replace(POLICY, clauses=(Clause("T-1", (layer,), about),))
    params = {"subjects": {"model": "models.loop:Loop", "torch": "models.step:Step"}}
    key = "torch" if layer in (Layer.STEP, Layer.CPU, Layer.CUDA) else "model"
    for name, exit_ in ((about[key], Exit.MET), (params["subjects"][key], Exit.OPEN)):
        one = check(layer=layer, params=params, subject=name)
        assert verdict((one, stands(one)), policy=policy).exit is exit_


@pytest.mark.parametrize("params", [{}, {"subjects": {}}, {"subjects": {"model": ""}}])
def test_a_contract_that_names_no_model_discharges_nothing(params: dict[str, Any]) -> None:
    for subject in ("", "models.a:VALUE"):
        one = check(params=params, subject=subject)
        assert verdict((one, stands(one))).exit is Exit.OPEN


def test_the_reach_of_a_cell_is_that_of_the_model() -> None:
    """What is known beyond it of another subject is distinguished."""
    model, table, far = check(), check("K-2", subject=TABLE), {"reach": "all inputs"}
    rows = ((model, stands(model)), (table, stands(table, answer(table, **far))))
    cell = verdict(*rows).obligations["T-1"].cells[Layer.SMT]
    assert (cell.effect, cell.reach) == (Effect.DISCHARGED, Reach.BOUNDED)
    assert cell.beyond == ((TABLE, Reach.ALL_INPUTS),)
    rows = ((model, stands(model, answer(model, **far))), (table, stands(table)))
    cell = verdict(*rows).obligations["T-1"].cells[Layer.SMT]
    assert (cell.reach, cell.beyond) == (Reach.ALL_INPUTS, ())


def test_an_expected_refutation_of_the_model_does_not_stand_for_it() -> None:
    model, table = check(expect=Expect.REFUTED), check("K-2", subject=TABLE)
    made = verdict((model, stands(model, refutation(model))), (table, stands(table)))
    assert made.obligations["T-1"].effect is Effect.OPEN
    assert made.exit is Exit.OPEN


def test_a_gate_without_its_own_falsification_is_open() -> None:
    one = check()
    made = verdict((one, stands(one)), gate=False)
    assert made.exit is Exit.OPEN
    assert any("falsification was not planned" in r for r in made.reasons)


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.HOLDS])
def test_a_gate_whose_falsification_failed_is_never_met(outcome: Outcome) -> None:
    one = check()
    made = verdict((one, stands(one)), (GATE, stands(GATE, Finding(outcome, "not red"))), gate=False)
    assert made.exit is not Exit.MET


@pytest.mark.parametrize("names", [(), ("T-9",), ("T-1", "T-9")])
def test_a_criterion_needs_obligations_that_exist(names: tuple[str, ...]) -> None:
    one = check()
    made = verdict((one, stands(one)), policy=replace(POLICY, criteria=(GateCriterion("right", names),)))
    assert not made.criteria[0].met
    assert made.exit is Exit.OPEN


def cuda(**more: Any) -> Check:
    return check("F@cuda-fp32", kind=Kind.TORCH, layer=Layer.CUDA, **more)


@pytest.mark.parametrize(
    ("profile", "outcome", "exit_"),
    [
        ("ci", Outcome.NOT_RUN, Exit.MET),
        ("ci", Outcome.ERROR, Exit.MET),
        ("ci", Outcome.REFUTED, Exit.BROKEN),
        ("ci", Outcome.HOLDS, Exit.MET),
        ("release", Outcome.NOT_RUN, Exit.OPEN),
        ("release", Outcome.TIMEOUT, Exit.OPEN),
        ("release", Outcome.ERROR, Exit.CRASH),
        ("release", Outcome.REFUTED, Exit.BROKEN),
        ("release", Outcome.HOLDS, Exit.MET),
    ],
)
def test_gpu_rows_are_open_in_ci_and_required_for_a_release(profile: str, outcome: Outcome, exit_: Exit) -> None:
    layers = (Layer.SMT, Layer.CUDA) if profile == "release" else (Layer.SMT,)
    policy = replace(POLICY, profile=profile, clauses=(Clause("T-1", layers),))
    one, gpu = check(), cuda()
    made = verdict((one, stands(one)), (gpu, stands(gpu, finding_of(gpu, outcome))), policy=policy)
    assert made.exit is exit_
    assert made.obligations["T-1"].cells[Layer.CUDA].required is (profile == "release")
    assert (made.obligations["T-1"].effect is Effect.BROKEN) is (outcome is Outcome.REFUTED)


def test_a_stale_gpu_row_blocks_a_release() -> None:
    policy = replace(POLICY, clauses=(Clause("T-1", (Layer.SMT, Layer.CUDA)),))
    one, gpu = check(), cuda()
    made = verdict((one, stands(one)), (gpu, stands(gpu, fresh=False, reason="step changed")), policy=policy)
    assert made.exit is Exit.OPEN


def test_a_selection_is_judged_alone() -> None:
    policy = Policy("ci", (), restricted=True, demanded=frozenset({Layer.SMT}))
    one, gpu = check(expect=Expect.REFUTED), cuda()
    rows = ((one, stands(one, refutation(one))), (gpu, stands(gpu, Finding(Outcome.NOT_RUN, "no GPU"))))
    assert verdict(*rows, policy=policy, gate=False).exit is Exit.MET
    assert verdict(rows[1], policy=policy, gate=False).exit is Exit.OPEN
    both = replace(policy, demanded=frozenset({Layer.SMT, Layer.CUDA}))
    assert verdict(*rows, policy=both, gate=False).exit is Exit.OPEN
    assert not required(gpu, policy)


def test_judging_changes_nothing_that_it_is_given() -> None:
    one = check()
    held = stands(one)
    before = None if held.evidence is None else held.evidence.model_copy(deep=True)
    first, second = verdict((one, held)), verdict((one, held))
    assert held.evidence == before
    assert (first.exit, first.reasons, first.obligations) == (second.exit, second.reasons, second.obligations)
    assert first.rulings["K-1"] == second.rulings["K-1"]
