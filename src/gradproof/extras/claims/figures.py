"""The shape of `proofs/claims.yaml`, and its figures: where a value is read, and whether it is where the claim says.

The shape says which keys stand where, and what a value may be. Strict: nothing is coerced. A row states what is claimed
and what is expected; no key of it can hold a verdict. Comparisons are exact: a number in JSON is the rational that its
text or its double is, and nothing is rounded before it is compared.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable, Mapping
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from gradproof.contract.schema import NUMBER, Text, shaped, some, wrong
from gradproof.contract.yaml_reader import Exact
from gradproof.core.batches import planned
from gradproof.core.workspace import Workspace
from gradproof.report.studies import DETERMINISTIC, FRESH, TOKENS, TRAINING, places, rounding, status_of

DocumentName = Literal["deterministic", "rounding", "scaling", "speedup", "sweep", "tokens"]
Expected = Literal[
    "PROVED for all inputs", "PROVED within a bound", "REFUTED", "MEASURED true", "MEASURED false", "NOT TESTABLE"
]
_ID = re.compile(r"CLAIM-[A-Z]{1,4}-[0-9]{2}")
_POINTER = re.compile(r"(/([^~/]|~[01])*)*")
_NUMBER = re.compile(f"[-+]?({NUMBER.pattern})")


def _written(value: Any) -> Fraction:
    """A decimal number, exactly as it was written."""
    text = value.text if isinstance(value, Exact) else value
    if isinstance(text, bool) or not isinstance(value, (int, Exact)):
        raise wrong("GP104", "a number")
    if not _NUMBER.fullmatch(str(text)):
        raise wrong("GP107", "a finite decimal number such as 1e-4")
    return Fraction(str(text))


def _scalar(value: Any) -> Fraction | str | bool:
    if isinstance(value, (str, bool)):
        return value
    return _written(value)


Pointer = Annotated[str, shaped(_POINTER, "a JSON pointer such as /compared/train_equal (RFC 6901)")]
Number = Annotated[Fraction, BeforeValidator(_written)]
Scalar = Annotated[Any, BeforeValidator(_scalar)]
Names = Annotated[list[Text], BeforeValidator(some)]
Size = Annotated[int, Field(ge=1)]


class Strict(BaseModel):
    """No key is unknown and nothing is coerced."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True, defer_build=True)


class PlanShape(Strict):
    """What `gradproof plan-batch` is given."""

    micro: Size
    accum: Size
    world: Size = 1
    batches: Size | None = None
    epochs: Size = 1


class FigureShape(Strict):
    """A number, a word or a truth value, and what the claim says of it.

    Exactly one of `document`, `evidence`, `plan` and `compute` says where it comes from; `at` is its place there. With
    `among` the place is inside of the one element that agrees with `where`, or of the one whose value `take` asks for.
    `over` divides by the value of a second place. `scale` multiplies what was found.
    """

    document: DocumentName | None = None
    evidence: Text | None = None
    plan: PlanShape | None = None
    compute: Text | None = None
    among: Pointer | None = None
    where: dict[str, Scalar] | None = None
    take: Literal["largest", "smallest"] | None = None
    at: Pointer | None = None
    over: Pointer | None = None
    scale: Number | None = None
    equals: Scalar | None = None
    at_least: Number | None = None
    at_most: Number | None = None
    above: Number | None = None
    below: Number | None = None
    unit: str = ""


class ClaimShape(Strict):
    """One claim in our words. Which of the keys below `expect` a row needs is in `gradproof.extras.claims.load`."""

    id: Annotated[str, shaped(_ID, "CLAIM-, one to four capitals, two digits: CLAIM-B-07")]
    claim: Text
    source: Text
    form: Text
    expect: Expected
    checks: Names | None = None
    refuted_by: Names | None = None
    contradicted_by: Names | None = None
    contradiction: Text | None = None
    figures: Annotated[list[FigureShape], BeforeValidator(some)] | None = None
    why: Text | None = None


class LedgerShape(Strict):
    """The file. `sources` gives each document a short name and its title.

    History: 1, the first.
    """

    format: Literal["gradproof-ledger/1"]
    sources: dict[str, Text]
    claims: Annotated[list[ClaimShape], BeforeValidator(some)]


# -- A claim's own arithmetic: decimal numbers, + - * / and brackets, over the rationals.
LONGEST_FORMULA = 200
_OPERATORS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class Unread(ValueError):
    """There is no such value, or no such arithmetic, in words."""


def computed(text: str) -> Fraction:
    """The number. Raises Unread."""
    if len(text) > LONGEST_FORMULA:
        raise Unread(f"longer than {LONGEST_FORMULA} characters")
    try:
        return _value(ast.parse(text, mode="eval").body, text)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError) as error:
        raise Unread(str(error).partition("\n")[0]) from error


def _value(node: ast.expr, text: str) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        digits = ast.get_source_segment(text, node) or ""
        if not NUMBER.fullmatch(digits):
            raise Unread(f"{digits[:40]} is no number of at most 30 digits and an exponent of three")
        return Fraction(digits)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left, text), _value(node.right, text))
    raise Unread(f"{type(node).__name__} is no arithmetic")


Value = Fraction | str | bool
LIMITS: tuple[tuple[str, str, Callable[[Any, Any], bool]], ...] = (
    ("at_least", ">=", operator.ge), ("at_most", "<=", operator.le), ("above", ">", operator.gt),
    ("below", "<", operator.lt),
)  # fmt: skip
DIGITS = 12
LONGEST = 24


def judged(figure: FigureShape, value: Value) -> bool:
    """Whether the value is what the claim says, exactly."""
    if figure.equals is not None and (type(value) is not type(figure.equals) or value != figure.equals):
        return False
    limits = [(holds, limit) for name, _, holds in LIMITS if (limit := getattr(figure, name)) is not None]
    return not limits or (isinstance(value, Fraction) and all(holds(value, limit) for holds, limit in limits))


def value_of(figure: FigureShape, document: Any) -> Value:
    """The value at the figure's place in a document. Raises Unread."""
    if figure.compute is not None:
        found: Value = computed(figure.compute)
    elif figure.among is None:
        found = _one(figure, document)
    else:
        found = _chosen(figure, document)
    limited = any(getattr(figure, name) is not None for name, _, _ in LIMITS)
    if figure.scale is not None or isinstance(figure.equals, Fraction) or limited:  # then a text is read as a number
        found = _number(found, "it") * (1 if figure.scale is None else figure.scale)
    return found


def _one(figure: FigureShape, document: Any) -> Value:
    found = _plain(at(document, figure.at or ""), figure.at or "")
    if figure.over is None:
        return found
    below = _number(_plain(at(document, figure.over), figure.over), figure.over)
    if not below:
        raise Unread(f"{figure.over} is zero")
    return _number(found, figure.at or "") / below


def _chosen(figure: FigureShape, document: Any) -> Value:
    """The value in the one element that agrees, or the largest or smallest of those that agree."""
    rows = at(document, figure.among or "")
    if not isinstance(rows, list):
        raise Unread(f"{figure.among} is no list")
    wanted = figure.where or {}
    chosen = [row for row in rows if isinstance(row, dict) and all(_agrees(row, k, v) for k, v in wanted.items())]
    if figure.take is None and len(chosen) != 1:
        raise Unread(f"{len(chosen)} of {len(rows)} elements of {figure.among} agree, not one")
    if not chosen:
        raise Unread(f"no element of {figure.among} agrees")
    values = [_one(figure, row) for row in chosen]
    if figure.take is None:
        return values[0]
    numbers = [_number(v, figure.at or "") for v in values]
    return max(numbers) if figure.take == "largest" else min(numbers)


def _agrees(row: Mapping[str, Any], key: str, wanted: Value) -> bool:
    try:
        found = _plain(row.get(key), key)
    except Unread:
        return False
    return type(found) is type(wanted) and found == wanted


def at(document: Any, pointer: str) -> Any:
    """What a JSON pointer leads to (RFC 6901). Raises Unread."""
    value = document
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isascii() and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            raise Unread(f"there is nothing at {pointer}")
    return value


def _plain(value: Any, place: str) -> Value:
    if isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        try:
            return Fraction(value)
        except (ValueError, OverflowError) as error:
            raise Unread(f"{place} is {value}") from error
    if isinstance(value, str):
        return value
    raise Unread(f"{place} is {type(value).__name__}, no number, word or truth value")


def _number(value: Value, place: str) -> Fraction:
    if isinstance(value, Fraction):
        return value
    if isinstance(value, str):
        try:
            return Fraction(value)
        except (ValueError, ZeroDivisionError) as error:
            raise Unread(f"{place} is {value[:LONGEST]!r}, no number") from error
    raise Unread(f"{place} is a truth value, no number")


def plan_of(figure: FigureShape) -> Mapping[str, Any]:
    """What a plan of the sizes makes, the share of steps saved exactly. Raises GradproofError GP413."""
    assert figure.plan is not None
    p = figure.plan
    plan = planned(p.micro, p.accum, None, p.world, p.batches, p.epochs)
    own = {"effective": plan.effective, "steps_per_epoch": plan.steps, "total_steps": plan.total}
    return own | {"fewer_percent": None if plan.fewer is None else str(100 * plan.fewer)}


def plan_again(figure: FigureShape) -> str:
    """The command line that makes the same plan."""
    assert figure.plan is not None
    p = figure.plan
    words = f"gradproof plan-batch --micro-batch {p.micro} --accum-steps {p.accum}"
    words += f" --ranks {p.world}" if p.world != 1 else ""
    return words + (f" --batches {p.batches} --epochs {p.epochs}" if p.batches is not None else "")


def stated(value: Value, unit: str = "") -> str:
    """A value in words: exact where that is short, else with 12 digits behind "≈"."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    return f"{_decimal(value)} {unit}".strip()


def _decimal(value: Fraction) -> str:
    if value.denominator == 1 and abs(value) < 10**LONGEST:
        return str(value)
    if Fraction(1, 10**LONGEST) < abs(value) < 10**LONGEST or not value:
        text = f"{float(value):.{DIGITS}g}"
    else:
        wide = Context(prec=DIGITS, Emax=MAX_EMAX, Emin=MIN_EMIN)
        text = f"{wide.divide(Decimal(value.numerator), Decimal(value.denominator)).normalize():g}"
    return text if Fraction(text) == value else f"≈ {text}"


def said(figure: FigureShape) -> str:
    """What the claim says of the value, in words."""
    words = [f"= {stated(figure.equals)}"] if figure.equals is not None else []
    words += [
        f"{sign} {stated(getattr(figure, name))}" for name, sign, _ in LIMITS if getattr(figure, name) is not None
    ]
    return " and ".join(words)


# -- The documents that a figure may be read from, and whether one is fresh, stale, rejected or absent.
MAKE: Mapping[str, str] = {
    "deterministic": DETERMINISTIC.make,
    "rounding": "python -m gradproof.extras.studies.rounding --out reports/rounding.json",
    "tokens": TOKENS.make,
    **dict.fromkeys(("scaling", "speedup", "sweep"), "make throughput"),
}
"""The command that makes each document."""


def document(workspace: Workspace, name: str) -> tuple[str, Mapping[str, Any]]:
    """Why one of the documents is not to be believed, or nothing; and its content where it is fresh."""
    if name == "rounding":
        section = rounding(workspace)
        return ("", section["document"]) if section["status"] == FRESH else (section["reason"], {})
    study = next(s for s in TRAINING if s.file == f"{name}.json")
    path = next((place for f in places(workspace) if (place := f / study.file).exists()), None)
    status, reason = status_of(study, workspace, path)
    return (reason, {}) if path is None or status != FRESH else ("", json.loads(path.read_bytes()))
