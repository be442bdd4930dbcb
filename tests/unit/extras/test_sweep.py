"""gradproof sweep: statistics without timing, the loop, the document, the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from gradproof.cli import dispatch
from gradproof.core.errors import GradproofError
from gradproof.core.schemas.base import read
from gradproof.core.schemas.sweep import Sweep, SweepPoint, interval, knee, slope
from gradproof.core.workspace import Workspace
from gradproof.extras.studies import sweep
from gradproof.extras.studies.sweep import Asked, refused, stated, throughput_svg, variance_svg
from gradproof.report import studies
from models.speed.throughput import Request, measure, rotated
from tests.schemas import schemas

pytestmark = pytest.mark.usefixtures("one_thread")
Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[3]
SMALL = ["--net", "mlp", "--accum-steps", "1,2", "--micro-batch", "2", "--num-steps", "6", "--draws", "8"]


def curve(*heights: float, spread: float = 0.0) -> list[SweepPoint]:
    """A curve over 1, 2, 4, ... with the same relative spread everywhere."""
    return [SweepPoint(2.0**i, y, y * (1 - spread), y * (1 + spread)) for i, y in enumerate(heights)]


def test_the_interval_of_a_median_is_that_of_the_order_statistics() -> None:
    """Bin(10, 1/2) < 2 with 11 / 1024, and < 3 with 56 / 1024."""
    found = interval([float(v) for v in (3, 1, 2, 10, 9, 8, 7, 6, 5, 4)])
    assert (found.median, found.low, found.high, found.confidence) == (5.5, 2, 9, 1 - 2 * 11 / 1024)
    assert interval([1.0, 2.0, 4.0]).confidence == 0.75
    for bad in ([], [float("nan")]):
        with pytest.raises(ValueError, match="finite"):
            interval(bad)


def test_the_knee_is_the_farthest_above_the_chord() -> None:
    found, _ = knee(curve(10, 20, 38, 40, 41))
    assert found is not None
    assert found.x == 4


@pytest.mark.parametrize(
    ("points", "why"),
    [
        (curve(10, 10.2, 9.9, 10.1, spread=0.05), "flat"),
        (curve(1, 2, 4, 8, 16), "chord"),
        (curve(10, 20, 38, 40, 41, spread=0.5), "chord"),
        (curve(10, 20), "three"),
        (curve(100, 99, 97, 94, 10), "does not rise"),
    ],
)
def test_no_knee_where_there_is_none_beyond_the_spread(points: list[SweepPoint], why: str) -> None:
    found, reason = knee(points)
    assert found is None
    assert why in reason


def test_the_slope_of_a_power_is_its_exponent() -> None:
    found, error = slope([(b, 3 / b, 0.1) for b in (1, 2, 4, 8)])
    assert found == pytest.approx(-1)
    assert 0 < error < 0.1
    with pytest.raises(ValueError, match="two places"):
        slope([(1, 1, 0), (1, 2, 0)])


def test_lengths_are_timed_in_turn() -> None:
    assert [rotated(range(3), turn) for turn in range(4)] == [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]
    ticks: list[int] = []
    found = measure(Request("mlp", 2, (1, 3), steps=4, warm=1), lambda: ticks.append(1))
    assert [(len(s.seconds), len(s.losses), s.collectives) for s in found] == [(4, 4, 0), (4, 4, 0)]
    assert len(ticks) == 10


def made(tmp_path: Path, *more: str) -> tuple[int, Json]:
    """Run the command; its exit code and document."""
    path = tmp_path / "s.json"
    code = dispatch(["sweep", *SMALL, *more, "--out", str(path)])
    return code, json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Json:
    """A sweep on two real ranks."""
    code, data = made(tmp_path_factory.mktemp("sweep"), "--ranks", "2")
    assert code == 0
    return data


def test_ranks_are_counted_one_all_reduce_a_window(document: Json) -> None:
    rows = [(r["accumulate"], r["effective_batch"], r["sync_calls"]) for r in document["rows"]]
    assert rows == [(1, 4, 6), (2, 8, 6)]
    assert [r["effective_batch"] for r in document["variance"]["rows"]] == [2, 4]
    jsonschema.validate(document, schemas()["sweep.schema.json"])


def test_a_drawing_and_a_table_have_every_row(document: Json) -> None:
    found = Sweep.model_validate_json(json.dumps(document))
    text = stated(found)
    assert all(piece in text for piece in ("2 ranks", "samples/s", "knee", "sigma^2 / B", "slope", "all-reduces"))
    assert found.variance is not None
    for svg in (throughput_svg(found), variance_svg(found.variance)):
        assert ElementTree.fromstring(svg).tag.endswith("svg")


FORGED: dict[str, Callable[[Json], Any]] = {
    "another rate": lambda d: d["rows"][0].update(samples_per_sec=1e9),
    "another effective batch": lambda d: d["setup"].update(ranks=1),
    "another knee": lambda d: d["knee"].update(effective_batch=8),
    "a slope of its own": lambda d: d["variance"].update(slope=-1.0),
    "outside called within": lambda d: d["variance"]["rows"][0].update(room=1e-12, within=True),
    "another sigma": lambda d: d["variance"].update(sigma_squared=1.0),
    "rows that were not run": lambda d: d.update(outcome="NOT_RUN"),
    "a row left out": lambda d: d["rows"].pop(),
    "an unknown key": lambda d: d.update(more=1),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_document_is_refused(name: str, document: Json, tmp_path: Path) -> None:
    path, data = tmp_path / "d.json", json.loads(json.dumps(document))
    path.write_text(json.dumps(data), encoding="utf-8")
    assert read(path, Sweep).outcome == "MEASURED"
    FORGED[name](data)
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ValueError, match=r"."):
        read(path, Sweep)


def test_stdout_is_the_document_alone(capsys: Any) -> None:
    assert dispatch(["sweep", *SMALL, "--draws", "0", "--json"]) == 0
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert (data["schema"], data["variance"], [r["sync_calls"] for r in data["rows"]]) == (
        "gradproof-sweep/1",
        None,
        [6, 6],
    )
    assert "measuring" in err


def test_no_device_is_not_run_and_not_green(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("gradproof.evidence.environment.cuda_absent", lambda: "no CUDA driver on this machine")
    code, data = made(tmp_path, "--device", "cuda", "--plot", str(tmp_path / "p.svg"))
    assert (code, data["outcome"], data["rows"], data["knee"]) == (4, "NOT_RUN", [], None)
    assert "NOT_RUN on cuda:" in capsys.readouterr().out
    assert not (tmp_path / "p.svg").exists()


@pytest.mark.parametrize(
    "more",
    [
        ["--accum-steps", "2,1"], ["--accum-steps", "a"], ["--accum-steps", "0,1"], ["--num-steps", "5"],
        ["--ranks", "0"], ["--micro-batch", "0"],
        ["--draws", "1"], ["--seed", "-1"], ["--ranks", "2", "--device", "cuda"],
    ],
)  # fmt: skip
def test_what_says_nothing_is_refused(more: list[str], capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "made", lambda *_: pytest.fail("it ran"))
    assert dispatch(["sweep", *SMALL, *more]) == 2
    assert "GP421" in capsys.readouterr().err


def test_a_loss_that_is_no_number_is_an_error() -> None:
    refused(Asked())
    series = measure(Request("mlp", 2, (1,), steps=1, warm=0))[0]
    with pytest.raises(GradproofError, match="GP422"):
        sweep.row(Asked(), 1, series, [[float("nan")]], 0)


def status(reports: Path) -> dict[str, str]:
    """How the sweep in a folder stands beside the files of this repository."""
    (row,) = [r for r in studies.training(Workspace(ROOT, reports)) if r["name"] == "sweep.json"]
    return row


def test_standing_tells_stale_from_fresh(document: Json, tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    assert status(tmp_path)["status"] == "fresh"
    assert {"models/speed/throughput.py", "models/sampling/transformer.py", "models/sampling/variance.py"} <= set(
        document["sources"]
    )
    assert "gradproof/core/schemas/sweep.py" in document["sources"]
    path.write_text(json.dumps(document | {"sources": document["sources"] | {"models/speed/throughput.py": "0" * 64}}))
    assert status(tmp_path)["status"] == "stale"
    assert "models/speed/throughput.py changed" in status(tmp_path)["reason"]
    path.write_text("{}", encoding="utf-8")
    assert status(tmp_path)["status"] == "rejected"


def test_the_committed_sweep_is_of_these_sources() -> None:
    assert status(ROOT / "reports")["status"] == "fresh"
