"""Accumulation beside other features of a training: FALSIFY-GT-405 of the training contract.

Each feature is run with and without accumulation: 16 samples in one piece and as 4 x 4, from the same weights, and the
gradients before the step and the parameters after it compared. The nets of the claim are the features:

    autocast    bf16 autocast; roundings to 8 bits, 16 of them in a row, of the largest gradient, are allowed
    fp16        fp16 autocast under a GradScaler, which updates its scale once; 16 roundings to 11 bits are allowed
    one_cycle   the learning rate is OneCycleLR's, stepped once after the step
    checkpoint  activations are computed again in the backward pass (torch.utils.checkpoint)
    fused       the fused SGD
    compiled    torch.compile with the backend aot_eager: graphs are captured and differentiated, no code is made
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

from gradproof.harness import Case, Cell, Observed, Place, Refutation
from models.systems.torch_layouts import Layout, LayoutJob
from symbolic.measured import Measured, gamma
from symbolic.systems.falsify_layouts import RATE, ROWS, Stepped, flat, row_of

FEATURES = ("autocast", "fp16", "one_cycle", "checkpoint", "fused", "compiled")
HALF = {"autocast": ("bf16", torch.bfloat16), "fp16": ("fp16", torch.float16)}
BACKENDS = {"compiled": "aot_eager", "inductor": "inductor"}
SCALE = 1024.0


class Featured(nn.Module):
    """A small net with one feature around its forward pass."""

    def __init__(self, feature: str, device: str) -> None:
        super().__init__()
        self.net, self.feature, self.device = (
            nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)),
            feature,
            device,
        )
        self.calls = 0
        self.graphs = CompileCounterWithBackend(BACKENDS.get(feature, "eager"))
        self.inner: Any = self.net
        if feature in BACKENDS:
            torch.compiler.reset()  # another backend object is another compilation, of which eight are kept
            self.inner = torch.compile(self.net, backend=self.graphs)
        self.scaler = None
        if feature == "fp16":
            self.scaler = torch.amp.GradScaler(device, init_scale=SCALE, growth_interval=1)
        if feature == "checkpoint":
            self.net[1].register_forward_hook(self.count)

    def count(self, *_: Any) -> None:
        """A forward pass of the activation; a checkpoint makes two of each."""
        self.calls += 1

    def forward(self, x: Tensor) -> Tensor:
        """(rows, 3) -> (rows, 1), in fp32."""
        region: AbstractContextManager[Any] = nullcontext()
        if self.feature in HALF:
            region = torch.autocast(self.device, dtype=HALF[self.feature][1])
        with region:
            if self.feature == "checkpoint":
                return torch.as_tensor(checkpoint(self.inner, x, use_reentrant=False)).float()
            return torch.as_tensor(self.inner(x)).float()


def stepped(subject: Any, case: Case, n: int, place: Place) -> tuple[Stepped, Featured, float]:
    """One step in n micro-batches with the feature on; with the learning rate after it."""
    torch.manual_seed(case.seed)
    model = Featured(case.net, place.device).to(place.device)
    inputs, targets = torch.randn(ROWS, 3, device=place.device), torch.randn(ROWS, 1, device=place.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, fused=case.net == "fused")
    held = [torch.zeros(0)]
    optimizer.register_step_pre_hook(lambda *_: held.append(flat(p.grad for p in model.parameters())))
    if case.net == "one_cycle":
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=4)
        optimizer.register_step_post_hook(lambda *_: schedule.step())
    subject().run(LayoutJob(model, optimizer, nn.functional.mse_loss, inputs, targets, model.scaler), n)
    return Stepped(held[-1], flat(model.parameters())), model, float(optimizer.param_groups[0]["lr"])


class WithEachFeature(Measured):
    """FALSIFY-GT-405: with the feature on, 4 x 4 is 16, and the feature was really on."""

    clause = "GA-COMPAT-001"
    reached: Sequence[str] = FEATURES

    def cases(self, cell: Cell, place: Place) -> Sequence[Case]:
        return [Case(cell.net, cell.n)]

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        made, model, rate = stepped(subject, case, case.n, place)
        whole, _, rate_of_whole = stepped(Layout, case, 1, place)
        if made.gradient.shape != whole.gradient.shape or not made.gradient.numel():
            raise Refutation(self.clause, f"{case.net}: no step was made")
        rows = []
        for what, a, b in (("gradient", made.gradient, whole.gradient), ("parameters", made.weights, whole.weights)):
            error, most = float((a - b).abs().max()), self.room(case, whole, place)
            if not error <= most:
                raise Refutation(self.clause, f"{case.net}: the {what} differs by {error:.6g}; tolerance {most:.6g}")
            rows.append(row_of(case, place, "end to end", error, most, what))
        if rate != rate_of_whole:
            raise Refutation(self.clause, f"{case.net}: the learning rate is {rate}, and {rate_of_whole} without it")
        return Observed({case.net} if self.was_on(case, model, rate, made) else set(), rows)

    def room(self, case: Case, whole: Stepped, place: Place) -> float:
        """The contract's tolerance, or what roundings to 16 bits can make of the largest gradient."""
        if case.net in HALF:
            return float(gamma(ROWS, HALF[case.net][0])) * float(whole.gradient.abs().max())
        return place.tolerances[self.clause]

    def was_on(self, case: Case, model: Featured, rate: float, made: Stepped) -> bool:
        """Evidence that the feature did something."""
        if case.net == "one_cycle":
            return rate != RATE / 25
        if case.net == "checkpoint":
            return model.calls == 2 * case.n
        if case.net in BACKENDS:
            return int(model.graphs.frame_count) > 0
        if model.scaler is not None and model.scaler.get_scale() != 2 * SCALE:
            return False
        if case.net in HALF:
            plain, _, _ = stepped(Layout, Case("plain", case.n, seed=case.seed), case.n, Place(model.device, "fp32"))
            return not torch.equal(plain.gradient, made.gradient)
        return True


with_each_feature = WithEachFeature()
