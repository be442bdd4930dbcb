"""`make bench`: time per proof, how far each strategy reaches, and what others do with the same claim.

Every measurement runs in a process of its own and is killed at its limit. Timings on a shared machine are noisy:
what counts is the comparison within one run. Nothing here is a test, and nothing is asserted.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gradproof.core import Kind
from gradproof.runner import Worker
from gradproof.session import Options, Session

LIMIT = 10.0
SIDES = (2, 4, 8, 64, 256)
EPSILON = Fraction(1, 10**5)


def full_sum(k: Any, loop: Any) -> None:
    """GA-EQ-001 for one N: stubbed floats or reals, by the kit's strategy."""
    from gradproof.arith import exact
    from models.accumulation import Config
    from symbolic.accumulation import mean, one_window

    n = k.bound("micro_batches")
    grads = k.floats("g", n, "fp32", -1, 1)
    record = one_window(k, loop, [grads], Config(n))
    k.check("GA-EQ-001", abs(exact(record.updates[0][0]) - mean(grads)) <= EPSILON, "")


def full_sum_in_ieee(k: Any, loop: Any) -> None:
    """The same in the solver's IEEE theory: the reference mean is taken in binary64."""
    from gradproof.arith import round_to
    from models.accumulation import Config
    from symbolic.accumulation import one_window

    n = k.bound("micro_batches")
    grads = k.floats("g", n, "fp32", -1, 1)
    record = one_window(k, loop, [grads], Config(n))
    wide = [round_to(g, "fp64") for g in grads]
    mean = sum(wide[1:], wide[0]) / n
    error = abs(round_to(record.updates[0][0], "fp64") - mean)
    k.check("GA-EQ-001", error <= float(EPSILON), "")


def smt(strategy: str, n: int) -> str:
    """Our explorer on the reference loop, without its controls."""
    from gradproof.core import Bound, Check, Kind, Layer
    from gradproof.explore import Explorer, Limits
    from gradproof.kit import SymbolicKit
    from models.accumulation import Accumulation
    from symbolic.stubs import d3_grid

    bounds = (Bound("micro_batches", n, "measured"),)
    check = Check("bench", Kind.SMT, Layer.SMT, ("GA-EQ-001",), "", "", strategy=strategy, bounds=bounds)
    limits = Limits(64, 64, LIMIT, time.monotonic() + LIMIT)
    explorer = Explorer(limits, d3_grid if strategy == "stub_float" else None)
    kit = SymbolicKit(check, explorer)
    body = full_sum_in_ieee if strategy == "bit_precise" else full_sum
    result = explorer.run(lambda: body(kit, Accumulation()))
    if result.stopped is not None:
        return result.stopped.outcome
    return "REFUTED" if result.violation is not None else "HOLDS"


def crosshair(n: int) -> str:
    """CrossHair on the plain loop with Python floats."""
    from crosshair.core import run_checkables
    from crosshair.core_and_libs import analyze_function
    from crosshair.options import AnalysisKind, AnalysisOptionSet

    names = ", ".join(f"g{i}" for i in range(n))
    text = f'''
def plain({", ".join(f"g{i}: float" for i in range(n))}) -> bool:
    """
    pre: all(-1.0 <= g <= 1.0 for g in ({names},))
    post: _
    """
    total = 0.0
    for g in ({names},):
        total += g / {n}
    return abs(total - sum(({names},)) / {n}) <= 1e-5
'''
    space: dict[str, Any] = {}
    path = Path(tempfile.mkdtemp()) / "plain.py"  # CrossHair reads the source again
    path.write_text(text)
    exec(compile(text, str(path), "exec"), space)
    options = AnalysisOptionSet(analysis_kind=[AnalysisKind.PEP316], report_all=True, per_condition_timeout=LIMIT)
    states = [m.state.name for m in run_checkables(analyze_function(space["plain"], options))]
    return ", ".join(states) or "nothing said"


def _child(pipe: Any, function: Callable[..., str], args: tuple[Any, ...]) -> None:
    began = time.monotonic()
    said = function(*args)
    pipe.send((said, time.monotonic() - began))


def timed(function: Callable[..., str], *args: Any) -> tuple[str, float]:
    """(what it said, seconds); killed a second after the limit."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(there, function, args))
    process.start()
    there.close()
    try:
        return here.recv() if here.poll(LIMIT + 5) else ("TIMEOUT", LIMIT)
    except EOFError:
        return "CRASHED", 0.0
    finally:
        process.kill()
        process.join()


def reach(strategy: str) -> tuple[int, float, str]:
    """Largest N = 2^k that is proved within the limit, its seconds, and what came at twice that."""
    best, seconds, n = 0, 0.0, 1
    while n <= 65536:
        said, took = timed(smt, strategy, n)
        if said != "HOLDS" or took > LIMIT:
            return best, seconds, f"{said if said != 'HOLDS' else 'too slow'} at N = {n}"
        best, seconds, n = n, took, 2 * n
    return best, seconds, "not tried"


def harnesses(console: Console) -> list[dict[str, Any]]:
    """Seconds of every proof with its controls, each in a worker of its own, one at a time, nothing cached."""
    session = Session(Options())
    table = Table("check", "strategy", "outcome", "seconds", "solver queries", "controls", title="Time per harness")
    rows = []
    for check in session.selected((Kind.STUB, Kind.SMT, Kind.CROSSHAIR)):
        evidence = Worker(check, session.workspace, check.time_limit).run()
        finding = evidence["finding"]
        row = {
            "check": check.id,
            "strategy": check.strategy,
            "outcome": finding["outcome"],
            "seconds": round(evidence["seconds"], 2),
            "queries": finding["stats"].get("queries"),
            "controls": len(finding["controls"]),
        }
        rows.append(row)
        table.add_row(*("-" if v is None else str(v) for v in row.values()))
    console.print(table)
    return rows


def reaches(console: Console) -> list[dict[str, Any]]:
    """How far each strategy gets with GA-EQ-001 (fp32, 1e-5) within the limit."""
    table = Table("strategy", "N proved", "seconds", "then", title=f"Largest N = 2^k proved within {LIMIT:g} s")
    rows = []
    for strategy in ("exhaustive", "stub_float", "bit_precise"):
        n, seconds, then = reach(strategy)
        rows.append({"strategy": strategy, "n": n, "seconds": round(seconds, 2), "then": then})
        table.add_row(strategy, str(n) if n else "none", f"{seconds:.2f}", then)
    console.print(table)
    return rows


def side_by_side(console: Console) -> list[dict[str, Any]]:
    """The same obligation in three ways."""
    ways: list[tuple[str, Callable[..., str], tuple[Any, ...]]] = [
        ("naive IEEE terms in Z3", smt, ("bit_precise",)),
        ("CrossHair on the plain float loop", crosshair, ()),
        ("stub_float (half an ulp a binade)", smt, ("stub_float",)),
    ]
    table = Table("method", *(f"N={n}" for n in SIDES), title=f"GA-EQ-001 in fp32, |g| <= 1, 1e-5, {LIMIT:g} s each")
    rows = []
    for name, function, args in ways:
        said = {n: timed(function, *args, n) for n in SIDES}
        rows.append({"method": name, "answers": {n: [word, round(took, 2)] for n, (word, took) in said.items()}})
        table.add_row(name, *(f"{word} {took:.2f} s" for word, took in said.values()))
    console.print(table)
    return rows


def main() -> None:
    """Print the three tables and write reports/bench.json."""
    console = Console()
    result = {"time_per_harness": harnesses(console), "reach": reaches(console), "side_by_side": side_by_side(console)}
    path = Path("reports") / "bench.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    console.print(f"wrote {path}")


if __name__ == "__main__":
    main()
