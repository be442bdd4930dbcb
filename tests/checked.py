"""`gradproof check` and `gradproof watch` in this process: the whole verification of a function, by all judges.

Of each, the lines that the command would print are counted.
"""

from __future__ import annotations

import io
import runpy
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from gradproof.cli.check import BESIDE
from gradproof.core.outcome import Outcome
from gradproof.report.formats import brief
from gradproof.shadow.process.check import verified
from gradproof.shadow.process.watch import ScriptWatch
from gradproof.shadow.request import Request
from gradproof.shadow.result import Verification


def check(function: Callable[[Any], Any], **options: Any) -> Verification:
    """Verify a training function; the options are those of a `Request`."""
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    return counted(verified(function, Request(**options)))


def watch(
    target: Callable[[], Any] | Sequence[str],
    accum_steps: int | None = None,
    windows: int = 3,
    epoch_batches: int | None = None,
    windows_at: str | None = None,
) -> Verification:
    """Run a function, or a script (`["train.py", "--epochs", "1"]`) as `python` would, and judge what was seen.

    Whatever it raises passes through.
    """
    watcher = ScriptWatch(accum_steps, windows, windows_at, epoch_batches=epoch_batches)
    with watcher:
        if callable(target):
            target()
        else:
            run_script(target)
    return counted(watcher.verification(), BESIDE)


def counted(found: Verification, spent: int = 0) -> Verification:
    """The verification. Raises AssertionError where its few lines are more than 12 or 25 of a terminal.

    `spent`: lines that the command prints besides.
    """
    most = 12 if found.outcome is Outcome.HOLDS else 25
    for width in (80, 100):
        out = io.StringIO()
        brief.terminal(found, Console(file=out, width=width, force_terminal=True, color_system=None), spent)
        rows = out.getvalue().splitlines()
        assert len(rows) + spent <= most, f"{len(rows)} lines, and {spent} besides:\n{out.getvalue()}"
    return found


def run_script(argv: Sequence[str]) -> None:
    """Run a script under its own arguments; `sys.argv` is put back."""
    before = sys.argv
    sys.argv = list(argv)
    try:
        runpy.run_path(argv[0], run_name="__main__")
    finally:
        sys.argv = before
