"""Nouns of gradproof and the one table that turns an outcome into an effect.

No I/O, no solver and no torch are imported here. Every other module speaks in these words.

Sources of the vocabulary: Kani's check statuses, CrossHair's message types, sby's `expect`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

EVIDENCE_SCHEMA = "gradproof-evidence/2"
REPORT_SCHEMA = "gradproof-report/2"
NO_WORKSPACE = "no workspace here: the packaged reference is judged, not your training loop"


class Outcome(StrEnum):
    """What one check established. Only HOLDS and REFUTED are answers."""

    HOLDS = "HOLDS"
    REFUTED = "REFUTED"
    SPURIOUS = "SPURIOUS"
    WEAK = "WEAK"
    VACUOUS = "VACUOUS"
    BOUND_HIT = "BOUND_HIT"
    UNKNOWN = "UNKNOWN"
    TIMEOUT = "TIMEOUT"
    OPAQUE = "OPAQUE"
    OUTSIDE = "OUTSIDE"
    ERROR = "ERROR"
    NOT_RUN = "NOT_RUN"


MEANING: Mapping[Outcome, str] = {
    Outcome.HOLDS: "every checked clause held, on everything inside the stated reach",
    Outcome.REFUTED: "a counterexample was found and it replays on concrete numbers",
    Outcome.SPURIOUS: "a counterexample was found that does not replay on concrete numbers",
    Outcome.WEAK: "the harness let a named mutant or the empty body survive",
    Outcome.VACUOUS: "a cover was never reached, or nothing was checked",
    Outcome.BOUND_HIT: "the exploration ran into a named bound before it was complete",
    Outcome.UNKNOWN: "the solver gave up without an answer",
    Outcome.TIMEOUT: "the time limit passed before an answer came",
    Outcome.OPAQUE: "the recorder lost sight of a value",
    Outcome.OUTSIDE: "the subject does not meet an assumption of the obligation",
    Outcome.ERROR: "the check crashed or returned something that is no answer",
    Outcome.NOT_RUN: "no run of this check stands behind the present text of its claim",
}


class Expect(StrEnum):
    """The expected answer, which lives in the claim."""

    HOLDS = "holds"
    REFUTED = "refuted"


class Effect(StrEnum):
    """What an outcome does to the obligation."""

    DISCHARGED = "DISCHARGED"
    BROKEN = "BROKEN"
    OPEN = "OPEN"


_ANSWER = {Expect.HOLDS: Outcome.HOLDS, Expect.REFUTED: Outcome.REFUTED}
_BREAKING = {*_ANSWER.values(), Outcome.WEAK, Outcome.VACUOUS}


def _effect(expect: Expect, outcome: Outcome) -> Effect:
    """The expected answer discharges; the other one, and a harness that shows nothing, break; the rest is no answer."""
    if outcome is _ANSWER[expect]:
        return Effect.DISCHARGED
    return Effect.BROKEN if outcome in _BREAKING else Effect.OPEN


DECISION: Mapping[tuple[Expect, Outcome], Effect] = {(e, o): _effect(e, o) for e in Expect for o in Outcome}

if set(MEANING) != set(Outcome):
    raise ImportError("the table of what an outcome means is not total")


class Reach(StrEnum):
    """How far a HOLDS goes."""

    ALL_INPUTS = "all inputs"
    BOUNDED = "bounded"
    CHOSEN = "chosen values"
    SAMPLED = "sampled"


REACH_MEANING: Mapping[Reach, str] = {
    Reach.ALL_INPUTS: "Proved for every input of the stated domain, with no limit on size.",
    Reach.BOUNDED: "Proved for every input up to the stated bounds; nothing is said beyond them.",
    Reach.CHOSEN: "Computed at the concrete values that the harness chose; nothing is proved of any other.",
    Reach.SAMPLED: "Run on real kernels, or evaluated modulo a prime, at inputs that were drawn; no other is covered.",
}


class Layer(StrEnum):
    """Columns of the coverage matrix."""

    SMT = "smt"
    CROSSHAIR = "crosshair"
    STEP = "step"
    CPU = "cpu"
    CUDA = "cuda"


class Kind(StrEnum):
    """Which backend runs a check."""

    STUB = "stub"
    SMT = "smt"
    CROSSHAIR = "crosshair"
    TRACE = "trace"
    TORCH = "torch"
    GATE = "gate"


class Exit(StrEnum):
    """Names of the exit codes; the numbers are in EXIT_CODE."""

    MET = "met"
    BROKEN = "broken"
    USAGE = "usage"
    CRASH = "crash"
    OPEN = "open"
    NOTHING = "nothing"


EXIT_CODE: Mapping[Exit, int] = {
    Exit.MET: 0,
    Exit.BROKEN: 1,
    Exit.USAGE: 2,
    Exit.CRASH: 3,
    Exit.OPEN: 4,
    Exit.NOTHING: 5,
}

EXIT_MEANING: Mapping[Exit, str] = {
    Exit.MET: "the gate is met",
    Exit.BROKEN: "something is refuted, vacuous or weak",
    Exit.USAGE: "the command line or a contract is wrong",
    Exit.CRASH: "a check or gradproof itself crashed",
    Exit.OPEN: "something required is inconclusive, stale or missing",
    Exit.NOTHING: "nothing was selected",
}


# -- One table of every outcome: what to do about it. `gradproof explain OUTCOME` prints a row.
NEXT: Mapping[Outcome, str] = {
    Outcome.HOLDS: "Nothing, where holding was expected. Read the reach beside it: it says how far the answer goes.",
    Outcome.REFUTED: "Look at the line that the reason names, or replay the counterexample: gradproof replay EVIDENCE.",
    Outcome.SPURIOUS: "The model or the stub allows what the real step does not do: make it tighter, and run it again.",
    Outcome.WEAK: "Read which mutant survived. Sharpen the harness; take a mutant out only if it changes nothing here.",
    Outcome.VACUOUS: "Loosen the assumptions, or give the check inputs that reach every cover that it names.",
    Outcome.BOUND_HIT: "Raise the bound that the reason names, and say in the contract why its new value is enough.",
    Outcome.UNKNOWN: "Ask a smaller question: fewer micro-batches, another strategy, or products that are split up.",
    Outcome.TIMEOUT: "Raise time_limit in the contract, or --time-limit, or make the subject smaller.",
    Outcome.OPAQUE: "Do what the reason's help says: mostly, a value has to stay inside torch.",
    Outcome.OUTSIDE: "Change the subject, as BatchNorm to a norm without a batch, or do not claim it of this subject.",
    Outcome.ERROR: "Run the function or the harness by itself: the reason has the exception, and mostly its line.",
    Outcome.NOT_RUN: "Run gradproof verify: the evidence is missing, or something that it rests on has changed.",
}
"""What to do about an outcome."""

if set(NEXT) != set(Outcome):
    raise ImportError("the table of what to do about an outcome is not total")


SEVERITY = (Exit.USAGE, Exit.BROKEN, Exit.CRASH, Exit.OPEN, Exit.NOTHING, Exit.MET)


def worst(exits: Iterable[Exit]) -> int:
    """Exit code of several verdicts."""
    found = set(exits)
    return EXIT_CODE[next(e for e in SEVERITY if e in found)]
