"""Shortest trace of a small machine to something wrong: breadth-first search from several starts at once.

A machine is a function from a state to its moves; a move that does something wrong says what. States must be hashable,
and equal ones must have the same moves. The search keeps no promise beyond the states that it visited: it says whether
those were all, and a limit that is reached is not an answer.

Source: Moore, The shortest path through a maze, 1959.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)
E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Move(Generic[S, E]):
    """An event, the state after it, and what is wrong with it (empty: nothing)."""

    event: E
    after: S
    wrong: str = ""


@dataclass(frozen=True, slots=True)
class Trace(Generic[S, E]):
    """A start and moves, of which the last one is wrong."""

    start: S
    moves: tuple[Move[S, E], ...]


@dataclass(frozen=True, slots=True)
class Search(Generic[S, E]):
    """`complete`: every reachable state was visited and nothing wrong was found; else there is a trace or no answer."""

    trace: Trace[S, E] | None
    visited: int
    complete: bool


def shortest(starts: Iterable[S], moves: Callable[[S], Iterable[Move[S, E]]], most: int) -> Search[S, E]:
    """A trace to a wrong move that no other trace from these starts is shorter than; ties go to the first start.

    Visits at most `most` states and then gives up without an answer. Raises ValueError when there is no start.
    """
    queue = deque(dict.fromkeys(starts))
    if not queue:
        raise ValueError("a search needs a start")
    came: dict[S, tuple[S, Move[S, E]] | None] = dict.fromkeys(queue)
    while queue:
        state = queue.popleft()
        for move in moves(state):
            if move.wrong:
                return Search(_back(came, state, move), len(came), complete=False)
            if move.after in came:
                continue
            if len(came) >= most:
                return Search(None, len(came), complete=False)
            came[move.after] = (state, move)
            queue.append(move.after)
    return Search(None, len(came), complete=True)


def _back(came: dict[S, tuple[S, Move[S, E]] | None], state: S, last: Move[S, E]) -> Trace[S, E]:
    moves = [last]
    while (step := came[state]) is not None:
        state, move = step
        moves.append(move)
    return Trace(state, tuple(reversed(moves)))
