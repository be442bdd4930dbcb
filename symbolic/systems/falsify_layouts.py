"""16 samples as one batch, as 4 x 4 and as 2 x 8: FALSIFY-GT-305 of the training contract.

Two errors, never mixed. Accumulation: the buffer against the exact mean of the micro-batches' own gradients, within the
bound that `gradproof.rounding.bound` proves for every input of that size. End to end: one layout against another,
within the documented 1e-4. The second is larger, because a gradient over 16 rows and the mean of four over 4 rows are
other sums in other orders inside autograd; no bound is proved for it. A parameter moves by the learning rate times its
gradient, so its own difference is at most that much and one rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from gradproof.harness import Case, Cell, Observed, Place, Refutation, Setting, bound_answer as answer
from models.systems.torch_layouts import LayoutJob
from symbolic.measured import Measured

ROWS, RATE = 16, 0.125


@dataclass(frozen=True)
class Stepped:
    """One step in one layout: the gradient before it, and the weights after it."""

    gradient: Tensor
    weights: Tensor


def flat(tensors: Any) -> Tensor:
    """All numbers of some tensors; a missing one counts as nothing."""
    found = [t.detach().flatten().clone() for t in tensors if t is not None]
    return torch.cat(found) if found else torch.zeros(0)


def job_of(seed: int, place: Place) -> LayoutJob:
    """The same model and the same 16 samples every time."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).to(place.device)
    inputs, targets = torch.randn(ROWS, 3, device=place.device), torch.randn(ROWS, 1, device=place.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    return LayoutJob(model, optimizer, nn.functional.mse_loss, inputs, targets)


def stepped(subject: Any, n: int, seed: int, place: Place) -> Stepped:
    """Run one step in n micro-batches; the gradient is empty where no step was made."""
    job, held = job_of(seed, place), [torch.zeros(0)]
    job.optimizer.register_step_pre_hook(lambda *_: held.append(flat(p.grad for p in job.model.parameters())))
    subject().run(job, n)
    return Stepped(held[-1], flat(job.model.parameters()))


def own_gradients(n: int, seed: int, place: Place) -> list[list[Fraction]]:
    """The gradient of each micro-batch by itself, times n: exact by a power of two. Raises ValueError for another n."""
    if n & (n - 1):
        raise ValueError(f"{n} is no power of two: the scaled gradients are not those of the micro-batches")
    job, found = job_of(seed, place), []
    for inputs, targets in zip(job.inputs.chunk(n), job.targets.chunk(n), strict=True):
        job.model.zero_grad()
        (job.loss(job.model(inputs), targets) / n).backward()  # type: ignore[no-untyped-call]
        found.append([Fraction(v) * n for v in flat(p.grad for p in job.model.parameters()).tolist()])
    return found


def accumulation_error(got: Tensor, own: Sequence[Sequence[Fraction]]) -> tuple[Fraction, Fraction]:
    """Largest |G - mean of the g_i|, exactly, and what is proved of it for gradients of this size."""
    n, columns = len(own), list(zip(*own, strict=True))
    error = max(abs(Fraction(v) - sum(c, Fraction(0)) / n) for v, c in zip(got.tolist(), columns, strict=True))
    largest = max(abs(g) for column in columns for g in column)
    size = Fraction(1)
    while size < largest:
        size *= 2
    while size / 2 >= largest > 0:
        size /= 2
    return error, answer(Setting(n, magnitude=size)).bound


class SameInEveryLayout(Measured):
    """FALSIFY-GT-305: gradients before the step and parameters after it agree over the layouts within 1e-4."""

    clause = "GA-LAYOUT-001"
    reached = ("16 as 4 x 4", "16 as 2 x 8", "2 x 8 against 4 x 4")

    def cases(self, cell: Cell, place: Place) -> Sequence[Case]:
        return [Case(cell.net, cell.n, seed=seed) for seed in range(3)]

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        """`case.n` micro-batches against the whole batch, and against the other cut."""
        made = stepped(subject, case.n, case.seed, place)
        rows, reached = [], {f"16 as {case.n} x {ROWS // case.n}"}
        others = {"16": 1} | ({"2 x 8": 2} if case.n == 4 else {})
        for name, n in others.items():
            other = stepped(subject if n > 1 else type(self).reference(), n, case.seed, place)
            cut = f"{case.n} x {ROWS // case.n} against {name}"
            if made.gradient.shape != other.gradient.shape or not made.gradient.numel():
                raise Refutation(self.clause, f"{cut}: no step was made")
            rows += self.judged(case, place, cut, made, other)
            reached |= {"2 x 8 against 4 x 4"} if n == 2 else set()
        error, bound = accumulation_error(made.gradient, own_gradients(case.n, case.seed, place))
        if error > bound:
            raise Refutation(self.clause, f"the buffer is {float(error):.3g} from the mean; proved {float(bound):.3g}")
        rows.append(row_of(case, place, "accumulation", float(error), float(bound), "proved for every input"))
        return Observed(reached, rows)

    @staticmethod
    def reference() -> Any:
        """The whole batch is run by the right loop: in one piece a wrong one may be right."""
        from models.systems.torch_layouts import Layout

        return Layout

    def judged(self, case: Case, place: Place, cut: str, a: Stepped, b: Stepped) -> list[dict[str, Any]]:
        """A row of the gradients and one of the parameters. Raises Refutation where either is beyond the tolerance."""
        pairs = {"gradient": (a.gradient, b.gradient), "parameters after step 1": (a.weights, b.weights)}
        errors = {what: float((x - y).abs().max()) for what, (x, y) in pairs.items()}
        most = place.tolerances[self.clause]
        if not max(errors.values()) <= most:
            stated = ", ".join(f"{what} differs by {error:.6g}" for what, error in errors.items())
            raise Refutation(self.clause, f"{cut}: {stated}; tolerance {most:g}", errors)
        return [row_of(case, place, "end to end", error, most, f"{what}, {cut}") for what, error in errors.items()]


def row_of(case: Case, place: Place, column: str, error: float, bound: float, note: str) -> dict[str, Any]:
    """One row of the table of measurements."""
    return {
        "column": column, "net": case.net, "n": case.n, "dtype": place.dtype, "device": place.device,
        "measured": error, "bound": bound, "ratio": error / bound, "note": note,
    }  # fmt: skip


same_in_every_layout = SameInEveryLayout()
