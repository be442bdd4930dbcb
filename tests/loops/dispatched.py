"""Which ATen operators the loops of this folder really dispatch: `python -m tests.loops.dispatched [FILE]`.

The table counts distinct schemas on the tapes, after torch's own decomposition, of every loop that is installed.
"""

from __future__ import annotations

import importlib
import sys
from collections import defaultdict
from pathlib import Path

from gradproof.shadow.ops.rows import lookup
from gradproof.shadow.record.run import Run, record
from tests.loops.catalogue import LOOPS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "dispatched.md"
HEAD = """# Operators that the example loops dispatch

Written by `python -m tests.loops.dispatched`: the operators on the tapes of the loops in `tests/loops/`, as torch
dispatches them, distinct by overload. Each has a row in the [operator table](operators.md).

"""


def loops() -> list[str]:
    """Loops that one process can run, and the one that uses many layers and optimizers."""
    return [loop.name for loop in LOOPS.values() if loop.ranks == 1 and loop.available] + ["plain_zoo"]


def dispatched(names: list[str]) -> dict[str, list[str]]:
    """Operators by overload, each with the loops that dispatch it. Raises RuntimeError where a loop fails."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in names:
        made = record(importlib.import_module(f"tests.loops.{name}").train, Run(4, 2, 2))
        if made.error:
            raise RuntimeError(f"{name}: {made.error}")
        for op in sorted({entry.op for entry in made.tape.entries()}):
            found[op].append(name)
    return dict(sorted(found.items()))


def page(found: dict[str, list[str]]) -> str:
    """The table as Markdown."""
    missing = [op for op in found if lookup(op) is None]
    if missing:
        raise RuntimeError(f"no row for {', '.join(missing)}")
    rows = [
        f"| `{op}` | {len(names)} | {', '.join(names[:4])}{' ...' if len(names) > 4 else ''} |"
        for op, names in found.items()
    ]
    return f"{HEAD}{len(found)} operators.\n\n| operator | loops | such as |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def main(argv: list[str]) -> None:
    """Write the page."""
    target = Path(argv[0]) if argv else PAGE
    target.write_text(page(dispatched(loops())), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
