"""`--format NAME[=PATH]`: every format of each command that judges, one output on stdout, files whole or not there."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from gradproof.cli import dispatch
from gradproof.cli.outputs import NAMES, Output, asked
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, Exit
from gradproof.core.workspace import Workspace

FILES = tuple(name for name in NAMES if name != "github")


@pytest.fixture(autouse=True)
def no_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


def whole(name: str, text: str) -> None:
    """Raise unless `text` is a document of the format."""
    if name == "json":
        assert json.loads(text)["schema"] == "gradproof-report/2"
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
    dispatch(["gate", "--format", "html=all.html"])
    page = (toy.root / "all.html").read_text(encoding="utf-8")
    assert ">GATE NOT MET" in page.replace("</span> ", "</span>")
    assert page.count("0 of 1 obligation discharged") == 2
    assert "href" not in page  # to pages that this command has not written
    (toy.root / "all.html").unlink()
    dispatch(["gate", "--format", "html={contract}.html", "--format", "json=all.json", "--format", "junit=j.xml"])
    dispatch(["gate", "--format", "github={contract}.md"])
    assert {p.name for p in toy.root.glob("*.md")} == {f"{first.parent.name}.md", "other.md"}
    assert "other" not in (toy.root / f"{first.parent.name}.md").read_text(encoding="utf-8").splitlines()[0]
    assert {p.name for p in toy.root.glob("*.html")} == {f"{first.parent.name}.html", "other.html"}
    assert len(json.loads((toy.root / "all.json").read_text(encoding="utf-8"))) == 2
    assert len(list(ET.parse(toy.root / "j.xml").iter("testsuite"))) == 2


# Where outputs may lie.

KEPT = ["proofs/new.json", "models/a.json", "symbolic/deep/a.json", "reports/evidence/a.json", "reports/gpu/K-1/a.json"]


@pytest.mark.parametrize("name", ["json", "ndjson", "github"])
@pytest.mark.parametrize("place", [*KEPT, "pyproject.toml", "loop.py", "mine.yaml", "link", "proofs/../models/a.py"])
def test_what_a_run_is_judged_by_is_never_written_over(
    toy: Workspace, capsys: pytest.CaptureFixture[str], name: str, place: str
) -> None:
    (toy.root / "loop.py").write_text("by hand")
    (toy.root / "mine.yaml").write_text("by hand")
    (toy.root / "link").symlink_to(toy.contracts()[0])
    before = {p: p.read_bytes() for p in toy.root.rglob("*") if p.is_file()}
    assert dispatch(["gate", "--format", f"{name}={place}"]) == EXIT_CODE[Exit.USAGE]
    assert f"{place}: GP433" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in toy.root.rglob("*") if p.is_file()} == before


def test_a_contract_is_no_output_by_its_name_either(toy: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    text = toy.contracts()[0].read_text()
    assert dispatch(["gate", "--format", "json=proofs/{contract}/contract.yaml"]) == EXIT_CODE[Exit.USAGE]
    assert "GP433" in capsys.readouterr().err
    assert toy.contracts()[0].read_text() == text


WRITERS = {
    "check --out": ["check", "a.py:train", "--out", "PLACE"],
    "watch --out": ["watch", "--out", "PLACE", "--", "python", "a.py"],
    "claims --out": ["claims", "--out", "proofs"],
    "bound --certificate": ["bound", "-n", "2", "--certificate", "PLACE"],
    "sweep --out": ["sweep", "--out", "PLACE"],
    "sweep --plot": ["sweep", "--plot", "PLACE"],
    "sweep --plot-variance": ["sweep", "--plot-variance", "PLACE"],
    "replay --write": ["replay", "reports/none.json", "--write", "PLACE"],
}


@pytest.mark.parametrize("name", list(WRITERS))
def test_every_option_that_writes_keeps_away_from_it(
    toy: Workspace, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (toy.root / "proofs/claims.yaml").write_text("")
    words = [word.replace("PLACE", str(toy.contracts()[0])) for word in WRITERS[name]]
    text = toy.contracts()[0].read_text()
    assert dispatch(words) == EXIT_CODE[Exit.USAGE]
    assert ("GP433" in capsys.readouterr().err) or name == "claims --out"
    assert toy.contracts()[0].read_text() == text


def test_a_device_and_a_pipe_are_written_to_as_they_are(toy: Workspace, capfd: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(toy.root / "pipe")
    os.symlink("/dev/null", toy.root / "null")
    heard: list[str] = []
    listener = threading.Thread(target=lambda: heard.append((toy.root / "pipe").read_text()), daemon=True)
    listener.start()
    words = ["--format", "json=pipe", "--format", "md=null", "--format", "html=null", "--format", "ndjson=/dev/null"]
    assert dispatch(["gate", *words]) == EXIT_CODE[Exit.OPEN]
    listener.join(60)
    whole("json", heard[0])
    assert stat.S_ISFIFO((toy.root / "pipe").stat().st_mode)
    assert (toy.root / "null").is_symlink()
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    capfd.readouterr()
    assert dispatch(["gate", "--format", "json=/dev/stderr"]) == EXIT_CODE[Exit.OPEN]
    whole("json", capfd.readouterr().err)


@pytest.mark.parametrize("name", ["json", "ndjson", "github"])
def test_a_device_that_takes_nothing_is_said(toy: Workspace, capsys: pytest.CaptureFixture[str], name: str) -> None:
    os.symlink("/dev/full", toy.root / "full")
    assert dispatch(["gate", "--format", f"{name}=full"]) == EXIT_CODE[Exit.USAGE]
    assert "GP407\n  found:    full " in capsys.readouterr().err
    assert (toy.root / "full").is_symlink()


def test_what_is_neither_a_file_nor_a_stream_is_refused(toy: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket(socket.AF_UNIX) as own:
        own.bind("door")
        for place, code in (("door", "GP407"), ("models", "GP433"), ("folder", "GP407")):
            (toy.root / "folder").mkdir(exist_ok=True)
            assert dispatch(["gate", "--format", f"json={place}"]) == EXIT_CODE[Exit.USAGE]
            assert f"{place}: {code}\n" in capsys.readouterr().err
    assert stat.S_ISSOCK((toy.root / "door").stat().st_mode)


@pytest.mark.parametrize("path", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_stdout_by_its_path_is_stdout(path: str) -> None:
    assert asked([f"json={path}"], False) == [Output("json", None)]
    with pytest.raises(GradproofError, match="GP430"):
        asked([f"json={path}", "md"], False)


# What an earlier run wrote.

ALL = {name: f"out/{name}" for name in FILES} | {"html": "out/{contract}.html", "github": "out/{contract}.md"}


def green(toy: Workspace) -> list[str]:
    """The command line of a green run with every output in a file."""
    (toy.root / "out").mkdir()
    words = ["verify", *(word for name, path in ALL.items() for word in ("--format", f"{name}={path}"))]
    assert dispatch(words) == 0
    assert json.loads((toy.root / "out/json").read_text())["verdict"]["met"] is True
    assert json.loads((toy.reports / "report.json").read_text())["verdict"]["met"] is True
    return words


CONTRACT = {
    "no YAML": lambda text: text + "\n  - ]",
    "another key": lambda text: text.replace("formal:", "formall:"),
    "an empty file": lambda text: "",
}


@pytest.mark.parametrize("name", list(CONTRACT))
def test_nothing_green_survives_a_contract_with_a_mistake(
    toy: Workspace, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    words = green(toy)
    contract = toy.contracts()[0]
    contract.write_text(CONTRACT[name](contract.read_text()))
    assert dispatch(words) == EXIT_CODE[Exit.USAGE]
    assert "GP1" in capsys.readouterr().err
    assert [p.name for p in (toy.root / "out").iterdir()] == ["toy.md"]  # to which others append as well
    left = json.loads((toy.reports / "report.json").read_text())
    assert (left["run_state"], left["verdict"]["met"], left["checks"]) == ("running", False, [])
    assert "GP1" in left["verdict"]["reasons"][0]
    assert not list(toy.reports.glob("report.[mh]*"))
    assert [e.message for e in _report_schema().iter_errors(left)] == []


def _report_schema() -> Draft202012Validator:
    path = Path(__file__).resolve().parents[3] / "reports/report.schema.json"
    return Draft202012Validator(json.loads(path.read_text(encoding="utf-8")))


def test_nothing_green_survives_settings_with_a_mistake(toy: Workspace) -> None:
    words = green(toy)
    (toy.root / "pyproject.toml").write_text("[tool.gradproof")
    assert dispatch(words) == EXIT_CODE[Exit.USAGE]
    assert [p.name for p in (toy.root / "out").iterdir()] == ["toy.md"]
    assert json.loads((toy.reports / "report.json").read_text())["verdict"]["met"] is False


@pytest.mark.parametrize("command", ["verify", "gate", "report"])
def test_what_an_earlier_run_wrote_is_gone_before_a_contract_is_loaded(
    toy: Workspace, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """After the settings, which may name a baseline that is no place of an output."""
    words = green(toy)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gradproof.contract.model.load", killed)
    assert dispatch([command, *words[1:]]) == 130
    assert [p.name for p in (toy.root / "out").iterdir()] == ["toy.md"]


def test_a_mistake_in_a_contract_elsewhere_leaves_the_report_of_this_one(toy: Workspace, tmp_path: Path) -> None:
    green(toy)
    other = tmp_path / "other/contract.yaml"
    other.parent.mkdir()
    other.write_text("metadata: [")
    before = (toy.reports / "report.json").read_bytes()
    assert dispatch(["report", "--contract", str(other)]) == EXIT_CODE[Exit.USAGE]
    assert (toy.reports / "report.json").read_bytes() == before
    (toy.contracts()[0]).write_text("metadata: [")
    assert dispatch(["report"]) == EXIT_CODE[Exit.USAGE]
    assert (toy.reports / "report.json").read_bytes() != before


def test_a_mistake_in_the_command_line_touches_nothing(toy: Workspace) -> None:
    words = green(toy)
    before = {p: p.read_bytes() for p in toy.root.rglob("*") if p.is_file()}
    assert dispatch([*words, "--format", "bogus"]) == EXIT_CODE[Exit.USAGE]
    assert dispatch([*words, "--format", "md=proofs/x.md"]) == EXIT_CODE[Exit.USAGE]
    assert dispatch(["verify", "--contract", "other"]) == EXIT_CODE[Exit.USAGE]
    assert dispatch(["gate", "--format", "json=out/json", "--format", "bogus=out/page"]) == EXIT_CODE[Exit.USAGE]
    assert {p: p.read_bytes() for p in toy.root.rglob("*") if p.is_file()} == before


def test_what_is_no_report_of_ours_stays(toy: Workspace) -> None:
    toy.reports.mkdir()
    (toy.reports / "report.json").write_text('{"schema": "another"}')
    toy.contracts()[0].write_text("")
    assert dispatch(["verify"]) == EXIT_CODE[Exit.USAGE]
    assert (toy.reports / "report.json").read_text() == '{"schema": "another"}'


@pytest.mark.parametrize("baseline", ["base.json", "old"])
def test_the_baseline_is_no_place_of_an_output(
    toy: Workspace, capsys: pytest.CaptureFixture[str], baseline: str
) -> None:
    green(toy)
    (toy.root / "old/toy").mkdir(parents=True)
    for name in ("base.json", "old/report.json", "old/toy/report.json"):
        (toy.root / name).write_bytes((toy.reports / "report.json").read_bytes())
    places = ["base.json"] if baseline == "base.json" else ["old/report.json", "old/{contract}/report.json"]
    for place in places:
        assert dispatch(["gate", "--baseline", baseline, "--format", f"json={place}"]) == EXIT_CODE[Exit.USAGE]
        assert "GP433\n  found:    --format " in capsys.readouterr().err
    (toy.root / "pyproject.toml").write_text(f'[tool.gradproof]\nbaseline = "{baseline}"\n')
    assert dispatch(["gate", "--format", f"json={places[0]}"]) == EXIT_CODE[Exit.USAGE]
    (toy.root / "old/report.json").unlink()
    assert dispatch(["gate", "--format", "json=new.json"]) == 0


def test_a_step_that_cannot_be_checked_leaves_no_older_result(toy: Workspace) -> None:
    (toy.root / "result.json").write_text('{"outcome": "HOLDS"}')
    assert dispatch(["check", "gone.py:train", "--out", "result.json"]) == EXIT_CODE[Exit.USAGE]
    assert not (toy.root / "result.json").exists()
    (toy.root / "result.json").write_text('{"outcome": "HOLDS"}')
    assert dispatch(["watch", "--out", "result.json", "--", "sh", "x"]) == EXIT_CODE[Exit.USAGE]
    assert not (toy.root / "result.json").exists()


# A file for each contract.


def test_a_stream_of_events_is_one_for_all_contracts(toy: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["gate", "--format", "ndjson={contract}.nd"]) == EXIT_CODE[Exit.USAGE]
    assert "GP434" in capsys.readouterr().err
    assert not list(toy.root.glob("*.nd"))
