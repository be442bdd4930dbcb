"""Where leaves come from, how two cuts of the same samples name them, and what happens when sight is lost."""

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
from gradproof.shadow.tape import Leaf, Ref, Source, Tape

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


def run(feed: Feed, count: int, size: int, inject: Any = None) -> Tape:
    torch.manual_seed(0)
    with Recorder(inject) as rec:
        model = torch.nn.Linear(3, 1)
        for x, y in feed(count, size):
            (F.mse_loss(model(x), y) / count).backward()
        rec.event("step", {"weight": model.weight.grad, "bias": model.bias.grad})
    return rec.tape


def streams(tape: Tape) -> dict[str, int]:
    """Elements of each site; every leaf begins where the one before it ended."""
    found: dict[str, int] = {}
    for leaf in tape.leaves():
        if leaf.source.kind == "data":
            assert leaf.source.first == found.get(leaf.source.name, 0)
            found[leaf.source.name] = leaf.source.first + leaf.value.size
    return found


@pytest.mark.parametrize("name", FEEDS)
def test_two_cuts_of_the_same_samples_have_the_same_streams(name: str) -> None:
    cuts = [run(FEEDS[name], 8 // size, size) for size in (1, 2, 4, 8)]
    assert [tape.params for tape in cuts] == [["weight", "bias"]] * 4
    assert all(tape.blind == [] for tape in cuts)
    assert [streams(tape) for tape in cuts[1:]] == [streams(cuts[0])] * 3
    assert sum(streams(cuts[0]).values()) == 32


class Stream:
    """Injected numbers: the same for the same place of the same stream."""

    def __init__(self) -> None:
        self.asked: list[Source] = []

    def __call__(self, source: Source, shape: tuple[int, ...], dtype: str, natural: Any) -> Any:
        self.asked.append(source)
        count = int(np.prod(shape))
        return np.sin(np.arange(source.first, source.first + count) + len(source.name)).reshape(shape)


@pytest.mark.parametrize("name", FEEDS)
def test_injected_numbers_reach_the_computation(name: str) -> None:
    cuts = [run(FEEDS[name], 8 // size, size, Stream()) for size in (2, 8)]
    grads = [next(tape.events("step")).values for tape in cuts]
    for key in grads[0]:
        np.testing.assert_allclose(grads[0][key], grads[1][key], atol=1e-5)
    for leaf in cuts[0].leaves():
        wanted = Stream()(leaf.source, leaf.ref.shape, "", None)
        np.testing.assert_array_equal(leaf.value, wanted.astype(leaf.ref.dtype).astype(np.float64))


def test_the_users_own_data_is_put_back() -> None:
    x = torch.randn(4, 3)
    before = x.clone()
    with Recorder(Stream()) as rec:
        seen = torch.nn.Linear(3, 1)(x)
    assert torch.equal(x, before)
    assert not np.array_equal(next(leaf for leaf in rec.tape.leaves() if leaf.source.kind == "data").value, before)
    assert seen.shape == (4, 1)


def test_integer_data_is_kept_by_site() -> None:
    with Recorder() as rec:
        for _ in range(2):
            torch.nn.Embedding(5, 3)(torch.randint(0, 5, (2, 4)))
            F.one_hot(torch.tensor([1, 2]))
    assert sorted(len(found) for found in rec.tape.integers.values()) == [2, 2]


def test_a_model_made_before_the_run_has_its_names() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    raw = torch.randn(3, requires_grad=True)
    with Recorder() as rec:
        (model(torch.randn(4, 3)) * raw).sum().backward()
        assert rec.name(model[0].weight) == "0.weight"
    assert sorted(rec.tape.params) == ["0.bias", "0.weight", "1.bias", "1.weight", "param4"]


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
    assert rec.tape.params == ["param0"]


def test_a_copy_of_a_trained_parameter_is_no_leaf() -> None:
    with Recorder() as rec:
        model = torch.nn.Linear(3, 1)
        model(torch.randn(2, 3)).sum().backward()
        model.weight = torch.nn.Parameter(model.weight.detach() * 2)
        model(torch.randn(2, 3)).sum().backward()
    assert rec.tape.params == ["weight", "bias"]


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
    assert any("numpy" in note or "__array__" in note for note in rec.tape.notes)


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
        (lambda t: F.dropout(t, 0.5), ["random-forward"]),
        (lambda t: F.dropout(t, 0.0), []),
        (lambda t: F.dropout(t, 0.5, training=False), []),
        (lambda t: t * torch.bernoulli(torch.full((2, 3), 0.5)), ["random-forward"]),
        (lambda t: F.scaled_dot_product_attention(t[None], t[None], t[None], dropout_p=0.5), ["random-forward"]),
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


def test_an_item_is_an_event() -> None:
    with Recorder() as rec:
        _, out = small(rec)
        loss = out.sum()
        value = loss.item()
        assert bool(loss > 0) == (value > 0)
        assert not torch.equal(out, out + 1)
    found = list(rec.tape.events("item"))
    assert [e.detail["op"] for e in found] == [
        "aten._local_scalar_dense.default", "aten._local_scalar_dense.default", "aten.equal.default",
    ]  # fmt: skip
    assert found[0].values["value"] == pytest.approx(value)
    assert found[0].place.file == __file__


def test_micro_batches_and_the_backward_flag() -> None:
    with Recorder() as rec:
        model = torch.nn.Linear(3, 1)
        for _ in range(3):
            model(torch.randn(2, 3)).sum().backward()
    assert rec.micro == 3
    assert {e.micro for e in rec.tape.entries()} == {0, 1, 2}
    assert {e.op.split(".")[1] for e in rec.tape.entries() if e.backward} >= {"mm", "add_"}
    assert len({e.place.line for e in rec.tape.entries()}) == 1


def test_nothing_stays_patched() -> None:
    before = [torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.data_ptr, torch.autograd._engine_run_backward]
    with Recorder():
        pass
    after = [torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.data_ptr, torch.autograd._engine_run_backward]
    assert all(a is b for a, b in zip(after, before, strict=True))


def test_a_leaf_holds_what_is_in_its_dtype() -> None:
    with Recorder(lambda source, shape, dtype, natural: np.full(shape, 0.1)) as rec:
        torch.nn.Linear(3, 1).to(torch.bfloat16)(torch.randn(2, 3, dtype=torch.bfloat16))
    values = {float(v) for leaf in rec.tape.leaves() if isinstance(leaf, Leaf) for v in leaf.value.ravel()}
    assert values == {float(torch.tensor(0.1, dtype=torch.bfloat16))}


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


def test_the_gradients_of_data_parallelism_are_recorded(tmp_path: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with Recorder() as rec:
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
            with model.no_sync():
                model(torch.randn(2, 3)).sum().backward()
            model(torch.randn(2, 3)).sum().backward()
            event = rec.event("step", {"grad": model.module.weight.grad})
    finally:
        torch.distributed.destroy_process_group()
    reduced = [e for e in rec.tape.entries() if e.op == "c10d.allreduce_.default"]
    assert [(len(e.outs), e.micro, e.backward) for e in reduced] == [(1, 1, True)]
    assert reduced[0].args[1] == "group of 1"
    assert isinstance(event.refs["grad"], Ref)
    assert rec.tape.params == ["weight", "bias"]
    assert rec.tape.blind == []


def test_a_module_in_half_precision_has_half_precision_leaves() -> None:
    with Recorder() as rec:
        torch.nn.Linear(3, 1).to(torch.bfloat16)(torch.randn(2, 3, dtype=torch.bfloat16))
    assert [leaf.ref.dtype for leaf in rec.tape.leaves()] == ["bfloat16"] * 3


def test_a_compiled_step_runs_in_eager() -> None:
    with Recorder() as rec:
        model = torch.nn.Linear(3, 1)
        torch.compile(lambda x: model(x).sum(), backend="eager")(torch.randn(2, 3)).backward()
        rec.event("step", {"grad": model.weight.grad})
    assert rec.tape.params == ["weight", "bias"]
    assert any(e.op == "aten.addmm.default" for e in rec.tape.entries())


def test_inference_mode_is_decomposed() -> None:
    with Recorder() as rec, torch.inference_mode():
        torch.nn.Linear(3, 1)(torch.randn(2, 3))
    assert [e.op for e in rec.tape.entries()] == ["aten.addmm.default"]


def test_a_mapped_file_is_never_written(tmp_path: Any) -> None:
    np.arange(6, dtype=np.float32).reshape(2, 3).tofile(tmp_path / "data")
    data = np.memmap(tmp_path / "data", dtype=np.float32, mode="r+", shape=(2, 3))
    with Recorder(Stream()) as rec:
        torch.nn.Linear(3, 1)(torch.from_numpy(data))
    assert np.array_equal(np.fromfile(tmp_path / "data", dtype=np.float32), np.arange(6))
    assert "mapped file" in rec.tape.notes[0]


MOVED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], list[int] | None]] = {
    "views": (lambda t: t[1:, ::2], [3, 5]),
    "one element": (lambda t: t[1, 1], [4]),
    "copies": (lambda t: t[:1].clone().to(torch.int32), [0, 1, 2]),
    "stacked": (lambda t: torch.stack([t[1, :2], t[0, :2]]), [3, 4, 0, 1]),
    "beside another": (lambda t: torch.cat([t[0, :1], torch.zeros(1, dtype=torch.int64)]), [0, -1]),
    "computed": (lambda t: t[0] + 1, None),
    "written": (lambda t: t.clone().fill_(3), None),
}


@pytest.mark.parametrize("name", MOVED)
def test_integers_are_known_by_their_place_in_the_data(name: str) -> None:
    move, expected = MOVED[name]
    with Recorder() as rec:
        made = move(torch.randint(0, 9, (2, 3)))
        found = rec.leaves.origins.const(made).origin
    assert (None if found is None else found.ravel().tolist()) == expected
    assert [(begin, first) for begin, _, first in rec.tape.origins] == [(0, 0)]


def test_integers_that_numpy_wrote_are_known_no_more() -> None:
    with Recorder() as rec:
        made = torch.randint(0, 9, (2, 3))
        made.numpy()[:] = 7
        assert rec.leaves.origins.of(made) is None
