"""Evidence -> verdict. Pure: what it is given decides what it says.

Coverage is counted per obligation and layer, from evidence that ran, is fresh and was not vacuous. A required layer
with no check is OPEN. A check whose stub is not discharged counts as NOT_RUN, unless it is refuted anyway; a contract
that depends on one that is not discharged is OPEN, unless it is BROKEN anyway. What a release demands beyond that, and
what it excuses, is in gradproof.contract.settings.

What stands behind a proof is read from its evidence alone. `finding.stats` may hold `certificates` (one a claim:
digest, bound, what is claimed, the lemmas it rests on), `lemmas` (one a lemma and premise: the replies of solvers, or
the cases of an exhaustion, or premises), `exhaustion` (one a claim: the exact worst case) and `solvers` (whose `unsat`
the proof is). A gate may require certificates, and two solvers of different families behind everything that solvers
decided. What is not there is missing: nothing is taken on trust.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import TYPE_CHECKING

from gradproof.contract.schema import InputsShape, Least, Waiver
from gradproof.contract.settings import REACHES, Demands
from gradproof.core.check import Check
from gradproof.core.outcome import DECISION, EXIT_CODE, EXIT_MEANING, Effect, Exit, Expect, Kind, Layer, Outcome, Reach
from gradproof.evidence.audit import audit, belongs
from gradproof.evidence.record import EvidenceStatus
from gradproof.verdict.plan import Clause, GateCriterion, KnownLemma, Policy, outdated, shortcoming

if TYPE_CHECKING:
    from gradproof.core.schemas.evidence import EvidenceFinding, FreeField, ReplyRow, Stats

_MISSING = EvidenceStatus(None, False, "it was never run")
NO_MODEL = "no check of the contract's model in this cell"


@dataclass(frozen=True)
class Ruling:
    """One check as it counts. `outcome` may be worse than what its evidence says."""

    check: Check
    status: EvidenceStatus
    outcome: Outcome
    effect: Effect
    reason: str
    reach: Reach | None
    required: bool


@dataclass(frozen=True)
class ObligationCell:
    """One obligation in one layer. `effect` is None where nothing is planned and nothing is asked for.

    `reach` is that of the checks of the contract's own model; `beyond` tells other subjects that are reached further,
    as (subject, reach). `reason` says why a cell is open whose checks are all discharged.
    """

    effect: Effect | None
    outcomes: tuple[Outcome, ...]
    reach: Reach | None
    required: bool
    checks: tuple[str, ...]
    beyond: tuple[tuple[str, Reach], ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class ObligationRuling:
    """One row of the coverage matrix; `discharged` of `required` cells. `waived`: each that is open is waived."""

    id: str
    effect: Effect
    discharged: int
    required: int
    cells: Mapping[Layer, ObligationCell]
    waived: tuple[Waiver, ...] = ()


@dataclass(frozen=True)
class CriterionRuling:
    """One criterion of the gate."""

    name: str
    obligations: tuple[str, ...]
    met: bool
    why: str


@dataclass(frozen=True)
class WaiverRuling:
    """A waiver: `in force` over open cells, `expired`, or `unused` because nothing that it covers is open."""

    waiver: Waiver
    state: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """The whole judgement, with the exit code and every reason against a met gate."""

    exit: Exit
    reasons: tuple[str, ...]
    rulings: Mapping[str, Ruling]
    obligations: Mapping[str, ObligationRuling]
    criteria: tuple[CriterionRuling, ...]
    waivers: tuple[WaiverRuling, ...] = ()

    @property
    def code(self) -> int:
        """Exit code of a program that reports this verdict."""
        return EXIT_CODE[self.exit]


def judge(checks: Sequence[Check], evidence: Mapping[str, EvidenceStatus], policy: Policy) -> Verdict:
    """The verdict on `checks`, given the status evidence of each."""
    rulings: dict[str, Ruling] = {}
    for check in _by_dependence(checks):
        rulings[check.id] = _rule(check, evidence.get(check.id, _MISSING), rulings, policy)
    rulings = {check.id: rulings[check.id] for check in checks}
    obligations = {clause.id: _obligation(clause, rulings, policy.demands) for clause in policy.clauses}
    criteria = tuple(_criterion(criterion, obligations) for criterion in policy.criteria)
    exit_, reasons = _exit(rulings, obligations, criteria, policy)
    waivers = tuple(_waived(waiver, obligations, policy.demands) for waiver in policy.demands.waivers)
    return Verdict(exit_, tuple(reasons), rulings, obligations, criteria, waivers)


def _waived(waiver: Waiver, obligations: Mapping[str, ObligationRuling], demands: Demands) -> WaiverRuling:
    cells = tuple(
        f"{row.id} x {layer}"
        for row in obligations.values()
        for layer, cell in row.cells.items()
        if cell.required and cell.effect is Effect.OPEN and waiver.covers(row.id, layer)
    )
    state = "unused" if not cells else "in force" if demands.in_force(waiver) else "expired"
    return WaiverRuling(waiver, state, cells)


def _by_dependence(checks: Sequence[Check]) -> list[Check]:
    """Stubs before what rests on them; a circle is left in the order given, and so never discharged."""
    order: list[Check] = []
    done: set[str] = set()
    names = {c.id for c in checks}
    left = list(checks)
    while left:
        ready = [c for c in left if all(d in done or d not in names for d in c.depends)] or left
        order += ready
        done |= {c.id for c in ready}
        left = [c for c in left if c.id not in done]
    return order


def required(check: Check, policy: Policy) -> bool:
    """Whether the policy demands an answer of this check."""
    if policy.restricted:
        return check.layer in policy.demanded
    if check.kind in (Kind.STUB, Kind.GATE):
        return True
    return any(c.id in check.obligations and check.layer in c.layers for c in policy.clauses)


def _rule(check: Check, status: EvidenceStatus, above: Mapping[str, Ruling], policy: Policy) -> Ruling:
    outcome, reason = Outcome.NOT_RUN, status.reason
    if status.evidence is not None and status.fresh:
        outcome, reason = audit(check, status.evidence.finding)
    elif status.evidence is not None:
        reason = f"its evidence is stale: {status.reason}"
    if status.evidence is not None and outcome is not Outcome.NOT_RUN:
        old = outdated(status.evidence, check.layer, policy.demands)
        outcome, reason = (Outcome.NOT_RUN, f"its evidence does not count: {old}") if old else (outcome, reason)
    effect = DECISION[check.expect, outcome]
    if status.evidence is not None and outcome is Outcome.HOLDS and effect is Effect.DISCHARGED:
        missing = shortfall(check, status.evidence.finding, policy)
        outcome, reason = (
            (Outcome.NOT_RUN, f"its justification does not suffice: {missing}") if missing else (outcome, reason)
        )
        effect = DECISION[check.expect, outcome]
    loose = [d for d in check.depends if d not in above or above[d].effect is not Effect.DISCHARGED]
    if effect is Effect.DISCHARGED and loose:
        outcome, reason = Outcome.NOT_RUN, f"it rests on {', '.join(loose)}, which is not discharged"
        effect = DECISION[check.expect, outcome]
    reach = None
    if status.evidence is not None and effect is Effect.DISCHARGED and outcome is Outcome.HOLDS:
        reach = status.evidence.finding.reach
    return Ruling(check, status, outcome, effect, reason, reach, required(check, policy))


def _obligation(clause: Clause, rulings: Mapping[str, Ruling], demands: Demands) -> ObligationRuling:
    least = demands.least.get(clause.id, Least())
    cells = {layer: _cell(clause, layer, rulings, least) for layer in Layer}
    demanded = [cell for cell in cells.values() if cell.required]
    discharged = sum(cell.effect is Effect.DISCHARGED for cell in demanded)
    effect = Effect.DISCHARGED if demanded and discharged == len(demanded) else Effect.OPEN
    if any(cell.effect is Effect.BROKEN for cell in cells.values()):
        effect = Effect.BROKEN
    open_ = [layer for layer, cell in cells.items() if cell.required and cell.effect is Effect.OPEN]
    found = [demands.waived(clause.id, layer) for layer in open_]
    waived = tuple(dict.fromkeys(w for w in found if w is not None)) if effect is Effect.OPEN and all(found) else ()
    return ObligationRuling(clause.id, effect, discharged, len(demanded), cells, waived)


def subject_of(subjects: Mapping[str, str], layer: Layer) -> str:
    """What a cell of this layer is about: the contract's model, or its PyTorch step. Empty when it names none."""
    return str(subjects.get("torch" if layer in (Layer.STEP, Layer.CPU, Layer.CUDA) else "model", ""))


def _of_model(check: Check, clause: Clause) -> bool:
    """Whether a check is about the clause's model, or else the contract's; never, when neither names one."""
    own = subject_of({**check.params.get("subjects", {}), **clause.subjects}, check.layer)
    return own != "" and check.subject == own


def _cell(clause: Clause, layer: Layer, rulings: Mapping[str, Ruling], least: Least) -> ObligationCell:
    """DISCHARGED only by all of its checks, at least one of which shows that it holds of the contract's own model."""
    counted = [
        r
        for r in rulings.values()
        if clause.id in r.check.obligations and r.check.layer is layer and r.check.kind not in (Kind.STUB, Kind.GATE)
    ]
    effects = [r.effect for r in counted]
    shown = [r for r in counted if r.check.expect is Expect.HOLDS and r.effect is Effect.DISCHARGED]
    proofs = [r for r in shown if _of_model(r.check, clause)]
    reaches = [r.reach for r in proofs]
    wanted = layer in clause.layers
    reason = ""
    effect: Effect | None
    if Effect.BROKEN in effects:
        effect = Effect.BROKEN
    elif proofs and all(e is Effect.DISCHARGED for e in effects):
        effect = Effect.DISCHARGED
        reason = shortcoming(least, layer, [(r.check, r.reach) for r in proofs])
        effect = Effect.OPEN if reason else effect
    else:
        effect = Effect.OPEN if counted or wanted else None
        if counted and all(e is Effect.DISCHARGED for e in effects):
            reason = NO_MODEL if shown else "only expected refutations, nothing shows that it holds"
    done = effect is Effect.DISCHARGED
    reach = next((r for r in REACHES if r in reaches), None) if done else None
    beyond = _beyond([r for r in shown if r not in proofs], reach) if done else ()
    checks = tuple(r.check.id for r in counted)
    return ObligationCell(effect, tuple(r.outcome for r in counted), reach, wanted, checks, beyond, reason)


def _beyond(others: Sequence[Ruling], reach: Reach | None) -> tuple[tuple[str, Reach], ...]:
    """Other subjects of which more is known than of the contract's model: (subject, its best reach)."""
    best: dict[str, Reach] = {}
    for other in others:
        if other.reach is None or (reach is not None and REACHES.index(other.reach) >= REACHES.index(reach)):
            continue
        held = best.setdefault(other.check.subject, other.reach)
        best[other.check.subject] = min(held, other.reach, key=REACHES.index)
    return tuple(best.items())


def _criterion(criterion: GateCriterion, obligations: Mapping[str, ObligationRuling]) -> CriterionRuling:
    open_ = [
        f"{name} is {obligations[name].effect if name in obligations else 'no obligation of the contract'}"
        for name in criterion.obligations
        if name not in obligations or not (obligations[name].effect is Effect.DISCHARGED or obligations[name].waived)
    ]
    if not criterion.obligations:
        open_ = ["it names no obligation"]
    rows = [obligations[name] for name in criterion.obligations if name in obligations]
    good = f"{sum(not row.waived for row in rows)} of {len(rows)} obligations DISCHARGED"
    good += "".join(f"; {waiver.words()}" for row in rows for waiver in row.waived)
    return CriterionRuling(criterion.name, criterion.obligations, not open_, "; ".join(open_) or good)


def _exit(
    rulings: Mapping[str, Ruling],
    obligations: Mapping[str, ObligationRuling],
    criteria: Sequence[CriterionRuling],
    policy: Policy,
) -> tuple[Exit, list[str]]:
    """The first that applies of BROKEN, CRASH, OPEN, NOTHING; with every reason, worst first."""
    if not rulings:
        return Exit.NOTHING, ["no check was selected"]
    broken = [_stated(r) for r in rulings.values() if r.effect is Effect.BROKEN]
    crashed = [_stated(r) for r in rulings.values() if r.required and r.outcome is Outcome.ERROR]
    left = [r for r in rulings.values() if r.required and r.effect is Effect.OPEN and r.outcome is not Outcome.ERROR]
    open_ = [_stated(r) for r in left if not waived(r.check, policy)]
    if policy.restricted:
        if not any(r.effect is Effect.DISCHARGED for r in rulings.values()):
            open_ = open_ or ["no selected check gave an answer"]
    else:
        open_ += _uncovered(obligations, criteria, rulings, policy)
    for exit_, reasons in ((Exit.BROKEN, broken), (Exit.CRASH, crashed), (Exit.OPEN, open_)):
        if reasons:
            return exit_, [*broken, *crashed, *open_]
    return Exit.MET, []


def waived(check: Check, policy: Policy) -> bool:
    """Whether every cell that asks for this check is waived. Stubs and the gate's falsification never are."""
    if policy.restricted or check.kind in (Kind.STUB, Kind.GATE):
        return False
    asking = [c.id for c in policy.clauses if c.id in check.obligations and check.layer in c.layers]
    return all(policy.demands.waived(name, check.layer) is not None for name in asking)


def _stated(ruling: Ruling) -> str:
    expected = "" if ruling.check.expect is Expect.HOLDS else " (expected to be refuted)"
    return f"{ruling.check.id} is {ruling.outcome}{expected}: {ruling.reason}"


def _uncovered(
    obligations: Mapping[str, ObligationRuling],
    criteria: Sequence[CriterionRuling],
    rulings: Mapping[str, Ruling],
    policy: Policy,
) -> list[str]:
    """What keeps the gate open beyond single checks."""
    reasons = [] if obligations else ["the contract has no obligation"]
    for name, found in policy.dependencies.items():
        if found is not Exit.MET:
            why = "it is not there" if found is None else EXIT_MEANING[found]
            reasons.append(f"it depends on {name}, which is not discharged: {why}")
    for row in obligations.values():
        if row.required == 0:
            reasons.append(f"{row.id}: the contract names no layer that must discharge it")
        for layer, cell in row.cells.items():
            if cell.required and cell.effect is Effect.OPEN and (waiver := policy.demands.lapsed(row.id, layer)):
                reasons.append(f"{row.id} x {layer}: the waiver of {waiver.owner} expired on {waiver.expires}")
            if policy.demands.waived(row.id, layer) is not None:
                continue
            if cell.required and not cell.checks:
                reasons.append(f"{row.id} x {layer}: no check is planned for this required layer")
            elif cell.required and cell.effect is Effect.OPEN and cell.reason:
                reasons.append(f"{row.id} x {layer}: {cell.reason}")
    if obligations and all(row.waived and not row.discharged for row in obligations.values()):
        reasons.append("every obligation is waived in every layer, and nothing is shown")
    reasons += unfreed(policy.inputs, rulings, policy.clauses)
    reasons += [f"criterion {c.name} is not met: {c.why}" for c in criteria if not c.met]
    if policy.gate_check is not None and policy.gate_check not in rulings:
        reasons.append(f"{policy.gate_check}: the gate's own falsification was not planned")
    return reasons


FREE = "a symbolic number in a harness that holds (of words and whole numbers: several values)"


def unfreed(inputs: InputsShape, rulings: Mapping[str, Ruling], clauses: Sequence[Clause]) -> list[str]:
    """Inputs that no discharged proof frees and no reason excuses, and reasons that excuse nothing (any more).

    Proofs of the contract's own model decide where one has such an input in its case; others only where none has.
    """
    pairs = ((name, ruling.check, clause) for name, ruling in rulings.items() for clause in clauses)
    own = {name for name, check, c in pairs if c.id in check.obligations and _of_model(check, c)}
    stated = list(_cases(rulings))
    seen: dict[str, list[tuple[str, FreeField]]] = {}
    found: list[str] = []
    for kind in inputs.of:
        every = [(check, row) for check, row in stated if kind == (row.type or row.field)]
        rows = [(check, row) for check, row in every if check in own] or every
        for check, row in rows:
            name = f"{row.type.rpartition(':')[2]}.{row.field}".lstrip(".")
            seen.setdefault(name, []).append((check, row))
        if not rows:
            help = "call k.scenario with it in a harness, or see why none holds"
            found.append(f"input {kind}: no harness that holds has one in its case; expected: {FREE}; {help}")
    for name, cases in seen.items():
        free = [check for check, row in cases if row.free]
        values = ", ".join(dict.fromkeys(v for _, row in cases for v in row.values)) or "one value"
        fixed = inputs.fixed.get(name)
        if fixed is None and not free:
            help = (
                f"free it in one of {', '.join(check for check, _ in cases[:4])}, or give a reason under inputs.fixed"
            )
            found.append(f"input {name}: every harness has {values}; expected: {FREE}; {help}")
        elif fixed is not None and free:
            found.append(
                f"input {name}: it is fixed with a reason, and {free[0]} frees it; remove it from inputs.fixed"
            )
        elif fixed is not None and fixed.value != values:
            found.append(
                f"input {name}: it is fixed at {fixed.value}, and the harnesses have {values}; correct the value"
            )
    unlisted = {row.type or row.field: check for check, row in reversed(stated)}
    help = "name it there, or take it out of k.scenario"
    found += [
        f"input {kind}: {check} has one in its case; expected: its name under inputs.of; {help}"
        for kind, check in unlisted.items()
        if kind not in inputs.of
    ]
    unknown = [name for name in inputs.fixed if name not in seen]
    return found + [f"input {name}: it is fixed with a reason, and no harness has it; remove it" for name in unknown]


def _cases(rulings: Mapping[str, Ruling]) -> Iterator[tuple[str, FreeField]]:
    """What the harnesses of discharged proofs had in their cases."""
    for name, ruling in rulings.items():
        evidence, holds = ruling.status.evidence, ruling.outcome is Outcome.HOLDS
        if evidence is not None and holds and ruling.effect is Effect.DISCHARGED:
            yield from ((name, row) for row in evidence.finding.stats.fields)


_DIGEST = re.compile(r"[0-9a-f]{64}")
Lemmas = Mapping[str, KnownLemma]


def shortfall(check: Check, finding: EvidenceFinding, policy: Policy) -> str:
    """Why the justification of a proof that holds does not suffice; an empty text where it does."""
    return next(_missing(check, finding, policy), "")


def _missing(check: Check, finding: EvidenceFinding, policy: Policy) -> Iterator[str]:
    required, lemmas, stats = policy.justification, policy.lemmas, finding.stats
    if check.params.get("lemmas") and (check.kind is Kind.STUB or check.strategy == "step_contract"):
        yield from _unbacked(list(_named(check.params["lemmas"], lemmas)), stats, lemmas)
    if check.strategy == "bit_exhaustive":
        yield from _unenumerated(finding)
    if check.strategy in (required.certificates or ()):
        yield from _uncertified(check, finding, lemmas)
    if check.strategy in (required.second_solver or ()):
        yield from _alone(check, stats, lemmas)


def _named(patterns: Sequence[str], lemmas: Lemmas) -> Iterator[str]:
    """The lemmas that shell patterns match; a pattern that matches none is itself a name that nothing backs."""
    for pattern in patterns:
        yield from [name for name in lemmas if fnmatchcase(name, pattern)] or [pattern]


def _unbacked(names: Sequence[str], stats: Stats, lemmas: Lemmas, exact: bool = False) -> Iterator[str]:
    """Lemmas without a row, and rows that prove nothing; premises count alike. `exact`: nothing may be rounded."""
    rows = {row.name: row for row in stats.lemmas}
    if not names and not exact:
        yield "it names no lemma"
    for name in names:
        if name not in rows:
            yield f"its evidence has nothing of the lemma {name}"
    for name, row in rows.items():
        lemma = lemmas.get(name)
        if lemma is None or row.method != lemma.method:
            yield f"there is no lemma {name} that is proved by {row.method}"
        elif row.method == "exhaustion" and not row.cases:
            yield f"the lemma {name} is enumerated over no case"
        elif row.method == "solvers" and not families(row.solvers or ()):
            yield f"no solver answers the lemma {name}"
        elif row.method == "derivation" and (
            tuple(row.premises or ()) != lemma.premises or not rows.keys() >= {*lemma.premises}
        ):
            yield f"the lemma {name} follows from premises that are not there"
        elif row.method not in ("exhaustion", "solvers", "derivation"):
            yield f"the lemma {name} has the unknown method {row.method!r}"


def _unenumerated(finding: EvidenceFinding) -> Iterator[str]:
    rows = finding.stats.exhaustion
    for clause in finding.clauses:
        if not any(row.clause == clause and row.numbers for row in rows):
            yield f"no enumeration stands behind {clause}"
    for row in rows:
        if Fraction(row.worst) > Fraction(row.claimed):
            yield f"the worst case of {row.label} exceeds what is claimed"


def _uncertified(check: Check, finding: EvidenceFinding, lemmas: Lemmas) -> Iterator[str]:
    rows = finding.stats.certificates
    for clause in [*check.obligations, *finding.clauses]:
        if not any(belongs(row.clause, clause) for row in rows):
            yield f"the gate requires a certificate of every {check.strategy} proof; there is none of {clause}"
    for row in rows:
        if not _DIGEST.fullmatch(row.sha256) or Fraction(row.bound) > Fraction(row.claimed):
            yield f"the certificate of {row.label} does not prove what is claimed"
        yield from _unbacked(row.contracts, finding.stats, lemmas, exact=Fraction(row.bound) == 0)


def _alone(check: Check, stats: Stats, lemmas: Lemmas) -> Iterator[str]:
    rule = f"the gate requires two solvers of different families behind every {check.strategy} proof"
    for row in stats.certificates:
        yield from _unbacked(row.contracts, stats, lemmas, exact=Fraction(row.bound) == 0)
    if not (stats.solvers or stats.certificates or check.strategy == "step_contract"):
        yield f"{rule}; nothing in its evidence says what this one rests on"
    for lemma in stats.lemmas:
        if lemma.method == "solvers" and len(found := families(lemma.solvers or ())) < 2:
            yield f"{rule}; the lemma {lemma.name} has {' and '.join(found) or 'none'}"
    if stats.solvers and len(found := families(stats.solvers)) < 2:
        yield f"{rule}; this one has {' and '.join(found) or 'none'}"


def families(replies: Sequence[ReplyRow]) -> list[str]:
    """Families of the solvers that answered `unsat`; none where one answered otherwise with a counterexample."""
    from gradproof.rounding.solvers import FAMILIES

    if any(reply.answer == "sat" for reply in replies):
        return []
    agreed = [reply.solver for reply in replies if reply.answer == "unsat" and reply.version]
    return sorted({FAMILIES[name] for name in agreed if name in FAMILIES})


def words(stats: Stats) -> str:
    """What stands behind a proof, in words; empty where its evidence names nothing."""
    parts = []
    if stats.certificates:
        digests = ", ".join(dict.fromkeys(row.sha256[:12] for row in stats.certificates))
        many = "s" if len(stats.certificates) > 1 else ""
        parts.append(f"{len(stats.certificates)} Farkas certificate{many} that the checker accepted ({digests})")
    if stats.lemmas:
        parts.append(_lemma_words(stats))
    if stats.exhaustion:
        worst = max(Fraction(row.worst) for row in stats.exhaustion)
        parts.append(f"every input enumerated, the exact worst case is {float(worst):.6g}")
    if stats.solvers:
        only = "one solver only" if len(families(stats.solvers)) < 2 else "solvers of different families"
        parts.append(f"{only} ({', '.join(f'{row.solver} {row.version}' for row in stats.solvers)})")
    return "; ".join(parts)


def _lemma_words(stats: Stats) -> str:
    rows = stats.lemmas
    solved = [row.solvers or () for row in rows if row.method == "solvers"]
    two = sum(len(families(replies)) >= 2 for replies in solved)
    counts = [(two, "by two solver families"), (len(solved) - two, "by one solver only")]
    counts += [(sum(row.method == m for row in rows), f"by {m}") for m in ("exhaustion", "derivation")]
    many = "s" if len(rows) > 1 else ""
    return f"{len(rows)} lemma{many}: {', '.join(f'{n} {how}' for n, how in counts if n)}"


def lemma_lines(stats: Stats) -> Iterator[str]:
    """One line a lemma: its method, and each solver's verdict."""
    from gradproof.rounding.solvers import FAMILIES

    for row in stats.lemmas:
        if row.method == "solvers":
            said = [f"{r.solver} {r.version} ({FAMILIES.get(r.solver, '?')}) {r.answer}" for r in row.solvers or ()]
            yield f"{row.name}: {', '.join(said)}"
        elif row.method == "exhaustion":
            yield f"{row.name}: exhaustion of {row.cases} cases"
        else:
            yield f"{row.name}: derived from {', '.join(row.premises or ())}"
