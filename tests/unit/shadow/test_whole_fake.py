"""`check --fake`: models that people train, right and with the bugs of the field, without numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Outcome
from gradproof.shadow.request import Request
from gradproof.shadow.result import Verification
from gradproof.shadow.whole.judge import check_fake
from tests.unit.whole_models import Gpt, Llama, Pictures, loop, pictures


def fake(step: Callable[[Any], Any], **options: Any) -> Verification:
    """The verification of a function without numbers."""
    return check_fake(step, "step", Request(fake=True, **options))


def grouped() -> nn.Module:
    """A model with a norm of each picture."""
    return Pictures(lambda: nn.GroupNorm(2, 4))


def batched() -> nn.Module:
    """A model with a norm of the micro-batch."""
    return Pictures(lambda: nn.BatchNorm2d(4))


@pytest.mark.parametrize("model", [Gpt, Llama])
@pytest.mark.parametrize("tail", [0, 2])
def test_a_right_transformer_holds(model: Callable[[], nn.Module], tail: int) -> None:
    found = fake(loop(model), tail=tail)
    assert found.outcome is Outcome.HOLDS
    assert {r.outcome for r in found.results} == {Outcome.HOLDS}


def test_group_norm_holds_and_batch_norm_is_outside() -> None:
    assert fake(loop(grouped, pictures)).outcome is Outcome.HOLDS
    found = fake(loop(batched, pictures))
    assert found.result("GA-EQ-001").outcome is Outcome.OUTSIDE
    assert "batch_norm" in found.result("GA-EQ-001").reason


@pytest.mark.parametrize("model", [Gpt, Llama])
@pytest.mark.parametrize(
    ("bug", "obligation"),
    [
        ("share", "GA-EQ-001"),
        ("stale", "GA-INV-002"),
        ("clip", "GA-INV-005"),
        ("early", "GA-INV-003"),
        ("narrow", "GA-INV-004"),
        ("last", "GA-EQ-001"),
    ],
)
def test_a_wrong_transformer_is_refuted(model: Callable[[], nn.Module], bug: str, obligation: str) -> None:
    found = fake(loop(model, bug=bug))
    assert found.result(obligation).outcome is Outcome.REFUTED
    assert found.result(obligation).place is not None


def test_a_tail_by_the_wrong_number_is_refuted_with_its_weights() -> None:
    result = fake(loop(Gpt, bug="tail"), tail=2).result("GA-EQ-001")
    assert result.outcome is Outcome.REFUTED
    assert result.counterexample is not None
    assert result.counterexample["times_the_full_batch"] == "1/2"


def test_the_weights_of_a_missing_share_are_those_of_the_micro_batch() -> None:
    result = fake(loop(Gpt, bug="share")).result("GA-EQ-001")
    assert result.counterexample is not None
    assert result.counterexample["times_the_full_batch"] == "4"
    assert set(result.counterexample["weights"].values()) == {"1/12"}


def branch(run: Any) -> None:
    """Its path depends on a number."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for part in torch.randn(run.samples, 3).split(run.micro_batch_size):
        loss = model(part).mean() / run.accum_steps
        if loss.item() > 0:
            loss.backward()
    for _ in range(run.windows):
        optimizer.step()


def test_a_path_that_depends_on_a_number_is_not_decided_and_names_its_line() -> None:
    found = fake(branch)
    assert {r.outcome for r in found.results} == {Outcome.OPAQUE}
    assert found.results[0].place is not None
    assert found.results[0].place.line == branch.__code__.co_firstlineno + 6


@pytest.mark.parametrize("how", ["numpy", "__bool__", "__float__", "__array__"])
def test_a_read_that_is_swallowed_is_still_no_proof(how: str) -> None:
    def step(run: Any) -> Any:
        try:
            getattr(torch.randn(run.samples, 3)[0, 0], how)()
        except RuntimeError:
            return loop(Gpt)(run)
        raise AssertionError("there was a number")

    assert fake(step).outcome is Outcome.OPAQUE


def test_two_modules_of_one_name_are_two_parameters() -> None:
    """Equal names would make their gradients equal."""

    def step(run: Any) -> None:
        first, second = nn.Linear(3, 1), nn.Linear(3, 1)
        optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
        for i, part in enumerate(torch.randn(run.samples, 3).split(run.micro_batch_size)):
            model = first if run.accum_steps > 1 else second
            ((model(part) ** 2).mean() / run.accum_steps).backward()
            if (i + 1) % run.accum_steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    assert fake(step).result("GA-EQ-001").outcome is not Outcome.HOLDS


def test_one_micro_batch_a_window_compares_nothing() -> None:
    assert fake(loop(Gpt), accum_steps=1).outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("option", [{"ranks": 2}, {"device": "cuda"}, {"domains": ("rounding",)}])
def test_what_needs_numbers_is_refused_beside_fake(option: dict[str, Any]) -> None:
    with pytest.raises(GradproofError) as caught:
        Request(fake=True, **option)
    assert caught.value.code == "GP406"


def test_the_cost_does_not_grow_with_the_width() -> None:
    narrow, wide = (fake(loop(lambda width=width: Gpt(width))) for width in (24, 2400))
    assert narrow.outcome is wide.outcome is Outcome.HOLDS
    assert narrow.operators == wide.operators
