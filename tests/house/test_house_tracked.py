"""The files under version control: what must be there, and what must never be."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest
from house_rules import PRIVATE_WORDS, REPOSITORY, private_words

KINDS = (
    "bound",
    "bundle",
    "claims",
    "config",
    "deterministic",
    "diff",
    "doctor",
    "events",
    "evidence",
    "graph",
    "kernels",
    "list",
    "merge",
    "mutation",
    "plan-batch",
    "report",
    "rounding",
    "scaling",
    "selection",
    "speedup",
    "step",
    "sweep",
    "thresholds",
    "tokens",
)
SCHEMAS = tuple(f"reports/{kind}.schema.json" for kind in KINDS)
DOCUMENTS = (
    "reports/rounding.json", "reports/kernels/cpu.json", "reports/kernels/cuda.json", "reports/deterministic.json",
    "reports/tokens.json", "reports/sweep.json", "reports/speedup.json", "reports/scaling.json",
    "reports/mutation.json",
)  # fmt: skip
NEEDED = ("README.md", "CHANGELOG.md", "LICENSE", "Makefile", "pyproject.toml", "constraints.txt", ".ci/run", *SCHEMAS)
BINARY = (".png", ".jpg", ".gz", ".whl")
GENERATED = re.compile(r"reports/(evidence/|replay/|report\.(json|md|html)$|bench\.)|__pycache__|\.pyc$|\.egg-info")


def git(*args: str) -> list[str]:
    """Lines that git prints about the repository."""
    done = subprocess.run(["git", *args], cwd=REPOSITORY, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()


@cache
def tracked() -> tuple[str, ...]:
    """Files that are tracked, or will be when everything is added."""
    names = git("ls-files", "--cached", "--others", "--exclude-standard")
    return tuple(sorted(n for n in set(names) if (REPOSITORY / n).is_file()))


def test_no_file_names_a_machine_or_a_private_tool() -> None:
    found: list[str] = []
    for name in tracked():
        if not name.endswith(BINARY):
            found += private_words(name, (REPOSITORY / name).read_text(encoding="utf-8"))
        found += [f"{name}: its own name has {word}" for word in PRIVATE_WORDS if word in name]
    assert found == []


@pytest.mark.parametrize("word", PRIVATE_WORDS)
def test_a_private_word_is_seen(word: str) -> None:
    assert list(private_words("a.md", f"first\nsee {word}x\n")) == [f"a.md:2: {word}"]


def test_what_a_release_needs_is_tracked() -> None:
    assert [name for name in NEEDED if name not in tracked()] == []
    assert any(name.endswith("/contract.yaml") for name in tracked())


def test_what_is_generated_is_not_tracked() -> None:
    assert [name for name in tracked() if GENERATED.search(name)] == []


def test_no_ignore_pattern_hides_a_file_of_the_project() -> None:
    """A tracked file that a pattern covers is lost at the next `git add` of a fresh copy."""
    assert git("check-ignore", "--no-index", *NEEDED, *DOCUMENTS) == []
    assert git("ls-files", "--cached", "--ignored", "--exclude-standard") == []


def test_an_ignore_pattern_is_seen() -> None:
    assert git("check-ignore", "--no-index", "reports/report.json") == ["reports/report.json"]


def test_no_large_file_is_tracked() -> None:
    large = {name: (REPOSITORY / name).stat().st_size for name in tracked() if (REPOSITORY / name).exists()}
    assert {name: size for name, size in large.items() if size > 1_000_000} == {}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_a_schema(name: str) -> None:
    from jsonschema import Draft202012Validator

    schema = json.loads((REPOSITORY / name).read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    assert "History" in schema["description"]


def test_every_package_is_listed_for_the_wheel() -> None:
    """Packages are listed by hand in pyproject.toml: a new folder must not be forgotten."""
    data = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    listed = set(data["tool"]["setuptools"]["packages"])
    homes = {"src/gradproof": "gradproof", "models": "gradproof._reference.models"}
    homes["symbolic"] = "gradproof._reference.symbolic"
    found = set()
    for home, package in homes.items():
        for init in (REPOSITORY / home).rglob("__init__.py"):
            inside = init.parent.relative_to(REPOSITORY / home).as_posix().replace("/", ".")
            found.add(package if inside == "." else f"{package}.{inside}")
    assert found - listed == set()
    places = data["tool"]["setuptools"]["package-dir"]
    assert [p for p in places.values() if not (REPOSITORY / Path(p)).is_dir()] == []
