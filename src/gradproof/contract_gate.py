"""The shape of `qa_gate`: what must hold, what must stand behind it, and what is waived until when."""

import re
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator

from gradproof.contract_types import (
    STRICT,
    Ident,
    LayerName,
    Positive,
    ReachName,
    Strategy,
    Text,
    listed,
    some,
    wrong,
)

Certified = Literal["linear_chain"]
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def _day(value: Any) -> str:
    """A day as it is written, YYYY-MM-DD. A TOML date becomes its text."""
    text = value.isoformat() if type(value) is date else value
    if not isinstance(text, str):
        raise wrong("GP104", "a day, such as 2027-01-31")
    try:
        day = date.fromisoformat(text) if _DATE.fullmatch(text) else None
    except ValueError:
        day = None
    if day is None:
        raise wrong("GP122", "a day, such as 2027-01-31")
    return text


Day = Annotated[str, BeforeValidator(_day)]


class Shape(BaseModel):
    """Strict, closed and frozen."""

    model_config = STRICT


class LeastShape(Shape):
    """What is asked of one obligation: layers beside its own, the least reach in a layer, the least bounds."""

    layers: list[LayerName] = []
    reach: dict[LayerName, ReachName] = {}
    bounds: dict[Ident, Positive] = {}


class WaiverShape(Shape):
    """An obligation that may stay open in a layer (in every layer where none is named), who says so, why, how long."""

    obligation: Ident
    layer: LayerName | None = None
    owner: Text
    reason: Text
    expires: Day


class FieldGate(Shape):
    id: Ident
    name: str = ""
    description: str = ""
    checks: list[str] = []
    pass_criteria: str = ""
    falsification: str = ""


class RequireShape(Shape):
    """What must stand behind the proofs of a strategy, for the gate to count them."""

    certificates: Annotated[list[Certified], BeforeValidator(some)] | None = None
    second_solver: Annotated[list[Strategy], BeforeValidator(some)] | None = None


class OursGate(FieldGate):
    name: Text
    checks: Annotated[list[Text], BeforeValidator(some)]
    pass_criteria: Text
    falsification: Text
    criteria: dict[str, Annotated[list[Ident], BeforeValidator(some)]]
    seeded_bug: Annotated[list[Ident], BeforeValidator(listed)]
    require: RequireShape | None = None
    least: dict[Ident, LeastShape] = {}
    gpu_max_age_days: Positive | None = None
    waivers: list[WaiverShape] = []
