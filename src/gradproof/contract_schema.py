"""The shape of a contract: which keys stand where, and what a value may be. Strict: nothing is coerced.

Two dialects. `FieldRoot` is the YAML of provable-contracts (schema/types.rs there). `OursRoot` is that plus an id on
each obligation, tolerances per dtype, bounds with a name, a value and a reason, `expect`, mutants, stubs, step proofs,
layers, subjects and gate criteria. A contract that uses any key of ours is held to all of ours.

A check that pydantic cannot express raises PydanticCustomError with one of gradproof's own codes as its type.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from gradproof.contract_gate import FieldGate, OursGate
from gradproof.contract_types import (
    STRICT,
    Free,
    Ident,
    LayerName,
    LemmaName,
    Module,
    Number,
    Positive,
    ReachName,
    Reference,
    Seconds,
    Strategy,
    Text,
    some,
)

Dtype = Literal["fp64", "fp32", "fp32-tf32", "fp16", "bf16"]
Format = Literal["fp64", "fp32", "fp16", "bf16"]
Metric = Literal["linf", "l2", "relative", "ulp"]
AppliesTo = Literal["all", "scalar", "simd", "converter", "other"]
Solver = Literal["z3", "crosshair"]
FieldSolver = Literal["z3", "cadical", "kissat", "minisat", "cvc5", "bitwuzla"]
FieldStrategy = Literal["exhaustive", "stub_float", "compositional", "bounded_int"]
ExpectName = Literal["holds", "refuted"]
Domain = Literal["real", "field"]
Mode = Literal["fp32", "fp16", "bf16", "fp16_params"]
OptimizerName = Literal["sgd", "sgd foreach", "sgd fused", "adamw", "adamw foreach", "adamw fused", "own"]
ObligationType = Literal[
    "invariant", "equivalence", "bound", "monotonicity", "idempotency", "linearity", "symmetry", "associativity",
    "conservation", "ordering", "completeness", "soundness", "involution", "determinism", "roundtrip",
    "state_machine", "classification", "independence", "termination", "precondition", "postcondition", "frame",
    "loop_invariant", "loop_variant", "old_state", "subcontract",
]  # fmt: skip

DEVICES = ("cpu", "cuda")


class Shape(BaseModel):
    """Strict, closed and frozen."""

    model_config = STRICT


class MetadataShape(Shape):
    version: Text
    description: Text
    created: str = ""
    author: str = ""
    references: list[str] = []
    depends_on: list[Ident] = []


class FieldEquation(Shape):
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


class ToleranceShape(Shape):
    dtype: Dtype
    value: Number
    metric: Metric
    domain: str = ""
    role: Literal["required", "reported"] = "required"
    reason: Text = "not given"


class LayersShape(Shape):
    ci: Annotated[list[LayerName], BeforeValidator(some)]
    release: Annotated[list[LayerName], BeforeValidator(some)]


class _Obligation(Shape):
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


class SubjectsShape(Shape):
    """What a contract is about; of an obligation, what it is about instead."""

    model: Reference | None = None
    empty: Reference | None = None
    mutants: Reference | None = None
    torch: Reference | None = None
    torch_empty: Reference | None = None
    torch_mutants: Reference | None = None


class OursObligation(_Obligation):
    id: Ident
    subjects: SubjectsShape = SubjectsShape()
    formal: Text
    tolerance: list[ToleranceShape] = []
    assumptions: list[Text] = []
    layers: LayersShape


class PhaseShape(Shape):
    name: Text
    description: str = ""
    invariant: str = ""


class Structure(Shape):
    phases: list[PhaseShape] = []


class Enforcement(Shape):
    description: str = ""
    check: str = ""
    severity: str = ""
    reference: str = ""


class BoundShape(Shape):
    name: Ident
    value: Positive
    reason: Text


class FieldHarness(Shape):
    id: Ident
    obligation: str = ""
    property: str = ""
    bound: Positive | None = None
    strategy: FieldStrategy | None = None
    solver: FieldSolver | None = None
    harness: str = ""


class CheckShape(Shape):
    """What every check of our dialect may state."""

    id: Ident
    harness: Reference
    expect: ExpectName = "holds"
    subject: Reference | None = None
    bounds: Annotated[list[BoundShape], BeforeValidator(some)]
    mutants: list[Ident] = []
    assumptions: list[Text] = []
    params: Free = {}
    time_limit: Seconds = 60.0
    note: str = ""


class StubShape(CheckShape):
    stub: Module
    property: Text
    formats: Annotated[list[Format], BeforeValidator(some)]
    lemmas: Annotated[list[LemmaName], BeforeValidator(some)] = []


class OursHarness(CheckShape):
    property: Text
    bound: Positive
    strategy: Strategy
    solver: Solver
    obligation: Ident | None = None
    obligations: list[Ident] = []
    stubs: list[Ident] = []
    reach: ReachName | None = None


class FieldTest(Shape):
    id: Ident
    rule: str = ""
    prediction: str = ""
    test: str = ""
    if_fails: str = ""


class OursTest(CheckShape):
    rule: Text
    prediction: Text
    test: Text
    if_fails: Text
    obligation: Ident | None = None
    obligations: list[Ident] = []


class StepParams(Shape):
    """What is recorded: every net with every n; optimizers and modes take turns over these.

    `tail` further micro-batches form a short last window where n is larger. `also` names further correct steps, which
    are held to the same. With the optimizer `own` the subject makes its own model and optimizer. `max_norm` and
    `loss_scale` are absent without a clip and without a scaler.
    """

    nets: Annotated[list[Ident], BeforeValidator(some)]
    n: Annotated[list[Positive], BeforeValidator(some)]
    domains: Annotated[list[Domain], BeforeValidator(some)]
    optimizers: Annotated[list[OptimizerName], BeforeValidator(some)] = ["sgd"]
    modes: Annotated[list[Mode], BeforeValidator(some)] = ["fp32"]
    micro_batch: Positive = 1
    tail: Annotated[int, Field(ge=0)] = 0
    weighting: Literal["equal", "count"] = "equal"
    max_norm: Number | None = None
    loss_scale: Number | None = None
    also: list[Reference] = []


class StepShape(CheckShape):
    property: Text
    params: StepParams  # type: ignore[assignment]
    obligation: Ident | None = None
    obligations: list[Ident] = []


class FieldSummary(Shape):
    total_obligations: int | None = None
    l2_property_tested: int | None = None
    l3_kani_proved: int | None = None
    l4_lean_proved: int | None = None
    l4_not_applicable: int | None = None


class OursSummary(Shape):
    """No proof levels: coverage is counted from evidence."""

    total_obligations: int | None = None
    notes: list[Text] = []


class _Root(Shape):
    metadata: MetadataShape
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
    equations: dict[str, OursEquation] = {}
    proof_obligations: list[OursObligation] = []
    stubs: list[StubShape] = []
    kani_harnesses: list[OursHarness] = []
    step_proofs: list[StepShape] = []
    falsification_tests: list[OursTest] = []
    qa_gate: OursGate
    verification_summary: OursSummary = OursSummary()
