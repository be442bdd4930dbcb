"""The quick suite draws rows of slow functions alone, others for each seed, and says how to draw them again."""

from __future__ import annotations

import json

import pytest

from tests import sampling
from tests.sampling import BUDGET, DURATIONS, drawn

pytest_plugins = ["pytester"]
ROWS = [f"test_slow.py::test_slow[{n}]" for n in range(400)]
TAKES = {"test_slow.py::test_slow": 100 * BUDGET}
SUITE = """
    import pytest

    @pytest.mark.parametrize("n", range(200))
    def test_slow(n):
        assert True

    def test_quick():
        assert True
"""


def test_a_seed_draws_about_its_budget_and_the_same_rows_again() -> None:
    rows = [row for row in ROWS if drawn("a", row, TAKES)]
    assert 1 <= len(rows) <= 12
    assert rows == [row for row in ROWS if drawn("a", row, TAKES)]


def test_the_seeds_together_draw_every_row() -> None:
    missing = {row for row in ROWS if not any(drawn(str(seed), row, TAKES) for seed in range(3000))}
    assert missing == set()


def test_what_is_quick_or_not_known_always_runs() -> None:
    assert all(drawn("a", row, {}) for row in ROWS)
    assert all(drawn("a", row, {"test_slow.py::test_slow": BUDGET}) for row in ROWS)


def test_the_durations_name_tests_that_exist() -> None:
    known = json.loads(DURATIONS.read_text(encoding="utf-8"))
    root = DURATIONS.parents[1]
    gone = [name for name in known if not (root / name.partition("::")[0]).is_file()]
    assert gone == [], "make exhaustive writes tests/durations.json anew"


def test_a_run_says_what_it_leaves_out(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(test_slow=SUITE)
    durations = pytester.path / "durations.json"
    durations.write_text(json.dumps({"test_slow.py::test_slow": 20 * BUDGET}), encoding="utf-8")
    monkeypatch.setattr(sampling, "DURATIONS", durations)
    run = pytester.inline_run("--sample=7", "-p", "no:cacheprovider", plugins=[sampling])
    passed, _, failed = run.listoutcomes()
    names = [report.nodeid for report in passed]
    assert (failed, "test_slow.py::test_quick" in names) == ([], True)
    assert 2 <= len(names) <= 30
    again = pytester.inline_run("--sample=7", "-p", "no:cacheprovider", plugins=[sampling])
    assert [report.nodeid for report in again.listoutcomes()[0]] == names
    every = pytester.inline_run("-p", "no:cacheprovider", plugins=[sampling])
    assert len(every.listoutcomes()[0]) == 201
