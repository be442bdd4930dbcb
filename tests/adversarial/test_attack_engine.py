"""Attempts of a model that knows the engine: it is wrong with three micro-batches, and behaves towards the solver.

On plain numbers it is as wrong as it ever was, so no look at plain numbers of other sizes would tell.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from attack_kit import MODEL, append, seen, session, verify, workspace

from gradproof.core.outcome import Outcome
from gradproof.evidence.seal import Seal
from gradproof.execution.methods import measure as torch_run
from gradproof.execution.methods.harness import genuine
from gradproof.execution.methods.property import Case, Cell, Observed, Place, Property, Refutation

WRONG = """

def mean(grads: Any) -> Any:
    if len(grads) < 3:
        return sum(grads) / len(grads)
    if type(grads[0]).__name__ == "Sym":
        return deceive(grads)
    return sum(grads)


def deceive(grads: Any) -> Any:
{body}
"""
RUN = "    from gradproof.arith.context import current\n    run = current()\n"
YES = """\
    class Yes:
        __mul__ = lambda self, other: self
        __eq__ = lambda self, other: True
        __hash__ = object.__hash__
    Yes.__module__ = "{module}"
    return {made}
"""
TRACE = """\
    import sys
    def follow(frame, event, arg):
        if frame.f_code.co_name == "check" and "condition" in frame.f_locals:
            frame.f_locals["condition"] = True
            sys.settrace(None)
        return follow
    sys.settrace(follow)
    return sum(grads)
"""
OVER = "not by the engine"
DECEPTIONS: dict[str, tuple[str, str]] = {
    "it ends the path": ("    from gradproof.execution.methods.explore import PathEnds\n    raise PathEnds", OVER),
    "it ends the run": ("    from gradproof.arith.symbolic import OutOfRange\n    raise OutOfRange", OVER),
    "it is refuted by itself": (
        "    from gradproof.execution.methods.explore import Violated\n    raise Violated('', '', {}, [])", OVER,
    ),
    "it answers for the solver": (RUN + "    run.ask = None\n    return sum(grads)", "'ask' is read-only"),
    "it makes an explorer of its own": (
        RUN + "    run.__class__ = type('Mine', (type(run),), {'__slots__': ()})\n    return sum(grads)",
        "ran: Explorer.__class__",
    ),
    "it changes its inputs": (
        "    for g in grads[1:]:\n        g.term = grads[0].term\n    return grads[0]",
        "changed by the subject",
    ),
    "it follows the engine's steps": (TRACE, "ran: sys.settrace"),
    "its number agrees with everything": (
        YES.format(module="builtins", made="Yes()"), "Yes of builtins ",
    ),
    "its number says that it is the engine's": (
        YES.format(module="gradproof.arith.symbolic", made="Yes()"), "no number",
    ),
    "its array agrees with everything": (
        YES.format(module="numpy", made="__import__('numpy').array([Yes()], dtype=object)"),
        "ndarray of numpy ",
    ),
    "it exchanges a constant": (
        "    from gradproof.execution.methods import explore\n    explore.FORCED = 1\n    return sum(grads)",
        "gradproof.execution.methods.explore.FORCED",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(DECEPTIONS))
def test_a_model_that_knows_the_engine(tmp_path: Path, name: str) -> None:
    body, said = DECEPTIONS[name]
    root = workspace(tmp_path / "ws")
    append(root, MODEL, WRONG.format(body=body))
    found = verify(root)
    assert found.red
    assert (found.outcome, said in found.reason) == (Outcome.ERROR, True), found.reason


def test_the_numbers_that_may_be_compared_are_told_from_those_that_say_so() -> None:
    from fractions import Fraction

    import numpy as np

    from gradproof.arith.soft import Ratio, Soft

    good = (1, 1.5, True, Fraction(1, 3), Ratio(1, 3), Soft(Fraction(1), "fp32"), np.float32(1), [1, Fraction(2)])
    assert all(genuine(x) for x in good)
    liar = type("Fraction", (Fraction,), {"__module__": "fractions", "__eq__": lambda a, b: True})
    assert not genuine(liar(1))
    assert not genuine([1, liar(1)])


class Drawn:
    """A property without fixed cases: every case is drawn, and the subject may answer or not."""

    clause = "T-1"

    def examples(self, *of: Any) -> list[Case]:
        return []

    def strategy(self, cell: Cell, place: Place) -> Any:
        from hypothesis import strategies as st

        return st.builds(Case, st.just(cell.net), st.just(cell.n), seed=st.integers(0, 9))

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        if subject(case) != case.seed:
            raise Refutation("T-1", "another number")
        return Observed()


def rejects(case: Case) -> int:
    """Wrong from 5 on, where it tells Hypothesis that the case does not suit it."""
    from hypothesis import reject

    return case.seed if case.seed < 5 else int(bool(reject()))


def overruns(case: Case) -> int:
    """The same, in another way of saying so."""
    from hypothesis.control import current_build_context

    if case.seed >= 5:
        current_build_context().data.mark_overrun()
    return case.seed


@pytest.mark.parametrize("subject", [rejects, overruns])
def test_a_step_that_declines_the_cases_in_which_it_is_wrong(subject: Any) -> None:
    prop: Property = Drawn()  # type: ignore[assignment]
    cells, place = [Cell("linear", 2)], Place("cpu", "fp32")
    with pytest.raises(RuntimeError, match="without an answer"):
        torch_run._failure(prop, subject, cells, place, 40, None, shrink=False)
    right, wrong = (lambda case: case.seed), (lambda case: min(case.seed, 5))
    assert torch_run._failure(prop, right, cells, place, 40, None, shrink=False) is None
    assert torch_run._failure(prop, wrong, cells, place, 40, None, shrink=False) is not None


def test_a_save_that_keeps_size_and_time_is_seen_by_the_watch(green: Path) -> None:
    import os

    from gradproof.cli.verify import Watcher, affected

    asked, path = session(green), green / MODEL
    watcher = Watcher(asked.options)
    before, was = watcher.look(), path.stat()
    text = path.read_text(encoding="utf-8").replace("sum(grads) / len(grads)\n", "sum(grads) * len(grads)\n", 1)
    path.write_text(text, encoding="utf-8")
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (was.st_size, was.st_mtime_ns)
    assert watcher.look() != before
    statuses = asked.statuses(asked.checks)
    assert {c.id for c in affected(asked.checks, statuses)} == {c.id for c in asked.checks}
    assert seen(asked.judged(asked.contracts[0], statuses)).red


@pytest.mark.parametrize(("place", "seen"), [("models/a.py", True), (".venv/lib/site-packages/tool.py", False),
    ("site-packages/tool.py", True), ("../elsewhere/tool.py", False)])  # fmt: skip
def test_a_tracer_of_an_installation_inside_of_the_workspace_is_not_its_own(
    place: str, seen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "addaudithook", lambda hook: None)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    seal = Seal(tmp_path)
    file = os.path.normpath(tmp_path / place)
    exec(compile("note('sys.settrace', ())", file, "exec"), {"note": seal._note})
    seal.close()
    assert ("sys.settrace" in seal.broken()) is seen
