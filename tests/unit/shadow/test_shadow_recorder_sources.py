"""Where leaves come from, and what happens when sight is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from gradproof.shadow.record.recorder import Recorder
from gradproof.shadow.record.storages import fingerprint
from gradproof.shadow.tape import Tape

Feed = Callable[[int, int], Iterator[Any]]


def once(count: int, size: int) -> Iterator[Any]:
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    for i in range(count):
        yield x[i * size : (i + 1) * size], y[i * size : (i + 1) * size]


def loader(count: int, size: int) -> Iterator[Any]:
    yield from DataLoader(TensorDataset(torch.randn(8, 3), torch.randn(8, 1)), batch_size=size)


def fresh(count: int, size: int) -> Iterator[Any]:
    for _ in range(count):
        yield torch.randn(size, 3), torch.rand(size, 1)


def normal(count: int, size: int) -> Iterator[Any]:
    for _ in range(count):
        x = torch.randn(size, 3)
        x = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
        yield x, torch.empty(size, 1).normal_().mul_(2)


class Items(Dataset[Any]):
    """One sample at a time, through NumPy, or as Python numbers."""

    def __init__(self, kind: str) -> None:
        self.x = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
        self.kind = kind

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> Any:
        if self.kind == "numpy":
            return torch.from_numpy(self.x[i]), torch.tensor([float(self.x[i].sum())])
        if self.kind == "scalar":
            return torch.from_numpy(self.x[i]), torch.tensor(float(self.x[i].sum()))
        if self.kind == "plain":
            return self.x[i], float(self.x[i].sum())
        return {"x": self.x[i].tolist(), "y": [float(self.x[i, 0])]}


def items(kind: str) -> Feed:
    def feed(count: int, size: int) -> Iterator[Any]:
        for x, y in DataLoader(Items(kind), batch_size=size):
            yield x, y.reshape(-1, 1).float()

    return feed


def by_key(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return {key: torch.tensor([s[key] for s in samples]) for key in samples[0]}


def keyed(count: int, size: int) -> Iterator[Any]:
    for batch in DataLoader(Items("dict"), batch_size=size, collate_fn=by_key):
        yield batch["x"], batch["y"]


def ahead(count: int, size: int) -> Iterator[Any]:
    found = iter(DataLoader(Items("plain"), batch_size=size))
    now = next(found)
    while now is not None:
        x, y = now
        now = next(found, None)
        yield x, y.reshape(-1, 1).float()


FEEDS: dict[str, Feed] = {
    "made once": once, "TensorDataset": loader, "made for each micro-batch": fresh, "normalised": normal,
    "from_numpy": items("numpy"), "0-dim": items("scalar"), "collated floats": items("plain"), "keys": keyed,
    "fetched ahead": ahead,
}  # fmt: skip


def params(tape: Tape) -> list[str]:
    return [leaf.source.name for leaf in tape.leaves() if leaf.source.kind == "param"]


def run(feed: Feed, count: int, size: int) -> Tape:
    torch.manual_seed(0)
    with Recorder() as rec:
        model = torch.nn.Linear(3, 1)
        for x, y in feed(count, size):
            (F.mse_loss(model(x), y) / count).backward()
        rec.event("step", {"weight": model.weight.grad, "bias": model.bias.grad})
    return rec.tape


@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize("name", FEEDS)
def test_every_number_of_the_data_is_of_one_leaf(name: str, size: int) -> None:
    tape = run(FEEDS[name], 8 // size, size)
    assert params(tape) == ["weight", "bias"]
    assert tape.blind == []
    assert sum(leaf.value.size for leaf in tape.leaves() if leaf.source.kind == "data") == 32


def test_a_model_made_before_the_run_has_its_names() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    raw = torch.randn(3, requires_grad=True)
    with Recorder() as rec:
        (model(torch.randn(4, 3)) * raw).sum().backward()
    assert sorted(params(rec.tape)) == ["0.bias", "0.weight", "1.bias", "1.weight", "param4"]


def test_initialisation_is_no_data() -> None:
    with Recorder() as rec:
        model = torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        for p in model.parameters():
            torch.nn.init.trunc_normal_(p)
            p.data.normal_(0, 0.1)
        model(torch.randn(2, 3, 4)).sum().backward()
    assert [leaf.source.kind for leaf in rec.tape.leaves()].count("data") == 1


def test_a_parameter_from_arithmetic_is_a_leaf() -> None:
    with Recorder() as rec:
        weight = torch.nn.Parameter(torch.randn(3, 1) * 0.1)
        (torch.randn(2, 3) @ weight).sum().backward()
    assert params(rec.tape) == ["param0"]


def test_a_copy_of_a_trained_parameter_is_no_leaf() -> None:
    with Recorder() as rec:
        model = torch.nn.Linear(3, 1)
        model(torch.randn(2, 3)).sum().backward()
        model.weight = torch.nn.Parameter(model.weight.detach() * 2)
        model(torch.randn(2, 3)).sum().backward()
    assert params(rec.tape) == ["weight", "bias"]


def small(rec: Recorder) -> tuple[torch.nn.Linear, torch.Tensor]:
    model = torch.nn.Linear(3, 2)
    return model, model(torch.randn(2, 3))


def numpy_gradient(rec: Recorder) -> None:
    model, out = small(rec)
    out.sum().backward()
    assert model.weight.grad is not None
    model.weight.grad.numpy()[:] *= 0.5
    rec.event("step", {})


def numpy_gradient_detached(rec: Recorder) -> None:
    model, out = small(rec)
    out.sum().backward()
    assert model.weight.grad is not None
    np.asarray(model.weight.grad.detach())[:] *= 0.5
    torch.optim.SGD(model.parameters(), 0.1).step()


def numpy_activation(rec: Recorder) -> None:
    _, out = small(rec)
    out.detach().numpy()[0, 0] = 1
    out.sum().backward()


@pytest.mark.parametrize(
    ("loop", "named"),
    [(numpy_gradient, "weight.grad"), (numpy_gradient_detached, "weight.grad"), (numpy_activation, "a tensor")],
)
def test_an_unseen_write_is_seen(loop: Callable[[Recorder], None], named: str) -> None:
    with Recorder() as rec:
        loop(rec)
    assert [b.code for b in rec.tape.blind] == ["unseen-write"]
    assert rec.tape.blind[0].what.startswith(named)
    assert rec.tape.blind[0].place.file == __file__


def test_without_comparison_the_unseen_write_would_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradproof.shadow.record.recorder.Recorder.compare", lambda *given: None)
    with Recorder() as rec:
        numpy_gradient(rec)
    assert rec.tape.blind == []


def blind(work: Callable[[torch.Tensor], Any]) -> list[str]:
    with Recorder() as rec:
        work(torch.nn.Linear(3, 3)(torch.randn(2, 3)))
    return [b.code for b in rec.tape.blind]


@pytest.mark.parametrize(
    ("work", "codes"),
    [
        (lambda t: F.dropout(t, 0.5), []),
        (lambda t: t * torch.bernoulli(torch.full((2, 3), 0.5)), []),
        (lambda t: F.scaled_dot_product_attention(t[None], t[None], t[None]), []),
        (lambda t: t + torch.randn_like(t), []),
        (lambda t: t + torch.full((2, 3), -np.inf), []),
        (lambda t: t + torch.from_numpy(np.full((2, 3), np.nan)), ["nan-data"]),
        (lambda t: t + torch.from_numpy(t.detach().numpy().copy()), ["unseen-copy"]),
        (lambda t: t.detach().view(torch.int32) + 1, ["reinterpreted"]),
        (lambda t: t.detach().clone().resize_(1), ["geometry"]),
        (lambda t: t.to_sparse() * 2, ["layout"]),
    ],
)
def test_lost_sight(work: Callable[[torch.Tensor], Any], codes: list[str]) -> None:
    assert sorted(set(blind(work))) == codes


def test_nothing_stays_patched() -> None:
    before = [torch.utils.swap_tensors, vars(torch.autograd)["_engine_run_backward"]]
    with Recorder():
        pass
    after = [torch.utils.swap_tensors, vars(torch.autograd)["_engine_run_backward"]]
    assert all(a is b for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize("count", [3, 5000, 300_001])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_fingerprint_sees_every_kind_of_change(count: int, dtype: torch.dtype) -> None:
    tensor = torch.randn(count, dtype=dtype)
    before = fingerprint(tensor.untyped_storage())
    assert fingerprint(tensor.clone().untyped_storage()) == before
    changes: list[Callable[[torch.Tensor], Any]] = [
        lambda t: t.neg_(), lambda t: t[:2].neg_(), lambda t: t.mul_(2), lambda t: t[-1].add_(1),
        lambda t: t.copy_(t.flip(0)), lambda t: t[:2].copy_(t[:2].flip(0)),
    ]  # fmt: skip
    for change in changes:
        other = tensor.clone()
        change(other)
        assert fingerprint(other.untyped_storage()) != before


def test_a_module_in_half_precision_has_half_precision_leaves() -> None:
    with Recorder() as rec:
        torch.nn.Linear(3, 1).to(torch.bfloat16)(torch.randn(2, 3, dtype=torch.bfloat16))
    assert [leaf.ref.dtype for leaf in rec.tape.leaves()] == ["bfloat16"] * 3


def test_a_compiled_step_runs_in_eager() -> None:
    with Recorder() as rec:
        model = torch.nn.Linear(3, 1)
        torch.compile(lambda x: model(x).sum(), backend="eager")(torch.randn(2, 3)).backward()
        rec.event("step", {"grad": model.weight.grad})
    assert params(rec.tape) == ["weight", "bias"]
    assert any(e.op == "aten.addmm.default" for e in rec.tape.entries())


def test_inference_mode_is_decomposed() -> None:
    with Recorder() as rec, torch.inference_mode():
        torch.nn.Linear(3, 1)(torch.randn(2, 3))
    assert [e.op for e in rec.tape.entries()] == ["aten.addmm.default"]
