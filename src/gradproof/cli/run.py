"""`gradproof run`: the falsification tests on real PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gradproof.cli.options import as_json, place, running, selecting, sharding, with_options
from gradproof.cli.prove import some
from gradproof.core.outcome import Kind, Layer

if TYPE_CHECKING:
    from pathlib import Path

    from gradproof.session import Options

LAYERS = {"cpu": (Layer.CPU,), "cuda": (Layer.CUDA,), "all": (Layer.CPU, Layer.CUDA)}


@click.command("run")
@place
@selecting
@click.option("--device", type=click.Choice(list(LAYERS)), default="cpu", show_default=True, help="Where to run.")
@running
@sharding
@as_json
@with_options
def command(
    options: Options, device: str, quiet: bool, json_: bool, shard: str | None, shard_seconds: Path | None
) -> int:
    """Run the falsification tests on real PyTorch.

    Evidence of CUDA runs goes to reports/gpu, to be committed. With --device all, a missing GPU leaves the
    CUDA rows open without failing the command in profile ci; with --device cuda it fails.
    """
    layers = LAYERS[device]
    demanded = layers if device != "all" or options.profile == "release" else (Layer.CPU,)
    return some(options, (Kind.TORCH,), layers, demanded, quiet, json_, shard, shard_seconds)
