"""The benchmark says what the tools say: its claims are the real ones, and nothing is asserted about time."""

from __future__ import annotations

import pytest

from tests import bench


@pytest.mark.parametrize(
    ("strategy", "n", "said"),
    [
        ("exhaustive", 4, "HOLDS"),
        ("stub_float", 8, "HOLDS"),
        ("stub_float", 512, "REFUTED"),
        ("bit_precise", 1, "HOLDS"),
    ],
)
def test_each_strategy_answers(monkeypatch: pytest.MonkeyPatch, strategy: str, n: int, said: str) -> None:
    """1e-5 in fp32 is true up to N = 256 and false at 512."""
    monkeypatch.setattr(bench, "LIMIT", 300.0)
    assert bench.smt(strategy, n) == said


def test_a_measurement_that_crashes_or_hangs_is_neither_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench.timed(bench.smt, "no such strategy", 0)[0] == "CRASHED"
    monkeypatch.setattr(bench, "LIMIT", -5.0)
    assert bench.timed(bench.smt, "exhaustive", 2)[0] == "TIMEOUT"
