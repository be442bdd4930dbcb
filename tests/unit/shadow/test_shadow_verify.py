"""The verifier on training functions that are right, wrong, or no step that can be verified."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
import shadow_steps as steps
import torch

from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Outcome
from gradproof.shadow.result import ALL_DATA, ON_PATH, Verification, on_path
from tests import checked as verify

HOLDS, REFUTED, OPAQUE, OUTSIDE, UNKNOWN = (
    Outcome.HOLDS, Outcome.REFUTED, Outcome.OPAQUE, Outcome.OUTSIDE, Outcome.UNKNOWN,
)  # fmt: skip


def said(name: str, **options: Any) -> Verification:
    return verify.check(getattr(steps, name), **options)


@pytest.mark.parametrize("name", ["plain", "frozen_batch_norm", "hand_clip"])
@pytest.mark.parametrize("options", [{}, {"accum_steps": 3, "tail": 2}, {"micro_batch": 1}])
def test_a_right_step_is_proved(name: str, options: dict[str, Any]) -> None:
    found = said(name, **options)
    assert found.outcome is HOLDS, [(r.obligation, r.outcome, r.reason) for r in found.results]
    lines = [f"{steps.__file__}:105"] if name == "hand_clip" else []
    assert found.result("GA-EQ-001").reach == on_path(ALL_DATA, lines)
    assert found.code == 0


@pytest.mark.parametrize(
    ("name", "outcomes", "text"),
    [
        ("through_numpy", {OPAQUE}, "p.grad.numpy()"),
        ("batch_norm", {OUTSIDE}, "loss(model(x), y)"),
        ("contrastive", {OUTSIDE}, "output @ target.T"),
        ("nan_in_data", {OPAQUE, UNKNOWN}, ""),
        ("unseeded", {OPAQUE, UNKNOWN, OUTSIDE}, ""),
        ("python_number", {UNKNOWN}, "g.mul_(factor)"),
        ("numpy_function", {OUTSIDE}, ""),
        ("raises", {Outcome.ERROR}, "raise RuntimeError"),
    ],
)
def test_a_step_that_cannot_be_verified_has_its_own_outcome(name: str, outcomes: set[Outcome], text: str) -> None:
    """Never a wrong verdict: neither proved nor refuted."""
    found = said(name)
    result = found.result("GA-EQ-001")
    assert result.outcome in outcomes, result.reason
    assert result.location is not None
    assert text in linecache.getline(result.location.file, result.location.line)
    assert all(r.outcome is not REFUTED for r in found.results)
    assert found.code != 0


def test_rows_that_the_weights_choose_are_those_of_the_recorded_path() -> None:
    result = said("data_dependent_shape").result("GA-EQ-001")
    assert (result.outcome, "recorded path" in result.reach) == (HOLDS, True), result.reason


def test_a_missing_scale_is_refuted_on_the_real_step() -> None:
    found = said("unscaled")
    result = found.result("GA-EQ-001")
    assert result.outcome is REFUTED
    assert "4 times" in result.reason
    assert "divide" in result.help
    assert found.code == 1


def test_a_step_that_trains_nothing_is_not_proved() -> None:
    found = said("nothing")
    assert {r.outcome for r in found.results} == {OUTSIDE}
    assert found.code == 4


def test_a_branch_is_named_where_the_bug_lies_on_its_other_side() -> None:
    """The recorded path is right, and nothing is claimed of the one that other numbers take."""
    found = said("wrong_branch")
    assert ON_PATH[ALL_DATA] in found.result("GA-EQ-001").reach
    assert any("shadow_steps.py" in path for path in found.paths)


def test_what_a_result_rests_on_is_said() -> None:
    found = said("plain", rounding=True)
    assert "addmm" in found.operators
    assert set(found.versions) >= {"torch", "python", "gradproof"}
    assert found.rounding
    assert all(row["within"] in (True, None) for row in found.rounding)
    assert found.config["rounding"] is True
    assert found.seconds["rounding"] > 0


def test_a_rounding_bound_that_does_not_hold_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {"param": "weight", "within": False, "measured": 2.0, "bound": 1.0}
    monkeypatch.setattr("gradproof.shadow.bounds.follow.report", lambda *_: ([broken], ""))
    result = said("plain", rounding=True).result("GA-EQ-001")
    assert (result.outcome, "bound of weight" in result.reason) == (Outcome.ERROR, True)


def test_a_step_with_a_write_that_is_no_operator_has_no_bound() -> None:
    found = said("through_numpy", rounding=True)
    assert found.rounding == []
    assert any(note.startswith("no rounding bound: ") for note in found.notes)


def test_an_operator_without_a_rule_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradproof.shadow.bounds.rules import RULES

    for name in ("mse_loss", "mse_loss_backward"):
        monkeypatch.delitem(RULES, name)
    rows_of = said("plain", rounding=True).rounding
    assert rows_of
    assert all(row["bound"] is None and "aten.mse_loss" in row["reason"] for row in rows_of)


@pytest.mark.parametrize(
    "options",
    [
        {"accum_steps": 0},
        {"tail": 4},
        {"dtype": "float31"},
        {"rounding": True, "ranks": 2},
        {"rounding": True, "fake": True},
        {"ranges": ("data=1",)},
    ],
)
def test_bad_numbers_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(GradproofError, match="GP406"):
        said("plain", **options)


def test_rounding_is_bounded_for_the_ranges_that_are_asked_for() -> None:
    alone = said("plain", rounding=True, windows=1)
    wide = said("plain", rounding=True, windows=1, ranges=("data=max:4", "weight=10%"))
    assert all(row["within"] for row in (*alone.rounding, *wide.rounding))
    assert all(w["bound"] > a["bound"] for w, a in zip(wide.rounding, alone.rounding, strict=True))
    assert any(text.endswith(" data=max:4, weight=10%") for text in wide.assumptions)
    assert all(row["top"] for row in wide.rounding)


def test_a_range_of_nothing_is_a_mistake() -> None:
    with pytest.raises(GradproofError, match="GP406"):
        said("plain", rounding=True, ranges=("wight=1",))


def stale_in_a_hook(run: Any) -> list[torch.Tensor]:
    """A hook of the optimizer adds the gradients of the window before; both runs do so."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    kept: list[torch.Tensor] = []

    def before_step(*_: Any) -> None:
        assert weight.grad is not None
        weight.grad.add_(kept[-1] if kept else 0.0)
        kept.append(weight.grad.clone())

    optimizer.register_step_pre_hook(before_step)
    losses = []
    for i, x in enumerate(torch.randn(run.samples, 3).split(run.micro_batch_size), 1):
        loss = (x * weight).square().mean() / run.accum_steps
        loss.backward()
        losses.append(loss.detach())
        if i % run.accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
    n = run.accum_steps
    return [torch.stack(losses[i : i + n]).sum() for i in range(0, len(losses), n)]


def test_a_hook_of_the_optimizer_leaves_what_it_is_handed_undecided() -> None:
    found = verify.check(stale_in_a_hook)
    undecided = {r.obligation for r in found.results if r.outcome is not HOLDS}
    assert {"GA-INV-002", "GA-INV-004", "GA-INV-005"} <= undecided
    assert found.code == 4
