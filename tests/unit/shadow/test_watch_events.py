"""The events of a watched run: what happens is seen once, at its line, and torch is left exactly as it was."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils.checkpoint import checkpoint

from gradproof.core.outcome import Outcome
from gradproof.shadow.judge.by_events import summed
from gradproof.shadow.process.watch import ScriptWatch
from gradproof.shadow.tape import run_events
from gradproof.shadow.tape.calls import CLIP, PASS, SCHEDULE, STEP, UNSCALE, ZERO, Patches, steps
from gradproof.shadow.tape.monitor import Monitor
from gradproof.shadow.tape.run_events import CHANGED, REWRITTEN, RankSums, SeenEvent

FIRST_OPTIMIZER = """
import torch
from gradproof.shadow.judge.by_events import summed
from gradproof.shadow.process.watch import ScriptWatch

with ScriptWatch():
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
assert "torch._dynamo" in __import__("sys").modules
assert torch.Tensor.grad.__get__ in torch.overrides.get_default_nowrap_functions()
"""
Act = Callable[[nn.Module, torch.optim.Optimizer], Any]
LOCATION: Any = SimpleNamespace(file="train.py", line=3)


def seen(act: Act, before: bool = True) -> list[SeenEvent]:
    """The events of a run in which something is done after one backward pass, if any."""
    with Monitor() as monitor:
        monitor.run.recorded = set(range(100))
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        if before:
            model(torch.ones(1, 3)).sum().backward()
        act(model, optimizer)
    return [event for own in monitor.run.kept() for event in own]


def kinds(act: Act, before: bool = True) -> list[str]:
    """Their kinds."""
    return [event.kind for event in seen(act, before)][before:]


def surface() -> dict[str, Any]:
    """Everything that a watch replaces."""
    return {
        "grad": vars(torch.Tensor).get("grad"),
        "backward": torch.autograd.backward,
        "autograd.grad": torch.autograd.grad,
        "clip": torch.nn.utils.clip_grad_norm_,
        "own": clip_grad_norm_,
        "zero": torch.optim.Optimizer.zero_grad,
        "made": torch.optim.Optimizer.__init__,
        "module zero": nn.Module.zero_grad,
        "schedule": torch.optim.lr_scheduler.LRScheduler.step,
        "scheduled": torch.optim.lr_scheduler.LRScheduler.__init__,
        "unscale": torch.amp.GradScaler.unscale_,
        "next": torch.utils.data.dataloader._BaseDataLoaderIter.__next__,
        "reduce": torch.distributed.all_reduce,
        "ranks": torch.nn.parallel.DistributedDataParallel.forward,
        "pre": len(_global_optimizer_pre_hooks),
        "post": len(_global_optimizer_post_hooks),
        "forward": len(nn.modules.module._global_forward_pre_hooks),
    }


@pytest.mark.parametrize("raises", [False, True])
def test_everything_is_put_back(raises: bool) -> None:
    """Also where the user's code raises, and for a name that was imported from torch before."""
    before = surface()
    with pytest.raises(KeyError) if raises else ScriptWatch():
        if raises:
            with ScriptWatch():
                raise KeyError
        assert surface()["own"] is not before["own"]
        assert surface()["grad"] is not before["grad"]
    assert surface() == before


def test_a_users_own_patch_survives(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was patched before is called, what was patched meanwhile is left alone."""
    calls: list[str] = []
    original = torch.autograd.backward

    def mine(*args: Any, **kwargs: Any) -> None:
        calls.append("mine")
        original(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "backward", mine)
    assert kinds(lambda m, o: m(torch.ones(1, 3)).sum().backward(), before=False) == [PASS]
    assert calls == ["mine"]
    assert torch.autograd.backward is mine


def scaled(model: nn.Module, optimizer: torch.optim.Optimizer, factor: float = 1.0) -> None:
    """A pass and a step under a loss scale."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(model(torch.ones(1, 3)).sum() * factor).backward()
    scaler.step(optimizer)
    scaler.update()


def by_hand(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A learning rate and a weight that are written by hand."""
    optimizer.param_groups[0]["lr"] = 0.2
    model(torch.ones(1, 3)).sum().backward()
    model.weight.data.mul_(0.5)  # type: ignore[operator, union-attr]
    optimizer.step()


ACTS: dict[str, tuple[Act, list[str]]] = {
    "optimizer": (lambda m, o: o.zero_grad(), [ZERO]),
    "module": (lambda m, o: m.zero_grad(), [ZERO]),
    "clip": (lambda m, o: clip_grad_norm_(m.parameters(), 1.0), [CLIP]),
    "step": (lambda m, o: o.step(), [STEP]),
    "step and zero": (lambda m, o: (o.step(), o.zero_grad()), [STEP, ZERO]),
    "a loss scale": (scaled, [PASS, UNSCALE, STEP]),
    "by hand": (by_hand, [PASS, CHANGED, REWRITTEN, STEP]),
    "a gradient that is returned": (
        lambda m, o: torch.autograd.grad(m(torch.ones(1, 3)).sum(), list(m.parameters())),
        [PASS],
    ),
}


@pytest.mark.parametrize("name", ACTS)
def test_an_act_is_seen(name: str) -> None:
    """Once, and as nothing else."""
    act, found = ACTS[name]
    assert kinds(act) == found


def passes(act: Act) -> list[Any]:
    """What is known of the passes that count."""
    return [event.about for event in seen(act, before=False) if event.kind == PASS and event.about is not None]


def test_a_pass_counts_where_it_reaches_weights() -> None:
    """To a penalty's inputs, or to be differentiated, it does not; a gradient that is returned is said to be so."""

    def act(model: nn.Module, _: Any) -> None:
        x, weights = torch.ones(1, 3, requires_grad=True), list(model.parameters())
        torch.autograd.grad(model(x).sum(), x)
        torch.autograd.grad(model(x).sum(), weights, create_graph=True)
        model(x).sum().backward(inputs=[x])
        torch.autograd.grad(model(x).sum(), weights)
        model(x).sum().backward()

    assert [(one.returned, len(one.reached), one.passes) for one in passes(act)] == [
        (True, 2, 1),
        (False, 2, 2),
    ]


def test_checkpointing_is_one_micro_batch() -> None:
    """The reentrant backward pass inside belongs to the outer one."""

    def act(model: nn.Module, _: Any) -> None:
        x = torch.ones(1, 3, requires_grad=True)
        checkpoint(model, x, use_reentrant=True).sum().backward()

    assert kinds(act, before=False) == [PASS]


def test_a_closure_steps_after_its_backward() -> None:
    """The step is an event when it has ended; its passes are known to be its own."""

    def act(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        def closure() -> Tensor:
            loss: Tensor = model(torch.ones(1, 3)).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(closure)  # type: ignore[arg-type]

    found = seen(act, before=False)
    assert [event.kind for event in found] == [PASS, STEP]
    assert found[0].about.inside
    assert len(found[1].about.held) == 2


def test_a_schedule_is_seen_but_not_its_construction() -> None:
    """Also of a class that was defined meanwhile, and once for nested schedulers."""

    def act(_: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        class Own(torch.optim.lr_scheduler.LRScheduler):
            """A scheduler with a step of its own."""

            def step(self, epoch: int | None = None) -> None:
                """Do as the base does."""
                super().step(epoch)

            def get_lr(self) -> list[float | Tensor]:
                """Constant."""
                return [0.1 for _ in self.optimizer.param_groups]

        inner = [torch.optim.lr_scheduler.StepLR(optimizer, 1) for _ in range(2)]
        chained, own = torch.optim.lr_scheduler.ChainedScheduler(inner), Own(optimizer)
        optimizer.step()
        chained.step()
        own.step()

    assert kinds(act) == [STEP, SCHEDULE, SCHEDULE]


class Base(torch.optim.SGD):
    """Its step calls that of its base class, which has hooks of its own once an instance was made."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        return super().step(closure)


def test_a_step_is_one_however_it_is_made_and_one_that_raises_has_ended() -> None:
    """After a closure that raises, each further step is seen, for every reader."""
    weight = nn.Parameter(torch.ones(1))
    plain, own = torch.optim.SGD([weight], 0.1), Base([weight], 0.1)
    noted: list[tuple[str, Any]] = []

    def fails() -> float:
        raise ArithmeticError

    def before(optimizer: Any) -> None:
        noted.append(("before", optimizer))

    with steps(before, lambda optimizer: noted.append(("after", optimizer))) as running:
        own.step()
        with pytest.raises(ArithmeticError):
            plain.step(fails)
        own.step()
        plain.step()
        assert running == []
    assert noted == [
        ("before", own), ("after", own), ("before", plain), ("before", own), ("after", own), ("before", plain),
        ("after", plain),
    ]  # fmt: skip


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_step_is_seen(fused: bool) -> None:
    """An infinite gradient: the optimizer's hooks are silent, or fire while the weights stay."""

    def act(model: nn.Module, _: Any) -> None:
        scaled(model, torch.optim.SGD(model.parameters(), 0.1, fused=fused), float("inf"))

    assert [event.about.skipped for event in seen(act) if event.kind == STEP] == [True]


def test_a_step_that_moves_no_weight_is_seen() -> None:
    """Of a rate of zero none is expected to."""
    for rate, still in ((0.0, False), (1e-30, True), (0.1, False)):

        def act(model: nn.Module, _: Any, rate: float = rate) -> None:
            torch.optim.SGD(model.parameters(), lr=rate).step()

        assert [event.about.still for event in seen(act) if event.kind == STEP] == [still]


def test_the_tables_that_torch_fills_at_the_first_optimizer_hold_its_own_functions() -> None:
    """With torch 2.6 the optimizer itself raised: 'property' object has no attribute '__objclass__'."""
    command = [sys.executable, "-P", "-c", FIRST_OPTIMIZER]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (0, "")


BACKWARD = (torch.autograd.backward,)  # in a tuple, where no patch replaces it


def _wrapped(name: str, module: ModuleType) -> bool:
    """Whether a fresh set of patches replaces a module's global while it stands, and puts it back."""
    patches = Patches()
    patches.function(BACKWARD[0], lambda original, *args: original(*args))
    patches.everywhere()
    found = vars(module)[name] is not BACKWARD[0]
    patches.restore()
    return found and vars(module)[name] is BACKWARD[0]


def test_a_function_is_found_under_every_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that came to a module later."""
    own = ModuleType("someones_module")
    monkeypatch.setitem(sys.modules, own.__name__, own)
    assert _wrapped("backward", torch.autograd)
    monkeypatch.setattr(torch.nn.utils, "later", BACKWARD[0], raising=False)
    assert _wrapped("later", torch.nn.utils)
    vars(own)["same"] = None
    assert _wrapped("backward", torch.autograd)
    vars(own)["same"] = BACKWARD[0]
    assert _wrapped("same", own)


HOLDS, OPAQUE, REFUTED, UNKNOWN = Outcome.HOLDS, Outcome.OPAQUE, Outcome.REFUTED, Outcome.UNKNOWN
SUMMED = [
    ((2,), "pass", HOLDS), ((1,), "pass", OPAQUE), ((), "pass", UNKNOWN), ((2,), "clip", HOLDS),
    ((2,), "write", OPAQUE), ((2,), "local", OPAQUE),
]  # fmt: skip


@pytest.mark.parametrize(("at", "then", "outcome"), SUMMED)
def test_ranks_are_summed_after_the_last_micro_batch(
    at: tuple[int, ...], then: str, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum after an earlier one leaves the rest of the window on its own rank; so does what is written afterwards."""
    monkeypatch.setattr(run_events, "world_of", lambda group=None: 2)
    sums, weight = RankSums(), nn.Parameter(torch.ones(3))
    sums.on = True
    for number in (1, 2):
        weight.grad = torch.full((3,), float(number))
        sums.arrived([weight])
        if number in at:
            sums.reduce(lambda *_: None, weight.grad)
    acts: dict[str, Callable[[], Any]] = {
        "pass": lambda: None,
        "clip": lambda: sums.scaled(lambda: weight.grad.mul_(0.5)),
        "write": lambda: weight.grad.data.mul_(0.5),
        "local": lambda: setattr(weight, "grad", torch.zeros(3)),
    }
    acts[then]()
    sums.applied([weight], LOCATION)
    assert summed(sums, "").outcome is outcome


def test_the_sum_of_a_sparse_gradient_is_not_shown_to_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_events, "world_of", lambda group=None: 2)
    sums, table = RankSums(), nn.Embedding(5, 2, sparse=True)
    sums.on = True
    table(torch.tensor([1])).sum().backward()
    sums.arrived([table.weight])
    sums.reduce(lambda *_: None, table.weight.grad)
    sums.applied([table.weight], LOCATION)
    assert summed(sums, "").outcome is OPAQUE


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_gradient_that_its_ddp_did_not_sum_is_refuted_but_where_ranks_exchange_by_hand(
    by_hand: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_events, "world_of", lambda group=None: 2)
    sums, module = RankSums(), nn.Linear(2, 1)
    net: Any = nn.Module()
    net.module, net.parameters_to_ignore, net.require_backward_grad_sync = module, set(), False
    sums.on = True
    sums.forward(lambda *_: None, net)
    for p in module.parameters():
        p.grad = torch.ones_like(p)
    sums.arrived(module.parameters())
    if by_hand:
        sums.collective(lambda: None)
    sums.applied(module.parameters(), LOCATION)
    assert (summed(sums, "").outcome is REFUTED) is not by_hand
