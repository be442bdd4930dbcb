"""The pytest plugin: contracts as items, and the fixture `gradproof`. Neither torch nor the engine is loaded early.

Files proofs/*/contract.yaml of a workspace are collected, one item a check (see gradproof.pytest_items).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gradproof.shadow.verdict import Verification


SESSION: pytest.StashKey[pytest.Session] = pytest.StashKey()
RED: pytest.StashKey[set[str]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """--gradproof-profile."""
    group = parser.getgroup("gradproof")
    group.addoption(
        "--gradproof-profile", choices=("ci", "release"), default="ci", help="Profile that contract.yaml is judged by."
    )


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A contract of a workspace."""
    if file_path.name != "contract.yaml":
        return None
    from gradproof.pytest_items import items

    return next(items(file_path, parent), None)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """A session with a check that is not discharged ends with a failure, whatever other plugins made of it."""
    if red(config) and (session := config.stash.get(SESSION, None)) is not None and int(session.exitstatus) == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remember the session: its exit status is the last word."""
    session.config.stash[SESSION] = session
    session.config.stash[RED] = set()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """How many checks are not discharged."""
    if left := len(red(config)):
        word = "check is" if left == 1 else "checks are"
        terminalreporter.write_line(f"gradproof: {left} {word} not discharged")


def red(config: pytest.Config) -> set[str]:
    """The checks that came out otherwise than DISCHARGED in this process."""
    return config.stash.get(RED, set())


class Gradproof:
    """What the fixture hands to a test."""

    def check(self, function: Callable[[Any], Any], **options: Any) -> Verification:
        """The verification of a training function, whatever its outcome (see gradproof.testing.check)."""
        from gradproof import testing

        return testing.check(function, **options)

    def assert_accumulates(self, function: Callable[[Any], Any], **options: Any) -> Verification:
        """Raise AssertionError unless every obligation HOLDS (see gradproof.testing.assert_accumulates)."""
        from gradproof import testing

        __tracebackhide__ = True
        return testing.assert_accumulates(function, **options)


@pytest.fixture(scope="session")
def gradproof() -> Gradproof:
    """Verify that a training function accumulates gradients correctly: `gradproof.assert_accumulates(train)`."""
    return Gradproof()
