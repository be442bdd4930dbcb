"""`gradproof explain ID`: what a word of gradproof, or an id of the workspace, means."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from gradproof.cli import INTERRUPTED
from gradproof.cli.options import place, with_options
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import DECISION, EXIT_CODE, EXIT_MEANING, MEANING, Effect, Exit, Expect, Outcome, Reach

if TYPE_CHECKING:
    from gradproof.core.schemas.evidence import Stats
    from gradproof.session import Options, Session

EFFECTS: Mapping[Effect, str] = {
    Effect.DISCHARGED: "the check gave the answer that its claim expects",
    Effect.BROKEN: "the check gave the opposite answer, or its controls show that it cannot be trusted",
    Effect.OPEN: "the check gave no answer; nothing is known either way",
}
REACHES: Mapping[Reach, str] = {
    Reach.ALL_INPUTS: "proved for every input of the stated domain, with no limit on size",
    Reach.BOUNDED: "proved for every input up to the stated bounds; nothing is said beyond them",
    Reach.SAMPLED: "run on real kernels at the inputs that were drawn; no other input is covered",
}
STRATEGIES: Mapping[str, str] = {
    "exhaustive": "every path up to the bounds, over the rationals: no rounding",
    "stub_float": "every float operation is replaced by a rounding stub, which is a checked claim of its own",
    "compositional": "claims already proved stand for the parts that they speak about",
    "bounded_int": "integers up to the bounds",
    "bit_precise": "IEEE 754 arithmetic, bit for bit",
    "induction": "one step from any state that satisfies the invariant: every length, every number of cycles",
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

GLOSSARY: Mapping[str, str] = {
    "above": "A measured error that is larger than its proven bound. It refutes.",
    "accumulation window": "The micro-batches whose gradients make one optimizer step.",
    "assumption": "What a result takes for granted: bounds, stubs, domain, path, shape.",
    "baseline": "An earlier report. Nothing may become weaker than it.",
    "bound": "A limit of a bounded proof: so many micro-batches, so many elements. Each has a reason in the contract.",
    "bundle": "A folder with evidence, contracts, sources and digests, for someone who trusts none of them.",
    "cached": "Taken from stored evidence that is fresh; the check was not run again.",
    "certificate": "Data that a small independent checker turns into a proof.",
    "check": "One method applied to one subject with one set of bounds.",
    "conformance": "Whether real kernels round as the proofs assume, measured operator by operator.",
    "contract": "A YAML file that states obligations and how each must be discharged.",
    "control": "A run that must fail (the empty subject, a seeded bug) or must be reached (a cover).",
    "counterexample": "Inputs for which the claim is false, replayed on concrete numbers.",
    "cover": "A case that a harness must be able to reach. An unreachable cover makes the check vacuous.",
    "cpu, cuda, gpu": "Layers: falsification tests on real PyTorch kernels of that device.",
    "crosshair": "A layer: CrossHair runs plain Python models on symbolic inputs.",
    "domain": "What a result is about: whole tensors, events, the loop's own floats, or the inputs of a claim.",
    "effect": "What an outcome does to the gate: DISCHARGED, BROKEN or OPEN.",
    "effective batch": "Samples of one optimizer step: micro-batch x N x ranks.",
    "equivalent mutant": (
        "A seeded bug that does not change what the subject does. It shows nothing and does not count."
    ),
    "events": "The order of backward passes, clips, steps and zeroes of a run.",
    "evidence": "The record of a run: outcome, inputs by content, environment, controls.",
    "falsification test": "A property that Hypothesis tries on real PyTorch. It can refute; it never proves.",
    "fresh, stale, absent, rejected": (
        "Whether evidence or a document still speaks of the files as they are now, is there, and can be read."
    ),
    "gate": "The decision to let a release through: met, broken or open.",
    "harness": "A function that gives a subject inputs and states the claims.",
    "inputs of a run": "The files that it imported or read, by content, and the versions of its packages.",
    "killed, survived": "A check refuted a seeded bug, or did not notice it.",
    "layer": "Where an obligation is discharged: smt, crosshair, step, cpu, cuda.",
    "ledger": "proofs/claims.yaml: claims of the field, each with the evidence that decides it.",
    "lemma": "A proved statement that other proofs rest on, with its own evidence.",
    "met, broken, open": "The verdict of a gate: all required is discharged; something is broken; or undecided.",
    "micro-batch": "The samples of one backward pass.",
    "mutant": "A seeded bug. A check that does not notice one of its mutants is WEAK.",
    "N": "The number of micro-batches in a window (accum_steps).",
    "obligation": "A statement that must hold, such as GA-INV-002.",
    "outcome": "What a check established: HOLDS, REFUTED, VACUOUS, UNKNOWN, TIMEOUT, ERROR and others.",
    "partial": "A run that did not decide everything that the gate requires.",
    "passed, failed, skipped": "What a row of a report is to a CI system. Only DISCHARGED is passed.",
    "path": "The decisions that a run took where they depend on data. See path condition.",
    "path condition": "A decision of the program that depended on data. A proof speaks of runs that decide alike.",
    "profile": "What a gate requires: ci or release.",
    "reach": "How far a result goes: all inputs, up to stated bounds, or the inputs that were sampled.",
    "rounding": "What the float operations of a step may lose, as a proven bound.",
    "shape": "The sizes at which a step was recorded. A proof about a step speaks of one shape.",
    "shard": "A part of the checks that one machine runs. `gradproof merge` puts the evidence together.",
    "smt": "A layer: proofs by Z3 over executable Python models.",
    "step": (
        "A layer: the real PyTorch training step, recorded and proved operator by operator. Also: one call of"
        " optimizer.step()."
    ),
    "stub": "A stand-in for an operation, such as rounding. It is a claim of its own, which is proved too.",
    "subject": "The model or training step that a check judges.",
    "tail": "A last window with fewer micro-batches than N.",
    "turned, red": "With a bug seeded, the gate did not let the release through. That is what must happen.",
    "ulp": "The distance between two neighbouring floating-point numbers.",
    "unit roundoff": "The largest relative error of one rounding, half an ulp of 1.",
    "unwinding": "How many turns of a loop a bounded proof follows. Here it is the bound micro_batches.",
    "vacuity": "See vacuous.",
    "vacuous": "True because no case was reached. Never green.",
    "verdict": "What the evidence says of a contract: the gate is met, broken or open.",
    "waived": "Excepted by a waiver that is in force.",
    "waiver": "A named, dated exception of one obligation. It is printed everywhere.",
    "witness": "Inputs that attain an error, which shows that a bound is not too large.",
    "workspace": "A folder with proofs/, models/ and symbolic/.",
}
"""Words of outputs and docs, several with one meaning by commas. docs/glossary.md is this table."""


@click.command("explain")
@click.argument("id_", metavar="ID")
@place
@with_options
def command(options: Options, id_: str) -> int:
    """Say what ID is: a code, an outcome, any word that gradproof prints, an obligation, a check or a mutant."""
    lines = [*_word(id_)]
    if not lines:
        from gradproof.session import Session
        from gradproof.shadow.result import OBLIGATIONS

        session = Session(options)
        readers = (_obligation, _check, _mutant, _gate)  # ids of the workspace, whatever their case
        lines = [line for read in readers for line in read(session, id_.casefold())]
        if not lines and (known := id_.upper()) in OBLIGATIONS:  # in no contract of the workspace
            lines = [f"{known}, an obligation of gradproof check: {OBLIGATIONS[known]}"]
        if not lines:
            raise _unknown(id_, session)
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
        yield f"{lower}, a reach: {REACHES[Reach(lower)]}."
    for exit_ in Exit:
        if word in (exit_, str(EXIT_CODE[exit_])):
            yield f"exit code {EXIT_CODE[exit_]} ({exit_}): {EXIT_MEANING[exit_]}."
    if word == str(INTERRUPTED):
        yield f"exit code {INTERRUPTED} (interrupted): interrupted; what had finished is kept."
    for kind, table in (("a strategy", STRATEGIES), ("a gate profile", PROFILES)):
        if lower in table:
            yield f"{lower}, {kind}: {table[lower]}."
    yield from (f"{words}: {meaning}" for words, meaning in GLOSSARY.items() if lower in words.lower().split(", "))


def _obligation(session: Session, name: str) -> Iterator[str]:
    for contract in session.contracts:
        for o in contract.obligations:
            if o.id.casefold() != name:
                continue
            yield f"{o.id}, an obligation of {contract.id} ({o.type}): {o.property}"
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
