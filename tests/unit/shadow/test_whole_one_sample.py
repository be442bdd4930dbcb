"""Micro-batches of one sample, counts of other windows, padded buffers, and steps that ignore the numbers of `run`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradproof.core.outcome import Outcome
from gradproof.shadow.follow.interpreter import Interpreter
from gradproof.shadow.follow.terms import Terms
from gradproof.shadow.follow.values import Value, relocated
from gradproof.shadow.tape.run import Run
from tests.checked import check

HOLDS, REFUTED, OUTSIDE = Outcome.HOLDS, Outcome.REFUTED, Outcome.OUTSIDE
EQ, STALE, STEPS, DATA = "GA-EQ-001", "GA-INV-002", "GA-INV-003", "GA-DATA-001"
Batch = tuple[Tensor, Tensor]
Step = Callable[[Run], None]
IGNORED = -100


class Tied(nn.Module):
    """An embedding that is the head as well."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.mixed = nn.Embedding(7, 4), nn.Linear(4, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.tanh(self.mixed(self.embedding(tokens))) @ self.embedding.weight.T


def tokens(run: Run) -> Iterator[list[Batch]]:
    """Windows of tokens; each sample has another number of labels that count."""
    x, y = torch.randint(0, 7, (run.samples, 5)), torch.randint(0, 7, (run.samples, 5))
    lengths = torch.tensor([1 + i % 5 for i in range(run.samples)])
    yield from windowed(run, x, y.masked_fill(torch.arange(5) >= lengths[:, None], IGNORED))


def windowed(run: Run, x: Tensor, y: Tensor) -> Iterator[list[Batch]]:
    size, n = run.micro_batch_size, run.accum_steps
    batches = list(zip(x.split(size), y.split(size), strict=True))
    yield from (batches[i : i + n] for i in range(0, len(batches), n))


def token_sum(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out.flatten(0, 1), y.flatten(), ignore_index=IGNORED, reduction="sum")


def started(run: Run, model: nn.Module) -> tuple[nn.Module, list[nn.Parameter], torch.optim.Optimizer]:
    made = model.to(run.dtype)
    return made, list(made.parameters()), torch.optim.SGD(made.parameters(), lr=0.1)


def in_a_flat_buffer(run: Run, factor: float = 1.0, pad: int = 0, cut: int = 0) -> None:
    """Gradients are added in one row, which may be padded, and taken out again `cut` numbers too late."""
    model, params, optimizer = started(run, Tied())
    for window in tokens(run):
        total = sum((y != IGNORED).sum() for _, y in window)
        flat = torch.zeros(sum(p.numel() for p in params) + 2 * pad, dtype=run.dtype)
        for x, y in window:
            (factor * token_sum(model(x), y) / total).backward()
            flat += F.pad(torch.cat([p.grad.flatten() for p in params if p.grad is not None]), (pad, pad))
            optimizer.zero_grad()
        start = pad + cut
        for p in params:
            p.grad = flat[start : start + p.numel()].view_as(p).clone()
            start += p.numel()
        optimizer.step()
        optimizer.zero_grad()


def kept(run: Run, joined: Callable[[Tensor], Tensor]) -> None:
    """Gradients are kept, and put together at the end of a window."""
    model, params, optimizer = started(run, nn.Linear(3, 4))
    weights = torch.tensor([1.0, 2.0, 0.5, 1.5], dtype=run.dtype)
    for window in windowed(run, torch.randn(run.samples, 3, dtype=run.dtype), torch.randint(0, 4, (run.samples,))):
        total = sum(weights[y].sum() for _, y in window)
        made = [
            torch.autograd.grad(F.cross_entropy(model(x), y, weight=weights, reduction="sum") / total, params)
            for x, y in window
        ]
        for p, parts in zip(params, zip(*made, strict=True), strict=True):
            p.grad = joined(torch.stack(parts))
        optimizer.step()


def outcome(step: Step, obligation: str = EQ, **options: Any) -> Outcome:
    """The outcome of an obligation."""
    return check(step, **options).result(obligation).outcome


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("pad", [0, 2])
def test_a_flat_buffer_of_tied_weights(size: int, pad: int) -> None:
    assert outcome(lambda run: in_a_flat_buffer(run, pad=pad), micro_batch=size) is HOLDS
    assert outcome(lambda run: in_a_flat_buffer(run, pad=pad), STEPS, micro_batch=size) is HOLDS


@pytest.mark.parametrize("size", [1, 2])
def test_a_flat_buffer_that_is_scaled_by_the_number_of_micro_batches(size: int) -> None:
    assert outcome(lambda run: in_a_flat_buffer(run, run.accum_steps), micro_batch=size) is REFUTED


@pytest.mark.parametrize("size", [1, 2])
def test_a_norm_is_that_of_the_gradients_that_it_scales(size: int) -> None:
    def clipped(run: Run) -> None:
        model, params, optimizer = started(run, nn.Linear(3, 2))
        x, y = torch.randn(run.samples, 3, dtype=run.dtype), torch.randint(0, 2, (run.samples, 2)).to(run.dtype)
        for window in windowed(run, x, y):
            for a, b in window:
                (F.binary_cross_entropy_with_logits(model(a), b) / len(window)).backward()
            nn.utils.clip_grad_norm_(params, 0.1)
            optimizer.step()
            optimizer.zero_grad()

    assert outcome(clipped, "GA-INV-005", micro_batch=size) is HOLDS


def test_a_slice_goes_into_a_padded_tensor_only_where_all_of_it_is() -> None:
    x = Interpreter(Terms())
    inner = x.terms.make("data", ("x", (None, None)), (), (4, 3), 0)
    padded = x.terms.make("constant_pad_nd", (0, (("tensor",), (0, 0, 2, 1), 0), ()), (inner,), (7, 3))
    assert x.slice(padded, 0, 2, 4, 1) == inner
    assert x.slice(padded, 0, 3, 2, 1) == x.slice(inner, 0, 1, 2, 1)
    for start, count in ((1, 4), (3, 4), (0, 2), (6, 1)):
        assert x.terms.operators[x.slice(padded, 0, start, count, 1)] == "slice"
        assert x.terms.kids[x.slice(padded, 0, start, count, 1)] == (padded,)
    wide = x.terms.make("constant_pad_nd", (0, (("tensor",), (1, 1, 2, 1), 0), ()), (inner,), (7, 5))
    assert x.terms.kids[x.slice(wide, 0, 2, 4, 1)] == (wide,)
    assert outcome(lambda run: in_a_flat_buffer(run, pad=2, cut=1), DATA) is not REFUTED


@pytest.mark.parametrize("size", [1, 2])
def test_gradients_that_are_kept_are_added(size: int) -> None:
    """With one sample a micro-batch the full batch has as many samples as there are classes."""
    assert outcome(lambda run: kept(run, lambda parts: parts.sum(0)), micro_batch=size) is HOLDS
    assert outcome(lambda run: kept(run, lambda parts: parts.mean(0)), micro_batch=size) is REFUTED
    assert outcome(lambda run: kept(run, lambda parts: parts[-1]), micro_batch=size) is REFUTED


def test_named_sums_are_taken_apart_beneath_movements_alone() -> None:
    x = Interpreter(Terms())
    one, two = (x.terms.make("data", (name, (None, None)), (), (2, 3), 0) for name in "xy")
    both = x.terms.named({one: Fraction(1), two: Fraction(3)}, (2, 3))
    moved = x.slice(x.permuted(x.reshaped(both, (3, 2)), (1, 0)), 0, 0, 1, 1)
    apart = {x.slice(x.permuted(x.reshaped(t, (3, 2)), (1, 0)), 0, 0, 1, 1): by for t, by in ((one, 1), (two, 3))}
    assert x.distributed({moved: Fraction(2)}) == {term: 2 * by for term, by in apart.items()}
    bent = x.terms.make("tanh", (0, (), ()), (both,), (2, 3))
    assert x.distributed({bent: Fraction(1)}) == {bent: 1}
    once = x.terms.named({one: Fraction(3)}, (2, 3))
    assert x.distributed({x.reshaped(once, (6,)): Fraction(1)}) == {x.reshaped(one, (6,)): 3}


@pytest.mark.parametrize(
    ("axis", "rows", "turns", "old", "new", "found"),
    [
        (1, 1, 1, (5, 1, 2), (5, 2), 0),  # a recurrence with time first
        (0, 5, 5, (5, 8), (5, 1, 8), 1),
        (1, 1, 1, (5, 1, 6), (5, 2, 3), 1),  # heads of attention with time first
        (0, 5, 1, (5, 12), (1, 5, 12), 0),
        (0, 1, 1, (1, 5, 4), (5, 4), 0),
        (0, 1, 1, (1, 2, 3, 3), (1, 18), 0),
    ],
)
def test_one_sample_lies_where_several_would(
    axis: int, rows: int, turns: int, old: tuple[int, ...], new: tuple[int, ...], found: int
) -> None:
    one = Value(({0: Fraction(1)},), axis, rows, turns)
    assert relocated(one, old, new)[0] == found


# Counts


def divided(run: Run, counted: Callable[[list[list[Batch]], int], Any]) -> None:
    """Sums over tokens, divided by a number of the windows."""
    model, _, optimizer = started(run, Tied())
    windows = list(tokens(run))
    for at, window in enumerate(windows):
        for x, y in window:
            (token_sum(model(x), y) / counted(windows, at)).backward()
        optimizer.step()
        optimizer.zero_grad()


def labels(window: list[Batch]) -> Any:
    return sum((y != IGNORED).sum() for _, y in window)


def test_a_window_that_is_divided_by_the_count_of_another() -> None:
    assert outcome(lambda run: divided(run, lambda windows, at: labels(windows[at]))) is HOLDS
    first = check(lambda run: divided(run, lambda windows, at: labels(windows[0]))).result(EQ)
    assert first.outcome is REFUTED
    assert first.location is not None
    assert first.location.function == "divided"
    assert outcome(lambda run: divided(run, lambda windows, at: sum(map(labels, windows[: at + 1])))) is REFUTED


def test_one_number_for_all_windows_is_not_refuted() -> None:
    assert (
        outcome(lambda run: divided(run, lambda windows, at: sum(map(labels, windows)) / len(windows))) is not REFUTED
    )
    assert outcome(lambda run: divided(run, lambda windows, at: 20.0)) is HOLDS


# Steps that ignore the numbers of run, and steps without an optimizer


def ignoring(run: Run, share: float, zeroed: bool = True) -> None:
    model, _, optimizer = started(run, nn.Linear(3, 2))
    x, y = torch.randn(16, 3, dtype=run.dtype), torch.randn(16, 2, dtype=run.dtype)
    for i in range(8):
        (F.mse_loss(model(x[2 * i : 2 * i + 2]), y[2 * i : 2 * i + 2]) * share).backward()
        if i % 4 == 3:
            optimizer.step()
            if zeroed:
                optimizer.zero_grad()


@pytest.mark.parametrize(("share", "zeroed", "refuted"), [(1.0, True, EQ), (0.25, False, STALE)])
def test_one_run_refutes_a_step_that_ignores_run(share: float, zeroed: bool, refuted: str) -> None:
    found = check(lambda run: ignoring(run, share, zeroed))
    assert {r.obligation for r in found.results if r.outcome is REFUTED} == {refuted}
    assert found.result(refuted).location is not None


def test_a_step_after_each_micro_batch_that_never_reads_how_many_there_are_is_refuted() -> None:
    def step(run: Run) -> None:
        model, _, optimizer = started(run, nn.Linear(3, 2))
        x, y = torch.randn(run.samples, 3, dtype=run.dtype), torch.randn(run.samples, 2, dtype=run.dtype)
        for a, b in zip(x.split(run.micro_batch_size), y.split(run.micro_batch_size), strict=True):
            F.mse_loss(model(a), b).backward()
            optimizer.step()
            optimizer.zero_grad()

    found = check(step)
    assert {r.obligation for r in found.results if r.outcome is REFUTED} == {"GA-INV-003"}


def test_a_right_step_that_ignores_run_is_not_decided() -> None:
    found = check(lambda run: ignoring(run, 0.25))
    assert {r.outcome for r in found.results if r.applies} == {OUTSIDE}


def by_hand(run: Run, skipped: int) -> None:
    """SGD in the loop's own words; gradients are zeroed before the next forward pass."""
    model, params, _ = started(run, nn.Linear(3, 2))
    x, y = torch.randn(run.samples, 3, dtype=run.dtype), torch.randn(run.samples, 2, dtype=run.dtype)
    for window in windowed(run, x, y):
        for k, (a, b) in enumerate(window):
            if k != skipped or len(window) == 1:
                (F.mse_loss(model(a), b) / len(window)).backward()
        with torch.no_grad():
            for p in params:
                assert p.grad is not None
                p -= 0.1 * p.grad
                p.grad.zero_()


def test_gradients_that_are_zeroed_behind_a_step_by_hand_are_compared() -> None:
    assert outcome(lambda run: by_hand(run, -1)) is HOLDS
    assert outcome(lambda run: by_hand(run, 1)) is REFUTED


# Recurrences


class Recurrent(nn.Module):
    """An LSTM over embedded tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(7, 2), nn.LSTM(2, 2, batch_first=True)
        self.head = nn.Linear(2, 7)

    def forward(self, given: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(given))[0])


def recurrent(run: Run, by_window: bool) -> None:
    """Sums over tokens, divided by those of the window, or of the micro-batch."""
    model, _, optimizer = started(run, Recurrent())
    for window in tokens(run):
        for x, y in window:
            (token_sum(model(x), y) / (labels(window) if by_window else (y != IGNORED).sum() * len(window))).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("samples", [1, 2])
def test_a_recurrence(samples: int) -> None:
    assert outcome(lambda run: recurrent(run, True), micro_batch=samples) is HOLDS
    assert outcome(lambda run: recurrent(run, False), micro_batch=samples) is REFUTED


def in_columns(run: Run, mixed: bool) -> None:
    """Features are written into columns of a buffer; those of another sample where it is `mixed`."""
    model, _, optimizer = started(run, nn.Sequential(nn.Linear(3, 4), nn.Linear(6, 2)))
    first, second = model.children()
    x, y = torch.randn(run.samples, 3, dtype=run.dtype), torch.randn(run.samples, 2, dtype=run.dtype)
    for window in windowed(run, x, y):
        for a, b in window:
            made = torch.zeros(len(a), 6, dtype=run.dtype)
            made[:, 1:5] = torch.tanh(first(a.flip(0) if mixed else a))
            (F.mse_loss(second(made), b) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_columns_of_a_buffer_are_those_of_their_sample() -> None:
    assert outcome(lambda run: in_columns(run, False)) is HOLDS
    assert outcome(lambda run: in_columns(run, True)) is not HOLDS


def test_rows_of_tensors_side_by_side() -> None:
    x = Interpreter(Terms())
    one, two, three = (x.terms.make("data", (name, (None, None)), (), (2, 4), 0) for name in "xyz")
    (both,) = x.laid([{one: Fraction(1)}, {two: Fraction(1)}], [(2, 4), (2, 4)], 1, (2, 8))
    (whole,) = x.laid([{both: Fraction(1)}, {three: Fraction(1)}], [(2, 8), (2, 4)], 1, (2, 12))
    assert x.terms.kids[whole] == (one, two, three)
    assert x.slice(whole, 1, 4, 4, 1) == two
    assert x.slice(whole, 1, 5, 2, 1) == x.slice(two, 1, 1, 2, 1)
    assert x.terms.kids[x.slice(whole, 1, 2, 6, 1)] == (x.slice(one, 1, 2, 2, 1), two)
    assert x.slice(whole, 1, 0, 8, 1) == both
    assert x.terms.operators[x.slice(whole, 0, 0, 1, 1)] == "slice"
    assert x.terms.operators[x.slice(whole, 1, 0, 6, 2)] == "slice"


def test_reshapes_go_beneath_named_sums() -> None:
    x = Interpreter(Terms())
    one = x.terms.make("data", ("x", (None, None)), (), (5, 7), 0)
    bias = x.terms.make("parameter", ("b", None), (), (7,))
    both = x.terms.named({one: Fraction(1), x.broadcast(bias, (5, 7)): Fraction(2)}, (5, 7))
    there = x.terms.named(
        {x.reshaped(one, (1, 5, 7)): Fraction(1), x.broadcast(bias, (1, 5, 7)): Fraction(2)}, (1, 5, 7)
    )
    assert x.reshaped(both, (1, 5, 7)) == there
    assert x.terms.operators[x.reshaped(x.broadcast(bias, (5, 7)), (7, 5))] == "reshape"
    wide = x.broadcast(x.terms.make("parameter", ("c", None), (), (5, 1)), (5, 7))
    assert x.terms.operators[x.reshaped(wide, (1, 5, 7))] == "reshape"
