"""`gradproof check` and `gradproof watch`: a training step as it really runs, and a whole script."""

from __future__ import annotations

import difflib
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradproof.cli import INTERRUPTED
from gradproof.cli.options import LATE, SOON, Seconds, allow_undecided, together
from gradproof.core.files import cleared, writable, written
from gradproof.evidence.environment import STEP, need, present

if TYPE_CHECKING:
    from gradproof.shadow.result import Verification


DTYPES = ("float32", "float64", "float16", "bfloat16")
FORMATS = ("text", "json", "md", "html", "junit", "sarif", "github")
result = together(
    click.option(
        "--format", "format_", type=click.Choice(FORMATS), default="text", show_default=True, help="Of the result."
    ),
    click.option("--out", type=click.Path(path_type=Path), help="Write the result to this file."),
    click.option("-v", "--verbose", "much", flag_value="all", help="Print everything, not a few lines."),
    click.option("-q", "--quiet", "much", flag_value="red", help="Print only what is refuted or open, a line each."),
    allow_undecided,
)
"""What `check` and `watch` do with a verification. `much`: its text is a few lines, all, or what does not hold."""


@click.command("check")
@click.argument("target", metavar="FILE.py:FUNCTION")
@click.option("--accum-steps", type=int, default=4, show_default=True, help="Micro-batches of a window.")
@click.option("--micro-batch", type=int, default=2, show_default=True, help="Samples of a micro-batch.")
@click.option("--windows", type=int, default=2, show_default=True, help="Windows, one optimizer step each.")
@click.option("--tail", type=int, default=0, show_default=True, help="Micro-batches of a short last window.")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:N; read as run.device.")
@click.option("--dtype", default="float32", show_default=True, help=f"{', '.join(DTYPES)}; read as run.dtype.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of every random stream.")
@click.option("--rounding", is_flag=True, help="Also bound the rounding error of each gradient.")
@click.option(
    "--range",
    "ranges",
    multiple=True,
    metavar="NAME=R",
    help="Numbers for which rounding is bounded: data=0.1 (from the recorded ones), param=5%, data=max:2 (repeatable). "
    " [default: the recorded ones]",
)
@click.option("--ranks", type=int, default=1, show_default=True, help="Data-parallel ranks.")
@click.option("--fake", is_flag=True, help="Without numbers, over whole tensors: a model of any size.")
@click.option("--optimizer", metavar="NAME", help="Read as run.optimizer; your function gives it a meaning.")
@click.option(
    "--time-limit",
    type=Seconds(),
    default=120.0,
    show_default=True,
    help="Seconds of CPU time in all; ten times as many on the clock.",
)
@click.option("--certificate", default="", metavar="FILE", help="Write the log of the run, for an independent checker.")
@result
def command(
    target: str,
    time_limit: float,
    format_: str,
    out: Path | None,
    much: str | None,
    allow: tuple[str, ...],
    **given: Any,
) -> int:
    """Verify that FUNCTION accumulates gradients correctly.

    FUNCTION takes one argument, a Run (accum_steps, micro_batch_size, windows, device, dtype, seed, samples), and
    trains as it always does. It is called with micro-batches and with the full batch; what it prints goes to stderr.
    """
    from gradproof.shadow.process.check import target_of, verify
    from gradproof.shadow.request import Request, allowed

    need(STEP, "to verify a training step")
    names = allowed(allow)
    request = Request(**given)
    for path, option in ((out, "--out"), (Path(request.certificate) if request.certificate else None, "--certificate")):
        writable(path, option)
        if path is not None:
            cleared(path)
    chosen = target_of(target)
    present(request.device)
    with patience(
        f"{target} is called with micro-batches and with the full batch, for at most {time_limit:g} s of CPU"
    ):
        found = verify(chosen, request, time_limit)
    found.allow_undecided = names
    show(found, format_, out, much)
    return found.code


@contextmanager
def patience(what: str) -> Iterator[None]:
    """Say on stderr what takes long: after SOON on a terminal, and every LATE."""
    ended, began = threading.Event(), time.monotonic()

    def say() -> None:
        wait = SOON if sys.stderr.isatty() else LATE
        while not ended.wait(wait):
            with suppress(OSError):
                click.echo(f"{what}; {time.monotonic() - began:.0f} s so far", err=True)
            wait = LATE

    speaker = threading.Thread(target=say, daemon=True)
    speaker.start()
    try:
        yield
    finally:
        ended.set()
        speaker.join()


def show(
    found: Verification, format_: str, out: Path | None, much: str | None = None, err: bool = False, spent: int = 0
) -> None:
    """Print the verification in a format, on stderr with `err`, or write it to a file and say so on stderr.

    `spent`: lines that are printed besides.
    """
    if out is not None:
        written(out, rendered(found, format_, much))
        click.echo(f"{found.subject}: {found.outcome} (exit {found.code}); written: {out}", err=True)
    elif format_ == "text" and much != "red":
        from rich.console import Console

        from gradproof.report.formats import brief, step

        console = Console(stderr=err)
        step.terminal(found, console) if much == "all" else brief.terminal(found, console, spent)
    else:
        click.echo(rendered(found, format_, much), nl=False, err=err)


def rendered(found: Verification, format_: str, much: str | None = None) -> str:
    """The verification in a format."""
    import json
    from importlib import import_module

    from gradproof.report.formats import brief, step
    from gradproof.shadow.result import to_json

    if format_ == "json":
        return json.dumps(to_json(found), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if format_ in ("html", "junit", "sarif", "github"):
        module = {"html": "page"}.get(format_, format_)
        made: str = import_module(f"gradproof.report.formats.{module}").of_step(found)
        return made
    if format_ == "md":
        return step.render_markdown(found)
    return brief.text(found) if much is None else step.text(found) if much == "all" else brief.quiet(found)


# -- `gradproof watch`: a whole training script, run once; every obligation that one run can decide.

BESIDE = 2
"""Lines of watch besides the result: the effective batch, and how the script ended."""
SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.command("watch", context_settings=SETTINGS)
@click.option("--accum-steps", type=click.IntRange(1), help="Micro-batches of a window.  [default: as the run shows]")
@click.option("--epoch-batches", type=click.IntRange(1), help="Micro-batches of an epoch.  [default: as a DataLoader]")
@click.option("--windows", type=click.IntRange(1), default=3, show_default=True, help="Windows to record.")
@click.option("--windows-at", metavar="0,1,last", help="Which to record, counted from 0.  [default: the first]")
@result
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- python SCRIPT [ARGS]...")
def watch(
    format_: str, out: Path | None, much: str | None, allow: tuple[str, ...], words: tuple[str, ...], **options: Any
) -> int:
    """Run a training script as it is, and verify what one run can decide.

    The script keeps its arguments, its output and its exit code. The result goes to stderr; with another --format
    and without --out it goes to stdout, and the script's own stdout to stderr. Effective batch, optimizer steps an
    epoch, the losses of micro-batches and the loss scaler's steps are monitored to the end of the run.
    """
    from gradproof.core.outcome import EXIT_CODE, Exit
    from gradproof.shadow.process.check import script_of, watch
    from gradproof.shadow.request import allowed

    need(STEP, "to verify a training script")
    names = allowed(allow)
    writable(out)
    if out is not None:
        cleared(out)
    near = _near(words)
    if near:
        raise click.NoSuchOption(words[0], possibilities=near)
    script = script_of(words)
    apart = out is None and format_ != "text"
    seen = watch(script, 2 if apart else None, **options)
    seen.verification.allow_undecided = names
    show(seen.verification, format_, out, much, not apart, BESIDE)
    code = INTERRUPTED if seen.interrupted else seen.code
    said = f"{script.shown} ended with exit code {seen.status}; gradproof ends with {code}"
    click.echo(said + (": the script failed" if code == EXIT_CODE[Exit.CRASH] and seen.status else ""), err=True)
    return code


def _near(words: Sequence[str]) -> list[str]:
    """The options of watch that the first word nearly is: click takes one that it does not know for the script."""
    if not words or not words[0].startswith("--"):
        return []
    known = [name for parameter in watch.params for name in parameter.opts if name.startswith("--")]
    return difflib.get_close_matches(words[0].partition("=")[0], known)
