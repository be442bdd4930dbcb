"""What a page tells of one obligation: its assumptions, bounds, harnesses and counterexamples, each once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gradproof.core import Effect, Outcome
from gradproof.render.consistency import Report, effect_of
from gradproof.render.fmt import heads
from gradproof.render.traces import own
from gradproof.render.views import outcome_words, reach_words
from gradproof.timeline import Timeline

LOOSE = "Stubs and the gate"


@dataclass(frozen=True)
class Shown:
    """A counterexample of the subject: its check, and the window as a timeline where the run recorded one."""

    check: Mapping[str, Any]
    line: Timeline | None


@dataclass(frozen=True)
class Story:
    """An obligation with its checks. `obligation` is None for the checks that claim none.

    `answers`: (outcome and reach in words, effect, ids of the checks), the worst first. `bounds`: (name, value, reason,
    heads of the checks). `harnesses`: those whose text is told here, being the first to need it; `told`: those told of
    another obligation.
    """

    obligation: Mapping[str, Any] | None
    answers: tuple[tuple[str, Effect, tuple[str, ...]], ...]
    assumptions: tuple[str, ...]
    bounds: tuple[tuple[str, Any, str, str], ...]
    harnesses: tuple[str, ...]
    told: tuple[str, ...]
    counterexamples: tuple[Shown, ...]


def stories(report: Report) -> list[Story]:
    """The obligations in the contract's order, then what claims none."""
    told: set[str] = set()
    made = []
    for ob in report["obligations"]:
        made.append(_story(report, ob, [c for c in report["checks"] if ob["id"] in c["obligations"]], told))
    loose = [c for c in report["checks"] if not c["obligations"]]
    return [*made, _story(report, None, loose, told)] if loose else made


def _story(report: Report, ob: Mapping[str, Any] | None, checks: list[Mapping[str, Any]], told: set[str]) -> Story:
    known = report.get("harnesses") or {}
    names = [n for n in dict.fromkeys(str(c.get("harness") or "") for c in checks) if n in known]
    new = tuple(n for n in names if n not in told)
    told.update(new)
    stated = [*((ob or {}).get("assumptions") or []), *(a for c in checks for a in c.get("assumptions") or [])]
    shown = tuple(Shown(c, own(c)) for c in checks if c.get("counterexample"))
    old = tuple(n for n in names if n not in new)
    return Story(ob, _answers(checks), tuple(dict.fromkeys(map(str, stated))), _bounds(checks), new, old, shown)


def _answers(checks: Iterable[Mapping[str, Any]]) -> tuple[tuple[str, Effect, tuple[str, ...]], ...]:
    found: dict[tuple[str, Effect], list[str]] = {}
    for check in checks:
        words = f"{outcome_words(check)}, {reach_words(check)}"
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


def claims(report: Report) -> list[Mapping[str, Any]]:
    """Rows of the ledger of claims where the report carries one: id, claim, verdict and the ids of its checks."""
    held = report.get("claims") or []
    rows = held.get("rows") or [] if isinstance(held, Mapping) else held
    return [{**row, "checks": [_id(c) for c in row.get("checks") or []]} for row in rows if isinstance(row, Mapping)]


def _id(check: Any) -> str:
    return str(check["id"]) if isinstance(check, Mapping) else str(check)
