"""The falsification tests FALSIFY-GA-001 to -006 of gradient-accumulation-kernel-v1 as properties.

Each is a property of `gradproof.execution.methods.property`: a grid that always runs, cases that Hypothesis draws, and
a test that raises `Refutation` on the clause. What is judged was observed by hooks, never taken from the subject.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gradproof.harness import (
    Bound,
    Case,
    Cell,
    Observed,
    Place,
    Refutation,
    WindowError,
    accumulation_witness,
    clip_factor,
    element_bound,
    format_named,
    schedule_factor,
)
from models.accumulation.torch_nets import NETS
from symbolic.accumulation.falsify_bench import (
    WITNESS,
    Run,
    applied_to,
    applied_windows,
    backwards_of,
    due_passes,
    elements_of,
    error_of,
    execute,
    largest_gradient,
    own_error,
    own_errors,
    skipped_windows,
    table_breaks,
)
from symbolic.accumulation.falsify_measure import (
    CLIPS,
    FP32,
    LEARNING_RATE,
    LOSS_SCALE,
    Grid,
    accumulation_row,
    end_to_end_rows,
    interaction,
    most_windows,
    outside_row,
    probe_kernels,
)

# -- FALSIFY-GA-005: the accumulation buffer has the precision of fp32, judged by value and never by a dtype attribute.
#
# A weight vector of one element is trained on loss_i = w x_i, whose gradient is x_i. The sequences make a 16-bit sum
# err by far more than fp32's proven bound: the witness of `gradproof.arith.bounds` lands every partial sum on a tie
# (the worst case u (N^2 - 1) / (3 N): 1.28e-3 for fp16 at N = 8), `swamped` adds N - 1 terms that each fall below
# half an ulp of the sum. At N = 4 an fp16 buffer still meets 1e-3; hence the claim's bound N >= 8.

NARROW = {"fp16": torch.float16, "bf16": torch.bfloat16}


def swamped(n: int, fmt: str) -> tuple[float, ...]:
    """1, then n - 1 terms a little under half an ulp of 1 in `fmt`."""
    u = format_named(fmt).u
    return (1.0,) + (float(u * Fraction(7, 8)),) * (n - 1)


def narrow_error(terms: Sequence[float], dtype: torch.dtype) -> float:
    """Error of summing the terms in a 16-bit buffer."""
    total = torch.tensor(terms[0]).to(dtype)
    for x in terms[1:]:
        total = total + torch.tensor(x).to(dtype)
    return abs(float(total) - sum(terms))


class Buffer(Grid):
    """FALSIFY-GA-005. The tolerance is judged where the 1/N is right; where it is not, GA-EQ-001 is refuted."""

    clause = "GA-INV-004"

    def reaches(self, place: Place) -> Sequence[str]:
        return ("a fp16 buffer would err too much here", "a bf16 buffer would err too much here", "gradients as given")

    def cells(self, place: Place, params: Mapping[str, Any]) -> Sequence[Cell]:
        return [Cell(WITNESS, n) for n in params["n"]]

    def probe(self, cell: Cell, place: Place) -> None:
        """Raise NoKernel when the device lacks a kernel that the cell needs."""
        probe_kernels(Case(WITNESS, cell.n, gradients=(1.0,) * cell.n), place, self.modes(place))

    def examples(self, cell: Cell, place: Place, turn: int, turns: int) -> Sequence[Case]:
        worst = [tuple(map(float, accumulation_witness(cell.n, fmt))) for fmt in NARROW]
        made = [*worst, *(swamped(cell.n, fmt) for fmt in NARROW)]
        several = {"windows": most_windows(cell.n), "size": 1}
        return self.fixed(cell, place, turn, turns, *({**several, "gradients": g * several["windows"]} for g in made))

    def strategy(self, cell: Cell, place: Place) -> SearchStrategy[Case]:
        number = st.integers(-1024, 1024).map(lambda k: k / 1024) | st.floats(-1, 1, width=32, allow_subnormal=False)
        windows = most_windows(cell.n)
        gradients = st.lists(number, min_size=windows * cell.n, max_size=windows * cell.n).map(tuple)
        plain = {"windows": st.just(windows), "tail": st.just(0), "size": st.just(1), "ragged": st.just(False)}
        return self.drawn(cell, place, gradients=gradients, clip=st.none(), learning_rate=st.just(0.0), **plain)

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        run, seen = execute(subject, case, place), Observed()
        due_passes(run, self.clause)
        applied = applied_windows(run)
        for k in applied:
            error = error_of(run, k, self.clause)
            inside = error.within and largest_gradient(run) <= 1
            error = error if error.within else own_error(run, k, self.clause)
            if not error.within or (inside and place.exceeded(self.clause, error.linf)):
                detail = f"window {k}: the accumulated gradient errs by {error.error:.6g}"
                values = {"window": k, "error": error.error, "bound": error.bound}
                raise Refutation(self.clause, f"{detail}; an fp32 buffer by at most {error.bound:.6g}", values)
            seen.rows.append(accumulation_row(run, place, error, self.clause, inside))
            seen.covers |= self.reached(run, k)
        return replace(seen, judged=bool(applied))

    def reached(self, run: Run, k: int) -> set[str]:
        """What the recorded terms of window `k` would have shown of a narrower buffer."""
        passes = backwards_of(run, k, self.clause)
        terms = [float(b.vector[0]) for b in passes]
        bound = float(element_bound(len(terms), max(map(abs, terms)), False, Fraction(0)))
        wide = [fmt for fmt, dtype in NARROW.items() if narrow_error(terms, dtype) > bound]
        covers = {f"a {fmt} buffer would err too much here" for fmt in wide}
        given = [run.case.gradients[b.index] for b in passes]
        if [x / b.factor for x, b in zip(terms, passes, strict=True)] == given:
            covers.add("gradients as given")
        return covers


# -- FALSIFY-GA-004: what is applied is the accumulated, unscaled gradient, clipped once by its global norm.
#
# torch divides by (norm + 1e-6), others by the norm alone: both coefficients are right, and what lies between them.

EPSILON = 1e-6  # added to the norm by torch.nn.utils.clip_grad_norm_


class Clipped:
    """A gradient, the total that it should be the clip of, and the limit."""

    def __init__(self, got: Sequence[float], total: WindowError, max_norm: float, tensors: int) -> None:
        self.got, self.total = got, total
        self.norm = math.sqrt(math.fsum(v * v for v in total.mean))
        most = max_norm / self.norm if self.norm else 1.0
        self.least, self.most = min(1.0, max_norm / (self.norm + EPSILON)), min(1.0, most)
        self.factor = clip_factor("fp32", len(got), tensors)

    def along(self) -> Clipped:
        """The same under the one coefficient that explains the length best: only the direction is judged."""
        square = math.fsum(m * m for m in self.total.mean)
        dot = math.fsum(v * m for v, m in zip(self.got, self.total.mean, strict=True))
        self.least = self.most = min(1.0, max(0.0, dot / square)) if square else 1.0
        return self

    def wrong(self) -> int | None:
        """The first element that no coefficient between the two explains."""
        bounds = self.total.bounds
        blur = math.sqrt(math.fsum(b * b for b in bounds)) / self.norm if self.norm else 0.0
        blur += float(self.factor) - 1 + 8 * float(format_named("fp32").u)
        for e, (v, mean, bound) in enumerate(zip(self.got, self.total.mean, bounds, strict=True)):
            low, high = sorted((self.least * mean, self.most * mean))
            if max(low - v, v - high) > bound + blur * abs(self.most * mean) + 1e-38:
                return e
        return None


class ClipOnceOnTotal(Grid):
    """FALSIFY-GA-004."""

    clause = "GA-INV-005"

    def reaches(self, place: Place) -> Sequence[str]:
        reached = ("clipped", "not clipped", "loss scale present", "one large micro-batch", "a clipped tail")
        return (*reached, "clipped after a step that the scaler suppressed")

    def examples(self, cell: Cell, place: Place, turn: int, turns: int) -> Sequence[Case]:
        large = {"seed": 5, "windows": 2, "clip": 0.25, "large": 0, "loss_scale": LOSS_SCALE}
        all_at_once = self.crossed(cell, learning_rate=LEARNING_RATE)
        return self.fixed(cell, place, turn, turns, all_at_once, large, {**large, "clip": 4.0, "large": None})

    def strategy(self, cell: Cell, place: Place) -> SearchStrategy[Case]:
        clip = st.sampled_from(CLIPS) | st.floats(1 / 16, 4.0, width=32)
        return self.drawn(cell, place, clip=clip, large=st.none() | st.integers(0, cell.n - 1))

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        run, seen = execute(subject, case, place), Observed()
        due_passes(run, self.clause)
        said, applied, skipped = table_breaks(run, self.clause), applied_windows(run), skipped_windows(run)
        for k in applied:
            clipped = self.judge(run, k, said) < 1
            seen.covers.add("clipped" if clipped else "not clipped")
            seen.covers |= {"a clipped tail"} if clipped and len(run.window(k)) < case.n else set()
            after = clipped and any(j < k for j in skipped)
            seen.covers |= {"clipped after a step that the scaler suppressed"} if after else set()
        if said:
            raise Refutation(self.clause, said, {"events": ", ".join(run.trace.events)})
        seen.covers |= {"loss scale present"} if run.job.scaler else set()
        seen.covers |= {"one large micro-batch"} if case.large is not None else set()
        return replace(seen, judged=bool(applied))

    def judge(self, run: Run, k: int, said: str) -> float:
        """The coefficient of window `k`, whose applied gradient is the clip of its total. Refutes any other.

        The total is what the subject's own backward passes brought, up to one overall factor.
        """
        max_norm, got = run.job.config.max_norm or math.inf, elements_of(run, k, self.clause)
        square = sum((Fraction(v) ** 2 for v in got), Fraction(0))
        clips = [c for c in run.trace.clips if c.window == k and math.isfinite(c.limit)]
        totals = (Clipped(got, total, max_norm, len(run.start)) for total in own_errors(run, k, self.clause))
        first = next(totals)
        values = {"window": k, "norm": first.norm, "max_norm": max_norm, "applied_norm": math.sqrt(square)}
        aside = f"; {said}" if said else ""
        if len(clips) > 1:
            detail = f"window {k}: clipped {len(clips)} times{aside}"
            raise Refutation(self.clause, detail, {**values, "clips": len(clips)})
        if square > (Fraction(max_norm) * first.factor) ** 2:
            detail = f"window {k}: ||applied|| = {math.sqrt(square):.9g} > max_norm {max_norm:.9g}{aside}"
            raise Refutation(self.clause, detail, values)
        wrong = first.wrong()
        if wrong is None:
            return first.least
        for other in totals:
            if other.wrong() is None:
                return other.least
        right = first.least * first.total.mean[wrong]
        detail = f"window {k}: element {wrong} is {got[wrong]:.9g}; clip(total) gives {right:.9g}{aside}"
        raise Refutation(self.clause, detail, {**values, "element": wrong})


# -- The harnesses

INTERACTS = 1e-9
STARTS_CLEAN = "the buffers are empty at the start: the loop does not zero them before its first backward pass"


def judge_errors(run: Run, place: Place, clause: str, seen: Observed) -> None:
    """Each window's applied gradient within its proven bound and, where |g_i| <= 1 holds, the tolerance.

    Where a clip follows, the direction alone is judged: how long a clipped gradient is, is for GA-INV-005.
    """
    inside, max_norm = largest_gradient(run) <= 1, run.job.config.max_norm
    for k in applied_windows(run):
        error = error_of(run, k, clause)
        if max_norm is not None:
            got = elements_of(run, k, clause)
            wrong = Clipped(got, error, max_norm, len(run.start)).along().wrong()
            if wrong is not None:
                detail = f"window {k}: no clip of the exact mean of the run's own gradients gives element {wrong}"
                raise Refutation(clause, detail, {"window": k, "element": wrong, "applied": got[wrong]})
            continue
        values = {"window": k, "element": error.element, "error": error.error, "bound": error.bound}
        if not error.within:
            detail = f"window {k}: the applied gradient is {error.error:.6g} away from the exact mean of the run's own"
            detail += f" gradients; proven bound {error.bound:.6g}"
            raise Refutation(clause, detail + equal_update(run, k, error, clause), values)
        if inside and place.exceeded(clause, error.linf):
            detail = f"window {k}: error {error.linf:.6g} > tolerance {place.tolerances[clause]:g}"
            raise Refutation(clause, detail, values)
        seen.covers |= {"tolerance judged"} if inside else set()
        seen.rows.append(accumulation_row(run, place, error, clause, inside))


def rate_at(run: Run, k: int) -> float:
    """The learning rate due at window `k`: the schedule advances with each performed step, with no other."""
    return run.case.learning_rate * schedule_factor(sum(j < k for j in applied_windows(run)))


def equal_update(run: Run, k: int, error: WindowError, clause: str) -> str:
    """Says so when the learning rate makes up for a gradient that is too large or too small; else nothing."""
    meant, used = rate_at(run, k), applied_to(run, clause)[k].learning_rate
    if run.case.optimizer != "sgd" or used in (0.0, meant):
        return ""
    got, room = elements_of(run, k, clause), meant * max(map(abs, error.mean)) / 2**16
    equal = all(abs(used * v - meant * m) <= room for v, m in zip(got, error.mean, strict=True))
    return f"; the update is equal (learning rate {used:.6g}, not {meant:.6g}), the gradient is not" if equal else ""


class AccumulatedMatchesFull(Grid):
    """FALSIFY-GA-001: N accumulated micro-batches give the full batch's gradient."""

    clause = "GA-EQ-001"

    def reaches(self, place: Place) -> Sequence[str]:
        judged = ("tolerance judged",) if self.clause in place.required else ()
        return ("N > 1", "short last window", "unequal counts", "windows after a suppressed step", *judged)

    def examples(self, cell: Cell, place: Place, turn: int, turns: int) -> Sequence[Case]:
        even = {"seed": 1, "learning_rate": LEARNING_RATE}
        ragged = {"seed": 2, "windows": 1, "tail": cell.n // 2, "ragged": True}
        unclipped = self.crossed(cell, clip=None, learning_rate=LEARNING_RATE)
        return self.fixed(cell, place, turn, turns, even, ragged, unclipped, self.crossed(cell))

    def strategy(self, cell: Cell, place: Place) -> SearchStrategy[Case]:
        return self.drawn(cell, place, magnitude=st.sampled_from((0, 3, 8)))

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        run, seen = execute(subject, case, place), Observed()
        due_passes(run, self.clause)
        judge_errors(run, place, self.clause, seen)
        applied, frozen = applied_windows(run), case.learning_rate == 0
        for k in applied if case.clip is None else ():
            seen.rows += end_to_end_rows(run, place, k, self.clause) if frozen or k == 0 else []
        counts = {b.count for b in run.data.batches}
        reached = {"N > 1": case.n > 1, "short last window": case.tail > 0, "unequal counts": len(counts) > 1}
        reached["windows after a suppressed step"] = any(j < k for j in skipped_windows(run) for k in applied)
        seen.covers |= {name for name, yes in reached.items() if yes}
        return replace(seen, judged=bool(applied))

    def bounds(self, place: Place) -> Sequence[Bound]:
        return (FP32,) if place.dtype == "fp32" else ()

    def outside(self, subject: Any, place: Place, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Nets whose samples interact, found by experiment. Raises ValueError when the experiment finds nothing."""
        rows = []
        for net in (NETS[name] for name in params.get("outside", ())):
            moved = interaction(net)
            if moved <= INTERACTS:
                raise ValueError(f"{net.name} is listed as outside the assumptions, but its samples do not interact")
            for n in params["n"]:
                mode = self.modes(place)[0]
                case = Case(net.name, n, mode=mode, seed=1, loss_scale=LOSS_SCALE if mode == "fp16" else None)
                rows.append(outside_row(execute(subject, case, place), place, moved))
        return rows


class NoLeakage(Grid):
    """FALSIFY-GA-002: a cycle's gradient is its own micro-batches', whatever the previous owner or cycle left.

    Judged by the difference that what came before makes, so that a wrong 1/N is not called a leak. A loop that does
    not zero before its first backward pass is started with clean buffers, and the finding says so.
    """

    clause = "GA-INV-002"

    def reaches(self, place: Place) -> Sequence[str]:
        leftovers = ("a cycle with other data differs", "poisoned buffer, or one that must start clean")
        return (*leftovers, "cycles after a suppressed step")

    def examples(self, cell: Cell, place: Place, turn: int, turns: int) -> Sequence[Case]:
        plain, late = {"seed": 3, "windows": 2, "swap": 1, "poison": 64.0}, min(2, most_windows(cell.n) - 1)
        return self.fixed(cell, place, turn, turns, plain, self.crossed(cell, swap=1, swapped=late, poison=None))

    def strategy(self, cell: Cell, place: Place) -> SearchStrategy[Case]:
        most = max(2, most_windows(cell.n))
        return self.drawn(
            cell, place, windows=st.integers(2, most), swap=st.integers(0, 15), swapped=st.integers(0, most - 2),
            poison=st.sampled_from((None, 1.0, -0.125, 64.0)), learning_rate=st.just(0.0),
        )  # fmt: skip

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        clean, seen = execute(subject, replace(case, swap=None, poison=None), place), Observed()
        other, swapped = execute(subject, replace(case, poison=None), place), case.swapped
        pairs = [(f"cycle {swapped}", clean, other, k) for k in range(len(clean.sizes)) if k != swapped]
        if case.poison is not None:
            run = execute(subject, replace(case, swap=None), place)
            seen.notes |= {STARTS_CLEAN} if run.trace.unzeroed else set()
            seen.covers.add("poisoned buffer, or one that must start clean")
            pairs += [] if run.trace.unzeroed else [("what the previous owner left", run, clean, 0)]
        runs = {id(r): r for _, *two, _ in pairs for r in two}.values()
        for each in runs:
            due_passes(each, self.clause)
        skipped = skipped_windows(clean)
        if any(skipped_windows(each) != skipped for each in runs):
            return Observed(judged=False)
        for name, one, two, k in pairs:
            if k in skipped:
                continue
            a, b = elements_of(one, k, self.clause), elements_of(two, k, self.clause)
            if a != b:
                e = next(i for i, pair in enumerate(zip(a, b, strict=True)) if pair[0] != pair[1])
                values = {"cycle": k, "element": e, "one": a[e], "other": b[e]}
                raise Refutation(self.clause, f"cycle {k}: its gradient depends on {name}", values)
        self.lost(clean)
        other_data = swapped < len(clean.sizes) and swapped not in skipped
        if other_data and elements_of(clean, swapped, self.clause) != elements_of(other, swapped, self.clause):
            seen.covers.add("a cycle with other data differs")
        applied = applied_windows(clean)
        seen.covers |= {"cycles after a suppressed step"} if any(j < k for j in skipped for k in applied) else set()
        return replace(seen, judged=other_data and len(applied) > 1)

    def lost(self, run: Run) -> None:
        """Refutes a zero inside a window that takes gradients away. One of a buffer already copied takes nothing."""
        said = table_breaks(run, self.clause)
        for k in applied_windows(run) if said and run.job.config.max_norm is None else ():
            error = own_error(run, k, self.clause)
            if not error.within:
                detail = f"cycle {k}: the applied gradient is {error.error:.6g} away from its own micro-batches'"
                values = {"cycle": k, "element": error.element, "error": error.error, "bound": error.bound}
                raise Refutation(self.clause, f"{detail}; {said}", values)


class StepCount(Grid):
    """FALSIFY-GA-003: one step a window; a short last window has one too, and a suppressed step is an attempt.

    Every other event must stand where the window table allows it, and the weights must be those of the steps. The
    schedule advances once after each performed step, a short last window's too, and not after a suppressed one.
    """

    clause = "GA-INV-003"

    def reaches(self, place: Place) -> Sequence[str]:
        return ("3N micro-batches", "short last window", "step suppressed by the scaler", "weights moved")

    def examples(self, cell: Cell, place: Place, turn: int, turns: int) -> Sequence[Case]:
        three = {"seed": 4, "windows": 3, "learning_rate": LEARNING_RATE, "size": 1}
        tail = {**three, "windows": 1, "tail": (cell.n + 1) // 2 if cell.n > 1 else 0}
        over = {**three, "overflow": cell.n, "loss_scale": LOSS_SCALE}
        all_at_once = self.crossed(cell, learning_rate=LEARNING_RATE)
        return self.fixed(cell, place, turn, turns, three, tail, over, all_at_once)

    def strategy(self, cell: Cell, place: Place) -> SearchStrategy[Case]:
        return self.drawn(cell, place, tail=st.integers(0, cell.n - 1), learning_rate=st.just(LEARNING_RATE))

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        run, seen = execute(subject, case, place), Observed()
        said = table_breaks(run, self.clause)
        if run.trace.attempts != run.boundaries():
            detail = f"{len(run.data.batches)} micro-batches at N = {case.n}: steps after {run.trace.attempts}"
            detail = "; ".join(filter(None, (f"{detail}, due after {run.boundaries()}", said)))
            values = {"attempts": run.trace.attempts, "due": run.boundaries()}
            raise Refutation(self.clause, detail, values)
        due_passes(run, self.clause)
        for wrong in (said, self.scheduled(run), run.trace.astray):
            if wrong:
                raise Refutation(self.clause, wrong, {"events": ", ".join(run.trace.events)})
        skipped = skipped_windows(run)
        taken = [a for a in run.trace.applied if not a.skipped]
        pairs = zip(run.trace.weights, run.trace.weights[1:], strict=False)
        moves = sum(any(not a.equal(b) for a, b in zip(one, two, strict=True)) for one, two in pairs)
        due = len(run.sizes) - len(skipped)
        if len(taken) != due or moves > due:
            detail = f"{due} optimizer steps due, {len(taken)} taken, weights moved {moves} times"
            raise Refutation(self.clause, detail, {"due": due, "taken": len(taken), "moves": moves})
        reached = {"3N micro-batches": case.windows == 3 and not case.tail, "short last window": case.tail > 0}
        reached |= {"step suppressed by the scaler": bool(skipped), "weights moved": moves > 0}
        seen.covers |= {name for name, yes in reached.items() if yes}
        return seen

    def scheduled(self, run: Run) -> str:
        """Where the schedule is not that of the performed steps.

        Judged by its events; where those are missing, by the learning rates, which a loop may set by hand.
        """
        skipped, made = skipped_windows(run), run.trace.schedules()
        wanted = [0, *(int(k not in skipped) for k in range(len(run.sizes)))]
        rates = [a.learning_rate for a in applied_to(run, self.clause).values()] + [run.trace.rate]
        due = [rate_at(run, k) for k in (*applied_windows(run), len(run.sizes))]
        if made == wanted or all(math.isclose(*pair) for pair in zip(rates, due, strict=True)):
            return ""
        return f"the schedule advanced {made} times, before the first step and after each; due {wanted}"


class LossIsMean(Grid):
    """FALSIFY-GA-006: the reported loss of a window is the mean of its micro-batches' losses."""

    clause = "GA-INV-001"

    def reaches(self, place: Place) -> Sequence[str]:
        return ("losses differ", "unequal counts", "windows after a suppressed step")

    def examples(self, cell: Cell, place: Place, turn: int, turns: int) -> Sequence[Case]:
        ragged = {"seed": 7, "tail": cell.n // 2, "ragged": True}
        return self.fixed(cell, place, turn, turns, {"seed": 6, "windows": 2}, ragged, self.crossed(cell))

    def strategy(self, cell: Cell, place: Place) -> SearchStrategy[Case]:
        return self.drawn(cell, place)

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        run, seen = execute(subject, case, place), Observed()
        due_passes(run, self.clause)
        if len(run.report.losses) != len(run.sizes):
            detail = f"{len(run.sizes)} windows, {len(run.report.losses)} losses reported"
            raise Refutation(self.clause, detail, {"windows": len(run.sizes), "reported": len(run.report.losses)})
        skipped, finite = skipped_windows(run), [k for k in range(len(run.sizes)) if self.bounded(run, k)]
        for k, reported in ((k, run.report.losses[k]) for k in finite):
            passes, weights = backwards_of(run, k, self.clause), run.weights(k)
            counts = [run.data.batches[b.index].count if b.reduction == "sum" else 1 for b in passes]
            own = [b.loss / c for b, c in zip(passes, counts, strict=True)]
            known = run.case.learning_rate == 0 and run.window(k).stop <= len(run.truth.losses)
            truth = [run.truth.losses[i] for i in run.window(k)] if known else own
            close = (len(own) + 6) * float(format_named("fp32").u)
            loose = FP32.value / 1000 if place.dtype == "fp32" else math.inf
            for name, losses, room in (("own", own, close), ("fp64", truth, loose)):
                mean = math.fsum(w * v for w, v in zip(weights, losses, strict=True))
                size = math.fsum(w * abs(v) for w, v in zip(weights, losses, strict=True))
                error = abs(reported - mean)
                judged = name == "own" and max(map(abs, own)) <= 1
                if not error <= room * size or (judged and place.exceeded(self.clause, error)):
                    detail = f"window {k}: reported loss {reported:.9g}, mean of the {name} losses {mean:.9g}"
                    values = {"window": k, "reported": reported, "mean": mean, "against": name}
                    raise Refutation(self.clause, detail, values)
            seen.covers |= {"losses differ"} if len(set(own)) > 1 else set()
            seen.covers |= {"windows after a suppressed step"} if any(j < k for j in skipped) else set()
        seen.covers |= {"unequal counts"} if len({b.count for b in run.data.batches}) > 1 else set()
        return replace(seen, judged=bool(finite))

    def bounded(self, run: Run, k: int) -> bool:
        """Whether the losses of window `k` are numbers: those of one that overflowed have no mean."""
        return all(math.isfinite(b.loss) for b in backwards_of(run, k, self.clause))


accumulated_matches_full = AccumulatedMatchesFull()
no_leak_between_cycles = NoLeakage()
three_steps_in_three_windows = StepCount()
clips_once_on_the_total = ClipOnceOnTotal()
buffer_is_fp32 = Buffer()
loss_is_mean = LossIsMean()
