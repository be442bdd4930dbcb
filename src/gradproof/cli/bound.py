"""`gradproof bound`: what floating-point accumulation can lose, proved from above and attained from below."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradproof.core import EXIT_CODE, Exit, GradproofError, Outcome, digest_of

if TYPE_CHECKING:
    from gradproof.kernels.replay import Replay
    from gradproof.rounding.answer import Answer

BUFFERS = ("fp32", "fp16", "bf16")
CODE = {Outcome.HOLDS: Exit.MET, Outcome.REFUTED: Exit.BROKEN, Outcome.UNKNOWN: Exit.OPEN}


@click.command("bound")
@click.option("--n", "-n", type=int, default=4, show_default=True, help="Micro-batches of a window.")
@click.option("--buffer", type=click.Choice(BUFFERS), default="fp32", show_default=True, help="Format of the sum.")
@click.option("--inputs", type=click.Choice(BUFFERS), help="Gradients are rounded to it first.  [default: not rounded]")
@click.option("--scale", default="divide", show_default=True, help="divide, multiply (by fl(1/n)), after or none.")
@click.option(
    "--order", default="sequential", show_default=True, help="sequential, pairwise, blocked:SIZE, kahan, neumaier, any."
)
@click.option("--magnitude", default="1", show_default=True, help="Largest |g|, a decimal or a fraction.")
@click.option("--tolerance", metavar="EPS", help="Also say whether the error stays within EPS; sets the exit code.")
@click.option("--thresholds", is_flag=True, help="For every N = 2^k: the largest within EPS, the first beyond it.")
@click.option("--certificate", type=click.Path(path_type=Path), help="Write the certificate to this file.")
@click.option("--replay", metavar="DEVICE", help="Replay the input in torch, on cpu or cuda (left to right only).")
@click.option("--json", "json_", is_flag=True, help="Print JSON on stdout.")
def command(
    magnitude: str, tolerance: str | None, thresholds: bool, certificate: Path | None, replay: str | None,
    json_: bool, **given: Any,
) -> int:  # fmt: skip
    """Bound the error of accumulating N gradients in floating point, and show an input that comes near the bound.

    The bound holds for every input of the stated size, with a certificate that a checker of its own accepted.
    """
    from gradproof.arith.linear import NonLinear
    from gradproof.rounding.answer import answer, as_json
    from gradproof.rounding.answer import thresholds as table
    from gradproof.rounding.lemmas import LemmaRefused
    from gradproof.rounding.setting import Setting

    eps = None if tolerance is None else rational(tolerance, "--tolerance")
    if thresholds and eps is None:
        raise GradproofError("GP411", "--thresholds without --tolerance", "a tolerance", "add --tolerance EPS")
    try:
        setting = Setting(magnitude=rational(magnitude, "--magnitude"), **given)
        if thresholds:
            assert eps is not None
            found = table(setting, eps)
            click.echo(json.dumps(found) if json_ else "\n".join(f"{k}: {v or 'none'}" for k, v in found.items()))
            return EXIT_CODE[Exit.MET]
        made = answer(setting)
        seen = None if replay is None else replayed(made, replay)
    except LemmaRefused as error:
        click.echo(f"no answer: a step contract is not proved: {error}", err=True)
        return EXIT_CODE[Exit.OPEN]
    except (NonLinear, OverflowError, ValueError) as error:
        raise GradproofError("GP411", str(error), "a setting with a bound", "see gradproof bound --help") from error
    if certificate is not None:
        write(certificate, made)
    outcome = None if eps is None else made.outcome(eps)
    more = {} if seen is None else {"replay": vars(seen) | {"error": str(seen.error), "model": str(seen.model)}}
    click.echo(json.dumps(as_json(made) | {"outcome": outcome} | more) if json_ else told(made, eps, seen))
    beyond = seen is not None and seen.error > made.bound
    return EXIT_CODE[Exit.BROKEN if beyond else CODE[outcome] if outcome is not None else Exit.MET]


def replayed(made: Answer, device: str) -> Replay:
    """The witness on torch's kernels. Raises GradproofError GP406 without the device, ValueError for other orders."""
    from gradproof.cli.check import present
    from gradproof.kernels.replay import replay

    if device not in ("cpu", "cuda"):
        raise ValueError(f"no device {device!r}; known: cpu, cuda")
    present(device)
    return replay(made.setting, made.witness, device)


def rational(text: str, option: str) -> Fraction:
    """A decimal or a fraction. Raises GradproofError GP411."""
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError) as error:
        raise GradproofError("GP411", f"{option} {text!r}", "a decimal or a fraction", "such as 1e-5 or 1/3") from error


def write(path: Path, made: Answer) -> None:
    """Write the certificate, whole or not at all. Raises GradproofError GP407 or GP411."""
    from gradproof.files import replace_whole

    if made.certificate is None:
        raise GradproofError("GP411", "no certificate", "an order of its own", "every order at once has none")
    try:
        replace_whole(path, json.dumps(made.certificate) + "\n")
    except OSError as error:
        raise GradproofError("GP407", str(error), "a file that can be written", "name another") from error


def told(made: Answer, eps: Fraction | None, seen: Replay | None = None) -> str:
    """An answer in words."""
    ratio = "nothing attained" if made.ratio is None else f"ratio {float(made.ratio):.4f}"
    lines = [
        made.setting.describe(),
        f"proved:   |G - mean| <= {float(made.bound):.6e} for every input",
        f"attained: {float(made.attained):.6e} by a constructed input, evaluated exactly ({ratio})",
    ]
    if seen is not None:
        same = "to the last digit" if seen.equal else f"the model of rounding says {float(seen.model):.6e}"
        beyond = "; BEYOND THE BOUND: these kernels round otherwise" if seen.error > made.bound else ""
        lines.append(f"replayed: {float(seen.error):.6e} in torch {seen.torch} on {seen.device} ({same}){beyond}")
    if made.certificate is not None:
        rows = len(made.certificate["rows"])
        lines.append(f"certificate: {rows} rows, accepted, sha256 {digest_of(made.certificate)[:16]}")
    lines.append(f"rests on {len(made.contracts)} step contracts: {', '.join(made.contracts)}")
    if eps is not None:
        lines.append(f"within {float(eps):g}: {made.outcome(eps)}")
    return "\n".join([*lines, *(f"assumes: {text}" for text in made.assumes)])
