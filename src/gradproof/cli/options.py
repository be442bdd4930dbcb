"""Options that several commands share."""

from __future__ import annotations

import gc
import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from gradproof.core.check import Check, digest_of
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Layer

F = TypeVar("F", bound=Callable[..., Any])
ENVIRONMENT = {n: f"GRADPROOF_{n.upper()}" for n in ("profile", "jobs", "time_limit", "memory_limit", "baseline")}


SOON, LATE = 2.0, 30.0
"""Seconds until a first line says what takes long, and between two of them."""
MICRO_BATCH, ACCUM_STEPS = "Samples of a micro-batch.", "Micro-batches of a window."
json_option = click.option("--json", "json_", is_flag=True, help="The same as --format json.")
verbose_option = click.option("-v", "--verbose", is_flag=True, help="Print everything, not a few lines.")


class Seconds(click.FloatRange):
    """A time limit: a number of seconds above 0, which NaN and infinity are not."""

    def __init__(self) -> None:
        super().__init__(0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Fails for a text that is none, and for one that is no time limit."""
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value} is not a number of seconds.", param, ctx)


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, shown in this order."""

    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


workspace_option = click.option(
    "--workspace", type=click.Path(path_type=Path), help="Folder with proofs/, models/ and symbolic/."
)
place = together(
    workspace_option,
    click.option("--contract", "contracts", multiple=True, metavar="ID|FILE", help="Only this contract (repeatable)."),
    click.option(
        "--profile",
        type=click.Choice(["ci", "release"]),
        default="ci",
        show_default=True,
        envvar=ENVIRONMENT["profile"],
        help="What the gate requires.",
    ),
)
selecting = click.option(
    "-k", "select", multiple=True, metavar="TEXT", help="Only checks whose id or obligation has TEXT (repeatable)."
)
engine = together(
    click.option(
        "--engine",
        type=click.Choice(["local", "dask"]),
        default="local",
        show_default=True,
        help="Where checks run: on this machine, or on the workers of a dask scheduler (docs/scale.md).",
    ),
    click.option("--scheduler", metavar="ADDRESS", help="Of --engine dask, such as tcp://host:8786."),
)
running = together(
    click.option(
        "--jobs",
        type=click.IntRange(1),
        envvar=ENVIRONMENT["jobs"],
        help="Checks at a time.  [default: one for each CPU, at most 8]",
    ),
    click.option("--no-cache", is_flag=True, help="Run again what has a fresh answer."),
    click.option(
        "--time-limit",
        type=Seconds(),
        envvar=ENVIRONMENT["time_limit"],
        help="Seconds of CPU time for each check; ten times as many on the clock.",
    ),
    click.option(
        "--memory-limit",
        type=click.IntRange(64),
        envvar=ENVIRONMENT["memory_limit"],
        help="MiB for each check not on a GPU.  [default: 16384]",
    ),
    click.option("--fail-fast", is_flag=True, help="Start nothing more after the first BROKEN check."),
    engine,
    click.option("-q", "--quiet", is_flag=True, help="No progress, and nothing on stdout."),
)
baseline = click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    envvar=ENVIRONMENT["baseline"],
    metavar="PATH",
    help="Report, or folder of reports, that nothing may be weaker than, besides the baseline of pyproject.toml.",
)
allow_undecided = click.option(
    "--allow-undecided",
    "allow",
    multiple=True,
    metavar="ID",
    help="Exit 0 although this obligation is undecided; never if it is refuted (repeatable).",
)
"""For what ends with a Verification; `request.allowed` judges the names."""


def output_format(*names: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """`--format` with these names, the first by default, and `--json`, handed over as `format_`.

    Raises click.UsageError where both name a format.
    """

    def add(function: Callable[..., int]) -> Callable[..., int]:
        @wraps(function)
        def merged(*, format_: str, json_: bool, **given: Any) -> int:
            if json_ and format_ not in (names[0], "json"):
                raise click.UsageError(f"--json and --format {format_}: leave one out")
            return function(format_="json" if json_ else format_, **given)

        choice, default = click.Choice(names), names[0]
        named = click.option(
            "--format", "format_", type=choice, default=default, show_default=True, help="Of the result."
        )
        return together(named, json_option)(merged)

    return add


sharding = click.option("--shard", metavar="I/N", help="Only part I of N; `merge` and `gate` follow.")


def with_options(function: Callable[..., int]) -> Callable[..., int]:
    """Gather the shared options into Options, handed over as `options`."""

    @wraps(function)
    def gathered(**given: Any) -> int:
        from click.core import ParameterSource

        gc.set_threshold(100_000, 20, 20)  # what these commands read lives to their end: looking for waste is wasted
        from gradproof.core.processes import Options

        source = click.get_current_context().get_parameter_source
        stated = frozenset(k for k in ENVIRONMENT if source(k) not in (None, ParameterSource.DEFAULT))
        shared = {k: given.pop(k) for k in tuple(given) if k in Options.__dataclass_fields__} | {"stated": stated}
        for name in ("jobs", "memory_limit"):
            if shared.get(name) is None:
                shared.pop(name, None)
        return function(options=Options(**shared), **given)

    return gathered


def sharded(chosen: Sequence[Check], shard: str | None) -> list[Check]:
    """The checks of this shard, all of them without one; which, is said on stderr. Raises GradproofError GP480."""
    if shard is None:
        return list(chosen)
    index, of = parse(shard)
    parts = partition(chosen, of)
    mine = parts[index - 1]
    click.echo(f"shard {shard}: {len(mine)} of {len(chosen)} checks, cut {fingerprint(parts)}", err=True)
    return mine


# -- Shards: a plan cut into parts that run on machines of their own, the same cut on every machine.

MOST = 1000
_SHARD = re.compile(r"([1-9]\d{0,3})/([1-9]\d{0,3})", re.ASCII)


def parse(text: str) -> tuple[int, int]:
    """The number of a shard, from 1, and of how many. Raises GradproofError GP480 for what is no `i/n`."""
    match = _SHARD.fullmatch(text)
    index, of = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= index <= of <= MOST:
        raise GradproofError("GP480", f"--shard {text!r}", f"i/n with 1 <= i <= n <= {MOST}", "such as --shard 1/4")
    return index, of


def partition(checks: Sequence[Check], of: int) -> list[list[Check]]:
    """The checks of each shard, in the plan's order. Checks of a GPU are spread apart from the others.

    The longest by its time limit first, each to the shard that is done soonest with it and the stubs that it is the
    first there to need.
    """
    from gradproof.verdict.plan import with_stubs

    shared = {name for check in checks for name in check.depends} & {check.id for check in checks}
    held: list[set[str]] = [set() for _ in range(of)]
    loads = {gpu: [0.0] * of for gpu in (False, True)}
    weight = {c.id: c.time_limit for c in checks}
    for check in sorted(checks, key=lambda c: (c.id in shared, -weight[c.id], c.id)):
        if check.id in shared and any(check.id in names for names in held):
            continue
        needs, load = {c.id for c in with_stubs(checks, {check.id})}, loads[check.layer is Layer.CUDA]
        costs = [load[i] + sum(weight[name] for name in needs - held[i]) for i in range(of)]
        chosen = costs.index(min(costs))
        held[chosen] |= needs
        load[chosen] = costs[chosen]
    return [[check for check in checks if check.id in names] for names in held]


def fingerprint(parts: Iterable[Iterable[Check]]) -> str:
    """The same on two machines exactly where their cuts are."""
    return digest_of([[check.id for check in part] for part in parts])[:12]
