"""docs/accumulate.md: every id in it exists, its loop is proved, and with a line changed it is refuted."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from gradproof.cli import cli
from gradproof.contract.model import load
from gradproof.core.outcome import Outcome
from gradproof.testing import check
from gradproof.verdict.plan import plan

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "accumulate.md").read_text(encoding="utf-8")
BLOCK = "".join(re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE))
ID = re.compile(r"\b(?:GA-[A-Z]+-\d{3}|(?:KANI|CROSS|FALSIFY)-[A-Z]+-\d{3})\b")


def unknown(text: str) -> set[str]:
    """Ids of a text that no contract has."""
    contracts = [load(path) for path in sorted(ROOT.glob("proofs/*/contract.yaml"))]
    known = {o.id for c in contracts for o in c.obligations}
    known |= {check.id.partition("@")[0] for c in contracts for check in plan(c)}
    return set(ID.findall(text)) - known


def loop(text: str, path: Path) -> Callable[[Any], Any]:
    """The function of a block, in a file of its own, as a reader would have it."""
    path.write_text(text, encoding="utf-8")
    scope: dict[str, Any] = {"__name__": path.stem, "__file__": str(path)}
    exec(compile(text, str(path), "exec"), scope)
    found: Callable[[Any], Any] = scope["train"]
    return found


def outcomes(text: str, path: Path) -> dict[str, Outcome]:
    """What `gradproof.testing.check` says of the block, by obligation."""
    return {r.obligation: r.outcome for r in check(loop(text, path), accum_steps=4).results}


def test_every_id_exists_and_an_unknown_one_is_seen() -> None:
    assert len(ID.findall(TEXT)) > 20
    assert unknown(TEXT) == set()
    assert unknown("GA-TOK-001 and GA-NONE-999, KANI-GT-999") == {"GA-NONE-999", "KANI-GT-999"}


def test_its_commands_and_drawings_exist() -> None:
    names = re.findall(r"`gradproof ([a-z-]+)", TEXT)
    assert {"check", "sweep", "plan-batch"} <= set(names)
    assert [n for n in names if cli.get_command(click.Context(cli), n) is None] == []
    drawings = re.findall(r"\]\(([^)]+\.svg)\)", TEXT)
    assert len(drawings) == 3
    assert all((ROOT / "docs" / name).is_file() for name in drawings)


def test_its_loop_is_proved(tmp_path: Path) -> None:
    found = outcomes(BLOCK, tmp_path / "recipe.py")
    assert {"GA-EQ-001", "GA-INV-001", "GA-INV-005", "GA-DATA-001"} <= set(found)
    assert set(found.values()) == {Outcome.HOLDS}


BROKEN = {
    "GA-EQ-001": ('reduction="sum") / tokens', "reduction='mean') / len(window)"),
    "GA-INV-002": ("        optimizer.zero_grad()\n", ""),
}


@pytest.mark.parametrize("obligation", BROKEN)
def test_a_loop_with_a_line_changed_is_refuted(obligation: str, tmp_path: Path) -> None:
    right, wrong = BROKEN[obligation]
    assert BLOCK.count(right) == 1
    assert outcomes(BLOCK.replace(right, wrong), tmp_path / "recipe.py")[obligation] is Outcome.REFUTED
