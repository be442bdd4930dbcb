"""What one watched run decides, and that what it cannot see is never called right."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from shadow_protocol_bench import PROTOCOL, names, program, run, source

from gradproof.core.outcome import Outcome
from gradproof.shadow.process.watch import BLIND
from gradproof.shadow.request import expected_obligations
from gradproof.shadow.result import Verification
from tests.checked import watch

HAND = "for p in model.parameters():\n    p.grad.mul_(0.5)"


def seen(edits: dict[str, str], accum_steps: int | None = 4, scaled: bool = False) -> Verification:
    """What is said of a loop of four micro-batches a window."""
    code = program(source(edits))
    return watch(lambda: run(code, names(4, 4, scaled)), accum_steps, 3)


def outcomes(made: Verification) -> dict[str, Outcome]:
    """By obligation."""
    return {r.obligation: r.outcome for r in made.results}


def held(made: Verification) -> bool:
    """Whether everything holds that one run can show."""
    return all(made.result(name).outcome is Outcome.HOLDS for name in PROTOCOL)


BUGS: dict[str, tuple[dict[str, str], bool, str, str]] = {
    "step each": ({"#each": "optimizer.step()"}, False, "GA-INV-003", "optimizer.step()"),
    "step twice": ({"#stepped": "optimizer.step()"}, False, "GA-INV-003", "optimizer.step()"),
    "zero each": ({"#before": "optimizer.zero_grad()"}, False, "GA-INV-002", "optimizer.zero_grad()"),
    "zero each, assigned": ({"#before": "for p in params: p.grad = None"}, False, "GA-INV-002", "p.grad = None"),
    "zero skipped": ({"optimizer.zero_grad()": "pass"}, False, "GA-INV-002", "scaler.step("),
    "clip each": ({"#each": "nn.utils.clip_grad_norm_(params, 1.0)"}, False, "GA-INV-005", "clip_grad_norm_"),
    "clip before unscale": ({"#full": "nn.utils.clip_grad_norm_(params, 1.0)"}, True, "GA-INV-005", "clip_grad_norm_"),
    "clip twice": ({"#clipped": "nn.utils.clip_grad_norm_(params, 0.5)"}, False, "GA-INV-005", "0.5"),
    "clip after the step": (
        {
            "    nn.utils.clip_grad_norm_(params, 1.0)\n": "    pass\n",
            "#stepped": "nn.utils.clip_grad_norm_(params, 2)",
        },
        False,
        "GA-INV-005",
        "clip_grad_norm_(params, 2)",
    ),
    "unscale early": (
        {"#each": "if k == 1: scaler.unscale_(optimizer)", "    scaler.unscale_(optimizer)\n": "    pass\n"},
        True,
        "GA-EQ-001",
        "if k == 1: scaler.unscale_",
    ),
    "zero after each": ({"#each": "optimizer.zero_grad()"}, False, "GA-INV-002", "optimizer.zero_grad()"),
    "zero after each, in place": (
        {"#each": "optimizer.zero_grad(set_to_none=False)"},
        False,
        "GA-INV-002",
        "set_to_none",
    ),
    "zero before each, in place": (
        {"#before": "optimizer.zero_grad(set_to_none=False)"},
        False,
        "GA-INV-002",
        "set_to_none",
    ),
    "schedule twice": ({"#scheduled": "schedule.step()"}, False, "GA-INV-003", "schedule.step()"),
    "schedule each": ({"#each": "schedule.step()"}, False, "GA-INV-003", "schedule.step()"),
    "narrow": (
        {"nn.Linear(4, 2))": "nn.Linear(4, 2)).bfloat16()", "torch.randn(2, 3)": "torch.randn(2, 3).bfloat16()"},
        False,
        "GA-INV-004",
        ".backward()",
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_refuted_at_its_line(name: str) -> None:
    edits, scaled, obligation, line = BUGS[name]
    found = [r for r in seen(edits, scaled=scaled).results if r.outcome is Outcome.REFUTED]
    lines = source(edits).splitlines()
    stated = [(r.obligation, lines[r.location.line - 1]) for r in found if r.location is not None]
    assert any(o == obligation and line in at for o, at in stated), stated


@pytest.mark.parametrize("accum_steps", [None, 4])
def test_a_correct_loop_is_held(accum_steps: int | None) -> None:
    made = seen({}, accum_steps)
    assert made.config == {"accum_steps": 4, "inferred": accum_steps is None, "windows": 3, "seed": 0}
    loss = made.result("GA-INV-001")
    assert outcomes(made) == dict.fromkeys(expected_obligations(1), Outcome.HOLDS) | {loss.obligation: Outcome.UNKNOWN}
    assert not loss.applies
    assert made.code == 0
    assert made.uncovered == [BLIND]


def test_by_what_a_gradient_is_scaled_by_hand_is_seen() -> None:
    """A half is in the full batch as well, and the first lines say so."""
    found = seen({"#full": HAND})
    assert found.result("GA-EQ-001").outcome is Outcome.HOLDS
    assert any(line.startswith("for factors of the loss itself: 0.5 at ") for line in found.taken)


def test_a_step_by_hand_is_opaque() -> None:
    """No optimizer step is seen."""
    step = "with torch.no_grad():\n    for p in model.parameters(): p -= 0.1 * p.grad"
    edits = {"scaler.step(optimizer)\n    scaler.update()": step, "schedule.step()": "pass"}
    assert seen(edits).outcome is Outcome.OPAQUE


def test_a_step_each_is_not_decided_without_a_number() -> None:
    """It looks like a loop that does not accumulate."""
    edits = {"#each": "optimizer.step()\noptimizer.zero_grad()", "scaler.step(optimizer)\n    scaler.update()": "pass"}
    edits |= {"schedule.step()": "pass", "nn.utils.clip_grad_norm_(params, 1.0)": "pass"}
    assert outcomes(seen(edits, None))["GA-INV-003"] is Outcome.UNKNOWN
    assert outcomes(seen(edits, 4))["GA-INV-003"] is Outcome.REFUTED


def test_two_losses_a_micro_batch_are_not_an_offence() -> None:
    """Nor are they called right."""
    made = seen({"#each": "model(torch.randn(2, 3)).mean().backward()"})
    assert outcomes(made)["GA-INV-003"] is Outcome.UNKNOWN


def test_nothing_is_not_right() -> None:
    """A script that does not train."""
    assert watch(lambda: None).outcome is not Outcome.HOLDS


def test_a_script_keeps_its_arguments(tmp_path: Path) -> None:
    """And torch is left as it was."""
    script = tmp_path / "train.py"
    text = source({"for window": "import sys\nassert sys.argv[1:] == ['--epochs', '1']\nfor window"})
    script.write_text("import torch\nfrom torch import nn\nN, W, SCALED = 4, 4, False\n" + text, encoding="utf-8")
    before = list(sys.argv), torch.autograd.backward
    made = watch([str(script), "--epochs", "1"], 4)
    assert made.result("GA-INV-002").outcome is Outcome.HOLDS
    assert (list(sys.argv), torch.autograd.backward) == before
    assert {e["location"].rsplit(":", 1)[0] for e in made.events if e["event"] == "step"} == {str(script)}


def test_the_tail_of_an_epoch_is_a_window() -> None:
    """Ten samples by four: the last window of an epoch has two micro-batches."""
    text = """
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(6, 3))
for epoch in range(2):
    for k, x in enumerate(loader):
        model(x).square().sum().backward()
        if (k + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad()
"""
    code = program(text)
    assert held(watch(lambda: run(code, names(4, 2, False)), 4, 3))
