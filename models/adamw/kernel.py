"""One element of AdamW in the order in which torch's kernels make its operations: subject of KANI-AW-009.

torch 2.13, `torch.optim.adam._single_tensor_adam`: `mul_`, `lerp_`, `mul_` and `addcmul_`, `sqrt`, `div`, `add_`,
`addcdiv_`; foreach and fused make the same operations on many elements. The scalars (1 - b1, b2, 1 - b2,
1 - rate decay, rate / (1 - b1^t), sqrt(1 - b2^t), eps) are computed in doubles and meet the elements rounded to their
format. Every operator here is one operation of a kernel; a kernel that contracts two of them rounds less.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.registry import Mutant, registered_for


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


class FirstRoundsTwice(Kernel):
    """The first moment is rounded once more, as by a buffer that it is copied through."""

    def first(self, m: Any, g: Any, weight: Any) -> Any:
        """One rounding more."""
        return super().first(m, g, weight).rounded("fp32")


class SecondRoundsTwice(Kernel):
    """The second moment is rounded once more, as by a buffer that it is copied through."""

    def second(self, v: Any, g: Any, beta: Any, weight: Any) -> Any:
        """One rounding more."""
        return super().second(v, g, beta, weight).rounded("fp32")


class HalfMoments(Kernel):
    """Both moments are stored in fp16."""

    def first(self, m: Any, g: Any, weight: Any) -> Any:
        """Stored in eleven bits."""
        return super().first(m, g, weight).rounded("fp16")

    def second(self, v: Any, g: Any, beta: Any, weight: Any) -> Any:
        """Stored in eleven bits."""
        return super().second(v, g, beta, weight).rounded("fp16")


class EpsInsideRoot(Kernel):
    """eps is added under the root."""

    def below(self, v: Any, root: Any, eps: Any) -> Any:
        """sqrt(v_hat + eps)."""
        return (v / (root * root) + eps).sqrt()


class EpsBeforeCorrection(Kernel):
    """eps is added before the correction."""

    def below(self, v: Any, root: Any, eps: Any) -> Any:
        """(sqrt(v) + eps) / root."""
        return (v.sqrt() + eps) / root


class ReciprocalThenMultiply(Kernel):
    """The quotient is a product with a rounded reciprocal."""

    def moved(self, p: Any, kept: Any, m: Any, below: Any, size: Any) -> Any:
        """One rounding more."""
        return p * kept - size * m * (1 / below)


class DecayAfterUpdate(Kernel):
    """The weight is decayed after it was moved."""

    def moved(self, p: Any, kept: Any, m: Any, below: Any, size: Any) -> Any:
        """(p - update) kept."""
        return (p - size * m / below) * kept


MUTANTS: Mapping[str, Mutant] = registered_for(
    "AW-EQ-001",
    (
        ("first_moment_rounds_twice", "", FirstRoundsTwice),
        ("second_moment_rounds_twice", "", SecondRoundsTwice),
        ("half_moments", "apex#1623", HalfMoments),
        ("kernel_eps_inside_root", "Flux.jl#448", EpsInsideRoot),
        ("kernel_eps_before_correction", "nanochat#304", EpsBeforeCorrection),
        ("reciprocal_then_multiply", "", ReciprocalThenMultiply),
        ("kernel_decay_after_update", "optax#292", DecayAfterUpdate),
    ),
)
