"""One element of AdamW in the order in which torch's kernels make its operations: subject of KANI-AW-009.

torch 2.13, `torch.optim.adam._single_tensor_adam`: `mul_`, `lerp_`, `mul_` and `addcmul_`, `sqrt`, `div`, `add_`,
`addcdiv_`; foreach and fused make the same operations on many elements. The scalars (1 - b1, b2, 1 - b2,
1 - rate decay, rate / (1 - b1^t), sqrt(1 - b2^t), eps) are computed in doubles and meet the elements rounded to their
format. Every operator here is one operation of a kernel; a kernel that contracts two of them rounds less.
"""

from __future__ import annotations

from typing import Any


class Kernel:
    """The reference. Numbers have operators and `sqrt`, as tensors and software floats do."""

    def first(self, m: Any, g: Any, weight: Any) -> Any:
        """`m.lerp_(g, weight)` for weight < 1/2: from the old moment."""
        return m + weight * (g - m)

    def first_far(self, m: Any, g: Any, rest: Any) -> Any:
        """`m.lerp_(g, 1 - rest)` for rest <= 1/2: from the gradient."""
        return g - (g - m) * rest

    def second(self, v: Any, g: Any, beta: Any, weight: Any) -> Any:
        """`v.mul_(beta).addcmul_(g, g, value=weight)`."""
        return v * beta + weight * g * g

    def below(self, v: Any, root: Any, eps: Any) -> Any:
        """`(v.sqrt() / root).add_(eps)`."""
        return v.sqrt() / root + eps

    def moved(self, p: Any, kept: Any, m: Any, below: Any, size: Any) -> Any:
        """`p.mul_(kept).addcdiv_(m, below, value=-size)`."""
        return p * kept - size * m / below


class Empty(Kernel):
    """The empty body: every number stays as it was."""

    def first(self, m: Any, g: Any, weight: Any) -> Any:
        """The moment before."""
        return m

    def first_far(self, m: Any, g: Any, rest: Any) -> Any:
        """The moment before."""
        return m

    def second(self, v: Any, g: Any, beta: Any, weight: Any) -> Any:
        """The moment before."""
        return v

    def below(self, v: Any, root: Any, eps: Any) -> Any:
        """No root."""
        return v

    def moved(self, p: Any, kept: Any, m: Any, below: Any, size: Any) -> Any:
        """The weight before."""
        return p
