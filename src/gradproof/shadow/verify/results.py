"""From what was compared, and what the events showed, to results with a line and a help."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import numpy as np

from gradproof.core.outcome import Outcome
from gradproof.shadow.algebra import Array, Beyond, Parts, Value
from gradproof.shadow.domains.interpreter import Havoc, Interpreter, NoRow, Observation
from gradproof.shadow.domains.modular import Field
from gradproof.shadow.domains.programs import Compiler
from gradproof.shadow.domains.real import Reals, Special
from gradproof.shadow.protocol.window import Broken, Judgement
from gradproof.shadow.record.run import Recording
from gradproof.shadow.result import NO_LOSS, RECORDED, UP_TO_CONSTANTS, Result
from gradproof.shadow.tape import Event, Location, Ref, Source, Tape
from gradproof.shadow.verify import obligations
from gradproof.shadow.verify.compare import Decision, Quantity, size_of, windows
from gradproof.shadow.verify.diagnosis import (
    Wrong,
    last_write,
    of_violation,
    place_of_gradient,
    place_of_loss,
    place_of_number,
    place_of_weights,
)
from gradproof.shadow.verify.recordings import Precondition, StepRecordings, batch_norm

NUMBERS = ("GA-EQ-001", "GA-INV-001")
SILENT = frozenset({Outcome.UNKNOWN, Outcome.TIMEOUT, Outcome.BOUND_HIT})


def held(name: str, report: Judgement) -> str:
    """What the events of a run that kept an obligation show."""
    clips = sum(event["event"] == "clip" for event in report.events)
    words = {
        "GA-INV-002": f"no gradient outlived its step, in {report.steps} windows",
        "GA-INV-003": f"{report.steps} steps for {report.arrivals} micro-batches",
        "GA-INV-004": "every sum of gradients was made in fp32 or wider",
        "GA-INV-005": f"{clips} clips, each of a whole window" if clips else "the step clips nothing",
    }
    return words[name]


def unjudged(name: str) -> Result:
    """The result of an obligation that nothing decided."""
    return Result(name, Outcome.NOT_RUN, "nothing decided it")


def as_result(name: str, precondition: Precondition) -> Result:
    """What keeps an obligation from being judged, as its result."""
    return Result(
        name,
        precondition.outcome,
        precondition.reason,
        precondition.place,
        precondition.help,
        details={"code": precondition.code},
    )


def with_trace(shown: dict[str, Any] | None, trace: dict[str, Any] | None) -> dict[str, Any] | None:
    """A counterexample with the run that shows it."""
    return shown if trace is None else {**(shown or {}), "trace": trace}


def violation(broken: Broken, tape: Tape) -> Result:
    """A broken rule of the window protocol as a result."""
    details = {"event": str(broken.event), "micro_batch": broken.micro, "parameters": list(broken.params)}
    return Result(
        broken.obligation, Outcome.REFUTED, broken.why, broken.place, HELP.get(broken.obligation, ""), "events",
        RECORDED, details, with_trace(None, of_violation(tape, broken)),
    )  # fmt: skip


HELP = {
    "GA-EQ-001": "unscale once, when the window is complete",
    "GA-INV-002": "zero the gradients once, between the step and the next window's first backward pass",
    "GA-INV-003": "step the optimizer, and after it the schedule, once, when the window is complete",
    "GA-INV-004": "accumulate in fp32: keep an fp32 gradient or main_grad beside a half-precision parameter",
    "GA-INV-005": "clip once, after the last micro-batch and after unscaling",
}


def no_loss() -> Result:
    """GA-INV-001 of a function that reports no loss. It is no obligation that holds."""
    words = "no reported loss was seen: the function returns no number"
    help = "return the loss of each window to have it judged"
    return Result("GA-INV-001", Outcome.NOT_RUN, words, None, help, "floats", RECORDED, {"code": NO_LOSS})


def _known(decision: Decision) -> list[Quantity]:
    unsure = [q for q, _, _ in decision.unknown if q is not None]
    return [*decision.equal, *decision.apart, *(q for q, _ in decision.constants), *unsure]


class Settled:
    """Results of the numbers, domain by domain."""

    def __init__(self, session: StepRecordings, broken: list[Broken]) -> None:
        self.session, self.broken = session, broken
        self.wrongs: list[tuple[Result, Wrong]] = []
        self._looked, self._place = False, cast("Location | None", None)

    def results(self, decision: Decision) -> Iterable[Result]:
        """What one domain's decision says of GA-EQ-001, GA-INV-001 and GA-INV-003."""
        if (
            decision.apart
            and not obligations.equal_update(decision, self.session)
            and (place := self._interaction()) is not None
        ):
            yield from self._batch(decision, place)
            return
        if obligations.equal_update(decision, self.session):
            yield self._same_update(decision)
            decision.equal += decision.apart
            decision.apart = []
        moved = self._moved_between(decision)
        if moved is not None:
            self.broken = [*self.broken, moved]
            tape = self.session.ours[0].tape
            yield replace(violation(moved, tape), domain=decision.domain, reach=decision.reach)
        apart = next((text for text in decision.missing if "windows were stepped" in text), "")
        if apart and not self.broken:
            for name in ("GA-EQ-001", "GA-INV-001"):
                yield Result(name, Outcome.OPAQUE, apart, self._step(), "", decision.domain, decision.reach)
            return
        yield from self._gradients(decision)
        yield from self._losses(decision)
        if self.session.ranks > 1:
            yield from self._group(decision, ("sync",), "GA-SYNC-001")
        after = ("weights", "state", "average")
        if any(q.group in after for q in decision.apart) and not decision.of("grad", decision.apart):
            yield from self._group(decision, after, "GA-INV-003")

    def _moved_between(self, decision: Decision) -> Broken | None:
        """Weights that are the full batch's after every earlier step, and not when the next step begins."""
        weights = [q for q in decision.apart if q.group == "weights"]
        if self.broken or not weights:
            return None
        first = min(weights, key=lambda q: (q.window, q.event != "step"))
        earlier = any(q.window < first.window for q in decision.apart if q.group != "loss")
        if first.event != "step" or earlier or obligations.replay(self.session, first) is None:
            return None
        tape = self.session.ours[first.rank].tape
        place = place_of_weights(tape, first.window, first.name) or first.place
        why = f"the weights were changed after the step of window {first.window}, and not as with the full batch"
        index = last_write(tape, place, first.window)
        return Broken("GA-INV-003", why, "weights", place, 0, (first.name,), index)

    def _gradients(self, decision: Decision) -> Iterable[Result]:
        known = _known(decision)
        groups = ("grad",) if decision.of("grad", known) else ("weights",)
        if groups == ("weights",) and decision.of("weights", known) and obligations.frozen(self.session.ours[0].tape):
            anew = obligations.returned_only(self.session.ours[0].tape)
            words = "no gradient was handed to a step, and no weight moved" + "; new weights may have been made" * anew
            found = Outcome.OPAQUE if anew else Outcome.VACUOUS
            yield Result("GA-EQ-001", found, words, self._step(), "", decision.domain, decision.reach)
            return
        for text in decision.missing[:1]:
            place = self.broken[0].place if self.broken else self._step()
            outcome = Outcome.REFUTED if self.broken else Outcome.OPAQUE
            yield Result("GA-EQ-001", outcome, text, place, "", decision.domain, decision.reach)
        yield from self._group(decision, groups, "GA-EQ-001")

    def _losses(self, decision: Decision) -> Iterable[Result]:
        """The losses as returned numbers, as returned tensors, or as roots, which may be scaled after backward."""
        tensors = any(q.group == "loss" and q.event == "loss" for q in _known(decision))
        compared = list(self._group(decision, ("loss",), "GA-INV-001")) if tensors else []
        if any(r.outcome is Outcome.REFUTED for r in compared):  # which names the line
            yield from compared
            return
        said = obligations.reported(self.session)
        if said is not None and not (tensors and said.outcome is Outcome.HOLDS):
            yield self._reported(said, decision)
        if obligations.returns_nothing(self.session):
            yield from self._unreported(decision)
            return
        if said is not None and not tensors:
            return
        apart = [q for q in decision.apart if q.group == "loss" and q.event == "backward"]
        graded = any(q.group == "grad" for q in (*decision.apart, *(u[0] for u in decision.unknown if u[0])))
        if apart and not graded and (factor := obligations.one_factor(self.session, apart)) is not None:
            words = f"the roots of the backward passes sum to {factor}, and the gradient is rescaled after them"
            yield Result("GA-INV-001", Outcome.HOLDS, words, None, "", decision.domain, decision.reach)
            return
        yield from compared if tensors else self._group(decision, ("loss",), "GA-INV-001")

    def _reported(self, said: obligations.ReportedLosses, decision: Decision) -> Result:
        tape = self.session.ours[0].tape
        known = (*decision.apart, *(u[0] for u in decision.unknown if u[0]), *decision.equal)
        named = next((q.name for q in known if q.group == q.event == "loss"), None)
        there = place_of_gradient(tape, 0) if named is None else place_of_loss(tape, named)
        where = None if said.outcome is Outcome.HOLDS else place_of_number(tape) or there
        words = f"the losses that the function returns: {said.words}"
        help = "" if where is None else "report the window's mean: the sum of the micro-batches' shares"
        return Result("GA-INV-001", said.outcome, words, where, help, "floats", RECORDED)

    def _unreported(self, decision: Decision) -> Iterable[Result]:
        """The function returns no number: what autograd was handed is still compared, and shows no reported loss."""
        for result in self._group(decision, ("loss",), "GA-INV-001"):
            if result.outcome is Outcome.REFUTED and not self._rescaled(decision):
                yield result
                return
        yield no_loss()

    def _rescaled(self, decision: Decision) -> bool:
        """Whether the roots are one multiple of the full batch's, and the gradients are right all the same."""
        apart = [q for q in decision.apart if q.group == "loss" and q.event == "backward"]
        graded = any(q.group == "grad" for q in (*decision.apart, *(u[0] for u in decision.unknown if u[0])))
        return bool(apart) and not graded and obligations.one_factor(self.session, apart) is not None

    def _group(self, decision: Decision, groups: tuple[str, ...], obligation: str) -> Iterable[Result]:
        apart = [q for q in decision.apart if q.group in groups and q.window <= self._first(decision, groups)]
        unknown = [u for u in decision.unknown if u[0] is None or u[0].group in groups]
        close = [c for c in decision.constants if c[0].group in groups]
        equal = [q for q in decision.equal if q.group in groups]
        if apart:
            yield self._apart(decision, obligations.first_of(apart), obligation)
        elif unknown:
            _, outcome, why = unknown[0]
            yield Result(obligation, outcome, why, None, "", decision.domain, decision.reach)
        elif close:
            words = f"equal up to constants: {close[0][1]}"
            details = {"bound": close[0][1], "quantities": [str(q) for q, _ in close[:8]]}
            yield Result(obligation, Outcome.HOLDS, words, None, "", decision.domain, UP_TO_CONSTANTS, details)
        elif equal:
            words = f"{len(equal)} quantities are equal to the full batch's, in every element"
            details = {"established_by": decision.error_bound} if decision.error_bound else {}
            yield Result(obligation, Outcome.HOLDS, words, None, "", decision.domain, decision.reach, details)
        else:
            yield Result(obligation, Outcome.NOT_RUN, "nothing was there to compare", None, "", decision.domain)

    def _first(self, decision: Decision, groups: tuple[str, ...]) -> int:
        """The first window that went wrong: what a loss does after it follows from it."""
        wrong = [q.window for q in decision.apart if q.group in ("grad", "weights")]
        return min(wrong, default=1 << 30) if "loss" in groups else 1 << 30

    def _apart(self, decision: Decision, quantity: Any, obligation: str) -> Result:
        result = obligations.refuted(self.session, quantity, decision)
        result.obligation = obligation
        if result.outcome is not Outcome.REFUTED:
            return result
        cause = next((b for b in self.broken if b.place is not None), None)
        if cause is not None:
            result.details["follows_from"] = cause.obligation
            result.place, result.help = cause.place, HELP.get(cause.obligation, "")
        everywhere = self._everywhere(decision, quantity)
        self.wrongs.append((result, Wrong(obligation, result.reason, result.place, cause, quantity, everywhere)))
        return result

    def _everywhere(self, decision: Decision, quantity: Quantity) -> bool:
        """Whether all gradients of a window are one multiple of the full batch's, in more than one element."""
        mine = (quantity.window, quantity.rank)
        grads = [q for q in decision.of("grad", decision.apart) if (q.window, q.rank) == mine]
        if sum(q.ours.size for q in grads) < 2:
            return False
        factor = obligations.one_factor(self.session, grads)
        return factor is not None and abs(factor.factor - 1) > 1e-3

    def _same_update(self, decision: Decision) -> Result:
        quantity = obligations.first_of(decision.of("grad", decision.apart))
        rank = quantity.rank
        seen = obligations.measured(self.session.ours[rank], self.session.full[rank], quantity, "the recorded values")
        factor = f" ({seen.scale})" if seen is not None and seen.scale is not None else ""
        words = f"the update is the full batch's, the gradient is not{factor}: the learning rate makes up for it"
        return Result("GA-EQ-001", Outcome.HOLDS, words, None, "", decision.domain, decision.reach, {"equal": "update"})

    def _interaction(self) -> Location | None:
        """Where samples interact, looked for once."""
        if not self._looked:
            self._looked, self._place = True, interacting(self.session)
        return self._place

    def _batch(self, decision: Decision, place: Location) -> Iterable[Result]:
        words = "the loss of a sample depends on the other samples of its micro-batch"
        help = "no accumulation equals the full batch here: the contract's loss is a sum over samples"
        if batch_norm(self.session.full[0].tape) is not None:
            words = f"a normalisation over the batch is trained: {words}"
            help = "no accumulation equals the full batch here; freeze the statistics, or normalise without the batch"
        for name in NUMBERS:
            yield Result(
                name, Outcome.OUTSIDE, words, place, help, decision.domain, details={"code": "batch-statistics"}
            )

    def _step(self) -> Location:
        events: Iterable[Event] = self.session.ours[0].tape.events("step")
        return next((e.place for e in events), place_of_gradient(self.session.ours[0].tape, 0))


# -- Whether the loss of a sample depends on its neighbours, found by experiment on the full batch's tape.
#
# A loss that is a sum over samples has no mixed second difference: for the data A of one micro-batch and B of another,
# L(A', B') - L(A', B) - L(A, B') + L(A, B) = 0. The four losses are residues at random values, so a difference
# that is not zero is no rounding. Which data belong to which micro-batch is read from the terms of the N-run's roots.
# Integer data cannot be moved: for them only trained batch statistics are known, by their operator.

Names = frozenset[str]


class Mixed(Field):
    """A field whose leaves are taken at another point where their names are chosen."""

    def __init__(self, chosen: Names, key: int = 11) -> None:
        super().__init__(key)
        self.chosen, self.other = chosen, Field(key + 1)

    def leaf(self, source: Source, shape: tuple[int, ...], value: Array) -> Parts:
        """As Field's, at the other point for the chosen elements."""
        here, degree = super().leaf(source, shape, value)[:2]
        there = self.other.leaf(source, shape, value)[0]
        count = int(np.prod(shape, dtype=np.int64))
        names = (f"{source.kind}/{source.name}[{source.first + i}]" for i in range(count))
        taken = np.fromiter((name in self.chosen for name in names), dtype=bool, count=count).reshape(shape)
        made: list[Any] = [np.where(taken, there, here), degree]
        return (*made, *super().leaf(source, shape, value)[2:])


def interacting(session: StepRecordings) -> Location | None:
    """Where the samples of the full batch interact; None where they do not, or where it cannot be found out."""
    known = batch_norm(session.full[0].tape)
    if known is not None:
        return known
    if size_of(session.ours[0].tape) > session.operations or session.ranks > 1:
        return None
    try:
        return _mixed(session)
    except (NoRow, Beyond):
        return None


def _mixed(session: StepRecordings) -> Location | None:
    found = data_of_roots(session, session.ours)
    groups = found[0] if found else []
    for a, b in pairwise(groups):
        if a & b or not a or not b:
            continue
        losses = [_loss(session, chosen) for chosen in (a | b, a, b, frozenset())]
        if any(loss is None for loss in losses):
            continue
        both, one, other, none = (loss for loss in losses if loss is not None)
        if int(both + none) % (2**61 - 1) != int(one + other) % (2**61 - 1):
            return next(e.place for e in session.full[0].tape.events("backward"))
    return None


def data_of_roots(session: StepRecordings, recordings: Sequence[Recording]) -> list[list[Names]]:
    """The data elements on which each root depends beyond the weights, window by window, micro-batch by micro-batch.

    A weight that was stepped depends on the data of the windows before; what a window shares with all later ones
    through its weights is distinguished by cutting the weights off (`Cut`).
    """
    domain = Reals()
    reading = Cut(domain, session.havoc).run(recordings[0].tape, _roots)
    found = []
    for window in windows(reading.observations):
        found.append([_data(domain, root) for root in window.roots])
    return found


def _data(domain: Reals, observation: Observation) -> Names:
    terms = [t for v in observation.values.values() for t in v.parts[0].ravel().tolist()]
    program = Compiler(domain.pool).compile([t for t in terms if not isinstance(t, Special)])
    names = (str(step.payload) for step in program.steps if step.op == "variable")
    return frozenset(name for name in names if name.startswith("data/"))


class Cut(Interpreter):
    """Makes every weight an unknown of its own again after each step."""

    def __init__(self, domain: Reals, havoc: Havoc | None) -> None:
        super().__init__(domain, havoc=havoc)
        self.steps = 0

    def observe(self, event: Event) -> Observation:
        """As the interpreter's; after `stepped` the weights are fresh variables."""
        seen = super().observe(event)
        for name, ref in event.refs.items() if event.kind == "stepped" else ():
            if isinstance(ref, Ref) and name.startswith(("param/", "state/")) and ref.floating:
                self.steps += 1
                fresh = self.domain.leaf(Source("param", f"{name} {self.steps}"), ref.shape, np.zeros(ref.shape))
                self.memory.write(ref, Value(self.domain, fresh))
        return seen


AGAIN = "reads all data of the window before it once more, and further ones"


def data_differ(session: StepRecordings) -> tuple[str, str]:
    """How the windows' data are not those of the full batch, or not new from window to window; else nothing.

    The second text says why it was not looked at which window reads what, where it was not.
    """
    if session.ranks > 1:
        return "", "several ranks"
    if size_of(session.ours[0].tape) > session.operations:
        return "", f"more than {session.operations} scalar operations"
    try:
        ours, full = (data_of_roots(session, r) for r in (session.ours, session.full))
    except (NoRow, Beyond) as error:
        return "", str(error)
    mine, theirs = ([frozenset().union(*w) for w in side] for side in (ours, full))
    for index, (a, b) in enumerate(zip(mine, theirs, strict=False)):
        if a != b:
            words = f"reads {len(a)} numbers of the data, the full batch {len(b)}, {len(a & b)} of both"
            return f"window {index + 1} {words}", ""
        if index and theirs[index - 1] and theirs[index - 1] < b:
            return f"window {index + 1} {AGAIN}", ""
    return _restarted(session, theirs), "" if any(theirs) else "no number of the data was seen to reach a loss"


def _restarted(session: StepRecordings, windows_: Sequence[Names]) -> str:
    """Every window reads the same data although there are more: a loader that begins anew."""
    if len(windows_) < 2 or not windows_[0] or any(w != windows_[0] for w in windows_):
        return ""
    tape = session.full[0].tape
    sources = {name.rpartition("[")[0] for name in windows_[0]}
    leaves = [leaf for leaf in tape.leaves() if f"data/{leaf.source.name}" in sources]
    unread = sum(leaf.ref.count for leaf in leaves) - len(windows_[0])
    return (
        f"every window reads the same data, and {unread} numbers of them are never read"
        if unread > len(windows_[0]) / 2
        else ""
    )


def _roots(event: Event) -> bool:
    return event.kind in ("backward", "step", "stepped") and bool(event.refs)


def _loss(session: StepRecordings, chosen: Names) -> int | None:
    """The first window's loss of the full batch as a residue."""
    reading = session.read(Mixed(chosen), session.full, _roots)[0]
    first = windows(reading.observations)[:1]
    value = first[0].loss() if first and first[0].steps else None
    if value is None:
        return None
    residue = int(value.parts[0])
    return residue if residue < 2**61 - 1 else None
