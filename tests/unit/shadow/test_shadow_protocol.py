"""Each bug of a recorded loop breaks its obligation at its line; what only looks like one breaks nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from gradproof.shadow.protocol.event_ops import simple
from shadow_protocol_bench import judged

from gradproof.core.errors import GradproofError
from gradproof.shadow.protocol.window import check_protocol, table
from gradproof.shadow.tape import Event, Location, Tape

HAND_CLIP = """with torch.no_grad():
    norm = torch.stack([p.grad.square().sum() for p in model.parameters()]).sum().sqrt()
    for p in model.parameters():
        p.grad.mul_((1.0 / (norm + 1e-6)).clamp(max=1.0))"""
HAND_STEP = """with torch.no_grad():
    for p in model.parameters():
        p -= 0.1 * p.grad"""
DATA_STEP = "for p in model.parameters():\n    p.data = p.data - 0.1 * p.grad"
TWO = """second = torch.optim.SGD(model[2].parameters(), lr=0.1)
optimizer = torch.optim.AdamW(model[0].parameters(), lr=0.01)"""
NO_STEP = {"scaler.step(optimizer)\n    scaler.update()": HAND_STEP, "schedule.step()": "pass"}
NO_CLIP = {"nn.utils.clip_grad_norm_(params, 1.0)": "pass"}
ITEM_CLIP = """norm = float(torch.stack([p.grad.norm() for p in model.parameters()]).norm())
for p in model.parameters():
    p.grad.mul_(0.5 / (norm + 1e-6))"""
BUFFER = {
    "for k in range(N):": "held = [torch.zeros_like(p) for p in model.parameters()]\nfor k in range(N):",
    "#each": "for h, p in zip(held, model.parameters()):\n    h += p.grad\n    p.grad = None",
    "#full": "for h, p in zip(held, model.parameters()):\n    p.grad = h",
}


def hooked(body: str, extra: str = "") -> dict[str, str]:
    """A hook on every weight that runs when its gradient has been added."""
    text = f"def hook(p):\n    {body}\nfor p in model.parameters(): p.register_post_accumulate_grad_hook(hook)\n"
    return {"optimizer = torch": f"{text}optimizer = torch", **({"#before": extra} if extra else {})}


BROKEN: dict[str, tuple[dict[str, str], bool, str, str]] = {
    "step each": ({"#each": "optimizer.step()"}, False, "GA-INV-003", "optimizer.step()"),
    "step twice": ({"#stepped": "optimizer.step()"}, False, "GA-INV-003", "optimizer.step()"),
    "zero each": ({"#before": "optimizer.zero_grad()"}, False, "GA-INV-002", "optimizer.zero_grad()"),
    "zero each, in place": (
        {"#before": "for p in params:\n    if p.grad is not None: p.grad.zero_()"}, False, "GA-INV-002",
        "p.grad.zero_()",
    ),
    "zero each, data": (
        {"#before": "for p in params:\n    if p.grad is not None: p.grad.data.zero_()"}, False, "GA-INV-002",
        "p.grad.data.zero_()",
    ),
    "zero of one weight": ({"#each": "model[0].weight.grad = None"}, False, "GA-INV-002", "grad = None"),
    "zero skipped": ({"optimizer.zero_grad()": "pass"}, False, "GA-INV-002", ".backward()"),
    "zero of others only": ({"optimizer.zero_grad()": "model[0].zero_grad()"}, False, "GA-INV-002", ".backward()"),
    "clip each": ({"#each": "nn.utils.clip_grad_norm_(params, 1.0)"}, False, "GA-INV-005", "clip_grad_norm_"),
    "clip twice": ({"#clipped": "nn.utils.clip_grad_value_(params, 1.0)"}, False, "GA-INV-005", "clip_grad_value_"),
    "clip by hand each": ({"#each": HAND_CLIP}, False, "GA-INV-005", "p.grad.mul_("),
    "clamp each": ({"#each": "for p in model.parameters(): p.grad.clamp_(-1, 1)"}, False, "GA-INV-005", "clamp_"),
    "clip by a number each": ({"#each": ITEM_CLIP, **NO_CLIP}, False, "GA-INV-005", "p.grad.mul_("),
    "clip after step": ({"#stepped": "nn.utils.clip_grad_norm_(params, 1.0)"}, False, "GA-INV-005", "clip_grad_norm_"),
    "clip before unscale": ({"#full": "nn.utils.clip_grad_norm_(params, 1.0)"}, True, "GA-INV-005", "clip_grad_norm_"),
    "schedule each": ({"#each": "schedule.step()"}, False, "GA-INV-003", "schedule.step()"),
    "schedule twice": ({"#scheduled": "schedule.step()"}, False, "GA-INV-003", "schedule.step()"),
    "never stepped": ({"scaler.step(optimizer)": "pass", "schedule.step()": "pass"}, False, "GA-INV-002", "zero_grad"),
    "never stepped nor zeroed": (
        {"scaler.step(optimizer)": "pass", "schedule.step()": "pass", "optimizer.zero_grad()": "pass"}, False,
        "GA-INV-005", ".backward()",
    ),
    "last window not stepped": (
        {"scaler.step(optimizer)": "if window == 0: scaler.step(optimizer)", "schedule.step()": "pass",
         "optimizer.zero_grad()": "if window == 0: optimizer.zero_grad()"},
        False, "GA-INV-003", "scaler.step(",
    ),
    "hand step each": (
        {**NO_STEP, "scaler.step(optimizer)\n    scaler.update()": "pass", "#each": HAND_STEP, **NO_CLIP},
        False, "GA-INV-003", "p -= 0.1",
    ),
    "decay each": (
        {"#each": "with torch.no_grad():\n    for p in model.parameters(): p.mul_(0.99)"}, False, "GA-INV-003",
        "p.mul_(",
    ),
    "narrow model": (
        {"nn.Linear(4, 2))": "nn.Linear(4, 2)).bfloat16()", "torch.randn(2, 3)": "torch.randn(2, 3).bfloat16()"},
        False, "GA-INV-004", ".backward()",
    ),
    "narrow buffer": ({**BUFFER, "#each": BUFFER["#each"].replace("h += p.grad", "h.copy_((h + p.grad).half())")},
                      False, "GA-INV-004", "h.copy_("),
    "narrow round trip": (
        {"#each": "for p in model.parameters(): p.grad.copy_(p.grad.half())"}, False, "GA-INV-004", "p.grad.half()",
    ),
    "narrow by a hook that assigns": (hooked("p.grad = p.grad.to(torch.bfloat16).float()"), False, "GA-INV-004",
                                      "p.grad = p.grad.to("),
    "narrow by a hook that copies": (hooked("p.grad.copy_(p.grad.half())"), False, "GA-INV-004", "p.grad.copy_("),
    "narrow by a hook, data": (hooked("p.grad.data = p.grad.half().float()"), False, "GA-INV-004", "p.grad.half()"),
    "clip by a hook that assigns": (hooked("p.grad = p.grad.clamp(-1, 1)"), False, "GA-INV-005", ".backward()"),
}  # fmt: skip

CORRECT: dict[str, tuple[dict[str, str], bool]] = {
    "as it is": ({}, False),
    "scaled": ({}, True),
    "unscaled by the step": ({"scaler.unscale_(optimizer)": "pass", **NO_CLIP}, True),
    "only the norm": ({"#each": "nn.utils.clip_grad_norm_(params, float('inf'))"}, False),
    "divided once": ({"#full": "for p in model.parameters(): p.grad.div_(N)"}, False),
    "divided, with a norm that is logged": (
        {"#full": "log = float(model[0].weight.grad.norm())\nfor p in model.parameters(): p.grad.div_(N)"},
        False,
    ),
    "zero first": (
        {"optimizer.zero_grad()": "pass", "for k in range(N):": "optimizer.zero_grad()\nfor k in range(N):"},
        False,
    ),
    "zero twice": ({"#zeroed": "model.zero_grad()"}, False),
    "zero by data": ({"optimizer.zero_grad()": "for p in model.parameters(): p.grad.data.zero_()"}, False),
    "zero by None": ({"optimizer.zero_grad()": "for p in params: p.grad = None"}, False),
    "zero by a product": ({"optimizer.zero_grad()": "for p in model.parameters(): p.grad.mul_(0)"}, False),
    "clip by hand": ({"nn.utils.clip_grad_norm_(params, 1.0)": HAND_CLIP}, False),
    "clip by a number": ({"nn.utils.clip_grad_norm_(params, 1.0)": ITEM_CLIP}, False),
    "step by hand": ({**NO_STEP, **NO_CLIP}, False),
    "step by data": (
        {**NO_STEP, "scaler.step(optimizer)\n    scaler.update()": DATA_STEP},
        False,
    ),
    "own buffer": (BUFFER, False),
    "schedule of an epoch": (
        {"schedule.step()": "pass", "#zeroed": "if window == W - 1: schedule.step()"},
        False,
    ),
    "two schedules": (
        {
            "schedule = ": "other = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)\nschedule = ",
            "#scheduled": "other.step()",
        },
        False,
    ),
    "two optimizers": (
        {
            "optimizer = torch.optim.AdamW(params, lr=0.01)": TWO,
            "#stepped": "second.step()\nsecond.zero_grad()",
        },
        False,
    ),
    "a hook that assigns": (hooked("p.grad = p.grad * 1.0"), False),
    "clip by a hook, when the window is full": (
        {**hooked("if last: p.grad.clamp_(-1, 1)", "last = k == N - 1"), **NO_CLIP},
        False,
    ),
    "clip by a hook that assigns, when the window is full": (
        {**hooked("if last: p.grad = p.grad.clamp(-1, 1)", "last = k == N - 1"), **NO_CLIP},
        False,
    ),
    "narrow gradients, added in fp32": (
        {"optimizer = torch": "for p in model.parameters(): p.register_hook(lambda g: g.bfloat16().float())\n"
         "optimizer = torch"},
        False,
    ),
    "narrow weights by autocast": (
        {
            "#before": "with torch.autocast('cpu', torch.bfloat16): out = model(torch.randn(2, 3))\n"
            "out.float().mean().backward()"
        },
        False,
    ),
    "frozen": ({"#before": "model[0].weight.requires_grad_(False)"}, False),
    "two losses a micro-batch": ({"#each": "model(torch.randn(2, 3)).mean().backward()"}, False),
    "a branch that not every micro-batch takes": (
        {"#loss": "loss = loss + (unused(torch.ones(1, 2)).sum() if k == N - 1 else 0)"},
        False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_bug_is_found_at_its_line(name: str) -> None:
    """The obligation, and a line that holds the text."""
    edits, scaled, obligation, line = BROKEN[name]
    found, text = judged(edits, scaled=scaled)
    lines = text.splitlines()
    stated = [(b.obligation, lines[b.place.line - 1]) for b in found.broken]
    assert any(o == obligation and line in at for o, at in stated), stated


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_loop_is_left_alone(name: str, n: int) -> None:
    """With one micro-batch a window, too."""
    edits, scaled = CORRECT[name]
    found, _ = judged(edits, n, scaled=scaled)
    assert not found.broken
    assert found.steps >= 2


def test_an_offence_names_the_parameters() -> None:
    """Only those that it concerns."""
    found, _ = judged(BROKEN["zero of one weight"][0])
    assert [b.params for b in found.broken] == [("0.weight",)]
    assert found.broken[0].micro == 1


def test_too_few_windows_are_told() -> None:
    """A loop that trains on more windows than it was asked for."""
    found, _ = judged({"range(W)": "range(W + 1)"})
    assert [b.why for b in found.broken] == [table().EXTRA.why]


@pytest.mark.parametrize(("synced", "ranks", "broken"), [((2,), 2, []), ((1,), 2, ["GA-SYNC-001"]), ((), 1, [])])
def test_ranks_are_summed_after_the_last_micro_batch(synced: tuple[int, ...], ranks: int, broken: list[str]) -> None:
    """A sum after an earlier one leaves the rest of the window on its own rank."""
    tape, place = Tape(), Location("train.py", 3)
    for number in (1, 2):
        tape.items.append(
            Event("accumulate", place, 0, {"params": ["w"], "number": number, "shared": ["w"] * (ranks > 1)})
        )
        if number in synced:
            tape.items.append(Event("sync", place, 0, {"params": ["w"], "world": ranks}))
    tape.items.append(Event("sync", place, 0, {"params": [], "world": ranks, "elements": 1}))
    tape.items.append(Event("step", place, 0, {"params": ["w"], "optimizer": 0}))
    assert [b.obligation for b in check_protocol(tape, 2, 1).broken] == broken


def test_the_table_is_the_proved_one() -> None:
    """Loaded under a private name, and total."""
    module = table()
    assert module.__name__ == "gradproof_window_table"
    assert set(module.RULES) == {(s, e) for s in module.State for e in module.Event}


def test_a_missing_table_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a code, and where it was looked for."""
    table.cache_clear()
    monkeypatch.setattr(Path, "is_file", lambda path: False)
    with pytest.raises(GradproofError, match=r"GP409\n  found: .*models.accumulation.window\.py"):
        table()
    monkeypatch.undo()
    assert table().RULES


@pytest.mark.parametrize(
    ("x", "expected"), [(0.25, True), (1 / 3, True), (8.0, True), (0.37219, False), (1.2345, False)]
)
def test_simple_numbers(x: float, expected: bool) -> None:
    """Numbers that people write."""
    assert simple(x) is expected
