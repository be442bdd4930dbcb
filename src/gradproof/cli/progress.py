"""Progress on stderr: a live bar on a terminal, one line a check elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gradproof.core.check import Check
from gradproof.core.outcome import DECISION, Effect, Outcome
from gradproof.core.schemas.evidence import Evidence
from gradproof.evidence.audit import audit
from gradproof.execution.pool import Listener, Progress as Event

COLOUR = {Effect.DISCHARGED: "green", Effect.BROKEN: "red", Effect.OPEN: "yellow"}
SHOWN = 100


def line(check: Check, outcome: Outcome, seconds: float, reason: str) -> str:
    """One check in one line."""
    short = " ".join(reason.split())
    short = short if len(short) <= SHOWN else short[: SHOWN - 3] + "..."
    return f"{outcome:<9} {check.id:<28} {seconds:7.1f} s  {short}"


def _finished(check: Check, evidence: Evidence) -> tuple[str, Effect]:
    outcome, reason = audit(check, evidence.finding)
    return line(check, outcome, evidence.seconds, reason), DECISION[check.expect, outcome]


@contextmanager
def listening(quiet: bool) -> Iterator[Listener]:
    """A listener for a pool, for as long as the block lasts."""
    console = Console(stderr=True)
    if quiet:
        yield lambda event: None
    elif console.is_terminal:
        with _bar(console) as listener:
            yield listener
    else:
        yield _plain


def _plain(event: Event) -> None:
    if event.note:
        click.echo(event.note, err=True)
    if event.event == "finished" and event.check is not None and event.evidence is not None:
        text, _ = _finished(event.check, event.evidence)
        width = len(str(event.total))
        place = event.where.get(event.check.id)
        click.echo(f"[{event.done:>{width}}/{event.total}] {text}{f'  on {place}' if place else ''}", err=True)


@contextmanager
def _bar(console: Console) -> Iterator[Listener]:
    columns = (BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)

        def listener(event: Event) -> None:
            running = "  ".join(
                f"{name} {seconds:.0f} s{f' on {place}' if (place := event.where.get(name)) else ''}"
                for name, seconds in event.running.items()
            )
            if event.note:
                progress.console.print(event.note, markup=False, highlight=False)
            progress.update(task, total=event.total, completed=event.done, description=running)
            if event.event == "finished" and event.check is not None and event.evidence is not None:
                text, effect = _finished(event.check, event.evidence)
                if effect is not Effect.DISCHARGED and event.evidence.finding.outcome is not Outcome.NOT_RUN:
                    progress.console.print(text, style=COLOUR[effect], markup=False, highlight=False)

        yield listener
