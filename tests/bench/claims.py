"""The same question to tools that decide a claim, |error| <= B, and do not compute a bound: GA-EQ-001 in fp32.

Each takes N and B and says HOLDS with the bound that it proved, or another word. In Z3 and CrossHair the reference
mean is a binary64 sum, which errs by less than (N + 4) 2^-53 itself: that much is taken off B in the claim.
"""

from __future__ import annotations

import math
import tempfile
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

from tests.bench.measure import HOLDS, Said

U = Fraction(1, 2**24)
NOT_PROVED = "NOT_PROVED"

SUBJECT = '''
def fl(x: float) -> float:
    """x to 24 bits (Veltkamp)."""
    c = x * 536870913.0
    return c - (c - x)


def plain({arguments}) -> bool:
    """
    pre: all(-1.0 <= g <= 1.0 and fl(g) == g for g in ({names},))
    post: _
    """
    total = fl(g0 / {n})
    for g in ({rest},):
        total = fl(total + fl(g / {n}))
    return abs(total - sum(({names},)) / {n}) <= {claim!r}
'''


def in_binary64(claim: Fraction, n: int) -> float:
    """The largest float that the error against a binary64 mean may be compared with for the claim to follow."""
    least = float(claim - Fraction(n + 4, 2**53))
    return least if Fraction(least) <= claim - Fraction(n + 4, 2**53) else math.nextafter(least, -math.inf)


def _stubbed(k: Any, loop: Any, claim: Fraction) -> None:
    from gradproof.arith import exact
    from models.accumulation.loop import Config
    from symbolic.accumulation.loop import mean, one_window

    n = k.bound("micro_batches")
    grads = k.floats("g", n, "fp32", -1, 1)
    record = one_window(k, loop, [grads], Config(n))
    k.check("GA-EQ-001", abs(exact(record.updates[0][0]) - mean(grads)) <= claim, "")


def _in_ieee(k: Any, loop: Any, claim: Fraction) -> None:
    from gradproof.arith import round_to
    from models.accumulation.loop import Config
    from symbolic.accumulation.loop import one_window

    n = k.bound("micro_batches")
    grads = k.floats("g", n, "fp32", -1, 1)
    record = one_window(k, loop, [grads], Config(n))
    wide = [round_to(g, "fp64") for g in grads]
    error = abs(round_to(record.updates[0][0], "fp64") - sum(wide[1:], wide[0]) / n)
    k.check("GA-EQ-001", error <= in_binary64(claim, n), "")


def _explored(strategy: str, name: str, value: int, limit: float, body: Any) -> Any:
    """A harness body on our explorer, without its controls."""
    from gradproof.core.check import Bound, Check
    from gradproof.core.outcome import Kind, Layer
    from gradproof.execution.methods.explore import Explorer, Limits
    from gradproof.execution.methods.harness import SymbolicKit
    from symbolic.stubs import d3_grid

    bounds = (Bound(name, value, "measured"),)
    check = Check("bench", Kind.SMT, Layer.SMT, ("GA-EQ-001",), "", "", strategy=strategy, bounds=bounds)
    limits = Limits(64, 64, limit, time.monotonic() + limit)
    explorer = Explorer(limits, d3_grid if strategy == "stub_float" else None)
    kit = SymbolicKit(check, explorer)
    return explorer.run(lambda: body(kit))


def smt(n: int, claim: Fraction, limit: float, strategy: str) -> Said:
    """Our explorer on the reference loop: stub_float, or naive IEEE terms (bit_precise). Raises ValueError."""
    from models.accumulation.loop import Accumulation

    bodies = {"stub_float": _stubbed, "bit_precise": _in_ieee}
    if strategy not in bodies:
        raise ValueError(f"no strategy {strategy!r}; known: {', '.join(bodies)}")
    body = bodies[strategy]
    result = _explored(strategy, "micro_batches", n, limit, lambda k: body(k, Accumulation(), claim))
    if result.stopped is not None:
        return Said(result.stopped.outcome, reason=result.stopped.reason[:120])
    if result.violation is not None:
        return Said(NOT_PROVED if strategy == "stub_float" else "REFUTED", reason="a counterexample to the claim")
    checked = result.checked and not result.dead
    return Said(HOLDS, claim) if checked else Said("VACUOUS", reason="nothing was checked")


def free_worst(n: int) -> Fraction:
    """The worst that free factors allow, all of them 1 + u and all gradients 1: the least that they can prove."""
    roundings = [n] + [n - i + 2 for i in range(2, n + 1)]
    return sum(((1 + U) ** k - 1 for k in roundings), Fraction(0)) / n


def free(n: int, claim: Fraction, limit: float) -> Said:
    """Every operation times a factor 1 + d of its own, |d| <= u, in nonlinear real arithmetic."""
    from gradproof.arith import smt

    facts: list[smt.Term] = []

    def within(name: str, most: Fraction) -> smt.Term:
        x = smt.real(name)
        facts.extend([x <= smt.number(most), -x <= smt.number(most)])
        return x

    grads = [within(f"g{i}", Fraction(1)) for i in range(n)]
    scaled = [g / smt.number(n) * (1 + within(f"q{i}", U)) for i, g in enumerate(grads)]
    total, mean = scaled[0], sum(grads[1:], grads[0]) / smt.number(n)
    for i, x in enumerate(scaled[1:], 1):
        total = (total + x) * (1 + within(f"d{i}", U))
    beyond = smt.either([total - mean > smt.number(claim), mean - total > smt.number(claim)])
    reply = smt.solve([*facts, beyond], {}, limit)
    if reply.answer is smt.SolverAnswer.UNSAT:
        return Said(HOLDS, claim)
    if reply.answer is smt.SolverAnswer.SAT:
        return Said(NOT_PROVED, reason="the factors allow more")
    return Said(str(reply.answer).upper(), reason=reply.reason)


def crosshair(n: int, claim: Fraction, limit: float) -> Said:
    """CrossHair on a plain loop of Python floats, each operation rounded to 24 bits."""
    from crosshair.core import run_checkables
    from crosshair.core_and_libs import analyze_function
    from crosshair.options import AnalysisKind, AnalysisOptionSet

    space: dict[str, Any] = {}
    options = AnalysisOptionSet(
        analysis_kind=[AnalysisKind.PEP316], report_all=True, per_condition_timeout=max(limit - 1.0, 0.1)
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plain.py"  # CrossHair reads the source again
        path.write_text(subject_text(n, claim), encoding="utf-8")
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)
        states = {m.state.name for m in run_checkables(analyze_function(space["plain"], options))}
    if states == {"CONFIRMED"}:
        return Said(HOLDS, claim)
    word = "REFUTED" if "POST_FAIL" in states else "UNKNOWN"
    return Said(word, reason=", ".join(sorted(states)) or "nothing said")


def subject_text(n: int, claim: Fraction) -> str:
    """The Python module that CrossHair is given."""
    names = [f"g{i}" for i in range(n)]
    return SUBJECT.format(
        arguments=", ".join(f"{g}: float" for g in names),
        names=", ".join(names),
        rest=", ".join(names[1:]) or "",
        n=n,
        claim=in_binary64(claim, n),
    )


def induction(n: int) -> Said:
    """KANI-GA-024, which has no N: u X (N^2 - 1) / 3 for every N = 2^k; here X = 1 / N."""
    from models.accumulation.rounding_steps import Step
    from symbolic.accumulation.rounding_all import sharp

    result = _explored("exhaustive", "transitions", 1, 60.0, lambda k: sharp(k, Step()))
    if result.stopped is not None:
        return Said(result.stopped.outcome, reason=result.stopped.reason[:120])
    if result.violation is not None or not result.asked["step"] or result.dead or not all(result.covers.values()):
        return Said(NOT_PROVED, reason="the invariant is not inductive")
    return Said(HOLDS, U * Fraction(1, n) * (n * n - 1) / 3)


def chain(n: int) -> Said:
    """Rung 2: the certificate of the linear chain is built and checked, and its contracts are looked up."""
    from gradproof.rounding.accumulation import Setting
    from gradproof.rounding.bound import proved

    bound, certificate, _ = proved(Setting(n))
    return Said(HOLDS, bound) if certificate else Said(NOT_PROVED, reason="no certificate")
