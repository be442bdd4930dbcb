"""`gradproof gate --baseline`: green on what stayed or grew stronger, red in every format on what became weaker."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gradproof.cli import dispatch
from gradproof.core.outcome import EXIT_CODE, Exit
from gradproof.core.workspace import Workspace
from gradproof.report import diff as compared
from gradproof.session import held

MET, BROKEN, OPEN, USAGE = (EXIT_CODE[e] for e in (Exit.MET, Exit.BROKEN, Exit.OPEN, Exit.USAGE))


@pytest.fixture
def base(toy: Workspace, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The toy workspace after a run, with its reports kept as a baseline."""
    monkeypatch.delenv("GRADPROOF_BASELINE", raising=False)
    assert dispatch(["verify", "-q"]) == MET
    place = toy.root / "baseline"
    shutil.copytree(toy.reports, place)
    return place


def edit(toy: Workspace, old: str, new: str) -> None:
    path = toy.contracts()[0]
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    dispatch(["verify", "-q"])


def test_what_stayed_is_met(toy: Workspace, base: Path) -> None:
    assert dispatch(["gate", "--baseline", str(base)]) == MET
    assert dispatch(["gate", "--baseline", str(base / "report.json")]) == MET


WEAKER = {
    "a looser tolerance": ('value: "1e-5"', 'value: "1e-4"'),
    "a smaller bound": ("name: examples, value: 2", "name: examples, value: 1"),
}


@pytest.mark.parametrize("name", WEAKER)
def test_what_became_weaker_is_red_though_the_gate_is_met(
    toy: Workspace, base: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    edit(toy, *WEAKER[name])
    assert dispatch(["gate"]) == MET
    capsys.readouterr()
    assert dispatch(["gate", "--baseline", str(base)]) == BROKEN
    assert "weaker than the baseline" in capsys.readouterr().out
    shutil.rmtree(base)
    shutil.copytree(toy.reports, base)
    edit(toy, *reversed(WEAKER[name]))
    assert dispatch(["gate", "--baseline", str(base)]) == MET


def test_every_format_tells_it(toy: Workspace, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(toy, 'value: "1e-5"', 'value: "1e-4"')
    for name in ("json", "junit", "sarif", "github", "md", "ndjson", "html"):
        capsys.readouterr()
        assert dispatch(["gate", "--baseline", str(base), "--format", name]) == BROKEN
        assert "weaker than the baseline" in capsys.readouterr().out, name


def test_the_file_and_the_environment_name_it_too(toy: Workspace, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(toy, 'value: "1e-5"', 'value: "1e-4"')
    (toy.root / "pyproject.toml").write_text('[tool.gradproof]\nbaseline = "baseline"\n', encoding="utf-8")
    assert dispatch(["gate"]) == BROKEN


@pytest.mark.parametrize("how", ["command line", "environment"])
def test_a_baseline_of_the_caller_is_added_to_that_of_the_file(
    toy: Workspace, base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    """Whoever runs the gate could name the report of a moment ago, and the file's baseline would be forgotten."""
    (toy.root / "pyproject.toml").write_text('[tool.gradproof]\nbaseline = "baseline"\n', encoding="utf-8")
    edit(toy, 'value: "1e-5"', 'value: "1e-4"')
    weaker = str(shutil.copytree(toy.reports, toy.root / "weaker"))
    if how == "environment":
        monkeypatch.setenv("GRADPROOF_BASELINE", weaker)
    own = [] if how == "environment" else ["--baseline", weaker]
    assert dispatch(["gate", *own]) == BROKEN
    capsys.readouterr()
    assert dispatch(["config", *own, "--json"]) == MET
    rows = [r for r in json.loads(capsys.readouterr().out)["settings"] if r["name"] == "baseline"]
    named = "command line" if how == "command line" else "environment GRADPROOF_BASELINE"
    places = [named, f"{toy.root / 'pyproject.toml'}:2"]
    assert [(r["value"], r["source"]) for r in rows] == list(zip([weaker, str(base)], places, strict=True))
    edit(toy, 'value: "1e-4"', 'value: "1e-6"')
    assert dispatch(["gate", *own]) == MET
    edit(toy, 'value: "1e-6"', 'value: "1e-5"')
    capsys.readouterr()
    (toy.root / "pyproject.toml").unlink()
    shutil.rmtree(weaker)
    shutil.copytree(toy.reports, weaker)
    edit(toy, 'value: "1e-5"', 'value: "1e-4"')
    assert dispatch(["gate", *own]) == BROKEN


def linked(toy: Workspace, place: str) -> str:
    """A name of the workspace's own report, or of a folder that has it."""
    own, other = toy.reports / "report.json", toy.root / place
    if place in ("symbolic link", "hard link"):
        other.mkdir()
        (os.symlink if place == "symbolic link" else os.link)(own, other / "report.json")
        return place
    if place == "linked folder":
        other.symlink_to(toy.reports, target_is_directory=True)
        return f"{place}/report.json"
    return place


@pytest.mark.parametrize("how", ["command line", "environment", "file"])
def test_the_workspace_s_own_report_is_no_baseline(
    toy: Workspace, base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    """What is judged would be compared with itself."""
    edit(toy, 'value: "1e-5"', 'value: "1e-4"')
    before = {p: p.read_bytes() for p in toy.reports.rglob("report.*")}
    for place in ("reports", ".", "reports/report.json", "symbolic link", "hard link", "linked folder"):
        name = linked(toy, place)
        if how == "file":
            (toy.root / "pyproject.toml").write_text(f'[tool.gradproof]\nbaseline = "{name}"\n', encoding="utf-8")
        if how == "environment":
            monkeypatch.setenv("GRADPROOF_BASELINE", name)
        own = ["--baseline", name] if how == "command line" else []
        for command in (["gate"], ["report"], ["attest", "here"]):
            capsys.readouterr()
            assert dispatch([*command, *own]) == USAGE, (command, place)
            said = capsys.readouterr().err
            assert "GP487" in said, place
        assert {p: p.read_bytes() for p in toy.reports.rglob("report.*")} == before


def test_a_parameter_that_is_smaller_is_not_met(toy: Workspace, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(toy, '    harness: "symbolic.toy:a_is_one"\n', '    harness: "symbolic.toy:a_is_one"\n    params: {size: 2}\n')
    shutil.rmtree(base)
    shutil.copytree(toy.reports, base)
    edit(toy, "params: {size: 2}", "params: {size: 1}")
    capsys.readouterr()
    assert dispatch(["gate", "--baseline", str(base)]) == OPEN
    assert "baseline: parameter checks.K-1.params.size" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["verify"], ["report"], ["attest", "out", "-q", "--no-queries"]])
def test_every_command_that_judges_is_held_to_it(
    toy: Workspace, base: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """The Action, the hooks and what `init` writes run `verify`."""
    (toy.root / "pyproject.toml").write_text('[tool.gradproof]\nbaseline = "baseline"\n', encoding="utf-8")
    assert dispatch([*command[:1], "here", *command[2:]] if command[0] == "attest" else command) == MET
    edit(toy, 'value: "1e-5"', 'value: "1e-4"')
    capsys.readouterr()
    assert dispatch(command) == BROKEN
    stated = capsys.readouterr()
    assert "weaker" in stated.out + stated.err
    (toy.root / "pyproject.toml").unlink()
    assert dispatch(["verify", "-q", "--baseline", str(base)]) == BROKEN
    assert dispatch(["verify", "-q"]) == MET


@pytest.mark.parametrize(
    "command", [["verify"], ["report"], ["verify", "--watch"], ["gate", "--format", "json=reports/report.json"]]
)
@pytest.mark.parametrize("place", ["reports", "reports/report.json"])
def test_no_command_writes_over_the_baseline(
    toy: Workspace, base: Path, capsys: pytest.CaptureFixture[str], command: list[str], place: str
) -> None:
    """The second run would be held to what the first one made weaker."""
    before = (toy.reports / "report.json").read_bytes()
    capsys.readouterr()
    assert dispatch([*command, "--baseline", place]) == USAGE
    assert ("GP433" if "gate" in command else "GP487") in capsys.readouterr().err
    assert (toy.reports / "report.json").read_bytes() == before
    (toy.reports / "report.json").unlink()
    assert dispatch([*command, "--baseline", place]) == USAGE
    assert not (toy.reports / "report.json").exists()


@pytest.mark.parametrize("name", ["x" * 300, f"{'x' * 300}.json", f"{'x' * 300}/report.json"])
def test_a_name_that_is_too_long_is_no_report(
    toy: Workspace, base: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    capsys.readouterr()
    assert dispatch(["gate", "--baseline", name]) == USAGE
    assert "GP481" in capsys.readouterr().err
    assert dispatch(["gate", "--format", f"json={name}.yaml"]) == USAGE
    assert "GP407" in capsys.readouterr().err


def test_a_shard_is_held_to_none(toy: Workspace, base: Path) -> None:
    """It is never met, and what it did not run is not weaker for that."""
    assert dispatch(["verify", "-q", "--no-cache", "--shard", "1/2", "--baseline", str(base)]) == OPEN


@pytest.fixture
def two(toy: Workspace) -> Workspace:
    """The toy workspace with a second contract of other ids."""
    text = toy.contracts()[0].read_text(encoding="utf-8")
    for name in ("T-1", "STUB-1", "K-1", "K-2", "F-1", "GATE-1"):
        text = text.replace(name, f"Z{name}")
    path = toy.root / "proofs/zoo/contract.yaml"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    return toy


def test_a_contract_that_is_not_asked_for_is_not_gone(two: Workspace) -> None:
    assert dispatch(["verify", "-q"]) == MET
    base = str(shutil.copytree(two.reports, two.root / "baseline"))
    assert dispatch(["gate", "--contract", "toy", "--baseline", base]) == MET
    zoo = str(shutil.copytree(f"{base}/zoo", two.root / "zoo-alone"))
    assert dispatch(["gate", "--contract", "toy", "--baseline", zoo]) == MET
    shutil.rmtree(two.root / "proofs/zoo")
    assert dispatch(["gate", "--baseline", base]) == BROKEN


def test_a_report_from_before_there_were_several_contracts_is_gone(
    toy: Workspace, request: pytest.FixtureRequest
) -> None:
    """Nothing green of then is left beside what is red now, and a copy of the reports is a baseline."""
    assert dispatch(["verify", "-q"]) == MET
    zoo = request.getfixturevalue("two").root / "proofs/zoo"
    assert dispatch(["report", "--contract", "zoo"]) == OPEN
    assert json.loads((toy.reports / "report.json").read_text())["contract"]["id"] == "toy"
    assert dispatch(["verify", "-q"]) == MET
    assert not list(toy.reports.glob("report.*"))
    release = str(shutil.copytree(toy.reports, toy.root / "release"))
    assert dispatch(["gate", "--baseline", release]) == MET
    shutil.rmtree(zoo)
    assert dispatch(["verify", "-q"]) == MET
    assert {p.parent.name for p in toy.reports.glob("**/report.*")} == {toy.reports.name, "zoo"}


def test_a_folder_of_reports_stays_a_baseline_after_a_run_of_one_contract(two: Workspace) -> None:
    assert dispatch(["verify", "-q"]) == MET
    assert dispatch(["verify", "-q", "--contract", "toy"]) == MET
    assert sorted(p.parent.name for p in two.reports.rglob("report.json")) == ["toy", "zoo"]
    assert dispatch(["gate", "--baseline", str(shutil.copytree(two.reports, two.root / "release"))]) == MET


@pytest.mark.parametrize("place", ["models", "proofs/toy/contract.yaml", "reports/evidence", "no", "pyproject.toml"])
def test_a_baseline_that_is_no_report_is_refused(
    toy: Workspace, base: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    (toy.root / "pyproject.toml").touch()
    capsys.readouterr()
    assert dispatch(["gate", "--baseline", place]) == USAGE
    assert "GP481" in capsys.readouterr().err


def test_verbose_has_every_reason(
    toy: Workspace, base: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradproof.report.formats.summary.LINES", 8)
    text = toy.contracts()[0].read_text(encoding="utf-8")
    toy.contracts()[0].write_text(text.replace('value: "1e-5"', 'value: "1e-4"'), encoding="utf-8")
    capsys.readouterr()
    assert dispatch(["gate", "--format", "json", "--baseline", str(base)]) == BROKEN
    reasons = json.loads(capsys.readouterr().out)["verdict"]["reasons"]
    assert len(reasons) > 3
    dispatch(["gate", "--baseline", str(base), "--verbose"])
    stated = capsys.readouterr().out
    baseline = [reason for reason in reasons if "the baseline" in reason]
    assert baseline
    assert [r for r in baseline if r not in stated] == []
    assert all(reason.split(" ")[0] in stated for reason in reasons)
    dispatch(["gate", "--baseline", str(base), "--format", "text"])
    assert "more reasons: --verbose shows all" in capsys.readouterr().out


def test_a_baseline_that_is_not_there_or_says_too_much_is_refused(toy: Workspace, base: Path) -> None:
    assert dispatch(["gate", "--baseline", "nowhere.json"]) == USAGE
    path = base / "report.json"
    report = json.loads(path.read_text(encoding="utf-8"))
    report["obligations"][0]["cells"]["smt"]["effect"] = "BROKEN"
    path.write_text(json.dumps(report), encoding="utf-8")
    assert dispatch(["gate", "--baseline", str(base)]) == USAGE


def test_a_baseline_of_another_contract_decides_nothing(toy: Workspace, base: Path) -> None:
    path = base / "report.json"
    text = path.read_text(encoding="utf-8").replace('"id": "toy"', '"id": "another"')
    path.write_text(text, encoding="utf-8")
    code = dispatch(["gate", "--baseline", str(base)])
    assert code in (OPEN, BROKEN)


def found(direction: str, contract: str = "one") -> SimpleNamespace:
    change = SimpleNamespace(direction=direction, kind="bound", place="K-1", word="smaller", old="3", new="2")
    return SimpleNamespace(contract=contract, changes=[change])


WEAK, UNDECIDED, SHARED = "weaker K-1", "not decided K-1", "no layer"


@pytest.mark.parametrize(
    ("rows", "open_", "before", "after", "reasons"),
    [
        ([], [], Exit.MET, (Exit.MET, Exit.MET), ([], [])),
        ([found("strengthened")], [], Exit.MET, (Exit.MET, Exit.MET), ([], [])),
        ([found("weakened")], [], Exit.MET, (Exit.BROKEN, Exit.MET), ([WEAK], [])),
        ([found("undecided")], [], Exit.MET, (Exit.OPEN, Exit.MET), ([UNDECIDED], [])),
        ([found("weakened", "gone")], [], Exit.MET, (Exit.BROKEN, Exit.BROKEN), ([WEAK], [WEAK])),
        ([], ["no layer"], Exit.MET, (Exit.OPEN, Exit.OPEN), ([SHARED], [SHARED])),
        ([found("undecided")], [], Exit.BROKEN, (Exit.BROKEN, Exit.BROKEN), ([UNDECIDED, "why"], ["why"])),
        ([found("undecided")], [], Exit.CRASH, (Exit.CRASH, Exit.CRASH), ([UNDECIDED, "why"], ["why"])),
        ([found("weakened")], ["no layer"], Exit.OPEN, (Exit.BROKEN, Exit.OPEN),
         ([SHARED, WEAK, "why"], [SHARED, "why"])),
    ],
)  # fmt: skip
def test_a_verdict_is_the_worse_of_its_own_and_of_the_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[Any], open_: list[str], before: Exit,
    after: tuple[Exit, Exit], reasons: tuple[list[str], list[str]],
) -> None:  # fmt: skip
    """A change of a contract that is no longer there counts against every contract that is."""
    (tmp_path / "report.json").touch()
    monkeypatch.setattr(compared, "side_of", lambda path, reports: None)
    monkeypatch.setattr(compared, "between", lambda old, new: SimpleNamespace(open=open_, contracts=rows))
    own = {"exit": str(before), "code": EXIT_CODE[before], "met": before is Exit.MET,
           "reasons": [] if before is Exit.MET else ["why"]}  # fmt: skip
    made = [
        r["verdict"] for r in held(tmp_path, [{"contract": {"id": n}, "verdict": dict(own)} for n in ("one", "two")])
    ]
    assert [Exit(v["exit"]) for v in made] == list(after)
    words = re.compile("weaker|not decided|K-1|no layer|why")
    assert [[" ".join(words.findall(reason)) for reason in v["reasons"]] for v in made] == list(reasons)
    assert all((v["code"], v["met"]) == (EXIT_CODE[e], e is Exit.MET) for v, e in zip(made, after, strict=True))
