"""Laws of your own operators, for kernels that gradproof cannot look into: Triton, CUDA, C++.

    from gradproof.laws import register_law

    register_law("mylib::swish", ["b..."], ["b..."])
    register_law("mylib::swish_backward", ["b...", "b..."], ["b..."], linear=[0])

A law gives each axis of each tensor argument and of each result a letter:

* a lower-case letter that arguments share with a result is mapped: a row of the result is made of the same row alone;
* a lower-case letter that a result does not have is summed: that result is the sum of the operator on each row;
* an upper-case letter, and each axis that `...` stands for, stays whole;
* a dot is an axis of size 1 that is broadcast.

`linear` are the tensor arguments, counted from 0, in each of which the operator is linear while the others are held.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gradproof.core.errors import GradproofError

CODE = "GP414"
"""The code of a law that makes no sense, or that is not true of its operator."""
REST = "..."


@dataclass(frozen=True, slots=True)
class RegisteredLaw:
    """A law as it was registered. `line` is the `file:line` that did."""

    operator: str
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    linear: tuple[int, ...]
    line: str

    @property
    def words(self) -> str:
        """The law, as it is assumed."""
        return f"the law that {self.line} registered for {self.operator}"

    def refused(self, found: str) -> GradproofError:
        """The error of a law that is not true of its operator."""
        expected = f"what {', '.join(self.arguments)} -> {', '.join(self.results)} says"
        return GradproofError(CODE, f"{self.operator}: {found}", expected, "correct the law", self.line)


REGISTERED: dict[str, RegisteredLaw] = {}
"""Operator (`space.name`) to its law."""


def register_law(
    operator: Any, arguments: Iterable[str], results: Iterable[str], *, linear: Sequence[int] = ()
) -> None:
    """State the law of an operator of your own: `operator` is "space::name", or torch's object.

    A run with numbers tries the law on the kernel where the operator is used first; a verdict that rests on it says so.
    Raises GradproofError GP414 for a law that makes no sense, at once, and for one that is not true, at that first use.
    """
    frame = sys._getframe(1)
    name = named(operator)
    law = RegisteredLaw(
        name, tuple(arguments), tuple(results), tuple(linear), f"{frame.f_code.co_filename}:{frame.f_lineno}"
    )
    wrong = unfit(law)
    if wrong:
        raise law.refused(wrong)
    known = REGISTERED.setdefault(name, law)
    if (known.arguments, known.results, known.linear) != (law.arguments, law.results, law.linear):
        raise law.refused(f"it has another law already, from {known.line}")


def named(operator: Any) -> str:
    """The name of an operator, as `space.name`."""
    text = operator if isinstance(operator, str) else None
    for attribute in ("_qualname", "_qualified_op_name", "_name"):
        text = text or getattr(operator, attribute, None)
    space, _, name = str(text).partition("::")
    return f"{space}.{name.split('.')[0]}"


def unfit(law: RegisteredLaw) -> str:
    """What is wrong with a law, whatever its operator does; empty where nothing is."""
    space, _, name = law.operator.partition(".")
    texts = [text.removesuffix(REST) for text in (*law.arguments, *law.results)]
    given = {letter for text in law.arguments for letter in text if letter.islower()}
    made = {letter for text in law.results for letter in text if letter.islower()}
    if not space or not name:
        return "an operator is called space::name"
    if space == "aten":
        return "an operator of torch's own takes no other law"
    for text in texts:
        if not re.fullmatch(r"[A-Za-z.]*", text) or any(text.count(x) > 1 for x in text if x.islower()):
            return f"{text!r} are not letters of axes, each lower-case one once"
    if not given or not made <= given:
        return f"the results have the rows {sorted(made)}, and the arguments {sorted(given)}"
    if any(not 0 <= at < len(law.arguments) for at in law.linear):
        return f"linear in {list(law.linear)}, of {len(law.arguments)} arguments"
    return ""
