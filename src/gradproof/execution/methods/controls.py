"""Controls that are one thing under two names: a mutant that is the empty body, or another mutant, shows nothing new.

Two subjects have the same code when they are one object, or functions or classes of the same text: bytecode, constants,
names, defaults and closures. What they are called and their docstrings do not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any

from gradproof.core.check import Check, Control, Resolver
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Outcome

_APART = {"__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__orig_bases__"}
_PLAIN = (bool, int, float, str, bytes, tuple, frozenset, type(None))


def named_controls(check: Check, workspace: Resolver) -> tuple[list[tuple[Control, Any]], Mapping[str, Any]]:
    """The empty body and the named mutants of a proof with their subjects, and the registry that these are in.

    Raises GradproofError: GP301 unknown mutant, GP303 no empty body.
    """
    own = {key: check.params[key] for key in ("empty", "mutants") if check.params.get(key)}
    subjects: Mapping[str, str] = {**check.params.get("subjects", {}), **own}
    if "empty" not in subjects:
        found, help = f"{check.id} has no empty body", "name a subject that does nothing"
        raise GradproofError("GP303", found, "subjects.empty in the contract", help)
    rows = [(Control("empty body", "empty_body", "", Outcome.ERROR, False), workspace.resolve(subjects["empty"]))]
    registry = workspace.resolve(subjects.get("mutants", "")) if check.mutants else {}
    for name in check.mutants:
        if name not in registry:
            found, expected = f"mutant {name!r}, named by {check.id}", f"one of {', '.join(registry)}"
            help = f"add it to {subjects['mutants']} or take it out of the contract"
            raise GradproofError("GP301", found, expected, help)
        m = registry[name]
        rows.append((Control(name, "mutant", m.obligation or check.id, Outcome.ERROR, False, m.reference), m.subject))
    return rows, registry


def same_code(one: Any, other: Any) -> bool:
    """Whether two subjects are the same thing."""
    if one is other:
        return True
    if isinstance(one, FunctionType) and isinstance(other, FunctionType):
        return _text(one) == _text(other) and _cells(one) == _cells(other)
    if isinstance(one, type) and isinstance(other, type):
        return one.__bases__ == other.__bases__ and _members(one, other)
    return False


def _text(function: FunctionType) -> tuple[Any, ...]:
    return (_code(function.__code__), repr(function.__defaults__), repr(function.__kwdefaults__))


def _code(code: CodeType) -> tuple[Any, ...]:
    """What a code object does. The first constant of a function is its docstring or None."""
    constants = tuple(_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts[1:])
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars


def _cells(function: FunctionType) -> list[int]:
    return [id(cell.cell_contents) for cell in function.__closure__ or ()]


def _members(one: type, other: type) -> bool:
    ours, theirs = ({k: v for k, v in vars(c).items() if k not in _APART} for c in (one, other))
    return ours.keys() == theirs.keys() and all(_alike(ours[k], theirs[k]) for k in ours)


def _alike(one: Any, other: Any) -> bool:
    for kind in (staticmethod, classmethod):
        if isinstance(one, kind) and isinstance(other, kind):
            return same_code(one.__func__, other.__func__)
    if isinstance(one, _PLAIN) and type(one) is type(other):
        return bool(one == other)
    return same_code(one, other)


def drop_equivalent(rows: Sequence[tuple[Control, Any]], registry: Mapping[str, Any]) -> None:
    """Take back the kill of a control that is an earlier one under another name, and of an empty body in the registry.

    `rows` are controls after their runs, with their subjects, the empty body first; `registry` has the mutants by name.
    """
    for place, (control, subject) in enumerate(rows):
        others = [(c.name, s) for c, s in rows[:place]]
        if control.kind == "empty_body":
            others = [(name, m.subject) for name, m in registry.items() if name not in {c.name for c, _ in rows}]
        name = next((n for n, other in others if subject is not None and same_code(subject, other)), None)
        if name is not None:
            is_ = "the empty body" if control.kind == "empty_body" else control.name
            stated = "the empty body" if name == rows[0][0].name else name
            control.killed, control.reason = False, f"{is_} is {stated} under another name"


def survivors(controls: Sequence[Control]) -> str:
    """The controls that were not killed, in words; an empty text when all were."""
    left = [c for c in controls if not c.killed]
    words = [c.reason if c.reason.endswith("under another name") else c.name for c in left]
    return f"not killed: {', '.join(words)}" if words else ""


def remaining(controls: Sequence[Control]) -> Outcome:
    """What controls that were not killed make of a check: TIMEOUT where time ran out for each of them, else WEAK."""
    left = [c for c in controls if not c.killed]
    return Outcome.TIMEOUT if all(c.outcome is Outcome.TIMEOUT for c in left) else Outcome.WEAK
