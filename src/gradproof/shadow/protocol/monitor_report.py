"""What a monitor saw, as plain data for `gradproof-step/2`, and what it decides of the losses that were reported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gradproof.core.outcome import Outcome
from gradproof.monitoring import Counts
from gradproof.shadow.protocol.monitor import Epoch, Monitor
from gradproof.shadow.protocol.monitor_loss import own_losses
from gradproof.shadow.result import RECORDED, Result

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
    return {
        "effective": effective(monitor),
        "epochs": epochs(monitor),
        "steps": [_row(monitor, n, c) for n, c in totals(monitor).items()],
        "scalers": [
            {"performed": made["performed"], "skipped": made["skipped"], "scale": float(scaler.get_scale())}
            for scaler, made in monitor.scalers.items()
        ],
        "losses": losses(monitor),
        "reported": {"checked": len(monitor.reports), "unchecked": monitor.unchecked},
    }


def effective(monitor: Monitor) -> dict[str, Any]:
    """The effective batch of the first complete window; `samples` is None where it is not known, and `why`."""
    made: dict[str, Any] = {"samples": None, "sizes": [], "stated_by": "", "accum_steps": None, "world": monitor.world}
    if not monitor.closed:
        return {**made, "why": NO_WINDOW}
    first = monitor.closed[0]
    made |= {"accum_steps": len(first), "sizes": [h.size for h in first]}
    if len(monitor.types) > 1:
        return {**made, "why": SEVERAL}
    if monitor.dropped:
        return {**made, "why": DROPPED}
    if any(h.size is None for h in first):
        return {**made, "why": NO_SIZE}
    stated = ", ".join(dict.fromkeys(h.stated_by for h in first))
    samples = int(monitor.tally.effective(monitor.samples[0], monitor.world))
    given = monitor.accum_steps
    why = (
        ""
        if given in (None, len(first))
        else f"the first window has {len(first)} micro-batches, and {given} were given"
    )
    return {**made, "samples": samples, "stated_by": stated, "why": why}


def epochs(monitor: Monitor) -> dict[str, Any]:
    """Counts by epoch and optimizer; no rows where nothing tells an epoch, and `why`."""
    rows = [*monitor.epochs, monitor.epoch]
    if monitor.epoch_batches is not None:
        return {"stated_by": f"every {monitor.epoch_batches} backward passes", "why": "", "rows": _rows(monitor, rows)}
    seen = [e.iteration for e in rows if e.iteration is not None]
    why = NO_EPOCH if not seen else MIXED if monitor.mixed else ""
    if seen and not all(it.stated for it in seen):
        why = READ_AHEAD
    if why:
        return {"stated_by": "", "why": why, "rows": []}
    return {"stated_by": "iterations over a DataLoader", "why": "", "rows": _rows(monitor, rows)}


def _rows(monitor: Monitor, found: list[Epoch]) -> list[dict[str, Any]]:
    length = monitor.epoch_batches
    complete = [e.passes == length if length else e.iteration is not None and e.iteration.complete for e in found]
    return [
        {"epoch": i, **_row(monitor, number, counts), "complete": whole}
        for i, (epoch, whole) in enumerate(zip(found, complete, strict=True), 1)
        for number, counts in epoch.counts.items()
    ]


def _row(monitor: Monitor, number: int, counts: Counts) -> dict[str, Any]:
    made = {name: getattr(counts, name) for name in ("passes", "performed", "skipped")}
    return {"optimizer": f"{number} {monitor.types[number]}", **made}


def totals(monitor: Monitor) -> dict[int, Counts]:
    """Counts of the whole run, by optimizer."""
    found: dict[int, Counts] = {}
    for epoch in [*monitor.epochs, monitor.epoch]:
        for number, counts in epoch.counts.items():
            found[number] = found.get(number, Counts()).plus(counts)
    return found


def lengths(monitor: Monitor) -> list[int]:
    """What N may be: lengths of windows, and what was given."""
    given = [] if monitor.accum_steps is None else [monitor.accum_steps]
    return sorted({len(window) for window in monitor.closed} | set(given))


def losses(monitor: Monitor) -> list[dict[str, Any]]:
    """Each recorded micro-batch's own loss, None where it is not known, beside what backward was handed."""
    return [
        {
            "window": i, "micro_batch": j, "loss": loss, "handed": h.number, "divided_by": h.divisor,
            "scale": float(h.scale),
        }
        for i, window in enumerate(monitor.closed, 1)
        for j, (h, loss) in enumerate(zip(window, own_losses(window, monitor.tally, lengths(monitor)), strict=True), 1)
    ]  # fmt: skip


def reported(monitor: Monitor, equal: bool) -> Result | None:
    """What the run decides of the losses that the script reported; None where it decides nothing.

    `equal`: each sample of a window is shown to have one weight.
    HOLDS asks for every recorded window's mean; losses of micro-batches that are right are a note (`heard`)."""
    if not monitor.reports:
        return None
    found = [(report, *report.verdict(monitor.tally, lengths(monitor), monitor.recorded)) for report in monitor.reports]
    for wanted, outcome in ((False, Outcome.REFUTED), (None, Outcome.UNKNOWN)):
        for report, right, words in found:
            if right is wanted:
                help = "report the loss before its division by N" if right is False else ""
                return Result(REPORTED, outcome, words, report.location, help, "events", RECORDED)
    last = {id(report.window[-1]) for report, _, _ in found if report.of == "window" and report.window}
    if not all(id(window[-1]) in last for window in monitor.closed):
        return None
    if not equal:
        return Result(REPORTED, Outcome.UNKNOWN, RAGGED, found[0][0].location, "", "events", RECORDED)
    why = f"{len(found)} losses were reported, and the mean over its micro-batches for each of the recorded windows"
    return Result(REPORTED, Outcome.HOLDS, why, domain="events", reach=RECORDED)


def heard(monitor: Monitor) -> list[str]:
    """How many of the losses that the script reported are right, for the notes."""
    if not monitor.reports:
        return []
    found = [report.verdict(monitor.tally, lengths(monitor), monitor.recorded) for report in monitor.reports]
    right = [words for stated, words in found if stated]
    kinds = ", ".join(f"{right.count(words)} {words}" for words in dict.fromkeys(right))
    later = f"; {monitor.unchecked} later ones were not looked at" if monitor.unchecked else ""
    return [f"of {len(found)} reported losses {len(right)} are as reported" + (f": {kinds}" if kinds else "") + later]


# -- The monitoring of a watched run, in lines: effective batch, epochs, losses, the loss scaler.
EPOCHS = 8


def monitoring_lines(monitoring: Mapping[str, Any]) -> list[str]:
    """What was monitored; nothing for a verification that monitored nothing."""
    if not monitoring:
        return []
    scalers = monitoring["scalers"]
    return [
        effective_line(monitoring["effective"]),
        *_epochs(monitoring["epochs"]),
        *(f"whole run: {_counted(row)}" for row in monitoring["steps"]),
        *_losses(monitoring["losses"]),
        *(
            f"loss scaler: {_performed(s)} performed, {s['skipped']:,} skipped, scale now {_number(s['scale'])}"
            for s in scalers
        ),
    ]


def effective_line(found: Mapping[str, Any]) -> str:
    """The effective batch, or why it is not known."""
    if found["samples"] is None:
        return f"effective batch: not known; {found['why']}"
    sizes, world = found["sizes"], found["world"]
    same = len(set(sizes)) == 1
    window = f"{sizes[0]} x {found['accum_steps']}" if same else f"({' + '.join(map(str, sizes))})"
    said = f"effective batch: {window} x {world} = {found['samples']:,} samples a step"
    return f"{said} (micro-batch: {found['stated_by']})" + (f"; {found['why']}" if found["why"] else "")


def _epochs(found: Mapping[str, Any]) -> Iterator[str]:
    rows = found["rows"]
    if found["why"]:
        yield f"optimizer steps an epoch: not known; {found['why']}"
    for row in rows[:EPOCHS]:
        ended = "" if row["complete"] else ", not to its end"
        yield f"epoch {row['epoch']}{ended}: {_counted(row)}, shown by {found['stated_by']}"
    if len(rows) > EPOCHS:
        yield f"and {len(rows) - EPOCHS} more epochs; --format json has all"


def _performed(row: Mapping[str, Any]) -> str:
    return f"{row['performed']} optimizer step{'' if row['performed'] == 1 else 's'}"


def _counted(row: Mapping[str, Any]) -> str:
    skipped = f" and {row['skipped']:,} skipped" if row["skipped"] else ""
    steps = _performed(row)
    passes = f"{row['passes']:,} backward pass{'' if row['passes'] == 1 else 'es'}"
    return f"{steps}{skipped} of optimizer {row['optimizer']} for {passes}"


def _losses(rows: list[Mapping[str, Any]]) -> Iterator[str]:
    windows: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        windows.setdefault(row["window"], []).append(row)
    for window, found in windows.items():
        if all(row["loss"] is not None for row in found):
            own = ", ".join(_number(row["loss"]) for row in found)
            yield f"window {window}, losses of its micro-batches: {own}"
        else:
            said = ", ".join("no one number" if row["handed"] is None else _number(row["handed"]) for row in found)
            yield f"window {window}, handed to backward: {said}; the losses before a division by N are not known"


def _number(value: float | str) -> str:
    """Six digits; what is not finite is text in the JSON form already."""
    return f"{float(value):.6g}"
