"""The sweep as a Markdown page: counts, the correct loops, the matrix of bugs by loops, and what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tests.loops.bugs import BUGS
from tests.loops.catalogue import LOOPS, UNPROVED
from tests.loops.mutants import EXCLUDED, MUTANTS
from tests.loops.verdicts import SIGN, WANTED, Row

_HEAD = """# Mutants of the example loops

Written by `python -m tests.loops.sweep --out docs/mutants.md`; do not edit.

Each loop of `tests/loops` goes through the verifier as it stands, and once for every bug that it can be given. The bugs
are ones that somebody shipped; the thread is named in the last table. A mutant counts as found when the obligation that
it breaks is refuted at the line that is wrong. A crash, a time-out and an unknown are no find.
"""
_ORDER = [name for name in SIGN]


def markdown(rows: Sequence[Row]) -> str:
    """The page."""
    parts = [_HEAD, *_counts(rows), *_correct(rows), *_matrix(rows), *_open(rows), *_bugs()]
    return "\n".join(parts).rstrip() + "\n"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for line in lines:
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |"
    yield ""


def _counts(rows: Sequence[Row]) -> Iterator[str]:
    yield "## Counts\n"
    for mutant, words in ((False, "correct loops and configurations"), (True, "mutants")):
        counts = Counter(row.verdict for row in rows if row.mutant is mutant)
        listed = ", ".join(f"{counts[name]} {name}" for name in _ORDER if counts[name])
        yield f"- {sum(counts.values())} {words}: {listed or 'none was run'}"
    made = {(row.name, row.loop) for row in rows}
    lost = sum((mutant.name, mutant.loop) not in made for mutant in MUTANTS)
    yield f"- {lost} mutants were not run" if lost else "- every mutant was run"
    yield f"- {len(EXCLUDED)} cells of bugs by loops have no mutant, for the reasons in the last table\n"


def _correct(rows: Sequence[Row]) -> Iterator[str]:
    yield "## Correct loops\n"
    right = [row for row in rows if not row.mutant]
    lines = [(row.loop, row.config, row.verdict, UNPROVED.get((row.loop, row.config), "")) for row in right]
    yield from _table(("loop", "configuration", "verdict", "why it is not proved"), lines)


def _matrix(rows: Sequence[Row]) -> Iterator[str]:
    yield "## Matrix\n"
    yield "`+` refuted at the right line; `line` at another line; `obligation` another obligation alone; `?` no answer;"
    yield "an empty cell has no mutant.\n"
    cells = {(mutant.name, mutant.loop): "not run" for mutant in MUTANTS}
    cells |= {(row.name, row.loop): row.sign for row in rows if row.mutant}
    loops = [name for name in LOOPS if any(mutant.loop == name for mutant in MUTANTS)]
    lines = [(name, *(cells.get((name, loop), "") for loop in loops)) for name in BUGS]
    yield from _table(("bug", *(f"`{name}`" for name in loops)), lines)


def _open(rows: Sequence[Row]) -> Iterator[str]:
    yield "## Not as it should be\n"
    bad = [row for row in rows if row.verdict not in WANTED]
    if not bad:
        yield "Nothing.\n"
    for row in bad:
        yield f"- `{row.loop}`, `{row.name}` ({row.config}): **{row.verdict}**; expected {row.expected}"
        for found in row.found:
            yield f"  - {found['outcome']} {found['obligation']} at `{found['text']}`: {found['reason']}"
        if row.error:
            yield f"  - {row.error}"
    yield ""


def _bugs() -> Iterator[str]:
    yield "## The bugs, and why a loop does not have one\n"
    lines = []
    for name, bug in BUGS.items():
        reasons = Counter(
            reason for (bug_, loop), reason in EXCLUDED.items() if bug_ == name and not LOOPS[loop].control
        )
        listed = "; ".join(f"{count} without: {reason}" for reason, count in sorted(reasons.items()))
        lines.append((f"`{name}`", bug.obligation, bug.reference, listed or "every loop has it"))
    yield from _table(("bug", "breaks", "reported in", "loops without it"), lines)
