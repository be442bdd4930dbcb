"""The YAML of a contract: its text -> a tree of nodes that know their line and column, and what is wrong with it.

The text is read as libyaml's events (PyYAML's own where its C extension is missing), because a tree that is built from
events keeps what a loaded dict loses: duplicate keys (all of them), the place of every key, and the exact text of every
number. Plain scalars are resolved here, by the core schema of YAML 1.2; PyYAML's resolver is never asked.

Refused, because a clause must mean what stands in its place: anchors, aliases, merge keys, explicit tags, a second
document, directives but for %YAML 1.2. Limits: bytes, values, depth, digits, problems. Nothing else is raised.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gradproof.core.errors import GradproofError

MAX_BYTES = 1 << 19
MAX_NODES = 50_000
MAX_DEPTH = 40
MAX_DIGITS = 18
MAX_PROBLEMS = 500

_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_NUMERIC = frozenset("0123456789+-.")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
# Boucher, Anderson, Trojan Source, arXiv:2111.00169. Sets beyond Latin-1 take a while to compile: only where needed.
_TURNS = "[\u200e\u200f\u202a-\u202e\u2066-\u2069]"
_HALVES = "[\ud800-\udfff]"  # as "\\ud800" makes one: no text of a file, a digest or a terminal
_HALF = re.compile(r"\\(?:u|U0000)[dD][89a-fA-F]")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]")
_NO_CHARACTER = "\ufffe|\uffff"
_LINE_END = "\x85|\u2028|\u2029"


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake or gap, with a stable code, its place (lines and columns start at 1) and the help."""

    code: str
    file: str
    line: int
    col: int
    found: str
    expected: str
    help: str

    @property
    def where(self) -> str:
        """file:line:col."""
        return f"{self.file}:{self.line}:{self.col}"

    def render(self) -> str:
        """Four short lines, as GradproofError writes them."""
        return GradproofError(self.code, self.found, self.expected, self.help, self.where).render()


class ContractErrors(GradproofError):
    """Every mistake of a contract at once, in the order of the file. `problems` is never empty."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = sorted(problems, key=lambda p: (p.line, p.col, p.code))
        first = self.problems[0]
        super().__init__(first.code, first.found, first.expected, first.help, first.where)

    def render(self) -> str:
        """All problems, one after the other."""
        return "\n".join(p.render() for p in self.problems)


def meant(name: str, known: Iterable[str], otherwise: str) -> str:
    """The known name that was perhaps meant, as a question."""
    near = difflib.get_close_matches(name, list(known), 1)
    return f"did you mean {near[0]!r}?" if near else otherwise


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

    @property
    def place(self) -> tuple[int, int]:
        """Its line and column."""
        return self.line, self.col

    def get(self, key: str) -> Node | None:
        """The node under `key`, or None when this is no mapping or has no such key."""
        return self.value.get(key) if isinstance(self.value, dict) else None

    def under(self, *path: str) -> Node:
        """The node at `path`, or one without a value."""
        node = self
        for key in path:
            node = node.get(key) or Node(None, 1, 1)
        return node

    def items(self, *path: str) -> list[Node]:
        """Elements of the list at `path`; none when there is no list."""
        value = self.under(*path).value
        return value if isinstance(value, list) else []

    def words(self, *path: str) -> list[Node]:
        """Those elements of the list at `path` that are texts."""
        return [n for n in self.items(*path) if isinstance(n.value, str)]

    def pairs(self, *path: str) -> list[tuple[str, Node]]:
        """Keys and nodes of the mapping at `path`; none when there is no mapping."""
        value = self.under(*path).value
        return list(value.items()) if isinstance(value, dict) else []

    def text(self, key: str) -> str | None:
        """The string under `key`, or None."""
        value = self.under(key).value
        return value if isinstance(value, str) else None

    def plain(self, floats: bool = True) -> Any:
        """Python values: dict, list, str, int, bool, None and Exact (its text, when not `floats`)."""
        if isinstance(self.value, dict):
            return {k: n.plain(floats) for k, n in self.value.items()}
        if isinstance(self.value, list):
            return [n.plain(floats) for n in self.value]
        return self.value.text if isinstance(self.value, Exact) and not floats else self.value

    def at(self, path: tuple[Any, ...], key: bool = False) -> tuple[int, int]:
        """Place of what `path` leads to, or of the nearest thing on the way. `key`: of the key, not of its value."""
        node, place = self, self.place
        for step in path:
            if isinstance(node.value, dict) and step in node.value:
                place = node.keys[step]
                node = node.value[step]
            elif isinstance(node.value, list) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                place = node.place
            else:
                return place
        return place if key else node.place


def places(root: Node) -> dict[str, tuple[int, int]]:
    """Line and column of every entry of a contract that has an id, by that id."""
    entries = [n for section in root.value.values() for n in section.items() or [section]]
    return {name: n.place for n in entries if (name := n.text("id")) is not None}


def read(path: Path, shown: str) -> tuple[bytes, Node | None, list[Problem]]:
    """The bytes of `path`, its tree (None when there is none) and what is wrong with it as YAML."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe would keep the reader waiting
            raise OSError("it is no file")
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        help = "give the path of a contract.yaml"
        return b"", None, [Problem("GP119", shown, 1, 1, reason, "a file that can be read", help)]
    return data, *parse(data, shown)


def parse(data: bytes, shown: str) -> tuple[Node | None, list[Problem]]:
    """The tree of a contract's bytes and its problems as YAML."""
    if len(data) > MAX_BYTES:
        found, expected = f"more than {MAX_BYTES} bytes", f"at most {MAX_BYTES} bytes"
        return None, [Problem("GP121", shown, 1, 1, found, expected, "split the contract")]
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line, col = before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1
        found = f"byte 0x{data[error.start]:02x}"
        return None, [Problem("GP118", shown, line, col, found, "UTF-8 text", "save the file as UTF-8")]
    if (odd := _odd(text, shown)) is not None:
        return None, [odd]
    return _tree(text, shown)


def _odd(text: str, shown: str) -> Problem | None:
    """A character that makes a text be read otherwise than it looks, or that no YAML may have."""
    kinds: tuple[tuple[str, str | re.Pattern[str], str, str], ...] = (
        (
            "GP493",
            _TURNS,
            "turns the direction of the text that follows",
            "text that is read in the order in which it stands",
        ),
        ("GP117", _CONTROL, "no YAML may have", "YAML 1.2"),
        ("GP117", _NO_CHARACTER, "no YAML may have", "YAML 1.2"),
        ("GP117", _LINE_END, "ends a line for YAML 1.1 and does not for YAML 1.2", "lines that end with a line feed"),
    )
    for code, pattern, what, expected in kinds[1:2] if text.isascii() else kinds:
        if (found := re.search(pattern, text)) is not None:
            which = f"U+{ord(found[0]):04X}, which {what}"
            return Problem(code, shown, *_place(text, found.start()), which, expected, "remove it")
    return None


def _place(text: str, at: int) -> tuple[int, int]:
    """Line and column of what stands at `at`."""
    return text.count("\n", 0, at) + 1, at - (text.rfind("\n", 0, at) + 1) + 1


def _tree(text: str, shown: str) -> tuple[Node | None, list[Problem]]:
    """The tree of a text of characters that YAML may have. Only here is PyYAML imported."""
    import yaml

    builder = _Builder(shown)
    # libyaml ends at half of a surrogate pair, where PyYAML's own reader goes on, so that each has a place.
    pure = _HALF.search(text) is not None or not hasattr(yaml, "CBaseLoader")
    try:
        builder.build(yaml.parse(text, Loader=yaml.BaseLoader if pure else yaml.CBaseLoader))
    except _TooBig:
        return None, builder.problems
    except yaml.YAMLError as error:
        return None, [*builder.problems, _syntax(error, text, shown)]
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError, RecursionError, MemoryError) as error:
        found = f"text that the YAML reader cannot take: {type(error).__name__}"
        help = "check the syntax near this line"
        return None, [*builder.problems, Problem("GP117", shown, builder.line, 1, found, "YAML 1.2", help)]
    return builder.root, builder.problems


def _syntax(error: Exception, text: str, shown: str) -> Problem:
    """A mistake that PyYAML found, at its place."""
    parts = [getattr(error, "context", None), getattr(error, "problem", None)]
    found = ", ".join(" ".join(part.split()) for part in parts if part) or " ".join(str(error).split())
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line, col = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
    lines = re.split("\r\n?|\n", text)
    if line > len(lines):  # libyaml ends the last line where the text does not
        line, col = len(lines), len(lines[-1]) + 1
    row = lines[line - 1]
    tab = "\t" in row[: len(row) - len(row.lstrip())] or row[col - 1 : col] == "\t"
    help = "indent with spaces, not tabs" if tab else "check quotes, brackets and indentation here"
    return Problem("GP117", shown, line, col, found[:300], "YAML 1.2", help)


def resolved(text: str, line: int, col: int) -> Node | None:
    """The node of a plain scalar by the core schema; None for a whole number of too many digits."""
    if text in _NULL:
        return Node(None, line, col, empty=not text)
    if text in _BOOL:
        return Node(_BOOL[text], line, col)
    if text[0] not in _NUMERIC:
        return Node(text, line, col)
    if _INT.fullmatch(text):
        if len(text) > MAX_DIGITS:
            return None
        return Node(int(text, 0 if text[:2] in ("0o", "0x") else 10), line, col)
    return Node(Exact(text) if _FLOAT.fullmatch(text) else text, line, col)


class _TooBig(Exception):
    """A limit was passed; the problem is already noted."""


class _Builder:
    """Builds the tree from events with an explicit stack, so that no input can exhaust Python's.

    `pending`: the key of each open mapping that waits for its value; False for one whose value is not kept.
    """

    def __init__(self, shown: str) -> None:
        self.shown = shown
        self.problems: list[Problem] = []
        self.root: Node | None = None
        self.stack: list[Node] = []
        self.pending: list[str | Literal[False] | None] = []
        self.documents = 0
        self.nodes = 0
        self.line = 1

    def build(self, stream: Iterator[Any]) -> None:
        """Consume all events."""
        takers: dict[str, Callable[[Any], None]] = {
            "ScalarEvent": self._scalar,
            "MappingStartEvent": self._open,
            "MappingEndEvent": self._close,
            "SequenceStartEvent": self._open,
            "SequenceEndEvent": self._close,
            "DocumentStartEvent": self._document,
            "AliasEvent": self._alias,
        }
        for event in stream:
            self.line = event.start_mark.line + 1
            if len(self.problems) >= MAX_PROBLEMS:
                self._stop(_mark(event), f"more than {MAX_PROBLEMS} mistakes", "fewer; the rest was not read")
            taker = takers.get(type(event).__name__)
            if taker is not None:
                taker(event)

    def _document(self, event: Any) -> None:
        self.documents += 1
        if self.documents > 1:
            self._refuse(event, "a second YAML document")
        if event.version not in (None, (1, 2)) or event.tags:
            self._refuse(event, "a YAML directive")

    def _open(self, event: Any) -> None:
        self._note_extras(event, event.tag)
        node = Node({} if type(event).__name__ == "MappingStartEvent" else [], *_mark(event))
        self._place(node)
        self.stack.append(node)
        self.pending.append(None)
        if len(self.stack) > MAX_DEPTH:
            self._stop(_mark(event), f"nesting deeper than {MAX_DEPTH}", f"at most {MAX_DEPTH} levels")

    def _close(self, _: Any) -> None:
        self.stack.pop()
        self.pending.pop()

    def _alias(self, event: Any) -> None:
        self._refuse(event, f"alias *{event.anchor}")
        self._place(Node(None, *_mark(event)))

    def _scalar(self, event: Any) -> None:
        at = _mark(event)
        self._note_extras(event, event.tag if event.tag != "!" else None)
        text = self._whole(event.value, at)
        if event.style or not event.implicit[0]:
            self._place(Node(text, *at))
            return
        node = resolved(text, *at)
        if node is None:
            found, expected = f"a number of {len(text)} digits", f"at most {MAX_DIGITS} digits"
            self._add("GP107", at, found, expected, "write a smaller number")
        self._place(node or Node(0, *at))

    def _place(self, node: Node) -> None:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            self._stop(node.place, f"more than {MAX_NODES} values", f"at most {MAX_NODES}")
        if not self.stack:
            self.root = node if self.root is None else self.root
            return
        parent = self.stack[-1]
        if isinstance(parent.value, list):
            parent.value.append(node)
        elif self.pending[-1] is None:
            self.pending[-1] = self._key(parent, node)
        else:
            key, self.pending[-1] = self.pending[-1], None
            if isinstance(key, str):
                if node.empty:
                    node.line, node.col = parent.keys[key]
                parent.value[key] = node

    def _key(self, parent: Node, node: Node) -> str | Literal[False]:
        """The next key of `parent`, or False when its value cannot be kept; the value is still looked at."""
        key, at = node.value, node.place
        if isinstance(key, (list, dict)):
            self._add("GP104", at, "a list or a mapping as a key", "a string", "write the key as a word")
        elif not isinstance(key, str):
            shown = key.text if isinstance(key, Exact) else key
            self._add("GP104", at, f"the key {shown}, which is no string", "a string", "put the key in quotes")
        elif key == "<<":
            self._add("GP120", at, "a merge key <<", "plain YAML", "write the keys out where they belong")
        elif key in parent.keys:
            line, col = parent.keys[key]
            found = f"the key {key!r} again; it stands already at {line}:{col}"
            self._add("GP102", at, found, "each key once", "remove or rename one of the two")
        else:
            parent.keys[key] = at
            return key
        return False

    def _whole(self, text: str, at: tuple[int, int]) -> str:
        """The text without halves of a surrogate pair, each of which is a problem at the place of its scalar."""
        if text.isascii() or (half := re.search(_HALVES, text)) is None:
            return text
        found = f"the escape of U+{ord(half[0]):04X}, half of a surrogate pair, which is no character"
        help = "write the character itself, or \\U with its eight digits"
        self._add("GP118", at, found, "UTF-8 text", help)
        return re.sub(_HALVES, "\ufffd", text)

    def _note_extras(self, event: Any, tag: str | None) -> None:
        if event.anchor is not None:
            self._refuse(event, f"anchor &{event.anchor}")
        if tag is not None:
            self._refuse(event, f"explicit tag {tag}")

    def _refuse(self, event: Any, found: str) -> None:
        help = "write the value out where it belongs"
        self._add("GP120", _mark(event), found, "plain YAML in one document", help)

    def _add(self, code: str, at: tuple[int, int], found: str, expected: str, help: str) -> None:
        self.problems.append(Problem(code, self.shown, *at, found, expected, help))

    def _stop(self, at: tuple[int, int], found: str, expected: str) -> None:
        self._add("GP121", at, found, expected, "split the contract")
        raise _TooBig


def _mark(event: Any) -> tuple[int, int]:
    return event.start_mark.line + 1, event.start_mark.column + 1
