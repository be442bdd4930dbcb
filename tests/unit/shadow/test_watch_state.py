"""What changes at steps alone: states and groups of optimizers, buffers, averages. In both directions, by `watch`."""

from __future__ import annotations

import io
import linecache
import pickle

import pytest
import torch
from torch import nn

from gradproof.core.outcome import Outcome
from gradproof.shadow.result import Result, Verification
from gradproof.shadow.tape.held_state import HeldNumber, number
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
    "flat, with gradients": (
        "from torch.nn.utils import parameters_to_vector\nema = parameters_to_vector(model.parameters()).detach()",
        "ema = ema.lerp(parameters_to_vector(model.parameters()).detach(), 0.1)",
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
    "a count in a buffer": (SGD, "model.register_buffer('seen', torch.zeros(()))", "model.seen.add_(B)"),
    "a batch norm": (
        SGD, "model.append(nn.BatchNorm1d(1))\nopt = torch.optim.SGD(model.parameters(), lr=0.05)", "pass",
    ),
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
    "a rate of NumPy's": (
        SGD, "import numpy", GROUPS + f"q['lr'] = {COSINE.replace('math', 'numpy')}",
    ),
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
    assert all(isinstance(each, HeldNumber) and each.of == of for each in made)
    assert made == [1.0, 1.5, -0.5, 0.5, 0.25, 0.5, 2.0, 0.0]
    assert not isinstance(one == 0.5, HeldNumber)
    assert type(pickle.loads(pickle.dumps(one))) is float
    assert repr(one) == f"{one}" == "0.5"
    save = "f = io.BytesIO(); torch.save(opt.state_dict(), f); f.seek(0); torch.load(f, weights_only=True)"
    assert steps("SGD(model.parameters(), lr=0.05)", before=GROUPS + f"q['lr'] = {COSINE}", step=save).outcome is HOLDS


# -- Several optimizers.

TWO = """
torch.manual_seed(0)
N, B = 4, 2
X, Y = torch.randn(40, 8), torch.randn(40, 1)
body, head = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 1)
one, two = torch.optim.SGD(body.parameters(), lr=0.05), torch.optim.Adam(head.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
def zero():
    one.zero_grad(); two.zero_grad()
def clip(part):
    nn.utils.clip_grad_norm_(part.parameters(), 0.1)
def loss(i):
    return nn.functional.mse_loss(head(body(X[i * B:(i + 1) * B])), Y[i * B:(i + 1) * B])
for i in range(20):
    {passes}
    if (i + 1) % N == 0:
        {steps}
"""
PASS, SCALED = "(loss(i) / N).backward()", "scaler.scale(loss(i) / N).backward()"
BOTH = "one.step(); two.step(); zero()"
EACH = "scaler.unscale_({0}); clip({1}); scaler.step({0}); "
TWO_RIGHT = {
    "one after the other": (PASS, BOTH),
    "each with its zeroes": (PASS, "one.step(); one.zero_grad(); two.step(); two.zero_grad()"),
    "a clip between": (PASS, "one.step(); clip(head); two.step(); zero()"),
    "a clip of each": (PASS, "clip(body); clip(head); " + BOTH),
    "a loss scale": (SCALED, EACH.format("one", "body") + EACH.format("two", "head") + "scaler.update(); zero()"),
}
TWO_WRONG = {
    "not divided": ("loss(i).backward()", BOTH, "GA-EQ-001"),
    "one is not zeroed": (PASS, "one.step(); two.step(); one.zero_grad()", "GA-INV-002"),
    "one steps in each micro-batch": (PASS + "; two.step(); two.zero_grad()", "one.step(); zero()", "GA-INV-003"),
    "one is clipped in each micro-batch": (PASS + "; clip(head)", BOTH, "GA-INV-005"),
    "a clip after both": (PASS, "one.step(); two.step(); clip(head); zero()", "GA-INV-005"),
}
TWO_OPEN = {
    "all is zeroed between": (PASS, "one.step(); zero(); two.step(); zero()"),
    "one is divided again": (PASS, "for p in head.parameters(): p.grad.div_(N)\n        " + BOTH),
    "one is not unscaled": (SCALED, "scaler.step(one); two.step(); scaler.update(); zero()"),
    "one steps every second time": (PASS, "one.step(); one.zero_grad()\n        if i % 8 == 7: two.step(); zero()"),
    "a pass between": (PASS, "one.step(); zero(); loss(i).backward(); two.step(); zero()"),
}


def of_two(passes: str, steps: str) -> dict[str, Outcome]:
    """What is said of a loop that two optimizers train."""
    text = TWO.format(passes=passes, steps=steps)
    linecache.cache[FILE] = (len(text), None, text.splitlines(True), FILE)
    made = watch(lambda: exec(compile(text, FILE, "exec"), {"torch": torch, "nn": nn}), 4)
    return {one.obligation: one.outcome for one in made.results if one.obligation != "GA-INV-001"}


@pytest.mark.parametrize("name", TWO_RIGHT)
def test_steps_with_no_backward_pass_between_them_are_of_one_window(name: str) -> None:
    found = of_two(*TWO_RIGHT[name])
    assert set(found.values()) == {HOLDS}, found


@pytest.mark.parametrize("name", TWO_WRONG)
def test_what_is_wrong_with_one_of_two_optimizers_is_refuted(name: str) -> None:
    passes, step, obligation = TWO_WRONG[name]
    found = of_two(passes, step)
    assert found[obligation] is REFUTED, found


@pytest.mark.parametrize("name", TWO_OPEN)
def test_what_is_not_one_window_of_both_never_holds(name: str) -> None:
    found = of_two(*TWO_OPEN[name])
    assert found["GA-EQ-001"] is not HOLDS, found
    assert REFUTED not in found.values(), found
