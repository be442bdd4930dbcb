"""--shard and --shard-seconds, which several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from gradproof.core import Check

F = TypeVar("F", bound=Callable[..., Any])


def sharding(function: F) -> F:
    """--shard i/n and --shard-seconds."""
    told = "Seconds by which shards are balanced: a report.json, or a folder of them, the same for every shard."
    timed: F = click.option("--shard-seconds", type=click.Path(path_type=Path), metavar="REPORT", help=told)(function)
    return click.option("--shard", metavar="I/N", help="Only part I of N; `merge` and `gate` follow.")(timed)


def sharded(chosen: Sequence[Check], shard: str | None, seconds: Path | None) -> list[Check]:
    """The checks of this shard, all of them without one; which, is said on stderr.

    Raises GradproofError GP480 for no i/n, and GP485 for seconds that cannot be read or belong to no shard.
    """
    from gradproof.core import GradproofError
    from gradproof.shards import fingerprint, parse, partition, seconds_of

    if shard is None:
        if seconds is not None:
            raise GradproofError("GP485", "--shard-seconds without --shard", "both or neither", "add --shard i/n")
        return list(chosen)
    part = parse(shard)
    parts = partition(chosen, part.of, {} if seconds is None else seconds_of(seconds))
    mine = parts[part.index - 1]
    click.echo(f"shard {part}: {len(mine)} of {len(chosen)} checks, cut {fingerprint(parts)}", err=True)
    return mine
