"""`gradproof verify`: plan, run, report and gate."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from gradproof.cli.options import as_json, place, running, selecting, with_options

if TYPE_CHECKING:
    from gradproof.session import Options

FORMATS = ("json", "md", "html")


@click.command("verify")
@place
@selecting
@running
@as_json
@with_options
def command(options: Options, quiet: bool, json_: bool) -> int:
    """Plan every check, run what has no fresh answer, write the report and gate on it.

    With -k only the matching checks are run; the gate still judges all of them, on the evidence at hand.
    """
    from gradproof.cli.progress import listening
    from gradproof.cli.show import problems, verdict_line
    from gradproof.core import EXIT_CODE, Exit
    from gradproof.session import INTERRUPTED, Run, Session, worst

    session = Session(options)
    chosen = session.selected()
    if not chosen:
        click.echo("nothing selected: no planned check matches", err=True)
        return EXIT_CODE[Exit.NOTHING]
    problems(session, quiet)
    session.mark()
    with listening(quiet) as listener:
        run = session.run(chosen, listener)
    others = session.standings([c for c in session.checks if c.id not in run.standings])
    run = Run({**run.standings, **others}, run.ran, run.complete, run.interrupted, run.seconds)
    made = []
    for contract in session.contracts:
        report = session.reported(contract, run)
        paths = session.write(contract, report, FORMATS)
        made.append(report)
        if not quiet and not json_:
            table(report)
        verdict_line(report, paths["html"])
    if json_:
        click.echo(json.dumps(made[0] if len(made) == 1 else made, indent=1, ensure_ascii=False))
    return INTERRUPTED if run.interrupted else worst(Exit(r["verdict"]["exit"]) for r in made)


def table(report: dict[str, object]) -> None:
    """The report on the terminal."""
    from rich.console import Console

    from gradproof.render import terminal

    terminal.render(report, Console())
