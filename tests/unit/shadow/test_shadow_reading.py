"""`check` on steps that were written against it, beside an oracle in float64 that runs them without gradproof."""

from __future__ import annotations

import pytest
import torch
from shadow_reading import CLEAN, OUT, REPORTS, RIGHT, WRONG, Ends, Step, reference

from gradproof.core.outcome import Outcome
from gradproof.shadow.tape.run import Run, default_dtype
from tests.checked import check

RUN = Run(dtype=torch.float64)


def ends(step: Step, run: Run) -> Ends:
    """What a run ends with, in float64."""
    with default_dtype(torch.float64):
        step(run)
    return OUT["end"]


def apart(one: Ends, other: Ends) -> float:
    """The largest difference."""
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", WRONG)
def test_the_oracle_finds_it_wrong(name: str) -> None:
    step, _ = WRONG[name]
    assert apart(ends(step, RUN), ends(reference if name in CLEAN else step, RUN.full_batch())) > 1e-2


@pytest.mark.parametrize("step", RIGHT, ids=lambda step: step.__name__)
def test_the_oracle_finds_it_right(step: Step) -> None:
    assert apart(ends(step, RUN), ends(step, RUN.full_batch())) < 1e-12


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_does_not_hold(name: str) -> None:
    step, obligation = WRONG[name]
    found = {r.obligation: r.outcome for r in check(step).results}
    assert found[obligation] not in (Outcome.HOLDS, Outcome.ERROR)


@pytest.mark.parametrize("name", REPORTS)
def test_a_wrong_report_does_not_hold(name: str) -> None:
    found = check(REPORTS[name]).result("GA-INV-001")
    assert found.outcome in (Outcome.REFUTED, Outcome.UNKNOWN)


@pytest.mark.parametrize("step", RIGHT, ids=lambda step: step.__name__)
def test_what_is_right_is_not_refuted(step: Step) -> None:
    found = {r.obligation: r.outcome for r in check(step).results}
    assert not {Outcome.REFUTED, Outcome.ERROR} & set(found.values()), found
