"""The oracle: what a step does to numbers, beside a clean full batch and a loop that is written down here.

It knows nothing of gradproof's judging. It calls a step with the run's numbers, with the full batch, and calls the
reference loop; it keeps the gradients as each optimizer step gets them, the weights, and what is returned; it compares.
Twice: with weights that move, and with weights that are held still, where a window's gradient can rest on nothing but
its own samples. Both in float64 and in the run's own dtype.

A sum below fp32 breaks GA-INV-004, which is about width. All other obligations are about real numbers: where a step
has a sum of that kind, it is compared as if each tensor below fp32 had the width of the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from gradproof.shadow.tape.run import Run, default_dtype, seed
from tests.soundness.kit import BLIND, MEETS, RIGHT, Handed, Listening, Probe, Step, Train

NARROW = frozenset({torch.bfloat16, torch.float16})
ROUNDING, PLAIN = 1e-8, 1e-3
"""A generated right step shows no relative difference above the first, and a wrong one shows one above the second."""
NUMBER = re.compile(r"[-+]?\d+\.\d+(?:[eE][-+]?\d+)?")
SUPPORT: Mapping[str, frozenset[str]] = {
    "GA-EQ-001": frozenset({"gradient", "weights"}),
    "GA-INV-001": frozenset({"loss"}),
    "GA-INV-002": frozenset({"stale", "gradient"}),
    "GA-INV-003": frozenset({"steps", "rates", "weights", "gradient"}),
    "GA-INV-004": frozenset({"narrow"}),
    "GA-INV-005": frozenset({"gradient"}),
    "GA-DATA-001": frozenset({"samples", "gradient"}),
}
"""What the numbers must show where a step is labelled with an obligation."""
SHOWN: Mapping[str, str] = {
    "gradient": "GA-EQ-001",
    "loss": "GA-INV-001",
    "stale": "GA-INV-002",
    "steps": "GA-INV-003",
    "rates": "GA-INV-003",
    "weights": "GA-INV-003",
    "narrow": "GA-INV-004",
    "samples": "GA-DATA-001",
}
"""The obligation that is broken wherever the numbers show this."""


@dataclass(slots=True)
class Seen:
    """One call: what was handed to the optimizers, the weights at the end, and every number that came back."""

    handed: list[Handed]
    weights: list[Tensor]
    dtypes: set[torch.dtype]
    losses: list[float]

    @property
    def finite(self) -> bool:
        """Whether every gradient is: no count that divided it was nought."""
        every = (g for one in self.handed for g in one.gradients if g is not None)
        return all(bool(torch.isfinite(g).all()) for g in every)


@dataclass(slots=True)
class Findings:
    """The largest relative differences of a step, and what they show. Infinity: not even the shapes agree."""

    gradient: float = 0.0
    weights: float = 0.0
    loss: float = 0.0
    stale: float = 0.0
    own_dtype: float = 0.0
    finite: bool = True
    signs: set[str] = field(default_factory=set)

    @property
    def broken(self) -> set[str]:
        """The obligations that the numbers show broken."""
        return {SHOWN[sign] for sign in self.signs}

    def certain(self, step: Step) -> bool:
        """Whether the numbers leave no doubt about the label."""
        if not self.finite:
            return False
        sizes = {"gradient": self.gradient, "weights": self.weights, "loss": self.loss, "stale": self.stale}
        if step.label == RIGHT:
            return not self.contradicts(step) and max(sizes.values()) <= ROUNDING
        plain = {sign for sign in self.signs if sizes.get(sign, 1.0) > PLAIN}
        return not self.contradicts(step) and all(SUPPORT[name] & plain for name in step.broken)

    def contradicts(self, step: Step) -> str:
        """Why the label cannot be right, in words; empty where it can."""
        if step.label == BLIND:
            return ""
        if step.label == MEETS:
            return "" if self.signs else "labelled as one whose samples meet, and the numbers show nothing"
        if step.label == RIGHT:
            return f"labelled right, and the numbers show: {', '.join(sorted(self.signs))}" if self.signs else ""
        without = [name for name in step.broken if not SUPPORT[name] & self.signs]
        if without or not step.broken:
            return f"labelled {step.words}, and no number shows {', '.join(without) or 'what'}; seen: {self.signs}"
        return ""


class Widened(TorchFunctionMode):
    """Tensors below fp32 have another dtype. A cast stays a copy, as the one to fewer bits is."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        wide = [self.dtype if isinstance(a, torch.dtype) and a in NARROW else a for a in args]
        named = {k: self.dtype if isinstance(a, torch.dtype) and a in NARROW else a for k, a in (kwargs or {}).items()}
        if func in (Tensor.bfloat16, Tensor.half):
            return args[0].to(self.dtype, copy=True)
        if func is Tensor.to:
            named["copy"] = True
        if func in (Tensor.register_hook, Tensor.register_post_accumulate_grad_hook):
            wide[1] = self._inside(wide[1])
        return func(*wide, **named)

    def _inside(self, hook: Any) -> Any:
        """A hook that a backward pass calls, where no mode is."""

        def inside(given: Tensor) -> Any:
            with self:
                return hook(given)

        return inside


def observe(train: Train, run: Run, by: int = 1, **given: Any) -> Seen:
    """Call a step with a probe, which is `given` how to listen. The rates make up for gradients that are `by` times.

    In float64 a quotient of two counts is one too: torch makes it in its default dtype.
    """
    seed(run.seed)
    probe = Probe(**given)
    before = register_optimizer_step_pre_hook(probe.before)
    after = register_optimizer_step_post_hook(probe.after)
    printed = io.StringIO()
    Listening.probe = probe
    try:
        wide = torch.float64 if run.dtype is torch.float64 else torch.get_default_dtype()
        with warnings.catch_warnings(), contextlib.redirect_stdout(printed), default_dtype(wide):
            warnings.simplefilter("ignore")
            returned = train(run)
    finally:
        Listening.probe = None
        before.remove()
        after.remove()
    losses = numbers_of(returned) or numbers_of(printed.getvalue())
    for one in probe.handed if by > 1 else ():
        one.gradients = [None if g is None else g / by for g in one.gradients]
        one.rates = [rate * by for rate in one.rates]
    return Seen(probe.handed, probe.weights(), probe.dtypes, losses)


def numbers_of(returned: Any) -> list[float]:
    """Every number in what a step returned or printed, in order."""
    if isinstance(returned, bool) or returned is None:
        return []
    if isinstance(returned, str):
        return [float(text) for text in NUMBER.findall(returned)]
    if isinstance(returned, Tensor | np.ndarray):
        return [float(x) for x in torch.as_tensor(returned).detach().double().flatten()]
    if isinstance(returned, int | float | np.number):
        return [float(returned)]
    if dataclasses.is_dataclass(returned) and not isinstance(returned, type):
        return numbers_of([getattr(returned, f.name) for f in dataclasses.fields(returned)])
    parts = returned.values() if isinstance(returned, Mapping) else returned
    return [x for part in parts for x in numbers_of(part)]


def apart(ours: list[Any], theirs: list[Any]) -> float:
    """The largest difference of two lists of tensors, relative to the largest number of the second list's tensor."""
    if len(ours) != len(theirs):
        return float("inf")
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None or b is not None]
    largest = max((float(b.abs().max()) for _, b in pairs if b is not None and b.numel()), default=0.0)
    worst = 0.0
    for a, b in pairs:
        a, b = _filled(a, b)
        if a.shape != b.shape:
            return float("inf")
        if not a.numel():
            continue
        scale = max(float(b.abs().max()), 1e-3 * largest, 1e-12)
        size = float((a - b).abs().max()) / scale
        worst = max(worst, size if size == size else float("inf"))
    return worst


def _filled(a: Tensor | None, b: Tensor | None) -> tuple[Tensor, Tensor]:
    """No gradient is a gradient of zeros."""
    if a is None or b is None:
        other = a if b is None else b
        assert other is not None
        zeros = torch.zeros_like(other, dtype=torch.float64)
        return (zeros, other.double()) if a is None else (other.double(), zeros)
    return a.double(), b.double()


def gradients_apart(ours: Seen, theirs: Seen) -> float:
    """Over all optimizer steps."""
    pairs = zip(ours.handed, theirs.handed, strict=False)
    return max((apart(a.gradients, b.gradients) for a, b in pairs), default=0.0)


def weights_apart(ours: Seen, theirs: Seen) -> float:
    """Over the weights before each optimizer step and at the end."""
    pairs = [(a.weights, b.weights) for a, b in zip(ours.handed, theirs.handed, strict=False)]
    return max((apart(a, b) for a, b in [*pairs, (ours.weights, theirs.weights)]), default=0.0)


def samples_differ(ours: Seen, theirs: Seen) -> bool:
    """Whether some window trains on other samples, in whatever order."""
    for a, b in zip(ours.handed, theirs.handed, strict=False):
        if (not a.samples) != (not b.samples):
            return True
        if a.samples and apart([in_order(a.samples)], [in_order(b.samples)]) > 1e-9:
            return True
    return False


def in_order(samples: list[Tensor]) -> Tensor:
    """Samples as rows, sorted."""
    if len({s.shape[1] for s in samples}) > 1:
        return torch.cat([s.flatten().sort().values for s in samples])
    rows = torch.cat(samples)
    return rows[np.lexsort(rows.numpy().T)]


def weigh(step: Step) -> Findings:
    """Everything that the numbers say of a step."""
    found, double = Findings(), replace(step.run, dtype=torch.float64)
    narrow = bool(NARROW & observe(step.function, double).dtypes)
    found.signs |= {"narrow"} if narrow else set()
    with Widened(torch.float64) if narrow else contextlib.nullcontext():
        _weighed(found, step, double)
    with Widened(step.run.dtype) if narrow else contextlib.nullcontext():
        by = step.accum_steps if step.by_rate else 1
        found.own_dtype = gradients_apart(observe(step.function, step.run, by), observe(step.reference, step.run))
    if found.own_dtype > max(step.rounding, step.tolerance):
        found.signs.add("gradient")
    return found


def _weighed(found: Findings, step: Step, double: Run) -> None:
    """What the numbers say in float64."""
    by = step.accum_steps if step.by_rate else 1
    for at, magnitude, still in itertools.product(step.seeds, step.magnitudes, (True, False)):
        run, how = replace(double, seed=at), {"still": still, "magnitude": magnitude}
        ours, full = observe(step.function, run, by, **how), observe(step.function, run.full_batch(), **how)
        reference = observe(step.reference, run, **how)
        found.finite &= ours.finite and full.finite and reference.finite
        for other in (full, reference):
            _compared(found, step, ours, other, still)
        if step.reports is not None and still:
            wanted = step.reports(reference.losses)
            found.loss = max(found.loss, _losses(ours.losses, wanted), _losses(full.losses, wanted))
    if found.loss > step.tolerance:
        found.signs.add("loss")
    if not found.signs & {"steps", "samples"}:
        _stale(found, step, double)


def _compared(found: Findings, step: Step, ours: Seen, other: Seen, still: bool) -> None:
    if len(ours.handed) != len(other.handed):
        found.signs.add("steps")
        found.gradient = float("inf")
        return
    if samples_differ(ours, other):
        found.signs.add("samples")
    rates = ([torch.tensor(h.rates) for h in side.handed] for side in (ours, other))
    if apart(*rates) > step.tolerance:
        found.signs.add("rates")
    gradient = gradients_apart(ours, other)
    found.gradient = max(found.gradient, gradient)
    if gradient > step.tolerance:
        found.signs.add("gradient")
    if not still:
        weights = weights_apart(ours, other)
        found.weights = max(found.weights, weights)
        if weights > step.tolerance and "gradient" not in found.signs:
            found.signs.add("weights")


def _losses(ours: list[float], wanted: list[float]) -> float:
    return apart([torch.tensor(ours)], [torch.tensor(wanted)]) if ours or wanted else 0.0


def _stale(found: Findings, step: Step, run: Run) -> None:
    """With still weights, other samples in the first window change no gradient that they leave in the reference."""
    ours, theirs = (_changes(train, run)[1:] for train in (step.function, step.reference))
    found.stale = max((a for a, b in zip(ours, theirs, strict=True) if b <= step.tolerance), default=0.0)
    if found.stale > step.tolerance:
        found.signs.add("stale")


def _changes(train: Train, run: Run) -> list[float]:
    """How much each step's gradients change with the samples of the first window."""
    one, two = (observe(train, run, still=True, changed=changed) for changed in (False, True))
    return [apart(b.gradients, a.gradients) for a, b in zip(one.handed, two.handed, strict=False)]
