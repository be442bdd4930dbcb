"""Path exploration of plain Python: run the harness again for every feasible sequence of decisions.

A decision is the truth of a symbolic condition, or a choice among concrete options. The harness is executed from
the start with a recorded prefix of decisions; at the first new one the feasible sides are found by the solver and
the others are queued. Two bounds are asserted, never assumed: the decisions on one path (the unwinding bound) and
the number of paths. Reaching either ends the exploration with BOUND_HIT. Source of the scheme: King, Symbolic
Execution and Program Testing, CACM 19(7), 1976; unwinding assertions as in CBMC and Kani.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Generic, TypeVar

from gradproof.arith import smt
from gradproof.arith.context import running
from gradproof.arith.smt import SolverAnswer
from gradproof.arith.soft import near_sqrt
from gradproof.arith.symbolic import LemmaRequirements, OutOfRange, Rounder, Stub, Sym, SymBool, as_bool
from gradproof.execution.methods.free_inputs import CaseField, Row, settle


class PathEnds(BaseException):
    """This path is infeasible or its assumptions contradict each other; the exploration goes on."""


class Stopped(BaseException):
    """The exploration cannot go on: `outcome` says why. No model's `except Exception` can swallow it."""

    def __init__(self, outcome: str, reason: str) -> None:
        self.outcome, self.reason = outcome, reason
        super().__init__(reason)


class Violated(BaseException):
    """A check failed on this path, with the values that make it fail."""

    def __init__(self, clause: str, label: str, values: dict[str, Any], choices: list[Any]) -> None:
        self.clause, self.label, self.values, self.choices = clause, label, values, choices
        super().__init__(clause)


BRIEF = 5.0  # seconds for a question that no verdict rests on
_INDEX, _NUMBER = re.compile(r"\[(\d+)\]"), re.compile(r"\d+")
FORCED = 2  # added to the side of a branch whose other side is infeasible: its condition is implied


@dataclass(frozen=True)
class Limits:
    """The two exploration bounds, the solver's seconds for one query, and the process time at which all ends.

    `scope`: whether it is worked out what is free, which is part of what a subject's run shows, and of no control's.
    """

    branches: int
    paths: int
    query_seconds: float
    deadline: float
    scope: bool = True


@dataclass
class ExploredPath:
    """One run of the harness: decisions taken, conditions met, inputs made, and the part of the proof that it is in.

    `decided`: a condition was decided that inputs could make true and false. `open`: checks that are counted when the
    path ends, once it is known which inputs it leaves several values: the part of each, and the inputs in it (None: it
    came after such a decision). `run`: number of the part of a proof that runs, 0 outside of them, of `runs` so far.
    `assumed`: inputs that a part assumed something of, and its number.
    """

    prefix: tuple[int, ...]
    taken: list[int] = field(default_factory=list)
    options: list[Any] = field(default_factory=list)
    conditions: list[smt.Term] = field(default_factory=list)
    inputs: dict[str, smt.Term] = field(default_factory=dict)
    drawn: dict[str, Any] = field(default_factory=dict)
    roots: dict[str, Sym] = field(default_factory=dict)
    checks: int = 0
    part: str = "other"
    decided: bool = False
    open: list[tuple[str, set[str] | None]] = field(default_factory=list)
    runs: int = 0
    run: int = 0
    assumed: dict[str, int] = field(default_factory=dict)
    case: list[Row] = field(default_factory=list)
    over: bool = False
    given: list[tuple[Sym, tuple[Any, ...]]] = field(default_factory=list)  # with their fields as they were


@dataclass
class Exploration:
    """What an exploration saw. `violation` is the first failed check, if any.

    `inputs`: names of what was free: some path that is checked leaves it several values. `numbers`: names of choices
    among numbers. `sizes`: lengths of the lists of inputs. `parts`: each base, step and direct claim that ran to its
    end, after which decisions, and the checks in it. `asked`: checks of each part and of no part; of a step and direct
    claim those that ask of what is free. `free`: how many checks do so, in any part. `fields`: what is known of the
    cases, for the paths that were checked and have an input.
    """

    paths: int = 0
    most_branches: int = 0
    sites: int = 0
    operators: set[str] = field(default_factory=set)
    checked: dict[str, int] = field(default_factory=dict)
    covers: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    dead: list[list[Any]] = field(default_factory=list)
    undecided: int = 0
    used: set[str] = field(default_factory=set)
    inputs: set[str] = field(default_factory=set)
    numbers: set[str] = field(default_factory=set)
    lists: dict[Hashable, set[int]] = field(default_factory=dict)
    sizes: set[int] = field(default_factory=set)
    asked: Counter[str] = field(default_factory=Counter)
    parts: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    free: int = 0
    fields: dict[tuple[str, str], CaseField] = field(default_factory=dict)
    violation: Violated | None = None
    stopped: Stopped | None = None


class Explorer:
    """Runs one harness body over all its paths. It has slots: no method can be put over one of its own."""

    __slots__ = ("_path", "_queue", "_requirements", "_rounder", "limits", "refusal", "result", "rounds", "stub")

    def __init__(self, limits: Limits, stub: Stub | None = None) -> None:
        self.limits, self.stub = limits, stub
        self.rounds = stub is not None
        self.result = Exploration()
        self._queue: list[tuple[int, ...]] = [()]
        self._path = ExploredPath(())
        self._rounder: Rounder | None = None
        self._requirements = LemmaRequirements(limits.query_seconds)
        self.refusal = ""

    def run(self, body: Callable[[], None]) -> Exploration:
        """Explore `body` until its paths are exhausted, a check fails or a bound is hit."""
        try:
            while self._queue and not self._ended():
                self._one(body, self._queue.pop())
        except (Stopped, Violated, OutOfRange) as end:
            self._owned(end)
        if self.refusal and self.result.stopped is None:
            self.result.stopped = Stopped("UNKNOWN", self.refusal)
        return self.result

    def refuse(self, reason: str) -> None:
        """Remember that a number was asked for what it does not have: nothing shown on this run counts."""
        self.refusal = self.refusal or reason

    def _owned(self, end: BaseException) -> None:
        """What ends a path or a run without a word of the engine was raised by somebody else: nothing is shown then."""
        if not self._ended():
            self._stop("ERROR", f"{type(end).__name__} was raised by the harness or the subject, and not by the engine")

    def _ended(self) -> bool:
        """Whether something was raised that ends the exploration, even if the subject caught it."""
        return bool(self.refusal) or self.result.stopped is not None or self.result.violation is not None

    def _over(self) -> PathEnds:
        self._path.over = True
        return PathEnds()

    def _stop(self, outcome: str, reason: str) -> Stopped:
        self.result.stopped = Stopped(outcome, reason)
        return self.result.stopped

    def _one(self, body: Callable[[], None], prefix: tuple[int, ...]) -> None:
        if self.result.paths >= self.limits.paths:
            raise self._stop("BOUND_HIT", f"more than {self.limits.paths} paths (bound `paths`)")
        self._path = ExploredPath(prefix)
        self._rounder = Rounder(self.stub, self._requirements, self.result.operators) if self.stub is not None else None
        with running(self):
            try:
                body()
                self._live()
            except PathEnds as end:
                if not self._path.over:
                    self._owned(end)
            self.result.paths += 1
        self.result.most_branches = max(self.result.most_branches, len(self._path.taken))
        if self._rounder is not None:
            self.result.sites = max(self.result.sites, self._rounder.sites)

    def _live(self) -> None:
        """A path that checks something must have an input; one that has none checked it for nothing."""
        if not self._path.checks or self._ended():
            return
        if any(_fields(x) != was for x, was in self._path.given):
            raise self._stop("ERROR", "a number that the harness gave was changed by the subject")
        if not self.limits.scope:
            return
        answer = self.ask([]).answer
        if answer is SolverAnswer.UNSAT:
            self.result.dead.append(list(self._path.options))
        elif answer is not SolverAnswer.SAT:
            self.result.undecided += 1
        else:
            self._count_open()
            settle(self.result.fields, self._path.case, self._varied)

    def _count_open(self) -> None:
        """Which inputs this path leaves several values, and which of its checks ask of one of them."""
        path, known = self._path, self.result.inputs
        wanted = [name for name in path.drawn if path.open or name not in known]
        drawn = [path.drawn[name] for name in wanted]
        free = {wanted[place] for place in self._varied(drawn)} if drawn else set[str]()
        self.result.inputs |= free
        for part, names in path.open:
            self._ask_of_free(part, names is None or not free.isdisjoint(names))

    def _varied(self, asked: Sequence[Any]) -> set[int]:
        """The places of those numbers that are made of inputs, and that this path leaves more than one value.

        All are asked for other values at once, then any of the rest, then each: most often the first question decides.
        """
        terms = {str(i): x.term for i, x in enumerate(asked) if hasattr(x, "term") and self._inputs_in(x)}
        first = self._briefly([], terms) if terms else {}
        left, different = set(first), {n: smt.negate(as_bool(_is(asked[int(n)], value))) for n, value in first.items()}
        for question in (smt.both, smt.either):
            while left:
                other = self._briefly([question([different[n] for n in sorted(left)])], terms)
                if not (changed := {n for n in left if n in other and other[n] != first[n]}):
                    break
                left -= changed
        for n in sorted(left):
            if n in left:
                other = self._briefly([different[n]], terms)
                left -= {m for m in left if m in other and other[m] != first[m]}
        return {int(n) for n in first if n not in left}

    def _briefly(self, extra: list[smt.Term], wanted: dict[str, smt.Term]) -> dict[str, Any]:
        """Values of some terms on this path; none where the solver finds none soon."""
        left = min(BRIEF, self.limits.query_seconds, self.limits.deadline - time.process_time())
        return smt.solve(self.facts() + extra, wanted, left).values if left > 0 else {}

    def rounder(self) -> Rounder:
        """The stub of this run. Raises RuntimeError in a run over the reals."""
        if self._rounder is None:
            raise RuntimeError("this run has no rounding stub")
        return self._rounder

    def facts(self) -> list[smt.Term]:
        """Assumptions, path condition and what the stub promises."""
        return self._path.conditions + (self._rounder.constraints if self._rounder else [])

    def ask(self, extra: list[smt.Term], wanted: dict[str, smt.Term] | None = None) -> smt.Reply:
        """One query on top of the path's facts, within what is left of the time limit; for `wanted` see `smt.solve`."""
        left = min(self.limits.query_seconds, self.limits.deadline - time.process_time())
        if left <= 0:
            raise self._stop("TIMEOUT", "the time limit of the check passed")
        return smt.solve(self.facts() + extra, wanted, left)

    def _decide(self) -> int | None:
        """The recorded decision at this point, or None when it is new."""
        at = len(self._path.taken)
        if at >= self.limits.branches:
            reason = f"a path takes more than {self.limits.branches} decisions (bound `branches`)"
            raise self._stop("BOUND_HIT", reason)
        return self._path.prefix[at] if at < len(self._path.prefix) else None

    def branch(self, term: smt.Term) -> bool:
        """Fork on a condition; on a new fork the second feasible side is queued."""
        known = smt.constant_value(term)
        if known is not None:
            return known
        side = self._decide()
        if side is None:
            sides = [s for s in (1, 0) if self._feasible(term if s else smt.negate(term))]
            if not sides:
                raise self._over()
            side = self._take(sides if len(sides) > 1 else [FORCED + sides[0]])
        else:
            self._path.taken.append(side)
        if side < FORCED:
            self._path.conditions.append(term if side else smt.negate(term))
            self._path.decided = True
        return bool(side % FORCED)

    def _take(self, sides: list[int]) -> int:
        done = tuple(self._path.taken)
        self._queue += [(*done, other) for other in reversed(sides[1:])]
        self._path.taken.append(sides[0])
        return sides[0]

    def _feasible(self, term: smt.Term) -> bool:
        reply = self.ask([term])
        if reply.answer is SolverAnswer.TIMEOUT:
            raise self._stop("TIMEOUT", f"branch feasibility: {reply.reason}")
        # An undecided side is explored: that can only add paths, never lose one.
        return reply.answer is not SolverAnswer.UNSAT

    def choose(self, options: list[Any]) -> Any:
        """Fork over concrete options."""
        if not options:
            raise self._over()
        side = self._decide()
        if side is None:
            side = self._take(list(range(len(options))))
        else:
            self._path.taken.append(side)
        self._path.options.append(options[side])
        return options[side]

    def root(self, x: Sym) -> Sym:
        """The square root over the reals: the r >= 0 with r r = x; rounded when the operand has a format.

        Raises ValueError on a path where x is negative, as Python does.
        """
        if self.branch(x.term < 0):
            raise ValueError("square root of a negative number")
        key = smt.key(x.term)
        if key not in self._path.roots:
            r = Sym(smt.real(f"root{len(self._path.roots)}"), *_root_range(x))
            self._path.conditions += [r.term >= 0, r.term * r.term == smt.to_real(x.term)]
            self._path.roots[key] = r
        r = self._path.roots[key]
        return r if x.fmt is None else self.rounder().fl(r, x.fmt, False, "square root")

    def declare(self, name: str, drawn: Any) -> None:
        """Make a symbol an input whose value a counterexample states. Raises ValueError on a second use of a name."""
        if name in self._path.inputs:
            raise ValueError(f"two inputs are called {name!r}")
        self._path.inputs[name], self._path.drawn[name] = drawn.term, drawn
        self.element(name)

    def element(self, name: str) -> None:
        """Note an input as an element of a list: x[0] and x[1] are a list of two, whoever made it.

        So are x0 and x1 where one call in the program drew both, as in a loop, by names that it made.
        """
        for found in _INDEX.finditer(name):
            self.result.lists.setdefault(name[: found.start()], set()).add(int(found[1]))
        frame = sys._getframe()
        while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("gradproof."):
            frame = frame.f_back
        written = [one for at in (frame, frame.f_back) if at is not None for one in at.f_code.co_consts]
        literal = any(name == one or (isinstance(one, tuple) and name in one) for one in written)
        for found in () if literal else _NUMBER.finditer(name):
            key = frame.f_code, frame.f_lasti, name[: found.start()]
            self.result.lists.setdefault(key, set()).add(int(found[0]))

    def case(self, rows: Iterable[Row]) -> None:
        """The fields of a case that the harness built on this path."""
        self._path.case += rows

    def give(self, x: Sym) -> Sym:
        """A number for the harness, which must be the same when the path ends."""
        self._path.given.append((x, _fields(x)))
        return x

    def assume(self, condition: Any) -> None:
        """Restrict this path; a plain False ends it."""
        if condition is False:
            raise self._over()
        path, names = self._path, self._inputs_asked(condition)
        path.conditions.append(as_bool(condition))
        if path.run:
            path.assumed |= {name: path.run for name in names or self._inputs_in(condition)}

    def check(self, clause: str, condition: Any, label: str) -> None:
        """Ask for a way to falsify `condition` on this path. Raises Violated or Stopped."""
        self._counted(clause, condition)
        if condition is True:
            return
        reply = self.ask([smt.negate(as_bool(condition))], self._path.inputs)
        if reply.answer is SolverAnswer.SAT:
            raise self._violated(clause, label, reply.values)
        if reply.answer is not SolverAnswer.UNSAT:
            raise self._stop(str(reply.answer).upper(), f"{clause} {label}: {reply.reason}")

    @property
    def part(self) -> str:
        """The part of the proof that this path is in: `base`, `step`, `direct` or `other`."""
        return self._path.part

    def within(self, part: str, body: Callable[[], None]) -> None:
        """Run one part of a proof: `base`, `step` or `direct`."""
        path = self._path
        outer, before = (path.part, path.run), path.checks
        path.runs += 1
        path.part, path.run = part, path.runs
        key = part, path.run, *path.taken
        try:
            body()
            self.result.parts[key] += path.checks - before
        finally:
            path.part, path.run = outer

    def _counted(self, clause: str, condition: Any) -> None:
        """One more check of a clause, on this path. What it says of free inputs is known when the path ends."""
        self.result.checked[clause] = self.result.checked.get(clause, 0) + 1
        self._path.checks += 1
        self._inputs_asked(condition)
        part, first = self.part, not self.result.free or not self.result.asked[self.part]
        if part in ("base", "other"):
            self.result.asked[part] += 1
        if first:
            self._path.open.append((part, None if self._path.decided else self._inputs_in(condition)))
        else:
            self._ask_of_free(part, self._path.decided or bool(self._inputs_in(condition)))

    def _inputs_asked(self, condition: Any) -> set[str]:
        """The inputs in a condition, where a part of a proof assumed something. Raises Stopped where it was another."""
        path = self._path
        names = self._inputs_in(condition) if path.assumed else set[str]()
        if other := sorted(name for name in names if path.assumed.get(name, path.run) != path.run):
            words = f"{other[0]!r} is asked about where another part of the proof assumed something of it"
            raise self._stop("ERROR", f"{words}; assume it before both, or draw an input for each")
        return names

    def _ask_of_free(self, part: str, free: bool) -> None:
        self.result.free += free
        if part not in ("base", "other"):
            self.result.asked[part] += free

    def _inputs_in(self, x: Any) -> set[str]:
        """The names of the inputs that a condition or a number depends on."""
        parts = {one.get_id() for one in _parts(x.term)} if hasattr(x, "term") else set()
        return {name for name, t in self._path.inputs.items() if t.get_id() in parts}

    def _violated(self, clause: str, label: str, values: dict[str, Any]) -> Violated:
        """The first failed check. Its inputs count as free: the counterexample is what is shown then."""
        self.result.violation = Violated(clause, label, values, list(self._path.options))
        self.result.inputs |= set(values)
        for part, names in self._path.open:
            self._ask_of_free(part, names is None or bool(names))
        return self.result.violation

    def cover(self, name: str, condition: Any) -> None:
        """Record whether some path can reach this point with `condition`, with a witness."""
        if self.result.covers.setdefault(name, None) is not None:
            return
        reply = self.ask([as_bool(condition)], self._path.inputs)
        if reply.answer is SolverAnswer.SAT:
            found = {k: str(v) for k, v in reply.values.items()}
            self.result.covers[name] = {"values": found, "choices": [str(o) for o in self._path.options]}


def _parts(term: smt.Term) -> Iterator[smt.Term]:
    """A term and everything in it, each once."""
    left, seen = [term], set[int]()
    while left:
        one = left.pop()
        if one.get_id() not in seen:
            seen.add(one.get_id())
            yield one
            left += one.children()


def _is(x: Any, value: Any) -> Any:
    """Whether a number or a truth value has a value."""
    return (x if value else ~x) if isinstance(x, SymBool) else x == value


def _fields(x: Sym) -> tuple[Any, ...]:
    return id(x.term), x.lo, x.hi, x.fmt, x.grid


def _root_range(x: Sym) -> tuple[Fraction | None, Fraction | None]:
    """What the interval pass knows of the square root of x: rationals just below and above the ends' roots."""
    if x.lo is None or x.hi is None or x.hi < 0:
        return None, None
    low, high = near_sqrt(max(x.lo, Fraction(0))), near_sqrt(x.hi)
    step = Fraction(1, 2**200)
    return max(low - step, Fraction(0)), high + step


# -- Shortest trace of a small machine to something wrong: breadth-first search from several starts at once.
S = TypeVar("S", bound=Hashable)
E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Move(Generic[S, E]):
    """An event, the state after it, and what is wrong with it (empty: nothing)."""

    event: E
    after: S
    wrong: str = ""


@dataclass(frozen=True, slots=True)
class PathTrace(Generic[S, E]):
    """A start and moves, of which the last one is wrong."""

    start: S
    moves: tuple[Move[S, E], ...]


@dataclass(frozen=True, slots=True)
class PathSearch(Generic[S, E]):
    """`complete`: every reachable state was visited and nothing wrong was found; else there is a trace or no answer."""

    trace: PathTrace[S, E] | None
    visited: int
    complete: bool


def shortest(starts: Iterable[S], moves: Callable[[S], Iterable[Move[S, E]]], most: int) -> PathSearch[S, E]:
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
                return PathSearch(_back(came, state, move), len(came), complete=False)
            if move.after in came:
                continue
            if len(came) >= most:
                return PathSearch(None, len(came), complete=False)
            came[move.after] = (state, move)
            queue.append(move.after)
    return PathSearch(None, len(came), complete=True)


def _back(came: dict[S, tuple[S, Move[S, E]] | None], state: S, last: Move[S, E]) -> PathTrace[S, E]:
    moves = [last]
    while (step := came[state]) is not None:
        state, move = step
        moves.append(move)
    return PathTrace(state, tuple(reversed(moves)))
