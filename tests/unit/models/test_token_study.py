"""The study of token windows: its tables, what makes it refuse to write, and the drawings."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gradproof.core.errors import GradproofError
from gradproof.report.charts import Curve, Panel
from models.tokens.scaling import SCALING_MUTANTS
from symbolic.tokens import study as token_study
from symbolic.tokens.study import after_switch, document, effective_tokens, failures, main, plots

SEEDS = (5,)


@cache
def small() -> dict[str, Any]:
    """The study on few windows, late instability with one seed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_study, "LATE_SEEDS", SEEDS)
        return document(80)


def test_the_effective_tokens_are_as_documented() -> None:
    rows = effective_tokens()
    assert [(r["tokens"], r["micro_batches"], r["counted"], r["weight_of_each"]) for r in rows] == [
        (8, 4, 32, "1/32"),
        (8, 8, 64, "1/64"),
        (16, 8, 128, "1/128"),
    ]
    assert [r["ok"] for r in effective_tokens([(8, 4, 32), (8, 4, 64)])] == [True, False]


def test_nothing_fails_and_the_document_is_plain_json() -> None:
    assert failures(small()) == []
    assert json.loads(json.dumps(small(), allow_nan=False))["schema"] == "gradproof-tokens/2"


def test_sgd_without_the_scale_ends_bit_for_bit_where_eight_times_the_rate_does() -> None:
    far = {(r["optimizer"], r["run"]): r for r in small()["parity"]["runs"]}
    assert far["SGD", "with 1/K, K times the rate"]["from_without"] == 0
    assert far["SGD", "with 1/K"]["from_without"] > 0.5 * far["SGD", "without 1/K"]["way"]
    assert far["AdamW", "with 1/K"]["from_without"] < 1e-2 * far["AdamW", "without 1/K"]["way"]
    assert far["AdamW", "with 1/K, K times the rate"]["from_without"] > far["AdamW", "without 1/K"]["way"]


def test_the_steps_after_a_switch_rise_and_fall_back() -> None:
    found = after_switch()
    assert found["steps"][0] == pytest.approx(1.7 / 1.063**0.5)
    assert (found["at"], round(found["largest"], 2)) == (19, 4.77)
    assert found["steps"][-1] < found["largest"] / 1.5


def test_the_first_step_without_the_scale_is_n_times_as_long_of_sgd_and_as_long_of_adamw() -> None:
    sgd, adamw = small()["first_step"]["runs"]
    assert sgd["without"] / sgd["with_scale"] == pytest.approx(16, rel=1e-9)
    assert adamw["without"] / adamw["with_scale"] == pytest.approx(1, rel=1e-4)


def test_restoring_the_scale_is_seen_by_sgd_in_the_last_quarter_alone() -> None:
    rows = {(r["optimizer"], r["run"], r["seed"]): r["losses"] for r in small()["late"]["runs"]}
    assert len(rows) == 6
    for seed in SEEDS:
        lost, restored = (rows["SGD", run, seed] for run in (token_study.MISSING, token_study.RESTORED))
        assert lost[:3] == restored[:3]
        assert lost[3:] != restored[3:]
        assert rows["AdamW", token_study.MISSING, seed] == pytest.approx(rows["AdamW", token_study.KEPT, seed])


def test_a_rate_rises_in_a_straight_line() -> None:
    from models.tokens.torch_scaling import Mended, Rising, TorchScaling

    assert [Rising().rate_at(2.0, done) for done in (0.0, 0.5, 1.0)] == [0.02, 1.0, 2.0]
    assert [TorchScaling().rate_at(2.0, done) for done in (0.0, 0.5)] == [2.0, 2.0]
    assert [Mended().divides(False, done) for done in (0.5, 0.75)] == [False, True]


def test_a_table_that_is_not_as_stated_is_not_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {**small(), "effective_tokens": effective_tokens([(8, 4, 64)])}
    monkeypatch.setattr(token_study, "document", lambda windows: wrong)
    assert main(["--out", str(tmp_path / "tokens.json")]) == 1
    assert "8 x 4" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_study_whose_optimizer_clips_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    import models.tokens.torch_scaling

    assert "sgd_clipped" in SCALING_MUTANTS
    clipped = models.tokens.torch_scaling.SCALING_MUTANTS["sgd_clipped"].subject
    monkeypatch.setattr(
        models.tokens.torch_scaling,
        "Documented",
        type("Clipped", (clipped, models.tokens.torch_scaling.Documented), {}),
    )
    monkeypatch.setattr(models.tokens.torch_scaling, "CLIP", 0.01)
    assert token_study.parity(10)["ok"] is False


def test_the_files_are_written_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(token_study, "document", lambda windows: small())
    assert main(["--out", str(tmp_path / "tokens.json"), "--plots", str(tmp_path)]) == 0
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["late_sgd.svg", "parity_adamw.svg", "parity_sgd.svg", "token_bias.svg", "tokens.json"]
    assert main(["--out", str(tmp_path / "no" / "tokens.json")]) == 2
    assert "GP407" in capsys.readouterr().err


def test_too_few_windows_are_a_mistake_in_the_call() -> None:
    with pytest.raises(GradproofError, match="GP411"):
        document(3)


def test_the_drawings_are_xml_with_every_curve() -> None:
    for name, drawing in plots(small()).items():
        root = ElementTree.fromstring(drawing)
        lines = [e for e in root.iter() if e.get("class") == "curve"]
        assert len(lines) == 2 * (4 if name == "token_bias.svg" else 3), name


def test_a_drawing_escapes_its_words_and_refuses_what_it_cannot_draw() -> None:
    words = ("a <title>", "x", "y")
    drawing = Panel(*words, (Curve("a & b", ((1, 0), (4, 2))),), (2, 0)).svg
    assert "a &lt;title&gt;" in drawing
    assert "a &amp; b" in drawing
    for points in ((), ((1.0, float("nan")),), ((float("inf"), 1.0),)):
        with pytest.raises(ValueError, match="finite"):
            Panel(*words, (Curve("a", points),), (2, 0))
