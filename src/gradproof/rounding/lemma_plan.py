"""How each step contract is discharged: what is asked of solvers, what is enumerated, what follows from what.

A lemma has one method. `solvers`: texts, each route asked of one solver of each family. `exhaustion`: a pass over every
case, shared by the lemmas of one operator and format. `derivation`: it follows from other lemmas by the reasons among
its assumptions. `text_digest` names everything that the verdict depends on, so evidence of another text is stale.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradproof.arith.bounds import MOST_ODD
from gradproof.arith.formats import FORMATS, Format
from gradproof.core.check import digest_of
from gradproof.rounding import smtlib
from gradproof.rounding.step_contracts import (
    ADD_FORMS,
    EXACT_RESULT,
    LEMMAS,
    NARROWING,
    QUOTIENT_FORMS,
    ROUND_FORMS,
    SIXTEEN,
    SQRT_FORMS,
    TABLE_N,
    THREE,
    Lemma,
    premises,
)

if TYPE_CHECKING:
    from gradproof.rounding.exhaust import Tally

SYMFPU = ("bitwuzla", "cvc5")
OWN = ("z3",)
SOURCES = ("rounding/exhaust.py", "rounding/exhaust_ops.py")
SUM_SOURCES = ("rounding/exhaust.py", "rounding/exhaust_sums.py")
USED = ("binade", "tiny", "largest", "spacing", "round", "representable", "nonnegative")


@dataclass(frozen=True, slots=True)
class Route:
    """One encoding of a lemma and the solvers of one family, the first installed of which is asked."""

    encoding: str
    texts: tuple[str, ...]
    solvers: tuple[str, ...]


def _both(encoding: str, text: str) -> tuple[Route, ...]:
    return Route(encoding, (text,), SYMFPU), Route(encoding, (text,), OWN)


@cache
def routes(name: str) -> tuple[Route, ...]:
    """What is asked of solvers about a lemma; nothing for a lemma of another method."""
    f = FORMATS["fp32"]
    operator, fmt, form = name.split("/")
    if fmt != "fp32" or method(LEMMAS[name]) != "solvers":
        return ()
    if operator == "round":
        return _both("fp64 to fp32", smtlib.round_text(f, form))
    if form == "half-ulp":
        wide = Route("wide", (smtlib.add_half_ulp_wide(f),), SYMFPU)
        return wide, Route("split", smtlib.split_texts(f), OWN)
    written: Mapping[str, Callable[[Format], str]] = {
        "error-representable": smtlib.add_error_representable,
        "at-most-terms": smtlib.add_at_most_terms,
        "grid": smtlib.add_grid,
        "exact": smtlib.add_exact,
        "subnormal": smtlib.add_subnormal,
        "ftz": smtlib.add_ftz,
    }
    return _both("same format", written[form](f))


DERIVED_ADD = ("add/fp32/relative", "add/fp32/multiples")


def method(lemma: Lemma) -> str:
    """`solvers`, `exhaustion` or `derivation`."""
    form = lemma.name.rpartition("/")[2]
    if lemma.name in DERIVED_ADD or (lemma.operator in EXACT_RESULT and form != "table"):
        return "derivation"
    return "solvers" if lemma.fmt == "fp32" and lemma.operator in ("round", "add") else "exhaustion"


@dataclass(frozen=True, slots=True)
class Pass:
    """One exhaustive pass: its parameters, the lemmas that it decides (by promise), how it is run, and its text."""

    parameters: Mapping[str, Any]
    decides: Mapping[str, tuple[str, ...]]
    run: Callable[[], Tally]
    sources: tuple[str, ...] = SOURCES


def _shape(f: Format) -> list[int]:
    return [f.bits, f.p, f.emin, f.emax]


def _run_add(f: Format) -> Tally:
    from gradproof.rounding import exhaust

    return exhaust.additions(f, literal=f.name != "bf16")


def _run_ratios(kind: str, f: Format) -> Tally:
    from gradproof.rounding import exhaust_ops as ops

    if kind == "round":
        return ops.ratios(f, ops.reals(f))
    if f.name == "fp32":
        return ops.ratios(f, ops.significands(f, TABLE_N, product=kind == "multiply"))
    return ops.ratios(f, (ops.products if kind == "multiply" else ops.quotients)(f, TABLE_N))


def _run_roots(f: Format) -> Tally:
    from gradproof.rounding import exhaust_ops as ops

    return ops.roots(f)


def _run_narrowing(f: Format) -> Tally:
    from gradproof.rounding import exhaust_ops as ops

    return ops.conversions(FORMATS["fp32"], f)


def _run_widening(f: Format) -> Tally:
    from gradproof.rounding import exhaust_ops as ops

    return ops.widened(f, FORMATS["fp32"])


def _run_sums(f: Format) -> Tally:
    from gradproof.rounding import exhaust_sums

    return exhaust_sums.quotients_and_sums(f, range(3, MOST_ODD + 1, 2))


def _each(prefix: str, forms: Iterable[str]) -> dict[str, tuple[str, ...]]:
    return {f"{prefix}/{form}": (form,) for form in forms}


def _passes() -> list[Pass]:
    made = []
    for fmt in SIXTEEN:
        f = FORMATS[fmt]
        kind = {"format": _shape(f), "literal": fmt != "bf16"}
        made.append(Pass(kind, _each(f"add/{fmt}", ADD_FORMS), partial(_run_add, f)))
        alone = {"format": _shape(f)}
        made.append(Pass(alone, _each(f"round/{fmt}", ROUND_FORMS), partial(_run_ratios, "round", f)))
        made.append(Pass(alone, _each(f"convert/{fmt}-fp32", ("exact",)), partial(_run_widening, f)))
    for pair in NARROWING:
        f = FORMATS[pair.rpartition("-")[2]]
        shapes = {"from": _shape(FORMATS["fp32"]), "to": _shape(f)}
        made.append(Pass(shapes, _each(f"convert/{pair}", ROUND_FORMS), partial(_run_narrowing, f)))
    for fmt in THREE:
        f = FORMATS[fmt]
        made.append(Pass({"format": _shape(f)}, {f"sqrt/{fmt}/table": SQRT_FORMS}, partial(_run_roots, f)))
        for operator in ("multiply", "divide"):
            known = {"format": _shape(f), "N": list(TABLE_N)}
            decides = {f"{operator}/{fmt}/table": tuple(ROUND_FORMS)}
            made.append(Pass(known, decides, partial(_run_ratios, operator, f)))
    for fmt in THREE:
        known = {"format": _shape(FORMATS[fmt]), "odd": [3, MOST_ODD]}
        decides = _each(f"divide-add/{fmt}", QUOTIENT_FORMS)
        made.append(Pass(known, decides, partial(_run_sums, FORMATS[fmt]), SUM_SOURCES))
    return made


PASSES: tuple[Pass, ...] = tuple(_passes())


def pass_of(name: str) -> Pass:
    """The exhaustive pass that decides a lemma. Raises KeyError for a lemma of another method."""
    for p in PASSES:
        if name in p.decides:
            return p
    raise KeyError(name)


def _used_of_formats(text: str) -> str:
    """What the passes use of the formats: those functions as they are written. Raises ImportError where one is gone."""
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef) and node.name in USED]
    if sorted(node.name for node in found) != sorted(USED):
        raise ImportError(f"not each of {', '.join(USED)} is defined once")
    return "\0".join(ast.get_source_segment(text, node) or "" for node in found)


@cache
def _source_digest(sources: tuple[str, ...]) -> str:
    """SHA-256 of the text of the passes, and of what they use of the formats."""
    here = Path(__file__).parents[1]
    texts = [(here / name).read_text(encoding="utf-8") for name in sources]
    texts.append(_used_of_formats((here / "arith/formats.py").read_text(encoding="utf-8")))
    return sha256("\0".join(texts).encode()).hexdigest()


@cache
def text_digest(name: str) -> str:
    """SHA-256 of everything that the verdict on a lemma depends on: its words, and texts, source or premises."""
    lemma = LEMMAS[name]
    said: dict[str, Any] = {"name": name, "statement": lemma.statement, "assumes": list(lemma.assumes)}
    kind = method(lemma)
    if kind == "solvers":
        said["routes"] = [[r.encoding, list(r.texts), list(r.solvers)] for r in routes(name)]
    elif kind == "exhaustion":
        p = pass_of(name)
        said |= {"source": _source_digest(p.sources), "parameters": dict(p.parameters), "forms": list(p.decides[name])}
    said["premises"] = {premise: text_digest(premise) for premise in premises(lemma)}
    return digest_of(said)


def in_order(names: Iterable[str]) -> list[str]:
    """Lemmas with every premise before what rests on it. Raises KeyError for an unknown name."""
    done: list[str] = []

    def visit(name: str) -> None:
        if name in done:
            return
        for premise in premises(LEMMAS[name]):
            visit(premise)
        done.append(name)

    for name in names:
        visit(name)
    return done
