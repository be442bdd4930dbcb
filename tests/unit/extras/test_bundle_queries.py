"""Queries of a real proof: recorded as SMT-LIB, answered again by z3 in another process, and by a second solver."""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from toy_workspace import recorded

from gradproof.arith import smt
from gradproof.core.check import Check, Finding
from gradproof.core.outcome import Effect, Outcome
from gradproof.core.workspace import Workspace
from gradproof.execution.queries import HEAD, Query, QueryRecorder, parse, script
from gradproof.extras.attest import write as asking
from gradproof.rounding import solvers
from gradproof.rounding.solvers import version_of
from gradproof.verdict.plan import plan

ROOT = Path(__file__).resolve().parents[3]
TRUE, FALSE = "(assert true)\n(check-sat)\n", "(assert false)\n(check-sat)\n"


def planned(name: str) -> Check:
    from gradproof.contract.model import load

    contract = load(ROOT / "proofs/gradient-accumulation-training-v1/contract.yaml")
    return next(c for c in plan(contract) if c.id == name)


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> asking.Heard:
    """A proof with its two controls, run once with its queries."""
    workspace = Workspace(ROOT, tmp_path_factory.mktemp("reports"))
    return asking.repeated(workspace, [planned("KANI-GT-403")], 1)["KANI-GT-403"]


def indexed(heard: asking.Heard) -> dict[str, Any]:
    check = planned("KANI-GT-403")
    finding = recorded(check, Finding(Outcome.HOLDS, "", stats={"solver": smt.version()})).finding
    return asking.index_row(check, finding, heard, "")


def stated(heard: asking.Heard) -> tuple[dict[str, Any], str]:
    row = indexed(heard)
    return row, asking.text_of(planned("KANI-GT-403"), row, heard)


def test_a_proof_is_recorded_and_answered_again_as_its_script_says(heard: asking.Heard) -> None:
    assert heard.outcome is Outcome.HOLDS
    assert heard.asked is not None
    assert heard.asked >= len(heard.queries) > 5
    _, text = stated(heard)
    queries = parse(text)
    assert tuple(queries) == heard.queries
    statuses = [q.status for q in queries]
    assert {"sat", "unsat"} <= set(statuses)
    assert asking.answers(queries, "z3", 600.0) == statuses


def test_the_whole_script_has_one_answer_a_query(heard: asking.Heard) -> None:
    """As any SMT-LIB solver reads it: one file, one status before each (check-sat)."""
    _, text = stated(heard)
    assert text.count("(push 1)") == text.count("(pop 1)") == text.count("(check-sat)") == len(heard.queries)
    assert text.index("(set-logic ALL)") < text.index("(push 1)")


def test_a_query_that_cannot_be_read_back_is_named(heard: asking.Heard) -> None:
    row, _ = stated(heard)
    assert row["read_back"] == row["included"] == len(heard.queries)
    before = asking.contradictions([row])
    garbled = [Query(q.text.replace("(assert", "(assert |a\\|b|", 1), q.status) for q in heard.queries[:2]]
    row, _ = stated(replace(heard, queries=(*garbled, *heard.queries[2:])))
    many = len(heard.queries)
    (told,) = (w for w in asking.contradictions([row]) if w not in before)
    assert told.startswith(f"KANI-GT-403: {many - 2} of {many} ")


def test_a_second_solver_agrees_or_is_said_to_be_absent(heard: asking.Heard) -> None:
    row, _ = stated(heard)
    found = row["second"]
    if version_of("cvc5"):
        assert (found["agree"], found["differ"]) == (len(heard.queries), 0)
    else:
        assert found["version"] == "absent"
        assert found["not_asked"] == len(heard.queries)


def test_a_status_that_was_turned_is_seen(heard: asking.Heard) -> None:
    queries = list(heard.queries)
    queries[0] = Query(queries[0].text, "sat" if queries[0].status == "unsat" else "unsat")
    found = asking.second(queries, "z3", 600.0)
    assert (found["differ"], found["agree"]) == (1, len(queries) - 1)


@pytest.mark.parametrize(
    ("status", "said", "word"),
    [("sat", "sat", "agree"), ("unsat", "sat", "differ"), ("sat", "unsat", "differ"), ("unknown", "unsat", "unknown"),
     ("unsat", "unknown", "unknown"), ("unsat", "error: no", "unknown"), ("unsat", "", "unknown")],
)  # fmt: skip
def test_only_two_equal_answers_agree(status: str, said: str, word: str) -> None:
    assert asking.verdict(status, said) == word


def test_a_solver_that_is_not_installed_was_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "version_of", lambda solver: "")
    found = asking.second([Query(FALSE, "unsat")], "cvc5", 5.0)
    assert found == {"solver": "cvc5", "version": "absent", "agree": 0, "differ": 0, "unknown": 0, "not_asked": 1}


SLEEPS = "import time; time.sleep(600)"
DEAD = {
    "hangs after an answer": (f"print('unsat', flush=True); {SLEEPS}", 5.0, 1),
    "crashes after an answer": ("print('unsat'); 1 / 0", 600.0, 1),
    "hangs at once": (SLEEPS, 0.5, 0),
    "says nothing": ("pass", 600.0, 0),
}


@pytest.mark.parametrize("name", DEAD)
def test_what_a_dead_solver_had_said_counts_and_no_more(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    real, (program, limit, said) = solvers.subprocess.run, DEAD[name]
    monkeypatch.setattr(solvers.subprocess, "run", lambda command, **k: real([sys.executable, "-c", program], **k))
    found = asking.second([Query(FALSE, "unsat")] * 2, "z3", limit)
    assert (found["agree"], found["unknown"], found["not_asked"]) == (said, 0, 2 - said)
    assert found["version"] == version_of("z3") != ""


def test_a_recorder_keeps_one_of_equal_queries_and_counts_what_is_too_much() -> None:
    recorder = QueryRecorder(most=len(TRUE))
    for text, answer in ((TRUE, "sat"), (TRUE, "sat"), (FALSE, "unsat"), (FALSE, "timeout")):
        recorder.hear(lambda t=text: "; benchmark\n(set-info :status unknown)\n" + t, answer)  # type: ignore[misc]
    assert recorder.to_json() == {"asked": 4, "left_out": 2, "queries": [{"text": TRUE, "status": "sat"}]}


@pytest.mark.parametrize("answer", ["unknown", "timeout", "canceled", ""])
def test_a_query_without_an_answer_is_recorded_as_unknown(answer: str) -> None:
    recorder = QueryRecorder()
    recorder.hear(lambda: TRUE, answer)
    assert [q.status for q in recorder.kept] == ["unknown"]


def test_the_solver_tells_its_listeners(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = QueryRecorder()
    monkeypatch.setattr(smt, "LISTENERS", [recorder.hear])
    x = smt.real("x")
    smt.solve([x > 0], {}, 5.0)
    smt.solve([x > 0, x < 0], {}, 5.0)
    assert [q.status for q in recorder.kept] == ["sat", "unsat"]
    assert [smt.decide_text(q.text, 5.0) for q in recorder.kept] == ["sat", "unsat"]


NAMES = (
    "Z", "|Z|", "%7CZ%7C", "mean |g|", "mean %7Cg%7C", "a\\b", "a\\\\b", "|", "%", "", "true", "and", "%and",
    "m", "m'", "'", "_", "0.weight", "1.0", "two words", "\u00e9",
)  # fmt: skip


def test_names_that_z3_confuses_or_cannot_read_back_are_told_apart_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """z3 prints Z and |Z| alike, and writes mean |g| so that no reader of SMT-LIB takes it."""
    recorder = QueryRecorder()
    monkeypatch.setattr(smt, "LISTENERS", [recorder.hear])
    for make in (smt.real, smt.integer, smt.boolean, lambda name: smt.ieee(name, 11, 16)):
        assert len({smt.key(make(name)) for name in NAMES} - {"true", "false"}) == len(NAMES)
    terms = [smt.real(name) for name in NAMES]
    assert smt.solve([a < b for a, b in itertools.pairwise(terms)], {}, 5.0).answer is smt.SolverAnswer.SAT
    assert smt.solve([t > 0 for t in terms] + [sum(terms) < 0], None, 5.0).answer is smt.SolverAnswer.UNSAT
    assert [(smt.decide_text(q.text, 5.0), q.status) for q in recorder.kept] == [("sat", "sat"), ("unsat", "unsat")]


GOOD = script(["title"], [Query(TRUE, "sat"), Query(FALSE, "unsat")])


@pytest.mark.parametrize(
    "text",
    [GOOD.replace(HEAD, ""), GOOD.replace("(check-sat)", "", 1), GOOD.replace(":status sat", ":status happy"),
     GOOD + "(check-sat)\n", GOOD.replace("(pop 1)", "", 1), json.dumps({}), ""],
)  # fmt: skip
def test_a_script_of_another_shape_is_refused(text: str) -> None:
    assert len(parse(GOOD)) == 2
    with pytest.raises(ValueError, match=r"query|begin"):
        parse(text)


def test_what_a_repeated_run_did_not_write_is_said() -> None:
    row = indexed(asking.Heard(Outcome.TIMEOUT, None, 0, ()))
    assert "TIMEOUT" in row["not_included"]
    assert (row["file"], row["again"]) == (None, {"outcome": "TIMEOUT", "same": False})


@pytest.mark.parametrize(("left_out", "words"), [(0, ""), (3, "3 more")])
def test_queries_that_were_left_out_are_counted_in_index_and_script(left_out: int, words: str) -> None:
    row, text = stated(asking.Heard(Outcome.HOLDS, 4, left_out, (Query(TRUE, "sat"),)))
    assert row["not_included"].partition(":")[0] == words
    assert (f", not included: {words}" in text) is bool(words)
    assert ("not included" in text) is bool(words)


def run_as(monkeypatch: pytest.MonkeyPatch, **done: Any) -> dict[str, asking.Heard]:
    """What is heard of a check where its run ended like this."""

    class Pool:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            """As the real one is made."""

        def run(self, checks: Any, save: Any) -> Any:
            return SimpleNamespace(**done)

    monkeypatch.setattr(asking, "Pool", Pool)
    check = planned("KANI-GT-403")
    return asking.repeated(Workspace(ROOT, ROOT / "reports"), [check], 1)


def test_an_interrupted_recording_is_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_as(monkeypatch, interrupted=True, evidence={})


def test_a_worker_that_wrote_no_queries_was_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    check = planned("KANI-GT-403")
    evidence = recorded(check, Finding(Outcome.TIMEOUT, "no answer within 60 s"))
    found = run_as(monkeypatch, interrupted=False, evidence={check.id: evidence})
    assert found == {check.id: asking.Heard(Outcome.TIMEOUT, None, 0, ())}


def test_a_stub_that_is_not_run_again_is_taken_as_given(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    class Pool:
        def __init__(self, *args: Any, status: Any, **kwargs: Any) -> None:
            given.append(status)

        def run(self, checks: Any, save: Any) -> Any:
            return SimpleNamespace(interrupted=False, evidence={})

    monkeypatch.setattr(asking, "Pool", Pool)
    stub = planned("KANI-GT-403")
    check = replace(stub, id="K-1", depends=(stub.id,))
    for checks in ([check], [check, stub]):
        asking.repeated(Workspace(ROOT, ROOT / "reports"), checks, 1)
    assert given == [{stub.id: Effect.DISCHARGED}, {}]


@pytest.mark.parametrize(("outcome", "contradicts"), [("REFUTED", True), ("TIMEOUT", False), ("ERROR", False)])
def test_only_another_answer_contradicts_the_evidence(outcome: str, contradicts: bool) -> None:
    row = {"check": "K-1", "again": {"outcome": outcome, "same": False}}
    assert bool(asking.contradictions([row])) is contradicts
