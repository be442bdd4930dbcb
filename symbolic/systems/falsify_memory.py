"""Peak memory of a window against its length: FALSIFY-GT-404 of the training contract.

On the CPU every allocation and release is reported by torch's own allocator to its profiler; their running sum has a
peak, in bytes, that does not depend on the machine. On CUDA it is the caching allocator's peak. Without accumulation,
which is a window of one, less is needed: the gradient is made when the step's only backward pass ends, while a second
micro-batch runs beside the gradient of the first. The difference is at most the bytes of the gradient and of the loss
that the loop still holds. From two micro-batches on the peak must stay where it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradproof.harness import Case, Cell, Observed, Place, Refutation
from models.systems.torch_memory import MemoryJob, OneAtATime
from symbolic.measured import Measured

FEWEST = 2
ROWS = 32
LOSS = 4  # bytes of the last loss, which the loop holds while the next micro-batch runs
GRANULE = {"cpu": 1, "cuda": 512}  # an allocation is a multiple of so many bytes
ABOVE = "bytes above a window of one"


def peak_on_cpu(run: Callable[[], Any]) -> int:
    """Most bytes that were alive at once during `run`, above what was alive before it."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with torch.autograd.profiler.profile(profile_memory=True) as seen:
        run()
    events = [e for e in seen.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: int(e.start_ns())):
        held += int(event.nbytes())
        most = max(most, held)
    return most


def peak_on_cuda(run: Callable[[], Any]) -> int:
    """The same by CUDA's caching allocator."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


PEAK = {"cpu": peak_on_cpu, "cuda": peak_on_cuda}


def job_of(net: str, n: int, device: str) -> MemoryJob:
    """A window of n micro-batches of 32 rows. Raises ValueError for another net than mlp."""
    if net != "mlp":
        raise ValueError(f"no net {net!r}; known: mlp")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 8)).to(device)

    def fetch(_: int) -> tuple[Tensor, Tensor]:
        return torch.randn(ROWS, 16, device=device), torch.randn(ROWS, 8, device=device)

    return MemoryJob(model, torch.optim.AdamW(model.parameters()), nn.functional.mse_loss, fetch, n)


def measure(subject: Any, net: str, n: int, device: str) -> tuple[int, int]:
    """Peak bytes of a window of the subject, and how many micro-batches it fetched; the optimizer state is there."""
    job, fetched = job_of(net, n, device), 0
    OneAtATime().run(MemoryJob(job.model, job.optimizer, job.loss, job.fetch, 1))
    job.optimizer.zero_grad()

    def fetch(i: int) -> tuple[Tensor, Tensor]:
        nonlocal fetched
        fetched += 1
        return job.fetch(i)

    counted = MemoryJob(job.model, job.optimizer, job.loss, fetch, n)
    return PEAK[device](lambda: subject().run(counted)), fetched


def gradient_bytes(net: str, device: str) -> int:
    """Bytes that the gradients of all weights of the net take."""
    weights = job_of(net, 1, device).model.parameters()
    return sum(allotted(p.numel() * p.element_size(), device) for p in weights)


def allotted(size: int, device: str) -> int:
    """What the device's allocator counts for a tensor of `size` bytes."""
    return -(-size // GRANULE[device]) * GRANULE[device]


class PeakMemory(Measured):
    """FALSIFY-GT-404: the peak of a window of N is the peak of a window of two."""

    clause = "GA-MEM-001"
    reached = ("a window of one", "a window of 32")

    def cases(self, cell: Cell, place: Place) -> Sequence[Case]:
        return [Case(cell.net, cell.n)]

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        peak, fetched = measure(subject, case.net, case.n, place.device)
        alone, least = (measure(subject, case.net, n, place.device)[0] for n in (1, FEWEST))
        gradient = gradient_bytes(case.net, place.device)
        if fetched != case.n:
            raise Refutation(self.clause, f"{fetched} micro-batches were fetched for a window of {case.n}")
        if peak > least:
            detail = f"peak memory grows: {least} bytes at N = {FEWEST}, {peak} at N = {case.n}"
            raise Refutation(self.clause, detail, {"peak": peak, "at two": least})
        if peak - alone > gradient + allotted(LOSS, place.device):
            detail = f"accumulation adds {peak - alone} bytes to the peak, and the gradient has {gradient}"
            raise Refutation(self.clause, detail, {"peak": peak, "at one": alone})
        if min(peak, alone) <= 0:
            raise ValueError("the allocator reported nothing, so nothing was measured")
        where = {"net": case.net, "n": case.n, "dtype": place.dtype, "device": place.device}
        above = peak - alone
        rows = [
            {"column": "peak bytes", **where, "measured": peak, "bound": least, "ratio": peak / least, "note": ""},
            {"column": ABOVE, **where, "measured": above, "bound": gradient, "ratio": above / gradient, "note": ""},
        ]
        named = {1: "a window of one", 32: "a window of 32"}
        return Observed({named[case.n]} if case.n in named else set(), rows)


peak_memory = PeakMemory()
