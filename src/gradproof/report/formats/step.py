"""The whole verification of a real step, for people: Markdown, which a terminal shows, and plain text of it.

`brief` prints a few lines of it.
A word of success stands only where the outcome is HOLDS, with its reach; what was not decided is said to be so.
Colour never carries a statement alone. Results with the same outcome, reason and place are printed once.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from gradproof.core.outcome import EXIT_MEANING, MEANING, Effect, Exit, Outcome
from gradproof.core.timeline import as_lines, from_json
from gradproof.report import text as fmt
from gradproof.report.text import clean, compact, near, one_line, plural, seconds, sentence, value
from gradproof.report.views import SYMBOL
from gradproof.shadow.locations import Location
from gradproof.shadow.result import OBLIGATIONS, Result, Verification, named, step_effect

UNDECIDED = "Not decided: this is neither a proof nor a counterexample."
EQUAL = "GA-EQ-001"
ROWS, COLUMNS, ITEMS, WORDS = 12, 8, 12, 120


@dataclass(frozen=True)
class Block:
    """Results that say the same thing of several obligations."""

    results: tuple[Result, ...]

    @property
    def first(self) -> Result:
        """The result that stands for the others."""
        return self.results[0]

    @property
    def effect(self) -> Effect:
        """What the outcome does to the obligations."""
        return step_effect(self.first.outcome)

    @property
    def names(self) -> str:
        """The obligations' ids, each with its name."""
        return "; ".join(named(result.obligation) for result in self.results)

    @property
    def says(self) -> str:
        """What the obligation says, where the block has only one."""
        return OBLIGATIONS.get(self.first.obligation, "") if len(self.results) == 1 else ""

    @property
    def state(self) -> str:
        """The outcome; for what was not decided, that it was not."""
        if not self.first.applies:
            return f"{self.first.outcome}, nothing to judge"
        return f"{self.first.outcome}" + (", not decided" if self.effect is Effect.OPEN else "")

    @property
    def reach(self) -> str:
        """On what a result that holds was established; empty for every other."""
        if self.effect is not Effect.DISCHARGED:
            return ""
        r = self.first
        return (r.reach or "its reach was not stated") + (f" (domain {r.domain})" if r.domain else "")


def blocks(verification: Verification) -> list[Block]:
    """What is broken, then what is open, then what holds; what is open for one and the same reason is gathered."""
    made: dict[Any, list[Result]] = {}
    for i, r in enumerate(verification.results):
        alike = (r.outcome, r.reason, r.location, r.help) if step_effect(r.outcome) is Effect.OPEN else i
        made.setdefault(alike, []).append(r)
    first = (Effect.BROKEN, Effect.OPEN, Effect.DISCHARGED)
    return sorted((Block(tuple(results)) for results in made.values()), key=lambda block: first.index(block.effect))


def title(verification: Verification) -> str:
    """The verdict in a few words."""
    effect = step_effect(verification.outcome)
    words = {Effect.DISCHARGED: "HOLDS", Effect.BROKEN: str(verification.outcome), Effect.OPEN: "NOT DECIDED"}
    if verification.config.get("failed") and verification.outcome is Outcome.ERROR:
        return "ERROR"
    return words[effect] if effect is not Effect.OPEN else f"{words[effect]} ({verification.outcome})"


OF_STEPS = {
    Outcome.UNKNOWN: "some obligations were not decided; each of them says why",
    Outcome.NOT_RUN: "these settings do not show some obligations; each of them says why",
}
"""What an outcome means of a step, where it means something else of a check of a contract."""


def summary(verification: Verification) -> str:
    """How many hold, what was not decided, and the exit code in words."""
    v = verification
    holds = sum(r.outcome is Outcome.HOLDS for r in v.results)
    counted = f"{holds} of {plural(sum(r.applies for r in v.results), 'obligation')} hold."
    if v.exit is Exit.MET:
        judged = "every obligation" + ("" if all(r.applies for r in v.results) else " that was judged")
        words = f"{judged} holds" + (" but those that are allowed" if v.allowed else "")
        said = "Each holds on the reach that is stated with it."
    else:
        words, said = EXIT_MEANING[v.exit], sentence(meaning(v))
    apart = [sentence(f"{named(r.obligation)}, was not judged: {r.reason}") for r in v.results if not r.applies]
    return " ".join([counted, f"{said[0].upper()}{said[1:]}", *_open(v), *apart, f"Exit code {v.code}: {words}."])


def meaning(v: Verification) -> str:
    """What the worst outcome says. A refutation by the events or the weights of one run is not replayed."""
    refuted = [r for r in v.results if r.outcome is Outcome.REFUTED]
    if not refuted and (failed := v.config.get("failed")):
        return f"the script failed {failed}"
    if refuted and not any(numbers(r) for r in refuted):
        return "the run breaks an obligation, at the line that is shown with it"
    if v.outcome is Outcome.REFUTED and v.config.get("fake"):
        return "the weights of the samples are wrong; no numbers were computed, so none were replayed"
    if refuted and not any("replayed" in (r.counterexample or {}) for r in refuted if numbers(r)):
        return "the weights of the samples are wrong in this run; no counterexample was replayed"
    return OF_STEPS.get(v.outcome, MEANING[v.outcome])


def _open(v: Verification) -> Iterator[str]:
    """What was not decided: the equality with the full batch first, and why where the reason is its own."""
    undecided = [b for b in blocks(v) if b.effect is Effect.OPEN and b.first.applies]
    found = sorted(undecided, key=lambda b: b.first.obligation != EQUAL)
    names = [named(r.obligation) for b in found for r in b.results]
    if names and len(found[0].results) == 1:
        yield sentence(f"{names.pop(0)}, was not decided: {found[0].first.reason}")
    if names:
        yield f"Not decided: {'; '.join(names)}."
    if v.allow_undecided:
        yield f"Allowed to be undecided: {'; '.join(map(named, v.allow_undecided))}."


def setting(verification: Verification) -> str:
    """The numbers that the step was called with, on one line."""
    c = verification.config
    known = {"accum_steps": "accum-steps", "micro_batch": "micro-batch", "windows": "windows", "tail": "tail"}
    named = [f"{shown} {one_line(c[key])}" for key, shown in known.items() if c.get(key) is not None]
    shown_already = {*known, "inferred", *(key for key, one in c.items() if one is None)}
    rest = [f"{one_line(k).replace('_', '-')} {compact(v, 80)}" for k, v in c.items() if k not in shown_already]
    rest += ["accum-steps as the run shows"] if c.get("inferred") else []
    return " · ".join([*named, *rest])


def shown(location: Location) -> str:
    """file:line, relative to the working directory where it lies below it."""
    inside = f" in {one_line(location.function)}" if location.function else ""
    return one_line(f"{near(location.file)}:{location.line}") + inside


def quoted(location: Location) -> str:
    """The source line as it is in the file now; empty when it cannot be read."""
    linecache.checkcache(location.file)
    return one_line(linecache.getline(location.file, location.line))


def facts(verification: Verification) -> Iterator[tuple[str, list[str]]]:
    """What the results rest on, under headings; where something was recorded, an empty heading says none."""
    for name, items in _facts(verification):
        if items or verification.operators or verification.events:
            yield name, items
    if not verification.operators and not verification.events:
        yield "Recorded", ["nothing"]


def _facts(v: Verification) -> Iterator[tuple[str, list[str]]]:
    if v.monitoring:
        from gradproof.shadow.tape import monitor_report

        yield "Monitoring", list(monitor_report.monitoring_lines(v.monitoring))
    domains = sorted({r.domain for r in v.results if r.domain})
    yield "Domains", domains
    yield "Shapes", [f"{name} {shape}" for name, shape in v.shapes.items()]
    yield "Paths covered", v.paths
    yield "Paths not covered", v.uncovered
    called = plural(sum(v.operators.values()), "time")
    yield "Operators", [f"{plural(len(v.operators), 'operator')}, called {called}"] if v.operators else []
    yield "Operators taken as arbitrary values", v.havocked
    yield "Judged", [v.windows] if v.windows else []
    yield "Taken", v.taken
    yield "Assumptions", v.assumptions
    yield "Notes", v.notes
    yield "Versions", [", ".join(f"{name} {version}" for name, version in v.versions.items())] if v.versions else []
    spent = [f"{name} {seconds(float(s))}" for name, s in v.seconds.items()]
    yield "Time", [", ".join(spent)] if spent else []


def tables(verification: Verification) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Tables with a title: effective weights, rounding bounds."""
    if verification.weights:
        yield "Effective weights", list(verification.weights)
    if verification.rounding:
        yield "Rounding bounds", [bounded(row) for row in verification.rounding]


def bounded(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """One bound for people: the tensor, the bound and what was measured, and the operators that add most."""
    if not {"quantity", "param", "bound", "top"} <= row.keys():
        return row
    parts = [f"{part['share']:.0%} {part['op'].split('.')[1]} ({Path(part['location']).name})" for part in row["top"]]
    return {
        "tensor": f"{row['quantity']} {row['param']}, window {row['window']}",
        "dtype": row["dtype"],
        "bound": row["reason"] or "none" if row["bound"] is None else row["bound"],
        "measured": "unknown" if row["measured"] is None else row["measured"],
        "most from": ", ".join(parts) or "nothing",
    }


def cell(item: Any) -> str:
    """One value of a row: long exact numbers as three digits."""
    if not isinstance(item, str):
        return compact(item, 60)
    short = value(item)
    return short if short.startswith("≈") else value(item, WORDS)


def pairs(data: Mapping[str, Any] | None, head: str = "") -> Iterator[tuple[str, str]]:
    """A nested mapping as flat rows of name and value; lists of plain values stay one row."""
    for key, item in (data or {}).items():
        name = f"{head}{key}"
        if isinstance(item, Mapping):
            yield from pairs(item, f"{name}.")
        elif isinstance(item, list | tuple) and any(isinstance(i, Mapping) for i in item):
            for i, part in enumerate(item):
                yield from pairs(part if isinstance(part, Mapping) else {"": part}, f"{name}[{i}].")
        else:
            listed = isinstance(item, list | tuple)
            yield name, compact(", ".join(cell(i) for i in item), 200) if listed else _long(item)


def _long(item: Any) -> str:
    """A single value: words in full, a long exact number as three digits."""
    words = one_line(item) if isinstance(item, str) else compact(item)
    return words if " " in words else value(words)


def numbers(result: Result) -> Mapping[str, Any] | None:
    """The counterexample without the run that shows it."""
    shown = result.counterexample
    return None if shown is None else {name: value for name, value in shown.items() if name != "trace"}


def run_of(result: Result) -> list[str]:
    """The run that shows a counterexample, one event a line under a heading; nothing where there is none."""
    trace = (result.counterexample or {}).get("trace")
    if not trace:
        return []
    try:
        line = from_json(trace)
    except ValueError:
        return ["The run that shows it cannot be read."]
    return [one_line(f"Events, {line.title}:"), *(f"  {clean(row)}" for row in as_lines(line))]


def cut(items: Iterable[Any], most: int) -> tuple[list[Any], int]:
    """The first of some items, and how many more there are."""
    found = list(items)
    return found[:most], max(0, len(found) - most)


def terminal(verification: Verification, console: Console) -> None:
    """Print the verification; where it goes to no terminal, as plain text of which nothing is wrapped."""
    fmt.draw(render_markdown(verification), console)


def text(verification: Verification) -> str:
    """The Markdown without its escapes and bold type, a sentence a line."""
    return fmt.plain(render_markdown(verification))


def render_markdown(verification: Verification) -> str:
    """The verification as Markdown for a CI step summary. Everything that is not fixed text is escaped."""
    v = verification
    parts = [f"# {fmt.escape(title(v))}: {fmt.escape(v.subject)}", fmt.escape(summary(v))]
    parts += [fmt.escape(setting(v)), *(_section(block) for block in blocks(v))]
    if not v.results:
        parts.append(UNDECIDED)
    for name, rows in tables(v):
        kept, more = cut(rows, 10 * ROWS)
        heads = list(dict.fromkeys(key for row in kept for key in row))[:COLUMNS]
        body = [[cell(row[h]) if h in row else "" for h in heads] for row in kept]
        parts += [f"## {name}", fmt.table([fmt.escape(h) for h in heads], body)]
        parts += [f"And {more} more in the JSON form."] if more else []
    rest = [
        f"**{name}:**\n\n{fmt.bullets(items)}" if len(items) > 1 else f"**{name}:** {fmt.escape(*items or ['none'])}"
        for name, items in facts(v)
    ]
    return "\n\n".join([*parts, "## What this rests on", *rest]) + "\n"


def _section(block: Block) -> str:
    r = block.first
    parts = [f"## {SYMBOL[block.effect]} {fmt.escape(block.names)}: {fmt.escape(block.state)}"]
    reach = f"Reach: {block.reach}" if block.reach else ""
    parts += [fmt.escape(sentence(words)) for words in (block.says, reach, r.reason) if words]
    if block.effect is Effect.OPEN:
        parts.append(UNDECIDED)
    if r.location is not None and r.location.file:
        line = quoted(r.location)
        parts.append(f"At {fmt.escape(shown(r.location))}" + (f": {fmt.escape(line)}" if line else ""))
    for name, data in (("Counterexample", numbers(r)), ("Detail", r.details)):
        kept, more = cut(pairs(data), 10 * ITEMS)
        if kept:
            parts.append(fmt.table((name, "Value"), kept))
        if more:
            parts.append(f"And {more} more in the JSON form.")
    if drawn := run_of(r):
        parts.append("\n".join(["```text", *(line.replace("`", "'") for line in drawn), "```"]))
    if r.help:
        parts.append(f"**Help:** {fmt.escape(sentence(r.help))}")
    return "\n\n".join(parts)
