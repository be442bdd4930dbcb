"""The bugs of generated steps: each changes a right step in one place, and breaks obligations that are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.soundness.compose import EACH, OWN, Loss, Slots, Written
from tests.soundness.edits import added, begun, conditional, moved, narrow, put, replaced, several

Needs = Mapping[str, tuple[str, ...]]
EQ, LOSS, STALE, STEPS, NARROW, CLIP, DATA = (
    "GA-EQ-001", "GA-INV-001", "GA-INV-002", "GA-INV-003", "GA-INV-004", "GA-INV-005", "GA-DATA-001",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bug:
    """One bug. `needs`: what the plan has to be; `instead`: choices that the bug makes; `words`: of other text.

    `tail`: it needs a short last window.
    """

    name: str
    subject: str
    broken: str
    needs: Needs = field(default_factory=dict)
    edit: Callable[[Slots], object] | None = None
    instead: Mapping[str, str] = field(default_factory=dict)
    words: Callable[[Loss], Mapping[str, str]] | None = None
    tail: bool = False

    def changed(self, written: Written) -> None:
        """Change the lines of a step."""
        before = written.text()
        if self.edit is not None:
            self.edit(written.slots)
        if self.edit is not None and written.text() == before:
            raise ValueError(f"{self.name} changes nothing of\n{before}")


ALIKE = ("mean", "huber", "weighted", "truth", "entropy", "smoothed", "tokens by sample", "whole tokens")
UNLIKE = ("masked", "class weights", "tokens", "masked tokens")
MEANT = {"share": ("loss", "factor"), "loss": ALIKE}
NESTED = ("windows", "while", "slices")
PLAIN_GRAD = {"accumulate": ("grad",)}
ZEROED_AFTER = ("optimizer", "in place", "model", "none", "by hand", "foreach")
ONE_STEP = {"optimizer": ("sgd", "momentum", "decay", "adamw", "adamw foreach", "adam", "rmsprop", "groups")}
STEPPED = {
    "accumulate": ("grad",),
    "zero": ZEROED_AFTER,
    "scale": ("none",),
    "clip": ("none",),
    "share": ("loss", "factor", "none"),
}
IN_PLACE = {"accumulate": ("buffers", "float64", "flat", "main grad")}
EMPTIED = replaced("whole", ("\n    b.zero_()", ""), ("\nflat.zero_()", ""), ("\n    held[p].zero_()", ""))
REPORTED = {"report": ("tensors", "floats", "items")}

BUGS = (
    Bug("no share", "reductions", EQ, MEANT, instead={"share": "none"}),
    Bug(
        "the whole N on a tail",
        "reductions",
        EQ,
        {"share": ("loss", "factor", "after", "foreach"), "loss": ALIKE},
        words=lambda _: {"by": "n"},
        tail=True,
    ),
    Bug(
        "N and one",
        "reductions",
        EQ,
        {"share": ("loss", "factor", "after", "foreach"), "loss": ALIKE},
        words=lambda _: {"by": "n + 1"},
    ),
    Bug("divided by the rows", "reductions", EQ, MEANT, words=lambda _: {"by": "len(x)"}),
    Bug("divided twice", "reductions", EQ, MEANT, added("share", EACH + "p.grad /= size")),
    Bug(
        "a sum that is divided",
        "reductions",
        EQ,
        {"loss": ("sum", "entropy sum")},
        words=lambda loss: {"whole": f"{loss.sum} / size"},
    ),
    Bug(
        "weight decay that is not divided",
        "reductions",
        EQ,
        {"loss": ("weight decay",), "share": ("loss",)},
        replaced("loss", ("(F.mse_loss(out, y) + ", "F.mse_loss(out, y) / size + "), ("params)) / size", "params)")),
    ),
    Bug(
        "one parameter is not divided",
        "reductions",
        EQ,
        {"share": ("after",), "loss": ALIKE},
        replaced("share", ("in params:", "in params[:-1]:")),
    ),
    Bug(
        "the first micro-batch weighs more",
        "reductions",
        EQ,
        MEANT,
        added("loss", "loss = loss * (1.5 if k == 0 and size > 1 else 1.0)"),
    ),
    Bug(
        "a mean of means",
        "masks",
        EQ,
        {"share": ("loss", "factor"), "loss": UNLIKE},
        words=lambda loss: {"whole": loss.mean, "by": "size"},
    ),
    Bug(
        "a count of the micro-batch",
        "masks",
        EQ,
        {"share": ("loss", "factor"), "loss": UNLIKE},
        words=lambda loss: {"by": f"{loss.count} * size"},
    ),
    Bug(
        "the count of the first window",
        "masks",
        EQ,
        {"loss": UNLIKE},
        words=lambda loss: {"total": f"total = sum({loss.count} for _, y in batches[:n])"},
    ),
    Bug(
        "a count that is never reset",
        "masks",
        EQ,
        {"loss": UNLIKE},
        added("setup", "total = 0"),
        words=lambda loss: {"total": f"total = total + sum({loss.count} for _, y in window)"},
    ),
    Bug(
        "a count without the last micro-batch",
        "masks",
        EQ,
        {"loss": UNLIKE},
        words=lambda loss: {"total": f"total = sum({loss.count} for _, y in window[:-1] or window)"},
    ),
    Bug("a buffer that is never emptied", "buffers", STALE, IN_PLACE, EMPTIED),
    Bug(
        "a buffer that is overwritten",
        "buffers",
        EQ,
        {"accumulate": ("buffers", "float64", "flat")},
        replaced(
            "store",
            ("b += p.grad", "b.copy_(p.grad)"),
            ("b.add_(p.grad)", "b.copy_(p.grad)"),
            ("flat += torch.cat", "flat[:] = torch.cat"),
        ),
    ),
    Bug(
        "a buffer that decays",
        "buffers",
        EQ,
        {"accumulate": ("buffers", "float64", "flat")},
        replaced(
            "store",
            ("b += p.grad", "b.mul_(0.9).add_(p.grad)"),
            ("b.add_(p.grad)", "b.mul_(0.9).add_(p.grad)"),
            ("flat += ", "flat = 0.9 * flat + "),
        ),
    ),
    Bug(
        "the last gradient is not added",
        "buffers",
        EQ,
        {"accumulate": ("buffers", "float64", "foreach", "by name", "flat")},
        conditional("store", "k < size - 1 or size == 1"),
    ),
    Bug(
        "the mean of shares",
        "buffers",
        EQ,
        {"accumulate": ("kept",), **MEANT},
        replaced("whole", (".sum(0)", ".mean(0)")),
    ),
    Bug(
        "only the last of the kept",
        "buffers",
        EQ,
        {"accumulate": ("kept",)},
        replaced("whole", ("torch.stack(parts).sum(0)", "parts[-1]")),
    ),
    Bug(
        "gradients kept without a copy",
        "buffers",
        EQ,
        {"accumulate": ("kept",)},
        replaced(
            "backward",
            ("kept.append(torch.autograd.grad(", "("),
            (", params))", ").backward()\nkept.append([p.grad for p in params])"),
        ),
    ),
    Bug(
        "a hook by the whole N",
        "hooks",
        EQ,
        {"share": ("hook",), "loss": ALIKE},
        words=lambda _: {"by": "n"},
        tail=True,
    ),
    Bug(
        "a hook on one parameter",
        "hooks",
        EQ,
        {"share": ("hook",), "loss": ALIKE},
        replaced(
            "setup",
            (
                "for p in params:\n    p.register_hook(lambda g: g / now[-1])",
                "params[0].register_hook(lambda g: g / now[-1])",
            ),
        ),
    ),
    Bug(
        "a hook for each window",
        "hooks",
        EQ,
        {"share": ("hook",), "loss": ALIKE},
        several(
            replaced("setup", ("now = []\nfor p in params:\n    p.register_hook(lambda g: g / now[-1])", "")),
            replaced(
                "window", ("now.append(size)", "for p in params:\n    p.register_hook(lambda g, by=size: g / by)")
            ),
        ),
    ),
    Bug(
        "a hook that clamps",
        "hooks",
        CLIP,
        {"accumulate": ("grad", *OWN)},
        added("setup", "for p in params:\n    p.register_hook(lambda g: g.clamp(-0.01, 0.01))"),
    ),
    Bug("a hook that is never emptied", "hooks", STALE, {"accumulate": ("main grad",)}, EMPTIED),
    Bug(
        "a hook that overwrites",
        "hooks",
        EQ,
        {"accumulate": ("main grad",)},
        replaced("setup", ("held[p].add_(p.grad)", "held[p].copy_(p.grad)")),
    ),
    Bug(
        "a hook that leaves the gradient",
        "hooks",
        EQ,
        {"accumulate": ("main grad",), "zero": ZEROED_AFTER},
        replaced("setup", ("held[p].add_(p.grad)\n    p.grad = None", "held[p].add_(p.grad)")),
    ),
    Bug("a step for each micro-batch", "optimizers", STEPS, STEPPED, moved(("step", "zero"), "ended")),
    Bug("a step twice", "optimizers", STEPS, {"scale": ("none",)}, moved(("step",), "clip", "size > 1", keep=True)),
    Bug(
        "a step before the last micro-batch",
        "optimizers",
        STEPS,
        STEPPED,
        moved(("step", "zero"), "ended", "k == size - 2", "size == 1"),
    ),
    Bug(
        "a tail that is never stepped",
        "optimizers",
        STEPS,
        {"loop": NESTED},
        moved(("step", "zero"), "clip", "size == n"),
        tail=True,
    ),
    Bug(
        "a schedule for each micro-batch",
        "optimizers",
        STEPS,
        {"schedule": ("halved", "by hand")},
        moved(("schedule",), "ended"),
    ),
    Bug(
        "a state that is thrown away",
        "optimizers",
        STEPS,
        {"optimizer": ("momentum", "adamw", "adamw foreach", "adam", "rmsprop")},
        added("zero", "if n > 1:\n    optimizer.state.clear()"),
    ),
    Bug("an average for each micro-batch", "optimizers", STEPS, {"extra": ("average",)}, moved(("schedule",), "ended")),
    Bug(
        "one of two is zeroed",
        "optimizers",
        STALE,
        {"optimizer": ("two",), "accumulate": ("grad",), "zero": ("none",)},
        put("zero", "first.zero_grad()"),
    ),
    Bug(
        "one of two steps too often",
        "optimizers",
        STEPS,
        {
            "optimizer": ("two",),
            "accumulate": ("grad",),
            "zero": ("none",),
            "clip": ("none",),
            "share": ("loss", "factor", "none"),
        },
        several(put("step", "first.step()"), added("ended", "second.step()\nsecond.zero_grad()")),
    ),
    Bug(
        "the last micro-batch's loss",
        "losses",
        LOSS,
        REPORTED,
        replaced("ended", ("mine += ", "mine = "), ("mine.append(loss.item())", "mine = [loss.item()]")),
    ),
    Bug("a loss times N", "losses", LOSS, REPORTED, replaced("report", ("losses.append(", "losses.append(size * "))),
    Bug(
        "a loss by the whole N",
        "losses",
        LOSS,
        {**REPORTED, "share": ("after", "foreach"), "loss": ALIKE},
        replaced("report", ("(size)", "(n)"), ("/ size", "/ n")),
        tail=True,
    ),
    Bug(
        "losses that go on adding up",
        "losses",
        LOSS,
        {"report": ("tensors", "floats")},
        several(
            replaced("window", ("mine = torch.zeros((), dtype=run.dtype)", ""), ("mine = 0.0", "")),
            added("setup", "mine = torch.zeros((), dtype=run.dtype)"),
            replaced(
                "ended",
                ("mine += float(loss)", "mine = mine + float(loss)"),
                ("mine += loss.detach()", "mine = mine + loss.detach()"),
            ),
        ),
    ),
    Bug("the first loss again", "losses", LOSS, REPORTED, added("report", "losses[-1] = losses[0]")),
    Bug(
        "the last micro-batch is skipped",
        "control flow",
        EQ,
        {"loop": NESTED},
        begun("if size > 1 and k == size - 1:\n    continue"),
    ),
    Bug(
        "the first micro-batch is skipped",
        "control flow",
        EQ,
        {"loop": NESTED},
        begun("if size > 1 and k == 0:\n    continue"),
    ),
    Bug("it ends after the first micro-batch", "control flow", EQ, {"loop": NESTED}, added("ended", "break")),
    Bug("divided by the index", "control flow", EQ, MEANT, words=lambda _: {"by": "k + 1"}),
    Bug(
        "no gradient of the first micro-batch",
        "control flow",
        EQ,
        {
            "accumulate": ("grad", "buffers", "by name"),
            "share": ("loss", "factor", "none"),
            "optimizer": ("sgd",),
            "clip": ("none",),
        },
        replaced(
            "forward",
            ("out = model(x)", "out = model(x)\nout = out.detach() + 0 * out if k == 0 and size > 1 else out"),
        ),
    ),
    Bug(
        "a backward pass twice",
        "control flow",
        EQ,
        {"accumulate": ("grad", "buffers", "flat", "main grad"), "scale": ("none",)},
        replaced(
            "backward",
            ("loss.backward(", "if k == 0 and size > 1:\n    loss.backward(retain_graph=True)\nloss.backward("),
        ),
    ),
    Bug(
        "a loss that is small is left out",
        "control flow",
        EQ,
        {"loop": NESTED, "accumulate": ("grad",)},
        several(
            added("setup", "kept_losses = []"),
            added(
                "loss", "kept_losses.append(float(loss))\nif k > 0 and kept_losses[-1] < kept_losses[-2]:\n    continue"
            ),
        ),
    ),
    Bug(
        "bf16 buffers",
        "dtypes",
        NARROW,
        {"accumulate": ("buffers", "flat", "main grad", "by name")},
        narrow("bfloat16"),
    ),
    Bug(
        "fp16 buffers", "dtypes", NARROW, {"accumulate": ("buffers", "flat", "main grad", "by name")}, narrow("float16")
    ),
    Bug(
        "bf16 gradients that are kept",
        "dtypes",
        NARROW,
        {"accumulate": ("kept",)},
        replaced(
            "whole",
            (
                "torch.stack(parts).sum(0)",
                "sum(g.bfloat16() for g in parts).to(p.dtype)\n    accumulates(parts[0].bfloat16())",
            ),
        ),
    ),
    Bug("no share under autocast", "dtypes", EQ, {"dtype": ("autocast",), **MEANT}, instead={"share": "none"}),
    Bug(
        "unscaled with each micro-batch",
        "dtypes",
        EQ,
        {"scale": ("by hand",), "accumulate": ("grad",)},
        moved(("unscale",), "ended"),
    ),
    Bug(
        "a scale that grows", "dtypes", EQ, {"scale": ("by hand",)}, replaced("backward", ("256.0", "(256.0 + 16 * k)"))
    ),
    Bug(
        "a tail that is not unscaled",
        "dtypes",
        EQ,
        {"scale": ("by hand",)},
        conditional("unscale", "size == n"),
        tail=True,
    ),
    Bug(
        "a clip of each micro-batch",
        "clipping",
        CLIP,
        {"clip": ("norm", "value", "largest", "norm by hand"), "accumulate": ("grad",), "scale": ("none",)},
        moved(("clip",), "ended", keep=True),
    ),
    Bug(
        "a clip before the last micro-batch",
        "clipping",
        CLIP,
        {"clip": ("norm", "value", "largest", "norm by hand"), "accumulate": ("grad",), "scale": ("none",)},
        moved(("clip",), "ended", "k == size - 2", "size == 1"),
    ),
    Bug(
        "a clip before the division",
        "clipping",
        EQ,
        {"clip": ("norm", "value", "largest"), "share": ("after", "foreach"), "loss": ALIKE},
        moved(("clip",), "unscale"),
    ),
    Bug(
        "a clip before it is unscaled",
        "clipping",
        CLIP,
        {"clip": ("norm",), "scale": ("scaler",), "share": ("loss", "factor", "none")},
        moved(("clip",), "whole"),
    ),
    Bug(
        "a clip of what is stored",
        "clipping",
        CLIP,
        {"clip": ("norm", "value", "norm by hand"), "accumulate": ("buffers", "flat", "by name"), "scale": ("none",)},
        lambda slots: slots.update(backward=[*slots["backward"], *slots["clip"]]),
    ),
    Bug("never zeroed", "zeroing", STALE, {**PLAIN_GRAD, "zero": ZEROED_AFTER}, put("zero")),
    Bug(
        "one parameter is zeroed",
        "zeroing",
        STALE,
        {**PLAIN_GRAD, "zero": ZEROED_AFTER},
        put("zero", "params[0].grad = None"),
    ),
    Bug("zeroed with each micro-batch", "zeroing", STALE, PLAIN_GRAD, begun("model.zero_grad()")),
    Bug(
        "zeroed every other window",
        "zeroing",
        STALE,
        {**PLAIN_GRAD, "zero": ZEROED_AFTER},
        several(added("setup", "turns = []"), conditional("zero", "len(turns) % 2"), added("step", "turns.append(1)")),
    ),
    Bug(
        "the first row stays",
        "zeroing",
        STALE,
        {**PLAIN_GRAD, "zero": ZEROED_AFTER},
        put("zero", EACH + "p.grad[1:] = 0"),
    ),
    Bug(
        "gradients before the loop",
        "zeroing",
        STALE,
        {**PLAIN_GRAD, "zero": ZEROED_AFTER},
        added("setup", EACH + "p.grad = torch.full_like(p, 0.5)"),
    ),
    Bug(
        "zeroed before the step",
        "zeroing",
        STALE,
        {**PLAIN_GRAD, "zero": ("in place", "by hand"), "clip": ("none",), "extra": ("none",)},
        moved(("zero",), "whole", "size > 1", "size == 1"),
    ),
    Bug("the inputs of the first micro-batch", "data", DATA, {}, begun("x = window[0][0][: len(y)]")),
    Bug("the first micro-batch each time", "data", DATA, {}, begun("x, y = window[0]")),
    Bug("targets of another micro-batch", "data", DATA, {}, begun("y = window[k - 1][1]")),
    Bug(
        "the last micro-batch of all",
        "data",
        DATA,
        {"loop": NESTED},
        begun("x, y = batches[-1] if size > 1 else (x, y)"),
    ),
    Bug(
        "the samples of one window", "data", DATA, {"loop": NESTED}, begun("x, y = batches[k] if size > 1 else (x, y)")
    ),
    Bug(
        "no share of a model",
        "models",
        EQ,
        {"share": ("loss", "factor", "after"), "loss": (*ALIKE, *UNLIKE)},
        words=lambda loss: {"by": "1.0", "whole": loss.mean},
    ),
    Bug("a model that is not zeroed", "models", STALE, {**PLAIN_GRAD, "zero": ZEROED_AFTER}, put("zero")),
)

RIGHT_NEEDS: Mapping[str, Needs] = {
    "reductions": {"share": ("loss", "factor", "samples", "ratio", "after", "foreach", "passed", "none", "rate")},
    "masks": {"loss": UNLIKE},
    "buffers": {"accumulate": OWN},
    "hooks": {"share": ("hook",)},
    "hooks of a buffer": {"accumulate": ("main grad",)},
    "optimizers": {"schedule": ("halved", "by hand", "none"), "extra": ("average", "none", "logged")},
    "losses": REPORTED,
    "control flow": {"extra": ("finite", "validation", "logged", "forward hook", "same hook", "undone hook")},
    "dtypes": {"dtype": ("autocast",)},
    "clipping": {"clip": ("norm", "value", "largest", "norm by hand"), "scale": ("none", "by hand", "scaler")},
    "zeroing": {"zero": (*ZEROED_AFTER, "before", "before in place")},
    "data": {"extra": ("validation", "finite", "forward hook")},
    "models": {},
}
