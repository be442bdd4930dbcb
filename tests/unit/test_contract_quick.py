"""The quick reader gives the tree that the YAML reader gives, or none: on every contract, and on random edits."""

from __future__ import annotations

import random
import re

import pytest

from gradproof.contract import yaml_reader as contract_quick, yaml_reader as contract_tree
from gradproof.contract.yaml_events import parse
from gradproof.contract.yaml_reader import Node
from tests.unit.test_contract import HERE, ROOT

CONTRACTS = sorted(ROOT.glob("proofs/*/contract.yaml"))
SMALL = [*sorted(HERE.glob("*.yaml")), *sorted(ROOT.glob("tests/corpus/*/proofs/*/contract.yaml"))]
BITS = (
    " ", "  ", "\n", "\n\n", "\n    ", "\n  - ", "- ", "--", "---", "\n---\n", "...", ": ", ":", "? ", "#",
    " #", "  # c\n", "\"", "'", "''", "\\", "\\\"", "\"a\" : ", "{", "}", "[", "]", "{}", "[]", "{a}", "{a: }",
    "[,]", "[a: b]", ",", ", ", ">", "|", ">\n", "|-", "&a ", "*a", "!t ", "%", "@", "`", "~", "null", "<<: ",
    "=", "1e-5", "007", "0o7", "0x1f", ".inf", "-1", "+", "x:y", "a: b", "- - a", "- a: b", "key:", "\u00e9: ",
    "\t", "\r", "\u00a0", "\u2028", "\u0085", "\ufeff",
)  # fmt: skip
TRAPS = (
    "a: 1\na: 2\n", "a: &x 1\n", "a: *x\n", "a: !t 1\n", "<<: {a: 1}\n", "true: 1\n", "1: 2\n", "a: b: c\n",
    "a: b\n  c\n", "a: 'b\n  c'\n", "a: [1,\n  2]\n", "a: [1 2, b: c]\n", "a: 1\n---\nb: 2\n", "%YAML 1.1\n---\na: 1\n",
    "a:\tb\n", "- a\n", "a: 1234567890123456789\n", 'a: "\\x41"\n', "a: ? b\n", "a: @b\n", "  a: 1\n b: 2\n",
    "a: {b}\n", "a: [,]\n", "", "a:b\n", "k: {a:b}\n",
)  # fmt: skip


def differs(text: str) -> str | None:
    """What is wrong with the quick answer, or None: no answer is never wrong."""
    data = text.encode()
    found = contract_tree._quick(data)
    if found is None:
        return None
    node, problems = parse(data, "x")
    return None if not problems and node == found else f"{text!r}: {problems or 'another tree'}"


def edited(text: str, dice: random.Random) -> str:
    """The beginning of a contract after up to two random edits."""
    part = "\n".join(text.split("\n")[: dice.randrange(3, 30)])
    for _ in range(dice.randrange(3)):
        at, to = dice.randrange(len(part) + 1), dice.randrange(len(part) + 1)
        new = dice.choice((dice.choice(BITS), dice.choice(BITS), "", part[to : to + dice.randrange(30)]))
        part = part[:at] + new + part[at + (dice.randrange(4) if not new else 0) :]
    return part


def answered(texts: list[str]) -> int:
    """How many of these the quick reader answers; every answer is the YAML reader's, or the test fails."""
    wrong = [said for text in texts if (said := differs(text))]
    assert wrong == []
    return sum(contract_tree._quick(text.encode()) is not None for text in texts)


def samples(count: int) -> list[str]:
    dice = random.Random(20)
    sources = [p.read_text(encoding="utf-8") for p in SMALL]
    return [edited(dice.choice(sources), dice) for _ in range(count)]


def test_every_contract_of_the_repository_is_read_quickly_and_the_same() -> None:
    assert answered([p.read_text(encoding="utf-8") for p in CONTRACTS]) == len(CONTRACTS) >= 3


def test_random_edits_are_read_the_same_or_not_at_all() -> None:
    assert answered(samples(1500)) > 400


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("_PLAIN", contract_quick._START + r".*"),
        ("_KEY", r"([A-Za-z_][A-Za-z0-9_.-]*):"),
        ("_DOUBLE", r'"(.*)"'),
        ("_TAIL", r".*$"),
        ("_FLOW", contract_quick._START + r"[^,\[\]{}]*"),
    ],
)
def test_a_reader_that_takes_more_than_it_understands_is_seen(
    name: str, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract_quick, name, re.compile(pattern))
    assert any(differs(text) for text in (*TRAPS, *samples(300)))


@pytest.mark.parametrize("text", TRAPS)
def test_what_is_not_plainly_written_is_left_to_the_yaml_reader(text: str) -> None:
    assert contract_tree._quick(text.encode()) is None


def test_places_and_exact_numbers_are_kept() -> None:
    node = contract_tree._quick(b"a:\n  - {x: 1e-5, y: 0x10}  # why\n  - b: >\n      one\n      two\n    c:\n")
    assert node is not None
    first, second = node.items("a")
    assert (first.line, first.col, first.keys) == (2, 5, {"x": (2, 6), "y": (2, 15)})
    assert first.plain() == {"x": contract_tree.Exact("1e-5"), "y": 16}
    assert second.plain() == {"b": "one two\n", "c": None}
    assert second.get("c") == Node(None, 6, 5, empty=True)


LINES = (
    "one", "two words", "# no comment", "- no item", "k: v", "'q", '"', "[", "a  b", "é", "x ", "", " deeper", "%",
    "...",
)  # fmt: skip


def block_texts() -> list[str]:
    """Mappings with a folded or literal text, even and uneven."""
    dice, texts = random.Random(6), []
    for _ in range(400):
        body = "".join(f"    {dice.choice(LINES)}\n" for _ in range(dice.randint(1, 4)))
        texts.append(f"a:\n  b: {dice.choice(['>', '>-', '|', '|-'])}\n{body}{dice.choice(['', 'c: 1', '# end'])}\n")
    return texts


def test_folded_and_literal_text_is_read_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    folded = contract_tree._folded

    def counted(text: str) -> str | None:
        asked.append(text)
        return folded(text)

    monkeypatch.setattr(contract_tree, "_folded", counted)
    assert not any(differs(text) for text in block_texts())
    assert 50 < len(asked) < 350


def test_text_that_is_called_even_and_is_not_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract_quick, "_even", lambda _, body: " ".join(line.strip() for line in body) + "\n")
    assert any(differs(text) for text in block_texts())


def test_a_nest_too_deep_or_a_file_too_long_is_left_to_the_yaml_reader() -> None:
    deep = "a: " + "[" * 60 + "]" * 60 + "\n"
    long = "a:\n" + "  - 1\n" * (contract_tree.MAX_NODES // 2 + 1)
    assert contract_tree._quick(deep.encode()) is None
    assert contract_tree._quick(long.encode()) is None
    assert contract_tree._quick(b"#" * (contract_tree.MAX_BYTES + 1)) is None
