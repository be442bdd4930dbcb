"""One table of every outcome: what to do about it. `gradproof explain OUTCOME` prints a row."""

from __future__ import annotations

from collections.abc import Mapping

from gradproof.core import Outcome

NEXT: Mapping[Outcome, str] = {
    Outcome.HOLDS: "Nothing, where holding was expected. Read the reach beside it: it says how far the answer goes.",
    Outcome.REFUTED: "Look at the line that the reason names, or replay the counterexample: gradproof replay EVIDENCE.",
    Outcome.SPURIOUS: "The model or the stub allows what the real step does not do: make it tighter, and run it again.",
    Outcome.WEAK: "Read which mutant survived. Sharpen the harness; take a mutant out only if it changes nothing here.",
    Outcome.VACUOUS: "Loosen the assumptions, or give the check inputs that reach every cover that it names.",
    Outcome.BOUND_HIT: "Raise the bound that the reason names, and say in the contract why its new value is enough.",
    Outcome.UNKNOWN: "Ask a smaller question: fewer micro-batches, another strategy, or products that are split up.",
    Outcome.TIMEOUT: "Raise time_limit in the contract, or --time-limit, or make the subject smaller.",
    Outcome.OPAQUE: "Do what the reason's mend says: an operator needs a row, or a value must stay inside torch.",
    Outcome.OUTSIDE: "Change the subject, as BatchNorm to a norm without a batch, or do not claim it of this subject.",
    Outcome.ERROR: "Run the function or the harness by itself: the reason has the exception, and mostly its line.",
    Outcome.NOT_RUN: "Run gradproof verify: the evidence is missing, or something that it rests on has changed.",
}
"""What to do about an outcome."""

if set(NEXT) != set(Outcome):
    raise ImportError("the table of what to do about an outcome is not total")
