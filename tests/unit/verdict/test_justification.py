"""What backs a proof: evidence that lacks it, or forges it, leaves the gate open, with the reason."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toy_workspace import answer, check, recorded

from gradproof.contract.model import load
from gradproof.contract.schema import Required
from gradproof.core.check import Check
from gradproof.core.outcome import Effect, Exit, Kind, Layer, Outcome
from gradproof.core.schemas.evidence import ReplyRow, Stats
from gradproof.evidence.record import EvidenceStatus
from gradproof.report.views import backing_words
from gradproof.rounding.lemma_store import stated
from gradproof.verdict.judge import Verdict, families, judge, lemma_lines, shortfall, words
from gradproof.verdict.plan import Clause, Policy, plan, policy_of

ROOT = Path(__file__).parents[3]
CONTRACT = load(ROOT / "proofs" / "gradient-accumulation-kernel-v1" / "contract.yaml")
BOTH = Required(certificates=["linear_chain"], second_solver=["linear_chain", "step_contract", "bit_precise"])
NAMES = ["add/fp32/half-ulp", "round/fp32/exact", "add/fp16/grid", "multiply/fp32/exact"]


def chain_stats() -> dict[str, Any]:
    """What a linear chain writes down."""
    row = {"clause": "T-1", "label": "N=4", "sha256": "a" * 64, "rows": 9, "contracts": NAMES}
    return {"certificates": [{**row, "bound": "1/3", "claimed": "1/2"}], "lemmas": stated(NAMES)}


def ruled(of: Check, stats: dict[str, Any], required: Required = BOTH) -> Verdict:
    """The verdict on a proof that holds, with this justification."""
    evidence = recorded(of, answer(of, stats=stats))
    policy = Policy("ci", (Clause("T-1", (Layer.SMT,)),), justification=required)
    return judge([of], {of.id: EvidenceStatus(evidence, True)}, policy)


CHAIN = check(strategy="linear_chain")


def test_a_chain_with_certificate_and_two_families_is_discharged() -> None:
    made = ruled(CHAIN, chain_stats())
    assert (made.exit, made.rulings["K-1"].effect) == (Exit.MET, Effect.DISCHARGED)


def no_certificate(stats: dict[str, Any]) -> None:
    del stats["certificates"]


def empty_certificates(stats: dict[str, Any]) -> None:
    stats["certificates"] = []


def certificate_of_another_clause(stats: dict[str, Any]) -> None:
    stats["certificates"][0]["clause"] = "T-2"


def certificate_without_digest(stats: dict[str, Any]) -> None:
    stats["certificates"][0]["sha256"] = "accepted"


def bound_above_the_claim(stats: dict[str, Any]) -> None:
    stats["certificates"][0]["bound"] = "2/3"


def certificate_on_nothing(stats: dict[str, Any]) -> None:
    stats["certificates"][0]["contracts"] = []


def no_lemmas(stats: dict[str, Any]) -> None:
    del stats["lemmas"]


def lemma_left_out(stats: dict[str, Any]) -> None:
    stats["lemmas"] = [row for row in stats["lemmas"] if row["name"] != "add/fp16/grid"]


def premise_left_out(stats: dict[str, Any]) -> None:
    stats["lemmas"] = [row for row in stats["lemmas"] if row["name"] != "add/fp32/subnormal"]
    stats["lemmas"].append({"name": "add/fp32/x", "method": "derivation", "premises": ["add/fp32/subnormal"]})


def one_family(stats: dict[str, Any]) -> None:
    row = next(row for row in stats["lemmas"] if row["name"] == "add/fp32/half-ulp")
    row["solvers"] = [reply for reply in row["solvers"] if reply["solver"] == "z3"]


def two_solvers_of_one_family(stats: dict[str, Any]) -> None:
    row = next(row for row in stats["lemmas"] if row["name"] == "add/fp32/half-ulp")
    row["solvers"] = [{**row["solvers"][0], "solver": name} for name in ("bitwuzla", "cvc5")]


def one_family_of_a_premise(stats: dict[str, Any]) -> None:
    row = next(row for row in stats["lemmas"] if row["name"] == "add/fp32/subnormal")
    row["solvers"].pop()


def a_timeout(stats: dict[str, Any]) -> None:
    next(row for row in stats["lemmas"] if "solvers" in row)["solvers"][0]["answer"] = "timeout"


def a_counterexample(stats: dict[str, Any]) -> None:
    row = next(row for row in stats["lemmas"] if "solvers" in row)
    row["solvers"].append({**row["solvers"][0], "answer": "sat"})


def an_unknown_solver(stats: dict[str, Any]) -> None:
    next(row for row in stats["lemmas"] if "solvers" in row)["solvers"][0]["solver"] = "oracle"


def no_cases(stats: dict[str, Any]) -> None:
    next(row for row in stats["lemmas"] if "cases" in row)["cases"] = 0


def another_method(stats: dict[str, Any]) -> None:
    stats["lemmas"][0] |= {"method": "belief", "premises": []}


FORGED = (
    no_certificate, empty_certificates, certificate_of_another_clause, certificate_without_digest,
    bound_above_the_claim, certificate_on_nothing, no_lemmas, lemma_left_out, premise_left_out, one_family,
    two_solvers_of_one_family, one_family_of_a_premise, a_timeout, a_counterexample, an_unknown_solver, no_cases,
    another_method,
)  # fmt: skip


@pytest.mark.parametrize("forge", FORGED, ids=lambda f: f.__name__)
def test_forged_backing_leaves_the_gate_open(forge: Callable[[dict[str, Any]], None]) -> None:
    stats = copy.deepcopy(chain_stats())
    forge(stats)
    made = ruled(CHAIN, stats)
    assert made.exit is Exit.OPEN
    assert (made.rulings["K-1"].outcome, made.rulings["K-1"].effect) == (Outcome.NOT_RUN, Effect.OPEN)
    assert any(reason.startswith("K-1 is NOT_RUN: ") and "justification" in reason for reason in made.reasons)


@pytest.mark.parametrize("rows", [[1], [{**chain_stats()["certificates"][0], "bound": "small"}]])
def test_backing_of_another_shape_is_no_evidence(rows: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"wrong shape: finding\.stats\.certificates"):
        recorded(CHAIN, answer(CHAIN, stats={**chain_stats(), "certificates": rows}))


def test_the_reason_names_what_is_missing() -> None:
    stats = chain_stats()
    one_family(stats)
    assert "add/fp32/half-ulp has z3" in " ".join(ruled(CHAIN, stats).reasons)
    no_certificate(stats)
    assert "every linear_chain" in " ".join(ruled(CHAIN, stats).reasons)


def test_what_no_gate_requires_is_not_asked_for() -> None:
    assert ruled(CHAIN, {}, Required()).exit is Exit.MET


def test_one_solver_does_not_do_where_two_are_required() -> None:
    one = check(strategy="bit_precise")
    z3 = {"solver": "z3", "version": "4", "answer": "unsat"}
    assert ruled(one, {"solvers": [z3]}).exit is Exit.OPEN
    assert ruled(one, {}).exit is Exit.OPEN
    assert ruled(one, {"solvers": [z3, {**z3, "solver": "cvc5"}]}).exit is Exit.MET


@pytest.mark.parametrize("required", [BOTH, Required()], ids=["required", "not required"])
def test_step_contracts_need_a_row_for_every_lemma_that_is_named(required: Required) -> None:
    one = check(strategy="step_contract", params={**CHAIN.params, "lemmas": ["round/fp32/*"]})
    names = ["round/fp32/half-ulp", "round/fp32/relative", "round/fp32/subnormal", "round/fp32/grid"]
    all_of_them = [*names, "round/fp32/exact", "round/fp32/ftz"]
    assert ruled(one, {"lemmas": stated(all_of_them)}, required).exit is Exit.MET
    made = ruled(one, {"lemmas": stated(names)}, required)
    assert (made.exit, "round/fp32/exact" in " ".join(made.reasons)) == (Exit.OPEN, True)
    assert ruled(one, {}, required).exit is Exit.OPEN


def test_an_enumeration_stands_behind_every_clause() -> None:
    one = check(strategy="bit_exhaustive")
    row = {"clause": "T-1", "label": "N=4", "worst": "1/4", "claimed": "1/2", "inputs": 4, "numbers": 9}
    assert ruled(one, {"exhaustion": [row]}).exit is Exit.MET
    forged: tuple[dict[str, Any], ...] = ({"worst": "3/4"}, {"clause": "T-2"}, {"numbers": 0})
    for change in forged:
        assert ruled(one, {"exhaustion": [{**row, **change}]}).exit is Exit.OPEN, change
    assert ruled(one, {}).exit is Exit.OPEN


def test_a_stub_needs_the_lemmas_that_it_names() -> None:
    stub = check("STUB-1", kind=Kind.STUB, obligations=(), params={"lemmas": ["round/fp16/grid"]})
    rests = check("K-1", depends=("STUB-1",))
    policy = Policy("ci", (Clause("T-1", (Layer.SMT,)),))
    for stats, exit_ in (({"lemmas": stated(["round/fp16/grid"])}, Exit.MET), ({}, Exit.OPEN)):
        held = {"STUB-1": EvidenceStatus(recorded(stub, answer(stub, stats=stats)), True)}
        held["K-1"] = EvidenceStatus(recorded(rests, answer(rests)), True)
        assert judge([stub, rests], held, policy).exit is exit_


def test_a_refutation_needs_no_backing() -> None:
    row = check(strategy="linear_chain")
    finding = recorded(row, answer(row)).finding
    assert shortfall(row, finding, Policy("ci", (), justification=BOTH)) != ""
    assert shortfall(check(strategy="exhaustive"), finding, Policy("ci", (), justification=BOTH)) == ""


# The contract of this repository


def test_our_own_gate_requires_certificates_and_a_second_solver() -> None:
    policy = policy_of(CONTRACT, "ci")
    assert policy.justification == Required(
        certificates=["linear_chain"], second_solver=["linear_chain", "step_contract"]
    )
    rows = {c.id: c for c in plan(CONTRACT)}
    chains = [c for c in rows.values() if c.strategy == "linear_chain"]
    assert len(chains) >= 4
    for one in chains:
        assert shortfall(one, recorded(one, answer(one)).finding, policy) != "", one.id
    for name in ("STUB-FL-002", "STUB-FL-003", "STUB-FL-004", "KANI-GA-026", "KANI-GA-027"):
        assert shortfall(rows[name], recorded(rows[name], answer(rows[name])).finding, policy) != "", name


def test_every_stub_rests_on_half_an_ulp_and_monotone_ones_on_the_grid() -> None:
    held = {stub.id: stub.lemmas for stub in CONTRACT.stubs}
    assert all("round/*/half-ulp" in lemmas for lemmas in held.values())
    assert [name for name, lemmas in held.items() if "round/*/grid" in lemmas] == ["STUB-FL-003", "STUB-FL-004"]


# Words


def test_it_is_said_what_backs_a_proof() -> None:
    said = words(Stats.model_validate(chain_stats()))
    assert re.search(r"1 Farkas .*\(a{12}\)", said)
    assert "by two solver families" in said
    assert "by exhaustion" in said
    lines = list(lemma_lines(Stats.model_validate(chain_stats())))
    assert any(line.startswith("add/fp32/half-ulp: bitwuzla") and "(z3) unsat" in line for line in lines)
    z3 = {"solver": "z3", "version": "4", "answer": "unsat"}
    for said in (
        words(Stats.model_validate({"solvers": [z3]})),
        backing_words({"outcome": "HOLDS", "stats": {"solvers": [z3]}}),
    ):
        assert re.fullmatch(r"one .*\(z3 4\)", said)
    assert (words(Stats()), backing_words({"outcome": "REFUTED", "stats": chain_stats()})) == ("", "")


def test_families_count_answers_and_not_names() -> None:
    z3 = ReplyRow(solver="z3", version="4", answer="unsat")
    other = z3.model_copy(update={"solver": "bitwuzla"})
    assert families([z3, other]) == ["symfpu", "z3"]
    assert families([z3, other.model_copy(update={"answer": "unknown"})]) == ["z3"]
    assert families([z3, other.model_copy(update={"version": ""})]) == ["z3"]
    assert families([z3, z3.model_copy(update={"answer": "sat"})]) == []


def test_a_pattern_that_matches_no_lemma_is_not_backed() -> None:
    one = check(kind=Kind.STUB, params={"lemmas": ["add/fp32/half-ulp", "add/fp99/*"]})
    finding = recorded(one, answer(one, stats={"lemmas": stated(["add/fp32/half-ulp"])})).finding
    assert shortfall(one, finding, Policy("ci", ())).endswith(" add/fp99/*")
