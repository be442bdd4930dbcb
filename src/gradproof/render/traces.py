"""Timelines of a report: the shortest run of every subject that was caught."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gradproof.core import GradproofError
from gradproof.render.consistency import Report
from gradproof.render.fmt import one_line
from gradproof.timeline import Tick, Timeline, from_json


def traces(report: Report) -> list[tuple[str, str, Timeline]]:
    """Check, name of the wrong subject, and its shortest run: of every check that carries one, and of its mutants."""
    found = []
    for check in report["checks"]:
        killed = [(k["name"], k["counterexample"]) for k in check.get("controls") or [] if k.get("killed") is True]
        for name, shown in [(str(check.get("subject")), check.get("counterexample")), *killed]:
            if shown and shown.get("trace"):
                found.append((check["id"], name, _legible(shown["trace"])))
    return found


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
