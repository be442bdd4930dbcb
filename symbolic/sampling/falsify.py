"""The falsification tests FALSIFY-GT-101 to -106: deterministic accumulation on a real training loop.

Each is a property of `gradproof.execution.methods.property`; a case is a whole run of a few windows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor, nn

from gradproof.harness import Bound, Case, Cell, Observed, Place, Refutation, accumulation_bound, scaling_bound, tell
from models.sampling.torch_training import VALIDATION_SEED, Job, Report, Setup
from models.sampling.transformer import CharTransformer, Shape, encoded, mean_loss, text_of

# -- The bench of FALSIFY-GT-101 to -106: a small training run under observation.
#
# What is judged was seen from outside: the inputs of the model by a hook on its forward, the losses at the criterion,
# the steps at the optimizer's. The expected samples are drawn here, by a generator of the bench's own.

SENTENCES = 40
NET = "char"
TINY = {"width": 8, "layers": 1, "heads": 2, "block": 8}
DROPOUT = 0.25


@dataclass
class Seen:
    """A run as it was observed: inputs (samples, block) on the CPU in order, by window; losses as the criterion saw."""

    setup: Setup
    report: Report = field(default_factory=Report)
    trained: list[list[Tensor]] = field(default_factory=list)
    validated: list[Tensor] = field(default_factory=list)
    losses: list[list[float]] = field(default_factory=list)
    open_inputs: list[Tensor] = field(default_factory=list)
    open_losses: list[float] = field(default_factory=list)

    def close(self) -> None:
        """The optimizer has stepped: a window ends."""
        self.trained.append(self.open_inputs)
        self.losses.append(self.open_losses)
        self.open_inputs, self.open_losses = [], []


@lru_cache(maxsize=1)
def data() -> tuple[Tensor, Tensor, int]:
    """Text, held-out text, and the number of characters."""
    text, characters = encoded(text_of(SENTENCES))
    cut = len(text) * 3 // 4
    return text[:cut], text[cut:], characters


def setup_of(case: Case, place: Place, dropout: float = DROPOUT) -> Setup:
    """The run of a case: `size` samples a micro-batch, `windows` steps, two validation batches and `tail` samples."""
    shape = Shape(data()[2], dropout=dropout, **TINY)
    validation = 2 * case.size * case.n + case.tail
    return Setup(
        case.size, case.n, case.windows, shape, validation, 100 + case.seed, 200 + case.seed, device=place.device
    )


def observe(subject: Any, setup: Setup, arrival: int = 0) -> Seen:
    """Run the subject (a class). Raises whatever it raises."""
    seen = Seen(setup)
    text, held_out, _ = data()

    def build(shape: Shape) -> nn.Module:
        model = CharTransformer(shape)
        model.register_forward_pre_hook(lambda module, inputs: note(module, inputs[0]))
        return model

    def note(module: nn.Module, inputs: Tensor) -> None:
        (seen.open_inputs if module.training else seen.validated).append(inputs.detach().cpu().clone())
        if not module.training:
            tell("validation batch", tuple(inputs.shape), phase=True)

    def criterion(logits: Tensor, targets: Tensor) -> Tensor:
        loss = mean_loss(logits, targets)
        if loss.requires_grad:
            seen.open_losses.append(float(loss.detach()))
        return loss

    seen.report = subject().run(Job(setup, text, held_out, build, criterion, seen.close, arrival))
    return seen


def due(setup: Setup) -> list[list[Tensor]]:
    """The inputs of each window's micro-batches: one draw without replacement a window, split in order."""
    text, _, _ = data()
    generator, block = torch.Generator().manual_seed(setup.data_seed), setup.shape.block
    windows = []
    for _ in range(setup.steps):
        starts = torch.randperm(len(text) - block, generator=generator)[: setup.effective]
        windows.append([blocks(text, part, block) for part in torch.split(starts, setup.size)])
    return windows


def due_validation(setup: Setup) -> list[Tensor]:
    """The inputs of the validation batches: one draw, in batches of the effective size."""
    _, held_out, _ = data()
    generator, block = torch.Generator().manual_seed(setup.data_seed + VALIDATION_SEED), setup.shape.block
    starts = torch.randperm(len(held_out) - block, generator=generator)[: setup.validation]
    return [blocks(held_out, part, block) for part in torch.split(starts, setup.effective)]


def blocks(text: Tensor, starts: Tensor, block: int) -> Tensor:
    """(samples, block): the characters from each start on."""
    return text[starts[:, None] + torch.arange(block)]


def alike(clause: str, what: str, got: list[Tensor], want: list[Tensor]) -> None:
    """Refutes unless the two lists hold equal tensors."""
    if len(got) != len(want):
        raise Refutation(clause, f"{what}: {len(got)} parts where {len(want)} are due", {"parts": len(got)})
    for i, (x, y) in enumerate(zip(got, want, strict=True)):
        if x.shape != y.shape or not torch.equal(x, y):
            detail = f"{what}, part {i}: {tuple(x.shape)} other samples than the {tuple(y.shape)} that are due"
            raise Refutation(clause, detail, {"part": i, "shape": list(x.shape)})


def ran(clause: str, seen: Seen) -> None:
    """Refutes a run that did not step once a window, or logged another number of losses."""
    for name, count in (("steps", len(seen.trained)), ("logged losses", len(seen.report.logged))):
        if count != seen.setup.steps:
            raise Refutation(clause, f"{count} {name} in {seen.setup.steps} windows", {name: count})


def other(setup: Setup, **changed: Any) -> Setup:
    """The same run with other seeds of the model, or another dropout."""
    dropout = changed.pop("dropout", setup.shape.dropout)
    return replace(setup, shape=replace(setup.shape, dropout=dropout), **changed)


# -- The harnesses

KERNELS = Bound(
    "kernel_units",
    256,
    "2^-16 of the loss: the matrix products of a batch and of its parts may be summed in other orders, some hundred "
    "roundings of 2^-24 each; any wrong share differs by a factor of 2 or more",
)
PARITY = Bound(
    "parity_per_million",
    100,
    "1e-4 nats: rounding moves a loss by some 1e-6 in eight windows (7e-7 measured over 72 runs), and samples that are "
    "not the same by more than 4e-2 in each of them",
)
WINDOWS = 8


class Training:
    """Base of the properties: one net, every N of the claim, three windows."""

    clause = ""
    reached: Sequence[str] = ()

    def covers(self, place: Place) -> Sequence[str]:
        """Names of what the correct subject must reach."""
        return self.reached

    def absent(self, place: Place) -> Mapping[str, str]:
        """Nothing: one optimizer, one form."""
        return {}

    def cells(self, place: Place, params: Mapping[str, Any]) -> Sequence[Cell]:
        """The grid of the claim's `n`. Raises ValueError for another net."""
        if list(params["nets"]) != [NET]:
            raise ValueError(f"one net is known here: {NET}")
        return [Cell(NET, int(n)) for n in params["n"]]

    def probe(self, cell: Cell, place: Place) -> None:
        """Nothing is missing on any device."""

    def examples(self, cell: Cell, place: Place, turn: int, turns: int) -> Sequence[Case]:
        """One run of three windows, whose validation data end in a short batch where they can."""
        size = 8 // cell.n
        return [Case(cell.net, cell.n, seed=turn, size=size, windows=3, tail=3)]

    def strategy(self, cell: Cell, place: Place) -> SearchStrategy[Case]:
        """Other seeds, sizes, numbers of windows and of validation samples."""
        return st.builds(
            Case, net=st.just(cell.net), n=st.just(cell.n), seed=st.integers(0, 63), size=st.integers(1, 3),
            windows=st.integers(2, 3), tail=st.integers(1, 3),
        )  # fmt: skip

    def bounds(self, place: Place) -> Sequence[Bound]:
        """None of its own, unless the property says so."""
        return ()

    def outside(self, subject: Any, place: Place, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Nothing."""
        return []

    def seen(self, case: Case, run: Seen, **more: bool) -> Observed:
        """A passed case, with what it reached."""
        found = {"N > 1": case.n > 1, **more}
        return Observed(covers={name for name, yes in found.items() if yes})


class Partition(Training):
    """FALSIFY-GT-101: the inputs of a window are its effective batch, split in order."""

    clause = "GA-DATA-001"
    reached = ("N > 1", "windows differ")

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        """Inputs against the bench's own draws."""
        setup = setup_of(case, place)
        run, want = observe(subject, setup), due(setup)
        ran(self.clause, run)
        for step, (got, parts) in enumerate(zip(run.trained, want, strict=True)):
            alike(self.clause, f"window {step}", got, parts)
        return self.seen(case, run, **{"windows differ": not torch.equal(run.trained[0][0], run.trained[1][0])})


class ApartFromModel(Training):
    """FALSIFY-GT-102: neither the model's seed nor its dropout changes a sample."""

    clause = "GA-RNG-001"
    reached = ("N > 1", "the model differs", "dropout matters")

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        """Three runs with one data seed."""
        setup = setup_of(case, place)
        run = observe(subject, setup)
        ran(self.clause, run)
        found = {}
        for name, changed in (("the model differs", {"seed": setup.seed + 1}), ("dropout matters", {"dropout": 0.0})):
            another = observe(subject, other(setup, **changed))
            ran(self.clause, another)
            for step, (got, want) in enumerate(zip(another.trained, run.trained, strict=True)):
                alike(self.clause, f"{changed}, window {step}", got, want)
            alike(self.clause, f"{changed}, validation", another.validated, run.validated)
            found[name] = another.losses != run.losses
        if not run.validated:
            raise Refutation(self.clause, "nothing is validated", {})
        return self.seen(case, run, **found)


class ValidationSize(Training):
    """FALSIFY-GT-103: validation of untrained weights is the same at N and at 1, bit for bit."""

    clause = "GA-VAL-001"
    reached = ("N > 1", "a short last batch")

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        """Inputs batch by batch, and the loss."""
        setup = setup_of(replace(case, windows=0), place)
        run, whole = observe(subject, setup), observe(subject, replace(setup, size=setup.effective, n=1))
        for name, each in ((f"N={case.n}", run), ("N=1", whole)):
            alike(self.clause, f"{name}: validation", each.validated, due_validation(setup))
            if each.report.validation is None or not math.isfinite(each.report.validation):
                raise Refutation(self.clause, f"{name}: no validation loss", {"loss": each.report.validation})
        if run.report.validation != whole.report.validation:
            values = {"at N": run.report.validation, "at 1": whole.report.validation}
            raise Refutation(self.clause, f"validation loss at N={case.n} is not that at N=1", values)
        sizes = {len(batch) for batch in run.validated}
        return self.seen(case, run, **{"a short last batch": len(sizes) == 2})


class LoggedMean(Training):
    """FALSIFY-GT-104: the logged loss is the mean of the micro-batch losses, and what one micro-batch would log."""

    clause = "GA-LOG-001"
    reached = ("N > 1", "losses differ")

    def bounds(self, place: Place) -> Sequence[Bound]:
        return (KERNELS,)

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        """Each window against the exact mean; the first one against N = 1, without dropout."""
        setup = setup_of(case, place, dropout=0.0)
        run, whole = observe(subject, setup), observe(subject, replace(setup, size=setup.effective, n=1))
        for each in (run, whole):
            ran(self.clause, each)
            for step, (logged, losses) in enumerate(zip(each.report.logged, each.losses, strict=True)):
                self.judge(each.setup.n, step, logged, losses)
        one, other_ = run.report.logged[0], whole.report.logged[0]
        if abs(one - other_) > KERNELS.value * 2.0**-24 * abs(other_):
            values = {"at N": one, "at 1": other_}
            raise Refutation(self.clause, f"the first window logs {one!r} at N={case.n} and {other_!r} at N=1", values)
        return self.seen(case, run, **{"losses differ": len(set(run.losses[0])) > 1})

    def judge(self, n: int, step: int, logged: float, losses: Sequence[float]) -> None:
        """Refutes a logged loss farther from the exact mean than fp32 allows, or of too few micro-batches."""
        if len(losses) != n:
            raise Refutation(self.clause, f"window {step}: {len(losses)} losses at N={n}", {"losses": len(losses)})
        exactly = sum(map(Fraction, losses), Fraction(0)) / n
        largest = Fraction(2 ** max(0, math.frexp(max(map(abs, losses)))[1]))
        room = accumulation_bound("fp32", n, largest) + scaling_bound("fp32", n, largest)
        if not abs(Fraction(logged) - exactly) <= room:
            detail = f"window {step}: logged {logged!r}, mean of its {n} losses {float(exactly)!r}"
            raise Refutation(self.clause, detail, {"window": step, "logged": logged, "mean": float(exactly)})


class Repeats(Training):
    """FALSIFY-GT-105: a second run agrees in every bit, whatever state the first one left behind."""

    clause = "GA-DET-001"
    reached = ("N > 1", "the weights moved")

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        """Two runs with one seed, the second with the global generator elsewhere and another order of arrival."""
        setup = setup_of(case, place)
        run = observe(subject, setup)
        ran(self.clause, run)
        torch.manual_seed(9000 + case.seed)
        again = observe(subject, setup, arrival=1)
        ran(self.clause, again)
        for step, (got, want) in enumerate(zip(again.trained, run.trained, strict=True)):
            alike(self.clause, f"second run, window {step}", got, want)
        alike(self.clause, "second run, validation", again.validated, run.validated)
        alike(self.clause, "second run, weights", again.report.weights, run.report.weights)
        for name in ("logged", "validation"):
            one, two = getattr(run.report, name), getattr(again.report, name)
            if one != two:
                raise Refutation(self.clause, f"second run: {name} {two!r}, first run: {one!r}", {"name": name})
        if again.losses != run.losses:
            raise Refutation(self.clause, "second run: other losses of the micro-batches", {"name": "losses"})
        moved = observe(subject, replace(setup, steps=0)).report.weights
        pairs = zip(run.report.weights, moved, strict=True)
        return self.seen(case, run, **{"the weights moved": any(not torch.equal(a, b) for a, b in pairs)})


class Parity(Training):
    """FALSIFY-GT-106: N micro-batches and one train to the same losses, where the samples are the same."""

    clause = "GA-DATA-001"
    reached = ("N > 1", "the loss fell")

    def bounds(self, place: Place) -> Sequence[Bound]:
        return (PARITY,)

    def examples(self, cell: Cell, place: Place, turn: int, turns: int) -> Sequence[Case]:
        return [replace(case, windows=WINDOWS) for case in super().examples(cell, place, turn, turns)]

    def strategy(self, cell: Cell, place: Place) -> SearchStrategy[Case]:
        """Other seeds."""
        return st.integers(0, 63).map(lambda seed: replace(self.examples(cell, place, 0, 1)[0], seed=seed))

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        """Every logged loss and the validation loss, without dropout."""
        setup = setup_of(case, place, dropout=0.0)
        run, whole = observe(subject, setup), observe(subject, replace(setup, size=setup.effective, n=1))
        for each in (run, whole):
            ran(self.clause, each)
        trained = max(abs(a - b) for a, b in zip(run.report.logged, whole.report.logged, strict=True))
        validated = abs((run.report.validation or math.nan) - (whole.report.validation or math.nan))
        seen = self.seen(case, run, **{"the loss fell": run.report.logged[-1] < run.report.logged[0]})
        for name, apart in (("train", trained), ("validation", validated)):
            if not apart <= PARITY.value / 10**6:
                detail = f"{name} loss at N={case.n} is {apart:.3g} away from that at N=1 in {case.windows} windows"
                raise Refutation(self.clause, detail, {"loss": name, "apart": apart})
            seen.rows.append(parity_row(case, place, name, apart))
        return seen


def parity_row(case: Case, place: Place, name: str, apart: float) -> dict[str, Any]:
    """A measured difference of losses, for the report; no bound is proved for it."""
    note = f"largest difference of the {name} loss from N=1 in {case.windows} windows of AdamW; no proven bound"
    head = {"column": "end_to_end", "device": place.device, "dtype": place.dtype, "net": case.net, "n": case.n}
    absent = dict.fromkeys(("bound", "ratio", "tolerance", "relative"))
    return {**head, **absent, "metric": "linf", "measured": apart, "note": note}


micro_batches_partition = Partition()
data_apart_from_model = ApartFromModel()
validation_of_one_size = ValidationSize()
logged_is_mean = LoggedMean()
runs_agree = Repeats()
trains_alike = Parity()
