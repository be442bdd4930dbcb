"""The short text of `verify`, `report` and `gate`: the verdict, a line a contract, reasons, changes, and the page.

Green in at most 25 lines, red in at most 40; the tables are in formats/markdown.py. Where the output is no terminal, a
sentence is a line, and nothing is wrapped.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from gradproof.core.check import entry_of
from gradproof.core.outcome import EXIT_CODE, EXIT_MEANING, NEXT, NO_WORKSPACE, Effect, Exit, Outcome, worst
from gradproof.report import views
from gradproof.report.consistency import Report, effect_of, require, required_ids, waived_ids
from gradproof.report.text import Line, first_words, near, one_line, plural, printed, seconds, when

COLUMNS = 100
LINES, GREEN = 40, 25
CONTRACTS, CHANGES, WAIVERS, ALIKE = 6, 5, 2, 3
SHOWN = 240
RESTS = "it rests on "


@dataclass(frozen=True)
class Reason:
    """Why a gate is not met: what it is about, where the contract says so, what was found, and what to do."""

    effect: Effect
    about: str
    where: str
    words: str
    help: str = ""


def render(
    reports: Sequence[Report],
    console: Console,
    before: Sequence[Report] = (),
    page: Path | None = None,
    most: int | None = LINES,
) -> None:
    """Print the short text of one or several contracts.

    Args:
        reports: at least one report.
        console: where it goes.
        before: the reports of the run before, as far as there are some.
        page: the HTML page over all contracts.
        most: lines in all where the gate is not met; None for no limit.

    Raises:
        GradproofError: a report contradicts itself. Nothing was printed then.
    """
    for report in reports:
        require(report)
    width = console.width if console.is_terminal else COLUMNS
    head = [*_verdict(reports), *_limited(list(map(_contract, reports)), CONTRACTS, "contracts")]
    tail = [*_waivers(reports), *_reach(reports), *_ran(reports)]
    tail += [Line(f"report: {near(page)}")] if page else []
    news = _since(before, reports, GREEN - _rows([*head, *tail], width) - 2, width)
    budget = None if most is None else most - _rows([*head, *news, *tail], width)
    printed([*head, *stated(reports, budget, width), *news, *tail], console)


def _rows(lines: Sequence[Line], width: int) -> int:
    """Rows of a terminal that they take."""
    return sum(line.height(width) for line in lines)


def _limited(lines: list[Line], most: int, what: str) -> list[Line]:
    if len(lines) <= most:
        return lines
    return [*lines[:most], Line(f"and {len(lines) - most} more {what}: --verbose shows them", indent=2)]


def _verdict(reports: Sequence[Report]) -> Iterator[Line]:
    """GATE MET only where each banner says so."""
    banners = [views.banner(report) for report in reports]
    code = worst(Exit(report["verdict"]["exit"]) for report in reports)
    exit_ = next(e for e in Exit if EXIT_CODE[e] == code)
    effects = [ob["effect"] for report in reports for ob in report["obligations"]]
    done = f"{effects.count('DISCHARGED')} of {plural(len(effects), 'obligation')} discharged"
    profile = " and ".join(dict.fromkeys(one_line(report["profile"]) for report in reports))
    if all(b.met for b in banners):
        words, tone = "GATE MET", Effect.DISCHARGED
    else:
        words, tone = "GATE NOT MET", Effect.BROKEN if code in (1, 2, 3) else Effect.OPEN
    said = f"{EXIT_MEANING[exit_]} (exit {code})" if words == "GATE MET" or exit_ is not Exit.MET else "no verdict"
    yield Line(f", profile {profile}: {said}; {done}", words, views.STYLE[tone])
    if any(map(views.of_nobody, reports)):
        yield Line("", NO_WORKSPACE, views.STYLE[Effect.OPEN], 2)


def _contract(report: Report) -> Line:
    """The counts of one contract."""
    b, needed = views.banner(report), required_ids(report)
    effects = [(effect_of(check), check["id"] in needed) for check in report["checks"]]
    asked = [effect for effect, required in effects if required]
    parts = [f"{asked.count(Effect.DISCHARGED)} of {len(asked)} required checks"]
    for effect in (Effect.BROKEN, Effect.OPEN):
        if count := sum(e is effect and (required or effect is Effect.BROKEN) for e, required in effects):
            parts.append(f"{count} {effect}")
    words = [views.mutant_words(m) for m in report["mutants"]]
    parts.append(f"{words.count('KILLED')} of {plural(len(words), 'mutant')} killed")
    if spare := views.optional_open(report):
        parts.append(f"{spare} optional open")
    if warned := len(report["contract"]["warnings"]):
        parts.append(plural(warned, "warning"))
    tone = Effect.DISCHARGED if b.met else Effect.BROKEN if b.tone == "broken" else Effect.OPEN
    return Line(f" {one_line(report['contract']['id'])}: {', '.join(parts)}", views.SYMBOL[tone], views.STYLE[tone], 2)


# -- Reasons: each with the obligation, its name, and the line of the contract.


def stated(reports: Sequence[Report], most: int | None, width: int) -> list[Line]:
    """The reasons of every contract whose gate is not met, the broken first, in `most` rows; None for all."""
    found = [r for report in reports if not views.banner(report).met for r in reasons(report, most is None)]
    found.sort(key=lambda r: (r.effect is not Effect.BROKEN, not r.where))
    help = [Line(f"help: {r.help}") for r in found if r.help][:1]
    lines: list[Line] = []
    for i, reason in enumerate(found):
        block = list(_block(reason, None if most is None else SHOWN))
        if lines and found[i - 1].about == reason.about:
            block = block[1:]
        if most is not None and _rows([*lines, *block, *help], width) >= most:
            left = plural(len(found) - i, "more reason")
            return [*lines, Line(f"and {left}: --verbose shows all"), *help]
        lines += block
    return [*lines, *help]


def _block(reason: Reason, most: int | None) -> Iterator[Line]:
    yield Line("", f"{views.SYMBOL[reason.effect]} {_cut(reason.about, most and COLUMNS)}", views.STYLE[reason.effect])
    where = f"{reason.where}: " if reason.where else ""
    yield Line(where + _cut(reason.words, most), indent=2)


def _cut(text: str, most: int | None) -> str:
    """The text, or its first words and dots."""
    return text if most is None else first_words(text, most)


def reasons(report: Report, whole: bool = False) -> Iterator[Reason]:
    """Broken checks, those that crashed or are open, and what the judge says beside them.

    A criterion is not met because of its obligations, which are here already; `whole` shows it all the same.
    """
    names = {ob["id"]: ob for ob in report["obligations"]}
    needed, waived = required_ids(report), waived_ids(report)
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for check in report["checks"]:
        effect = effect_of(check)
        asked = effect is Effect.OPEN and check["id"] in needed and check["id"] not in waived
        if effect is Effect.BROKEN or asked:
            alike = check["id"] if effect is Effect.BROKEN else (check["outcome"], _root(check["reason"]))
            groups.setdefault(alike, []).append(check)
    ordered = sorted(groups.values(), key=lambda checks: checks[0]["reason"].startswith(RESTS))
    yield from (_of_checks(report, checks, names, whole) for checks in ordered)
    ids = {check["id"] for checks in ordered for check in checks}
    for text in report["verdict"]["reasons"]:
        first = re.split(r" is | x |: ", text, maxsplit=1)[0]
        if first in ids or (groups and not whole and text.startswith("criterion ")):
            continue
        ob = names.get(first)
        about = one_line(report["contract"]["id"]) if ob is None else named(ob)
        where = "" if ob is None else _where(report, first)
        yield Reason(Effect.BROKEN if text.startswith("weaker ") else Effect.OPEN, about, where, one_line(text))


def _root(reason: str) -> str:
    """What checks that wait for something undischarged have in common."""
    return RESTS if reason.startswith(RESTS) else reason


def named(ob: Mapping[str, Any]) -> str:
    """GA-INV-002, no stale gradient."""
    return one_line(f"{ob['id']}, {ob['property']}")


def _where(report: Report, name: str) -> str:
    line, _ = report["contract"]["places"].get(entry_of(name), (1, 1))
    return one_line(f"{near(report['contract']['path'])}:{line}")


def _of_checks(
    report: Report, checks: Sequence[Mapping[str, Any]], names: Mapping[str, Mapping[str, Any]], whole: bool
) -> Reason:
    """Checks that are open for one reason, or one that is broken."""
    first = checks[0]
    mine = [o for o in dict.fromkeys(o for check in checks for o in check["obligations"]) if o in names]
    about = named(names[mine[0]]) if mine else one_line(f"{first['id']}, {first['title']}")
    if len(mine) > 1:
        about += f"; also {', '.join(mine[1:4])}" + (f" and {len(mine) - 4} more" if len(mine) > 4 else "")
    expected = "" if first["expect"] == "holds" else " (expected to be refuted)"
    words = f"{first['id']} is {first['outcome']}{expected}: {first['reason']}"
    if len(checks) > 1:
        others = [check["id"] for check in checks[1:]]
        some = others if whole else others[:ALIKE]
        words += f"; and {plural(len(others), 'check')} alike: {', '.join(some)}" + ", ..." * (some != others)
    help = NEXT[Outcome(first["outcome"])]
    refuted = {check["subject"] for check in report["checks"] if check["outcome"] == "REFUTED"}
    if first["outcome"] == "UNKNOWN" and first["subject"] in refuted:
        help = "Fix what is refuted of this subject first, then verify again."
    if (path := Path(report["workspace"], "reports", first["evidence"] or "none")).is_file():
        help = help.replace("EVIDENCE.", near(path))
    return Reason(effect_of(first), about, _where(report, first["id"]), one_line(words), one_line(help))


# -- What stands below the reasons.


def _waivers(reports: Sequence[Report]) -> list[Line]:
    lines = [Line(one_line(views.waiver_words(w))) for report in reports for w in report.get("waivers") or []]
    return _limited(lines, WAIVERS, "waivers")


def _reach(reports: Sequence[Report]) -> Iterator[Line]:
    """How far the discharged obligations go, strongest first."""
    labels = {words: views.LABELS[reach] for reach, words in views.REACH_WORDS.items()}
    counts: Counter[str] = Counter()
    for words, _, ids in (row for report in reports for row in views.strongest(report)):
        if words in labels:
            counts[labels[words]] += len(ids)
    if said := ", ".join(f"{count} {words}" for words, count in counts.items() if count):
        yield Line(f"Obligations: {said}. {views.SENTENCE}")


def _since(before: Sequence[Report], reports: Sequence[Report], most: int, width: int) -> list[Line]:
    """What changed since the run before, in lines of one row; nothing where there was none."""
    known = {report["contract"]["id"]: report for report in before}
    pairs = [(known[r["contract"]["id"]], r) for r in reports if r["contract"]["id"] in known]
    if not pairs:
        return []
    old, new = (facts(side) for side in zip(*pairs, strict=True))
    found = [Line(_cut(text, min(width, COLUMNS) - 10), indent=2) for text in changes(old, new)]
    moment = min(when(report.get("generated_at")) for report, _ in pairs)
    said = Line(f"New since {moment}: {plural(len(found), 'change') if found else 'nothing'}")
    return [said, *_limited(found, max(min(most, CHANGES), 0), "changes")]


def _ran(reports: Sequence[Report]) -> Iterator[Line]:
    rows = [check for report in reports for check in report["checks"]]
    cached = sum(row["cached"] for row in rows)
    ran = sum(row["fresh"] and not row["cached"] for row in rows)
    spent = max(report["seconds"] for report in reports)
    took = f", {seconds(spent)}" if spent else ""
    yield Line(f"{cached} on stored evidence, {ran} run now, {len(rows) - cached - ran} not run{took}")


# -- Changes between two runs. `verify --watch` prints the same.

Facts = Mapping[str, tuple[str, str]]


def facts(reports: Sequence[Report]) -> Facts:
    """By check and by contract: what was found, and why."""
    found: dict[str, tuple[str, str]] = {}
    for report in reports:
        for row in report["checks"]:
            found[row["id"]] = (f"{row['outcome']} ({row['effect']})", row["reason"])
        exit_, reasons = Exit(report["verdict"]["exit"]), report["verdict"]["reasons"]
        words = f"{EXIT_MEANING[exit_]} (exit {EXIT_CODE[exit_]})"
        found[report["contract"]["id"]] = (words, "; ".join(reasons[:1]))
    return found


def changes(before: Facts | None, now: Facts, width: int = COLUMNS) -> Iterator[str]:
    """One line for each check and verdict that is not what it was; at first, for each that is not discharged."""
    for name, (said, reason) in now.items():
        was = before[name][0] if before is not None and name in before else None
        if was == said or (before is None and "(DISCHARGED)" in said):
            continue
        short = "" if "(DISCHARGED)" in said else one_line(reason)[:width]
        yield f"{name}: {f'{was} -> ' if was else ''}{said}{f'  {short}' if short else ''}"
    yield from (f"{name}: gone" for name in (before or {}) if name not in now)
