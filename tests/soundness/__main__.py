"""Every step through the oracle and through gradproof: `python -m tests.soundness`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.soundness.steps import MODULES, steps_of
from tests.soundness.table import cells, counts, documented, markdown, row_of


def main(words: Sequence[str] | None = None) -> int:
    """The command; 0 only when every label is confirmed and no answer is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.soundness", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", default=(), metavar="STEP", help="steps or classes; others keep their rows"
    )
    parser.add_argument("--out", type=Path, help="write the table here")
    given = parser.parse_args(words)
    rows: list[list[str]] = []
    bad = 0
    for step in steps_of(*MODULES):
        if given.only and not {step.name, step.group} & set(given.only):
            rows += [documented()[step.name]] if step.name in documented() else []
            continue
        row = row_of(step)
        rows.append(cells(row))
        wrong = row.found.contradicts(step)
        kind, where = row.fault
        bad += bool(wrong or kind)
        words = f"{step.name} ({step.group}; {step.words}): {row.answer.verdict} {kind} {where} {wrong}"
        print(words.rstrip(), flush=True)
    print("\n".join(counts(rows)))
    if given.out is not None:
        given.out.write_text(markdown(rows), encoding="utf-8")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
