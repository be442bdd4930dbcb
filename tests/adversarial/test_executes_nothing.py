"""Reading a contract or evidence executes nothing, and of a workspace only models/ and symbolic/ are imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from attack_kit import CONTRACT, MODEL, append, edit, evidence, forged, verify

SPY = """\
import sys, json
from pathlib import Path

root, out, args = sys.argv[1], sys.argv[2], sys.argv[3:]
seen = []


def note(event, args):
    if event == "exec" and str(getattr(args[0], "co_filename", "")).startswith(root):
        seen.append(["exec", args[0].co_filename])
    elif event in ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "pickle.find_class", "marshal.loads"):
        if event != "marshal.loads":
            seen.append([event, str(args[0])])


sys.addaudithook(note)
from gradproof.cli import dispatch

code = dispatch([*args, "--workspace", root])
loaded = [n for n, m in sys.modules.items() if str(getattr(m, "__file__", "")).startswith(root)]
Path(out).write_text(json.dumps({"code": code, "seen": seen, "loaded": loaded}))
"""
POISON = "\n__import__('pathlib').Path(__file__).with_name('poisoned').write_text('run')\n"


def spied(root: Path, folder: Path, *args: str) -> dict[str, object]:
    """One command in a process that notes all code of the workspace that is executed, and every program started."""
    (folder / "spy.py").write_text(SPY, encoding="utf-8")
    out = folder / "seen.json"
    command = [sys.executable, str(folder / "spy.py"), str(root), str(out), *args]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert out.exists(), done.stderr
    found: dict[str, object] = json.loads(out.read_text(encoding="utf-8"))
    return found


@pytest.fixture
def poisoned(green: Path) -> Path:
    """A workspace each file of which would leave a trace, with a contract and evidence made to be evaluated."""
    for name in (MODEL, "symbolic/__init__.py", "conftest.py", "setup.py", "proofs/__init__.py", "proofs/mean-v1/x.py"):
        append(green, name, POISON)
    evil = "__import__('os').system('touch poisoned')"
    edit(green, CONTRACT, "property: the mean is exact", f'property: "{{{{ {evil} }}}} ${{{evil}}} $(touch poisoned)"')
    edit(
        green,
        CONTRACT,
        "    time_limit: 200\n",
        f'    time_limit: 200\n    params: {{trace: "{evil}", code: "{evil}"}}\n',
    )
    forged(evidence(green), lambda data: data["finding"].update(reason=f"{{{{ {evil} }}}}", stats={"eval": evil}))
    return green


@pytest.mark.parametrize("command", [("list",), ("gate", "--json"), ("report",), ("graph",), ("explain", "K-1")])
def test_reading_a_workspace_executes_nothing_of_it(poisoned: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    found = spied(poisoned, tmp_path, *command)
    assert (found["seen"], found["loaded"]) == ([], [])
    assert [p for p in (*poisoned.rglob("poisoned"), *tmp_path.rglob("poisoned"))] == []


def test_the_spy_sees_what_is_executed(poisoned: Path, tmp_path: Path) -> None:
    """A control: with an import of models/ in the same process the spy says so."""
    lines = ["sys.path.insert(0, root)", "import models", "import os", "os.system(':')", "code = dispatch"]
    spy = SPY.replace("code = dispatch", "\n".join(lines))
    (tmp_path / "control.py").write_text(spy, encoding="utf-8")
    out = tmp_path / "seen.json"
    subprocess.run([sys.executable, str(tmp_path / "control.py"), str(poisoned), str(out), "list"], check=True)
    found = json.loads(out.read_text(encoding="utf-8"))
    assert {event for event, _ in found["seen"]} == {"exec", "os.system"}
    assert found["loaded"] == ["models"]


def test_a_run_imports_models_and_symbolic_alone(green: Path) -> None:
    """Other files of the workspace are left alone, even those that Python tools look for."""
    for name in ("conftest.py", "setup.py", "sitecustomize.py", "proofs/__init__.py", "proofs/mean-v1/x.py"):
        append(green, name, POISON)
    verify(green, no_cache=True)
    assert list(green.rglob("poisoned")) == []
    files = json.loads(evidence(green).read_text(encoding="utf-8"))["claim"]["files"]
    ours = [name for name in files if name.startswith("ws:")]
    assert {name.partition(":")[2].partition("/")[0] for name in ours} == {"models", "symbolic"}


def test_the_documentation_says_so() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/evidence.md").read_text(encoding="utf-8")
    assert "Loading a contract or evidence executes nothing" in page
    assert "Of a workspace only `models/` and `symbolic/` are imported" in page
    assert os.path.isdir(Path(__file__).resolve().parents[2] / "tests/adversarial")
