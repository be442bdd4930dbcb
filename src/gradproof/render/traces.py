"""Timelines of a report: the runs of the subjects that were caught, one each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gradproof.core import GradproofError
from gradproof.render.consistency import Report
from gradproof.render.fmt import one_line
from gradproof.timeline import Tick, Timeline, from_json


def traces(report: Report) -> list[tuple[str, str, Timeline]]:
    """Check, name of the wrong subject, and its run: of every check that carries one, and of each mutant the first."""
    lines = ((c["id"], str(c.get("subject")), own(c)) for c in report["checks"])
    return [(name, subject, line) for name, subject, line in lines if line is not None] + of_mutants(report)


def of_mutants(report: Report) -> list[tuple[str, str, Timeline]]:
    """The same of the mutants that were killed alone, the first run of each. Raises as `traces` does."""
    found: dict[str, tuple[str, str, Timeline]] = {}
    for check in report["checks"]:
        for control in check.get("controls") or []:
            shown = control["counterexample"] if control.get("killed") is True else None
            if shown and shown.get("trace"):
                line = _legible(shown["trace"])
                found.setdefault(control["name"], (check["id"], control["name"], line))
    return list(found.values())


def own(check: Mapping[str, Any]) -> Timeline | None:
    """The run that breaks the check's own subject, where its counterexample carries one. Raises as `traces` does."""
    shown = check.get("counterexample") or {}
    return _legible(shown["trace"]) if shown.get("trace") else None


def _legible(trace: Mapping[str, Any]) -> Timeline:
    """A timeline whose texts no terminal and no page obeys. Raises GradproofError for what is none."""
    try:
        line = from_json(trace)
    except ValueError as error:
        mend = "make the report again from its evidence: gradproof report"
        raise GradproofError("REPORT-SHAPE", str(error), "a timeline", mend) from error
    ticks = tuple(Tick(**{key: one_line(word) for key, word in asdict(t).items()}) for t in line.ticks)
    return Timeline(one_line(line.title), one_line(line.start), ticks)
