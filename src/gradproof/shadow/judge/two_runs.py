"""Verifies one training function over whole tensors: two runs, their judgement, and what it rests on.

The runs are made again where they show that something has to be read otherwise (`Hints`): counts as the numbers of
this run, where Python made plain numbers of them and the gradients are equal by these alone.
"""

from __future__ import annotations

import hashlib
import platform
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gradproof import __version__
from gradproof.core.outcome import Outcome
from gradproof.shadow.follow.facts import DOMAIN, Hints, same_gradients, sampled
from gradproof.shadow.follow.group import Exchange, Group
from gradproof.shadow.follow.runs import Real
from gradproof.shadow.follow.terms import Terms
from gradproof.shadow.follow.unseen import frozen_heap
from gradproof.shadow.judge.by_numbers import judged
from gradproof.shadow.judge.followed import Followed, again, text, unobserved, with_numbers, without_numbers
from gradproof.shadow.judge.losses import of_two_runs
from gradproof.shadow.judge.over_ranks import agreed, over_ranks
from gradproof.shadow.judge.weights import assumptions, other_lengths, rationals
from gradproof.shadow.request import Request
from gradproof.shadow.result import Result, Verification, assuming, judged_windows, leave_open, on_path
from gradproof.shadow.tape.calls import params_of, steps
from gradproof.shadow.tape.monitor import Monitor
from gradproof.shadow.tape.run import Noted, Run

LATER = 3
"""Windows after the judged ones that are compared with them by their events."""
SEEDS = (1, 2)
"""How far from the first the further seeds are that are tried where Python read numbers that may lead elsewhere."""
Step = Callable[[Any], Any]


@dataclass(slots=True)
class Attempt:
    """Two runs with some hints, and their results. `named`: whether other names of samples would decide no more."""

    hints: Hints
    terms: Terms
    ours: Followed
    full: Followed
    results: list[Result]
    named: bool = False

    @property
    def held(self) -> int:
        """How many obligations hold."""
        return sum(result.outcome is Outcome.HOLDS for result in self.results)

    @property
    def settled(self) -> bool:
        """Whether something is refuted, or other names of samples would decide no more."""
        return self.named or any(result.outcome is Outcome.REFUTED for result in self.results)

    @property
    def decided(self) -> bool:
        """Whether every obligation that applies holds, or is refuted however counts are read."""
        left = [result for result in self.results if result.applies and result.outcome is not Outcome.HOLDS]
        final = self.hints.integers or not self.ours.facts.reads
        return all(r.outcome is Outcome.REFUTED and (final or r.domain != DOMAIN) for r in left)


@frozen_heap()
def check_whole(
    step: Step,
    subject: str,
    request: Request,
    group: Group | None = None,
    full: Step | None = None,
    asked: Collection[str] = (),
    last: bool = False,
) -> Verification:
    """Verify a function by micro-batches and by the full batch, over whole tensors.

    `group`: the ranks that call it, of which this process is one; all of them verify it together. `full`: another
    function that trains by the full batch, a specification; without one the function itself does. `asked`: the
    obligations that are judged; without any, all. Where a later window is not like these, everything is judged again
    with it among them, and that is the `last` time.

    Source: GA-EQ-001 to GA-INV-005 of the contract gradient-accumulation-kernel-v1.
    """
    start, group, given = time.perf_counter(), group or Group(), (full, asked)
    best = found = attempted(step, request, Hints(), group, *given)
    if not any(group.gather(bool(best.ours.error) or found.settled)):
        found = attempted(step, request, Hints(rows=True), group, *given)
        best = found if sum(group.gather(found.held)) > sum(group.gather(best.held)) else best
    reads = any(group.gather(bool(best.ours.facts.reads))) and not request.fake
    if reads and not (all(group.gather(found.decided)) or best.ours.error):
        found = attempted(step, request, replace(best.hints, integers=True), group, *given)
        best = found if sum(group.gather(found.held)) > sum(group.gather(best.held)) else best
    said = [result for result in best.results if result.outcome in (Outcome.HOLDS, Outcome.REFUTED)]
    if (
        any(group.gather(bool(said)))
        and not request.fake
        and not as_unrecorded(step, run_of(request), best.ours, group)
    ):
        reason = "the step hands other gradients to its optimizer when nobody follows it, or when it is called again"
        for result in said:  # what is left of an earlier window was seen in one run, and needs no other
            if (result.obligation, result.outcome, result.domain) == ("GA-INV-002", Outcome.REFUTED, DOMAIN):
                continue
            result.outcome, result.reason, result.reach = Outcome.OPAQUE, reason, ""
            result.location = result.location or best.ours.facts.line
    if any(group.gather(bool(best.held) and best.ours.facts.free)) and not request.fake:
        elsewhere(step, request, best, group, *given)
    rest = "later windows are not judged"
    broken = any(result.outcome is Outcome.REFUTED for result in best.results)
    if group.size == 1 and best.held and not (broken or request.fake or request.tables):
        ran, others = later(step, request, best)
        if others and not last:
            more = min(others[0][1] + 1, request.windows + LATER)
            return check_whole(step, subject, replace(request, windows=more), group, full, asked, last=True)
        leave_open(best.results, others, "judged", "ask for more --windows")
        near = ran - sum(count for count, _, _ in others)
        rest = f"{near} of {ran} later ones by events alone" if ran else rest
    made = described(best, subject, request, time.perf_counter() - start)
    made.windows = judged_windows(range(request.windows + bool(request.tail)), "", (), 0, rest)
    if request.certificate:
        made.notes.append(logged(step, request, best.hints))
    return made


def logged(step: Step, request: Request, hints: Hints) -> str:
    """Run the function once more, and write the certificate of that run. Its digest and its place, in words."""
    lines, run, terms = list[str](), run_of(request), Terms()
    follow = without_numbers if request.fake else partial(with_numbers, {}, Exchange(Group(), terms))
    ended = follow(step, run, terms, run.micro_batch_size, 0, replace(hints, log=lines))
    if ended.error:
        return f"no certificate: the run ended with {ended.error}"
    data = text(lines)
    Path(request.certificate).write_bytes(data)
    return f"certificate {hashlib.sha256(data).hexdigest()}: {request.certificate}"


def elsewhere(step: Step, request: Request, best: Attempt, group: Group, *given: Any) -> None:
    """Other random numbers, which may lead Python another way: what does not hold there does not hold."""
    for by in SEEDS:
        other = attempted(step, replace(request, seed=request.seed + by), best.hints, group, *given)
        found = {result.obligation: result for result in other.results}
        for at, result in enumerate(best.results):
            there = found.get(result.obligation, result)
            if result.outcome is Outcome.HOLDS and there.outcome is not Outcome.HOLDS and there.applies:
                reason = f"with --seed {request.seed + by}: {there.reason}"
                ended = Outcome.UNKNOWN if there.outcome is Outcome.ERROR else there.outcome
                best.results[at] = replace(there, outcome=ended, reason=reason)


def later(step: Step, request: Request, best: Attempt) -> tuple[int, list[tuple[int, int, str]]]:
    """How many windows after the judged ones ran in one more call, which nobody follows, and those that are like none.

    Of these: how many they are, the first, and in what they differ.
    """
    taken = Counter(update.optimizer for update in best.ours.facts.updates)
    windows = max(taken.values(), default=0)
    with Monitor(windows=windows) as monitor:
        monitor.run.usual = windows
        failed = unobserved(step, replace(run_of(request), windows=request.windows + LATER, tail=0))
    if failed or not windows or (isinstance(best.ours.engine, Real) and best.ours.engine.closures):
        return 0, []
    return max(monitor.run.windows - windows, 0), list(monitor.run.others())


def as_unrecorded(step: Step, run: Run, followed: Followed, group: Group) -> bool:
    """Whether the function, called with nothing around it but a hook of torch's, gives its optimizers the same."""
    assert isinstance(followed.engine, Real)
    seen: list[list[torch.Tensor]] = []

    def before(optimizer: Any) -> None:
        group.keep()
        seen.append([sampled(p.grad) for p in params_of(optimizer) if p.grad is not None])

    group.begin()
    with steps(before, lambda _: None):
        error = unobserved(step, run)
    if group.end(error):
        return False
    mine = [list(each.numbers.values()) for each in followed.facts.updates]
    if followed.engine.hints.by_hand or followed.engine.closures:
        return len(seen) == len(mine) or followed.engine.hints.by_hand
    same = partial(same_gradients, narrow=followed.facts.below is not None)
    return len(seen) == len(mine) and all(map(same, seen, mine))


def attempted(
    step: Step, request: Request, hints: Hints, group: Group, whole: Step | None = None, asked: Collection[str] = ()
) -> Attempt:
    """Make both runs until they show nothing that has to be read otherwise, and judge what is asked for."""
    run = run_of(request)
    while True:
        terms, drawn = Terms(group.size > 1), dict[int, torch.Tensor]()
        exchange = Exchange(group, terms)
        followed = without_numbers if request.fake else partial(with_numbers, drawn, exchange)
        noted = Noted(**{name: getattr(run, name) for name in Run.__dataclass_fields__})
        noted.read.clear()
        ours = followed(step, noted, terms, run.micro_batch_size, 0, hints)
        ours.unread = noted.never_read()
        full = followed(whole or step, run.full_batch(), terms, run.micro_batch_size, 1, hints)
        found = agreed(group, again(ours, full, hints), ours, full)
        if found == hints:
            break
        hints = found
    results = judged(terms, run, ours, full, group.size)
    if group.size > 1:
        results = over_ranks(step, run, ours, full, hints, results)
    elif not ours.error:
        equal = next(result for result in results if result.obligation == "GA-EQ-001")
        tokens = of_two_runs(ours, equal)
        results += [] if tokens is None else [tokens]
    named = {result.outcome for result in results if result.obligation in ("GA-EQ-001", "GA-DATA-001")}
    results = [result for result in results if not asked or result.obligation in asked]
    return Attempt(hints, terms, ours, full, results, named == {Outcome.HOLDS})


def run_of(request: Request) -> Run:
    """The run by micro-batches that a request asks for."""
    return Run(
        request.accum_steps, request.micro_batch, request.windows, request.device, getattr(torch, request.dtype),
        request.seed, request.tail, optimizer=request.optimizer, tables=request.tables,
    )  # fmt: skip


def described(attempt: Attempt, subject: str, request: Request, seconds: float) -> Verification:
    """The results with everything that they rest on."""
    made = Verification(subject, request.options(), attempt.results)
    facts, engine = attempt.ours.facts, attempt.ours.engine
    made.operators = dict(sorted((facts.laws + facts.opaque).items()))
    if isinstance(engine, Real):
        made.events, made.weights = engine.events.readable(), weights(attempt)
    made.shapes = {engine.name(p): str(list(p.shape)) for p in engine.declared.values()}
    made.seconds = {"all": round(seconds, 3)}
    made.versions = {"python": platform.python_version(), "gradproof": __version__, "torch": torch.__version__}
    count = sum(parameter.numel() for parameter in engine.declared.values())
    made.notes = [
        f"{count} parameters, {facts.operators} operators, {len(attempt.terms)} terms",
        *(f"samples: {count} rows made at {site}" for site, count in sorted(facts.sources.items())),
    ]
    assumed = {**attempt.full.facts.assumed, **facts.assumed}
    made.assumptions = assumptions(facts.laws.keys() - assumed.keys(), facts.opaque)
    made.assumptions.append("both runs are given the same samples in one order, and the same draws for each of them")
    made.assumptions += assuming(assumed.values(), attempt.results)
    made.assumptions.append(other_lengths(attempt.terms, facts.updates))
    if engine.laws.every_label:
        made.uncovered.append("no label of this run is ignored: micro-batches with unequal numbers of valid labels")
    made.paths = list(dict.fromkeys(f"{how} at {location} reads a number" for location, how in facts.reads))
    for result in attempt.results:
        result.reach = on_path(result.reach, [str(location) for location, _ in facts.reads])
    made.assumptions += rationals({**attempt.full.engine.laws.near, **engine.laws.near})
    if facts.fixed:
        lines = ", ".join(map(str, facts.fixed))
        made.assumptions.append(f"constants of both runs, and no samples, though of more rows than a window: {lines}")
    if facts.shown is not None:
        made.assumptions.append(f"code in C, as range() or NumPy, computes with no count that was read ({facts.shown})")
    if attempt.hints.integers or facts.numbered:
        made.assumptions.append("counts of tokens are those of this run")
    if request.ranks > 1:
        made.assumptions += [
            f"{request.ranks} ranks; a collective of torch.distributed is complete when it is called",
            "the function trains alike as the only rank, with the samples of all of them in one batch",
        ]
    return made


def weights(attempt: Attempt) -> list[dict[str, Any]]:
    """The weight of each sample in the gradient of one parameter of each window, beside that in the full batch's."""
    terms, rows = attempt.terms, list[dict[str, Any]]()
    for at, (mine, other) in enumerate(zip(attempt.ours.facts.updates, attempt.full.facts.updates, strict=False)):
        for name in sorted(mine.gradients.keys() & other.gradients.keys()):
            ours, full = mine.gradients[name], other.gradients[name]
            found, right = ({terms.owners[term]: by for term, by in value.items()} for value in (ours, full))
            if ours and set(found) == terms.samples(ours) and len(found) == len(ours) and len(right) == len(full):
                rows += [
                    {"window": at, "sample": sample, "weight": str(by), "expected": str(right.get(sample, 0)),
                     "ok": by == right.get(sample, 0), "parameter": name}
                    for sample, by in sorted(found.items())
                ]  # fmt: skip
                break
    return rows
