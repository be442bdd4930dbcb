"""The rounding study and the documents beside the evidence: computed, read strictly, and never fresh by mistake."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import study_sample as sample

from gradproof.core.schemas import base as documents
from gradproof.core.schemas.base import Kernels, RoundingStudy, faults, read
from gradproof.core.workspace import PACKAGE, Workspace
from gradproof.evidence.source_digests import sources
from gradproof.extras.conformance import elementwise as rows_of_kernels, report as kernel_report
from gradproof.extras.conformance.__main__ import main as run_kernels
from gradproof.extras.conformance.elementwise import operator_named
from gradproof.extras.studies import rounding as study, rounding as study_rows
from gradproof.extras.studies.rounding import Question, questions, threshold
from gradproof.report import studies
from gradproof.rounding.accumulation import Setting
from gradproof.rounding.bound import answer
from gradproof.rounding.lemma_store import LemmaRefused
from tests.schemas import schemas

Json = dict[str, Any]
REPORTS = Path(__file__).resolve().parents[3] / "reports"


def asked(buffer: str, order: str, tolerance: str, gradients: str = "") -> Question:
    return Question(gradients or buffer, buffer, order, gradients or buffer, Fraction(tolerance), tolerance)


def workspace(folder: Path) -> Workspace:
    (folder / "reports" / "kernels").mkdir(parents=True)
    return Workspace(folder, folder / "reports")


def put(place: Workspace, data: Json, name: str = "rounding.json") -> None:
    (place.reports / name).write_text(json.dumps(data), encoding="utf-8")


def test_the_contract_states_the_tolerances() -> None:
    assert study.tolerances() == sample.TOLERANCES


def test_every_form_order_and_tolerance_is_asked() -> None:
    rows = questions(sample.TOLERANCES)
    assert len({(q.gradients, q.buffer, q.order, q.text) for q in rows}) == len(rows) == 7 * len(study_rows.ORDERS)
    assert {q.order for q in rows} == {"sequential", "pairwise", "blocked:32", "kahan", "neumaier", "any"}
    assert {(q.gradients, q.buffer) for q in rows} >= {("fp16", "fp32"), ("bf16", "bf16")}


@pytest.mark.parametrize(
    ("question", "most", "true", "undecided", "false"),
    [
        (asked("fp32", "sequential", "1e-5"), 512, (256, "certificate"), [], (512, "witness")),
        (asked("fp16", "sequential", "1e-3"), 16, (4, "certificate"), [], (8, "witness")),
        (asked("bf16", "any", "2e-3"), 8, (2, "every order"), [], (4, "witness")),
        (asked("fp16", "kahan", "1e-3"), 16, (8, "certificate"), [16], None),
        (asked("fp32", "any", "1e-3", "fp16"), 4, (4, "every order"), [], None),
        (asked("fp16", "sequential", "1e-9"), 4, (1, "certificate"), [], (2, "witness")),
    ],
)
def test_a_threshold_says_which_rung_decided(
    question: Question, most: int, true: Any, undecided: list[int], false: Any
) -> None:
    row = threshold(question, most)
    assert [(s["n"], s["by"]) if s else None for s in (row["true"], row["false"])] == [true, false]
    assert row["undecided"] == undecided
    assert (row["note"] != "") == bool(undecided)
    if row["true"] and row["true"]["by"] == "certificate":
        assert Fraction(row["true"]["error"]) == answer(question.setting(true[0])).bound
    documents.Threshold.model_validate_json(json.dumps(row))


def test_exhaustion_decides_what_bound_and_witness_leave_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the witness taken away N = 2 is undecided, and the lattice decides it, both ways."""
    monkeypatch.setattr(study_rows, "exhaustive", cache(study_rows.exhaustive))
    worst = study_rows.exhaustive(Setting(2, "fp16")).worst
    monkeypatch.setattr("gradproof.rounding.bound.witness", lambda s: [Fraction(1)] * s.n)
    monkeypatch.setattr("gradproof.rounding.bound.proved", lambda s: (Fraction(s.n - 1), {}, ()))
    beyond = threshold(asked("fp16", "sequential", str(worst * Fraction(9, 10))), 2)
    assert (beyond["false"]["n"], beyond["false"]["by"], beyond["undecided"]) == (2, "exhaustion", [])
    assert Fraction(beyond["false"]["error"]) == worst
    within = threshold(asked("fp16", "sequential", str(worst)), 2)
    assert (within["true"]["n"], within["true"]["by"], within["undecided"]) == (2, "exhaustion", [])
    mixed = threshold(asked("fp32", "sequential", str(worst), "fp16"), 2)
    assert (mixed["true"]["n"], mixed["undecided"]) == (1, [2])


def test_an_order_without_a_bound_at_large_n_is_asked_no_further() -> None:
    row = threshold(asked("bf16", "any", "10"), 1024)
    assert row["asked"] == row["true"]["n"] < 1024
    assert row["note"].startswith("asked no further")


def test_the_command_writes_a_document_that_meets_its_schema(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rounding.json"
    assert study.main(["--out", str(out), "--most", "2"]) == 0
    data = json.loads(out.read_text(encoding="utf-8"))
    jsonschema.validate(data, schemas()["rounding.schema.json"])
    assert read(out, RoundingStudy).most == 2
    assert data["sources"] == sources()
    assert [[p["n"] for p in s["points"]] for s in data["series"]] == [[1, 2]] * 3
    assert "42 thresholds" in capsys.readouterr().out
    assert [p.name for p in tmp_path.iterdir()] == ["rounding.json"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--most", "3"], "GP411"), (["--most", "0"], "GP411"), (["--out", "gone/rounding.json"], "GP407")],
)
def test_a_mistake_in_the_call_is_told_and_nothing_is_written(
    arguments: list[str], code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert study.main(["--out", "rounding.json", *arguments]) == 2
    assert code in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_a_proved_step_contract_there_is_no_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> None:
        raise LemmaRefused("add/fp32/grid: no evidence")

    monkeypatch.setattr(study_rows, "thresholds", refuse)
    assert study.main(["--out", str(tmp_path / "r.json"), "--most", "2"]) == 4
    assert "add/fp32/grid" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_changes_under_the_study_is_no_study(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iter([{"a.py": "0"}, {"a.py": "1"}])
    monkeypatch.setattr("gradproof.evidence.source_digests.sources", lambda: next(seen))
    monkeypatch.setattr(study_rows, "questions", lambda tolerances: [])
    with pytest.raises(study.GradproofError, match="GP219"):
        study.document(1, sample.TOLERANCES)


def test_the_published_schemas_are_those_of_the_reader() -> None:
    for name, schema in schemas().items():
        assert json.loads((REPORTS / name).read_text(encoding="utf-8")) == schema, name


def _row(data: Json, **wanted: str) -> Json:
    return next(r for r in data["thresholds"] if all(r[k] == v for k, v in wanted.items()))  # type: ignore[no-any-return]


FORGED: dict[str, Callable[[Json], Any]] = {
    "a bound beyond the tolerance": lambda d: _row(d, buffer="fp16")["true"].update(error="1/100"),
    "a witness for every input": lambda d: _row(d, buffer="fp16")["true"].update(by="witness"),
    "a certificate against it": lambda d: _row(d, buffer="fp16", tolerance="1e-3")["false"].update(by="certificate"),
    "an error within the tolerance": lambda d: _row(d, buffer="fp16", tolerance="1e-3")["false"].update(error="1/9999"),
    "a wider answer": lambda d: _row(d, buffer="bf16", tolerance="2e-3")["true"].update(n=4),
    "an undecided one left out": lambda d: _row(d, buffer="fp32").update(true=None),
    "an unknown rung": lambda d: _row(d, buffer="fp32")["true"].update(by="hope"),
    "no power of two": lambda d: d.update(most=12),
    "attained above the bound": lambda d: d["series"][0]["points"][2].update(attained="1"),
    "a better ratio": lambda d: d["series"][0]["points"][2].update(ratio=0.5),
    "points out of order": lambda d: d["series"][0]["points"].reverse(),
    "a number that is none": lambda d: d["series"][0]["points"][2].update(bound="1/0"),
    "an error without end": lambda d: d["series"][0]["points"][2].update(bound="1e-9999"),
    "an unknown key": lambda d: d.update(grade="A"),
    "a missing key": lambda d: d.pop("sources"),
    "another format": lambda d: d.update(schema="gradproof-rounding/2"),
    "a float for a count": lambda d: d.update(most=8.0),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_study_is_rejected_with_a_reason(name: str, tmp_path: Path) -> None:
    data, place = copy.deepcopy(sample.rounding()), workspace(tmp_path)
    put(place, data)
    assert studies.rounding(place)["status"] == "fresh"
    assert faults(data) == []
    FORGED[name](data)
    put(place, data)
    section = studies.rounding(place)
    assert (section["status"], section["document"]) == ("rejected", None)
    assert section["reason"].startswith("rounding.json is rejected: ")
    assert faults(data)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "gradproof-rounding/1"}', "\x00", '{"seconds": NaN}'])
def test_what_is_no_document_is_rejected(text: str, tmp_path: Path) -> None:
    place = workspace(tmp_path)
    (place.reports / "rounding.json").write_text(text, encoding="utf-8")
    (place.reports / "kernels" / "cpu.json").write_text(text, encoding="utf-8")
    assert studies.rounding(place)["status"] == "rejected"
    [one] = studies.kernels(place, [], {})["documents"]
    assert one["status"] == "rejected"
    assert one["reason"].startswith("kernels/cpu.json is rejected: ")
    assert one["rows"] == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda s: s.update({"rounding/bound.py": "0" * 64}), "rounding/bound.py changed"),
        (lambda s: s.update({"rounding/old.py": "0" * 64}), "rounding/old.py is gone"),
        (lambda s: s.pop("rounding/accumulation.py"), "rounding/accumulation.py is new"),
    ],
)
def test_a_study_of_other_files_is_stale(change: Callable[[Json], Any], word: str, tmp_path: Path) -> None:
    place, data = workspace(tmp_path), sample.rounding()
    change(data["sources"])
    put(place, data)
    section = studies.rounding(place)
    assert section["status"] == "stale"
    assert word in section["reason"]
    assert section["document"] == data


def test_without_a_document_the_study_is_absent(tmp_path: Path) -> None:
    section = studies.rounding(workspace(tmp_path))
    assert (section["status"], section["document"]) == ("absent", None)
    assert "python -m gradproof.extras.studies.rounding" in section["reason"]
    assert studies.kernels(workspace(tmp_path / "other"), [], {}) == {"documents": [], "relies": []}


def test_the_workspace_carries_documents_to_a_folder_of_reports(tmp_path: Path) -> None:
    place = workspace(tmp_path)
    put(place, sample.rounding())
    put(place, sample.kernels(), "kernels/cpu.json")
    elsewhere = Workspace(tmp_path, tmp_path / "elsewhere")
    assert studies.rounding(elsewhere)["status"] == "fresh"
    assert [d["path"] for d in studies.kernels(elsewhere, [], {})["documents"]] == ["kernels/cpu.json"]


def test_the_sources_are_a_closure_of_imports(tmp_path: Path) -> None:
    found = sources()
    assert {"extras/studies/rounding.py", "rounding/bound.py", "rounding/lattice.py", "arith/linear.py"} <= set(found)
    assert all(
        name.startswith(("rounding/", "arith/", "extras/studies/rounding.py")) and (PACKAGE / name).is_file()
        for name in found
    )
    assert "rounding/__init__.py" in found
    (tmp_path / "rounding").mkdir()
    (tmp_path / "extras" / "studies").mkdir(parents=True)
    (tmp_path / "extras" / "studies" / "rounding.py").write_text("def f():\n    from gradproof.rounding import other\n")
    (tmp_path / "rounding" / "other.py").write_text("import gradproof.arith.thing\nimport gradproof.core.outcome\n")
    (tmp_path / "rounding" / "unused.py").write_text("")
    (tmp_path / "arith").mkdir()
    (tmp_path / "arith" / "thing.py").write_text("")
    assert set(sources(tmp_path)) == {"extras/studies/rounding.py", "rounding/other.py", "arith/thing.py"}


BAD_KERNELS: dict[str, Callable[[Json], Any]] = {
    "holds with a mismatch": lambda d: d["sections"]["elementwise"][0].update(mismatches=1),
    "holds over nothing": lambda d: d["sections"]["elementwise"][0].update(cases=0),
    "holds above its bound": lambda d: d["sections"]["elementwise"][0].update(ratio=1.5),
    "holds at infinity": lambda d: d["sections"]["elementwise"][0].update(ratio="inf"),
    "another summary": lambda d: d["summary"].update(HOLDS=99),
    "no device": lambda d: d["environment"].pop("device"),
    "no torch": lambda d: d["environment"].pop("torch"),
    "an unknown outcome": lambda d: d["sections"]["elementwise"][0].update(outcome="FINE"),
    "an unknown key of a row": lambda d: d["sections"]["elementwise"][0].update(grade="A"),
}


@pytest.mark.parametrize("name", BAD_KERNELS)
def test_a_forged_run_of_kernels_is_rejected(name: str, tmp_path: Path) -> None:
    place, data = workspace(tmp_path), sample.kernels()
    put(place, data, "kernels/cpu.json")
    good = studies.kernels(place, [sample.check("K-1")], sample.HERE)
    assert {r["state"] for r in good["relies"] if r["device"] == "cpu"} == {"HOLDS"}
    assert all("facts" not in row for d in good["documents"] for row in d["rows"])
    BAD_KERNELS[name](data)
    put(place, data, "kernels/cpu.json")
    found = studies.kernels(place, [sample.check("K-1")], sample.HERE)
    assert [d["status"] for d in found["documents"]] == ["rejected"]
    assert {r["state"] for r in found["relies"]} == {"NOT_RUN"}


def test_a_real_run_of_kernels_is_read_and_conforms(tmp_path: Path) -> None:
    """What the module writes is what the report reads, and this CPU's rows carry the operators of the model."""
    place = workspace(tmp_path)
    names = ("add_(tensor)", "mul(tensor)", "div(tensor)", "div(scalar)")
    wanted = [(name, "fp16") for name in names] + [("add_(tensor)", "fp32"), ("to(bf16)", "fp32")]
    rows = [rows_of_kernels.conform(operator_named(name, dtype), dtype, "cpu", 1000) for name, dtype in wanted]
    kernel_report.write(place.reports / "kernels" / "cpu.json", kernel_report.document("cpu", "quick", {"one": rows}))
    assert run_kernels(["--quick", "--only", "matmul", "--out", str(place.reports / "kernels" / "more.json")]) == 0
    for path in sorted((place.reports / "kernels").glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        jsonschema.validate(data, schemas()["kernels.schema.json"])
        assert read(path, Kernels).mode == "quick"
    here = {key: data["environment"][key] for key in ("torch", "machine")}
    rounded = ("add fp16", "multiply fp16", "divide fp16", "add fp32", "convert bf16")
    found = studies.kernels(place, [sample.check("K-1", rounded=(*rounded, "divide fp32"))], here)
    assert [d["status"] for d in found["documents"]] == ["fresh", "fresh"]
    own = {f"{r['operator']} {r['dtype']}": r["state"] for r in found["relies"] if r["device"] == "cpu"}
    assert own == dict.fromkeys(rounded, "HOLDS") | {"divide fp32": "NOT_RUN"}
    assert {r["state"] for r in found["relies"] if r["device"] == "cuda"} == {"NOT_RUN"}
