"""Verification of one training function: record, look for what makes an answer impossible, compare, judge.

The order matters. What ends everything comes first (the function raised); then the window protocol, which needs no
numbers; then whatever would make a comparison of numbers worthless (the recorder lost sight, the step is not
deterministic, the data do not match, the loss of a sample depends on its neighbours), and only then the comparison in
each domain. Every obligation gets a result; one that unjudged decided is NOT_RUN.
"""

from __future__ import annotations

import itertools
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import gradproof
from gradproof.core.outcome import Outcome
from gradproof.shadow.algebra import Beyond
from gradproof.shadow.domains.decompose import Decomposer
from gradproof.shadow.domains.interpreter import NoRow
from gradproof.shadow.protocol.event_ops import first_narrow
from gradproof.shadow.protocol.window import Broken, check_protocol
from gradproof.shadow.record.run import Run, Step
from gradproof.shadow.result import OBLIGATIONS, RECORDED, SEVERITY, Result, Verification
from gradproof.shadow.tape import Leaf
from gradproof.shadow.verify import obligations
from gradproof.shadow.verify.compare import DRAWN, FRESH, MOST_OPERATIONS, OTHERS, REPEATED, RESHAPED, SHUFFLED
from gradproof.shadow.verify.decide import DOMAINS
from gradproof.shadow.verify.diagnosis import Wrong, of_wrong, place_of_data
from gradproof.shadow.verify.numbers import (
    ALIKE,
    CONSTANTS,
    EQUAL,
    Numbers,
    borne_out,
    everywhere_alike,
    matched,
    undecided,
)
from gradproof.shadow.verify.paths import constants, integers_differ, narrow, numbers_read, others, unrecorded
from gradproof.shadow.verify.recordings import (
    Precondition,
    StepRecordings,
    apart,
    blindness,
    data_apart,
    disagreement,
    errors,
    flowed,
    ignored,
    past_the_recorder,
    same_path,
    stepped,
)
from gradproof.shadow.verify.results import (
    AGAIN,
    NUMBERS,
    SILENT,
    Settled,
    as_result,
    data_differ,
    held,
    unjudged,
    violation,
    with_trace,
)
from gradproof.shadow.verify.rounding import assumptions as rounding_assumptions, ranges_of, report
from gradproof.shadow.verify.shares import judged

PROTOCOL = ("GA-INV-002", "GA-INV-003", "GA-INV-004", "GA-INV-005")
KNOWN = (*DOMAINS, "rounding")
CHOSEN = "choose the samples of all windows before the loop, or with a generator that nothing else draws from"
DATA_HELP = "every micro-batch takes the next samples of the stream that the full batch takes at once"
DOUBTS = {
    "GA-INV-002": "zero whole gradients and own buffers once a window, where the recorder sees it",
    "GA-INV-004": "keep every sum of gradients in fp32 until the step",
    "GA-INV-005": "clip and change gradients in the step itself, before the optimizer is called",
}
SHARED = {"GA-INV-002": ("stale", "stale"), "GA-INV-005": ("clipped", "clipped wrongly")}
"""Rules that the full batch may break in the same way: the code, and what its gradients may be."""
BLINDING = frozenset({"unseen-write", "raised", "unrecorded"})


def check(
    function: Step,
    *,
    accum_steps: int = 4,
    micro_batch: int = 2,
    windows: int = 2,
    tail: int = 0,
    device: str = "cpu",
    dtype: str = "float32",
    seed: int = 0,
    domains: Sequence[str] = ("real", "field"),
    optimizer: str | None = None,
    ranks: int = 1,
    ranges: Sequence[str] = (),
    operations: int = MOST_OPERATIONS,
    subject: str = "",
) -> Verification:
    """Verify a training function. Raises ValueError for numbers below 1 and for unknown domains or dtypes.

    `function` takes a `Run` and trains. It is called several times in this process.
    """
    run = _run(accum_steps, micro_batch, windows, tail, device, dtype, seed, optimizer)
    unknown = set(domains) - set(KNOWN)
    if unknown or not set(domains) & set(DOMAINS):
        wrong = ", ".join(sorted(unknown)) or "that compares the runs"
        raise ValueError(f"no domain {wrong}; known: {', '.join(KNOWN)}, and one of {', '.join(DOMAINS)} is needed")
    began = time.monotonic()
    config: dict[str, Any] = {"accum_steps": accum_steps, "micro_batch": micro_batch, "windows": windows, "tail": tail}
    config |= {"device": device, "dtype": dtype, "seed": seed, "domains": list(domains)}
    config |= {"optimizer": optimizer, "ranks": ranks, "ranges": list(ranges), "operations": operations}
    made = Verification(subject or getattr(function, "__qualname__", "function"), config)
    session = StepRecordings.make(function, run, ranks)
    session.havoc, session.operations = Decomposer(), operations
    describe(made, session)
    made.results = Judge(session, made, domains).results()
    made.seconds |= {name: round(s, 3) for name, s in session.seconds.items()}
    made.seconds["all"] = round(time.monotonic() - began, 3)
    return made


def _run(n: int, b: int, w: int, tail: int, device: str, dtype: str, seed: int, optimizer: str | None) -> Run:
    import torch

    for name, value, least in (("accum_steps", n, 1), ("micro_batch", b, 1), ("windows", w, 1), ("tail", tail, 0)):
        if value < least:
            raise ValueError(f"{name} is {value}; it must be at least {least}")
    if tail >= n:
        raise ValueError(f"tail is {tail}; a short window has fewer than {n} micro-batches")
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise ValueError(f"no dtype {dtype!r} in torch")
    return Run(n, b, w, device, kind, seed, tail, optimizer=optimizer)


def describe(made: Verification, session: StepRecordings) -> None:
    """Everything that the results rest on and that the tapes themselves say."""
    tape = session.ours[0].tape
    made.operators = dict(sorted(Counter(entry.op for entry in tape.entries()).items()))
    made.shapes = {f"{leaf.source.kind} {leaf.source.name}": str(list(leaf.ref.shape)) for leaf in _leaves(tape.items)}
    made.notes = list(dict.fromkeys(note for _, t in session.tapes() for note in t.notes))
    made.versions = {
        "python": platform.python_version(),
        "gradproof": gradproof.__version__,
        "torch": _version("torch"),
    }


def _leaves(items: Iterable[Any]) -> Iterable[Leaf]:
    return (item for item in items if isinstance(item, Leaf))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


class Judge:
    """One verification's results."""

    def __init__(self, session: StepRecordings, made: Verification, domains: Sequence[str]) -> None:
        self.session, self.made, self.domains = session, made, domains
        self.found: dict[str, list[Result]] = {name: [] for name in OBLIGATIONS}
        self.broken: list[Broken] = []
        self.wrongs: list[tuple[Result, Wrong]] = []

    def results(self) -> list[Result]:
        """The worst result of every obligation, in the order of OBLIGATIONS."""
        if self._errors() or self._ignored():
            return self._collected()
        broken = self.broken = self._protocol()
        preconditions = list(self._troubles())
        for precondition in preconditions:
            self._obscured(precondition)
        if not preconditions:
            self._compare(broken)
            self._second()
        self._trivial()
        return self._collected()

    def add(self, result: Result) -> None:
        """One more result of an obligation."""
        self.found[result.obligation].append(result)

    def _collected(self) -> list[Result]:
        made = []
        for name, results in self.found.items():
            if name in ("GA-SYNC-001",) and not results:
                continue
            worst = min(results, key=lambda r: SEVERITY.index(r.outcome), default=unjudged(name))
            self._traced(worst)
            made.append(worst)
        return made

    def _traced(self, result: Result) -> None:
        """A refutation is shown as the events of its run."""
        if result.outcome is not Outcome.REFUTED or "trace" in (result.counterexample or {}):
            return
        cause = next((b for b in self.broken if b.place == result.place), None)
        wrong = Wrong(result.obligation, result.reason, result.place, cause)
        wrong = next((found for one, found in self.wrongs if one is result), wrong)
        rank = wrong.quantity.rank if wrong.quantity else 0
        stated = of_wrong(self.session.ours[rank].tape, wrong)
        result.counterexample = with_trace(result.counterexample, stated)

    def _errors(self) -> bool:
        raised = list(errors(self.session))
        for precondition in raised[:1]:
            for name in (*NUMBERS, *PROTOCOL, "GA-DATA-001"):
                self.add(as_result(name, precondition))
        return bool(raised)

    def _ignored(self) -> bool:
        preconditions = list(ignored(self.session))
        for precondition in preconditions:
            for name in (*NUMBERS, *PROTOCOL, "GA-DATA-001"):
                self.add(as_result(name, precondition))
        return bool(preconditions)

    def _second(self) -> None:
        """Beside every proof, plain numbers: where they differ nothing holds."""
        began = time.monotonic()
        for result in Numbers(self.session).judge(self.made, self.found):
            self.add(result)
            if result.obligation == "GA-EQ-001" and any(r.outcome is Outcome.HOLDS for r in self.found["GA-INV-002"]):
                words = "not decided: gradients differ from those of a full batch that begins every window with zeros"
                self.add(replace(result, obligation="GA-INV-002", reason=words))
        broken = [r for r in self.found["GA-INV-002"] if r.outcome in (Outcome.REFUTED, Outcome.UNKNOWN)]
        broken += [r for r in self.found["GA-INV-005"] if r.outcome is Outcome.REFUTED]
        if broken and any(r.outcome is Outcome.HOLDS for r in self.found["GA-EQ-001"]):
            name = broken[0].obligation
            code, how = SHARED[name]
            words = f"not decided: {name} does not hold, so that the full batch's gradients may be {how} as well"
            details = {"code": code, "follows_from": name}
            place, help = broken[0].place, broken[0].help
            self.add(Result("GA-EQ-001", Outcome.UNKNOWN, words, place, help, "events", RECORDED, details))
        self.session.seconds["numbers"] = time.monotonic() - began

    def _trivial(self) -> None:
        """What one micro-batch a window, or one window, cannot show."""
        run = self.session.run
        alone = ("GA-EQ-001", "GA-INV-001", "GA-DATA-001", "GA-INV-004") if run.accum_steps == 1 else ()
        for name in alone:
            words = "accum-steps is 1: the run is its own full batch, and nothing was accumulated"
            self._undecided(name, words, "ask for --accum-steps 2 or more")
        if run.windows + (run.tail > 0) == 1:
            words = "one window was asked for: no gradient could outlive its step"
            self._undecided("GA-INV-002", words, "ask for --windows 2 or more")

    def _undecided(self, name: str, words: str, help: str) -> None:
        """An obligation that would hold for want of a case is not decided."""
        if any(r.outcome is Outcome.HOLDS for r in self.found[name]):
            self.add(Result(name, Outcome.NOT_RUN, words, None, help, details={"code": "trivial"}))

    # The window protocol

    def _protocol(self) -> list[Broken]:
        run = self.session.run
        tape, full = self.session.ours[0].tape, self.session.full[0].tape
        passes, whole = (sum(1 for _ in t.events("backward")) for t in (tape, full))
        if passes == whole:  # the losses of a window are summed before one backward pass
            report = check_protocol(tape, 1, run.windows + (run.tail > 0))
        else:
            report = check_protocol(tape, run.accum_steps, run.windows, run.tail)
        self.made.events = report.events
        if passes == whole and run.accum_steps > 1 and (slim := first_narrow(tape)) is not None:
            words = f"one backward pass sums a whole window, and {slim[0]} values are in it"
            report.doubts.setdefault("GA-INV-004", (words, slim[1]))
        self._windows()
        stands, doubted = borne_out(self.session, report.broken)
        for broken in stands:
            self.add(violation(broken, tape))
        for result in undecided(doubted, stands):
            self.add(result)
        for name in PROTOCOL:
            if report.unseen:
                words = f"not seen on this tape: {report.unseen}"
                self.add(Result(name, Outcome.OPAQUE, words, None, "", "events"))
            elif not report.steps:
                self.add(Result(name, Outcome.NOT_RUN, "no optimizer step was seen", None, "", "events"))
            elif any(b.obligation == name for b in report.broken):
                continue
            elif name in report.doubts:
                words, place = report.doubts[name]
                self.add(
                    Result(name, Outcome.UNKNOWN, f"not decided: {words}", place, DOUBTS[name], "events", RECORDED)
                )
            else:
                self.add(Result(name, Outcome.HOLDS, held(name, report), None, "", "events", RECORDED))
        self._moves()
        return stands

    def _windows(self) -> None:
        """Windows that were asked for and not trained were not verified."""
        run, tape = self.session.run, self.session.ours[0].tape
        made = len(stepped(tape))
        asked = run.windows + (run.tail > 0)
        if 0 < made < asked:
            words = f"{made} of {asked} windows were trained: use run.windows, or train on run.samples samples"
            for name in NUMBERS:
                self.add(Result(name, Outcome.NOT_RUN, words, None, "", "events"))

    def _moves(self) -> None:
        tape = self.session.ours[0].tape
        place, help = obligations.unmoved(tape), "leave the weights to the optimizer"
        if place is not None:
            words, known = "the step was called and no weight moved", Outcome.REFUTED
            if obligations.foreign(tape) and not obligations.frozen(tape):
                words, known = f"not decided: {words}; the optimizer may accumulate by itself", Outcome.UNKNOWN
            self.add(Result("GA-INV-003", known, words, place, help))
            return
        place = obligations.undone(tape)
        if place is not None:
            words = "the weights that the step gave were put back before they were used"
            if (bounded := obligations.bounded(tape)) is not None:
                words, place = f"not decided: {words}, as it seems; weights at a bound look the same", bounded
            known = Outcome.REFUTED if bounded is None else Outcome.UNKNOWN
            self.add(Result("GA-INV-003", known, words, place, help))

    # What makes numbers worthless

    def _troubles(self) -> Iterable[Precondition]:
        looks: tuple[Callable[[StepRecordings], Iterable[Precondition]], ...] = (
            blindness, past_the_recorder, self._sight, lambda session: unrecorded(session, self.made),
        )  # fmt: skip
        for look in looks:
            found = list(look(self.session))
            if found:
                return found
        return []

    def _sight(self, session: StepRecordings) -> Iterable[Precondition]:
        try:
            return list(disagreement(session))
        except NoRow as error:
            words = f"{error.op} has no row in the operator table"
            help = f"add one with gradproof.shadow.register({error.op!r}, examples=[...])"
            return [Precondition(Outcome.OPAQUE, words, error.place, help, "no-row")]
        except Beyond as error:
            code = "data-dependent-shape" if "data-dependent shape" in str(error) else "beyond"
            return [Precondition(Outcome.OPAQUE, str(error), error.place, "", code)]

    def _obscured(self, precondition: Precondition) -> None:
        for name in (*NUMBERS, "GA-DATA-001"):
            self.add(as_result(name, precondition))
        if precondition.code in BLINDING:
            for name in PROTOCOL:
                self.add(as_result(name, precondition))

    # Numbers

    def _compare(self, broken: list[Broken]) -> None:
        data = data_apart(self.session)
        if data:
            self._data(data)
            return
        self._same_data(bool(broken))
        covered = [self.session]
        for number, session in enumerate(itertools.chain(covered[:1], others(self.session)), 1):
            if number > 1:
                covered.append(session)
                self.made.paths.append(f"path {number}: other operators ran at other values; verified like the first")
            for result in self._path(session, broken):
                self.add(result)
        if self.session.ranks > 1:
            self._shares()
        if "rounding" in self.domains:
            self._rounding()
        conditions = [text for text in self.made.paths if not text.startswith("path ")]
        self.made.uncovered += narrow(itertools.chain(*self.found.values()), covered, conditions)
        self.made.assumptions += [*obligations.integers_of(self.session.ours[0].tape), *constants(covered)]
        self.made.assumptions += [f"what Python does with the number read at {p}" for p in numbers_read(covered)]

    def _same_data(self, broken: bool) -> None:
        """Window by window only where the windows are whole."""
        differ, unlooked = ("", "a rule of the window protocol is broken") if broken else data_differ(self.session)
        differ = differ or ("" if broken else integers_differ(self.session))
        if differ:
            place, known = place_of_data(self.session.ours[0].tape), Outcome.REFUTED
            if differ.startswith("window") and everywhere_alike(self.session):
                known, differ = Outcome.UNKNOWN, f"not decided: {differ}, but {EQUAL}"
            self.add(Result("GA-DATA-001", known, differ, place, DATA_HELP, "real", RECORDED))
            if AGAIN in differ:
                words = f"not decided: {differ.removeprefix('not decided: ')}"
                self.add(Result("GA-INV-002", Outcome.UNKNOWN, words, place, DATA_HELP, "real", RECORDED))
            return
        words = "both runs took the same streams of data" + ("" if unlooked else ", window by window")
        if broken:
            words = f"not decided: {words}, but which samples each window reads was not looked at: {unlooked}"
            self.add(
                Result(
                    "GA-DATA-001", Outcome.UNKNOWN, words, None, "repair what breaks the rule first", "leaves", RECORDED
                )
            )
            return
        self.add(Result("GA-DATA-001", Outcome.HOLDS, words, None, "", "leaves", RECORDED))
        if unlooked:
            self.made.uncovered.append(f"which samples each window reads was not looked at: {unlooked}")

    def _path(self, session: StepRecordings, broken: list[Broken]) -> list[Result]:
        """Results of one path. A domain that stays silent is left out where another answers, on this path."""
        if session is not self.session:
            preconditions = [*errors(session), *blindness(session), *past_the_recorder(session), *self._sight(session)]
            if same_path(self.session.ours, session.ours):
                preconditions += [flowed(d) for d in apart(self.session.ours, session.ours)]
            if preconditions:
                return [as_result(name, preconditions[0]) for name in NUMBERS]
        found: list[Result] = []
        for name in self.domains:
            if name not in DOMAINS:
                continue
            began = time.monotonic()
            decision = DOMAINS[name](session, self.made)
            settled = Settled(session, broken)
            found += settled.results(decision)
            self.wrongs += settled.wrongs if session is self.session else []
            self.session.seconds[name] = self.session.seconds.get(name, 0.0) + time.monotonic() - began
        return self._answered(found)

    def _shares(self) -> None:
        """What a token of each rank weighs, which the comparison with the full batch does not show."""
        began = time.monotonic()
        wrong, unseen = judged(self.session)
        if wrong is not None:
            self.add(wrong)
        self.made.uncovered += [unseen] if unseen else []
        self.session.seconds["shares"] = time.monotonic() - began

    def _rounding(self) -> None:
        began = time.monotonic()
        ranges = self.made.config["ranges"]
        tape = self.session.ours[0].tape
        found = report(tape, ranges_of(ranges, tape))
        self.made.rounding = found
        self.made.assumptions += rounding_assumptions()
        self.made.assumptions.append(f"rounding is bounded for {', '.join(ranges) or 'the recorded numbers'}")
        for row in found:
            if row.get("within") is False:
                words = f"the rounding bound of {row['param']} does not hold: {row['measured']} is above {row['bound']}"
                self.add(Result("GA-EQ-001", Outcome.ERROR, words, None, "please report this", "rounding"))
        self.session.seconds["rounding"] = time.monotonic() - began

    def _answered(self, found: list[Result]) -> list[Result]:
        kept = []
        for result in found:
            others_ = [r for r in found if r.obligation == result.obligation and r.outcome is Outcome.HOLDS]
            if result.outcome in SILENT and others_:
                self.made.notes.append(f"{result.obligation}, {result.domain}: {result.reason}")
            else:
                kept.append(result)
        return kept

    def _data(self, data: list[str]) -> None:
        place = next((e.place for e in self.session.ours[0].tape.events("backward")), None)
        help = DATA_HELP
        details = {"streams": data}
        known, first = Outcome.REFUTED, data[0]
        words = "not compared: the two runs did not train on the same data"
        drawn = next((text for text in data if text.endswith((DRAWN, FRESH))), "")
        if all(text.endswith((RESHAPED, SHUFFLED)) for text in data):
            known = Outcome.OPAQUE
        elif not any(text.endswith((OTHERS, REPEATED)) for text in data) and matched(self.session):
            known, first, help = Outcome.UNKNOWN, f"not decided: {first}, but {EQUAL}; {ALIKE}", CONSTANTS
            words = "not compared for other values: the data of the two runs could not be matched"
        elif drawn and not any(text.endswith(REPEATED) for text in data):
            known, first, help = Outcome.OPAQUE, drawn, CHOSEN
        self.add(Result("GA-DATA-001", known, first, place, help, "leaves", RECORDED, details))
        for name in NUMBERS:
            self.add(Result(name, Outcome.OPAQUE, words, place, help, details={"code": "data"}))
