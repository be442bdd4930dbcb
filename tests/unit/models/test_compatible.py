"""Accumulation beside other features: the right loop holds with each, and each was really on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gradproof.contract.model import load
from gradproof.core.outcome import Exit
from gradproof.execution.methods.property import Case, Cell, NoKernel, Place, Refutation
from models.systems import torch_layouts as layouts
from symbolic.systems import falsify_compatible as compatible, falsify_compiled as compiled
from symbolic.systems.falsify_compatible import FEATURES, with_each_feature
from symbolic.systems.falsify_compiled import with_inductor

ROOT = Path(__file__).resolve().parents[3]
OF_THE_SCALER = ("featured_unscale_each", "featured_scale_moved")
OF_EVERY_LOOP = [name for name in layouts.FEATURED if name not in OF_THE_SCALER]
PLACE = Place("cpu", "fp32", {"GA-COMPAT-001": 1e-4}, frozenset({"GA-COMPAT-001"}))


@pytest.mark.parametrize("feature", FEATURES)
def test_each_feature_was_on_and_changes_nothing(feature: str) -> None:
    (case,) = with_each_feature.cases(Cell(feature, 4), PLACE)
    assert with_each_feature.test(layouts.Layout, case, PLACE).covers == {feature}


def test_a_feature_that_is_off_is_not_covered() -> None:
    assert with_each_feature.test(layouts.Layout, Case("plain", 4), PLACE).covers == {"plain"}
    assert "plain" not in with_each_feature.covers(PLACE)


@pytest.mark.parametrize("feature", ["autocast", "fp16", "one_cycle", "checkpoint", "fused"])
@pytest.mark.parametrize("name", OF_EVERY_LOOP)
def test_a_wrong_loop_is_refuted_with_each_feature(feature: str, name: str) -> None:
    with pytest.raises(Refutation, match=feature):
        with_each_feature.test(layouts.FEATURED[name].subject, Case(feature, 4), PLACE)


@pytest.mark.parametrize("name", OF_THE_SCALER)
def test_a_scaler_that_is_used_per_micro_batch_is_refuted_where_there_is_one(name: str) -> None:
    wrong = layouts.FEATURED[name].subject
    with pytest.raises(Refutation, match="fp16: the gradient"):
        with_each_feature.test(wrong, Case("fp16", 4), PLACE)
    assert with_each_feature.test(wrong, Case("fused", 4), PLACE).covers == {"fused"}


def test_a_scaler_that_is_never_updated_is_not_covered() -> None:
    class NeverUpdated(layouts.Layout):
        def step(self, job: layouts.LayoutJob) -> None:
            assert job.scaler is not None
            job.scaler.step(job.optimizer)

    assert with_each_feature.test(NeverUpdated, Case("fp16", 4), PLACE).covers == set()


def test_without_a_compiler_inductor_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled.shutil, "which", lambda name: None)
    with pytest.raises(NoKernel, match="for cpu"):
        with_inductor.probe(Cell("inductor", 4), PLACE)
    said: list[str] = []
    assert compiled.verdict(said.append) is Exit.OPEN
    assert [words.startswith("NOT_RUN: inductor ") for words in said] == [True]


def test_inductor_s_verdict_asks_for_a_captured_graph_and_for_its_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a backend that captures and generates nothing in the place of inductor."""
    monkeypatch.setattr(compiled, "compiler", lambda device: "one")
    monkeypatch.setitem(compatible.BACKENDS, "inductor", "eager")
    said: list[str] = []
    assert compiled.verdict(said.append) is Exit.MET
    assert "HOLDS" in said[-1]
    monkeypatch.setitem(compiled.FEATURED, "featured_last_only", layouts.FEATURED["featured_scale_moved"])
    assert compiled.verdict(said.append) is Exit.BROKEN
    assert said[-1] == "WEAK: featured_last_only survives"
    monkeypatch.setattr(torch, "compile", lambda net, backend: net)
    assert compiled.verdict(said.append) is Exit.BROKEN
    assert said[-1].startswith("VACUOUS: ")


def test_the_controls_and_the_tolerance_are_the_contract_s() -> None:
    contract = load(ROOT / "proofs/gradient-accumulation-training-v1/contract.yaml")
    row = next(t for t in contract.falsification_tests if t.id == "FALSIFY-GT-412")
    assert tuple(row.mutants) == compiled.LOOPS
    (tolerance,) = next(o for o in contract.obligations if o.id == compiled.CLAUSE).tolerance
    assert float(tolerance.value) == compiled.TOLERANCE
