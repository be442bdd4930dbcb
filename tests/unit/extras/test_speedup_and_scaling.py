"""Two measured studies: what they run, and that a document agrees with its numbers. No timing is judged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gradproof.core.schemas.base import read
from gradproof.core.schemas.studies import Scaling, Speedup, agreement, median_of, percent
from gradproof.core.workspace import Workspace
from gradproof.extras.studies import scaling, speedup
from gradproof.report import studies
from models.speed import step_speed
from models.speed.large_batch import Plan, train
from models.speed.step_speed import Bench, Timing, doublings, pairs
from tests.schemas import schemas

pytestmark = pytest.mark.usefixtures("one_thread")
Json = dict[str, Any]
REPORTS = Path(__file__).resolve().parents[3] / "reports"
KINDS: dict[str, type[Any]] = {"speedup": Speedup, "scaling": Scaling}


def test_both_ways_take_the_same_samples_and_one_steps_less() -> None:
    bench = Bench(Timing(16, "SGD", micro=2, n=4))
    bench.accumulated()
    assert bench.steps == 1
    bench.separate()
    assert bench.steps == 5
    assert [len(p) for p in bench.parts] == [2] * 4
    found = pairs(Timing(16, "AdamW", micro=2, n=2, pairs=3, warm=1))
    assert len(found) == 3
    assert all(one > 0 < apart for one, apart in found)


def test_a_doubled_step_has_twice_the_micro_batches() -> None:
    """What is timed are whole steps, of n and of 2 n in turn."""
    taken: list[int] = []

    class Counted(Bench):
        def accumulated(self, n: int | None = None) -> None:
            taken.append(len(self.parts[:n]))
            super().accumulated(n)

    original, step_speed.Bench = step_speed.Bench, Counted  # type: ignore[misc]
    try:
        found = doublings(Timing(16, "SGD", micro=2, n=3, pairs=2, warm=1))
    finally:
        step_speed.Bench = original  # type: ignore[misc]
    assert len(found) == 2
    assert taken == [3, 6, 6, 3, 3, 6]


@pytest.mark.parametrize(
    ("values", "agrees"),
    [([11.0, 12.0, 14.0], "inside"), ([1.0, 2.0, 3.0], "below"), ([16.0, 20.0], "above"), ([9.0, 12.0], "undecided")],
)
def test_where_an_interval_lies_beside_the_claim(values: list[float], agrees: str) -> None:
    assert agreement(percent(values)) == agrees


def test_the_warm_up_is_linear_and_then_the_rate_stays() -> None:
    plan = Plan("mlp", 4, 8, 256, rate=0.8, first=0.1, warm=4)
    assert plan.steps == 8
    assert [round(plan.rate_at(i), 3) for i in range(6)] == [0.1, 0.275, 0.45, 0.625, 0.8, 0.8]
    with pytest.raises(ValueError, match="whole number"):
        _ = Plan("mlp", 4, 8, 250, 0.1, 0.1).steps


def test_one_large_step_is_k_small_micro_batches_of_the_same_samples() -> None:
    """At rate 0 nothing moves, so the mean of the k losses is that of the large batch."""
    small, large = (train(Plan("mlp", 4, n, 64, 0.0, 0.0)) for n in (1, 4))
    assert [len(small.losses), len(large.losses)] == [16, 4]
    assert large.losses == pytest.approx([sum(small.losses[i : i + 4]) / 4 for i in range(0, 16, 4)], rel=1e-5)
    assert small.final == large.final


def test_a_training_that_diverges_says_so() -> None:
    found = train(Plan("mlp", 4, 1, 256, 1e30, 1e30))
    assert found.final is None or found.final > 1e10
    assert median_of([1.0, None]) is None
    assert median_of([1.0, 3.0]) == 2.0


def test_the_scaling_command_writes_its_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(scaling, "SEEDS", 1)
    path, plot = tmp_path / "s.json", tmp_path / "s.svg"
    assert scaling.main(["--quick", "--out", str(path), "--plot", str(plot)]) == 0
    found = read(path, Scaling)
    assert [r.accumulate for r in found.runs] == [1, 8, 8, 8]
    assert "2017" in capsys.readouterr().out
    assert plot.read_text(encoding="utf-8").startswith("<svg")


def test_the_speedup_command_writes_its_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(speedup, "QUICK", 2)
    monkeypatch.setattr(speedup, "WIDTHS", (32,))
    monkeypatch.setattr(speedup, "DOUBLED", (1, 2))
    monkeypatch.setattr(speedup, "document", lambda p, d, made=speedup.document: made(p, d, (32,)))
    path = tmp_path / "s.json"
    assert speedup.main(["--quick", "--out", str(path)]) == 0
    found = read(path, Speedup)
    assert [(r.optimizer, len(r.pairs_percent)) for r in found.rows] == [("SGD", 2), ("AdamW", 2)]
    assert [(d.optimizer, d.accumulate) for d in found.doubling] == [("SGD", 1), ("SGD", 2), ("AdamW", 1), ("AdamW", 2)]
    assert "claimed 10 to 15 %" in capsys.readouterr().out


@pytest.mark.parametrize("name", KINDS)
def test_a_mistake_in_the_call_is_told_before_anything_runs(
    name: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = {"speedup": speedup, "scaling": scaling}[name]
    monkeypatch.setattr(module, "document", lambda *_: pytest.fail("it ran"))
    assert module.main(["--out", "no/such/folder/d.json"]) == 2
    assert "GP407" in capsys.readouterr().err


@pytest.mark.parametrize("name", KINDS)
def test_the_committed_documents_are_of_these_sources(name: str) -> None:
    rows = {r["name"]: r for r in studies.training(Workspace(REPORTS.parent, REPORTS))}
    assert rows[f"{name}.json"]["status"] == "fresh", rows[f"{name}.json"]["reason"]
    data = json.loads((REPORTS / f"{name}.json").read_text(encoding="utf-8"))
    jsonschema.validate(data, schemas()[f"{name}.schema.json"])


FORGED: dict[str, Callable[[Json], Any]] = {
    "speedup: another median": lambda d: d["speedup_percent"].update(median=12.0),
    "speedup: a row's median": lambda d: d["rows"][0]["speedup_percent"].update(median=12.0),
    "speedup: agrees": lambda d: d["rows"][0].update(
        agrees="inside" if d["rows"][0]["agrees"] != "inside" else "above"
    ),
    "speedup: another claim": lambda d: d.update(claimed_percent=[0.0, 50.0]),
    "speedup: times that are not those of the pairs": lambda d: d["doubling"][0]["times"].update(median=2.5),
    "scaling: another rate": lambda d: d["runs"][2].update(rate=0.5),
    "scaling: no warm-up": lambda d: d["runs"][3].update(warm_up_steps=0),
    "scaling: another ending": lambda d: d.update(stated="all are alike"),
    "scaling: a median": lambda d: d["runs"][1].update(median_final=0.0),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_document_is_refused(name: str, tmp_path: Path) -> None:
    file, path = name.partition(":")[0], tmp_path / "d.json"
    data = json.loads((REPORTS / f"{file}.json").read_text(encoding="utf-8"))
    FORGED[name](data)
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ValueError, match=r"."):
        read(path, KINDS[file])
