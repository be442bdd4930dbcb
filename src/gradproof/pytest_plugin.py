"""The pytest plugin: contracts as items, steps as tests, and the fixture `gradproof`. Nothing is loaded early.

Files proofs/*/contract.yaml of a workspace are collected, one item a check. A test that takes `gradproof_run` is one
training step, which is verified.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gradproof.core.check import Check
    from gradproof.session import Session
    from gradproof.verdict.judge import Ruling


# -- Contracts as pytest items: one item a check, each run in a process of its own as `gradproof prove` and `run` do.
DEPTH = 2  # proofs/<name>/contract.yaml


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
        """Run what has no fresh answer. Fails without an answer; skips what the profile does not ask for."""
        from gradproof.core.errors import GradproofError
        from gradproof.core.outcome import Effect, Outcome

        needed = {self.check.id, *self.check.depends}
        try:
            run = self.asked.run([c for c in self.asked.checks if c.id in needed], lambda event: None)
        except GradproofError as error:
            raise pytest.fail.Exception(error.render(), pytrace=False) from None
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
        pytest.fail(_stated(ruling), pytrace=False)

    def runtest(self) -> None:
        """Fail where the check came out otherwise than its claim says."""
        from gradproof.core.outcome import Effect

        if self.ruling is None or self.ruling.effect is not Effect.DISCHARGED:
            red(self.config).add(self.check.id)
            pytest.fail("no ruling" if self.ruling is None else _stated(self.ruling), pytrace=False)

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
    """--gradproof-profile and --gradproof-accum."""
    group = parser.getgroup("gradproof")
    group.addoption(
        "--gradproof-profile", choices=("ci", "release"), default="ci", help="Profile that contract.yaml is judged by."
    )
    said = "Micro-batches of a window, for steps (repeatable, or N,N).  [default: of the mark, or 4]"
    group.addoption("--gradproof-accum", action="append", default=[], type=counts, metavar="N", help=said)


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


# -- Steps: tests that take a Run, called with micro-batches and with the full batch as `gradproof check` calls them.
STEP = "gradproof_run"


def counts(text: str) -> list[int]:
    """The numbers of `--gradproof-accum 2,4`. Raises ValueError."""
    return [int(word) for word in text.split(",")]


def pytest_configure(config: pytest.Config) -> None:
    """The mark of a step."""
    said = "gradproof(accum_steps=4, micro_batch=2): verify the test, which takes gradproof_run and trains with it"
    config.addinivalue_line("markers", f"{said}; the arguments are those of gradproof.check")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test of a step for each number of micro-batches."""
    if STEP in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("gradproof")
        own = mark.kwargs.get("accum_steps", 4) if mark else 4
        asked = [n for found in metafunc.config.getoption("gradproof_accum") for n in found] or [own]
        metafunc.parametrize(STEP, asked, indirect=True, ids=[f"accum={n}" for n in asked])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raises UsageError for a marked test that takes no Run: it would pass, and nothing would be verified."""
    for item in items:
        names = item._fixtureinfo.argnames if isinstance(item, pytest.Function) else ()
        if STEP not in names and (item.get_closest_marker("gradproof") or STEP in getattr(item, "fixturenames", ())):
            raise pytest.UsageError(f"{item.nodeid} is marked gradproof, or uses {STEP}, and has no argument {STEP}")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Verify a step. Raises AssertionError as gradproof.testing.assert_accumulates does; fails by GradproofError."""
    __tracebackhide__ = True
    given: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    if STEP not in given:
        return None
    from inspect import signature

    from gradproof.core.errors import GradproofError
    from gradproof.testing import assert_accumulates, check

    def step(run: Any) -> Any:
        return pyfuncitem.obj(**given | {STEP: run})

    step.__qualname__ = pyfuncitem.name
    mark = pyfuncitem.get_closest_marker("gradproof")
    args, kwargs = (mark.args, mark.kwargs) if mark else ((), {})
    known = [*signature(check).parameters][1:]
    if wrong := [*map(repr, args), *(name for name in kwargs if name not in known)]:
        found = f"the mark gradproof has no argument {', '.join(wrong)}; it takes, by name, {', '.join(known)}"
        raise pytest.fail.Exception(f"{pyfuncitem.nodeid}: {found}", pytrace=False)
    try:
        assert_accumulates(step, **{**kwargs, "accum_steps": given[STEP]})
    except GradproofError as error:
        raise pytest.fail.Exception(error.render(), pytrace=False) from None
    return True


@pytest.fixture
def gradproof_run(request: pytest.FixtureRequest) -> Any:
    """The Run that a step trains with. It makes a test a step, which is verified (see the mark gradproof)."""
    return request.param  # the number of micro-batches; pytest_pyfunc_call hands over the Run


@pytest.fixture(scope="session")
def gradproof() -> ModuleType:
    """Verify that a training function accumulates gradients correctly: `gradproof.assert_accumulates(train)`."""
    from gradproof import testing

    return testing
