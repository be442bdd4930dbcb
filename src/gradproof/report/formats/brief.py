"""The verification of a real step in a few lines: at most 12 where it holds and 25 elsewhere, at 80 columns or more.

The layout is that of rustc and ruff: the obligation, the line of the source with what is wrong underlined, found and
expected, help. What was not decided and what was not judged follow. `step` prints the whole. In a pipe a sentence is
one line, of any length; a terminal wraps at words. A reach is never shortened: cut, it would say more than was shown.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console

from gradproof.core.outcome import Effect, Exit, Outcome
from gradproof.report.formats.step import EQUAL, UNDECIDED, Block, blocks, cell, numbers, quoted, shown, title
from gradproof.report.text import Line, one_line, plural, printed, value
from gradproof.report.views import STYLE
from gradproof.shadow.result import OBLIGATIONS, SEVERITY, Result, Verification, named, step_effect

WIDTH, NARROW = 100, 80
"""Columns at which the lines are counted: those of the terminal, but no more and no fewer than these."""
HELD, OTHER = 12, 25
"""The most lines of a verification that holds, and of any other."""
SHOWN = 4
"""Weights, or numbers, that one line shows."""
OPTION = "--windows-at"
"""The option of a help that is never cut."""
MORE = "--verbose shows everything, --format json has all numbers"
CAUSES = ("GA-INV-002", "GA-INV-003", "GA-INV-005", "GA-INV-004", "GA-DATA-001", "GA-SYNC-001", "GA-TOK-001", EQUAL)
"""The most serious refutation first: what makes a gradient wrong stands before the gradient that it makes wrong."""
USUAL: Mapping[str, str] = {
    "real and whole numbers: ": "",
    "the laws of ": "torch's operators follow their laws",
    "0 operators are uninterpreted": "",
    "no denominator is zero": "no denominator is zero",
    "both runs are given the same": "the full batch has the same samples and draws",
    "a sample is a row of": "a sample is a row of a batch",
    "plain numbers, as N": "plain numbers are those of the recorded windows",
    "the learning rate that a script gives": "the learning rate is the full batch's",
    "each window has as many": "windows have as many micro-batches as these",
}
"""How an assumption that every verification has begins, and what a few words say of it. All others are shown whole."""


def lines(verification: Verification, spent: int = 0, more: str = MORE, width: int = WIDTH) -> list[Line]:
    """The verification in a few lines, counted at this width.

    `spent`: as many lines are printed beside them; `more`: where there is more.
    """
    v = verification
    holds = v.outcome is Outcome.HOLDS
    made = [*(_held(v) if holds else _not_held(v)), _more(v, more)]
    most = (HELD if holds else OTHER) - spent
    while (over := sum(line.height(width) for line in made) - most) > 0:
        soft = [line for line in made if not line.firm]
        tall = max(soft, key=lambda line: line.height(width), default=None)
        if tall is not None and (height := tall.height(width)) > 1:
            made[made.index(tall)] = tall.cut(max(1, height - over), width)
        elif some := [line for line in made if line.short is not None]:
            made[made.index(some[0])] = some[0].short or some[0]
        elif soft:
            made.remove(soft[-1])
        else:
            break
    return made


def _held(v: Verification) -> Iterator[Line]:
    """What holds and how far, what was not judged, what is assumed, and what to do next."""
    held = [r for r in v.results if r.outcome is Outcome.HOLDS]
    said = f"{counted(v)}{_length(v)}"
    yield Line(f"{one_line(v.subject)}: {said}", f"{title(v)} ", STYLE[Effect.DISCHARGED], firm=True)
    yield from _given(v)
    ordered = sorted(held, key=lambda r: [one.reach for one in held].index(r.reach))
    for reach, some in groupby(ordered, key=lambda r: r.reach):
        yield _reaching(near(reach), list(some))
    yield Line("; ".join(not_judged(v)), "not judged: ")
    if v.rounding:
        bounded = sum(row.get("bound") is not None for row in v.rounding)
        tensors = plural(len(v.rounding), "tensor")
        yield Line(f"{bounded} of {tensors} bounded; --verbose shows the bounds", "rounding: ")
    if assumed := _assumed(v):
        yield Line("; ".join(assumed), "assumed: ")
    if said := _next(v):
        yield Line(said, "next: ")


def _given(v: Verification) -> Iterator[Line]:
    """The windows that are judged, and what is taken for so: no text that is cut."""
    if v.windows:
        yield Line(one_line(v.windows), "judged: ", "", 2, firm=True)
    if v.taken:
        yield Line("; ".join(map(near, v.taken)), "taken: ", "", 2, firm=True)


def not_judged(v: Verification) -> list[str]:
    """What a verification says nothing of."""
    apart = [] if v.rounding else ["the rounding of floats"]
    apart += [f"{named(r.obligation)}: {near(r.reason)}" for r in v.results if not r.applies]
    return [*apart, *map(near, v.uncovered)]


def _reaching(reach: str, results: Sequence[Result]) -> Line:
    """What holds on one reach. In short: ids alone, and the lines that read values are not named."""
    ids = ", ".join(one_line(r.obligation) for r in results)
    head, read, _ = reach.partition(" (values read")
    short = Line(ids, f"for {head}{' (values read at lines that --verbose names)' if read else ''}: ", "", 2, firm=True)
    return Line(_names(results), f"for {reach or 'a reach that was not stated'}: ", "", 2, firm=True, short=short)


def _not_held(v: Verification) -> Iterator[Line]:
    """The most serious result in full, the other refutations, then what is open, and how many hold."""
    ordered = urgent(v)
    effect = step_effect(v.outcome)
    yield Line(f"{one_line(v.subject)}{_length(v)}", f"{title(v)} ", STYLE[effect], firm=True)
    yield from _given(v) if effect is Effect.OPEN else ()
    if not ordered or ordered[0].effect is not Effect.DISCHARGED:  # as of a script that failed at its end
        yield from _whole(ordered[0], v) if ordered else [Line(UNDECIDED)]
    for block in ordered[1:]:
        if block.effect is Effect.BROKEN:
            yield Line(
                f"{_names(block.results)}{_at(block)}: {near(block.first.reason)}",
                f"{block.first.outcome.lower()}: ",
                STYLE[block.effect],
            )
        elif block.effect is Effect.OPEN and block.first.applies:
            option = f"; {block.first.help}" if OPTION in block.first.help else ""
            said = f"{_names(block.results)}: {near(block.first.reason)}{option}"
            yield Line(said, f"{_open(block, v)}: ", firm=bool(option))
    for result in v.results:
        if not result.applies:
            yield Line(f"{named(result.obligation)}: {near(result.reason)}", "not judged: ")
    held = [r for r in v.results if r.outcome is Outcome.HOLDS]
    names = f": {_names(held)}" if held else ""
    yield Line(f"{counted(v)}{names}", "also: ")


def counted(v: Verification) -> str:
    """How many obligations hold."""
    held = sum(r.outcome is Outcome.HOLDS for r in v.results)
    if v.outcome is not Outcome.HOLDS:
        return f"{held} of {plural(sum(r.applies for r in v.results), 'obligation')} hold"
    judged = "" if held == len(v.results) else " that was judged"
    return f"every obligation{judged} holds ({held} of {len(v.results)})"


def urgent(v: Verification) -> list[Block]:
    """The blocks, the most serious first: what causes another stands before it."""
    return sorted(blocks(v), key=_urgency)


def _urgency(block: Block) -> tuple[int, int, int]:
    """The place of a block: by what it does to its obligations, how severe it is, and what causes what."""
    order = (Effect.BROKEN, Effect.OPEN, Effect.DISCHARGED)
    severe = 0 if block.effect is Effect.DISCHARGED else SEVERITY.index(block.first.outcome)
    causes = CAUSES if block.effect is Effect.BROKEN else (EQUAL, *CAUSES)
    places = [causes.index(r.obligation) if r.obligation in causes else len(causes) for r in block.results]
    return order.index(block.effect) + 3 * (not block.first.applies), severe, min(places)


def _whole(block: Block, v: Verification) -> Iterator[Line]:
    """A block in full: names, the line of the source underlined, what is wrong, found and expected, help."""
    r, style = block.first, STYLE[block.effect]
    every = len(block.results) == len(v.results) > 1
    yield Line("", f"all {len(v.results)} obligations" if every else _names(block.results), firm=True)
    if r.location is not None and r.location.file:
        yield Line(shown(r.location), "--> ", "bold blue", 2, firm=True)
        if line := quoted(r.location):
            head = f"{r.location.line} | "
            yield Line(line, head, "blue", 2, firm=True, source=True)
            marks = "^" * len(line.partition(" # ")[0])
            yield Line("", f"{' ' * (len(head) - 2)}| {marks}", style, 2, firm=True, source=True)
    broken = block.effect is Effect.BROKEN
    yield Line(near(r.reason), "wrong: " if broken else "not decided: ", style, 2)
    if broken:
        rows = zip(("found: ", "expected: "), difference(r, v), strict=True)
        yield from (Line(text, label, indent=2) for label, text in rows if text)
    help = f"gradproof explain {r.outcome} says what it means{_allowing(v)}"
    if r.help or (not broken and r.outcome is not Outcome.ERROR):
        yield Line(one_line(r.help or help), "help: ", "bold green", 2, firm=OPTION in r.help)


def _allowing(v: Verification) -> str:
    """What lets stand all that is undecided; nothing where that would not end with exit code 0."""
    names = [r.obligation for r in v.results if r.applies and step_effect(r.outcome) is Effect.OPEN]
    named = " ".join(f"--allow-undecided {name}" for name in names)
    return f"; {named} lets it stand" if replace(v, allow_undecided=names).exit is Exit.MET else ""


def difference(r: Result, v: Verification) -> tuple[str, str]:
    """What was found where an obligation is refuted, and what was expected: weights, numbers, or its own words."""
    return _weights(r, v) or _numbers(r) or ("", OBLIGATIONS.get(r.obligation, ""))


def _weights(r: Result, v: Verification) -> tuple[str, str] | None:
    """The weights of the samples in the first window in which one is wrong, and the right ones.

    None without them, where some samples have none, and where they are no short fractions: then numbers say more.
    """
    if r.obligation != EQUAL or any(not {"window", "sample", "weight", "expected"} <= row.keys() for row in v.weights):
        return None
    window = next((int(row["window"]) for row in v.weights if row.get("ok") is False), -1)
    rows = [row for row in v.weights if row["window"] == window]
    found = alike(rows, "weight")
    whole = len(rows) >= int(v.config.get("accum_steps", 0)) * int(v.config.get("micro_batch", 0))
    if not rows or (not whole and not v.config.get("tail")) or any(by.startswith("≈") for by, _ in found):
        return None
    expected = [by for by, _ in alike(rows, "expected")]
    if len(found) == 1:
        return f"each of the {len(rows)} samples of window {window + 1} weighs {found[0][0]}", ", ".join(expected)
    each = [f"{spans(samples)} {'weigh' if len(samples) > 1 else 'weighs'} {by}" for by, samples in found[:SHOWN]]
    more = f", and {len(found) - SHOWN} more weights" if len(found) > SHOWN else ""
    return f"in window {window + 1}, {', '.join(each)}{more}", ", ".join(expected[:SHOWN])


def alike(rows: Sequence[Mapping[str, Any]], key: str) -> list[tuple[str, list[int]]]:
    """The weights of some rows, each with its samples."""
    made: dict[str, list[int]] = {}
    for row in rows:
        made.setdefault(value(row[key]), []).append(row["sample"])
    return list(made.items())


def spans(samples: Sequence[int]) -> str:
    """Samples in words: `samples 0 to 3`, `sample 5`, `7 samples`."""
    first, last = min(samples), max(samples)
    if last - first + 1 != len(samples):
        return plural(len(samples), "sample")
    return f"sample {first}" if first == last else f"samples {first} to {last}"


def _numbers(r: Result) -> tuple[str, str] | None:
    """The first numbers of a counterexample, by micro-batches and by the full batch; None where it has none."""
    data = numbers(r) or {}
    pair = [data.get("accumulated"), data.get("full_batch")]
    if not all(isinstance(one, list) and one for one in pair):
        return None
    found, expected = (", ".join(cell(one) for one in each[:SHOWN]) for each in pair)  # type: ignore[index]
    return f"{found} by micro-batches", f"{expected} by the full batch"


def _assumed(v: Verification) -> list[str]:
    """The assumptions: those that are this step's own first, as they are, then the usual ones in a few words."""
    known = {text: words for text in v.assumptions for start, words in USUAL.items() if text.startswith(start)}
    own = [near(text) for text in v.assumptions if text not in known]
    return [*own, *(words for words in known.values() if words)]


def _length(v: Verification) -> str:
    """Where a script failed, N where it was read from a run, and after how many windows --stop-after ended the run."""
    n, until, failed = (v.config.get(key) for key in ("accum_steps", "stopped_after", "failed"))
    said = f": the script failed {near(str(failed))}" if failed else ""
    said += f"; N = {n}, as the run shows" if v.config.get("inferred") and n else ""
    return f"{said}; stopped after {plural(until, 'window')}" if until else said


def _next(v: Verification) -> str:
    """What to run after a success; nothing where gradproof was called from Python."""
    if "inferred" in v.config:
        return "gradproof check FILE.py:FUNCTION compares a function with its full batch"
    more = "" if v.rounding or v.config.get("ranks", 1) > 1 else "--rounding bounds what floats lose; "
    more = "without --fake, numbers are compared as well; " if v.config.get("fake") else more
    subject = one_line(v.subject)
    return f"{more}gradproof init --loop {subject} makes a gate for CI of it" if ".py:" in subject else ""


def _more(v: Verification, more: str) -> Line:
    """What may stay undecided, and where there is more."""
    allowed = "; ".join(named(name) for name in v.allow_undecided)
    said = f"allowed to be undecided: {allowed}; " if allowed else ""
    return Line(f"{said}exit code {v.code}; {more}" if more == MORE else f"{said}{more}", firm=True)


def _open(block: Block, v: Verification) -> str:
    """That something was not decided, and its outcome where it is not that of the whole."""
    return (
        "not decided" if block.first.outcome in (v.outcome, Outcome.UNKNOWN) else f"not decided, {block.first.outcome}"
    )


def _names(results: Sequence[Result]) -> str:
    return "; ".join(one_line(named(r.obligation)) for r in results)


def _at(block: Block) -> str:
    at = block.first.location
    return f" at {shown(replace(at, function=''))}" if at is not None and at.file else ""


def near(text: str) -> str:
    """A text in one line, with files below the working directory by their short names, and no full stop."""
    try:
        here = f"{Path.cwd()}/"
    except OSError:
        here = "\0"
    return one_line(text.replace(here, "")).removesuffix(".")


def terminal(verification: Verification, console: Console, spent: int = 0, more: str = MORE) -> None:
    """Print the verification; on a terminal wrapped at words, elsewhere a sentence a line."""
    width = min(WIDTH, max(NARROW, console.width)) if console.is_terminal else 1 << 20
    printed(lines(verification, spent, more, width), console)


def text(verification: Verification, more: str = MORE, spent: int = 0) -> str:
    """The lines as they are in a pipe."""
    out = io.StringIO()
    terminal(verification, Console(file=out, force_terminal=False, force_jupyter=False, color_system=None), spent, more)
    return out.getvalue()


def quiet(verification: Verification) -> str:
    """A line for each obligation that is refuted or open: place, obligation and reason. Nothing where all hold."""
    v, said = verification, list[str]()
    for r in v.results:
        if r.applies and r.outcome is not Outcome.HOLDS and r not in v.allowed:
            at = f"{shown(replace(r.location, function=''))}: " if r.location is not None and r.location.file else ""
            said.append(f"{at}{r.outcome} {named(r.obligation)}: {near(r.reason)}\n")
    return "".join(said) or ("" if v.exit is Exit.MET else f"{title(v)} {one_line(v.subject)}\n")
