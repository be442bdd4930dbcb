"""Measurement rows of the falsification properties, in two columns that are never mixed.

Column `accumulation`: what the optimizer was given against the exact mean of the run's own recorded gradients,
per element, beside the proven bound. Column `end_to_end`: the same gradient against the full batch in the same dtype
and against fp64, which includes the error inside each g_i and has no proven bound. There only what no rounding can
explain is refuted, in every dtype: a distance from the fp64 full batch above the errors inside the run's own g_i (by
the triangle inequality), and, in fp64 alone, micro-batches whose mean gradient is not the full batch's. fp32 has a
loose limit too.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor

from gradproof.harness import (
    AUTOCAST,
    PAIRS,
    SNAP,
    Batch,
    Bound,
    Case,
    Cell,
    NoKernel,
    Place,
    Refutation,
    StepConfig,
    WindowError,
    make_optimizer,
    place,
)
from models.accumulation.torch_nets import NETS, Net
from symbolic.accumulation.falsify_bench import (
    FEW,
    Data,
    Run,
    backwards_of,
    differentiate,
    elements_of,
    error_of,
    loss_of,
    prepared,
)

FP32 = Bound("end_to_end_fp32_per_mille", 1, "u = 6e-8, amplified by LayerNorm by at most 1/sqrt(1e-5): under 1e-4")
IDENTITY = 1e-9
MISSING = ("not implemented", "not supported", "unsupported", "could not create a primitive")


def row(run: Run, at: Place, column: str, **values: Any) -> dict[str, Any]:
    """A row with every key of the schema; a value that was not taken is None."""
    empty: dict[str, Any] = {"bound": None, "ratio": None, "tolerance": None, "relative": None}
    head = {"column": column, "device": at.device, "dtype": at.dtype, "net": run.case.net, "n": run.case.n}
    return {**head, **empty, "metric": "linf", **values}


def accumulation_row(run: Run, at: Place, error: WindowError, clause: str, inside: bool) -> dict[str, Any]:
    """Accumulation error of one window; `ratio` is the largest of any element, each over its own bound."""
    note = f"{run.case.mode}: applied gradient against the exact mean of the recorded g_i"
    if not inside:
        note += "; |g_i| <= 1 does not hold, so the tolerance is not judged"
    norm = math.sqrt(math.fsum(v * v for v in error.mean))
    return row(
        run, at, "accumulation", measured=error.linf, bound=max(error.bounds), ratio=error.ratio,
        tolerance=at.tolerances.get(clause), l2=error.l2, relative=error.l2 / norm if norm else None, note=note,
    )  # fmt: skip


def one_batch(net: str, data: Data, config: StepConfig, indices: Sequence[int]) -> Tensor:
    """Gradient of the micro-batches taken as one batch, in the mode and with the loss scale of `config`, as doubles."""
    parts = [data.batches[i] for i in indices]
    inputs = torch.cat([b.inputs for b in parts]).to(config.device)
    if config.mode == "fp16_params" and inputs.is_floating_point():
        inputs = inputs.half()
    targets = torch.cat([b.targets for b in parts]).to(config.device)
    whole = Batch(0, inputs, targets, sum(b.count for b in parts))
    model, leaves, _ = place(copy.deepcopy(data.model), config)
    dtype = AUTOCAST.get(config.mode)
    with torch.autocast(config.device, dtype=dtype, enabled=dtype is not None):
        output = model(inputs)
    scale = config.loss_scale or 1.0
    loss = loss_of(net, output, whole, "mean") * (data.gains[indices[0]] * scale)
    grads = torch.autograd.grad(loss, leaves)
    return torch.cat([g.double().flatten() for g in grads]).cpu() / scale


def full_batch_fp64(run: Run, k: int) -> Tensor:
    """Gradient of the window taken as one batch, in fp64."""
    parts = [run.data.batches[i] for i in run.window(k)]
    inputs, targets = (torch.cat(ts) for ts in zip(*((b.inputs, b.targets) for b in parts), strict=True))
    whole = Batch(0, inputs, targets, sum(b.count for b in parts))
    return differentiate(run.truth.model, run.case.net, whole, run.data.gains[0])[0]


def own_errors(run: Run, k: int, clause: str) -> float:
    """Weighted sum of the L2 errors inside the run's own g_i, against fp64, and of the rounding of their weights."""
    total = 0.0
    for i, w, b in zip(run.window(k), run.weights(k), backwards_of(run, k, clause), strict=True):
        factor = b.factor * (run.data.batches[i].count if b.reduction == "sum" else 1)
        own = b.vector / factor
        total += w * float((own - run.truth.grads[i]).norm() + SNAP * own.norm())
    return total


def end_to_end_rows(run: Run, at: Place, k: int, clause: str) -> list[dict[str, Any]]:
    """Both end-to-end rows of window `k`, whose weights are the initial ones; none where fp64 does not know it.

    Refutes what cannot be rounding.
    """
    if run.window(k).stop > len(run.truth.grads):
        return []
    got = torch.tensor(elements_of(run, k, clause), dtype=torch.float64)
    norms = torch.stack([run.truth.grads[i].norm() for i in run.window(k)])
    scale = float(norms.square().mean().sqrt()) or 1.0
    weighted = zip(run.window(k), run.weights(k), strict=True)
    mean, full = torch.stack([run.truth.grads[i] * w for i, w in weighted]).sum(0), full_batch_fp64(run, k)
    apart = float((mean - full).norm()) / scale
    if not apart <= IDENTITY:
        detail = f"window {k}: in fp64 the mean of the micro-batches' gradients is {apart:.3g} of a micro-batch's norm"
        values = {"window": k, "apart": apart, "limit": IDENTITY}
        raise Refutation(clause, f"{detail} away from the full batch's: samples interact", values)
    blur = math.sqrt(math.fsum(b * b for b in error_of(run, k, clause).bounds))
    limits = {"the errors inside its own g_i": own_errors(run, k, clause) * (1 + IDENTITY) + blur + IDENTITY * scale}
    if at.dtype == "fp32":
        limits[FP32.name] = FP32.value / 1000 * scale
    distance = float((got - full).norm())
    for name, limit in limits.items():
        if not distance <= limit:
            projection = float(got @ full) / (float(full @ full) or 1.0)
            detail = f"window {k}: {distance:.6g} away from the fp64 full batch, at most {limit:.6g} by {name}"
            values = {"window": k, "distance": distance, "limit": limit, "projection": projection}
            raise Refutation(clause, f"{detail}; <g, g_ref>/<g_ref, g_ref> = {projection:.6g}", values)
    same = one_batch(run.case.net, run.data, run.job.config, run.window(k))
    return [_end_to_end(run, at, name, got, right) for name, right in (("fp64", full), ("the full batch", same))]


def _end_to_end(run: Run, at: Place, name: str, got: Tensor, right: Tensor) -> dict[str, Any]:
    difference, norm = got - right, float(right.norm())
    note = f"{run.case.mode}: applied gradient against {name}; no proven bound"
    measured, l2 = float(difference.abs().max()), float(difference.norm())
    return row(run, at, "end_to_end", measured=measured, l2=l2, relative=l2 / norm if norm else None, note=note)


def interaction(net: Net, seed: int = 0) -> float:
    """How far sample 0's output moves, relative to its size, when the other sample is replaced. In fp64."""
    generator = torch.Generator().manual_seed(seed)
    model = net.build(seed).double()
    one, _ = net.data(generator, 2)
    other = torch.cat([one[:1], net.data(generator, 1)[0]])
    with torch.no_grad():
        a, b = (model(x.double() if x.is_floating_point() else x)[0] for x in (one, other))
    return float((a - b).norm() / a.norm())


def outside_row(run: Run, at: Place, moved: float) -> dict[str, Any]:
    """A net whose samples interact: measured, and neither proof nor refutation."""
    got = torch.tensor(elements_of(run, 0, "outside"), dtype=torch.float64)
    right = one_batch(run.case.net, run.data, run.job.config, run.window(0))
    difference = got - right
    note = f"{run.case.mode}: against the full batch; outside the assumptions, found by experiment: replacing another"
    note += f" sample of the micro-batch moved this sample's output by {moved:.3g} of its norm; no proof, no refutation"
    relative = float(difference.norm() / right.norm())
    measured, l2 = float(difference.abs().max()), float(difference.norm())
    return row(run, at, "outside_assumptions", measured=measured, l2=l2, relative=relative, note=note)


@lru_cache(maxsize=2)
def forms_missing(device: str) -> Mapping[str, str]:
    """Optimizer forms without a kernel for fp32 weights on the device, by trying each on one weight."""
    missing = {}
    for optimizer, form in PAIRS:
        weight = torch.nn.Parameter(torch.ones(1, device=device))
        weight.grad = torch.ones_like(weight)
        try:
            make_optimizer(StepConfig(1, optimizer=optimizer, form=form, device=device), [weight]).step()
        except (RuntimeError, NotImplementedError) as e:
            if not any(m in str(e).lower() for m in (*MISSING, "fused", "foreach")):
                raise
            missing[f"{optimizer} {form}"] = f"no {form} {optimizer} on {device}: {e}"
    return missing


def probe_kernels(case: Case, at: Place, modes: tuple[str, ...]) -> None:
    """Differentiate the net once in each mode, without the subject. Raises NoKernel when a kernel does not exist."""
    for mode in modes:
        try:
            one_batch(case.net, prepared(case)[0], StepConfig(1, mode=mode, device=at.device), [0])
        except (RuntimeError, NotImplementedError) as e:
            if any(m in str(e).lower() for m in MISSING):
                raise NoKernel(f"{case.net} in mode {mode} on {at.device}: {e}") from e
            raise


# -- What the falsification properties share: the grid of net and N, the modes of a dtype, and the drawn cases.
#
# Seeds, optimizers and their forms, learning rates, loss scales, clips, tails, counts and what overflows are drawn
# together; the grid never is. Every fixed case runs in every optimizer and form once a walk, spread over the
# cells so that the cost does not grow. Up to N = LONG a run has up to WINDOWS windows and a tail, above it two, and one
# where N is larger than FEW.

MODES: Mapping[str, tuple[str, ...]] = {
    "fp32": ("fp32",),
    "fp32-tf32": ("fp32",),
    "bf16": ("bf16",),
    "fp16": ("fp16", "fp16_params"),
}
LOSS_SCALE = 1024.0
SCALES = (1.0, 4.0, 64.0, LOSS_SCALE)
LEARNING_RATE = 2.0**-6
CLIPS = (0.25, 1.0, 4.0)  # of the first window's norm: below it, at it and above it
WINDOWS, LONG = 5, 4
APART = (0, 3, 1, 4, 2)


def scale_of(mode: str) -> float | None:
    """The loss scale that a mode needs."""
    return LOSS_SCALE if mode.startswith("fp16") else None


def most_windows(n: int) -> int:
    """How many windows of `n` micro-batches a run has at most, its tail aside."""
    return WINDOWS if n <= LONG else 2 if n <= FEW else 1


def _case(pair: tuple[str, str], **fields: Any) -> Case:
    return Case(optimizer=pair[0], form=pair[1], **fields)


class Grid:
    """Base of the properties: every net of the claim at every N of the claim."""

    clause = ""

    def reaches(self, place: Place) -> Sequence[str]:
        """Names of what the correct subject must reach beside the optimizers and their forms."""
        return ()

    def covers(self, place: Place) -> Sequence[str]:
        """Names of what the correct subject must reach: every optimizer in every form that exists here too."""
        return (*self.reaches(place), *(f"{optimizer} {form}" for optimizer, form in self.pairs(place)))

    def absent(self, place: Place) -> Mapping[str, str]:
        """Optimizer forms that this device does not have, and what PyTorch says of them."""
        return forms_missing(place.device)

    def pairs(self, place: Place) -> list[tuple[str, str]]:
        """Optimizers and forms that exist here."""
        missing = self.absent(place)
        return [(optimizer, form) for optimizer, form in PAIRS if f"{optimizer} {form}" not in missing]

    def cells(self, place: Place, params: Mapping[str, Any]) -> Sequence[Cell]:
        """The grid of the claim's `nets` and `n`. Raises KeyError for a net that does not exist."""
        return [Cell(NETS[name].name, int(n)) for name in params["nets"] for n in params["n"]]

    def modes(self, place: Place) -> tuple[str, ...]:
        """The step's modes that the contract's dtype stands for."""
        return MODES[place.dtype]

    def probe(self, cell: Cell, place: Place) -> None:
        """Raise NoKernel when the device lacks a kernel that the cell needs."""
        probe_kernels(Case(cell.net, 1), place, self.modes(place))

    def bounds(self, place: Place) -> Sequence[Bound]:
        """Bounds that the property judges by, beside the claim's own."""
        return ()

    def outside(self, subject: Any, place: Place, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Rows measured outside the assumptions: none, unless the property says so."""
        return []

    def drawn(self, cell: Cell, place: Place, **fields: SearchStrategy[Any]) -> SearchStrategy[Case]:
        """Cases of the cell with the given fields drawn beside the common ones."""

        def of_mode(mode: str) -> SearchStrategy[Case]:
            needed = scale_of(mode)
            common: dict[str, SearchStrategy[Any]] = {
                "seed": st.integers(0, 63),
                "loss_scale": st.sampled_from(SCALES if needed else (None, *SCALES)),
                "pair": st.sampled_from(self.pairs(place)),
                **self.crossing(cell),
            }
            fixed = {"net": st.just(cell.net), "n": st.just(cell.n), "mode": st.just(mode)}
            return st.builds(_case, **{**fixed, **common, **fields})

        return st.one_of([of_mode(mode) for mode in self.modes(place)])

    def crossing(self, cell: Cell) -> Mapping[str, SearchStrategy[Any]]:
        """What is drawn together in every case: windows, tail, counts, clip, learning rate and overflow."""
        most = most_windows(cell.n)
        return {
            "windows": st.integers(1, most),
            "tail": st.integers(0, max(0, min(cell.n - 1, 5))),
            "size": st.integers(1, 3),
            "ragged": st.booleans(),
            "clip": st.none() | st.sampled_from(CLIPS) | st.floats(1 / 16, 4.0, width=32),
            "learning_rate": st.sampled_from((0.0, LEARNING_RATE)),
            "overflow": st.none() | st.integers(0, most * cell.n - 1),
        }

    def crossed(self, cell: Cell, **fields: Any) -> dict[str, Any]:
        """A fixed case of everything at once: the second of five windows overflows, and a short one ends the run."""
        most = most_windows(cell.n)
        made = {"seed": 8, "windows": most, "tail": cell.n // 2, "ragged": True, "clip": CLIPS[0], "loss_scale": 64.0}
        return {**made, "overflow": cell.n if most > 1 else None, **fields}

    def fixed(self, cell: Cell, place: Place, turn: int, turns: int, *cases: Mapping[str, Any]) -> list[Case]:
        """The mappings of fields as cases, in each mode, in the optimizers and forms that fall to this turn.

        Case j takes pair p in the turn that is p - APART[j] modulo the turns or the pairs, whichever are fewer: over
        a whole walk each case runs in each pair at least once.
        """
        made, pairs = [], self.pairs(place)
        period = min(turns, len(pairs))
        for j, fields in enumerate(cases):
            for m, mode in enumerate(self.modes(place)):
                due = (turn + APART[j] + m) % period
                for p, (optimizer, form) in enumerate(pairs):
                    if p % period == due:
                        head = {"net": cell.net, "n": cell.n, "mode": mode, "loss_scale": scale_of(mode)}
                        made.append(Case(**{**head, "optimizer": optimizer, "form": form, **fields}))
        return made
