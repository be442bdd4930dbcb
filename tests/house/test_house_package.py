"""What a package index shows and offers: metadata without an invented address, a whole source distribution."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def project() -> dict[str, object]:
    """The table `project`."""
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    data: dict[str, object] = tomllib.loads(text)["project"]
    return data


def test_the_metadata_name_authors_and_words_and_no_address() -> None:
    data = project()
    assert data["authors"] == [{"name": "The gradproof authors"}]
    assert data["keywords"]
    assert "urls" not in data
    classifiers = data["classifiers"]
    assert isinstance(classifiers, list)
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)} <= set(classifiers)


@pytest.mark.slow
def test_the_source_distribution_has_documentation_and_tests(tmp_path: Path) -> None:
    """It is built from a copy: a build writes into its tree for a moment, where other tests read."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=600, check=True)
    tracked = [n for n in listed.stdout.split("\0") if (REPOSITORY / n).is_file()]
    copy = tmp_path / "copy"
    for name in tracked:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, copy / name)
    build = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path), str(copy)]
    subprocess.run(build, capture_output=True, timeout=900, check=True)
    [path] = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {n for n in tracked if n.startswith(("docs/", "tests/", "src/", "models/", "symbolic/"))}
    assert {n for n in wanted if n.isascii()} - names == set()
    assert {"README.md", "LICENSE", "CHANGELOG.md", "Makefile", "constraints.txt", ".ci/run"} <= names
    assert {n for n in names if n.endswith(".pyc") or n.startswith("reports/evidence/")} == set()


def readme() -> str:
    """The text of README.md."""
    return (REPOSITORY / "README.md").read_text(encoding="utf-8")


def lost_paths(text: str) -> list[str]:
    """Files of the repository that a text names in code, for it cannot link to them, and that are not there."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    named = re.findall(r"`((?:docs|tests|proofs|models|symbolic|reports|src)/[^`\s]*)`", prose)
    return [name for name in named if not (REPOSITORY / name).exists()]


def test_the_readme_is_short() -> None:
    assert len((REPOSITORY / "README.md").read_bytes()) <= 6000


def test_the_readme_names_files_and_headings_that_exist() -> None:
    text = readme()
    assert len(set(re.findall(r"`docs/[^`]+\.md`", text))) >= 10
    assert lost_paths(text) == []
    anchors = {
        re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]*)\)", text)) <= anchors


def test_every_page_can_be_reached_from_the_readme() -> None:
    """The readme names a page, or a page that it names links to it."""
    pages = {path.name for path in (REPOSITORY / "docs").glob("*.md")}
    named = set(re.findall(r"`docs/([^`/]+\.md)`", readme()))
    texts = [(REPOSITORY / "docs" / name).read_text(encoding="utf-8") for name in named]
    linked = {name for text in texts for name in re.findall(r"\]\(([\w-]+\.md)[#)]", text)}
    assert pages - named - linked == set()


def test_a_lost_path_is_seen() -> None:
    assert lost_paths("`docs/lost.md` and `docs/ci.md`, `tests/lost/`\n```\n`docs/gone.md`\n```\n") == [
        "docs/lost.md",
        "tests/lost/",
    ]


def test_the_readme_has_no_link_or_image_that_breaks_on_a_package_index() -> None:
    """A package index has none of the files beside it; a link is an address, or a heading of the page itself."""
    text = readme()
    assert "<img" not in text
    assert "<a " not in text
    assert [t for t in re.findall(r"\]\(([^)]*)\)", text) if not t.startswith(("#", "https://"))] == []
    assert "gradproof is on no package index yet: `pip install .` in a checkout installs it" in text
