"""What a step proof records: its configurations, and the interface of its harness.

A harness turns a training step and a configuration into a function of `Run`, which is what the verifier records. It
is told neither the subject's name nor the obligations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gradproof.core import Check

if TYPE_CHECKING:
    from gradproof.shadow.run import Run

BOUNDS = frozenset({"micro_batches", "windows"})
OWN = "own"
"""The optimizer of a setting whose subject makes its own: model, data, optimizer, precision and weights."""

USERS, ANYWHERE = "any line of the user's", "any line, or none"
"""What `Harness.blamed` may say of a mutant that is made around a function, instead of naming one."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One configuration: `windows` of `n` micro-batches of `micro_batch` samples, then one of `tail` micro-batches."""

    net: str
    n: int
    windows: int
    tail: int = 0
    micro_batch: int = 1
    optimizer: str = "sgd"
    form: str = "single"
    mode: str = "fp32"
    weighting: str = "equal"
    max_norm: float | None = None
    loss_scale: float | None = None

    def __str__(self) -> str:
        if self.optimizer == OWN:
            return f"N={self.n} windows={self.windows} tail={self.tail}, micro-batches of {self.micro_batch}"
        extras = [f"clip {self.max_norm:g}"] if self.max_norm is not None else []
        extras += [f"loss scale {self.loss_scale:g}"] if self.loss_scale is not None else []
        shape = f"{self.net} N={self.n} windows={self.windows} tail={self.tail}"
        return ", ".join([shape, f"{self.optimizer} {self.form}", self.mode, f"weights by {self.weighting}", *extras])

    def to_json(self) -> dict[str, Any]:
        """Plain JSON form; `Setting(**data)` reads it back."""
        return asdict(self)

    @property
    def due(self) -> int:
        """Optimizer steps that are due."""
        return self.windows + (self.tail > 0)


class Harness(Protocol):
    """A harness of step proofs.

    `blamed` names, for mutants that leave something out, the function (`module:attribute`) in which the line to blame
    may lie, or USERS or ANYWHERE; every other mutant must be blamed inside its own class.
    """

    blamed: Mapping[str, str]

    def step(self, subject: Any, setting: Setting) -> Callable[[Run], Any]:
        """The function that trains the subject in the configuration; what it returns are the window losses."""
        ...

    def covers(self, settings: Sequence[Setting]) -> Sequence[str]:
        """Names of what the configurations must reach, beyond that each was compared."""
        ...

    def reached(self, setting: Setting) -> Iterable[str]:
        """Which of the covers this configuration reaches."""
        ...


def settings_of(check: Check) -> list[Setting]:
    """The configurations of a claim, its first net's first. Raises KeyError when a bound or a param is not stated.

    Every net comes with every n; optimizers and modes take turns, and all of them are used.
    """
    params = check.params
    cells = [(str(net), int(n)) for net in params["nets"] for n in params["n"]]
    names, modes = list(params.get("optimizers", ["sgd"])), list(params.get("modes", ["fp32"]))
    made = []
    for i in range(max(len(cells), len(names), len(modes)) if cells else 0):
        (net, n), (optimizer, _, form) = cells[i % len(cells)], names[i % len(names)].partition(" ")
        tail = int(params.get("tail", 0))
        setting = Setting(
            net, n, check.bound("windows"), tail if tail < n else 0, int(params.get("micro_batch", 1)), optimizer,
            form or "single", modes[i % len(modes)], params.get("weighting", "equal"),
            _number(params.get("max_norm")), _number(params.get("loss_scale")),
        )  # fmt: skip
        made.append(setting)
    return sorted(made, key=lambda s: list(params["nets"]).index(s.net))


def _number(text: Any) -> float | None:
    return None if text is None else float(text)


def idle_bounds(check: Check) -> list[str]:
    """Bounds that are stated and that the configurations do not reach or read."""
    found = [b.name for b in check.bounds if b.name not in BOUNDS]
    sizes = [int(n) for n in check.params.get("n", ())]
    if sizes and max(sizes) != check.bound("micro_batches"):
        found.append("micro_batches")
    return found
