"""Steps with accumulators of their own: buffers, lists, dicts, hooks, and what narrow ones lose."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gradproof.shadow.tape.run import Run
from tests.soundness.kit import Job, accumulates, right, wrong
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


@right("own accumulators", MLP)
def a_dict_of_buffers(run: Run) -> None:
    """Buffers by name, made anew for each window."""
    job = MLP.start(run)
    for window in job.windows():
        sums = {name: torch.zeros_like(p) for name, p in job.model.named_parameters()}
        for x, y in window:
            (F.cross_entropy(job.model(x), y) / len(window)).backward()
            for name, p in job.model.named_parameters():
                sums[name] = sums[name] + p.grad
            job.zero()
        for name, p in job.model.named_parameters():
            p.grad = sums[name]
        job.apply()


@wrong("own accumulators", MLP, "GA-INV-002")
def a_dict_that_is_never_emptied(run: Run) -> None:
    """Buffers by name, made once."""
    job = MLP.start(run)
    sums = {name: torch.zeros_like(p) for name, p in job.model.named_parameters()}
    for window in job.windows():
        for x, y in window:
            (F.cross_entropy(job.model(x), y) / len(window)).backward()
            for name, p in job.model.named_parameters():
                sums[name] = sums[name] + p.grad
            job.zero()
        for name, p in job.model.named_parameters():
            p.grad = sums[name].clone()
        job.apply()


@wrong("own accumulators", LINEAR, "GA-INV-004")
def fp16_buffers(run: Run) -> None:
    """Half precision."""
    job = LINEAR.start(run)
    for window in job.windows():
        buffers = [torch.zeros_like(p, dtype=torch.float16) for p in job.parameters]
        accumulates(*buffers)
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
            for b, p in zip(buffers, job.parameters, strict=True):
                b += p.grad.half()
            job.zero()
        for b, p in zip(buffers, job.parameters, strict=True):
            p.grad = b.to(p.dtype)
        job.apply()


@wrong("own accumulators", MLP, "GA-INV-004")
def a_flat_bf16_buffer(run: Run) -> None:
    """One narrow buffer, put together by cat."""
    job = MLP.start(run)
    for window in job.windows():
        flat = torch.zeros(sum(p.numel() for p in job.parameters), dtype=torch.bfloat16)
        accumulates(flat)
        for x, y in window:
            (F.cross_entropy(job.model(x), y) / len(window)).backward()
            flat += torch.cat([g.flatten() for g in job.gradients]).bfloat16()
            job.zero()
        unflatten(job, flat.to(run.dtype))
        job.apply()


def unflatten(job: Job, flat: Tensor) -> None:
    """Hand a flat buffer out to the parameters."""
    parts = flat.split([p.numel() for p in job.parameters])
    for p, part in zip(job.parameters, parts, strict=True):
        p.grad = part.view_as(p).clone()


def flattened(job: Job) -> Tensor:
    """All gradients in a row."""
    return torch.cat([g.flatten() for g in job.gradients])


@right("own accumulators", MLP)
def float64_buffers(run: Run) -> None:
    """Wider than the gradients."""
    job = MLP.start(run)
    for window in job.windows():
        flat = torch.zeros(sum(p.numel() for p in job.parameters), dtype=torch.float64)
        for x, y in window:
            F.cross_entropy(job.model(x), y).backward()
            flat += flattened(job).double()
            job.zero()
        unflatten(job, (flat / len(window)).to(run.dtype))
        job.apply()


@right("own accumulators", LINEAR)
def views_of_a_flat_buffer(run: Run) -> None:
    """Each .grad is a view of one buffer, which is zeroed."""
    job = LINEAR.start(run)
    flat = torch.zeros(8, dtype=run.dtype)
    weight, bias = job.parameters
    weight.grad, bias.grad = flat[:6].view_as(weight), flat[6:].view_as(bias)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.optimizer.step()
        flat.zero_()


@wrong("own accumulators", LINEAR, "GA-INV-002")
def views_of_a_flat_buffer_zeroed_in_part(run: Run) -> None:
    """The last element of the buffer is left."""
    job = LINEAR.start(run)
    flat = torch.zeros(8, dtype=run.dtype)
    weight, bias = job.parameters
    weight.grad, bias.grad = flat[:6].view_as(weight), flat[6:].view_as(bias)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.optimizer.step()
        flat[:-1].zero_()


@right("own accumulators", LINEAR)
def einsum_of_shares(run: Run) -> None:
    """The mean is taken by einsum with a vector of shares."""
    job = LINEAR.start(run)
    for window in job.windows():
        kept = []
        for x, y in window:
            F.mse_loss(job.model(x), y).backward()
            kept.append(flattened(job))
            job.zero()
        shares = torch.full((len(window),), 1 / len(window), dtype=run.dtype)
        unflatten(job, torch.einsum("n,nd->d", shares, torch.stack(kept)))
        job.apply()


@wrong("own accumulators", LINEAR, "GA-EQ-001")
def einsum_of_wrong_shares(run: Run) -> None:
    """The last share is twice the first."""
    job = LINEAR.start(run)
    for window in job.windows():
        kept = []
        for x, y in window:
            F.mse_loss(job.model(x), y).backward()
            kept.append(flattened(job))
            job.zero()
        shares = torch.linspace(1, 2, len(window), dtype=run.dtype)
        unflatten(job, torch.einsum("n,nd->d", shares / shares.sum(), torch.stack(kept)))
        job.apply()


@right("own accumulators", LINEAR)
def a_padded_stack(run: Run) -> None:
    """Rows are padded before they are added."""
    job = LINEAR.start(run)
    for window in job.windows():
        flat = torch.zeros(10, dtype=run.dtype)
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
            flat += F.pad(flattened(job), (0, 2))
            job.zero()
        unflatten(job, flat[:8])
        job.apply()


@wrong("own accumulators", LINEAR, "GA-EQ-001")
def a_pad_that_moves_the_gradients(run: Run) -> None:
    """Every other micro-batch is padded on the other side."""
    job = LINEAR.start(run)
    for window in job.windows():
        flat = torch.zeros(10, dtype=run.dtype)
        for i, (x, y) in enumerate(window):
            (F.mse_loss(job.model(x), y) / len(window)).backward()
            flat += F.pad(flattened(job), (0, 2) if i % 2 == 0 else (2, 0))
            job.zero()
        unflatten(job, flat[:8])
        job.apply()


@wrong("own accumulators", LINEAR, "GA-EQ-001")
def a_stack_that_is_summed(run: Run) -> None:
    """A sum where the mean is meant."""
    job = LINEAR.start(run)
    for window in job.windows():
        kept = [torch.autograd.grad(F.mse_loss(job.model(x), y), job.parameters) for x, y in window]
        for p, gradients in zip(job.parameters, zip(*kept, strict=True), strict=True):
            p.grad = torch.stack(gradients).sum(0)
        job.apply()


@right("own accumulators", MLP)
def foreach_add(run: Run) -> None:
    """torch's own list operators."""
    job = MLP.start(run)
    for window in job.windows():
        sums = [torch.zeros_like(p) for p in job.parameters]
        for x, y in window:
            F.cross_entropy(job.model(x), y).backward()
            torch._foreach_add_(sums, job.gradients, alpha=1 / len(window))
            job.zero()
        for p, s in zip(job.parameters, sums, strict=True):
            p.grad = s
        job.apply()


@wrong("own accumulators", MLP, "GA-EQ-001")
def foreach_add_without_a_share(run: Run) -> None:
    """The same without the 1/N."""
    job = MLP.start(run)
    for window in job.windows():
        sums = [torch.zeros_like(p) for p in job.parameters]
        for x, y in window:
            F.cross_entropy(job.model(x), y).backward()
            torch._foreach_add_(sums, job.gradients)
            job.zero()
        for p, s in zip(job.parameters, sums, strict=True):
            p.grad = s
        job.apply()


@wrong("own accumulators", LINEAR, "GA-EQ-001")
def a_buffer_that_decays(run: Run) -> None:
    """An exponential average over the micro-batches."""
    job = LINEAR.start(run)
    for window in job.windows():
        flat = torch.zeros(8, dtype=run.dtype)
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
            flat = 0.9 * flat + flattened(job)
            job.zero()
        unflatten(job, flat)
        job.apply()


@right("own accumulators", LINEAR)
def a_running_mean(run: Run) -> None:
    """The mean is updated with each micro-batch."""
    job = LINEAR.start(run)
    for window in job.windows():
        flat = torch.zeros(8, dtype=run.dtype)
        for i, (x, y) in enumerate(window):
            F.mse_loss(job.model(x), y).backward()
            flat += (flattened(job) - flat) / (i + 1)
            job.zero()
        unflatten(job, flat)
        job.apply()


@wrong("own accumulators", LINEAR, "GA-EQ-001")
def a_running_mean_that_is_off_by_one(run: Run) -> None:
    """The first micro-batch gets half."""
    job = LINEAR.start(run)
    for window in job.windows():
        flat = torch.zeros(8, dtype=run.dtype)
        for i, (x, y) in enumerate(window):
            F.mse_loss(job.model(x), y).backward()
            flat += (flattened(job) - flat) / (i + 2)
            job.zero()
        unflatten(job, flat)
        job.apply()


@right("own accumulators", LINEAR)
def a_compensated_sum(run: Run) -> None:
    """Kahan's sum."""
    job = LINEAR.start(run)
    for window in job.windows():
        flat, lost = torch.zeros(8, dtype=run.dtype), torch.zeros(8, dtype=run.dtype)
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
            part = flattened(job) - lost
            total = flat + part
            lost = (total - flat) - part
            flat = total
            job.zero()
        unflatten(job, flat)
        job.apply()


@wrong("own accumulators", MLP, "GA-EQ-001")
def buffers_of_two_layers_swapped(run: Run) -> None:
    """The biases have the same shape; each gets the other's gradient from the second micro-batch on."""
    job = MLP.start(run)
    for window in job.windows():
        sums = [torch.zeros_like(p) for p in job.parameters]
        for i, (x, y) in enumerate(window):
            (F.cross_entropy(job.model(x), y) / len(window)).backward()
            order = [0, 1, 2, 3] if i == 0 else [0, 3, 2, 1]
            for s, k in zip(sums, order, strict=True):
                s += job.parameters[k].grad
            job.zero()
        for p, s in zip(job.parameters, sums, strict=True):
            p.grad = s
        job.apply()


@wrong("own accumulators", LINEAR, "GA-EQ-001")
def gradients_kept_without_a_copy(run: Run) -> None:
    """The list holds .grad itself, which the next zero_grad clears."""
    job = LINEAR.start(run)
    for window in job.windows():
        kept = []
        for x, y in window:
            job.optimizer.zero_grad(set_to_none=False)
            (F.mse_loss(job.model(x), y) / len(window)).backward()
            kept.append([p.grad for p in job.parameters])
        for p, gradients in zip(job.parameters, zip(*kept, strict=True), strict=True):
            p.grad = torch.stack(gradients).mean(0)
        job.apply()


@wrong("own accumulators", LINEAR, "GA-EQ-001")
def the_last_gradient_is_left_out(run: Run) -> None:
    """The last micro-batch is not added."""
    job = LINEAR.start(run)
    for window in job.windows():
        flat = torch.zeros(8, dtype=run.dtype)
        for i, (x, y) in enumerate(window):
            (F.mse_loss(job.model(x), y) / len(window)).backward()
            if i + 1 < len(window) or len(window) == 1:
                flat += flattened(job)
            job.zero()
        unflatten(job, flat)
        job.apply()
