"""`check` by whole-tensor values on real tensors: what is proved, what is not, and each guard watched going red."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradproof.core.outcome import Outcome
from gradproof.shadow.follow.facts import RunFacts
from gradproof.shadow.follow.plain_numbers import Float, Integer
from gradproof.shadow.judge import two_runs
from gradproof.shadow.judge.by_terms import Judge
from gradproof.shadow.judge.two_runs import attempted, check_whole
from gradproof.shadow.request import Request
from gradproof.shadow.result import Verification
from gradproof.shadow.tape.run import Run
from tests.checked import check

HOLDS, REFUTED = Outcome.HOLDS, Outcome.REFUTED
Step = Callable[[Any], Any]


def last() -> nn.Module:
    """The last layer."""
    return nn.Linear(4, 2)


def whole(step: Step, **options: Any) -> Verification:
    """The verification by whole-tensor values alone."""
    return check_whole(step, "step", Request(**options))


def windows(run: Run, *data: Tensor) -> Iterator[list[tuple[Tensor, ...]]]:
    """The micro-batches of each window."""
    made = list(zip(*(part.split(run.micro_batch_size) for part in data), strict=True))
    yield from (made[i : i + run.accum_steps] for i in range(0, len(made), run.accum_steps))


def started(run: Run, model: nn.Module | None = None) -> tuple[nn.Module, torch.optim.Optimizer, Tensor, Tensor]:
    """A model, its optimizer, inputs and targets."""
    torch.manual_seed(run.seed)
    model = nn.Linear(3, 2) if model is None else model
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(run.samples, 3), torch.randn(run.samples, 2)


def trained(run: Run, model: nn.Module | None = None, before: Any = None, share: Any = None) -> list[Any]:
    """A right loop; `share` is what a micro-batch adds to the loss, `before` is called before each step."""
    model, optimizer, x, y = started(run, model)
    losses: list[Any] = []
    for window in windows(run, x, y):
        total = 0.0
        for a, b in window:
            loss = F.mse_loss(model(a), b)
            part = loss / len(window) if share is None else share(loss, len(window))
            part.backward()
            total += part.item()
        if before is not None:
            before(model)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


def test_a_right_loop_and_its_losses_hold_though_python_reads_them() -> None:
    found = whole(trained)
    assert found.outcome is HOLDS, [(r.obligation, r.reason) for r in found.results]
    assert found.result("GA-INV-001").reason.startswith("2 returned losses ")
    assert found.paths
    assert found.notes[0].startswith("8 parameters, ")


def stacked(run: Run, factor: float = 1.0) -> list[Tensor]:
    """The share of each micro-batch stands in one list, and the losses are sums of its rows."""
    shares: list[Tensor] = []

    def share(loss: Tensor, count: int) -> Tensor:
        part = loss / count
        shares.append(part.detach() * factor)
        return part

    trained(run, share=share)
    return list(torch.stack(shares).reshape(-1, run.accum_steps).sum(dim=1))


def test_losses_that_are_stacked_and_summed_by_rows() -> None:
    assert whole(stacked).outcome is HOLDS
    wrong = whole(lambda run: stacked(run, float(run.accum_steps))).result("GA-INV-001")
    assert (wrong.outcome, "4 times" in wrong.reason) == (REFUTED, True), wrong.reason


@pytest.mark.parametrize(
    "model",
    [
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 2)),
        lambda: nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.LayerNorm(4), nn.Linear(4, 2)),
        lambda: nn.Sequential(nn.Unflatten(1, (3, 1)), nn.Conv1d(3, 4, 1), nn.GroupNorm(2, 4), nn.Flatten(), last()),
    ],
)  # fmt: skip
def test_models_are_proved_and_refuted_without_their_share(model: Callable[[], nn.Module]) -> None:
    assert whole(lambda run: trained(run, model()) and None).outcome is HOLDS
    wrong = whole(lambda run: trained(run, model(), share=lambda loss, n: loss) and None).result("GA-EQ-001")
    assert (wrong.outcome, " 4 times " in wrong.reason) == (REFUTED, True), wrong.reason


def test_a_batch_norm_is_outside_and_named() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    found = whole(lambda run: trained(run, copy.deepcopy(net)) and None).result("GA-EQ-001")
    assert (found.outcome, "native_batch_norm" in found.reason) == (Outcome.OUTSIDE, True)


# Numbers that Python reads


def test_arithmetic_keeps_what_a_number_is_made_of() -> None:
    engine = type("Laws", (), {"facts": RunFacts()})()
    from gradproof.shadow.follow.interpreter import Interpreter
    from gradproof.shadow.follow.terms import Terms

    terms = Terms()
    engine.terms, engine.laws = terms, Interpreter(terms)
    leaf = terms.make("data", ("x",), (), ())
    number = Float(6.0)
    number.engine, number.value = engine, terms.of(leaf)
    assert (number + 1, number * 2, 3 / number, number - number) == (7.0, 12.0, 0.5, 0.0)
    assert (number * 2).value == {leaf: 2}
    assert (number - number).value == {}
    assert ((number / 3) * 3).value == number.value
    assert type(number * True) is float
    assert type(number**2) is float
    assert isinstance(number * torch.ones(2), Tensor)
    count = Integer(3)
    count.engine, count.value = engine, terms.of(leaf)
    assert (count * 2, list(range(count)), type(count // 2)) == (6, [0, 1, 2], int)


def clipped_by_hand(model: nn.Module) -> None:
    """One factor for all gradients, which Python divides."""
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.stack([g.square().sum() for g in grads]).sum().sqrt().item()
    for g in grads:
        g.mul_(0.5 / (norm + 1e-6))


def test_a_factor_that_python_computes_is_followed() -> None:
    assert whole(lambda run: trained(run, before=clipped_by_hand) and None).result("GA-EQ-001").outcome is HOLDS

    def each(loss: Tensor, count: int) -> Tensor:
        return loss / count * (2.0 / loss.item())

    found = whole(lambda run: trained(run, share=each) and None).result("GA-EQ-001")
    assert found.outcome is not HOLDS


def test_a_number_that_was_read_changes_no_type_and_is_not_followed_where_it_is_cut() -> None:
    kinds = set()

    def typed(run: Run) -> None:
        model, optimizer, x, y = started(run)
        for window in windows(run, x, y):
            for a, b in window:
                loss = F.mse_loss(model(a), b)
                kinds.add((torch.ones(2, dtype=torch.int64) * loss.item()).dtype)
                kinds.add((torch.ones(2, dtype=torch.bfloat16) * loss.item()).dtype)
                whole = torch.tensor(100 * loss.item(), dtype=torch.int64)
                (loss / len(window) * (whole + 1) / (100 * loss.item() + 1)).backward()
            optimizer.step()
            optimizer.zero_grad()

    assert whole(typed).result("GA-EQ-001").outcome is not HOLDS
    assert kinds == {torch.float32, torch.bfloat16}


def uneven(n: int) -> list[int]:
    """How many tokens of each sample count: micro-batches have other counts."""
    return [1 + i % 5 for i in range(n)]


def by_sum(score: Any, window: Any, of: int) -> Any:
    """The sum of the losses, by the tokens of all of the window."""
    return score(reduction="sum") / sum(int((b != -100).sum()) for _, b in window)


def by_share(score: Any, window: Any, of: int) -> Any:
    """The mean, times the share that a micro-batch has of the tokens of the window."""
    each = [int((b != -100).sum()) for _, b in window]
    return score() * each[of] / sum(each)


def by_part(score: Any, window: Any, of: int) -> Any:
    """A mean of means, by hand."""
    return score(reduction="sum") / (int((window[of][1] != -100).sum()) * len(window))


def printed(score: Any, window: Any, of: int) -> Any:
    """The sum by a count that is a tensor; the count is read for a line of text alone."""
    count = sum((b != -100).sum() for _, b in window)
    print(f"{int(count)} tokens")
    return score(reduction="sum") / count


def counted(run: Run, lengths: Any, share: Any) -> None:
    """Token means with counts that Python makes plain integers of."""
    torch.manual_seed(run.seed)
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = torch.randint(0, 5, (run.samples, 6))
    labels = ids.masked_fill(torch.arange(6) >= torch.tensor(lengths(run.samples))[:, None], -100)
    for window in windows(run, ids, labels):
        for at, (a, b) in enumerate(window):
            given = (model(a).flatten(0, 1), b.flatten())
            share(partial(F.cross_entropy, *given, ignore_index=-100), window, at).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    ("share", "made", "stated"), [(by_sum, [False], True), (printed, [False], False), (by_share, [False, True], True)]
)
def test_a_count_is_that_of_this_run_only_where_the_loss_needs_it(
    share: Any, made: list[bool], stated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three loops make plain integers of counts, and hold: by the formula of the counts, or by those of this run.

    Which it is shows where both runs are compared. A mean times a plain number is equal for the counts of this run
    alone, and what a step leaves behind is named by its gradient: so both runs are made again for it. A loop that
    prints its count would hold for less, were the count taken for a number where Python took it.
    """
    hints: list[bool] = []

    def noted(step: Any, request: Any, given: Any, *rest: Any) -> Any:
        hints.append(given.integers)
        return attempted(step, request, given, *rest)

    monkeypatch.setattr(two_runs, "attempted", noted)
    found = whole(lambda run: counted(run, uneven, share))
    assert found.result("GA-EQ-001").outcome is HOLDS, found.result("GA-EQ-001").reason
    assert list(dict.fromkeys(hints)) == made
    assert any("counts of tokens" in text for text in found.assumptions) is stated


def test_counts_that_are_plain_integers_hold_at_uneven_counts_alone() -> None:
    def even(n: int) -> list[int]:
        return [1 + 4 * (i % 2) for i in range(n)]

    for lengths in (uneven, even):
        made = whole(lambda run, lengths=lengths: counted(run, lengths, by_part))
        assert made.result("GA-EQ-001").outcome is not HOLDS


def test_labels_that_ignore_nothing_are_said_to_be_untested() -> None:
    def tokens(run: Run) -> None:
        model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5))
        optimizer, ids = torch.optim.SGD(model.parameters(), lr=0.1), torch.randint(0, 5, (run.samples, 6))
        for window in windows(run, ids):
            for (a,) in window:
                (F.cross_entropy(model(a).flatten(0, 1), a.flatten()) / len(window)).backward()
            optimizer.step()
            optimizer.zero_grad()

    found = whole(tokens)
    assert found.outcome is HOLDS
    assert any("numbers of valid labels" in text for text in found.uncovered)


def test_a_float_constant_stands_for_a_rational() -> None:
    found = whole(lambda run: trained(run, share=lambda loss, n: loss * (1 / n)) and None, accum_steps=3)
    assert found.outcome is HOLDS
    assert any("stand for rationals" in text for text in found.assumptions)
    wrong = whole(
        lambda run: trained(run, share=lambda loss, n: loss * (1.001 / n if n > 1 else 1)) and None, accum_steps=3
    )
    assert wrong.result("GA-EQ-001").outcome is REFUTED


# Steps without an optimizer, with several, and with closures


def by_hand(run: Run, share: bool = True) -> None:
    """Plain descent without an optimizer."""
    model, _, x, y = started(run)
    for window in windows(run, x, y):
        for a, b in window:
            (F.mse_loss(model(a), b) / (len(window) if share else 1)).backward()
        with torch.no_grad():
            for p in model.parameters():
                assert p.grad is not None
                p -= 0.1 * p.grad
                p.grad = None


def test_steps_by_hand() -> None:
    assert whole(by_hand).outcome is HOLDS
    assert whole(lambda run: by_hand(run, share=False)).result("GA-EQ-001").outcome is REFUTED


def test_two_optimizers_and_a_closure() -> None:
    def two(run: Run) -> None:
        model, _, x, y = started(run)
        pair = [torch.optim.SGD([p], lr=0.1) for p in model.parameters()]
        for window in windows(run, x, y):
            for a, b in window:
                (F.mse_loss(model(a), b) / len(window)).backward()
            for optimizer in pair:
                optimizer.step()
                optimizer.zero_grad()

    def closed(run: Run, zero: bool = True) -> None:
        model, optimizer, x, y = started(run)
        for window in windows(run, x, y):

            def closure(window: Any = window) -> Tensor:
                if zero:
                    optimizer.zero_grad()
                for a, b in window:
                    (F.mse_loss(model(a), b) / len(window)).backward()
                return torch.zeros(())

            optimizer.step(closure)

    assert whole(two).outcome is HOLDS
    assert whole(closed).outcome is HOLDS
    assert whole(lambda run: closed(run, zero=False)).result("GA-INV-002").outcome is not HOLDS


# What has to stay undecided or be refuted


def drawn_again(run: Run) -> None:
    """Every micro-batch is drawn by a generator at its seed."""
    model, optimizer, _, _ = started(run)
    for _ in range(run.windows):
        for _ in range(run.accum_steps):
            own = torch.Generator().manual_seed(1)
            x, y = (
                torch.randn(run.micro_batch_size, 3, generator=own),
                torch.randn(run.micro_batch_size, 2, generator=own),
            )
            (F.mse_loss(model(x), y) / run.accum_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


def through_numpy(run: Run) -> None:
    """Gradients are scaled in their memory."""

    def scaled(model: nn.Module) -> None:
        for p in model.parameters():
            assert p.grad is not None
            p.grad.numpy()[:] *= run.accum_steps

    trained(run, before=scaled)


def old_sum(run: Run) -> None:
    """The last window's gradient comes back out of the optimizer's state."""
    model, optimizer, x, y = started(run)
    for window in windows(run, x, y):
        for a, b in window:
            (F.mse_loss(model(a), b) / len(window)).backward()
        for p in model.parameters():
            assert p.grad is not None
            old = optimizer.state[p].get("old", torch.zeros_like(p))
            optimizer.state[p]["old"] = p.grad.clone()
            p.grad += old
        optimizer.step()
        optimizer.zero_grad()


def nothing_moves(run: Run) -> None:
    """The optimizer has copies, which never come back."""
    model, _, x, y = started(run)
    copies = [p.detach().clone().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.SGD(copies, lr=0.1)
    for window in windows(run, x, y):
        for a, b in window:
            (F.mse_loss(model(a), b) / len(window)).backward()
        for p, c in zip(model.parameters(), copies, strict=True):
            c.grad, p.grad = p.grad, None
        optimizer.step()
        optimizer.zero_grad()


def clipped_too_late(run: Run) -> None:
    """The clip comes after the step."""
    model, optimizer, x, y = started(run)
    for window in windows(run, x, y):
        for a, b in window:
            (F.mse_loss(model(a), b) / len(window)).backward()
        optimizer.step()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.zero_grad()


def never_reset(run: Run) -> list[Tensor]:
    """The reported loss goes on adding up."""
    model, optimizer, x, y = started(run)
    total, losses = torch.zeros(()), []
    for window in windows(run, x, y):
        for a, b in window:
            loss = F.mse_loss(model(a), b) / len(window)
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


def of_the_last_sample(run: Run) -> list[Tensor]:
    """The reported loss is that of one sample."""
    model, optimizer, x, y = started(run)
    losses = []
    for window in windows(run, x, y):
        for a, b in window:
            loss = F.mse_loss(model(a), b)
            (loss / len(window)).backward()
            last = F.mse_loss(model(a[-1:]), b[-1:]).detach()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(last)
    return losses


def averaged_each_time(run: Run) -> None:
    """A running average advances N times a step."""
    model, optimizer, x, y = started(run)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    for window in windows(run, x, y):
        for a, b in window:
            (F.mse_loss(model(a), b) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
        for _ in window:
            average.update_parameters(model)


@pytest.mark.parametrize(
    ("step", "obligation"),
    [
        (drawn_again, "GA-DATA-001"), (through_numpy, "GA-EQ-001"), (old_sum, "GA-INV-002"),
        (nothing_moves, "GA-INV-003"), (clipped_too_late, "GA-INV-005"), (never_reset, "GA-INV-001"),
        (of_the_last_sample, "GA-INV-001"), (averaged_each_time, "GA-INV-003"),
    ],
)  # fmt: skip
def test_what_is_wrong_does_not_hold(step: Step, obligation: str) -> None:
    for found in (whole(step), check(step)):
        assert found.result(obligation).outcome is not HOLDS, found.result(obligation).reason


def test_a_step_that_does_otherwise_when_nobody_follows_it() -> None:
    def hides(run: Run) -> None:
        followed = bool(torch.utils._python_dispatch._get_current_dispatch_mode_stack())
        trained(run, share=lambda loss, n: loss / n if followed else loss)

    found = whole(hides).result("GA-EQ-001")
    assert (found.outcome, "when nobody follows it" in found.reason) == (Outcome.OPAQUE, True)


def test_numbers_that_differ_leave_a_proof_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    def unscaled(run: Run) -> None:
        trained(run, share=lambda loss, n: loss)

    monkeypatch.setattr(Judge, "_first_unequal", lambda self: None)
    found = whole(unscaled).result("GA-EQ-001")
    assert (found.outcome, "its numbers differ by" in found.reason) == (Outcome.UNKNOWN, True), found.reason


@pytest.mark.parametrize(("other", "same"), [(False, True), (True, False)])
def test_the_operators_of_each_micro_batch_are_compared(other: bool, same: bool) -> None:
    def turns(run: Run) -> None:
        model, optimizer, x, y = started(run)
        for window in windows(run, x, y):
            for i, (a, b) in enumerate(window):
                out = torch.tanh(model(a)) if other and i % 2 else model(a)
                (F.mse_loss(out, b) / len(window)).backward()
            optimizer.step()
            optimizer.zero_grad()

    said = [one for one in check_whole(turns, "step", Request()).assumptions if "micro-batches as in this run" in one]
    assert [("the same operators" in one, "other operators" in one) for one in said] == [(same, not same)]


def warmed_up(run: Run, first: float = 0.0, put_back: bool = False, zero: bool = True, each: bool = False) -> None:
    """A warm-up that begins at rate `first`, and grows by 0.1 from step to step."""
    model, optimizer, x, y = started(run)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda at: first + at if first >= 0 else 0.0)
    for window in windows(run, x, y):
        kept = [p.detach().clone() for p in model.parameters()]
        for number, (a, b) in enumerate(window, 1):
            (F.mse_loss(model(a), b) / len(window)).backward()
            if each or number == len(window):
                optimizer.step()
                schedule.step()
                optimizer.zero_grad() if zero else None
        for p, old in zip(model.parameters(), kept if put_back else (), strict=False):
            p.data.copy_(old)


@pytest.mark.parametrize(
    ("options", "outcome", "said"),
    [
        ({}, HOLDS, "2 steps"),
        ({"windows": 3}, HOLDS, "3 steps"),
        ({"fake": True}, HOLDS, "2 steps"),
        ({"first": -1.0}, Outcome.UNKNOWN, "every step is 0"),
        ({"first": -1.0, "fake": True}, Outcome.UNKNOWN, "every step is 0"),
        ({"put_back": True}, Outcome.UNKNOWN, "put back"),
        ({"put_back": True, "windows": 3}, REFUTED, "step 2 are put back"),
        ({"put_back": True, "first": 1.0}, REFUTED, "step 1 are put back"),
        ({"each": True}, REFUTED, "8 optimizer steps in 2 windows"),
    ],
)
def test_a_step_at_learning_rate_0_is_a_step(options: dict[str, Any], outcome: Outcome, said: str) -> None:
    own = {name: options[name] for name in options.keys() & {"first", "put_back", "each"}}
    asked = {name: options[name] for name in options.keys() - own.keys()}
    found = whole(lambda run: warmed_up(run, **own), **asked).result("GA-INV-003")
    assert found.outcome is outcome, found.reason
    assert said in found.reason


@pytest.mark.parametrize("fake", [False, True])
def test_a_gradient_that_stays_after_a_step_at_rate_0_is_refuted(fake: bool) -> None:
    found = whole(lambda run: warmed_up(run, zero=False), fake=fake).result("GA-INV-002")
    assert found.outcome is REFUTED, found.reason
