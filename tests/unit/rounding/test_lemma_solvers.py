"""The SMT-LIB texts: proved by two solvers, not vacuous, and `sat` when a contract promises too much."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from gradproof.arith import smt
from gradproof.arith.formats import FORMATS, Format
from gradproof.rounding import smtlib, solvers as solve
from gradproof.rounding.lemma_store import OWN, SYMFPU, method, recheck, routes
from gradproof.rounding.step_contracts import LEMMAS, ROUND_FORMS

HALF, SINGLE = FORMATS["fp16"], FORMATS["fp32"]
BOTH = ("bitwuzla", "z3")
SECONDS = 100.0
ASKED = [name for name, lemma in LEMMAS.items() if method(lemma) == "solvers"]

UNSOUND: dict[str, Callable[[int], str]] = {
    "at most half of x": lambda halved: smtlib.add_at_most_terms(HALF, halved),
    "half of half an ulp": lambda halved: smtlib.add_half_ulp_split(HALF, 1, False, halved),
    "half of half an ulp, wide": lambda halved: smtlib.add_half_ulp_wide(HALF, halved),
    "half of u": lambda halved: smtlib.round_text(HALF, "relative", halved),
    "rounding, half of half an ulp": lambda halved: smtlib.round_text(HALF, "half-ulp", halved),
    "half of the subnormal bound": lambda halved: smtlib.round_text(HALF, "subnormal", halved),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_half_the_true_error_is_refuted(name: str) -> None:
    """By the families that are asked of that encoding, in the size of fp16; and the true bound is not."""
    solvers = BOTH[:1] if "wide" in name else BOTH
    assert {solve.decide([UNSOUND[name](1)], s, SECONDS).answer for s in solvers} == {"sat"}
    if "wide" not in name:  # slow, and proved for fp32 by the evidence itself
        assert solve.decide([UNSOUND[name](0)], "bitwuzla", SECONDS).answer == "unsat"


def reachable(text: str) -> str:
    """The same text, asking for a case in which the claim holds: its assumptions are not contradictory."""
    changed, count = re.subn(r"\(assert \(not (.*)\)\)\n\(check-sat\)\n$", r"(assert (= true \1))\n(check-sat)\n", text)
    assert count == 1
    return changed


def test_no_lemma_is_vacuous() -> None:
    """Every fp32 text has a case; without this, `unsat` could come from assumptions that exclude everything."""
    first = [reachable(text) for name in ASKED for route in routes(name) for text in route.texts[:3]]
    for text in dict.fromkeys(first):
        assert solve.decide([text], "bitwuzla", SECONDS).answer == "sat", text


def test_assumptions_are_needed() -> None:
    """Fast2Sum fails without |s| >= |x|, and a sum that ends above the subnormals need not be exact."""
    text = smtlib.add_error_representable(HALF)
    order = "(assert (fp.leq (fp.abs x) (fp.abs s)))"
    assert order in text
    assert solve.decide([text.replace(order, "")], "bitwuzla", SECONDS).answer == "sat"
    higher = smtlib.add_subnormal(HALF).replace(smtlib.power(HALF, -14), smtlib.power(HALF, -12))
    assert solve.decide([higher], "bitwuzla", SECONDS).answer == "sat"


def test_a_quick_lemma_of_fp32_is_proved_again() -> None:
    """`make lemmas` proves all of them again."""
    assert recheck("add/fp32/grid", seconds=300.0) == ("proved", "proved")


def test_every_solver_lemma_is_asked_of_both_families() -> None:
    assert len(ASKED) == 13
    for name in ASKED:
        assert [route.solvers for route in routes(name)] == [SYMFPU, OWN]
        assert all(text.count("(check-sat)") == 1 for route in routes(name) for text in route.texts)
    assert {solve.FAMILIES[s] for s in SYMFPU}.isdisjoint({solve.FAMILIES[s] for s in OWN})


def test_what_the_split_covers() -> None:
    assert len(smtlib.split_texts(SINGLE)) == 52
    assert len(set(smtlib.split_texts(SINGLE))) == 52
    with pytest.raises(ValueError, match="subnormal"):
        smtlib.add_half_ulp_split(HALF, 15, False)


def test_literals() -> None:
    assert smtlib.power(HALF, 0) == "(fp #b0 #b01111 #b0000000000)"
    assert smtlib.power(HALF, -24) == "(fp #b0 #b00000 #b0000000001)"
    assert smtlib.power(HALF, 15, negative=True) == "(fp #b1 #b11110 #b0000000000)"
    for k in (-25, 16):
        with pytest.raises(ValueError, match="no number of fp16"):
            smtlib.power(HALF, k)
    with pytest.raises(KeyError):
        smtlib.round_text(Format("tiny", 6, 3, -1, 2), "at-most-terms")
    assert all(smtlib.round_text(SINGLE, form) for form in ROUND_FORMS)


def test_a_solver_that_runs_too_long_is_killed() -> None:
    reply = solve.decide([smtlib.add_half_ulp_wide(SINGLE)], "z3", 1.0)
    assert (reply.answer, reply.reason) == ("timeout", "killed after 1 s")


def test_a_crash_is_no_answer() -> None:
    for solver in BOTH:
        reply = solve.decide(["(assert nonsense"], solver, SECONDS)
        assert reply.answer == "error"
        assert reply.reason


def test_a_solver_that_is_missing_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve, "PACKAGES", {"bitwuzla": "no-such-package-of-gradproof"})
    assert solve.decide(["(check-sat)"], "bitwuzla", 1.0).answer == "error"


@pytest.mark.parametrize(
    ("printed", "answer"),
    [
        (["unsat", "unsat"], "unsat"),
        (["unsat"], "error"),
        (["unsat", "unsat", "unsat"], "error"),
        ([], "error"),
        (["unsat", "sat"], "sat"),
        (["unknown"], "unknown"),
        (["unsat", "UNSAT"], "error"),
        (['"unsat"'], "error"),
        ([""], "error"),
    ],
)
def test_only_an_answer_to_every_text_is_an_answer(printed: list[str], answer: str) -> None:
    assert solve.agreed(printed, 2, "")[0] == answer
    assert solve.agreed(printed, 2, "it crashed") == ("error", "it crashed")


def test_nothing_asked_is_an_error() -> None:
    with pytest.raises(ValueError, match="no text"):
        solve.decide([], "z3", 1.0)
    with pytest.raises(KeyError):
        solve.decide(["(check-sat)"], "yices", 1.0)


def test_texts_for_z3() -> None:
    assert smt.decide_text("(declare-const p Bool)(assert (and p (not p)))(check-sat)", 10) == "unsat"
    assert smt.decide_text("(declare-const p Bool)(assert p)", 10) == "sat"
    assert smt.decide_text(smtlib.add_half_ulp_wide(SINGLE), 0.05) in ("timeout", "unknown")
    with pytest.raises(ValueError, match="cannot read"):
        smt.decide_text("(assert nonsense)", 10)
