"""What a value of a contract may be: the types that its shapes are made of. Strict: nothing is coerced.

A check that pydantic cannot express raises PydanticCustomError with one of gradproof's own codes as its type.
"""

import re
import unicodedata
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from gradproof.contract_tree import Exact

LayerName = Literal["smt", "crosshair", "step", "cpu", "cuda"]
ReachName = Literal["all inputs", "bounded", "sampled"]
Strategy = Literal[
    "exhaustive", "stub_float", "compositional", "bounded_int", "bit_precise", "induction", "linear_chain",
    "bit_exhaustive", "step_contract",
]  # fmt: skip

_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")  # letters and a symbol that are drawn as nothing
MAX_TIME_LIMIT = 3600
STRICT = ConfigDict(strict=True, extra="forbid", frozen=True, defer_build=True)
REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_LEMMA = re.compile(r"[a-z0-9*?/-]{1,64}")
_IDENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NUMBER = re.compile(r"[0-9]{1,30}(\.[0-9]{0,30})?([eE][-+]?[0-9]{1,3})?|\.[0-9]{1,30}([eE][-+]?[0-9]{1,3})?")


def exact(text: str) -> Fraction:
    """The decimal number that `text` writes. Raises ValueError when it writes none, or an infinite or huge one."""
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    return Fraction(text if not text.startswith(".") else "0" + text)


def wrong(code: str, expected: str) -> PydanticCustomError:
    """An error of pydantic with a code of gradproof."""
    return PydanticCustomError(code, "{expected}", {"expected": expected})


def _nonblank(value: Any) -> Any:
    if isinstance(value, str) and not any(map(_visible, value)):
        raise wrong("GP103", "a text that is not blank")
    return value


def _visible(letter: str) -> bool:
    """Whether a reader sees the character: no space, control, mark without a letter, or blank that counts as one."""
    return unicodedata.category(letter)[0] not in "ZCM" and letter not in _BLANK


def _shaped(pattern: re.Pattern[str], expected: str) -> BeforeValidator:
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
    if isinstance(text, bool) or not isinstance(value, (int, Exact)):
        raise wrong("GP104", "a number of seconds")
    try:
        number = exact(str(text))
    except ValueError:
        number = Fraction(0)
    if not 0 < number <= MAX_TIME_LIMIT:
        raise wrong("GP107", f"a number of seconds above 0 and up to {MAX_TIME_LIMIT}")
    return float(number)


def some(value: Any) -> Any:
    """A list with an element. Raises PydanticCustomError GP103 for an empty one."""
    if isinstance(value, list) and not value:
        raise wrong("GP103", "a list with at least one element")
    return value


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
LemmaName = Annotated[str, _shaped(_LEMMA, "operator/format/promise, or a shell pattern of it")]
Ident = Annotated[str, _shaped(_IDENT, "letters, digits, dot, dash and underscore, at most 64")]
Reference = Annotated[str, _shaped(REFERENCE, "module.path:attribute")]
Module = Annotated[str, _shaped(_MODULE, "module.path")]
Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, BeforeValidator(_seconds)]
Number = Annotated[str, BeforeValidator(_tolerance)]
Free = Annotated[dict[str, Any], BeforeValidator(_shown)]
