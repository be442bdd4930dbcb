"""What a monitor saw, as plain data for `gradproof-step/2`, and what it decides of the losses that were reported.

The losses are those of the graph: the outermost product is the loss scaler's where one was asked, then come quotients
by numbers, then the loss. Only below a mean is the quotient the division by N; of a sum, the divisor may be its tokens,
and then it is not distinguished. A product with a number (`loss * (1 / N)`) may be a weight of the loss, so it is not
divided out; where it may be the division, being below 1 or one over a window's length, the loss is not known at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from gradproof.core.outcome import Outcome
from gradproof.monitoring import CountRules, Counts
from gradproof.shadow.result import RECORDED, Result

if TYPE_CHECKING:
    from gradproof.shadow.protocol.monitor import Monitor

PASSING = frozenset({"ToCopyBackward0", "CloneBackward0", "ViewBackward0", "SqueezeBackward0", "ReshapeAliasBackward0"})
PRODUCT, QUOTIENT = "MulBackward0", "DivBackward0"
MIXING = frozenset({"AddBackward0", "SubBackward0", "NegBackward0", PRODUCT})
REDUCING = frozenset(
    {
        "MseLossBackward0", "NllLossBackward0", "NllLoss2DBackward0", "SmoothL1LossBackward0", "HuberLossBackward0",
        "BinaryCrossEntropyBackward0", "BinaryCrossEntropyWithLogitsBackward0", "SoftMarginLossBackward0",
    }
)  # fmt: skip
Steps = tuple[tuple[str, float], ...]
"""Quotients and products with numbers, the last one first; 0 is a number that was not read."""
ADDING = frozenset({"AddBackward0", "SubBackward0", "NegBackward0", "StackBackward0"})
MEAN = 1
DEEP = 64
WHOLE = "the mean over the window's micro-batches"
SO_FAR = "a mean over the first micro-batches of a window was reported as the loss of one"
HELP = 'report the mean of the whole window: report_loss(..., of="window")'
MANY = 1000
ULPS = 16


@dataclass
class Handed:
    """One micro-batch: its samples (None: not known), what backward was handed, the divisor, the factor of each mean.

    `scale` is what a loss scaler multiplied it by. `factors` may be 1/N where nothing else divides;
    there are none where what was handed is no sum of means. `summands`: what was done to each last, as `Steps`.
    """

    size: int | None
    stated_by: str
    value: Tensor | None = None
    divisor: float = 1.0
    scale: Tensor | float = 1.0
    factors: Sequence[float] = ()
    summands: Sequence[Steps] = ()

    def own(self, tally: CountRules, before: float, lengths: Sequence[int]) -> float | None:
        """The loss before its division by N, or None where that is not known; `lengths` are what N may be."""
        number = self.number
        if number is None or not self.factors or self.divisor not in (1, *lengths):
            return None
        if self.divisor == 1 and max(self.factors) < 1:  # all alike, or weights that add up to it
            shares = {sum(self.factors), *([self.factors[0]] if len(set(self.factors)) == 1 else [])}
            if any(close(share * n, 1.0, self.room) for share in shares for n in lengths if n > 1):
                return None
        return float(tally.loss(number, self.divisor, float(self.scale), before))

    @property
    def number(self) -> float | None:
        """What backward was handed."""
        return None if self.value is None else float(self.value)

    @property
    def room(self) -> float:
        """Relative room for the roundings of a division and a product back."""
        return ULPS * torch.finfo(self.value.dtype).eps if self.value is not None else 0.0


def handed(roots: Sequence[Tensor], scale: Any, size: int | None, stated_by: str) -> Handed:
    """A micro-batch as its backward pass begins; `scale` is what a loss scaler multiplied by, or None."""
    made = Handed(size, stated_by)
    with torch.no_grad(), _disable_current_modes():
        made.summands = summands(roots, scale)
    if len(roots) != 1 or roots[0].numel() != 1 or not roots[0].is_floating_point():
        return made
    with torch.no_grad(), _disable_current_modes():
        made.value = roots[0].detach().clone()
        node = _skipped(roots[0].grad_fn)
        if scale is not None:
            made.scale = scale.detach().clone() if isinstance(scale, Tensor) else float(scale)
            below, other = _split(node)
            node = _skipped(below) if _name(node) == PRODUCT and _same(other, scale) else None
        while _name(node) == QUOTIENT and 0 < (by := _number(node)) < math.inf:
            made.divisor *= by
            node = _skipped(_split(node)[0])
        factors = weights(node)
        if factors and (made.divisor != 1 or _name(node) != PRODUCT or max(factors) >= 1):
            made.factors = factors
    return made


def summands(roots: Sequence[Tensor], scale: Any) -> list[Steps]:
    """What was done to each summand of some numbers, besides the loss scale; nothing where they are many."""
    stack, found = [(root.grad_fn, Steps()) for root in roots if root.numel() == 1], list[Steps]()
    while stack and len(found) + len(stack) < MANY:
        node, steps = _skipped(stack[-1][0]), stack.pop()[1]
        (below, other), by = _split(node), abs(_number(node))
        if isinstance(other, Tensor) and other.numel() == 1:
            own = by != 1 and not _same(other, scale)
            stack.append((below, (*steps, (_name(node), by)) if own else steps))
        elif _name(node) in ADDING or _alone(node):
            of = abs(getattr(node, "_saved_alpha", 1))  # by which torch.add multiplies the second
            last = (*steps, (PRODUCT, float(of))) if of != 1 else steps
            stack += [(kid, last if at else steps) for at, (kid, _) in enumerate(node.next_functions) if kid]
        else:
            found.append(steps)
    return [] if stack else found


def _alone(node: Any) -> bool:
    """Whether a sum, or a mean, is that of one number, or a sum of numbers that were stacked."""
    name = _name(node)
    if not name.startswith(("SumBackward", "MeanBackward")):
        return False
    stacked = name == "SumBackward0" and _name(node.next_functions[0][0]) == "StackBackward0"
    return stacked or math.prod(node._saved_self_sym_sizes) == 1


def _same(one: Any, other: Any) -> bool:
    """Whether two are tensors with one memory."""
    address = torch._C.TensorBase.data_ptr  # not the method, by which the memory of a tensor is given away
    return isinstance(one, Tensor) and isinstance(other, Tensor) and address(one) == address(other)


def weights(node: Any, depth: int = 0) -> list[float] | None:
    """The factor of each mean in a node that is a weighted sum of means; None for anything else.

    A factor that is not a number of one element on the CPU counts as 0, which is below 1.
    """
    name = _name(node)
    if name.startswith("MeanBackward"):  # every summand may have been multiplied or divided by a number last
        below = _skipped(node.next_functions[0][0])
        by = abs(_number(below)) or 1.0
        return [by if _name(below) == PRODUCT else 1 / by]
    if name in REDUCING:
        return [1.0] if getattr(node, "_saved_reduction", 0) == MEAN else None
    if depth > DEEP or name not in MIXING | PASSING:
        return None
    parts = [weights(n, depth + 1) for n, _ in node.next_functions if n is not None]
    known = [part for part in parts if part is not None]
    if not parts or len(known) < len(parts):
        return None
    if name != PRODUCT:
        return [f for part in known for f in part]
    return [f * g for f in known[0] for g in (known[1] if len(known) > 1 else [abs(_number(node))])]


def _split(node: Any) -> tuple[Any, Any]:
    """What was multiplied, or divided, by something without a gradient, and that; two times None for another node."""
    first, second = (n for n, _ in node.next_functions) if _name(node) in (PRODUCT, QUOTIENT) else (None, None)
    if first is not None and second is None:
        return first, node._saved_other
    turned = first is None and _name(node) == PRODUCT
    return (second, node._saved_self) if turned else (None, None)


def _number(node: Any) -> float:
    """The number in a product or quotient with one; 0 where it is no number of one element on the CPU, or is NaN."""
    _, other = _split(node)
    if not isinstance(other, Tensor) or other.numel() != 1 or other.device.type != "cpu":
        return 0.0
    return 0.0 if math.isnan(float(other)) else float(other)


def _name(node: Any) -> str:
    return type(node).__name__


def _skipped(node: Any) -> Any:
    """The first node that does something to the number."""
    while _name(node) in PASSING:
        node = node.next_functions[0][0]
    return node


@dataclass
class ReportedLoss:
    """A loss that the script reported, the micro-batches of the window until then, and the run's by then."""

    value: Tensor | float | None
    of: str
    divided: bool
    window: list[Handed]
    at: int
    location: Any

    def verdict(self, monitor: Monitor) -> tuple[bool | None, str]:
        """Right, wrong, or None where the run does not tell; and in words.

        The loss of a micro-batch may be reported before its backward pass: then it is the next of the run.
        """
        if self.value is None:
            return None, "what was reported is no number"
        following = monitor.recorded[self.at : self.at + 1] if self.of == "batch" else []
        found = [self._against(window, monitor) for window in (self.window, following) if window]
        order = (True, False, None)
        return min(found, key=lambda one: order.index(one[0]), default=(None, "no micro-batch was handed to backward"))

    def _against(self, window: list[Handed], monitor: Monitor) -> tuple[bool | None, str]:
        value = float(self.value or 0.0)
        losses = [own for own in own_losses(window, monitor) if own is not None]
        shares = [h.number / float(h.scale) for h in window if h.number is not None]
        if len(losses) < len(window) or len(shares) < len(window):
            return None, "the loss before its division by N is not shown by the graph"
        due = {
            "the loss of the micro-batch": losses[-1],
            "the loss of the micro-batch, divided by N": shares[-1],
            "the loss of the micro-batch with the loss scale in it": shares[-1] * float(window[-1].scale),
            WHOLE: sum(losses) / len(losses),
            "the sum over the window's micro-batches": sum(losses),
            "the window's divided losses, added up": sum(shares),
        }
        names = list(due)
        right = names[3] if self.of == "window" else names[1] if self.divided else names[0]
        room = max(h.room for h in window) * len(window)
        alike = [name for name in (right, *names) if close(value, due[name], room)]
        if right in alike:
            return True, right
        if WHOLE in alike:  # a window that is not complete has no mean yet
            whole = any(window[-1] is closed[-1] and len(window) == len(closed) for closed in monitor.closed)
            return (True, WHOLE) if whole else (None, SO_FAR)
        said = f"{value:.6g} was reported as {right}, which is {due[right]:.6g}"
        return (False, f"{said}; it is {alike[0]}") if alike else (None, f"{said}; what it is was not recognised")


def close(value: float, due: float, room: float) -> bool:
    """Whether two numbers are equal, or within `room` relative to the second."""
    return value == due or abs(value - due) <= room * abs(due)


def own_losses(window: Sequence[Handed], monitor: Monitor) -> list[float | None]:
    """The own loss of each micro-batch of a window. N may be a window's length, or what was given."""
    lengths = {len(closed) for closed in monitor.closed} | {monitor.accum_steps or 1}
    before, found = 0.0, []
    for h in window:
        found.append(h.own(monitor.tally, before, sorted(lengths)))
        before += h.number or 0.0
    return found


# -- What was seen, as plain data.
REPORTED = "GA-INV-001"
NO_EPOCH = "no DataLoader was read before a backward pass, and no --epoch-batches was given"
READ_AHEAD = "a DataLoader was read to its end before its batches were trained on; give --epoch-batches"
MIXED = "backward passes followed several DataLoaders in turn; give --epoch-batches"
SEVERAL = "several optimizers step: which of them a micro-batch is for is not known"
NO_SIZE = "the rows of a micro-batch are not known: no tensor was seen to enter a module or to leave a DataLoader"
DROPPED = "gradients were zeroed inside the first window: which micro-batches reached its step is not known"
RAGGED = "the mean over micro-batches is the window's loss only where each sample has one weight, which is not shown"
NO_WINDOW = "no window was complete"


def monitored(monitor: Monitor) -> dict[str, Any]:
    """The monitoring of a run, as plain data."""
    totals: dict[int, Counts] = {}
    for epoch in (*monitor.epochs, monitor.epoch):
        for number, counts in epoch.counts.items():
            totals[number] = totals.get(number, Counts()).plus(counts)
    return {
        "effective": effective(monitor),
        "epochs": epochs(monitor),
        "steps": [_row(monitor, number, counts) for number, counts in totals.items()],
        "scalers": [
            {"performed": made.performed, "skipped": made.skipped, "scale": float(scaler.get_scale())}
            for scaler, made in monitor.scalers.items()
        ],
        "losses": [
            {
                "window": i, "micro_batch": j, "loss": loss, "handed": h.number, "divided_by": h.divisor,
                "scale": float(h.scale),
            }
            for i, window in enumerate(monitor.closed, 1)
            for j, (h, loss) in enumerate(zip(window, own_losses(window, monitor), strict=True), 1)
        ],
        "reported": {"checked": len(monitor.reports), "unchecked": monitor.unchecked},
        "stopped_after": monitor.stopped,
    }  # fmt: skip


def effective(monitor: Monitor) -> dict[str, Any]:
    """The effective batch of the first complete window; `samples` is None where it is not known, and `why`."""
    first, given = monitor.closed[0] if monitor.closed else [], monitor.accum_steps
    sizes, samples, stated_by = [h.size for h in first], None, ""
    dropped = DROPPED if monitor.dropped else NO_SIZE if None in sizes else ""
    why = NO_WINDOW if not first else SEVERAL if len(monitor.types) > 1 else dropped
    if not why:
        samples = int(monitor.tally.effective(monitor.samples, monitor.world))
        stated_by = ", ".join(dict.fromkeys(h.stated_by for h in first))
        if given not in (None, len(first)):
            why = f"the first window has {len(first)} micro-batches, and {given} were given"
    return {
        "samples": samples, "sizes": sizes, "stated_by": stated_by, "accum_steps": len(first) or None,
        "world": monitor.world, "why": why,
    }  # fmt: skip


def epochs(monitor: Monitor) -> dict[str, Any]:
    """Counts by epoch and optimizer; no rows where nothing tells an epoch, and `why`."""
    every, length = [*monitor.epochs, monitor.epoch], monitor.epoch_batches
    seen = [e.iteration for e in every if e.iteration is not None]
    unclear = NO_EPOCH if not seen else "" if all(it.stated for it in seen) else READ_AHEAD
    why = "" if length else unclear or MIXED * monitor.mixed
    stated_by = "" if why else f"every {length} backward passes" if length else "iterations over a DataLoader"
    rows = []
    for i, epoch in enumerate(() if why else every, 1):
        whole = epoch.passes == length if length else epoch.iteration is not None and epoch.iteration.complete
        rows += [{"epoch": i, **_row(monitor, n, counts), "complete": whole} for n, counts in epoch.counts.items()]
    return {"stated_by": stated_by, "why": why, "rows": rows}


def _row(monitor: Monitor, number: int, counts: Counts) -> dict[str, Any]:
    made = {name: getattr(counts, name) for name in ("passes", "performed", "skipped")}
    return {"optimizer": f"{number} {monitor.types[number]}", **made}


def reported(monitor: Monitor, equal: bool) -> Result | None:
    """What the run decides of the losses that the script reported; None where it decides nothing.

    `equal`: each sample of a window is shown to have one weight.
    HOLDS asks for every recorded window's mean; losses of micro-batches that are right are a note (`heard`)."""
    found = [(report, *report.verdict(monitor)) for report in monitor.reports]
    for wanted, outcome in ((False, Outcome.REFUTED), (None, Outcome.UNKNOWN)):
        for report, right, words in found:
            if right is wanted:
                help = "report the loss before its division by N" if right is False else HELP * (words == SO_FAR)
                return Result(REPORTED, outcome, words, report.location, help, "events", RECORDED)
    last = {id(report.window[-1]) for report, _, words in found if words == WHOLE and report.window}
    if not found or not all(id(window[-1]) in last for window in monitor.closed):
        return None
    if not equal:
        return Result(REPORTED, Outcome.UNKNOWN, RAGGED, found[0][0].location, "", "events", RECORDED)
    why = f"{len(found)} losses were reported, and the mean over its micro-batches for each of the recorded windows"
    return Result(REPORTED, Outcome.HOLDS, why, domain="events", reach=RECORDED)


def heard(monitor: Monitor) -> list[str]:
    """How many of the losses that the script reported are right, for the notes."""
    if not monitor.reports:
        return []
    right = [words for stated, words in (report.verdict(monitor) for report in monitor.reports) if stated]
    kinds = ", ".join(f"{right.count(words)} {words}" for words in dict.fromkeys(right))
    later = f"; {monitor.unchecked} later ones were not looked at" if monitor.unchecked else ""
    said = f"of {len(monitor.reports)} reported losses {len(right)} are as reported"
    return [said + (f": {kinds}" if kinds else "") + later]


# -- The monitoring of a watched run, in lines: effective batch, epochs, losses, the loss scaler.
EPOCHS = 8


def monitoring_lines(monitoring: Mapping[str, Any]) -> Iterator[str]:
    """What was monitored; nothing for a verification that monitored nothing."""
    yield effective_line(monitoring["effective"])
    epochs = monitoring["epochs"]
    if epochs["why"]:
        yield f"optimizer steps an epoch: not known; {epochs['why']}"
    for row in epochs["rows"][:EPOCHS]:
        ended = "" if row["complete"] else ", not to its end"
        yield f"epoch {row['epoch']}{ended}: {_counted(row)}, shown by {epochs['stated_by']}"
    if len(epochs["rows"]) > EPOCHS:
        yield f"and {len(epochs['rows']) - EPOCHS} more epochs; --format json has all"
    until = monitoring.get("stopped_after")
    head = f"until the script was stopped, after {until} window{'s' * (until > 1)}" if until else "whole run"
    yield from (f"{head}: {_counted(row)}" for row in monitoring["steps"])
    for window, own in groupby(monitoring["losses"], lambda row: row["window"]):
        found = list(own)
        if all(row["loss"] is not None for row in found):
            losses = ", ".join(_shown(row["loss"]) for row in found)
            yield f"window {window}, losses of its micro-batches: {losses}"
        else:
            said = ", ".join("no one number" if row["handed"] is None else _shown(row["handed"]) for row in found)
            yield f"window {window}, handed to backward: {said}; the losses before a division by N are not known"
    for row in monitoring["scalers"]:
        scale = _shown(row["scale"])
        yield f"loss scaler: {_steps(row)} performed, {row['skipped']:,} skipped, scale now {scale}"


def effective_line(found: Mapping[str, Any]) -> str:
    """The effective batch, or why it is not known."""
    if found["samples"] is None:
        return f"effective batch: not known; {found['why']}"
    sizes, world = found["sizes"], found["world"]
    same = len(set(sizes)) == 1
    window = f"{sizes[0]} x {found['accum_steps']}" if same else f"({' + '.join(map(str, sizes))})"
    said = f"effective batch: {window} x {world} = {found['samples']:,} samples a step"
    return f"{said} (micro-batch: {found['stated_by']})" + (f"; {found['why']}" if found["why"] else "")


def _steps(row: Mapping[str, Any]) -> str:
    return f"{row['performed']} optimizer step{'' if row['performed'] == 1 else 's'}"


def _counted(row: Mapping[str, Any]) -> str:
    skipped = f" and {row['skipped']:,} skipped" if row["skipped"] else ""
    passes = f"{row['passes']:,} backward pass{'' if row['passes'] == 1 else 'es'}"
    return f"{_steps(row)}{skipped} of optimizer {row['optimizer']} for {passes}"


def _shown(value: float | str) -> str:
    """Six digits; what is not finite is text in the JSON form already."""
    return f"{float(value):.6g}"
