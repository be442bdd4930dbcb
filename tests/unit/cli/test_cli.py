"""The command line, end to end on the toy workspace: exit codes, caching, reports, and no traceback on bad input."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from toy_workspace import CONTRACT, only, runs, worker_command

from gradproof import cli
from gradproof.core.outcome import EXIT_CODE, Exit
from gradproof.core.workspace import Workspace

SLEEP = "import time; time.sleep(600)\n    value = workspace"
ALL = ["F-1@cpu-fp32", "F-1@cpu-fp32", "K-1", "K-1", "K-2", "STUB-1"]  # the gate runs two of them once more


def gradproof(*args: str) -> int:
    return cli.dispatch(list(args))


def report(toy: Workspace) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((toy.reports / "report.json").read_text())
    return data


def evidence(toy: Workspace, name: str) -> Path:
    (path,) = (toy.reports / "evidence" / name).glob("*.json")
    return path


def test_verify_runs_reports_and_gates(toy: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    assert gradproof("verify") == 0
    out, err = capsys.readouterr()
    assert runs(toy.root) == ALL
    lines = out.splitlines()
    assert lines[0].startswith("GATE MET, profile ci: the gate is met (exit 0); 1 of 1 ")
    assert lines[-1] == "report: reports/index.html"
    assert re.search(r"\b0 on stored .* 5 run .* 1 not run", out)
    assert len(lines) + len(err.splitlines()) <= 25
    made = report(toy)
    assert (made["run_state"], made["verdict"]["met"], made["profile"]) == ("complete", True, "ci")
    assert sorted(p.name for p in toy.reports.glob("report.*")) == ["report.html", "report.json", "report.md"]


def test_verbose_prints_a_line_a_check_and_the_table(toy: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    assert gradproof("verify", "--verbose") == 0
    out, err = capsys.readouterr()
    assert "T-1 toy" in out
    assert "Coverage: 1 of 1" in out
    assert "report: reports/index.html" in err
    assert "GATE MET" in err
    assert re.search(r"\[\d/6\] HOLDS +STUB-1", err)


def test_a_red_run_names_obligation_check_and_line(toy: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    gradproof("verify", "-q")
    contract = (toy.root / "proofs/toy/contract.yaml").read_text().splitlines()
    line = next(i for i, text in enumerate(contract, 1) if "id: F-1" in text)
    (toy.root / "models/b.py").write_text("VALUE = 3\n")
    capsys.readouterr()
    assert gradproof("verify", "-q") == EXIT_CODE[Exit.BROKEN]
    out, err = capsys.readouterr()
    assert out == ""
    found = f"✕ T-1, toy\n  proofs/toy/contract.yaml:{line}: F-1@cpu-fp32 is REFUTED: x = 7 breaks it\n"
    assert found in err
    assert f"gradproof replay {evidence(toy, 'F-1@cpu-fp32').relative_to(toy.root)}\n" in err
    (toy.root / "models/b.py").write_text("VALUE = 1\n")
    assert gradproof("verify") == 0
    out = capsys.readouterr().out
    assert "F-1@cpu-fp32: REFUTED (BROKEN) -> HOLDS (DISCHARGED)" in out
    assert "toy: something is refuted, vacuous or weak (exit 1) -> the gate is met (exit 0)" in out
    assert gradproof("gate") == 0
    assert re.search(r"^New since 2.*: nothing$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(
    "change", [{"generated_at": 5}, {"checks": 3}, {"contract": "toy"}, {"verdict": {"exit": "well", "reasons": []}}]
)
def test_an_earlier_report_that_is_none_is_not_compared_with(
    toy: Workspace, capsys: pytest.CaptureFixture[str], change: dict[str, Any]
) -> None:
    assert gradproof("verify", "-q") == 0
    (toy.reports / "report.json").write_text(json.dumps({**report(toy), **change}))
    capsys.readouterr()
    assert gradproof("gate") == 0
    assert "New since" not in capsys.readouterr().out


def test_an_unchanged_tree_is_verified_without_running_anything(
    toy: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gradproof("verify", "-q") == 0
    first = report(toy)
    runs(toy.root)
    assert gradproof("verify", "-q") == 0
    assert runs(toy.root) == []
    assert re.search(r"\b5 on stored .* 0 run .* 1 not run", capsys.readouterr().err)
    second = report(toy)
    assert [c["evidence"] for c in second["checks"]] == [c["evidence"] for c in first["checks"]]
    assert all(c["cached"] for c in second["checks"] if c["layer"] != "cuda")
    assert gradproof("verify", "-q", "--no-cache") == 0
    assert runs(toy.root) == ALL


def test_a_changed_line_of_a_model_re_runs_what_depends_on_it_and_nothing_else(toy: Workspace) -> None:
    gradproof("verify", "-q")
    runs(toy.root)
    (toy.root / "models/b.py").write_text("VALUE = 1  # a comment\n")
    assert gradproof("verify", "-q") == 0
    assert runs(toy.root) == ["F-1@cpu-fp32"]
    (toy.root / "models/a.py").write_text("VALUE = 1  # a comment\n")
    assert gradproof("verify", "-q") == 0
    assert runs(toy.root) == ["F-1@cpu-fp32", "K-1", "K-1", "K-2", "STUB-1"]  # F-1 and K-1 by the gate


def test_a_broken_model_is_seen_at_once(toy: Workspace) -> None:
    assert gradproof("verify", "-q") == 0
    (toy.root / "models/b.py").write_text("VALUE = 3\n")
    assert gradproof("gate") == EXIT_CODE[Exit.OPEN]
    assert gradproof("verify", "-q") == EXIT_CODE[Exit.BROKEN]
    assert report(toy)["verdict"]["exit"] == "broken"


def test_a_module_that_shadows_another_makes_evidence_stale(toy: Workspace) -> None:
    gradproof("verify", "-q")
    runs(toy.root)
    (toy.root / "models/b").mkdir()
    (toy.root / "models/b/__init__.py").write_text("VALUE = 3\n")
    assert gradproof("gate") == EXIT_CODE[Exit.OPEN]
    assert gradproof("verify", "-q") == EXIT_CODE[Exit.BROKEN]
    assert "F-1@cpu-fp32" in runs(toy.root)


def test_a_timeout_is_run_again(toy: Workspace) -> None:
    runs_py = toy.root / "symbolic/runs.py"
    good = runs_py.read_text()
    runs_py.write_text(
        good + "\nimport time\n_was = b_is_one\ndef b_is_one(c, w):\n    _was(c, w)\n    time.sleep(30)\n"
    )
    assert gradproof("verify", "-q", "--time-limit", "1.5") == EXIT_CODE[Exit.OPEN]
    assert json.loads(evidence(toy, "F-1@cpu-fp32").read_text())["finding"]["outcome"] == "TIMEOUT"
    runs(toy.root)
    assert gradproof("verify", "-q", "--time-limit", "1.5", "-k", "F-1") == EXIT_CODE[Exit.OPEN]
    assert "F-1@cpu-fp32" in runs(toy.root)
    runs_py.write_text(good)
    assert gradproof("verify", "-q") == 0


def test_a_crash_is_exit_3_and_is_run_again(toy: Workspace) -> None:
    runs_py = toy.root / "symbolic/runs.py"
    good = runs_py.read_text()
    runs_py.write_text(good.replace("value = workspace", "raise ValueError('no')\n    value = workspace"))
    assert gradproof("verify", "-q") == EXIT_CODE[Exit.CRASH]
    runs(toy.root)
    runs_py.write_text(good)
    assert gradproof("verify", "-q") == 0


def test_tampered_evidence_is_run_again(toy: Workspace) -> None:
    gradproof("verify", "-q")
    runs(toy.root)
    path = evidence(toy, "K-2")
    path.write_text(path.read_text().replace("REFUTED", "HOLDS"))
    assert gradproof("gate") == EXIT_CODE[Exit.OPEN]
    assert gradproof("verify", "-q") == 0
    assert runs(toy.root) == ["K-2"]


def test_a_stub_that_fails_takes_its_proof_with_it(toy: Workspace) -> None:
    text = (toy.root / "symbolic/toy.py").read_text()
    (toy.root / "symbolic/toy.py").write_text(
        text.replace("return answer(check)\n\n\ndef a_is_one", "return answer(check, controls=[])\n\n\ndef a_is_one")
    )
    assert gradproof("verify", "-q") == EXIT_CODE[Exit.BROKEN]
    rows = {c["id"]: c for c in report(toy)["checks"]}
    assert rows["STUB-1"]["outcome"] == "WEAK"
    assert rows["K-1"]["outcome"] == rows["GATE-1/falsification"]["outcome"] == "NOT_RUN"
    assert "K-1" not in runs(toy.root)


def test_the_release_profile_requires_the_gpu(toy: Workspace) -> None:
    assert gradproof("verify", "-q") == 0
    assert gradproof("gate") == 0
    assert gradproof("gate", "--profile", "release") == EXIT_CODE[Exit.OPEN]


def test_a_part_that_is_run_alone_leaves_the_gate_open(toy: Workspace) -> None:
    assert gradproof("verify", "-q", "-k", "K-2") == EXIT_CODE[Exit.OPEN]
    assert runs(toy.root) == ["K-2"]
    assert report(toy)["run_state"] == "partial"
    assert report(toy)["verdict"]["met"] is False


def test_prove_and_run_judge_their_own_part_and_write_no_report(
    toy: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gradproof("prove") == 0
    assert runs(toy.root) == ["K-1", "K-2", "STUB-1"]
    assert gradproof("run", "--device", "all") == 0
    assert gradproof("run", "--device", "cuda") == EXIT_CODE[Exit.OPEN]
    assert runs(toy.root) == ["F-1@cpu-fp32"]
    capsys.readouterr()
    assert gradproof("prove", "-k", "K-1", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert [c["id"] for c in made["checks"]] == ["STUB-1", "K-1"]
    assert all(c["cached"] for c in made["checks"])
    assert not list(toy.reports.glob("report.*"))


@pytest.mark.parametrize("command", ["verify", "prove", "run", "list"])
def test_nothing_selected_is_exit_5(toy: Workspace, command: str) -> None:
    assert gradproof(command, "-k", "no such check") == EXIT_CODE[Exit.NOTHING]
    assert not toy.reports.exists()


def test_report_renders_the_evidence_again(toy: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    gradproof("verify", "-q")
    runs(toy.root)
    (toy.reports / "report.html").unlink()
    for name, start in (("json", "{"), ("md", "#"), ("html", "<!"), ("text", "")):
        capsys.readouterr()
        assert gradproof("report", "--format", name) == 0
        assert capsys.readouterr().out.lstrip().startswith(start)
    assert runs(toy.root) == []
    assert (toy.reports / "report.html").exists()


def test_gate_writes_nothing(toy: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    assert gradproof("gate") == EXIT_CODE[Exit.OPEN]
    assert not toy.reports.exists()
    gradproof("verify", "-q")
    before = {p: p.stat().st_mtime_ns for p in toy.reports.rglob("*")}
    capsys.readouterr()
    assert gradproof("gate", "--json") == 0
    assert json.loads(capsys.readouterr().out)["verdict"]["met"] is True
    assert {p: p.stat().st_mtime_ns for p in toy.reports.rglob("*")} == before


def test_json_on_stdout_is_json_alone(toy: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    assert gradproof("verify", "--json") == 0
    assert json.loads(capsys.readouterr().out)["verdict"]["exit"] == "met"


@pytest.mark.parametrize("form", ["text", "md", "json"])
def test_list_shows_every_check(toy: Workspace, capsys: pytest.CaptureFixture[str], form: str) -> None:
    assert gradproof("list", "--format", form) == 0
    out = capsys.readouterr().out
    for name in ("STUB-1", "K-1", "K-2", "F-1@cpu-fp32", "F-1@cuda-fp32", "GATE-1/falsification", "micro_batches"):
        assert name in out
    if form == "json":
        assert len(json.loads(out)["checks"]) == 6


def test_contract_errors_are_all_printed_with_their_places(toy: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    path = toy.root / "proofs/toy/contract.yaml"
    path.write_text(CONTRACT.replace("expect: refuted", "expected: refuted").replace("reason: toy", "why: toy"))
    for command in ("verify", "gate", "list", "prove", "report"):
        assert gradproof(command) == EXIT_CODE[Exit.USAGE]
        err = capsys.readouterr().err
        assert len(re.findall(r"contract\.yaml:\d+:\d+: GP\d+", err)) > 2
        assert "Traceback" not in err


BAD = [
    (),
    ("nonsense",),
    ("verify", "--nonsense"),
    ("verify", "--jobs", "0"),
    ("verify", "--profile", "nightly"),
    ("verify", "--contract", "no-such-contract"),
    ("verify", "--workspace", "/no/such/folder"),
    *(("verify", "--time-limit", word) for word in ("-1", "0", "nan", "inf", "-inf", "soon")),
    ("run", "--device", "tpu"),
    ("replay",),
    ("replay", "no-such-file.json"),
    ("replay", "models/a.py"),
    ("explain",),
    ("explain", "no-such-thing"),
    ("report", "--format", "pdf"),
]


@pytest.mark.parametrize("args", BAD, ids=" ".join)
def test_bad_usage_is_exit_2_without_a_traceback(
    toy: Workspace, capsys: pytest.CaptureFixture[str], args: tuple[str, ...]
) -> None:
    assert gradproof(*args) == EXIT_CODE[Exit.USAGE]
    out, err = capsys.readouterr()
    assert out + err
    assert "Traceback" not in out + err


def test_an_internal_error_is_exit_3_with_a_short_message(
    toy: Workspace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr("gradproof.session.plan", broken)
    assert gradproof("verify") == EXIT_CODE[Exit.CRASH]
    err = capsys.readouterr().err
    assert "internal error: RuntimeError: unforeseen" in err
    assert "Traceback" not in err


def test_a_report_that_contradicts_itself_is_a_crash_and_not_a_verdict(
    toy: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = cli.import_module("gradproof.report.build").build

    def sweetened(*args: Any, **kwargs: Any) -> dict[str, Any]:
        made: dict[str, Any] = real(*args, **kwargs)
        made["obligations"][0]["cells"]["smt"]["checks"] = []
        return made

    monkeypatch.setattr("gradproof.report.build.build", sweetened)
    assert gradproof("verify", "-q") == EXIT_CODE[Exit.CRASH]
    assert report(toy)["run_state"] == "running"


def test_two_contracts_may_not_plan_the_same_check(toy: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    (toy.root / "proofs/other").mkdir()
    (toy.root / "proofs/other/contract.yaml").write_text((toy.root / "proofs/toy/contract.yaml").read_text())
    assert gradproof("verify") == EXIT_CODE[Exit.USAGE]
    assert "GP210" in capsys.readouterr().err
    assert gradproof("verify", "-q", "--contract", "other") == 0


def test_each_of_several_contracts_has_a_report(toy: Workspace) -> None:
    text = (toy.root / "proofs/toy/contract.yaml").read_text()
    (toy.root / "proofs/other").mkdir()
    ids = re.sub(r"\b(T-1|STUB-1|K-1|K-2|F-1|GATE-1)\b", r"X\1", text)
    (toy.root / "proofs/other/contract.yaml").write_text(ids)
    assert gradproof("verify", "-q") in (0, 1)
    assert (toy.reports / "other/report.html").exists()
    assert (toy.reports / "toy/report.html").exists()


def test_an_interrupted_run_is_exit_130_and_partial(toy: Workspace) -> None:
    """What had finished is kept; the report says that the run is partial."""
    runs_py = toy.root / "symbolic/runs.py"
    runs_py.write_text(runs_py.read_text().replace("value = workspace", SLEEP))
    program = (
        "import sys; from gradproof.execution.local import Worker; from gradproof.cli import main\n"
        f"Worker.command = lambda self: {worker_command(toy.root)!r}\n"
        "main(['verify', '--jobs', '2'])"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=toy.root, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    log, kept = toy.root / "runs.log", toy.reports / "evidence"
    while not (log.exists() and "F-1@cpu-fp32" in log.read_text() and any(kept.glob("*/*.json"))):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert report(toy)["run_state"] == "running"
    os.kill(parent.pid, signal.SIGINT)
    assert parent.wait(200) == 130
    made = report(toy)
    assert (made["run_state"], made["verdict"]["met"]) == ("partial", False)
    assert list((toy.reports / "evidence").iterdir())
    assert not (toy.reports / "evidence/F-1@cpu-fp32").exists()


def test_a_killed_run_cannot_read_as_clean(toy: Workspace) -> None:
    assert gradproof("verify", "-q") == 0
    program = (
        "import os, signal; from gradproof.execution import pool as runner; from gradproof.cli import main\n"
        "runner.Pool = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)\n"
        "main(['verify'])"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=toy.root, check=False).returncode == -signal.SIGKILL
    made = report(toy)
    assert (made["run_state"], made["verdict"]["met"], made["verdict"]["code"]) == ("running", False, 4)
    assert not (toy.reports / "report.html").exists()


def test_a_reader_that_goes_away_ends_without_a_traceback(toy: Workspace) -> None:
    done = subprocess.run(
        f"{sys.executable} -m gradproof list --format json | head -c 10",
        shell=True, cwd=toy.root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    with only(toy):
        assert toy.resolve("models.a:VALUE") == 1
