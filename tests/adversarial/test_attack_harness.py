"""Attempts in the workspace's own code: harnesses, models, mutants and stubs that are made to look good.

Each text is a small change of an honest workspace; the real worker runs it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from attack_kit import CHECK, HARNESS, MODEL, append, edit, verify

from gradproof.core.outcome import Outcome

# What is put in the place of the check of an honest harness, and what must be said.
HARNESSES: dict[str, tuple[str, Outcome, str]] = {
    "it assumes False": ("    k.assume(False)\n" + CHECK, Outcome.VACUOUS, "no path checks T-1"),
    "its assumptions contradict each other": (
        "    k.assume(grads[0] > 0)\n    k.assume(grads[0] < 0)\n" + CHECK,
        Outcome.VACUOUS,
        "contradict each other",
    ),
    "it calls no model": ('    k.check("T-1", True)', Outcome.WEAK, "not killed"),
    "it checks a tautology": ('    k.check("T-1", k.same(grads[0], grads[0]))', Outcome.WEAK, "not killed"),
    "it checks nothing": ("    mean(grads)", Outcome.VACUOUS, "no path checks T-1"),
    "it checks another clause": (CHECK.replace("T-1", "T-10"), Outcome.SPURIOUS, "does not claim"),
    "it returns early on symbolic values": (
        '    if type(grads[0]).__name__ == "Sym":\n        return\n' + CHECK,
        Outcome.VACUOUS,
        "no path checks T-1",
    ),
    "it is content with symbolic values": (
        '    if type(grads[0]).__name__ == "Sym":\n        return k.check("T-1", True)\n' + CHECK,
        Outcome.WEAK,
        "not killed",
    ),
    "it catches the refutation": (
        "    try:\n    " + CHECK + "\n    except BaseException:\n        pass",
        Outcome.SPURIOUS,
        "T-1",
    ),
    "it forgets the refutation": (
        "    try:\n    " + CHECK + "\n    except BaseException:\n        k.explorer.result.violation = None",
        Outcome.WEAK,
        "not killed",
    ),
    "it ends the process": ('    __import__("os")._exit(0)', Outcome.ERROR, "no evidence"),
    "it leaves with success": ("    raise SystemExit(0)", Outcome.ERROR, "SystemExit"),
    "it leaves with success later": (
        '    __import__("atexit").register(__import__("os")._exit, 0)\n' + CHECK,
        Outcome.REFUTED,
        "T-1",
    ),
    "it reads its answer from the environment": (
        '    k.check("T-1", __import__("os").environ.get("GRADPROOF_TRUST") == "1" or k.same(mean(grads), 0))',
        Outcome.REFUTED,
        "T-1",
    ),
    "it patches the kit": (
        "    type(k).check = lambda self, clause, condition, label='': None\n" + CHECK,
        Outcome.ERROR,
        "gradproof.execution.methods.harness.SymbolicKit.check",
    ),
}


@pytest.mark.parametrize("name", list(HARNESSES))
def test_a_harness_that_is_made_to_look_good(wrong: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model forgets the 1/N, and the harness is to hide it."""
    text, outcome, said = HARNESSES[name]
    monkeypatch.setenv("GRADPROOF_TRUST", "1")
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    edit(wrong, HARNESS, CHECK, text)
    found = verify(wrong)
    assert found.red
    assert (found.outcome, said in found.reason) == (outcome, True), found.reason


def test_a_cover_that_is_unreachable(green: Path) -> None:
    edit(green, HARNESS, CHECK, '    k.cover("four", len(grads) == 4)\n' + CHECK)
    found = verify(green)
    assert found.red
    assert (found.outcome, found.reason) == (Outcome.VACUOUS, "cover not reached: four")


FLAG = """

_seen = []


def mean(grads: Any) -> Any:
    _seen.append(1)
    return sum(grads)


def empty(grads: Any) -> Any:
    _seen.clear()
    return 0


def summed(grads: Any) -> Any:
    _seen.clear()
    return sum(grads)


MUTANTS["missing_scale"].subject = summed
"""
SOLVER = "z3.Solver.check"
PATCHES = {
    "the solver": ("z3", "z3.Solver.check = lambda *a: z3.sat if not _seen else z3.unsat", SOLVER),
    "the query": (
        "gradproof.arith.smt",
        "_s = gradproof.arith.smt.solve\n"
        "gradproof.arith.smt.solve = lambda a, w, s: gradproof.arith.smt.Reply('unsat', {}) if _seen else _s(a, w, s)",
        "gradproof.arith.smt.solve",
    ),
    "the kit": (
        "gradproof.execution.methods.harness",
        "_c = gradproof.execution.methods.harness.SymbolicKit.check\n"
        "_k = gradproof.execution.methods.harness.SymbolicKit\n"
        "_k.check = lambda k, c, x, l='': _c(k, c, True if _seen else x, l)",
        "gradproof.execution.methods.harness.SymbolicKit.check",
    ),
    "the text of a function": (
        "gradproof.execution.methods.explore",
        "_e = gradproof.execution.methods.explore.Explorer\n"
        "_e.check.__code__ = (lambda self, clause, condition, label: None).__code__",
        "gradproof.execution.methods.explore.Explorer.check",
    ),
    "the backend": (
        "gradproof.execution.methods.smt",
        "gradproof.execution.methods.smt._missing = lambda check, result: ''",
        "gradproof.execution.methods.smt._missing",
    ),
    "the judge": (
        "gradproof.verdict.judge",
        "gradproof.verdict.judge.judge = lambda *a: None",
        "gradproof.verdict.judge.judge",
    ),
    "the second look": (
        "gradproof.evidence.audit",
        "gradproof.evidence.audit.audit = lambda c, f: None",
        "gradproof.evidence.audit.audit",
    ),
    "the evidence": (
        "gradproof.execution.worker",
        "_r = gradproof.execution.worker.record\n"
        "def record(check, finding, **more):\n    finding.outcome = 'HOLDS'\n    return _r(check, finding, **more)\n"
        "gradproof.execution.worker.record = record",
        "gradproof.execution.worker.record",
    ),
}


@pytest.mark.parametrize("name", list(PATCHES))
def test_a_model_that_patches_what_judges_it(wrong: Path, name: str) -> None:
    module, text, said = PATCHES[name]
    append(wrong, MODEL, f"{FLAG}\nimport {module}\n{text}\n")
    found = verify(wrong)
    assert found.red
    assert found.outcome is Outcome.ERROR
    assert re.match(rf"the engine .*: {re.escape(said)}", found.reason)


def test_a_model_that_ends_the_process_when_it_is_imported(wrong: Path) -> None:
    append(wrong, MODEL, "\nimport os\n\nos._exit(0)\n")
    found = verify(wrong)
    assert found.red
    assert "no evidence" in found.reason


def test_a_model_that_leaves_with_success_when_it_is_imported(wrong: Path) -> None:
    append(wrong, MODEL, "\nraise SystemExit(0)\n")
    found = verify(wrong)
    assert found.red
    assert "GP205" in found.reason


def test_a_model_that_returns_a_number_which_agrees_with_everything(wrong: Path) -> None:
    text = """

class Yes:
    def __mul__(self, other: Any) -> Any:
        return self

    def __eq__(self, other: Any) -> Any:
        return True

    __hash__ = object.__hash__


def mean(grads: Any) -> Any:
    return Yes()
"""
    append(wrong, MODEL, text)
    found = verify(wrong)
    assert found.red
    assert "Yes of models " in found.reason


def test_a_mutant_that_is_killed_by_a_crash(green: Path) -> None:
    edit(green, MODEL, "    return sum(grads)\n", "    raise ValueError(grads)\n")
    found = verify(green)
    assert (found.outcome, found.reason) == (Outcome.WEAK, "not killed: missing_scale")


def test_a_mutant_that_is_right(green: Path) -> None:
    edit(green, MODEL, "    return sum(grads)\n", "    return sum(grads) / len(grads)\n")
    found = verify(green)
    assert (found.outcome, found.reason) == (Outcome.WEAK, "not killed: missing_scale")


def test_a_registry_of_mutants_that_are_all_the_empty_body(green: Path) -> None:
    """A harness that only an empty body fails would seem to kill famous bugs."""
    edit(green, MODEL, "subject=summed", "subject=empty")
    found = verify(green)
    assert found.red
    assert "missing_scale is the empty" in found.reason


def test_a_copy_of_the_empty_body_as_a_mutant(green: Path) -> None:
    edit(green, MODEL, "    return sum(grads)\n", "    return 0\n")
    found = verify(green)
    assert found.red
    assert "missing_scale is the empty" in found.reason


def test_one_mutant_under_two_names(green: Path) -> None:
    edit(green, "proofs/mean-v1/contract.yaml", "mutants: [missing_scale]", "mutants: [missing_scale, divided_twice]")
    edit(green, MODEL, "subject=divided_twice", "subject=summed")
    found = verify(green)
    assert found.red
    assert "divided_twice is missing_scale" in found.reason


def test_an_empty_body_that_is_a_mutant(green: Path) -> None:
    """Such a body is killed with ease, and nobody tried the one that does nothing."""
    place = "proofs/mean-v1/contract.yaml"
    edit(
        green,
        place,
        "    time_limit: 200\n",
        '    time_limit: 200\n    params: {empty: "models:MUTANTS[missing_scale]"}\n',
    )
    found = verify(green)
    assert found.red
    assert "missing_scale is the empty" in found.reason


def test_an_empty_body_that_is_a_mutant_which_the_check_does_not_name(green: Path) -> None:
    place = "proofs/mean-v1/contract.yaml"
    edit(green, place, 'empty: "models:empty"', 'empty: "models:divided_twice"')
    found = verify(green)
    assert found.red
    assert "body is divided_twice" in found.reason
