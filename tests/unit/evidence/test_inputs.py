"""What a cached answer rests on beside its modules: files that are read, the environment, installed packages."""

from __future__ import annotations

import json
import os
import py_compile
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from search_bench import hiding
from toy_workspace import check, runs, worker_command, write_workspace

from gradproof import cli
from gradproof.core.check import Check
from gradproof.core.outcome import EXIT_CODE, Exit, Layer
from gradproof.core.workspace import Workspace
from gradproof.evidence import environment, environment as packages, inputs
from gradproof.evidence.inputs import ABSENT, reads
from gradproof.evidence.store import Store
from gradproof.execution.local import Worker

MET, BROKEN, OPEN = (EXIT_CODE[e] for e in (Exit.MET, Exit.BROKEN, Exit.OPEN))
HARNESS = """\
import json
import os
import sys
from pathlib import Path

from toy_workspace import answer, refutation

HERE = Path(__file__).parent.parent


def conclude(check, right):
    return answer(check) if right else refutation(check)


def reads(check, workspace):
    return conclude(check, json.loads((HERE / "models/scale.json").read_text())["scale"] == 1)


def reads_from_here(check, workspace):
    return conclude(check, Path("models/scale.json").read_text().count("1") == 1)


def reads_if_there(check, workspace):
    try:
        return conclude(check, (HERE / "models/override.json").read_text() == "1")
    except FileNotFoundError:
        return answer(check)


def reads_what_it_made(check, workspace):
    (HERE / "models/scratch.txt").write_text("1")
    return conclude(check, (HERE / "models/scratch.txt").read_text() == "1")


def reads_the_reports(check, workspace):
    import tokenize

    try:
        tokenize.open("<unknown>")
    except OSError:
        pass
    (HERE / "reports/report.json").exists() and (HERE / "reports/report.json").read_text()
    return answer(check)


def asks_the_environment(check, workspace):
    return conclude(check, os.environ.get("LOSS_FACTOR", "1") == "1")


def asks_where_it_is(check, workspace):
    return conclude(check, all("elsewhere" not in str(os.environ.get(k)) for k in ("HOME", "PATH", "VIRTUAL_ENV")))


def uses_a_package(check, workspace):
    import mylib

    return conclude(check, mylib.FACTOR == 1)


def writes_as_torch_does(check, workspace):
    import importlib, tempfile, types

    writer = types.ModuleType("torch.distributed.nn.jit.instantiator")
    writer.INSTANTIATED_TEMPLATE_DIR_PATH = tempfile.mkdtemp()
    sys.modules[writer.__name__] = writer
    sys.path.append(writer.INSTANTIATED_TEMPLATE_DIR_PATH)
    names = ["_remote_module_non_scriptable", *json.loads((HERE / "models/scale.json").read_text()).get("more", [])]
    for name in names:
        Path(writer.INSTANTIATED_TEMPLATE_DIR_PATH, f"{name}.py").write_text("FACTOR = 1")
    return conclude(check, all(importlib.import_module(name).FACTOR == 1 for name in names))
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """The toy workspace, whose K-1 is judged by one of the harnesses above."""
    workspace = write_workspace(tmp_path / "toy")
    (workspace.root / "symbolic/odd.py").write_text(HARNESS)
    (workspace.root / "models/scale.json").write_text('{"scale": 1}')
    monkeypatch.setattr(Worker, "command", lambda self: worker_command(workspace.root))
    monkeypatch.chdir(workspace.root)
    return workspace


def ran(toy: Workspace, harness: str, of: Check | None = None) -> tuple[Store, Check, dict[str, Any]]:
    """One run by a worker, stored."""
    one = of or check(harness=f"symbolic.odd:{harness}")
    found = Worker(one, toy, 20.0).run()
    Store(toy).write(found)
    return Store(toy), one, found.stated()


def concluded(toy: Workspace, harness: str) -> str:
    return str(ran(toy, harness)[2]["finding"]["outcome"])


@pytest.mark.parametrize("harness", ["reads", "reads_from_here"])
def test_a_file_that_is_read_is_part_of_the_claim(toy: Workspace, harness: str) -> None:
    store, one, data = ran(toy, harness)
    assert data["finding"]["outcome"] == "HOLDS"
    assert "ws:models/scale.json" in data["claim"]["files"]
    assert store.status(one).fresh
    (toy.root / "models/scale.json").write_text('{"scale": 2}')
    status = Store(toy).status(one)
    assert (status.fresh, status.reason) == (False, "ws:models/scale.json changed")
    assert concluded(toy, harness) == "REFUTED"


@pytest.mark.parametrize("name", ["usr/src/app/c.json", "var/lib/ci/c.json", "libs/c.json", "run/c.json", "srv/c.json",
    "usr/local/src/c.json", "usr/lib/app/c.json", "venv/src/tool/c.json"])  # fmt: skip
def test_a_file_beside_a_workspace_counts_wherever_that_lies(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders of the operating system and of Python are passed over, and no more of /usr or of a venv than they are."""
    file, root = tmp_path / name, (tmp_path / name).parent / "ws"
    root.mkdir(parents=True)
    file.write_text("{}")
    for other in ("etc/os", "usr/share/os", "lib/os", "usr/lib64/os", "venv/lib/os", "proc/os"):
        (tmp_path / other).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / other).write_text("")
    monkeypatch.setattr(inputs, "_SYSTEM", tuple(f"{tmp_path}{place}" for place in inputs._SYSTEM))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path / "usr"))
    monkeypatch.setattr(inputs, "_seen", {str(p) for p in tmp_path.rglob("*") if p.is_file()})
    assert set(reads(root, root / "reports", "/nowhere")) == {f"ext:{file}"}


def test_shared_memory_counts_though_devices_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("dev/null", "dev/shm/c.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(inputs, "_SYSTEM", (f"{tmp_path}/dev/",))
    monkeypatch.setattr(inputs, "_SHARED", f"{tmp_path}{inputs._SHARED}")
    monkeypatch.setattr(inputs, "_seen", {str(p) for p in tmp_path.rglob("*") if p.is_file()})
    assert set(reads(tmp_path / "ws", tmp_path / "ws/reports", "/nowhere")) == {f"ext:{tmp_path}/dev/shm/c.json"}


def test_the_gate_falls_with_a_file_that_is_read(toy: Workspace) -> None:
    path = toy.root / "symbolic/runs.py"
    line = "from pathlib import Path\n    Path('models/scale.json').read_text()\n    value = workspace"
    path.write_text(path.read_text().replace("value = workspace", line))
    assert cli.dispatch(["verify", "-q"]) == MET
    runs(toy.root)
    assert cli.dispatch(["verify", "-q"]) == MET
    assert runs(toy.root) == []
    (toy.root / "models/scale.json").write_text('{"scale": 2}')
    assert cli.dispatch(["gate"]) == OPEN


def test_a_file_that_was_looked_for_in_vain_counts_when_it_appears(toy: Workspace) -> None:
    store, one, data = ran(toy, "reads_if_there")
    assert data["claim"]["files"]["ws:models/override.json"] == ABSENT
    assert store.status(one).fresh
    (toy.root / "models/override.json").write_text("2")
    assert not Store(toy).status(one).fresh
    assert concluded(toy, "reads_if_there") == "REFUTED"


@pytest.mark.parametrize("harness", ["reads_what_it_made", "reads_the_reports"])
def test_what_the_run_made_itself_and_reports_are_no_part_of_the_claim(toy: Workspace, harness: str) -> None:
    toy.reports.mkdir()
    (toy.reports / "report.json").write_text("{}")
    store, one, data = ran(toy, harness)
    assert data["finding"]["outcome"] == "HOLDS"
    assert not {
        key
        for key in data["claim"]["files"]
        if "<" in key or "scratch" in key or "reports" in key or "__pycache__" in key
    }
    (toy.reports / "report.json").write_text("[]")
    assert store.status(one).fresh


def test_the_module_that_torch_writes_counts_by_torchs_version_and_no_other_one(toy: Workspace) -> None:
    """torch before 2.10 writes one into a temporary folder when it is imported: its evidence was stale at once."""
    store, one, data = ran(toy, "writes_as_torch_does")
    assert (data["finding"]["outcome"], data["finding"]["reason"]) == ("HOLDS", "every clause held")
    assert [key for key in data["claim"]["files"] if key.startswith("ext:") and "_remote_module" in key] == []
    assert store.status(one).reason == ""
    (toy.root / "models/scale.json").write_text('{"more": ["strange"]}')
    finding = ran(toy, "writes_as_torch_does")[2]["finding"]
    assert finding["outcome"] == "ERROR"
    assert re.match(r"edited .* ext:\S*/strange\.py$", finding["reason"])


def test_a_file_below_another_name_of_the_root_counts(toy: Workspace, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(toy.root, target_is_directory=True)
    path = toy.root / "symbolic/odd.py"
    path.write_text(path.read_text().replace("HERE = Path", f"HERE = Path({str(tmp_path / 'alias')!r}) or Path"))
    assert "ws:models/scale.json" in ran(toy, "reads")[2]["claim"]["files"]


def test_variables_of_the_caller_do_not_reach_a_run(toy: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSS_FACTOR", "2")
    for name in ("HOME", "VIRTUAL_ENV"):
        monkeypatch.setenv(name, "/elsewhere")
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/elsewhere")
    assert concluded(toy, "asks_the_environment") == "HOLDS"
    assert concluded(toy, "asks_where_it_is") == "HOLDS"


def test_a_worker_has_a_fixed_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("LOSS_FACTOR", "CUDA_VISIBLE_DEVICES", "PYTHONOPTIMIZE", "TORCH_LOGS", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("PYTHONPATH", f"src{os.pathsep}{os.pathsep}/abs")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    cpu, cuda = (environment.worker_environ(layer, "/scratch") for layer in ("cpu", "cuda"))
    assert set(cuda) - set(cpu) == {"CUDA_VISIBLE_DEVICES"}
    assert set(cpu) <= {*environment.START, *environment.LIBRARIES, *environment.FIXED, "TMPDIR"}
    assert (cpu["PYTHONHASHSEED"], cpu["OMP_NUM_THREADS"], cpu["TMPDIR"]) == ("0", "1", "/scratch")
    assert cpu["PYTHONPATH"].split(os.pathsep) == [environment.STARTUP, str(tmp_path / "src"), "/abs"]


def test_a_variable_that_is_let_through_is_compared(toy: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(toy.root))
    store, one, data = ran(toy, "reads")
    assert list(data["environment"]["variables"]) == ["LD_LIBRARY_PATH"]
    assert str(toy.root) not in json.dumps(data["environment"])
    assert store.status(one).fresh
    monkeypatch.setenv("LD_LIBRARY_PATH", "/elsewhere")
    assert "LD_LIBRARY_PATH" in Store(toy).status(one).reason
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert not Store(toy).status(one).fresh


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation folder with a package that the workspace imports, which nobody's metadata names."""
    folder = tmp_path / "lib/site-packages"
    folder.mkdir(parents=True)
    (folder / "mylib.py").write_text("FACTOR = 1\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(str(folder))
    packages.version_of.cache_clear()
    packages._owners.cache_clear()
    return folder


def metadata(site: Path, version: str, top: str = "mylib.py") -> None:
    for old in site.glob("*.dist-info/*"):
        old.unlink()
        old.parent.rmdir() if not list(old.parent.iterdir()) else None
    info = site / f"mylib-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: mylib\nVersion: {version}\n")
    (info / "RECORD").write_text(f"{top},,\nmylib-{version}.dist-info/RECORD,,\n")
    packages.version_of.cache_clear()


def test_an_installed_module_that_the_workspace_imports_is_part_of_the_claim(toy: Workspace, site: Path) -> None:
    store, one, data = ran(toy, "uses_a_package")
    assert data["finding"]["outcome"] == "HOLDS"
    assert store.status(one).fresh
    before = (site / "mylib.py").stat()
    py_compile.compile(str(site / "mylib.py"))
    (site / "mylib.py").write_text("FACTOR = 2\n")
    os.utime(site / "mylib.py", ns=(before.st_atime_ns, before.st_mtime_ns))  # its bytecode seems to fit
    assert "mylib.py changed" in Store(toy).status(one).reason
    assert concluded(toy, "uses_a_package") == "REFUTED"


def test_a_harness_of_an_installed_package_is_among_the_imports(toy: Workspace, site: Path) -> None:
    """The contract asked for it, though no file of the workspace did."""
    (site / "checks").mkdir()
    (site / "checks/__init__.py").write_text("")
    (site / "checks/inner.py").write_text(
        "from symbolic.odd import answer\n\ndef harness(c, w):\n    return answer(c)\n"
    )
    of = check(harness="checks.inner:harness")
    store, one, data = ran(toy, "", of)
    assert data["finding"]["outcome"] == "HOLDS"
    assert store.status(one).reason == ""
    (toy.root / "checks.py").write_text("")
    [found] = hiding([Store(toy).status(one).reason])
    assert found.startswith("checks ws:checks.py ext:")


def test_the_version_of_an_imported_distribution_counts(toy: Workspace, site: Path) -> None:
    metadata(site, "1.0")
    store, one, data = ran(toy, "uses_a_package")
    assert data["environment"]["distributions"]["mylib"] == "1.0"
    assert store.status(one).fresh
    metadata(site, "2.0")
    assert Store(toy).status(one).reason.startswith("mylib 1.0 then, 2.0 ")


def test_a_version_is_that_of_the_metadata_s_head_and_not_of_its_text(site: Path) -> None:
    metadata(site, "1.0")
    file = site / "mylib-1.0.dist-info/METADATA"
    file.write_text("Metadata-Version: 2.1\nName: mylib\nVersion: 1.5.post1\n\nVersion: 9\n")
    assert packages.version_of("mylib") == "1.5.post1"
    packages.version_of.cache_clear()
    file.write_text("Metadata-Version: 2.1\nversion:\t3\nName: mylib\n\nVersion: 9\n")
    assert packages.version_of("mylib") == "3"
    assert packages.version_of("no-such-package") is None


def test_the_packaged_reference_workspace_counts_by_its_content_wherever_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages/gradproof"
    info = package.parent / "gradproof-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "RECORD").write_text("gradproof/arith/smt.py,,\ngradproof/_reference/models/mean.py,,\n")
    monkeypatch.setattr(inputs, "REFERENCE", package / "_reference")
    assert inputs.by_version(str(package / "smt.py"))
    assert not inputs.by_version(str(package / "_reference/models/mean.py"))


def test_the_stack_counts_by_its_own_versions_and_not_by_its_files(toy: Workspace) -> None:
    assert {"torch", "numpy", "z3-solver", "sympy", "hypothesis"} <= packages.stack()
    path = toy.root / "symbolic/odd.py"
    path.write_text(f"import hypothesis\nimport z3\n{path.read_text()}")
    data = ran(toy, "reads")[2]
    assert {"hypothesis", "z3-solver"} <= set(data["environment"]["distributions"])
    assert not [key for key in data["claim"]["files"] if "/z3/" in key or "/hypothesis/" in key]
    (told,) = packages.changed({"z3-solver": "0", "no-such-package": "1"})
    assert told.startswith("no-such-package 1 then, None")


def test_gpu_evidence_names_no_file_of_an_installation(toy: Workspace, site: Path) -> None:
    of = check("F@cuda-fp32", layer=Layer.CUDA, harness="symbolic.odd:uses_a_package")
    files = ran(toy, "", of)[2]["claim"]["files"]
    assert not [key for key in files if "site-packages" in key]


def test_a_file_that_is_edited_while_the_check_runs_is_an_error(toy: Workspace) -> None:
    path = toy.root / "symbolic/odd.py"
    edit = "(HERE / 'models/scale.json').read_text()\n    import subprocess\n    "
    edit += "subprocess.run(['touch', HERE / 'models/scale.json'], check=True)\n    "
    body = "return conclude(check, json"
    path.write_text(path.read_text().replace(body, edit + body))
    finding = ran(toy, "reads")[2]["finding"]
    assert finding["outcome"] == "ERROR"
    assert "ws:models/scale.json" in finding["reason"]
