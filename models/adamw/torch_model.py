"""The AdamW that PyTorch runs, as a subject of the falsification tests: one optimizer for one tensor.

A subject makes an optimizer; the test sets gradients, calls `step` and reads the weight and its state itself, so that
nothing is taken on the subject's word. `TorchAdamW` is torch's own; the mutants are torch's Adam, torch's AdamW with
wrong settings, or the written-out step of `Written` with a bug.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from models.adamw.mutants import KERNELS as ROUNDINGS, MUTANTS as TWINS
from models.registry import Mutant

FORMS: Mapping[str, Mapping[str, bool]] = {
    "single": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


@dataclass(frozen=True)
class Settings:
    """Hyperparameters as torch takes them, and the form of the kernels."""

    rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    decay: float = 1e-2
    form: str = "single"

    def given(self) -> dict[str, Any]:
        """Keyword arguments of a torch optimizer."""
        head = {"lr": self.rate, "betas": self.betas, "eps": self.eps, "weight_decay": self.decay}
        return {**head, **FORMS[self.form]}


class TorchAdamW:
    """The reference: torch.optim.AdamW."""

    def optimizer(self, weight: Tensor, settings: Settings) -> torch.optim.Optimizer:
        """An optimizer of one tensor, without state."""
        return torch.optim.AdamW([weight], **settings.given())


class Written(torch.optim.Optimizer):
    """AdamW written out in torch operators; its parts are what the mutants change."""

    def __init__(self, weight: Tensor, settings: Settings) -> None:
        super().__init__([weight], {"lr": settings.rate})
        self.settings = settings

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step of the one tensor."""
        s, weight = self.settings, self.param_groups[0]["params"][0]
        state = self.state[weight]
        if not state:
            state.update(step=torch.tensor(0.0), exp_avg=torch.zeros_like(weight), exp_avg_sq=torch.zeros_like(weight))
        state["step"] += 1
        self.moments(state, weight.grad)
        one, two = self.corrections(int(state["step"]))
        weight.mul_(1 - s.rate * s.decay)
        weight.addcdiv_(state["exp_avg"], self.below(state["exp_avg_sq"], two), value=-s.rate / one)

    def moments(self, state: dict[str, Any], grad: Tensor) -> None:
        """Both moments."""
        one, two = self.settings.betas
        state["exp_avg"].lerp_(grad, 1 - one)
        state["exp_avg_sq"].mul_(two).addcmul_(grad, grad, value=1 - two)

    def corrections(self, t: int) -> tuple[float, float]:
        """1 - b^t."""
        one, two = self.settings.betas
        return 1 - one**t, 1 - two**t

    def below(self, square: Tensor, correction: float) -> Tensor:
        """The divisor."""
        return (square.sqrt() / math.sqrt(correction)).add_(self.settings.eps)


class NoStep(Written):
    """Does nothing, but has a state."""

    def moments(self, state: dict[str, Any], grad: Tensor) -> None:
        """They stay zero."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """The weight stays."""
        weight = self.param_groups[0]["params"][0]
        state = self.state[weight]
        if not state:
            state.update(step=torch.tensor(0.0), exp_avg=torch.zeros_like(weight), exp_avg_sq=torch.zeros_like(weight))


class MissingCorrection(Written):
    """The moments are used as they are."""

    def corrections(self, t: int) -> tuple[float, float]:
        """No correction."""
        return 1.0, 1.0


class CorrectionOneStepLate(Written):
    """The step counter is one too large."""

    def corrections(self, t: int) -> tuple[float, float]:
        """b^(t+1)."""
        return super().corrections(t + 1)


class CorrectionOfFirstStep(Written):
    """The step counter is not advanced: every step is corrected as the first."""

    def corrections(self, t: int) -> tuple[float, float]:
        """b1 and b2."""
        return super().corrections(1)


class VarianceSums(Written):
    """The factor 1 - b2 of the square is missing."""

    def moments(self, state: dict[str, Any], grad: Tensor) -> None:
        """b2 v + g^2."""
        one, two = self.settings.betas
        state["exp_avg"].lerp_(grad, 1 - one)
        state["exp_avg_sq"].mul_(two).addcmul_(grad, grad)


class BetasBackwards(Written):
    """The averages take 1 - beta where they should take beta."""

    def moments(self, state: dict[str, Any], grad: Tensor) -> None:
        """(1 - b) x + b y."""
        one, two = self.settings.betas
        state["exp_avg"].lerp_(grad, one)
        state["exp_avg_sq"].mul_(1 - two).addcmul_(grad, grad, value=two)


class VarianceWithoutSquare(Written):
    """The second moment averages the gradient and not its square."""

    def moments(self, state: dict[str, Any], grad: Tensor) -> None:
        """(1 - b2) g."""
        one, two = self.settings.betas
        state["exp_avg"].lerp_(grad, 1 - one)
        state["exp_avg_sq"].mul_(two).add_(grad, alpha=1 - two)


class VarianceSubtracts(Written):
    """The weight of the new square has the wrong sign."""

    def moments(self, state: dict[str, Any], grad: Tensor) -> None:
        """(b2 - 1) g^2."""
        one, two = self.settings.betas
        state["exp_avg"].lerp_(grad, 1 - one)
        state["exp_avg_sq"].mul_(two).addcmul_(grad, grad, value=two - 1)


class MomentSums(Written):
    """The factor 1 - b1 of the gradient is missing."""

    def moments(self, state: dict[str, Any], grad: Tensor) -> None:
        """b1 m + g."""
        one, two = self.settings.betas
        state["exp_avg"].mul_(one).add_(grad)
        state["exp_avg_sq"].mul_(two).addcmul_(grad, grad, value=1 - two)


class HalfMoments(Written):
    """Both moments are stored in fp16."""

    def moments(self, state: dict[str, Any], grad: Tensor) -> None:
        """In eleven bits."""
        super().moments(state, grad)
        for name in ("exp_avg", "exp_avg_sq"):
            state[name].copy_(state[name].half())


class EpsAbsent(Written):
    """eps is left out: no gradient yet is 0 / 0."""

    def below(self, square: Tensor, correction: float) -> Tensor:
        """The root alone."""
        return square.sqrt() / math.sqrt(correction)


class EpsMissing(Written):
    """eps is left out, in the vectorised forms alone."""

    def below(self, square: Tensor, correction: float) -> Tensor:
        """The root alone."""
        if self.settings.form == "single":
            return super().below(square, correction)
        return square.sqrt() / math.sqrt(correction)


class EpsInsideRoot(Written):
    """eps is added under the root, in the vectorised forms alone."""

    def below(self, square: Tensor, correction: float) -> Tensor:
        """sqrt(v_hat + eps)."""
        if self.settings.form == "single":
            return super().below(square, correction)
        return (square / correction).add_(self.settings.eps).sqrt()


class EpsBeforeCorrection(Written):
    """eps is added before the correction, in the vectorised forms alone."""

    def below(self, square: Tensor, correction: float) -> Tensor:
        """(sqrt(v) + eps) / sqrt(1 - b2^t)."""
        if self.settings.form == "single":
            return super().below(square, correction)
        return square.sqrt().add_(self.settings.eps) / math.sqrt(correction)


@dataclass(frozen=True)
class Made:
    """A subject from an optimizer class that is written out here."""

    kind: type[Written]

    def optimizer(self, weight: Tensor, settings: Settings) -> torch.optim.Optimizer:
        """An optimizer of one tensor, without state."""
        return self.kind(weight, settings)


class EmptyAdamW(Made):
    """The empty body: its step does nothing. Every test must refute it."""

    def __init__(self) -> None:
        super().__init__(NoStep)


class DecayInGradient:
    """The weight decay is added to the gradient: torch.optim.Adam."""

    def optimizer(self, weight: Tensor, settings: Settings) -> torch.optim.Optimizer:
        """Adam with L2 regularisation."""
        return torch.optim.Adam([weight], **settings.given())


class DecayMissing(TorchAdamW):
    """The weights are not decayed."""

    def optimizer(self, weight: Tensor, settings: Settings) -> torch.optim.Optimizer:
        """No decay."""
        return super().optimizer(weight, replace(settings, decay=0.0))


class DecayUnscaled(TorchAdamW):
    """The decay is not multiplied by the learning rate."""

    def optimizer(self, weight: Tensor, settings: Settings) -> torch.optim.Optimizer:
        """d / l in place of d, so that l d is d."""
        return super().optimizer(weight, replace(settings, decay=settings.decay / settings.rate))


class DecayRateTwice(TorchAdamW):
    """The decay is multiplied by the learning rate twice."""

    def optimizer(self, weight: Tensor, settings: Settings) -> torch.optim.Optimizer:
        """l d in place of d."""
        return super().optimizer(weight, replace(settings, decay=settings.decay * settings.rate))


TORCH_ONLY: Mapping[str, str] = {
    "eps_absent": "0 / 0 is no number in floats, which is what it breaks; the model would divide by zero",
    "half_moments": "over the reals it is AdamW; its twin is the mutant of models.adamw.kernel, where roundings count",
}
_TWINS: Mapping[str, Any] = {
    "decay_in_gradient": DecayInGradient(),
    "decay_missing": DecayMissing(),
    "decay_unscaled": DecayUnscaled(),
    "decay_rate_twice": DecayRateTwice(),
    "variance_without_square": Made(VarianceWithoutSquare),
    "variance_subtracts": Made(VarianceSubtracts),
    "variance_sums": Made(VarianceSums),
    "missing_correction": Made(MissingCorrection),
    "correction_one_step_late": Made(CorrectionOneStepLate),
    "correction_of_first_step": Made(CorrectionOfFirstStep),
    "moment_sums": Made(MomentSums),
    "betas_backwards": Made(BetasBackwards),
    "eps_inside_root": Made(EpsInsideRoot),
    "eps_before_correction": Made(EpsBeforeCorrection),
    "eps_missing": Made(EpsMissing),
}
MUTANTS: Mapping[str, Mutant] = {name: replace(TWINS[name], subject=subject) for name, subject in _TWINS.items()} | {
    "eps_absent": Mutant("eps_absent", "AW-BND-002", "chainer#6299", Made(EpsAbsent)),
    "half_moments": replace(ROUNDINGS["half_moments"], subject=Made(HalfMoments)),
}
REFERENCE = TorchAdamW()
EMPTY = EmptyAdamW()
