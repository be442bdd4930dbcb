"""The rounding study: `python -m gradproof.rounding.study --out reports/rounding.json [--most N]`, or `make rounding`.

For each form of accumulation, order and tolerance of the contract: true up to which N, false from which, over N = 2^k;
and both sides of the bound over N. Format `gradproof-rounding/1`, `reports/rounding.schema.json`. The document is
written whole or not at all, after it was read as the report reads it. Exit code 0: written; 2: a mistake in the call;
4: a step contract is not proved.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradproof import __version__
from gradproof.core import EXIT_CODE, Exit, GradproofError

CLAUSE = "GA-EQ-001"
DTYPES = ("fp32", "fp16", "bf16")


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m gradproof.rounding.study", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="write the JSON document here")
    parser.add_argument("--most", type=int, default=4096, help="the largest N, a power of two (default 4096)")
    return parser.parse_args(arguments)


def tolerances() -> dict[str, str]:
    """The tolerances that the contract states of the accumulated gradient, by dtype. Raises GradproofError GP218."""
    from gradproof.contract import load
    from gradproof.workspace import Workspace, reference

    root = reference()
    for path in [] if root is None else Workspace(root, root / "reports").contracts():
        stated = [o for o in load(path).obligations if o.id == CLAUSE]
        found = {t.dtype: t.value for o in stated for t in o.tolerances if t.dtype in DTYPES}
        if len(found) == len(DTYPES):
            return found
    wanted = f"{CLAUSE} with a tolerance for {', '.join(DTYPES)}"
    raise GradproofError("GP218", "no contract that states the tolerances", wanted, "run it in a whole checkout")


def document(most: int, stated: Mapping[str, str], say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """The study, as JSON values. Raises GradproofError GP411 for an N that is no power of two, and LemmaRefused."""
    from gradproof.documents import ROUNDING
    from gradproof.evidence import now
    from gradproof.rounding.answer import ASSUMED
    from gradproof.rounding.sources import sources
    from gradproof.rounding.study_rows import questions, series, threshold

    if most < 1 or most & (most - 1):
        raise GradproofError("GP411", f"--most {most}", "a power of two", "such as 4096 or 65536")
    began, digests = time.monotonic(), sources()
    thresholds, drawn, contracts = [], [], set[str]()
    for asked in questions(stated):
        thresholds.append(threshold(asked, most))
        say(told(thresholds[-1]))
    for buffer in DTYPES:
        made, rests = series(buffer, most)
        drawn.append(made)
        contracts |= rests
        say(f"{buffer}: {len(made['points'])} points")
    if sources() != digests:
        raise GradproofError("GP219", "a source file changed under the study", "files that stay", "run it again")
    return {
        "schema": ROUNDING, "gradproof": __version__, "made_at": now(), "seconds": round(time.monotonic() - began, 1),
        "most": most, "magnitude": "1", "scale": "divide", "assumes": list(ASSUMED), "contracts": sorted(contracts),
        "thresholds": thresholds, "series": drawn, "sources": digests,
    }  # fmt: skip


def told(row: Mapping[str, Any]) -> str:
    """One row of the table on a line."""
    sides = [f"{row[k]['n']} ({row[k]['by']})" if row[k] else "none" for k in ("true", "false")]
    where = f"{row['gradients']} in {row['buffer']}, {row['order']}, {row['tolerance']}"
    return f"{where}: true up to {sides[0]}, undecided {row['undecided'] or 'none'}, false from {sides[1]}"


def write(path: Path, data: Mapping[str, Any]) -> None:
    """Write the document, whole or not at all. Raises GradproofError GP407, and ValueError for a wrong document."""
    import json

    from gradproof.cli.check import written
    from gradproof.documents import Rounding

    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    Rounding.model_validate_json(text)
    written(path, text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compute, write, and return the exit code."""
    from gradproof.cli.check import writable
    from gradproof.rounding.lemmas import LemmaRefused

    o = options(sys.argv[1:] if arguments is None else arguments)
    try:
        writable(o.out)
        data = document(o.most, tolerances(), lambda line: print(line, file=sys.stderr, flush=True))
        write(o.out, data)
    except GradproofError as error:
        print(error, file=sys.stderr)
        return EXIT_CODE[Exit.USAGE]
    except LemmaRefused as error:
        print(f"no study: a step contract is not proved: {error}", file=sys.stderr)
        return EXIT_CODE[Exit.OPEN]
    print(f"{o.out}: {len(data['thresholds'])} thresholds, {len(data['series'])} series, {data['seconds']} s")
    return EXIT_CODE[Exit.MET]


if __name__ == "__main__":
    sys.exit(main())
