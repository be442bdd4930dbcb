"""The monitoring of a watched run, in lines: effective batch, epochs, losses, the loss scaler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gradproof.render.fmt import plural

EPOCHS = 8


def lines(monitoring: Mapping[str, Any]) -> list[str]:
    """What was monitored; nothing for a verification that monitored nothing."""
    if not monitoring:
        return []
    return [
        effective(monitoring["effective"]),
        *_epochs(monitoring["epochs"]),
        *_steps(monitoring["steps"]),
        *_losses(monitoring["losses"]),
        *_scalers(monitoring["scalers"]),
    ]


def effective(found: Mapping[str, Any]) -> str:
    """The effective batch, or why it is not told."""
    if found["samples"] is None:
        return f"effective batch: not told; {found['why']}"
    sizes, world = found["sizes"], found["world"]
    same = len(set(sizes)) == 1
    window = f"{sizes[0]} x {found['accum_steps']}" if same else f"({' + '.join(map(str, sizes))})"
    said = f"effective batch: {window} x {world} = {found['samples']:,} samples a step"
    return f"{said} (micro-batch: {found['told_by']})" + (f"; {found['why']}" if found["why"] else "")


def _epochs(found: Mapping[str, Any]) -> Iterator[str]:
    rows = found["rows"]
    if found["why"]:
        yield f"optimizer steps an epoch: not told; {found['why']}"
    for row in rows[:EPOCHS]:
        ended = "" if row["complete"] else ", not to its end"
        yield f"epoch {row['epoch']}{ended}: {_counted(row)}, told by {found['told_by']}"
    if len(rows) > EPOCHS:
        yield f"and {len(rows) - EPOCHS} more epochs; --format json has all"


def _steps(rows: list[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        yield f"whole run: {_counted(row)}"


def _counted(row: Mapping[str, Any]) -> str:
    skipped = f" and {row['skipped']:,} skipped" if row["skipped"] else ""
    steps = plural(row["performed"], "optimizer step")
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
            yield f"window {window}, handed to backward: {said}; the losses before a division by N are not told"


def _scalers(rows: list[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        steps = plural(row["performed"], "optimizer step")
        yield f"loss scaler: {steps} performed, {row['skipped']:,} skipped, scale now {_number(row['scale'])}"


def _number(value: float | str) -> str:
    """Six digits; what is not finite is text in the JSON form already."""
    return f"{float(value):.6g}"
