"""What a backward pass was handed, by its graph: the loss, what divides it, and the factor of each mean.

The losses are those of the graph: the outermost product is the loss scaler's where one was asked, then come quotients
by numbers, then the loss. Only below a mean is the quotient the division by N; of a sum, the divisor may be its tokens,
and then it is not distinguished. A product with a number (`loss * (1 / N)`) may be a weight of the loss, so it is not
divided out; where it may be the division, being below 1 or one over a window's length, the loss is not known at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from gradproof.monitoring import CountRules
from gradproof.shadow.tape.checksums import same_memory

PASSING = frozenset({"ToCopyBackward0", "CloneBackward0", "ViewBackward0", "SqueezeBackward0", "ReshapeAliasBackward0"})
PRODUCT, QUOTIENT = "MulBackward0", "DivBackward0"
MIXING = frozenset({"AddBackward0", "SubBackward0", "NegBackward0", PRODUCT})
REDUCING = frozenset(
    {
        "MseLossBackward0", "NllLossBackward0", "NllLoss2DBackward0", "SmoothL1LossBackward0", "HuberLossBackward0",
        "BinaryCrossEntropyBackward0", "BinaryCrossEntropyWithLogitsBackward0", "SoftMarginLossBackward0",
    }
)  # fmt: skip
WHOLE = "the mean over the window's micro-batches"
SO_FAR = "a mean over the first micro-batches of a window was reported as the loss of one"
HELP = 'report the mean of the whole window: report_loss(..., of="window")'
MEAN = 1
DEEP = 64
ULPS = 16


@dataclass
class Handed:
    """One micro-batch: its samples (None: not known), what backward was handed, the divisor, the factor of each mean.

    `scale` is what a loss scaler multiplied it by. `factors` may be 1/N where nothing else divides;
    there are none where what was handed is no sum of means.
    """

    size: int | None
    stated_by: str
    value: Tensor | None = None
    divisor: float = 1.0
    scale: Tensor | float = 1.0
    factors: Sequence[float] = ()

    def own(self, tally: CountRules, before: float, lengths: Sequence[int]) -> float | None:
        """The loss before its division by N, or None where that is not known; `lengths` are what N may be."""
        number = self.number
        if number is None or not self.factors or self.divisor not in (1, *lengths):
            return None
        if self.divisor == 1 and max(self.factors) < 1:  # all alike, or weights that add up to it
            shares = {sum(self.factors), *([self.factors[0]] if len(set(self.factors)) == 1 else [])}
            if any(close(share * n, 1.0, self.room) for share in shares for n in lengths if n > 1):
                return None
        return float(tally.loss(number, self.divisor, float(self.scale), before))

    @property
    def number(self) -> float | None:
        """What backward was handed; None of a tensor without numbers."""
        return None if self.value is None or self.value.is_meta else float(self.value)

    @property
    def room(self) -> float:
        """Relative room for the roundings of a division and a product back."""
        return ULPS * torch.finfo(self.value.dtype).eps if self.value is not None else 0.0


def handed(roots: Sequence[Tensor], scale: Any, size: int | None, stated_by: str) -> Handed:
    """A micro-batch as its backward pass begins; `scale` is what a loss scaler multiplied by, or None."""
    made = Handed(size, stated_by)
    if len(roots) != 1 or roots[0].numel() != 1 or not roots[0].is_floating_point():
        return made
    with torch.no_grad(), _disable_current_modes():
        made.value = roots[0].detach().clone()
        node = _skipped(roots[0].grad_fn)
        if scale is not None:
            made.scale = scale.detach().clone() if isinstance(scale, Tensor) else float(scale)
            below, other = _split(node)
            node = _skipped(below) if _name(node) == PRODUCT and same_memory(other, scale) else None
        while _name(node) == QUOTIENT and 0 < (by := _number(node)) < math.inf:
            made.divisor *= by
            node = _skipped(_split(node)[0])
        factors = weights(node)
        if factors and (made.divisor != 1 or _name(node) != PRODUCT or max(factors) >= 1):
            made.factors = factors
    return made


def weights(node: Any, depth: int = 0) -> list[float] | None:
    """The factor of each mean in a node that is a weighted sum of means; None for anything else.

    A factor that is not a number of one element on the CPU counts as 0, which is below 1.
    """
    name = _name(node)
    if name.startswith("MeanBackward"):  # every summand may have been multiplied or divided by a number last
        below = _skipped(node.next_functions[0][0])
        by = abs(_number(below)) or 1.0
        return [by if _name(below) == PRODUCT else 1 / by]
    if name in REDUCING:
        return [1.0] if getattr(node, "_saved_reduction", 0) == MEAN else None
    if depth > DEEP or name not in MIXING | PASSING:
        return None
    parts = [weights(n, depth + 1) for n, _ in node.next_functions if n is not None]
    known = [part for part in parts if part is not None]
    if not parts or len(known) < len(parts):
        return None
    if name != PRODUCT:
        return [f for part in known for f in part]
    return [f * g for f in known[0] for g in (known[1] if len(known) > 1 else [abs(_number(node))])]


def _split(node: Any) -> tuple[Any, Any]:
    """What was multiplied, or divided, by something without a gradient, and that; two times None for another node."""
    first, second, *_ = (*(n for n, _ in node.next_functions if _name(node) in (PRODUCT, QUOTIENT)), None, None)
    if first is not None and second is None:
        return first, node._saved_other
    turned = first is None and _name(node) == PRODUCT
    return (second, node._saved_self) if turned else (None, None)


def _number(node: Any) -> float:
    """The number in a product or quotient with one; 0 where it is no number of one element on the CPU, or is NaN."""
    _, other = _split(node)
    of_one = isinstance(other, Tensor) and other.numel() == 1 and other.device.type == "cpu"
    if not of_one and not isinstance(other, int | float):
        return 0.0
    return 0.0 if math.isnan(float(other)) else float(other)


def _name(node: Any) -> str:
    name = type(node).__name__
    return PRODUCT if name == "MulBackward1" else name  # with a number, as C++ has it


def _skipped(node: Any) -> Any:
    """The first node that does something to the number."""
    while _name(node) in PASSING:
        node = node.next_functions[0][0]
    return node


def close(value: float, due: float, room: float) -> bool:
    """Whether two numbers are equal, or within `room` relative to the second."""
    return value == due or abs(value - due) <= room * abs(due)


class KeptWindows:
    """The micro-batches whose sizes and losses are kept: of the `closed` windows, and of the `open` one."""

    def __init__(self, tally: CountRules, accum_steps: int | None) -> None:
        self.tally, self.accum_steps = tally, accum_steps
        self.closed, self.open = list[list[Handed]](), list[Handed]()

    @property
    def recorded(self) -> list[Handed]:
        """All of them."""
        return [*chain.from_iterable(self.closed), *self.open]

    def own_losses(self, window: Sequence[Handed]) -> list[float | None]:
        """The own loss of each micro-batch of a window. N may be a window's length, or what was given."""
        lengths = {len(closed) for closed in self.closed} | {self.accum_steps or 1}
        before, found = 0.0, []
        for h in window:
            found.append(h.own(self.tally, before, sorted(lengths)))
            before += h.number or 0.0
        return found


@dataclass
class ReportedLoss:
    """A loss that the script reported, the micro-batches of the window until then, and the run's by then."""

    value: Tensor | float | None
    of: str
    divided: bool
    window: list[Handed]
    at: int
    location: Any

    def verdict(self, run: KeptWindows) -> tuple[bool | None, str]:
        """Right, wrong, or None where the run does not tell; and in words.

        The loss of a micro-batch may be reported before its backward pass: then it is the next of the run.
        """
        if self.value is None:
            return None, "what was reported is no number"
        following = run.recorded[self.at : self.at + 1] if self.of == "batch" else []
        found = [self._against(window, run) for window in (self.window, following) if window]
        order = (True, False, None)
        return min(found, key=lambda one: order.index(one[0]), default=(None, "no micro-batch was handed to backward"))

    def _against(self, window: list[Handed], run: KeptWindows) -> tuple[bool | None, str]:
        value = float(self.value or 0.0)
        losses = [own for own in run.own_losses(window) if own is not None]
        shares = [h.number / float(h.scale) for h in window if h.number is not None]
        if len(losses) < len(window) or len(shares) < len(window):
            return None, "the loss before its division by N is not shown by the graph"
        due = {
            "the loss of the micro-batch": losses[-1],
            "the loss of the micro-batch, divided by N": shares[-1],
            "the loss of the micro-batch with the loss scale in it": shares[-1] * float(window[-1].scale),
            WHOLE: sum(losses) / len(losses),
            "the sum over the window's micro-batches": sum(losses),
            "the window's divided losses, added up": sum(shares),
        }
        names = list(due)
        right = names[3] if self.of == "window" else names[1] if self.divided else names[0]
        room = max(h.room for h in window) * len(window)
        alike = [name for name in (right, *names) if close(value, due[name], room)]
        if right in alike:
            return True, right
        if WHOLE in alike:  # a window that is not complete has no mean yet
            whole = any(window[-1] is closed[-1] and len(window) == len(closed) for closed in run.closed)
            return (True, WHOLE) if whole else (None, SO_FAR)
        said = f"{value:.6g} was reported as {right}, which is {due[right]:.6g}"
        return (False, f"{said}; it is {alike[0]}") if alike else (None, f"{said}; what it is was not recognised")
