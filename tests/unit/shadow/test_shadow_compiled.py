"""What is decided of a step under torch.compile, and how: as docs/verdict.md says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gradproof
from gradproof.core.outcome import Outcome
from gradproof.report.formats.brief import text
from gradproof.shadow.follow.unseen import UNCOMPILED

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Using `torch.compile"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def twice(graph: Any, inputs: Any) -> Callable[..., Any]:
    """A compiler that is wrong: its code gives twice what the graph gives."""
    return lambda *given: tuple(2 * out for out in graph(*given))


def step(backend: Any, divided: bool = True) -> Callable[[Any], None]:
    """A training function whose model is compiled by a backend, if any."""

    def train(run: Any) -> None:
        torch.manual_seed(run.seed)
        model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1))
        compiled: Any = torch.compile(model, backend=backend) if backend else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs, targets = torch.randn(run.samples, 8), torch.randn(run.samples, 1)
        for i in range(run.samples // run.micro_batch_size):
            x, y = (part[i * run.micro_batch_size :][: run.micro_batch_size] for part in (inputs, targets))
            loss = nn.functional.mse_loss(compiled(x), y)
            (loss / run.accum_steps if divided else loss).backward()
            if (i + 1) % run.accum_steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    return train


class Long:
    """The numbers of a run of more windows than `watch` records."""

    seed, samples, micro_batch_size, accum_steps = 0, 80, 4, 4


@pytest.fixture(autouse=True)
def _afresh() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_step_holds_as_the_eager_one_and_says_so(backend: str) -> None:
    found = gradproof.check(step(backend))
    assert found.outcome is Outcome.HOLDS
    assert UNCOMPILED in found.assumptions
    assert f"assumed: {UNCOMPILED}" in text(found)


def test_without_a_compiler_nothing_is_said_of_one() -> None:
    found = gradproof.check(step(None))
    assert found.outcome is Outcome.HOLDS
    assert UNCOMPILED not in found.assumptions


def test_a_compiled_step_that_is_wrong_is_refuted_at_its_line() -> None:
    equal = gradproof.check(step("aot_eager", divided=False)).result("GA-EQ-001")
    assert equal.outcome is Outcome.REFUTED
    assert equal.location is not None
    assert equal.location.function == "train"


def test_check_sees_a_compiler_that_computes_something_else() -> None:
    found = gradproof.check(step(twice))
    assert {r.outcome for r in found.results if r.applies} == {Outcome.OPAQUE}
    assert "other gradients to its optimizer when nobody follows it" in found.results[0].reason


@pytest.mark.parametrize("backend", ["aot_eager", twice])
def test_watch_says_that_it_trusts_the_compiler(backend: Any) -> None:
    with gradproof.watch() as seen:
        step(backend)(Long)
    assert seen.outcome is Outcome.HOLDS
    assert UNCOMPILED in seen.assumptions


def test_the_backward_pass_that_a_compiler_runs_is_no_backward_pass_of_a_window() -> None:
    """AOT Autograd compiles in the first window that is not recorded, and runs a backward pass of its own then."""
    with gradproof.watch() as seen:
        step("aot_eager")(Long)
    assert not [said for said in seen.uncovered if said.startswith("window")]
