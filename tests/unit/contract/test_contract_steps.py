"""Step proofs in a contract: what they load as, what is planned of them, and every mistake at its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradproof.contract.model import load
from gradproof.contract.yaml_reader import ContractErrors, Problem
from gradproof.core.outcome import Kind, Layer
from gradproof.report.text import error_codes
from gradproof.verdict.plan import plan

SMALL = (Path(__file__).parents[2] / "contracts" / "small.yaml").read_text(encoding="utf-8")
ROW = """\
step_proofs:
  - id: S-STEP-001
    obligation: S-EQ-001
    property: the recorded step
    harness: "symbolic.accumulation.step:records"
    bounds:
      - {name: micro_batches, value: 4, reason: four}
      - {name: windows, value: 2, reason: two}
    params:
      nets: [linear]
      n: [2, 4]
      optimizers: [sgd, adamw fused]
      tail: 1
      max_norm: 0.5
    mutants: [missing_scale]
    time_limit: 90
falsification_tests:
"""
GOOD = SMALL.replace("falsification_tests:\n", ROW, 1).replace("ci: [smt, cpu]", "ci: [smt, step, cpu]", 1)
MARK = re.compile(r"!(GP\d{3}):(\d+)")


def written(tmp_path: Path, text: str) -> Path:
    """The contract in a file."""
    path = tmp_path / "small-kernel-v1" / "contract.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def broken(tmp_path: Path, text: str) -> list[Problem]:
    """What is wrong with it."""
    with pytest.raises(ContractErrors) as caught:
        load(written(tmp_path, text))
    return caught.value.problems


def test_a_step_proof_is_loaded_and_planned(tmp_path: Path) -> None:
    contract = load(written(tmp_path, GOOD))
    (row,) = contract.step_proofs
    assert (row.named, row.params.n, row.params.max_norm) == (("S-EQ-001",), [2, 4], ["0.5"])
    assert "loss_scale" not in row.params.stated()
    (check,) = [c for c in plan(contract) if c.kind is Kind.TRACE]
    assert (check.id, check.layer, check.subject) == ("S-STEP-001", Layer.STEP, "models.steps:Step")
    assert (check.bound("windows"), check.mutants, check.time_limit) == (2, ("missing_scale",), 90.0)
    assert check.params["optimizers"] == ["sgd", "adamw fused"]
    assert check.params["subjects"]["torch_empty"] == "models.steps:Empty"
    assert [o["id"] for o in check.text["obligations"]] == ["S-EQ-001"]
    assert contract.obligation("S-EQ-001").layers.ci == [Layer.SMT, Layer.STEP, Layer.CPU]


def test_several_clips_and_loss_scales_are_a_list_in_which_none_is_one(tmp_path: Path) -> None:
    text = GOOD.replace("max_norm: 0.5", "max_norm: [0.5, none]\n      loss_scale: 4\n      overflow: [0, 2]", 1)
    (row,) = load(written(tmp_path, text)).step_proofs
    assert (row.params.max_norm, row.params.loss_scale, row.params.overflow) == (["0.5", "none"], ["4"], [0, 2])
    for wrong in ("max_norm: [0.5, nothing]", "max_norm: []", "max_norm: 0.5\n      overflow: [-1]"):
        assert broken(tmp_path, GOOD.replace("max_norm: 0.5", wrong, 1)), wrong


def test_the_gate_seeds_its_bug_into_step_proofs_too(tmp_path: Path) -> None:
    gate = plan(load(written(tmp_path, GOOD)))[-1]
    (seeded,) = [c for c in gate.params["subchecks"] if c["kind"] == "trace"]
    assert seeded["subject"] == "models.accumulation.torch_mutants:MUTANTS[missing_scale]"
    assert (seeded["mutants"], seeded["params"]["controls_off"]) == ((), True)


def test_a_step_proof_alone_makes_a_contract_ours(tmp_path: Path) -> None:
    text = "metadata: {version: '1', description: d}\nproof_obligations: []\nstep_proofs: []\n"
    assert {p.code for p in broken(tmp_path, text)} >= {"GP103", "GP115"}


EDITS = {
    "unknown key": ("    property: the rec", "    solver: z3  # !GP101:5\n    property: the rec"),
    "unknown param": ("      tail: 1", "      tial: 1  # !GP101:7"),
    "no property": ("    property: the recorded step\n", ""),
    "no params": ("    params:\n", "    note:  # !GP104:5\n"),
    "no nets": ("nets: [linear]", "nets: []  # !GP103:13"),
    "unknown optimizer": ("[sgd, adamw fused]", "[sgd, lion]  # !GP105:25"),
    "n of nothing": ("n: [2, 4]", "n: [0, 4]  # !GP107:11"),
    "n as text": ("n: [2, 4]", 'n: ["2", 4]  # !GP104:11'),
    "negative tail": ("tail: 1", "tail: -1  # !GP107:13"),
    "limit of nothing": ("max_norm: 0.5", "max_norm: 0  # !GP107:17"),
    "also is no reference": ("tail: 1", "also: [DividedOnce]  # !GP122:14"),
    "unknown mode": ("tail: 1", "modes: [fp8]  # !GP105:15"),
    "dangling obligation": ("    obligation: S-EQ-001\n    property: the", "    obligation: S-EQ\n    property: the"),
    "no obligation": ("    obligation: S-EQ-001\n    property: the", "    property: the"),
    "no mutants": ("    mutants: [missing_scale]\n    time_limit: 90", "    time_limit: 90"),
    "repeated mutant": ("[missing_scale]\n    time_limit: 90", "[missing_scale, missing_scale]\n    time_limit: 90"),
    "duplicate id": ("id: S-STEP-001", "id: S-KANI-001"),
    "largest n is another": ("n: [2, 4]", "n: [2, 3]"),
    "no bound of windows": ("      - {name: windows, value: 2, reason: two}\n", ""),
    "bound that nothing reads": ("name: windows, value: 2", "name: cycles, value: 2"),
    "bound without reason": (", reason: two}\n    params", "}\n    params"),
    "no torch subject": ('  torch_empty: "models.steps:Empty"\n', ""),
}
BY_CODE = {
    "no property": ["GP103"],
    "no params": ["GP103", "GP104"],
    "dangling obligation": ["GP109", "GP132"],
    "no obligation": ["GP103", "GP132"],
    "no mutants": ["GP133"],
    "repeated mutant": ["GP129"],
    "duplicate id": ["GP108"],
    "largest n is another": ["GP112"],
    "no bound of windows": ["GP103"],
    "bound that nothing reads": ["GP103", "GP105"],
    "bound without reason": ["GP106"],
    "no torch subject": ["GP103"],
}


@pytest.mark.parametrize("name", EDITS)
def test_each_mistake_is_named_at_its_place(tmp_path: Path, name: str) -> None:
    old, new = EDITS[name]
    assert old in GOOD, "the edit no longer applies"
    text = GOOD.replace(old, new, 1)
    problems = broken(tmp_path, text)
    assert all(p.line > 0 and p.col > 0 and p.found and p.expected and p.help for p in problems)
    assert {p.code for p in problems} <= set(error_codes())
    if name in BY_CODE:
        assert sorted(p.code for p in problems) == BY_CODE[name]
        return
    rows = enumerate(text.splitlines(), 1)
    assert sorted((p.code, p.line, p.col) for p in problems) == sorted(
        (code, n, int(col)) for n, row in rows for code, col in MARK.findall(row)
    )


def test_a_required_step_layer_needs_a_step_proof(tmp_path: Path) -> None:
    text = SMALL.replace("ci: [smt, cpu]", "ci: [smt, step, cpu]", 1)
    assert [p.code for p in broken(tmp_path, text)] == ["GP132"]
