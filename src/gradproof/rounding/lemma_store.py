"""Step contracts: how each is discharged, and the store of evidence by content, which is checked before it is believed.

A lemma has one method. `solvers`: texts, each route asked of one solver of each family. `exhaustion`: a pass over every
case, shared by the lemmas of one operator and format. `derivation`: it follows from other lemmas by the reasons among
its assumptions. `text_digest` names everything that the verdict depends on, so evidence of another text is stale.

`proved/<lemma>.<sha256>.json` holds what was run and what came of it. The name carries the digest of the content; the
content carries the digest of the lemma's text. A verdict is never read from a file: it is judged from what the file
says was run. `proved` asks for an exhaustion without a violation, for `unsat` by two solvers of different families, or
for premises that are proved; `one solver` is a verdict of its own, and no proof here.

The digests guard against accidents and stale files, not against a forger, who is caught by `recheck`.
"""

from __future__ import annotations

import ast
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from hashlib import sha256
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradproof.arith.bounds import MOST_ODD
from gradproof.arith.formats import FORMATS, Format
from gradproof.core.check import digest_of
from gradproof.rounding import smtlib, solvers
from gradproof.rounding.certificate import LinearRow
from gradproof.rounding.step_contracts import (
    ADD_FORMS,
    LEMMAS,
    NARROWING,
    QUOTIENT_FORMS,
    ROUND_FORMS,
    SIXTEEN,
    SQRT_FORMS,
    TABLE_N,
    THREE,
    lemma_named,
    method,
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


@dataclass(frozen=True, slots=True)
class Passes:
    """One exhaustive pass: its parameters, the lemmas that it decides (by promise), how it is run, and its text."""

    parameters: Mapping[str, Any]
    decides: Mapping[str, tuple[str, ...]]
    run: Callable[[], Tally]
    sources: tuple[str, ...] = SOURCES


def _shape(f: Format) -> list[int]:
    return [f.bits, f.p, f.emin, f.emax]


def _run_ratios(kind: str, f: Format) -> Tally:
    from gradproof.rounding import exhaust_ops as ops

    if kind == "round":
        return ops.ratios(f, ops.reals(f))
    if f.name == "fp32":
        return ops.ratios(f, ops.significands(f, TABLE_N, product=kind == "multiply"))
    return ops.ratios(f, (ops.products if kind == "multiply" else ops.quotients)(f, TABLE_N))


def _run(module: str, name: str, *arguments: Any, **more: Any) -> Callable[[], Tally]:
    """A pass that is imported when it is run."""

    def run() -> Tally:
        made: Tally = getattr(import_module(f"gradproof.rounding.{module}"), name)(*arguments, **more)
        return made

    return run


def _each(prefix: str, forms: Iterable[str]) -> dict[str, tuple[str, ...]]:
    return {f"{prefix}/{form}": (form,) for form in forms}


def _passes() -> list[Passes]:
    made, single = [], FORMATS["fp32"]
    for fmt in SIXTEEN:
        f = FORMATS[fmt]
        kind = {"format": _shape(f), "literal": fmt != "bf16"}
        made.append(
            Passes(kind, _each(f"add/{fmt}", ADD_FORMS), _run("exhaust", "additions", f, literal=fmt != "bf16"))
        )
        alone = {"format": _shape(f)}
        made.append(Passes(alone, _each(f"round/{fmt}", ROUND_FORMS), partial(_run_ratios, "round", f)))
        made.append(Passes(alone, _each(f"convert/{fmt}-fp32", ("exact",)), _run("exhaust_ops", "widened", f, single)))
    for pair in NARROWING:
        f = FORMATS[pair.rpartition("-")[2]]
        shapes = {"from": _shape(single), "to": _shape(f)}
        made.append(
            Passes(shapes, _each(f"convert/{pair}", ROUND_FORMS), _run("exhaust_ops", "conversions", single, f))
        )
    for fmt in THREE:
        f = FORMATS[fmt]
        made.append(Passes({"format": _shape(f)}, {f"sqrt/{fmt}/table": SQRT_FORMS}, _run("exhaust_ops", "roots", f)))
        for operator in ("multiply", "divide"):
            known = {"format": _shape(f), "N": list(TABLE_N)}
            decides = {f"{operator}/{fmt}/table": tuple(ROUND_FORMS)}
            made.append(Passes(known, decides, partial(_run_ratios, operator, f)))
    for fmt in THREE:
        known = {"format": _shape(FORMATS[fmt]), "odd": [3, MOST_ODD]}
        decides = _each(f"divide-add/{fmt}", QUOTIENT_FORMS)
        made.append(
            Passes(
                known,
                decides,
                _run("exhaust_sums", "quotients_and_sums", FORMATS[fmt], range(3, MOST_ODD + 1, 2)),
                SUM_SOURCES,
            )
        )
    return made


PASSES: tuple[Passes, ...] = tuple(_passes())


def pass_of(name: str) -> Passes:
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


# -- Which step contracts a certificate rests on; none is used that is not proved.
def contracts_of(rows: Sequence[LinearRow]) -> list[str]:
    """Names of lemmas, sorted, that the reasons of these rows stand for."""
    found = set()
    for row in rows:
        signs = all(abs(c.numerator) == c.denominator == 1 for c, _ in row.terms)
        formats = tuple(str(rows[j].fmt) for _, j in row.terms) if len(row.terms) <= 2 else ()
        found.add((row.kind, str(row.fmt), row.slack > 0, signs, formats))
    return sorted({name for key in found for name in _contracts(*key)})


def _contracts(kind: str, fmt: str, error: bool, signs: bool, formats: tuple[str, ...]) -> list[str]:
    halves, added = ([f"{base}/{fmt}/half-ulp", f"{base}/{fmt}/grid"] for base in ("round", "add"))
    if kind == "round":
        return added if signs and formats == (fmt, fmt) else halves
    if kind in ("quotient", "joint", "pair"):
        return [*halves, *(added if kind != "quotient" else []), f"divide-add/{fmt}/{kind}"]
    if kind in ("fits", "shift"):
        return [f"round/{fmt}/exact", *([f"round/{fmt}/subnormal"] if error else [])]
    if kind in ("residual", "ordered"):
        return [f"add/{fmt}/error-representable", f"add/{fmt}/half-ulp"]
    return [f"convert/{formats[0]}-{fmt}/exact"] if kind == "widen" else []


@cache
def _required(names: tuple[str, ...]) -> None:

    require(names)


def require_contracts(rows: Sequence[LinearRow]) -> list[str]:
    """The contracts of the rows, each proved by evidence that was checked now. Raises LemmaRefused where one is not."""
    names = contracts_of(rows)
    _required(tuple(names))
    return names


SCHEMA = "gradproof-lemma/1"
PROVED_FOLDER = Path(__file__).parent / "proved"
SECONDS = 900.0
PROVED, ONE_SOLVER, REFUTED, OPEN = "proved", "one solver", "refuted", "open"
FIELDS = frozenset({"schema", "name", "statement", "assumes", "text", "method", "run", "verdict"})
RUN_FIELDS: Mapping[str, frozenset[str]] = {
    "solvers": frozenset({"replies"}),
    "exhaustion": frozenset({"cases", "violations", "first", "stands_for", "skipped", "seconds", "numpy"}),
    "derivation": frozenset({"premises"}),
}
Progress = Callable[[str], None]


class LemmaRefused(ValueError):
    """A step contract that must not be used; the message says why."""


@dataclass(frozen=True, slots=True)
class LemmaEvidence:
    """What stands behind one lemma."""

    name: str
    verdict: str
    method: str
    assumes: tuple[str, ...]
    run: Mapping[str, Any]
    path: Path


def _families(replies: Sequence[Mapping[str, Any]], known: Sequence[Route]) -> str:
    """The verdict of solvers: a reply counts for a route only if it answered all of that route's texts."""
    if any(r["answer"] == "sat" for r in replies):
        return REFUTED
    agreed = set()
    for reply in replies:
        asked = [r for r in known if r.encoding == reply["encoding"] and reply["solver"] in r.solvers]
        if reply["answer"] == "unsat" and reply["version"] and any(len(r.texts) == reply["texts"] for r in asked):
            agreed.add(solvers.FAMILIES[reply["solver"]])
    return PROVED if len(agreed) >= 2 else ONE_SOLVER if agreed else OPEN


def judge(name: str, run: Mapping[str, Any]) -> str:
    """The verdict that a run supports, premises aside. Raises KeyError or TypeError where the run has another shape."""
    kind = method(lemma_named(name))
    if set(run) != RUN_FIELDS[kind]:
        raise KeyError(f"the fields of a run by {kind}")
    if kind == "solvers":
        return _families(run["replies"], routes(name))
    if kind == "derivation":
        return PROVED if run["premises"] and run["premises"] == _premises(name) else OPEN
    cases, violations = run["cases"], run["violations"]
    if type(cases) is not int or type(violations) is not int:
        raise TypeError("counts are integers")
    return REFUTED if violations != 0 else PROVED if cases > 0 else OPEN


def _premises(name: str) -> dict[str, str]:
    return {premise: text_digest(premise) for premise in premises(lemma_named(name))}


def _slug(name: str) -> str:
    return name.replace("/", "_")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        raise ValueError("a key appears twice")
    return data


def _read(name: str, path: Path) -> dict[str, Any]:
    """The content of an evidence file whose name is the digest of it. Raises LemmaRefused."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_unique)
    except (OSError, ValueError) as e:
        raise LemmaRefused(f"{name}: {path.name} cannot be read: {e}") from e
    if path.name != f"{_slug(name)}.{digest_of(data)}.json":
        raise LemmaRefused(f"{name}: {path.name} is not named by the digest of its content: edited or cut short")
    if not isinstance(data, dict) or set(data) != FIELDS or data["schema"] != SCHEMA:
        raise LemmaRefused(f"{name}: {path.name} has not the fields of {SCHEMA}")
    return data


def load(name: str, folder: Path = PROVED_FOLDER) -> LemmaEvidence:
    """The evidence of one lemma, whatever its verdict. Raises LemmaRefused where there is none to believe, KeyError."""
    lemma = lemma_named(name)
    found = sorted(folder.glob(f"{_slug(name)}.*.json"))
    if len(found) != 1:
        raise LemmaRefused(f"{name}: {len(found) or 'no'} evidence files in {folder.name}")
    data = _read(name, found[0])
    if data["name"] != name or data["method"] != method(lemma):
        raise LemmaRefused(f"{name}: the file is about {data['name']!r} by {data['method']!r}")
    if data["text"] != text_digest(name):
        raise LemmaRefused(f"{name}: stale: the lemma's text changed since it was discharged")
    if data["statement"] != lemma.statement or data["assumes"] != list(lemma.assumes):
        raise LemmaRefused(f"{name}: the file states something else")
    try:
        verdict = judge(name, data["run"])
    except (KeyError, TypeError, AttributeError) as e:
        raise LemmaRefused(f"{name}: the file does not say what was run: {e}") from e
    if verdict != data["verdict"]:
        raise LemmaRefused(f"{name}: the file calls it {data['verdict']!r}, what was run supports {verdict!r}")
    return LemmaEvidence(name, verdict, data["method"], lemma.assumes, data["run"], found[0])


def require(names: Iterable[str], folder: Path = PROVED_FOLDER) -> list[LemmaEvidence]:
    """The evidence of lemmas that are all proved, and whose premises are, in the order asked.

    Raises LemmaRefused for the first that is not: missing, corrupted, stale, refuted, open, or with one solver only.
    """
    asked = list(names)
    try:
        order = in_order(asked)
    except KeyError as e:
        raise LemmaRefused(f"there is no lemma {e}") from e
    held = {}
    for name in order:
        evidence = load(name, folder)
        if evidence.verdict != PROVED:
            raise LemmaRefused(f"{name}: its verdict is {evidence.verdict!r}")
        held[name] = evidence
    return [held[name] for name in asked]


def stated(names: Iterable[str], folder: Path = PROVED_FOLDER) -> list[dict[str, Any]]:
    """What stands behind proved lemmas and all their premises, as JSON values, checked now. Raises LemmaRefused.

    Of solvers each reply (solver, version, encoding, answer), of an exhaustion its cases, of a derivation its premises.
    """
    rows = []
    for evidence in require(in_order(names), folder):
        row: dict[str, Any] = {"name": evidence.name, "method": evidence.method, "evidence": evidence.path.name}
        if evidence.method == "solvers":
            said = ("solver", "version", "encoding", "answer")
            row["solvers"] = [{key: reply[key] for key in said} for reply in evidence.run["replies"]]
        elif evidence.method == "exhaustion":
            row["cases"] = evidence.run["cases"]
        else:
            row["premises"] = sorted(evidence.run["premises"])
        rows.append(row)
    return rows


def _write(name: str, run: Mapping[str, Any], folder: Path) -> LemmaEvidence:
    """Store one run whole or not at all, then drop older files of the lemma."""
    from gradproof.core.files import replace_whole

    lemma, verdict = LEMMAS[name], judge(name, run)
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "name": name,
        "statement": lemma.statement,
        "assumes": list(lemma.assumes),
    }
    data |= {"text": text_digest(name), "method": method(lemma), "run": dict(run), "verdict": verdict}
    path = folder / f"{_slug(name)}.{digest_of(data)}.json"
    replace_whole(path, json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")
    for older in folder.glob(f"{_slug(name)}.*.json"):
        if older != path:
            older.unlink()
    return LemmaEvidence(name, verdict, method(lemma), lemma.assumes, run, path)


def _ask(name: str, seconds: float) -> dict[str, Any]:
    """Put a lemma's texts to one solver of each family: the first of the family that is installed."""
    replies = []
    for route in routes(name):
        solver = next((s for s in route.solvers if solvers.version_of(s)), route.solvers[0])
        reply = solvers.decide(route.texts, solver, seconds)
        replies.append({"encoding": route.encoding, "family": solvers.FAMILIES[solver], **asdict(reply)})
    return {"replies": replies}


def _enumerate(p: Passes) -> dict[str, dict[str, Any]]:
    """One exhaustive pass: the run of each lemma that it decides, seconds shared by all."""
    began = time.monotonic()
    tally = p.run()
    common = {"skipped": tally.skipped, "seconds": round(time.monotonic() - began, 2)}
    made = {}
    for name, forms in p.decides.items():
        counts = [tally.counts[form] for form in forms]
        cases = min(c.cases for c in counts)
        made[name] = {
            "cases": cases,
            "violations": sum(c.violations for c in counts),
            "first": next((c.first for c in counts if c.first), ""),
            "stands_for": tally.stands_for or cases,
            "numpy": metadata.version("numpy"),
            **common,
        }
    return made


def _runs(names: Sequence[str], seconds: float) -> Iterable[tuple[str, dict[str, Any]]]:
    """The run of each lemma, premises first; a pass that decides several is made once."""
    made: dict[str, dict[str, Any]] = {}
    for name in names:
        kind = method(LEMMAS[name])
        if kind == "exhaustion" and name not in made:
            made |= _enumerate(pass_of(name))
        if kind == "exhaustion":
            yield name, made[name]
        else:
            yield name, _ask(name, seconds) if kind == "solvers" else {"premises": _premises(name)}


def _quiet(_: str) -> None:
    return None


def rebuild(
    names: Iterable[str] | None = None,
    folder: Path = PROVED_FOLDER,
    progress: Progress = _quiet,
    seconds: float = SECONDS,
) -> list[LemmaEvidence]:
    """Discharge lemmas (all by default) from nothing and write their evidence; each file is whole or not there.

    `seconds` is the limit of one solver on one lemma. Premises of the names are not rebuilt unless they are named.
    """
    asked = list(LEMMAS if names is None else names)
    order = [name for name in in_order(asked) if name in asked]
    done, began = [], time.monotonic()
    for name, run in _runs(order, seconds):
        done.append(_write(name, run, folder))
        progress(f"{time.monotonic() - began:8.1f} s  {done[-1].verdict:10}  {name}")
    return done


def recheck(name: str, folder: Path = PROVED_FOLDER, seconds: float = SECONDS) -> tuple[str, str]:
    """(stored verdict, verdict of a new run) of one lemma; nothing is written. Raises LemmaRefused, KeyError."""
    stored = load(name, folder).verdict
    run = next(iter(_runs([name], seconds)))[1]
    return stored, judge(name, run)


def statuses(folder: Path = PROVED_FOLDER) -> dict[str, str]:
    """Of every lemma: `proved`, or why it is refused."""
    found = {}
    for name in LEMMAS:
        try:
            found[name] = require([name], folder)[0].verdict
        except LemmaRefused as e:
            found[name] = str(e)
    return found


def main(arguments: Sequence[str]) -> int:
    """`--list`, `--check` or `--rebuild [NAME ...]`; 1 unless every lemma asked about is proved."""
    from argparse import ArgumentParser

    parser = ArgumentParser(prog="gradproof.rounding.lemma_store", description="Step contracts and their evidence.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--list", action="store_true", help="every lemma and what it states")
    action.add_argument("--check", action="store_true", help="whether the stored evidence proves every lemma")
    action.add_argument("--rebuild", nargs="*", metavar="NAME", help="discharge the named lemmas, or all, from nothing")
    chosen = parser.parse_args(arguments)
    if chosen.list:
        for lemma in LEMMAS.values():
            print(f"{lemma.name:34} {method(lemma):11} {lemma.statement}")
        return 0
    if chosen.rebuild is not None:
        unknown = [name for name in chosen.rebuild if name not in LEMMAS]
        if unknown:
            parser.error(f"no such lemma: {', '.join(unknown)}")
        made = rebuild(chosen.rebuild or None, progress=lambda line: print(line, flush=True))
        return 0 if all(e.verdict == PROVED for e in made) else 1
    found = statuses()
    for name, verdict in found.items():
        print(f"{name:34} {verdict}")
    return 0 if all(verdict == PROVED for verdict in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
