"""Whether a sum flushes: sixteen times the smallest subnormal number of a format, which every order adds up exactly.

Flushing on a CPU is a mode of a thread (torch.set_flush_denormal); the bounds of the rows are about rounding without
it, so a row whose sum flushes names it, and does not hold.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
from torch import Tensor

from gradproof.kernels.detect import FLUSHES
from gradproof.kernels.elementwise import to_bits, to_tensor
from gradproof.kernels.model import Bits, known
from gradproof.kernels.report import hexadecimal
from gradproof.kernels.trials import Trial, shown, value

COUNT = 16

Total = Callable[[Tensor], Tensor]


def added(total: Total, dtype: str, device: str) -> tuple[Bits, Bits]:
    """The sixteen terms, and the bit pattern that a sum of them gives."""
    terms = np.ones(COUNT, dtype=np.uint32)
    return terms, to_bits(total(to_tensor(terms, dtype, device)))


def named(total: Total, dtype: str, device: str, want: int = COUNT) -> tuple[str, ...]:
    """FTZ by name, unless the sum is `want` smallest subnormals (a mean is one of them)."""
    return () if int(added(total, dtype, device)[1][0]) == want else (FLUSHES,)


def trial(total: Total, dtype: str, device: str) -> Trial:
    """The same as a trial whose bound is zero."""
    terms, got = added(total, dtype, device)
    width, unit = known(dtype).bits, value(terms, dtype)
    error = abs(value(got, dtype) - COUNT * unit)
    note = f"{COUNT} times the smallest subnormal"
    return Trial(error, Fraction(0), shown(terms, dtype), hexadecimal(got[0], width), hexadecimal(COUNT, width), note)
