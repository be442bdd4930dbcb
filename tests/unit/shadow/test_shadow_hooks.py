"""The hooks see what happens to gradient buffers, and leave torch exactly as it was."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.optimizer import _global_optimizer_pre_hooks
from torch.utils.checkpoint import checkpoint

from gradproof.shadow.record.hook_points import Patches
from gradproof.shadow.record.hooks import Hooks

FIRST_OPTIMIZER = """
import torch
from gradproof.shadow.record.hooks import Hooks

class Sink:
    def event(self, *args, **kwargs):
        pass

with Hooks(Sink()):
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
assert "torch._dynamo" in __import__("sys").modules
assert torch.Tensor.grad.__get__ in torch.overrides.get_default_nowrap_functions()
"""


class Seen:
    """A sink that keeps kinds and details."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def event(self, kind: str, place: Any = None, **detail: Any) -> None:
        """Keep one."""
        self.events.append((kind, detail))

    def kinds(self) -> list[str]:
        """The kinds that are acts of the loop."""
        return [kind for kind, _ in self.events if kind != "end"]

    def details(self, kind: str) -> list[dict[str, Any]]:
        """The details of one kind."""
        return [detail for k, detail in self.events if k == kind]


def small() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A linear model and SGD."""
    model = nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), 0.1)


def watched(act: Callable[[nn.Module, torch.optim.Optimizer], Any]) -> Seen:
    """What is seen of an act after one backward pass."""
    sink = Seen()
    with Hooks(sink):
        model, optimizer = small()
        model(torch.ones(1, 3)).sum().backward()
        act(model, optimizer)
        model(torch.ones(1, 3)).sum().backward()
    return sink


def surface() -> dict[str, Any]:
    """Everything that the hooks replace."""
    return {
        "grad": vars(torch.Tensor).get("grad"),
        "backward": torch.autograd.backward,
        "autograd.grad": torch.autograd.grad,
        "clip": torch.nn.utils.clip_grad_norm_,
        "own": clip_grad_norm_,
        "zero": torch.optim.Optimizer.zero_grad,
        "module zero": nn.Module.zero_grad,
        "schedule": torch.optim.lr_scheduler.LRScheduler.step,
        "unscale": torch.amp.GradScaler.unscale_,
        "next": torch.utils.data.dataloader._BaseDataLoaderIter.__next__,
        "pre": len(_global_optimizer_pre_hooks),
        "forward": len(nn.modules.module._global_forward_pre_hooks),
    }


@pytest.mark.parametrize("raises", [False, True])
def test_everything_is_put_back(raises: bool) -> None:
    """Also where the user's code raises, and for a name that was imported from torch before."""
    before = surface()
    with pytest.raises(KeyError) if raises else Hooks(Seen()):
        if raises:
            with Hooks(Seen()):
                raise KeyError
        assert surface()["own"] is not before["own"]
    assert surface() == before


def test_a_users_own_patch_survives(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was patched before is called, what was patched meanwhile is left alone."""
    calls: list[str] = []
    original = torch.autograd.backward

    def mine(*args: Any, **kwargs: Any) -> None:
        calls.append("mine")
        original(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "backward", mine)
    seen = watched(lambda m, o: None)
    assert calls == ["mine", "mine"]
    assert seen.kinds().count("accumulate") == 2
    assert torch.autograd.backward is mine


def scale(model: nn.Module) -> None:
    """Write to every gradient."""
    for p in model.parameters():
        assert p.grad is not None
        p.grad.mul_(0.5)


def assign(model: nn.Module, value: Callable[[Tensor], Tensor | None]) -> None:
    """Assign every gradient."""
    for p in model.parameters():
        assert p.grad is not None
        p.grad = value(p.grad)


ACTS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "optimizer": (lambda m, o: o.zero_grad(), "zero"),
    "optimizer, in place": (lambda m, o: o.zero_grad(set_to_none=False), "zero"),
    "module": (lambda m, o: m.zero_grad(), "zero"),
    "none": (lambda m, o: assign(m, lambda g: None), "zero"),
    "zeros": (lambda m, o: assign(m, torch.zeros_like), "zero"),
    "assigned": (lambda m, o: assign(m, lambda g: g * 2), "assign"),
    "written": (lambda m, o: scale(m), "touch"),
    "clip": (lambda m, o: clip_grad_norm_(m.parameters(), 1.0), "clip"),
    "step": (lambda m, o: o.step(), "step"),
    "data": (lambda m, o: (o.step(), [p.grad.data.zero_() for p in m.parameters()]), "zero"),
}


@pytest.mark.parametrize("name", ACTS)
def test_an_act_is_seen(name: str) -> None:
    """Once for every parameter, and as nothing else."""
    act, kind = ACTS[name]
    seen = watched(act)
    stated = [p for d in seen.details(kind) for p in d["params"]]
    assert sorted(stated) == ["bias", "weight"]
    assert {"zero", "assign", "touch", "clip"} & set(seen.kinds()) <= {kind}


def test_a_zero_of_nothing_is_no_event() -> None:
    """`zero_grad` twice zeroes once."""
    seen = watched(lambda m, o: (o.zero_grad(), o.zero_grad()))
    assert seen.kinds().count("zero") == 1


def test_checkpointing_is_one_micro_batch() -> None:
    """The reentrant backward pass inside belongs to the outer one."""
    sink = Seen()
    with Hooks(sink):
        model, _ = small()
        x = torch.ones(1, 3, requires_grad=True)
        checkpoint(model, x, use_reentrant=True).sum().backward()
    assert sink.kinds().count("accumulate") == 1


def test_a_closure_steps_after_its_backward() -> None:
    """The step is reported when the closure has returned."""
    sink = Seen()
    with Hooks(sink):
        model, optimizer = small()

        def closure() -> Tensor:
            loss: Tensor = model(torch.ones(1, 3)).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
    assert sink.kinds() == ["accumulate", "step", "stepped"]


def test_a_schedule_is_told_but_not_its_construction() -> None:
    """Also of a class that was defined meanwhile, and once for nested schedulers."""
    sink = Seen()
    with Hooks(sink):
        model, optimizer = small()

        class Own(torch.optim.lr_scheduler.LRScheduler):
            """A scheduler with a step of its own."""

            def step(self, epoch: int | None = None) -> None:
                """Do as the base does."""
                super().step(epoch)

            def get_lr(self) -> list[float | Tensor]:
                """Constant."""
                return [0.1 for _ in self.optimizer.param_groups]

        model(torch.ones(1, 3)).sum().backward()
        inner = [torch.optim.lr_scheduler.StepLR(optimizer, 1) for _ in range(2)]
        chained = torch.optim.lr_scheduler.ChainedScheduler(inner)
        own = Own(optimizer)
        assert sink.kinds().count("schedule") == 0
        optimizer.step()
        chained.step()
        own.step()
    assert [d["type"] for d in sink.details("schedule")] == ["ChainedScheduler", "Own"]


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_step_is_told(fused: bool) -> None:
    """An infinite gradient: the optimizer's hooks are silent, or fire while the weights stay."""
    sink = Seen()
    with Hooks(sink):
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        scaler.scale(model(torch.ones(1, 3)).sum() * float("inf")).backward()
        scaler.step(optimizer)
        scaler.update()
    assert [bool(d["skipped"]) for d in sink.details("step")] == [True]


def test_gradients_that_are_returned_are_told() -> None:
    """`torch.autograd.grad` on parameters brings gradients; on inputs, or to be differentiated, it does not."""
    sink = Seen()
    with Hooks(sink):
        model, _ = small()
        x = torch.ones(1, 3, requires_grad=True)
        params = list(model.parameters())
        torch.autograd.grad(model(torch.ones(1, 3)).sum(), params)
        torch.autograd.grad(model(x).sum(), x)
        torch.autograd.grad(model(x).sum(), params, create_graph=True)
    assert sink.kinds() == ["gradients"]
    assert [d["number"] for d in sink.details("gradients")] == [1]


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
    """Packages are looked through once, and again when a name comes; a user's module always."""
    own = ModuleType("someones_module")
    monkeypatch.setitem(sys.modules, own.__name__, own)
    assert _wrapped("backward", torch.autograd)
    monkeypatch.setattr(torch.nn.utils, "later", BACKWARD[0], raising=False)
    assert _wrapped("later", torch.nn.utils)
    vars(own)["same"] = None
    assert _wrapped("backward", torch.autograd)
    vars(own)["same"] = BACKWARD[0]
    assert _wrapped("same", own)
