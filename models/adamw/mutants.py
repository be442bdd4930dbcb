"""Bugs of AdamW that shipped or were reported, as small changes of the reference.

Each names the obligation that it breaks and the nearest public thread, where there is one (`MUTANTS`). Of
`decay_rate_twice`, `decay_after_update`, `decay_first_element_only` and `betas_swapped` the thread reports the
confusion, and not that very line. A bug that begins late reads the step from b1^t, which the state carries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gradproof.harness import sqrt
from models.adamw.kernel import Kernel
from models.adamw.model import AdamW, Hyper, Number, State, Step, Vector
from models.registry import Mutant, registered, registered_for


class DecayInGradient(AdamW):
    """The weight decay is added to the gradient: Adam with L2 regularisation."""

    def gradient(self, params: Vector, grads: Vector, hyper: Hyper) -> Vector:
        """g + d theta."""
        return tuple(g + hyper.decay * p for p, g in zip(params, grads, strict=True))

    def moved(self, p: Number, update: Number, hyper: Hyper) -> Number:
        """The update alone."""
        return p - update


class DecayMissing(AdamW):
    """The weights are not decayed."""

    def moved(self, p: Number, update: Number, hyper: Hyper) -> Number:
        """The update alone."""
        return p - update


class DecayUnscaled(AdamW):
    """The decay is not multiplied by the learning rate."""

    def moved(self, p: Number, update: Number, hyper: Hyper) -> Number:
        """1 - d in place of 1 - l d."""
        return p * (1 - hyper.decay) - update


class DecayRateTwice(AdamW):
    """The decay is multiplied by the learning rate twice."""

    def moved(self, p: Number, update: Number, hyper: Hyper) -> Number:
        """1 - l l d."""
        return p * (1 - hyper.rate * hyper.rate * hyper.decay) - update


class DecayAfterUpdate(AdamW):
    """The decay is applied to the weight that was moved, and so to the update as well."""

    def moved(self, p: Number, update: Number, hyper: Hyper) -> Number:
        """(theta - update) (1 - l d)."""
        return (p - update) * (1 - hyper.rate * hyper.decay)


class DecayFirstElementOnly(AdamW):
    """Only the first element is decayed."""

    def step(self, params: Vector, grads: Vector, state: State, hyper: Hyper) -> Step:
        """The others move by the update alone."""
        done = super().step(params, grads, state, hyper)
        without = super().step(params, grads, state, replace(hyper, decay=0))
        return replace(done, params=(*done.params[:1], *without.params[1:]))


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


class DecayOfFirstWeight(AdamW):
    """Every weight is decayed by what the first one loses."""

    def step(self, params: Vector, grads: Vector, state: State, hyper: Hyper) -> Step:
        """theta_i - l d theta_0."""
        done = super().step(params, grads, state, hyper)
        lost = hyper.rate * hyper.decay
        return replace(done, params=tuple(a + lost * (p - params[0]) for a, p in zip(done.params, params, strict=True)))


class VOfFirstElement(AdamW):
    """Every element is divided by the root of the first one's second moment."""

    def step(self, params: Vector, grads: Vector, state: State, hyper: Hyper) -> Step:
        """v_hat of element 0."""
        done = super().step(params, grads, state, hyper)
        moves = [self.update(m, done.v_hat[0], hyper) for m in done.m_hat]
        after = tuple(self.moved(p, u, hyper) for p, u in zip(params, moves, strict=True))
        return replace(done, params=after)


class MeanOfSquares(AdamW):
    """One second moment for all elements, from the mean of their squares."""

    def advance(self, grads: Vector, state: State, hyper: Hyper) -> State:
        """The mean of the new second moments."""
        now = super().advance(grads, state, hyper)
        return replace(now, v=(sum(now.v[1:], now.v[0]) / len(now.v),) * len(now.v))


def ascended(done: Step, params: Vector, hyper: Hyper) -> Step:
    """The step with its update the other way."""
    kept = [p * (1 - hyper.rate * hyper.decay) for p in params]
    return replace(done, params=tuple(2 * p - a for p, a in zip(kept, done.params, strict=True)))


class AscendsFromSecondStep(AdamW):
    """The update has the wrong sign, but in the first step."""

    def step(self, params: Vector, grads: Vector, state: State, hyper: Hyper) -> Step:
        """Plus where b1^(t-1) is below 1."""
        done = super().step(params, grads, state, hyper)
        return ascended(done, params, hyper) if state.power1 < 1 else done

    def vectorised(self, params: Vector, grads: Vector, state: State, hyper: Hyper) -> Step:
        """The same."""
        done = super().vectorised(params, grads, state, hyper)
        return ascended(done, params, hyper) if state.power1 < 1 else done


class AscendsInTheEnd(AdamW):
    """The update has the wrong sign after ten thousand steps, which the instance counts."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self, params: Vector, grads: Vector, state: State, hyper: Hyper) -> Step:
        """Plus after the ten thousandth call."""
        self.steps += 1
        done = super().step(params, grads, state, hyper)
        return ascended(done, params, hyper) if self.steps > 10_000 else done


class DecayFromThirdStep(AdamW):
    """The first two steps do not decay the weights."""

    def step(self, params: Vector, grads: Vector, state: State, hyper: Hyper) -> Step:
        """The decay where b1^(t-1) is below b1."""
        early = not state.power1 < hyper.beta1
        return super().step(params, grads, state, replace(hyper, decay=0) if early else hyper)


class FrozenLate(AdamW):
    """Weights stay where they are once the correction has died out."""

    def step(self, params: Vector, grads: Vector, state: State, hyper: Hyper) -> Step:
        """Nothing where b1^(t-1) is below 1/1000."""
        done = super().step(params, grads, state, hyper)
        return replace(done, params=params) if state.power1 * 1000 < 1 else done


class OnePowerForBoth(AdamW):
    """Both moments are corrected with b1^t."""

    def powers(self, state: State, hyper: Hyper) -> tuple[Number, Number]:
        """b1^t twice."""
        return state.power1, state.power1


class PowersNotCarried(AdamW):
    """The step is corrected as it should be, and the next one begins with the same powers."""

    def step(self, params: Vector, grads: Vector, state: State, hyper: Hyper) -> Step:
        """b^(t-1) in the state."""
        done = super().step(params, grads, state, hyper)
        return replace(done, state=replace(done.state, power1=state.power1, power2=state.power2))


class MomentForgotten(AdamW):
    """The first moment is that of the last gradient alone."""

    def first(self, m: Number, g: Number, hyper: Hyper) -> Number:
        """(1 - b1) g."""
        return g * (1 - hyper.beta1)


class MovesByOldMoment(AdamW):
    """The weight moves by the first moment before the step, corrected for this one."""

    def step(self, params: Vector, grads: Vector, state: State, hyper: Hyper) -> Step:
        """m in place of m'."""
        done = super().step(params, grads, state, hyper)
        moves = [self.update(m * done.factor1, v, hyper) for m, v in zip(state.m, done.v_hat, strict=True)]
        after = tuple(self.moved(p, u, hyper) for p, u in zip(params, moves, strict=True))
        return replace(done, params=after)


class SecondMomentNeverFalls(AdamW):
    """The second moment is the largest so far: AMSGrad, and not AdamW."""

    def second(self, v: Number, g: Number, hyper: Hyper) -> Number:
        """max(v, v')."""
        now = super().second(v, g, hyper)
        return v if now < v else now


class SquareOfMoment(AdamW):
    """The second moment averages the square of the first one."""

    def advance(self, grads: Vector, state: State, hyper: Hyper) -> State:
        """m'^2 in place of g^2."""
        now = super().advance(grads, state, hyper)
        return replace(now, v=tuple(self.second(v, m, hyper) for v, m in zip(state.v, now.m, strict=True)))


# -- Bugs of one element in the order of torch's kernels.


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


class KernelEpsInsideRoot(Kernel):
    """eps is added under the root."""

    def below(self, v: Any, root: Any, eps: Any) -> Any:
        """sqrt(v_hat + eps)."""
        return (v / (root * root) + eps).sqrt()


class KernelEpsBeforeCorrection(Kernel):
    """eps is added before the correction."""

    def below(self, v: Any, root: Any, eps: Any) -> Any:
        """(sqrt(v) + eps) / root."""
        return (v.sqrt() + eps) / root


class ReciprocalThenMultiply(Kernel):
    """The quotient is a product with a rounded reciprocal."""

    def moved(self, p: Any, kept: Any, m: Any, below: Any, size: Any) -> Any:
        """One rounding more."""
        return p * kept - size * m * (1 / below)


class KernelDecayAfterUpdate(Kernel):
    """The weight is decayed after it was moved."""

    def moved(self, p: Any, kept: Any, m: Any, below: Any, size: Any) -> Any:
        """(p - update) kept."""
        return (p - size * m / below) * kept


MUTANTS: Mapping[str, Mutant] = registered(
    (
        ("decay_in_gradient", "AW-INV-001", "nntrainer#3565", DecayInGradient),
        ("decay_missing", "AW-INV-001", "fastai2#246", DecayMissing),
        ("decay_unscaled", "AW-INV-001", "addons#2282", DecayUnscaled),
        ("decay_rate_twice", "AW-INV-001", "AdamW-pytorch#1", DecayRateTwice),
        ("decay_after_update", "AW-INV-001", "optax#292", DecayAfterUpdate),
        ("decay_first_element_only", "AW-INV-001", "PointNeXt#69", DecayFirstElementOnly),
        ("variance_without_square", "AW-BND-001", "tensorflow#74879", VarianceWithoutSquare),
        ("variance_subtracts", "AW-BND-001", "pytorch#108493", VarianceSubtracts),
        ("variance_sums", "AW-BND-001", "fastbook#342", VarianceSums),
        ("missing_correction", "AW-INV-002", "bert#153", MissingCorrection),
        ("correction_one_step_late", "AW-INV-002", "oneflow#5960", CorrectionOneStepLate),
        ("correction_of_first_step", "AW-INV-002", "ML-From-Scratch#35", CorrectionOfFirstStep),
        ("correction_multiplies", "AW-INV-002", "convnetjs#70", CorrectionMultiplies),
        ("betas_swapped", "AW-BND-002", "CNTK#2421", BetasSwapped),
        ("betas_backwards", "AW-BND-002", "skip-thoughts#82", BetasBackwards),
        ("moment_sums", "AW-BND-002", "pennylane#1929", MomentSums),
        ("eps_inside_root", "AW-EQ-001", "Flux.jl#448", EpsInsideRoot),
        ("eps_before_correction", "AW-EQ-001", "nanochat#304", EpsBeforeCorrection),
        ("eps_missing", "AW-EQ-001", "apex#799", EpsMissing),
    )
)

DEVISED: Mapping[str, Mutant] = registered(
    (
        ("decay_of_first_weight", "AW-INV-001", "", DecayOfFirstWeight),
        ("v_of_first_element", "AW-EQ-001", "", VOfFirstElement),
        ("mean_of_squares", "AW-EQ-001", "", MeanOfSquares),
        ("ascends_from_second_step", "AW-EQ-001", "", AscendsFromSecondStep),
        ("ascends_in_the_end", "AW-EQ-001", "", AscendsInTheEnd),
        ("decay_from_third_step", "AW-INV-001", "", DecayFromThirdStep),
        ("frozen_late", "AW-EQ-001", "", FrozenLate),
        ("one_power_for_both", "AW-EQ-001", "", OnePowerForBoth),
        ("powers_not_carried", "AW-EQ-001", "", PowersNotCarried),
        ("moment_forgotten", "AW-EQ-001", "", MomentForgotten),
        ("moves_by_old_moment", "AW-EQ-001", "", MovesByOldMoment),
        ("second_moment_never_falls", "AW-EQ-001", "", SecondMomentNeverFalls),
        ("square_of_moment", "AW-EQ-001", "", SquareOfMoment),
    )
)
"""Bugs that no thread was found for: each was put into the model and seen to stay, before there was a closed form."""

EVERY: Mapping[str, Mutant] = {**MUTANTS, **DEVISED}

KERNELS: Mapping[str, Mutant] = registered_for(
    "AW-EQ-001",
    (
        ("first_moment_rounds_twice", "", FirstRoundsTwice),
        ("second_moment_rounds_twice", "", SecondRoundsTwice),
        ("half_moments", "apex#1623", HalfMoments),
        ("kernel_eps_inside_root", "Flux.jl#448", KernelEpsInsideRoot),
        ("kernel_eps_before_correction", "nanochat#304", KernelEpsBeforeCorrection),
        ("reciprocal_then_multiply", "", ReciprocalThenMultiply),
        ("kernel_decay_after_update", "optax#292", KernelDecayAfterUpdate),
    ),
)
