"""The operator table: what each ATen operator means, once for all domains.

A row is a function of `Ops` and the operator's own arguments. Tensors that are tracked, and floating-point constants,
arrive as `Value`; integer and Boolean constants as NumPy arrays; lists as lists; everything else as it was passed. The
row returns the operator's outputs in the order of `Entry.outs`: written arguments first, in the order of the schema,
then fresh outputs; a single output need not be a tuple. Integer outputs are not computed but recorded: the row returns
`k.seen(i)` and states by `k.assume` under which condition the machine's integers are right.

`aten.add` covers every overload, `aten.max.dim` one. The in-place form (`add_`) and the `out=` form follow from the row
of the functional form unless they have their own.

To teach gradproof an operator of your own::

    @gradproof.shadow.register("mylib.scale", examples=[Example(T(2, 3), 2.0)])
    def scale(k, x, factor):
        return x * factor
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradproof.core.errors import GradproofError
from gradproof.shadow.algebra import Array, Beyond, Domain, Value, function, lift
from gradproof.shadow.tape import Entry

Rule = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class T:
    """A random floating-point tensor of an example, uniform between `low` and `high`; `at` gives it a stride."""

    shape: tuple[int, ...]
    low: float = -2.0
    high: float = 2.0
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Int:
    """A random tensor of integers of an example, `low` included and `high` excluded."""

    shape: tuple[int, ...]
    high: int
    low: int = 0
    dtype: str = "int64"


@dataclass(frozen=True, slots=True)
class Bool:
    """A random Boolean tensor of an example."""

    shape: tuple[int, ...]


class Example:
    """Arguments on which a row is compared with the real kernel. `overload` picks one; `untracked` are constants.

    `untracked`: positions of tensors that carry no symbol (a step count, a mask). Arguments may be given as (`T`,
    `Int`, `Bool`), lists of these, or plain values, exactly as the operator takes them.
    """

    def __init__(self, *args: Any, overload: str = "", untracked: Sequence[int] = (), **kwargs: Any) -> None:
        self.args, self.kwargs, self.overload, self.untracked = args, kwargs, overload, tuple(untracked)


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One row: the operator's name, its rule, and the examples that test it."""

    op: str
    rule: Rule
    examples: tuple[Example, ...]
    module: str


@dataclass(slots=True)
class PathConditions:
    """What an interpretation took for granted: conditions on the path, and assumptions in words."""

    conditions: list[tuple[Value, str, Entry | None]] = field(default_factory=list)
    assumptions: dict[str, int] = field(default_factory=dict)

    def assume(self, condition: Value, text: str, entry: Entry | None) -> None:
        """The run took a branch: `condition` holds of it."""
        self.conditions.append((condition, text, entry))

    def note(self, text: str) -> None:
        """An assumption in words, counted."""
        self.assumptions[text] = self.assumptions.get(text, 0) + 1


@dataclass(slots=True)
class Ops:
    """What a row may use besides its arguments."""

    domain: Domain
    entry: Entry
    path: PathConditions

    def lift(self, x: Any) -> Value:
        """A constant of the domain; a Value as it is."""
        return x if isinstance(x, Value) else lift(self.domain, x)

    def fn(self, name: str, *args: Any) -> Value:
        """A non-polynomial function of `algebra.FUNCTIONS`."""
        return function(name, *(self.lift(a) for a in args))

    def seen(self, position: int = 0) -> Array:
        """The integers (or truth values) that the machine computed for an output."""
        if position not in self.entry.seen:
            raise Beyond(f"{self.entry.op}: output {position} was not recorded")
        return self.entry.seen[position]

    def assume(self, condition: Value, text: str) -> None:
        """State a condition on the path: what is proved is proved where it holds."""
        self.path.assume(condition, text, self.entry)

    def note(self, text: str) -> None:
        """State an assumption in words."""
        self.path.note(text)


TABLE: dict[str, OperatorRow] = {}


def register(*ops: str, examples: Iterable[Example] = ()) -> Callable[[Rule], Rule]:
    """Add a row for one or more operators (`namespace.name` or `namespace.name.overload`).

    Raises GradproofError GP401 when the table has such a row already, or when the row carries no example.
    """
    carried = tuple(examples)

    def added(rule: Rule) -> Rule:
        for op in ops:
            _refuse(op, carried)
            TABLE[op] = OperatorRow(op, rule, carried, rule.__module__)
        return rule

    return added


def _refuse(op: str, carried: Sequence[Example]) -> None:
    if op in TABLE:
        raise GradproofError("GP401", f"a second row for {op}", "one row an operator", "remove one of the two")
    if not carried:
        raise GradproofError(
            "GP401", f"the row of {op} carries no example", "at least one example, on which the row is tested",
            "pass examples=[Example(...)]",
        )  # fmt: skip


def names(op: str) -> list[str]:
    """Where the row of `aten.add_.Tensor` is looked for, most particular first."""
    space, name, overload = (*op.split("."), "default")[:3]
    found = [f"{space}.{name}.{overload}", f"{space}.{name}"]
    if name.endswith("_") and not name.endswith("__"):
        found += [f"{space}.{name[:-1]}.{overload}", f"{space}.{name[:-1]}"]
    return found
