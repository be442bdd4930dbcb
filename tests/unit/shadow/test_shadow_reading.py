"""`check` on steps that were written against it, beside an oracle in float64 that runs them without gradproof."""

from __future__ import annotations

import pytest
import torch
from shadow_reading import CLEAN, OUT, REPORTS, RIGHT, WRONG, Ends, Step, reference

from gradproof.core.outcome import Outcome
from gradproof.shadow.record.run import Run, default_dtype
from gradproof.shadow.verify.obligations import integers_of
from gradproof.shadow.verify.recordings import recorded
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


def masked(run: Run) -> None:
    """Masks of which each micro-batch has as many, made without randomness."""
    torch.manual_seed(run.seed)
    model = torch.nn.Linear(3, 1).to(run.dtype)
    x = torch.randn(run.samples, 4, 3, dtype=run.dtype)
    lengths = 1 + 2 * (torch.arange(run.samples) % 2)
    for a, k in zip(x.split(run.micro_batch_size), lengths.split(run.micro_batch_size), strict=True):
        mask = torch.arange(4)[None] < k[:, None]
        ((model(a).squeeze(-1) ** 2 * mask).sum() / mask.sum()).backward()


def test_integers_that_are_made_without_randomness_are_an_assumption() -> None:
    assert any("that the function makes" in text for text in integers_of(recorded(masked, Run(), 1)[0].tape))
    plain = recorded(RIGHT[-1], Run(), 1)[0].tape
    assert integers_of(plain) == []
