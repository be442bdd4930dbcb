"""Side by side: each tool's bound at each N, its ratio to the error that an input attains, and how far it gets.

A tool that decides claims is asked for the sharp bound first, then for looser ones; where it proves one, it is asked
for a false one too, a hair below what an input attains. A bound below what is attained is UNSOUND, whoever proved it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from typing import Any

from tests.bench import claims, gappa
from tests.bench.measure import HOLDS, NOT_RUN, UNSOUND, Measured, Said, timed

SIZES = (2, 4, 8, 64, 256, 512, 1024, 4096)
LIMIT = 10.0
MOST = 2**16
FAILURES = 2
NOT_TRIED = "NOT_TRIED"
TOLERANCE = Fraction(1, 10**5)
HAIR = 1 + Fraction(1, 2**20)

Claims = Callable[[int], tuple[Fraction, ...]]
Reached = Callable[[int], Fraction]


@cache
def attained(n: int) -> Fraction:
    """What the witness of N gradients loses in fp32, divided by N and added from left to right, exactly."""
    from gradproof.rounding.accumulation import Setting, error_of
    from gradproof.rounding.bound import witness

    return error_of(Setting(n), witness(Setting(n)))


def sharp_claims(n: int) -> tuple[Fraction, ...]:
    """A hair above what is attained (underflow is not), four times that, and the contract's tolerance."""
    return _rising(attained(n) * HAIR, n)


def free_claims(n: int) -> tuple[Fraction, ...]:
    """The least that free factors can prove, four times that, and the contract's tolerance."""
    return _rising(claims.free_worst(n), n)


def _rising(least: Fraction, n: int) -> tuple[Fraction, ...]:
    return tuple(sorted({least, 4 * least} | ({TOLERANCE} if least < TOLERANCE else set())))


@dataclass(frozen=True)
class Tool:
    """`ask(n, ...)`: with `claims` also a claim and the limit. `covers`: the largest N = 2^k of one measurement."""

    name: str
    ask: Measured
    more: tuple[Any, ...] = ()
    claims: Claims | None = None
    imports: tuple[str, ...] = ()
    covers: int = 0


SMT = (
    "gradproof.arith.smt",
    "gradproof.execution.methods.harness",
    "symbolic.accumulation.loop",
    "symbolic.stubs.d3_grid",
)
CHAIN = ("gradproof.rounding.bound", "gradproof.rounding.lemma_store")

TOOLS: tuple[Tool, ...] = (
    Tool("Gappa, g / N rounded", gappa.ask, ("divide",)),
    Tool("Gappa, terms |x| <= 1/N", gappa.ask, ("none",)),
    Tool("Z3, naive IEEE terms", claims.smt, ("bit_precise",), sharp_claims, SMT),
    Tool("Z3, free factors 1 + d", claims.free, (), free_claims, SMT[:1]),
    Tool("CrossHair, plain loop", claims.crosshair, (), sharp_claims, ("crosshair.core_and_libs",)),
    Tool("gradproof stub_float", claims.smt, ("stub_float",), sharp_claims, SMT),
    Tool("gradproof linear chain", claims.chain, (), None, CHAIN),
    Tool("gradproof induction", claims.induction, (), None, (*SMT, "symbolic.accumulation.rounding_all"), 2**24),
)


@dataclass
class Row:
    """A tool's answers by N, and the largest N = 2^k that it proved within the limit (0: none)."""

    tool: str
    answers: dict[int, Said] = field(default_factory=dict)
    largest: int = 0

    def unsound(self) -> list[int]:
        """The N at which its bound is below an error that an input attains."""
        return [n for n, said in self.answers.items() if said.word == UNSOUND]


def judged(said: Said, reached: Fraction) -> Said:
    """UNSOUND in place of HOLDS where the bound is below what is attained, or where there is no bound."""
    if said.word != HOLDS:
        return replace(said, bound=None)
    if said.bound is None or said.bound < reached:
        given = "no bound" if said.bound is None else f"{float(said.bound):.6g}"
        return replace(said, word=UNSOUND, reason=f"{given}, and an input loses {float(reached):.6g}")
    return said


def measured(tool: Tool, n: int, limit: float, reached: Reached = attained) -> Said:
    """A tool at one N: the first claim that is not left open, or its bound. Each claim has a process and the limit."""
    if tool.claims is None:
        return judged(timed(tool.ask, (n, *tool.more), limit, tool.imports), reached(n))
    failed: list[Said] = []
    for claim in tool.claims(n):
        said = _asked(tool, n, claim, limit, reached)
        if said.word == HOLDS:
            false = _asked(tool, n, reached(n) / HAIR, limit, reached)
            return false if false.word == UNSOUND else said
        failed.append(said)
        if said.word in (UNSOUND, NOT_RUN):
            return said
    return failed[0]


def _asked(tool: Tool, n: int, claim: Fraction, limit: float, reached: Reached) -> Said:
    return judged(timed(tool.ask, (n, claim, limit, *tool.more), limit, tool.imports), reached(n))


def row_of(tool: Tool, sizes: Sequence[int], limit: float, reached: Reached = attained) -> Row:
    """A tool at every N of a rising list. After two failures in a row the larger ones are not tried."""
    row, failed = Row(tool.name), 0
    for n in sizes:
        if failed >= FAILURES:
            row.answers[n] = Said(NOT_TRIED, reason=f"nothing proved at {FAILURES} smaller N")
            continue
        said = row.answers[n] = measured(tool, n, limit, reached)
        if said.word == NOT_RUN:
            return Row(tool.name, dict.fromkeys(sizes, said))
        failed = 0 if said.word == HOLDS else failed + 1
    row.largest = _largest(tool, row, limit, reached)
    return row


def _within(said: Said, limit: float) -> bool:
    return said.word == HOLDS and said.seconds <= limit


def _largest(tool: Tool, row: Row, limit: float, reached: Reached) -> int:
    """Doubled from the largest proved N of the list, until one is not proved within the limit."""
    best = max((n for n, said in row.answers.items() if _within(said, limit)), default=0)
    if tool.covers and best:
        return tool.covers
    n = 2 * best
    while best and n <= MOST and n not in row.answers:
        said = row.answers[n] = measured(tool, n, limit, reached)
        if not _within(said, limit):
            break
        best, n = n, 2 * n
    return best


def unsound(rows: Iterable[Row]) -> list[str]:
    """One line for each bound that is wrong."""
    return [f"{row.tool} at N = {n}: {row.answers[n].reason}" for row in rows for n in row.unsound()]


def side_by_side(tools: Iterable[Tool], sizes: Sequence[int], limit: float) -> list[Row]:
    """Every tool, one measurement at a time."""
    return [row_of(tool, sizes, limit) for tool in tools]
