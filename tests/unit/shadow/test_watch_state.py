"""What changes at steps alone: states and groups of optimizers, buffers, averages. In both directions, by `watch`."""

from __future__ import annotations

import io
import linecache
import pickle

import pytest
import torch
from torch import nn

from gradproof.core.outcome import Outcome
from gradproof.shadow.protocol.held_state import Number, number
from gradproof.shadow.result import Result, Verification
from tests.checked import watch

HOLDS, REFUTED, OPAQUE = Outcome.HOLDS, Outcome.REFUTED, Outcome.OPAQUE
STEPS = "GA-INV-003"
FILE = "state_loop.py"
LOOP = """
import copy, math
torch.manual_seed(0)
N, B, T = {n}, 2, 5 * {n}
X, Y = torch.randn(T * B, 8), torch.randn(T * B, 1)
model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.{optimizer}
{setup}
for i in range(T):
    x, y = X[i * B:(i + 1) * B], Y[i * B:(i + 1) * B]
{before}
    (nn.functional.mse_loss(model(x), y) / N).backward()
{after}
    if (i + 1) % N == 0:
        opt.step()
        opt.zero_grad()
{step}
"""
SGD, ADAM = "SGD(model.parameters(), lr=0.05, momentum=0.9)", "Adam(model.parameters(), lr=0.05)"
TENSOR = "SGD(model.parameters(), lr=torch.tensor(0.05), foreach=False)"
GROUPS, STATES = "for q in opt.param_groups: ", "for p, s in opt.state.items(): "
PAIRS = "for a, p in zip(ema, model.parameters()): "
COSINE = "0.05 * (0.1 + 0.45 * (1 + math.cos(math.pi * i / T)))"
COPY, CLONES = "ema = list(copy.deepcopy(model).parameters())", "ema = [p.detach().clone() for p in model.parameters()]"


def watched(optimizer: str = SGD, setup: str = "", *, n: int = 4, **places: str) -> Verification:
    """What is said of a loop with a line at one of its places: `before` or `after` a backward pass, or at a `step`."""
    indents = {"before": 4, "after": 4, "step": 8}
    lines = {at: " " * by + places.get(at, "pass").replace("\n", "\n" + " " * by) for at, by in indents.items()}
    text = LOOP.format(n=n, optimizer=optimizer, setup=setup, **lines)
    linecache.cache[FILE] = (len(text), None, text.splitlines(True), FILE)
    scope = {"torch": torch, "nn": nn, "io": io}
    return watch(lambda: exec(compile(text, FILE, "exec"), scope), n)


def steps(optimizer: str = SGD, setup: str = "", *, n: int = 4, **places: str) -> Result:
    """What is said of its steps."""
    return watched(optimizer, setup, n=n, **places).result(STEPS)


ADVANCES = {
    "a learning rate": (SGD, "", GROUPS + "q['lr'] *= 0.9"),
    "a learning rate with a bound": (SGD, "", GROUPS + "q['lr'] = max(q['lr'] * 0.9, 1e-4)"),
    "a learning rate, less each time": (SGD, "", GROUPS + "q.update(lr=q['lr'] - 1e-4)"),
    "a learning rate in a tensor": (TENSOR, "", GROUPS + "q['lr'].mul_(0.9)"),
    "a learning rate in a tensor that is replaced": (TENSOR, "", GROUPS + "q['lr'] = q['lr'] * 0.9"),
    "a weight decay": (SGD, "", GROUPS + "q['weight_decay'] += 0.01"),
    "betas": (ADAM, "", GROUPS + "q['betas'] = (q['betas'][0] * 0.99, q['betas'][1])"),
    "a counter of steps": (ADAM, "", STATES + "s['step'] += 1"),
    "a counter of steps that is replaced": (ADAM, "", STATES + "s['step'] = s['step'] + 1"),
    "a momentum": (SGD, "", STATES + "s['momentum_buffer'].mul_(0.9)"),
}


@pytest.mark.parametrize("name", ADVANCES)
def test_what_is_made_of_what_it_was_in_each_micro_batch_is_refuted(name: str) -> None:
    """At the step it is right."""
    optimizer, setup, line = ADVANCES[name]
    found, right = steps(optimizer, setup, after=line), steps(optimizer, setup, step=line)
    assert (found.outcome, right.outcome) == (REFUTED, HOLDS), (found.reason, right.reason)


@pytest.mark.parametrize("name", ["a learning rate", "betas", "a momentum"])
def test_a_window_of_two_shows_as_much_and_one_change_a_window_is_right(name: str) -> None:
    optimizer, setup, line = ADVANCES[name]
    assert steps(optimizer, setup, n=2, before=line).outcome is REFUTED
    assert steps(optimizer, setup, before=f"if i % N == 0:\n    {line}").outcome is HOLDS


AVERAGES = {
    "lerp": (COPY, "with torch.no_grad():\n    " + PAIRS + "a.lerp_(p, 0.1)"),
    "data": (COPY, PAIRS + "a.data.mul_(0.9).add_(p.data, alpha=0.1)"),
    "difference": (CLONES, "with torch.no_grad():\n    " + PAIRS + "a.sub_(0.1 * (a - p))"),
    "foreach": (CLONES, "torch._foreach_lerp_(ema, [p.detach() for p in model.parameters()], 0.1)"),
    "made anew": (CLONES, "ema = [0.9 * a + 0.1 * p.data for a, p in zip(ema, model.parameters())]"),
    "copied": (
        "ema = copy.deepcopy(model).state_dict()",
        "for k, v in model.state_dict().items(): ema[k].copy_(ema[k] * 0.9 + v * 0.1)",
    ),
    "flat": (
        "flat = lambda: torch.cat([p.detach().flatten() for p in model.parameters()])\nema = flat()",
        "ema = 0.9 * ema + 0.1 * flat()",
    ),
    "torch's own": (
        "ema = torch.optim.swa_utils.AveragedModel(model)", "ema.update_parameters(model)",
    ),
    "NumPy": (
        "ema = [p.detach().numpy().copy() for p in model.parameters()]",
        "ema = [0.9 * a + 0.1 * p.detach().numpy() for a, p in zip(ema, model.parameters())]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AVERAGES)
def test_an_average_of_weights_advances_once_a_step(name: str) -> None:
    setup, line = AVERAGES[name]
    found, right = steps(SGD, setup, n=2, after=line), steps(SGD, setup, step=line)
    assert (found.outcome, right.outcome) == (OPAQUE, HOLDS), (found.reason, right.reason)
    assert "the weights" in found.reason


OPEN = {
    "a rate of its own variable": (SGD, "lr = 0.05", "lr *= 0.9\n" + GROUPS + "q['lr'] = lr"),
    "a rate by a power": (SGD, "", GROUPS + "q['lr'] = 0.05 * 0.9 ** i"),
    "a rate by a power, in a tensor": (TENSOR, "", GROUPS + "q['lr'].fill_(0.05 * 0.9 ** i)"),
    "a rate under the count": (SGD, "", GROUPS + "q['lr'] = 0.05 / (1 + 0.01 * i)"),
    "a rate under a root of the count": (SGD, "", GROUPS + "q['lr'] = 0.05 * (i + 1) ** -0.5"),
    "a rate of which the origin is lost": (SGD, "", GROUPS + "q['lr'] = math.fsum([q['lr']]) * 0.9"),
    "gradients that go into a momentum": (SGD, "", STATES + "s['momentum_buffer'].lerp_(p.grad, 0.1)"),
    "a momentum, past its version": (SGD, "", STATES + "s['momentum_buffer'].numpy()[:] *= 0.9"),
    "a buffer": (SGD, "model.register_buffer('seen', torch.ones(3))", "model.seen.mul_(0.9)"),
    "running statistics": (
        SGD, "model = nn.Sequential(nn.Unflatten(1, (2, 4)), nn.InstanceNorm1d(2, track_running_stats=True), "
        "nn.Flatten(), nn.Linear(8, 1))\nopt = torch.optim.SGD(model.parameters(), lr=0.05)", "pass",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPEN)
def test_what_may_advance_in_each_micro_batch_is_not_decided(name: str) -> None:
    optimizer, setup, line = OPEN[name]
    found = steps(optimizer, setup, after=line)
    assert (found.outcome, "micro-batches of a window" in found.reason) == (OPAQUE, True), found.reason


RIGHT = {
    "a rate": (SGD, "", GROUPS + f"q['lr'] = {COSINE}"),
    "a rate in a tensor": (TENSOR, "", GROUPS + f"q['lr'].fill_({COSINE})"),
    "a rate of the initial one": (
        SGD, GROUPS + "q['initial_lr'] = q['lr']", GROUPS + "q['lr'] = q['initial_lr'] * (1 - i / T) ** 0.9",
    ),
    "a decay of the rate": (SGD, "", GROUPS + f"q['lr'] = {COSINE}; q['weight_decay'] = q['lr'] / 9"),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_a_number_that_is_set_to_a_function_of_progress_is_right(name: str) -> None:
    """The last micro-batch of a window sets it for the step; that it is of progress is an assumption, and said."""
    optimizer, setup, line = RIGHT[name]
    made = watched(optimizer, setup, before=line)
    assert {r.obligation: r.outcome for r in made.results if r.outcome is not HOLDS}.keys() <= {"GA-INV-001"}
    assert any("is set before each micro-batch to a function of progress" in one for one in made.assumptions)
    plain = watched(optimizer, setup)
    assert not any("function of progress" in one for one in plain.assumptions)


HARMLESS = {
    "a norm of the weights": ("pass", "with torch.no_grad(): total = sum(p.norm() for p in model.parameters())"),
    "a mean of losses": (
        "mean = torch.zeros(())",
        "with torch.no_grad(): mean = 0.9 * mean + 0.1 * nn.functional.mse_loss(model(x), y)",
    ),
    "a copy of the weights": ("pass", "old = [p.detach().clone() for p in model.parameters()]"),
    "what moved": (CLONES, "moved = [p.detach() - a for a, p in zip(ema, model.parameters())]\n" + CLONES),
    "a network that follows": (
        "other = copy.deepcopy(model)", "other.load_state_dict(model.state_dict())",
    ),
    "a buffer that is set": ("model.register_buffer('last', torch.ones(B))", "model.last.copy_(x[:, 0])"),
}  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_what_no_step_has_to_make_is_right(name: str) -> None:
    setup, line = HARMLESS[name]
    found = steps(SGD, setup, after=line)
    assert found.outcome is HOLDS, found.reason


def test_a_number_of_a_group_is_a_plain_one_elsewhere() -> None:
    """What Python makes of it keeps its origin; a copy, a file and the run after a step hold a float."""
    of = frozenset({(("group", 1, 0, "lr", None), 2)})
    one = number(0.5, of)
    made = [one * 2, 2 - one, -one, abs(one), one**2, round(one, 1), 1 / one, one // 1]
    assert all(isinstance(each, Number) and each.of == of for each in made)
    assert made == [1.0, 1.5, -0.5, 0.5, 0.25, 0.5, 2.0, 0.0]
    assert not isinstance(one == 0.5, Number)
    assert type(pickle.loads(pickle.dumps(one))) is float
    assert repr(one) == f"{one}" == "0.5"
    save = "f = io.BytesIO(); torch.save(opt.state_dict(), f); f.seek(0); torch.load(f, weights_only=True)"
    assert steps("SGD(model.parameters(), lr=0.05)", before=GROUPS + f"q['lr'] = {COSINE}", step=save).outcome is HOLDS
