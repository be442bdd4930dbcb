"""What a monitor saw, as plain data for `gradproof-step/2`, and in lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from gradproof.monitoring import Counts
from gradproof.shadow.tape.monitor import Monitor

# -- What was seen, as plain data.
NO_EPOCH = "no DataLoader was read before a backward pass, and no --epoch-batches was given"
READ_AHEAD = "a DataLoader was read to its end before its batches were trained on; give --epoch-batches"
MIXED = "backward passes followed several DataLoaders in turn; give --epoch-batches"
SEVERAL = "several optimizers step: which of them a micro-batch is for is not known"
NO_SIZE = "the rows of a micro-batch are not known: no tensor was seen to enter a module or to leave a DataLoader"
DROPPED = "gradients were zeroed inside the first window: which micro-batches reached its step is not known"
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
            for j, (h, loss) in enumerate(zip(window, monitor.own_losses(window), strict=True), 1)
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
