"""What a release demands and excuses: reach, bounds, ages, waivers; each demand unmet, and each excuse out of reach."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
from test_judge import GATE, POLICY, finding_of, stands, verdict
from toy_workspace import answer, check

from gradproof.contract.schema import Least, Waiver
from gradproof.contract.settings import Demands, stricter, together
from gradproof.core.check import Bound, Check
from gradproof.core.outcome import Effect, Exit, Kind, Layer, Outcome, Reach
from gradproof.evidence.record import EvidenceStatus
from gradproof.verdict.judge import Verdict, required
from gradproof.verdict.plan import Clause, Policy, outdated, shortcoming

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
TODAY = NOW.date()
WAIVER = Waiver(obligation="T-1", layer=Layer.CUDA, owner="ann", reason="no GPU", expires=TODAY)
BOTH = replace(POLICY, clauses=(Clause("T-1", (Layer.SMT, Layer.CUDA)),))


def proof(reach: Reach = Reach.BOUNDED, value: int = 8) -> tuple[Check, EvidenceStatus]:
    one = check("K-1", bounds=(Bound("micro_batches", value, "toy"),))
    return one, dated(stands(one, answer(one, reach=reach)), NOW)


def dated(status: EvidenceStatus, when: datetime) -> EvidenceStatus:
    assert status.evidence is not None
    return replace(status, evidence=status.evidence.model_copy(update={"finished_at": when.isoformat()}))


def run(outcome: Outcome = Outcome.HOLDS, when: datetime = NOW) -> tuple[Check, EvidenceStatus | None]:
    one = check("F-1@cuda-fp32", kind=Kind.TORCH, layer=Layer.CUDA)
    if outcome is Outcome.NOT_RUN:
        return one, None
    return one, dated(stands(one, finding_of(one, outcome)), when)


def judged(*pairs: tuple[Check, EvidenceStatus | None], policy: Policy, **demands: object) -> Verdict:
    asked = Demands(now=NOW, **demands)  # type: ignore[arg-type]
    gate = (GATE, dated(stands(GATE), NOW))
    return verdict(*pairs, gate, policy=replace(policy, demands=asked), gate=False)


REACHES = (Reach.ALL_INPUTS, Reach.BOUNDED, Reach.CHOSEN)


@pytest.mark.parametrize("asked", REACHES)
@pytest.mark.parametrize("have", REACHES)
def test_a_reach_below_what_is_asked_leaves_the_cell_open(asked: Reach, have: Reach) -> None:
    made = judged(proof(have), policy=POLICY, least={"T-1": Least(reach={Layer.SMT: asked})})
    enough = REACHES.index(have) <= REACHES.index(asked)
    assert made.exit is (Exit.MET if enough else Exit.OPEN)
    if not enough:
        assert made.obligations["T-1"].cells[Layer.SMT].effect is Effect.OPEN
        assert any(re.match(rf"T-1 x smt: .* {have}, .*{asked}", r) for r in made.reasons)


@pytest.mark.parametrize(("value", "least", "met"), [(8, 8, True), (8, 9, False), (9, 8, True)])
def test_a_bound_below_what_is_asked_leaves_the_cell_open(value: int, least: int, met: bool) -> None:
    made = judged(proof(value=value), policy=POLICY, least={"T-1": Least(bounds={"micro_batches": least})})
    assert (made.exit is Exit.MET) is met
    assert met or re.search(rf"T-1 x smt: .* micro_batches is {value}, and {least}\b", " ".join(made.reasons))


def test_a_bound_that_no_proof_states_is_not_reached_and_all_inputs_need_none() -> None:
    asked = {"T-1": Least(bounds={"cycles": 1})}
    assert judged(proof(), policy=POLICY, least=asked).exit is Exit.OPEN
    assert judged(proof(Reach.ALL_INPUTS), policy=POLICY, least=asked).exit is Exit.MET


def test_bounds_are_not_asked_of_runs() -> None:
    one = check("F-1@cpu-fp32", kind=Kind.TORCH, layer=Layer.CPU)
    assert shortcoming(Least(bounds={"micro_batches": 9}), Layer.CPU, [(one, Reach.SAMPLED)]) == ""


def test_a_demanded_layer_without_a_check_keeps_the_gate_open() -> None:
    made = judged(proof(), policy=BOTH)
    assert made.exit is Exit.OPEN
    assert any(r.startswith("T-1 x cuda: ") and "planned" in r for r in made.reasons)


DATES = {
    "now": (NOW, True),
    "as old as allowed": (NOW - timedelta(days=30), True),
    "older": (NOW - timedelta(days=30, seconds=1), False),
    "ahead of the clock": (NOW + timedelta(hours=2), False),
    "a little ahead": (NOW + timedelta(minutes=30), True),
}


@pytest.mark.parametrize("name", DATES)
def test_gpu_evidence_has_an_age(name: str) -> None:
    when, counts = DATES[name]
    made = judged(proof(), run(when=when), policy=BOTH, gpu_max_age=timedelta(days=30))
    assert (made.exit is Exit.MET) is counts
    assert made.rulings["F-1@cuda-fp32"].outcome is (Outcome.HOLDS if counts else Outcome.NOT_RUN)


def test_an_age_is_asked_of_gpu_evidence_alone_but_no_date_may_be_ahead() -> None:
    old = Demands(gpu_max_age=timedelta(days=1), now=NOW)
    for days, said in ((-9, ""), (9, "ahead")):
        evidence = dated(stands(check()), NOW + timedelta(days=days)).evidence
        assert evidence is not None
        assert said in (found := outdated(evidence, Layer.CPU, old))
        assert bool(said) is bool(found)


def test_a_waiver_excuses_what_is_open_until_its_last_day() -> None:
    made = judged(proof(), run(Outcome.NOT_RUN), policy=BOTH, waivers=(WAIVER,))
    assert made.exit is Exit.MET
    assert made.obligations["T-1"].effect is Effect.OPEN
    assert made.obligations["T-1"].waived == (WAIVER,)
    assert [(w.state, w.cells) for w in made.waivers] == [("in force", ("T-1 x cuda",))]
    assert "waived by ann" in made.criteria[0].why
    assert made.criteria[0].why.startswith("0 of 1")


NOT_EXCUSED = {
    "expired": (WAIVER.model_copy(update={"expires": TODAY - timedelta(days=1)}), Outcome.NOT_RUN, Exit.OPEN),
    "another layer": (WAIVER.model_copy(update={"layer": Layer.CPU}), Outcome.NOT_RUN, Exit.OPEN),
    "another obligation": (WAIVER.model_copy(update={"obligation": "T-2"}), Outcome.NOT_RUN, Exit.OPEN),
    "refuted": (WAIVER, Outcome.REFUTED, Exit.BROKEN),
    "weak": (WAIVER, Outcome.WEAK, Exit.BROKEN),
    "vacuous": (WAIVER, Outcome.VACUOUS, Exit.BROKEN),
    "crashed": (WAIVER, Outcome.ERROR, Exit.CRASH),
}


@pytest.mark.parametrize("name", NOT_EXCUSED)
def test_what_a_waiver_does_not_excuse(name: str) -> None:
    waiver, outcome, exit_ = NOT_EXCUSED[name]
    made = judged(proof(), run(outcome), policy=BOTH, waivers=(waiver,))
    assert made.exit is exit_
    assert ("ann expired" in " ".join(made.reasons)) is (name == "expired")


def test_a_waiver_of_one_cell_does_not_excuse_the_other() -> None:
    one = check("K-1")
    made = judged((one, None), run(Outcome.NOT_RUN), policy=BOTH, waivers=(WAIVER,))
    assert made.exit is Exit.OPEN
    assert made.obligations["T-1"].waived == ()


def test_waivers_of_everything_leave_nothing_to_release() -> None:
    every, one = WAIVER.model_copy(update={"layer": None}), check("K-1")
    nothing = judged((one, None), run(Outcome.NOT_RUN), policy=BOTH, waivers=(every,))
    assert nothing.exit is Exit.OPEN
    assert ["waived" in reason for reason in nothing.reasons] == [True]
    assert judged(proof(), run(Outcome.NOT_RUN), policy=BOTH, waivers=(every,)).exit is Exit.MET


def test_a_check_of_two_obligations_is_excused_where_both_are() -> None:
    policy = replace(BOTH, clauses=(*BOTH.clauses, Clause("T-2", (Layer.SMT, Layer.CUDA))))
    shared = replace(run(Outcome.NOT_RUN)[0], obligations=("T-1", "T-2"))
    both = replace(check("K-1"), obligations=("T-1", "T-2"))
    held = (both, dated(stands(both), NOW))
    assert judged(held, (shared, None), policy=policy, waivers=(WAIVER,)).exit is Exit.OPEN
    two = (WAIVER, WAIVER.model_copy(update={"obligation": "T-2"}))
    assert judged(held, (shared, None), policy=policy, waivers=two).exit is Exit.MET


def test_without_a_clock_no_waiver_is_in_force() -> None:
    gate = (GATE, stands(GATE))
    policy = replace(BOTH, demands=Demands(waivers=(WAIVER,)))
    assert verdict(proof(), run(Outcome.NOT_RUN), gate, policy=policy, gate=False).exit is Exit.OPEN


def test_a_waiver_of_nothing_open_is_unused() -> None:
    made = judged(proof(), run(), policy=BOTH, waivers=(WAIVER,))
    assert (made.exit, made.waivers[0].state) == (Exit.MET, "unused")


def test_demands_add_up_to_the_stricter() -> None:
    cpu, reach = Layer.CPU, {Layer.SMT: Reach.BOUNDED, Layer.CPU: Reach.SAMPLED}
    one = Least(layers=[cpu], reach={Layer.SMT: Reach.SAMPLED}, bounds={"a": 2, "b": 9})
    other = Least(layers=[Layer.CUDA, cpu], reach=reach, bounds={"a": 3})
    assert stricter(one, other) == Least(layers=[cpu, Layer.CUDA], reach=reach, bounds={"a": 3, "b": 9})
    days = [Demands(gpu_max_age=timedelta(days=d), waivers=(WAIVER,)) for d in (9, 3)]
    added = together([Demands(), *days], NOW)
    assert (added.gpu_max_age, added.waivers, added.now) == (timedelta(days=3), (WAIVER,), NOW)


def test_a_demanded_layer_makes_its_checks_required() -> None:
    one, _ = run(Outcome.NOT_RUN)
    assert not required(one, POLICY)
    assert required(one, BOTH)
    assert date.fromisoformat("2026-11-21") == TODAY
