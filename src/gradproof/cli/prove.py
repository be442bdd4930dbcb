"""`gradproof prove`, `run` and `list`: the proofs with the claims of their stubs, the measured tests, and the plan."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from gradproof.cli import INTERRUPTED
from gradproof.cli.options import output_format, place, running, selecting, sharded, sharding, with_options
from gradproof.core.outcome import EXIT_CODE, Exit, Kind, Layer

if TYPE_CHECKING:
    from gradproof.core.check import Check
    from gradproof.session import Options


@click.command("prove")
@place
@selecting
@running
@sharding
@output_format("text", "json")
@with_options
def command(options: Options, quiet: bool, format_: str, shard: str | None) -> int:
    """Run the proofs (Z3, CrossHair, the recorded step), and the claims of the stubs that they rest on."""
    kinds = (Kind.STUB, Kind.SMT, Kind.CROSSHAIR, Kind.TRACE)
    layers = (Layer.SMT, Layer.CROSSHAIR, Layer.STEP)
    return some(options, kinds, layers, layers, quiet, format_, shard)


def some(
    options: Options,
    kinds: Iterable[Kind],
    layers: Iterable[Layer],
    demanded: Iterable[Layer],
    quiet: bool,
    format_: str,
    shard: str | None,
) -> int:
    """Run and judge a selection, or one shard of it; nothing is demanded beyond it."""
    from gradproof.cli.outputs import open_session, problems, selection
    from gradproof.cli.progress import listening
    from gradproof.verdict.judge import judge
    from gradproof.verdict.plan import Policy

    session = open_session(options)
    chosen = sharded(session.selected(kinds, layers), shard)
    if not chosen:
        click.echo("nothing selected: no planned check matches", err=True)
        return EXIT_CODE[Exit.NOTHING]
    problems(session, quiet)
    with listening(quiet) as listener:
        run = session.run(chosen, listener)
    policy = Policy(session.options.profile, (), restricted=True, demanded=frozenset(demanded))
    verdict = judge(chosen, run.statuses, policy)
    selection(verdict, format_ == "json", shard, session.workspace.warning)
    return INTERRUPTED if run.interrupted else verdict.code


# -- `gradproof run`: the falsification tests on real PyTorch.

LAYERS = {"cpu": (Layer.CPU,), "cuda": (Layer.CUDA,), "all": (Layer.CPU, Layer.CUDA)}


@click.command("run")
@place
@selecting
@click.option("--device", type=click.Choice(list(LAYERS)), default="cpu", show_default=True, help="Where to run.")
@running
@sharding
@output_format("text", "json")
@with_options
def run_tests(options: Options, device: str, quiet: bool, format_: str, shard: str | None) -> int:
    """Run the falsification tests on real PyTorch.

    Evidence of CUDA runs goes to reports/gpu, to be committed. With --device all, a missing GPU leaves the
    CUDA rows open without failing the command in profile ci; with --device cuda it fails.
    """
    layers = LAYERS[device]
    demanded = layers if device != "all" or options.profile == "release" else (Layer.CPU,)
    return some(options, (Kind.TORCH,), layers, demanded, quiet, format_, shard)


# -- `gradproof list`: the planned checks.

COLUMNS = ("check", "kind", "layer", "obligations", "expect", "strategy", "bounds", "mutants")


@click.command("list")
@place
@selecting
@output_format("text", "md", "json")
@with_options
def list_checks(options: Options, format_: str) -> int:
    """List the planned checks: kind, layer, obligations, bounds, mutants. Runs nothing."""
    from gradproof.session import Session

    checks = Session(options).selected()
    if not checks:
        click.echo("nothing selected: no planned check matches", err=True)
        return EXIT_CODE[Exit.NOTHING]
    if format_ == "json":
        rows = [{**c.to_json(), "digest": c.digest} for c in checks]
        click.echo(json.dumps({"schema": "gradproof-list/1", "checks": rows}, indent=1, ensure_ascii=False))
    elif format_ == "md":
        escaped = [[cell.replace("|", "\\|") for cell in _row(c)] for c in checks]
        for row in [list(COLUMNS), ["---"] * len(COLUMNS), *escaped]:
            click.echo(f"| {' | '.join(row)} |")
    else:
        table = [list(COLUMNS), *map(_row, checks)]
        widths = [max(len(row[i]) for row in table) for i in range(len(COLUMNS) - 1)]  # mutants are last, and long
        for row in table:
            click.echo("  ".join([*map(str.ljust, row, widths), row[-1]]).rstrip())
        click.echo(f"{len(checks)} checks")
    return 0


def _row(check: Check) -> list[str]:
    bounds = ", ".join(f"{b.name} {b.value}" for b in check.bounds)
    cells: list[Any] = [check.id, check.kind, check.layer, ", ".join(check.obligations) or "-", check.expect]
    return [str(c) for c in [*cells, check.strategy or "-", bounds or "-", ", ".join(check.mutants) or "-"]]
