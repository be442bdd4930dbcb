"""What `gradproof bound --json` prints: `gradproof-bound/1`, and with --thresholds `gradproof-thresholds/1`.

Published as `reports/bound.schema.json` and `reports/thresholds.schema.json`. Rationals are text: p or p/q.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field, model_validator

from gradproof.documents import Format, Power, Shape

BOUND, THRESHOLDS = "gradproof-bound/1", "gradproof-thresholds/1"
Rational = Annotated[str, Field(pattern=r"^-?[0-9]+(/[1-9][0-9]*)?$")]
Text = Annotated[str, Field(min_length=1)]
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
