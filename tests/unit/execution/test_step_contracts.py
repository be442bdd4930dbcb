"""The strategy step_contract: evidence decides, a step refutes, and nothing else is green."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradproof.core.check import Bound, Check, Finding
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Kind, Layer, Outcome, Reach
from gradproof.core.workspace import Workspace
from gradproof.execution.methods import smt as smt_run, smt_strategies as contract_run
from gradproof.rounding import lemma_store as store
from gradproof.rounding.step_contracts import (
    ADD_FORMS,
    LEMMAS,
    QUOTIENT_FORMS,
    ROUND_FORMS,
    Form,
    altered,
    form_of,
    named,
    refuting_case,
    step,
    tried,
)
from models.accumulation.step_contracts import TOO_STRONG, Contracts

ROOT = Path(__file__).parents[3]
ALL = ["round/*", "add/*", "convert/*", "divide-add/*"]


def claim(names: list[str], mutants: tuple[str, ...] = (), least: int = 32, **more: Any) -> Check:
    bounds = {"steps": least, "branches": 2, "paths": 200}
    params = {
        "lemmas": names,
        "empty": "models.accumulation.step_contracts:Empty",
        "mutants": "models.accumulation.step_contracts:TOO_STRONG",
    }
    return Check(
        "T-1", Kind.SMT, Layer.SMT, ("GA-EQ-001",), "a test",
        more.pop("harness", "symbolic.accumulation.chain:kept"),
        more.pop("subject", "models.accumulation.step_contracts:Contracts"), strategy="step_contract", mutants=mutants,
        bounds=tuple(Bound(k, v, "a test") for k, v in bounds.items()), params={**params, "subjects": {}},
    )  # fmt: skip


def ran(check: Check) -> Finding:
    return smt_run.run(check, Workspace(ROOT, ROOT / "reports"))


@pytest.mark.parametrize("name", LEMMAS)
def test_every_contract_keeps_its_steps_and_excludes_a_wrong_result(name: str) -> None:
    form, steps = form_of(name), tried(name)
    assert len(steps) >= 20
    assert [given for given, one in steps if not form.holds(one)] == []
    given, wrong = refuting_case(name)
    assert wrong in list(altered(step(name, given)))
    assert not form.holds(wrong)


def test_a_form_says_what_its_lemma_states() -> None:
    for name, lemma in LEMMAS.items():
        if not name.endswith(("/table", "-fp32/exact", "/power-of-two")):
            assert lemma.statement.endswith(form_of(name).words), name


def test_the_steps_reach_ties_subnormals_and_exact_results() -> None:
    for name in ("round/fp32/half-ulp", "add/fp16/half-ulp", "add/fp32/half-ulp", "convert/fp32-bf16/half-ulp"):
        steps = [one for _, one in tried(name)]
        assert any(one.error == one.fmt.spacing(one.z) / 2 for one in steps), name
        assert any(0 < abs(one.z) < one.normal for one in steps), name
        assert any(one.error == 0 and one.z != 0 for one in steps), name


def test_named_contracts_hold_and_each_says_its_method() -> None:
    found = ran(claim(ALL, tuple(TOO_STRONG)))
    assert (found.outcome, found.reach) == (Outcome.HOLDS, Reach.ALL_INPUTS)
    assert [c.name for c in found.controls if not c.killed] == []
    assert len(found.controls) == len(TOO_STRONG) + 1
    rows = {row["name"]: row for row in found.stats["lemmas"]}
    assert set(named(ALL)) <= set(rows)
    assert {r["solver"] for r in rows["add/fp32/grid"]["solvers"]} == {"bitwuzla", "z3"}
    assert rows["add/fp16/grid"]["cases"] > 10**6
    assert rows["add/fp32/relative"]["premises"] == ["add/fp32/half-ulp", "add/fp32/subnormal"]
    assert "solver" not in found.stats


def test_a_table_of_n_is_bounded() -> None:
    assert ran(claim(["divide/fp16/table"])).reach is Reach.BOUNDED


@pytest.mark.parametrize("name", TOO_STRONG)
def test_a_contract_that_promises_too_much_is_refuted_by_a_step(name: str) -> None:
    """In every format that has the form, the refuting step is one that rounding makes."""
    wrong, forms = TOO_STRONG[name].subject(), [*ROUND_FORMS.values(), *ADD_FORMS.values(), *QUOTIENT_FORMS.values()]
    changed = [n for n in named(ALL) if wrong.of(n) not in forms and not n.endswith("-fp32/exact")]
    assert len(changed) >= 3
    for lemma in changed:
        broken = [given for given, one in tried(lemma) if not wrong.of(lemma).holds(one)]
        true_of_sums = name == "exact_underflow" and lemma.startswith("add/")
        assert bool(broken) is not true_of_sums, lemma
        assert all(form_of(lemma).holds(step(lemma, given)) for given in broken)


class Unproved(Contracts):
    """A promise that no step breaks, and that no lemma states."""

    def of(self, name: str) -> Form:
        """A little less than half an ulp is promised, or a little more."""
        return Form("twice the error", lambda c: c.error <= c.fmt.spacing(c.z))


def test_a_promise_that_no_lemma_states_is_not_known_to_hold() -> None:
    limits = smt_run.Limits(2, 9, 9.0, 1e12)
    explorer, kit = contract_run.explored(claim(["round/fp32/half-ulp"]), limits)
    from symbolic.accumulation.chain import kept

    result = explorer.run(lambda: kept(kit, Unproved()))
    assert result.stopped is not None
    assert (result.stopped.outcome, "not about this promise" in result.stopped.reason) == ("UNKNOWN", True)


def corrupt(folder: Path) -> None:
    path = next(folder.glob("round_fp32_grid.*"))
    path.write_text(path.read_text(encoding="utf-8").replace('"answer": "unsat"', '"answer": "unsat "', 1))


def remove(folder: Path) -> None:
    next(folder.glob("round_fp32_grid.*")).unlink()


def one_solver(folder: Path) -> None:
    run = dict(store.load("round/fp32/grid", folder).run)
    store._write("round/fp32/grid", {**run, "replies": run["replies"][:1]}, folder)


@pytest.mark.parametrize("damage", [corrupt, remove, one_solver])
def test_broken_evidence_is_never_green(
    damage: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "proved"
    shutil.copytree(store.PROVED_FOLDER, folder)
    require, stated = store.require, store.stated
    monkeypatch.setattr(contract_run, "require", lambda names: require(names, folder))
    monkeypatch.setattr(store, "stated", lambda names: stated(names, folder))
    assert ran(claim(["round/fp32/*"])).outcome is Outcome.HOLDS
    damage(folder)
    found = ran(claim(["round/fp32/*"]))
    assert (found.outcome, "round/fp32/grid" in found.reason) == (Outcome.UNKNOWN, True)
    stub = Check(
        "S-1", Kind.STUB, Layer.SMT, (), "a stub", "symbolic.stubs.claims:sound", "symbolic.stubs.d3_grid",
        strategy="exhaustive", params={"lemmas": ["round/fp32/grid"], "subjects": {}, "formats": ["fp16"]},
    )  # fmt: skip
    found = ran(stub)
    assert (found.outcome, "round/fp32/grid" in found.reason) == (Outcome.UNKNOWN, True)


@pytest.mark.parametrize("names", [["round/fp8/*"], [], ["round/*", "nothing"]])
def test_a_pattern_that_matches_nothing_is_an_error(names: list[str]) -> None:
    with pytest.raises(GradproofError, match="GP304"):
        ran(claim(names))


def test_too_few_steps_are_an_error() -> None:
    found = ran(claim(["round/fp32/grid"], least=10**6))
    assert (found.outcome, "are promised" in found.reason) == (Outcome.ERROR, True)


def test_a_lemma_that_the_harness_passes_over_is_not_green(monkeypatch: pytest.MonkeyPatch) -> None:
    import symbolic.accumulation.chain as harnesses

    def first_only(k: Any, promises: Any) -> None:
        every = k.lemmas()
        monkeypatch.setattr(k, "lemmas", lambda: every[:1])
        harnesses.kept(k, promises)

    monkeypatch.setattr(harnesses, "first_only", first_only, raising=False)
    found = ran(claim(["round/fp32/*"], harness="symbolic.accumulation.chain:first_only"))
    assert (found.outcome, "does not decide" in found.reason) == (Outcome.UNKNOWN, True)
