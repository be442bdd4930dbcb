"""The benchmark: what the tools say is judged against what an input attains; nothing is asserted about time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest

from gradproof.rounding.accumulation import Setting
from gradproof.rounding.bound import witness
from tests.bench import claims, sides
from tests.bench.measure import CRASHED, HOLDS, NOT_RUN, TIMEOUT, UNSOUND, Said, timed
from tests.bench.sides import HAIR, TOLERANCE, Row, Tool, attained, judged, measured, row_of, unsound

LONG = 300.0


def sharp(n: int) -> Said:
    """A tool that proves the sharp bound, a hair above."""
    return Said(HOLDS, attained(n) * HAIR)


def optimistic(n: int) -> Said:
    """Below what is attained from N = 4 on."""
    return Said(HOLDS, attained(n) * (HAIR if n < 4 else 1 / HAIR))


def credulous(n: int, claim: Fraction, limit: float) -> Said:
    """Proves whatever it is asked."""
    return Said(HOLDS, claim)


def wordy(n: int) -> Said:
    """Says that it holds, and not what."""
    return Said(HOLDS)


def absent(n: int) -> Said:
    """Not installed."""
    return Said(NOT_RUN, reason="not installed")


def starts_another(n: int, place: str) -> Said:
    """Starts a program that outlives it unless it is killed too."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(place).write_text(str(child.pid))
    child.wait()
    return Said(HOLDS, Fraction(1))


def dies(n: int) -> Said:
    """Ends without a word."""
    os._exit(7)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_what_is_attained_is_the_closed_form(n: int) -> None:
    assert attained(n) == claims.U * (n * n - 1) / (3 * n)


def test_a_bound_below_what_is_attained_is_unsound() -> None:
    reached = attained(4)
    assert judged(Said(HOLDS, reached), reached).word == HOLDS
    found = judged(Said(HOLDS, reached / HAIR), reached)
    assert found.word == UNSOUND
    assert "an input loses 7.45058e-08" in found.reason
    assert judged(Said(HOLDS), reached).word == UNSOUND
    assert judged(Said(TIMEOUT, reached), reached).bound is None


@pytest.mark.parametrize(
    ("ask", "words"), [(sharp, [HOLDS, HOLDS]), (optimistic, [HOLDS, UNSOUND]), (wordy, [UNSOUND] * 2)]
)
def test_a_row_names_the_n_at_which_a_tool_is_wrong(ask: sides.Measured, words: list[str]) -> None:
    row = row_of(Tool("fake", ask, covers=4), (2, 4), LONG)
    assert [row.answers[n].word for n in (2, 4)] == words
    assert len(unsound([row])) == words.count(UNSOUND)


def test_a_tool_that_proves_a_false_claim_is_unsound() -> None:
    """It proves the sharp bound too, which is true: only the false claim shows it."""
    assert measured(Tool("fake", credulous, claims=sides.sharp_claims), 4, LONG).word == UNSOUND
    assert measured(Tool("honest", claims.smt, ("stub_float",), sides.sharp_claims), 4, LONG).word == HOLDS


def test_a_tool_that_is_missing_is_not_run_at_every_n() -> None:
    row = row_of(Tool("fake", absent), (2, 4, 8, 64), LONG)
    assert {n: said.word for n, said in row.answers.items()} == dict.fromkeys((2, 4, 8, 64), NOT_RUN)
    assert row.largest == 0


def test_a_measurement_that_hangs_is_a_time_out_and_leaves_nothing_behind(tmp_path: Path) -> None:
    place = tmp_path / "pid"
    said = timed(starts_another, (2, str(place)), 8.0)
    assert (said.word, said.bound) == (TIMEOUT, None)
    pid, status = int(place.read_text()), "running"
    for _ in range(100):
        stat = Path(f"/proc/{pid}/stat")
        status = stat.read_text().rpartition(")")[2].split()[0] if stat.exists() else "gone"
        if status in ("gone", "Z", "X"):
            break
        time.sleep(0.05)
    assert status in ("gone", "Z", "X")


def test_a_measurement_that_dies_or_raises_is_no_answer() -> None:
    assert timed(dies, (2,), LONG) == Said(CRASHED, reason="ended with 7")
    said = timed(claims.smt, (2, TOLERANCE, LONG, "no such strategy"), LONG)
    assert said.word == CRASHED
    assert "known: stub_float, bit_precise" in said.reason


def test_after_two_failures_the_larger_n_are_not_tried() -> None:
    row = row_of(Tool("fake", dies), (2, 4, 8), LONG)
    assert [row.answers[n].word for n in (2, 4, 8)] == [CRASHED, CRASHED, sides.NOT_TRIED]


def test_the_largest_n_is_searched_between_the_listed_ones() -> None:
    """Right up to N = 2, wrong at 4, which the list leaves out."""
    row = row_of(Tool("fake", optimistic), (2, 8), LONG)
    assert (row.largest, row.answers[4].word) == (2, UNSOUND)
    assert unsound([row]) == [f"fake at N = {n}: {row.answers[n].reason}" for n in (8, 4)]


@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize("tool", ["gradproof stub_float", "gradproof linear chain", "gradproof induction"])
def test_our_tools_prove_the_sharp_bound(tool: str, n: int) -> None:
    one = next(t for t in sides.TOOLS if t.name == tool)
    said = measured(one, n, LONG)
    assert said.word == HOLDS
    assert said.bound is not None
    assert attained(n) <= said.bound <= attained(n) * HAIR**2


def test_free_factors_prove_their_own_worst_and_no_less() -> None:
    """At N = 2 that is 2 u and a little: four times what is attained."""
    worst = claims.free_worst(2)
    assert claims.free(2, worst, LONG).word == HOLDS
    assert claims.free(2, worst / HAIR, LONG).word == claims.NOT_PROVED
    assert worst > 2 * claims.U


def test_ieee_terms_decide_one_micro_batch() -> None:
    assert claims.smt(1, TOLERANCE, LONG, "bit_precise").word == HOLDS


def test_a_claim_about_a_binary64_mean_leaves_room_for_its_error() -> None:
    for n in (2, 64, 4096):
        claim = attained(n) * HAIR
        room = claim - Fraction(claims.in_binary64(claim, n))
        assert Fraction(n + 4, 2**53) <= room <= Fraction(n + 5, 2**53)


@pytest.mark.parametrize("n", [2, 4, 8, 64])
def test_the_loop_that_crosshair_gets_loses_what_the_witness_loses(n: int) -> None:
    """So a confirmation of a claim below that would be wrong, and of one above it would not."""
    given = [float(g) for g in witness(Setting(n))]
    for claim, holds in ((attained(n) * HAIR, True), (attained(n) / HAIR, False)):
        space: dict[str, object] = {}
        exec(claims.subject_text(n, claim), space)
        assert space["plain"](*given) is holds  # type: ignore[operator]


@pytest.mark.parametrize(
    ("states", "word"),
    [
        (["CONFIRMED"], HOLDS),
        (["CANNOT_CONFIRM"], "UNKNOWN"),
        (["CONFIRMED", "CANNOT_CONFIRM"], "UNKNOWN"),
        (["POST_FAIL"], "REFUTED"),
        (["PRE_UNSAT"], "UNKNOWN"),
        ([], "UNKNOWN"),
    ],
)
def test_only_a_confirmation_over_all_paths_is_a_bound(
    states: list[str], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from crosshair import core

    said = [SimpleNamespace(state=SimpleNamespace(name=state)) for state in states]
    monkeypatch.setattr(core, "run_checkables", lambda _: said)
    found = claims.crosshair(2, TOLERANCE, LONG)
    assert (found.word, found.bound) == (word, TOLERANCE if word == HOLDS else None)


def test_an_induction_that_does_not_go_through_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from models.accumulation import rounding_steps

    monkeypatch.setattr(rounding_steps, "Step", rounding_steps.RoundsTwice)
    assert claims.induction(8).word == claims.NOT_PROVED


def test_rows_know_their_unsound_answers() -> None:
    row = Row("fake", {2: Said(HOLDS, Fraction(1)), 4: Said(UNSOUND, Fraction(0), reason="0")})
    assert (row.unsound(), unsound([row])) == ([4], ["fake at N = 4: 0"])
