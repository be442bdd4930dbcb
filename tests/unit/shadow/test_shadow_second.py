"""Right loops, loops that ignore `run`, lost sight, reported losses, and what one window or one N cannot show."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import shadow_second as loops
import shadow_steps as steps
import torch

from gradproof.core.outcome import Outcome
from gradproof.shadow.result import Verification
from gradproof.shadow.tape.run import Noted, Run, decimals, inside, numbers
from gradproof.testing import assert_accumulates
from tests import checked as verify

HOLDS, REFUTED, UNKNOWN, OUTSIDE, NOT_RUN = (
    Outcome.HOLDS, Outcome.REFUTED, Outcome.UNKNOWN, Outcome.OUTSIDE, Outcome.NOT_RUN,
)  # fmt: skip


def outcomes(found: Verification) -> dict[str, Outcome]:
    return {r.obligation: r.outcome for r in found.results}


def test_a_right_loop_holds_and_says_what_was_compared() -> None:
    found = verify.check(loops.right)
    assert set(outcomes(found).values()) == {HOLDS}
    assert found.code == 0
    assert "samples: 16 rows" in " ".join(found.notes)


def outcome_of_named(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """GA-EQ-001 of a right loop in a file of this name, which seeds what is drawn."""
    path = folder / f"{name}.py"
    path.write_text((Path(__file__).parents[2] / "data/someones_script.py").read_text(encoding="utf-8"))
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return outcomes(verify.check(module.train))["GA-EQ-001"]


def test_a_saturated_softmax_is_rounding_in_float64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("right23", "right39", "right49")
    assert {outcome_of_named(name, tmp_path, monkeypatch) for name in names} == {HOLDS}


# Numbers beside the proof


@pytest.mark.parametrize(
    ("step", "obligation"),
    [
        (loops.gradients_before, "GA-EQ-001"),
        (loops.partly_zeroed, "GA-EQ-001"),
        (loops.partly_zeroed, "GA-INV-002"),
        (loops.moving_buffer, "GA-INV-003"),
    ],
)
def test_what_differs_in_numbers_does_not_hold(step: loops.Callable[[Run], Any], obligation: str) -> None:
    found = verify.check(step)
    assert found.result(obligation).outcome in (UNKNOWN, REFUTED)
    assert found.code in (1, 4)


@pytest.mark.parametrize("step", [loops.zeroed_in_place, loops.zeroed_by_halves])
def test_gradients_zeroed_in_place_hold(step: Callable[[Run], Any]) -> None:
    assert verify.check(step).code == 0


# The numbers of `run`


@pytest.mark.parametrize(
    ("step", "never"),
    [
        (loops.own_batch_size, ""),
        (loops.own_n, "accum_steps"),
        (loops.own_windows, ""),
    ],
)
def test_a_loop_that_ignores_run_is_not_decided(step: Callable[[Run], Any], never: str) -> None:
    found = verify.check(step)
    assert set(outcomes(found).values()) <= {OUTSIDE, UNKNOWN, HOLDS}
    assert found.result("GA-EQ-001").outcome in (OUTSIDE, UNKNOWN)
    if never:
        assert f"never reads {never}" in found.result("GA-EQ-001").reason
    assert found.code == 4


def test_a_loop_that_ignores_all_of_run_is_refuted_where_one_run_does() -> None:
    found = verify.check(loops.own_everything)
    assert {r.obligation for r in found.results if r.outcome is REFUTED} == {"GA-EQ-001"}
    assert found.code == 1


def test_a_loop_that_reads_other_names_of_run_is_not_refuted() -> None:
    assert REFUTED not in outcomes(verify.check(loops.by_chunks)).values()


def test_a_run_notes_what_is_read_and_counts_as_before() -> None:
    noted = Noted(accum_steps=3, micro_batch_size=5)
    assert noted.samples == Run(accum_steps=3, micro_batch_size=5).samples
    assert noted.read == {"samples"}
    assert noted.full_batch().micro_batch_size == 15
    assert {"accum_steps", "effective_batch_size"} & noted.read


@pytest.mark.parametrize(
    ("options", "undecided"),
    [
        ({"accum_steps": 1}, {"GA-EQ-001", "GA-DATA-001", "GA-INV-004"}),
        ({"windows": 1}, {"GA-INV-002"}),
        ({"windows": 1, "tail": 1}, set()),
    ],
)
def test_what_one_micro_batch_or_one_window_cannot_show(options: dict[str, int], undecided: set[str]) -> None:
    found = verify.check(steps.plain, **options)
    missing = {r.obligation for r in found.results if r.outcome is not HOLDS and r.applies}
    assert undecided <= missing if "accum_steps" in options else undecided == missing
    assert {found.result(name).outcome for name in missing} <= {UNKNOWN}
    assert found.code == (4 if undecided else 0)


def test_the_losses_of_one_micro_batch_a_window_show_nothing() -> None:
    assert verify.check(loops.right, accum_steps=1).result("GA-INV-001").outcome is UNKNOWN


# Lost sight


@pytest.mark.parametrize("name", loops.ADDERS)
def test_a_buffer_of_the_loops_own_that_is_cleared_is_not_refuted(name: str) -> None:
    found = verify.check(partial(loops.summed, add=loops.ADDERS[name]))
    assert REFUTED not in outcomes(found).values()
    assert found.result("GA-INV-004").outcome is HOLDS  # nothing in this run has fewer bits than fp32


@pytest.mark.parametrize("name", loops.ADDERS)
def test_a_buffer_of_the_loops_own_that_is_never_cleared_does_not_hold(name: str) -> None:
    found = verify.check(partial(loops.summed, add=loops.ADDERS[name], clear=False))
    assert found.result("GA-INV-002").outcome is not HOLDS
    assert found.code != 0


@pytest.mark.parametrize("name", loops.ADDERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_buffer_of_16_bits_does_not_hold(name: str, dtype: torch.dtype) -> None:
    add = loops.ADDERS[name]
    found = verify.check(partial(loops.summed, add=lambda h, g: add(h.to(dtype), g.to(dtype)), dtype=dtype))
    assert found.result("GA-INV-004").outcome is not HOLDS
    assert found.code != 0


def test_losses_that_are_summed_and_passed_backward_once() -> None:
    assert verify.check(loops.summed_once).result("GA-INV-004").outcome is HOLDS
    half = verify.check(partial(loops.summed_once, dtype=torch.bfloat16)).result("GA-INV-004")
    assert half.outcome is REFUTED
    assert "a bfloat16 tensor" in half.reason


# Reported losses


@pytest.mark.parametrize("shape", loops.SHAPES)
def test_a_right_loss_in_any_shape_holds(shape: str) -> None:
    found = verify.check(lambda run: loops.SHAPES[shape](loops.right(run)))
    if shape == "millionths":  # rounded to integers, they differ by one here and there, or not at all
        assert found.result("GA-INV-001").outcome is not REFUTED
    else:
        assert found.result("GA-INV-001").outcome is HOLDS, found.result("GA-INV-001").reason
        assert found.code == 0


@pytest.mark.parametrize("shape", loops.SHAPES)
def test_a_divided_loss_in_any_shape_does_not_hold(shape: str) -> None:
    def divided(run: Run) -> Any:
        return loops.SHAPES[shape]([loss / run.accum_steps for loss in loops.right(run)])

    result = verify.check(divided).result("GA-INV-001")
    assert result.outcome is (UNKNOWN if shape == "millionths" else REFUTED), result.reason


def test_a_loss_that_is_not_reported_is_no_obligation_that_holds() -> None:
    found = verify.check(loops.reports_nothing)
    result = found.result("GA-INV-001")
    assert (result.outcome, result.applies) == (UNKNOWN, False)
    assert "returns no loss" in result.reason
    assert found.code == 0
    assert assert_accumulates(loops.reports_nothing).outcome is HOLDS


def printing(run: Run, factor: int = 1, places: int = 7) -> None:
    for window, loss in enumerate(loops.right(run)):
        print(f"window {window}: loss {float(loss) * (factor if run.accum_steps > 1 else 1):.{places}f}, rate 1.00e-03")


def test_printed_losses_are_compared_where_none_is_returned(capsys: pytest.CaptureFixture[str]) -> None:
    result = verify.check(partial(printing, factor=4)).result("GA-INV-001")
    assert (result.outcome, result.applies) == (REFUTED, True)
    assert result.counterexample is not None
    assert result.counterexample["loss"] == pytest.approx(4 * result.counterexample["full_batch"], rel=1e-6)
    capsys.readouterr()
    found = verify.check(printing)
    assert (found.result("GA-INV-001").outcome, found.code) == (UNKNOWN, 0)
    assert 0 < capsys.readouterr().out.count("window 0") <= 5, "what is printed at other values is not passed on"


def test_a_closed_stdout_stops_no_loop_that_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    found = verify.check(partial(printing, factor=4))
    assert found.result("GA-INV-001").outcome is REFUTED


def test_printed_losses_are_equal_within_their_last_place() -> None:
    assert verify.check(partial(printing, places=1)).code == 0


def test_printed_numbers_of_micro_batches_are_not_compared() -> None:
    def each(run: Run) -> None:
        for loss in loops.each_micro_batch(run, 1.0):
            print(f"{float(loss):.4f}")

    found = verify.check(each)
    assert REFUTED not in outcomes(found).values()


def test_decimal_fractions_and_their_last_places() -> None:
    text = "step 3/10 loss=-1.50 (v2.0.1) 2.5e-03, 7% .25 1e5 0.5s"
    assert decimals(text) == [(-1.5, 0.01), (2.5e-3, 1e-4), (0.25, 0.01)]


@pytest.mark.parametrize(("factor", "outcome"), [(1.0, HOLDS), (0.25, HOLDS), (0.5, UNKNOWN)])
def test_one_number_a_micro_batch_is_the_mean_or_the_sum(factor: float, outcome: Outcome) -> None:
    result = verify.check(lambda run: list(loops.each_micro_batch(run, factor if run.accum_steps > 1 else 1.0))).result(
        "GA-INV-001"
    )
    assert result.outcome is outcome, result.reason


def test_numbers_are_found_in_whatever_is_returned() -> None:
    returned = [1, 2.5, True, None, "epoch 3: loss -1.5e-3 (v2)", {"a": (4, [5])}, loops.Report([6.0], "linear-8")]
    assert [x for one in inside(returned) for x in numbers(one)] == [1.0, 2.5, 3.0, -0.0015, 4.0, 5.0, 6.0]
    assert numbers(torch.tensor([7, 8])) == [7.0, 8.0]
    assert numbers(torch.tensor([0.5])) == []  # compared by the domains
