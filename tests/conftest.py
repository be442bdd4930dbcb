"""Every test begins with the same signals, whatever started pytest, and no property is judged by a clock."""

from __future__ import annotations

import gc
import os
import signal

import pytest
from hypothesis import settings

from gradproof.core.workspace import CI
from tests.sampling import (
    pytest_addoption as pytest_addoption,
    pytest_collection_modifyitems as pytest_collection_modifyitems,
    pytest_report_header as pytest_report_header,
    pytest_runtest_logreport as pytest_runtest_logreport,
    pytest_sessionfinish as pytest_sessionfinish,
)

# Tests run side by side: threads of OpenMP that spin for each other cost half of the time. A worker has one, too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

for name in CI[1:]:  # which some services set for the tests themselves; tests set CI, or take it away
    os.environ.pop(name, None)

settings.register_profile("gradproof", deadline=None)
settings.load_profile("gradproof")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it for what it starts with `&`
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Workspaces that are data of tests, and wrong on purpose: the plugin would run their contracts.
collect_ignore_glob = ["corpus/*/proofs"]


@pytest.fixture(scope="module", autouse=True)
def _no_search_through_what_stays() -> None:
    """What earlier modules left is passed over by the collector: torch's frameworks and CrossHair call it often."""
    gc.freeze()
