"""`proofs/claims.yaml` -> the ledger. Every mistake has a code and file:line:col, and all are reported at once.

A row is decided by named checks, by figures, or by both; a row that cannot be tested says why and names neither.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradproof.contract.diagnostics import shaped
from gradproof.contract.yaml_reader import ContractErrors, Node, Problem, read
from gradproof.core.check import Check
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Expect, Kind, Layer
from gradproof.extras.claims import FILE
from gradproof.extras.claims.document import Part, Verdict
from gradproof.extras.claims.figures import ClaimShape, ComputeError, FigureShape, LedgerShape, computed

ORIGINS = ("document", "evidence", "plan", "compute")
LIMITS = ("equals", "at_least", "at_most", "above", "below")
MATCHES = 3


@dataclass(frozen=True)
class Ledger:
    """The rows as they were written, and the checks that each names, by the part that they play."""

    digest: str
    sources: Mapping[str, str]
    claims: tuple[ClaimShape, ...]
    named: Mapping[str, tuple[tuple[Part, Check], ...]]


def load(root: Path, checks: Sequence[Check]) -> Ledger:
    """The ledger of the workspace at `root`, whose contracts plan `checks`.

    Raises GradproofError GP501 when there is none, and ContractErrors with every mistake.
    """
    path = root / FILE
    if not path.is_file():
        raise GradproofError("GP501", f"no {FILE} in {root}", "a ledger of claims", "write one: docs/claims.md")
    data, tree, problems = read(path, str(path))
    shape = None
    if tree is not None and not isinstance(tree.value, dict):
        problems = [
            *problems,
            Problem("GP116", str(path), 1, 1, "no mapping", "format:, sources:, claims:", "add them"),
        ]
    elif tree is not None:
        shape, wrong = shaped(tree, LedgerShape, str(path))
        problems = [*problems, *wrong]
    if shape is None or tree is None:
        raise ContractErrors(problems or [Problem("GP115", str(path), 1, 1, "nothing", "a ledger", "write one")])
    planned = _Planned(checks)
    problems = [*problems, *_rules(shape, tree, str(path), planned)]
    if problems:
        raise ContractErrors(problems)
    named = {row.id: tuple(_named(row, planned)) for row in shape.claims}
    return Ledger(hashlib.sha256(data).hexdigest(), shape.sources, tuple(shape.claims), named)


class _Planned:
    """Planned checks by id. A test without device and dtype means all of its runs on the CPU."""

    def __init__(self, checks: Sequence[Check]) -> None:
        self.by_id: dict[str, tuple[Check, ...]] = {check.id: (check,) for check in checks}
        for check in checks:
            head = check.id.partition("@")[0]
            if check.kind is Kind.TORCH and check.layer is Layer.CPU:
                self.by_id[head] = (*self.by_id.get(head, ()), check)

    def near(self, name: str) -> str:
        found = difflib.get_close_matches(name, self.by_id, MATCHES)
        return f"did you mean {', '.join(found)}?" if found else "gradproof list shows what is planned"


def _named(row: ClaimShape, planned: _Planned) -> Iterator[tuple[Part, Check]]:
    for part in Part:
        for name in getattr(row, part) or ():
            yield from ((part, check) for check in planned.by_id[name])


def _rules(shape: LedgerShape, tree: Node, shown: str, planned: _Planned) -> Iterator[Problem]:
    """What rows say about each other, and about the contracts."""
    seen: dict[str, int] = {}
    for i, row in enumerate(shape.claims):
        place = _Place(tree, shown, ("claims", i))
        if row.id in seen:
            yield place.problem("GP129", f"{row.id} again; it is row {seen[row.id] + 1} too", "an id of its own", "id")
        seen.setdefault(row.id, i)
        if row.source not in shape.sources:
            expected = f"one of {', '.join(shape.sources)}"
            yield place.problem("GP504", f"the source {row.source!r}, which is not listed", expected, "source")
        yield from _basis(row, place)
        yield from _parts(row, place, planned)
        for j, figure in enumerate(row.figures or ()):
            yield from _figure(figure, place.below("figures", j), planned)


@dataclass(frozen=True)
class _Place:
    tree: Node
    shown: str
    path: tuple[Any, ...]

    def below(self, *steps: Any) -> _Place:
        return _Place(self.tree, self.shown, (*self.path, *steps))

    def problem(self, code: str, found: str, expected: str, *steps: Any, mend: str = "correct the row") -> Problem:
        line, col = self.tree.at((*self.path, *steps))
        return Problem(code, self.shown, line, col, found, expected, mend)


def _basis(row: ClaimShape, place: _Place) -> Iterator[Problem]:
    """A row has what decides it, or says why nothing can."""
    decided = any(getattr(row, part) for part in Part) or bool(row.figures)
    if Verdict(row.expect) is Verdict.NOT_TESTABLE:
        if decided:
            yield place.problem("GP503", "NOT TESTABLE, with something that tests it", "neither", "expect")
        if row.why is None:
            yield place.problem("GP503", "NOT TESTABLE without why", "the key 'why'", "expect")
    elif not decided:
        yield place.problem("GP503", "nothing decides it", "checks, refuted_by, contradicted_by or figures", "id")
    if (row.contradicted_by is None) != (row.contradiction is None):
        expected = "why the claim and the check cannot both hold, and the check"
        yield place.problem("GP503", "one of contradicted_by and contradiction", expected, "id")


EXPECTS: Mapping[Part, Expect] = {
    Part.STATES: Expect.HOLDS,
    Part.REFUTES: Expect.REFUTED,
    Part.CONTRADICTS: Expect.HOLDS,
}


def _parts(row: ClaimShape, place: _Place, planned: _Planned) -> Iterator[Problem]:
    """Named checks are planned, expected to answer what their part needs, and named once."""
    names: set[str] = set()
    for part in Part:
        for j, name in enumerate(getattr(row, part) or ()):
            here = (str(part), j)
            found = planned.by_id.get(name)
            if found is None:
                mend = planned.near(name)
                yield place.problem("GP502", f"{name}, which no contract plans", "a planned check", *here, mend=mend)
            elif any(check.expect is not EXPECTS[part] for check in found):
                told = f"{name} under {part}, which is expected to be {found[0].expect}"
                yield place.problem("GP503", told, f"a check with expect: {EXPECTS[part]}", *here)
            if name in names:
                yield place.problem("GP129", f"{name} again", "each check once", *here)
            names.add(name)


def _figure(figure: FigureShape, place: _Place, planned: _Planned) -> Iterator[Problem]:
    origins = [name for name in ORIGINS if getattr(figure, name) is not None]
    if len(origins) != 1:
        yield place.problem("GP505", f"a figure from {', '.join(origins) or 'nowhere'}", f"one of {', '.join(ORIGINS)}")
        return
    if all(getattr(figure, name) is None for name in LIMITS):
        yield place.problem("GP505", "a figure of which nothing is said", f"one of {', '.join(LIMITS)}")
    if figure.compute is not None:
        yield from _computed(figure, place)
    elif figure.at is None:
        yield place.problem("GP505", "a figure without its place", "the key 'at'")
    if figure.among is None and (figure.where is not None or figure.take is not None):
        yield place.problem("GP505", "'where' or 'take' without 'among'", "the list to choose from")
    if figure.evidence is not None and len(planned.by_id.get(figure.evidence, ())) != 1:
        mend = planned.near(figure.evidence)
        yield place.problem("GP502", f"the evidence of {figure.evidence}", "one planned check", "evidence", mend=mend)


def _computed(figure: FigureShape, place: _Place) -> Iterator[Problem]:
    if any(getattr(figure, name) is not None for name in ("at", "among", "where", "take", "over")):
        yield place.problem("GP505", "a place in a computation", "the keys compute, scale and what is said of it")
    try:
        computed(str(figure.compute))
    except ComputeError as error:
        yield place.problem("GP505", f"{figure.compute!r}: {error}", "numbers, + - * / and brackets", "compute")
