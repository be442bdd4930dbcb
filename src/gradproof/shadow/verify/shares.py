"""What a token weighs on each of several ranks: the full batch's run may forget the other ranks as the N-run does.

The full batch's tapes are evaluated in float64. The gradient that a loss is given, summed over the classes, is minus
the weight of each token. It is then multiplied by 2, rank by rank: the change at the step over the change on arrival is
the factor by which the rank's gradient enters the step. A factor that differs between elements, or a window with
several losses, shows nothing. Where a clip binds, the weights are those before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from gradproof.core.outcome import Outcome
from gradproof.shadow.algebra import Array, Beyond, Value
from gradproof.shadow.domains.interpreter import NoRow, Observation, Reading
from gradproof.shadow.domains.programs import Floats
from gradproof.shadow.result import RECORDED, Result
from gradproof.shadow.tape import Entry, Event, Location, Tape
from gradproof.shadow.verify.recordings import StepRecordings

STAGES = ("accumulate", "gradients", "unscale", "clip", "step")
"""Events at which gradients are looked at."""
NEAR = 1e-5
"""Relative distance of two weights that are the same but for rounding."""
HELP = "divide by the valid tokens of the whole window, over all ranks"
CHOICE = (
    "right with a fixed normaliser, or a mask that only leaves samples out; wrong where valid tokens should be counted"
)
UNSEEN = "what a token of each rank weighs was not seen: a share that is wrong in both runs would not show"


class Marked(Floats):
    """Float64, with every loss's gradient noted, and that of some, by rank and number, multiplied."""

    def __init__(self, marks: Mapping[tuple[int, int], float], ranks: int) -> None:
        super().__init__()
        self.marks, self.rank = marks, 0
        self.found: list[list[tuple[Entry, Array]]] = [[] for _ in range(ranks)]

    def probe(self, name: str, value: Value, entry: Entry) -> Value:
        """The gradient of a loss, on its way to the rest (see `Ops.probe`)."""
        if name != "token_grad":
            return value
        seen, axis = self.found[self.rank], -1
        if "log_softmax" in entry.op and isinstance(entry.args[2], int):
            axis = entry.args[2]
        factor = self.marks.get((self.rank, len(seen)), 1.0)
        seen.append((entry, -np.asarray(value.parts[0].sum(axis=axis if value.ndim else None)).ravel()))
        return value if factor == 1.0 else Value(self, (value.parts[0] * factor,))


@dataclass(frozen=True, slots=True)
class Shares:
    """One window: what the valid tokens of each rank weigh, how many there are, and how many with the ignored ones."""

    weights: list[float]
    valid: int
    tokens: int
    place: Location

    @property
    def alike(self) -> bool:
        """Whether all ranks weigh a token alike."""
        return all(near(w, self.weights[0]) for w in self.weights)


def near(a: float, b: float) -> bool:
    """Equal but for rounding."""
    return abs(a - b) <= NEAR * abs(b)


def judged(session: StepRecordings) -> tuple[Result | None, str]:
    """What the weights refute or leave undecided, if anything; and what was not seen, in words."""
    try:
        found = list(_windows(session))
    except (NoRow, Beyond):
        return None, UNSEEN
    if not found or any(shares is None for shares in found):
        return None, UNSEEN
    return _verdict([shares for shares in found if shares is not None], session.ranks), ""


def _windows(session: StepRecordings) -> Iterator[Shares | None]:
    """Every window of the full batch's run; None for one of which nothing is known."""
    tapes = [r.tape for r in session.full]
    base, seen = _read(session, {})
    at = [[_window(tape, entry) for entry, _ in own] for tape, own in zip(tapes, seen, strict=True)]
    for window in sorted({w for own in at for w in own}):
        numbers = [[i for i, w in enumerate(own) if w == window] for own in at]
        if any(len(own) != 1 for own in numbers):
            yield None
            continue
        weights: list[float | None] = []
        for rank, (number,) in enumerate(numbers):
            moved = [_moves(base[rank], _read(session, {(rank, number): m})[0][rank]) for m in (2.0, 3.0)]
            entry, given = seen[rank][number]
            factor = _factor(tapes[rank], base[rank].observations, moved, entry)
            valid = given[given != 0]
            even = valid.size and all(near(w, valid[0]) for w in valid)
            weights.append(float(valid[0]) * factor if even and factor is not None else None)
        known = [w for w in weights if w is not None]
        held = [seen[rank][number][1] for rank, (number,) in enumerate(numbers)]
        valid_, tokens = sum(int((h != 0).sum()) for h in held), sum(h.size for h in held)
        place = seen[0][numbers[0][0]][0].place
        yield Shares(known, valid_, tokens, place) if len(known) == len(weights) else None


def _read(
    session: StepRecordings, marks: Mapping[tuple[int, int], float]
) -> tuple[list[Reading], list[list[tuple[Entry, Array]]]]:
    domain = Marked(marks, session.ranks)
    return session.read(domain, session.full, lambda e: e.kind in STAGES and bool(e.refs)), domain.found


def _window(tape: Tape, entry: Entry) -> int:
    """Steps before an operator."""
    before = tape.items[: next(i for i, item in enumerate(tape.items) if item is entry)]
    return sum(isinstance(item, Event) and item.kind == "step" for item in before)


def _moves(base: Reading, other: Reading) -> list[Array]:
    """The change of all gradients at every stage."""
    return [_flat(b) - _flat(a) for a, b in zip(base.observations, other.observations, strict=True)]


def _flat(seen: Observation) -> Array:
    held = (v for name, v in sorted(seen.values.items()) if name.startswith("grad/") and isinstance(v, Value))
    return np.concatenate([np.zeros(0), *(v.parts[0].ravel() for v in held)])


def _factor(tape: Tape, seen: list[Observation], moved: list[list[Array]], entry: Entry) -> float | None:
    """By what the gradient of a loss is multiplied on its way to the step; None where that is not one number."""
    places = {id(item): i for i, item in enumerate(tape.items)}
    after = [i for i, o in enumerate(seen) if places[id(o.event)] > places[id(entry)]]
    step = next((i for i in after if seen[i].event.kind == "step"), None)
    until = [i for i in after if step is not None and i <= step and _linear(moved[0][i], moved[1][i])]
    arrived = next((i for i in after if seen[i].event.kind in ("accumulate", "gradients")), None)
    if not until or arrived is None or moved[0][arrived].size != moved[0][until[-1]].size:
        return None
    before, there = moved[0][arrived], moved[0][until[-1]]
    large = np.abs(before) > 1e-6 * np.max(np.abs(before), initial=0.0)
    ratios = there[large] / before[large]
    if not ratios.size or not all(near(r, ratios[0]) for r in ratios):
        return None
    return float(ratios[0]) / _averaged(tape, places[id(seen[arrived].event)])


def _linear(once: Array, twice: Array) -> bool:
    return bool(np.all(np.abs(twice - 2 * once) <= 1e-9 * np.max(np.abs(twice), initial=0.0)) and np.any(once))


def _averaged(tape: Tape, index: int) -> int:
    """World size where DistributedDataParallel averaged inside the backward pass, before the gradient was seen."""
    for item in tape.items[index + 1 :]:
        if isinstance(item, Event) and item.kind == "sync":
            return int(item.detail.get("world", 1)) if item.detail.get("how") == "DistributedDataParallel" else 1
        if isinstance(item, Event) and item.kind in ("backward", "step"):
            break
    return 1


def _verdict(found: list[Shares], ranks: int) -> Result | None:
    for shares in found:
        if not shares.alike:
            said = ", ".join(f"{w:.6g} on rank {r}" for r, w in enumerate(shares.weights))
            return _result(Outcome.REFUTED, f"a token weighs {said} (in the full batch's run)", shares.place)
    weights, totals = [s.weights[0] for s in found], [s.weights[0] * s.valid for s in found]
    for factor in (1 / ranks, float(ranks)):
        if all(near(t, factor) for t in totals):
            words = f"every token weighs {factor:.6g} of its share: {ranks} ranks are counted wrongly"
            return _result(Outcome.REFUTED, f"{words} (in the full batch's run)", found[0].place)
    if all(near(t, totals[0]) for t in totals) or len({s.valid for s in found}) == 1 or all(w == 1 for w in weights):
        return None
    said = ", ".join(f"{s.weights[0]:.6g} each of {s.valid} valid tokens" for s in found[:3])
    words = f"the normaliser does not follow the valid tokens: {said} (in the full batch's run)"
    each = [s.weights[0] * s.tokens for s in found]
    if all(near(w, weights[0]) for w in weights) or all(near(e, each[0]) for e in each):
        return _result(Outcome.UNKNOWN, f"not decided: {words}: {CHOICE}", found[0].place)
    return _result(Outcome.REFUTED, words, found[0].place)


def _result(outcome: Outcome, words: str, place: Location) -> Result:
    return Result("GA-EQ-001", outcome, words, place, HELP, "value", RECORDED)
