"""The shortest trace: really the shortest, and never an answer that the search does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gradproof.execution.methods.explore import Move, PathTrace, shortest
from models.accumulation.window_bugs import BROKEN, Loop
from symbolic.accumulation import window as window_facts
from symbolic.accumulation.window import Act, Proof
from symbolic.accumulation.window_traces import Moment, find, machine, runs, start

Step = Move[int, str]


def counter(wrong: int, modulus: int = 1000) -> Callable[[int], Iterator[Step]]:
    """Adds 1 or 3; wrong at a number."""

    def moves(n: int) -> Iterator[Step]:
        for by in (1, 3):
            after = (n + by) % modulus
            yield Move(f"+{by}", after, "there" if after == wrong else "")

    return moves


def events(trace: PathTrace[int, str] | None) -> list[str]:
    assert trace is not None
    return [move.event for move in trace.moves]


def test_the_shortest_way_is_found() -> None:
    found = shortest([0], counter(7), 100)
    assert sorted(events(found.trace)) == ["+1", "+3", "+3"]
    assert found.trace is not None
    assert found.trace.start == 0
    assert [m.wrong for m in found.trace.moves] == ["", "", "there"]
    assert not found.complete


def test_every_start_counts_and_the_first_one_wins_a_tie() -> None:
    nearer = shortest([0, 6], counter(7), 100).trace
    assert nearer is not None
    assert (nearer.start, events(nearer)) == (6, ["+1"])
    tie = shortest([4, 6], counter(7), 100).trace
    assert tie is not None
    assert tie.start == 4


def test_a_whole_search_without_a_find_says_so() -> None:
    found = shortest([0], counter(wrong=-1, modulus=20), 100)
    assert (found.trace, found.visited, found.complete) == (None, 20, True)


def test_a_limit_is_no_answer() -> None:
    found = shortest([0], counter(wrong=-1), 50)
    assert (found.trace, found.complete) == (None, False)
    assert found.visited == 50


def test_a_search_needs_a_start() -> None:
    with pytest.raises(ValueError, match="needs a start"):
        shortest([], counter(7), 100)


def wrong_within(proof: Proof, loop: Loop, length: int) -> bool:
    """Whether some run of at most `length` events is wrong: every one is walked, no state is remembered."""
    moves = machine(proof, loop)

    def walk(at: Moment, left: int) -> bool:
        return left > 0 and any(move.wrong or walk(move.after, left - 1) for move in moves(at))

    return any(walk(start(proof, run), length) for run in runs(proof))


CASES = [(harness, name, loop) for harness, (_, rows) in BROKEN.items() for name, _, loop in rows]


@pytest.mark.parametrize(("harness", "name", "loop"), CASES, ids=[name for _, name, _ in CASES])
def test_no_shorter_run_of_a_bug_is_wrong(harness: str, name: str, loop: Loop) -> None:
    proof: Proof = getattr(window_facts, harness.upper())
    trace: PathTrace[Moment, Act] | None = find(proof, loop).trace
    assert trace is not None
    assert not wrong_within(proof, loop, len(trace.moves) - 1)
    assert wrong_within(proof, loop, len(trace.moves))


@pytest.mark.parametrize("harness", BROKEN)
def test_the_right_loop_does_nothing_wrong_in_any_run(harness: str) -> None:
    proof: Proof = getattr(window_facts, harness.upper())
    found = find(proof, proof.loop)
    assert found.complete
    assert found.visited > 300
