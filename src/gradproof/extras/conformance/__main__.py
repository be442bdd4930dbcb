"""Run the rows: `python -m gradproof.extras.conformance [--quick] [--device cpu|cuda] [--out FILE.json]`.

Exit code 0: some rows held, and none was refuted or crashed; 1 otherwise. Rows that this device cannot run are NOT_RUN.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradproof.extras.conformance.report import KernelResult

SECTIONS = ("elementwise", "reductions", "scatter", "moments", "matmul", "full_runs", "gradients", "special")
POWERS = tuple(2**k for k in range(1, 13))
DIVISORS = (3, 5, 6, 7)


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m gradproof.extras.conformance", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="10^5 random inputs a row instead of 10^7, small full runs"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, help="write the JSON document here")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="run these sections alone")
    parser.add_argument("--elements", type=int, help="elements of a full run (10^6, quick 10^4)")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def sections(o: argparse.Namespace, say: Callable[[KernelResult], Any]) -> Mapping[str, list[KernelResult]]:
    """The rows of every section asked for, in order; each is reported as it comes."""
    from gradproof.extras.conformance import accumulation, elementwise, matmul, reductions

    full, device, seed = not o.quick, o.device, o.seed
    elements = o.elements or (10**6 if full else 10**4)
    counts = (*POWERS, *DIVISORS, 100) if full else (2, 3, 8, 64)
    random = elementwise.FULL if full else elementwise.QUICK
    run: dict[str, Callable[[], Iterable[KernelResult]]] = {
        "elementwise": lambda: elementwise.all_rows(device, random, seed),
        "reductions": lambda: reductions.rows(device, full, seed),
        "scatter": lambda: matmul.scatter_rows(device, full, seed),
        "moments": lambda: reductions.adamw_rows(device, full, seed),
        "matmul": lambda: matmul.rows(device, full, seed),
        "full_runs": lambda: accumulation.all_runs(device, counts, elements, seed),
        "gradients": lambda: accumulation.real_runs(device, (2, 8, 24, 256) if full else (2, 3)),
        "special": lambda: matmul.special_rows(device, full),
    }
    found: dict[str, list[KernelResult]] = {name: [] for name in SECTIONS if not o.only or name in o.only}
    for name, rows in found.items():
        for result in run[name]():
            say(result)
            rows.append(result)
    return found


def closed_forms() -> dict[str, Any]:
    """What needs no device: x / N against x * fl(1/N), and where fp16 gradients survive and overflow."""
    from gradproof.rounding.edge_cases import SCALES, WINDOWS, comparison, reach_of_orders

    return {
        "reciprocal": [{**asdict(w), "share": w.share} for w in comparison(DIVISORS)],
        "fp16 reach": {f"S={s} N={n}": reach_of_orders(s, n) for s in SCALES for n in WINDOWS},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print one line a row, write the document, and return the exit code."""
    o = options(sys.argv[1:] if arguments is None else arguments)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts; deterministic products need it
    from gradproof.extras.conformance.report import ERROR, HOLDS, REFUTED, document, line, write

    found = sections(o, lambda r: print(line(r), flush=True))
    data = document(o.device, "quick" if o.quick else "full", found, seed=o.seed, **closed_forms())
    print(" ".join(f"{name}={count}" for name, count in data["summary"].items()))
    if o.out:
        write(o.out, data)
    summary = data["summary"]
    return int(not summary[HOLDS] or bool(summary[REFUTED] + summary[ERROR]))


if __name__ == "__main__":
    sys.exit(main())
