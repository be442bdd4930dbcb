"""What stands behind a proof, read from its evidence alone: certificates, lemmas, enumerations, solvers. Pure.

`finding.stats` of a proof may hold `certificates` (one a claim: digest, bound, what is claimed, the lemmas it rests
on), `lemmas` (one a lemma and premise: the replies of solvers, or the cases of an exhaustion, or premises),
`exhaustion` (one a claim: the exact worst case) and `solvers` (whose `unsat` the proof is). A gate may require
certificates, and two solvers of different families behind everything that solvers decided. What is not there is
missing: nothing is taken on trust.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from gradproof.core.check import Check
from gradproof.core.outcome import Kind
from gradproof.evidence.audit import belongs

if TYPE_CHECKING:
    from gradproof.rounding.step_contracts import Lemma

_DIGEST = re.compile(r"[0-9a-f]{64}")
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Required:
    """Strategies whose proofs need a certificate, and strategies that need a second solver behind every first one."""

    certificates: frozenset[str] = frozenset()
    second_solver: frozenset[str] = frozenset()


NOTHING = Required()


def shortfall(check: Check, finding: Mapping[str, Any], required: Required = NOTHING) -> str:
    """Why the backing of a proof that holds does not suffice; an empty text where it does."""
    stats = finding["stats"]
    try:
        return next(_missing(check, finding, stats, required), "")
    except (AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        return f"what its evidence says of its backing has the wrong shape: {type(error).__name__}: {error}"


def _missing(check: Check, finding: Mapping[str, Any], stats: Row, required: Required) -> Iterator[str]:
    if check.params.get("lemmas") and (check.kind is Kind.STUB or check.strategy == "step_contract"):
        yield from _unbacked(_named(check), stats)
    if check.strategy == "bit_exhaustive":
        yield from _unenumerated(finding, stats)
    if check.strategy in required.certificates:
        yield from _uncertified(check, finding, stats)
    if check.strategy in required.second_solver:
        yield from _alone(check, stats)


def _named(check: Check) -> list[str]:
    from gradproof.rounding.step_contracts import named

    return named(check.params["lemmas"])


def _unbacked(names: Sequence[str], stats: Row, exact: bool = False) -> Iterator[str]:
    """Lemmas without a row, and rows that prove nothing; premises count alike. `exact`: nothing may be rounded."""
    from gradproof.rounding.lemma_store import method
    from gradproof.rounding.step_contracts import LEMMAS

    rows = {row["name"]: row for row in stats.get("lemmas", ())}
    if not names and not exact:
        yield "it names no lemma"
    for name in names:
        if name not in rows:
            yield f"its evidence has nothing of the lemma {name}"
    for name, row in rows.items():
        lemma = LEMMAS.get(name)
        if lemma is None or row["method"] != method(lemma):
            yield f"there is no lemma {name} that is proved by {row['method']}"
        elif row["method"] == "exhaustion" and not (type(row["cases"]) is int and row["cases"] > 0):
            yield f"the lemma {name} is enumerated over no case"
        elif row["method"] == "solvers" and not families(row["solvers"]):
            yield f"no solver answers the lemma {name}"
        elif row["method"] == "derivation" and not _follows(lemma, row, rows):
            yield f"the lemma {name} follows from premises that are not there"
        elif row["method"] not in ("exhaustion", "solvers", "derivation"):
            yield f"the lemma {name} has the unknown method {row['method']!r}"


def _follows(lemma: Lemma, row: Row, rows: Row) -> bool:
    """Whether the premises are those of the lemma, and are there."""
    from gradproof.rounding.step_contracts import premises

    return list(row["premises"]) == list(premises(lemma)) and rows.keys() >= {*row["premises"]}


def _unenumerated(finding: Mapping[str, Any], stats: Row) -> Iterator[str]:
    rows = stats.get("exhaustion", ())
    for clause in finding["clauses"]:
        if not any(row["clause"] == clause and type(row["numbers"]) is int and row["numbers"] > 0 for row in rows):
            yield f"no enumeration stands behind {clause}"
    for row in rows:
        if Fraction(row["worst"]) > Fraction(row["claimed"]):
            yield f"the worst case of {row['label']} exceeds what is claimed"


def _uncertified(check: Check, finding: Mapping[str, Any], stats: Row) -> Iterator[str]:
    rows = stats.get("certificates", ())
    for clause in [*check.obligations, *finding["clauses"]]:
        if not any(belongs(row["clause"], clause) for row in rows):
            yield f"the gate requires a certificate of every {check.strategy} proof; there is none of {clause}"
    for row in rows:
        if not _DIGEST.fullmatch(row["sha256"]) or Fraction(row["bound"]) > Fraction(row["claimed"]):
            yield f"the certificate of {row['label']} does not prove what is claimed"
        yield from _unbacked(row["contracts"], stats, exact=Fraction(row["bound"]) == 0)


def _alone(check: Check, stats: Row) -> Iterator[str]:
    rule = f"the gate requires two solvers of different families behind every {check.strategy} proof"
    lemmas = stats.get("lemmas", ())
    for row in stats.get("certificates", ()):
        yield from _unbacked(row["contracts"], stats, exact=Fraction(row["bound"]) == 0)
    own = stats.get("solvers", ())
    if not (own or stats.get("certificates") or check.strategy == "step_contract"):
        yield f"{rule}; nothing in its evidence says what this one rests on"
    for row in lemmas:
        if row["method"] == "solvers" and len(found := families(row["solvers"])) < 2:
            yield f"{rule}; the lemma {row['name']} has {' and '.join(found) or 'none'}"
    if own and len(found := families(own)) < 2:
        yield f"{rule}; this one has {' and '.join(found) or 'none'}"


def families(replies: Sequence[Row]) -> list[str]:
    """Families of the solvers that answered `unsat`; none where one answered otherwise with a counterexample."""
    from gradproof.rounding.solvers import FAMILIES

    if any(reply["answer"] == "sat" for reply in replies):
        return []
    agreed = [reply["solver"] for reply in replies if reply["answer"] == "unsat" and reply["version"]]
    return sorted({FAMILIES[name] for name in agreed if name in FAMILIES})


def words(stats: Row) -> str:
    """What stands behind a proof, in words; empty where its evidence names nothing."""
    parts = [_certificate_words(stats), _lemma_words(stats), _exhaustion_words(stats)]
    solvers = [f"{row['solver']} {row['version']}" for row in stats.get("solvers", ())]
    if solvers:
        only = "one solver only" if len(families(stats["solvers"])) < 2 else "solvers of different families"
        parts.append(f"{only} ({', '.join(solvers)})")
    return "; ".join(filter(None, parts))


def _certificate_words(stats: Row) -> str:
    rows = stats.get("certificates") or []
    digests = ", ".join(dict.fromkeys(row["sha256"][:12] for row in rows))
    return f"{_count(len(rows), 'Farkas certificate')} that the checker accepted ({digests})" if rows else ""


def _lemma_words(stats: Row) -> str:
    rows = stats.get("lemmas") or []
    if not rows:
        return ""
    two = sum(row["method"] == "solvers" and len(families(row["solvers"])) >= 2 for row in rows)
    one = sum(row["method"] == "solvers" for row in rows) - two
    counts = [(two, "by two solver families"), (one, "by one solver only")]
    counts += [(sum(row["method"] == m for row in rows), f"by {m}") for m in ("exhaustion", "derivation")]
    return f"{_count(len(rows), 'lemma')}: {', '.join(f'{n} {how}' for n, how in counts if n)}"


def _exhaustion_words(stats: Row) -> str:
    rows = stats.get("exhaustion") or []
    worst = max((Fraction(row["worst"]) for row in rows), default=Fraction(0))
    return f"every input enumerated, the exact worst case is {float(worst):.6g}" if rows else ""


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def lemma_lines(stats: Row) -> Iterator[str]:
    """One line a lemma: its method, and each solver's verdict."""
    from gradproof.rounding.solvers import FAMILIES

    for row in stats.get("lemmas") or ():
        if row["method"] == "solvers":
            said = [f"{r['solver']} {r['version']} ({FAMILIES.get(r['solver'], '?')})" for r in row["solvers"]]
            answers = [f"{who} {r['answer']}" for who, r in zip(said, row["solvers"], strict=True)]
            yield f"{row['name']}: {', '.join(answers)}"
        elif row["method"] == "exhaustion":
            yield f"{row['name']}: exhaustion of {row['cases']} cases"
        else:
            yield f"{row['name']}: derived from {', '.join(row['premises'])}"
