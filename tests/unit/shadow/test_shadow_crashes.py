"""Loops on which the recorder itself used to fall over, each once right and once with the 1/N missing."""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, cast

import pytest
import torch
from shadow_steps import loop
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from gradproof.core.outcome import Outcome
from gradproof.rounding.accumulation import Setting
from gradproof.rounding.bound import answer
from tests import checked as verify

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch.cond, where nobody records
HOLDS, REFUTED, OPAQUE, ERROR = Outcome.HOLDS, Outcome.REFUTED, Outcome.OPAQUE, Outcome.ERROR
Make = Callable[[], nn.Module]


def looked_at_before() -> nn.Module:
    """A forward pass under `no_grad` comes first, which leaves views of the weight behind."""
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model(torch.randn(5, 3))
    return model


def looked_at_in_inference() -> nn.Module:
    """The same in inference mode."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    with torch.inference_mode():
        model(torch.randn(5, 3))
    return model


def a_view_is_kept() -> nn.Module:
    """The view that was made under `no_grad` outlives the step that changes its base."""
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.kept = model.weight.t()
        torch.randn(5, 3) @ model.kept
    return model


def empty_then_set() -> nn.Module:
    """Made on the meta device, then given memory and numbers."""
    with torch.device("meta"):
        model = nn.Linear(3, 2)
    model = model.to_empty(device="cpu")
    model.reset_parameters()
    return model


def assigned() -> nn.Module:
    """Made on the meta device, then given the parameters of another model."""
    model = nn.Linear(3, 2, device="meta")
    model.load_state_dict(nn.Linear(3, 2).state_dict(), assign=True)
    return model


class Chooses(nn.Module):
    """`torch.cond` on a truth value of the data, which is the same for every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Doubled where the condition holds."""
        return torch.cond(x.square().sum() >= 0, lambda o: o * 2.0, lambda o: o * 1.0, (self.inner(x),))


DECIDED: dict[str, Make] = {
    "no_grad": looked_at_before, "inference": looked_at_in_inference, "kept": a_view_is_kept,
    "meta": empty_then_set, "assigned": assigned,
    "weight_norm": lambda: parametrizations.weight_norm(nn.Linear(3, 2)),
    "dropout": lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(), nn.Linear(4, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", DECIDED)
def test_a_right_loop_holds(name: str) -> None:
    found = verify.check(lambda run: loop(run, DECIDED[name]()))
    assert [(r.obligation, r.reason) for r in found.results if r.applies and r.outcome is not HOLDS] == []


@pytest.mark.parametrize("name", DECIDED)
def test_without_its_1_over_n_it_is_refuted(name: str) -> None:
    def step(run: Any) -> None:
        loop(run, DECIDED[name](), loss=lambda a, b: F.mse_loss(a, b) * run.accum_steps)

    result = verify.check(step).result("GA-EQ-001")
    assert (result.outcome, " 4 times " in result.reason) == (REFUTED, True), result.reason


def reads_its_bytes(run: Any) -> None:
    """A checksum of the weights' memory."""
    model = nn.Linear(3, 2)
    loop(run, model, lambda m: sum(m.weight.untyped_storage()[i] for i in range(4)))


UNDECIDED: dict[str, tuple[Callable[[Any], None], str, str]] = {
    "bytes": (reads_its_bytes, "the storage of", "operators of torch"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNDECIDED)
def test_what_cannot_be_followed_is_undecided_with_a_cause_and_a_remedy(name: str) -> None:
    step, cause, remedy = UNDECIDED[name]
    found = verify.check(step)
    result = found.result("GA-EQ-001")
    assert (result.outcome, found.code) == (OPAQUE, 4), result.reason
    assert (cause in result.reason, remedy in result.help) == (True, True), (result.reason, result.help)


def recorded() -> bool:
    """Whether a dispatch mode is active."""
    return bool(torch.utils._python_dispatch._get_current_dispatch_mode_stack())


def fails_while_recorded(run: Any) -> None:
    """Stands for any code of a library that a dispatch mode breaks."""
    if recorded():
        raise TypeError("no mode is wanted here")
    loop(run, nn.Linear(3, 2))


def fails_always(run: Any) -> None:
    """The user's own mistake."""
    raise TypeError("run has no field of that name")


def test_an_error_that_only_the_recorder_causes_is_no_error_of_the_function() -> None:
    found = verify.check(fails_while_recorded)
    result = found.result("GA-EQ-001")
    assert (result.outcome, found.code) == (OPAQUE, 4)
    assert "runs without the recorder" in result.reason
    assert "TypeError: no mode" in result.reason
    assert result.help


def test_an_error_of_the_function_stays_one() -> None:
    found = verify.check(fails_always)
    result = found.result("GA-EQ-001")
    assert (result.outcome, found.code, "run has no field" in result.reason) == (ERROR, 3, True)


SMALL = ("sequential", "pairwise", "blocked:2", "kahan", "neumaier")


@pytest.mark.parametrize("order", SMALL)
@pytest.mark.parametrize("magnitude", ["1e-6", "1e-7", "1e-9"])
def test_a_bound_of_tiny_gradients_is_attained_by_numbers_of_the_format(order: str, magnitude: str) -> None:
    found = answer(Setting(4, "fp16", order=order, magnitude=Fraction(magnitude)))
    assert found.attained <= found.bound
    assert all(abs(g) <= found.setting.magnitude for g in found.witness)


@pytest.mark.parametrize(("buffer", "inputs"), [("fp16", "fp32"), ("bf16", "fp32"), ("fp16", "bf16"), ("bf16", "fp16")])
@pytest.mark.parametrize("order", ["sequential", "kahan", "any"])
@pytest.mark.parametrize("magnitude", ["1", "1e-9"])
def test_inputs_that_the_buffer_cannot_hold_have_a_bound(buffer: str, inputs: str, order: str, magnitude: str) -> None:
    found = answer(Setting(4, buffer, inputs, order=order, magnitude=Fraction(magnitude)))
    assert 0 < found.attained <= found.bound
    assert math.isfinite(float(found.bound))


def compiled_by_torchscript() -> Callable[[Tensor], Tensor]:
    """A function with a call that the watcher has replaced; TorchScript knows its operators by identity."""
    text = "import torch\n\n\ndef scaled(x: torch.Tensor) -> torch.Tensor:\n    return x * torch.tensor(0.5)\n"
    names: dict[str, Any] = {"__name__": "scaled"}
    linecache.cache["scaled.py"] = len(text), None, text.splitlines(keepends=True), "scaled.py"
    exec(compile(text, "scaled.py", "exec"), names)
    return cast(Callable[[Tensor], Tensor], torch.jit.script(names["scaled"]))


def beside_a_model_without_numbers() -> Callable[[Tensor], Tensor]:
    """The costs of a step are counted on a model of the meta device, with a backward pass."""
    with torch.device("meta"):
        ghost = nn.Linear(3, 2)
        F.mse_loss(ghost(torch.randn(4, 3)), torch.zeros(4, 2)).backward()
    return nn.Identity()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("make", [compiled_by_torchscript, beside_a_model_without_numbers])
@pytest.mark.parametrize("share", [1, 4])
def test_what_a_script_does_beside_its_training_ends_no_watch(make: Callable[[], Any], share: int) -> None:
    def train() -> None:
        then, model = make(), nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i in range(16):
            (F.mse_loss(then(model(torch.randn(2, 3))), torch.randn(2, 2)) / share).backward()
            if i % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()

    found = verify.watch(train, 4)
    assert found.result("GA-EQ-001").outcome is (HOLDS if share == 4 else REFUTED), found.result("GA-EQ-001").reason
    assert found.monitoring["effective"]["sizes"] == [2] * 4
