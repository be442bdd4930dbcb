"""The loops of this folder: what each needs, and how closely accumulation and the full batch agree in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Loop:
    """A file of this folder.

    `package` must be importable, `accum_steps` is its usual N, `ranks` the processes that call it together, `tolerance`
    the largest difference of gradients over their largest element, `tail` whether it trains on a short last window.
    """

    name: str
    package: str = "torch"
    accum_steps: int = 4
    ranks: int = 1
    tolerance: float = 1e-5
    tail: bool = True
    control: bool = False

    @property
    def path(self) -> Path:
        """The file."""
        return FOLDER / f"{self.name}.py"

    @property
    def available(self) -> bool:
        """Whether its package is installed."""
        return find_spec(self.package) is not None


_ROWS = (
    Loop("plain"),
    Loop("plain_mlp"),
    Loop("plain_attention"),
    Loop("plain_amp", tolerance=2e-2),
    Loop("plain_div_once"),
    Loop("plain_token_sum"),
    Loop("plain_checkpoint"),
    Loop("plain_master", tolerance=5e-2),
    Loop("plain_closure"),
    Loop("plain_func"),
    Loop("plain_ema"),
    Loop("plain_third", accum_steps=3),
    Loop("accelerate_loop", package="accelerate"),
    Loop("trainer_loop", package="transformers"),
    Loop("trainer_llama", package="transformers"),
    Loop("lightning_auto", package="lightning"),
    Loop("lightning_manual", package="lightning"),
    Loop("ddp_loop", ranks=2),
    Loop("control_micro_step", control=True),
    Loop("control_accelerate_no_op", package="accelerate", tail=False, control=True),
    Loop("control_ddp_backward", ranks=2, control=True),
    Loop("control_lr_scaled", control=True),
)

LOOPS: Mapping[str, Loop] = {loop.name: loop for loop in _ROWS}

UNPROVED: Mapping[tuple[str, str], str] = {}
"""Right loops that are not proved: the loop, its configuration as docs/mutants.md names it, and the reason."""
