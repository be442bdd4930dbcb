"""What a run of the rows says: outcomes, the environment, JSON and a table; and how a row is judged by a bound.

Format `gradproof-kernels/1`. History: 1, first version.

Where a claim is a bound, every trial is an exact error beside an exact bound. The row's control is the same claim with
a bound 32 times smaller: inputs that do not refute that one say nothing, and the row is an ERROR.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from gradproof import __version__
from gradproof.arith.formats import FORMATS
from gradproof.core.files import write_whole
from gradproof.extras.conformance.machine import Bits, Values, decode, encode, known

SCHEMA = "gradproof-kernels/1"
HOLDS, REFUTED, NOT_RUN, ERROR = "HOLDS", "REFUTED", "NOT_RUN", "ERROR"
OUTCOMES = (HOLDS, REFUTED, NOT_RUN, ERROR)
NO_CUDA = "there is no CUDA device"


@dataclass(frozen=True, slots=True)
class Fact:
    """What a kernel gave for inputs (hexadecimal bit patterns) beside what is claimed; a bound gives numbers."""

    inputs: tuple[str, ...]
    got: str
    want: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class KernelResult:
    """One row: an operator in a dtype on a device under flags, what is claimed of it, and what was found.

    `cases`: inputs compared. `mismatches`: of those, how many part from the claim. `names`: what detection calls the
    difference. `ratio`: largest measured error over bound, where the claim is a bound. `facts`: side measurements.
    """

    operator: str
    dtype: str
    device: str
    claim: str
    outcome: str
    cases: int = 0
    mismatches: int = 0
    first: Fact | None = None
    names: tuple[str, ...] = ()
    ratio: float | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(f"no outcome {self.outcome!r}")
        if self.outcome == HOLDS and (self.cases < 1 or self.mismatches or self.first is not None):
            raise ValueError(f"{self.operator}: HOLDS needs cases and no mismatch")
        if self.outcome in (NOT_RUN, ERROR) and not self.reason:
            raise ValueError(f"{self.operator}: {self.outcome} needs a reason")


def hexadecimal(pattern: int, name: str) -> str:
    """A bit pattern of a format as text, e.g. 0x3c00."""
    return f"0x{int(pattern):0{known(name).bits // 4}x}"


def ratio_of(error: Fraction, bound: Fraction) -> float:
    """error / bound as a float that is above 1 exactly when the error is above the bound; inf where the bound is 0."""
    if error == 0:
        return 0.0
    if bound == 0:
        return math.inf
    value = float(error / bound)
    if error > bound:
        return max(value, math.nextafter(1.0, 2.0))
    return min(value, 1.0)


def environment(device: str) -> dict[str, Any]:
    """Versions, device, and the global flags that change what kernels return."""
    import torch

    found: dict[str, Any] = {
        "gradproof": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "system": platform.system(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "device": device,
        "byteorder": sys.byteorder,
        "variables": {k: os.environ[k] for k in ("CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE") if k in os.environ},
    }
    if device == "cuda" and torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
        found["capability"] = ".".join(map(str, torch.cuda.get_device_capability()))
        found["cuda"] = torch.version.cuda
        found["cudnn"] = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return found


def plain(value: Any) -> Any:
    """A value that JSON can hold: rationals as text, floats that are not finite as text."""
    if isinstance(value, Fraction):
        return f"{value.numerator}/{value.denominator}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def document(device: str, mode: str, sections: Mapping[str, Sequence[KernelResult]], **more: Any) -> dict[str, Any]:
    """The JSON document of a run; `summary` counts outcomes over every section."""
    rows = [r for results in sections.values() for r in results]
    return {
        "schema": SCHEMA,
        "mode": mode,
        "environment": environment(device),
        "summary": {outcome: sum(r.outcome == outcome for r in rows) for outcome in OUTCOMES},
        "sections": {name: [plain(asdict(r)) for r in results] for name, results in sections.items()},
        **{name: plain(value) for name, value in more.items()},
    }


def write(path: Path, data: Mapping[str, Any]) -> None:
    """Write a document, whole or not at all. Raises ValueError for NaN and infinities, OSError."""
    write_whole(path, json.dumps(data, indent=1, allow_nan=False) + "\n", durable=False)


def line(r: KernelResult) -> str:
    """A row, for a terminal."""
    flags = " ".join(f"{k}={v}" for k, v in r.flags.items())
    ratio = "" if r.ratio is None else f" ratio {r.ratio:.4g}"
    name = f"; {'; '.join(r.names)}" if r.names else ""
    why = f" ({r.reason})" if r.reason else ""
    head = f"{r.outcome:8} {r.operator:26} {r.dtype:10} {r.device:5} {r.claim:44}"
    return f"{head} {r.cases:>9} cases {r.mismatches:>7} off{ratio} {flags}{name}{why}".rstrip()


# -- Rows whose claim is a bound.
CONTROL = Fraction(1, 32)
SHOWN, EXACT = 8, 300
BLIND = "the inputs do not tell this kernel from its control"


@dataclass(frozen=True, slots=True)
class KernelTrial:
    """One measured error and its bound, with the inputs that gave it; `cases` numbers were compared."""

    error: Fraction
    bound: Fraction
    inputs: tuple[str, ...]
    got: str
    want: str
    note: str
    cases: int = 1


@dataclass(frozen=True, slots=True)
class RowClaim:
    """What a row says besides what was found."""

    operator: str
    dtype: str
    device: str
    claim: str
    flags: Mapping[str, Any] = field(default_factory=dict)

    def result(self, outcome: str, **more: Any) -> KernelResult:
        """The row with what was found."""
        return KernelResult(self.operator, self.dtype, self.device, self.claim, outcome, flags=self.flags, **more)


def attempted(row: RowClaim, make: Callable[[], KernelResult]) -> KernelResult:
    """What is found; NOT_RUN where the device is not there, ERROR where a kernel or its comparison raises."""
    import torch

    if row.device == "cuda" and not torch.cuda.is_available():
        return row.result(NOT_RUN, reason=NO_CUDA)
    try:
        return make()
    except (RuntimeError, TypeError, ValueError, ArithmeticError) as e:
        return row.result(ERROR, reason=raised(e))


def raised(e: Exception) -> str:
    """An exception as the reason of a row."""
    return f"{type(e).__name__}: {e}"[:300]


def judge(
    row: RowClaim,
    trials: Iterable[KernelTrial],
    names: Callable[[], tuple[str, ...]] = tuple,
    shrink: Fraction = Fraction(1),
) -> KernelResult:
    """The outcome of a row: REFUTED by the first error above `shrink` times its bound, ERROR without any trial."""
    worst, off, cases, first = 0.0, 0, 0, None
    for t in trials:
        cases += t.cases
        ratio = ratio_of(t.error, t.bound * shrink)
        worst = max(worst, ratio)
        if ratio > 1:
            off += 1
            first = first or Fact(t.inputs, t.got, t.want, t.note)
    outcome, reason = (REFUTED, "") if off else (HOLDS, "")
    if not cases:
        outcome, reason = ERROR, "no trial was made"
    return row.result(
        outcome, cases=cases, mismatches=off, first=first, names=names(), ratio=worst, reason=reason
    )  # fmt: skip


def bounded(
    row: RowClaim,
    trials: Callable[[], Iterable[KernelTrial]],
    names: Callable[[], tuple[str, ...]] = tuple,
    facts: Mapping[str, Any] | None = None,
) -> KernelResult:
    """A row with its control; never raises."""

    def made() -> KernelResult:
        seen = list(trials())
        result = replace(judge(row, seen, names), facts=dict(facts or {}))
        caught = result.outcome != HOLDS or judge(row, seen, shrink=CONTROL).outcome == REFUTED
        reason = "the inputs do not refute a bound 32 times smaller"
        return result if caught else replace(result, outcome=ERROR, reason=reason)

    return attempted(row, made)


def exactly(
    row: RowClaim, trials: Callable[[], Iterable[KernelTrial]], control: Callable[[], Iterable[KernelTrial]]
) -> KernelResult:
    """A row whose errors must all be zero, with a control that must not; never raises."""

    def made() -> KernelResult:
        result = replace(judge(row, trials()), ratio=None)
        caught = result.outcome != HOLDS or judge(row, control()).outcome == REFUTED
        return result if caught else replace(result, outcome=ERROR, reason=BLIND)

    return attempted(row, made)


def shown(bits: Bits, name: str) -> tuple[str, ...]:
    """The first few bit patterns of an array, as text."""
    return tuple(hexadecimal(b, name) for b in bits[:SHOWN])


def sample(kind: str, name: str, length: int, rng: np.random.Generator) -> Bits:
    """Numbers of a kind: uniform, positive, wide (many exponents), cancelling, ones, small (about subnormal).

    Raises KeyError for an unknown kind.
    """
    f = known(name)
    x = rng.uniform(-1, 1, length)
    if kind == "cancelling":
        x = np.ldexp(x, rng.integers(0, 8, length))
        half = length // 2
        x[half : 2 * half] = -x[:half] + np.ldexp(rng.uniform(-1, 1, half), 2 - f.p)
        x = rng.permutation(x)
    made: dict[str, Callable[[], Values]] = {
        **dict.fromkeys(("uniform", "cancelling"), lambda: x),
        "positive": lambda: np.abs(x),
        "wide": lambda: np.ldexp(x, rng.integers(-14, 4, length)),
        "ones": lambda: np.ones(length),
        "small": lambda: np.ldexp(x, f.emin + 3),
    }
    return encode(made[kind](), name)


def value(bits: Bits, name: str) -> Fraction:
    """The exact value of one result. Raises ValueError for a NaN and OverflowError for an infinity."""
    return Fraction(float(decode(bits, name)[0]))


def each_element(
    operands: Sequence[Bits],
    got: Bits,
    want: Values,
    bound: Values,
    exact: Callable[..., Fraction],
    name: str,
    note: str,
) -> Iterator[KernelTrial]:
    """Trials of an elementwise operator whose claim is a bound.

    `want`: the result over the reals, in float64, within 2^-12 of the bound. Every element is compared with it; those
    closest to the bound, and a few others, with `exact` of their operands as rationals.
    """
    numbers, results = [decode(b, name) for b in operands], decode(got, name)
    error = np.abs(results - want)
    order = np.argsort(-(error / bound))
    every = np.flatnonzero(~(error <= bound * (1 + 2.0**-12)))
    for at in [*order[:EXACT], *range(0, len(got), max(1, len(got) // EXACT))]:
        error_at = abs(Fraction(float(results[at])) - exact(*(Fraction(float(n[at])) for n in numbers)))
        patterns = tuple(hexadecimal(b[at], name) for b in operands)
        yield KernelTrial(
            error_at, Fraction(float(bound[at])), patterns, hexadecimal(got[at], name), f"{want[at]:.9g}", note
        )
    at = int(every[0]) if len(every) else int(order[0])
    patterns = tuple(hexadecimal(b[at], name) for b in operands)
    yield KernelTrial(Fraction(len(every)), Fraction(0), patterns, hexadecimal(got[at], name), f"{want[at]:.9g}",
                f"{note}, every element, in float64", len(got))  # fmt: skip


def stored(name: str, exact: Fraction, error: Fraction) -> Fraction:
    """Error bound after the rounding of an fp32 result to storage, for an exact value and a bound on its error."""
    return error if name == "fp32" else error + max(FORMATS[name].u * (abs(exact) + error), FORMATS[name].tiny / 2)
