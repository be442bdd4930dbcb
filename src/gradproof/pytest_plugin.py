"""The pytest plugin: contracts as items, and the fixture `gradproof`. Neither torch nor the engine is loaded early.

Files proofs/*/contract.yaml of a workspace are collected, one item a check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gradproof.core.check import Check
    from gradproof.session import Session
    from gradproof.shadow.result import Verification
    from gradproof.verdict.judge import Ruling


# -- Contracts as pytest items: one item a check, each run in a process of its own as `gradproof prove` and `run` do.
DEPTH = 2  # proofs/<name>/contract.yaml


class BrokenCheck(Exception):
    """A check came out otherwise than its claim says."""


class Inconclusive(Exception):
    """A check that the profile asks for has no answer."""


def workspace_of(path: Path) -> Path | None:
    """The workspace of a contract.yaml, or None for any other file."""
    if path.name != "contract.yaml" or len(path.parents) <= DEPTH or path.parents[1].name != "proofs":
        return None
    from gradproof.core.workspace import is_workspace

    root = path.parents[DEPTH]
    return root if is_workspace(root) else None


class ContractFile(pytest.File):
    """A contract: its checks are the items."""

    def collect(self) -> Iterable[pytest.Item]:
        """One item a check. Raises CollectError with every mistake of the contract, each with its place."""
        from gradproof.core.check import entry_of
        from gradproof.core.errors import GradproofError
        from gradproof.session import Options, Session

        profile = str(self.config.getoption("gradproof_profile"))
        try:
            asked = Session(Options(workspace_of(self.path), (str(self.path),), profile=profile, jobs=1))
            (contract,) = asked.contracts
            checks = list(asked.plans[contract.path])
        except GradproofError as error:
            raise self.CollectError(error.render()) from None
        for check in checks:
            line = contract.places.get(entry_of(check.id), (1, 1))[0] - 1
            yield CheckItem.from_parent(self, name=check.id, check=check, asked=asked, line=line)


class CheckItem(pytest.Item):
    """One check. It runs in the setup phase, where pytest calls what goes wrong an error; a verdict is the call's."""

    def __init__(self, *, check: Check, asked: Session, line: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.check, self.asked, self.line = check, asked, line
        self.ruling: Ruling | None = None
        self.extra_keyword_matches.update((str(check.layer), str(check.kind), *check.obligations))

    def setup(self) -> None:
        """Run what has no fresh answer. Raises Inconclusive; skips what the profile does not ask for."""
        from gradproof.core.outcome import Effect, Outcome

        needed = {self.check.id, *self.check.depends}
        run = self.asked.run([c for c in self.asked.checks if c.id in needed], lambda event: None)
        if run.interrupted:
            raise KeyboardInterrupt
        (contract,) = self.asked.contracts
        verdict = self.asked.judged(contract, self.asked.filled(run).statuses)
        ruling = self.ruling = verdict.rulings[self.check.id]
        if ruling.effect is not Effect.OPEN:
            return
        if ruling.outcome is Outcome.NOT_RUN and not ruling.required:
            pytest.skip(ruling.reason)
        red(self.config).add(self.check.id)
        raise Inconclusive(_stated(ruling))

    def runtest(self) -> None:
        """Raises Broken."""
        from gradproof.core.outcome import Effect

        if self.ruling is None or self.ruling.effect is not Effect.DISCHARGED:
            red(self.config).add(self.check.id)
            raise BrokenCheck("no ruling" if self.ruling is None else _stated(self.ruling))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """What gradproof says, without a traceback of its own."""
        from gradproof.core.errors import GradproofError

        if isinstance(excinfo.value, GradproofError):
            return excinfo.value.render()
        if isinstance(excinfo.value, BrokenCheck | Inconclusive):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """The entry of the contract."""
        return self.path, self.line, self.check.id


def _stated(ruling: Ruling) -> str:
    check = ruling.check
    lines = [f"{check.id} is {ruling.outcome} ({ruling.effect}), expected {check.expect}: {ruling.reason}"]
    lines += [f"  claim: {check.title}", f"  obligations: {', '.join(check.obligations) or 'none'}"]
    return "\n".join([*lines, f"  more: gradproof explain {check.id}"])


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
    return None if workspace_of(file_path) is None else ContractFile.from_parent(parent, path=file_path)


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
    """The checks that are not DISCHARGED in this process, noted where no report of pytest's can be rewritten."""
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
