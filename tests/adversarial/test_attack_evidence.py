"""Attempts on what lies on the disk: evidence deleted, edited, forged, carried over, post-dated, linked, raced."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attack_kit import CONTRACT, MODEL, Data, append, break_model, edit, evidence, forged, gate, session, verify

from gradproof.core.outcome import Exit, Layer, Outcome
from gradproof.core.schemas.evidence import evidence_of as taken
from gradproof.evidence import store as stores
from gradproof.evidence.store import Store

FUTURE = "2999-01-01T00:00:00.000+00:00"


def test_the_honest_workspace_is_green(green: Path) -> None:
    assert gate(green).exit is Exit.MET


def test_deleting_the_evidence_of_one_check(green: Path) -> None:
    evidence(green).unlink()
    found = gate(green)
    assert found.red
    assert found.reason == "it was never run"


def test_deleting_all_evidence_and_keeping_the_green_report(green: Path) -> None:
    shutil.rmtree(green / "reports")
    (green / "reports").mkdir()
    (green / "reports/report.json").write_text(json.dumps({"verdict": {"met": True, "code": 0, "exit": "met"}}))
    assert gate(green).red


def test_deleting_a_refutation_so_that_an_older_success_shows(green: Path) -> None:
    """The older success is about the model as it was."""
    kept = evidence(green)
    held = kept.read_text(encoding="utf-8")
    break_model(green)
    assert verify(green).outcome is Outcome.REFUTED
    evidence(green).unlink()
    kept.write_text(held, encoding="utf-8")
    found = gate(green)
    assert found.red
    assert "ws:models/__init__.py changed" in found.reason


def test_editing_a_verdict_in_evidence(wrong: Path) -> None:
    assert verify(wrong).outcome is Outcome.REFUTED
    path = evidence(wrong)
    path.write_text(path.read_text(encoding="utf-8").replace('"REFUTED"', '"HOLDS"'), encoding="utf-8")
    found = gate(wrong)
    assert found.red
    assert "edited or cut short" in found.reason


def test_editing_a_verdict_and_the_name_with_it(wrong: Path) -> None:
    verify(wrong)
    forged(evidence(wrong), lambda data: data["finding"].update(outcome="HOLDS", reach="bounded"))
    found = gate(wrong)
    assert found.red
    assert "contradicts itself" in found.reason


def test_editing_the_verdict_in_the_report(wrong: Path) -> None:
    """The gate and the next report are made of evidence."""
    verify(wrong)
    (wrong / "reports/report.json").write_text('{"verdict": {"met": true, "exit": "met", "code": 0}}')
    assert gate(wrong).exit is Exit.BROKEN
    asked = session(wrong)

    run = asked.stored()
    assert asked.reported(asked.contracts[0], run)["verdict"]["met"] is False


def test_evidence_of_another_commit(green: Path) -> None:
    append(green, MODEL, "\n# the next commit\n")
    found = gate(green)
    assert found.red
    assert "ws:models/__init__.py changed" in found.reason


def test_a_tolerance_raised_after_the_run(green: Path) -> None:
    rows = "    tolerance: [{dtype: fp32, value: 1e-5, metric: linf}]\n    layers:"
    edit(green, CONTRACT, "    layers:", rows)
    verify(green, alone=False)
    assert gate(green).exit is Exit.MET
    edit(green, CONTRACT, "1e-5", "1e-1")
    found = gate(green)
    assert found.red
    assert found.reason.endswith("the claim changed: text")


def test_evidence_of_another_device_and_of_another_dtype(green: Path) -> None:
    """The same test on cuda, or in fp16, is another check; its evidence in the folder of this one says so."""
    one = run_of_torch(green)
    for name in ("F-1@cuda-fp32", "F-1@cpu-fp16"):
        folder = Store(session(green).workspace).folder(one["cpu-fp32"])
        shutil.rmtree(folder, ignore_errors=True)
        made = Store(session(green).workspace).write(taken(held(one[name.partition("@")[2]])))
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(made, folder / made.name)
        found = gate(green, "F-1@cpu-fp32")
        assert found.red
        assert f"evidence of {name}" in found.reason


def test_evidence_of_another_device_under_this_ones_name(green: Path) -> None:
    one = run_of_torch(green)
    path = Store(session(green).workspace).write(taken(held(one["cpu-fp32"])))
    forged(path, lambda data: data["check"].update(layer="cuda", params={**data["check"]["params"], "device": "cuda"}))
    found = gate(green, "F-1@cpu-fp32")
    assert found.red
    assert "changed: layer, params" in found.reason


def test_a_run_on_a_cpu_passed_off_as_one_on_a_gpu(green: Path) -> None:
    one = run_of_torch(green)
    gpu = one["cuda-fp32"]
    finding = held(gpu)
    finding["finding"]["stats"]["device"] = "cpu"
    finding["claim"] = {**finding["claim"], **grounds(green)}
    Store(session(green).workspace).write(taken(finding))
    found = gate(green, gpu.id, profile="release")
    assert found.red
    assert "it ran on cpu" in found.reason


F_1 = """\
falsification_tests:
  - id: F-1
    obligation: T-1
    rule: rule
    prediction: the step is right
    test: run it
    if_fails: bug
    harness: "symbolic:exact"
    bounds: [{name: examples, value: 2, reason: "two runs differ"}]
    mutants: [missing_scale]
    params: {dtypes: {cpu: [fp32, fp16], cuda: [fp32]}}
qa_gate:
"""


def run_of_torch(root: Path) -> dict[str, Any]:
    """Give the contract a measured test, required on the CPU and for a release on CUDA. The checks by their place."""
    edit(root, CONTRACT, "qa_gate:\n", F_1)
    edit(root, CONTRACT, "{ci: [smt], release: [smt]}", "{ci: [smt, cpu], release: [smt, cpu, cuda]}")
    torch = ', torch: "models:mean", torch_empty: "models:empty", torch_mutants: "models:MUTANTS"}'
    edit(root, CONTRACT, 'mutants: "models:MUTANTS"}', f'mutants: "models:MUTANTS"{torch}')
    return {c.id.partition("@")[2]: c for c in session(root).checks if "@" in c.id}


def held(check: Any) -> Data:
    """Evidence that a measured test held, with all that it needs."""
    from gradproof.core.check import Control, Finding
    from gradproof.core.outcome import Reach
    from gradproof.evidence.environment import environment
    from gradproof.evidence.record import record

    controls = [Control(name, "mutant", "T-1", Outcome.REFUTED, True) for name in check.mutants]
    controls.append(Control("empty body", "empty_body", "T-1", Outcome.REFUTED, True))
    device = "cuda" if check.layer is Layer.CUDA else "cpu"
    finding = Finding(
        Outcome.HOLDS, "held", Reach.SAMPLED, clauses={"T-1": "held in every run"}, controls=controls,
        covers=[{"name": "ran", "reached": True}], stats={"device": device},
    )  # fmt: skip
    return record(check, finding, environment=environment())


def grounds(root: Path) -> Data:
    """The files that a run of K-1 rested on."""
    claim: Data = json.loads(evidence(root).read_text(encoding="utf-8"))["claim"]
    return {key: claim[key] for key in ("files", "imports")}


def test_evidence_of_a_check_of_the_same_id_in_another_contract(green: Path) -> None:
    shutil.copytree(green / "proofs/mean-v1", green / "proofs/easy-v1")
    edit(green, "proofs/easy-v1/contract.yaml", "mean(g_1..g_n) * n = g_1 + ... + g_n", "0 = 0")
    found = gate(green, contracts=("easy-v1",))
    assert found.red
    assert "the claim changed: text" in found.reason


def test_a_clock_set_back(green: Path) -> None:
    """Evidence that ended in the future would outrank every honest run after it, and never be too old."""
    forged(evidence(green), lambda data: data.update(started_at=FUTURE, finished_at=FUTURE))
    found = gate(green)
    assert found.red
    assert "in the future" in found.reason


@pytest.mark.parametrize("times", [{"finished_at": "yesterday"}, {"started_at": ""}, {"finished_at": "2020-01-01"}])
def test_times_that_are_none(green: Path, times: dict[str, str]) -> None:
    forged(evidence(green), lambda data: data.update(times))
    found = gate(green)
    assert found.red
    assert "with a zone" in found.reason


def test_an_end_before_the_beginning(green: Path) -> None:
    forged(evidence(green), lambda data: data.update(finished_at="2001-01-01T00:00:00.000+00:00"))
    found = gate(green)
    assert found.red
    assert "before it began" in found.reason


@pytest.mark.parametrize("whole", [False, True])
def test_evidence_that_is_a_link(green: Path, tmp_path: Path, whole: bool) -> None:
    """What a link points to can be exchanged between the look of the gate and that of a reader."""
    path = evidence(green)
    place = path.parent if whole else path
    shutil.move(place, tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere", target_is_directory=whole)
    found = gate(green)
    assert found.red
    assert "symbolic link" in found.reason


def test_a_control_marked_killed_by_a_crash(green: Path) -> None:
    def crash(data: Data) -> None:
        data["finding"]["controls"][1].update(outcome="ERROR", killed=True)

    forged(evidence(green), crash)
    found = gate(green)
    assert found.red
    assert found.outcome is Outcome.WEAK
    assert "survives (ERROR)" in found.reason


FORGERIES: dict[str, tuple[Callable[[Data], Any], str]] = {
    "no control": (lambda d: d["finding"].update(controls=[]), "empty body was not"),
    "no cover": (lambda d: d["finding"].update(covers=[]), "no cover shows"),
    "a cover without a witness": (lambda d: d["finding"]["covers"][0].update(reached=False), "was not reached"),
    "no clause": (lambda d: d["finding"].update(clauses={}), "no clause was checked"),
    "a clause of another": (lambda d: d["finding"].update(clauses={"T-10": "HOLDS"}), "no clause of T-1"),
    "a reach beyond the strategy": (lambda d: d["finding"].update(reach="all inputs"), "reach is all inputs"),
    "no reach": (lambda d: d["finding"].update(reach=None), "states no reach"),
    "no files": (lambda d: d["claim"].update(files={}, imports=[]), "of its harness"),
    "no engine": (
        lambda d: d["claim"].update(files={k: v for k, v in d["claim"]["files"].items() if k[:3] != "gp:"}),
        "of the engine",
    ),
    "fewer mutants": (lambda d: d["check"].update(mutants=[]), "the claim changed: mutants"),
    "a smaller bound": (lambda d: d["check"]["bounds"][0].update(value=1), "the claim changed: bounds"),
    "another expectation": (lambda d: d["check"].update(expect="refuted"), "the claim changed: expect"),
    "another solver": (lambda d: d["environment"].update(z3="9.9.9"), "z3 9.9.9 then"),
}


@pytest.mark.parametrize("name", list(FORGERIES))
def test_forged_evidence(green: Path, name: str) -> None:
    """The digests are right, and what lies below the outcome does not carry it."""
    change, said = FORGERIES[name]
    forged(evidence(green), change)
    found = gate(green)
    assert found.red
    assert said in found.reason


def test_a_truncated_evidence_file(green: Path) -> None:
    path = evidence(green)
    path.write_bytes(path.read_bytes()[:-3])
    found = gate(green)
    assert found.red
    assert "it is no JSON" in found.reason


def test_two_processes_that_write_the_same_store(wrong: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one run writes its success, another run's refutation arrives: the first must not clear it away."""
    verify(wrong)
    refuted = evidence(wrong)
    asked = session(wrong)
    [check] = [c for c in asked.checks if c.id == "K-1"]
    data = json.loads(refuted.read_text(encoding="utf-8"))
    text = refuted.read_text(encoding="utf-8")
    refuted.unlink()
    whole = stores.replace_whole

    def beside(path: Path, content: str) -> None:
        whole(path, content)
        refuted.write_text(text, encoding="utf-8")

    earlier = {**data, "started_at": "2020-01-01T00:00:00+00:00", "finished_at": "2020-01-01T00:00:01+00:00"}
    monkeypatch.setattr(stores, "replace_whole", beside)
    Store(asked.workspace).write(taken(earlier))
    assert refuted.exists()
    assert Store(asked.workspace).status(check).outcome is Outcome.REFUTED
