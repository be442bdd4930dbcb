"""What the falsification tests of AdamW share: the grid, drawn cases, and runs of one optimizer under observation.

A cell is a scenario of hyperparameters and a step number. Weights, gradients and moments come from the case alone,
through seeded generators on the CPU; the weight and both moments are read from the tensor and the optimizer's state.
In 16 bits eps must be a number of the format that a root of it can see: torch rounds 1e-8 to zero in fp16, and the
first step on a zero gradient is then 0 / 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor

from gradproof.harness import FORMATS, Bound, Case, Cell, Format, NoKernel, Place
from models.adamw.torch_model import FORMS, Settings

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
SCENARIOS: Mapping[str, Settings] = {
    "defaults": Settings(),
    "large steps": Settings(rate=0.25, decay=0.5),
    "short memory": Settings(rate=0.125, betas=(0.5, 0.75), decay=0.25),
}
NARROW_EPS = 2.0**-10
WIDTH = 19


@dataclass(frozen=True)
class Snapshot:
    """The weight and its moments, in float64, after a step."""

    weight: Tensor
    first: Tensor
    second: Tensor


@dataclass(frozen=True)
class Start:
    """A state to begin from: steps done, and the moments."""

    steps: int
    first: Tensor
    second: Tensor


def format_of(place: Place) -> Format:
    """The format that weights and moments are stored in."""
    return FORMATS[place.dtype]


def settings_of(case: Case, place: Place, **changed: Any) -> Settings:
    """The scenario's hyperparameters in the case's form, with an eps that the format can see."""
    made = replace(SCENARIOS[case.net], form=case.form)
    made = made if place.dtype == "fp32" else replace(made, eps=NARROW_EPS)
    return replace(made, **changed)


def normal(case: Case, place: Place, salt: int, width: int = WIDTH) -> Tensor:
    """Normally distributed numbers of the place's dtype, times 2^magnitude; the same for the same case and salt."""
    generator = torch.Generator().manual_seed(1000 * case.seed + salt)
    made = torch.randn(width, generator=generator, dtype=torch.float64) * 2.0**case.magnitude
    return made.to(DTYPES[place.dtype])


def walk(
    subject: Any, settings: Settings, weight: Tensor, grads: Sequence[Tensor], place: Place, start: Start | None = None
) -> Iterator[Snapshot]:
    """The optimizer on one tensor, a snapshot after every step."""
    p = weight.detach().clone().to(place.device).requires_grad_()
    optimizer = subject.optimizer(p, settings)
    if start is not None:
        held = torch.tensor(float(start.steps), device=place.device if settings.form == "fused" else "cpu")
        moments = {"exp_avg": start.first, "exp_avg_sq": start.second}
        optimizer.state[p] = {"step": held, **{k: x.clone().to(place.device) for k, x in moments.items()}}
    for grad in grads:
        p.grad = grad.clone().to(place.device)
        optimizer.step()
        state = optimizer.state[p]
        yield Snapshot(*(x.detach().to("cpu", torch.float64) for x in (p, state["exp_avg"], state["exp_avg_sq"])))


def last(steps: Iterator[Snapshot]) -> Snapshot:
    """The snapshot after the last step."""
    return list(steps)[-1]


class AdamWGrid:
    """Base of the properties: every scenario of the claim at every step number of the claim, in every form."""

    clause = ""

    def magnitudes(self, place: Place) -> tuple[int, ...]:
        """Powers of two that gradients are multiplied by."""
        return (-3, 0, 2)

    def reaches(self, place: Place) -> Sequence[str]:
        """Names of what the correct subject must reach beside the forms."""
        return ()

    def covers(self, place: Place) -> Sequence[str]:
        """Names of the situations that the correct subject must reach."""
        return (*self.reaches(place), *(f"adamw {form}" for form in FORMS))

    def cells(self, place: Place, params: Mapping[str, Any]) -> Sequence[Cell]:
        """The grid of the claim's `scenarios` and `steps`. Raises KeyError for a scenario that does not exist."""
        for name in params["scenarios"]:
            SCENARIOS[name]
        return [Cell(str(name), int(n)) for name in params["scenarios"] for n in params["steps"]]

    def examples(self, cell: Cell, place: Place, turn: int, turns: int) -> Sequence[Case]:
        """One case a form and magnitude."""
        return [
            Case(cell.net, cell.n, place.dtype, seed, "adamw", form, magnitude=magnitude)
            for form in FORMS
            for seed, magnitude in enumerate(self.magnitudes(place))
        ]

    def strategy(self, cell: Cell, place: Place) -> SearchStrategy[Case]:
        """Seeds, forms and magnitudes are drawn."""
        return st.builds(
            Case, net=st.just(cell.net), n=st.just(cell.n), mode=st.just(place.dtype), seed=st.integers(0, 63),
            optimizer=st.just("adamw"), form=st.sampled_from(tuple(FORMS)),
            magnitude=st.sampled_from(self.magnitudes(place)),
        )  # fmt: skip

    def absent(self, place: Place) -> Mapping[str, str]:
        """Every form exists."""
        return {}

    def probe(self, cell: Cell, place: Place) -> None:
        """Raise NoKernel when the device has no AdamW in this dtype."""
        from models.adamw.torch_model import TorchAdamW

        one = torch.ones(2, dtype=DTYPES[place.dtype])
        for form in FORMS:
            try:
                list(walk(TorchAdamW(), Settings(form=form), one, [one], place))
            except (RuntimeError, NotImplementedError) as e:
                raise NoKernel(f"{form}: {e}") from e

    def bounds(self, place: Place) -> Sequence[Bound]:
        """None beside the claim's own."""
        return ()

    def outside(self, subject: Any, place: Place, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """No rows outside the assumptions."""
        return []
