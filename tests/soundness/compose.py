"""The dimensions of a generated step: each choice is some lines of Python, each in the slot where it belongs.

A plan makes one choice in every dimension. `written` puts the lines of all choices together: a training function.
"""

from __future__ import annotations

import ast
import random
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.optim import Optimizer

from tests.soundness.kit import Task
from tests.soundness.steps_models import Attention, Recurrent
from tests.soundness.tasks import (
    VOCABULARY,
    classes,
    images,
    linear,
    mlp,
    ragged,
    regression,
    small_mlp,
    tokens,
    truths,
)

Slots = dict[str, list[str]]
Plan = dict[str, str]
Lines = Mapping[str, str]
"""The lines of a choice, by slot."""

BATCH = ("begin", "forward", "loss", "backward", "store", "ended")
AFTER = ("whole", "unscale", "share", "noted", "clip", "step", "schedule", "zero", "report")
SLOTS = ("setup", "window", *BATCH, *AFTER)


class Tied(nn.Module):
    """An embedding that is the head, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.mixed = nn.Embedding(VOCABULARY, 4), nn.Linear(4, 4)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """Scores of the next token."""
        return torch.tanh(self.mixed(self.embedding(given))) @ self.embedding.weight.T


def grouped() -> nn.Module:
    """A convolution with group norm."""
    norm = nn.GroupNorm(2, 4)
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.GELU(), nn.Flatten(), nn.Linear(36, 4))


def normed() -> nn.Module:
    """Layers with layer norm and dropout."""
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.SiLU(), nn.Dropout(0.2), nn.Linear(4, 4))


MODELS = {
    "linear": (linear, regression),
    "two layers": (small_mlp, regression),
    "truths": (small_mlp, truths),
    "mlp": (mlp, classes),
    "normed": (normed, classes),
    "conv": (grouped, images),
    "tied": (Tied, ragged),
    "attention": (Attention, ragged),
    "lstm": (Recurrent, ragged),
    "whole": (Tied, tokens),
}
REALS, CLASSES, TOKENS = ("linear", "two layers"), ("mlp", "normed", "conv"), ("tied", "attention", "lstm")


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss of `out` and `y` for some models: its mean, and, where it is one, its sum and what the sum counts.

    `alike`: micro-batches of one size have one count, so that the mean of their means is the mean.
    """

    models: tuple[str, ...]
    mean: str
    sum: str = ""
    count: str = ""
    alike: bool = True


FLAT = "out.flatten(0, 1), y.flatten()"
LOSSES = {
    "mean": Loss(REALS, "F.mse_loss(out, y)", "F.mse_loss(out, y, reduction='sum')", "y.numel()"),
    "huber": Loss(REALS, "F.smooth_l1_loss(out, y)", "F.smooth_l1_loss(out, y, reduction='sum')", "y.numel()"),
    "weighted": Loss(REALS, "((out - y).square().mean(1) * y.abs().sum(1)).mean()"),
    "weight decay": Loss(REALS, "F.mse_loss(out, y) + 0.05 * sum(p.square().sum() for p in params)"),
    "sum": Loss(REALS, "", "0.1 * (out - y).square().sum()"),
    "masked": Loss(
        REALS,
        "((out - y).square() * (y > 0)).sum() / (y > 0).sum().clamp(min=1)",
        "((out - y).square() * (y > 0)).sum()",
        "(y > 0).sum()",
        False,
    ),
    "truth": Loss(("truths",), "F.binary_cross_entropy_with_logits(out, y)"),
    "entropy": Loss(CLASSES, "F.cross_entropy(out, y)", "F.cross_entropy(out, y, reduction='sum')", "len(y)"),
    "smoothed": Loss(CLASSES, "F.cross_entropy(out, y, label_smoothing=0.1)"),
    "entropy sum": Loss(CLASSES, "", "0.1 * F.cross_entropy(out, y, reduction='sum')"),
    "class weights": Loss(
        CLASSES,
        "F.cross_entropy(out, y, weight=weights)",
        "F.cross_entropy(out, y, weight=weights, reduction='sum')",
        "weights[y].sum()",
        False,
    ),
    "tokens": Loss(
        TOKENS,
        f"F.cross_entropy({FLAT}, ignore_index=-100)",
        f"F.cross_entropy({FLAT}, ignore_index=-100, reduction='sum')",
        "(y != -100).sum()",
        False,
    ),
    "masked tokens": Loss(
        TOKENS,
        "(each(out, y) * (y != -100)).sum() / (y != -100).sum()",
        "(each(out, y) * (y != -100)).sum()",
        "(y != -100).sum()",
        False,
    ),
    "tokens by sample": Loss(TOKENS, "(each(out, y).sum(1) / (y != -100).sum(1)).mean()"),
    "whole tokens": Loss(
        ("whole",), f"F.cross_entropy({FLAT})", f"F.cross_entropy({FLAT}, reduction='sum')", "y.numel()"
    ),
}

Make = Callable[[Iterable[nn.Parameter]], Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda given: torch.optim.SGD(given, lr=0.1),
    "momentum": lambda given: torch.optim.SGD(given, lr=0.05, momentum=0.9, nesterov=True),
    "decay": lambda given: torch.optim.SGD(given, lr=0.1, weight_decay=0.1, foreach=True),
    "adamw": lambda given: torch.optim.AdamW(given, lr=0.02, foreach=False),
    "adamw foreach": lambda given: torch.optim.AdamW(given, lr=0.02, foreach=True),
    "adam": lambda given: torch.optim.Adam(given, lr=0.02, amsgrad=True),
    "rmsprop": lambda given: torch.optim.RMSprop(given, lr=0.01),
    "groups": lambda given: torch.optim.SGD([{"params": [p], "lr": 0.1 / (1 + i)} for i, p in enumerate(given)]),
}

EACH = "for p in params:\n    "
BESIDE = "for b, p in zip(held, params):\n    "
DIVIDED = {"share": EACH + "p.grad /= {by}"}

CHOICES: dict[str, dict[str, Lines]] = {
    "optimizer": {
        **{name: {"step": "optimizer.step()"} for name in OPTIMIZERS},
        "two": {
            "setup": "first, second = two_optimizers(params)",
            "step": "first.step()\nsecond.step()",
        },
        "by hand": {
            "step": "hand_over([p.grad for p in params], [job.lr])\nwith torch.no_grad():\n"
            "    for p in params:\n        p -= job.lr * p.grad",
        },
    },
    "share": {
        "loss": {"loss": "loss = {whole} / {by}"},
        "factor": {"loss": "loss = {whole} * (1.0 / {by})"},
        "samples": {"window": "rows = sum(len(x) for x, _ in window)", "loss": "loss = {mean} * (len(x) / rows)"},
        "ratio": {"loss": "loss = {mean} * ({count} / total)"},
        "after": {"loss": "loss = {whole}", **DIVIDED},
        "foreach": {"loss": "loss = {whole}", "share": "torch._foreach_div_([p.grad for p in params], {by})"},
        "passed": {"loss": "loss = {whole}", "backward": "loss.backward(torch.ones_like(loss) / {by})"},
        "hook": {
            "setup": "now = []\nfor p in params:\n    p.register_hook(lambda g: g / now[-1])",
            "window": "now.append({by})",
            "loss": "loss = {whole}",
        },
        "rate": {
            "setup": "for group in optimizer.param_groups:\n    group['lr'] = group['lr'] / n",
            "loss": "loss = {whole}",
        },
        "none": {"loss": "loss = {whole}"},
    },
    "accumulate": {
        "grad": {"backward": "{scaled}.backward()"},
        "buffers": {
            "setup": "held = [torch.zeros_like(p) for p in params]\naccumulates(*held)",
            "backward": "{scaled}.backward()",
            "store": BESIDE + "b += p.grad\n    p.grad = None",
            "whole": BESIDE + "p.grad = b.clone()\n    b.zero_()",
        },
        "float64": {
            "setup": "held = [torch.zeros_like(p, dtype=torch.float64) for p in params]\naccumulates(*held)",
            "backward": "{scaled}.backward()",
            "store": BESIDE + "b.add_(p.grad)\n    p.grad = None",
            "whole": BESIDE + "p.grad = b.to(p.dtype, copy=True)\n    b.zero_()",
        },
        "foreach": {
            "window": "held = [torch.zeros_like(p) for p in params]\naccumulates(*held)",
            "backward": "{scaled}.backward()",
            "store": "torch._foreach_add_(held, [p.grad for p in params])\nmodel.zero_grad()",
            "whole": BESIDE + "p.grad = b",
        },
        "by name": {
            "window": "held = {{name: torch.zeros_like(p) for name, p in model.named_parameters()}}\n"
            "accumulates(*held.values())",
            "backward": "{scaled}.backward()",
            "store": "for name, p in model.named_parameters():\n    held[name] = held[name] + p.grad\n"
            "    p.grad = None",
            "whole": "for name, p in model.named_parameters():\n    p.grad = held[name]",
        },
        "flat": {
            "setup": "flat = torch.zeros(sum(p.numel() for p in params), dtype=run.dtype)\naccumulates(flat)",
            "backward": "{scaled}.backward()",
            "store": "flat += torch.cat([p.grad.flatten() for p in params])\nmodel.zero_grad()",
            "whole": "start = 0\nfor p in params:\n    p.grad = flat[start : start + p.numel()].view_as(p).clone()\n"
            "    start += p.numel()\nflat.zero_()",
        },
        "kept": {
            "window": "kept = []",
            "backward": "kept.append(torch.autograd.grad({scaled}, params))",
            "whole": "for p, parts in zip(params, zip(*kept)):\n    p.grad = torch.stack(parts).sum(0)",
        },
        "added": {
            "window": "held = None",
            "backward": "made = torch.autograd.grad({scaled}, params)",
            "store": "held = made if held is None else [a + b for a, b in zip(held, made)]",
            "whole": BESIDE + "p.grad = b",
        },
        "one pass": {
            "window": "joined = 0.0",
            "backward": "joined = joined + {scaled}",
            "whole": "joined.backward()",
        },
        "main grad": {
            "setup": "held = {{p: torch.zeros_like(p) for p in params}}\naccumulates(*held.values())\n"
            "def add(p):\n    held[p].add_(p.grad)\n    p.grad = None\n"
            "for p in params:\n    p.register_post_accumulate_grad_hook(add)",
            "backward": "{scaled}.backward()",
            "whole": EACH + "p.grad = held[p].clone()\n    held[p].zero_()",
        },
    },
    "scale": {
        "none": {},
        "by hand": {"unscale": EACH + "p.grad /= 256.0"},
        "scaler": {
            "setup": "scaler = torch.amp.GradScaler('cpu', init_scale=128.0)",
            "unscale": "scaler.unscale_(optimizer)",
            "step": "scaler.step(optimizer)\nscaler.update()",
        },
    },
    "clip": {
        "none": {},
        "norm": {"clip": "nn.utils.clip_grad_norm_(params, 0.1)"},
        "value": {"clip": "nn.utils.clip_grad_value_(params, 0.02)"},
        "largest": {"clip": "nn.utils.clip_grad_norm_(params, 0.03, float('inf'))"},
        "norm by hand": {
            "clip": "norm = torch.stack([p.grad.square().sum() for p in params]).sum().sqrt()\n"
            "for p in params:\n    p.grad *= (0.1 / (norm + 1e-6)).clamp(max=1.0)",
        },
    },
    "zero": {
        "optimizer": {"zero": "optimizer.zero_grad()"},
        "in place": {"zero": "optimizer.zero_grad(set_to_none=False)"},
        "model": {"zero": "model.zero_grad()"},
        "none": {"zero": EACH + "p.grad = None"},
        "by hand": {"zero": EACH + "p.grad.zero_()"},
        "foreach": {"zero": "torch._foreach_zero_([p.grad for p in params])"},
        "before": {"window": "model.zero_grad()"},
        "before in place": {"window": EACH + "if p.grad is not None:\n        p.grad.zero_()"},
    },
    "schedule": {
        "none": {},
        "halved": {
            "setup": "schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)",
            "schedule": "schedule.step()",
        },
        "by hand": {"schedule": "for group in optimizer.param_groups:\n    group['lr'] *= 0.5"},
    },
    "report": {
        "none": {},
        "tensors": {
            "window": "mine = torch.zeros((), dtype=run.dtype)",
            "ended": "mine += loss.detach()",
            "report": "losses.append(mine{due})",
        },
        "floats": {"window": "mine = 0.0", "ended": "mine += float(loss)", "report": "losses.append(mine{due_read})"},
        "items": {
            "window": "mine = []",
            "ended": "mine.append(loss.item())",
            "report": "losses.append(sum(mine){due_item})",
        },
    },
    "extra": {
        "none": {},
        "same hook": {"setup": "for p in params:\n    p.register_hook(lambda g: g.clone())"},
        "undone hook": {
            "setup": "for p in params:\n    p.register_hook(lambda g: 2 * g)\n    p.register_hook(lambda g: g / 2)"
        },
        "forward hook": {"setup": "model.register_forward_hook(lambda module, given, out: out * 1.0)"},
        "validation": {"zero": "with torch.no_grad():\n    model.eval()\n    model(x)\n    model.train()"},
        "finite": {"begin": "if not bool(torch.isfinite(x.double()).all()):\n    continue"},
        "logged": {
            "noted": "norms.append(float(torch.stack([p.grad.norm() for p in params if p.grad is not None]).norm()))",
            "setup": "norms = []",
        },
        "average": {
            "setup": "average = [p.detach().clone() for p in params]\nkeeps(*average)",
            "schedule": "with torch.no_grad():\n    for a, p in zip(average, params):\n"
            "        a.lerp_(p.detach(), 0.1)",
        },
    },
    "dtype": {"plain": {}, "autocast": {}},
}

LOOPS = {
    "windows": "for window in job.windows():\n{window}\n    for k, (x, y) in enumerate(window):\n{inner}\n{after}",
    "while": "at = 0\nwhile at < len(batches):\n    window = batches[at : at + n]\n    at += n\n{window}\n"
    "    for k, (x, y) in enumerate(window):\n{inner}\n{after}",
    "slices": "stream = iter(batches)\nwhile window := list(itertools.islice(stream, n)):\n{window}\n"
    "    for k, (x, y) in enumerate(window):\n{inner}\n{after}",
    "counted": "for i, (x, y) in enumerate(batches):\n    k = i % n\n    if k == 0:\n"
    "        window = batches[i : i + n]\n"
    "{within}\n{flat}\n    if k == n - 1 or i == len(batches) - 1:\n{last}",
    "early": "for i, (x, y) in enumerate(batches):\n    k = i % n\n    if k == 0:\n"
    "        window = batches[i : i + n]\n"
    "{within}\n{flat}\n    if k < len(window) - 1:\n        continue\n{after}",
}
CHOICES["loop"] = {name: {} for name in LOOPS}
CHOICES["model"] = {name: {} for name in MODELS}
CHOICES["loss"] = {
    name: {"setup": "weights = class_weights(run)"} if name == "class weights" else {} for name in LOSSES
}

MEANS = ("loss", "factor", "samples", "ratio", "after", "foreach", "passed", "hook", "rate")
COUNTED = ("loss", "factor", "ratio", "after", "foreach", "passed", "hook")
SUMMED = ("none",)
OWN = ("buffers", "float64", "foreach", "by name", "flat", "kept", "added", "main grad")


def impossible(plan: Plan, tail: int) -> bool:
    """Whether the choices of a plan contradict each other, or mean something else than each does alone."""
    loss, share, accumulate = LOSSES[plan["loss"]], plan["share"], plan["accumulate"]
    own = plan["optimizer"] in ("two", "by hand")
    kind = SUMMED if not loss.mean else MEANS if loss.alike else COUNTED
    rules = (
        plan["model"] not in loss.models,
        share not in kind,
        share == "passed" and (accumulate != "grad" or plan["scale"] != "none"),
        share == "ratio" and (not loss.count or plan["loss"] == "masked"),
        share == "rate" and (tail > 0 or plan["optimizer"] != "sgd" or plan["clip"] != "none"),
        accumulate in ("kept", "added") and (share == "hook" or plan["extra"] in ("undone hook", "same hook")),
        own and (plan["scale"] == "scaler" or plan["schedule"] != "none" or share == "rate"),
        plan["zero"] == "optimizer" and plan["optimizer"] == "two",
        plan["zero"] == "in place" and plan["optimizer"] == "two",
        plan["dtype"] == "autocast" and accumulate == "one pass",
        plan["extra"] == "finite" and plan["loop"] in ("counted", "early"),
        plan["extra"] in ("undone hook", "same hook") and share == "hook",
    )
    return any(rules)


def drawn(generator: random.Random, tail: int, needs: Mapping[str, tuple[str, ...]]) -> Plan:
    """A plan that is possible. `needs`: what some dimensions have to be. Most dimensions take their plain choice."""
    while True:
        plan = {}
        for name, choices in CHOICES.items():
            given = needs.get(name, tuple(choices))
            plain = name not in needs and name in (
                "scale",
                "clip",
                "extra",
                "dtype",
                "schedule",
                "report",
                "accumulate",
            )
            plan[name] = next(iter(choices)) if plain and generator.random() < 0.6 else generator.choice(given)
        if not impossible(plan, tail):
            return plan


@dataclass(slots=True)
class Written:
    """The slots of a plan, to be changed by a bug, and what is put into their braces."""

    plan: Plan
    slots: Slots
    words: dict[str, str]

    def text(self) -> str:
        """The training function as Python."""
        filled = {name: "\n".join(lines) for name, lines in self.slots.items()}
        if self.plan["dtype"] == "autocast":
            inside = textwrap.indent("\n".join([filled["forward"], filled["loss"]]), "    ")
            filled |= {"forward": f"with torch.autocast('cpu', torch.bfloat16):\n{inside}", "loss": ""}
        after = "\n".join(filled[name] for name in AFTER if filled[name]) or "pass"
        inner = "\n".join(filled[name] for name in BATCH if filled[name])
        window = "\n".join(
            ["size = len(window)", *([self.words["total"]] if self.words["total"] else []), filled["window"]]
        )
        parts = {
            "window": textwrap.indent(window, " " * 4),
            "within": textwrap.indent(window, " " * 8),
            "inner": textwrap.indent(inner, " " * 8),
            "flat": textwrap.indent(inner, " " * 4),
            "after": textwrap.indent(after, " " * 4),
            "last": textwrap.indent(after, " " * 8),
        }
        loop = LOOPS[self.plan["loop"]].format(**parts)
        head = "job = TASK.start(run)\nmodel, params, optimizer = job.model, job.parameters, job.optimizer\n"
        head += "batches, n, losses = job.batches(), run.accum_steps, []\n"
        body = f"{head}{filled['setup']}\n{loop}\nreturn losses"
        lines = [line for line in textwrap.indent(body, "    ").splitlines() if line.strip()]
        return "def train(run):\n" + "\n".join(lines) + "\n"


def bracketed(text: str) -> str:
    """An expression that may stand beside any operator: in brackets, unless it is a name or one call."""
    if not text or isinstance(ast.parse(text, mode="eval").body, ast.Name | ast.Call | ast.Constant):
        return text
    return f"({text})"


def choose(plan: Plan, other: Callable[[Loss], Mapping[str, str]] | None = None) -> Written:
    """The lines of a plan's choices. `other`: words that a bug has in other lines than the right ones."""
    loss = LOSSES[plan["loss"]]
    whole = loss.mean if loss.alike and loss.mean else loss.sum
    counted = bool(loss.count) and (not loss.alike or plan["share"] == "ratio")
    words = {
        "whole": whole,
        "mean": loss.mean,
        "count": loss.count,
        "by": "total" if counted else "size",
        "total": f"total = sum({loss.count} for _, y in window)" if counted else "",
        "scaled": {"none": "loss", "by hand": "(loss * 256.0)", "scaler": "scaler.scale(loss)"}[plan["scale"]],
    }
    words |= {} if other is None else other(loss)
    words |= {name: bracketed(words[name]) for name in ("whole", "mean", "count", "by")}
    inside = plan["share"] in ("loss", "factor", "samples", "ratio") or not loss.mean
    words["due"] = "" if inside else f" / {words['by']}"
    words["due_read"] = "" if inside else f" / float({words['by']})"
    words["due_item"] = "" if inside else f" / {words['by']}" + ".item()" * (words["by"] == "total")
    slots: Slots = {name: [] for name in SLOTS}
    for dimension in CHOICES:
        for slot, text in CHOICES[dimension][plan[dimension]].items():
            own = slot == "backward" and plan["share"] == "passed" and dimension == "accumulate"
            if dimension == "scale" and slot == "step":
                slots["step"] = []
            slots[slot] += [] if own else [text.format(**words)]
    slots["forward"] = ["out = model(x)"]
    return Written(plan, slots, words)


def task_of(plan: Plan) -> Task:
    """Model, data and optimizer of a plan."""
    model, data = MODELS[plan["model"]]
    make = OPTIMIZERS.get(plan["optimizer"], OPTIMIZERS["sgd"])
    return replace(Task(model, data, nn.MSELoss()), optimizer=make)
