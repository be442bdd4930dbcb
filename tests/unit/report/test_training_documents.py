"""Documents of the training systems: the files they were made with, how they stand, and what makes them rejected."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import report_sample as sample

from gradproof.core.errors import GradproofError
from gradproof.core.workspace import Workspace
from gradproof.evidence.source_digests import closure
from gradproof.report import consistency, studies
from gradproof.report.formats import html, markdown
from gradproof.report.studies import DETERMINISTIC, MUTATION, TOKENS, TRAINING, settled, sources_of
from tests.schemas import schemas

ROOT = Path(__file__).resolve().parents[3]
Json = dict[str, Any]


def committed(name: str) -> Json:
    """A committed document, as if it had been made with the files as they are."""
    [study] = [s for s in TRAINING if s.file == name]
    data: Json = json.loads((ROOT / "reports" / name).read_text(encoding="utf-8"))
    return data | {"sources": sources_of(study, Workspace(ROOT, ROOT / "reports"))}


def status(tmp_path: Path, name: str, data: Json | str | None, root: Path = ROOT) -> tuple[str, str]:
    """How a document stands that lies in the reports of this checkout, or of `root`."""
    reports = tmp_path / "reports"
    reports.mkdir(exist_ok=True)
    if data is not None:
        (reports / name).write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    [row] = [r for r in studies.training(Workspace(root, reports)) if r["name"] == name]
    return row["status"], row["reason"]


@pytest.mark.parametrize("study", TRAINING, ids=lambda s: str(s.file))
def test_the_committed_documents_are_believed(study: studies.Study) -> None:
    path = ROOT / "reports" / study.file
    jsonschema.validate(json.loads(path.read_text(encoding="utf-8")), schemas()[study.file.replace(".", ".schema.")])
    rows = {r["name"]: r["status"] for r in studies.training(Workspace(ROOT, ROOT / "reports"))}
    assert rows[study.file] in ("fresh", "stale")


@pytest.mark.parametrize("name", ["deterministic.json", "tokens.json"])
def test_a_document_is_fresh_until_a_file_changes(name: str, tmp_path: Path) -> None:
    data = committed(name)
    assert status(tmp_path, name, data)[0] == "fresh"
    first = next(iter(data["sources"]))
    for changed, word in (
        ({**data["sources"], first: "0" * 64}, f"{first} changed"),
        ({k: v for k, v in data["sources"].items() if k != first}, f"{first} is new"),
        ({**data["sources"], "models/old.py": "0" * 64}, "models/old.py is gone"),
    ):
        stated, reason = status(tmp_path, name, {**data, "sources": changed})
        assert stated == "stale"
        assert word in reason
        assert "python -m" in reason


def test_the_mutants_have_a_row_for_each_model(tmp_path: Path) -> None:
    data = committed("mutation.json")
    assert status(tmp_path, "mutation.json", data)[0] == "fresh"
    rows = {r["name"]: r["reason"] for r in studies.training(Workspace(ROOT, tmp_path / "reports"))}
    for row in data["files"]:
        total = sum(row[how] for how in ("refuted", "not_green", "equivalent", "survived"))
        assert rows[f"mutation.json, {row['file']}"].startswith(f"{total} mutants: {row['refuted']} refuted")


FORGED: dict[str, tuple[str, Callable[[Json], Any]]] = {
    "no sources": ("tokens.json", lambda d: d.pop("sources")),
    "a digest that is none": ("tokens.json", lambda d: d["sources"].update({"models/tokens/window.py": "abc"})),
    "a table that is not ok": ("tokens.json", lambda d: d["after_switch"].update(ok=False)),
    "another product": ("tokens.json", lambda d: d["effective_tokens"][0].update(counted=33)),
    "another weight": ("tokens.json", lambda d: d["effective_tokens"][0].update(weight_of_each="1/33")),
    "a bias beyond its bound": ("tokens.json", lambda d: d["bias"]["examples"][1].update(bias="1")),
    "counts of another ratio": ("tokens.json", lambda d: d["bias"]["examples"][1].update(counts=[1, 1])),
    "a curve that is cut": ("tokens.json", lambda d: d["bias"]["by_k"]["2"].pop()),
    "a curve above the bound": ("tokens.json", lambda d: d["bias"]["by_k"]["2"].__setitem__(3, 1.9)),
    "another bound": ("tokens.json", lambda d: d["bias"]["any_k"].__setitem__(3, 1.9)),
    "another largest step": ("tokens.json", lambda d: d["after_switch"].update(at=1)),
    "a step number beyond": ("tokens.json", lambda d: d["after_switch"].update(at=10**6)),
    "a run too few": ("tokens.json", lambda d: d["parity"]["runs"].pop()),
    "SGD that ends elsewhere": ("tokens.json", lambda d: d["parity"]["runs"][2].update(from_without=1e-3)),
    "AdamW that follows the rate": ("tokens.json", lambda d: d["parity"]["runs"][3].update(from_without=1e3)),
    "a late run of other losses": ("tokens.json", lambda d: d["late"]["runs"][0].update(late=0.1)),
    "a late run beside another": ("tokens.json", lambda d: d["late"]["runs"][1].update(late_with=0.1)),
    "a first step too few": ("tokens.json", lambda d: d["first_step"]["runs"].pop()),
    "an unknown key": ("tokens.json", lambda d: d.update(grade="A")),
    "a survivor that is not listed": ("mutation.json", lambda d: d["files"][0].update(survived=99)),
    "a kill by no check": ("mutation.json", lambda d: d["checks"].pop()),
    "no sources of a comparison": ("deterministic.json", lambda d: d.pop("sources")),
    "another comparison": ("deterministic.json", lambda d: d["compared"].update(slower=9.0)),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_document_is_rejected_with_a_reason(name: str, tmp_path: Path) -> None:
    file, change = FORGED[name]
    data = copy.deepcopy(committed(file))
    assert status(tmp_path, file, data)[0] == "fresh"
    change(data)
    stated, reason = status(tmp_path, file, data)
    assert (stated, reason.partition(":")[0]) == ("rejected", f"{file} is rejected")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema": "gradproof-tokens/1"}', "\x00"])
def test_what_is_no_document_is_rejected(text: str, tmp_path: Path) -> None:
    assert status(tmp_path, "tokens.json", text)[0] == "rejected"


def maker(root: Path, text: str = "import symbolic.other\n") -> Path:
    """A workspace whose study of tokens is one file that imports another."""
    (root / "symbolic" / "tokens").mkdir(parents=True, exist_ok=True)
    (root / "symbolic" / "tokens" / "study.py").write_text(text, encoding="utf-8")
    (root / "symbolic" / "other.py").write_text("import json\n", encoding="utf-8")
    return root


def test_a_source_that_is_edited_makes_its_document_stale(tmp_path: Path) -> None:
    root = maker(tmp_path)
    data = committed("tokens.json") | {"sources": sources_of(TOKENS, Workspace(root, root / "reports"))}
    assert status(tmp_path, "tokens.json", data, root)[0] == "fresh"
    (root / "symbolic" / "other.py").write_text("import json  # edited\n", encoding="utf-8")
    assert status(tmp_path, "tokens.json", data, root)[0] == "stale"
    maker(root, "def broken(:\n")
    stated, reason = status(tmp_path, "tokens.json", data, root)
    assert (stated, "cannot be read" in reason) == ("stale", True)


def test_a_document_is_absent_where_it_could_be_made_and_nothing_elsewhere(tmp_path: Path) -> None:
    assert studies.training(Workspace(tmp_path, tmp_path / "reports")) == []
    stated, reason = status(tmp_path, "tokens.json", None, maker(tmp_path))
    assert (stated, "python -m symbolic.tokens.study" in reason) == ("absent", True)


def test_a_source_that_changes_under_a_run_is_refused() -> None:
    place = Workspace(ROOT, ROOT / "reports")
    now = sources_of(DETERMINISTIC, place)
    assert settled(DETERMINISTIC, place, now) == now
    with pytest.raises(GradproofError, match="GP219"):
        settled(DETERMINISTIC, place, {**now, "models/sampling/torch_training.py": "0" * 64})


def test_a_document_of_no_source_is_refused(tmp_path: Path) -> None:
    nowhere = Workspace(tmp_path, tmp_path / "reports")
    with pytest.raises(GradproofError, match=r"no source of tokens\.json"):
        settled(TOKENS, nowhere, sources_of(TOKENS, nowhere))


@pytest.mark.parametrize("file", [study.file for study in TRAINING])
def test_a_committed_document_names_its_sources(file: str) -> None:
    assert len(committed(file)["sources"]) > 3


def test_the_sources_are_a_closure_of_imports_within_folders(tmp_path: Path) -> None:
    for name, text in (
        ("models/a.py", "def f():\n    from models import b\n    import symbolic.c\n    import models.none\n"),
        ("models/b.py", "import models.a, gradproof.arith.soft, gradproof.core.outcome\n"),
        ("symbolic/c.py", "import models.d\n"),
        ("models/d.py", ""),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = set(closure(tmp_path, ["models.a"], ["models", "gradproof.arith"]))
    assert {"models/a.py", "models/b.py", "gradproof/arith/soft.py"} <= found
    assert not {"symbolic/c.py", "models/d.py", "gradproof/core/outcome.py"} & found
    assert set(closure(tmp_path, ["models.a"], ["models", "symbolic"])) >= {"symbolic/c.py", "models/d.py"}


def test_the_measured_files_are_those_of_the_runs() -> None:
    place = Workspace(ROOT, ROOT / "reports")
    assert {"models/sampling/transformer.py", "gradproof/extras/studies/deterministic.py"} <= set(
        sources_of(DETERMINISTIC, place)
    )
    assert {"models/tokens/window.py", "models/tokens/bias.py", "symbolic/tokens/study.py"} <= set(
        sources_of(TOKENS, place)
    )


@pytest.mark.parametrize(
    ("stated", "words"),
    [("fresh", "tokens.json: fresh: why."), ("stale", "tokens.json: STALE, it speaks"), ("absent", "ABSENT: why.")],
)
def test_a_report_tells_how_a_document_stands(stated: str, words: str) -> None:
    report = sample.green()
    report["studies"] = [{"name": "tokens.json", "status": stated, "reason": "why"}]
    consistency.require(report)
    assert words in markdown.render(report)
    assert words in html.render(report)


@pytest.mark.parametrize("rows", [[{"name": "tokens.json", "status": "green", "reason": "why"}], [{"name": "x"}], None])
def test_a_standing_that_is_none_is_refused(rows: Any) -> None:
    report = sample.green() | {"studies": rows}
    with pytest.raises(GradproofError):
        consistency.require(report)


RESOLVED = re.compile(r"""(?:models|place\.resolve)\("(?:models\.)?([a-z_.]+)"\)""")


@pytest.mark.parametrize("study", TRAINING, ids=lambda s: str(s.file))
def test_a_model_that_is_resolved_by_name_is_a_source_too(study: studies.Study) -> None:
    sources = sources_of(study, Workspace(ROOT, ROOT / "reports"))
    starts = [name.replace(".", "/") + ".py" for name in study.starts if not name.endswith(".*")]
    named = {name for key in starts for name in RESOLVED.findall(source(key).read_text(encoding="utf-8"))}
    assert named or study in (TOKENS, MUTATION)
    assert {f"models/{name.replace('.', '/')}.py" for name in named} <= set(sources)


def source(key: str) -> Path:
    """The file of a key of `sources`."""
    return ROOT / "src" / key if key.startswith("gradproof/") else ROOT / key
