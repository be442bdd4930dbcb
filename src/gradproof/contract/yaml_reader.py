"""A quick way to the tree of a contract that is written plainly; None where it is not, and the YAML reader is asked.

Taken: block mappings and lists, word-like keys, scalars and flow collections of one line, folded and literal text
(which the YAML reader itself is given, alone, unless it is even). Whatever else a line holds makes the whole answer
None. So this knows no mistake and reports none; where it answers, `contract_events.parse` would give the same tree and
no problem, which the tests try on contracts with random edits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradproof.core.errors import GradproofError

# -- The tree of a contract: nodes that know their line and column, and the problems that were found in its text.
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
    from gradproof.contract.yaml_events import parse

    return data, *parse(data, shown)


def _quick(data: bytes) -> Node | None:
    """The tree of a plainly written contract at a twentieth of the cost of `parse`, which would give the same."""

    try:
        return quick(data.decode("utf-8-sig"), resolved, _folded) if len(data) <= MAX_BYTES else None
    except UnicodeDecodeError:
        return None


def _folded(text: str) -> str | None:
    """The one value of a mapping of one key, or None where that is not what `text` is."""
    from gradproof.contract.yaml_events import parse

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


# What stands outside of these is left to the YAML reader: tabs, other line ends, byte order marks, marks of direction,
# rare planes. Sets of letters beyond Latin-1 take milliseconds to compile, so one is only for texts that have such.
_ODD_ASCII = re.compile("[^\n\x20-\x7e]")
_ODD = "[^\n\x20-\x7e\xa1-\u200d\u2010-\u2027\u2030-\u2065\u206a-\ud7ff\ue000-\ufefe\uff00-\uffef]"
_KEY = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*):(?= |$)")
_NO_KEY = re.compile(r"(?i:null|true|false)")
_DOUBLE = re.compile(r'"((?:[^"\\]|\\["\\])*)"')
_ESCAPE = re.compile(r"\\(.)")
_SINGLE = re.compile(r"'((?:[^']|'')*)'")
# Letters, digits, any of _.(/<=+$^ and whatever is not ASCII; a dash only before a word or a number.
_START = r"(?:[^\x00-#%-')-*,-\-:-;>-@\[-\]`{-\xa0]|-(?=[A-Za-z0-9.]))"
_PLAIN = re.compile(_START + r"[^#:]*(?:(?::(?=[^ #])|(?<=[^ ])#)[^#:]*)*")
_FLOW = re.compile(_START + r"[^,\[\]{}#:]*")
_TAIL = re.compile(r" *(?:(?<= )#.*)?$")
_TEXT = re.compile(r"[>|]-?$")

Resolve = Callable[[str, int, int], Node | None]
Folded = Callable[[str], str | None]


class _Unsure(Exception):
    """The YAML reader must decide."""


def quick(text: str, resolve: Resolve, folded: Folded) -> Node | None:
    """The tree of `text`, or None. `resolve` makes a node of a plain scalar; `folded` reads `k: >` with its lines."""
    if (_ODD_ASCII if text.isascii() else re.compile(_ODD)).search(text):
        return None
    try:
        return _Quick(text, resolve, folded).document()
    except _Unsure:
        return None


class _Quick:
    """Reads line by line; `at` is the line under way, whose list dash has been made a space."""

    def __init__(self, text: str, resolve: Resolve, folded: Folded) -> None:
        self.lines, self.at, self.nodes = text.split("\n"), 0, 0
        self.resolve, self.folded = resolve, folded

    def document(self) -> Node:
        if self.indent() != 0:
            raise _Unsure
        node = self.mapping(0, 1)
        if self.indent() >= 0:
            raise _Unsure
        return node

    def indent(self) -> int:
        """Column of the next line with content, which is made the one under way; -1 where there is none."""
        while self.at < len(self.lines):
            line = self.lines[self.at]
            found = line.lstrip(" ")
            if found and found[0] != "#":
                return len(line) - len(found)
            self.at += 1
        return -1

    def counted(self, node: Node) -> Node:
        self.nodes += 1
        if self.nodes > MAX_NODES // 2:
            raise _Unsure
        return node

    def block(self, indent: int, depth: int) -> Node:
        dash = self.lines[self.at].startswith("- ", indent)
        return self.items(indent, depth) if dash else self.mapping(indent, depth)

    def items(self, indent: int, depth: int) -> Node:
        node = self.opened(Node([], self.at + 1, indent + 1), depth)
        while self.indent() == indent and self.lines[self.at].startswith("- ", indent):
            line = self.lines[self.at]
            column = len(line) - len(line[indent + 1 :].lstrip(" "))
            if column >= len(line):
                raise _Unsure
            if _KEY.match(line, column):
                self.lines[self.at] = " " * column + line[column:]
                node.value.append(self.mapping(column, depth + 1))
            else:
                node.value.append(self.inline(column, depth))
        if self.indent() > indent:
            raise _Unsure
        return node

    def mapping(self, indent: int, depth: int) -> Node:
        node = self.opened(Node({}, self.at + 1, indent + 1), depth)
        while self.indent() == indent:
            line = self.lines[self.at]
            found = _KEY.match(line, indent)
            if found is None:
                raise _Unsure
            key = found[1]
            if key in node.keys or _NO_KEY.fullmatch(key):
                raise _Unsure
            node.keys[key] = (self.at + 1, indent + 1)
            node.value[key] = self.of_key(found.end(), indent, node.keys[key], depth)
        if self.indent() > indent:
            raise _Unsure
        return node

    def opened(self, node: Node, depth: int) -> Node:
        if depth > MAX_DEPTH // 2:
            raise _Unsure
        return self.counted(node)

    def of_key(self, column: int, indent: int, place: tuple[int, int], depth: int) -> Node:
        """What stands after a key: on its line, or below it."""
        line = self.lines[self.at]
        if not _TAIL.match(line, column):
            column += len(line[column:]) - len(line[column:].lstrip(" "))
            if _TEXT.match(line, column):
                return self.text(column, indent)
            return self.inline(column, depth)
        self.at += 1
        below = self.indent()
        if below > indent or (below == indent and self.lines[self.at].startswith("- ", indent)):
            return self.block(below, depth + 1)
        return self.counted(Node(None, *place, empty=True))

    def text(self, column: int, indent: int) -> Node:
        """Folded or literal text: its lines are those that are indented deeper, and blank ones."""
        start, head = self.at, self.lines[self.at]
        self.at += 1
        while self.at < len(self.lines):
            line = self.lines[self.at]
            found = line.lstrip(" ")
            if found and len(line) - len(found) <= indent:
                break
            self.at += 1
        body = self.lines[start + 1 : self.at]
        value = _even(head[column:], body)
        if value is None:
            value = self.folded("\n".join([f"{' ' * indent}k: {head[column:]}", *body, ""]))
        if value is None:
            raise _Unsure
        return self.counted(Node(value, start + 1, column + 1))

    def inline(self, column: int, depth: int) -> Node:
        """A scalar or a flow collection that ends on its line."""
        line = self.lines[self.at]
        if line[column] in "[{":
            node, end = self.flow(line, column, depth + 1)
        elif line[column] in "\"'":
            node, end = self.quoted(line, column)
        else:
            found = _PLAIN.match(line, column)
            if found is None:
                raise _Unsure
            node, end = self.plain(found[0], column), found.end()
        if not _TAIL.match(line, end):
            raise _Unsure
        self.at += 1
        return node

    def plain(self, text: str, column: int) -> Node:
        node = self.resolve(text.rstrip(" "), self.at + 1, column + 1)
        if node is None:
            raise _Unsure
        return self.counted(node)

    def quoted(self, line: str, column: int) -> tuple[Node, int]:
        found = (_DOUBLE if line[column] == '"' else _SINGLE).match(line, column)
        if found is None:
            raise _Unsure
        text = found[1]
        if line[column] == "'":
            text = text.replace("''", "'")
        elif "\\" in text:
            text = _ESCAPE.sub(r"\1", text)
        return self.counted(Node(text, self.at + 1, column + 1)), found.end()

    def flow(self, line: str, column: int, depth: int) -> tuple[Node, int]:
        """A flow collection and the column behind it."""
        closing = "]" if line[column] == "[" else "}"
        node = self.opened(Node([] if closing == "]" else {}, self.at + 1, column + 1), depth)
        at = _past(line, column + 1)
        if line[at : at + 1] == closing:
            return node, at + 1
        while True:
            if closing == "}":
                found = _KEY.match(line, at)
                if found is None or found[1] in node.keys or _NO_KEY.fullmatch(found[1]):
                    raise _Unsure
                node.keys[found[1]] = (self.at + 1, at + 1)
                node.value[found[1]], at = self.part(line, _past(line, found.end()), depth)
            else:
                value, at = self.part(line, at, depth)
                node.value.append(value)
            at = _past(line, at)
            if line[at : at + 1] == closing:
                return node, at + 1
            if line[at : at + 2] != ", ":
                raise _Unsure
            at = _past(line, at + 1)

    def part(self, line: str, at: int, depth: int) -> tuple[Node, int]:
        """One value of a flow collection."""
        start = line[at : at + 1]
        if start in ("[", "{"):
            return self.flow(line, at, depth + 1)
        if start in ('"', "'"):
            return self.quoted(line, at)
        found = _FLOW.match(line, at)
        if found is None:
            raise _Unsure
        return self.plain(found[0], at), at + len(found[0].rstrip(" "))


def _even(head: str, body: list[str]) -> str | None:
    """Text after > or | whose lines all begin in one column, without blank ones; None for any other."""
    lines = [line.lstrip(" ") for line in body]
    widths = {len(line) - len(found) for line, found in zip(body, lines, strict=True)}
    if len(widths) != 1 or not all(lines) or any(line.endswith(" ") for line in body):
        return None
    return (" " if head[0] == ">" else "\n").join(lines) + ("" if head.endswith("-") else "\n")


def _past(line: str, at: int) -> int:
    """The first column from `at` that is no space."""
    return at + len(line[at:]) - len(line[at:].lstrip(" "))
