"""A line of `--format ndjson`: format `gradproof-events/1`, published as `reports/events.schema.json`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, RootModel, model_validator

from gradproof.core.outcome import EXIT_CODE, Effect, Exit, Kind, Layer, Outcome
from gradproof.core.schemas.base import Shape

EVENTS = "gradproof-events/1"
Text = Annotated[str, Field(min_length=1)]
Tally = Annotated[int, Field(ge=0)]


class Begin(Shape):
    """The first line of every stream. `warning` is there where no workspace was: the packaged reference is judged."""

    event: Literal["begin"]
    document: Literal["gradproof-events/1"] = Field(alias="schema")
    warning: Text | None = None


class Started(Shape):
    """A check began. `done` of `total` checks were finished before."""

    event: Literal["started"]
    done: Tally
    total: Tally
    check: Text
    kind: Kind
    layer: Layer


class Finished(Shape):
    """A check ended, as the audit has it. `seconds`: wall clock of its worker."""

    event: Literal["finished"]
    done: Tally
    total: Tally
    check: Text
    kind: Kind
    layer: Layer
    outcome: Outcome
    effect: Effect
    reason: str
    seconds: Annotated[float, Field(ge=0)]


class VerdictEvent(Shape):
    """The verdict of one contract."""

    event: Literal["verdict"]
    contract: Text
    run_state: Literal["complete", "partial", "running"]
    exit: Exit
    code: Annotated[int, Field(ge=0, le=5)]
    met: bool
    reasons: list[str]

    @model_validator(mode="after")
    def _consistent(self) -> VerdictEvent:
        if self.code != EXIT_CODE[self.exit] or self.met is not (self.exit is Exit.MET):
            raise ValueError(f"exit {self.exit}, code {self.code} and met {self.met} do not agree")
        return self


class End(Shape):
    """The last line of a stream that is whole."""

    event: Literal["end"]


class Event(RootModel[Annotated[Begin | Started | Finished | VerdictEvent | End, Field(discriminator="event")]]):
    """One line of the stream: begin, then each check as it starts and ends, a verdict for each contract, and end.

    A stream without its last event is not whole. History: 1, the first.
    """

    model_config = ConfigDict(strict=True, frozen=True)
