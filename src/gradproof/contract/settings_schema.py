"""The shape of `[tool.gradproof]`, strict: no key is unknown and nothing is coerced."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from gradproof.contract.schema import MAX_TIME_LIMIT, STRICT, Ident, LeastShape, Positive, Text, WaiverShape, wrong


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_TIME_LIMIT:
        raise wrong("GP107", f"a number of seconds above 0 and up to {MAX_TIME_LIMIT}")
    return float(value)


class SettingsShape(BaseModel):
    """Every key that there is, with dashes in the file."""

    model_config = STRICT

    profile: Literal["ci", "release"] | None = None
    jobs: Positive | None = None
    time_limit: Annotated[float, BeforeValidator(_seconds)] | None = Field(None, alias="time-limit")
    memory_limit: Annotated[int, Field(ge=64)] | None = Field(None, alias="memory-limit")
    baseline: Text | None = None
    gpu_max_age_days: Positive | None = Field(None, alias="gpu-max-age-days")
    require: dict[Ident, LeastShape] = {}
    waivers: list[WaiverShape] = []


KEYS = [field.alias or name for name, field in SettingsShape.model_fields.items()]
