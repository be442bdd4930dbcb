"""Each reason against a met gate by itself: nothing else in these contracts would keep it open."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from test_judge import POLICY, finding_of, stands, verdict
from toy_workspace import answer, check, refutation

from gradproof.contract.schema import Least, Waiver
from gradproof.contract.settings import Demands, demands_of
from gradproof.core.check import Check, Finding
from gradproof.core.outcome import EXIT_MEANING, Effect, Exit, Expect, Kind, Layer, Outcome, Reach
from gradproof.verdict.judge import Verdict
from gradproof.verdict.plan import Clause, Policy, shortcoming

NOW = datetime.now(UTC)
TODAY = NOW.date()
BARE = replace(POLICY, criteria=())
GPU = check("F-1@cuda-fp32", kind=Kind.TORCH, layer=Layer.CUDA)


def waiver(obligation: str = "T-1", layer: Layer | None = Layer.CUDA, days: int = 0) -> Waiver:
    last = TODAY + timedelta(days=days)
    return Waiver(obligation=obligation, layer=layer, owner="ann", reason="no GPU", expires=last)


def judged(*found: tuple[Check, Finding], policy: Policy, waivers: tuple[Waiver, ...] = ()) -> Verdict:
    asked = replace(policy, demands=Demands(waivers=waivers, now=datetime.now(UTC) + timedelta(minutes=1)))
    return verdict(*((one, stands(one, finding)) for one, finding in found), policy=asked)


def proved(**more: Any) -> tuple[Check, Finding]:
    one = check(**more)
    return one, answer(one)


def clauses(*rows: Clause) -> Policy:
    return replace(BARE, clauses=rows)


def test_nothing_else_is_against_these_contracts() -> None:
    assert (judged(proved(), policy=BARE).exit, judged(proved(), policy=BARE).reasons) == (Exit.MET, ())


def test_an_obligation_without_a_layer_keeps_the_gate_open() -> None:
    made = judged(proved(), policy=clauses(Clause("T-1", (Layer.SMT,)), Clause("T-2", ())))
    assert made.exit is Exit.OPEN
    assert [(r.partition(":")[0], "layer" in r) for r in made.reasons] == [("T-2", True)]


def test_a_premise_that_is_not_discharged_keeps_the_gate_open() -> None:
    made = judged(proved(), policy=replace(BARE, dependencies={"a": Exit.MET, "b": Exit.OPEN}))
    assert made.exit is Exit.OPEN
    assert [" b, " in r and r.endswith(EXIT_MEANING[Exit.OPEN]) for r in made.reasons] == [True]


def test_a_contract_without_a_falsification_of_its_gate_plans_none() -> None:
    one = check()
    assert verdict((one, stands(one)), policy=replace(BARE, gate_check=None), gate=False).exit is Exit.MET


def test_stubs_are_judged_before_what_rests_on_them_in_whatever_order_they_come() -> None:
    base, middle = (
        check("S", kind=Kind.STUB, obligations=()),
        check("M", kind=Kind.STUB, depends=("S",), obligations=()),
    )
    found = (proved(depends=("M",)), (middle, answer(middle)), (base, answer(base)))
    assert judged(*found, policy=BARE).exit is judged(*found[::-1], policy=BARE).exit is Exit.MET


def test_a_proof_of_one_obligation_is_none_of_another() -> None:
    both = clauses(Clause("T-1", (Layer.SMT,)), Clause("T-2", (Layer.SMT,)))
    made = judged(proved(obligations=("T-2",)), policy=both)
    assert made.obligations["T-1"].cells[Layer.SMT].checks == ()
    assert [(r.partition(":")[0], "planned" in r) for r in made.reasons] == [("T-1 x smt", True)]
    assert judged(proved(obligations=("T-1", "T-2")), policy=both).exit is Exit.MET


ON_GPU = clauses(Clause("T-1", (Layer.SMT, Layer.CUDA)))
LATE = Finding(Outcome.TIMEOUT, "late")


def test_a_waiver_excuses_no_obligation_that_is_broken() -> None:
    one = check()
    waived = judged(proved(), (GPU, LATE), policy=ON_GPU, waivers=(waiver(),))
    assert (waived.exit, waived.obligations["T-1"].waived) == (Exit.MET, (waiver(),))
    broken = judged((one, refutation(one)), (GPU, LATE), policy=ON_GPU, waivers=(waiver(),))
    assert (broken.exit, broken.obligations["T-1"].waived) == (Exit.BROKEN, ())


@pytest.mark.parametrize("given", [waiver(days=-1), waiver("T-2"), waiver(layer=Layer.CPU)])
def test_a_waiver_that_does_not_hold_here_excuses_nothing(given: Waiver) -> None:
    made = judged(proved(), (GPU, LATE), policy=ON_GPU, waivers=(given,))
    assert (made.exit, made.obligations["T-1"].waived) == (Exit.OPEN, ())
    assert ("expired" in " ".join(made.reasons)) is (given.expires < TODAY)


def test_a_waiver_covers_required_cells_that_are_open_and_says_which() -> None:
    every = (waiver(), waiver(layer=None), waiver("T-2"), waiver(layer=Layer.CPU), waiver(days=-1))
    made = judged(proved(), (GPU, LATE), policy=ON_GPU, waivers=every)
    cell = ("T-1 x cuda",)
    assert [(w.state, w.cells) for w in made.waivers] == [
        ("in force", cell), ("in force", cell), ("unused", ()), ("unused", ()), ("expired", cell)]  # fmt: skip
    assert [w.state for w in judged(proved(), (GPU, LATE), policy=BARE, waivers=every).waivers] == ["unused"] * 5
    assert waiver().words().startswith("T-1 x cuda is ")
    assert waiver(layer=None).words().startswith("T-1 is ")


def test_a_check_of_two_obligations_is_excused_by_both_or_not_at_all() -> None:
    two = replace(GPU, obligations=("T-1", "T-2"))
    both = clauses(*(Clause(name, (Layer.SMT, Layer.CUDA)) for name in ("T-1", "T-2")))
    for given, exit_ in (((waiver(), waiver("T-2")), Exit.MET), ((waiver(),), Exit.OPEN)):
        assert judged(proved(obligations=("T-1", "T-2")), (two, LATE), policy=both, waivers=given).exit is exit_


def test_what_no_clause_asks_of_a_check_needs_no_waiver() -> None:
    """T-2 asks nothing of a GPU, and T-3 nothing of this check."""
    rows = (Clause("T-1", (Layer.SMT, Layer.CUDA)), Clause("T-2", (Layer.SMT,)), Clause("T-3", (Layer.CUDA,)))
    gpu = replace(GPU, obligations=("T-1", "T-2"))
    third = replace(GPU, id="F-3@cuda-fp32", obligations=("T-3",))
    found = (proved(obligations=("T-1", "T-2")), (gpu, LATE), (third, answer(third)))
    assert not any("F-1" in reason for reason in judged(*found, policy=clauses(*rows), waivers=(waiver(),)).reasons)


def test_every_reason_is_told_once_and_the_worst_first() -> None:
    one, two, three = check("B"), check("C"), check("O", expect=Expect.REFUTED)
    found = ((three, LATE), (two, Finding(Outcome.ERROR, "crash")), (one, refutation(one)), proved())
    made = judged(*found, policy=BARE)
    stated = ("B is REFUTED: ", "C is ERROR: ", "O is TIMEOUT (expected ")
    assert all(reason.startswith(words) for reason, words in zip(made.reasons, stated, strict=True))
    assert made.rulings["K-1"].reach is Reach.BOUNDED
    assert judged((three, answer(three)), proved(), policy=BARE).rulings["O"].reach is None


def test_a_selection_without_an_answer_is_open_and_says_so_once() -> None:
    policy = Policy("ci", (), restricted=True, demanded=frozenset({Layer.SMT}))
    made = verdict((GPU, stands(GPU, LATE)), policy=policy, gate=False)
    assert (made.exit, ["selected" in r for r in made.reasons]) == (Exit.OPEN, [True])
    both = replace(policy, demanded=frozenset({Layer.CUDA}))
    assert verdict((GPU, stands(GPU, LATE)), policy=both, gate=False).reasons == ("F-1@cuda-fp32 is TIMEOUT: late",)


@pytest.mark.parametrize("outcome", [Outcome.HOLDS, Outcome.TIMEOUT, Outcome.REFUTED])
def test_a_cell_that_nobody_asks_for_may_be_open_and_not_broken(outcome: Outcome) -> None:
    made = judged(proved(), (GPU, finding_of(GPU, outcome)), policy=BARE)
    row = made.obligations["T-1"]
    assert (row.discharged, row.required) == (1, 1)
    assert row.effect is (Effect.BROKEN if outcome is Outcome.REFUTED else Effect.DISCHARGED)
    assert row.cells[Layer.CUDA].required is False
    assert row.cells[Layer.CROSSHAIR].effect is None


def test_an_age_and_a_reach_that_a_contract_asks_for_are_asked() -> None:
    asked = Least.model_validate({"layers": ["smt"], "reach": {"smt": "all inputs"}})
    made = demands_of({"T-1": asked}, 30, [])
    assert (made.gpu_max_age, demands_of({}, None, []).gpu_max_age) == (timedelta(days=30), None)
    least = made.least["T-1"]
    assert least == Least(layers=[Layer.SMT], reach={Layer.SMT: Reach.ALL_INPUTS})
    assert "not stated" in shortcoming(least, Layer.SMT, [(check(), None)])
    stated = shortcoming(least, Layer.SMT, [(check(), None), (check(), Reach.SAMPLED), (check(), Reach.BOUNDED)])
    assert "bounded, and all inputs" in stated
    assert shortcoming(least, Layer.SMT, [(check(), None), (check(), Reach.ALL_INPUTS)]) == ""
