"""What a run of the rows says: outcomes, the environment, JSON and a table.

Format `gradproof-kernels/1`. History: 1, first version.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from gradproof import __version__
from gradproof.core.files import write_whole

SCHEMA = "gradproof-kernels/1"
HOLDS, REFUTED, NOT_RUN, ERROR = "HOLDS", "REFUTED", "NOT_RUN", "ERROR"
OUTCOMES = (HOLDS, REFUTED, NOT_RUN, ERROR)


@dataclass(frozen=True, slots=True)
class Fact:
    """What a kernel gave for inputs (hexadecimal bit patterns) beside what is claimed; a bound gives numbers."""

    inputs: tuple[str, ...]
    got: str
    want: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Result:
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


def not_run(operator: str, dtype: str, device: str, claim: str, reason: str, **flags: Any) -> Result:
    """A row that this device, or this torch, cannot run."""
    return Result(operator, dtype, device, claim, NOT_RUN, reason=reason, flags=flags)


def hexadecimal(pattern: int, bits: int) -> str:
    """A bit pattern as text, e.g. 0x3c00."""
    return f"0x{int(pattern):0{bits // 4}x}"


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
    import numpy as np
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


def document(device: str, mode: str, sections: Mapping[str, Sequence[Result]], **more: Any) -> dict[str, Any]:
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


def standing(data: Mapping[str, Any], operator: str, dtype: str, device: str) -> str:
    """The worst outcome of the rows for an operator in a document; NOT_RUN where there is none.

    What the rounding model says of an operator that does not stand at HOLDS is an assumption on that device.
    """
    rows = [r for section in data["sections"].values() for r in section]
    wanted = (operator, dtype, device)
    found = {r["outcome"] for r in rows if (r["operator"], r["dtype"], r["device"]) == wanted}
    worst_first = (REFUTED, ERROR, NOT_RUN, HOLDS)
    return next((outcome for outcome in worst_first if outcome in found), NOT_RUN)


def table(results: Sequence[Result]) -> str:
    """One line a row, for a terminal."""
    lines = []
    for r in results:
        flags = " ".join(f"{k}={v}" for k, v in r.flags.items())
        ratio = "" if r.ratio is None else f" ratio {r.ratio:.4g}"
        name = f"; {'; '.join(r.names)}" if r.names else ""
        why = f" ({r.reason})" if r.reason else ""
        head = f"{r.outcome:8} {r.operator:26} {r.dtype:10} {r.device:5} {r.claim:44}"
        lines.append(f"{head} {r.cases:>9} cases {r.mismatches:>7} off{ratio} {flags}{name}{why}".rstrip())
    return "\n".join(lines)
