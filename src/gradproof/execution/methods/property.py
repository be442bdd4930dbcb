"""What a falsification property is: cells that must run, cases that are drawn in a cell, and a test of one case.

A property is an object of the workspace. `cells` is the grid of net and N that the claim lists; the runner runs
each, so that nothing is left to chance. `examples` are the cases of a cell that run always, `strategy` draws more.
The optimizers and their forms are spread over the grid: a cell gets its `turn` among the `turns` cells of the
walk, and the property owes every fixed case in every optimizer and form once a walk.
`test` runs a subject on one case and raises `Refutation` when the clause is broken; anything else that it raises is
a crash and counts neither as a proof nor as a kill.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from gradproof.core.check import Bound

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

# -- What a PyTorch training step is handed, and what it reports: the interface of the subjects of torch runs.
MODES = ("fp32", "fp16", "bf16", "fp16_params")
AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16}
FORMS = ("single", "foreach", "fused")
OPTIMIZERS = ("sgd", "adamw")
PAIRS = tuple((OPTIMIZERS[i % 2], FORMS[i % 3]) for i in range(6))


@dataclass(frozen=True, slots=True)
class StepConfig:
    """How the step is set up. `loss_scale` None means no GradScaler; `weighting` is `equal` or `count`."""

    n: int
    mode: str = "fp32"
    optimizer: str = "sgd"
    form: str = "single"
    weighting: str = "equal"
    max_norm: float | None = None
    loss_scale: float | None = None
    learning_rate: float = 0.0
    device: str = "cpu"


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One micro-batch: `count` is its number of samples, or of tokens that carry loss."""

    index: int
    inputs: Tensor
    targets: Tensor
    count: int


@dataclass
class Report:
    """What the subject says of itself: one loss a window. Everything else is observed."""

    losses: list[float] = field(default_factory=list)
    open_loss: float = 0.0

    def close(self) -> None:
        """End the window."""
        self.losses.append(self.open_loss)
        self.open_loss = 0.0


class Criterion(Protocol):
    """Loss of a micro-batch: the mean over its `count`, or with reduction `sum` the sum."""

    def __call__(self, output: Tensor, batch: Batch, reduction: str = "mean") -> Tensor: ...


@dataclass
class Job:
    """One training run. `masters` are the tensors that the optimizer updates, one a leaf and in its order."""

    config: StepConfig
    model: nn.Module
    leaves: list[nn.Parameter]
    masters: list[nn.Parameter]
    optimizer: torch.optim.Optimizer
    scheduler: Any
    scaler: torch.amp.GradScaler | None
    batches: Sequence[Batch]
    criterion: Criterion

    def autocast(self) -> AbstractContextManager[Any]:
        """The forward's autocast region; disabled in the modes without one."""
        dtype = AUTOCAST.get(self.config.mode)
        return torch.autocast(self.config.device, dtype=dtype, enabled=dtype is not None)


def make_optimizer(config: StepConfig, params: list[nn.Parameter]) -> torch.optim.Optimizer:
    """SGD or AdamW in its single-tensor, foreach or fused form. Raises ValueError for another name."""
    if config.form not in FORMS:
        raise ValueError(f"no optimizer form {config.form!r}; known: {', '.join(FORMS)}")
    foreach, fused = config.form == "foreach", config.form == "fused"
    if config.optimizer == "sgd":
        return torch.optim.SGD(params, lr=config.learning_rate, foreach=foreach, fused=fused)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(params, lr=config.learning_rate, foreach=foreach, fused=fused)
    raise ValueError(f"no optimizer {config.optimizer!r}; known: {', '.join(OPTIMIZERS)}")


def schedule_factor(steps: int) -> float:
    """Factor on the learning rate after `steps` performed steps: another one after each: a wrong count shows."""
    return 1 / (1 + steps)


def place(model: nn.Module, config: StepConfig) -> tuple[nn.Module, list[nn.Parameter], list[nn.Parameter]]:
    """The model on its device and in its dtype, its leaves, and the weights that the optimizer is to hold."""
    half = config.mode == "fp16_params"
    model = model.to(device=config.device, dtype=torch.float16 if half else torch.float32)
    leaves = [p for p in model.parameters() if p.requires_grad]
    masters = [nn.Parameter(p.detach().float()) for p in leaves] if half else leaves
    return model, leaves, masters


@dataclass(frozen=True)
class Maker:
    """Builds a job around a model; the criterion comes from the observer."""

    criterion: Criterion

    def make(self, model: nn.Module, config: StepConfig, batches: Sequence[Batch]) -> Job:
        """A job over `batches`; the model is moved and cast in place."""
        model, leaves, masters = place(model, config)
        optimizer = make_optimizer(config, masters)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule_factor)
        scaler = None
        if config.loss_scale is not None:
            scaler = torch.amp.GradScaler(config.device, init_scale=config.loss_scale, growth_interval=1 << 30)
        return Job(config, model, leaves, masters, optimizer, scheduler, scaler, batches, self.criterion)


DTYPES = ("fp32", "fp32-tf32", "bf16", "fp16")


class Refutation(AssertionError):
    """The clause is broken on this case: the numbers, and what they mean."""

    def __init__(self, clause: str, detail: str, values: Mapping[str, object] | None = None) -> None:
        self.clause, self.detail = clause, detail
        self.values = {k: v if isinstance(v, str) else repr(v) for k, v in (values or {}).items()}
        super().__init__(f"{clause}: {detail}")


class NoKernel(Exception):
    """A kernel that the cell needs does not exist on this device in this dtype."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a check runs: device, dtype as the contract names it, tolerances by clause.

    Only a tolerance whose clause is in `required` is judged; the others are shown beside what was measured.
    """

    device: str
    dtype: str
    tolerances: Mapping[str, float] = field(default_factory=dict)
    required: frozenset[str] = frozenset()

    def exceeded(self, clause: str, error: float) -> bool:
        """Whether `error` is above the clause's tolerance, where that is required."""
        return clause in self.required and not error <= self.tolerances[clause]

    def __str__(self) -> str:
        return f"torch {self.device} {self.dtype}"


@dataclass(frozen=True, slots=True)
class Cell:
    """One entry of the grid."""

    net: str
    n: int

    def __str__(self) -> str:
        return f"{self.net}/N={self.n}"


@dataclass(frozen=True)
class Case:
    """One drawn run, plain enough to be stored and run again."""

    net: str
    n: int
    mode: str = "fp32"
    seed: int = 0
    optimizer: str = "sgd"
    form: str = "single"
    learning_rate: float = 0.0
    loss_scale: float | None = None
    windows: int = 1
    tail: int = 0
    size: int = 2
    ragged: bool = False
    magnitude: int = 0
    clip: float | None = None
    large: int | None = None
    overflow: int | None = None
    poison: float | None = None
    swap: int | None = None
    swapped: int = 0
    gradients: tuple[float, ...] = ()
    epochs: int = 1
    ranks: int = 1

    def to_json(self) -> str:
        """One line of JSON with the fields that differ from their defaults."""
        plain = asdict(Case(self.net, self.n))
        return json.dumps({k: v for k, v in asdict(self).items() if k in ("net", "n") or v != plain[k]})

    @classmethod
    def from_json(cls, text: str) -> Case:
        """Inverse of `to_json`. Raises TypeError or ValueError on a wrong shape."""
        data = json.loads(text)
        return cls(**{**data, "gradients": tuple(data.get("gradients", ()))})


@dataclass
class Observed:
    """What one passed case contributes: covers that it reached, rows measured on it, and whether it was judged.

    `notes` are what the judgement had to assume of the subject; they join the finding's assumptions.
    """

    covers: set[str] = field(default_factory=set)
    rows: list[dict[str, Any]] = field(default_factory=list)
    judged: bool = True
    notes: set[str] = field(default_factory=set)


class Property(Protocol):
    """A falsification property. `covers` must all be reached by the correct subject."""

    clause: str

    def covers(self, place: Place) -> Sequence[str]:
        """Names of the situations that the correct subject must reach."""
        ...

    def cells(self, place: Place, params: Mapping[str, Any]) -> Sequence[Cell]:
        """The grid that the claim lists."""
        ...

    def examples(self, cell: Cell, place: Place, turn: int, turns: int) -> Sequence[Case]:
        """Cases that run always in cell number `turn` of a walk over `turns` cells."""
        ...

    def strategy(self, cell: Cell, place: Place) -> SearchStrategy[Case]:
        """How further cases of a cell are drawn."""
        ...

    def absent(self, place: Place) -> Mapping[str, str]:
        """Optimizer forms that do not exist here, and why."""
        ...

    def probe(self, cell: Cell, place: Place) -> None:
        """Raises NoKernel where the cell cannot run here."""
        ...

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        """Run a subject on one case. Raises Refutation when the clause is broken."""
        ...

    def bounds(self, place: Place) -> Sequence[Bound]:
        """Thresholds of the property's own, each with its reason."""
        ...

    def outside(self, subject: Any, place: Place, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Rows of the nets that lie outside the assumptions."""
        ...
