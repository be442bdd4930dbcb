"""The table of docs/soundness.md: every step, its label, the oracle's figures, and gradproof's answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gradproof.shadow.result import OBLIGATIONS
from tests.soundness.answers import (
    BESIDE,
    CRASH,
    FALSE_HOLDS,
    FALSE_REFUTED,
    NAMED,
    PROVED,
    REFUTED,
    Answer,
    ask,
    fault,
)
from tests.soundness.kit import BLIND, MEETS, RIGHT, WRONG, Step
from tests.soundness.oracle import Findings, weigh

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "soundness.md"
COLUMNS = tuple(name for name in OBLIGATIONS if name != "GA-SYNC-001")
COMMAND = "python -m tests.soundness --out docs/soundness.md"
LABEL, ANSWER = 2, 7
WANTED = {RIGHT: PROVED, WRONG: REFUTED, MEETS: NAMED}
FAULTS = (FALSE_HOLDS, FALSE_REFUTED)
MOST, MOST_OF_A_CLASS = 0.05, 0.20
"""The shares of all steps, and of a class, that may be undecided."""
HEAD = (
    "# Steps that are right or wrong on purpose",
    "",
    f"Written by `{COMMAND}`, which `make soundness` calls; do not edit.",
    "",
    "`tests/soundness` has steps that are written by hand, and steps that are generated. A generated one is put",
    "together from choices of model, loss, share, accumulation, scale, clip, optimizer, schedule, report and dtype. A",
    "wrong one has one bug of a list. The seeds are made of the commit. An oracle confirms each label with numbers: it",
    "compares gradients, weights, rates and losses with a clean full batch and with a reference loop, in float64 and",
    "in the run's own dtype. Sums below fp32 are compared as if they had its width: their own is what GA-INV-004 is",
    "about. A generated step is weighed with several seeds and magnitudes. It is drawn anew where its choices do not",
    "go together, and where the numbers do not say for certain what its label says.",
    "",
    "Right steps should be proved and wrong ones refuted. Where samples meet, in batch statistics, the answer is",
    "OUTSIDE, and names the line. A blind step reads none of run's numbers, so that a comparison with itself says",
    "nothing. The columns gradient, weights and loss hold the largest relative difference in float64. The column stale",
    "holds the largest change of a later window's gradient when the samples of the first window change and no weight",
    "moves.",
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


@dataclass(frozen=True, slots=True)
class Listed:
    """What the table says of a step.

    Of a generated one its `number`, else -1, its seed, and `before`: why draws were thrown out.
    """

    name: str
    kind: str
    label: str
    cells: list[str]
    verdict: str
    reason: str
    fault: tuple[str, str]
    contradiction: str
    number: int = -1
    bug: str = ""
    seed: str = ""
    before: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Whether the answer is the one that the label asks for."""
        return self.verdict == WANTED.get(self.label, self.verdict) and not self.fault[0]

    @property
    def open(self) -> bool:
        """Whether an answer was asked for, and none was given."""
        return self.label != BLIND and not self.good and not self.fault[0]


def listed(row: Row, number: int = -1, seed: str = "", before: tuple[str, ...] = ()) -> Listed:
    """What the table says of a step."""
    step, answer = row.step, row.answer
    reason = "" if answer.verdict == WANTED.get(step.label) else answer.why(step.broken)
    return Listed(
        step.name, step.kind, step.label, cells(row), answer.verdict, reason, row.fault, row.found.contradicts(step),
        number, step.bug, seed, before,
    )  # fmt: skip


def by_class(rows: Sequence[Listed]) -> list[str]:
    """A table: of each class, how many steps were decided."""
    head = (
        "class",
        "right",
        "proved",
        "wrong",
        "refuted",
        "samples meet",
        "named",
        "undecided",
        "%",
        *FAULTS,
    )
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for kind in (*sorted({row.kind for row in rows}), "all"):
        own = [row for row in rows if kind in (row.kind, "all")]
        pairs = [(len(of), sum(row.good for row in of)) for of in ([r for r in own if r.label == x] for x in WANTED)]
        figures = [n for pair in pairs for n in pair] + [sum(r.open for r in own), round(100 * share(own), 1)]
        figures += faults(own)
        lines.append(f"| {kind} | " + " | ".join(map(str, figures)) + " |")
    return lines


def of_seed(rows: Sequence[Listed], seed: str) -> list[Listed]:
    """The steps by hand, and those of one seed."""
    return [row for row in rows if row.number < 0 or row.seed == seed]


def by_seed(rows: Sequence[Listed]) -> list[str]:
    """A table: of each seed with the steps by hand, how many were decided."""
    head = ("seed", "generated", "by hand", "right", "wrong", "undecided", "%", "most of a class, %", *FAULTS)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for seed in dict.fromkeys(row.seed for row in rows if row.number >= 0):
        own = of_seed(rows, seed)
        most = max(share([row for row in own if row.kind == kind]) for kind in {row.kind for row in own})
        figures: list[object] = [sum(row.number >= 0 for row in own), sum(row.number < 0 for row in own)]
        figures += [sum(row.label == label for row in own) for label in (RIGHT, WRONG)]
        figures += [sum(row.open for row in own), round(100 * share(own), 1), round(100 * most, 1), *faults(own)]
        lines.append(f"| {seed} | " + " | ".join(map(str, figures)) + " |")
    return lines


def faults(rows: Sequence[Listed]) -> list[int]:
    """How many answers are wrong, by kind."""
    found = Counter(row.fault[0] for row in rows)
    return [found[FALSE_HOLDS] + found[BESIDE], found[FALSE_REFUTED]]


def share(rows: Sequence[Listed]) -> float:
    """The share of steps that are undecided, of those that an answer was asked for."""
    asked = [row for row in rows if row.label != BLIND]
    return sum(row.open for row in asked) / len(asked) if asked else 0.0


def missed(rows: Sequence[Listed]) -> list[str]:
    """The bars that are missed."""
    found = [f"{row.name}: {row.fault[0]} {row.fault[1]}" for row in rows if row.fault[0]]
    found += [f"{row.name}: {row.contradiction}" for row in rows if row.contradiction]
    found += [f"{row.name}: undecided without a reason" for row in rows if row.open and not row.reason]
    for kind in (*sorted({row.kind for row in rows}), ""):
        own = [row for row in rows if kind in (row.kind, "")]
        bar = MOST_OF_A_CLASS if kind else MOST
        if share(own) > bar:
            found.append(f"{share(own):.1%} of {kind or 'all'} are undecided, the bar is {bar:.0%}")
    return found


def undecided(rows: Sequence[Listed]) -> list[str]:
    """Each step that is undecided, with its reason."""
    found = []
    for row in rows:
        of, bug = f" of `{row.seed}`" if row.seed else "", f": {row.bug}" if row.bug else ""
        found += [f"- `{row.name}`{of} ({row.label}{bug}): {row.reason}"] if row.open else []
    return found


def markdown(rows: Sequence[Listed]) -> str:
    """The document."""
    head = ["step", "class", "label", "gradient", "weights", "loss", "stale", "answer"]
    head += [name.removeprefix("GA-") for name in COLUMNS] + ["wrong answer"]
    table = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    table += ["| " + " | ".join(row.cells) + " |" for row in rows if row.number < 0]
    count, again = sum(row.number >= 0 for row in rows), sum(len(row.before) for row in rows)
    drawn = f"{count} generated steps; {again} more draws were thrown out. {len(rows) - count} steps by hand."
    parts = [*HEAD, "## By seed", "", drawn, "", *by_seed(rows), ""]
    parts += ["## By class", "", *by_class(rows), "", "## Undecided", "", *undecided(rows), ""]
    return "\n".join([*parts, "## Steps by hand", "", *table]) + "\n"


@cache
def documented() -> dict[str, list[str]]:
    """The cells of each step's row in the document."""
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines() if DOCUMENT.exists() else []
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| `")]
    return {row[0].strip("`"): row for row in rows}
