"""The report on a terminal: verdict, coverage, what is broken or open. Fits 100 columns; below 90 a list replaces
the matrix. Words carry every statement, so it reads the same without colour."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from gradproof.core.outcome import Effect, Layer
from gradproof.report import views
from gradproof.report.consistency import Report, require
from gradproof.report.text import grouped, heads, one_line, plural, seconds

STYLE = {"discharged": "bold green", "broken": "bold red", "open": "bold yellow"}
MATRIX_FROM = 90
NAMED = 6


def render(report: Report, console: Console) -> None:
    """Print the report. Raises GradproofError on a wrong shape or an inconsistency, before anything is printed."""
    require(report)
    _head(report, console)
    (_matrix if console.width >= MATRIX_FROM else _list)(report, console)
    console.print(Text(f"{views.SENTENCE} Bounded: proved up to the bound and no further.", style="dim"))
    console.print(
        Text(f"Every cell is required in profile {one_line(report['profile'])} unless it says otherwise.", style="dim")
    )
    _gate(report, console)
    _attention(report, console)
    _tail(report, console)


def _style(effect: Effect | None) -> str:
    return STYLE[effect.lower()] if effect else "dim"


def indented(console: Console, shown: Text | Table, indent: int = 2) -> None:
    """Print with an indent of some columns."""
    console.print(Padding(shown, (0, 0, 0, indent), expand=False))


def _head(report: Report, console: Console) -> None:
    b, contract = views.banner(report), report["contract"]
    console.print(Rule(style=STYLE[b.tone]))
    console.print(Text(b.title, style=STYLE[b.tone]), Text(one_line(b.sentence)))
    setting = f"{contract['id']} {contract['version']} · profile {report['profile']} · run {report['run_state']}"
    console.print(Text(one_line(f"{setting} · exit code {b.exit_words}")))
    for reason in b.reasons:
        indented(console, Text(f"- {one_line(reason)}"))
    console.print()
    console.print(Text(f"Coverage: {views.obligation_counts(report)}", style="bold"))


def _matrix(report: Report, console: Console) -> None:
    """A column for every layer that the contract asks for, or plans a check in, anywhere."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False, expand=False)
    rows = views.matrix(report)
    shown = [
        layer for layer in Layer if any(c.layer is layer and c.effect is not None for _, cells in rows for c in cells)
    ]
    for title in ("obligation", *(views.LAYER_TITLE[layer] for layer in shown)):
        table.add_column(title, vertical="top")
    for ob, cells in rows:
        name = Text.assemble((one_line(ob["id"]), "bold"), f"\n{one_line(ob['property'])}\n")
        name.append(f"{ob['effect']}\n{views.cell_counts(ob)}", style=_style(Effect(ob["effect"])))
        table.add_row(name, *(_cell(c) for c in cells if c.layer in shown))
        table.add_section()
    console.print(table)


def _cell(cell: views.CellView) -> Text:
    if cell.effect is None:
        return Text("no check planned", style="dim")
    text = Text(f"{views.SYMBOL[cell.effect]} {cell.effect}", style=_style(cell.effect))
    text.append(f"\n{cell.outcomes}", style="default not bold")
    if cell.effect is Effect.DISCHARGED:
        text.append(f"\n{cell.reach}", style="default not bold")
    if not cell.required:
        text.append("\nnot required", style="dim not bold")
    return text


def _list(report: Report, console: Console) -> None:
    for ob, cells in views.matrix(report):
        head = Text.assemble((one_line(ob["id"]), "bold"), f" {one_line(ob['property'])}: ")
        head.append(f"{ob['effect']}, {views.cell_counts(ob)}", style=_style(Effect(ob["effect"])))
        console.print(head)
        for cell in cells:
            symbol = views.SYMBOL[cell.effect] if cell.effect else "-"
            line = Text(f"{symbol} {cell.layer}: ", style=_style(cell.effect))
            line.append(cell.words, style=_style(cell.effect))
            indented(console, line)


def _gate(report: Report, console: Console) -> None:
    gate = report["gate"] or {}
    if not gate:
        return
    console.print()
    console.print(Text(f"Gate {one_line(gate.get('id'))}", style="bold"))
    for criterion in gate.get("criteria", []):
        words = views.criterion_words(criterion)
        line = Text(f"{words} ", style=_style(views.criterion_effect(report, criterion)))
        line.append(one_line(f"{criterion['name']} ({', '.join(criterion['obligations'])})"), style="default not bold")
        if words != "MET":
            line.append(f": {one_line(criterion.get('why', ''))}", style="default not bold")
        indented(console, line)
    seeded = gate.get("falsification") or {}
    line = Text(f"Seeded bug “{one_line(seeded.get('text', 'none'))}”: ")
    indented(console, line.append(views.seeded_words(gate), style=_style(views.seeded_effect(gate))))
    for waiver in report.get("waivers") or []:
        indented(console, Text(one_line(views.waiver_words(waiver)), style=_style(Effect.OPEN)))


def _attention(report: Report, console: Console) -> None:
    rows = views.attention(report)
    if not rows:
        return
    console.print()
    console.print(Text("Broken and open checks", style="bold"))
    for a in rows:
        need = "required" if a.required else "not required"
        line = Text(f"{views.SYMBOL[a.effect]} {a.effect}: {a.outcome}", style=_style(a.effect))
        count = plural(len(a.checks), "check")
        line.append(f" · {count} in {a.layer}, {need} · {one_line(a.reason)}", style="default not bold")
        indented(console, line)
        names = grouped(a.checks) if a.required else heads(a.checks).split(", ")
        more = f"; and {len(names) - NAMED} more" if len(names) > NAMED else ""
        indented(console, Text(one_line("; ".join(names[:NAMED]) + more), style="dim"), 4)


def _tail(report: Report, console: Console) -> None:
    console.print()
    console.print(Text(f"Checks: {views.check_counts(report)}"))
    console.print(Text(f"Mutants: {views.mutant_counts(report)}"))
    for m in report["mutants"]:
        if m["survived"]:
            survived = f"SURVIVED: {m['name']} in {', '.join(grouped(m['survived']))}"
            indented(console, Text(one_line(survived), style=STYLE["broken"]))
    untried = [m["name"] for m in report["mutants"] if views.mutant_words(m) == "NOT TRIED"]
    if untried:
        indented(console, Text(one_line(f"NOT TRIED: {', '.join(untried)}"), style=STYLE["open"]))
    warned = report["contract"]["warnings"]
    console.print(Text(f"{plural(len(warned), 'warning')} of the contract; {seconds(report['seconds'])} in all"))
    for warning in warned:
        indented(console, Text(f"- {one_line(warning)}", style="dim"))
