"""`check --fake`: models that people train, right and with the bugs of the field, without numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Outcome
from gradproof.report.formats import step as step_format
from gradproof.shadow.judge.two_runs import check_whole
from gradproof.shadow.request import Request
from gradproof.shadow.result import Verification
from tests.unit.whole_models import Gpt, Llama, Pictures, loop, pictures


def fake(step: Callable[[Any], Any], **options: Any) -> Verification:
    """The verification of a function without numbers."""
    return check_whole(step, "step", Request(fake=True, **options))


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
    assert found.result(obligation).location is not None


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


def test_a_refutation_without_numbers_does_not_claim_a_replay() -> None:
    text = " ".join(step_format.text(fake(loop(Gpt, bug="share"))).split())
    assert "no numbers were computed" in text
    assert "replays on concrete numbers" not in text


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
    assert found.results[0].location is not None
    assert found.results[0].location.line == branch.__code__.co_firstlineno + 6


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


@pytest.mark.parametrize("option", [{"ranks": 2}, {"device": "cuda"}, {"rounding": True}])
def test_what_needs_numbers_is_refused_beside_fake(option: dict[str, Any]) -> None:
    with pytest.raises(GradproofError) as caught:
        Request(fake=True, **option)
    assert caught.value.code == "GP406"


def test_the_cost_does_not_grow_with_the_width() -> None:
    narrow, wide = (fake(loop(lambda width=width: Gpt(width))) for width in (24, 2400))
    assert narrow.outcome is wide.outcome is Outcome.HOLDS
    assert narrow.operators == wide.operators


ROWS = [torch.randn(3) for _ in range(40)]
TABLE = torch.randn(16, 3)


def trained(run: Any, batches: Any, share: int = 0, model: nn.Module | None = None) -> None:
    """A linear model on micro-batches."""
    model = model or nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, batch in enumerate(batches):
        ((model(batch) ** 2).mean() / (share or run.accum_steps)).backward()
        if (i + 1) % (share or run.accum_steps) == 0:
            optimizer.step()
            optimizer.zero_grad()


def of_samples(run: Any) -> Any:
    """Micro-batches of data that are drawn in the function."""
    return torch.randn(run.samples, 3).split(run.micro_batch_size)


def skipped(run: Any) -> None:
    """The micro-batches leave out three samples."""
    at = [i * run.micro_batch_size + (3 if run.accum_steps > 1 and i else 0) for i in range(run.micro_batches)]
    trained(run, [torch.stack(ROWS[k : k + run.micro_batch_size]) for k in at])


def own_numbers(run: Any) -> None:
    """It reads the numbers of the run and trains with its own."""
    assert run.accum_steps * run.micro_batch_size * run.windows == run.samples
    trained(run, torch.randn(16, 3).split(2), share=4)


def bits(run: Any) -> None:
    """It changes a parameter through the bytes."""
    model = nn.Linear(3, 1)
    model.weight.data.view(torch.int32).add_(1)
    trained(run, of_samples(run), model=model)


def changed_outside(run: Any) -> None:
    """NumPy writes to data that the function reads."""
    buffer = TABLE.numpy().copy()
    data = torch.from_numpy(buffer)

    def batches() -> Any:
        for _ in range(run.micro_batches):
            buffer[:] += 1
            yield data[: run.micro_batch_size]

    trained(run, batches())


def half_zeroed(run: Any) -> None:
    """A part of a gradient is never zeroed."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, batch in enumerate(of_samples(run)):
        ((model(batch) ** 2).mean() / run.accum_steps).backward()
        if (i + 1) % run.accum_steps == 0:
            optimizer.step()
            assert isinstance(model.weight.grad, torch.Tensor)
            assert isinstance(model.bias.grad, torch.Tensor)
            model.weight.grad[:, :2].zero_()
            model.bias.grad.zero_()


def scheduled(run: Any) -> None:
    """The learning rate falls after each micro-batch."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, batch in enumerate(of_samples(run)):
        ((model(batch) ** 2).mean() / run.accum_steps).backward()
        if (i + 1) % run.accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
        optimizer.param_groups[0]["lr"] *= 0.5


@pytest.mark.parametrize("step", [skipped, own_numbers, bits, changed_outside, half_zeroed, scheduled])
def test_a_wrong_step_that_looks_right_does_not_hold(step: Callable[[Any], Any]) -> None:
    assert fake(step).outcome is not Outcome.HOLDS


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x * torch.arange(len(x))[:, None],
        lambda x: x - x.mean(0),
        lambda x: x.softmax(0),
        lambda x: x + x.roll(1, 0),
        lambda x: x.cumsum(0),
        lambda x: x.t().reshape(-1, 3),
        lambda x: x / x.norm(),
        lambda x: x.sort(0).values,
        lambda x: x @ x.t() @ x,
        lambda x: nn.functional.batch_norm(x, None, None, training=True),
    ],
)
def test_samples_that_meet_are_no_proof(mix: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A position in the batch, a mean over it, a softmax across it: the micro-batches are not the full batch."""
    found = fake(lambda run: trained(run, [mix(x) for x in of_samples(run)]) or run.windows)
    assert found.result("GA-EQ-001").outcome in (Outcome.UNKNOWN, Outcome.OUTSIDE)


@pytest.mark.parametrize(
    "keep",
    [
        lambda x: x - x.mean(1, keepdim=True),
        lambda x: x.softmax(1),
        lambda x: nn.functional.pad(x[:, :2], (1, 0)),
        lambda x: torch.cat([x[:, 2:], x[:, :2]], 1),
        lambda x: torch.stack(list(x)),
        lambda x: x.view(-1).view(-1, 3),
        lambda x: torch.cat(list(x.chunk(2))),
        lambda x: x / x.norm(dim=1, keepdim=True),
        lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
        lambda x: nn.functional.layer_norm(x, (3,)),
        lambda x: x * torch.arange(3),
    ],
)
def test_samples_that_stay_apart_are_proved(keep: Callable[[torch.Tensor], torch.Tensor]) -> None:
    found = fake(lambda run: trained(run, [keep(x) for x in of_samples(run)]) or run.windows)
    assert found.result("GA-EQ-001").outcome is Outcome.HOLDS


def test_data_of_a_loader_and_of_lists_are_samples() -> None:
    def loaded(run: Any) -> None:
        data = torch.utils.data.TensorDataset(TABLE)
        trained(run, [x for (x,) in torch.utils.data.DataLoader(data, batch_size=run.micro_batch_size)])

    def listed(run: Any) -> None:
        size = run.micro_batch_size
        trained(run, [torch.stack(ROWS[i * size : (i + 1) * size]) for i in range(run.micro_batches)])

    assert fake(loaded).outcome is Outcome.HOLDS
    assert fake(listed).outcome is Outcome.HOLDS
