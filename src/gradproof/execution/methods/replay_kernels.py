"""A witness of accumulation, replayed on torch's own kernels: what they sum is compared with the exact evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from gradproof.arith.formats import FORMATS
from gradproof.rounding.accumulation import Setting, error_of, exact_mean, ordered_sum

TORCH = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True)
class Replay:
    """The error that torch made, exactly, beside that of the model of rounding."""

    device: str
    torch: str
    error: Fraction
    model: Fraction

    @property
    def equal(self) -> bool:
        """Whether torch did what the model says, to the last digit."""
        return self.error == self.model


def number(value: Fraction, fmt: str) -> Any:
    """A tensor of no dimension that holds the value in the format `fmt`."""
    import torch

    return torch.tensor(float(value), dtype=getattr(torch, TORCH[fmt]))


def replay(setting: Setting, gradients: Sequence[Fraction], device: str = "cpu") -> Replay:
    """Accumulate the gradients in torch, in the setting's order (left to right for `any`), in the buffer's format.

    Left to right adds in place, as a buffer does; every other order adds the terms as its text says, one kernel call an
    operation. Raises ValueError for gradients that float64 does not hold.
    """
    import torch

    values = [float(g) for g in gradients]
    if any(Fraction(v) != g for v, g in zip(values, gradients, strict=True)):
        raise ValueError("a gradient is no float64")
    given = torch.tensor(values, dtype=torch.float64, device=device)
    made = given.to(getattr(torch, TORCH[setting.inputs])) if setting.inputs else given
    made = made.to(getattr(torch, TORCH[setting.buffer]))
    if setting.scale == "divide":
        made = made / setting.n
    elif setting.scale == "multiply":
        shares = [float(FORMATS[setting.buffer].round(w)) for w in setting.shares()]
        made = made * torch.tensor(shares, dtype=made.dtype, device=device)
    total = _summed(setting.order, made)
    total = total / setting.n if setting.scale == "after" else total
    error = abs(Fraction(total.item()) - exact_mean(setting, gradients))
    order = "sequential" if setting.order == "any" else setting.order
    return Replay(device, torch.__version__, error, error_of(replace(setting, order=order), gradients))


def _summed(order: str, made: Any) -> Any:
    if order not in ("sequential", "any"):
        return ordered_sum(order)(list(made))
    total = made[0].clone()
    for term in made[1:]:
        total += term
    return total
