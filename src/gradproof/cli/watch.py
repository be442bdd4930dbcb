"""`gradproof watch`: a whole training script, run once; every obligation that one run can decide."""

from __future__ import annotations

from pathlib import Path

import click

from gradproof.cli.options import allow_undecided

FORMATS = ("text", "json", "md")
SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.command("watch", context_settings=SETTINGS)
@click.option("--accum-steps", type=click.IntRange(1), help="Micro-batches of a window.  [default: as the run shows]")
@click.option("--epoch-batches", type=click.IntRange(1), help="Micro-batches of an epoch.  [default: as a DataLoader]")
@click.option("--windows", type=click.IntRange(1), default=3, show_default=True, help="Windows to record.")
@click.option(
    "--mode",
    type=click.Choice(["events", "full"]),
    default="events",
    show_default=True,
    help="events: hooks and checksums only; full: every operator of the recorded windows.",
)
@click.option(
    "--format", "format_", type=click.Choice(FORMATS), default="text", show_default=True, help="Of the result."
)
@click.option("--out", type=click.Path(path_type=Path), help="Write the result to this file.")
@allow_undecided
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- python SCRIPT [ARGS]...")
def command(
    accum_steps: int | None, epoch_batches: int | None, windows: int, mode: str, format_: str, out: Path | None,
    allow: tuple[str, ...], words: tuple[str, ...],
) -> int:  # fmt: skip
    """Run a training script as it is, and verify what one run can decide.

    The script keeps its arguments, its output and its exit code. The result goes to stderr; with --format json or md
    and without --out it goes to stdout, and the script's own stdout to stderr. Effective batch, optimizer steps an
    epoch, the losses of micro-batches and the loss scaler's steps are monitored to the end of the run.
    """
    from gradproof.cli.check import rendered, show
    from gradproof.core.files import cleared, writable
    from gradproof.core.outcome import EXIT_CODE, Exit
    from gradproof.session import INTERRUPTED
    from gradproof.shadow.process.watch_script import script_of, watch
    from gradproof.shadow.request import allowed

    names = allowed(allow)
    writable(out)
    if out is not None:
        cleared(out)
    script = script_of(words)
    apart = out is None and format_ != "text"
    seen = watch(script, accum_steps, windows, mode, 2 if apart else None, epoch_batches)
    seen.verification.allow_undecided = names
    if out is not None or apart:
        show(seen.verification, format_, out)
    else:
        click.echo(rendered(seen.verification, format_), nl=False, err=True)
    code = INTERRUPTED if seen.interrupted else seen.code
    said = f"{script.shown} ended with exit code {seen.status}; gradproof ends with {code}"
    click.echo(said + (": the script failed" if code == EXIT_CODE[Exit.CRASH] and seen.status else ""), err=True)
    return code
