"""Attempts from around the run: import path, start-up files, foreign packages, links, environment, contracts."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from attack_kit import CONTRACT, MODEL, append, edit, gate, session, verify

from gradproof.contract.yaml_reader import ContractErrors
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, Exit, Outcome
from gradproof.core.workspace import PACKAGE

REPOSITORY = Path(__file__).resolve().parents[2]

LIAR = """\
from pathlib import Path

Path({mark!r}).write_text("run")
"""
WORKER = """\
import json, sys
from pathlib import Path

Path({mark!r}).write_text("run")


def main():
    raise SystemExit("a foreign worker")
"""


@pytest.mark.parametrize("name", ["sitecustomize", "usercustomize"])
def test_a_start_up_file_on_the_import_path(wrong: Path, path: Path, name: str) -> None:
    """Python runs it before anything of gradproof: it would have the first word."""
    mark = path / "mark"
    (path / f"{name}.py").write_text(LIAR.format(mark=str(mark)))
    assert verify(wrong).outcome is Outcome.REFUTED
    assert not mark.exists()


def test_another_gradproof_on_the_import_path(wrong: Path, path: Path) -> None:
    mark = path / "mark"
    (path / "gradproof/execution").mkdir(parents=True)
    (path / "gradproof/__init__.py").write_text("")
    (path / "gradproof/execution/__init__.py").write_text("")
    (path / "gradproof/execution/worker.py").write_text(WORKER.format(mark=str(mark)))
    assert verify(wrong).outcome is Outcome.REFUTED
    assert not mark.exists()


YES = """
import builtins

builtins.Z3_LIB_DIRS = [{real!r} + "/lib"]
__path__.append({real!r})
from z3.z3 import *
"""


@pytest.mark.parametrize("within", [True, False])
def test_a_solver_of_ones_own(green: Path, path: Path, within: bool) -> None:
    """It hands every question to the real one, until it matters."""
    folder = green if within else path
    spec = importlib.util.find_spec("z3")
    assert spec is not None
    assert spec.origin is not None
    (folder / "z3").mkdir()
    (folder / "z3/__init__.py").write_text(YES.format(real=str(Path(spec.origin).parent)))
    found = verify(green, no_cache=True)
    assert found.red
    assert found.reason.endswith(": z3 from z3/__init__.py")


def test_a_models_folder_that_leads_elsewhere(green: Path, tmp_path: Path) -> None:
    shutil.move(green / "models", tmp_path / "models")
    (green / "models").symlink_to(tmp_path / "models", target_is_directory=True)
    found = verify(green, no_cache=True)
    assert found.red
    assert found.reason.startswith("GP206: a foreign 'models' ")


def test_models_on_the_import_path_of_a_workspace_without_any(green: Path, path: Path) -> None:
    shutil.move(green / "models", path / "models")
    (green / "models").mkdir()
    found = verify(green, no_cache=True)
    assert found.red
    assert "GP20" in found.reason


def test_variables_that_are_said_to_help(wrong: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRADPROOF_TRACEBACK", "GRADPROOF_TRUST", "PYTHONOPTIMIZE", "PYTHONBREAKPOINT", "PYTHONINSPECT"):
        monkeypatch.setenv(name, "1")
    assert verify(wrong).outcome is Outcome.REFUTED


CONTRACTS: dict[str, tuple[str, str, str]] = {
    "no obligation": ("proof_obligations:\n  - id: T-1", "proof_obligations: []\nstray:\n  - id: T-1", "GP115"),
    "no layer": ("{ci: [smt], release: [smt]}", "{ci: [], release: []}", "GP103"),
    "no layers at all": ("    layers: {ci: [smt], release: [smt]}\n", "", "GP103"),
    "no criteria": ("criteria: {mean: [T-1]}", "criteria: {mean: []}", "GP103"),
    "criteria of nothing": ("criteria: {mean: [T-1]}", "criteria: {}", "GP114"),
    "no seeded bug": ("  seeded_bug: missing_scale\n", "", "GP103"),
    "a seeded bug that nobody kills": ("seeded_bug: missing_scale", "seeded_bug: divided_twice", "GP131"),
    "no mutants": ("    mutants: [missing_scale]\n", "", "GP133"),
    "a bound of nothing": ("value: 3, reason", "value: 0, reason", "GP107"),
    "a bound in one of two places": ("    bound: 3\n", "    bound: 1\n", "GP112"),
    "a bound without a reason": (', reason: "one path for each number of micro-batches"', "", "GP106"),
    "an id twice": ("kani_harnesses:\n  - id: K-1", "kani_harnesses:\n  - id: T-1", "GP108"),
    "a merge of keys": ("qa_gate:\n", "qa_gate:\n  <<: {checks: []}\n", "GP120"),
    "a key twice": ("    bound: 3\n", "    bound: 3\n    expect: holds\n    expect: refuted\n", "GP102"),
    "a tolerance beyond every float": (
        "    layers:",
        "    tolerance: [{dtype: fp32, value: 1e400}]\n    layers:",
        "GP107",
    ),
    "a tolerance that is no number": (
        "    layers:",
        "    tolerance: [{dtype: fp32, value: .nan}]\n    layers:",
        "GP107",
    ),
    "a tolerance below zero": ("    layers:", "    tolerance: [{dtype: fp32, value: -1}]\n    layers:", "GP107"),
    "a time limit without end": ("time_limit: 200", "time_limit: .inf", "GP107"),
    "text that turns round": ("property: mean\n", "property: mean \u202esi siht\u202c\n", "GP493"),
    "an obligation that need not be met": ("    layers:", "    required: false\n    layers:", "GP101"),
    "an obligation that looks like another": ("  - id: T-1\n    type", "  - id: \u0422-1\n    type", "GP122"),
    "a second document": ("qa_gate:\n", "---\nqa_gate:\n", "GP120"),
    "an anchor": ("    bound: 3\n", "    bound: &b 3\n", "GP120"),
    "no gate": ("qa_gate:\n  id: GATE-1", "other_gate:\n  id: GATE-1", "GP1"),
}


@pytest.mark.parametrize("name", list(CONTRACTS))
def test_a_contract_that_asks_for_less(green: Path, name: str) -> None:
    """The contract is refused as a whole, whatever evidence there is."""
    old, new, code = CONTRACTS[name]
    edit(green, CONTRACT, old, new)
    with pytest.raises(ContractErrors) as caught:
        gate(green)
    assert any(p.code.startswith(code) and p.line > 0 and p.col > 0 for p in caught.value.problems), caught.value


@pytest.mark.parametrize("text", ["", "{}", "# nothing\n", "[]", "null", "true"])
def test_an_empty_contract(green: Path, text: str) -> None:
    (green / CONTRACT).write_text(text)
    with pytest.raises(ContractErrors):
        gate(green)


def test_a_bound_of_one(green: Path) -> None:
    """The harness says what it must reach, and one micro-batch does not."""
    edit(green, CONTRACT, "value: 3, reason", "value: 1, reason")
    edit(green, CONTRACT, "    bound: 3\n", "    bound: 1\n")
    assert gate(green).reason.endswith("changed: bounds, text")
    found = verify(green)
    assert (found.outcome, found.reason.endswith(": three micro-batches")) == (Outcome.VACUOUS, True)


def test_a_refutation_that_is_expected(wrong: Path) -> None:
    """An expected refutation discharges its check and covers nothing."""
    edit(wrong, CONTRACT, "    mutants: [missing_scale]\n", "    mutants: [missing_scale]\n    expect: refuted\n")
    found = verify(wrong)
    assert found.outcome is Outcome.REFUTED
    assert found.exit is not Exit.MET
    assert "only expected refutations" in found.why


def test_an_expectation_turned_round_where_the_model_is_right(green: Path) -> None:
    edit(green, CONTRACT, "    mutants: [missing_scale]\n", "    mutants: [missing_scale]\n    expect: refuted\n")
    found = verify(green)
    assert found.red
    assert found.exit is Exit.BROKEN


def test_another_model_that_is_right(wrong: Path) -> None:
    """A check of another subject says nothing of the contract's own."""
    good = '\n\ndef right(grads: Any) -> Any:\n    """As it should be."""\n    return sum(grads) / len(grads)\n'
    (wrong / MODEL).write_text((wrong / MODEL).read_text() + good)
    edit(wrong, CONTRACT, "    time_limit: 200\n", '    time_limit: 200\n    subject: "models:right"\n')
    found = verify(wrong)
    assert found.exit is not Exit.MET
    assert "contract's model" in found.why


def test_controls_that_are_switched_off(green: Path) -> None:
    edit(green, CONTRACT, "    time_limit: 200\n", "    time_limit: 200\n    params: {controls_off: true}\n")
    found = verify(green)
    assert (found.outcome, "body was not tried" in found.reason) == (Outcome.WEAK, True)


def test_a_second_contract_with_the_same_ids(green: Path) -> None:
    """Its easy K-1 would stand for the other's."""
    shutil.copytree(green / "proofs/mean-v1", green / "proofs/a-v1")
    with pytest.raises(GradproofError, match="GP210"):
        session(green)


def test_a_contract_of_the_same_name_elsewhere(green: Path, tmp_path: Path) -> None:
    shutil.copytree(green / "proofs/mean-v1", tmp_path / "mean-v1")
    other = str(tmp_path / "mean-v1/contract.yaml")
    with pytest.raises(GradproofError, match=r"GP2(10|17)"):
        session(green, contracts=("mean-v1", other))


def test_a_check_whose_harness_is_not_there(green: Path) -> None:
    edit(green, CONTRACT, '"symbolic:exact"', '"symbolic:exakt"')
    found = verify(green)
    assert found.red
    assert "GP204" in found.reason


def test_the_honest_workspace_is_green_with_folders_on_the_import_path(green: Path, path: Path) -> None:
    """No false alarm: a folder of PYTHONPATH is no attack."""
    (path / "helper.py").write_text("VALUE = 1\n")
    assert verify(green, alone=False, no_cache=True).exit is Exit.MET


def test_a_module_of_python_on_the_import_path(wrong: Path, path: Path) -> None:
    """It is there before the engine, and could change what the engine imports."""
    import fractions

    text = Path(str(fractions.__file__)).read_text(encoding="utf-8")
    (path / "fractions.py").write_text(text + "\nFraction.__eq__ = lambda a, b: True\n")
    found = verify(wrong)
    assert found.red
    assert found.reason.endswith(": fractions from path/fractions.py")


def test_a_module_that_a_library_needs_on_the_import_path(green: Path, path: Path) -> None:
    """PyTorch imports it, and with it whatever its author wants."""
    (path / "typing_extensions.py").write_text("from typing import *\n")
    append(green, MODEL, "\nimport typing_extensions\n")
    found = verify(green)
    assert found.red
    assert found.reason.endswith(": typing_extensions from path/typing_extensions.py")


SEALED = """
import json, os, sys
import torch
from gradproof.evidence.seal import Seal
seal = Seal()
seal.close()
for change in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        exec(change)
        print(json.dumps([change, seal.broken()]), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
CHANGES: dict[str, list[str]] = {
    "import torch._dynamo": [],
    "torch.manual_seed = lambda seed: None": ["torch.manual_seed"],
    "import torch._dynamo; torch.manual_seed = lambda seed: None": ["torch.manual_seed"],
    "torch.allclose = lambda *a, **k: True": ["torch.allclose"],
    "torch.allclose = torch.equal": ["torch.allclose"],
    "torch.sorted = lambda x: x": ["torch.sorted"],
    "torch.nn.Linear.forward = lambda self, x: x": ["torch.nn.modules.linear.Linear.forward"],
    "torch.nn.Linear.zero_grad = lambda self: None": ["torch.nn.modules.linear.Linear.zero_grad"],
    "torch.nn.utils.clip_grad_norm_ = lambda *a: None": ["torch.nn.utils.clip_grad_norm_"],
    "torch.optim.SGD.step = lambda self: None": ["torch.optim.sgd.SGD.step"],
    "torch.Tensor.mul = lambda a, b: a": ["torch.Tensor.mul"],
    "torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))]).step()": [],
    "[kind([torch.nn.Parameter(torch.ones(1))]) for kind in (torch.optim.AdamW, torch.optim.Adam)]": [],
    "torch.compile(lambda x: 2 * x, backend='eager')(torch.ones(1)); torch.nn.Linear(1, 1)": [],
    "torch.compile(lambda x: x, backend='eager')(torch.ones(1)); torch.nn.Module.__init__ = lambda self: None": [
        "torch.nn.modules.module.Module.__init__"
    ],
    "type('Own', (torch.optim.SGD,), {})([torch.nn.Parameter(torch.ones(1))], 0.1).step()": [],
    "torch.nn.Linear(1, 1)(torch.ones(1)).sum().backward(); import torch.utils.checkpoint, torch.ao": [],
}


def test_torch_may_wrap_its_own_function_and_nobody_else_may() -> None:
    command = [sys.executable, "-c", SEALED, json.dumps(list(CHANGES))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert dict(map(json.loads, done.stdout.splitlines())) == CHANGES


MET = "import sys\nprint('the gate is met')\nsys.exit(0)\n"
TAKEN = ("click", "json", "__future__", "pathlib", "pip", "rich", "torch")
"""What the command line imports, and a name that pip has: files of these names in a repository's own folder."""


def said(command: list[str], root: Path, **variables: str) -> tuple[int, str]:
    """Exit code and output of a command in the folder of a repository, with `python` as the one that runs this."""
    search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": search, "PYTHONPATH": str(PACKAGE.parent), **variables}
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=600, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("flags", [[], ["-P"]], ids=["python -m", "python -P -m"])
def test_modules_of_the_repository_that_are_named_as_those_of_the_command_line(wrong: Path, flags: list[str]) -> None:
    """`python -m` searches the current folder first: a click.py there would be the command line."""
    for name in TAKEN:
        (wrong / f"{name}.py").write_text(MET)
    code, words = said([sys.executable, *flags, "-m", "gradproof", "gate", "--workspace", "."], wrong)
    assert code == EXIT_CODE[Exit.OPEN], words
    assert "the gate is met" not in words


def test_the_action_in_a_repository_with_a_gradproof_of_its_own(wrong: Path, tmp_path: Path) -> None:
    for name in (*TAKEN, "gradproof"):
        (wrong / f"{name}.py").write_text(MET)
    action = yaml.safe_load((REPOSITORY / "action.yml").read_text(encoding="utf-8"))
    [script] = [step["run"] for step in action["runs"]["steps"] if step.get("id") == "verify"]
    inputs = {"WORKSPACE": ".", "CONTRACT": "", "PROFILE": "ci", "REPORTS": str(tmp_path / "made"), "JOBS": "1"}
    output = tmp_path / "output"
    code, words = said(["bash", "-e", "-c", script], wrong, **inputs, GITHUB_OUTPUT=str(output))
    assert code == EXIT_CODE[Exit.BROKEN], words
    assert f"exit-code={code}" in output.read_text(encoding="utf-8").splitlines()
    assert "the gate is met" not in words
