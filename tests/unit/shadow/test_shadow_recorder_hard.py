"""Steps that are hard to follow: each is followed, or the recorder says that it was not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from gradproof.shadow.record.recorder import Recorder
from gradproof.shadow.tape import Leaf, Ref, Tape

Step = Callable[[Recorder], Any]


def record(step: Step) -> Tape:
    torch.manual_seed(0)
    with Recorder() as rec:
        step(rec)
    return rec.tape


def params(tape: Tape) -> list[str]:
    return [leaf.source.name for leaf in tape.leaves() if leaf.source.kind == "param"]


def data(tape: Tape) -> list[Leaf]:
    return [leaf for leaf in tape.leaves() if leaf.source.kind == "data"]


def workers(rec: Recorder) -> None:
    model = torch.nn.Linear(3, 1)
    rows = TensorDataset(torch.arange(24.0).reshape(8, 3), torch.arange(8.0).reshape(8, 1))
    for x, y in DataLoader(rows, batch_size=2, num_workers=2, multiprocessing_context="fork"):
        (model(x) - y).square().mean().backward()


def test_batches_of_worker_processes_are_data() -> None:
    found = data(record(workers))
    assert len(found) == 8
    rows = np.concatenate([leaf.value.ravel() for leaf in found[::2]])
    assert np.array_equal(rows, np.arange(24.0))


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
    assert params(tape) == ["weight", "bias"]
    end = next(tape.events("end")).refs["param"]
    assert isinstance(end, Ref)
    made = [e for e in tape.entries() if any(w.storage == end.storage for w in e.writes)]
    assert [e.op for e in made] == ["aten.sub.Tensor"]
    assert tape.blind == []


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
