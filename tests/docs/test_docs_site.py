"""The site of docs/: built strictly, nothing of it asks another host, and a lost link is seen."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = sorted(p.stem for p in (REPOSITORY / "docs").glob("*.md"))
NEEDED = (
    "index", "recipes", "verdict", "proofs", "rounding", "ranks", "ci", "evidence", "api", "architecture", "glossary",
    "comparison", "scripts",
)  # fmt: skip
LOADED = re.compile(
    r"<(?:script|img|iframe)[^>]* src=\"?(https?:[^\"\s>]+)|<link[^>]* rel=\"?(?:stylesheet|preconnect|icon)[^>]*"
)


def build(config: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """A strict build of the site. Skips the test where MkDocs is not installed."""
    if find_spec("mkdocs") is None or find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed: the site was not built")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--config-file",
        str(config),
        "--site-dir",
        str(out),
    ]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "ignore"}
    return subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=600, check=False)


def asked(texts: Iterable[str]) -> set[str]:
    """Addresses of other hosts from which a browser would load something to show these pages."""
    tags = (match for text in texts for match in LOADED.finditer(text))
    return {found[0] for match in tags if (found := re.findall(r"https?://[^\"\s>]+", match[0]))}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built."""
    out = tmp_path_factory.mktemp("site") / "site"
    done = build(REPOSITORY / "mkdocs.yml", out)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.mark.slow
def test_every_page_is_there_and_asks_no_other_host(site: Path) -> None:
    assert set(NEEDED) <= set(PAGES)
    pages = {name: (site / f"{name}.html").read_text(encoding="utf-8") for name in PAGES}
    assert asked(pages.values()) == set()
    assert (site / "schemas/step.schema.json").is_file()
    assert 'href="schemas/step.schema.json"' in pages["own-loop"]
    assert 'aria-label="which package imports which"' in pages["architecture"]
    assert (site / "search/search_index.js").read_text(encoding="utf-8").startswith('var __index = {"config"')


@pytest.mark.slow
def test_the_reference_has_every_public_function(site: Path) -> None:
    text = (site / "api.html").read_text(encoding="utf-8")
    for name in ("testing.check", "testing.assert_accumulates", "monitoring.report_loss", "laws.register_law"):
        assert f'id="gradproof.{name}"' in text, name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "code"), [("[a](index.md)", 0), ("[a](lost.md)", 1), ("[a](#lost)", 1), ("[a](../README.md)", 0)]
)
def test_a_lost_link_is_seen(tmp_path: Path, text: str, code: int) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text(f"# Page\n\n{text}\n", encoding="utf-8")
    config = f"INHERIT: {REPOSITORY}/mkdocs.yml\ndocs_dir: {tmp_path}/docs\nnav: [index.md]\nplugins: []\n"
    (tmp_path / "mkdocs.yml").write_text(config + f"hooks: [{REPOSITORY}/tests/docs/site_hooks.py]\n", encoding="utf-8")
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == code, done.stdout + done.stderr


def test_another_host_is_seen() -> None:
    text = '<script src="https://example.org/a.js"></script><link rel="stylesheet" href="https://example.org/b.css">'
    assert asked([text]) == {"https://example.org/a.js", "https://example.org/b.css"}
    assert asked(['<link rel="stylesheet" href="assets/a.css"><a href="https://example.org">x</a>']) == set()


def test_links_out_of_the_docs_become_paths() -> None:
    if find_spec("mkdocs") is None:
        pytest.skip("mkdocs-material is not installed")
    from tests.docs.site_hooks import drawn, on_page_markdown

    given = (
        "[`engine.py`](../src/gradproof/engine.py), [schema](../reports/step.schema.json), [the hooks](../action.yml)"
    )
    assert on_page_markdown(given) == (
        "`src/gradproof/engine.py`, [schema](schemas/step.schema.json), the hooks (`action.yml`)"
    )
    assert on_page_markdown("```python a.py\nx\n```\n") == '```python title="a.py"\nx\n```\n'
    assert drawn([("a", "b"), ("b", "c")]).count("<rect") == 3
    with pytest.raises(ValueError, match="circle"):
        drawn([("a", "b"), ("b", "a")])
