"""One verification as a page of HTML, and its body as what a notebook shows: escaped, without a script or a request.

The verdict stands first, then what is refuted, with its line of the source, and what holds. The weights of the samples
are drawn, the wrong ones marked; then come the events of a window in order, and rounding errors against their bounds.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from itertools import groupby
from typing import Any

from gradproof.core.timeline import from_json
from gradproof.evidence.record import now
from gradproof.report.formats import brief, step
from gradproof.report.formats.html import Glossary, environment
from gradproof.report.text import one_line, value
from gradproof.shadow.request import Request
from gradproof.shadow.result import ROWS, Verification

DRAWN, SINGLE, MOST = 4, 64, 256
"""Windows that are drawn, samples up to which each has a bar of its own, and the most bars."""
Row = Mapping[str, Any]


def of_step(verification: Verification) -> str:
    """The page of a verification."""
    return environment().get_template("page.html.j2").render(_said(verification))


def body(verification: Verification) -> str:
    """The page without its head, but with its style: what a notebook shows."""
    return environment().get_template("step.html.j2").render(_said(verification))


def _said(v: Verification) -> dict[str, Any]:
    return {
        "v": v, "brief": brief, "step": step, "rows": ROWS, "gloss": Glossary(), "blocks": brief.urgent(v),
        "command": command(v), "made": now(), "weighed": weighed(v), "windows": list(windows(v)),
        "tone": {0: "discharged", 1: "broken"}.get(v.code, "open"),
    }  # fmt: skip


@dataclass(repr=False)
class Checked(Verification):
    """A verification that a notebook shows as a page and a prompt as one line.

    Attributes:
        outcome: the worst outcome of all obligations, `HOLDS` or `REFUTED` for example.
        results: one `Result` an obligation, with its outcome, reason, location and help.
        weights: a table, list[dict]: one row a sample of each window in which the weights are known. `window` and
            `sample` (int) count from 0 over the run; `weight` and `expected` (str, exact fractions) are the factor of
            the sample's loss in the gradient, and the right one; `ok` (bool); `parameter` (str), whose gradient it is.
        rounding: list[dict]: one row a tensor and window, with `bound` and `measured` (float, absolute, in units of
            the tensor), where `rounding=True` was asked for.
    """

    def __repr__(self) -> str:
        return f"<{step.title(self)}: {self.subject}, {brief.counted(self)}>"

    def _repr_html_(self) -> str:
        """The page of `gradproof check --format html`, for a notebook."""
        return body(self)

    def explain(self) -> None:
        """Print everything that is known: each obligation with its reason, numbers and help, and what it rests on."""
        print(step.text(self))

    def take(self, found: Verification, allow: list[str]) -> Checked:
        """Become this verification; return self."""
        for one in fields(found):
            setattr(self, one.name, getattr(found, one.name))
        self.allow_undecided = allow
        return self


def command(v: Verification) -> str:
    """The call that makes this verification, as far as its settings tell: of the shell, or of Python."""
    watched, python = "inferred" in v.config, ".py" not in v.subject
    plain = {f.name: f.default for f in fields(Request)} | {"accum_steps": None, "windows": 3 if watched else 2}
    unsaid = {"inferred", *(["accum_steps"] if v.config.get("inferred") else [])}
    given = {k: n for k, n in v.config.items() if k not in unsaid and n is not None and n != plain.get(k)}
    called, subject = "watch" if watched else "check", one_line(v.subject)
    if python:
        words = [*([] if watched else [subject]), *(f"{k}={one_line(repr(n))}" for k, n in given.items())]
        return f"gradproof.{called}({', '.join(words)})"
    options = []
    for name, said in given.items():
        each = said if name == "ranges" else [",".join(map(str, said)) if isinstance(said, list | tuple) else said]
        option = f"--{name.removesuffix('s') if name == 'ranges' else name}".replace("_", "-")
        options += [option if one is True else f"{option} {shlex.quote(one_line(one))}" for one in each]
    return " ".join(["gradproof", called, *options, *(["-- python"] if watched else []), subject])


# -- The weights of the samples.
@dataclass(frozen=True)
class Bar:
    """Samples in a row that have one weight: the first, counted from 0 in its window, how many, and in words.

    `found` and `right` are the weight and that in the full batch; `weight` and `expected` are their words.
    """

    first: int
    count: int
    samples: str
    found: float
    right: float
    weight: str
    expected: str
    ok: bool


@dataclass(frozen=True)
class Weighed:
    """The samples of one window: a bar for each, or for those in a row that are alike, and a table of these.

    `wrong` of `count` samples have another weight than in the full batch.
    """

    window: int
    parameter: str
    bars: tuple[Bar, ...]
    table: tuple[Bar, ...]
    wrong: int
    count: int


def weighed(v: Verification) -> list[Weighed]:
    """The windows of which the weights are known, those with a wrong one first."""
    known = [row for row in v.weights if {"window", "sample", "weight", "expected"} <= row.keys()]
    made = []
    for window, some in groupby(known, key=lambda row: row["window"]):
        rows = list(some)
        with suppress(ValueError, ZeroDivisionError, OverflowError):  # a weight that is no finite number is not drawn
            table, single = (tuple(_bars(rows, alone)) for alone in (False, True))
            bars = (single if len(rows) <= SINGLE else table)[:MOST]
            wrong, named = sum(b.count for b in table if not b.ok), one_line(rows[0].get("parameter", ""))
            made.append(Weighed(int(window) + 1, named, bars, table, wrong, len(rows)))
    return sorted(made, key=lambda one: (not one.wrong, one.window))[:DRAWN]


def _bars(rows: Sequence[Row], alone: bool) -> Iterator[Bar]:
    """A bar for each sample, or for all in a row that are alike. Raises ValueError for a weight that is no number."""
    groups = groupby(range(len(rows)), key=lambda i: (rows[i]["weight"], rows[i]["expected"], alone and i))
    for at in (list(some) for _, some in groups):
        row, samples = rows[at[0]], brief.spans([int(rows[i]["sample"]) for i in at])
        found, right = (float(Fraction(str(row[key]))) for key in ("weight", "expected"))
        words, ok = (value(row["weight"]), value(row["expected"])), row.get("ok") is not False
        yield Bar(at[0], len(at), samples, found, right, *words, ok)


# -- The events of a window, in order.
@dataclass(frozen=True)
class Event:
    """What happened at a line, so many times in a row, and what is wrong with it; `fault` where it is the cause."""

    kind: str
    location: str
    times: int = 1
    wrong: str = ""
    fault: bool = False


def windows(v: Verification) -> Iterator[tuple[str, list[Event]]]:
    """The windows of the counterexamples; without one, the first window that was recorded."""
    traces = [trace for r in v.results if (trace := (r.counterexample or {}).get("trace"))]
    for trace in traces[:DRAWN]:
        with suppress(ValueError):
            line = from_json(trace)
            yield line.title, _merged(Event(t.event, t.note, 1, t.words, bool(t.refused)) for t in line.ticks)
    if not traces and v.events:
        counted, first = "times" in v.events[0], v.events[0].get("window")
        own = [(str(e.get("event")), brief.near(str(e.get("location"))), int(e.get("times", 1)))
               for e in v.events if e.get("window") == first]  # fmt: skip
        yield "All recorded windows" if counted else "Window 1", _merged(Event(*one) for one in own)


def _merged(events: Iterable[Event]) -> list[Event]:
    """The events; what happens several times in a row is there once."""
    groups = [list(some) for _, some in groupby(events, key=lambda e: replace(e, times=0))]
    return [replace(some[0], times=sum(e.times for e in some)) for some in groups]
