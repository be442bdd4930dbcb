"""`gradproof demo`: a wrong loop, its verdict, the fix, and the verdict again, in a temporary folder."""

from __future__ import annotations

import tempfile
from contextlib import chdir
from pathlib import Path

import click

from gradproof.core.outcome import EXIT_CODE, Exit
from gradproof.evidence.environment import STEP, need
from gradproof.extras.selftest import LOOP, RIGHT, WRONG

TARGET = "train.py:train"


@click.command("demo")
def command() -> int:
    """Show what `check` says of a wrong training loop, and of the same loop with one line corrected.

    It takes some seconds, needs PyTorch, and leaves no file behind.
    """
    need(STEP, "to verify a training step")
    with tempfile.TemporaryDirectory(prefix="gradproof-demo-") as folder, chdir(folder):
        click.echo("A training loop that runs without an error, train.py:\n")
        for i, line in enumerate(LOOP.splitlines(), 1):
            click.echo(f"{i:>4} | {line}".rstrip())
        found = [_checked(LOOP)]
        click.echo("\nThe fix is one line:\n")
        click.secho(f"-{WRONG}", fg="red", nl=False)
        click.secho(f"+{RIGHT}", fg="green", nl=False)
        found.append(_checked(LOOP.replace(WRONG, RIGHT)))
    if found != [EXIT_CODE[Exit.BROKEN], EXIT_CODE[Exit.MET]]:
        click.echo(f"the demo expects exit codes 1 and 0, and got {found}: run gradproof doctor", err=True)
        return EXIT_CODE[Exit.CRASH]
    click.echo("\nnow yours: gradproof check FILE.py:FUNCTION")
    return 0


def _checked(text: str) -> int:
    """The exit code of `gradproof check` on this text, after its output."""
    from gradproof.cli.check import command as check

    Path("train.py").write_text(text, encoding="utf-8")
    click.echo(f"\n$ gradproof check {TARGET}")
    code: int = check.main([TARGET], prog_name="gradproof check", standalone_mode=False)
    return code
