"""The clauses of a contract: which keys stand where, and what a value may be. Strict: nothing is coerced.

Two dialects. `FieldRoot` is the YAML of provable-contracts (schema/types.rs there). `OursRoot` is that plus an id on
each obligation, tolerances per dtype, bounds with a name, a value and a reason, `expect`, mutants, stubs, step proofs,
layers, subjects and gate criteria. A contract that uses any key of ours is held to all of ours. A clause of ours is
what the rest of gradproof works with; one of the field becomes one of ours when it is loaded.

The shape of `[tool.gradproof]` in a pyproject.toml stands here as well.

A check that pydantic cannot express raises PydanticCustomError with one of gradproof's own codes as its type.
"""

from __future__ import annotations

import re
import unicodedata
from datetime import date
from fractions import Fraction
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ModelWrapValidatorHandler, model_validator
from pydantic_core import PydanticCustomError

from gradproof.contract.yaml_reader import Exact
from gradproof.core.outcome import Expect, Layer, Reach

# -- What a value of a contract may be: the types that its shapes are made of. Strict: nothing is coerced.
LayerName = Annotated[Layer, Field(strict=False)]  # a contract holds the word of a vocabulary as text
ReachName = Annotated[Reach, Field(strict=False)]
ExpectName = Annotated[Expect, Field(strict=False)]
Strategy = Literal[
    "exhaustive", "stub_float", "compositional", "bounded_int", "bit_precise", "linear_chain", "bit_exhaustive",
    "step_contract",
]  # fmt: skip

_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")  # letters and a symbol that are drawn as nothing
MAX_TIME_LIMIT = 3600
STRICT = ConfigDict(strict=True, extra="forbid", frozen=True, defer_build=True)
REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_INPUT = re.compile(rf"({REFERENCE.pattern})|[A-Za-z_]\w*", re.ASCII)
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_LEMMA = re.compile(r"[a-z0-9*?/-]{1,64}")
IDENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NUMBER = re.compile(r"[0-9]{1,30}(\.[0-9]{0,30})?([eE][-+]?[0-9]{1,3})?|\.[0-9]{1,30}([eE][-+]?[0-9]{1,3})?")


def exact(text: str) -> Fraction:
    """The decimal number that `text` writes. Raises ValueError when it writes none, or an infinite or huge one."""
    if not NUMBER.fullmatch(text):
        raise ValueError(text)
    return Fraction(text)


def wrong(code: str, expected: str) -> PydanticCustomError:
    """An error of pydantic with a code of gradproof."""
    return PydanticCustomError(code, "{expected}", {"expected": expected})


def _nonblank(value: Any) -> Any:
    """A text in which a reader sees more than spaces, controls, marks alone, and blanks that count as letters."""
    if isinstance(value, str) and all(unicodedata.category(x)[0] in "ZCM" or x in _BLANK for x in value):
        raise wrong("GP103", "a text that is not blank")
    return value


def shaped(pattern: re.Pattern[str], expected: str) -> BeforeValidator:
    """A text of a pattern. Raises PydanticCustomError GP122 for another."""

    def check(value: Any) -> Any:
        if isinstance(value, str) and not pattern.fullmatch(value):
            raise wrong("GP122", expected)
        return value

    return BeforeValidator(check)


def _tolerance(value: Any) -> str:
    """A positive finite decimal, kept as it was written."""
    text = value.text if isinstance(value, Exact) else value
    text = str(text) if isinstance(text, int) and not isinstance(text, bool) else text
    if not isinstance(text, str):
        raise wrong("GP104", "a number")
    try:
        positive = float(exact(text)) > 0
    except (ValueError, OverflowError):
        positive = False
    if not positive:
        raise wrong("GP107", "a positive finite decimal number such as 1e-5")
    return text


def _seconds(value: Any) -> float:
    text = value.text if isinstance(value, Exact) else value
    expected = f"a number of seconds above 0 and up to {MAX_TIME_LIMIT}"
    if isinstance(text, bool) or not isinstance(value, (int, float, Exact)):
        raise wrong("GP104", expected)
    try:
        number = exact(str(text))
    except ValueError:
        number = Fraction(0)
    if not 0 < number <= MAX_TIME_LIMIT:
        raise wrong("GP107", expected)
    return float(number)


def some(value: Any) -> Any:
    """A list with an element. Raises PydanticCustomError GP103 for an empty one."""
    if isinstance(value, list) and not value:
        raise wrong("GP103", "a list with at least one element")
    return value


def _limit(value: Any) -> str:
    """A positive finite decimal, or `none`. Raises PydanticCustomError GP104 or GP107 for anything else."""
    return "none" if value == "none" else _tolerance(value)


def _limits(value: Any) -> Any:
    """One limit as a list of it, or a list with an element."""
    return some(value) if isinstance(value, list) else [_limit(value)]


def listed(value: Any) -> Any:
    """A text as a list of one, or a list with an element."""
    return [value] if isinstance(value, str) else some(value)


def _shown(value: Any) -> Any:
    """Free data: floats become their text."""
    if isinstance(value, Exact):
        return value.text
    if isinstance(value, dict):
        return {k: _shown(v) for k, v in value.items()}
    return [_shown(v) for v in value] if isinstance(value, list) else value


Text = Annotated[str, BeforeValidator(_nonblank)]
LemmaName = Annotated[str, shaped(_LEMMA, "operator/format/promise, or a shell pattern of it")]
Ident = Annotated[str, shaped(IDENT, "letters, digits, dot, dash and underscore, at most 64")]
Reference = Annotated[str, shaped(REFERENCE, "module.path:attribute")]
InputName = Annotated[str, shaped(_INPUT, "module.path:Class, or the name of an argument")]
Module = Annotated[str, shaped(_MODULE, "module.path")]
Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, BeforeValidator(_seconds)]
Number = Annotated[str, BeforeValidator(_tolerance)]
Limits = Annotated[list[Annotated[str, BeforeValidator(_limit)]], BeforeValidator(_limits)]
Free = Annotated[dict[str, Any], BeforeValidator(_shown)]


# -- The shape of `qa_gate`: what must hold, what must stand behind it, and what is waived until when.
Certified = Literal["linear_chain"]
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def _day(value: Any) -> date:
    """A day that is written as YYYY-MM-DD, or a TOML date."""
    text = value.isoformat() if type(value) is date else value
    if not isinstance(text, str):
        raise wrong("GP104", "a day, such as 2027-01-31")
    try:
        day = date.fromisoformat(text) if _DATE.fullmatch(text) else None
    except ValueError:
        day = None
    if day is None:
        raise wrong("GP122", "a day, such as 2027-01-31")
    return day


Day = Annotated[date, BeforeValidator(_day)]


class ContractModel(BaseModel):
    """Strict, closed and frozen."""

    model_config = STRICT

    def stated(self) -> dict[str, Any]:
        """The keys that are there with their values, those of null left out."""
        return self.model_dump(exclude_none=True)


class ContractEntry(ContractModel):
    """An entry of a contract. `raw` is its YAML as plain data, each number as it was written."""

    _raw: dict[str, Any] = {}

    @model_validator(mode="wrap")
    @classmethod
    def _kept(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        made = handler(data)
        made._raw = _shown(data)
        return made

    @property
    def raw(self) -> dict[str, Any]:
        """What stands in the file."""
        return self._raw

    @classmethod
    def of(cls, other: ContractEntry, **changes: Any) -> Self:
        """A clause of the field as one of ours, which asks for more: nothing is checked again."""
        made = cls.model_construct(**{**dict(other), **changes})
        made._raw = other._raw
        return made


class Least(ContractModel):
    """Of one obligation: more layers, the least reach by layer, the least value of a named bound of a proof."""

    layers: list[LayerName] = []
    reach: dict[LayerName, ReachName] = {}
    bounds: dict[Ident, Positive] = {}


class Waiver(ContractModel):
    """An obligation that may stay open in a layer (in every layer where none is named), who says so, why, how long.

    `expires` is the last day on which it holds, in UTC.
    """

    obligation: Ident
    layer: LayerName | None = None
    owner: Text
    reason: Text
    expires: Day

    def covers(self, obligation: str, layer: Layer) -> bool:
        """Whether it speaks of this cell, in force or not."""
        return self.obligation == obligation and self.layer in (None, layer)

    def words(self) -> str:
        """Who excuses what, until when, and why."""
        where = f"{self.obligation} x {self.layer}" if self.layer else self.obligation
        return f"{where} is waived by {self.owner} until {self.expires}: {self.reason}"


class FieldGate(ContractEntry):
    id: Ident
    name: str = ""
    description: str = ""
    checks: list[str] = []
    pass_criteria: str = ""
    falsification: str = ""


class Required(ContractModel):
    """Strategies whose proofs count with a certificate alone, and those that need a second solver behind each."""

    certificates: Annotated[list[Certified], BeforeValidator(some)] | None = None
    second_solver: Annotated[list[Strategy], BeforeValidator(some)] | None = None


class Gate(FieldGate):
    """The release gate, and the bugs that must turn it red. `require`: what must back the proofs of a strategy."""

    name: Text
    checks: Annotated[list[Text], BeforeValidator(some)]
    pass_criteria: Text
    falsification: Text
    criteria: dict[str, Annotated[list[Ident], BeforeValidator(some)]]
    seeded_bug: Annotated[list[Ident], BeforeValidator(listed)]
    require: Required | None = None
    least: dict[Ident, Least] = {}
    gpu_max_age_days: Positive | None = None
    waivers: list[Waiver] = []


Dtype = Literal["fp64", "fp32", "fp32-tf32", "fp16", "bf16"]
Format = Literal["fp64", "fp32", "fp16", "bf16"]
Metric = Literal["linf", "l2", "relative", "ulp"]
AppliesTo = Literal["all", "scalar", "simd", "converter", "other"]
Solver = Literal["z3", "crosshair"]
FieldSolver = Literal["z3", "cadical", "kissat", "minisat", "cvc5", "bitwuzla"]
FieldStrategy = Literal["exhaustive", "stub_float", "compositional", "bounded_int"]
Mode = Literal["fp32", "fp16", "bf16", "fp16_params"]
OptimizerName = Literal["sgd", "sgd foreach", "sgd fused", "adamw", "adamw foreach", "adamw fused", "own"]
ObligationType = Literal[
    "invariant", "equivalence", "bound", "monotonicity", "idempotency", "linearity", "symmetry", "associativity",
    "conservation", "ordering", "completeness", "soundness", "involution", "determinism", "roundtrip",
    "state_machine", "classification", "independence", "termination", "precondition", "postcondition", "frame",
    "loop_invariant", "loop_variant", "old_state", "subcontract",
]  # fmt: skip

DEVICES = ("cpu", "cuda")


class Metadata(ContractModel):
    """Who wrote the contract, and on which contracts it builds."""

    version: Text
    description: Text
    created: str = ""
    author: str = ""
    references: list[str] = []
    depends_on: list[Ident] = []


class FieldEquation(ContractModel):
    formula: Text
    domain: str = ""
    codomain: str = ""
    invariants: list[str] = []
    preconditions: list[str] = []
    postconditions: list[str] = []
    assumes: Any = None
    guarantees: Any = None


class OursEquation(FieldEquation):
    assumptions: list[Text] = []


class Tolerance(ContractModel):
    """A tolerance of one dtype. `role` is `required`, or `reported` when nothing is gated on it."""

    dtype: Dtype
    value: Number
    metric: Metric
    domain: str = ""
    role: Literal["required", "reported"] = "required"
    reason: Text = "not given"


class LayersShape(ContractModel):
    ci: Annotated[list[LayerName], BeforeValidator(some)]
    release: Annotated[list[LayerName], BeforeValidator(some)]


class _Obligation(ContractEntry):
    type: ObligationType
    property: Text
    formal: str = ""
    applies_to: AppliesTo = "all"
    lean: Any = None
    requires: Any = None
    applies_to_phase: str = ""
    parent_contract: str = ""


class FieldObligation(_Obligation):
    id: Ident | None = None
    tolerance: Number | None = None


class SubjectsShape(ContractModel):
    """What a contract is about; of an obligation, what it is about instead."""

    model: Reference | None = None
    empty: Reference | None = None
    mutants: Reference | None = None
    torch: Reference | None = None
    torch_empty: Reference | None = None
    torch_mutants: Reference | None = None


class Obligation(_Obligation):
    """One clause. `layers`: what must discharge it, by gate profile. `subjects`: those that are not the contract's."""

    id: Ident
    subjects: SubjectsShape = SubjectsShape()
    formal: Text
    tolerance: list[Tolerance] = []
    assumptions: list[Text] = []
    layers: LayersShape


class FixedInput(ContractModel):
    """The value of an input that no harness frees, and why it stands for every other."""

    value: Text
    reason: Text


class InputsShape(ContractModel):
    """What some harness must free: `of` names dataclasses, each field of which counts, and arguments.

    `fixed` has the exceptions, by names such as Config.max_norm.
    """

    of: list[InputName] = []
    fixed: dict[Ident, FixedInput] = {}


class PhaseShape(ContractModel):
    name: Text
    description: str = ""
    invariant: str = ""


class Structure(ContractModel):
    phases: list[PhaseShape] = []


class Enforcement(ContractModel):
    description: str = ""
    check: str = ""
    severity: str = ""
    reference: str = ""


class BoundShape(ContractModel):
    name: Ident
    value: Positive
    reason: Text


class FieldHarness(ContractEntry):
    id: Ident
    obligation: str = ""
    property: str = ""
    bound: Positive | None = None
    strategy: FieldStrategy | None = None
    solver: FieldSolver | None = None
    harness: str = ""


class CheckEntry(ContractEntry):
    """What every check of our dialect may state."""

    id: Ident
    harness: Reference
    expect: ExpectName = Expect.HOLDS
    subject: Reference | None = None
    bounds: Annotated[list[BoundShape], BeforeValidator(some)]
    mutants: list[Ident] = []
    assumptions: list[Text] = []
    params: Free = {}
    time_limit: Seconds = 60.0
    note: str = ""


class ClaimEntry(CheckEntry):
    """A check of obligations, which are named by either key."""

    obligation: Ident | None = None
    obligations: list[Ident] = []

    @property
    def named(self) -> tuple[str, ...]:
        """The obligations, each once."""
        return tuple(dict.fromkeys([*([self.obligation] if self.obligation else []), *self.obligations]))


class StubClause(CheckEntry):
    """A rounding stub, itself a claim. `lemmas` are the step contracts that its promise rests on."""

    stub: Module
    property: Text
    formats: Annotated[list[Format], BeforeValidator(some)]
    lemmas: Annotated[list[LemmaName], BeforeValidator(some)] = []


class Harness(ClaimEntry):
    """A proof. How far it reaches follows from what its run did."""

    property: Text
    bound: Positive
    strategy: Strategy
    solver: Solver
    stubs: list[Ident] = []


class FieldTest(ContractEntry):
    id: Ident
    rule: str = ""
    prediction: str = ""
    test: str = ""
    if_fails: str = ""


class FalsificationTest(ClaimEntry):
    """A measured test with its prediction."""

    rule: Text
    prediction: Text
    test: Text
    if_fails: Text


class StepParams(ContractModel):
    """What is recorded: configurations in which every two values meet, of whatever is a list here.

    `tail` further micro-batches form a short last window where n is larger. `also` names further correct steps, which
    are held to the same. With the optimizer `own` the subject makes its own model and optimizer. `max_norm` and
    `loss_scale` are absent, or `none`, without a clip and without a scaler. `overflow` are numbers of windows, from 0:
    before one of them stands a further window whose gradients overflow.
    """

    nets: Annotated[list[Ident], BeforeValidator(some)]
    n: Annotated[list[Positive], BeforeValidator(some)]
    optimizers: Annotated[list[OptimizerName], BeforeValidator(some)] = ["sgd"]
    modes: Annotated[list[Mode], BeforeValidator(some)] = ["fp32"]
    micro_batch: Positive = 1
    tail: Annotated[int, Field(ge=0)] = 0
    weighting: Literal["equal", "count"] = "equal"
    max_norm: Limits | None = None
    loss_scale: Limits | None = None
    overflow: list[Annotated[int, Field(ge=0)]] | None = None
    also: list[Reference] = []


class StepProof(ClaimEntry):
    """A proof about the recorded PyTorch step; `params` says in which configurations it is recorded."""

    property: Text
    params: StepParams  # type: ignore[assignment]


class FieldSummary(ContractModel):
    total_obligations: int | None = None
    l2_property_tested: int | None = None
    l3_kani_proved: int | None = None
    l4_lean_proved: int | None = None
    l4_not_applicable: int | None = None


class OursSummary(ContractModel):
    """No proof levels: coverage is counted from evidence."""

    total_obligations: int | None = None
    notes: list[Text] = []


class _Root(ContractModel):
    metadata: Metadata
    kernel_structure: Structure = Structure()
    simd_dispatch: dict[str, Any] = {}
    enforcement: dict[str, Enforcement] = {}


class FieldRoot(_Root):
    equations: dict[str, FieldEquation] = {}
    proof_obligations: list[FieldObligation] = []
    kani_harnesses: list[FieldHarness] = []
    falsification_tests: list[FieldTest] = []
    qa_gate: FieldGate | None = None
    verification_summary: FieldSummary = FieldSummary()


class OursRoot(_Root):
    subjects: SubjectsShape = SubjectsShape()
    inputs: InputsShape = InputsShape()
    equations: dict[str, OursEquation] = {}
    proof_obligations: list[Obligation] = []
    stubs: list[StubClause] = []
    kani_harnesses: list[Harness] = []
    step_proofs: list[StepProof] = []
    falsification_tests: list[FalsificationTest] = []
    qa_gate: Gate
    verification_summary: OursSummary = OursSummary()


# -- The shape of `[tool.gradproof]`.
class SettingsShape(ContractModel):
    """Every key of `[tool.gradproof]`, with dashes in the file."""

    profile: Literal["ci", "release"] | None = None
    jobs: Positive | None = None
    time_limit: Seconds | None = Field(None, alias="time-limit")
    memory_limit: Annotated[int, Field(ge=64)] | None = Field(None, alias="memory-limit")
    baseline: Text | None = None
    gpu_max_age_days: Positive | None = Field(None, alias="gpu-max-age-days")
    require: dict[Ident, Least] = {}
    waivers: list[Waiver] = []


KEYS = [field.alias or name for name, field in SettingsShape.model_fields.items()]
