"""The only module that imports z3. Terms are opaque to every other module.

A query is a fresh solver over the whole path condition. Where values are wanted, it is asked in a context of its own:
which values z3 picks depends on the terms that a context held before, and a witness must depend on the query's text
alone. `unknown` is distinguished from a time-out by z3's own reason.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any

import z3

from gradproof.core.processes import WALL

Term = Any
LOOK = 0.05  # seconds between two looks at the CPU time of a query


class SolverAnswer(StrEnum):
    """What the solver said."""

    SAT = "sat"
    UNSAT = "unsat"
    UNKNOWN = "unknown"
    TIMEOUT = "timeout"


@dataclass(frozen=True)
class Reply:
    """An answer, the values it gives to the asked terms (SAT only), and why there is none."""

    answer: SolverAnswer
    values: dict[str, Any]
    reason: str = ""


@dataclass
class SolverTally:
    """Queries, their seconds and the longest one."""

    queries: int = 0
    seconds: float = 0.0
    slowest: float = 0.0


TALLY = SolverTally()

Listener = Callable[[Callable[[], str], SolverAnswer], None]
LISTENERS: list[Listener] = []
"""Called with every query after its answer: a function that writes it as SMT-LIB 2, and the answer."""


class _Watcher:
    """Interrupts a query whose CPU time is over: z3's own limit is of the clock, and a machine may be busy.

    z3 objects of one context must not be used in two threads at once. So the last reference to a solver is never the
    watcher's: `running` changes under the lock only. The garbage collector works in any thread, and waits for a query.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running: Any = None
        self.ends = 0.0
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def check(self, solver: Any, seconds: float) -> Any:
        collects = gc.isenabled()
        gc.disable()
        with self.lock:
            self.running, self.ends = solver, time.process_time() + seconds
        try:
            return solver.check()
        finally:
            with self.lock:
                self.running = None
            if collects:
                gc.enable()

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK)
            with self.lock:
                if self.running is not None and time.process_time() >= self.ends:
                    self.running.interrupt()


_watchers: list[_Watcher] = []


def _verdict(solver: Any, seconds: float) -> Any:
    """z3's verdict within so many seconds of this process's CPU time, or WALL times as many on the clock."""
    solver.set("timeout", max(1, int(WALL * seconds * 1000)))
    if not (_watchers and _watchers[0].thread.is_alive()):  # as in a process that was forked from another
        _watchers[:] = [_Watcher()]
    return _watchers[0].check(solver, seconds)


def version() -> str:
    """z3's own version."""
    return f"z3 {z3.get_version_string()}"


_ESCAPES = {ord(c): f"%{ord(c):02X}" for c in "%|\\'"}
RESERVED = frozenset([
    "true", "false", "not", "and", "or", "xor", "ite", "if", "implies", "iff", "distinct", "abs", "div", "mod",
    "to_real", "to_int", "is_int", "let", "forall", "exists", "as", "par", "_",
])  # fmt: skip


def symbol(name: str) -> str:
    """The symbol for a name: for each name another one, which SMT-LIB can write (standard 2.6, section 3.1).

    z3 takes any text for a symbol, prints |x| and x alike, and writes what it cannot read back.
    """
    escaped = name.translate(_ESCAPES)
    return f"%{escaped}" if escaped in RESERVED or not escaped or escaped[0].isdigit() else escaped


def real(name: str) -> Term:
    """A real constant."""
    return z3.Real(symbol(name))


def integer(name: str) -> Term:
    """An integer constant."""
    return z3.Int(symbol(name))


def boolean(name: str) -> Term:
    """A Boolean constant."""
    return z3.Bool(symbol(name))


def number(x: Fraction | int) -> Term:
    """A rational literal."""
    f = Fraction(x)
    return z3.RealVal(f"{f.numerator}/{f.denominator}")


# Literals of an integer and of a truth value, negation, if-then-else, and the absolute value of an IEEE term.
whole, truth, negate, ite, ieee_abs = z3.IntVal, z3.BoolVal, z3.Not, z3.If, z3.fpAbs


def to_real(t: Term) -> Term:
    """An integer term as a real one."""
    return z3.ToReal(t) if z3.is_int(t) else t


def is_int(t: Term) -> bool:
    """Whether a term is of the integer sort."""
    return bool(z3.is_int(t))


def both(terms: Iterable[Term]) -> Term:
    """Conjunction."""
    return z3.And(list(terms))


def either(terms: Iterable[Term]) -> Term:
    """Disjunction."""
    return z3.Or(list(terms))


def key(t: Term) -> str:
    """A text that two terms share only if they are the same term."""
    return str(z3.simplify(t).sexpr())


def constant_value(t: Term) -> bool | None:
    """True or False when the term simplifies to one, else None."""
    s = z3.simplify(t)
    if z3.is_true(s):
        return True
    return False if z3.is_false(s) else None


def _ieee_sort(p: int, bits: int) -> Any:
    return z3.FPSort(bits - p, p)


def ieee(name: str, p: int, bits: int) -> Term:
    """An IEEE constant of precision p in a format `bits` wide."""
    return z3.FP(symbol(name), _ieee_sort(p, bits))


def ieee_number(x: Fraction, p: int, bits: int) -> Term:
    """An IEEE literal, rounded to nearest even."""
    return z3.fpRealToFP(z3.RNE(), number(x), _ieee_sort(p, bits))


def ieee_convert(t: Term, p: int, bits: int) -> Term:
    """A term converted to another format, rounded to nearest even."""
    return z3.fpFPToFP(z3.RNE(), t, _ieee_sort(p, bits))


IEEE_BINARY = {
    "+": lambda a, b: z3.fpAdd(z3.RNE(), a, b),
    "-": lambda a, b: z3.fpSub(z3.RNE(), a, b),
    "*": lambda a, b: z3.fpMul(z3.RNE(), a, b),
    "/": lambda a, b: z3.fpDiv(z3.RNE(), a, b),
    "<": z3.fpLT,
    "<=": z3.fpLEQ,
    "==": z3.fpEQ,
}


def ieee_sqrt(t: Term) -> Term:
    """Correctly rounded square root."""
    return z3.fpSqrt(z3.RNE(), t)


def ieee_finite(t: Term) -> Term:
    """Neither an infinity nor a NaN."""
    return z3.Not(z3.Or(z3.fpIsInf(t), z3.fpIsNaN(t)))


def solve(assertions: Sequence[Term], wanted: dict[str, Term] | None, seconds: float) -> Reply:
    """One query. `seconds` of CPU time are its limit; the values of `wanted` come back on SAT.

    None for `wanted` asks for nothing but the answer, which is some 1.5 ms cheaper.
    """
    context = z3.main_ctx() if wanted is None else z3.Context()
    solver = z3.Solver(ctx=context)
    solver.add(*(a if wanted is None else a.translate(context) for a in assertions))
    began, used = time.monotonic(), time.process_time()
    verdict = _verdict(solver, seconds)
    took, used = time.monotonic() - began, time.process_time() - used
    TALLY.queries += 1
    TALLY.seconds += took
    TALLY.slowest = max(TALLY.slowest, took)
    reply = _reply(solver, verdict, wanted or {}, used >= seconds)
    for listener in LISTENERS:
        listener(solver.to_smt2, reply.answer)
    return reply


def _reply(solver: Any, verdict: Any, wanted: dict[str, Term], overdue: bool) -> Reply:
    if verdict == z3.unsat:
        return Reply(SolverAnswer.UNSAT, {})
    if verdict == z3.unknown:
        reason = solver.reason_unknown()
        late = reason in ("timeout", "canceled") or overdue
        return Reply(SolverAnswer.TIMEOUT if late else SolverAnswer.UNKNOWN, {}, reason)
    model = solver.model()
    there = {name: t.translate(solver.ctx) for name, t in wanted.items()}
    return Reply(SolverAnswer.SAT, {name: _value(model.eval(t, model_completion=True)) for name, t in there.items()})


def _value(v: Any) -> Any:
    """A model value as bool, int or Fraction; an irrational algebraic number is cut at 2^-80."""
    if z3.is_bool(v):
        return z3.is_true(v)
    if z3.is_int_value(v):
        return int(v.as_long())
    if z3.is_rational_value(v):
        return Fraction(int(v.numerator_as_long()), int(v.denominator_as_long()))
    if z3.is_algebraic_value(v):
        near = v.approx(24)
        return Fraction(int(near.numerator_as_long()), int(near.denominator_as_long()))
    if z3.is_fp(v):
        exact = z3.simplify(z3.fpToReal(v, ctx=v.ctx))
        return Fraction(int(exact.numerator_as_long()), int(exact.denominator_as_long()))
    raise TypeError(f"a model value of no known sort: {v}")


def readable(text: str) -> bool:
    """Whether z3 can read an SMT-LIB 2 text. Nothing is decided, and nothing stays."""
    try:
        z3.parse_smt2_string(text, ctx=z3.Context())
    except z3.Z3Exception:
        return False
    return True


def decide_text(text: str, seconds: float) -> str:
    """z3's answer to an SMT-LIB 2 text: sat, unsat, unknown or timeout. Raises ValueError where it is none."""
    solver = z3.Solver()
    try:
        solver.from_string(text)
    except z3.Z3Exception as e:
        raise ValueError(f"z3 cannot read the text: {e}") from e
    verdict = _verdict(solver, seconds)
    if verdict == z3.unknown:
        return str(SolverAnswer.TIMEOUT if solver.reason_unknown() in ("timeout", "canceled") else SolverAnswer.UNKNOWN)
    return str(SolverAnswer.SAT if verdict == z3.sat else SolverAnswer.UNSAT)
