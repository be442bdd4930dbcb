"""Number systems, and the few functions that a model may call besides operators.

Each function is dispatched on the type of its argument, so that one text of a model runs on float, Fraction, NumPy
scalars, torch tensors, software floats, and symbolic reals, stubbed floats and IEEE terms. `Fraction` means the
reals: rounding is the identity on it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from gradproof.arith.soft import Ratio, Soft, near_sqrt

NUMPY_NAME = {"fp16": "float16", "fp32": "float32", "fp64": "float64"}
TORCH_NAME = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}


def _family(x: Any) -> str:
    """Which number system x belongs to, without importing a heavy library."""
    for kind, name in ((Soft, "soft"), (Ratio, "ratio"), (Fraction, "fraction")):
        if isinstance(x, kind):
            return name
    module = type(x).__module__.partition(".")[0]
    if module in ("numpy", "torch"):
        return module
    if type(x).__module__.startswith(("gradproof.arith.", "gradproof.rounding.enumerated")):
        return type(x).__name__.lower()
    if isinstance(x, int | float):
        return "float"
    raise TypeError(f"gradproof.arith knows no numbers of type {type(x).__name__}")


def sqrt(x: Any) -> Any:
    """Square root in x's number system. Raises ValueError for negative concrete numbers."""
    return _SQRT[_family(x)](x)


def round_to(x: Any, fmt: str) -> Any:
    """x in the format `fmt` (fp16, bf16, fp32, fp64), to nearest even; the identity over the reals."""
    return _ROUND[_family(x)](x, fmt)


def constant(text: str, like: Any) -> Any:
    """The decimal constant `text` in the number system of `like`: exact where that system is exact."""
    family = _family(like)
    if family in ("fraction", "sym", "ratio", "soft", "ieee", "linear", "enumerated"):
        return Fraction(text)
    return type(like)(text) if family == "numpy" else float(text)


def exact(x: Any) -> Any:
    """The value of x as an exact number: a Fraction, or a symbolic real. Raises ValueError for NaN and infinity."""
    family = _family(x)
    if family == "soft":
        return x.value
    if family in ("fraction", "ratio"):
        return x
    if family in ("sym", "linear", "enumerated"):
        return x.exact()
    if family == "ieee":
        raise TypeError("an IEEE term has no exact form; compare it with another term of its format")
    return Fraction(x) if isinstance(x, int) else Fraction(float(x))


def _numpy_round(x: Any, fmt: str) -> Any:
    import numpy as np

    if fmt not in NUMPY_NAME:
        raise TypeError(f"NumPy has no {fmt}; use software floats")
    return np.dtype(NUMPY_NAME[fmt]).type(x)


_SQRT: dict[str, Callable[[Any], Any]] = {
    "float": math.sqrt,
    "fraction": near_sqrt,
    "numpy": lambda x: type(x)(math.sqrt(x)) if x.dtype.itemsize == 8 else _numpy_sqrt(x),
    **dict.fromkeys(("soft", "ratio", "torch", "sym", "ieee", "linear"), lambda x: x.sqrt()),
}

_ROUND: dict[str, Callable[[Any, str], Any]] = {
    "fraction": lambda x, fmt: x,
    "soft": lambda x, fmt: Soft(x.value, fmt),
    "ratio": lambda x, fmt: x.round_to(fmt),
    "torch": lambda x, fmt: x.to(getattr(sys.modules["torch"], TORCH_NAME[fmt])),
    **dict.fromkeys(("float", "numpy"), _numpy_round),
    **dict.fromkeys(("sym", "ieee"), lambda x, fmt: x.convert(fmt)),
    **dict.fromkeys(("linear", "enumerated"), lambda x, fmt: x.rounded(fmt)),
}


def _numpy_sqrt(x: Any) -> Any:
    import numpy as np

    return np.sqrt(x)
