"""`make bench`: every tool with the same question, our own rows, time per proof; also in reports/bench.json.

Timings on a shared machine are noisy: what counts is the comparison within one run. No time is asserted; the exit code
is 1 where a bound lies below an error that an input attains.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from gradproof.core.files import replace_whole
from tests.bench import harnesses, rungs, sides, tables

WIDTH = 150


def parsed(arguments: Sequence[str]) -> Namespace:
    """The options; an unknown tool or an N below 2 ends with exit code 2."""
    parser = ArgumentParser(prog="tests.bench", description=__doc__)
    names = [tool.name for tool in sides.TOOLS]
    parser.add_argument("--tool", action="append", metavar="WORD", help="only tools with this word in their name")
    parser.add_argument("--sizes", nargs="+", type=int, default=list(sides.SIZES), metavar="N")
    parser.add_argument("--limit", type=float, default=sides.LIMIT, help="seconds for one claim")
    parser.add_argument("--lemmas", action="store_true", help="the step contracts from nothing as well: minutes")
    parser.add_argument("--only-sides", action="store_true", help="the comparison alone")
    parser.add_argument("--out", type=Path, default=Path("reports") / "bench.json")
    chosen = parser.parse_args(arguments)
    chosen.tools = [t for t in sides.TOOLS if not chosen.tool or any(w in t.name for w in chosen.tool)]
    if not chosen.tools:
        parser.error(f"no such tool; known: {', '.join(names)}")
    if any(n < 2 or n & (n - 1) for n in chosen.sizes):
        parser.error("sizes are powers of two, 2 or more")
    chosen.sizes = sorted(set(chosen.sizes))
    return chosen


def own_rows(console: Console, asked: bool) -> tuple[dict[str, Any], list[str]]:
    """Rung 2 at large N, against Gappa, and the lemmas; with what is wrong among them."""
    built = rungs.built()
    theirs = rungs.gappa_at()
    against = rungs.against_gappa(built[rungs.AGAINST], theirs)
    lemmas = rungs.lemmas(asked)
    for line in tables.rung_lines(built, against, lemmas):
        console.print(line, highlight=False)
    result = {"built_and_checked": {str(n): tables.said_json(said) for n, said in built.items()}}
    result |= {"against_gappa": against, "lemmas": tables.said_json(lemmas)}
    return result, tables.wrong({**built, **({rungs.AGAINST: theirs} if theirs.bound is not None else {})})


def main(arguments: Sequence[str]) -> int:
    """Measure, print, write; 1 where a bound is wrong, else 0."""
    chosen = parsed(arguments)
    console = Console(width=WIDTH)
    rows = sides.side_by_side(chosen.tools, chosen.sizes, chosen.limit)
    console.print(tables.side_table(rows, chosen.sizes, sides.attained, chosen.limit))
    wrong = sides.unsound(rows)
    result: dict[str, Any] = {"limit": chosen.limit, "side_by_side": tables.rows_json(rows, sides.attained)}
    if not chosen.only_sides:
        own, more = own_rows(console, chosen.lemmas)
        wrong += more
        proofs = harnesses.harnesses()
        console.print(tables.harness_table(proofs))
        result |= {**own, "time_per_harness": proofs}
    result["unsound"] = wrong
    replace_whole(chosen.out, json.dumps(result, indent=1) + "\n")
    console.print(f"wrote {chosen.out}")
    for line in wrong:
        console.print(f"UNSOUND: {line}", style="bold red", highlight=False)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
