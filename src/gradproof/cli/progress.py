"""Progress on stderr: a live line on a terminal; elsewhere a line now and then, or one a check with --verbose."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from gradproof.cli.options import LATE, SOON
from gradproof.core.check import Check
from gradproof.core.outcome import DECISION, Effect, Outcome
from gradproof.core.schemas.evidence import Evidence
from gradproof.evidence.audit import audit
from gradproof.execution.pool import Listener, Progress as Event
from gradproof.report.text import compact, seconds as duration

COLOUR = {Effect.DISCHARGED: "green", Effect.BROKEN: "red", Effect.OPEN: "yellow"}
SHOWN = 100
NAMED = 3


def _finished(check: Check, evidence: Evidence) -> tuple[str, Effect]:
    """One check in one line, and its effect."""
    outcome, reason = audit(check, evidence.finding)
    line = f"{outcome:<9} {check.id:<28} {evidence.seconds:7.1f} s  {compact(reason, SHOWN)}"
    return line, DECISION[check.expect, outcome]


@contextmanager
def listening(quiet: bool, verbose: bool = False) -> Iterator[Listener]:
    """A listener for a pool, for as long as the block lasts."""
    console = Console(stderr=True)
    if quiet:
        yield lambda event: None
    elif console.is_terminal:
        with _bar(console) as listener:
            yield listener
    else:
        yield _plain if verbose else Sparse()


def _plain(event: Event) -> None:
    if event.note:
        click.echo(event.note, err=True)
    if event.event == "finished" and event.check is not None and event.evidence is not None:
        text, _ = _finished(event.check, event.evidence)
        width = len(str(event.total))
        place = event.where.get(event.check.id)
        click.echo(f"[{event.done:>{width}}/{event.total}] {text}{f'  on {place}' if place else ''}", err=True)


class Sparse:
    """A line after two seconds, and every half minute: how many checks are done, what runs, how long it may take.

    `clock`: seconds, as of time.monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.begun, self.broken = clock, clock(), 0
        self.due = self.begun + SOON

    def __call__(self, event: Event) -> None:
        """Print a line where one is due."""
        if event.note:
            click.echo(event.note, err=True)
        if event.event == "finished" and event.check is not None and event.evidence is not None:
            self.broken += _finished(event.check, event.evidence)[1] is Effect.BROKEN
        now = self.clock()
        if now < self.due or event.done == event.total:
            return
        self.due = now + LATE
        parts = [f"[{event.done}/{event.total}] {duration(now - self.begun)}"]
        parts += [f"{self.broken} BROKEN"] if self.broken else []
        click.echo("; ".join([*parts, *_doing(event)]), err=True)


def _doing(event: Event) -> Iterator[str]:
    """About how long the rest takes, and what runs, the longest first."""
    if event.left is not None:
        yield f"about {duration(round(event.left))} left"
    names = sorted(event.running, key=lambda name: -event.running[name])
    shown = [f"{n} {event.running[n]:.0f} s{f' on {p}' if (p := event.where.get(n)) else ''}" for n in names[:NAMED]]
    if shown:
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        yield f"running {', '.join(shown)}{more}"


@contextmanager
def _bar(console: Console) -> Iterator[Listener]:
    one_row = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    doing = TextColumn("{task.description}", markup=False, table_column=one_row)
    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), doing)
    with Progress(*columns, console=console, transient=True, expand=True) as progress:
        task = progress.add_task("", total=None)

        def listener(event: Event) -> None:
            if event.note:
                progress.console.print(event.note, markup=False, highlight=False)
            progress.update(task, total=event.total, completed=event.done, description="; ".join(_doing(event)))
            if event.event == "finished" and event.check is not None and event.evidence is not None:
                text, effect = _finished(event.check, event.evidence)
                if effect is not Effect.DISCHARGED and event.evidence.finding.outcome is not Outcome.NOT_RUN:
                    progress.console.print(text, style=COLOUR[effect], markup=False, highlight=False)

        yield listener
