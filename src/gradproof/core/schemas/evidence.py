"""The shape of an evidence file, format `gradproof-evidence/2`; `reports/evidence.schema.json` is made of it.

It is as strict as its readers need: names of files hold no NUL, numbers can be floats, what is free is not nested
without end. Evidence stays a dict; `fault_of` says where one differs from this shape.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, ValidationError, model_validator

from gradproof.core.outcome import Expect, Kind, Layer, Outcome, Reach
from gradproof.core.schemas.base import DocumentModel, Sha256

DEEPEST = 60
LONGEST_RUN = 1e9  # seconds: some thirty years
MOST_DIGITS = 4000


def _shallow(value: Any, left: int = DEEPEST) -> Any:
    """The value, unless lists and mappings are nested in it more deeply than DEEPEST."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if left == 0 and inner:
        raise ValueError("it is nested too deeply")
    for item in inner:
        _shallow(item, left - 1)
    return value


def _name(text: str) -> str:
    if "\0" in text:
        raise ValueError("a name holds no NUL")
    return text


def _fraction(text: str) -> str:
    if len(text) > MOST_DIGITS or not set(text) <= set("-+0123456789/."):
        raise ValueError(f"{text[:40]!r} is no fraction in digits, such as -1/3")
    try:
        float(Fraction(text))
    except (ValueError, ZeroDivisionError, OverflowError):
        raise ValueError(f"{text[:40]!r} is no fraction that a float can approximate") from None
    return text


def _rounding(text: str) -> str:
    if " " not in text:
        raise ValueError(f"{text[:40]!r} is no operator with its format, such as 'add fp32'")
    return text


Free = Annotated[Any, AfterValidator(_shallow)]
Mapping = dict[str, Free]
Name = Annotated[str, AfterValidator(_name)]
Exact = Annotated[str, AfterValidator(_fraction)]
Rounded = Annotated[str, AfterValidator(_rounding)]
Whole = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Error = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, le=LONGEST_RUN)]
Texts = dict[str, str]
WORD = Field(strict=False)  # JSON holds the word of a vocabulary as text


class OpenMapping(DocumentModel):
    """A mapping that may have further keys, with any value."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Free]


class TraceTick(DocumentModel):
    """One event with the state after it. `refused`: why what is right would not do it; `harm`: what breaks there."""

    event: str
    after: str
    note: str
    refused: str
    harm: str


class WitnessTrace(DocumentModel):
    """The shortest concrete run that breaks a clause, as a timeline."""

    title: str
    start: str
    ticks: Annotated[list[TraceTick], Field(min_length=1)]


class Counterexample(OpenMapping):
    """Concrete numbers that break a clause, as exact text."""

    clause: str
    values: Mapping
    found_by: str = ""
    label: str = ""
    choices: list[str] = Field(default_factory=list)
    trace: WitnessTrace | None = None


class Cover(OpenMapping):
    """A place that a run must reach, with the values that reached it."""

    name: str
    reached: bool


class ReplayRow(OpenMapping):
    """A counterexample, run again on something else."""

    on: str
    reproduced: bool | None
    detail: str = ""


class EvidenceControl(DocumentModel):
    """A mutant or the empty body, run through the same harness in the same run."""

    name: str
    kind: str
    outcome: Annotated[Outcome, WORD]
    killed: bool
    clause: str = ""
    reference: str = ""
    reason: str = ""
    counterexample: Counterexample | None = None
    replays: list[ReplayRow] = Field(default_factory=list)
    seconds: Seconds = 0.0


class Measurement(OpenMapping):
    """One row. Errors are absolute, in units of the gradient; `measured` is null where it was not run: see `note`."""

    column: Annotated[str, Field(min_length=1)]
    device: str
    dtype: str
    net: str
    n: Annotated[int, Field(ge=1, lt=1 << 63)]
    measured: Error | None
    bound: Error | None = None
    ratio: float | None = None
    tolerance: float | None = None
    l2: float | None = None
    relative: float | None = None
    case: str = ""
    metric: str = ""
    note: str = ""


class ReplyRow(OpenMapping):
    """What a solver answered."""

    solver: str
    version: str
    answer: str


class LemmaRow(OpenMapping):
    """A lemma, with what its method rests on: solvers, the cases of an exhaustion, or premises."""

    name: str
    method: str
    solvers: list[ReplyRow] | None = None
    cases: Count | None = None
    premises: list[str] | None = None

    @model_validator(mode="after")
    def _based(self) -> LemmaRow:
        rests = {"solvers": "solvers", "exhaustion": "cases"}.get(self.method, "premises")
        if getattr(self, rests) is None:
            raise ValueError(f"{rests} is missing")
        return self


class AcceptedBound(OpenMapping):
    """A bound that a checker accepted."""

    clause: str
    label: str
    claimed: Exact
    sha256: str
    bound: Exact
    contracts: list[str]


class Exhaustion(OpenMapping):
    """The worst of all inputs."""

    clause: str
    label: str
    claimed: Exact
    worst: Exact
    numbers: Count


class Stats(OpenMapping):
    """What a method says of its run, and what a proof rests on."""

    solver: str = ""
    solvers: list[ReplyRow] = Field(default_factory=list)
    lemmas: list[LemmaRow] = Field(default_factory=list)
    certificates: list[AcceptedBound] = Field(default_factory=list)
    exhaustion: list[Exhaustion] = Field(default_factory=list)
    rounded: list[Rounded] = Field(default_factory=list)


class EvidenceFinding(DocumentModel):
    """What a run found."""

    outcome: Annotated[Outcome, WORD]
    reason: str
    reach: Annotated[Reach | None, WORD]
    domain: str
    clauses: Texts
    assumptions: list[str]
    covers: list[Cover]
    controls: list[EvidenceControl]
    counterexample: Counterexample | None
    replays: list[ReplayRow]
    measurements: list[Measurement]
    stats: Stats


class EvidenceBound(DocumentModel):
    """A bound with its reason."""

    name: str
    value: Whole
    reason: Annotated[str, Field(min_length=1)]


class EvidenceCheck(DocumentModel):
    """The claim's own text; `claim.spec` is the sha256 of its canonical JSON."""

    id: Name
    kind: Annotated[Kind, WORD]
    layer: Annotated[Layer, WORD]
    obligations: list[str]
    title: str
    harness: Name
    subject: Name
    expect: Annotated[Expect, WORD]
    strategy: str
    bounds: list[EvidenceBound]
    stubs: list[str]
    mutants: list[str]
    assumptions: list[str]
    params: Mapping
    text: Mapping
    depends: list[str]
    time_limit: Annotated[float, Field(gt=0, le=LONGEST_RUN)]


class ImportSearch(DocumentModel):
    """Where names were found along one path: an input key, `site`, `site or nowhere`, or nothing.

    `path`: folders; `start` stands for those that Python starts with. Without it, they are the folders of a package.
    """

    path: list[Name]
    names: dict[Name, Name]


class EvidenceInputs(DocumentModel):
    """Inputs of the run. `files`: sha256 of each, and nothing for a file that was not found."""

    spec: Sha256
    files: dict[Name, str]
    imports: list[ImportSearch]


class Environment(DocumentModel):
    """Versions and devices of the run, environment variables, and the distributions that it imported."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, str | int | float | bool | None]
    variables: Texts = Field(default_factory=dict)
    distributions: Texts = Field(default_factory=dict)


class Evidence(DocumentModel):
    """One run of one check. It counts only while `claim` matches the workspace: clause, harness, subject, stubs, files.

    The environment is recorded, and judged by policy. History: 1, the first; 2, `imports` with the file of each name.
    """

    document: Literal["gradproof-evidence/2"] = Field(alias="schema")
    check: EvidenceCheck
    claim: EvidenceInputs
    finding: EvidenceFinding
    environment: Environment
    started_at: str
    finished_at: str
    seconds: Seconds


def fault_of(data: Any) -> str:
    """Where evidence differs from its shape, and how; an empty text where it does not."""
    try:
        Evidence.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        found = "" if isinstance(first["input"], dict | list) else f", found {first['input']!r:.40}"
        return f"{''.join(map(_step, first['loc'])).removeprefix('.') or 'it'}: {first['msg']}{found}"
    return ""


def _step(step: int | str) -> str:
    if isinstance(step, str) and step.isidentifier():
        return f".{step[:40]}"
    return "" if step == "[key]" else f"[{step!r:.40}]"
