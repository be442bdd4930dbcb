"""The kill matrix: which check killed which mutant, which let it live, which has not tried it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from gradproof.render.fmt import anchor, clean

PARTS = ("survived", "killed_by", "not_tried")
WORDS = {"survived": "survived", "killed_by": "killed", "not_tried": "not tried"}
SYMBOL = {"survived": "✕", "killed_by": "●", "not_tried": "○"}
TONE = {"survived": "broken", "killed_by": "discharged", "not_tried": "open"}
NO_CLAUSE = "no clause"


@dataclass(frozen=True)
class Kills:
    """The mutants of one clause against the checks that are named to kill one of them.

    A column is a check, or all devices and dtypes of one test: `columns` holds its head and the first check's id.
    `rows` holds a mutant and, for each column, how many of its checks survived, killed and did not try it.
    """

    clause: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Mapping[str, Any], tuple[Mapping[str, int], ...]], ...]

    @property
    def cells(self) -> list[tuple[Mapping[str, Any], Markup]]:
        """The rows with their cells as table data."""
        return [(mutant, Markup("").join(_cell(counts) for counts in row)) for mutant, row in self.rows]


def certain(mutant: Mapping[str, Any]) -> bool:
    """Whether every check that is named to kill a mutant has killed it."""
    return bool(mutant["killed_by"]) and not mutant["survived"] and not mutant.get("not_tried")


def matrices(mutants: Iterable[Mapping[str, Any]]) -> list[Kills]:
    """One matrix for each clause that one of the mutants breaks, in order of appearance."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for mutant in mutants:
        groups.setdefault(str(mutant.get("obligation") or NO_CLAUSE), []).append(mutant)
    return [_matrix(clause, mutants) for clause, mutants in groups.items()]


def _matrix(clause: str, mutants: list[Mapping[str, Any]]) -> Kills:
    columns: dict[str, str] = {}
    tallies = []
    for mutant in mutants:
        tally: dict[str, dict[str, int]] = {}
        for part in PARTS:
            for name in mutant.get(part) or ():
                head = name.partition("@")[0]
                columns.setdefault(head, name)
                counts = tally.setdefault(head, dict.fromkeys(PARTS, 0))
                counts[part] += 1
        tallies.append(tally)
    rows = [(m, tuple(tally.get(head, {}) for head in columns)) for m, tally in zip(mutants, tallies, strict=True)]
    return Kills(clause, tuple(columns.items()), tuple(rows))


def state(counts: Mapping[str, int]) -> str | None:
    """The worst of a cell: survived before not tried alone; None where no check of the column is named to kill it."""
    if counts.get("survived"):
        return "survived"
    return next((part for part in ("killed_by", "not_tried") if counts.get(part)), None)


def _cell(counts: Mapping[str, int]) -> Markup:
    told = state(counts)
    if told is None:
        return Markup("<td></td>")
    total = sum(counts.values())
    share = "" if total == 1 else f" {counts[told]}/{total}"
    made = Markup('<td class="{}">{}{}<span class="vh"> {}</span></td>')
    return made.format(TONE[told], SYMBOL[told], share, WORDS[told])


def heads(columns: Iterable[tuple[str, str]]) -> Markup:
    """The column heads, each a link to its first check."""
    made = Markup('<th scope="col"><a href="#{}">{}</a></th>')
    return Markup("").join(made.format(anchor("check", name), clean(head)) for head, name in columns)
