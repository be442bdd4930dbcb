"""Training functions for several ranks, right and wrong, by name: `right_...` and `wrong_...`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_reduce
from torch.nn.parallel import DistributedDataParallel

mse = nn.functional.mse_loss
Batches = list[tuple[Tensor, Tensor]]


def dealt(run: Any, rank: int, world: int) -> Batches:
    """Every rank draws all samples, and takes those that lie `world` apart."""
    x, y = torch.randn(run.samples * world, 3), torch.randn(run.samples * world, 2)
    size = run.micro_batch_size
    return list(zip(x[rank::world].split(size), y[rank::world].split(size), strict=True))


def own(run: Any, rank: int, world: int) -> Batches:
    """Every rank draws its own samples."""
    torch.manual_seed(run.seed + 100 + rank)
    size = run.micro_batch_size
    return [(torch.randn(size, 3), torch.randn(size, 2)) for _ in range(run.micro_batches)]


def same(run: Any, rank: int, world: int) -> Batches:
    """Every rank draws the same samples."""
    return own(run, 0, world)


def of_numpy(run: Any, rank: int, world: int) -> Batches:
    """Every rank makes samples of its own with NumPy."""
    numbers = np.random.default_rng(run.seed + rank)
    x, y = (torch.from_numpy(numbers.standard_normal((run.samples, n)).astype("f")) for n in (3, 2))
    return list(zip(x.split(run.micro_batch_size), y.split(run.micro_batch_size), strict=True))


def of_numpy_same(run: Any, rank: int, world: int) -> Batches:
    """Every rank makes the same samples with NumPy."""
    return of_numpy(run, 0, world)


def met_later(run: Any, rank: int, world: int) -> Batches:
    """The second rank reads in each window what the first one reads in the next."""
    made = []
    for i in range(run.micro_batches):
        torch.manual_seed(run.seed + i // run.accum_steps + rank + 10 * (i % run.accum_steps))
        made.append((torch.randn(run.micro_batch_size, 3), torch.randn(run.micro_batch_size, 2)))
    return made


def windows_turned(run: Any, rank: int, world: int) -> Batches:
    """The ranks read the same samples, each in another window."""
    made = of_numpy(run, 0, world)
    return made[run.accum_steps :] + made[: run.accum_steps] if rank else made


def by_hand(
    run: Any,
    reduce: Callable[[nn.Module, int, int, int], None],
    data: Callable[..., Batches] = dealt,
    before: Callable[[nn.Module], object] = lambda _: None,
    seeds: int = 0,
    decay: int = -1,
    ruined: int = -1,
    zero: bool = True,
) -> list[Tensor]:
    """A loop without a wrapper: `reduce` gets the model, rank, world and window when the gradients are summed."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(run.seed + seeds * rank)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    batches, losses = data(run, rank, world), []
    for window, start in enumerate(range(0, len(batches), run.accum_steps)):
        part = batches[start : start + run.accum_steps]
        if zero:
            optimizer.zero_grad()
        total = torch.zeros(())
        for x, y in part:
            share = mse(model(x), y) / len(part)
            share.backward()
            total = total + share.detach()
        before(model)
        reduce(model, rank, world, window)
        optimizer.step()
        if rank == decay:
            with torch.no_grad():
                model.weight.mul_(0.9)
        losses.append(total)
    if rank == ruined:
        with torch.no_grad():
            model.weight.mul_(0.5)
    dist.destroy_process_group()
    return losses


def mean(model: nn.Module, rank: int, world: int, window: int) -> None:
    """The mean of the ranks' gradients."""
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world


def total(model: nn.Module, rank: int, world: int, window: int) -> None:
    """Their sum."""
    for p in model.parameters():
        dist.all_reduce(p.grad)


def first_window(model: nn.Module, rank: int, world: int, window: int) -> None:
    """Their mean, in the first window alone."""
    if window == 0:
        mean(model, rank, world, window)


def weight_only(model: nn.Module, rank: int, world: int, window: int) -> None:
    """Their mean, without the bias."""
    dist.all_reduce(model.weight.grad)
    model.weight.grad /= world


def largest(model: nn.Module, rank: int, world: int, window: int) -> None:
    """The largest of the ranks' gradients."""
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.MAX)


def to_the_first(model: nn.Module, rank: int, world: int, window: int) -> None:
    """Their mean, on the first rank, which sends it to all."""
    for p in model.parameters():
        dist.reduce(p.grad, 0)
        p.grad /= world
        dist.broadcast(p.grad, 0)


def in_one_buffer(model: nn.Module, rank: int, world: int, window: int) -> None:
    """Their mean, summed in one flat buffer."""
    flat, at = nn.utils.parameters_to_vector([p.grad for p in model.parameters()]), 0
    dist.all_reduce(flat)
    for p in model.parameters():
        p.grad.copy_(flat[at : at + p.numel()].view_as(p) / world)
        at += p.numel()


def waited_for(model: nn.Module, rank: int, world: int, window: int) -> None:
    """Their mean, by collectives that are waited for together."""
    works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
    for work in works:
        work.wait()
    for p in model.parameters():
        p.grad /= world


def functional(model: nn.Module, rank: int, world: int, window: int) -> None:
    """Their mean, by a collective that writes nothing."""
    for p in model.parameters():
        p.grad.copy_(all_reduce(p.grad, "sum", dist.group.WORLD) / world)


def gathered(model: nn.Module, rank: int, world: int, window: int) -> None:
    """Their mean, of what all ranks sent to each."""
    for p in model.parameters():
        every = p.grad.new_empty(world * p.grad.numel())
        dist.all_gather_into_tensor(every, p.grad.flatten())
        p.grad.copy_((every[: p.numel()] + every[p.numel() :]).view_as(p) / world)


def never(model: nn.Module, rank: int, world: int, window: int) -> None:
    """Each rank steps by its own gradient."""


def by_rank(model: nn.Module, rank: int, world: int, window: int) -> None:
    """Their mean, to which each rank adds its number."""
    mean(model, rank, world, window)
    for p in model.parameters():
        p.grad += rank


def wrapped(
    run: Any,
    scale: Callable[[int, int, int], float] = lambda n, world, rank: 1 / n,
    data: Callable[..., Batches] = dealt,
    hook: Any = None,
    seeds: int = 0,
    synced: Callable[[int, int], bool] = lambda k, n: k + 1 == n,
    rate: Callable[[int], float] = lambda rank: 0.1,
    returned: str = "own",
    **options: Any,
) -> list[Tensor]:
    """A loop with DistributedDataParallel; `scale` is given the micro-batches of the window, the world and the rank."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(run.seed + seeds * rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), **options)
    if hook is not None:
        model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate(rank))
    batches, losses = data(run, rank, world), []
    for start in range(0, len(batches), run.accum_steps):
        part = batches[start : start + run.accum_steps]
        optimizer.zero_grad()
        total = torch.zeros(())
        for k, (x, y) in enumerate(part):
            with nullcontext() if synced(k, len(part)) else model.no_sync():
                share = mse(model(x), y) * scale(len(part), world, rank)
                share.backward()
            total = total + share.detach()
        optimizer.step()
        if returned != "own":
            dist.all_reduce(total)
        if returned == "mean":
            total /= world
        losses.append(total)
    dist.destroy_process_group()
    return losses


def summed(bucket: Any) -> Any:
    """A sum over the ranks, in which their number is forgotten."""
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda future: future.value()[0])


def tokens(run: Any, counted: str) -> None:
    """A loss of tokens, some ignored: divided by those of all ranks, or of the own one."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(run.seed)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(run.seed + 50 + rank)
    batches = []
    for _ in range(run.micro_batches):
        ids = torch.randint(0, 7, (run.micro_batch_size, 6))
        gone = torch.rand(run.micro_batch_size, 5) < 0.3
        batches.append((ids[:, :-1], ids[:, 1:].masked_fill(gone, -100)))
    for start in range(0, len(batches), run.accum_steps):
        part = batches[start : start + run.accum_steps]
        optimizer.zero_grad()
        valid = torch.stack([(y != -100).sum() for _, y in part]).sum().float()
        if counted != "own":
            dist.all_reduce(valid)
        for k, (x, y) in enumerate(part):
            with nullcontext() if k + 1 == len(part) else model.no_sync():
                loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum") / valid
                (loss * world if counted == "all" else loss).backward()
        optimizer.step()
    dist.destroy_process_group()


def mean_of_a_gather(run: Any) -> list[Tensor]:
    """A mean of what all ranks sent."""
    return by_hand(run, gathered)


def right_mean(run: Any) -> Any:
    return by_hand(run, mean)


def right_mean_of_own_data(run: Any) -> Any:
    return by_hand(run, mean, own)


def right_mean_of_numpy(run: Any) -> Any:
    return by_hand(run, mean, of_numpy)


def right_by_the_first(run: Any) -> Any:
    return by_hand(run, to_the_first)


def right_in_one_buffer(run: Any) -> Any:
    return by_hand(run, in_one_buffer)


def right_waited_for(run: Any) -> Any:
    return by_hand(run, waited_for)


def right_functional(run: Any) -> Any:
    return by_hand(run, functional)


def right_wrapped(run: Any) -> Any:
    return wrapped(run, returned="mean")


def right_wrapped_own_data(run: Any) -> Any:
    return wrapped(run, data=own, seeds=5, gradient_as_bucket_view=True)


def right_small_buckets(run: Any) -> Any:
    return wrapped(run, bucket_cap_mb=1e-6)


def right_tokens(run: Any) -> Any:
    return tokens(run, "all")


def wrong_sum(run: Any) -> Any:
    return by_hand(run, total)


def wrong_sum_of_own_data(run: Any) -> Any:
    return by_hand(run, total, own)


def wrong_never(run: Any) -> Any:
    return by_hand(run, never)


def wrong_first_window_only(run: Any) -> Any:
    return by_hand(run, first_window)


def wrong_without_the_bias(run: Any) -> Any:
    return by_hand(run, weight_only)


def wrong_largest(run: Any) -> Any:
    return by_hand(run, largest)


def wrong_shifted_by_rank(run: Any) -> Any:
    return by_hand(run, by_rank)


def wrong_never_zeroed(run: Any) -> Any:
    return by_hand(run, mean, zero=False)


def wrong_first_weights_apart(run: Any) -> Any:
    return by_hand(run, mean, own, seeds=7)


def wrong_at_the_end(run: Any) -> Any:
    return by_hand(run, mean, ruined=1)


def wrong_seeds_meet(run: Any) -> Any:
    return by_hand(run, mean, met_later)


def wrong_rows_meet(run: Any) -> Any:
    return by_hand(run, mean, windows_turned)


def wrong_reported_sum(run: Any) -> Any:
    return wrapped(run, returned="sum")


def wrong_one_rank_decays(run: Any) -> Any:
    return by_hand(run, mean, decay=1)


def wrong_clipped_before_the_sum(run: Any) -> Any:
    return by_hand(run, mean, before=lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.05))


def wrong_same_numpy(run: Any) -> Any:
    return by_hand(run, mean, of_numpy_same)


def wrong_same_data(run: Any) -> Any:
    return wrapped(run, data=same)


def wrong_by_world(run: Any) -> Any:
    return wrapped(run, lambda n, world, rank: world / n)


def wrong_by_world_own_data(run: Any) -> Any:
    return wrapped(run, lambda n, world, rank: world / n, own)


def wrong_share_by_rank(run: Any) -> Any:
    return wrapped(run, lambda n, world, rank: (1 + rank) / n, own)


def wrong_synced_first(run: Any) -> Any:
    return wrapped(run, synced=lambda k, n: k == 0)


def wrong_hook(run: Any) -> Any:
    return wrapped(run, hook=lambda _, bucket: summed(bucket))


def wrong_rate_by_rank(run: Any) -> Any:
    return wrapped(run, rate=lambda rank: 0.1 * (rank + 1))


def wrong_own_tokens(run: Any) -> Any:
    return tokens(run, "own")


def wrong_tokens_without_world(run: Any) -> Any:
    return tokens(run, "all ranks, and no factor")


def ends_on_one_rank(run: Any) -> Any:
    def ill(model: nn.Module, rank: int, world: int, window: int) -> None:
        if rank == 1:
            raise ValueError("rank one is ill")
        mean(model, rank, world, window)

    return by_hand(run, ill)


def other_collectives(run: Any) -> Any:
    dist.init_process_group("gloo")
    held = torch.ones(2)
    if dist.get_rank():
        dist.all_reduce(held)
    else:
        dist.broadcast(held, 0)
    dist.destroy_process_group()
    return by_hand(run, mean)
