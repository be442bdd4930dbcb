"""Loops of our own under `watch`: no wrong one is green, no right one is refuted, and lost sight is not HOLDS."""

from __future__ import annotations

import linecache

import pytest
import torch
from shadow_protocol_bench import PROTOCOL
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from gradproof.core.outcome import Outcome
from gradproof.report.formats import step
from gradproof.shadow.process.watch import UNFOLLOWED
from gradproof.shadow.result import Verification
from tests.checked import watch

HEAD = """
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
params = list(model.parameters())
optimizer = torch.optim.SGD(params, lr=0.1)
flat = torch.zeros(sum(p.numel() for p in params))
buffers = [torch.zeros_like(p) for p in params]
narrow = [torch.zeros_like(p, dtype=torch.bfloat16) for p in params]
def loss_of(x):
    return model(x).square().mean()
def one():
    (loss_of(torch.randn(2, 3)) / 4).backward()
def ahead(loader):
    batches = iter(loader)
    following = next(batches)
    while following is not None:
        present, following = following, next(batches, None)
        yield present
def finish():
    optimizer.step()
    optimizer.zero_grad()
"""
FILE = "watched_loop.py"
SUMS = ("GA-INV-002", "GA-INV-004")
HOLDS, REFUTED, OPAQUE, UNKNOWN = Outcome.HOLDS, Outcome.REFUTED, Outcome.OPAQUE, Outcome.UNKNOWN


def watched(body: str, accum_steps: int | None = 4, epoch_batches: int | None = None) -> Verification:
    """What is said of a loop."""
    text = HEAD + body
    linecache.cache[FILE] = (len(text), None, text.splitlines(True), FILE)
    code = compile(text, FILE, "exec")
    made = watch(lambda: exec(code, {"torch": torch, "nn": nn}), accum_steps, 3, epoch_batches)
    assert _get_current_dispatch_mode() is None
    return made


def said(made: Verification) -> dict[str, Outcome]:
    """The obligations of the window protocol."""
    return {name: made.result(name).outcome for name in PROTOCOL}


def windows(each: str = "one()", last: str = "pass", first: str = "pass", passes: int = 4) -> str:
    """Five windows, with something in each micro-batch, before the first of a window, and before the step."""
    return f"""
for w in range(5):
    {first}
    for k in range({passes}):
        {each}
    {last}
    finish()
"""


def epochs(batches: str, flush: str = "i + 1 == M", after: str = "pass", size: int = 6, each: int = 4) -> str:
    """Four epochs of `size` micro-batches, stepped after each 4th and where `flush` says so."""
    return f"""
M = {size}
data = [torch.randn(2, 3) for _ in range(M)]
loader = torch.utils.data.DataLoader(torch.randn(2 * M, 3), batch_size=2)
for epoch in range(4):
    for i, x in enumerate({batches}):
        (loss_of(x) / 4).backward()
        if (i + 1) % {each} == 0 or {flush}:
            finish()
    {after}
"""


LOSSES_SUMMED = windows("total = total + loss_of(torch.randn(2, 3)) / 4", "total.backward()", "total = 0")
MOVED = """one()
        for b, p in zip(buffers, params): b.add_(p.grad)
        optimizer.zero_grad()"""
KEPT_NARROW = MOVED.replace("buffers", "narrow")
WRITTEN: dict[str, tuple[str, tuple[Outcome, ...]]] = {
    "stale buffer, assigned": (
        windows(MOVED, "for b, p in zip(buffers, params): p.grad = b.clone()"),
        (UNKNOWN, REFUTED, UNKNOWN),
    ),
    "stale buffer, copied past the counter": (
        windows(
            MOVED.replace("zero_grad()", "zero_grad(set_to_none=False)"),
            "for b, p in zip(buffers, params): p.grad.data.copy_(b)",
        ),
        (UNKNOWN, REFUTED, UNKNOWN),
    ),
    "bf16 buffer": (
        windows(KEPT_NARROW, "for b, p in zip(narrow, params): p.grad = b.float(); b.zero_()"),
        (HOLDS, HOLDS, REFUTED),
    ),
    "stale number added by NumPy": (windows(last="for p in params: p.grad.numpy()[...] += 1"), (OPAQUE,) * 3),
    "part zeroed inside a window": (
        windows(last="one(); params[0].grad.data[0].zero_()"),
        (UNKNOWN, HOLDS, HOLDS),
    ),
    "a hook that adds what is left": (
        "\nfor p in params: p.register_hook(lambda g: g + 1)\n" + windows(),
        (UNKNOWN, UNKNOWN, OPAQUE),
    ),
    "losses summed": (LOSSES_SUMMED, (UNKNOWN,) * 3),
    "a total that is never cleared": (
        """
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
total = 0
"""
        + windows("total = total + loss_of(torch.randn(2, 3)); total.backward(retain_graph=True)"),
        (OPAQUE,) * 3,
    ),
    "flat buffer, copied": (
        windows(
            """one()
        flat += torch.cat([p.grad.flatten() for p in params])
        optimizer.zero_grad(set_to_none=False)""",
            """for p, part in zip(params, flat.split([p.numel() for p in params])): p.grad.copy_(part.view_as(p))
    flat.zero_()""",
        ),
        (HOLDS,) * 3,
    ),
    "a gradient before the loop": (
        "\nfor p in params: p.grad = torch.ones_like(p)\n" + windows(),
        (UNKNOWN,) * 3,
    ),
}


@pytest.mark.parametrize("accum_steps", [None, 4])
@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_into_gradients_is_followed_or_not_decided(name: str, accum_steps: int | None) -> None:
    body, outcomes = WRITTEN[name]
    made = watched(body, accum_steps)
    assert tuple(made.result(o).outcome for o in ("GA-EQ-001", *SUMS)) == outcomes, name


UNSEEN = {
    "main_grad hooks": (
        """
main = {p: torch.zeros_like(p) for p in params}
def moved(p):
    main[p].add_(p.grad)
    p.grad = None
for p in params: p.register_post_accumulate_grad_hook(moved)
"""
        + windows(last="for p in params: p.grad = main[p].clone(); main[p].zero_()"),
        UNFOLLOWED,
    ),
    "a thread": (
        "\nimport threading\ndef train():"
        + windows().replace("\n", "\n    ")
        + "\nthread = threading.Thread(target=train); thread.start(); thread.join()\n",
        "lost: another thread",
    ),
    "sparse": (
        """
model = nn.Embedding(9, 3, sparse=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
        + windows("(model(torch.arange(4)).square().mean() / 4).backward()"),
        "a value was lost",
    ),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_where_no_gradient_was_followed_nothing_holds_of_it(name: str) -> None:
    body, reason = UNSEEN[name]
    made = watched(body)
    assert reason in made.result("GA-EQ-001").reason
    assert HOLDS not in {r.outcome for r in made.results}


AFTER_EACH = {
    "clips": "p.grad.mul_(torch.clamp(0.1 / (p.grad.norm() + 1e-6), max=1.0))",
    "rounds in NumPy": "p.grad.numpy()[...] = p.grad.numpy().astype('float16')",
    "zeroes the first": "seen.append(id(p)); p.grad.mul_(0.0 if seen.count(id(p)) % 4 == 1 else 1.0)",
}


@pytest.mark.parametrize("name", AFTER_EACH)
def test_what_a_hook_after_each_accumulation_does_is_not_decided(name: str) -> None:
    hook = (
        f"\nseen = []\ndef hook(p): {AFTER_EACH[name]}\nfor p in params: p.register_post_accumulate_grad_hook(hook)\n"
    )
    found = said(watched(hook + windows()))
    assert not [o for o in (*SUMS, "GA-INV-005") if found[o] is HOLDS]


@pytest.mark.parametrize("each", ["p.grad.astype('float16')", "p.grad * min(1.0, 0.1 / np.linalg.norm(p.grad))"])
def test_what_numpy_writes_between_micro_batches_is_not_decided(each: str) -> None:
    """The engine sees that the gradient changed, and not how."""
    write = f"one()\n        for p in params: p.grad.numpy()[...] = {each.replace('p.grad', 'p.grad.numpy()')}"
    found = said(watched("\nimport numpy as np\n" + windows(write)))
    assert not [o for o in (*SUMS, "GA-INV-005") if found[o] is HOLDS]


IN_BACKWARD = {
    "a module's hook zeroes": "mine.append(0); [p.grad.zero_() for p in had() if len(mine) % 4 == 2]",
    "a module's hook rounds": "[p.grad.copy_(p.grad.half()) for p in had()]",
    "a module's hook clips": "[p.grad.mul_(torch.clamp(0.1 / (p.grad.norm() + 1e-6), max=1.0)) for p in had()]",
}


@pytest.mark.parametrize("name", IN_BACKWARD)
def test_what_is_written_into_gradients_in_a_backward_pass_is_not_decided(name: str) -> None:
    hook = f"""
mine = []
def had(): return [p for p in params if p.grad is not None]
def hook(module, *_): {IN_BACKWARD[name]}
model[2].register_full_backward_hook(hook)
"""
    found = said(watched(hook + windows()))
    assert not [o for o in (*SUMS, "GA-INV-005") if found[o] is HOLDS]


def test_a_hook_before_the_optimizer_s_step_leaves_its_gradients_undecided() -> None:
    hook = "\noptimizer.register_step_pre_hook(lambda *_: [p.grad.copy_(p.grad.half()) for p in params] and None)\n"
    found = said(watched(hook + windows()))
    assert [found[o] for o in (*SUMS, "GA-INV-005")] == [OPAQUE] * 3
    assert found["GA-INV-003"] is UNKNOWN


def test_a_gradient_from_before_the_first_window_is_in_its_weights() -> None:
    leftover = epochs("data", "False")
    for body in ("\none()\n" + windows(), leftover):
        assert watched(body, None).result("GA-EQ-001").outcome is REFUTED
    assert said(watched(leftover))["GA-INV-003"] is UNKNOWN


def test_without_accumulation_nothing_is_shown_of_it() -> None:
    for given in (None, 1):
        found = said(watched(windows(passes=1), given))
        assert [found[name] for name in SUMS] == [UNKNOWN, UNKNOWN]
    assert said(watched(windows(passes=1), 1))["GA-INV-003"] is UNKNOWN


RIGHT = {
    "list": (epochs("data"), UNKNOWN),
    "list, flushed after the epoch": (epochs("data", "False", "finish()"), UNKNOWN),
    "epochs shorter than a window": (epochs("data", size=3), UNKNOWN),
    "a tail of one": (epochs("data", size=5), UNKNOWN),
    "data loader": (epochs("loader"), HOLDS),
    "data loader, flushed after the epoch": (epochs("loader", "False", "finish()"), HOLDS),
    "data loader, a tail of one": (epochs("loader", size=5), HOLDS),
    "a batch ahead": (epochs("ahead(loader)"), HOLDS),
    "read to its end first": (epochs("list(loader)"), UNKNOWN),
    "a part of a data loader": (epochs("(x for x, _ in zip(loader, range(6)))", "i + 1 == 6", size=20), UNKNOWN),
    "validation between epochs": (
        epochs("loader", after="\n    with torch.no_grad(): [model(v) for v in loader]"),
        HOLDS,
    ),
    "two losses a micro-batch": (
        epochs("data").replace(
            "(loss_of(x) / 4).backward()", "(loss_of(x) / 4).backward(); (loss_of(x) / 8).backward()"
        ),
        UNKNOWN,
    ),
    "losses summed": (LOSSES_SUMMED, OPAQUE),
    "sam": (
        windows(
            """one()
        ascent = [0.05 * p.grad for p in params]
        for p, d in zip(params, ascent): p.data.add_(d)
        optimizer.zero_grad()
        one()
        for p, d in zip(params, ascent): p.data.sub_(d)""",
            passes=1,
        ),
        OPAQUE,
    ),
    "gan": (
        """
critic = nn.Linear(2, 1)
other = torch.optim.SGD(critic.parameters(), lr=0.1)
for w in range(5):
    other.zero_grad()
    critic(model(torch.randn(2, 3)).detach()).mean().backward()
    other.step()
    optimizer.zero_grad()
    critic(model(torch.randn(2, 3))).mean().backward()
    optimizer.step()
""",
        OPAQUE,
    ),
    "learning rate by hand, a window": (windows(first="optimizer.param_groups[0]['lr'] = 0.1 / (w + 2)"), HOLDS),
    "learning rate by hand, before the step": (
        windows(last="optimizer.param_groups[0]['lr'] = 0.1 / (w + 2)"),
        HOLDS,
    ),
    "lists of gradients": (
        windows("one(); narrow.append([p.grad for p in params]); optimizer.zero_grad()").replace(
            "    pass\n    finish()",
            "    for i, p in enumerate(params): p.grad = sum(kept[i] for kept in narrow[-4:])\n    finish()",
        ),
        HOLDS,
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_loop_is_never_refuted(name: str) -> None:
    body, steps = RIGHT[name]
    for given in (None, 4):
        found = said(watched(body, given))
        assert REFUTED not in found.values(), (name, given, found)
    assert found["GA-INV-003"] is steps, found


def test_the_length_of_an_epoch_may_be_given() -> None:
    assert said(watched(epochs("data"), epoch_batches=6))["GA-INV-003"] is HOLDS


WRONG = {
    "step in each micro-batch": (windows("one(); finish()"), "GA-INV-003"),
    "zero in each micro-batch": (windows("optimizer.zero_grad(); one()"), "GA-INV-002"),
    "windows of two in a data loader": (epochs("loader", size=40, each=2), "GA-INV-003"),
    "windows of eight in a data loader": (epochs("loader", size=40, each=8), "GA-INV-003"),
    "a gradient that is left at the end": (
        epochs("loader", "False", size=10).replace("range(4)", "range(1)"), "GA-INV-003",
    ),
    "a learning rate in each micro-batch": (windows("optimizer.param_groups[0]['lr'] *= 0.9; one()"), "GA-INV-003"),
    "part zeroed at the end": (
        windows("one()", "optimizer.step()").replace("finish()", "for p in params: p.grad[:1] = 0"), "GA-INV-002",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_loop_is_refuted(name: str) -> None:
    body, obligation = WRONG[name]
    made = watched(body)
    assert made.result(obligation).outcome is REFUTED
    text = " ".join(step.text(made).split())
    assert "replays on concrete numbers" not in text
    weighed = "no counterexample was replayed" in text
    assert weighed or "the run breaks an" in text.lower()


def test_a_loop_without_accumulation_that_never_zeroes_is_refuted() -> None:
    """With a number of micro-batches the steps are too early, and no more is said of the gradients."""
    body = windows(passes=1).replace("finish()", "optimizer.step()")
    assert said(watched(body, None))["GA-INV-002"] is REFUTED
    found = said(watched(body, 4))
    assert (found["GA-INV-002"], found["GA-INV-003"]) == (UNKNOWN, REFUTED)


PROBED = "one(); one(); optimizer.zero_grad(); one(); one()"


@pytest.mark.parametrize(("given", "outcome"), [(4, REFUTED), (2, HOLDS), (None, UNKNOWN)])
def test_what_is_zeroed_may_come_before_a_whole_window(given: int | None, outcome: Outcome) -> None:
    assert said(watched(windows(PROBED, passes=1), given))["GA-INV-002"] is outcome


TWO = """
head = nn.Linear(2, 2)
second = torch.optim.SGD(head.parameters(), lr=0.1)
for w in range(5):
    for k in range(4):
        (head(model(torch.randn(2, 3))).square().mean() / 4).backward()
        EACH
    optimizer.step(); second.step()
    ZERO
"""
ZEROES = "optimizer.zero_grad(); second.zero_grad()"


@pytest.mark.parametrize(
    ("each", "zero", "refuted"),
    [
        ("pass", ZEROES, []), ("pass", "optimizer.zero_grad()", ["GA-INV-002"]),
        ("nn.utils.clip_grad_norm_([*params, *head.parameters()], 0.1)", ZEROES, ["GA-EQ-001", "GA-INV-005"]),
        ("for b, p in zip(narrow, params): b.add_(p.grad)", ZEROES, ["GA-INV-004"]),
    ],
)  # fmt: skip
def test_two_optimizers_that_step_in_one_window(each: str, zero: str, refuted: list[str]) -> None:
    """They are judged as one."""
    found = watched(TWO.replace("EACH", each).replace("ZERO", zero))
    assert sorted(r.obligation for r in found.results if r.outcome is REFUTED) == refuted
    assert found.result("GA-EQ-001").outcome is not UNKNOWN or refuted == ["GA-INV-002"]
