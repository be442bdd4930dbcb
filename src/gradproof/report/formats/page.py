"""One verification as a page of HTML, and its body as what a notebook shows: escaped, without a script or a request.

The verdict stands first, then what is refuted, with its line of the source, and what holds. The weights of the samples
are drawn, the wrong ones marked; then come the events of a window in order, and rounding errors against their bounds.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from gradproof.core.timeline import Tick, from_json
from gradproof.evidence.record import now
from gradproof.report.formats import brief, step
from gradproof.report.formats.html import Glossary, environment
from gradproof.report.text import one_line
from gradproof.shadow.result import ROWS, Verification

DRAWN, SINGLE, MOST = 4, 64, 256
"""Windows that are drawn, samples up to which each has a bar of its own, and the most bars."""
Row = Mapping[str, Any]


def of_step(verification: Verification) -> str:
    """The page of a verification that this command line asked for."""
    called = one_line(shlex.join(["gradproof", *sys.argv[1:]]))
    return environment().get_template("page.html.j2").render(_said(verification), command=called)


def body(verification: Verification) -> str:
    """The page without its head, but with its style: what a notebook shows."""
    return environment().get_template("step.html.j2").render(_said(verification))


def _said(v: Verification) -> dict[str, Any]:
    return {
        "v": v, "brief": brief, "step": step, "rows": ROWS, "gloss": Glossary(), "blocks": brief.urgent(v),
        "made": now(), "weighed": weighed(v), "windows": list(windows(v)),
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
        in_python = partial(re.sub, "--([a-z][a-z-]*)", lambda option: option[1].replace("-", "_"))
        for r in self.results:
            r.reason, r.help = map(in_python, (r.reason, r.help))
        self.uncovered = [*map(in_python, self.uncovered)]
        self.allow_undecided = allow
        return self


# -- The weights of the samples, and the events of a window.
class Bar(NamedTuple):
    """Samples in a row that have one weight: the first, counted from 0 in its window, how many, and in words."""

    row: Row
    first: int
    size: int
    samples: str
    found: float
    right: float
    ok: bool


def weighed(v: Verification) -> list[tuple[list[Bar], list[Bar]]]:
    """Of each window of which the weights are known: a bar for each sample, and one for all in a row that are alike.

    Windows with a wrong weight come first. Of many samples both are the latter.
    """
    known = [row for row in v.weights if {"window", "sample", "weight", "expected"} <= row.keys()]
    made = []
    for _, some in groupby(known, key=lambda row: row["window"]):
        rows = list(some)
        with suppress(ValueError, ZeroDivisionError, OverflowError):  # a weight that is no finite number is not drawn
            made.append((list(_bars(rows, len(rows) <= SINGLE))[:MOST], list(_bars(rows, False))))
    return sorted(made, key=lambda window: all(bar.ok for bar in window[1]))[:DRAWN]


def _bars(rows: Sequence[Row], alone: bool) -> Iterator[Bar]:
    """A bar for each sample, or for all in a row that are alike. Raises ValueError for a weight that is no number."""
    groups = groupby(range(len(rows)), key=lambda i: (rows[i]["weight"], rows[i]["expected"], alone and i))
    for at in (list(some) for _, some in groups):
        row, samples = rows[at[0]], brief.spans([int(rows[i]["sample"]) for i in at])
        found, right = (float(Fraction(str(row[key]))) for key in ("weight", "expected"))
        yield Bar(row, at[0], len(at), samples, found, right, row.get("ok") is not False)


def windows(v: Verification) -> Iterator[tuple[str, list[tuple[Tick, int]]]]:
    """Title and events of each counterexample, else of the first recorded window; how often an event came in a row."""
    traces = [trace for r in v.results if (trace := (r.counterexample or {}).get("trace"))]
    for trace in traces[:DRAWN]:
        with suppress(ValueError):
            line = from_json(trace)
            yield line.title, _merged(line.ticks)
    if not traces and v.events:
        own = [e for e in v.events if e.get("window") == v.events[0].get("window")]
        ticks = [(Tick(str(e.get("event")), "", brief.near(str(e.get("location")))), e.get("times", 1)) for e in own]
        title = "All recorded windows" if "times" in v.events[0] else "Window 1"
        yield title, _merged(tick for tick, times in ticks for _ in range(times))


def _merged(ticks: Iterable[Tick]) -> list[tuple[Tick, int]]:
    groups = [list(some) for _, some in groupby(ticks, key=lambda t: (t.event, t.note, t.words))]
    return [(some[0], len(some)) for some in groups]
