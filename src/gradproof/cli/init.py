"""`gradproof init`: a workspace around a user's own training loop."""

from __future__ import annotations

import os
from pathlib import Path

import click

CI = ("github", "gitlab", "none")


@click.command("init", epilog="Exit code 0: written; 2: a mistake in the call, and nothing was written.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path())
@click.option("--loop", required=True, metavar="FILE.py:FUNCTION", help="The function that trains; it takes the run.")
@click.option("--ci", type=click.Choice(CI), default="github", show_default=True, help="Write a file for this CI.")
@click.option("--name", metavar="NAME", help="Name of the contract.  [default: FUNCTION-accumulation-v1]")
@click.option(
    "--accum-steps", type=click.IntRange(2, 64), default=4, show_default=True, help="Micro-batches of a window."
)
@click.option("--micro-batch", type=click.IntRange(1, 1024), default=2, show_default=True, help="Samples in each.")
@click.option(
    "--tail", type=click.IntRange(0), default=0, show_default=True, help="Micro-batches of a short last window."
)
@click.option("--force", is_flag=True, help="Overwrite files that are there.")
def command(
    folder: Path, loop: str, ci: str, name: str | None, accum_steps: int, micro_batch: int, tail: int, force: bool
) -> int:
    """Write a workspace into FOLDER: a contract, the loop as its subject, a harness, mutants, and a file for CI.

    FUNCTION is looked up and not run. `gradproof verify` in FOLDER then says whether the loop accumulates gradients
    correctly, and whether the verifier would have seen it if it did not.
    """
    from gradproof.core import GradproofError
    from gradproof.starting import Plan, files, loop_of, named, write

    if tail >= accum_steps:
        found, expected = f"tail is {tail}", f"fewer than the {accum_steps} micro-batches of a window"
        raise GradproofError("GP406", found, expected, "give a smaller --tail")
    found_loop = loop_of(loop)
    plan = Plan(folder, found_loop, named(name, found_loop), ci, accum_steps, micro_batch, tail)
    made = files(plan)
    write(made, force=force)
    for path in made:
        click.echo(f"written: {os.path.relpath(path)}")
    there = "" if folder.resolve() == Path.cwd() else f" --workspace {folder}"
    click.echo(f"\nnext:\n  gradproof verify{there}\n  git add {' '.join(_tops(made))}")
    return 0


def _tops(made: dict[Path, str]) -> list[str]:
    """What to commit, as few names as say it, relative to the current folder."""
    tops = dict.fromkeys(os.path.relpath(path.parent if path.parent.name != "workflows" else path) for path in made)
    return [top for top in tops if top != "."] + [os.path.relpath(p) for p in made if os.path.relpath(p.parent) == "."]
