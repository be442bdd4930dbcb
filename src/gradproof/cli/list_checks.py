"""`gradproof list`: the planned checks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from gradproof.cli.options import output_format, place, selecting, with_options

if TYPE_CHECKING:
    from gradproof.core.check import Check
    from gradproof.session import Options

COLUMNS = ("check", "kind", "layer", "obligations", "expect", "strategy", "bounds", "mutants")


@click.command("list")
@place
@selecting
@output_format("text", "md", "json")
@with_options
def command(options: Options, format_: str) -> int:
    """List the planned checks: kind, layer, obligations, bounds, mutants. Runs nothing."""
    from gradproof.core.outcome import EXIT_CODE, Exit
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
