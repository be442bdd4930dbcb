"""`gradproof verify`: plan, run, report and gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from gradproof.cli.options import baseline, place, running, selecting, with_options
from gradproof.cli.outputs import formats as output_formats
from gradproof.cli.sharding import sharded, sharding

if TYPE_CHECKING:
    from pathlib import Path

    from gradproof.cli.outputs import Output
    from gradproof.ledger.read import Ledger
    from gradproof.session import Options, Session

FORMATS = ("json", "md", "html")


@click.command("verify")
@place
@selecting
@running
@baseline
@output_formats
@sharding
@click.option("--watch", is_flag=True, help="Run again what a save touched, print changes; ctrl-C ends (exit 130).")
@with_options
def command(
    options: Options, quiet: bool, formats: tuple[str, ...], json_: bool, watch: bool, shard: str | None,
    shard_seconds: Path | None,
) -> int:  # fmt: skip
    """Plan every check, run what has no fresh answer, write the report and gate on it.

    With -k only the matching checks are run; the gate still judges all of them, on the evidence at hand. With --shard
    the report is partial, and its gate is never met: `gradproof merge` gathers the evidence of all shards.
    """
    from gradproof.cli.beginning import begun
    from gradproof.cli.outputs import Outputs, asked
    from gradproof.cli.progress import listening
    from gradproof.cli.show import problems, verdict_line
    from gradproof.core import EXIT_CODE, Exit
    from gradproof.ledger.at_hand import about, judged
    from gradproof.session import INTERRUPTED, worst

    wanted = asked(formats, json_)
    if watch:
        return watched(options, wanted, shard)
    session = begun(options, wanted, reports=True)
    chosen = sharded(session.selected(), shard, shard_seconds)
    if not chosen:
        click.echo("nothing selected: no planned check matches", err=True)
        return EXIT_CODE[Exit.NOTHING]
    problems(session, quiet)
    ledger = claimed(session)
    with Outputs(wanted, len(session.contracts), session.workspace.warning) as outputs:
        session.mark()
        with listening(quiet) as listener:
            run = session.run(chosen, outputs.listener(listener))
        run = replace(session.filled(run), complete=run.complete and shard is None)
        claims, made = judged(session, ledger, run.standings), []
        for contract, report in zip(session.contracts, session.reports(run), strict=True):
            report |= about(claims, report)
            paths = session.write(contract, report, FORMATS)
            made.append(report)
            if outputs.table and not quiet:
                table(report)
            verdict_line(report, paths["html"])
        outputs.finish(made)
    return INTERRUPTED if run.interrupted else worst(Exit(r["verdict"]["exit"]) for r in made)


def claimed(session: Session) -> Ledger | None:
    """The workspace's ledger; one that is wrong is told and left out, for no contract rests on it."""
    from gradproof.contract_tree import ContractErrors
    from gradproof.ledger.at_hand import ledger_of

    try:
        return ledger_of(session)
    except ContractErrors as error:
        first = error.problems[0]
        click.echo(f"{first.where}: {first.code}: the ledger of claims is left out: {first.found}", err=True)
        return None


def watched(options: Options, wanted: Sequence[Output], shard: str | None) -> int:
    """Verify after every save. Raises GradproofError GP482 for a shard, and for another output than words on stdout."""
    from gradproof.cli.beginning import watching
    from gradproof.cli.outputs import Output
    from gradproof.cli.verify_watch import watched as watch
    from gradproof.core import GradproofError

    if list(wanted) != [Output("text", None)] or shard is not None:
        found = f"--watch with --shard {shard}" if shard else f"--watch with --format {wanted[0].name}"
        mend = "leave --format and --shard out; reports/ has the files"
        raise GradproofError("GP482", found, "the whole plan, and words on stdout alone", mend)
    watching(options)
    return watch(options)


def table(report: dict[str, object]) -> None:
    """The report on the terminal."""
    from rich.console import Console

    from gradproof.render import terminal

    terminal.render(report, Console())
