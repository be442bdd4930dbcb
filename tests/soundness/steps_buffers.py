"""Steps with accumulators of their own: buffers, lists, dicts, hooks, and what narrow ones lose."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from gradproof.shadow.run import Run
from tests.soundness.kit import accumulates, right, wrong
from tests.soundness.tasks import LINEAR, MLP


@right("own accumulators", LINEAR)
def fp32_buffers(run: Run) -> None:
    """A buffer of each parameter."""
    job = LINEAR.start(run)
    buffers = [torch.zeros_like(p) for p in job.parameters]
    accumulates(*buffers)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
            for b, p in zip(buffers, job.parameters, strict=True):
                b += p.grad
            job.zero()
        for b, p in zip(buffers, job.parameters, strict=True):
            p.grad = b.clone()
            b.zero_()
        job.apply()


@wrong("own accumulators", MLP, "GA-INV-004")
def bf16_buffers(run: Run) -> None:
    """The buffers are narrower than the gradients."""
    job = MLP.start(run)
    buffers = [torch.zeros_like(p, dtype=torch.bfloat16) for p in job.parameters]
    accumulates(*buffers)
    for window in job.windows():
        for x, y in window:
            (F.cross_entropy(job.model(x), y) / len(window)).backward()
            for b, p in zip(buffers, job.parameters, strict=True):
                b += p.grad
            job.zero()
        for b, p in zip(buffers, job.parameters, strict=True):
            p.grad = b.to(p.dtype)
            b.zero_()
        job.apply()


@right("own accumulators", LINEAR)
def a_flat_buffer(run: Run) -> None:
    """One buffer of all parameters, put together by cat."""
    job = LINEAR.start(run)
    for window in job.windows():
        flat = torch.zeros(sum(p.numel() for p in job.parameters), dtype=run.dtype)
        accumulates(flat)
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
            flat += torch.cat([g.flatten() for g in job.gradients])
            job.zero()
        at = 0
        for p in job.parameters:
            p.grad = flat[at : at + p.numel()].view_as(p).clone()
            at += p.numel()
        job.apply()


@wrong("own accumulators", LINEAR, "GA-INV-002")
def a_flat_buffer_that_is_never_emptied(run: Run) -> None:
    """The second window begins with the gradients of the first."""
    job = LINEAR.start(run)
    flat = torch.zeros(sum(p.numel() for p in job.parameters), dtype=run.dtype)
    accumulates(flat)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
            flat += torch.cat([g.flatten() for g in job.gradients])
            job.zero()
        at = 0
        for p in job.parameters:
            p.grad = flat[at : at + p.numel()].view_as(p).clone()
            at += p.numel()
        job.apply()


@right("own accumulators", LINEAR)
def a_list_of_gradients(run: Run) -> None:
    """The gradients of all micro-batches are kept, and their mean is taken."""
    job = LINEAR.start(run)
    for window in job.windows():
        kept = []
        for x, y in window:
            kept.append(torch.autograd.grad(F.mse_loss(job.model(x), y), job.parameters))
        for p, gradients in zip(job.parameters, zip(*kept, strict=True), strict=True):
            p.grad = torch.stack(gradients).mean(0)
        job.apply()


@wrong("own accumulators", LINEAR, "GA-INV-004")
def a_list_of_bf16_gradients(run: Run) -> None:
    """They are kept in half the bits, and summed there."""
    job = LINEAR.start(run)
    for window in job.windows():
        kept = []
        for x, y in window:
            made = torch.autograd.grad(F.mse_loss(job.model(x), y), job.parameters)
            kept.append([g.to(torch.bfloat16) for g in made])
        for p, gradients in zip(job.parameters, zip(*kept, strict=True), strict=True):
            accumulates(gradients[0])
            p.grad = torch.stack(gradients).mean(0).to(p.dtype)
        job.apply()
