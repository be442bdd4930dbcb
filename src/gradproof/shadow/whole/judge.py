"""What two runs without numbers decide: each obligation is read off what the gradients are made of.

Equal combinations prove. Unequal ones refute only where both runs weigh the same terms and the weights differ; else the
obligation is not decided, and the line that couples the samples is named where there is one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

import torch

from gradproof.core.outcome import Outcome
from gradproof.shadow.record.run import Noted, Recording, Run
from gradproof.shadow.request import Request
from gradproof.shadow.result import NO_LOSS, OBLIGATIONS, Result, Verification
from gradproof.shadow.tape import NOWHERE, Location, Tape
from gradproof.shadow.whole.engine import Gradient, Update
from gradproof.shadow.whole.fake import Followed, followed
from gradproof.shadow.whole.terms import NOBODY, Combination, Terms, multiplied, plus, times

REACH = "all real weights, data and draws, at these shapes; no number of a tensor was read"
DOMAIN = "whole tensors"
SYNC = "GA-SYNC-001"
HELP = "check a small model without --fake, which has numbers"
NORMS = ("linalg_vector_norm", "norm")
SHOWN = 4


class Judge:
    """The obligations of one function, by its two runs."""

    def __init__(self, terms: Terms, run: Run, ours: Followed, full: Followed) -> None:
        self.terms, self.run, self.ours, self.full = terms, run, ours, full
        self.sizes = [run.effective_batch_size] * run.windows
        if run.tail:
            self.sizes.append(run.tail * run.micro_batch_size)
        self.cycles = self._cycles()
        self.samples = [self._samples(update) for update in ours.flow.updates]
        self.unequal = self._first_unequal()

    def _cycles(self) -> int:
        """How often the function goes over its windows: as often in both runs, or once."""
        steps = len(self.ours.flow.updates)
        whole = steps == len(self.full.flow.updates) and steps % len(self.sizes) == 0
        return max(1, steps // len(self.sizes)) if whole else 1

    def _samples(self, update: Update) -> set[int]:
        return self.terms.samples(term for g in update.gradients.values() for term in g.value)

    def _first_unequal(self) -> tuple[int, str] | None:
        """The first window and parameter whose gradients are not one combination in both runs."""
        for at, (ours, full) in enumerate(zip(self.ours.flow.updates, self.full.flow.updates, strict=False)):
            for name in [*ours.gradients, *(full.gradients.keys() - ours.gradients.keys())]:
                mine, other = ours.gradients.get(name), full.gradients.get(name)
                if mine is None or other is None or mine.value != other.value:
                    return at, name
        return None

    def results(self) -> list[Result]:
        """A result for each obligation but that of ranks."""
        ended = self._impossible()
        if ended is not None:
            outcome, reason, place = ended
            return [Result(name, outcome, reason, place, HELP, DOMAIN) for name in OBLIGATIONS if name != SYNC]
        equal = self.equality()
        rules: list[Callable[[], Result]] = [self.loss, self.stale, self.steps, self.width]
        return [self.data(equal), equal, *(rule() for rule in rules), self.clipping(equal)]

    def _impossible(self) -> tuple[Outcome, str, Location] | None:
        """What keeps every obligation undecided."""
        for run, what in ((self.ours, "the run by micro-batches"), (self.full, "the run by the full batch")):
            flow = run.flow
            if flow.reads:
                place, how = flow.reads[0]
                return Outcome.OPAQUE, f"the step reads {_read(how)}, and without numbers there is none", place
            if run.error:
                outcome = Outcome.OPAQUE if run.unsupported else Outcome.ERROR
                return outcome, f"{what} ended with {run.error}", run.raised
            if flow.lost:
                return Outcome.OPAQUE, f"a value was lost: {flow.lost[0][1]}", flow.lost[0][0]
        if self.ours.unread:
            words = ", ".join(self.ours.unread)
            return Outcome.OUTSIDE, f"the function never reads {words} of its argument; both runs are one", NOWHERE
        if self.run.accum_steps == 1:
            return Outcome.UNKNOWN, "one micro-batch a window: both runs are one, and nothing is compared", NOWHERE
        if self.ours.flow.operators == self.full.flow.operators:
            return Outcome.OUTSIDE, "the function does the same by micro-batches and by the full batch", NOWHERE
        if not self.ours.flow.updates:
            return Outcome.UNKNOWN, "no step of a torch.optim optimizer was seen", NOWHERE
        for mine, other in zip(self.ours.flow.updates, self.full.flow.updates, strict=False):
            if mine.order != other.order:
                reason = "the optimizer has its parameters in another order in the full batch's run"
                return Outcome.UNKNOWN, reason, mine.place
        if not all(self.samples):
            at = next(i for i, found in enumerate(self.samples) if not found)
            where = self.ours.flow.updates[at].place
            return Outcome.VACUOUS, f"the gradient of window {at + 1} is made of no data", where
        return None

    def _result(self, name: str, outcome: Outcome, reason: str, place: Location | None = None, **more: Any) -> Result:
        reach = REACH if outcome is Outcome.HOLDS else ""
        return Result(name, outcome, reason, place, more.pop("help", ""), DOMAIN, reach, **more)

    # GA-EQ-001

    def equality(self) -> Result:
        """Each gradient is the full batch's."""
        name, found = "GA-EQ-001", self.unequal
        ours, full = self.ours.flow.updates, self.full.flow.updates
        strange = self._foreign_scalars()
        if found is None and strange is not None:
            reason = "a gradient is scaled by a number that is made of other samples than those of its window"
            return self._result(name, Outcome.UNKNOWN, reason, strange)
        if found is None and len(ours) == len(full) == len(self.sizes) * self.cycles:
            count = sum(len(update.gradients) for update in ours)
            return self._result(name, Outcome.HOLDS, f"{count} gradients are one combination in both runs")
        if found is None:
            reason = f"{len(ours)} and {len(full)} optimizer steps cannot be compared; {len(self.sizes)} were asked for"
            return self._result(name, Outcome.UNKNOWN, reason, ours[-1].place)
        at, parameter = found
        mine, other = (side[at].gradients.get(parameter) for side in (ours, full))
        place = ours[at].place
        if mine is None or other is None:
            side = "full batch" if mine is None else "micro-batches"
            return self._result(name, Outcome.UNKNOWN, f"{parameter} has a gradient only by the {side}", place)
        return self._unequal(name, at, mine, other, place)

    def _foreign_scalars(self) -> Location | None:
        """The step of a gradient that is scaled by a number of other samples than those of its summands."""
        for update in self.ours.flow.updates:
            bared = [self.terms.bare(t) for g in update.gradients.values() for t in g.value]
            scalars = {scalar for _, powers in bared for scalar in powers}
            if self.terms.samples(scalars) - self.terms.samples(term for term, _ in bared):
                return update.place
        return None

    def _unequal(self, name: str, at: int, mine: Gradient, other: Gradient, place: Location) -> Result:
        window = f"the gradient of {mine.name} in window {at + 1}"
        left, right = self.unscaled(mine.value), self.unscaled(other.value)
        if left is not mine.value:
            window += ", before it is scaled by a norm,"
        by = ratio(left, right)
        if by is not None:
            counterexample = {"quantity": window, "times_the_full_batch": str(by), "weights": self._weights(left)}
            reason = f"{window} is {by} times the full batch's"
            return self._result(
                name, Outcome.REFUTED, reason, place, counterexample=counterexample,
                help="divide each loss by the number of micro-batches of its own window",
            )  # fmt: skip
        if left != right and set(left) == set(right) and self._single(left):
            counterexample = {
                "quantity": window, "weights": self._weights(left), "full_batch": self._weights(right),
            }  # fmt: skip
            reason = f"{window} weighs its samples otherwise than the full batch does"
            return self._result(name, Outcome.REFUTED, reason, place, counterexample=counterexample)
        coupled = next(iter(self.ours.flow.coupled.items()), None)
        if coupled is not None:
            what, where = coupled
            reason = f"{window} was not shown to be the full batch's: samples meet in {what.split(' at ')[0]}"
            return self._result(name, Outcome.OUTSIDE, reason, where, help=HELP)
        return self._result(name, Outcome.UNKNOWN, f"{window} was not shown to be the full batch's", place, help=HELP)

    def unscaled(self, value: Combination) -> Combination:
        """A gradient without the scalars by which all of its terms were multiplied, where a norm is among them."""
        powers = self.terms.common(value)
        return self.terms.rescaled(value, multiplied({}, powers, -1)) if self.terms.found(powers, NORMS) else value

    def _single(self, value: Combination) -> bool:
        return all(self.terms.owners[term] >= 0 for term in value)

    def _weights(self, value: Combination) -> dict[str, str]:
        """The weight of each sample in the first few terms of a gradient."""
        found: dict[str, Fraction] = {}
        for term, by in value.items():
            if self.terms.owners[term] >= 0:
                found.setdefault(f"sample {self.terms.owners[term]}", by)
        return {key: str(by) for key, by in sorted(found.items())[: 2 * SHOWN]}

    # The window

    def data(self, equal: Result) -> Result:
        """The samples of each window, each once."""
        name = "GA-DATA-001"
        if equal.outcome is not Outcome.HOLDS:
            return self._result(
                name, Outcome.UNKNOWN, "the gradients were not shown to be the full batch's", equal.place
            )
        bad = self._counts()
        if bad is not None:
            return self._result(name, Outcome.UNKNOWN, *bad)
        return self._result(name, Outcome.HOLDS, f"{sum(self.sizes)} samples, each in the gradients of one window")

    def _counts(self) -> tuple[str, Location] | None:
        """What is wrong with the samples or the backward passes of a window, with the line of its step."""
        seen: set[int] = set()
        for at, found in enumerate(self.samples):
            size, place = self.sizes[at % len(self.sizes)], self.ours.flow.updates[at].place
            if at % len(self.sizes) == 0:
                seen = set()
            if len(found) != size:
                return f"{len(found)} samples are in the gradients of window {at + 1}; {size} were asked for", place
            if found & seen:
                return f"samples of an earlier window are in the gradients of window {at + 1}", place
            seen |= found
        return self._passes()

    def _passes(self) -> tuple[str, Location] | None:
        """Each window has as many backward passes as micro-batches, or as many for each of them."""
        each = self.full.flow.updates[-1].passes
        for at, update in enumerate(self.ours.flow.updates):
            batches = self.sizes[at % len(self.sizes)] // self.run.micro_batch_size
            full = self.full.flow.updates[at].passes if at < len(self.full.flow.updates) else 0
            fitting = {each * batches} | ({1} if each == 1 else set())
            if full != each or not each or update.passes not in fitting:
                reason = f"window {at + 1} has {update.passes} backward passes, and {full} by the full batch"
                return reason, update.place
        return None

    def steps(self) -> Result:
        """One step a window, after which the parameters are those of the full batch."""
        name, ours, full = "GA-INV-003", self.ours.flow.updates, self.full.flow.updates
        asked = len(self.sizes) * self.cycles
        if len(ours) != len(full) and self.ours.flow.optimizers == 1:
            reason = f"{len(ours)} optimizer steps in {asked} windows"
            return self._result(name, Outcome.REFUTED, reason, ours[-1].place, help="step once after each window")
        bad = self._counts()
        if len(ours) != asked or bad is not None:
            reason, place = bad or ("several optimizers step; their windows were not distinguished", ours[-1].place)
            return self._result(name, Outcome.UNKNOWN, reason, place)
        for at, (mine, other) in enumerate(zip(ours, full, strict=False)):
            if mine.after != other.after:
                reason = f"after window {at + 1} the parameters were not shown to be those of the full batch's run"
                return self._result(name, Outcome.UNKNOWN, reason, mine.place)
        for key, (place, held) in self.ours.flow.kept.items():
            if self.full.flow.kept.get(key, (place, -1))[1] != held:
                reason = "what this line keeps at the end was not shown to be what the full batch's run keeps"
                return self._result(name, Outcome.UNKNOWN, reason, place)
        return self._result(name, Outcome.HOLDS, f"{asked} steps, each of one window, with the full batch's parameters")

    def stale(self) -> Result:
        """No summand of a gradient is of an earlier window."""
        name, updates = "GA-INV-002", self.ours.flow.updates
        if len(updates) < 2:
            return self._result(
                name, Outcome.UNKNOWN, "there is one window; nothing could be left over", updates[0].place
            )
        old: set[int] = set()
        for at in range(1, len(updates)):
            before, now = updates[at - 1], updates[at]
            old |= before.leaves
            for one, gradient in now.gradients.items():
                earlier = before.gradients.get(one)
                again = set(self.unscaled(gradient.value)) & set(() if earlier is None else earlier.value)
                kept = sorted(t for t in again if self.terms.owners[t] != NOBODY)
                if kept:
                    sample = min(self.terms.samples(kept))
                    reason = (
                        f"the gradient of {one} in window {at + 1} still has that of sample {sample}, of window {at}"
                    )
                    return self._result(
                        name, Outcome.REFUTED, reason, now.place, help="call zero_grad() after each step"
                    )
            every = [term for gradient in now.gradients.values() for term in gradient.value]
            if old & self.terms.reached(every):
                reason = f"a gradient in window {at + 1} is made of an older version of a parameter"
                return self._result(name, Outcome.UNKNOWN, reason, now.place)
        bad = self._counts() or self._begun() or self._rootless()
        if bad is not None:
            return self._result(name, Outcome.UNKNOWN, *bad)
        return self._result(name, Outcome.HOLDS, "no gradient is made of the parameters of an earlier window")

    def _begun(self) -> tuple[str, Location] | None:
        """A gradient that was there when the first backward pass of a window began."""
        for at, update in enumerate(self.ours.flow.updates):
            if update.begun_with:
                return f"{update.begun_with} had a gradient when window {at + 1} began", update.place
        return None

    def _rootless(self) -> tuple[str, Location] | None:
        """A summand of a gradient that is made of no sample, parameter or state."""
        terms = self.terms
        for at, update in enumerate(self.ours.flow.updates):
            for name, gradient in update.gradients.items():
                bare = [term for term in gradient.value if terms.owners[term] == NOBODY]
                if any(not terms.found([term], ("parameter", "state")) for term in bare):
                    return f"a part of the gradient of {name} in window {at + 1} is made of no sample", update.place
        return None

    def width(self) -> Result:
        """No sum over micro-batches is narrower than fp32."""
        name, narrow = "GA-INV-004", self.ours.flow.narrow
        if not narrow:
            return self._result(name, Outcome.HOLDS, "no tensor below fp32 joins two micro-batches")
        place, dtype, sums = next((entry for entry in narrow if entry[2]), narrow[0])
        if sums:
            reason = f"a {dtype} tensor holds a sum over micro-batches"
            return self._result(name, Outcome.REFUTED, reason, place, help="accumulate in float32")
        return self._result(name, Outcome.UNKNOWN, f"a {dtype} tensor is made of several micro-batches", place)

    def clipping(self, equal: Result) -> Result:
        """No norm of a part of a window scales a gradient."""
        name = "GA-INV-005"
        if equal.outcome is Outcome.HOLDS:
            return self._result(name, Outcome.HOLDS, "each gradient is that of one full batch, clipped once or not")
        for at, update in enumerate(self.ours.flow.updates):
            whole = self.samples[at]
            values = [term for g in update.gradients.values() for term in g.value]
            for norm in self.terms.found(values, NORMS):
                part = self.terms.samples([norm])
                if 1 < len(part) < len(whole) and self.run.micro_batch_size > 1:
                    reason = f"window {at + 1}: a gradient is scaled by a norm of {len(part)} of {len(whole)} samples"
                    return self._result(name, Outcome.REFUTED, reason, update.place, help="clip once, before the step")
        return self._result(name, Outcome.UNKNOWN, "the gradients were not shown to be the full batch's", equal.place)

    # GA-INV-001

    def loss(self) -> Result:
        """The reported losses are the full batch's."""
        name = "GA-INV-001"
        ours, full = self.ours.returned, self.full.returned
        if not ours:
            reason = "the function returns no loss"
            return Result(name, Outcome.UNKNOWN, reason, domain=DOMAIN, details={"code": NO_LOSS})
        if len(ours) == len(full):
            for at, (mine, other) in enumerate(zip(ours, full, strict=True)):
                if mine != other:
                    return self._loss_differs(at, mine, other)
            return self._result(name, Outcome.HOLDS, f"{len(ours)} returned losses are the full batch's")
        if len(full) == len(self.sizes) and len(ours) == self.run.micro_batches:
            each = self._by_window(ours)
            if all(total == other for total, other in zip(each, full, strict=True)):
                return self._result(name, Outcome.HOLDS, "the returned losses of a window add up to the full batch's")
        reason = f"{len(ours)} losses by micro-batches and {len(full)} by the full batch were not matched"
        return self._result(name, Outcome.UNKNOWN, reason)

    def _loss_differs(self, at: int, mine: Combination, other: Combination) -> Result:
        by = ratio(mine, other)
        if by is None:
            return self._result(
                "GA-INV-001", Outcome.UNKNOWN, f"returned loss {at + 1} was not shown to be the full batch's"
            )
        return self._result("GA-INV-001", Outcome.REFUTED, f"returned loss {at + 1} is {by} times the full batch's")

    def _by_window(self, losses: Iterable[Combination]) -> list[Combination]:
        each: list[Combination] = [{} for _ in self.sizes]
        for at, one in enumerate(losses):
            each[min(at // self.run.accum_steps, len(each) - 1)] = plus(
                each[min(at // self.run.accum_steps, len(each) - 1)], one
            )
        return each


def _read(how: str) -> str:
    return "a number of a tensor" if how == "_local_scalar_dense" else how if " " in how else f"numbers by {how}"


def ratio(mine: Combination, other: Combination) -> Fraction | None:
    """The rational by which one combination is another, where there is one and it is not 1."""
    if not mine or not other or set(mine) != set(other):
        return None
    first = next(iter(mine))
    by = mine[first] / other[first]
    return by if by != 1 and mine == times(other, by) else None


def check_fake(step: Callable[[Any], Any], subject: str, request: Request) -> Verification:
    """Verify a function without numbers: by micro-batches and by the full batch, over whole tensors.

    Source: GA-EQ-001 to GA-INV-005 of the contract gradient-accumulation-kernel-v1.
    """
    run = Run(
        request.accum_steps, request.micro_batch, request.windows, dtype=getattr(torch, request.dtype),
        seed=request.seed, tail=request.tail, optimizer=request.optimizer,
    )  # fmt: skip
    terms, start = Terms(), time.perf_counter()
    noted = Noted(**{name: getattr(run, name) for name in Run.__dataclass_fields__})
    noted.read.clear()
    ours = followed(step, noted, terms, 0, run.micro_batch_size)
    ours.unread = Recording(Tape(), read=frozenset(noted.read)).never_read()
    middle = time.perf_counter()
    full = followed(step, run.full_batch(), terms, 1, run.micro_batch_size)
    end = time.perf_counter()
    judge = Judge(terms, run, ours, full)
    made = Verification(subject, request.options(), judge.results())
    flow = ours.flow
    made.operators = dict(sorted((flow.laws + flow.opaque).items()))
    made.seconds = {"by micro-batches": round(middle - start, 3), "by the full batch": round(end - middle, 3)}
    made.versions = {"torch": torch.__version__}
    made.notes = [
        f"{flow.parameters} parameters, {flow.operators} operators, {len(terms)} terms",
        *(f"samples: {count} rows made at {site}" for site, count in sorted(flow.sources.items())),
    ]
    made.assumptions = assumptions(flow.laws, flow.opaque)
    return made


def assumptions(laws: Mapping[str, int], opaque: Mapping[str, int]) -> list[str]:
    """What a proof over whole tensors rests on."""
    return [
        "real and whole numbers: rounding, overflow and the difference between kernels are not part of it",
        f"the laws of {len(laws)} operators (gradproof.shadow.whole.laws), and that each of them is deterministic",
        f"{len(opaque)} operators are uninterpreted functions of whole tensors: {', '.join(sorted(opaque)) or 'none'}",
        "both runs are given the same samples in the same order, and the same draws for each sample",
        "no denominator is zero",
    ]
