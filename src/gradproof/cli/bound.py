"""`gradproof bound`: what floating-point accumulation can lose, proved from above and attained from below."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradproof.cli.options import ACCUM_STEPS, output_format
from gradproof.core.check import digest_of
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, Exit, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradproof.execution.methods.replay_kernels import Replay
    from gradproof.rounding.accumulation import Setting
    from gradproof.rounding.bound import BoundAnswer, Norm

BUFFERS = ("fp32", "fp16", "bf16")
CODE = {Outcome.HOLDS: Exit.MET, Outcome.REFUTED: Exit.BROKEN, Outcome.UNKNOWN: Exit.OPEN}


@click.command("bound")
@click.option("-n", "--accum-steps", "n", type=int, default=4, show_default=True, help=ACCUM_STEPS)
@click.option("--buffer", type=click.Choice(BUFFERS), default="fp32", show_default=True, help="Format of the sum.")
@click.option("--inputs", type=click.Choice(BUFFERS), help="Gradients are rounded to it first.  [default: not rounded]")
@click.option("--scale", default="divide", show_default=True, help="divide, multiply (by fl(1/n)), after or none.")
@click.option(
    "--order", default="sequential", show_default=True, help="sequential, pairwise, blocked:SIZE, kahan, neumaier, any."
)
@click.option("--magnitude", default="1", show_default=True, help="Largest |g|, a decimal or a fraction.")
@click.option("--tolerance", metavar="EPS", help="Also say whether the error stays within EPS; sets the exit code.")
@click.option("--relative", metavar="EPS", help="As --tolerance, for |G - mean| / max |g|: EPS times the magnitude.")
@click.option("--elements", type=int, metavar="D", help="Judge the Euclidean norm of the error over D elements.")
@click.option("--thresholds", is_flag=True, help="For every N = 2^k: the largest within EPS, the first beyond it.")
@click.option("--most", type=int, default=2**16, show_default=True, help="Largest N of --thresholds.")
@click.option("--certificate", type=click.Path(path_type=Path), help="Write the certificate to this file.")
@click.option("--replay", metavar="DEVICE", help="Replay the input in torch, on cpu or cuda.")
@output_format("text", "json")
def command(
    magnitude: str, tolerance: str | None, relative: str | None, elements: int | None, thresholds: bool, most: int,
    certificate: Path | None, replay: str | None, format_: str, **given: Any,
) -> int:  # fmt: skip
    """Bound the error of accumulating N gradients in floating point, and show an input that comes near the bound.

    The bound holds for every input of the stated size, with a certificate that a checker of its own accepted.
    """
    from gradproof.arith.linear import NonLinear
    from gradproof.core import files
    from gradproof.rounding.accumulation import Setting
    from gradproof.rounding.bound import Norm, answer
    from gradproof.rounding.lemma_store import LemmaRefused

    if certificate is not None:
        files.allowed(certificate, "--certificate")
    eps = allowed(tolerance, relative, rational(magnitude, "--magnitude"))
    if thresholds and (eps is None or elements is not None):
        raise GradproofError("GP411", "--thresholds", "a tolerance, for one element", "add --tolerance EPS alone")
    try:
        setting = Setting(magnitude=rational(magnitude, "--magnitude"), **given)
        if thresholds:
            assert eps is not None
            click.echo(ladder(setting, eps, most, format_ == "json"))
            return EXIT_CODE[Exit.MET]
        made = answer(setting)
        norm = None if elements is None else Norm(made, elements)
        seen = None if replay is None else replayed(made, replay)
    except LemmaRefused as error:
        click.echo(f"no answer: a step contract is not proved: {error}", err=True)
        return EXIT_CODE[Exit.OPEN]
    except OverflowError as error:
        fitting = "give a smaller --magnitude, fewer micro-batches or a wider format"
        raise GradproofError("GP411", str(error), "numbers and sums that their formats can hold", fitting) from error
    except (NonLinear, ValueError) as error:
        raise GradproofError("GP411", str(error), "a setting with a bound", "see gradproof bound --help") from error
    if certificate is not None:
        if made.certificate is None:
            raise GradproofError("GP411", "no certificate", "an order of its own", "every order at once has none")
        files.written(certificate, json.dumps(made.certificate) + "\n", "--certificate")
    shown = ShownBound(made, eps, norm, seen, relative is not None)
    click.echo(json.dumps(shown.as_json()) if format_ == "json" else shown.stated())
    beyond = seen is not None and seen.error > made.bound
    return EXIT_CODE[Exit.BROKEN if beyond else CODE[shown.outcome] if shown.outcome is not None else Exit.MET]


def allowed(tolerance: str | None, relative: str | None, magnitude: Fraction) -> Fraction | None:
    """The absolute tolerance, of either option. Raises GradproofError GP411 for both."""
    if tolerance is not None and relative is not None:
        raise GradproofError("GP411", "--tolerance and --relative", "one of them", "leave one out")
    if relative is not None:
        return rational(relative, "--relative") * magnitude
    return None if tolerance is None else rational(tolerance, "--tolerance")


def ladder(setting: Setting, eps: Fraction, most: int, json_: bool) -> str:
    """The thresholds over N = 2^k up to `most`; raises ValueError where that is no power of two."""
    from gradproof.rounding.bound import power, thresholds

    found = thresholds(setting, eps, power(most))
    if json_:
        return json.dumps({"schema": "gradproof-thresholds/1", **found})
    lines = [f"{k}: {v or 'none'}" for k, v in found.items()]
    return "\n".join(lines + ([f"(N = {most} is the largest that was asked)"] if found["true up to"] == most else []))


def replayed(made: BoundAnswer, device: str) -> Replay:
    """The witness on torch's kernels. Raises GradproofError GP406 without the device, ValueError for other orders."""
    from gradproof.evidence.environment import present
    from gradproof.execution.methods.replay_kernels import replay

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


@dataclass(frozen=True)
class ShownBound:
    """An answer, the tolerance it is judged by, the norm if there is one, and what torch did."""

    made: BoundAnswer
    eps: Fraction | None
    norm: Norm | None
    seen: Replay | None
    relative: bool

    @property
    def outcome(self) -> Outcome | None:
        """Of the norm where there is one, else of one element; None without a tolerance."""
        return None if self.eps is None else (self.norm or self.made).outcome(self.eps)

    def as_json(self) -> dict[str, Any]:
        """As JSON values, format gradproof-bound/1."""
        from gradproof.rounding.bound import as_json

        found = {"schema": "gradproof-bound/1", **as_json(self.made), "outcome": self.outcome}
        if self.norm is not None:
            n = self.norm
            found["norm"] = {"elements": n.elements, "bound": str(n.bound), "attained": str(n.attained)}
        if self.seen is not None:
            found["replay"] = vars(self.seen) | {"error": str(self.seen.error), "model": str(self.seen.model)}
        return found

    def stated(self) -> str:
        """In words."""
        made = self.made
        ratio = "nothing attained" if made.ratio is None else f"ratio {float(made.ratio):.4f}"
        lines = [
            made.setting.describe(),
            f"proved:   |G - mean| <= {float(made.bound):.6e} for every input",
            f"attained: {float(made.attained):.6e} by a constructed input, evaluated exactly ({ratio})",
            *self._sizes(),
        ]
        if self.seen is not None:
            seen = self.seen
            same = "to the last digit" if seen.equal else f"the model of rounding says {float(seen.model):.6e}"
            beyond = "; BEYOND THE BOUND: these kernels round otherwise" if seen.error > made.bound else ""
            lines.append(f"replayed: {float(seen.error):.6e} in torch {seen.torch} on {seen.device} ({same}){beyond}")
        if made.certificate is not None:
            rows = len(made.certificate["rows"])
            lines.append(f"certificate: {rows} rows, accepted, sha256 {digest_of(made.certificate)[:16]}")
        lines.append(f"rests on {len(made.contracts)} step contracts: {', '.join(made.contracts)}")
        if self.eps is not None:
            lines.append(f"within {float(self.eps):g}: {self.outcome}")
        return "\n".join([*lines, *(f"assumes: {text}" for text in made.assumes)])

    def _sizes(self) -> Iterator[str]:
        from gradproof.rounding.bound import relative_bound

        if self.norm is not None:
            n = self.norm
            yield f"norm:     ||G - mean||_2 <= {float(n.bound):.6e} over {n.elements} elements (KANI-GA-030)"
            yield f"          {float(n.attained):.6e} attained, every element the witness"
        if self.relative:
            x = self.made.setting.magnitude
            yield f"relative: {float(self.made.bound / x):.6e} of max |g|, {float(self.made.attained / x):.6e} attained"
            try:
                c, a = relative_bound(self.made.setting)
            except ValueError as error:
                yield f"          no form for every size: {error}"
            else:
                yield f"          |G - mean| <= {float(c):.6e} mean |g| + {float(a):.3e} at any size (KANI-GA-029)"
