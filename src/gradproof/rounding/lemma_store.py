"""The store of step contracts: evidence by content, believed only after it has been checked.

`proved/<lemma>.<sha256>.json` holds what was run and what came of it. The name carries the digest of the content; the
content carries the digest of the lemma's text. A verdict is never read from a file: it is judged from what the file
says was run. `proved` asks for an exhaustion without a violation, for `unsat` by two solvers of different families, or
for premises that are proved; `one solver` is a verdict of its own, and no proof here.

The digests guard against accidents and stale files, not against a forger, who is caught by `recheck`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from gradproof.core.check import digest_of
from gradproof.rounding import solvers
from gradproof.rounding.certificate import Row
from gradproof.rounding.lemma_plan import Pass, Route, in_order, method, pass_of, routes, text_digest
from gradproof.rounding.step_contracts import LEMMAS, lemma_named, premises


# -- Which step contracts a certificate rests on; none is used that is not proved.
def contracts_of(rows: Sequence[Row]) -> list[str]:
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


def require_contracts(rows: Sequence[Row]) -> list[str]:
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
class Evidence:
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


def load(name: str, folder: Path = PROVED_FOLDER) -> Evidence:
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
    return Evidence(name, verdict, data["method"], lemma.assumes, data["run"], found[0])


def require(names: Iterable[str], folder: Path = PROVED_FOLDER) -> list[Evidence]:
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


def told(names: Iterable[str], folder: Path = PROVED_FOLDER) -> list[dict[str, Any]]:
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


def _write(name: str, run: Mapping[str, Any], folder: Path) -> Evidence:
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
    return Evidence(name, verdict, method(lemma), lemma.assumes, run, path)


def _ask(name: str, seconds: float) -> dict[str, Any]:
    """Put a lemma's texts to one solver of each family: the first of the family that is installed."""
    replies = []
    for route in routes(name):
        solver = next((s for s in route.solvers if solvers.version_of(s)), route.solvers[0])
        reply = solvers.decide(route.texts, solver, seconds)
        replies.append({"encoding": route.encoding, "family": solvers.FAMILIES[solver], **reply.to_json()})
    return {"replies": replies}


def _enumerate(p: Pass) -> dict[str, dict[str, Any]]:
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
) -> list[Evidence]:
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


def standings(folder: Path = PROVED_FOLDER) -> dict[str, str]:
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
    found = standings()
    for name, verdict in found.items():
        print(f"{name:34} {verdict}")
    return 0 if all(verdict == PROVED for verdict in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
