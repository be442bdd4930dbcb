"""docs/scripts.md and docs/comparison.md: what writes them, tried on a clone made here, and the pages themselves."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests import public_scripts
from tests.docs import peers
from tests.docs.test_docs_recipes import RECIPES
from tests.public_scripts import HOLDS, OPEN, PUBLISHED, REFUTED, SCRIPTS, Script, table

REPOSITORY = Path(__file__).resolve().parents[2]
DIVIDED = "s|(loss / ACCUMULATE)|loss|"


def page(name: str) -> str:
    return (REPOSITORY / "docs" / name).read_text(encoding="utf-8")


def rows(text: str) -> list[list[str]]:
    """The cells of the page's table, without its head."""
    found = [[c.strip() for c in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("|")]
    return found[2:]


@pytest.fixture
def clones(tmp_path: Path) -> tuple[Path, Script]:
    """A folder with a clone of one repository, whose script is the recipe of a flat one."""
    home = tmp_path / "clones" / "somebody_flat"
    home.mkdir(parents=True)
    (home / "flat.py").write_text(next(b.text for b in RECIPES["A flat script"] if b.kind == "python"), "utf-8")
    (home / "data").mkdir()
    (home / "data/large.txt").write_text("left out", encoding="utf-8")
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    for command in (["init", "--quiet"], ["add", "--all"], [*who, "commit", "-qm", "A script"]):
        subprocess.run(["git", "-C", str(home), *command], timeout=60, check=True)
    commit = subprocess.check_output(["git", "-C", str(home), "rev-parse", "HEAD"], text=True, timeout=60).strip()
    forms = {PUBLISHED: ("", HOLDS, ""), "not divided": (DIVIDED, REFUTED, "GA-EQ-001")}
    return home.parent, Script("somebody/flat", commit, "MIT", "flat.py", lambda folder: None, (), forms)


@pytest.mark.slow
def test_a_script_of_a_clone_runs_as_published_and_with_a_line_changed(
    clones: tuple[Path, Script], capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    text, missing = table(sys.executable, clones[0], (clones[1],))
    assert missing == []
    first, second = rows(text)
    assert (first[0], first[1], first[3], first[5]) == ("somebody/flat, `flat.py`", PUBLISHED, "", "0")
    assert first[2].startswith("HOLDS, ")
    assert second[2].startswith("REFUTED, ")
    assert "GA-EQ-001 at flat.py:12" in second[3]
    assert f"sed -i '{DIVIDED}'" in text
    assert "unexpected" not in capsys.readouterr().err


def test_a_sed_command_that_changes_nothing_is_an_error(clones: tuple[Path, Script]) -> None:
    lost = replace(clones[1], forms={"lost": ("s|no such text|x|", REFUTED, "")})
    with pytest.raises(RuntimeError, match="changed nothing"):
        table("python", clones[0], (lost,))


def test_without_clones_it_says_so_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "scripts.md"
    assert public_scripts.main([str(tmp_path), "--out", str(out)]) == 1
    stated = capsys.readouterr().err
    assert "no clone of karpathy/nanoGPT in" in stated
    assert "nothing was written" in stated
    assert not out.exists()


def test_without_the_other_tools_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                            capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.setattr(peers, "versions", lambda python: {**dict.fromkeys(peers.TOOLS.values(), ""), "torch": "2"})
    out = tmp_path / "comparison.md"
    assert peers.main(["--out", str(out)]) == 1
    assert "not installed: pytest-torch, spmd-types, traincheck" in capsys.readouterr().err
    assert not out.exists()


def test_the_page_has_every_script_and_every_form_with_the_expected_verdict() -> None:
    forms = [(script, form) for script in SCRIPTS for form in script.forms]
    found = rows(page("scripts.md"))
    assert len(found) == len(forms)
    for cells, (script, form) in zip(found, forms, strict=True):
        _, word, obligation = script.forms[form]
        assert cells[1] == form
        assert cells[2].startswith(f"{word}, "), (script.file, form, cells)
        assert obligation in cells[3]
        assert cells[5] == "0"
    decided = [s for s in SCRIPTS if {w for _, w, _ in s.forms.values()} >= {HOLDS, REFUTED}]
    assert len(decided) >= 6
    assert {w for s in SCRIPTS for _, w, _ in s.forms.values()} == {HOLDS, REFUTED, OPEN}
    assert all(s.commit[:10] in page("scripts.md") for s in SCRIPTS)


def test_the_comparison_has_what_was_measured_of_every_loop() -> None:
    measured = page("comparison.md").partition(peers.BEGIN)[2].partition(peers.END)[0]
    for name, (_, _, right) in peers.CASES.items():
        [cells] = [line.strip("| ").split(" | ") for line in measured.splitlines() if line.startswith(f"| {name} | ")][
            :1
        ]
        assert (cells[1] == "holds") == right, name
    assert len(re.findall(r"\d+ of \d+ invariants fail", measured)) == len(peers.FLAT_CASES)
    assert measured.count("| typechecks |") == 2


@pytest.mark.parametrize("case", peers.CASES)
def test_a_loop_of_the_comparison_is_changed_in_one_place(case: str) -> None:
    old, new, right = peers.CASES[case]
    changed = peers.replaced(peers.LOOP, old, new)
    assert (changed == peers.LOOP) == (case == "right")
    assert right == case.startswith("right")
    compile(changed, "loop.py", "exec")
