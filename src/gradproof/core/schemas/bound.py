"""What `gradproof bound --json` prints: `gradproof-bound/1`, and with --thresholds `gradproof-thresholds/1`.

And what `--certificate` writes: version 2 of a certificate, whose checker is `gradproof.rounding.farkas`. Published as
`bound`, `thresholds` and `certificate` in `reports/*.schema.json`. Rationals are text: p or p/q.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field, model_validator

from gradproof.core.schemas.base import Format, Power, Shape

BOUND, THRESHOLDS, CERTIFICATE = "gradproof-bound/1", "gradproof-thresholds/1", "gradproof-certificate/2"
Rational = Annotated[str, Field(pattern=r"^-?[0-9]+(/[1-9][0-9]*)?$")]
Text = Annotated[str, Field(min_length=1)]
Hex = Annotated[str, Field(pattern=r"^[0-9a-f]+$")]
Place = Annotated[int, Field(ge=0)]
Kind = Literal[
    "input", "constant", "exact", "round", "shift", "fits", "widen", "quotient", "joint", "pair", "residual", "ordered"
]
Terms = list[tuple[Rational, Place]]
Value = Annotated[str, Field(pattern=r"^([0-9a-f]{4}|[0-9a-f]{8}|-?[0-9]+(/[1-9][0-9]*)?)$")]


class SettingOfBound(Shape):
    """What was asked: `n` gradients of |g| <= magnitude in a buffer; `inputs` null where they are not rounded first."""

    n: Annotated[int, Field(ge=1)]
    buffer: Format
    inputs: Format | None
    magnitude: Rational
    scale: Text
    order: Text
    weights: list[Rational]


class NormShape(Shape):
    """The Euclidean norm over so many elements."""

    elements: Annotated[int, Field(ge=1)]
    bound: Rational
    attained: Rational


class ReplayShape(Shape):
    """What torch's kernels made of the input: the exact error, beside that of the model of rounding."""

    device: Literal["cpu", "cuda"]
    torch: Text
    error: Rational
    model: Rational


class BoundDocument(Shape):
    """The error that is proved for every input, and one that an input attains, in units of the gradient.

    `witness`: that input, as bit patterns of the buffer's format where it has any. `certificate`: the sha256 of it,
    null where there is none. `outcome`: by the tolerance that was given, null without one. `norm` and `replay` are
    absent where they were not asked for. History: 1, the first.
    """

    document: Literal["gradproof-bound/1"] = Field(alias="schema")
    setting: SettingOfBound
    bound: Rational
    bound_float: float
    attained: Rational
    attained_float: float
    ratio: float | None
    witness: list[Value]
    contracts: list[Text]
    certificate: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None
    assumes: list[Text]
    outcome: Literal["HOLDS", "REFUTED", "UNKNOWN"] | None
    norm: NormShape | None = None
    replay: ReplayShape | None = None

    @model_validator(mode="after")
    def _consistent(self) -> BoundDocument:
        for name, row in (("it", self), ("the norm", self.norm)):
            if row is not None and Fraction(row.attained) > Fraction(row.bound):
                raise ValueError(f"{name} is attained above its bound")
        if len(self.witness) != self.setting.n:
            raise ValueError(f"the witness has {len(self.witness)} gradients, not {self.setting.n}")
        return self


class Thresholds(Shape):
    """Over N = 2^k: the largest N within the tolerance, the first that is undecided, the first beyond it.

    Null where there is none up to the largest N that was asked. History: 1, the first.
    """

    document: Literal["gradproof-thresholds/1"] = Field(alias="schema")
    true: Power | None = Field(alias="true up to")
    undecided: Power | None = Field(alias="undecided from")
    false: Power | None = Field(alias="false from")

    @model_validator(mode="after")
    def _consistent(self) -> Thresholds:
        below = max(self.true or 0, self.undecided or 0)
        if self.false is not None and self.false <= below:
            raise ValueError(f"it is called false from {self.false}, and {below} is larger")
        return self


class Case(Shape):
    """The bound is for the case that the exact result of this row is at most so many units."""

    row: Place
    edge: Hex


class Certificate(Shape):
    """The rows of a program, and the multipliers that prove its bound; what is shaped so may still prove nothing.

    A row is its kind, its format (empty over the reals), its terms (coefficient, earlier row), its reach and its error,
    both in units of 2^-unit. The last row is the result. `case` is absent where the bound is for every case.
    History: 2, hexadecimal units.
    """

    version: Literal[2]
    unit: Place
    bound: Rational
    rows: Annotated[list[tuple[Kind, Format | Literal[""], Terms, Hex, Hex]], Field(min_length=1)]
    multipliers: list[Rational]
    case: Case | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Certificate:
        if len(self.multipliers) != len(self.rows):
            raise ValueError(f"{len(self.multipliers)} multipliers for {len(self.rows)} rows")
        if any(earlier >= place for place, row in enumerate(self.rows) for _, earlier in row[2]):
            raise ValueError("a term of a row is not an earlier row")
        if self.case is not None and self.case.row >= len(self.rows):
            raise ValueError(f"the case is about row {self.case.row} of {len(self.rows)}")
        return self
