"""The report as Markdown for a CI step summary (GitHub's dialect). Everything from the report is escaped.

A terminal shows Markdown as rich draws it; a pipe or a file gets it as plain text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradproof.core.outcome import Layer
from gradproof.report import charts, rounding, stories, views
from gradproof.report.consistency import Report, effect_of, require
from gradproof.report.studies import FRESH
from gradproof.report.text import bullets, compact, escape, grouped, heads, plural, ratio, sci, seconds, table, when


def overview(report: Report) -> str:
    """What a terminal shows: verdict, gate, coverage, what is broken or open, mutants. Raises what `render` raises."""
    require(report)
    parts = [_head(report), _gate(report), _coverage(report), _attention(report), _mutants(report)]
    return "\n\n".join(parts) + "\n"


def render(report: Report) -> str:
    """The whole report. Raises GradproofError on a wrong shape or an inconsistency."""
    require(report)
    parts = [_head(report), _gate(report), _coverage(report), _attention(report), _checks(report), _mutants(report)]
    parts += [_justification(report), _counterexamples(report), _traces(report), _reach(report), _rounding(report)]
    stated = rounding.others(report)
    parts += [_kernels(report), *([f"## Measured documents\n\n{bullets(stated)}"] if stated else [])]
    parts += [_errors(report), _setting(report)]
    return "\n\n".join(parts) + "\n"


def _head(report: Report) -> str:
    b, contract = views.banner(report), report["contract"]
    facts = [
        ("Contract", f"{contract['id']} {contract['version']}"),
        ("Profile", report["profile"]),
        ("Run", report["run_state"]),
        ("Exit code", b.exit_words),
        ("Obligations", views.obligation_counts(report)),
        ("Checks", views.check_counts(report)),
        ("Mutants", views.mutant_counts(report)),
    ]
    lines = [f"# {b.title}", escape(b.sentence), bullets(b.reasons) if b.reasons else ""]
    return "\n\n".join([*filter(None, lines), table(("Fact", "Value"), facts)])


def _gate(report: Report) -> str:
    gate = report["gate"] or {}
    rows = [
        (c["name"], ", ".join(c["obligations"]), views.criterion_words(c), c.get("why", ""))
        for c in gate.get("criteria", [])
    ]
    seeded = gate.get("falsification") or {}
    said = f"Its own falsification, “{seeded.get('text', 'none')}”: {views.seeded_words(gate)}. {seeded.get('why', '')}"
    head = f"## Gate {escape(gate.get('id', 'none'))}"
    parts = [head, table(("Criterion", "Obligations", "State", "Why"), rows), escape(said)]
    waivers = report.get("waivers") or []
    return "\n\n".join([*parts, *(["### Waivers", bullets(map(views.waiver_words, waivers))] if waivers else [])])


def _coverage(report: Report) -> str:
    """A column for every layer that the contract asks for, or plans a check in, anywhere."""
    matrix = views.matrix(report)
    asked = {c.layer for _, cells in matrix for c in cells if c.effect is not None}
    headers = ["Obligation", *(views.LAYER_TITLE[layer] for layer in Layer if layer in asked), "Effect"]
    rows = []
    for ob, cells in matrix:
        words = [f"{views.SYMBOL[c.effect]} {c.words}" if c.effect else c.words for c in cells if c.layer in asked]
        name = f"{ob['id']} {ob['property']}"
        rows.append([name, *words, f"{ob['effect']}, {views.cell_counts(ob)}"])
    legend = "; ".join(f"{words}: {meaning}" for words, meaning, _ in views.strongest(report))
    head = f"## Coverage: {escape(views.obligation_counts(report))}"
    return "\n\n".join([head, table(headers, rows), escape(f"{views.SENTENCE} {legend}")])


def _attention(report: Report) -> str:
    rows = [
        (f"{a.effect}: {a.outcome}", a.layer, "yes" if a.required else "no", a.reason, "; ".join(grouped(a.checks)))
        for a in views.attention(report)
    ]
    return "## Broken and open checks\n\n" + table(("State", "Layer", "Required", "Reason", "Checks"), rows)


def _checks(report: Report) -> str:
    headers = ("Check", "State", "Reach", "Bounds", "Stubs", "Domain", "Solver", "Covers", "Controls", "Time", "Run")
    rows = [_check(c) for _, checks in views.by_layer(report) for c in checks]
    reasons = {(c["id"], b["name"], b["value"], b["reason"]) for c in report["checks"] for b in c.get("bounds") or []}
    by_reason: dict[tuple[object, ...], list[str]] = {}
    for name, *bound in sorted(reasons):
        by_reason.setdefault(tuple(bound), []).append(name)
    why = [(f"{n} = {v}", r, "; ".join(grouped(ids))) for (n, v, r), ids in by_reason.items()]
    head = f"## Checks: {escape(views.check_counts(report))}"
    return "\n\n".join([head, table(headers, rows), "### Bounds", table(("Bound", "Reason", "Checks"), why)])


def _check(c: Mapping[str, Any]) -> tuple[object, ...]:
    state = f"{views.SYMBOL[effect_of(c)]} {c['effect']}: {views.outcome_words(c)}"
    solver = " ".join(filter(None, (str(c.get("solver") or ""), str(c.get("strategy") or ""))))
    run = views.freshness(c)
    stubs = ", ".join(c.get("stubs") or []) or "none"
    reach, bounds = views.label(c), views.bounds_words(c)
    covers, controls = views.covers_words(c), views.controls_words(c)
    return c["id"], state, reach, bounds, stubs, c.get("domain"), solver, covers, controls, seconds(c["seconds"]), run


def _justification(report: Report) -> str:
    by_words: dict[str, list[str]] = {}
    for c in report["checks"]:
        if said := views.backing_words(c):
            by_words.setdefault(said, []).append(c["id"])
    rows = [("; ".join(grouped(ids)), said) for said, ids in by_words.items()]
    return "## What backs the proofs\n\n" + table(("Checks", "Backed by"), rows)


def _mutants(report: Report) -> str:
    rows = [
        (
            m["name"],
            m["obligation"],
            m.get("reference"),
            views.mutant_words(m),
            "; ".join(grouped(m["killed_by"])) or "none",
            "; ".join(grouped(m["survived"])) or "none",
        )
        for m in report["mutants"]
    ]
    headers = ("Mutant", "Breaks", "The bug behind it", "State", "Killed by", "Survived")
    return f"## Mutants: {escape(views.mutant_counts(report))}\n\n" + table(headers, rows)


def _counterexamples(report: Report) -> str:
    headers = ("Of", "Clause", "Numbers", "Found by", "Replays")
    rows = [_shown(c["id"], c["counterexample"], c.get("replays") or []) for c in views.counterexamples(report)]
    rows += [
        _shown(f"mutant {m['name']}", k["counterexample"], k.get("replays") or [], name)
        for m, name, k in views.mutant_counterexamples(report)
    ]
    return "## Counterexamples\n\n" + table(headers, rows)


def _shown(name: str, shown: Mapping[str, Any], replays: list[Mapping[str, Any]], found_by: str = "") -> list[object]:
    found = shown.get("found_by") or found_by
    replayed = "; ".join(views.replay_words(replays)) or "not replayed"
    return [name, shown.get("clause"), views.values_words(shown, 6), found, replayed]


def _traces(report: Report) -> str:
    headers = ("Subject", "Check", "Run", "Events", "Wrong")
    rows = []
    for check, name, line in stories.traces(report):
        events = " ".join(t.event if t.mark == "o" else f"{t.mark} {t.event}" for t in line.ticks)
        wrong = "; ".join(f"{i} {t.event}: {t.words}" for i, t in line.faults)
        rows.append((name, check, line.title, events, wrong))
    head = "## Event by event: the run of each counterexample, and of each mutant one"
    return f"{head}\n\n" + table(headers, rows)


def _rounding(report: Report) -> str:
    document = rounding.study(report)
    parts = ["## Rounding", escape(rounding.status(report))]
    if document is not None:
        parts += [escape(rounding.about(document)), table(rounding.TITLES, rounding.thresholds(report))]
        parts += [bullets(panel.note for panel in charts.rounding_panels(document))]
    return "\n\n".join(parts)


def _kernels(report: Report) -> str:
    parts = ["## The stub against the real kernel", bullets(rounding.devices(report))]
    parts += [table(rounding.RELY_TITLES, rounding.relies(report))]
    for document in report["kernels"]["documents"]:
        if document["status"] != FRESH:
            parts.append(escape(document["reason"]))
            continue
        found = rounding.kernels(document)
        parts += ["### Kernels", escape(rounding.ran(document))]
        parts += [bullets(f"{section}: {rounding.section_words(rows)}" for section, rows in found)]
        parts += [table(rounding.KERNEL_TITLES, [rounding.kernel_words(row) for _, rows in found for row in rows])]
    return "\n\n".join(parts)


def _reach(report: Report) -> str:
    total = len(report["obligations"])
    rows = [
        (words, meaning, f"{len(ids)} of {total}: {', '.join(ids) or 'none'}")
        for words, meaning, ids in views.strongest(report)
    ]
    made = [f"{text} ({heads(ids)})" for text, ids in views.assumptions(report)]
    head = f"## What is proved, bounded and sampled\n\n{views.SENTENCE}"
    body = table(("Reach", "Meaning", "Obligations whose strongest reach it is"), rows)
    return "\n\n".join([head, body, "### Assumptions", bullets(made)])


def _errors(report: Report) -> str:
    headers = (
        "dtype",
        "device",
        "N",
        "Rows",
        "Largest error",
        "Its bound",
        "Worst ratio",
        "Tolerance",
        "End to end",
        "Against bound",
    )
    apart = charts.apart(report)
    rows = [
        (
            *(g.dtype, g.device, g.worst["n"], g.rows, sci(g.worst["measured"]), sci(g.worst.get("bound"))),
            *(ratio(g.worst_ratio), charts.tolerated(g.worst)),
            *(sci(apart.get((g.dtype, g.device, g.worst["n"]))), g.verdict),
        )
        for g in charts.groups(charts.column(report, "accumulation"))
    ]
    parts = ["## Accumulation error against its proven bound", table(headers, rows), escape(charts.TOLERATED)]
    parts += ["## End-to-end difference (no proven bound)", _differences(report, "end_to_end")]
    parts += [
        "## Outside the assumptions (reported; neither proof nor refutation)",
        _differences(report, "outside_assumptions"),
    ]
    if found := charts.quantities(report):
        parts += ["## Other quantities, each with the limit that its harness states", _quantities(found)]
    return "\n\n".join(parts)


def _quantities(found: Sequence[charts.RowGroup]) -> str:
    headers = (
        "Quantity",
        "Device",
        "dtype",
        "Rows",
        "Nets",
        "N",
        "Nearest to its limit",
        "Its limit",
        "of",
        "Against it",
    )
    rows = [
        (
            *(q.name, q.device, q.dtype, q.rows, ", ".join(q.nets), ", ".join(map(str, q.sizes))),
            *(sci(q.worst["measured"]), sci(q.worst.get("bound"))),
            *(f"{q.worst['net']}, N = {q.worst['n']}", q.verdict),
        )
        for q in found
    ]
    return table(headers, rows)


def _differences(report: Report, name: str) -> str:
    headers = ("Compared", "Device", "dtype", "Rows", "Nets", "N", "Largest, L∞", "of", "L2 there", "Relative there")
    rows = [
        (
            *(s.name or "not stated", s.device, s.dtype, s.rows, ", ".join(s.nets), ", ".join(map(str, s.sizes))),
            *(sci(s.worst["measured"]), f"{s.worst['net']}, N = {s.worst['n']}"),
            *(sci(s.worst.get("l2")), sci(s.worst.get("relative"))),
        )
        for s in charts.summaries(charts.column(report, name))
    ]
    return table(headers, rows)


def _setting(report: Report) -> str:
    rows = [(key, compact(value)) for key, value in report["environment"].items()]
    warned = report["contract"]["warnings"]
    ran = seconds(report["seconds"])
    tail = f"{report['schema']}, gradproof {report['gradproof']}, {when(report['generated_at'])}, {ran}."
    parts = ["## Environment", table(("What", "Value"), rows), f"### {plural(len(warned), 'warning')} of the contract"]
    return "\n\n".join([*parts, bullets(warned), escape(tail)])
