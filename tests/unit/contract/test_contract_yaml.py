"""YAML -> the tree: places, exact numbers, the words of YAML 1.2, odd characters, and both of PyYAML's readers."""

from __future__ import annotations

import random
from typing import Any

import pytest
import yaml
from test_contract import HERE, ROOT

from gradproof.contract.yaml_reader import MAX_BYTES, MAX_NODES, Exact, Node, Problem, parse

CONTRACTS = sorted(ROOT.glob("proofs/*/contract.yaml"))
SMALL = [*sorted(HERE.glob("*.yaml")), *sorted(ROOT.glob("tests/corpus/*/proofs/*/contract.yaml"))]

Place = tuple[str, int, int]


def places(problems: list[Problem]) -> list[Place]:
    return [(p.code, p.line, p.col) for p in problems]


def tree(text: str) -> Node:
    node, problems = parse(text.encode(), "x")
    assert problems == []
    assert node is not None
    return node


def value(text: str) -> Any:
    """What stands under the key `a`."""
    node = tree(text).get("a")
    assert node is not None
    return node.plain()


@pytest.fixture
def pure(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyYAML without its C extension."""
    monkeypatch.delattr(yaml, "CBaseLoader")


def test_places_and_exact_numbers_are_kept() -> None:
    node = tree("a:\n  - {x: 1e-5, y: 0x10}  # why\n  - b: >\n      one\n      two\n    c:\n")
    first, second = node.items("a")
    assert (first.line, first.col, first.keys) == (2, 5, {"x": (2, 6), "y": (2, 15)})
    assert first.plain() == {"x": Exact("1e-5"), "y": 16}
    assert second.plain() == {"b": "one two\n", "c": None}
    assert second.get("c") == Node(None, 6, 5, empty=True)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("true", True), ("False", False), ("yes", "yes"), ("on", "on"), ("n", "n"), ("~", None), ("Null", None),
        ("nil", "nil"), ("07", 7), ("0o17", 15), ("0x1F", 31), ("-3", -3), ("0b1", "0b1"), ("1_000", "1_000"),
        ("1:30", "1:30"), ("2027-01-31", "2027-01-31"), ("1e5", Exact("1e5")), (".5", Exact(".5")), ("=", "="),
        (".inf", Exact(".inf")), (".NaN", Exact(".NaN")), ("'1'", "1"), ('"true"', "true"), ("1 # one", 1),
        ("|\n  1\n", "1\n"), (">-\n  1\n  2\n", "1 2"), (r'"\x41\u00e9\/\N"', "Aé/\x85"), ("x:y", "x:y"),
    ],
)  # fmt: skip
def test_a_scalar_is_read_by_the_core_schema(text: str, wanted: object) -> None:
    found = value(f"a: {text}")
    assert (found, type(found)) == (wanted, type(wanted))


TRAPS: list[tuple[str, list[Place]]] = [
    ("a: 1\na: 2\na: 3\n", [("GP102", 2, 1), ("GP102", 3, 1)]), ("a: &x 1\n", [("GP120", 1, 4)]),
    ("a: *x\n", [("GP120", 1, 4)]), ("a: !t 1\n", [("GP120", 1, 4)]), ("a: !!str 1\n", [("GP120", 1, 4)]),
    ("a: !t [1]\n", [("GP120", 1, 4)]), ("<<: {a: 1}\n", [("GP120", 1, 1)]), ("true: 1\n", [("GP104", 1, 1)]),
    ("1: 2\n", [("GP104", 1, 1)]), ("a: b: c\n", [("GP117", 1, 5)]), ("a: [1 2, b: c]\n", []),
    ("a: 1\n---\nb: 2\n", [("GP120", 2, 1)]), ("a: 1\n...\n", []), ("%YAML 1.1\n---\na: 1\n", [("GP120", 1, 1)]),
    ("%YAML 1.2\n---\na: 1\n", []), ("%TAG ! t:x,2000:\n---\na: 1\n", [("GP120", 1, 1)]),
    ("- a\n", []), ("a: 1234567890123456789\n", [("GP107", 1, 4)]),
    ("a: @b\n", [("GP117", 1, 4)]), ("  a: 1\n b: 2\n", [("GP117", 2, 2)]), ("a: [1", [("GP117", 1, 6)]),
    ("a: [1\n", [("GP117", 2, 1)]), ("a: 1\nbc", [("GP117", 2, 3)]), ("a:\n\tb: c\n", [("GP117", 2, 1)]),
    ('a: ["\\ud800", 1, "\\udfff"]\n', [("GP118", 1, 5), ("GP118", 1, 18)]),
    ('a: "\\U00110000"\n', [("GP117", 1, 7)]), ("a: x\x07\n", [("GP117", 1, 5)]), ("a: 1\n# \x00", [("GP117", 2, 3)]),
    ("é: \uffff", [("GP117", 1, 4)]), ("é:\n- \u2028", [("GP117", 2, 3)]), ("a: 1\x85", [("GP117", 1, 5)]),
    ("a: \u202e", [("GP493", 1, 4)]), ("a: \u00a0b\n", []), ("\ufeffa: 1\n", []), ("a: 𝟙\r\nb: 2\r\n", []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), TRAPS)
def test_what_is_refused_has_its_place(text: str, wanted: list[Place]) -> None:
    assert places(parse(text.encode(), "x")[1]) == wanted


def test_an_unknown_directive_is_refused() -> None:
    """PyYAML's own reader passes it over, as YAML 1.2 would have it; libyaml does not."""
    assert places(parse(b"%OTHER x\n---\na: 1\n", "x")[1]) == [("GP117", 1, 7)]


def test_a_tab_is_named_where_it_indents() -> None:
    for text, tab in (
        ("a:\n\tb: c\n", True),
        ("a:\n  b: 1\n \tc: 2\n", True),
        ("a: [1\n", False),
        ("a: b\tc: d", False),
    ):
        (problem,) = parse(text.encode(), "x")[1]
        assert ("tabs" in problem.help) is tab


def test_limits() -> None:
    for text in ("#" * (MAX_BYTES + 1), "a: " + "[" * 60, "a:\n" + "  - 1\n" * MAX_NODES, "a: 1\n" * 600):
        node, problems = parse(text.encode(), "x")
        assert node is None
        assert problems[-1].code == "GP121"


def test_every_contract_of_the_repository_is_the_same_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [parse(p.read_bytes(), "x") for p in (*CONTRACTS, *SMALL)]
    assert all(node is not None for node, _ in found)
    monkeypatch.delattr(yaml, "CBaseLoader")
    assert [parse(p.read_bytes(), "x") for p in (*CONTRACTS, *SMALL)] == found


@pytest.mark.usefixtures("pure")
@pytest.mark.parametrize(("text", "wanted"), TRAPS)
def test_what_is_refused_is_refused_without_the_extension(text: str, wanted: list[Place]) -> None:
    found = places(parse(text.encode(), "x")[1])
    assert [code for code, _, _ in found] == [code for code, _, _ in wanted]
    assert [place for place in found if place[0] != "GP117"] == [place for place in wanted if place[0] != "GP117"]


LINES = (
    "one", "two words", "# no comment", "- no item", "k: v", "'q", '"', "[", "a  b", "é", "x ", "", " deeper", "%",
    "...",
)  # fmt: skip


def test_folded_and_literal_text_is_the_same_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    dice, texts = random.Random(6), []
    for _ in range(200):
        body = "".join(f"    {dice.choice(LINES)}\n" for _ in range(dice.randint(1, 4)))
        texts.append(f"a:\n  b: {dice.choice(['>', '>-', '|', '|-', '>+', '|+'])}\n{body}{dice.choice(['', 'c: 1'])}\n")
    found = [parse(text.encode(), "x")[0] for text in texts]
    assert sum(node is not None for node in found) > 150
    monkeypatch.delattr(yaml, "CBaseLoader")
    assert [parse(text.encode(), "x")[0] for text in texts] == found


def test_random_text_is_read_or_refused_in_its_place() -> None:
    dice = random.Random(9)
    bits = "abc:-?[]{},#&*!|>'\"%@`~ \n\n\t\r\\ue0.1<=_\x00\x85\u2028\ufeff\ue000é𝟙"
    for _ in range(3000):
        text = "".join(dice.choice(bits) for _ in range(dice.randint(0, 40)))
        for problem in parse(text.encode(), "x")[1]:
            assert problem.code in ("GP102", "GP104", "GP107", "GP117", "GP118", "GP120"), text
            assert problem.col >= 1
            assert 1 <= problem.line <= text.count("\n") + text.count("\r") + 1
            problem.render().encode()
