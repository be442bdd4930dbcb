"""The loops of this folder as text: one head for all, and of each case what it does otherwise.

A case is a table in one of the `.toml` files, below its class. `right` or `wrong` is its label, in words. The other
keys fill a template: `setup`, `body`, `loss`, `passed` (after the backward pass), `before` and `after` the step, `step`
(all four), `end` of a turn; `loader` gives the batches in place of slices; `all` is a loop of another form.

The reference of a case is the same loop by the full batch. In a script that is N = 1 with N times as many rows; a
function is called with these numbers. Where the full batch has the bug as well, `twin` fills in what is right.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RIGHT, WRONG = "right", "wrong"
WAYS, SOURCES = "ways to divide", "where N comes from"
FUNCTIONS = "functions"
KINDS = ("watch", "check", FUNCTIONS, "attack", "losses", "forms", "ordinary")
SHAPES = ((4, 2, 3), (2, 2, 2), (2, 4, 2), (4, 4, 4))
"""N, rows and width of the losses: numbers that collide."""
PLAIN = {
    "sizes": [4, 2, 8, 5],
    "model": "nn.Sequential(nn.Linear(D, 8), nn.Tanh(), nn.Linear(8, 1))",
    "opt": "torch.optim.SGD(model.parameters(), lr=0.05)",
    "rows": "xb, yb = x[i * B:(i + 1) * B], y[i * B:(i + 1) * B]",
    "loss": "F.mse_loss(model(xb), yb) / N",
}
SLOTS = ("globals", "setup", "loader", "body", "passed", "before", "after", "step", "end", "all")
IMPORTS = """\
import math, os, torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
"""
SCRIPT = (
    IMPORTS
    + """\
torch.manual_seed(int(os.environ.get("SEED", 0)))
N, B, D, W = {sizes}
x = torch.randn(N * B * W, D)
y = torch.randn(N * B * W, 1)
model = {model}
opt = {opt}
"""
)
FUNCTION = (
    IMPORTS
    + """\
{globals}
def train(run):
    torch.manual_seed(run.seed)
    N, b, D = run.accum_steps, run.micro_batch_size, 8
    x = torch.randn(run.samples, D)
    y = torch.randn(run.samples, 1)
    model = {model}
    opt = {opt}
"""
)
AS_FUNCTION = (
    IMPORTS
    + """\
def train(run):
    torch.manual_seed(run.seed)
    N, B, D, W = run.accum_steps, run.micro_batch_size, {sizes[2]}, run.windows
    x = torch.randn(run.samples, D)
    y = torch.randn(run.samples, 1)
    model = {model}
    opt = {opt}
"""
)
FULL = "B, N = B * N, 1"
"""What makes the full batch of a script."""


@dataclass(frozen=True, slots=True)
class Case:
    """One loop: its kind, class and name, whether it is right, and the slots of its text."""

    kind: str
    group: str
    name: str
    label: str
    words: str
    slots: Mapping[str, Any] = field(default_factory=dict)
    twin: Mapping[str, Any] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        """Whether the loop is right."""
        return self.label == RIGHT

    @property
    def steps(self) -> int | None:
        """Micro-batches of a window, as they are given; None where the run shows them."""
        return int(self.slots["sizes"][0]) if self.slots["accum"] else None

    @property
    def function(self) -> bool:
        """Whether it is a function, for `check`."""
        return self.kind in ("check", FUNCTIONS) or bool(self.slots.get("function"))

    @property
    def text(self) -> str:
        """The loop."""
        return self._text(self.slots)

    @property
    def reference(self) -> str:
        """The right loop: a script by the full batch, a function as it is called."""
        slots = {**self.slots, **self.twin}
        if self.function or "text" in slots:
            return self._text(slots)
        return self._text({**slots, "setup": f"{slots['setup']}\n{FULL}".strip()})

    def _text(self, slots: Mapping[str, Any]) -> str:
        if "text" in slots:
            return str(slots["text"])
        function = self.function
        head = (FUNCTION if function else SCRIPT).format(**{**slots, "sizes": ", ".join(map(str, slots["sizes"]))})
        return head + indented("\n".join((slots["setup"], slots["all"] or loop(slots, function))), 4 * function)


def loop(slots: Mapping[str, Any], function: bool = False) -> str:
    """The usual loop over micro-batches, with what a case does otherwise."""
    turns = "run.micro_batches" if function else "N * W"
    head = f"for i in range({turns}):\n    {slots['rows'].replace('B', 'b' if function else 'B')}"
    if slots["loader"]:
        head = f"for i, (xb, yb) in enumerate(DataLoader({slots['loader']})):"
    step = slots["step"] or f"{slots['before']}\nopt.step()\n{slots['after']}\nopt.zero_grad()"
    back = f"({slots['loss']}).backward()" if slots["loss"] else ""
    turn = "\n".join((slots["body"], back, slots["passed"], "if (i + 1) % N == 0:", indented(step, 4), slots["end"]))
    return f"{head}\n{indented(turn, 4)}"


def indented(text: str, by: int) -> str:
    """The lines that are not blank, further right."""
    return "".join(f"{' ' * by}{line}\n" for line in text.splitlines() if line.strip())


def read(kind: str) -> dict[str, Any]:
    """A table of cases, by class."""
    return tomllib.loads((HERE / f"{kind}.toml").read_text(encoding="utf-8"))


def tabled(kind: str) -> Iterator[Case]:
    """The cases of `watch`, `check` and `attack`."""
    for group, cases in read(kind).items():
        for name, slots in cases.items():
            label = RIGHT if RIGHT in slots else WRONG
            yield Case(kind, group, name, label, slots.pop(label), filled(slots), slots.pop("twin", {}))


def filled(slots: Mapping[str, Any]) -> dict[str, Any]:
    """Every slot, the empty ones too."""
    return {**dict.fromkeys(SLOTS, ""), "accum": True, **PLAIN, **slots}


def functions() -> Iterator[Case]:
    """The scripts of which the full batch is right, as functions for `check`."""
    for case in tabled("watch"):
        if not case.twin and "text" not in case.slots:
            slots = case.slots
            body = indented("\n".join((slots["setup"], slots["all"] or loop(slots))), 4)
            own = {"text": AS_FUNCTION.format(**slots) + body, "accum": True, "sizes": slots["sizes"]}
            yield Case(FUNCTIONS, case.group, f"{case.name}_function", case.label, case.words, own)


def losses() -> Iterator[Case]:
    """Each loss in each shape; N, rows and width are a part of its name."""
    for (n, rows, width), (name, slots) in product(SHAPES, read("losses").items()):
        label = RIGHT if RIGHT in slots else WRONG
        numbers = {"{N}": str(n), "{invN}": str(1 / n), "{halfinv}": str(2 / n)}
        loss = slots[label]
        for word, digits in numbers.items():
            loss = loss.replace(word, digits)
        own = {
            "sizes": [n, rows, 5, 4],
            "model": f"nn.Sequential(nn.Linear(D, 7), nn.Tanh(), nn.Linear(7, {width}))",
            "setup": f"y = torch.randn(N * B * W, {width})",
            "loader": "TensorDataset(x, y), batch_size=B",
            "body": "p = model(xb)",
            "before": slots.get("before", ""),
        }
        words = f"N = {n}, {rows} rows, width {width}"
        yield Case("losses", words, f"{name}_{n}_{rows}_{width}", label, words, filled(own | {"loss": loss}),
                   slots.get("twin", {}))  # fmt: skip


FORM = """\
torch.manual_seed(int(os.environ.get("SEED", 0)))
x, y = torch.randn(60, 8), torch.randn(60, 1)
model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.05)
"""
TURNS = """
for i, (xb, yb) in enumerate(DataLoader(TensorDataset(x, y), batch_size=3)):
    loss = {own}
    ({loss}).backward()
    if (i + 1) % {n} == 0:
        {before}
        opt.step()
        opt.zero_grad()
"""
BY_TWELVE = TURNS.format(own="F.mse_loss(model(xb), yb)", loss="loss", n="1", before="").replace("=3", "=12")


def forms() -> Iterator[Case]:
    """Each form right, with its division forgotten, and with a second one."""
    reference = {"text": IMPORTS + FORM + indented(BY_TWELVE, 0)}
    for name, slots in read("forms").items():
        n, sums = slots["n"], ', reduction="sum"' if slots.get("sum") else ""
        divided, before = slots.get("loss", f"loss / {n}"), slots.get("before", "")
        plain = "loss / len(xb)" if sums else "loss"
        written = (RIGHT, divided, before), ("forgotten", plain, ""), ("twice", f"({divided}) / {n}", before)
        for label, loss, prepared in written:
            own = {"loss": loss, "n": n, "before": prepared, "own": f"F.mse_loss(model(xb), yb{sums})"}
            body = slots.get("setup", "") + "\n" + slots.get("all", TURNS).format(**own)
            text = {"text": IMPORTS + FORM + indented(body, 0), "accum": True, "sizes": [4]}
            right = label == RIGHT
            group = WAYS if slots.get("way") else SOURCES
            yield Case("forms", group, f"{name}_{label}", RIGHT if right else WRONG, label, text, reference)


def ordinary() -> Iterator[Case]:
    """Loops as people write them; N is not given."""
    for name, slots in read("ordinary").items():
        function = slots.get("function", False)
        own = {"accum": function, "sizes": [4], "function": function}
        group = "functions" if function else "scripts"
        yield Case("ordinary", group, f"{name}_right", RIGHT, name, own | {"text": slots["text"]})
        text = slots["text"]
        for good, bad in slots.get("bad", ()):
            text = text.replace(good, bad)
        if text != slots["text"]:
            yield Case("ordinary", group, f"{name}_wrong", WRONG, name, own | {"text": text})


@cache
def every() -> dict[str, Case]:
    """All cases by name. Raises ValueError where two have one name."""
    made = [*tabled("watch"), *tabled("check"), *functions(), *tabled("attack"), *losses(), *forms(), *ordinary()]
    found = {case.name: case for case in made}
    if len(found) != len(made):
        raise ValueError("two cases have one name")
    return found
