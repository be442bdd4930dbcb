"""Attempts with what a release demands and excuses: waivers, clocks, settings, stubs that say what is wanted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import pytest
from attack_kit import CONTRACT, break_model, edit, gate, verify, workspace

from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Effect, Exit, Outcome

TODAY = datetime.now(UTC).date()
SEEDED = "  seeded_bug: missing_scale"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return workspace(tmp_path / "mean")


def waived(root: Path, expires: object, owner: str = "ann") -> None:
    """A waiver of the only obligation in the workspace's settings."""
    (root / "pyproject.toml").write_text(
        f'[[tool.gradproof.waivers]]\nobligation = "T-1"\nowner = "{owner}"\nreason = "later"\nexpires = {expires}\n',
        encoding="utf-8",
    )


def clock(monkeypatch: pytest.MonkeyPatch, shift: timedelta) -> None:
    """The machine's clock, set forward or back for the judge."""

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) + shift

    monkeypatch.setattr("gradproof.session.datetime", Shifted)


def test_a_waiver_that_expired_excuses_nothing(root: Path) -> None:
    edit(root, CONTRACT, "time_limit: 200", "time_limit: 0.05")
    waived(root, TODAY - timedelta(days=1))
    found = verify(root, alone=False)
    assert found.red
    assert "ann expired" in found.why


def test_a_clock_set_back_to_revive_a_waiver_leaves_evidence_ahead_of_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verify(root, alone=False).exit is Exit.MET
    waived(root, TODAY - timedelta(days=1))
    clock(monkeypatch, timedelta(days=-2))
    found = gate(root)
    assert found.red
    assert "machine's clock" in found.reason


def test_a_waiver_of_a_refuted_obligation_is_none(root: Path) -> None:
    break_model(root)
    waived(root, TODAY)
    found = verify(root)
    assert (found.exit, found.effect) == (Exit.BROKEN, Effect.BROKEN)


def test_a_waiver_covers_no_crash(root: Path) -> None:
    edit(root, "models/__init__.py", "return sum(grads) / len(grads)\n", "raise RuntimeError('no')\n")
    waived(root, TODAY)
    found = verify(root)
    assert found.red
    assert found.exit is Exit.CRASH


@pytest.mark.parametrize("owner", [" ", "\u200b", "\u2060\u00ad", "\u3164", "\u202e", "\u0301"])
def test_a_waiver_of_nobody_is_a_mistake(root: Path, owner: str) -> None:
    """A name that nobody can see is none."""
    waived(root, TODAY, owner=owner)
    with pytest.raises(GradproofError, match="GP491"):
        gate(root)


def test_a_waiver_does_not_stand_in_for_the_gates_own_falsification(root: Path) -> None:
    waived(root, TODAY)
    found = gate(root)
    assert found.red
    assert "GATE-1/falsification is NOT_RUN" in found.why


def test_settings_cannot_ask_for_less_than_the_contract(root: Path) -> None:
    edit(root, CONTRACT, SEEDED, f"{SEEDED}\n  least: {{T-1: {{reach: {{smt: all inputs}}, bounds: {{cycles: 2}}}}}}")
    (root / "pyproject.toml").write_text(
        '[tool.gradproof.require.T-1]\nreach = {smt = "sampled"}\nbounds = {micro_batches = 1}\n', encoding="utf-8"
    )
    found = verify(root, alone=False)
    assert found.exit is Exit.OPEN
    assert "bounded, and all inputs" in found.why


NOWHERE = {
    "a reach in a layer without a check": ('reach = {step = "bounded"}', "T-1 x step"),
    "two of them": ('reach = {step = "sampled", crosshair = "bounded"}', "T-1 x crosshair"),
    "a reach on a GPU beside a layer on one": ('layers = ["cuda"]\nreach = {cuda = "sampled"}', "T-1 x cuda"),
}


@pytest.mark.parametrize("name", NOWHERE)
def test_a_demand_on_a_layer_that_nobody_asked_for_asks_for_it(root: Path, name: str) -> None:
    """It would be dropped without a word."""
    demand, cell = NOWHERE[name]
    (root / "pyproject.toml").write_text(f"[tool.gradproof.require.T-1]\n{demand}\n", encoding="utf-8")
    found = verify(root, alone=False)
    assert found.exit is Exit.OPEN
    assert f"{cell}: no check is" in found.why


def test_a_reach_on_a_gpu_asks_for_none_where_the_profile_does_not(root: Path) -> None:
    (root / "pyproject.toml").write_text('[tool.gradproof.require.T-1]\nreach = {cuda = "sampled"}\n', encoding="utf-8")
    assert verify(root, alone=False).exit is Exit.MET


def test_a_bound_of_another_name_is_not_the_one_that_is_asked_for(root: Path) -> None:
    edit(root, CONTRACT, SEEDED, f"{SEEDED}\n  least: {{T-1: {{bounds: {{cycles: 1}}}}}}")
    found = verify(root, alone=False)
    assert found.exit is Exit.OPEN
    assert "cycles is 0, and 1" in found.why


def test_a_stub_that_returns_the_wanted_value_carries_no_proof(tmp_path: Path) -> None:
    found = verify(workspace(tmp_path / "stub", "stub_unsound"), "K-2", alone=False)
    assert found.outcome is Outcome.NOT_RUN
    assert found.red
    assert "STUB-1 is REFUTED" in found.why
