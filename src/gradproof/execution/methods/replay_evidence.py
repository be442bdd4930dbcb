"""Replay a recorded counterexample in this process, and write it down as a pytest file.

A row says on what it was replayed, whether the same clause broke again, and what happened.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from pprint import pformat
from typing import Any

from gradproof import __version__
from gradproof.core.check import Check
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Expect, Kind
from gradproof.core.schemas.evidence import Counterexample, ReplayRow
from gradproof.core.workspace import Workspace, find
from gradproof.evidence.record import plain
from gradproof.execution import methods

Row = dict[str, Any]


def subject_of(check: Check, control: str | None) -> str:
    """Name of the check's own subject, of the empty body or of a mutant. Raises GradproofError GP214."""
    if control is None:
        return check.subject
    subjects, torch = check.params.get("subjects", {}), check.kind in (Kind.TRACE, Kind.TORCH)
    if control in ("empty", "empty body"):
        name = check.params.get("empty") or subjects.get("torch_empty" if torch else "empty")
    elif control in check.mutants:
        registry = check.params.get("mutants") or subjects.get("torch_mutants" if torch else "mutants")
        name = f"{registry}[{control}]" if registry else None
    else:
        name = None
    if name is None:
        known = ", ".join(["empty", *check.mutants])
        raise GradproofError("GP214", f"{check.id} has no control {control!r}", f"one of {known}", "correct --control")
    return str(name)


def replay(check: Check, workspace: Workspace, subject: str, example: Counterexample) -> list[Row]:
    """Replay on the named subject. Raises GradproofError for a name that does not resolve or a kind without numbers."""
    if check.kind is Kind.GATE:
        raise GradproofError("GP215", f"a {check.kind} check has no numbers to replay", "a proof or a run", "none")
    made, method = workspace.resolve(subject), methods.MODULE[check.kind]
    if method == "smt":
        return _smt(check, workspace, _control(check, subject), made, example)
    if method == "crosshair":
        return _crosshair(check, workspace, made, example)
    rows: list[Row] = import_module(f"{methods.__name__}.{method}").replay(check, workspace, example, made)
    return rows


def _control(check: Check, subject: str) -> str:
    """The control that a subject's name stands for; empty for the check's own subject."""
    if subject == check.subject:
        return ""
    return subject[subject.index("[") + 1 : -1] if subject.endswith("]") else "empty body"


def again(rows: Sequence[Row], recorded: Sequence[ReplayRow]) -> bool:
    """Whether everything that was reproduced when the evidence was made is reproduced now, and something is."""
    never = {row.on for row in recorded if not row.reproduced}
    return any(row["reproduced"] for row in rows) and all(row["reproduced"] or row["on"] in never for row in rows)


def _values(example: Counterexample) -> dict[str, Any]:
    """Recorded texts as numbers: truth values, integers, fractions; anything else stays a text."""
    return {name: _number(value) for name, value in example.values.items()}


def _number(value: Any) -> Any:
    if value in ("True", "False"):
        return value == "True"
    try:
        number = Fraction(value)
    except (TypeError, ValueError):
        return value
    return int(number) if number.denominator == 1 and "/" not in str(value) and "." not in str(value) else number


def _smt(check: Check, workspace: Workspace, control: str, subject: Any, example: Counterexample) -> list[Row]:
    from gradproof.execution.methods.replay import FAMILIES, NAMES, Attempted, once, torch_replay

    harness, attempt = workspace.resolve(check.harness), Attempted(example.stated())
    for family in FAMILIES[check.strategy]:
        clause, said, case = once(check, harness, subject, _values(example), example.choices, family)
        attempt.replays.append({"on": NAMES[family], "reproduced": clause == example.clause, "detail": said})
        attempt.case = case or attempt.case
    torch_replay(check, workspace, control, attempt)
    return attempt.replays


def _crosshair(check: Check, workspace: Workspace, subject: Any, example: Counterexample) -> list[Row]:
    from gradproof.execution.methods.crosshair import broken
    from gradproof.execution.methods.replay import instance

    contract = workspace.resolve(check.harness)(instance(subject))
    fails, said = broken(contract, _values(example))
    return [{"on": "Python model, exact numbers", "reproduced": fails is True, "detail": said}]


def replay_here(check: Mapping[str, Any], subject: str, example: Mapping[str, Any], root: Path) -> list[Row]:
    """What a written pytest file calls: replay in the workspace at `root`."""
    return replay(Check.from_json(check), find(root, explicit=True), subject, Counterexample.model_validate(example))


def _quiet(text: str) -> str:
    """A text of evidence for a docstring, which it cannot end: without quotes, backslashes and what cannot be seen."""
    return "".join(c if c.isprintable() and c not in '"\\' else "?" for c in text)


def pytest_file(
    check: Check, subject: str, example: Counterexample, rows: Sequence[Row], workspace: Workspace, place: Path
) -> str:
    """Text of a pytest file that holds the counterexample and nothing of the evidence; `rows` is its replay now.

    It fails for as long as a subject that should hold breaks its clause. For a mutant, or where a refutation is
    expected, it fails when the bug is no longer seen.
    """
    expected = subject != check.subject or check.expect is Expect.REFUTED
    name = "".join(c if c.isascii() and c.isalnum() else "_" for c in check.id.lower())
    clause, stated, id_ = (_quiet(text) for text in (example.clause, subject, check.id))
    verb, test = "breaks", "REPRODUCED_ON <= broken"
    if not expected:
        verb, test = "holds", "not broken"
    held = sorted(row["on"] for row in rows if row["reproduced"])
    root = os.path.relpath(workspace.root, place.resolve().parent)
    return f'''"""A counterexample to {clause}, found by {id_} of gradproof {__version__}.

Subject: {stated}. Run it with pytest where gradproof is installed.
"""

from pathlib import Path

from gradproof.execution.methods.replay_evidence import replay_here

WORKSPACE = Path(__file__).resolve().parent / {root!r}
SUBJECT = {subject!r}
REPRODUCED_ON = set({held!r})
COUNTEREXAMPLE = {pformat(example.stated(), width=110, sort_dicts=False)}
CHECK = {pformat(plain(check.to_json()), width=110, sort_dicts=False)}


def test_{name}_{verb}() -> None:
    """The clause {verb} on these numbers."""
    rows = replay_here(CHECK, SUBJECT, COUNTEREXAMPLE, WORKSPACE)
    broken = {{row["on"] for row in rows if row["reproduced"]}}
    assert rows, "nothing was replayed"
    assert {test}, rows
'''
