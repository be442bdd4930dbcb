"""The map from obligations to code, tests and mutants is that of today, and sees what decides."""

from __future__ import annotations

import ast

import pytest

from gradproof.shadow.result import OBLIGATIONS
from tests import obligations


def test_the_page_is_that_of_the_source() -> None:
    said = obligations.PAGE.read_text(encoding="utf-8")
    assert said == obligations.page(), f"run {obligations.COMMAND}"
    assert len(said.splitlines()) <= 150
    assert max(map(len, said.splitlines())) <= obligations.MOST


@pytest.mark.parametrize("name", OBLIGATIONS)
def test_every_obligation_is_decided_and_tested(name: str) -> None:
    assert obligations.deciders()[name]
    assert obligations.tests_of(name)


def test_an_obligation_is_seen_by_its_id_by_a_constant_and_in_a_list() -> None:
    top = ast.parse('EQ, DATA = "GA-EQ-001", "GA-DATA-001"\nOTHER = "a word"')
    names = {k: v for node in top.body if isinstance(node, ast.Assign)
             for k, v in obligations.assigned(node.targets[0], node.value)}  # fmt: skip
    assert names == {"EQ": {"GA-EQ-001"}, "DATA": {"GA-DATA-001"}}
    for line, found in (
        ("made(EQ, 1)", {"GA-EQ-001"}), ('made("GA-EQ-001")', {"GA-EQ-001"}), ("made(1, EQ)", set()),
        ("[x for x in (EQ, DATA)]", {"GA-EQ-001", "GA-DATA-001"}), ("made(OTHER)", set()),
    ):  # fmt: skip
        nodes = ast.walk(ast.parse(line))
        assert {name for node in nodes for name in obligations.decided(node, names)} == found
    inner = ast.parse("class A:\n    def b(self):\n        def c(): pass\ndef d(): pass")
    assert [title for title, _ in obligations.functions(inner)] == ["A.b", "d"]
