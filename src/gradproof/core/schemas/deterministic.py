"""The document of the deterministic comparison, format `gradproof-deterministic/2`.

Its JSON Schema, `reports/deterministic.schema.json`, is made of the classes here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gradproof.core.schemas.base import Count, DocumentModel, Sha256

DETERMINISTIC = "gradproof-deterministic/2"
Loss = Annotated[float, Field(ge=0)]
Rate = Annotated[float, Field(gt=0)]


class Published(DocumentModel):
    """The row that the document of the field publishes, 64 x 1 beside 16 x 4 at step 100."""

    train_loss: tuple[Loss, Loss]
    validation_loss: tuple[Loss, Loss]
    steps_per_second: tuple[Rate, Rate]
    said: str


class Sizes(DocumentModel):
    """What the runs share: transformer, characters and length of the text, validation samples, seeds."""

    width: Count
    layers: Count
    heads: Count
    block: Count
    characters: Count
    text: Count
    validation: Count
    learning_rate: Rate
    seed: int
    data_seed: int


class TrainingRun(DocumentModel):
    """One run at its last step; losses in nats. `repeats`: a second run with the same seeds agreed in every bit."""

    size: Count
    n: Count
    steps: Count
    train_loss: Loss
    validation_loss: Loss
    steps_per_second: Rate
    weights: Sha256
    repeats: bool


class Compared(DocumentModel):
    """The second run less the first one. `slower`: how many times as long a step of it takes."""

    train_loss: float
    validation_loss: float
    train_equal: bool
    validation_equal: bool
    weights_equal: bool
    slower: Rate


class FlagRun(DocumentModel):
    """GA-DET-001 with one flag left out. `nothing`: with all of them.

    `in_process`: two runs of one process agree in every bit; `across_processes`: so do two processes; `same_bits`: and
    they agree with the runs that have every flag. None, and NOT_RUN, on a device that this document is not of.
    """

    flag: str
    left_out: str
    device: Literal["cpu", "cuda"]
    outcome: Literal["MEASURED", "NOT_RUN"]
    in_process: bool | None
    across_processes: bool | None
    same_bits: bool | None

    @model_validator(mode="after")
    def _consistent(self) -> FlagRun:
        answers = (self.in_process, self.across_processes, self.same_bits)
        if any((a is None) != (self.outcome == "NOT_RUN") for a in answers):
            raise ValueError(f"{self.flag} on {self.device}: an answer without a run, or a run without an answer")
        return self


class Deterministic(DocumentModel):
    """One effective batch trained whole and in parts, with the data, the seeds and the number of steps alike.

    `flags`: the same training with each determinism flag left out. `sources` are digests of the files that measured it.
    History: 1, the first; 2, `flags`.
    """

    document: Literal["gradproof-deterministic/2"] = Field(alias="schema")
    gradproof: str
    made_at: str
    seconds: Annotated[float, Field(ge=0)]
    device: Literal["cpu", "cuda"]
    device_name: str
    torch: str
    threads: Literal[1]
    sizes: Sizes
    runs: tuple[TrainingRun, TrainingRun]
    compared: Compared
    published: Published
    flags: list[FlagRun]
    sources: dict[str, Sha256]

    @model_validator(mode="after")
    def _consistent(self) -> Deterministic:
        one, two = self.runs
        if one.size * one.n != two.size * two.n or one.steps != two.steps:
            raise ValueError("the runs have not one effective batch and one number of steps")
        if compared(one, two) != self.compared:
            raise ValueError("the comparison is not that of the two runs")
        if any((f.outcome == "MEASURED") != (f.device == self.device) for f in self.flags):
            raise ValueError("a flag was measured on another device than the document's")
        return self


def compared(one: TrainingRun, two: TrainingRun) -> Compared:
    """The comparison of two runs."""
    return Compared(
        train_loss=two.train_loss - one.train_loss,
        validation_loss=two.validation_loss - one.validation_loss,
        train_equal=two.train_loss == one.train_loss,
        validation_equal=two.validation_loss == one.validation_loss,
        weights_equal=two.weights == one.weights,
        slower=one.steps_per_second / two.steps_per_second,
    )


PUBLISHED = Published(
    train_loss=(2.434814453125, 2.434814453125),
    validation_loss=(2.47094004, 2.47094028),
    steps_per_second=(12.0, 8.0),
    said="bit-identical train loss; 3-4x slower per step",
)
