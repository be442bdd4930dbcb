"""What a page tells of one obligation: its assumptions, bounds, harnesses and counterexamples, each once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Effect, Outcome
from gradproof.core.timeline import Tick, Timeline, from_json
from gradproof.report.consistency import Report, effect_of
from gradproof.report.text import heads, one_line
from gradproof.report.views import label, outcome_words


def certain(mutant: Mapping[str, Any]) -> bool:
    """Whether every check that is named to kill a mutant has killed it."""
    return bool(mutant["killed_by"]) and not mutant["survived"] and not mutant.get("not_tried")


# -- Timelines of a report: the runs of the subjects that were caught, one each.
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
        help = "make the report again from its evidence: gradproof report"
        raise GradproofError("REPORT-SHAPE", str(error), "a timeline", help) from error
    ticks = tuple(Tick(**{key: one_line(word) for key, word in asdict(t).items()}) for t in line.ticks)
    return Timeline(one_line(line.title), one_line(line.start), ticks)


@dataclass(frozen=True)
class Shown:
    """A counterexample of the subject: its check, and the window as a timeline where the run recorded one."""

    check: Mapping[str, Any]
    line: Timeline | None


@dataclass(frozen=True)
class Story:
    """An obligation with its checks. `obligation` is None for the checks that claim none.

    `answers`: (outcome and reach in words, effect, ids of the checks), the worst first. `bounds`: (name, value, reason,
    heads of the checks). `harnesses`: those whose text is printed here, being the first to need it; `printed`: those
    another obligation.
    """

    obligation: Mapping[str, Any] | None
    answers: tuple[tuple[str, Effect, tuple[str, ...]], ...]
    assumptions: tuple[str, ...]
    bounds: tuple[tuple[str, Any, str, str], ...]
    harnesses: tuple[str, ...]
    printed: tuple[str, ...]
    counterexamples: tuple[Shown, ...]


def stories(report: Report) -> list[Story]:
    """The obligations in the contract's order, then what claims none."""
    printed: set[str] = set()
    made = []
    for ob in report["obligations"]:
        made.append(_story(report, ob, [c for c in report["checks"] if ob["id"] in c["obligations"]], printed))
    loose = [c for c in report["checks"] if not c["obligations"]]
    return [*made, _story(report, None, loose, printed)] if loose else made


def _story(report: Report, ob: Mapping[str, Any] | None, checks: list[Mapping[str, Any]], printed: set[str]) -> Story:
    known = report.get("harnesses") or {}
    names = [n for n in dict.fromkeys(str(c.get("harness") or "") for c in checks) if n in known]
    new = tuple(n for n in names if n not in printed)
    printed.update(new)
    assumed = [*((ob or {}).get("assumptions") or []), *(a for c in checks for a in c.get("assumptions") or [])]
    shown = tuple(Shown(c, own(c)) for c in checks if c.get("counterexample"))
    old = tuple(n for n in names if n not in new)
    return Story(ob, _answers(checks), tuple(dict.fromkeys(map(str, assumed))), _bounds(checks), new, old, shown)


def _answers(checks: Iterable[Mapping[str, Any]]) -> tuple[tuple[str, Effect, tuple[str, ...]], ...]:
    found: dict[tuple[str, Effect], list[str]] = {}
    for check in checks:
        words = f"{outcome_words(check)}, {label(check)}"
        found.setdefault((words, effect_of(check)), []).append(check["id"])
    order = (Effect.BROKEN, Effect.OPEN, Effect.DISCHARGED)
    rows = sorted(found.items(), key=lambda row: order.index(row[0][1]))
    return tuple((words, effect, tuple(ids)) for (words, effect), ids in rows)


def _bounds(checks: Iterable[Mapping[str, Any]]) -> tuple[tuple[str, Any, str, str], ...]:
    """Each bound with its reason once, with the checks that state it."""
    found: dict[tuple[str, Any, str], list[str]] = {}
    for check in checks:
        for b in check.get("bounds") or ():
            found.setdefault((str(b["name"]), b["value"], str(b["reason"])), []).append(check["id"])
    return tuple((*key, heads(names)) for key, names in found.items())


def wrong(check: Mapping[str, Any]) -> bool:
    """Whether the counterexample of a check is bad news: a check that must be refuted shows one when all is well."""
    return not (effect_of(check) is Effect.DISCHARGED and check["outcome"] == Outcome.REFUTED)


def environments(report: Report) -> list[Mapping[str, Any]]:
    """The different environments of the checks, in order of appearance."""
    found: list[Mapping[str, Any]] = []
    for check in report["checks"]:
        seen = check.get("environment")
        if seen and seen not in found:
            found.append(seen)
    return found
