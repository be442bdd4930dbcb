"""`--format NAME[=PATH]`: every format of each command that judges, one output on stdout, files whole or not there."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from gradproof.cli import dispatch
from gradproof.cli.outputs import NAMES, asked
from gradproof.core import EXIT_CODE, Exit, GradproofError
from gradproof.workspace import Workspace

FILES = tuple(name for name in NAMES if name != "github")


@pytest.fixture(autouse=True)
def no_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


def whole(name: str, text: str) -> None:
    """Raise unless `text` is a document of the format."""
    if name == "json":
        assert json.loads(text)["schema"] == "gradproof-report/1"
    elif name == "junit":
        assert ET.fromstring(text).tag == "testsuites"
    elif name == "sarif":
        assert json.loads(text)["version"] == "2.1.0"
    elif name == "ndjson":
        events = [json.loads(line) for line in text.splitlines()]
        assert [events[0]["event"], events[-1]["event"]] == ["begin", "end"]
        assert events[-2]["event"] == "verdict"
    else:
        assert {"html": "<!doctype html", "md": "# "}.get(name, "") in text.lower()[:40]
        assert len(text) > 200


def test_all_formats_at_once_into_files(toy: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    args = [word for name in FILES for word in ("--format", f"{name}=out/{name}")]
    (toy.root / "out").mkdir()
    assert dispatch(["verify", *args]) == 0
    assert "toy" in capsys.readouterr().out
    for name in FILES:
        whole(name, (toy.root / "out" / name).read_text(encoding="utf-8"))
    events = [json.loads(line)["event"] for line in (toy.root / "out/ndjson").read_text().splitlines()]
    assert (events.count("started"), events.count("finished")) == (5, 6)
    for command in ("report", "gate"):
        assert dispatch([command, *args]) == 0
        for name in FILES:
            whole(name, (toy.root / "out" / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", [n for n in NAMES if n != "text"])
def test_a_machine_format_stands_alone_on_stdout(toy: Workspace, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert dispatch(["gate", "--format", name]) == EXIT_CODE[Exit.OPEN]
    out = capsys.readouterr().out
    if name == "github":
        assert all(line.startswith("::error ") or line.startswith("::warning ") for line in out.splitlines())
    else:
        whole(name, out)


def test_the_summary_is_appended(toy: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    page = toy.root / "summary.md"
    page.write_text("before\n", encoding="utf-8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    assert dispatch(["gate", "--format", "github"]) == EXIT_CODE[Exit.OPEN]
    assert page.read_text(encoding="utf-8").startswith("before\n# ")
    assert dispatch(["gate", "--format", "github=other.md"]) == EXIT_CODE[Exit.OPEN]
    assert (toy.root / "other.md").read_text(encoding="utf-8").startswith("# ")


REFUSED = {
    ("json", "sarif"): "GP430",
    ("github", "json"): "GP430",
    ("junit=a.xml", "sarif=a.xml"): "GP430",
    ("junit=a.xml", "sarif=./a.xml"): "GP430",
    ("xml",): "GP431",
    ("junit=",): "GP431",
    ("",): "GP431",
    ("=a",): "GP431",
}


@pytest.mark.parametrize("texts", REFUSED, ids=" ".join)
def test_outputs_that_cannot_be(texts: tuple[str, ...]) -> None:
    with pytest.raises(GradproofError) as caught:
        asked(texts, False)
    assert caught.value.code == REFUSED[texts]


def test_nothing_is_run_for_outputs_that_cannot_be(toy: Workspace) -> None:
    assert dispatch(["verify", "--format", "json", "--format", "md"]) == EXIT_CODE[Exit.USAGE]
    assert not toy.reports.exists()


@pytest.mark.parametrize("name", ["junit", "ndjson"])
def test_a_place_that_cannot_be_written_is_said(toy: Workspace, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (toy.root / "file").write_text("", encoding="utf-8")
    assert dispatch(["gate", "--format", f"{name}=file/x"]) == EXIT_CODE[Exit.USAGE]
    assert "GP407" in capsys.readouterr().err


def test_several_contracts(toy: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    first = toy.contracts()[0]
    other = first.parent.with_name("other") / "contract.yaml"
    other.parent.mkdir()
    text = first.read_text(encoding="utf-8")
    for name in ("STUB-1", "K-1", "K-2", "F-1", "GATE-1"):
        text = text.replace(name, f"O-{name}")
    other.write_text(text, encoding="utf-8")
    assert dispatch(["gate", "--format", "html=page.html"]) == EXIT_CODE[Exit.USAGE]
    assert "GP432" in capsys.readouterr().err
    dispatch(["gate", "--format", "html={contract}.html", "--format", "json=all.json", "--format", "junit=j.xml"])
    assert {p.name for p in toy.root.glob("*.html")} == {f"{first.parent.name}.html", "other.html"}
    assert len(json.loads((toy.root / "all.json").read_text(encoding="utf-8"))) == 2
    assert len(list(ET.parse(toy.root / "j.xml").iter("testsuite"))) == 2
