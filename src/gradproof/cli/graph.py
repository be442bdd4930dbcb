"""`gradproof graph`: what builds on what, and how it stands."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from gradproof.cli.options import place, with_options

if TYPE_CHECKING:
    from gradproof.session import Options


@click.command("graph")
@place
@click.option(
    "--format", "format_", type=click.Choice(["text", "dot", "mermaid", "json"]), default="text", show_default=True
)
@click.option(
    "--depth", type=click.Choice(["contracts", "obligations", "checks"]), default="checks", show_default=True,
    help="How far down; JSON has everything.",
)  # fmt: skip
@with_options
def command(options: Options, format_: str, depth: str) -> int:
    """Draw contracts, what they depend on, their obligations and checks, with the verdict on the evidence at hand.

    Runs nothing. A contract whose dependency is not discharged is OPEN.
    """
    from gradproof.cli.show import opened, problems
    from gradproof.graph import built
    from gradproof.render.graph import DRAWN

    session = opened(options)
    problems(session, quiet=False)
    graph = built(session)
    if format_ == "json":
        click.echo(json.dumps(graph, indent=1, ensure_ascii=False))
    else:
        click.echo(DRAWN[format_](graph, depth))
    return 0
