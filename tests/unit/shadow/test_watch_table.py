"""The judges of real runs read the window table: a rule that is loosened there is no longer refuted.

Each entry that the judge of steps can meet is tried on the shortest loop that breaks it.
"""

from __future__ import annotations

from typing import Any

import pytest
from test_whole_refute import stepped_twice

from gradproof.core.outcome import Outcome
from gradproof.core.protocol import RULES, STEPPED_TWICE, Breaks, Event, State
from gradproof.shadow.judge.statements import ruled
from gradproof.shadow.judge.steps import StepRuling
from gradproof.shadow.judge.two_runs import check_whole
from gradproof.shadow.request import Request
from gradproof.shadow.result import Result
from gradproof.shadow.tape import run_events as kinds
from gradproof.shadow.tape.monitor import Monitor
from gradproof.shadow.tape.run_events import Iteration, SeenPass, SeenStep

_S = State
A, S, K, C, Z, END = Event.ACCUMULATE, Event.STEP, Event.SKIP, Event.SCHEDULE, Event.ZERO, Event.END
N = 2
WEIGHTS = frozenset({1})
LOOPS = {
    "a step in each micro-batch": ((_S.OPEN, S), [A, S, Z] * 3),
    "each of which is skipped": ((_S.OPEN, K), [A, K, Z] * 3),
    "a late step": ((_S.FULL, A), [A, A, A, S, Z] * 2),
    "two steps": ((_S.STEPPED, S), [A, A, S, S, Z] * 2),
    "a step, and one that is skipped": ((_S.STEPPED, K), [A, A, S, K, Z] * 2),
    "two steps after one that is skipped": ((_S.SKIPPED, S), [A, A, K, S, S, Z] * 2),
    "two schedules": ((_S.SCHEDULED, C), [A, A, S, C, C, Z] * 2),
    "a whole window that no step applies": ((_S.FULL, END), [A, A, S, Z, A, A, END]),
    "a part of one": ((_S.OPEN, END), [A, A, S, Z, A, END]),
}


def judged(events: list[Event]) -> Result:
    """What is said of the steps of a loop over one iteration of a data loader, of which it is given N."""
    monitor, it = Monitor(accum_steps=N), Iteration(length=99)
    monitor.run.recorded, version = set(range(len(events))), 0
    for event in events:
        if event is A:
            version, it.read = version + 1, it.read + 1
            monitor.run.begins().about = SeenPass(it, read=it.read, passes=it.read, forwards=1, reached=WEIGHTS)
        elif event in (S, K):
            held = {1: (1, version)}
            monitor.run.keep(kinds.STEP, SeenStep(0, WEIGHTS, held, False, False, False, event is K, False))
        elif event is not END:
            kind: Any = {Z: (kinds.ZERO, None), C: (kinds.SCHEDULE, (9, False))}[event]
            monitor.run.keep(*kind)
    return StepRuling(monitor, N, END in events).result()


@pytest.mark.parametrize("name", LOOPS)
def test_what_the_table_refuses_is_refuted_in_its_words(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (state, event), events = LOOPS[name]
    rule = RULES[state, event]
    assert isinstance(rule, Breaks)
    found = judged(events)
    assert (found.outcome, found.obligation, found.reason) == (Outcome.REFUTED, rule.obligation, rule.why)
    monkeypatch.setitem(RULES, (state, event), State.FULL if event is A else state)  # type: ignore[arg-type]
    assert judged(events).outcome is not Outcome.REFUTED


def test_a_rule_of_another_obligation_is_not_judged_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is zeroed is no gradient that the run ended with: that is GA-INV-002's."""
    events = [A, A, S, Z, A, Z, END]
    assert judged(events).outcome is not Outcome.REFUTED
    monkeypatch.setitem(RULES, (State.OPEN, Z), State.OPEN)  # type: ignore[arg-type]
    assert judged(events).outcome is Outcome.REFUTED


def test_right_loops_are_taken() -> None:
    assert judged([A, A, S, C, Z] * 3).outcome is Outcome.HOLDS
    assert judged([A, A, S, Z, C] * 3).outcome is Outcome.HOLDS


RULED = {
    "early": ((_S.OPEN, S), (1, 2, S)),
    "late": ((_S.FULL, A), (3, 2, S)),
    "again": ((_S.STEPPED, S), (0, 2, S)),
    "left": ((_S.FULL, END), (2, 2, END)),
}


@pytest.mark.parametrize("name", RULED)
def test_two_runs_are_judged_by_the_same_table(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (state, event), given = RULED[name]
    rule: Any = RULES[state, event]
    assert ruled(*given) == rule.why
    monkeypatch.setitem(RULES, (state, event), State.FULL if event is A else state)  # type: ignore[arg-type]
    assert ruled(*given) == ""
    assert ruled(2, 2, S) == ruled(0, 2, END) == ""


def test_a_rule_that_the_window_table_lost_is_not_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps on one window are wrong because the table says so, and in its words."""
    result = check_whole(stepped_twice, "step", Request()).result("GA-INV-003")
    assert result.reason == f"{STEPPED_TWICE.why}: step 2 applies the gradient of step 1"
    monkeypatch.setitem(RULES, (State.STEPPED, S), State.STEPPED)  # type: ignore[arg-type]
    assert check_whole(stepped_twice, "step", Request()).result("GA-INV-003").outcome is not Outcome.REFUTED
    assert result.counterexample is not None
    assert result.counterexample["trace"]["ticks"]
