"""The base class of every schema, and the documents beside the evidence: the rounding study, the runs of real kernels.

`reports/rounding.json`, format `gradproof-rounding/1`, is made by `python -m gradproof.extras.studies.rounding`;
`reports/kernels/*.json`, format `gradproof-kernels/1`, by `python -m gradproof.extras.conformance`. The JSON Schemas in
`reports/` are made of the classes here. A document is believed after its numbers agree with its words; one that is not
is rejected with a reason, and one that is not there is said to be absent.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

Count = Annotated[int, Field(ge=1)]
Tally = Annotated[int, Field(ge=0)]
Format = Literal["fp32", "fp16", "bf16"]
Outcome = Literal["HOLDS", "REFUTED", "NOT_RUN", "ERROR"]
ROUNDING, KERNELS = "gradproof-rounding/1", "gradproof-kernels/1"


def _numeral(text: str) -> str:
    """Text of an exact number that is zero or of a magnitude that quotients of two such fit a float64."""
    value = Fraction(text)
    if value and not Fraction(1, 2**400) <= value <= 2**64:
        raise ValueError("no error is as small or as large as that")
    return text


def _power(n: int) -> int:
    if n & (n - 1):
        raise ValueError(f"{n} is no power of two")
    return n


Exact = Annotated[str, Field(pattern=r"^[0-9]+(/[1-9][0-9]*|(\.[0-9]+)?(e-[0-9]{1,4})?)$"), AfterValidator(_numeral)]
Power = Annotated[int, Field(ge=1), AfterValidator(_power)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class DocumentModel(BaseModel):
    """Strict: nothing is coerced, no key is unknown, no number is NaN or infinite."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True)


class Decided(DocumentModel):
    """An answer at one N. `error`: the bound that is proved there, or the error that an input attains.

    `by`: the rung that decided. certificate: a checked bound for this order. every order: the bound for every tree of
    additions. exhaustion: the exact worst case over all inputs. witness: one input, evaluated exactly.
    """

    n: Power
    by: Literal["certificate", "every order", "exhaustion", "witness"]
    error: Exact


class Threshold(DocumentModel):
    """Over N = 2^k up to `asked`: true at every N up to `true`, false at `false`, and in between not known.

    `tolerance_of` is the dtype whose tolerance in the contract it is. `gradients` are rounded to their format once
    where it is not the buffer's.
    """

    gradients: Format
    buffer: Format
    order: str
    tolerance: Exact
    tolerance_of: Format
    asked: Power
    true: Decided | None
    undecided: list[Power]
    false: Decided | None
    note: str

    @model_validator(mode="after")
    def _consistent(self) -> Threshold:
        tolerance = Fraction(self.tolerance)
        if self.true and (self.true.by == "witness" or Fraction(self.true.error) > tolerance):
            raise ValueError("what is called true is beyond the tolerance, or rests on one input")
        if self.false and (self.false.by not in ("witness", "exhaustion") or Fraction(self.false.error) <= tolerance):
            raise ValueError("what is called false is within the tolerance, or rests on no input")
        low, high = self.true.n if self.true else 0, self.false.n if self.false else 2 * self.asked
        between = [2**k for k in range(self.asked.bit_length()) if low < 2**k < high]
        if low >= high or low > self.asked or high > 2 * self.asked or self.undecided != between:
            raise ValueError(f"undecided is {self.undecided}, and between the answers lie {between}")
        return self


class Point(DocumentModel):
    """Both sides at one N: proved for every input, attained by one. `ratio` is their quotient, None over nothing."""

    n: Count
    bound: Exact
    attained: Exact
    ratio: float | None

    @model_validator(mode="after")
    def _consistent(self) -> Point:
        if Fraction(self.attained) > Fraction(self.bound):
            raise ValueError(f"N = {self.n}: attained is above the bound")
        real = Fraction(self.bound) / Fraction(self.attained) if Fraction(self.attained) else None
        if self.ratio != (None if real is None else float(real)):
            raise ValueError(f"N = {self.n}: the ratio is not that of its numbers")
        return self


class Series(DocumentModel):
    """Points by increasing N, of gradients in the buffer's own format, left to right."""

    buffer: Format
    order: Literal["sequential"]
    points: list[Point]

    @model_validator(mode="after")
    def _consistent(self) -> Series:
        sizes = [p.n for p in self.points]
        if sizes != sorted(set(sizes)):
            raise ValueError("the points of a series stand by increasing N")
        return self


class RoundingStudy(DocumentModel):
    """What accumulation in floating point can lose, for gradients |g_i| <= magnitude scaled by a division by N.

    History: 1, the first. Errors are exact rationals in text, in units of the gradient. `sources` are digests of the
    files that computed it: where one of them has changed the document is stale.
    """

    document: Literal["gradproof-rounding/1"] = Field(alias="schema")
    gradproof: str
    made_at: str
    seconds: Annotated[float, Field(ge=0)]
    most: Power
    magnitude: Exact
    scale: Literal["divide"]
    assumes: list[str]
    contracts: list[str]
    thresholds: list[Threshold]
    series: list[Series]
    sources: dict[str, Sha256]


class KernelFact(DocumentModel):
    """What a kernel gave for inputs beside what was claimed."""

    inputs: list[str]
    got: str
    want: str
    note: str


class KernelRow(DocumentModel):
    """An operator in a dtype on a device: the claim, and what was found. `ratio`: measured error over its bound."""

    operator: str
    dtype: str
    device: Literal["cpu", "cuda"]
    claim: str
    outcome: Outcome
    cases: Tally
    mismatches: Tally
    first: KernelFact | None
    names: list[str]
    ratio: float | Literal["inf", "nan"] | None
    flags: dict[str, Any]
    facts: dict[str, Any]
    reason: str

    @model_validator(mode="after")
    def _consistent(self) -> KernelRow:
        if self.outcome == "HOLDS" and (self.cases < 1 or self.mismatches or self.first is not None):
            raise ValueError(f"{self.operator}: HOLDS needs cases and no mismatch")
        within = self.ratio is None or (isinstance(self.ratio, float) and self.ratio <= 1)
        if self.outcome == "HOLDS" and not within:
            raise ValueError(f"{self.operator}: HOLDS above its bound")
        return self


class Kernels(DocumentModel):
    """One run of the conformance rows, of full accumulation runs and of special values on one machine.

    History: 1, the first. `summary` counts the outcomes of all rows. What stands beside the sections needs no device.
    """

    model_config = ConfigDict(extra="allow")
    document: Literal["gradproof-kernels/1"] = Field(alias="schema")
    mode: Literal["quick", "full"]
    environment: dict[str, Any]
    summary: dict[Outcome, Tally]
    sections: dict[str, list[KernelRow]]

    @model_validator(mode="after")
    def _consistent(self) -> Kernels:
        outcomes = [r.outcome for rows in self.sections.values() for r in rows]
        if any(outcomes.count(name) != count for name, count in self.summary.items()):
            raise ValueError("the summary does not count its rows")
        if self.environment.get("device") not in ("cpu", "cuda") or not self.environment.get("torch"):
            raise ValueError("the environment names no device or no torch")
        return self


D = TypeVar("D", bound=DocumentModel)


def read(path: Path, kind: type[D]) -> D:
    """One document. Raises ValueError with the reason why it is not to be believed."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "document"
        more = f", and {error.error_count() - 1} more" if error.error_count() > 1 else ""
        raise ValueError(f"{where}: {first['msg']}{more}") from error


def faults(document: Any) -> list[str]:
    """What is wrong with a rounding study that a report carries."""
    try:
        RoundingStudy.model_validate_json(json.dumps(document))
    except ValidationError as error:
        rows = error.errors(include_url=False, include_input=False)
        return [f"{'.'.join(map(str, row['loc']))}: {row['msg']}" for row in rows]
    return []
