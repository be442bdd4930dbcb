"""The table of docs/soundness.md: every step, its label, the oracle's figures, and gradproof's answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gradproof.shadow.result import OBLIGATIONS
from tests.soundness.answers import (
    BESIDE,
    CRASH,
    FALSE_HOLDS,
    FALSE_REFUTED,
    PROVED,
    REFUTED,
    UNDECIDED,
    Answer,
    ask,
    fault,
)
from tests.soundness.kit import BLIND, RIGHT, WRONG, Step
from tests.soundness.oracle import Findings, weigh

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "soundness.md"
COLUMNS = tuple(name for name in OBLIGATIONS if name != "GA-SYNC-001")
COMMAND = "python -m tests.soundness --out docs/soundness.md"
LABEL, ANSWER = 2, 7
HEAD = (
    "# Steps that are right or wrong on purpose",
    "",
    f"Written by `{COMMAND}`; do not edit.",
    "",
    "Each step of `tests/soundness` has a label that was written by hand. An oracle confirms it with numbers. It",
    "compares gradients, weights and losses with a clean full batch and with a reference loop. The columns gradient,",
    "weights and loss hold the largest relative difference in float64. The column stale holds the largest change of a",
    "later window's gradient when the samples of the first window change and no weight moves. A blind step reads none",
    "of run's numbers, so that a comparison with itself says nothing about it.",
    "",
    "`watch` has scripts of its own, `tests/soundness/watched_*.py`: each wrong one names the obligations that do not",
    "hold of it, and none may be refuted that is right. `tests/unit/shadow_reading.py` has further steps for `check`.",
    "",
)


@dataclass(frozen=True, slots=True)
class Row:
    """A step, what the numbers show, and what gradproof says."""

    step: Step
    found: Findings
    answer: Answer

    @property
    def fault(self) -> tuple[str, str]:
        """What is wrong with the answer."""
        return fault(self.step, self.found, self.answer)


def row_of(step: Step) -> Row:
    """Weigh and ask."""
    return Row(step, weigh(step), ask(step))


def cells(row: Row) -> list[str]:
    """A row of the table."""
    figures = [
        f"{x:.0e}" if x else "0" for x in (row.found.gradient, row.found.weights, row.found.loss, row.found.stale)
    ]
    kind, where = row.fault
    outcomes = [row.answer.outcomes.get(name, "-") for name in COLUMNS]
    blame = f"**{kind}**" + (f": {where}" if kind != CRASH else "") if kind else ""
    return [f"`{row.step.name}`", row.step.group, row.step.words, *figures, row.answer.verdict, *outcomes, blame]


def counts(rows: Iterable[Sequence[str]]) -> list[str]:
    """How many of each kind, in sentences, from the cells of the rows."""
    made = list(rows)
    kinds = Counter(cell[-1].split("**")[1] for cell in made if cell[-1])
    lines = []
    for label in (RIGHT, WRONG, BLIND):
        verdicts = Counter(cell[ANSWER] for cell in made if cell[LABEL].startswith(label))
        words = ", ".join(f"{verdicts[v]} {v}" for v in (PROVED, REFUTED, UNDECIDED, CRASH) if verdicts[v])
        lines.append(f"- {verdicts.total()} {label} steps: {words}")
    lines.append(f"- {kinds[FALSE_HOLDS]} false HOLDS, {kinds[FALSE_REFUTED]} false REFUTED, {kinds[CRASH]} crashes")
    lines.append(f"- {kinds[BESIDE]} held beside: not green, but an obligation holds that the numbers show broken")
    return lines


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """The document, from the cells of the rows."""
    head = ["step", "class", "label", "gradient", "weights", "loss", "stale", "answer"]
    head += [name.removeprefix("GA-") for name in COLUMNS] + ["wrong answer"]
    table = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    table += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*HEAD, "## Counts", "", *counts(rows), "", "## Steps", "", *table]) + "\n"


@cache
def documented() -> dict[str, list[str]]:
    """The cells of each step's row in the document."""
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines() if DOCUMENT.exists() else []
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| `")]
    return {row[0].strip("`"): row for row in rows}
