"""`gradproof sweep`: samples per second against the effective batch, at one micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from gradproof.cli.options import as_json
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, Exit


@click.command("sweep", epilog="Exit code 0: measured; 2: a mistake in the call; 4: there is no such device.")
@click.option(
    "--accumulate", default="1,2,4,8,16", show_default=True, metavar="N,N,...", help="Micro-batches a window."
)
@click.option("--micro-batch", "micro", type=int, default=16, show_default=True, help="Samples, the same for every N.")
@click.option("--num-steps", "steps", type=int, default=20, show_default=True, help="Timed optimizer steps of each N.")
@click.option("--net", type=click.Choice(["char", "mlp"]), default="char", show_default=True, help="What is trained.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--ranks", type=int, default=1, show_default=True, help="Processes that share gradients over gloo.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of weights and data.")
@click.option("--draws", type=int, default=100, show_default=True, help="Estimates a variance; 0: no variance.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the JSON document to this file.")
@click.option("--plot", type=click.Path(path_type=Path), help="Write the curve as SVG to this file.")
@click.option("--plot-variance", type=click.Path(path_type=Path), help="Write the variance as SVG to this file.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@as_json
def command(
    accumulate: str, micro: int, steps: int, net: str, device: str, ranks: int, seed: int, draws: int,
    out: Path | None, plot: Path | None, plot_variance: Path | None, quiet: bool, json_: bool,
) -> int:  # fmt: skip
    """Measure samples per second over the effective batch, and the variance of the gradient beside it.

    The lengths of windows are timed in turn; each median has an interval of order statistics. The knee is marked where
    there is one beyond the spread. Speed is reported and never judged.
    """
    from gradproof.core.files import writable, written
    from gradproof.extras.studies.sources import text
    from gradproof.extras.studies.sweep import Asked, made, refused, stated, throughput_svg, variance_svg

    asked = Asked(net, micro, lengths_of(accumulate), steps, ranks, device, seed, draws)
    refused(asked)
    for option, path in (("--out", out), ("--plot", plot), ("--plot-variance", plot_variance)):
        writable(path, option)
    with progress(quiet, asked.total()) as tick:
        document = made(asked, tick)
    if out is not None:
        written(out, text(document))
    if plot is not None and document.rows:
        written(plot, throughput_svg(document))
    if plot_variance is not None and document.variance is not None:
        written(plot_variance, variance_svg(document.variance))
    click.echo(text(document).rstrip("\n") if json_ else stated(document))
    return EXIT_CODE[Exit.MET if document.outcome == "MEASURED" else Exit.OPEN]


def lengths_of(words: str) -> tuple[int, ...]:
    """The list of lengths. Raises GradproofError GP421 for what is no list of whole numbers."""
    try:
        return tuple(int(part) for part in words.split(","))
    except ValueError as error:
        raise GradproofError("GP421", f"--accumulate {words!r}", "whole numbers", "such as 1,2,4") from error


@contextmanager
def progress(quiet: bool, total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr where that is a terminal, as long as it lasts; what is called after each part."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    console = Console(stderr=True)
    if quiet:
        yield lambda: None
    elif not console.is_terminal:
        click.echo(f"measuring: {total} parts", err=True)
        yield lambda: None
    else:
        with Progress(BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn(), console=console, transient=True) as bar:
            task = bar.add_task("", total=total)
            yield lambda: bar.advance(task)
