"""`gradproof explain ID`: what a word of gradproof, or an id of the workspace, means."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from gradproof.cli import INTERRUPTED
from gradproof.cli.options import place, with_options
from gradproof.core.check import scope_words
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import (
    DECISION,
    EXIT_CODE,
    EXIT_MEANING,
    MEANING,
    REACH_MEANING,
    Effect,
    Exit,
    Expect,
    Outcome,
    Reach,
)
from gradproof.core.workspace import reference

if TYPE_CHECKING:
    from gradproof.core.schemas.evidence import Stats
    from gradproof.session import Options, Session

EFFECTS: Mapping[Effect, str] = {
    Effect.DISCHARGED: "the check gave the answer that its claim expects",
    Effect.BROKEN: "the check gave the opposite answer, or its controls show that it cannot be trusted",
    Effect.OPEN: "the check gave no answer; nothing is known either way",
}
STRATEGIES: Mapping[str, str] = {
    "exhaustive": "every path, over integers and rationals: no rounding; the run tells whether it was an induction",
    "stub_float": "every float operation is replaced by a rounding stub, which is a checked claim of its own",
    "compositional": "claims already proved stand for the parts that they speak about",
    "bounded_int": "integers up to the bounds",
    "bit_precise": "IEEE 754 arithmetic, bit for bit",
    "linear_chain": "straight-line float arithmetic of any length, with a certificate that a checker validates",
    "bit_exhaustive": "a 16-bit format: the exact worst case over every input up to the bounds decides",
    "step_contract": "each named step contract is tried on directed steps and rests on evidence that is checked again",
    "property test": "cases drawn by Hypothesis and run on real PyTorch; a failure shrinks",
    "seeded bug": "the gate's own falsification: the checks that are named to kill a bug are run on it",
}
PROFILES: Mapping[str, str] = {
    "ci": "every proof and CPU run is required; GPU rows are shown as open",
    "release": "fresh GPU evidence is required as well",
}

GLOSSARY = "docs/glossary.md"
"""A table of words of outputs and docs, several with one meaning by commas."""


def glossary() -> dict[str, str]:
    """The words and their meanings, from the page that comes with the reference workspace."""
    root = reference()
    lines = [] if root is None else (root / GLOSSARY).read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ", 1) for line in lines if line.startswith("| ")]
    return {words: meaning for words, meaning in rows if words != "word"}


@click.command("explain")
@click.argument("id_", metavar="ID")
@place
@with_options
def command(options: Options, id_: str) -> int:
    """Say what ID is: a code, an outcome, any word that gradproof prints, an obligation, a check or a mutant."""
    lines = [*_word(id_)]
    if not lines:
        from gradproof.session import Session

        session = Session(options)
        readers = (_obligation, _check, _mutant, _gate)  # ids of the workspace, whatever their case
        lines = [line for read in readers for line in read(session, id_.casefold())]
        if not lines:
            from gradproof.shadow.result import OBLIGATIONS, named

            if (known := id_.upper()) not in OBLIGATIONS:
                raise _unknown(id_, session)
            lines = [f"{named(known)}: an obligation of gradproof check: {OBLIGATIONS[known]}"]  # in no contract of it
    click.echo("\n".join(lines))
    return 0


def _word(word: str) -> Iterator[str]:
    """Fixed words of gradproof."""
    from gradproof.core.error_codes import EXPLANATIONS
    from gradproof.core.outcome import NEXT

    upper, lower = word.upper(), word.lower()
    if upper in EXPLANATIONS:
        yield f"{upper}: {EXPLANATIONS[upper].meaning}"
        yield f"Help: {EXPLANATIONS[upper].help}"
    if upper in list(Outcome):
        yield f"{upper}, an outcome: {MEANING[Outcome(upper)]}."
        for expect in Expect:
            yield f"  where the claim expects {expect}: {DECISION[expect, Outcome(upper)]}"
        yield f"Help: {NEXT[Outcome(upper)]}"
    if upper in list(Effect):
        yield f"{upper}, an effect: {EFFECTS[Effect(upper)]}."
    if lower in list(Reach):
        yield f"{lower}, a reach: {REACH_MEANING[Reach(lower)]}"
    for exit_ in Exit:
        if word in (exit_, str(EXIT_CODE[exit_])):
            yield f"exit code {EXIT_CODE[exit_]} ({exit_}): {EXIT_MEANING[exit_]}."
    if word == str(INTERRUPTED):
        yield f"exit code {INTERRUPTED} (interrupted): interrupted; what had finished is kept."
    for kind, table in (("a strategy", STRATEGIES), ("a gate profile", PROFILES)):
        if lower in table:
            yield f"{lower}, {kind}: {table[lower]}."
    yield from (f"{words}: {meaning}" for words, meaning in glossary().items() if lower in words.lower().split(", "))


def _obligation(session: Session, name: str) -> Iterator[str]:
    from gradproof.shadow.result import named

    for contract in session.contracts:
        for o in contract.obligations:
            if o.id.casefold() != name:
                continue
            yield f"{named(o.id)}: an obligation of {contract.id} ({o.type}): {o.property}"
            yield f"  {o.formal}"
            yield from (f"  tolerance {t.value} in {t.dtype}, {t.metric}, {t.role} {t.domain}" for t in o.tolerance)
            yield from (f"  assumes: {a}" for a in o.assumptions)
            yield from (f"  {p} requires: {', '.join(layers)}" for p, layers in o.layers.stated().items())
            yield f"  checks: {', '.join(c.id for c in session.checks if o.id in c.obligations)}"


def _check(session: Session, name: str) -> Iterator[str]:
    for check in session.checks:
        if check.id.casefold() != name and check.id.casefold().partition("@")[0] != name:
            continue
        yield f"{check.id}, a check ({check.kind}, layer {check.layer}): {check.title}"
        yield f"  claims: {', '.join(check.obligations) or 'nothing by itself'}; expects: {check.expect}"
        yield f"  strategy: {check.strategy}: {STRATEGIES.get(check.strategy, 'not described')}"
        yield f"  harness: {check.harness or '-'}; subject: {check.subject or '-'}"
        yield from (f"  bound {b.name} = {b.value}: {b.reason}" for b in check.bounds)
        yield from (f"  assumes: {a}" for a in check.assumptions)
        yield f"  rests on: {', '.join(check.depends) or 'no stub'}"
        yield f"  must kill: {', '.join(check.mutants) or 'no mutant'}"
        status = session.statuses([check])[check.id]
        why = f" ({status.reason})" if status.reason else ""
        yield f"  evidence: {status.outcome}{why}, {status.path or '-'}"
        if status.evidence is not None and status.fresh:
            yield from _justification(status.evidence.finding.stats)


def _justification(stats: Stats) -> Iterator[str]:
    """What stands behind a proof."""
    from gradproof.verdict.judge import lemma_lines, words

    if stats.scope is not None:
        yield f"  {scope_words(stats.scope.read())}"
    for row in stats.fields:
        name = f"{row.type}.{row.field}".lstrip(".")
        yield f"    {name}: " + ("free" if row.free else f"not free, it is {', '.join(row.values) or 'one value'}")
    if stated := words(stats):
        yield f"  backed by: {stated}"
        yield from (f"    {line}" for line in lemma_lines(stats))


def _mutant(session: Session, name: str) -> Iterator[str]:
    for contract in session.contracts:
        killers = [c for c in session.plans[contract.path] if name in (m.casefold() for m in c.mutants)]
        if not killers:
            continue
        yield f"{name}, a mutant in {contract.id}, to be killed by: {', '.join(c.id for c in killers)}"
        for check in killers:
            evidence = session.statuses([check])[check.id].evidence
            for control in evidence.finding.controls if evidence else ():
                if control.name.casefold() == name:
                    where = f", a bug of {control.reference}" if control.reference else ""
                    killed = "killed" if control.killed else "SURVIVES"
                    yield f"  {check.id}: {killed}, {control.outcome} on {control.clause}{where}"


def _gate(session: Session, name: str) -> Iterator[str]:
    for contract in session.contracts:
        gate = contract.gate
        if gate is not None and gate.id.casefold() == name:
            yield f"{gate.id}, the gate of {contract.id}: {gate.name}. {gate.description}"
            yield f"  pass: {gate.pass_criteria}"
            yield from (f"  {c}: {', '.join(gate.criteria.get(c, ())) or 'no obligation'}" for c in gate.checks)
            yield f"  its own falsification: {gate.falsification} (bugs: {', '.join(gate.seeded_bug) or 'none'})"
            asked = gate.require.stated() if gate.require else {}
            yield from (f"  requires {key.replace('_', ' ')}: {', '.join(names)}" for key, names in asked.items())


def _unknown(name: str, session: Session) -> GradproofError:
    from gradproof.core.error_codes import EXPLANATIONS

    known = [*EXPLANATIONS, *Outcome, *Effect, *Reach, *Exit, *STRATEGIES, *PROFILES]
    known += [c.id for c in session.checks] + [m for c in session.checks for m in c.mutants]
    known += [o.id for contract in session.contracts for o in contract.obligations]
    folded = {k.casefold(): str(k) for k in known}
    near = [folded[k] for k in difflib.get_close_matches(name.casefold(), folded, n=4)]
    expected = f"perhaps {', '.join(near)}" if near else "an id that gradproof list shows, or a word of its output"
    return GradproofError("GP216", f"nothing is called {name!r}", expected, "correct the id")
