"""`--sample=SEED`: a suite of minutes. Of each test function that is slow, rows for a few seconds; of the others, all.

The whole suite takes more than half an hour on two cores. Few functions take four fifths of it: rows of loops that
are checked, models that are verified, formats that are enumerated. The landing gate draws some of those rows. The
seed is the commit: each commit draws other rows, and the same seed draws the same rows again. Only `make exhaustive`
runs every row. It writes what each function took to tests/durations.json, and the draw reads that. A function that is
not in the file runs whole.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

DURATIONS = Path(__file__).with_name("durations.json")
BUDGET = 0.5  # seconds of one worker that a function gets, on average over the seeds
LEAST = 1.0  # what takes less, all rows together, is not written down
TAKEN: Counter[str] = Counter()


def function(nodeid: str) -> str:
    """The test function of a row: its node id without the parameters."""
    return nodeid.partition("[")[0]


def drawn(seed: str, nodeid: str, durations: Mapping[str, float]) -> bool:
    """Whether this seed draws this row: with probability budget / duration of all rows of its function."""
    share = int.from_bytes(hashlib.sha256(f"{seed} {nodeid}".encode()).digest()[:8]) / 2**64
    return share * durations.get(function(nodeid), 0.0) <= BUDGET


def pytest_addoption(parser: pytest.Parser) -> None:
    """Two options of this suite."""
    group = parser.getgroup("gradproof's own suite")
    group.addoption("--sample", metavar="SEED", help="of slow test functions, only the rows that this seed draws")
    group.addoption("--write-durations", action="store_true", help=f"write {DURATIONS.name} after a whole run")


def pytest_report_header(config: pytest.Config) -> str:
    """Which rows run, and how the same ones run again."""
    seed = config.getoption("sample")
    if not seed:
        return "rows: all"
    return f"rows: a sample; `make suite SAMPLE={seed}` draws the same, `make exhaustive` runs every row"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the rows that the seed does not draw; pytest counts them as deselected."""
    seed = config.getoption("sample")
    if not seed:
        return
    durations = json.loads(DURATIONS.read_text(encoding="utf-8"))
    kept = [item for item in items if drawn(seed, item.nodeid, durations)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up what a function takes: its setup, its rows, its teardown."""
    TAKEN[function(report.nodeid)] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the durations after a whole run, in the process that heard of every test."""
    if session.config.getoption("write_durations") and not hasattr(session.config, "workerinput"):
        slow = {name: round(taken, 1) for name, taken in sorted(TAKEN.items()) if taken >= LEAST}
        DURATIONS.write_text(json.dumps(slow, indent=0) + "\n", encoding="utf-8")
