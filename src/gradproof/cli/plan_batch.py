"""`gradproof plan-batch` and `gradproof sweep`: batch sizes, computed and measured."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import click

from gradproof.cli.options import ACCUM_STEPS, MICRO_BATCH, output_format
from gradproof.core.batches import COMPARED, BatchPlan, compared, planned
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, Exit
from gradproof.evidence.environment import need

HEAD = ("", "N", "micro", "effective", "in memory", "at once", "steps/epoch", "fewer", "total steps")
NOW = "now"


@click.command("plan-batch")
@click.option("-b", "--micro-batch", "micro", type=int, metavar="B", help=MICRO_BATCH)
@click.option("-n", "--accum-steps", "accum", type=int, metavar="N", help=ACCUM_STEPS)
@click.option("--effective", "target", type=int, metavar="E", help="Samples of one optimizer step, over all ranks.")
@click.option("--ranks", "world", type=int, default=1, show_default=True, help="Data-parallel ranks.")
@click.option("--batches", type=int, metavar="M", help="Micro-batches of an epoch, on one rank.")
@click.option("--epochs", type=int, default=1, show_default=True, help="Epochs of the training.")
@click.option("--compare", metavar="N,N,...", help="Accumulations to compare.  [default: 1,2,4,8,16,32]")
@click.option(
    "--keep-effective", is_flag=True, help="Compare at the same effective batch, not at the same micro-batch."
)
@output_format("text", "json")
def command(
    micro: int | None, accum: int | None, target: int | None, world: int, batches: int | None, epochs: int,
    compare: str | None, keep_effective: bool, format_: str,
) -> int:  # fmt: skip
    """Plan batch sizes: effective = micro-batch x accum-steps x ranks, from any two of the three sizes.

    What does not divide is an error that names the nearest sizes. Steps are counted with the tail stepped.
    """
    plan = planned(micro, accum, target, world, batches, epochs)
    values = COMPARED if compare is None else listed(compare, "--compare", "GP413")
    rows = list(compared(plan, values, keep_effective))
    if format_ == "json":
        found = [{"accum": n, "plan": None if row is None else row.as_json()} for n, row in rows]
        click.echo(json.dumps({"schema": "gradproof-plan-batch/1", "plan": plan.as_json(), "compared": found}))
    else:
        click.echo("\n".join([*stated(plan), "", *table(rows, plan)]))
    return EXIT_CODE[Exit.MET]


def listed(text: str, option: str, code: str) -> tuple[int, ...]:
    """The whole numbers of an option. Raises GradproofError with this code for what is no list of them."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise GradproofError(code, f"{option} {text!r}", "whole numbers", "such as 1,2,4") from error


def stated(plan: BatchPlan) -> list[str]:
    """A plan in words."""
    known = f"micro-batch {plan.micro}, {plan.accum} a window, ranks {plan.world}"
    lines = [
        f"settings: {known}" + (f", {plan.batches:,} an epoch, epochs {plan.epochs}" if plan.batches else ""),
        f"effective batch: {plan.micro} x {plan.accum} x {plan.world} = {plan.effective} samples a step",
        f"in memory: {plan.micro} samples a rank at a time; {plan.micro * plan.accum} without accumulation",
    ]
    if plan.steps is not None and plan.fewer is not None:
        lines.append(
            f"optimizer steps: {plan.steps:,} an epoch with accumulation, {plan.batches:,} without, "
            f"{percent(plan.fewer)} fewer; forward and backward passes stay {plan.batches:,}"
        )
        lines.append(
            f"total_steps of a schedule: {plan.total:,} over {plan.epochs} epoch{'s' if plan.epochs > 1 else ''}, "
            f"{plan.without:,} without"
        )
    return lines


def percent(share: Fraction) -> str:
    """A share in per cent, two decimals."""
    return f"{float(round(100 * share, 2)):.2f} %"


def table(rows: Iterable[tuple[int, BatchPlan | None]], now: BatchPlan) -> list[str]:
    """The compared plans, one a line; the present one is marked."""
    cells = [HEAD, *((NOW if plan == now else "", *_cells(n, plan)) for n, plan in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(HEAD))]
    return ["  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in cells]


def _cells(n: int, plan: BatchPlan | None) -> tuple[str, ...]:
    if plan is None:
        return (str(n), "does not divide", *["-"] * 6)
    steps = ("-", "-", "-")
    if plan.steps is not None and plan.fewer is not None:
        steps = (f"{plan.steps:,}", percent(plan.fewer), f"{plan.total:,}")
    return (str(n), str(plan.micro), str(plan.effective), f"{plan.micro} samples", str(plan.at_once), *steps)


# -- `gradproof sweep`: samples per second against the effective batch, at one micro-batch.


@click.command("sweep", epilog="Exit code 0: measured; 2: a mistake in the call; 4: there is no such device.")
@click.option(
    "--accum-steps", "accumulate", default="1,2,4,8,16", metavar="N,N,...", help=ACCUM_STEPS,
    show_default=True,
)  # fmt: skip
@click.option("--micro-batch", "micro", type=int, default=16, show_default=True, help=MICRO_BATCH)
@click.option("--num-steps", "steps", type=int, default=20, show_default=True, help="Timed optimizer steps of each N.")
@click.option("--net", type=click.Choice(["char", "mlp"]), default="char", show_default=True, help="What is trained.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where to run.")
@click.option("--ranks", type=int, default=1, show_default=True, help="Data-parallel ranks.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of every random stream.")
@click.option("--draws", type=int, default=100, show_default=True, help="Estimates a variance; 0: no variance.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the result to this file.")
@click.option("--plot", type=click.Path(path_type=Path), help="Write the curve as SVG to this file.")
@click.option("--plot-variance", type=click.Path(path_type=Path), help="Write the variance as SVG to this file.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@output_format("text", "json")
def sweep(
    accumulate: str, micro: int, steps: int, net: str, device: str, ranks: int, seed: int, draws: int,
    out: Path | None, plot: Path | None, plot_variance: Path | None, quiet: bool, format_: str,
) -> int:  # fmt: skip
    """Measure samples per second over the effective batch, and the variance of the gradient beside it.

    The lengths of windows are timed in turn; each median has an interval of order statistics. The knee is marked where
    there is one beyond the spread. Speed is reported and never judged.
    """
    from gradproof.core.files import writable, written
    from gradproof.extras.studies.sources import text
    from gradproof.extras.studies.sweep import Asked, made, refused, stated, throughput_svg, variance_svg

    need(["torch"], "to measure a training")
    asked = Asked(net, micro, listed(accumulate, "--accum-steps", "GP421"), steps, ranks, device, seed, draws)
    refused(asked)
    for option, path in (("--out", out), ("--plot", plot), ("--plot-variance", plot_variance)):
        writable(path, option)
    shown, label = io.StringIO() if quiet else sys.stderr, f"measuring {asked.total()} parts"
    with click.progressbar(length=asked.total(), label=label, file=shown) as bar:
        document = made(asked, lambda: bar.update(1))
    if out is not None:
        written(out, text(document))
    if plot is not None and document.rows:
        written(plot, throughput_svg(document))
    if plot_variance is not None and document.variance is not None:
        written(plot_variance, variance_svg(document.variance))
    click.echo(text(document).rstrip("\n") if format_ == "json" else stated(document))
    return EXIT_CODE[Exit.MET if document.outcome == "MEASURED" else Exit.OPEN]
