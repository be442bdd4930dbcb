"""The shape of an evidence file, format `gradproof-evidence/2`; `reports/evidence.schema.json` is made of it.

It is as strict as its readers need: names of files hold no NUL, numbers can be floats, what is free is not nested
without end. Evidence is an `Evidence` from `evidence_of` on; `stated` is what stands in its file, byte for byte.
"""

from __future__ import annotations

from datetime import datetime
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, PlainSerializer, ValidationError, WrapValidator, model_validator

from gradproof.core.check import Check, Scope
from gradproof.core.outcome import EVIDENCE_SCHEMA, Expect, Kind, Layer, Outcome, Reach
from gradproof.core.schemas.base import DocumentModel, Sha256

DEEPEST = 60
LONGEST_RUN = 1e9  # seconds: some thirty years
MOST_DIGITS = 4000
YEARS = range(1971, 9999)  # with a day to spare on either side of every zone


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


def _dated(text: str) -> str:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise ValueError(f"{text!r} is no time with a zone")
    if found.year not in YEARS:
        raise ValueError(f"{text!r} is no time of a run")
    return text


AS_READ, AS_WRITTEN = WrapValidator(lambda value, checked: (checked(value), value)[1]), PlainSerializer(lambda x: x)
"""A whole number stays one where a float is asked for: the digest of a file is that of its text."""
Free = Annotated[Any, AfterValidator(_shallow)]
Mapping = dict[str, Free]
Name = Annotated[str, AfterValidator(_name)]
Exact = Annotated[str, AfterValidator(_fraction)]
Rounded = Annotated[str, AfterValidator(_rounding)]
Whole = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Error = Annotated[float, Field(ge=0, allow_inf_nan=False), AS_READ, AS_WRITTEN]
Number = Annotated[float, AS_READ, AS_WRITTEN]
Seconds = Annotated[float, Field(ge=0, le=LONGEST_RUN), AS_READ, AS_WRITTEN]
Moment = Annotated[str, AfterValidator(_dated)]
Texts = dict[str, str]
WORD = Field(strict=False)  # JSON holds the word of a vocabulary as text


class EvidencePart(DocumentModel):
    """A part of evidence."""

    def stated(self) -> dict[str, Any]:
        """What stands in the file: its keys alone, and numbers as they are written."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)


class OpenMapping(EvidencePart):
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


class EvidenceControl(EvidencePart):
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

    @property
    def shows(self) -> bool:
        """Whether it was refuted, on the clause that it was made to break."""
        return self.killed and self.outcome is Outcome.REFUTED


class Measurement(OpenMapping):
    """One row. Errors are absolute, in units of the gradient; `measured` is null where it was not run: see `note`."""

    column: Annotated[str, Field(min_length=1)]
    device: str
    dtype: str
    net: str
    n: Annotated[int, Field(ge=1, lt=1 << 63)]
    measured: Error | None
    bound: Error | None = None
    ratio: Number | None = None
    tolerance: Number | None = None
    l2: Number | None = None
    relative: Number | None = None
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


class ScopeRow(EvidencePart):
    """What a harness did: see `gradproof.core.check.Scope`."""

    inputs: Count
    bounds: list[str]
    numbers: list[str]
    cases: Count
    base: Count
    step: Count
    direct: Count
    other: Count
    sizes: list[Count]
    fixed: list[str]

    def read(self) -> Scope:
        """The scope, which tells the reach."""
        parts: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in self.stated().items()}
        return Scope(**parts)


class FreeField(EvidencePart):
    """A field of a dataclass that a harness put into its case, or a named argument of it (`type` is empty then).

    `free`: some value of it was a symbolic number that the assumptions do not pin, or, where it is no number, it had
    several values. `values`: the concrete ones that were seen, at most 8.
    """

    type: str
    field: str
    free: bool
    values: list[str]


class Stats(OpenMapping):
    """What a method says of its run, and what a proof rests on."""

    scope: ScopeRow | None = None
    fields: list[FreeField] = Field(default_factory=list)
    solver: str = ""
    solvers: list[ReplyRow] = Field(default_factory=list)
    lemmas: list[LemmaRow] = Field(default_factory=list)
    certificates: list[AcceptedBound] = Field(default_factory=list)
    exhaustion: list[Exhaustion] = Field(default_factory=list)
    rounded: list[Rounded] = Field(default_factory=list)
    device: Free = None
    queries: Free = None


class EvidenceFinding(EvidencePart):
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


class EvidenceCheck(EvidencePart):
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
    time_limit: Annotated[float, Field(gt=0, le=LONGEST_RUN), AS_READ, AS_WRITTEN]


def _claimed(shape: EvidenceCheck) -> Check:
    return Check.from_json(shape.stated())


if TYPE_CHECKING:
    Claimed = Check
else:
    Claimed = Annotated[EvidenceCheck, AfterValidator(_claimed), PlainSerializer(Check.to_json)]


class ImportSearch(EvidencePart):
    """Where names were found along one path: an input key, `site`, `site or nowhere`, or nothing.

    `path`: folders; `start` stands for those that Python starts with. Without it, they are the folders of a package.
    """

    path: list[Name]
    names: dict[Name, Name]


class EvidenceInputs(EvidencePart):
    """Inputs of the run. `files`: sha256 of each, and nothing for a file that was not found."""

    spec: Sha256
    files: dict[Name, str]
    imports: list[ImportSearch]


class Environment(EvidencePart):
    """Versions and devices of the run, environment variables, and the distributions that it imported."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, str | int | float | bool | None]
    variables: Texts = Field(default_factory=dict)
    distributions: Texts = Field(default_factory=dict)


class Evidence(EvidencePart):
    """One run of one check. It counts only while `claim` matches the workspace: clause, harness, subject, stubs, files.

    The environment is recorded, and judged by policy. History: 1, the first; 2, `imports` with the file of each name.
    """

    document: Literal["gradproof-evidence/2"] = Field(alias="schema")
    check: Claimed
    claim: EvidenceInputs
    finding: EvidenceFinding
    environment: Environment
    started_at: Moment
    finished_at: Moment
    seconds: Seconds

    @property
    def began(self) -> datetime:
        """When the run began."""
        return datetime.fromisoformat(self.started_at)

    @property
    def ended(self) -> datetime:
        """When the run ended: the later evidence counts, and a gate may ask for its age."""
        return datetime.fromisoformat(self.finished_at)


def evidence_of(data: Any) -> Evidence:
    """Evidence from plain data. Raises ValueError with the reason, and the place, for data of any other shape."""
    if not isinstance(data, dict) or data.get("schema") != EVIDENCE_SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise ValueError(f"its schema is {found!r}, not {EVIDENCE_SCHEMA!r}: run gradproof verify")
    try:
        evidence = Evidence.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        found = "" if isinstance(first["input"], dict | list) else f", found {first['input']!r:.40}"
        place = "".join(map(_step, first["loc"])).removeprefix(".") or "it"
        raise ValueError(f"it has the wrong shape: {place}: {first['msg']}{found}") from None
    if evidence.check.digest != evidence.claim.spec:
        raise ValueError("its claim digest is not the digest of its check")
    return evidence


def _step(step: int | str) -> str:
    if isinstance(step, str) and step.isidentifier():
        return f".{step[:40]}"
    return "" if step == "[key]" else f"[{step!r:.40}]"
