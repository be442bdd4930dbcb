"""A user's loop under its generic mutants: each is seen, and one that changes nothing is not killed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch_bench import Desk

from gradproof.core.check import Bound, Check, Finding
from gradproof.core.outcome import Kind, Layer, Outcome, Reach
from gradproof.execution.methods import recorded_step as trace_run, user_loop
from gradproof.execution.methods.recorded_step import ANYWHERE, USERS, StepSetting
from gradproof.execution.methods.user_loop import BUGS, Bug, LoopHarness, LoopMutant, mutants_of, mutated
from gradproof.shadow.locations import NOWHERE, Location
from gradproof.shadow.tape.calls import CLIPS

Clear = Callable[[torch.optim.Optimizer], None]
SUBJECTS = {"torch": "w:loop", "torch_empty": "w:empty", "torch_mutants": "w:MUTANTS"}
pytestmark = pytest.mark.usefixtures("one_thread")


def looping(clear: Clear) -> Callable[[Any], None]:
    """A loop that clears its gradients in one way or another."""

    def train(run: Any) -> None:
        torch.manual_seed(run.seed)
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs, targets = torch.randn(run.samples, 2), torch.randn(run.samples, 1)
        for i in range(run.micro_batches):
            rows = slice(i * run.micro_batch_size, (i + 1) * run.micro_batch_size)
            loss = nn.functional.mse_loss(model(inputs[rows]), targets[rows])
            (loss / run.accum_steps).backward()
            if (i + 1) % run.accum_steps == 0:
                optimizer.step()
                clear(optimizer)

    return train


def zero_grad(optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()


def none(optimizer: torch.optim.Optimizer) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = None


def zeros(optimizer: torch.optim.Optimizer) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad.zero_()


def run(clear: Clear, *mutants: str, **replaced: LoopMutant) -> Finding:
    """One step proof of such a loop, in windows of two."""
    loop = looping(clear)
    registry = {**mutants_of(loop), **replaced}
    obligations = tuple(dict.fromkeys(registry[name].obligation for name in mutants))
    check = Check(
        id="STEP-LOOP-T", kind=Kind.TRACE, layer=Layer.STEP, obligations=obligations, title="a test",
        harness="w:harness", subject="w:loop", mutants=mutants,
        bounds=(Bound("micro_batches", 2, "a test"), Bound("windows", 2, "a test")),
        params={"nets": ["loop"], "n": [2], "optimizers": ["own"], "subjects": SUBJECTS},
    )  # fmt: skip
    names = {"w:harness": LoopHarness(), "w:loop": loop, "w:empty": lambda run: None, "w:MUTANTS": registry}
    return trace_run.run(check, Desk(names))


def test_gradients_that_are_dropped_by_hand_are_kept_by_the_mutant() -> None:
    found = run(none, "never_zeroed", "step_every_micro_batch")
    assert (found.outcome, found.reach) == (Outcome.HOLDS, Reach.BOUNDED)
    assert [c.killed for c in found.controls] == [True, True, True]
    assert "test_user_loop.py:" in found.controls[1].reason
    assert found.stats["configurations"] == ["N=2 windows=2 tail=0, micro-batches of 1"]


def test_a_mutant_that_finds_nothing_to_change_makes_the_check_weak() -> None:
    found = run(zeros, "never_zeroed")
    assert found.outcome is Outcome.WEAK
    assert "not killed: never_zeroed" in found.reason


def test_a_bug_that_does_nothing_is_not_killed() -> None:
    inert = LoopMutant("not_divided", "GA-EQ-001", "a test", mutated(looping(zero_grad), Bug()))
    found = run(zero_grad, "not_divided", not_divided=inert)
    assert found.outcome is Outcome.WEAK
    assert [(c.name, c.killed) for c in found.controls] == [("empty body", True), ("not_divided", False)]


def test_a_mutant_that_breaks_another_obligation_is_not_killed() -> None:
    step = BUGS["step_every_micro_batch"][1]
    wrong = LoopMutant("sum_in_bf16", "GA-INV-004", "a test", mutated(looping(zero_grad), step))
    found = run(zero_grad, "sum_in_bf16", sum_in_bf16=wrong)
    assert found.outcome is Outcome.WEAK
    assert "sum_in_bf16" in found.reason


def held() -> list[Any]:
    """What the bugs replace, as it is now."""
    optimizer, clips = torch.optim.Optimizer, [getattr(nn.utils.clip_grad, n, None) for n in CLIPS]
    taken = [torch.autograd.backward, optimizer.add_param_group, optimizer.zero_grad, nn.Module.zero_grad]
    return [*taken, vars(torch.Tensor).get("grad"), *clips]


@pytest.mark.parametrize("name", BUGS)
def test_torch_is_as_it_was(name: str) -> None:
    before = held()

    def failing(run: Any) -> None:
        assert name == "never_zeroed" or torch.autograd.backward is not before[0]
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        mutated(failing, BUGS[name][1])(SimpleNamespace(accum_steps=2))
    assert all(a is b for a, b in zip(before, held(), strict=True))


@pytest.mark.parametrize("name", BUGS)
def test_the_full_batch_is_trained_as_it_is(name: str) -> None:
    before, seen = held(), []

    def function(run: Any) -> list[float]:
        seen.append(all(a is b for a, b in zip(before, held(), strict=True)))
        return [1.0]

    assert mutated(function, BUGS[name][1])(SimpleNamespace(accum_steps=1)) == [1.0]
    assert seen == [True]


def test_what_is_returned_is_made_larger() -> None:
    stated = mutated(lambda run: {"a": [1.0, torch.ones(2)], "n": 3}, BUGS["loss_misreported"][1])
    found = stated(SimpleNamespace(accum_steps=2))
    assert (found["a"][0], found["a"][1].tolist(), found["n"]) == (2.0, [2.0, 2.0], 3)


def test_a_line_of_the_users_must_be_blamed() -> None:
    trial: Any = SimpleNamespace(harness=LoopHarness())
    own, torchs, ours = Location(__file__, 3), Location(torch.__file__, 3), Location(user_loop.__file__, 3)
    assert LoopHarness.blamed["not_divided"] == USERS
    assert trace_run._misplaced(trial, "not_divided", None, own) == ""
    for place in (torchs, ours, NOWHERE, None):
        assert "faulty line" in trace_run._misplaced(trial, "not_divided", None, place)
    assert LoopHarness.blamed["loss_misreported"] == ANYWHERE
    assert trace_run._misplaced(trial, "loss_misreported", None, None) == ""


def test_a_short_last_window_is_a_cover() -> None:
    short = StepSetting("loop", 4, 2, 1, optimizer="own")
    assert LoopHarness().covers([short]) == list(LoopHarness().reached(short)) == ["a short last window"]
    assert (
        LoopHarness().covers([StepSetting("loop", 4, 2)])
        == list(LoopHarness().reached(StepSetting("loop", 4, 2)))
        == []
    )


def test_workspaces_of_older_versions_find_the_harness_by_its_old_name() -> None:
    """`gradproof init` wrote this import until 2026-11-23."""
    from gradproof import harness
    from gradproof.backends.user_loop import LoopHarness, mutants_of

    assert (LoopHarness, mutants_of) == (harness.LoopHarness, harness.mutants_of)
