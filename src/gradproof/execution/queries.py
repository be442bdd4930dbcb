"""The solver's queries of a check as SMT-LIB 2: recorded in its worker, written as one script, read back.

A script holds each distinct query between (push 1) and (pop 1), after the status that z3 gave it. The declarations of
a query end with its (pop 1). Source: SMT-LIB standard 2.6, sections 3.9 and 4.2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

MOST_BYTES = 1_000_000
HEAD = "(set-info :smt-lib-version 2.6)\n(set-logic ALL)\n"
STATUS = re.compile(r"^\(set-info :status (sat|unsat|unknown)\)$", re.MULTILINE)
_PUSH, _POP = "(push 1)\n", "(pop 1)\n"
_PREFACE = re.compile(r"\A(?:;[^\n]*\n|\(set-info [^\n]*\)\n)*")


@dataclass(frozen=True)
class Query:
    """A text that ends in (check-sat), and z3's status: sat, unsat or unknown."""

    text: str
    status: str


@dataclass
class QueryRecorder:
    """Listens to the solver of this process. Of equal queries one is kept; none beyond `most` bytes in all."""

    most: int = MOST_BYTES
    asked: int = 0
    left_out: int = 0
    size: int = 0
    kept: list[Query] = field(default_factory=list)
    seen: set[bytes] = field(default_factory=set)

    @classmethod
    def attached(cls) -> QueryRecorder:
        """A recorder that hears every query from now on."""
        from gradproof.arith import smt

        recorder = cls()
        smt.LISTENERS.append(recorder.hear)
        return recorder

    def hear(self, write: Callable[[], str], answer: str) -> None:
        """Keep one query, or count it."""
        self.asked += 1
        text = _PREFACE.sub("", write(), count=1).rstrip() + "\n"
        status = str(answer) if answer in ("sat", "unsat") else "unknown"
        key = sha256(f"{status}\n{text}".encode()).digest()
        if key in self.seen:
            return
        self.seen.add(key)
        if self.size + len(text) > self.most:
            self.left_out += 1
            return
        self.size += len(text)
        self.kept.append(Query(text, status))

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        rows = [{"text": q.text, "status": q.status} for q in self.kept]
        return {"asked": self.asked, "left_out": self.left_out, "queries": rows}


def script(title: Sequence[str], queries: Sequence[Query]) -> str:
    """One SMT-LIB 2 script. `title`: lines for its head."""
    parts = ["".join(f"; {line}\n" for line in title), HEAD]
    for query in queries:
        parts += [_PUSH, f"(set-info :status {query.status})\n", query.text, _POP]
    return "".join(parts)


def parse(text: str) -> list[Query]:
    """The queries of a script that `script` wrote. Raises ValueError where it is of another shape."""
    head, *blocks = text.split(f"\n{_PUSH}")
    if not f"{head}\n".endswith(HEAD):
        raise ValueError("it does not begin as a script of queries does")
    found = []
    for number, block in enumerate(blocks, 1):
        status = STATUS.match(block)
        body = block[status.end() + 1 :] if status else ""
        body, end, rest = body.rpartition(_POP.strip())
        if status is None or not end or rest.strip() or body.count("(check-sat)") != 1 or "\n(pop" in body:
            raise ValueError(f"query {number} is not one status, one (check-sat) and one (pop 1)")
        found.append(Query(body, status[1]))
    return found


def counts(queries: Sequence[Query]) -> Mapping[str, int]:
    """How many queries have each status."""
    return {s: sum(q.status == s for q in queries) for s in ("sat", "unsat", "unknown")}
