"""Discovery of a workspace, and imports from it: right ones, wrong ones and a stranger's."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from toy_workspace import only, write_workspace

from gradproof.core.errors import GradproofError
from gradproof.core.outcome import NO_WORKSPACE
from gradproof.core.workspace import Finder, Locator, Workspace, find, is_workspace, reference


@pytest.fixture
def toy(tmp_path: Path) -> Workspace:
    return write_workspace(tmp_path / "toy")


def code_of(workspace: Workspace, name: str) -> str:
    with only(workspace), pytest.raises(GradproofError) as caught:
        workspace.resolve(name)
    assert caught.value.found
    assert caught.value.expected
    assert caught.value.help
    return caught.value.code


def test_found_at_and_above_the_start(toy: Workspace) -> None:
    assert find(toy.root) == toy
    assert find(toy.root / "models").root == toy.root
    assert find(toy.root / "models").reports == toy.root / "reports"


def test_a_folder_that_is_none_falls_back_to_the_reference_and_reports_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.chdir(tmp_path)
    found = find()
    assert found.root == reference()
    assert found.packaged
    assert found.reports == tmp_path / "reports"
    assert is_workspace(found.root)
    assert found.warning == NO_WORKSPACE


def test_nothing_stands_in_for_a_workspace_in_ci(toy: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate that judged something else than the repository would be green whatever is there."""
    monkeypatch.setenv("CI", "true")
    assert find(toy.root / "models") == toy
    assert find(toy.root).warning is None
    with pytest.raises(GradproofError, match=r"(?s)GP201.*where CI is set"):
        find(toy.root.parent)
    monkeypatch.setenv("CI", "")
    assert find(toy.root.parent).packaged


@pytest.mark.parametrize("there", [("models",), ("proofs", "symbolic"), ("models", "symbolic")])
def test_nothing_stands_in_for_a_workspace_of_which_a_part_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...]
) -> None:
    monkeypatch.delenv("CI", raising=False)
    for name in there:
        (tmp_path / name).mkdir()
    missing = ", ".join(f"{name}/" for name in ("proofs", "models", "symbolic") if name not in there)
    with pytest.raises(GradproofError, match=f"(?s)GP201.*it lacks {missing}\n"):
        find(tmp_path)


def test_a_folder_that_is_a_link_to_nowhere_is_a_part_of_a_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    (tmp_path / "proofs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(GradproofError, match=r"(?s)GP201.*it lacks proofs/"):
        find(tmp_path)


def test_an_explicit_folder_must_be_a_workspace(tmp_path: Path) -> None:
    with pytest.raises(GradproofError, match="GP201"):
        find(tmp_path, explicit=True)


def test_no_contract_is_an_error(toy: Workspace) -> None:
    (toy.root / "proofs/toy/contract.yaml").unlink()
    with pytest.raises(GradproofError, match="GP208"):
        toy.contracts()


def test_resolve_modules_attributes_and_mutants(toy: Workspace) -> None:
    with only(toy):
        assert toy.resolve("models.a:VALUE") == 1
        assert toy.resolve("models.a").VALUE == 1
        assert toy.resolve("models.registry:Mutant.__name__") == "Mutant"
        assert toy.resolve("models.registry:MUTANTS[bug]") == 7


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", "GP202"),
        ("models.a:", "GP202"),
        ("models/a.py", "GP202"),
        ("models.a:VALUE[", "GP202"),
        ("models.nowhere:VALUE", "GP203"),
        ("nowhere.at.all:VALUE", "GP203"),
        ("models.a:NOTHING", "GP204"),
        ("models.registry:MUTANTS[unknown]", "GP209"),
        ("models.a:VALUE[bug]", "GP209"),
        ("models.syntax:X", "GP205"),
        ("models.raises:X", "GP205"),
        ("models.exits:X", "GP205"),
        ("models.needs:X", "GP205"),
    ],
)
def test_wrong_names_and_modules_have_their_codes(toy: Workspace, name: str, code: str) -> None:
    (toy.root / "models/syntax.py").write_text("def f(:\n")
    (toy.root / "models/raises.py").write_text("X = 1 / 0\n")
    (toy.root / "models/exits.py").write_text("raise SystemExit(0)\n")
    (toy.root / "models/needs.py").write_text("import no_such_module_anywhere\n")
    assert code_of(toy, name) == code


def test_a_broken_module_is_named_with_its_line(toy: Workspace) -> None:
    (toy.root / "models/raises.py").write_text("A = 1\nX = A / 0\n")
    with only(toy), pytest.raises(GradproofError) as caught:
        toy.resolve("models.raises:X")
    assert caught.value.where.endswith("models/raises.py:2")


def test_a_strangers_models_already_loaded_is_refused(toy: Workspace, tmp_path: Path) -> None:
    other = write_workspace(tmp_path / "other")
    with only(other):
        assert other.resolve("models.a:VALUE") == 1
        with pytest.raises(GradproofError, match="GP206"):
            toy.resolve("models.a:VALUE")


def test_a_strangers_models_on_the_path_is_refused(
    toy: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an __init__.py of its own, the workspace's folder loses to a regular package elsewhere."""
    other = write_workspace(tmp_path / "other")
    (toy.root / "models/__init__.py").unlink()
    (toy.root / "models/a.py").unlink()
    monkeypatch.syspath_prepend(str(other.root))
    importlib.invalidate_caches()
    assert code_of(toy, "models.a:VALUE") in ("GP206", "GP207")


def test_the_bytes_on_disk_run_even_beside_a_cache_of_equal_size_and_time(toy: Workspace) -> None:
    """A .pyc is chosen by time stamp and size; an edit that keeps both would run the old text."""
    model = toy.root / "models/a.py"
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    subprocess.run([sys.executable, "-c", "import models.a"], cwd=toy.root, check=True, env=env)
    assert list((toy.root / "models/__pycache__").glob("a.*.pyc"))
    stamp = model.stat()
    model.write_text("VALUE = 2\n")
    os.utime(model, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    naive = [sys.executable, "-c", "import models.a; print(models.a.VALUE)"]
    old = subprocess.run(naive, cwd=toy.root, check=True, capture_output=True, text=True, env=env)
    assert old.stdout.strip() == "1"
    with only(toy):
        assert toy.resolve("models.a:VALUE") == 2


def test_names_looked_for_in_vain_are_remembered(toy: Workspace) -> None:
    (toy.root / "models/tries.py").write_text(
        "try:\n    from models import fast\nexcept ImportError:\n    fast = None\nimport colorsys\n"
    )
    sys.modules.pop("colorsys", None)
    with only(toy):
        assert toy.resolve("models.tries:fast") is None
        assert {"models.fast", "colorsys"} <= {name for name, *_ in toy.enter().asked}


def test_locator_sees_what_an_import_would(toy: Workspace) -> None:
    (toy.root / "models/b").mkdir()
    (toy.root / "space").mkdir()
    locator, folders = Locator(toy.root), [str(toy.root / "nowhere"), str(toy.root)]
    assert locator.file("models.a", folders) == str(toy.root / "models/a.py")
    assert locator.file("models.b", folders) == str(toy.root / "models/b.py")
    assert locator.file("space", folders) is None
    assert locator.file("models.missing", folders) is None
    assert locator.own_first(["/x", str(toy.root), str(toy.root / "a")]) == [str(toy.root / "a"), "/x", str(toy.root)]
    (toy.root / "models/b/__init__.py").write_text("")
    assert Locator(toy.root).file("models.b", folders) == str(toy.root / "models/b/__init__.py")


def test_no_cache_entry_is_needed_to_import_the_engine_without_torch_or_z3() -> None:
    heavy = {"torch", "z3", "crosshair", "hypothesis"}
    for module, left in (("gradproof.session", heavy), ("gradproof.execution.worker", heavy | {"pydantic"})):
        program = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
        loaded = json.loads(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout)
        assert not left & set(loaded)


def test_a_virtual_environment_below_the_root_keeps_its_own_loaders(tmp_path: Path) -> None:
    """Compiling an installed package from source at every start would double the time of each check."""
    root = write_workspace(tmp_path / "toy").root
    package = root / ".venv" / "lib" / "site-packages" / "heavy"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text("")
    finder = Finder(root)
    assert finder.find_spec("heavy.part", [str(package)]) is None
    assert list(finder.asked) == [("heavy.part", True, (str(package),))]
    assert finder.find_spec("models", None) is not None
    assert finder.find_spec("models.a", [str(root / "models")]) is not None
