"""`gradproof config`: every setting with its value and where it comes from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from gradproof.cli.options import ENVIRONMENT, baseline, output_format, place, running, with_options
from gradproof.contract.settings import demands_of

if TYPE_CHECKING:
    from gradproof.session import Options, Session


@click.command("config")
@place
@running
@baseline
@output_format("text", "json")
@with_options
def command(options: Options, quiet: bool, format_: str) -> int:
    """Show each setting with its value and its source: command line, environment, pyproject.toml or default.

    Then what a release demands beyond the contracts, and what is waived.
    """
    from gradproof.session import Session

    session = Session(options)
    rows = [*_options(session), *_demands(session)]
    if format_ == "json":
        click.echo(json.dumps({"schema": "gradproof-config/1", "settings": rows}, indent=1, ensure_ascii=False))
        return 0
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        click.echo(f"{row['name']:<{width}}  {row['value'] if row['value'] is not None else '-'}  ({row['source']})")
    return 0


def _options(session: Session) -> Iterator[dict[str, Any]]:
    from click.core import ParameterSource

    source = click.get_current_context().get_parameter_source
    for name, variable in ENVIRONMENT.items():
        stated = f"environment {variable}"
        if source(name) is not ParameterSource.ENVIRONMENT:
            by_line = source(name) is ParameterSource.COMMANDLINE
            stated = "command line" if by_line else session.settings.places.get(name, "default")
        value = getattr(session.options, name)
        if name == "baseline" and value is None and session.options.baselines:
            continue
        yield {"name": name, "value": value if isinstance(value, int | float | None) else str(value), "source": stated}
    for kept in session.options.baselines:
        if kept != session.options.baseline:
            yield {"name": "baseline", "value": str(kept), "source": session.settings.places["baseline"]}


def _demands(session: Session) -> Iterator[dict[str, Any]]:
    """One row for each demand and each waiver, of the file first, then of the gates."""
    places = session.settings.places
    sources = [(session.settings.demands, places)]
    for contract in session.contracts:
        if (gate := contract.gate) is not None:
            line = contract.places.get(gate.id, (1, 1))[0]
            asked = demands_of(gate.least, gate.gpu_max_age_days, gate.waivers)
            sources.append((asked, {"*": f"{contract.path}:{line}"}))
    for demands, where in sources:
        fallback = where.get("*", str(session.settings.path))
        if demands.gpu_max_age is not None:
            source = where.get("gpu_max_age_days", fallback)
            yield {"name": "gpu_max_age_days", "value": demands.gpu_max_age.days, "source": source}
        for name, least in demands.least.items():
            parts = [f"layers {', '.join(least.layers)}"] if least.layers else []
            parts += [f"reach {layer}: {reach}" for layer, reach in least.reach.items()]
            parts += [f"{bound} >= {value}" for bound, value in least.bounds.items()]
            source = where.get(f"require.{name}", fallback)
            yield {"name": f"require {name}", "value": "; ".join(parts) or "nothing", "source": source}
        for waiver in demands.waivers:
            yield {"name": "waiver", "value": waiver.words(), "source": where.get("waivers", fallback)}
