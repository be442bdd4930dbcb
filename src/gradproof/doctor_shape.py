"""What `gradproof doctor --json` prints: format `gradproof-doctor/3`, published as `reports/doctor.schema.json`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

DOCTOR = "gradproof-doctor/3"
Text = Annotated[str, Field(min_length=1)]


class Shape(BaseModel):
    """Strict: nothing is coerced, and no key is unknown."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class SelfTest(Shape):
    """One self-test. `get`: how to get what it tests, empty where it passed; `seconds`: wall clock."""

    name: Literal["solver", "crosshair", "torch", "worker", "check", "cuda"]
    state: Literal["passed", "failed", "absent"]
    said: str
    get: str
    seconds: Annotated[float, Field(ge=0)]


class Shadow(Shape):
    """A name that import finds in the folder. `installed`: where it would find it else, null where it is nowhere."""

    name: Text
    found: Text
    installed: str | None
    distributions: list[str]


class Doctor(Shape):
    """The diagnosis. The exit code is 0 where `warnings` is empty, and 1 where it is not.

    History: 3, with self-tests of a worker and of `check`; 2, with self-tests; 1, the first.
    """

    schema_: Annotated[Literal["gradproof-doctor/3"], Field(alias="schema")]
    folder: Text
    versions: dict[str, str]
    devices: dict[str, str]
    self_tests: list[SelfTest]
    shadows: list[Shadow]
    warnings: list[str]
