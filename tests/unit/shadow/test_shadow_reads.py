"""Numbers of tensors that Python reads: what is proved is proved for the recorded path, and the verdict says so."""

from __future__ import annotations

import ast
import inspect
import io
import os
import pickle
import re
import struct
import tempfile
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from shadow_steps import loop
from torch import Tensor, nn
from torch.nn import functional as F

from gradproof.core.outcome import Outcome
from gradproof.shadow.result import ALL_DATA, ON_PATH, RECORDED, Verification, on_path
from tests import checked as verify

HOLDS, REFUTED = Outcome.HOLDS, Outcome.REFUTED
Step = Callable[[Any], None]
Read = Callable[[Tensor], float]
HERE = "test_shadow_reads.py"


def saved(t: Tensor) -> io.BytesIO:
    """A buffer with a tensor."""
    buffer = io.BytesIO()
    torch.save(t, buffer)
    buffer.seek(0)
    return buffer


READS: dict[str, Read] = {
    "item": lambda t: t.item(),
    "float": lambda t: float(t.detach()),
    "format": lambda t: float(f"{t:.6f}"),
    "tolist": lambda t: t.tolist(),
    "numpy": lambda t: float(t.detach().numpy()),
    "asarray": lambda t: float(np.asarray(t.detach())),
    "dlpack": lambda t: float(np.from_dlpack(t.detach())),
    "to_dlpack": lambda t: float(torch.from_dlpack(torch.utils.dlpack.to_dlpack(t.detach())).add(0)),
    "pickle": lambda t: float(pickle.loads(pickle.dumps(t.detach().clone()))),
    "save": lambda t: float(torch.load(saved(t.detach().clone()))),
    "repr": lambda t: float(ast.literal_eval(repr(t.detach())[len("tensor(") : -1])),
    "str": lambda t: float(ast.literal_eval(str(t.detach())[len("tensor(") : -1])),
}


def unzipped(path: str) -> float:
    """The number that torch.save wrote, out of the bytes of the file, which no tensor is made of."""
    with zipfile.ZipFile(path) as made:
        os.remove(path)
        return struct.unpack("f", next(made.read(name) for name in made.namelist() if "/data/" in name))[0]


def save_as(t: Tensor) -> float:
    """A function of the user's that has the name and the argument of torch's."""

    def save(f: str) -> float:
        return float(torch.load(saved(t.detach().clone())))

    return save("a name")


FILE = f"{tempfile.gettempdir()}/saved-{os.getpid()}.pt"
READS |= {
    "a file": lambda t: (torch.save(t.detach().clone(), FILE), unzipped(FILE))[1],
    "a save of one's own": save_as,
}
if find_spec("safetensors"):
    from safetensors.torch import load, save

    READS["safetensors"] = lambda t: float(load(save({"t": t.detach().clone()}))["t"])
"""Ways in which Python gets at the number of a tensor without dimensions."""
SHAPES: dict[str, Read] = {
    "nonzero": lambda t: 10.0 * len(torch.nonzero(t.reshape(1) > 5.0)),
    "where": lambda t: 10.0 * len(torch.where(t.reshape(1) > 5.0)[0]),
    "mask": lambda t: 10.0 * t.reshape(1)[t.reshape(1) > 5.0].numel(),
    "masked_select": lambda t: 10.0 * torch.masked_select(t, t > 5.0).numel(),
}
"""Ways in which a number decides a shape."""
ALL = {**READS, **SHAPES}
UNDECIDED = {
    "tolist",
    "numpy",
    "asarray",
    "dlpack",
    "to_dlpack",
    "pickle",
    "save",
    "a save of one's own",
    "safetensors",
}
"""What is lost sight of, or not compared, after these reads."""


def logged(read: Read) -> Step:
    """Every loss is read, and nothing is done with it: right."""
    seen: list[float] = []

    def loss(a: Tensor, b: Tensor) -> Tensor:
        made = F.mse_loss(a, b)
        seen.append(read(made))
        return made

    return lambda run: loop(run, nn.Linear(3, 2), loss=loss)


def hidden(read: Read) -> Step:
    """A large gradient is scaled by N; in the recorded run none is large: wrong."""

    def step(run: Any) -> None:
        def before(model: nn.Module) -> None:
            grads = [p.grad for p in model.parameters() if p.grad is not None]
            if read(torch.stack([g.square().sum() for g in grads]).sum()) > 5.0:
                for g in grads:
                    g.mul_(run.accum_steps)

        loop(run, nn.Linear(3, 2), before)

    return step


def narrowed(found: Verification) -> None:
    """No result claims all inputs, and the lines at which numbers were read are listed."""
    assert all(r.reach != ALL_DATA for r in found.results)
    assert found.result("GA-EQ-001").reach.startswith(ON_PATH[ALL_DATA])
    assert f"{HERE}:" in found.result("GA-EQ-001").reach
    assert any(f"{HERE}:" in text for text in found.paths)


@pytest.mark.parametrize("name", ALL)
def test_a_loss_that_is_only_read_holds_for_the_recorded_path(name: str) -> None:
    found = verify.check(logged(ALL[name]))
    bad = [(r.obligation, r.reason) for r in found.results if r.applies and r.outcome is not HOLDS]
    assert bad == [] or name in UNDECIDED
    assert Outcome.REFUTED not in {r.outcome for r in found.results}
    if found.result("GA-EQ-001").outcome is HOLDS:
        narrowed(found)
        line = inspect.getsourcelines(ALL[name])[1]
        assert f"{HERE}:{line}" in found.result("GA-EQ-001").reach


@pytest.mark.parametrize("name", ALL)
def test_a_factor_that_hides_behind_a_read_is_found(name: str) -> None:
    result = verify.check(hidden(ALL[name])).result("GA-EQ-001")
    if result.outcome is not Outcome.OPAQUE:
        assert (result.outcome, " 4 times " in result.reason) == (REFUTED, True), result.reason


def test_without_a_read_all_inputs_are_claimed() -> None:
    found = verify.check(lambda run: loop(run, nn.Linear(3, 2)))
    assert (found.result("GA-EQ-001").reach, found.paths) == (ALL_DATA, [])


def test_a_branch_is_named_and_all_inputs_are_not_claimed() -> None:
    def before(model: nn.Module) -> None:
        if model.weight.square().sum() > 1e9:
            raise RuntimeError("the weights are too large")

    found = verify.check(lambda run: loop(run, nn.Linear(3, 2), before))
    narrowed(found)


def test_a_branch_that_went_both_ways_is_not_every_combination() -> None:
    seen: list[bool] = []

    def loss(a: Tensor, b: Tensor) -> Tensor:
        made = F.mse_loss(a, b)
        seen.append(bool(made > 1))
        return made

    found = verify.check(lambda run: loop(run, nn.Linear(3, 2), loss=loss))
    assert set(seen) == {False, True}
    narrowed(found)


def test_data_and_weights_that_are_read_before_the_first_step_count() -> None:
    def step(run: Any) -> None:
        x, y, model = torch.randn(run.samples, 3), torch.randn(run.samples, 2), nn.Linear(3, 2)
        assert len(x.tolist()) == run.samples
        assert model.weight.detach().numpy().shape == (2, 3)
        loop(run, model, data=(x, y))

    found = verify.check(step)
    narrowed(found)
    texts = " ".join(found.paths)
    assert ("tolist" in texts, "numpy" in texts) == (True, True), texts


def pseudo_labels(a: Tensor, b: Tensor) -> Tensor:
    """Trains towards the class that the model itself finds most likely."""
    return F.cross_entropy(a, a.detach().argmax(1))


def whole_parts(a: Tensor, b: Tensor) -> Tensor:
    """Weighs a sample by a whole number that is made of its floats."""
    return (F.mse_loss(a, b, reduction="none").mean(1) * (1 + b.abs().sum(1).floor().long() % 3)).mean()


@pytest.mark.parametrize("loss", [pseudo_labels, whole_parts])
def test_integers_made_of_floats_are_not_refuted(loss: Any) -> None:
    found = verify.check(lambda run: loop(run, nn.Linear(3, 2), loss=loss))
    assert {r.outcome for r in found.results if r.applies} <= {HOLDS, Outcome.UNKNOWN}


@pytest.mark.parametrize("loss", [pseudo_labels, whole_parts])
def test_integers_made_of_floats_do_not_hide_a_missing_1_over_n(loss: Any) -> None:
    def step(run: Any) -> None:
        loop(run, nn.Linear(3, 2), loss=lambda a, b: loss(a, b) * run.accum_steps)

    assert verify.check(step).result("GA-EQ-001").outcome in (REFUTED, Outcome.UNKNOWN)


def on(make: Callable[[int], Tensor]) -> Step:
    """The inputs are made by this; the targets are random."""
    return lambda run: loop(run, nn.Linear(3, 2), data=(make(run.samples), torch.randn(run.samples, 2)))


def from_a_loader(run: Any) -> None:
    """Constant inputs that torch's own code puts together."""
    data = torch.utils.data.TensorDataset(torch.ones(run.samples, 3), torch.randn(run.samples, 2))
    loader = torch.utils.data.DataLoader(data, batch_size=run.micro_batch_size)
    x, y = (torch.cat(parts) for parts in zip(*loader, strict=True))
    loop(run, nn.Linear(3, 2), data=(x, y))


CONSTANTS: dict[str, Step] = {
    "ones": on(lambda n: torch.ones(n, 3)),
    "arange": on(lambda n: torch.arange(3 * n).float().reshape(n, 3) / n),
    "linspace": on(lambda n: torch.linspace(0, 1, 3 * n).reshape(n, 3)),
    "loader": from_a_loader,
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_floats_made_without_randomness_are_not_refuted(name: str) -> None:
    found = verify.check(CONSTANTS[name])
    assert {r.outcome for r in found.results if r.applies} <= {HOLDS, Outcome.UNKNOWN}


def test_a_reach_names_a_few_lines() -> None:
    assert on_path(ALL_DATA, []) == ALL_DATA
    assert on_path(ALL_DATA, ["a.py:1"]).endswith("(values read: a.py:1)")
    many = on_path(ALL_DATA, [f"a.py:{i}" for i in range(5)])
    assert re.findall(r"a\.py:\d", many) == ["a.py:0", "a.py:1", "a.py:2"]
    assert many.endswith(" 2 more)")
    assert on_path(RECORDED, ["a.py:1"]) == RECORDED
