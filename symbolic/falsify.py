"""The falsification tests FALSIFY-GA-001 to -006 of gradient-accumulation-kernel-v1 as properties.

Each is a property of `gradproof.execution.methods.property`: a grid that always runs, cases that Hypothesis draws, and
a test that raises `Refutation` on the clause. What is judged was observed by hooks, never taken from the subject.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gradproof.harness import Bound, Case, Cell, Observed, Place, Refutation, WindowError, format_named
from models.torch_nets import NETS
from symbolic.falsify_bench import (
    Run,
    applied_to,
    backwards_of,
    elements_of,
    error_of,
    execute,
    largest_gradient,
    skipped_windows,
)
from symbolic.falsify_buffer import Buffer
from symbolic.falsify_clip import ClipOnceOnTotal
from symbolic.falsify_grid import LEARNING_RATE, LOSS_SCALE, Grid
from symbolic.falsify_judge import due_passes, own_error, table_breaks
from symbolic.falsify_measure import FP32, accumulation_row, end_to_end_rows, interaction, outside_row

INTERACTS = 1e-9
STARTS_CLEAN = "the buffers are empty at the start: the loop does not zero them before its first backward pass"


def judge_errors(run: Run, place: Place, clause: str, seen: Observed) -> None:
    """Each window's applied gradient within its proven bound and, where |g_i| <= 1 holds, the tolerance."""
    inside = largest_gradient(run) <= 1
    skipped = skipped_windows(run)
    for k in range(len(run.sizes)):
        if k in skipped:
            continue
        error = error_of(run, k, clause)
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


def equal_update(run: Run, k: int, error: WindowError, clause: str) -> str:
    """Says so when the learning rate makes up for a gradient that is too large or too small; else nothing."""
    meant, used = run.case.learning_rate, applied_to(run, clause)[k].learning_rate
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
        return ("N > 1", "short last window", "unequal counts", *judged)

    def examples(self, cell: Cell, place: Place, turn: int, turns: int) -> Sequence[Case]:
        even = {"seed": 1, "learning_rate": LEARNING_RATE}
        ragged = {"seed": 2, "windows": 1, "tail": cell.n // 2, "ragged": True}
        return self.fixed(cell, place, turn, turns, even, ragged)

    def strategy(self, cell: Cell, place: Place) -> SearchStrategy[Case]:
        return self.drawn(
            cell, place, tail=st.integers(0, max(0, min(cell.n - 1, 5))), size=st.integers(1, 3), ragged=st.booleans(),
            magnitude=st.sampled_from((0, 3, 8)), learning_rate=st.sampled_from((0.0, LEARNING_RATE)),
        )  # fmt: skip

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        run, seen = execute(subject, case, place), Observed()
        due_passes(run, self.clause)
        if skipped_windows(run):
            return Observed(judged=False)
        judge_errors(run, place, self.clause, seen)
        frozen = case.learning_rate == 0
        for k in range(len(run.sizes) if frozen else 1):
            seen.rows += end_to_end_rows(run, place, k, self.clause)
        counts = {b.count for b in run.data.batches}
        reached = {"N > 1": case.n > 1, "short last window": case.tail > 0, "unequal counts": len(counts) > 1}
        seen.covers |= {name for name, yes in reached.items() if yes}
        return seen

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
        return ("the other first cycle differs", "poisoned buffer, or one that must start clean")

    def examples(self, cell: Cell, place: Place, turn: int, turns: int) -> Sequence[Case]:
        return self.fixed(cell, place, turn, turns, {"seed": 3, "windows": 2, "swap": 1, "poison": 64.0})

    def strategy(self, cell: Cell, place: Place) -> SearchStrategy[Case]:
        return self.drawn(
            cell, place, windows=st.just(2), swap=st.integers(0, 15), poison=st.sampled_from((None, 1.0, -0.125, 64.0)),
            size=st.integers(1, 3), ragged=st.booleans(),
        )  # fmt: skip

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        clean, seen = execute(subject, replace(case, swap=None, poison=None), place), Observed()
        other = execute(subject, replace(case, poison=None), place)
        pairs = [("cycle 0", clean, other, 1)]
        if case.poison is not None:
            run = execute(subject, replace(case, swap=None), place)
            seen.notes |= {STARTS_CLEAN} if run.trace.unzeroed else set()
            seen.covers.add("poisoned buffer, or one that must start clean")
            pairs += [] if run.trace.unzeroed else [("what the previous owner left", run, clean, 0)]
        runs = {id(r): r for _, *two, _ in pairs for r in two}.values()
        for each in runs:
            due_passes(each, self.clause)
        if any(skipped_windows(each) for each in runs):
            return Observed(judged=False)
        for name, one, two, k in pairs:
            a, b = elements_of(one, k, self.clause), elements_of(two, k, self.clause)
            if a != b:
                e = next(i for i, pair in enumerate(zip(a, b, strict=True)) if pair[0] != pair[1])
                values = {"cycle": k, "element": e, "one": a[e], "other": b[e]}
                raise Refutation(self.clause, f"cycle {k}: its gradient depends on {name}", values)
        self.lost(clean)
        if elements_of(clean, 0, self.clause) != elements_of(other, 0, self.clause):
            seen.covers.add("the other first cycle differs")
        return seen

    def lost(self, run: Run) -> None:
        """Refutes a zero inside a window that takes gradients away. One of a buffer already copied takes nothing."""
        said = table_breaks(run, self.clause)
        for k in range(len(run.sizes) if said else 0):
            error = own_error(run, k, self.clause)
            if not error.within:
                detail = f"cycle {k}: the applied gradient is {error.error:.6g} away from its own micro-batches'"
                values = {"cycle": k, "element": error.element, "error": error.error, "bound": error.bound}
                raise Refutation(self.clause, f"{detail}; {said}", values)


class StepCount(Grid):
    """FALSIFY-GA-003: one step a window; a short last window has one too, and a suppressed step is an attempt.

    Every other event must stand where the window table allows it, and the weights must be those of the steps.
    """

    clause = "GA-INV-003"

    def reaches(self, place: Place) -> Sequence[str]:
        return ("3N micro-batches", "short last window", "step suppressed by the scaler", "weights moved")

    def examples(self, cell: Cell, place: Place, turn: int, turns: int) -> Sequence[Case]:
        three = {"seed": 4, "windows": 3, "learning_rate": LEARNING_RATE, "size": 1}
        tail = {**three, "windows": 1, "tail": (cell.n + 1) // 2 if cell.n > 1 else 0}
        over = {**three, "overflow": cell.n, "loss_scale": LOSS_SCALE}
        return self.fixed(cell, place, turn, turns, three, tail, over)

    def strategy(self, cell: Cell, place: Place) -> SearchStrategy[Case]:
        scaled = st.just(LOSS_SCALE)
        return self.drawn(
            cell, place, windows=st.integers(1, 3), tail=st.integers(0, cell.n - 1), loss_scale=scaled, size=st.just(1),
            overflow=st.none() | st.integers(0, cell.n - 1), learning_rate=st.just(LEARNING_RATE),
        )  # fmt: skip

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        run, seen = execute(subject, case, place), Observed()
        said = table_breaks(run, self.clause)
        if run.trace.attempts != run.boundaries():
            detail = f"{len(run.data.batches)} micro-batches at N = {case.n}: steps after {run.trace.attempts}"
            detail = "; ".join(filter(None, (f"{detail}, due after {run.boundaries()}", said)))
            values = {"attempts": run.trace.attempts, "due": run.boundaries()}
            raise Refutation(self.clause, detail, values)
        due_passes(run, self.clause)
        for wrong in (said, run.trace.astray):
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


class LossIsMean(Grid):
    """FALSIFY-GA-006: the reported loss of a window is the mean of its micro-batches' losses."""

    clause = "GA-INV-001"

    def reaches(self, place: Place) -> Sequence[str]:
        return ("losses differ", "unequal counts")

    def examples(self, cell: Cell, place: Place, turn: int, turns: int) -> Sequence[Case]:
        ragged = {"seed": 7, "tail": cell.n // 2, "ragged": True}
        return self.fixed(cell, place, turn, turns, {"seed": 6, "windows": 2}, ragged)

    def strategy(self, cell: Cell, place: Place) -> SearchStrategy[Case]:
        tail = st.integers(0, max(0, min(cell.n - 1, 5)))
        return self.drawn(cell, place, tail=tail, size=st.integers(1, 3), ragged=st.booleans())

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        run, seen = execute(subject, case, place), Observed()
        due_passes(run, self.clause)
        if len(run.report.losses) != len(run.sizes):
            detail = f"{len(run.sizes)} windows, {len(run.report.losses)} losses reported"
            raise Refutation(self.clause, detail, {"windows": len(run.sizes), "reported": len(run.report.losses)})
        for k, reported in enumerate(run.report.losses):
            passes, weights = backwards_of(run, k, self.clause), run.weights(k)
            counts = [run.data.batches[b.index].count if b.reduction == "sum" else 1 for b in passes]
            own = [b.loss / c for b, c in zip(passes, counts, strict=True)]
            truth = [run.truth.losses[i] for i in run.window(k)]
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
        seen.covers |= {"unequal counts"} if len({b.count for b in run.data.batches}) > 1 else set()
        return seen


accumulated_matches_full = AccumulatedMatchesFull()
no_leak_between_cycles = NoLeakage()
three_steps_in_three_windows = StepCount()
clips_once_on_the_total = ClipOnceOnTotal()
buffer_is_fp32 = Buffer()
loss_is_mean = LossIsMean()
