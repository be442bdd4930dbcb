"""The ledger on a terminal, as Markdown, as one self-contained HTML page, and as JSON. Text from it is escaped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gradproof.core.outcome import EXIT_MEANING, Exit
from gradproof.core.workspace import PACKAGE
from gradproof.report.text import clean, grouped, one_line, plural, when

if TYPE_CHECKING:
    from rich.console import Console

    from gradproof.extras.claims.document import Claims, Named, Row

HERE = PACKAGE / "report" / "formats"
STYLE = {"DISCHARGED": "green", "BROKEN": "bold red", "OPEN": "yellow"}
EFFECT = {"DISCHARGED": "as expected", "BROKEN": "NOT AS EXPECTED", "OPEN": "open"}
SHORT = 160
TABLE_FROM = 120


def as_json(made: Claims) -> str:
    """JSON text with a final newline, format gradproof-claims/1."""
    data = made.model_dump(mode="json", by_alias=True)
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def headline(made: Claims) -> str:
    """What the ledger comes to, in one line."""
    t = made.totals
    parts = [f"{t.as_expected} as expected", f"{t.broken} not as expected", f"{t.open} open"]
    counted = f"{t.counted} count: each names a check or a figure that can turn red"
    return f"{plural(t.rows, 'claim')}: {', '.join(parts)}; {counted} (exit {made.code}: {_exit(made)})"


def _exit(made: Claims) -> str:
    return {"met": "every verdict is as expected", "broken": "a verdict is not as expected"}.get(
        made.exit, EXIT_MEANING[Exit(made.exit)]
    )


def found(row: Row) -> Iterator[str]:
    """What was found beside the verdict: figures, bounds, counterexamples."""
    for figure in row.figures:
        yield f"{figure.value or 'no figure'} (claimed {figure.said})"
    if row.verdict == "PROVED within a bound":
        yield from dict.fromkeys(
            f"{b.name} = {b.value}" for c in row.checks if c.answer == "proved within a bound" for b in c.bounds
        )
    for check in row.checks:
        if check.counterexample is not None:
            yield f"counterexample of {check.id}: {check.counterexample}"


def ids(row: Row) -> list[str]:
    """Ids of the checks and origins of the figures, a shared head once."""
    return [*grouped(c.id for c in row.checks), *dict.fromkeys(f.origin for f in row.figures)]


def again(row: Row) -> list[str]:
    """The commands that decide the row again, each once."""
    return list(dict.fromkeys(command for command in (*(c.again for c in row.checks), *(f.again for f in row.figures))))


def terminal(made: Claims, console: Console, *, details: bool) -> None:
    """A table, below TABLE_FROM columns a list; with `details` every row in full, with its commands."""
    from rich.text import Text

    if details:
        for row in made.rows:
            for line in _told(row):
                console.print(Text(line, style=STYLE[row.effect] if line.startswith(row.id) else ""), soft_wrap=True)
            console.print()
    else:
        (_table if console.width >= TABLE_FROM else _list)(made, console)
        console.print(Text("Run again: gradproof claims -k ID shows the commands of a row."))
    for row in made.rows if not details else ():
        if row.reason:
            console.print(Text(f"{row.id}: {short(row.reason)}", style=STYLE[row.effect]))
    console.print(Text(headline(made), style="bold"))


def _list(made: Claims, console: Console) -> None:
    from rich.padding import Padding
    from rich.text import Text

    for row in made.rows:
        figures = [f.value for f in row.figures if f.value]
        console.print(Text(" ".join([row.id, _verdict(row), *(f"({v})" for v in figures)]), style=STYLE[row.effect]))
        console.print(Padding(Text(short(row.claim)), (0, 0, 0, 2)))
        console.print(Padding(Text(", ".join(_heads(row)), style="dim"), (0, 0, 0, 2)))


def _table(made: Claims, console: Console) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    for title in ("id", "claim", "verdict", "figure", "checks"):
        table.add_column(title, vertical="top", no_wrap=title != "claim")
    for row in made.rows:
        verdict = Text(_verdict(row).replace(", ", "\n"), style=STYLE[row.effect])
        figure = "\n".join(f.value for f in row.figures if f.value)
        cells = (short(row.claim), verdict, Text(clean(figure)), Text("\n".join(_heads(row))))
        table.add_row(row.id, *cells)
    console.print(table)


def short(text: str) -> str:
    """One line of at most SHORT characters."""
    words = one_line(text)
    return words if len(words) <= SHORT else f"{words[: SHORT - 1]}…"


def _heads(row: Row) -> list[str]:
    """Ids without devices and dtypes, each once."""
    return list(dict.fromkeys(name.partition(" @ ")[0] for name in ids(row)))


def _told(row: Row) -> Iterator[str]:
    yield f"{row.id}  {row.verdict}  ({EFFECT[row.effect]})"
    yield f"  claim     {one_line(row.claim)}"
    yield f"  source    {one_line(row.title)}"
    yield f"  form      {one_line(row.form)}"
    for name, text in (("because", row.contradiction), ("why", row.why), ("reason", row.reason)):
        if text:
            yield f"  {name:9} {one_line(text)}"
    yield from (f"  found     {one_line(text)}" for text in found(row))
    yield from (f"  check     {_check(check)}" for check in row.checks)
    for f in row.figures:
        on = f", measured on {one_line(f.on)}" if f.on else ""
        yield f"  figure    {f.origin} at {one_line(f.place)}: {f.answer}{on}"
    yield from (f"  again     {command}" for command in again(row))


def _check(check: Named) -> str:
    part = {"checks": "", "refuted_by": ", expected to be refuted", "contradicted_by": ", which the claim excludes"}
    return f"{check.id} is {check.outcome}{part[check.part]}: {check.answer}"


def markdown(made: Claims) -> str:
    """The whole ledger, a table for each source and what was found below it."""
    from gradproof.report.formats.markdown import bullets, escape, table

    head = f"Made {when(made.made_at)} by gradproof {made.gradproof} from the evidence at hand; no verdict is written."
    parts = ["# Claims of the field", escape(headline(made)), escape(head)]
    parts.append(table(("Verdict", "Claims"), [(v, n) for v, n in made.totals.verdicts.items()]))
    for rows in by_source(made):
        parts.append(f"## {escape(rows[0].title)}")
        lines = [(r.id, r.claim, _verdict(r), "; ".join(_figures(r)), ", ".join(ids(r))) for r in rows]
        parts.append(table(("Id", "Claim", "Verdict", "Figure", "Checks"), lines))
        parts.append(bullets(line for row in rows for line in _below(row)))
    parts += ["## Run again", table(("Id", "Commands"), [(r.id, "; ".join(again(r))) for r in made.rows if again(r)])]
    return "\n\n".join(parts) + "\n"


def _verdict(row: Row) -> str:
    plain = row.effect == "DISCHARGED" or (row.verdict, row.effect) == ("OPEN", "OPEN")
    return row.verdict if plain else f"{row.verdict}, {EFFECT[row.effect]}"


def _figures(row: Row) -> Iterator[str]:
    yield from (f.value for f in row.figures if f.value)


def _below(row: Row) -> Iterator[str]:
    """A line of what stands behind a row."""
    words = [f"form: {row.form}", *found(row)]
    words += [f"because {row.contradiction}"] if row.contradiction else []
    words += [f"why: {row.why}"] if row.why else []
    words += [f"expected: {row.expect}; {short(row.reason)}"] if row.reason else []
    yield f"{row.id}. {'. '.join(words)}"


def by_source(made: Claims) -> list[Sequence[Row]]:
    """Rows of each source, in the ledger's order of sources."""
    groups = [[row for row in made.rows if row.source == name] for name in made.sources]
    return [group for group in groups if group]


def html(made: Claims) -> str:
    """One page: no script, no external resource, everything escaped."""
    from markupsafe import Markup

    from gradproof.report.formats.html import environment

    template = environment().get_template("claims.html.j2")
    return template.render(
        made=made,
        headline=headline(made),
        groups=by_source(made),
        tone={"met": "discharged", "broken": "broken"}.get(made.exit, "open"),
        found=found,
        ids=ids,
        again=again,
        words=EFFECT,
        short=short,
        css=Markup((HERE / "report.css").read_text(encoding="utf-8")),
    )


FORMATS = {"json": as_json, "md": markdown, "html": html}
