"""Bugs of AdamW that shipped or were reported, as small changes of the reference.

Each names the obligation that it breaks and the nearest public thread. Of `decay_rate_twice`, `decay_after_update`,
`decay_first_element_only` and `betas_swapped` the thread reports the confusion, and not that very line.
"""

from __future__ import annotations

from collections.abc import Mapping

from gradproof.harness import sqrt
from models.adamw.model import AdamW, Hyper, Number, State, Vector
from models.registry import Mutant


class DecayInGradient(AdamW):
    """The weight decay is added to the gradient: Adam with L2 regularisation."""

    def gradient(self, params: Vector, grads: Vector, hyper: Hyper) -> Vector:
        """g + d theta."""
        return tuple(g + hyper.decay * p for p, g in zip(params, grads, strict=True))

    def moved(self, i: int, p: Number, update: Number, hyper: Hyper) -> Number:
        """The update alone."""
        return p - update


class DecayMissing(AdamW):
    """The weights are not decayed."""

    def moved(self, i: int, p: Number, update: Number, hyper: Hyper) -> Number:
        """The update alone."""
        return p - update


class DecayUnscaled(AdamW):
    """The decay is not multiplied by the learning rate."""

    def moved(self, i: int, p: Number, update: Number, hyper: Hyper) -> Number:
        """1 - d in place of 1 - l d."""
        return p * (1 - hyper.decay) - update


class DecayRateTwice(AdamW):
    """The decay is multiplied by the learning rate twice."""

    def moved(self, i: int, p: Number, update: Number, hyper: Hyper) -> Number:
        """1 - l l d."""
        return p * (1 - hyper.rate * hyper.rate * hyper.decay) - update


class DecayAfterUpdate(AdamW):
    """The decay is applied to the weight that was moved, and so to the update as well."""

    def moved(self, i: int, p: Number, update: Number, hyper: Hyper) -> Number:
        """(theta - update) (1 - l d)."""
        return (p - update) * (1 - hyper.rate * hyper.decay)


class DecayFirstElementOnly(AdamW):
    """Only the first element is decayed."""

    def moved(self, i: int, p: Number, update: Number, hyper: Hyper) -> Number:
        """The others move by the update alone."""
        return super().moved(i, p, update, hyper) if i == 0 else p - update


class VarianceWithoutSquare(AdamW):
    """The second moment averages the gradient and not its square."""

    def second(self, v: Number, g: Number, hyper: Hyper) -> Number:
        """(1 - b2) g."""
        return v * hyper.beta2 + g * (1 - hyper.beta2)


class VarianceSubtracts(AdamW):
    """The weight of the new square has the wrong sign."""

    def second(self, v: Number, g: Number, hyper: Hyper) -> Number:
        """(b2 - 1) g^2."""
        return v * hyper.beta2 - abs(g) * abs(g) * (1 - hyper.beta2)


class VarianceSums(AdamW):
    """The second moment adds the whole square: the factor 1 - b2 is missing."""

    def second(self, v: Number, g: Number, hyper: Hyper) -> Number:
        """b2 v + g^2."""
        return v * hyper.beta2 + abs(g) * abs(g)


class MissingCorrection(AdamW):
    """The moments are used as they are."""

    def corrected(self, value: Number, power: Number) -> Number:
        """No correction."""
        return value


class CorrectionOneStepLate(AdamW):
    """The step counter is one too large: b^(t+1)."""

    def powers(self, state: State, hyper: Hyper) -> tuple[Number, Number]:
        """One factor more."""
        return state.power1 * hyper.beta1, state.power2 * hyper.beta2


class CorrectionOfFirstStep(AdamW):
    """The step counter is not advanced: every step is corrected as the first."""

    def powers(self, state: State, hyper: Hyper) -> tuple[Number, Number]:
        """b1 and b2."""
        return hyper.beta1, hyper.beta2


class CorrectionMultiplies(AdamW):
    """The moments are multiplied by 1 - b^t."""

    def corrected(self, value: Number, power: Number) -> Number:
        """The wrong way round."""
        return value * (1 - power)


class BetasSwapped(AdamW):
    """The first moment decays with beta2 and the second with beta1; the corrections do not."""

    def first(self, m: Number, g: Number, hyper: Hyper) -> Number:
        """b2 in place of b1."""
        return m * hyper.beta2 + g * (1 - hyper.beta2)

    def second(self, v: Number, g: Number, hyper: Hyper) -> Number:
        """b1 in place of b2."""
        return v * hyper.beta1 + abs(g) * abs(g) * (1 - hyper.beta1)


class BetasBackwards(AdamW):
    """The averages take 1 - beta where they should take beta; the corrections do not."""

    def first(self, m: Number, g: Number, hyper: Hyper) -> Number:
        """(1 - b1) m + b1 g."""
        return m * (1 - hyper.beta1) + g * hyper.beta1

    def second(self, v: Number, g: Number, hyper: Hyper) -> Number:
        """(1 - b2) v + b2 g^2."""
        return v * (1 - hyper.beta2) + abs(g) * abs(g) * hyper.beta2


class MomentSums(AdamW):
    """The first moment adds the whole gradient: the factor 1 - b1 is missing, as in momentum SGD."""

    def first(self, m: Number, g: Number, hyper: Hyper) -> Number:
        """b1 m + g."""
        return m * hyper.beta1 + g


class EpsInsideRoot(AdamW):
    """The vectorised form adds eps under the root."""

    def below(self, v: Number, root: Number, hyper: Hyper) -> Number:
        """sqrt(v_hat + eps)."""
        return sqrt(v / (root * root) + hyper.eps)


class EpsBeforeCorrection(AdamW):
    """The vectorised form adds eps before the correction: the "epsilon hat" of Kingma and Ba, section 2."""

    def below(self, v: Number, root: Number, hyper: Hyper) -> Number:
        """(sqrt(v) + eps) / sqrt(1 - b2^t)."""
        return (sqrt(v) + hyper.eps) / root


class EpsMissing(AdamW):
    """The vectorised form leaves eps out where the second moment is not zero."""

    def below(self, v: Number, root: Number, hyper: Hyper) -> Number:
        """sqrt(v_hat)."""
        return sqrt(v) / root if v > 0 else hyper.eps


def _mutant(name: str, obligation: str, reference: str, subject: type[AdamW]) -> tuple[str, Mutant]:
    return name, Mutant(name, obligation, reference, subject)


MUTANTS: Mapping[str, Mutant] = dict(
    (
        _mutant("decay_in_gradient", "AW-INV-001", "nntrainer#3565", DecayInGradient),
        _mutant("decay_missing", "AW-INV-001", "fastai2#246", DecayMissing),
        _mutant("decay_unscaled", "AW-INV-001", "addons#2282", DecayUnscaled),
        _mutant("decay_rate_twice", "AW-INV-001", "AdamW-pytorch#1", DecayRateTwice),
        _mutant("decay_after_update", "AW-INV-001", "optax#292", DecayAfterUpdate),
        _mutant("decay_first_element_only", "AW-INV-001", "PointNeXt#69", DecayFirstElementOnly),
        _mutant("variance_without_square", "AW-BND-001", "tensorflow#74879", VarianceWithoutSquare),
        _mutant("variance_subtracts", "AW-BND-001", "pytorch#108493", VarianceSubtracts),
        _mutant("variance_sums", "AW-BND-001", "fastbook#342", VarianceSums),
        _mutant("missing_correction", "AW-INV-002", "bert#153", MissingCorrection),
        _mutant("correction_one_step_late", "AW-INV-002", "oneflow#5960", CorrectionOneStepLate),
        _mutant("correction_of_first_step", "AW-INV-002", "ML-From-Scratch#35", CorrectionOfFirstStep),
        _mutant("correction_multiplies", "AW-INV-002", "convnetjs#70", CorrectionMultiplies),
        _mutant("betas_swapped", "AW-BND-002", "CNTK#2421", BetasSwapped),
        _mutant("betas_backwards", "AW-BND-002", "skip-thoughts#82", BetasBackwards),
        _mutant("moment_sums", "AW-BND-002", "pennylane#1929", MomentSums),
        _mutant("eps_inside_root", "AW-EQ-001", "Flux.jl#448", EpsInsideRoot),
        _mutant("eps_before_correction", "AW-EQ-001", "nanochat#304", EpsBeforeCorrection),
        _mutant("eps_missing", "AW-EQ-001", "apex#799", EpsMissing),
    )
)
