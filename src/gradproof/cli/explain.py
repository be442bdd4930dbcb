"""`gradproof explain ID`: what a word of gradproof, or an id of the workspace, means, in at most 15 lines."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from gradproof.cli import INTERRUPTED
from gradproof.cli.options import place, verbose_option, with_options
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
from gradproof.report.text import error_codes, first_words, glossary

if TYPE_CHECKING:
    from gradproof.core.schemas.evidence import Stats
    from gradproof.session import Options, Session


@click.command("explain")
@click.argument("id_", metavar="ID")
@place
@verbose_option
@with_options
def command(options: Options, id_: str, verbose: bool) -> int:
    """Say what ID is: a code, an outcome, any word that gradproof prints, an obligation, a check or a mutant.

    At most 15 lines of 100 columns; --verbose has everything.
    """
    lines = [*_word(id_)]
    if not lines:
        from gradproof.session import Session

        lines = lines_of(id_, Session(options))
    click.echo("\n".join(lines if verbose else shortened(lines)))
    return 0


def lines_of(word: str, session: Session) -> list[str]:
    """All that is known of a word, or of an id of a workspace in whatever case. Raises GradproofError GP216."""
    if lines := [*_word(word)]:
        return lines
    readers = (_obligation, _check, _mutant, _gate)
    if lines := [line for read in readers for line in read(session, word.casefold())]:
        return lines
    from gradproof.shadow.result import OBLIGATIONS, named

    if (known := word.upper()) not in OBLIGATIONS:
        raise _unknown(word, session)
    return [f"{named(known)}: an obligation of gradproof check: {OBLIGATIONS[known]}"]


OBLIGATION = re.compile(r"[A-Z]+-[A-Z]+-\d+")
"""The glossary has a sentence for each; the contract says the rest."""
ROWS, WIDTH, ALIKE = 15, 100, 2
TITLES = (", a check (", ", a mutant in ")
KINDS = ("bound ", "assumes: ", "tolerance ", ": killed, ", ": SURVIVES, ", *TITLES)


def shortened(lines: Sequence[str]) -> list[str]:
    """The same in 15 lines of 100 columns: the first of several alike, long lines cut, and how to see the rest."""
    seen: Counter[str] = Counter()
    kept: list[str] = []
    left_out = False
    for line in lines:
        kind = next((k for k in KINDS if k in line), "")
        if not line.startswith(" "):
            left_out = kind in TITLES and seen[kind] > 0
        seen[kind] += 1
        if not left_out and (not kind or seen[kind] <= ALIKE):
            kept.append(_cut(line))
    while sum(-(-len(line) // WIDTH) for line in kept) >= ROWS:
        kept.pop()
    return kept if kept == list(lines) else [*kept, "--verbose prints everything."]


def _cut(line: str) -> str:
    """A detail in at most two rows, a title in five, and no broken word."""
    indent = line[: len(line) - len(line.lstrip())]
    most = (2 if indent else 5) * WIDTH - len(indent)
    return indent + first_words(line.strip(), most)


def _word(word: str) -> Iterator[str]:
    """Fixed words of gradproof: what the tables of the program say, then the page."""
    from gradproof.core.outcome import NEXT

    upper, lower = word.upper(), word.lower()
    if upper in (codes := error_codes()):
        yield f"{upper}: {codes[upper][0]}"
        yield f"Help: {codes[upper][1]}"
    if upper in list(Outcome):
        yield f"{upper}, an outcome: {MEANING[Outcome(upper)]}."
        for expect in Expect:
            yield f"  where the claim expects {expect}: {DECISION[expect, Outcome(upper)]}"
        yield f"Help: {NEXT[Outcome(upper)]}"
    if lower in list(Reach):
        yield f"{lower}, a reach: {REACH_MEANING[Reach(lower)]}"
    exits = {str(e): (str(EXIT_CODE[e]), EXIT_MEANING[e]) for e in Exit}
    exits["interrupted"] = (str(INTERRUPTED), "interrupted; what had finished is kept")
    for name, (code, meaning) in exits.items():
        if word in (name, code):
            lower = name
            yield f"exit code {code} ({name}): {meaning}."
    for words, (meaning, example) in glossary().items():
        if lower in words.lower().split(", ") and not OBLIGATION.fullmatch(words):
            yield f"{words}: {meaning}"
            yield f"Example: {example}{'' if example.endswith('.') else '.'}"


def _obligation(session: Session, name: str) -> Iterator[str]:
    from gradproof.shadow.result import named

    plain = glossary()
    for contract in session.contracts:
        for o in contract.obligations:
            if o.id.casefold() != name:
                continue
            yield f"{named(o.id)}: an obligation of {contract.id} ({o.type}): {o.property}"
            yield f"  {o.formal}"
            if o.id in plain:
                yield "  that is: {} Example: {}.".format(*plain[o.id])
            mine = [c for c in session.checks if o.id in c.obligations]
            if bugs := dict.fromkeys(m for c in mine for m in c.mutants):
                yield f"  bugs that its checks must see: {', '.join(bugs)}"
            yield f"  checks: {', '.join(c.id for c in mine)}"
            yield f"  example: gradproof verify -k {o.id}"
            yield from (f"  {p} requires: {', '.join(layers)}" for p, layers in o.layers.stated().items())
            yield from (f"  tolerance {t.value} in {t.dtype}, {t.metric}, {t.role} {t.domain}" for t in o.tolerance)
            yield from (f"  assumes: {a}" for a in o.assumptions)


def _check(session: Session, name: str) -> Iterator[str]:
    properties = {o.id: o.property for contract in session.contracts for o in contract.obligations}
    meanings = {words: meaning for words, (meaning, _) in glossary().items()}
    for check in session.checks:
        if check.id.casefold() != name and check.id.casefold().partition("@")[0] != name:
            continue
        claims = "; ".join(f"{o}, {properties[o]}" for o in check.obligations) or "nothing by itself"
        yield f"{check.id}, a check ({check.kind}, layer {check.layer}): {check.title}"
        yield f"  claims: {claims}; expects: {check.expect}"
        yield f"  strategy: {check.strategy}: {meanings.get(check.strategy, 'not described')}"
        status = session.statuses([check])[check.id]
        why = f" ({status.reason})" if status.reason else ""
        yield f"  evidence: {status.outcome}{why}, {status.path or '-'}"
        yield f"  must kill: {', '.join(check.mutants) or 'no mutant'}"
        yield f"  rests on: {', '.join(check.depends) or 'no stub'}"
        yield f"  example: gradproof verify -k {check.id}"
        yield f"  harness: {check.harness or '-'}; subject: {check.subject or '-'}"
        yield from (f"  bound {b.name} = {b.value}: {b.reason}" for b in check.bounds)
        yield from (f"  assumes: {a}" for a in check.assumptions)
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
        yield f"  example: gradproof verify -k {killers[0].id}"


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
            yield f"  example: gradproof gate --contract {contract.id}"


def _unknown(name: str, session: Session) -> GradproofError:
    known = [*error_codes(), *Outcome, *Effect, *Reach, *Exit, *(w for row in glossary() for w in row.split(", "))]
    known += [c.id for c in session.checks] + [m for c in session.checks for m in c.mutants]
    known += [o.id for contract in session.contracts for o in contract.obligations]
    folded = {k.casefold(): str(k) for k in known}
    near = [folded[k] for k in difflib.get_close_matches(name.casefold(), folded, n=4)]
    expected = f"perhaps {', '.join(near)}" if near else "an id that gradproof list shows, or a word of its output"
    return GradproofError("GP216", f"nothing is called {name!r}", expected, "correct the id")
