"""DistributedDataParallel over gloo in real processes: KANI-GT-303 and FALSIFY-GT-303 of the training contract.

A collective is an all-reduce of DDP's reducer, seen by a communication hook that makes it as DDP would. The model fits
one bucket, so that a synchronised backward pass is one collective.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from gradproof.harness import Case, Cell, Observed, Place, Refutation, run_ranks, tell
from models.systems.torch_ddp import DdpJob
from symbolic.measured import Measured

SECONDS = 240.0
FUNCTION = "symbolic.systems.falsify_ddp:one_rank"
COLLECTIVE = "all-reduce"
Pair = tuple[Tensor, Tensor]


def model_of(seed: int) -> nn.Module:
    """The same model on every rank."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def batches_of(case: Case, rank: int) -> list[Pair]:
    """The micro-batches of a rank."""
    made = torch.Generator().manual_seed(1000 * case.seed + rank)
    count = case.windows * case.n + case.tail
    return [(torch.randn(2, 3, generator=made), torch.randn(2, 1, generator=made)) for _ in range(count)]


def one_rank(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Run the subject on this rank: its events by micro-batch, what each step applied, and the last weights."""
    case = Case.from_json(payload["case"])
    ddp = DistributedDataParallel(model_of(case.seed))
    events: list[tuple[str, int]] = []
    applied: dict[int, list[float]] = {}
    forwards = 0

    group = dist.group.WORLD
    assert group is not None

    def count(_: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        events.append((COLLECTIVE, forwards))
        return allreduce_hook(group, bucket)

    def before_forward(*_: Any) -> None:
        nonlocal forwards
        forwards += 1
        events.append(("forward", forwards))

    def before_step(*_: Any) -> None:
        events.append(("step", forwards))
        applied[forwards] = flat(p.grad for p in ddp.parameters())

    # DDP compares the hook's annotations with these classes, and here they are texts.
    count.__annotations__.update({"bucket": GradBucket, "return": torch.futures.Future[Tensor]})
    ddp.register_comm_hook(None, count)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.125)
    ddp.module.register_forward_pre_hook(before_forward)
    optimizer.register_step_pre_hook(before_step)
    batches = batches_of(case, dist.get_rank())
    payload["subject"]().run(DdpJob(ddp, optimizer, batches, case.n, nn.functional.mse_loss))
    return {"events": events, "applied": applied, "weights": flat(ddp.parameters())}


def flat(tensors: Any) -> list[float]:
    """All numbers of some tensors; a missing one is no number."""
    return [v for t in tensors if t is not None for v in t.detach().flatten().tolist()]


def windows_of(case: Case) -> list[range]:
    """The windows as ranges of micro-batches, the tail too."""
    count = case.windows * case.n + case.tail
    return [range(i, min(i + case.n, count)) for i in range(0, count, case.n)]


def full_batch(case: Case) -> list[list[float]]:
    """The gradient of each window over all ranks, in fp64, by a model that is trained on them."""
    model = model_of(case.seed).double()
    data = [batches_of(case, rank) for rank in range(case.ranks)]
    found = []
    for window in windows_of(case):
        inputs, targets = (torch.cat([rows[i][j] for rows in data for i in window]).double() for j in (0, 1))
        model.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        found.append(flat(p.grad for p in model.parameters()))
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(0.125 * torch.as_tensor(p.grad))
    return found


class OneSyncAWindow(Measured):
    """FALSIFY-GT-303: one all-reduce a window, at its last micro-batch; ranks agree bit for bit and have the mean."""

    clause = "GA-SYNC-001"
    reached = ("2 ranks", "4 ranks", "a tail", "a window of several")

    def cases(self, cell: Cell, place: Place) -> Sequence[Case]:
        case = Case(cell.net, cell.n, windows=2, tail=cell.n // 2, ranks=2)
        return [case] if cell.n < 4 else [case, replace(case, windows=1, ranks=4)]

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        ranks = run_ranks(FUNCTION, {"subject": subject, "case": case.to_json()}, case.ranks, SECONDS)
        for event, micro_batch in ranks[0]["events"]:
            tell(event, micro_batch)
        due = [window.stop for window in windows_of(case)]
        for rank, seen in enumerate(ranks):
            made = [micro_batch for event, micro_batch in seen["events"] if event == COLLECTIVE]
            if made != due:
                detail = f"rank {rank} made {len(made)} collectives, in micro-batches {made}"
                raise Refutation(self.clause, f"{detail}; one a window is due, in {due}")
            if seen["applied"] != ranks[0]["applied"] or seen["weights"] != ranks[0]["weights"]:
                raise Refutation(self.clause, f"ranks 0 and {rank} do not agree bit for bit")
        rows = []
        for window, full in zip(windows_of(case), full_batch(case), strict=True):
            got = ranks[0]["applied"].get(window.stop, [])
            if len(got) != len(full):
                raise Refutation(self.clause, f"no gradient was applied after micro-batch {window.stop}")
            error = max(abs(a - b) for a, b in zip(got, full, strict=True))
            if not error <= place.tolerances[self.clause]:
                raise Refutation(self.clause, f"{error:.3g} from the mean over all ranks after {window.stop}")
            rows.append(self.row(case, place, "end to end", error, place.tolerances[self.clause]))
        saved = case.windows * case.n + case.tail - len(due)
        rows.append(self.row(case, place, "collectives saved", saved, saved))
        named = {"a tail": case.tail > 0, "a window of several": case.n > 1, f"{case.ranks} ranks": True}
        return Observed({name for name, yes in named.items() if yes}, rows)

    def row(self, case: Case, place: Place, column: str, measured: float, bound: float) -> dict[str, Any]:
        """One row of the table of measurements."""
        return {
            "column": column, "net": case.net, "n": case.n, "dtype": place.dtype, "device": place.device,
            "measured": measured, "bound": bound, "ratio": measured / bound if bound else None,
            "note": f"{case.ranks} ranks",
        }  # fmt: skip


one_sync_a_window = OneSyncAWindow()
