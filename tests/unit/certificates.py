"""Certificates of small loops, as records, and ways to tamper with them."""

from __future__ import annotations

import copy
import hashlib
import json
import zlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from gradproof.evidence.certificate import Malformed, checked
from gradproof.shadow.follow.facts import Hints
from gradproof.shadow.follow.group import Exchange, Group
from gradproof.shadow.follow.terms import Terms
from gradproof.shadow.judge import followed
from gradproof.shadow.judge.followed import with_numbers, without_numbers
from gradproof.shadow.judge.two_runs import run_of
from gradproof.shadow.request import Request

Records = list[list[Any]]


def small(run: Any, bug: str = "", reduction: str = "mean") -> None:
    """Two layers, AdamW, clipping by norm, and zeroing in place; with a bug where one is asked for."""
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    inputs, targets = torch.randn(run.samples, 3), torch.randn(run.samples, 2)
    size, parameters = run.micro_batch_size, list(net.parameters())
    own = [torch.zeros_like(p, dtype=torch.bfloat16) for p in parameters]
    for i in range(run.micro_batches):
        first = i // run.accum_steps * run.accum_steps
        number = min(run.accum_steps, run.micro_batches - first)
        start = (first if bug == "same" else i) * size
        rows, last = slice(start, start + size), i + 1 - first == number
        loss = nn.functional.mse_loss(net(inputs[rows]), targets[rows], reduction=reduction)
        by = {"share": 1, "tail": run.accum_steps, "last": number if last else 1}.get(bug, number)
        (loss / (by if reduction == "mean" else 1)).backward()
        loss.item()
        if bug == "clip":
            nn.utils.clip_grad_norm_(parameters, 0.5)
        if bug == "narrow":
            narrowed(own, parameters, last)
        if last:
            stepped(optimizer, parameters, bug)


def narrowed(own: list[Tensor], parameters: list[nn.Parameter], last: bool) -> None:
    """Gradients are added up in buffers, and come from there at the end of a window."""
    for buffer, p in zip(own, parameters, strict=True):
        buffer += p.grad
        p.grad = buffer.float() if last else None
        if last:
            buffer.zero_()


def stepped(optimizer: Any, parameters: list[nn.Parameter], bug: str) -> None:
    """The end of a window."""
    if bug != "clip":
        nn.utils.clip_grad_norm_(parameters[:1] if bug == "some" else parameters, 0.5)
    gradients = [p.grad for p in parameters if p.grad is not None]
    if bug == "twice":
        gradients[0] *= 2
    optimizer.step()
    if bug == "view":
        for gradient in gradients:
            gradient.view(-1).zero_()
    elif bug != "stale":
        optimizer.zero_grad(set_to_none=False)


def text_of(step: Callable[[Any], Any], **options: Any) -> bytes:
    """The certificate of a loop."""
    request, terms, lines = Request(**options), Terms(), list[str]()
    run = run_of(request)
    follow = without_numbers if request.fake else partial(with_numbers, {}, Exchange(Group(), terms))
    found = follow(step, run, terms, run.micro_batch_size, 0, Hints(log=lines))
    assert found.error == ""
    return followed.text(lines)


@cache
def _text(bug: str, options: tuple[tuple[str, Any], ...]) -> bytes:
    rest = dict(options)
    reduction = rest.pop("reduction", "mean")
    return text_of(lambda run: small(run, bug, reduction), **rest)


def text(bug: str = "", **options: Any) -> bytes:
    """The certificate of the small loop."""
    return _text(bug, tuple(sorted(options.items())))


def records_of(data: bytes) -> Records:
    """The records of a certificate."""
    return [json.loads(line) for line in zlib.decompress(data).decode().splitlines()[1:]]


def number(reference: dict[str, int]) -> int:
    """The number of a tensor."""
    return reference["tensor"]


def sealed(records: Records) -> bytes:
    """A certificate of records, with the right digest."""
    body = "".join(f"{json.dumps(one, separators=(',', ':'))}\n" for one in records).encode()
    return zlib.compress(hashlib.sha256(body).hexdigest().encode() + b"\n" + body, 9)


def consistent(records: Records) -> Records:
    """The same records with the right count, as somebody would forge them who knows the format."""
    records = copy.deepcopy(records)
    records[-1][1] = len(records) - 1
    return records


def statuses(data: bytes) -> dict[str, str]:
    """The status of each obligation; of no certificate it is malformed."""
    try:
        return {name: status for name, status, _ in checked(data).verdicts()}
    except Malformed:
        return {"": "malformed"}


def operators(records: Records, *names: str) -> Iterator[int]:
    """The places of some operators."""
    return (at for at, one in enumerate(records) if one[0] == "operator" and one[1] in names)


def places(records: Records, kind: str) -> list[int]:
    """The places of records of a kind."""
    return [at for at, one in enumerate(records) if one[0] == kind]
