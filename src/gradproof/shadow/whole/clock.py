"""A limit on the time that gradproof itself takes of a script: what was decided before it passed stays.

Time counts while the engine works at a call, and none of the operators of the script. It is looked at where a call
begins, and where terms are made or walked, for one operator may take for ever. A machine that is busy with other work
takes none of it: when as many seconds have passed on the clock, the thread must have had as many of CPU time.
"""

from __future__ import annotations

import math
from time import perf_counter, thread_time

LATE = "the time limit of {:g} s passed before an answer came"
HELP = "raise --time-limit, or watch a smaller model"


class TimeLimit(Exception):
    """The time limit has passed."""


class Clock:
    """Seconds that were spent since `begin`. Used as a context it runs, and raises TimeLimit when they are too many."""

    def __init__(self) -> None:
        self.limit, self.spent, self.since, self.depth = math.inf, 0.0, 0.0, 0
        self.used = thread_time()

    def __enter__(self) -> None:
        if not self.depth:
            self.since = perf_counter()
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        if not self.depth:
            self.spent += perf_counter() - self.since

    def begin(self) -> None:
        """Something else begins, which has all of the time."""
        self.spent, self.since, self.used = 0.0, perf_counter(), thread_time()

    def look(self) -> None:
        """Raises TimeLimit when the time is over."""
        late = self.depth and self.spent + perf_counter() - self.since > self.limit
        if late and thread_time() - self.used > self.limit:
            raise TimeLimit(LATE.format(self.limit))
