"""YAML text -> a tree of nodes, or a list of problems. Nothing else is raised.

The text is read as YAML 1.2 through ruamel.yaml's event stream, one event at a time, because a tree built from
events keeps what a loaded dict loses: duplicate keys (all of them), the place of every key, and the exact text of
every number.

Refused, because a clause must mean what stands in its place: anchors, aliases, merge keys, explicit tags, a second
document, directives of another YAML version. Limits: MAX_PROBLEMS, and those of gradproof.contract.yaml_reader.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

from ruamel.yaml import YAML, events as ev
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from gradproof.contract.yaml_reader import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_NODES,
    Exact,
    Node,
    Problem,
    resolved,
)

_TURNS = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")  # Boucher, Anderson, Trojan Source, arXiv:2111.00169
_HALVES = re.compile("[\ud800-\udfff]")  # as "\\ud800" makes one: no text of a file, a digest or a terminal
MAX_PROBLEMS = 500


def parse(data: bytes, shown: str) -> tuple[Node | None, list[Problem]]:
    """The tree of a contract's bytes and its problems as YAML."""
    if len(data) > MAX_BYTES:
        return None, [_big(shown, 1, 1, f"more than {MAX_BYTES} bytes", f"at most {MAX_BYTES} bytes")]
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line, col = before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1
        found = f"byte 0x{data[error.start]:02x}"
        return None, [Problem("GP118", shown, line, col, found, "UTF-8 text", "save the file as UTF-8")]
    if (turn := _TURNS.search(text)) is not None:
        return None, [_turned(text, turn.start(), shown)]
    builder = _Builder(shown)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            builder.build(YAML(typ="safe", pure=True).parse(text))
    except _TooBig:
        return None, builder.problems
    except YAMLError as error:
        return None, [*builder.problems, _syntax(error, shown)]
    except (
        ValueError,
        IndexError,
        KeyError,
        TypeError,
        AttributeError,
        AssertionError,
        RecursionError,
        MemoryError,
    ) as error:
        found = f"text that the YAML reader cannot take: {type(error).__name__}"
        return None, [
            *builder.problems,
            Problem("GP117", shown, builder.line, 1, found, "YAML 1.2", "check the syntax near this line"),
        ]
    return builder.root, builder.problems


def _syntax(error: YAMLError, shown: str) -> Problem:
    mark = None
    found = " ".join(str(error).split())
    if isinstance(error, MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        found = ", ".join(" ".join(part.split()) for part in (error.context, error.problem) if part) or found
    line, col = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
    mend = "indent with spaces, not tabs" if "\\t" in found else "check quotes, brackets and indentation here"
    return Problem("GP117", shown, line, col, found[:300], "YAML 1.2", mend)


def _turned(text: str, at: int, shown: str) -> Problem:
    line, col = text.count("\n", 0, at) + 1, at - (text.rfind("\n", 0, at) + 1) + 1
    found = f"U+{ord(text[at]):04X}, which turns the direction of the text that follows"
    return Problem("GP493", shown, line, col, found, "text that is read in the order in which it stands", "remove it")


def _big(shown: str, line: int, col: int, found: str, expected: str) -> Problem:
    return Problem("GP121", shown, line, col, found, expected, "split the contract")


class _TooBig(Exception):
    """A limit was passed; the problem is already noted."""


class _Dropped:
    """Stands for a key whose value is not kept."""


class _Builder:
    """Builds the tree from events with an explicit stack, so that no input can exhaust Python's."""

    def __init__(self, shown: str) -> None:
        self.shown = shown
        self.problems: list[Problem] = []
        self.root: Node | None = None
        self.stack: list[Node] = []
        self.pending: list[str | _Dropped | None] = []
        self.documents = 0
        self.nodes = 0
        self.line = 1

    def build(self, stream: Iterator[Any]) -> None:
        """Consume all events."""
        for event in stream:
            self.line = event.start_mark.line + 1
            if len(self.problems) >= MAX_PROBLEMS:
                self._stop(event, f"more than {MAX_PROBLEMS} mistakes", "fewer; the rest was not read")
            if isinstance(event, ev.DocumentStartEvent):
                self._document(event)
            elif isinstance(event, ev.AliasEvent):
                self._refuse(event, f"alias *{event.anchor}")
                self._place(Node(None, *_mark(event)))
            elif isinstance(event, ev.ScalarEvent):
                self._note_extras(event, plain_allowed=True)
                self._place(self._scalar(event))
            elif isinstance(event, (ev.MappingStartEvent, ev.SequenceStartEvent)):
                self._open(event)
            elif isinstance(event, (ev.MappingEndEvent, ev.SequenceEndEvent)):
                self.stack.pop()
                self.pending.pop()

    def _document(self, event: Any) -> None:
        self.documents += 1
        if self.documents > 1:
            self._refuse(event, "a second YAML document")
        if event.version not in (None, (1, 2)) or event.tags:
            self._refuse(event, "a YAML directive")

    def _open(self, event: Any) -> None:
        self._note_extras(event, plain_allowed=False)
        node = Node({} if isinstance(event, ev.MappingStartEvent) else [], *_mark(event))
        self._place(node)
        self.stack.append(node)
        self.pending.append(None)
        if len(self.stack) > MAX_DEPTH:
            self._stop(event, f"nesting deeper than {MAX_DEPTH}", f"at most {MAX_DEPTH} levels")

    def _place(self, node: Node) -> None:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            self.problems.append(
                _big(self.shown, node.line, node.col, f"more than {MAX_NODES} values", f"at most {MAX_NODES}")
            )
            raise _TooBig
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

    def _key(self, parent: Node, node: Node) -> str | _Dropped:
        """The next key of `parent`, or _Dropped when its value cannot be kept; the value is still looked at."""
        key = node.value
        if isinstance(key, (list, dict)):
            self._add("GP104", node, "a list or a mapping as a key", "a string", "write the key as a word")
        elif not isinstance(key, str):
            shown = key.text if isinstance(key, Exact) else key
            self._add("GP104", node, f"the key {shown}, which is no string", "a string", "put the key in quotes")
        elif key == "<<":
            self._add("GP120", node, "a merge key <<", "plain YAML", "write the keys out where they belong")
        elif key in parent.keys:
            line, col = parent.keys[key]
            found = f"the key {key!r} again; it stands already at {line}:{col}"
            self._add("GP102", node, found, "each key once", "remove or rename one of the two")
        else:
            parent.keys[key] = (node.line, node.col)
            return key
        return _Dropped()

    def _scalar(self, event: Any) -> Node:
        line, col = _mark(event)
        text = self._whole(event.value, line, col)
        if event.style is not None or not event.implicit[0]:
            return Node(text, line, col)
        node = resolved(text, line, col)
        if node is None:
            self.problems.append(_number(self.shown, line, col, text))
            return Node(0, line, col)
        return node

    def _whole(self, text: str, line: int, col: int) -> str:
        """The text without halves of a surrogate pair, each of which is a problem at the place of its scalar."""
        if text.isascii() or (half := _HALVES.search(text)) is None:
            return text
        found = f"the escape of U+{ord(half[0]):04X}, half of a surrogate pair, which is no character"
        mend = "write the character itself, or \\U with its eight digits"
        self.problems.append(Problem("GP118", self.shown, line, col, found, "UTF-8 text", mend))
        return _HALVES.sub("\ufffd", text)

    def _note_extras(self, event: Any, plain_allowed: bool) -> None:
        if event.anchor is not None:
            self._refuse(event, f"anchor &{event.anchor}")
        if event.tag is not None and not (plain_allowed and event.tag == "!"):
            self._refuse(event, f"explicit tag {event.tag}")

    def _refuse(self, event: Any, found: str) -> None:
        line, col = _mark(event)
        mend = "write the value out where it belongs"
        self.problems.append(Problem("GP120", self.shown, line, col, found, "plain YAML in one document", mend))

    def _add(self, code: str, node: Node, found: str, expected: str, mend: str) -> None:
        self.problems.append(Problem(code, self.shown, node.line, node.col, found, expected, mend))

    def _stop(self, event: Any, found: str, expected: str) -> None:
        self.problems.append(_big(self.shown, *_mark(event), found, expected))
        raise _TooBig


def _number(shown: str, line: int, col: int, text: str) -> Problem:
    found = f"a number of {len(text)} digits"
    return Problem("GP107", shown, line, col, found, f"at most {MAX_DIGITS} digits", "write a smaller number")


def _mark(event: Any) -> tuple[int, int]:
    return event.start_mark.line + 1, event.start_mark.column + 1
