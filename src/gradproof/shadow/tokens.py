"""What the weights of the tokens say of the normaliser: in a comparison with the full batch both may be wrong.

In the run of the full batch every valid token of a window should weigh the same, and the weight should follow the
number of valid tokens from window to window. A factor that is the same everywhere (a loss times 0.1, a plain sum) is a
choice of the user's; so are weights by sequence or by class. Not a choice: a normaliser that takes no notice of which
tokens are valid, and ranks that weigh their tokens differently or forget each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from gradproof.core import Outcome
from gradproof.shadow.algebra import Beyond
from gradproof.shadow.all_counts import for_all_counts
from gradproof.shadow.compare import windows
from gradproof.shadow.decide import size_of
from gradproof.shadow.interpret import NoRow, Observation
from gradproof.shadow.session import Session
from gradproof.shadow.tape import NOWHERE, Place, Tape
from gradproof.shadow.verdict import Result
from gradproof.shadow.weights import Weights, shown, weigh

CLOSE = 1e-5
"""Relative distance of two weights that are the same but for the rounding of constants."""
MASKS = "token weights for every mask: the operators, token ids and Python numbers are those of the recording"
REACH = "all real weights and float inputs, at the recorded counts"
MEND = "divide by the valid tokens of the whole window, over all ranks"

CHOICE = (
    "right with a fixed normaliser, or a mask that only leaves samples out; wrong where valid tokens should be counted"
)


@dataclass(frozen=True, slots=True)
class Uniform:
    """A window whose valid tokens all weigh the same."""

    weight: Fraction
    count: int

    @property
    def factor(self) -> Fraction:
        """Weight times count: 1 for a mean over the window's valid tokens."""
        return self.weight * self.count


def weighed(session: Session) -> tuple[list[Weights], list[Weights], list[str]]:
    """Weights of every window of the N-run and of the full batch; and why there are none, in words."""
    size = max(size_of(r.tape) for r in (*session.ours, *session.full))
    if size > session.operations:
        words = f"{size} scalar operations, more than the bound of {session.operations} (--operations)"
        return [], [], [f"token weights are not known: {words}"]
    try:
        ours = _all([r.tape for r in session.ours])
        return ours, _all([r.tape for r in session.full]), []
    except (NoRow, Beyond) as error:
        return [], [], [f"token weights are not known: {error}"]


def _all(tapes: Sequence[Tape]) -> list[Weights]:
    seen = [Observation(e) for e in tapes[0].events() if e.refs]
    return [weigh(tapes, index) for index, window in enumerate(windows(seen)) if window.steps]


def rows(found: Sequence[Weights]) -> list[dict[str, Any]]:
    """The table of a report: one row a token, weights as fractions."""
    table = []
    for weights in (w for w in found if certain(w)):
        for token in weights.tokens:
            row = {k: token[k] for k in ("window", "rank", "micro", "token")}
            row["weight"] = "unknown" if token["weight"] is None else shown(token["weight"])
            table.append(row | {"expected": shown(token["expected"]), "ok": token["ok"], "place": str(token["place"])})
    return table


def certain(weights: Weights) -> bool:
    """Whether the weights are those at the step: a clip hides whatever is rescaled before it."""
    return bool(weights.right) or not any("not linear" in note for note in weights.notes)


def everywhere(session: Session, found: Sequence[Weights]) -> list[str]:
    """What is shown of each window for every mask, in words; nothing where that is no more than at the recorded one."""
    tapes = [r.tape for r in session.ours]
    shown_ = [for_all_counts(tapes, i) if w.right else (None, "") for i, w in enumerate(found)]
    return [f"; {words}" if proved else "" for proved, words in shown_]


def verdicts(found: Sequence[Weights], more: Sequence[str] = ()) -> list[str]:
    """One line a window; `more` is what is added to each."""
    hidden = "token weights are not known at the step: a clip hides what rescales the gradient before it"
    added = list(more) or [""] * len(found)
    return [f"window {i + 1}: {w.verdict + added[i] if certain(w) else hidden}" for i, w in enumerate(found)]


def normaliser(full: Sequence[Weights], ranks: int) -> Result | None:
    """What the full batch's weights refute, or leave undecided, if anything."""
    if not full or any(w.right is None for w in full):
        return None
    for weights in full:
        wrong = _ranks_apart(weights) if ranks > 1 else ""
        if wrong:
            return _refuted(weights, wrong)
    uniform = [uniform_of(w) for w in full]
    if any(u is None for u in uniform):
        return None
    found = [u for u in uniform if u is not None]
    if wrong := _world(found, ranks):
        return _refuted(full[0], wrong)
    wrong = _deaf(found)
    if wrong and fixed(full, found):
        words = f"not decided: {wrong} (in the full batch's run): {CHOICE}"
        place = placed(full[0].tokens[0]["place"])
        return Result("GA-EQ-001", Outcome.UNKNOWN, words, place, MEND, "weight", REACH, {"verdict": full[0].verdict})
    return _refuted(full[0], wrong) if wrong else None


def fixed(full: Sequence[Weights], found: Sequence[Uniform]) -> bool:
    """Whether the normaliser is one number for every window, or for every token or sample that a window has."""
    each = [u.weight * len(w.tokens) for w, u in zip(full, found, strict=True)]
    return all(near(u.weight, found[0].weight) for u in found) or all(near(e, each[0]) for e in each)


def uniform_of(weights: Weights) -> Uniform | None:
    """The one weight of a window's valid tokens, if there is one."""
    valid = [t["weight"] for t in weights.tokens if t["expected"] != 0]
    if not valid or any(w is None or not near(w, valid[0]) for w in valid):
        return None
    return Uniform(valid[0], len(valid))


def near(a: Fraction, b: Fraction) -> bool:
    """Equal but for the rounding of constants."""
    return a == b or (b != 0 and abs(a / b - 1) <= CLOSE)


def _ranks_apart(weights: Weights) -> str:
    by_rank: dict[int, list[Fraction]] = {}
    for token in weights.tokens:
        if token["expected"] != 0:
            by_rank.setdefault(token["rank"], []).append(token["weight"])
    firsts = [w[0] for _, w in sorted(by_rank.items())]
    if all(near(x, w[0]) for w in by_rank.values() for x in w) and not all(near(f, firsts[0]) for f in firsts):
        return "a token weighs " + ", ".join(f"{shown(f)} on rank {r}" for r, f in enumerate(firsts))
    return ""


def _world(found: Sequence[Uniform], ranks: int) -> str:
    factors = [u.factor for u in found]
    for factor in (Fraction(1, ranks), Fraction(ranks)) if ranks > 1 else ():
        if all(near(f, factor) for f in factors):
            return f"every token weighs {shown(factor)} of its share: {ranks} ranks are counted wrongly"
    return ""


def _deaf(found: Sequence[Uniform]) -> str:
    """A normaliser that does not follow the number of valid tokens."""
    first = found[0]
    if all(near(u.factor, first.factor) for u in found) or len({u.count for u in found}) == 1:
        return ""
    if all(u.weight == 1 for u in found):
        return ""
    said = ", ".join(f"{shown(u.weight)} each of {u.count} valid tokens" for u in found[:3])
    return f"the normaliser does not follow the valid tokens: {said}"


def placed(text: str) -> Place:
    """A place from its text, `file:line`."""
    file, _, line = str(text).rpartition(":")
    return Place(file, int(line)) if line.isdigit() else NOWHERE


def untested(found: Sequence[Weights], tape: Tape) -> list[str]:
    """Where the counts of the windows cannot tell a wrong normaliser from a right one, in words."""
    counts = {sum(t["expected"] != 0 for t in w.tokens) for w in found if w.right is not None}
    padded = any(t["expected"] == 0 for w in found for t in w.tokens)
    if padded and len(found) > 1 and len(counts) == 1:
        return [f"every window has {counts.pop()} valid tokens: a normaliser that ignores their number would not show"]
    loss = next((e.place for e in tape.entries() if "nll_loss" in e.op and not e.backward), None)
    if loss is not None and found and not padded:
        return [f"no label of this run is ignored at {loss}: micro-batches with unequal numbers of valid labels"]
    return []


def _refuted(weights: Weights, wrong: str) -> Result:
    place = placed(weights.tokens[0]["place"]) if weights.tokens else None
    words = f"{wrong} (in the full batch's run)"
    return Result("GA-EQ-001", Outcome.REFUTED, words, place, MEND, "weight", REACH, {"verdict": weights.verdict})
