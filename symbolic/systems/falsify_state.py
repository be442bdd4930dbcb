"""Optimizer state on real PyTorch: FALSIFY-GT-302 of the training contract.

The state is read at every micro-batch. A twin, which the subject never sees, accumulates the same micro-batches in the
same order and steps once a window, and not in a window whose gradient overflows; both run on one thread, so that the
states must agree bit for bit.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradproof.harness import FORMS, OPTIMIZERS, Case, Cell, Observed, Place, Refutation
from models.systems.torch_state import StateJob
from symbolic.measured import Measured

SCALE, WINDOWS, SKIPPED = 1024.0, 3, 1
Snapshot = list[dict[str, Tensor]]


def optimizer_of(case: Case, model: nn.Module) -> torch.optim.Optimizer:
    """SGD with momentum, or AdamW, in a form of its own."""
    form: dict[str, Any] = {"foreach": case.form == "foreach", "fused": case.form == "fused"}
    if case.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.875, **form)
    return torch.optim.AdamW(model.parameters(), lr=0.125, **form)


def snapshot(model: nn.Module, optimizer: torch.optim.Optimizer) -> Snapshot:
    """A copy of what the optimizer keeps for each parameter; nothing before its first step."""
    held = [optimizer.state.get(p, {}) for p in model.parameters()]
    return [{k: torch.as_tensor(v).detach().clone() for k, v in row.items() if v is not None} for row in held]


def equal(a: Snapshot, b: Snapshot) -> bool:
    """Whether two snapshots agree bit for bit."""
    return all(
        x.keys() == y.keys() and all(torch.equal(x[k].float(), y[k].float()) for k in x)
        for x, y in zip(a, b, strict=True)
    )


def made(case: Case, place: Place) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """A model and whole windows of micro-batches."""
    torch.manual_seed(case.seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(place.device)
    count = case.windows * case.n
    return model, [
        (torch.randn(2, 3, device=place.device), torch.randn(2, 1, device=place.device)) for _ in range(count)
    ]


def twin_states(case: Case, place: Place) -> list[Snapshot]:
    """The state before each window, and after the last one."""
    model, batches = made(case, place)
    optimizer = optimizer_of(case, model)
    states = [snapshot(model, optimizer)]
    for window in range(case.windows):
        optimizer.zero_grad()
        for inputs, targets in batches[window * case.n : (window + 1) * case.n]:
            (nn.functional.mse_loss(model(inputs), targets) / case.n).backward()  # type: ignore[no-untyped-call]
        if case.overflow is None or window != case.overflow:
            optimizer.step()
        states.append(snapshot(model, optimizer))
    return states


def watched(subject: Any, case: Case, place: Place) -> list[Snapshot]:
    """The subject's state at every micro-batch, and at the end."""
    model, batches = made(case, place)
    optimizer = optimizer_of(case, model)
    scaler = None
    if case.loss_scale is not None:
        scaler = torch.amp.GradScaler(place.device, init_scale=case.loss_scale, growth_interval=1 << 30)
    seen: list[Snapshot] = []

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        value = nn.functional.mse_loss(output, targets)
        window = (len(seen) - 1) // case.n
        return value * math.inf if case.overflow is not None and window == case.overflow else value

    model.register_forward_pre_hook(lambda *_: seen.append(snapshot(model, optimizer)))
    subject().run(StateJob(model, optimizer, scaler, copy.copy(batches), case.n, loss))
    return [*seen, snapshot(model, optimizer)]


class StateOnceAWindow(Measured):
    """FALSIFY-GT-302: momentum, moments and step counter stand still inside a window and move once at its end."""

    clause = "GA-STATE-001"

    def covers(self, place: Place) -> Sequence[str]:
        forms = [f"{optimizer} {form}" for optimizer in OPTIMIZERS for form in FORMS]
        return ["a skipped step", "a window of several", *forms]

    def cases(self, cell: Cell, place: Place) -> Sequence[Case]:
        rows: list[Mapping[str, Any]] = [
            {"optimizer": optimizer, "form": form, "loss_scale": scale, "overflow": skipped}
            for optimizer in OPTIMIZERS
            for form in FORMS
            for scale, skipped in ((None, None), (SCALE, None), (SCALE, SKIPPED))
        ]
        return [Case(cell.net, cell.n, windows=WINDOWS, **row) for row in rows]

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        seen, right = watched(subject, case, place), twin_states(case, place)
        if len(seen) != case.windows * case.n + 1:
            raise Refutation(self.clause, f"{len(seen) - 1} micro-batches were run, {case.windows * case.n} given")
        for i, state in enumerate(seen):
            window, inside = divmod(i, case.n)
            if not equal(state, right[window]):
                where = f"inside window {window}" if inside else f"after {window} windows"
                raise Refutation(self.clause, f"{where}, micro-batch {i}: the state is not that of one step a window")
        reached = {"a skipped step"} if case.overflow is not None else set()
        return Observed(reached | ({"a window of several"} if case.n > 1 else set()))


state_once_a_window = StateOnceAWindow()
