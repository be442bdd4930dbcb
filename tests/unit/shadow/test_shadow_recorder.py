"""The recorder: a tape of a real run, run again with torch's own kernels, gives the run's own numbers, bit for bit.

The tape is also run with the leaves of a run of another seed, and must then give the numbers of that one: a value that
depends on a leaf and entered the tape as a constant would not change. Labels are the same for every seed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gradproof.shadow.ops import schema as schemas
from gradproof.shadow.record.recorder import Recorder
from gradproof.shadow.tape import Const, Entry, Event, Init, Leaf, Ref, Tape

pytestmark = pytest.mark.usefixtures("one_thread")

NAMED = (torch.dtype, torch.layout, torch.memory_format)


class Replay:
    """Runs a tape with torch's kernels, from the leaves of another, whose events it shall meet."""

    def __init__(self) -> None:
        self.memory: dict[int, torch.Tensor] = {}
        self.compared = 0

    def run(self, tape: Tape, other: Tape) -> int:
        leaves = [leaf.value for leaf in other.leaves()]
        events = list(other.events())
        assert len(leaves) == len(list(tape.leaves()))
        with torch.no_grad():
            for item in tape.items:
                if isinstance(item, Entry):
                    self.operate(item)
                elif isinstance(item, Leaf):
                    self.at(item.ref).copy_(torch.from_numpy(leaves.pop(0)))
                elif isinstance(item, Init):
                    self.memory[item.storage] = self.tensor(item.content).reshape(-1)
                elif isinstance(item, Event):
                    self.observe(item, events.pop(0))
        return self.compared

    def at(self, ref: Ref) -> torch.Tensor:
        if ref.storage not in self.memory:
            self.memory[ref.storage] = torch.zeros(ref.size, dtype=getattr(torch, ref.dtype))
        return self.memory[ref.storage].as_strided(ref.shape, ref.stride, ref.offset)

    def tensor(self, given: Const) -> torch.Tensor:
        return torch.from_numpy(given.value.copy()).to(getattr(torch, given.dtype))

    def value(self, arg: Any) -> Any:
        if isinstance(arg, Ref):
            return self.at(arg)
        if isinstance(arg, Const):
            return self.tensor(arg)
        if isinstance(arg, list):
            return [self.value(a) for a in arg]
        if isinstance(arg, str) and isinstance(found := getattr(torch, arg.removeprefix("torch."), None), NAMED):
            return found
        return arg

    def operate(self, entry: Entry) -> None:
        space, name, overload = entry.op.split(".")
        func = getattr(getattr(getattr(torch.ops, space), name), overload)
        args = [self.value(a) for a in entry.args]
        kwargs = {k: self.value(a) for k, a in entry.kwargs.items()}
        out = func(*args, **kwargs)
        spec = schemas.spec_of(func)
        assert spec is not None
        for ref, at in zip(entry.outs, spec.written, strict=False):
            self.write(ref, spec.argument(at, args, kwargs))
        results = out if isinstance(out, list | tuple) and spec.returns > 1 else [out]
        for ref, at in zip(entry.outs[len(spec.written) :], spec.fresh, strict=True):
            self.write(ref, results[at])

    def write(self, ref: Any, result: Any) -> None:
        if isinstance(ref, list):
            for r, x in zip(ref, result, strict=True):
                self.write(r, x)
        elif isinstance(ref, Ref):
            self.at(ref).copy_(result)

    def observe(self, event: Event, other: Event) -> None:
        for name, ref in event.refs.items():
            if isinstance(ref, Ref):
                found = self.at(ref).to(torch.float64 if ref.floating else torch.int64).numpy()
                np.testing.assert_array_equal(found, other.values[name], err_msg=f"{event.kind} {name}", strict=False)
                self.compared += 1


def net(width: int = 4) -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.ReLU(), torch.nn.Linear(width, 3))


def batches(count: int = 2) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(2, 3), drawn(3, 2)) for _ in range(count)]


def drawn(high: int, *shape: int) -> torch.Tensor:
    """Whole numbers that do not depend on the seed."""
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(3))


def report(rec: Recorder, model: torch.nn.Module) -> None:
    named = dict(model.named_parameters())
    grads = {f"grad/{k}": p.grad for k, p in named.items() if p.grad is not None}
    rec.event("step", {**{f"param/{k}": p for k, p in named.items()}, **grads})


Loop = Callable[[Recorder], None]


def train(rec: Recorder, make: Callable[[Any], torch.optim.Optimizer], windows: int = 2) -> None:
    model = net()
    optimizer = make(model.parameters())
    for _ in range(windows):
        for x, y in batches():
            (F.cross_entropy(model(x), y) / 2).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        report(rec, model)
        optimizer.zero_grad()


def sgd(rec: Recorder) -> None:
    train(rec, lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9, weight_decay=0.1))


def adamw_single(rec: Recorder) -> None:
    train(rec, lambda ps: torch.optim.AdamW(ps, 0.1, foreach=False))


def adamw_foreach(rec: Recorder) -> None:
    train(rec, lambda ps: torch.optim.AdamW(ps, 0.1, foreach=True))


def adamw_fused(rec: Recorder) -> None:
    train(rec, lambda ps: torch.optim.AdamW(ps, 0.1, fused=True))


def adam_amsgrad(rec: Recorder) -> None:
    train(rec, lambda ps: torch.optim.Adam(ps, 0.1, amsgrad=True, foreach=True))


def scaler(rec: Recorder) -> None:
    model, scale = net(), torch.amp.GradScaler("cpu", init_scale=1024)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        for x, y in batches():
            scale.scale(F.cross_entropy(model(x), y) / 2).backward()
        scale.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scale.step(optimizer)
        scale.update()
        report(rec, model)
        optimizer.zero_grad()


def autocast(rec: Recorder) -> None:
    model = net()
    for x, y in batches():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
    report(rec, model)


def half(rec: Recorder) -> None:
    model = net().to(torch.bfloat16)
    for x, y in batches():
        F.cross_entropy(model(x.to(torch.bfloat16)).float(), y).backward()
    report(rec, model)


def checkpointed(reentrant: bool) -> Loop:
    def loop(rec: Recorder) -> None:
        model = net()
        for x, y in batches():
            x.requires_grad_(reentrant)
            F.cross_entropy(checkpoint(model, x, use_reentrant=reentrant), y).backward()
        report(rec, model)

    return loop


def functional(rec: Recorder) -> None:
    model = net()
    params = {k: p.detach() for k, p in model.named_parameters()}

    def loss(ps: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(torch.func.functional_call(model, ps, (x,)), y)

    total: dict[str, torch.Tensor] = {}
    for x, y in batches():
        for name, grad in torch.func.grad(loss)(params, x, y).items():
            total[name] = total[name] + grad if name in total else grad
    rec.event("step", total)


def tied(rec: Recorder) -> None:
    table, head = torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False)
    head.weight = table.weight
    model = torch.nn.Sequential(table, head)
    for _ in range(2):
        ids = drawn(5, 2, 4)
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    report(rec, model)


def view_writes(rec: Recorder) -> None:
    model = net()
    kept = torch.empty(4, 3)
    total = torch.full((5,), 2.0)
    for i, (x, y) in enumerate(batches()):
        out = model(x)
        kept[2 * i : 2 * i + 2] = out.detach()
        total[i + 1] += F.cross_entropy(out, y).detach()
    rec.event("loss", {"kept": kept, "total": total, "part": total[1:3]})


def averaged(rec: Recorder) -> None:
    model = net()
    ema = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in batches():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        with torch.no_grad():
            for a, p in zip(ema.parameters(), model.parameters(), strict=True):
                a.mul_(0.9).add_(p, alpha=0.1)
        report(rec, ema)


def penalty(rec: Recorder) -> None:
    model = net()
    for x, y in batches():
        loss = F.cross_entropy(model(x), y)
        grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        again = torch.autograd.grad(loss + sum(g.square().sum() for g in grads), list(model.parameters()))
        for parameter, grad in zip(model.parameters(), again, strict=True):
            parameter.grad = grad if parameter.grad is None else parameter.grad + grad
    report(rec, model)


def batch_norm(rec: Recorder) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    for x, y in batches():
        F.cross_entropy(model(x), y).backward()
    report(rec, model)
    rec.event("buffers", dict(model.named_buffers()))
    model.eval()
    rec.event("loss", {"out": model(torch.randn(2, 3))})


def integers(rec: Recorder) -> None:
    model = net()
    x, y = batches()[0]
    out = model(x)
    right = (out.argmax(1) == y).sum()
    best = out.max(1)
    rec.event("loss", {"right": right, "best": best.values, "at": best.indices, "mask": (out > 0).long()})
    assert (out > 0).any()


LOOPS: dict[str, Loop] = {
    f.__name__: f
    for f in (
        sgd, adamw_single, adamw_foreach, adamw_fused, adam_amsgrad, scaler, autocast, half, functional, tied,
        view_writes, averaged, penalty, batch_norm, integers,
    )
} | {"reentrant": checkpointed(True), "checkpoint": checkpointed(False)}  # fmt: skip


def record(loop: Loop, seed: int = 0) -> Tape:
    torch.manual_seed(seed)
    with Recorder() as rec:
        loop(rec)
    return rec.tape


@pytest.mark.parametrize("name", LOOPS)
def test_a_replay_of_the_tape_gives_the_numbers(name: str) -> None:
    tape = record(LOOPS[name])
    assert Replay().run(tape, tape) > 1
    assert Replay().run(tape, record(LOOPS[name], 1)) > 1
    assert tape.blind == []


def no_init(self: Any, value: torch.Tensor) -> None:
    self.recorder.storages.track(value)


@pytest.mark.parametrize(
    ("name", "where", "instead"),
    [
        ("view_writes", "record.recorder.Outs._begin", no_init),
        ("batch_norm", "ops.schema.SILENT_WRITES", {}),
        ("adamw_fused", "ops.schema.Spec.argument", lambda self, at, args, kwargs: args[0]),
        ("averaged", "record.storages.Storages.track", lambda self, tensor: self.meet(tensor)),
    ],
)
def test_a_broken_recorder_is_noticed(name: str, where: str, instead: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    schemas.spec_of.cache_clear()
    monkeypatch.setattr(f"gradproof.shadow.{where}", instead)
    with pytest.raises(AssertionError):
        test_a_replay_of_the_tape_gives_the_numbers(name)
    schemas.spec_of.cache_clear()
