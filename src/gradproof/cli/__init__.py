"""The command line: one file for one to three commands, loaded when used. Neither torch nor z3 is loaded to start.

Exit codes are the same in every command (core.EXIT_CODE), and 130 when interrupted.
"""

from __future__ import annotations

import codecs
import errno
import gc
import io
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

import click

from gradproof import __version__
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, EXIT_MEANING, Exit

INTERRUPTED = 130
UNSERVED = {"GP495": 6, "GP496": 6}
"""Codes of an engine that can go on no longer: neither the command line nor a check is wrong."""
UNWRITTEN = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
RARELY = (200_000, 20, 20)  # Python's usual 700 costs a tenth of the time that `list` takes

GROUPS: Mapping[str, Mapping[str, tuple[str, str]]] = {  # of commands: where each is, and its line in the help
    "Your own loop, without a workspace": {
        "check": ("check", "Verify the training step of FILE.py:FUNCTION as it really runs."),
        "watch": ("check:watch", "Run a training script and verify what one run can decide."),
        "demo": ("check:demo", "Show a wrong loop, its verdict, the fix and the new verdict, in seconds."),
        "init": ("init", "Write a workspace, with CI, around your own training loop."),
    },
    "A workspace": {
        "verify": ("verify", "Plan, run, report and gate: the whole length."),
        "gate": ("verify:gate", "Judge the stored evidence. Runs and writes nothing."),
        "report": ("verify:report", "Render the report again from the stored evidence."),
    },
    "Parts of a workspace": {
        "prove": ("prove", "Run the stubs' claims and the proofs (Z3, CrossHair)."),
        "run": ("prove:run_tests", "Run the falsification tests on real PyTorch."),
        "list": ("prove:list_checks", "List the planned checks with their bounds."),
        "replay": ("show:replay", "Replay the counterexample of an evidence file."),
        "claims": ("claims", "Judge every claim of the field on the stored evidence."),
        "graph": ("show:graph", "Draw contracts and what they depend on, with their verdicts."),
        "config": ("show:config", "Show each setting with its value and its source."),
    },
    "Other runs, versions and machines": {
        "merge": ("merge", "Take evidence of other folders of reports, such as those of shards."),
        "diff": ("merge:diff", "Say what changed between two contracts or two sets of reports."),
        "attest": ("attest", "Write the stored evidence as a folder that a stranger can judge."),
        "verify-bundle": ("attest:verify_bundle", "Judge such a folder, offline."),
    },
    "Rounding and batch sizes": {
        "bound": ("bound", "Bound the rounding error of accumulation, and attain it."),
        "plan-batch": ("plan_batch", "Plan batch sizes: effective = micro-batch x accum-steps x ranks."),
        "sweep": ("plan_batch:sweep", "Measure throughput and gradient variance over the effective batch."),
    },
    "Help": {
        "explain": ("explain", "Say what a code, an outcome, a check or a mutant means."),
        "doctor": ("doctor", "Test solver, CrossHair, torch and devices; warn of folders that shadow."),
    },
}
COMMANDS: Mapping[str, tuple[str, str]] = {name: row for group in GROUPS.values() for name, row in group.items()}

_CODES = "\n".join(f"  {EXIT_CODE[e]}  {EXIT_MEANING[e]}" for e in Exit)
_OTHERS = f"  6  no scheduler or no worker of --engine is left\n  {INTERRUPTED}  interrupted; what had finished is kept"
EPILOG = f"\b\nExit codes:\n{_CODES}\n{_OTHERS}"


class Lazy(click.Group):
    """A group that imports a command's module only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Commands in the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, or None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(f"{__name__}.{module}"), name or "command")
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of the first word. Raises click.UsageError with the nearest command for a word that is none."""
        word = args[0]
        if word in COMMANDS or word.startswith("-"):
            return super().resolve_command(ctx, args)
        raise click.UsageError(f"No such command {word!r}.{_meant(word)}", ctx)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raises GradproofError GP409 for a package of gradproof's that is not installed."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as e:
            from gradproof.evidence.environment import EXTRAS, KNOWN, need

            need({str(e.name).partition(".")[0]} & {*KNOWN, *EXTRAS}, "which the command imports")
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Names with one line each, from the table above, group by group."""
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in group.items()])


def _meant(word: str) -> str:
    """What somebody meant who wrote this instead of a command."""
    from difflib import get_close_matches

    if ".py:" in word:
        return f" Did you mean 'gradproof check {word}'?"
    if word.endswith(".py"):
        return f" Did you mean 'gradproof watch -- python {word}'?"
    near = get_close_matches(word.lower(), COMMANDS, 3, 0.6)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else " See 'gradproof --help'."


@click.group(cls=Lazy, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gradproof")
def cli() -> None:
    """Prove, bound and measure that a training step accumulates gradients correctly.

    A workspace is a folder with proofs/, models/ and symbolic/. Outside one, the reference workspace is used, with a
    warning, and in CI never.
    check and watch need no workspace: they take your own training code.
    """


def main(args: list[str] | None = None) -> None:
    """Run the command line and end the process with one of the exit codes. SIGTERM interrupts like SIGINT."""
    gc.set_threshold(*RARELY)
    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    _opened()
    _lenient()
    code = dispatch(args)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            silent = isinstance(error, BrokenPipeError) or code == EXIT_CODE[Exit.USAGE]
            code = code if silent or stream is sys.stderr else _failed(error)
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # what is left would fail again at the end
    sys.exit(code)


def _opened() -> None:
    """A standard stream that the caller closed is /dev/null, so that no file that is opened later takes its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))


class _Unread(io.FileIO):
    """A standard output whose reader may leave, as `head` does: the rest goes nowhere, and the verdict stays."""

    def write(self, data: Any) -> int:
        """Bytes written. Raises OSError where the output is not taken for another reason."""
        try:
            return super().write(data)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return len(data)


def _lenient() -> None:
    """Let stdout and stderr take every text: what their encoding lacks is written as JSON writes it, \\u2192."""
    codecs.register_error("gradproof", _escaped)
    out, err = sys.stdout, sys.stderr
    if isinstance(err, io.TextIOWrapper):
        err.reconfigure(errors="gradproof")
    if isinstance(out, io.TextIOWrapper) and out is sys.__stdout__:
        raw = io.BufferedWriter(_Unread(out.fileno(), "w", closefd=False))
        sys.stdout = io.TextIOWrapper(
            raw, out.encoding, "gradproof", line_buffering=out.line_buffering, write_through=out.write_through
        )


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """For the codecs: the characters that cannot be encoded, as escapes of JSON. Raises what is no such error."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _said(text: str) -> None:
    """Tell the user, where stderr still takes anything."""
    with suppress(OSError):
        click.echo(text, err=True)


def _failed(error: OSError) -> int:
    """Tell that output could not be written, and the exit code for it."""
    found = f"what was to be said could not be written: {error.strerror or error}"
    help = "free the disk, or send the output elsewhere; the verdict was not printed"
    _said(GradproofError("GP451", found, "a stdout and a stderr that take what is written", help).render())
    return EXIT_CODE[Exit.USAGE]


def dispatch(args: list[str] | None = None) -> int:
    """Run the command line; every way to fail has its exit code."""
    try:
        result = cli.main(args, prog_name="gradproof", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as e:
        return e.exit_code
    except (click.Abort, KeyboardInterrupt):
        _said("interrupted")
        return INTERRUPTED
    except click.ClickException as e:
        with suppress(OSError):
            e.show()
        return EXIT_CODE[Exit.USAGE]
    except GradproofError as e:
        if e.code == "GP409":
            e.where = f"gradproof {next(word for word in args or sys.argv[1:] if word in COMMANDS)}"
        _said(e.render())
        return UNSERVED.get(e.code, EXIT_CODE[Exit.USAGE if e.code.startswith("GP") else Exit.CRASH])
    except BrokenPipeError:
        return EXIT_CODE[Exit.CRASH]
    except Exception as e:
        if isinstance(e, OSError) and e.filename is None and e.errno in UNWRITTEN:
            return _failed(e)
        if os.environ.get("GRADPROOF_TRACEBACK"):
            raise
        text = f"internal error: {type(e).__name__}: {e}\n  GRADPROOF_TRACEBACK=1 shows where; please report it"
        _said(text)
        return EXIT_CODE[Exit.CRASH]
