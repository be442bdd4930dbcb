"""The wheel: what is in it, and that it alone is enough to run the reference workspace in an empty folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from e2e_kit import CONTENT, REPOSITORY, environ, gradproof, read, rows

from gradproof.core.outcome import NO_WORKSPACE

pytestmark = pytest.mark.slow

GENERATED = ("reports/report.json", "reports/bench.json", "reports/evidence/K-1/0123456789abcdef.json")


def files_of_the_project() -> list[str]:
    """Tracked files, and those that will be."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listing, cwd=REPOSITORY, capture_output=True, text=True, timeout=600, check=True)
    return [name for name in set(done.stdout.split("\0")) if name and (REPOSITORY / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built in a copy of the project in which gradproof has been used."""
    copy = tmp_path_factory.mktemp("project")
    for name in files_of_the_project():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(REPOSITORY / name, copy / name)
    for name in GENERATED:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text("{}", encoding="utf-8")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(copy / "out")]
    done = subprocess.run(build, cwd=copy, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = (copy / "out").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    """What the wheel holds."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the wheel alone is installed. By its name gradproof knows that it is an installation."""
    target = tmp_path_factory.mktemp("target") / "site-packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    pip += ["--disable-pip-version-check", "--target", str(target), str(wheel)]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def below(folder: str, *endings: str) -> set[str]:
    """Files of the project below a folder that have one of some endings."""
    return {n for n in files_of_the_project() if n.startswith(f"{folder}/") and n.endswith(endings)}


def test_the_wheel_has_one_package(names: set[str]) -> None:
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"gradproof"}
    assert len(tops) == 2


def test_the_wheel_has_the_whole_verifier(names: set[str]) -> None:
    wanted = {name.removeprefix("src/") for name in below("src/gradproof", ".py", ".j2", ".css", "py.typed")}
    assert {"gradproof/py.typed", "gradproof/arith/smt.py", "gradproof/report/formats/report.css"} <= wanted
    assert wanted - names == set()


def test_the_wheel_has_the_whole_reference_workspace(names: set[str]) -> None:
    wanted = {f"gradproof/_reference/{name}" for folder in CONTENT for name in below(folder, ".py", ".yaml", ".json")}
    for contract in ("gradient-accumulation-kernel-v1", "adamw-kernel-v1"):
        assert f"gradproof/_reference/proofs/{contract}/contract.yaml" in wanted
    assert wanted - names == set()


def test_the_wheel_has_the_schemas_and_nothing_that_was_generated(names: set[str]) -> None:
    found = {name.rpartition("/")[2] for name in names if name.startswith("gradproof/_reference/reports/")}
    assert {"evidence.schema.json", "report.schema.json", "rounding.schema.json", "kernels.schema.json"} <= found
    own = {name.rpartition("/")[2] for name in below("reports", ".json")}
    assert {name for name in found if not name.endswith(".yaml")} <= own


def test_the_wheel_has_nothing_else(names: set[str]) -> None:
    assert {name for name in names if "/tests/" in name or "__pycache__" in name or name.endswith(".pyc")} == set()


@pytest.fixture
def at_a_desk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of CI, where somebody reads the warning that the packaged reference stands in for a workspace."""
    monkeypatch.delenv("CI", raising=False)


@pytest.mark.usefixtures("at_a_desk")
def test_the_wheel_is_enough_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    before = {p for folder in ("src", *CONTENT) for p in (REPOSITORY / folder).rglob("*")}
    carried = {p for p in installed.rglob("*") if "__pycache__" not in p.parts}
    listed = gradproof(tmp_path, "list", "--format", "json", path=[installed])
    assert listed.returncode == 0, listed.stderr
    assert {"KANI-GA-001", "CROSS-GA-001", "FALSIFY-GA-001@cpu-fp32", "F-GA-001/falsification"} <= set(rows(listed))
    assert list(tmp_path.iterdir()) == []

    proved = gradproof(tmp_path, "prove", "-k", "KANI-GA-002", "--json", path=[installed])
    assert proved.returncode == 0, proved.stdout + proved.stderr
    assert rows(proved)["KANI-GA-002"]["outcome"] == "HOLDS"
    assert proved.stderr.splitlines()[0] == f"warning: {NO_WORKSPACE}"
    assert [p.name for p in tmp_path.iterdir()] == ["reports"]
    [evidence] = tmp_path.glob("reports/evidence/KANI-GA-002/*.json")
    files = read(evidence)["claim"]["files"]
    assert {"ws:models/accumulation/loop.py", "ws:symbolic/accumulation/loop.py", "gp:arith/smt.py"} <= set(files)
    assert [key for key in files if key.startswith("ext:")] == []

    assert {p for p in installed.rglob("*") if "__pycache__" not in p.parts} == carried
    after = {p for folder in ("src", *CONTENT) for p in (REPOSITORY / folder).rglob("*")}
    assert {p for p in after - before if "__pycache__" not in p.parts} == set()


def test_the_wheel_stands_in_for_nothing_in_ci(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    done = gradproof(tmp_path, "gate", path=[installed])
    assert done.returncode == 2
    assert "GP201" in done.stderr


@pytest.mark.usefixtures("at_a_desk")
def test_the_installed_package_is_the_one_that_runs(installed: Path, tmp_path: Path) -> None:
    """Otherwise the test above would speak about the repository."""
    text = "import gradproof, gradproof.core.workspace as w; print(gradproof.__file__); print(w.find().root)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", text],
        cwd=tmp_path, env=environ(installed), capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    places = [Path(line).resolve() for line in done.stdout.split()]
    assert all(place.is_relative_to(installed.resolve()) for place in places)
