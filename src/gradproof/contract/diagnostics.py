"""Runs the shapes of contract_schema over a tree and turns what pydantic says into problems at their places."""

from __future__ import annotations

import difflib
import typing
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from gradproof.contract.schema import FieldHarness, FieldStrategy, Harness, Strategy
from gradproof.contract.yaml_reader import Exact, Node, Problem

OURS_CHECK = set(Harness.model_fields) - set(FieldHarness.model_fields)
OURS_TEST = OURS_CHECK | {"harness", "obligation"}
OURS_STRATEGIES = set(typing.get_args(Strategy)) - set(typing.get_args(FieldStrategy))

M = TypeVar("M", bound=BaseModel)
CODES = {
    "extra_forbidden": "GP101",
    "missing": "GP103",
    "literal_error": "GP105",
    "enum": "GP105",
    "greater_than": "GP107",
    "greater_than_equal": "GP107",
}


def uses_ours(root: Node) -> bool:
    """Whether the contract uses any key, or any value, of our dialect."""
    gate = root.get("qa_gate") or Node(None, 1, 1)
    summary = root.get("verification_summary") or Node(None, 1, 1)
    marks = [
        _has(root, {"subjects", "stubs", "step_proofs"}),
        any(_has(n, {"assumptions"}) for _, n in root.pairs("equations")),
        any(_has(n, {"assumptions", "layers"}) for n in root.items("proof_obligations")),
        any(isinstance(t.value, list) for n in root.items("proof_obligations") if (t := n.get("tolerance"))),
        any(_has(n, OURS_CHECK) for n in root.items("kani_harnesses")),
        any(n.text("strategy") in OURS_STRATEGIES for n in root.items("kani_harnesses")),
        any(n.text("solver") == "crosshair" for n in root.items("kani_harnesses")),
        any(_has(n, OURS_TEST) for n in root.items("falsification_tests")),
        _has(gate, {"criteria", "seeded_bug", "require"}),
        _has(summary, {"notes"}),
    ]
    return any(marks)


def _has(node: Node, keys: set[str]) -> bool:
    return isinstance(node.value, dict) and not keys.isdisjoint(node.value)


def shaped(root: Node, model: type[M], shown: str) -> tuple[M | None, list[Problem]]:
    """The tree as a model, or None and every place where its shape is wrong."""
    try:
        return model.model_validate(root.plain()), []
    except ValidationError as error:
        details = error.errors(include_url=False)
        return None, [_problem(root, model, dict(d), shown) for d in details]


def _problem(root: Node, model: type[BaseModel], detail: dict[str, Any], shown: str) -> Problem:
    path: tuple[Any, ...] = tuple(step for step in detail["loc"] if step != "[key]")
    kind, value, context = str(detail["type"]), detail.get("input"), detail.get("ctx") or {}
    code = CODES.get(kind, kind if kind.startswith("GP") else "GP104")
    line, col = root.at(path, key=kind == "extra_forbidden")
    name, inside = str(path[-1]), " in " + _spell(path[:-1]) if path[:-1] else ""
    if kind == "extra_forbidden":
        known = keys_at(model, path[:-1])
        near = difflib.get_close_matches(name, known, 1)
        mend = f"did you mean {near[0]!r}?" if near else "remove it, or correct its name"
        return Problem(code, shown, line, col, f"the unknown key {name!r}{inside}", f"one of: {', '.join(known)}", mend)
    if kind == "missing":
        code = _missing(path)
        return Problem(code, shown, line, col, f"no {name!r}{inside}", f"the key {name!r}", f"add {name!r}")
    found = f"{_value(value)} as {_spell(path)}"
    if name == "reason" and "bounds" in path and isinstance(value, str | None):
        mend = "say why the bound has this value and what reaching it means"
        return Problem("GP106", shown, line, col, found, "a reason that is not blank", mend)
    if name == "tolerance" and kind == "list_type" and _is_number(value):
        mend = f"write tolerance: [{{dtype: fp32, value: {_text(value)}, metric: linf}}]"
        return Problem("GP111", shown, line, col, found, "a tolerance for each dtype", mend)
    if kind in ("literal_error", "enum"):
        expected = str(context.get("expected"))
        near = difflib.get_close_matches(str(value), expected.replace(" or ", ", ").replace("'", "").split(", "), 1)
        mend = f"did you mean {near[0]!r}?" if near else "use one of these"
        return Problem(code, shown, line, col, found, expected, mend)
    if code == "GP104":
        return Problem(code, shown, line, col, found, _expected(detail), _mend_type(kind, value))
    expected = _expected(detail)
    return Problem(code, shown, line, col, found, expected, "correct the value")


def _missing(path: tuple[Any, ...]) -> str:
    if path[-1] == "reason" or (path[-1] == "name" and "bounds" in path):
        return "GP106"
    return "GP111" if path[-1] == "dtype" and "tolerance" in path else "GP103"


def _expected(detail: dict[str, Any]) -> str:
    context = detail.get("ctx") or {}
    text = str(context.get("expected") or detail["msg"])
    for old, new in (
        ("Input should be ", ""),
        ("a valid ", "a "),
        ("a integer", "an integer"),
        ("dictionary", "mapping"),
    ):
        text = text.replace(old, new)
    return text.split(" or instance of ")[0]


def _mend_type(kind: str, value: Any) -> str:
    if kind == "string_type" and (_is_number(value) or isinstance(value, bool)):
        return f'put it in quotes: "{_text(value)}"'
    if kind == "int_type" and isinstance(value, str) and value.strip().isdigit():
        return f"write it without quotes: {value.strip()}"
    return "write a value of that type"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, Exact)) and not isinstance(value, bool)


def _text(value: Any) -> str:
    if isinstance(value, Exact):
        return value.text
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return f"the text {value[:60]!r}"
    return f"the {'truth value' if isinstance(value, bool) else 'number'} {_text(value)}"


def _spell(path: tuple[Any, ...]) -> str:
    """proof_obligations[2].tolerance[0]."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.lstrip(".")


def keys_at(model: type[BaseModel], path: tuple[Any, ...]) -> list[str]:
    """Keys that the shape allows in the mapping at `path`."""
    kind: Any = model
    for step in path:
        here = _model(kind)
        kind = here.model_fields[step].annotation if here is not None and step in here.model_fields else _inner(kind)
    found = _model(kind)
    return sorted(found.model_fields) if found is not None else []


def _model(kind: Any) -> type[BaseModel] | None:
    options = [kind, *typing.get_args(kind)] if typing.get_origin(kind) not in (list, dict) else []
    return next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)


def _inner(kind: Any) -> Any:
    arguments = typing.get_args(kind)
    return arguments[-1] if arguments else None
