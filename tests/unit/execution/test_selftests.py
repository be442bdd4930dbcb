"""The self-tests of the doctor: they pass on the real tools, and each is red with a tool that is missing or lies."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from toy_workspace import check, recorded

from gradproof.arith import smt
from gradproof.cli import dispatch
from gradproof.core.check import Finding
from gradproof.core.outcome import Outcome
from gradproof.execution.methods import crosshair as crosshair_ask
from gradproof.execution.methods.crosshair import Answer
from gradproof.extras import selftest, selftest as selftests
from gradproof.extras.selftest import GET, SelfTest, judged, run_all
from gradproof.shadow.process import check as child
from gradproof.shadow.result import Result, Verification

NO_GPU = "no CUDA driver on this machine"
REPORTS = Path(__file__).resolve().parents[3] / "reports"


def test_the_real_tools_pass(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradproof.evidence.environment.cuda_absent", lambda: NO_GPU)
    assert dispatch(["doctor", "--json", "--folder", str(REPORTS)]) == 0
    found = json.loads(capsys.readouterr().out)
    states = {t["name"]: t["state"] for t in found["self_tests"]}
    assert states == {**dict.fromkeys(GET, "passed"), "cuda": "absent"}
    assert found["self_tests"][-1]["get"] == GET["cuda"]
    schema = json.loads((REPORTS / "doctor.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(found, schema)
    for wrong in ({"warnings": None}, {"more": 1}, {"schema": "gradproof-doctor/2"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**found, **wrong}, schema)


def test_tools_that_cannot_be_imported_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("z3", "crosshair", "torch"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} is broken')\n", encoding="utf-8")
    own = str(Path(selftests.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{own}")
    found = {t.name: t for t in run_all({})}
    assert {t.state for t in found.values()} == {"failed"}
    said = {"solver": "z3 is broken", "crosshair": "crosshair", "torch": "torch is broken", "cuda": "torch is broken"}
    assert all(words in found[name].said for name, words in said.items())
    assert all(t.get == GET[t.name] for t in found.values())


def replying(answer: smt.SolverAnswer, **values: Fraction) -> Callable[..., smt.Reply]:
    """A solver that always says the same."""
    return lambda *_: smt.Reply(answer, dict(values))


def raising(*_: Any) -> Any:
    raise OSError("libz3 is gone")


@pytest.mark.parametrize(
    "solve",
    [
        replying(smt.SolverAnswer.SAT, x=Fraction(2)),
        replying(smt.SolverAnswer.SAT, x=Fraction(3)),
        replying(smt.SolverAnswer.UNSAT),
        replying(smt.SolverAnswer.UNKNOWN),
        raising,
    ],
)
def test_a_solver_that_lies_fails(monkeypatch: pytest.MonkeyPatch, solve: Callable[..., smt.Reply]) -> None:
    assert selftest.answer("solver")["passed"] is True
    monkeypatch.setattr(smt, "solve", solve)
    assert selftest.answer("solver")["passed"] is False


@pytest.mark.parametrize(
    "said",
    [
        Answer(Outcome.HOLDS, "confirmed"),
        Answer(Outcome.UNKNOWN, "not confirmed"),
        Answer(Outcome.REFUTED, "no arguments"),
        Answer(Outcome.REFUTED, "another argument", {"x": 3}),
        Answer(Outcome.REFUTED, "one that raises", {"y": 3}),
    ],
)
def test_a_crosshair_that_lies_fails(monkeypatch: pytest.MonkeyPatch, said: Answer) -> None:
    monkeypatch.setattr(crosshair_ask, "consult", lambda *_: said)
    assert selftest.answer("crosshair")["passed"] is False


def test_a_crosshair_that_is_right_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Answer(Outcome.REFUTED, "found", {"x": selftest.ODD_ONE})
    monkeypatch.setattr(crosshair_ask, "consult", lambda *_: right)
    assert selftest.answer("crosshair")["passed"] is True


def test_a_torch_that_lies_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert selftest.answer("torch")["passed"] is True
    real = torch.Tensor.backward
    for lie in (lambda self: None, lambda self: real(self * 2), lambda self: real(self * float("nan"))):
        monkeypatch.setattr(torch.Tensor, "backward", lie)
        assert selftest.answer("torch")["passed"] is False


@pytest.mark.parametrize(
    ("code", "out", "state"),
    [
        (0, 'noise\n{"passed": true, "said": "x"}\n', "passed"),
        (0, '{"passed": false, "said": "x"}', "failed"),
        (1, '{"passed": true, "said": "x"}', "failed"),
        (-9, "", "failed"),
        (0, "", "failed"),
        (0, "passed", "failed"),
        (0, '{"passed": "yes", "said": "x"}', "failed"),
        (0, '{"passed": true}', "failed"),
        (0, '{"passed": true, "said": "x"}\nterminated', "failed"),
    ],
)
def test_only_a_whole_answer_counts(code: int, out: str, state: str) -> None:
    assert judged(code, out, "the last words")[0] == state


def test_a_tool_that_hangs_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def sleeping(name: str) -> Sequence[str]:
        return [sys.executable, "-S", "-c", "import time; time.sleep(60)"]

    monkeypatch.setattr(selftests, "command", sleeping)
    found = run_all({"cuda": (NO_GPU, "")}, limit=0.2)
    assert [t.state for t in found] == ["failed"] * (len(GET) - 1) + ["absent"]
    assert found[0].said.endswith(" 0.2 s")


@pytest.mark.parametrize("outcome", [Outcome.ERROR, Outcome.REFUTED, Outcome.TIMEOUT])
def test_a_worker_without_an_answer_fails(monkeypatch: pytest.MonkeyPatch, outcome: Outcome) -> None:
    said = recorded(check(), Finding(outcome, "RecursionError: maximum recursion depth exceeded"))
    monkeypatch.setattr("gradproof.execution.local.Worker.run", lambda self: said)
    found = selftest.answer("worker")
    assert found["passed"] is False
    assert f"{outcome}, RecursionError" in str(found["said"])


@pytest.mark.parametrize("lie", [Outcome.HOLDS, Outcome.REFUTED, Outcome.ERROR])
def test_a_check_that_says_the_same_of_both_loops_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: Outcome
) -> None:
    monkeypatch.chdir(tmp_path)
    same = Verification("", {}, [Result(selftest.OBLIGATION, lie, "as always")])
    monkeypatch.setattr(child, "verify", lambda *_: same)
    assert selftest.answer("check")["passed"] is False


def test_a_failed_self_test_is_a_warning_with_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    test = SelfTest("torch", "failed", "no gradient", GET["torch"], 0.1)
    monkeypatch.setattr(selftests, "run_all", lambda absent: [test])
    assert dispatch(["doctor", "--folder", str(tmp_path)]) == 1
    assert f"torch failed: no gradient; try: {GET['torch']}" in capsys.readouterr().out
