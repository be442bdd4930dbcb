"""Right loops that look wrong are never refuted, and their wrong twins are never green."""

from __future__ import annotations

import pytest
import shadow_alarm_cases as loops
import torch
from torch import nn

from gradproof.core.outcome import Outcome
from gradproof.shadow.tape.run import Run, seed
from tests import checked as verify

SAME = 1e-12
NAMES = tuple(loops.CASES)
DECIDED = {
    "flat_by_cat", "foreach_lists", "pos_weight_alone", "pos_weight", "python_list", "index_list",
    "image_mean", "image_mean_numpy", "mask_times_loss", "prefetched", "validated", "two_epochs",
    "sharpness_aware", "sharpness_aware_class", "validated_from_one_line", "labels_ahead", "picked_globally",
    "listed_by_hand", "main_grad_views", "listed", "main_grad", "padded_buffer", "shuffled_epochs",
    "gate_times_loss", "fixed_normaliser", "share_of_a_number",
}  # fmt: skip
"""Right loops that hold today. Others are undecided, with the reason."""
BLIND = {
    "class_weights", "image_mean", "image_mean_numpy", "validated_by_rows", "picked", "picked_globally",
    "drawn_in_turn",
}  # fmt: skip
"""Loops in which the recorder loses sight, or whose samples cannot be matched: their twins are not refuted either."""


def weights(name: str, full: bool) -> list[torch.Tensor]:
    """The weights at the end, in float64: of the micro-batches, or of the full batch by hand."""
    case, found = loops.CASES[name], list[nn.Module]()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        seed(0)
        if full:
            found.append(case.full(Run()))
        else:
            case.right(Run(), end=found.append)
    finally:
        torch.set_default_dtype(before)
    return [p.detach() for p in found[0].parameters()]


@pytest.mark.parametrize("name", NAMES)
def test_a_right_loop_is_never_refuted(name: str) -> None:
    for ours, full in zip(weights(name, False), weights(name, True), strict=True):
        assert ours.dtype == torch.float64
        assert float((ours - full).abs().max()) < SAME
    found = verify.check(loops.CASES[name].right)
    bad = [(r.obligation, r.reason) for r in found.results if r.outcome in (Outcome.REFUTED, Outcome.ERROR)]
    assert bad == []
    assert all(r.reason for r in found.results)
    if name in DECIDED:
        assert found.code == 0, [(r.obligation, r.reason) for r in found.results if r.outcome is not Outcome.HOLDS]
    else:
        assert any(r.outcome is not Outcome.HOLDS for r in found.results if r.applies)


@pytest.mark.parametrize("name", ["sharpness_aware", "shuffled_epochs"])
def test_what_a_loop_prints_is_no_evidence_against_it(name: str) -> None:
    def printing(run: Run) -> None:
        for i in range(run.micro_batches):
            print(f"{i}.5")
        loops.CASES[name].right(run)

    found = verify.check(printing)
    assert Outcome.REFUTED not in {r.outcome for r in found.results}


@pytest.mark.parametrize("name", NAMES)
def test_its_wrong_twin_is_never_green(name: str) -> None:
    found = verify.check(loops.CASES[name].wrong)
    assert found.code != 0
    assert name in BLIND or found.outcome is Outcome.REFUTED
