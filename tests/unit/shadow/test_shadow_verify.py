"""The verifier on training functions that are right, wrong, or no step that can be verified."""

from __future__ import annotations

import inspect
import linecache
from typing import Any

import numpy as np
import pytest
import shadow_steps as steps
import torch
from gradproof.shadow.domains.modular import Field
from gradproof.shadow.verify import compare, numbers as numeric, recordings as session, verifier as verify
from gradproof.shadow.verify.compare import TapeDifference, differences

from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Outcome
from gradproof.shadow.record.run import Run, record
from gradproof.shadow.result import ALL_INPUTS, PROBABLE, UP_TO_CONSTANTS, Verification, on_path
from gradproof.shadow.tape import Entry

NUMBERS = ("GA-EQ-001", "GA-INV-001")
HOLDS, REFUTED, OPAQUE, OUTSIDE = Outcome.HOLDS, Outcome.REFUTED, Outcome.OPAQUE, Outcome.OUTSIDE


def said(name: str, **options: Any) -> Verification:
    return verify.check(getattr(steps, name), **options)


@pytest.mark.parametrize("name", ["plain", "frozen_batch_norm", "hand_clip"])
@pytest.mark.parametrize("options", [{}, {"accum_steps": 3, "tail": 2}, {"micro_batch": 1}])
def test_a_right_step_is_proved(name: str, options: dict[str, Any]) -> None:
    found = said(name, **options)
    assert found.outcome is HOLDS, [(r.obligation, r.outcome, r.reason) for r in found.results]
    reaches = (ALL_INPUTS, UP_TO_CONSTANTS)
    lines = ["shadow_steps.py:105"] if name == "hand_clip" else []
    assert found.result("GA-EQ-001").reach in [on_path(reach, lines) for reach in reaches]
    assert found.code == 0


@pytest.mark.parametrize(
    ("name", "outcome", "code", "text"),
    [
        ("through_numpy", OPAQUE, "unseen-write", "p.grad.numpy()"),
        ("dropout", OPAQUE, "random-forward", "loss(model(x), y)"),
        ("batch_norm", OUTSIDE, "batch-statistics", "loss(model(x), y)"),
        ("contrastive", OUTSIDE, "batch-statistics", "loss(model(x), y)"),
        ("nan_in_data", OPAQUE, "nan-data", "torch.randn(run.samples, 3)"),
        ("data_dependent_shape", OPAQUE, "data-dependent-shape", "[output > 0]"),
        ("unseeded", OPAQUE, "nondeterministic", "float(inputs[0, 0])"),
        ("python_number", OPAQUE, "flowed", "g.mul_(factor)"),
        ("numpy_function", OPAQUE, "flowed", ""),
        ("raises", Outcome.ERROR, "raised", "raise RuntimeError"),
    ],
)
def test_a_step_that_cannot_be_verified_has_its_own_outcome(name: str, outcome: Outcome, code: str, text: str) -> None:
    """Never a wrong verdict: neither proved nor refuted."""
    found = said(name)
    for obligation in NUMBERS:
        result = found.result(obligation)
        assert (result.outcome, result.details.get("code")) == (outcome, code), result.reason
        assert result.place is not None
        assert text in linecache.getline(result.place.file, result.place.line) or "nan" in code
    assert all(r.outcome is not REFUTED for r in found.results)
    assert found.code != 0


def test_a_missing_scale_is_refuted_on_the_real_step() -> None:
    found = said("unscaled")
    result = found.result("GA-EQ-001")
    assert result.outcome is REFUTED
    assert result.details["factor"] == pytest.approx(4.0, rel=1e-5)
    assert "4 times" in result.reason
    assert "divide" in result.help
    assert result.counterexample is not None
    assert result.counterexample["accumulated"] != result.counterexample["full_batch"]
    assert found.code == 1


def test_a_step_that_trains_nothing_is_not_proved() -> None:
    found = said("nothing")
    assert found.outcome is Outcome.NOT_RUN
    assert {r.outcome for r in found.results if r.obligation != "GA-DATA-001"} == {Outcome.NOT_RUN}
    assert found.code == 4


def test_a_branch_is_followed_to_its_other_side() -> None:
    """The recorded path is right; the one on which the bug lies is found, run and refuted."""
    found = said("wrong_branch")
    assert found.result("GA-EQ-001").outcome is REFUTED
    assert any("path 2" in text for text in found.paths)


def test_a_branch_that_is_never_taken_is_not_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradproof.shadow.verify.paths.TRIES", ())
    monkeypatch.setattr(session, "moved", lambda values, key, scale: dict(values))
    assert said("wrong_branch").result("GA-EQ-001").details["code"] == "judges-disagree"  # numbers at another scale
    monkeypatch.setattr(numeric.Numbers, "sides", lambda self: iter(()))
    found = said("wrong_branch")
    assert found.result("GA-EQ-001").outcome is HOLDS
    assert any("was False in every recording" in text for text in found.uncovered)


def test_without_the_second_recording_a_number_from_python_would_be_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the two-point test guards: take it away and the step is called proved."""
    monkeypatch.setattr(session, "moved", lambda values, key, scale: dict(values))
    assert said("numpy_function").outcome is REFUTED  # the numbers in Python differ from the full batch's
    monkeypatch.setattr(session, "contents_apart", lambda ours, full: [])
    assert said("numpy_function").outcome is HOLDS
    monkeypatch.undo()
    assert said("numpy_function").outcome is OPAQUE


def test_what_a_result_rests_on_is_said() -> None:
    found = said("plain", domains=("real", "field", "rounding"))
    assert "aten.addmm.default" in found.operators
    assert any(name.startswith("param weight") for name in found.shapes)
    assert set(found.versions) >= {"torch", "python", "gradproof"}
    assert found.rounding
    assert all(row["within"] in (True, None) for row in found.rounding)


def test_the_field_alone_says_its_error() -> None:
    result = said("plain").result("GA-EQ-001")
    assert result.outcome is HOLDS
    assert result.reach == PROBABLE
    assert "error probability" in result.details["established_by"]


def test_a_tape_too_large_for_terms_is_no_proof_over_the_reals() -> None:
    alone = said("plain", operations=10)
    assert alone.result("GA-EQ-001").outcome is Outcome.BOUND_HIT
    assert alone.code == 4
    both = said("plain", domains=("real", "field"), operations=10)
    assert both.result("GA-EQ-001").reach == PROBABLE
    assert any("bound" in note for note in both.notes)


def test_a_difference_that_the_real_step_does_not_show_is_spurious(monkeypatch: pytest.MonkeyPatch) -> None:
    """A domain that is wrong must not refute a right step."""

    def wrong(self: Field, a: Any, b: Any) -> Any:
        return self.mul(a, self.add(b, self.const(np.asarray(1.0))))

    monkeypatch.setattr(Field, "div", wrong)
    found = said("plain")
    assert found.result("GA-EQ-001").outcome is Outcome.SPURIOUS
    assert found.code == 4


def test_a_wrong_row_is_opaque(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradproof.shadow.ops import rows, table

    row = rows.lookup("aten.addmm.default")
    assert row is not None
    spoiled = table.OperatorRow(row.op, lambda k, *a, **b: row.rule(k, *a, **b) * 2, row.examples, row.module)
    monkeypatch.setitem(table.TABLE, row.op, spoiled)
    result = said("plain").result("GA-EQ-001")
    assert (result.outcome, result.details["code"]) == (OPAQUE, "disagreement")


def test_an_operator_without_a_row_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradproof.shadow.ops import rows, table

    rows.load()
    for name in ("aten.mse_loss", "aten.mse_loss_backward"):
        monkeypatch.delitem(table.TABLE, name)
    monkeypatch.setattr(verify, "Decomposer", lambda: None)
    result = said("plain").result("GA-EQ-001")
    assert (result.outcome, result.details["code"]) == (OPAQUE, "no-row")
    assert "aten.mse_loss" in result.reason
    assert "gradproof.shadow.register" in result.help
    assert result.place is not None
    assert result.place.file == inspect.getsourcefile(steps)


@pytest.mark.parametrize(
    "options",
    [{"accum_steps": 0}, {"tail": 4}, {"dtype": "float31"}, {"domains": ("complex",)}, {"domains": ("weight",)}],
)
def test_bad_numbers_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|fewer|no dtype|no domain"):
        said("plain", **options)


def test_two_recordings_of_one_run_are_one_tape() -> None:
    run = Run(2, 2, 1)
    one, other = record(steps.plain, run), record(steps.plain, run)
    assert differences(one.tape, other.tape) == []
    entry = next(other.tape.entries())
    entry.args = (*entry.args[:-1], 7.5)
    assert [type(d) for d in differences(one.tape, other.tape)] == [TapeDifference]
    other.tape.items = [item for item in other.tape.items if not isinstance(item, Entry)]
    assert differences(one.tape, other.tape)[0].kind in ("length", "operator")


def test_rounding_is_bounded_for_the_ranges_that_are_asked_for() -> None:
    domains = ("field", "rounding")
    alone = said("plain", domains=domains, windows=1)
    wide = said("plain", domains=domains, windows=1, ranges=("data=max:4", "weight=10%"))
    assert all(row["within"] for row in (*alone.rounding, *wide.rounding))
    assert all(w["bound"] > a["bound"] for w, a in zip(wide.rounding, alone.rounding, strict=True))
    assert "rounding is bounded for data=max:4, weight=10%" in wide.assumptions
    assert all(row["top"] for row in wide.rounding)


def test_a_range_of_nothing_is_a_mistake() -> None:
    with pytest.raises(GradproofError, match="GP406"):
        said("plain", domains=("field", "rounding"), ranges=("wight=1",))


def test_other_values_do_not_depend_on_where_the_users_folder_lies() -> None:
    """Two checkouts of one repository say the same about a step, also in folders of other names."""
    names = ("/home/a/src/loop.py:3+1", "/tmp/x/loop.py:3+1", "/tmp/x/loop.py:4+1")
    first, second, third = (next(iter(compare.moved({("data", n): np.arange(4.0)}, 1).values())) for n in names)
    assert np.array_equal(first, second)
    assert not np.array_equal(first, third)


def behind_a_jump(run: Any) -> list[torch.Tensor]:
    """The gradient is that of a ReLU of x, rounded to bfloat16, minus 1."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    losses = []
    for x in torch.randn(run.samples, 2).split(run.micro_batch_size):
        loss = (torch.relu(x.bfloat16().float() - 1.0) * x * weight).mean() / run.accum_steps
        loss.backward()
        losses.append(loss.detach())
    optimizer.step()
    return losses


KEPT: dict[int, np.ndarray[Any, Any]] = {}


def hidden_at_other_values(run: Any) -> None:
    """Every call writes the gradients of the first one, past torch."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for i, x in enumerate(torch.randn(run.samples, 2).split(run.micro_batch_size)):
        ((x * weight).square().mean() / run.accum_steps).backward()
        assert weight.grad is not None
        held = weight.grad.numpy()
        held[:] = KEPT.setdefault(run.micro_batch_size * 100 + i, held.copy())
    optimizer.step()


def at_a_jump(monkeypatch: pytest.MonkeyPatch, keys: set[int]) -> session.StepRecordings:
    """A session of which the values for `keys` are 1 + 2^-10, which bfloat16 rounds to 1: the ReLU is 0 there."""
    plain = session.moved

    def moved(values: Any, key: int, scale: float = 1.0) -> Any:
        made = plain(values, key, scale)
        return made.with_values({n: np.full_like(v, 1 + 2.0**-10) for n, v in made.items()}) if key in keys else made

    monkeypatch.setattr(session, "moved", moved)
    return session.StepRecordings.make(behind_a_jump, Run(2, 2, 1, "cpu"))


def test_rounding_at_a_jump_is_no_hidden_write(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = at_a_jump(monkeypatch, {1})
    assert session._disagreements(asked, asked.ours, asked.moved), "the storages differ at the first other values"
    assert list(session.disagreement(asked)) == []


def test_a_jump_at_all_other_values_is_not_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    (precondition,) = session.disagreement(at_a_jump(monkeypatch, {1, *session.AGAIN}))
    assert precondition.outcome is OPAQUE
    assert "at other values" in precondition.reason


def test_a_hidden_write_at_other_values_is_no_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "AGAIN", ())
    asked = session.StepRecordings.make(hidden_at_other_values, Run(2, 2, 1, "cpu"))
    found = session._disagreements(asked, asked.ours, asked.moved)
    assert found
    assert not session._at_a_jump(asked, found, asked.moved)
    assert [t.code for t in session.disagreement(asked)] == ["disagreement"]


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
