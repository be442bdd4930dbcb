"""Every command where a package is not installed: it works, or says what it needs and which command installs that."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradproof.cli import COMMANDS
from gradproof.core.workspace import CI
from gradproof.evidence import environment
from gradproof.evidence.environment import ALSO, EXTRAS, KNOWN, LIGHT, installing
from gradproof.extras.selftest import LOOP, RIGHT, WRONG
from tests.light import LEFT_OUT

ROOT = Path(__file__).resolve().parents[3]
SITE = """\
import os, sys
from importlib.machinery import PathFinder

BLOCKED = os.environ["BLOCKED"].split(",")


class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in BLOCKED else PathFinder.find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""
"""sitecustomize of a child and of the processes that it starts: these packages are not there."""
DRIVER = """\
import contextlib, io, json, sys
from gradproof.cli import dispatch

found = []
for words in json.loads(sys.argv[1]):
    for name in [m for m in sys.modules if m.partition(".")[0] in ("models", "symbolic")]:
        del sys.modules[name]  # of another workspace
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = dispatch(words)
    found.append((code, said.getvalue()))
print(json.dumps(found))
"""
SCRIPT = """\
import torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(8):
    (model(torch.randn(2, 8)).square().mean() / 2).backward()
    if i % 2:
        optimizer.step()
        optimizer.zero_grad()
"""
JUNIT, HTML = "junitparser", "jinja2"
STEP, ALL = ("torch", "psutil"), ("torch", "psutil", "z3", "crosshair", "hypothesis", JUNIT, HTML)
SWEEP = "sweep --net mlp --accum-steps 1,2 --num-steps 6 --draws 0"
LINES: dict[str, tuple[str, ...]] = {
    "replay EVIDENCE --control missing_scale": ("z3",),
    "check train.py:train": STEP,
    "check train.py:train --format junit": (*STEP, JUNIT),
    "check train.py:train --format html": (*STEP, HTML),
    "watch -- python script.py": STEP,
    "watch --format junit -- python script.py": (*STEP, JUNIT),
    "demo": STEP,
    "init --loop train.py:train new": (HTML,),
    "verify --workspace green": (HTML,),
    "verify --workspace green --format junit=x.xml": (HTML, JUNIT),
    "verify --workspace green --no-cache": (HTML, "psutil", "z3"),
    "gate --workspace green": (),
    "report --workspace green": (HTML,),
    "report --workspace green --format junit": (JUNIT, HTML),
    "prove --workspace green --no-cache": ("psutil", "z3"),
    "prove -k CROSS-GA-002": ("psutil", "crosshair", "z3"),
    "prove -k STEP-GA-003": STEP,
    "run -k FALSIFY-GA-003@cpu-fp32": (*STEP, "hypothesis"),
    "list": (),
    "claims": (),
    "graph": (),
    "config": (),
    "merge green/reports --workspace green": (),
    "diff green green": (),
    "attest --workspace green --no-queries new-bundle": (),
    "attest --workspace green other-bundle": ("psutil", "z3"),
    "verify-bundle bundle": (),
    "bound": (),
    "plan-batch --micro-batch 2 --accum-steps 4": (),
    SWEEP: ("torch",),
    "explain GP409": (),
    "doctor --quick": (),
}
"""Command line -> the packages that it cannot do without."""
LONG = ("check", "watch", "demo", "sweep", "run")
"""Commands of seconds: they run in the light installation alone, and where a package is missing that they need."""
CODES = {"claims": 4}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a loop, a script, a workspace with its evidence, and a bundle of that."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "train.py").write_text(LOOP.replace(WRONG, RIGHT), encoding="utf-8")
    (folder / "script.py").write_text(SCRIPT, encoding="utf-8")
    shutil.copytree(ROOT / "tests/corpus/green", folder / "green")
    lines = ["verify --workspace green", "attest --workspace green --no-queries bundle"]
    assert [code for code, _ in run(folder, "nothing", lines)] == [0, 0]
    return folder


def run(folder: Path, blocked: str, lines: list[str]) -> list[tuple[int, str]]:
    """Exit code and output of each command line, in one process without these packages."""
    site = folder / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    path = os.pathsep.join([str(site), str(Path(environment.__file__).parents[2])])
    outside = {name: value for name, value in os.environ.items() if name not in CI}
    evidence = next(iter(folder.glob("green/reports/evidence/K-1/*.json")), Path("none"))
    words = [[str(evidence) if word == "EVIDENCE" else word for word in line.split()] for line in lines]
    for name in ("new", "new-bundle", "other-bundle"):
        shutil.rmtree(folder / name, ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(words)], cwd=folder, capture_output=True, text=True, timeout=900,
        env={**outside, "PYTHONPATH": path, "BLOCKED": blocked}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    found: list[tuple[int, str]] = [(code, said) for code, said in json.loads(done.stdout.splitlines()[-1])]
    return found


def wrong(lines: list[str], found: list[tuple[int, str]], blocked: tuple[str, ...]) -> Iterator[str]:
    """Each command line that does not say what it lacks, or that does not work although it lacks nothing."""
    for line, (code, said) in zip(lines, found, strict=True):
        word = line.split()[0]
        lost = sorted({*LINES[line]} & {*blocked})
        right = code == CODES.get(word, 0)
        if lost:
            stated = [f"gradproof {word}: GP409", " not installed", *lost[:1], "python -m pip install "]
            right = code == 2 and all(text in said for text in stated)
        if not right or "Traceback" in said or "internal error" in said:
            yield f"{line} without {blocked}: {code}, {said}"


def test_every_command_is_tried() -> None:
    assert {line.split()[0] for line in LINES} == set(COMMANDS)
    assert {name for names in LINES.values() for name in names} == set(ALL)


@pytest.mark.slow
@pytest.mark.parametrize("package", ALL)
def test_a_command_names_the_package_that_it_lacks(desk: Path, package: str) -> None:
    lines = [n for n, needs in LINES.items() if package in needs or (n.split()[0] not in LONG and "-k" not in n)]
    assert list(wrong(lines, run(desk, package, lines), (package,))) == []


@pytest.mark.slow
def test_the_light_installation_checks_and_watches(desk: Path) -> None:
    lines = [n for n, needs in LINES.items() if not {*needs} & {*EXTRAS} and "-k" not in n and n != SWEEP]
    assert {"check", "watch", "demo", "init", "gate"} <= {n.split()[0] for n in lines}
    assert list(wrong(lines, run(desk, ",".join(EXTRAS), lines), tuple(EXTRAS))) == []


def test_a_run_that_cannot_begin_leaves_no_green_report(desk: Path) -> None:
    lines = ["verify --workspace green", "verify --workspace green --no-cache"]
    assert [code for code, _ in run(desk, "crosshair", lines[:1])] == [0]
    report = desk / "green/reports/report.json"
    assert json.loads(report.read_text(encoding="utf-8"))["verdict"]["exit"] == "met"
    assert [code for code, _ in run(desk, "z3", lines)] == [0, 2]
    assert json.loads(report.read_text(encoding="utf-8"))["verdict"]["exit"] == "open"


def test_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names that pip knows, in the versions that the distribution asks for: gradproof is on no index."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(EXTRAS.values()) <= set(project["optional-dependencies"])
    required = {re.split(r"[^\w-]", need)[0] for need in project["dependencies"]} - {"click"}
    assert set(KNOWN.values()) == required
    assert {KNOWN[name] for name, extra in EXTRAS.items() if extra in ("proofs", "tests")} | {"torch"} == {*LEFT_OUT}
    monkeypatch.setattr(environment, "version_of", lambda name: None if name == LIGHT else "1")
    rows = [*project["dependencies"], *(f'{row}; extra == "x"' for row in project["optional-dependencies"]["sign"])]
    monkeypatch.setattr(importlib.metadata, "requires", {"gradproof": rows, LIGHT: None}.get)
    assert installing(["z3", "yaml"]) == "python -m pip install 'pyyaml>=6' 'z3-solver>=4.13'"
    assert installing(["cryptography", "securesystemslib"]) == "python -m pip install 'securesystemslib[crypto]>=1.2'"
    assert installing(["distributed"]) == "python -m pip install distributed"
    monkeypatch.setattr(environment, "version_of", lambda name: "1")
    assert installing(["crosshair", "torch"]) == "python -m pip install crosshair-tool torch"
    assert {*EXTRAS} <= {*KNOWN, *ALSO}


def test_a_refusal_writes_nothing_where_nothing_was(desk: Path, tmp_path: Path) -> None:
    """In an empty folder the packaged reference is judged: without Z3 no report of it comes about."""
    assert [(code, "GP409" in said) for code, said in run(tmp_path, "z3,crosshair,hypothesis", ["verify"])] == [
        (2, True)
    ]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["sitecustomize.py"]
