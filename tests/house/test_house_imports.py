"""What a process loads: the help without anything heavy, the runs without a solver, and nothing beyond the promise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest
from house_rules import REPOSITORY, sources

HEAVY = ("torch", "z3", "crosshair", "pydantic", "numpy", "hypothesis", "jinja2", "rich", "yaml")
SOLVERS = ("z3", "crosshair")
REPORT = "import json, sys\nprint(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"

BLOCK = """
import importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ImportError(f"{{name}} is blocked")

sys.meta_path.insert(0, Blocker())
"""

RUN_PATH = tuple(
    "gradproof." + name
    for name in (
        "cli", "cli.prove", "cli.progress", "cli.options", "session", "contract.model",
        "verdict.plan", "evidence.store", "execution.pool", "execution.local",
        "execution.worker", "verdict.judge", "evidence.audit",
        "report.build", "evidence.environment", "evidence.record", "core.workspace", "execution.methods",
        "execution.methods.measure", "execution.methods.property", "execution.methods.exact_window",
        "execution.methods.observe", "execution.methods.gate",
    )
)  # fmt: skip
RENDERERS = tuple(f"gradproof.report.formats.{name}" for name in ("summary", "markdown", "html"))


def python(text: str) -> str:
    """What a fresh interpreter prints. Raises AssertionError with its error output when it fails."""
    path = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])
    command = [sys.executable, "-c", text]
    environ = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_by(text: str) -> set[str]:
    """Top-level packages in memory after `text` has run."""
    return set(json.loads(python(f"{text}\n{REPORT}").splitlines()[-1]))


def importing(names: Sequence[str]) -> str:
    """A program that imports modules by name."""
    return f"import importlib\nfor name in {tuple(names)!r}:\n    importlib.import_module(name)"


def torch_modules() -> list[str]:
    """The workspace's modules that belong to the runs on real PyTorch."""
    names = [s.name.removesuffix(".py").replace("/", ".") for s in sources(("models", "symbolic"))]
    return [n for n in names if n.rpartition(".")[2].startswith(("torch_", "falsify"))]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["verify", "--help"], ["run", "--help"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    plain = loaded_by("pass")
    found = loaded_by(f"from gradproof.cli import dispatch\nassert dispatch({arguments!r}) == 0")
    assert found & set(HEAVY) == set()
    foreign = found - plain - set(sys.stdlib_module_names)
    assert {name for name in foreign if not name.startswith("_")} == {"click", "gradproof"}


def test_a_listing_loads_neither_a_solver_nor_torch() -> None:
    found = loaded_by("from gradproof.cli import dispatch\nassert dispatch(['list']) == 0")
    assert found & set(HEAVY) == {"pydantic", "yaml"}


def test_help_through_the_module_loads_nothing_heavy() -> None:
    """`python -m gradproof --help`, as it is really started."""
    path = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])
    command = [sys.executable, "-X", "importtime", "-m", "gradproof", "--help"]
    environ = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=600, check=False)
    assert done.returncode == 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    names = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
    assert "click" in names
    assert names & set(HEAVY) == set()


def test_a_heavy_import_is_seen() -> None:
    assert "numpy" in loaded_by("import numpy")


def test_the_run_path_needs_no_solver() -> None:
    found = loaded_by(BLOCK.format(names=set(SOLVERS)) + importing([*RUN_PATH, *RENDERERS, *torch_modules()]))
    assert "torch" in found
    assert found & set(SOLVERS) == set()


def test_the_kernels_need_torch_and_numpy_alone() -> None:
    """They run on a machine with a GPU where nothing else is installed; the writer of files is the standard library."""
    names = [
        "gradproof.extras.conformance." + p.stem
        for p in (REPOSITORY / "src/gradproof/extras/conformance").glob("[a-z]*.py")
    ]
    others = {name for name in (*HEAVY, "click", "bitwuzla") if name not in ("torch", "numpy")}
    found = loaded_by(BLOCK.format(names=others) + importing(names))
    assert len(names) > 5
    assert "torch" in found
    assert found & others == set()
    plain = loaded_by("pass")
    assert loaded_by("import gradproof.core.files") - plain - set(sys.stdlib_module_names) == {"gradproof"}


def test_the_run_path_is_not_an_empty_list() -> None:
    names = torch_modules()
    assert {
        "models.accumulation.torch_steps",
        "models.accumulation.torch_mutants",
        "models.accumulation.torch_nets",
        "symbolic.accumulation.falsify",
    } <= set(names)


def test_the_blocker_blocks() -> None:
    with pytest.raises(AssertionError, match="z3 is blocked"):
        python(BLOCK.format(names=set(SOLVERS)) + importing(["gradproof.arith.smt"]))


def test_proving_needs_no_torch() -> None:
    """The engine of the proofs and their content: torch is for replays alone, and loaded when there is one."""
    names = [
        "gradproof.arith.smt",
        "gradproof.execution.methods.explore",
        "gradproof.execution.methods.harness",
        "gradproof.execution.methods.smt",
        "models.accumulation.mutants",
    ]
    names += ["gradproof.execution.methods.crosshair", "symbolic.accumulation.loop", "symbolic.accumulation.contracts"]
    found = loaded_by(BLOCK.format(names={"torch"}) + importing(names))
    assert "z3" in found
    assert "torch" not in found


def test_judging_needs_neither() -> None:
    """`gradproof gate`, `list` and `report` read evidence: no solver and no torch."""
    names = [f"gradproof.cli.{name}" for name in ("prove", "verify", "merge", "explain")]
    blocked = {*SOLVERS, "torch", "hypothesis", "numpy"}
    found = loaded_by(BLOCK.format(names=blocked) + importing([*names, "gradproof.session", *RENDERERS]))
    assert found & blocked == set()


def test_what_check_prints_needs_no_torch() -> None:
    """The command that waits for the verification does not import torch a second time to print it."""
    assert "torch" not in loaded_by(importing(["gradproof.report.formats.step", "gradproof.cli.check"]))


def test_a_harness_and_its_replay_load_no_hypothesis() -> None:
    names = (
        "symbolic.accumulation.loop",
        "models.accumulation.torch_mutants",
        "gradproof.execution.methods.replay_torch",
    )
    assert "hypothesis" not in loaded_by(importing(names))
