"""The shape of `proofs/claims.yaml`: which keys stand where, and what a value may be. Strict: nothing is coerced.

A row states what is claimed and what is expected; no key of it can hold a verdict.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from gradproof.contract.yaml_reader import Exact

FORMAT = "gradproof-ledger/1"
DocumentName = Literal["deterministic", "rounding", "scaling", "speedup", "sweep", "tokens"]
Expected = Literal[
    "PROVED for all inputs", "PROVED within a bound", "REFUTED", "MEASURED true", "MEASURED false", "NOT TESTABLE"
]
_ID = re.compile(r"CLAIM-[A-Z]{1,4}-[0-9]{2}")
_POINTER = re.compile(r"(/([^~/]|~[01])*)*")
_NUMBER = re.compile(r"[-+]?([0-9]{1,30}(\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][-+]?[0-9]{1,3})?")


def _wrong(code: str, expected: str) -> PydanticCustomError:
    return PydanticCustomError(code, "{expected}", {"expected": expected})


def _text(value: Any) -> Any:
    if isinstance(value, str) and not value.strip():
        raise _wrong("GP103", "a text that is not blank")
    return value


def _shaped(pattern: re.Pattern[str], expected: str) -> BeforeValidator:
    def check(value: Any) -> Any:
        if isinstance(value, str) and not pattern.fullmatch(value):
            raise _wrong("GP122", expected)
        return value

    return BeforeValidator(check)


def _number(value: Any) -> Fraction:
    """A decimal number, exactly as it was written."""
    text = value.text if isinstance(value, Exact) else value
    if isinstance(text, bool) or not isinstance(value, (int, Exact)):
        raise _wrong("GP104", "a number")
    if not _NUMBER.fullmatch(str(text)):
        raise _wrong("GP107", "a finite decimal number such as 1e-4")
    return Fraction(str(text))


def _scalar(value: Any) -> Fraction | str | bool:
    if isinstance(value, (str, bool)):
        return value
    return _number(value)


def _some(value: Any) -> Any:
    if isinstance(value, list) and not value:
        raise _wrong("GP103", "at least one entry")
    return value


Text = Annotated[str, BeforeValidator(_text)]
Pointer = Annotated[str, _shaped(_POINTER, "a JSON pointer such as /compared/train_equal (RFC 6901)")]
Number = Annotated[Fraction, BeforeValidator(_number)]
Scalar = Annotated[Any, BeforeValidator(_scalar)]
Names = Annotated[list[Text], BeforeValidator(_some)]
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

    id: Annotated[str, _shaped(_ID, "CLAIM-, one to four capitals, two digits: CLAIM-B-07")]
    claim: Text
    source: Text
    form: Text
    expect: Expected
    checks: Names | None = None
    refuted_by: Names | None = None
    contradicted_by: Names | None = None
    contradiction: Text | None = None
    figures: Annotated[list[FigureShape], BeforeValidator(_some)] | None = None
    why: Text | None = None


class LedgerShape(Strict):
    """The file. `sources` gives each document a short name and its title.

    History: 1, the first.
    """

    format: Literal["gradproof-ledger/1"]
    sources: dict[str, Text]
    claims: Annotated[list[ClaimShape], BeforeValidator(_some)]
