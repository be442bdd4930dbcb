"""Gappa (Daumas and Melquiond, ACM TOMS 37, 2010), an optional program: its script for a window, and what it answers.

The exact mean is added up in the order of the floats: Gappa subtracts sum by sum. It is asked in two ways. `divide`:
g_i are fp32 numbers, |g_i| <= 1, and g_i / N is rounded, by half an ulp as Gappa sees it. `none`: the terms x_i are the
inputs, |x_i| <= 1 / N, which for N = 2^k is the same but for underflow.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from fractions import Fraction

from tests.bench.measure import CRASHED, HOLDS, NOT_RUN, Said

STORED_SECONDS = 60.0
STORED_FROM = "stored: Gappa 1.4.1 on another day, N = 512"

_NUMBER = r"(-?\d+)(?:b(-?\d+))?"
_INTERVAL = re.compile(rf"\[{_NUMBER}\s*(?:\{{[^}}]*\}})?,\s*{_NUMBER}\s*(?:\{{[^}}]*\}})?\]")


def script(n: int, scale: str = "divide") -> str:
    """Gappa's input for n = 2^k >= 2 terms in fp32. Raises ValueError for another scale or n."""
    if n < 2 or n & (n - 1) or scale not in ("divide", "none"):
        raise ValueError(f"no script for {n} terms, {scale!r}")
    places = range(1, n + 1)
    lines = ["@fl = float<ieee_32, ne>;"]
    given, most = ("g", "1") if scale == "divide" else ("x", f"1b-{n.bit_length() - 1}")
    lines += [f"{given}{i} = fl(r{i});" for i in places]
    exact = "x"
    if scale == "divide":
        exact = "y"
        lines += [line for i in places for line in (f"x{i} fl= g{i} / {n};", f"y{i} = g{i} / {n};")]
    for i in places[1:]:
        before = ("x1", f"{exact}1") if i == 2 else (f"s{i - 1}", f"m{i - 1}")
        lines += [f"s{i} fl= {before[0]} + x{i};", f"m{i} = {before[1]} + {exact}{i};"]
    ranges = " /\\ ".join(f"{given}{i} in [-{most},{most}]" for i in places)
    return "\n".join([*lines, f"{{ {ranges} -> s{n} - m{n} in ? }}"]) + "\n"


def bound_in(answer: str) -> Fraction:
    """The larger end of the interval that Gappa prints, exactly (7b-26 is 7 * 2^-26). Raises ValueError."""
    found = _INTERVAL.search(answer)
    if found is None:
        raise ValueError(f"no interval in Gappa's answer: {answer.strip()[:120]!r}")
    low, high = (Fraction(int(m)) * Fraction(2) ** int(e or 0) for m, e in (found.groups()[:2], found.groups()[2:]))
    if low > high:
        raise ValueError(f"an empty interval in Gappa's answer: {found[0]!r}")
    return max(abs(low), abs(high))


def installed() -> bool:
    """Whether there is a program called gappa on PATH."""
    return shutil.which("gappa") is not None


def ask(n: int, scale: str) -> Said:
    """The bound that Gappa proves at n; NOT_RUN where it is not installed."""
    program = shutil.which("gappa")
    if program is None:
        return Said(NOT_RUN, reason="no gappa on PATH")
    done = subprocess.run([program], input=script(n, scale), capture_output=True, text=True, check=False)
    if done.returncode:
        return Said(CRASHED, reason=f"exit code {done.returncode}: {(done.stderr + done.stdout).strip()[:160]}")
    return Said(HOLDS, bound_in(done.stdout + done.stderr))
