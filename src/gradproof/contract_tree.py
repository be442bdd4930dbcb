"""The tree of a contract: nodes that know their line and column, and the problems that were found in its text.

A file is read by gradproof.contract_quick where it is plainly written, and else by gradproof.contract_events. Scalars
follow the YAML 1.2 core schema (https://yaml.org/spec/1.2.2, section 10.3.2); a float stays the text that was written,
so that 1e-5 is the decimal 1/100000. Limits: MAX_BYTES, MAX_NODES, MAX_DEPTH.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradproof.core import GradproofError

MAX_BYTES = 1 << 19
MAX_NODES = 50_000
MAX_DEPTH = 40
MAX_DIGITS = 18

_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake or gap, with a stable code, its place (lines and columns start at 1) and the mend."""

    code: str
    file: str
    line: int
    col: int
    found: str
    expected: str
    mend: str

    @property
    def where(self) -> str:
        """file:line:col."""
        return f"{self.file}:{self.line}:{self.col}"

    def render(self) -> str:
        """Four short lines, as GradproofError writes them."""
        return GradproofError(self.code, self.found, self.expected, self.mend, self.where).render()


class ContractErrors(GradproofError):
    """Every mistake of a contract at once, in the order of the file. `problems` is never empty."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = sorted(problems, key=lambda p: (p.line, p.col, p.code))
        first = self.problems[0]
        super().__init__(first.code, first.found, first.expected, first.mend, first.where)

    def render(self) -> str:
        """All problems, one after the other."""
        return "\n".join(p.render() for p in self.problems)


@dataclass(frozen=True, slots=True)
class Exact:
    """A YAML float: the text that was written, never a binary float."""

    text: str


@dataclass(slots=True)
class Node:
    """A value at its place. `value` is a scalar, a list of nodes, or a dict of nodes by key.

    `keys` gives the place of each key of a mapping. `empty`: nothing is written, and the place is the key's.
    """

    value: Any
    line: int
    col: int
    keys: dict[str, tuple[int, int]] = field(default_factory=dict)
    empty: bool = False

    def get(self, key: str) -> Node | None:
        """The node under `key`, or None when this is no mapping or has no such key."""
        return self.value.get(key) if isinstance(self.value, dict) else None

    def items(self, *path: str) -> list[Node]:
        """Elements of the list at `path`; none when there is no list."""
        node: Node | None = self
        for key in path:
            node = node.get(key) if node is not None else None
        return node.value if node is not None and isinstance(node.value, list) else []

    def pairs(self, key: str) -> list[tuple[str, Node]]:
        """Keys and nodes of the mapping under `key`; none when there is no mapping."""
        node = self.get(key)
        return list(node.value.items()) if node is not None and isinstance(node.value, dict) else []

    def text(self, key: str) -> str | None:
        """The string under `key`, or None."""
        node = self.get(key)
        return node.value if node is not None and isinstance(node.value, str) else None

    def plain(self, floats: bool = True) -> Any:
        """Python values: dict, list, str, int, bool, None and Exact (its text, when not `floats`)."""
        if isinstance(self.value, dict):
            return {k: n.plain(floats) for k, n in self.value.items()}
        if isinstance(self.value, list):
            return [n.plain(floats) for n in self.value]
        return self.value.text if isinstance(self.value, Exact) and not floats else self.value

    def at(self, path: tuple[Any, ...], key: bool = False) -> tuple[int, int]:
        """Place of what `path` leads to, or of the nearest thing on the way. `key`: of the key, not of its value."""
        node, place = self, (self.line, self.col)
        for step in path:
            if isinstance(node.value, dict) and step in node.value:
                place = node.keys[step]
                node = node.value[step]
            elif isinstance(node.value, list) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                place = (node.line, node.col)
            else:
                return place
        return place if key else (node.line, node.col)


def places(root: Node) -> dict[str, tuple[int, int]]:
    """Line and column of every entry of a contract that has an id, by that id."""
    entries = [n for section in root.value.values() for n in (section.value if _is_list(section) else [section])]
    return {name: (n.line, n.col) for n in entries if (name := n.text("id")) is not None}


def _is_list(node: Node) -> bool:
    return isinstance(node.value, list)


def read(path: Path, shown: str) -> tuple[bytes, Node | None, list[Problem]]:
    """The bytes of `path`, its tree (None when there is none) and what is wrong with it as YAML."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe would keep the reader waiting
            raise OSError("it is no file")
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return (
            b"",
            None,
            [Problem("GP119", shown, 1, 1, reason, "a file that can be read", "give the path of a contract.yaml")],
        )
    node = _quick(data)
    if node is not None:
        return data, node, []
    from gradproof.contract_events import parse

    return data, *parse(data, shown)


def _quick(data: bytes) -> Node | None:
    """The tree of a plainly written contract at a twentieth of the cost of `parse`, which would give the same."""
    from gradproof.contract_quick import quick

    try:
        return quick(data.decode("utf-8-sig"), resolved, _folded) if len(data) <= MAX_BYTES else None
    except UnicodeDecodeError:
        return None


def _folded(text: str) -> str | None:
    """The one value of a mapping of one key, or None where that is not what `text` is."""
    from gradproof.contract_events import parse

    node, problems = parse(text.encode(), "")
    value = node.text("k") if node is not None and not problems and list(node.value) == ["k"] else None
    return value


def resolved(text: str, line: int, col: int) -> Node | None:
    """The node of a plain scalar by the core schema; None for a whole number of too many digits."""
    if text in _NULL:
        return Node(None, line, col, empty=not text)
    if text in _BOOL:
        return Node(_BOOL[text], line, col)
    if _INT.fullmatch(text):
        if len(text) > MAX_DIGITS:
            return None
        return Node(int(text, 0 if text[:2] in ("0o", "0x") else 10), line, col)
    return Node(Exact(text) if _FLOAT.fullmatch(text) else text, line, col)
