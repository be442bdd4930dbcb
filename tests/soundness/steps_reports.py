"""Steps about what is returned: losses as tensors, Python numbers, arrays, dataclasses, text, or only printed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from gradproof.shadow.tape.run import Run
from tests.soundness.kit import Job, right, windows_losses, wrong
from tests.soundness.tasks import LINEAR, MLP, TOKENS, token_mean, token_sum


def last_of(losses: list[float]) -> list[float]:
    """The last window's loss."""
    return losses[-1:]


def mean_of(losses: list[float]) -> list[float]:
    """The mean over the windows."""
    return [sum(losses) / len(losses)]


def thousandths(losses: list[float]) -> list[float]:
    """Rounded to thousandths."""
    return [float(round(1000 * loss)) for loss in losses]


@right("reported losses", LINEAR, reports=windows_losses)
def floats(run: Run) -> list[float]:
    """Python floats."""
    job, losses = LINEAR.start(run), []
    for window in job.windows():
        total = 0.0
        for x, y in window:
            loss = F.mse_loss(job.model(x), y) / len(window)
            loss.backward()
            total += float(loss)
        job.apply()
        losses.append(total)
    return losses


@wrong("reported losses", LINEAR, "GA-INV-001", reports=windows_losses)
def floats_of_the_last_micro_batch(run: Run) -> list[float]:
    """Only the last micro-batch's share is reported."""
    job, losses = LINEAR.start(run), []
    for window in job.windows():
        total = 0.0
        for x, y in window:
            loss = F.mse_loss(job.model(x), y) / len(window)
            loss.backward()
            total = float(loss)
        job.apply()
        losses.append(total)
    return losses


def windows_and(job: Job) -> list[float]:
    """A right loop; the loss of every window as a Python float."""
    return [float(loss) for loss in job.train()]


def times_n(job: Job) -> list[float]:
    """A right loop that reports the sum of the micro-batches' losses."""
    return [float(loss) * job.run.accum_steps for loss in job.train()]


@dataclass
class Report:
    """What a trainer gives back."""

    losses: list[float]


@right("reported losses", LINEAR, reports=windows_losses)
def a_dict_of_tensors(run: Run) -> dict[str, Tensor]:
    """A tensor by name."""
    return {f"loss {i}": loss for i, loss in enumerate(LINEAR.start(run).train())}


@wrong("reported losses", LINEAR, "GA-INV-001", reports=windows_losses)
def a_dict_of_tensors_times_n(run: Run) -> dict[str, Tensor]:
    """The sum of the micro-batches' losses."""
    return {f"loss {i}": loss * run.accum_steps for i, loss in enumerate(LINEAR.start(run).train())}


@right("reported losses", MLP, reports=windows_losses)
def a_stacked_tensor(run: Run) -> Tensor:
    """One tensor with all losses."""
    return torch.stack(MLP.start(run).train())


@wrong("reported losses", MLP, "GA-INV-001", reports=windows_losses)
def a_stacked_tensor_times_n(run: Run) -> Tensor:
    """One tensor, not divided."""
    return torch.stack(MLP.start(run).train()) * run.accum_steps


@wrong("reported losses", LINEAR, "GA-INV-001", reports=windows_losses)
def floats_times_n(run: Run) -> list[float]:
    """Python floats, not divided."""
    return times_n(LINEAR.start(run))


@right("reported losses", LINEAR, reports=windows_losses)
def an_array(run: Run) -> Any:
    """A NumPy array."""
    return np.array(windows_and(LINEAR.start(run)))


@wrong("reported losses", LINEAR, "GA-INV-001", reports=windows_losses)
def an_array_times_n(run: Run) -> Any:
    """A NumPy array, not divided."""
    return np.array(times_n(LINEAR.start(run)))


@right("reported losses", LINEAR, reports=windows_losses)
def a_dataclass(run: Run) -> Report:
    """A dataclass with a list of floats."""
    return Report(windows_and(LINEAR.start(run)))


@wrong("reported losses", LINEAR, "GA-INV-001", reports=windows_losses)
def a_dataclass_times_n(run: Run) -> Report:
    """A dataclass with losses that are not divided."""
    return Report(times_n(LINEAR.start(run)))


@right("reported losses", LINEAR, reports=windows_losses, tolerance=1e-4)
def a_text(run: Run) -> str:
    """Losses as text."""
    return " ".join(f"{loss:.7f}" for loss in windows_and(LINEAR.start(run)))


@wrong("reported losses", LINEAR, "GA-INV-001", reports=windows_losses, tolerance=1e-4)
def a_text_times_n(run: Run) -> str:
    """Losses as text, not divided."""
    return " ".join(f"{loss:.7f}" for loss in times_n(LINEAR.start(run)))


@right("reported losses", LINEAR, reports=thousandths)
def whole_numbers(run: Run) -> list[int]:
    """Losses in thousandths, rounded to integers."""
    return [round(1000 * loss) for loss in windows_and(LINEAR.start(run))]


@wrong("reported losses", LINEAR, "GA-INV-001", reports=thousandths)
def whole_numbers_times_n(run: Run) -> list[int]:
    """Integers that are not divided."""
    return [round(1000 * loss) for loss in times_n(LINEAR.start(run))]


@right("reported losses", LINEAR, reports=windows_losses, tolerance=1e-4)
def only_printed(run: Run) -> None:
    """Losses are printed and nothing is returned."""
    for loss in windows_and(LINEAR.start(run)):
        print(f"loss {loss:.7f}")


@wrong("reported losses", LINEAR, "GA-INV-001", reports=windows_losses, tolerance=1e-4)
def only_printed_times_n(run: Run) -> None:
    """Losses are printed, not divided."""
    for loss in times_n(LINEAR.start(run)):
        print(f"loss {loss:.7f}")


@right("reported losses", MLP)
def nothing_is_reported(run: Run) -> None:
    """No loss comes back."""
    MLP.start(run).train()


@right("reported losses", LINEAR, reports=last_of)
def only_the_last_window(run: Run) -> Tensor:
    """The loss of the last window."""
    return LINEAR.start(run).train()[-1]


@wrong("reported losses", LINEAR, "GA-INV-001", reports=last_of)
def only_the_last_window_doubled(run: Run) -> Tensor:
    """Twice the loss of the last window, when it was accumulated."""
    return LINEAR.start(run).train()[-1] * (2 if run.accum_steps > 1 else 1)


@right("reported losses", MLP, reports=mean_of)
def the_mean_of_all_windows(run: Run) -> float:
    """One float for the epoch."""
    losses = windows_and(MLP.start(run))
    return sum(losses) / len(losses)


@wrong("reported losses", MLP, "GA-INV-001", reports=mean_of)
def the_mean_over_micro_batches_of_shares(run: Run) -> float:
    """Shares are divided by the number of micro-batches once more."""
    losses = windows_and(MLP.start(run))
    return sum(losses) / run.micro_batches


@wrong("reported losses", LINEAR, "GA-INV-001", reports=windows_losses)
def a_loss_that_is_never_reset_in_the_report(run: Run) -> list[Tensor]:
    """The reported sum goes on over the windows, only where losses are accumulated."""
    losses, total = [], torch.zeros((), dtype=run.dtype)
    for loss in LINEAR.start(run).train():
        total = total + loss if run.accum_steps > 1 else loss
        losses.append(total)
    return losses


@wrong("reported losses", TOKENS, "GA-INV-001", reports=windows_losses)
def a_report_of_the_mean_of_token_means(run: Run) -> list[Tensor]:
    """Gradients are right; the report is a mean of means."""
    job, losses = TOKENS.start(run), []
    for window in job.windows():
        count, total = sum((y != -100).sum() for _, y in window), torch.zeros((), dtype=run.dtype)
        for x, y in window:
            output = job.model(x)
            (token_sum(output, y) / count).backward()
            total += token_mean(output.detach(), y) / len(window)
        job.apply()
        losses.append(total)
    return losses


@wrong("reported losses", LINEAR, "GA-INV-001", reports=windows_losses)
def a_counter_beside_half_of_the_loss(run: Run) -> list[dict[str, Any]]:
    """Rows with a step number, as loggers have them, and the loss of the last micro-batch."""
    job, rows = LINEAR.start(run), []
    for window in job.windows():
        for x, y in window:
            loss = F.mse_loss(job.model(x), y) / len(window)
            loss.backward()
        job.apply()
        rows.append({"loss": loss.item()})
    return rows
