"""What is wrong with an answer, and the faults that are known today.

`open.tsv` has a line for each: the case, and what is said of it. It is exact: a case that got better has to leave it.
`python -m tests.origin --open` writes it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.origin.answered import CRASH, HOLDS, REFUTED
from tests.origin.cases import RIGHT, WRONG, Case

OPEN = Path(__file__).with_name("open.tsv")
FALSE = {(WRONG, HOLDS), (RIGHT, REFUTED), (RIGHT, CRASH), (WRONG, CRASH)}
"""Answers that no loop may get: a wrong one that holds undisclosed, a right one that ends with exit code 1 or 3."""


def fault(case: Case, word: str) -> bool:
    """Whether an answer is false, and not only undecided."""
    return (case.label, word) in FALSE


@cache
def known() -> dict[str, str]:
    """The faults of today, by case."""
    lines = OPEN.read_text(encoding="utf-8").splitlines() if OPEN.exists() else []
    return {name: word for name, _, word in (line.partition("\t") for line in lines)}
