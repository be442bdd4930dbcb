"""The facade that models and harnesses import: its two lists agree, and nothing else of the engine is imported."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest
from house_rules import sources
from test_house_imports import BLOCK, importing, loaded_by

from gradproof import harness

PUBLIC = ("gradproof.harness", "gradproof.monitoring", "gradproof.core.protocol")


def typed_names() -> set[str]:
    """The names that type checkers see."""
    tree = ast.parse(Path(harness.__file__).read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    return {a.asname or a.name for node in block.body if isinstance(node, ast.ImportFrom) for a in node.names}


def foreign(text: str) -> list[str]:
    """Modules of the engine that a text imports beside the public ones."""
    found = [n.module or "" for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom)]
    found += [a.name for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Import) for a in n.names]
    return [m for m in found if m.partition(".")[0] == "gradproof" and m not in PUBLIC]


def test_the_lists_agree() -> None:
    assert typed_names() == set(harness.__all__) == set(dir(harness))


@pytest.mark.parametrize("name", harness.__all__)
def test_every_name_is_there(name: str) -> None:
    module, own = harness._where()[name]
    found = getattr(importlib.import_module(module), own, None)
    assert getattr(harness, name) is (importlib.import_module(f"{module}.{own}") if found is None else found)


def test_models_and_harnesses_import_nothing_else() -> None:
    assert {s.name: foreign(s.text) for s in sources(("models", "symbolic")) if foreign(s.text)} == {}
    assert foreign("from gradproof.arith import smt\nimport gradproof.shadow") == [
        "gradproof.arith",
        "gradproof.shadow",
    ]


def test_the_facade_is_lazy() -> None:
    light = {"z3", "crosshair", "torch", "numpy", "pydantic"}
    assert loaded_by(BLOCK.format(names=light) + importing(["gradproof.harness"])) & light == set()
    with pytest.raises(AttributeError, match="nothing"):
        harness.__getattr__("nothing")
