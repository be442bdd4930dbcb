"""Steps that are hard to follow: each is followed, or the recorder says that it was not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import _functional_collectives as functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from gradproof.shadow.record import leaves
from gradproof.shadow.record.recorder import Recorder
from gradproof.shadow.tape import Leaf, Ref, Source, Tape

Step = Callable[[Recorder], Any]


def record(step: Step, shift: float = 0.0) -> Tape:
    torch.manual_seed(0)
    with Recorder(lambda source, shape, dtype, natural: natural + shift) as rec:
        step(rec)
    return rec.tape


def data(tape: Tape) -> list[Leaf]:
    return [leaf for leaf in tape.leaves() if leaf.source.kind == "data"]


def stray(step: Step) -> list[Source]:
    """Leaves whose natural numbers depend on what was injected into the others."""
    pairs = zip(record(step).leaves(), record(step, 0.5).leaves(), strict=True)
    return [a.source for a, b in pairs if not np.array_equal(a.natural, b.natural)]  # type: ignore[arg-type]


def noisy(reentrant: bool, preserve: bool = True) -> Step:
    def step(rec: Recorder) -> None:
        model = torch.nn.Linear(3, 1)

        def block(x: torch.Tensor) -> torch.Tensor:
            order = torch.randperm(3)
            found: torch.Tensor = model((x + torch.randn(4, 3))[:, order]).sum()
            return found

        for _ in range(2):
            x = torch.randn(4, 3, requires_grad=reentrant)
            checkpoint(block, x, use_reentrant=reentrant, preserve_rng_state=preserve).backward()

    return step


@pytest.mark.parametrize("reentrant", [False, True])
def test_random_numbers_of_a_recomputation_are_those_of_the_forward_pass(reentrant: bool) -> None:
    tape = record(noisy(reentrant))
    noise = [leaf for leaf in data(tape) if "block" not in leaf.source.name and leaf.place.function == "block"]
    assert [leaf.source.first for leaf in noise] == [0, 0, 12, 12]
    assert [np.array_equal(a.value, b.value) for a, b in zip(noise[::2], noise[1::2], strict=True)] == [True, True]
    assert [len(arrays) for arrays in tape.integers.values()] == [2]
    assert tape.blind == []


def test_other_random_numbers_in_a_recomputation_are_lost_sight() -> None:
    assert "random-recompute" in [blind.code for blind in record(noisy(False, preserve=False)).blind]


def test_without_the_look_for_checkpoints_a_recomputation_draws_new_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaves, "recomputing", lambda: False)
    with pytest.raises(AssertionError):
        test_random_numbers_of_a_recomputation_are_those_of_the_forward_pass(False)


def workers(rec: Recorder) -> None:
    model = torch.nn.Linear(3, 1)
    rows = TensorDataset(torch.arange(24.0).reshape(8, 3), torch.arange(8.0).reshape(8, 1))
    for x, y in DataLoader(rows, batch_size=2, num_workers=2, multiprocessing_context="fork"):
        (model(x) - y).square().mean().backward()


def test_batches_of_worker_processes_are_data() -> None:
    found = data(record(workers))
    assert [leaf.source.first for leaf in found] == [0, 0, 6, 2, 12, 4, 18, 6]
    rows = np.concatenate([leaf.value.ravel() for leaf in found[::2]])
    assert np.array_equal(rows, np.arange(24.0))


class Tanh(torch.autograd.Function):
    """A hyperbolic tangent by NumPy."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return torch.from_numpy(np.tanh(x.detach().numpy()))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * (1 - torch.from_numpy(np.tanh(ctx.saved_tensors[0].detach().numpy()) ** 2))


def by_numpy(rec: Recorder) -> None:
    Tanh.apply(torch.nn.Linear(3, 2)(torch.randn(4, 3))).sum().backward()


def gradient_by_numpy(rec: Recorder) -> None:
    model = torch.nn.Linear(3, 2)
    model(torch.randn(4, 3)).sum().backward()
    assert model.weight.grad is not None
    model.weight.grad.data = torch.from_numpy(model.weight.grad.numpy() * 2)
    rec.event("step", {"grad": model.weight.grad})


def weights_by_numpy(rec: Recorder) -> None:
    model = torch.nn.Linear(3, 2)
    model(torch.randn(4, 3)).sum().backward()
    model.weight.data = torch.from_numpy(model.weight.detach().numpy() * 0.5)
    model(torch.randn(4, 3)).sum().backward()


@pytest.mark.parametrize("step", [by_numpy, gradient_by_numpy, weights_by_numpy])
def test_what_numpy_computed_from_tracked_values_is_known_by_its_natural_numbers(step: Step) -> None:
    assert stray(step)


@pytest.mark.parametrize("step", [noisy(False), workers])
def test_honest_leaves_have_the_same_natural_numbers(step: Step) -> None:
    assert stray(step) == []


def stepped(write: Callable[[torch.nn.Linear], None]) -> Step:
    def step(rec: Recorder) -> None:
        model = torch.nn.Linear(3, 1)
        for _ in range(2):
            model(torch.randn(2, 3)).sum().backward()
            write(model)
            model.zero_grad()
        rec.event("end", {"param": model.weight})

    return step


def assigned(model: torch.nn.Linear) -> None:
    for p in model.parameters():
        assert p.grad is not None
        p.data = p.data - 0.1 * p.grad


def swapped(model: torch.nn.Linear) -> None:
    assert model.weight.grad is not None
    other = torch.nn.Parameter((model.weight - 0.1 * model.weight.grad).detach())
    torch.utils.swap_tensors(model.weight, other)
    assert model.weight.grad is None
    assert other.grad is not None


@pytest.mark.parametrize("write", [assigned, swapped])
def test_weights_that_get_another_storage_stay_on_the_tape(write: Callable[[torch.nn.Linear], None]) -> None:
    tape = record(stepped(write))
    assert tape.params == ["weight", "bias"]
    end = next(tape.events("end")).refs["param"]
    assert isinstance(end, Ref)
    made = [e for e in tape.entries() if any(w.storage == end.storage for w in e.writes)]
    assert [e.op for e in made] == ["aten.sub.Tensor"]
    assert tape.blind == []


def test_tensors_of_two_dtypes_are_not_swapped_in_secret() -> None:
    def write(model: torch.nn.Linear) -> None:
        with pytest.raises(RuntimeError):
            torch.utils.swap_tensors(model.weight, torch.nn.Parameter(torch.zeros(1, 3, dtype=torch.int8), False))

    assert "geometry" in [blind.code for blind in record(stepped(write)).blind]


def test_a_model_that_was_compiled_before_the_run_is_seen_in_eager() -> None:
    model = torch.nn.Linear(3, 1)
    compiled = torch.compile(lambda x: model(x).sum(), backend="aot_eager")
    compiled(torch.randn(2, 3)).backward()
    model.zero_grad()
    tape = record(lambda rec: compiled(torch.randn(2, 3)).backward())
    assert [e.op for e in tape.entries()] == ["aten.addmm.default", "aten.sum.default", "aten.mm.default"]
    assert tape.blind == []


def test_an_operator_of_the_compilers_own_is_lost_sight() -> None:
    def step(rec: Recorder) -> None:
        weight = torch.nn.Parameter(torch.ones(3))
        pick = torch.ones((), dtype=torch.bool)
        torch.cond(pick, lambda w: w.sin(), lambda w: w.cos(), (weight * 2,))

    assert "higher-order" in [blind.code for blind in record(step).blind]


@pytest.fixture
def group(tmp_path: Any) -> Any:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


def test_functional_collectives_are_waited_for(group: Any) -> None:
    def step(rec: Recorder) -> None:
        weight = torch.nn.Parameter(torch.ones(3))
        total = functional.all_reduce((weight * 2).detach(), "sum", group)
        rec.event("end", {"total": total + 1})

    tape = record(step)
    assert tape.blind == []
    assert [e.op for e in tape.entries()][-1] == "aten.add.Tensor"
    assert isinstance(next(tape.events("end")).refs["total"], Ref)


@pytest.mark.parametrize("how", ["SUM", "MAX"])
def test_the_reduction_is_named(group: Any, how: str) -> None:
    def step(rec: Recorder) -> None:
        doubled = (torch.nn.Parameter(torch.ones(3)) * 2).detach()
        torch.distributed.all_reduce(doubled, getattr(torch.distributed.ReduceOp, how))

    assert list(record(step).entries())[-1].args[2] == f"reduce by {how}"


def test_the_old_content_of_an_out_argument_is_not_read() -> None:
    def step(rec: Recorder) -> None:
        given = torch.full((4, 3), float("nan"))
        torch.mul(torch.nn.Parameter(torch.ones(3)).detach(), 2.0, out=given[1])
        weight = torch.nn.Parameter(torch.ones(3))
        with torch.no_grad():
            torch.mul(weight, 2.0, out=given[2])

    entry = list(record(step).entries())[-1]
    assert (entry.op, dict(entry.kwargs)) == ("aten.mul.out", {})


def test_the_recorder_leaves_torch_as_it_was() -> None:
    threads, fused = torch.get_num_threads(), torch._C._get_mkldnn_enabled()
    torch.set_num_threads(2)
    record(lambda rec: torch.nn.LSTM(3, 2)(torch.randn(4, 1, 3))[0].sum().backward())
    assert (torch.get_num_threads(), torch._C._get_mkldnn_enabled()) == (2, fused)
    torch.set_num_threads(threads)


def test_a_recurrent_layer_is_recorded_operator_by_operator() -> None:
    tape = record(lambda rec: torch.nn.LSTM(3, 2)(torch.randn(4, 1, 3))[0].sum().backward())
    assert not any("mkldnn" in e.op for e in tape.entries())
    assert tape.notes == ["recurrent layers were recorded without MKL-DNN"]


def test_patches_survive_an_operator_that_is_decomposed() -> None:
    def step(rec: Recorder) -> None:
        model = torch.nn.Linear(3, 1)
        with torch.inference_mode():
            model(torch.randn(2, 3))
        model(torch.randn(2, 3)).sum().backward()
        assert model.weight.grad is not None
        model.weight.grad.numpy()

    assert [".numpy() of a tracked tensor" in note for note in record(step).notes] == [True]
