"""`gradproof check`, `watch` and `demo`: a training step as it really runs, a whole script, and an example of both."""

from __future__ import annotations

import difflib
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gradproof.cli import INTERRUPTED
from gradproof.cli.options import LATE, SOON, Seconds, allow_undecided, together
from gradproof.core.files import cleared, writable, written
from gradproof.core.processes import PREFIX
from gradproof.core.putback import probed
from gradproof.evidence.environment import STEP, need, present

if TYPE_CHECKING:
    from gradproof.shadow.process.check import Target
    from gradproof.shadow.result import Verification


HYDRA = re.compile(r"^\s*(import|from) hydra\b", re.MULTILINE)
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
@click.argument("words", nargs=-1, metavar="FILE.py:FUNCTION | --script FILE.py [-- ARGS]")
@click.option("--script", metavar="FILE.py", help="A script that is run twice, in place of a function.")
@click.option("--accum-arg", default="", metavar="NAME=N", help="The script's argument for micro-batches of a window.")
@click.option("--batch-arg", metavar="NAME=B", help="The script's argument for its batch, and the full batch.")
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
    words: tuple[str, ...],
    script: str | None,
    accum_arg: str,
    batch_arg: str | None,
    time_limit: float,
    format_: str,
    out: Path | None,
    much: str | None,
    allow: tuple[str, ...],
    **given: Any,
) -> int:
    """Verify that FUNCTION accumulates gradients correctly.

    FUNCTION takes one argument, a Run (accum_steps, micro_batch_size, windows, device, dtype, seed, samples), and
    trains as it always does. It is called several times, by micro-batches and by the full batch. What its first call
    prints goes to stderr; of the other calls only the first that raises is heard.

    With --script a script takes its place: it runs with NAME=N, and with NAME=1 and the full batch, until --windows
    are complete. Its own arguments stand behind two dashes.
    """
    from gradproof.shadow.process.check import target_of, verify
    from gradproof.shadow.request import Request, allowed

    _fitting(words, script)
    need(STEP, "to verify a training step")
    names, subject = allowed(allow), script or words[0]
    request = Request(**given)
    for path, option in ((out, "--out"), (Path(request.certificate) if request.certificate else None, "--certificate")):
        writable(path, option)
        if path is not None:
            cleared(path)
    said = f"{subject} is called with micro-batches and with the full batch, for at most {time_limit:g} s of CPU"
    if script:
        with _of_script(script, words, accum_arg, batch_arg) as (chosen, n, left), patience(said):
            found = verify(chosen, replace(request, accum_steps=n), time_limit)
        found.subject = script
        click.echo("".join(f"not put back: {one}\n" for one in left), err=True, nl=False)
    else:
        chosen = target_of(subject)
        present(request.device)
        with patience(said):
            found = verify(chosen, request, time_limit)
    found.allow_undecided = names
    show(found, format_, out, much)
    return found.code


OF_SCRIPT = {"script", "accum_arg", "batch_arg"}
BESIDE_SCRIPT = {*OF_SCRIPT, "words", "windows", "seed", "time_limit", "format_", "out", "much", "allow"}
"""The parameters of check that mean something for a script."""


def _fitting(words: Sequence[str], script: str | None) -> None:
    """Raise GradproofError GP406 for options that do not belong together, UsageError for no function or several."""
    from gradproof.shadow.request import refused

    context = click.get_current_context()
    expected = "no such option beside --script" if script else "--script FILE.py beside it"
    for name in sorted({*context.params} - BESIDE_SCRIPT if script else OF_SCRIPT):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise refused(name, context.params[name], expected)
    if script and words and re.fullmatch(r".+\.py:[\w.]+", words[0]):
        raise refused("script", script, f"a script, or the function {words[0]}, and not both")
    if not script and len(words) != 1:
        raise click.UsageError(f"Expected one FILE.py:FUNCTION or --script FILE.py, found {' '.join(words) or 'none'}.")


@contextmanager
def _of_script(path: str, own: Sequence[str], accum: str, batch: str | None) -> Iterator[tuple[Target, int, list[str]]]:
    """A function that runs a script, N, and at the end what was not put back. Arguments have dashes but with Hydra."""
    from gradproof.shadow.process.check import Target, script_of
    from gradproof.shadow.request import refused

    name, hydra = script_of([path, *own]).name, HYDRA.search(Path(path).read_text("utf-8", "replace"))
    first, *rest = (one if hydra or one[:1] in "-+" else f"--{one}" for one in (accum, batch) if one is not None)
    argument, _, number = first.rpartition("=")
    if not argument.strip("-") or not number.isdecimal() or int(number) < 2:
        raise refused("accum-arg", accum, "NAME=N, the script's argument for the micro-batches of a window, 2 or more")
    if batch is not None and not all(batch.partition("=")):
        raise refused("batch-arg", batch, "NAME=B, the script's argument for its batch, and the full batch")
    homes = [str(Path(each).resolve()) for each in (".", Path(path).parent)]
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        file, kept = Path(folder, "train.py"), Path(folder, "kept")
        given = (name, [*own, first], [*own, f"{argument}=1", *rest], str(kept), homes)
        file.write_text(f"from gradproof.cli.script import Twice\n\ntrain = Twice(*{given!r})\n", encoding="utf-8")
        with probed(kept, homes) as left:
            yield Target(file, "train", path), int(number), left


@contextmanager
def patience(what: str) -> Iterator[None]:
    """Say on stderr what takes long: after SOON on a terminal, and every LATE. Meanwhile what prints it is loaded."""
    ended, began = threading.Event(), time.monotonic()

    def say() -> None:
        import_module("gradproof.report.formats.brief")
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

    from gradproof.report.formats import brief, step
    from gradproof.shadow.result import to_json

    if format_ == "json":
        return json.dumps(to_json(found), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if format_ == "html":
        from gradproof.report.formats import page

        return page.of_step(found)
    if format_ in ("junit", "sarif", "github"):
        from gradproof.report.formats import ci

        made: str = getattr(ci, f"{format_}_of_step")(found)
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
@click.option(
    "--windows-at", metavar="0,1,last", help="Which to record, counted from 0.  [default: first, last, drawn]"
)
@click.option("--seed", type=int, default=0, show_default=True, help="Draws two further windows to record.")
@click.option("--stop-after", type=click.IntRange(1), metavar="N", help="End the script after N windows.")
@click.option(
    "--time-limit",
    type=Seconds(),
    default=120.0,
    show_default=True,
    help="Seconds of CPU time that following one window may take, besides the script's own.",
)
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
    show(seen.verification, format_, out, much, not apart, BESIDE + bool(seen.left))
    if seen.left:
        click.echo(f"not put back: {'; '.join(seen.left)}", err=True)
    code = INTERRUPTED if seen.interrupted else seen.verification.code
    until = seen.verification.config.get("stopped_after")
    ended = f"was stopped after window {until}" if until else f"ended with exit code {seen.status}"
    click.echo(f"{script.shown} {ended}; gradproof ends with {code}", err=True)
    return code


def _near(words: Sequence[str]) -> list[str]:
    """The options of watch that the first word nearly is: click takes one that it does not know for the script."""
    if not words or not words[0].startswith("--"):
        return []
    known = [name for parameter in watch.params for name in parameter.opts if name.startswith("--")]
    return difflib.get_close_matches(words[0].partition("=")[0], known)


# -- `gradproof demo`: a wrong loop, its verdict, the fix, and the verdict again, in a temporary folder.

TARGET = "train.py:train"


@click.command("demo")
def demo() -> int:
    """Show what `check` says of a wrong training loop, and of the same loop with one line corrected.

    It takes some seconds, needs PyTorch, and leaves no file behind.
    """
    from contextlib import chdir

    from gradproof.core.outcome import EXIT_CODE, Exit
    from gradproof.extras.selftest import LOOP, RIGHT, WRONG

    need(STEP, "to verify a training step")
    with tempfile.TemporaryDirectory(prefix="gradproof-demo-") as folder, chdir(folder):
        click.echo("A training loop that runs without an error, train.py:\n")
        for i, line in enumerate(LOOP.splitlines(), 1):
            click.echo(f"{i:>4} | {line}".rstrip())
        found = [_shown(LOOP)]
        click.echo("\nThe fix is one line:\n")
        click.secho(f"-{WRONG}", fg="red", nl=False)
        click.secho(f"+{RIGHT}", fg="green", nl=False)
        found.append(_shown(LOOP.replace(WRONG, RIGHT)))
    if found != [EXIT_CODE[Exit.BROKEN], EXIT_CODE[Exit.MET]]:
        click.echo(f"the demo expects exit codes 1 and 0, and got {found}: run gradproof doctor", err=True)
        return EXIT_CODE[Exit.CRASH]
    click.echo("\nnow yours: gradproof check FILE.py:FUNCTION")
    return 0


def _shown(text: str) -> int:
    """The exit code of `gradproof check` on this text, after its output."""
    Path("train.py").write_text(text, encoding="utf-8")
    click.echo(f"\n$ gradproof check {TARGET}")
    code: int = command.main([TARGET], prog_name="gradproof check", standalone_mode=False)
    return code
