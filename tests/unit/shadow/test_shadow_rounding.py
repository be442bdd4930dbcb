"""The bound of rounding against real kernels: every rule, in four formats, inside its enclosures."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from gradproof.core.errors import GradproofError
from gradproof.shadow.bounds.domain import RULES, Box, Domain, NoBound, Radius
from gradproof.shadow.bounds.follow import Follow, follow, report
from gradproof.shadow.tape.run import Run, Step
from tests.operator_examples import EXAMPLES, Example, Maker, overload

SEEDS = 2
HALVES = ("bfloat16", "float16")
DTYPES = ("float64", "float32", *HALVES)


def name_of(op: str) -> str:
    base = op.split(".")[1]
    return base if base.endswith("__") else base.rstrip("_")


def ruled(op: str) -> bool:
    base = name_of(op)
    single = base.removeprefix("_foreach_")
    return any(n in RULES for n in (base, op.removeprefix("aten."), single))


CASES = [(op, i) for op, examples in sorted(EXAMPLES.items()) if ruled(op) for i in range(len(examples))]


def tensors(x: Any) -> list[torch.Tensor]:
    if isinstance(x, torch.Tensor):
        return [x]
    values = x.values() if isinstance(x, dict) else x if isinstance(x, list | tuple) else ()
    return [t for y in values for t in tensors(y)]


def parameters(x: Any) -> Any:
    """Floating-point tensors as parameters, so that the run follows them."""
    if isinstance(x, torch.Tensor):
        return nn.Parameter(x) if x.is_floating_point() else x
    if isinstance(x, dict):
        return {key: parameters(v) for key, v in x.items()}
    return [parameters(v) for v in x] if isinstance(x, list | tuple) else x


def tried(op: str, example: Example, dtype: str, seed: int, **options: Any) -> tuple[Follow, list[torch.Tensor]]:
    """One operator on parameters, followed; the run, and the results."""
    maker = Maker(seed, dtype)
    args = parameters([maker.made(a) for a in example.args])
    kwargs = parameters({key: maker.made(v) for key, v in example.kwargs.items()})
    func = overload(op, example, args, kwargs)
    run = Follow(Domain(**options))
    with torch.no_grad(), run.running():
        out = func(*args, **kwargs)
    return run, [*tensors(out), *(tensors(args[0]) if func._schema.is_mutable else ())]


def excess(run: Follow, tensor: torch.Tensor) -> float | None:
    """How far a result lies outside its enclosure, as a multiple of the bound; None where there is no bound."""
    found = run.read(tensor)
    if not isinstance(found, Box) or found.format is torch.bool:
        return None
    lo, hi, err = (part.numpy() for part in found.parts)
    value = tensor.detach().double().numpy()
    away = np.maximum(np.maximum(value - hi, lo - value), 0.0)
    return float(np.max(np.where(away > 0, away / np.maximum(err, 1e-300), 0.0), initial=0.0))


@pytest.mark.parametrize(
    ("op", "index", "dtype"),
    [(op, i, dtype) for op, i in CASES for dtype in DTYPES if dtype == "float32" or "_amp_" not in op],
)
def test_kernels_stay_inside(op: str, index: int, dtype: str) -> None:
    for seed in range(SEEDS):
        run, results = tried(op, EXAMPLES[op][index], dtype, seed)
        assert run.lost == ""
        assert run.outside == []
        assert all((excess(run, r) or 0.0) <= 1.0 for r in results)


def test_most_rules_bound_their_examples_in_float32() -> None:
    """An operator that stays inside because it has no bound would prove nothing."""
    bounded = set()
    for op, index in CASES:
        run, results = tried(op, EXAMPLES[op][index], "float32", 0)
        if any(excess(run, r) is not None for r in results) or any(not r.is_floating_point() for r in results):
            bounded.add(op)
    assert {op for op, _ in CASES} - bounded == set()


def model_step(
    make: Callable[[], tuple[nn.Module, Callable[..., torch.Tensor]]], dtype: str, kind: str = "SGD"
) -> Step:
    def step(run: Run) -> None:
        torch.manual_seed(1)
        module, forward = make()
        module = module.half() if dtype == "float16" else module
        optimizer = getattr(torch.optim, kind)(module.parameters(), lr=0.125)
        for _ in range(run.accum_steps):
            x = torch.randn(run.micro_batch_size, 3, 4)
            x = x.half() if dtype == "float16" else x
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bfloat16"):
                out = forward(x)
            ((out.float() ** 2).mean() / run.accum_steps).backward()
        optimizer.step()

    return step


def linear() -> tuple[nn.Module, Any]:
    one = nn.Linear(4, 3)
    return one, one


def mlp() -> tuple[nn.Module, Any]:
    many = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.LayerNorm(6), nn.Linear(6, 3), nn.Tanh())
    return many, many


def attention() -> tuple[nn.Module, Any]:
    parts = nn.ModuleDict({name: nn.Linear(4, 4) for name in ("q", "k", "v")})

    def attend(x: torch.Tensor) -> torch.Tensor:
        scores = parts["q"](x) @ parts["k"](x).transpose(-1, -2) / 2.0
        return torch.softmax(scores.masked_fill(torch.ones(3, 3).triu(1).bool(), float("-inf")), -1) @ parts["v"](x)

    return parts, attend


RUN = Run(accum_steps=3, windows=1)


@pytest.mark.parametrize("dtype", ["float32", *HALVES])
@pytest.mark.parametrize("make", [linear, mlp, attention])
def test_steps_stay_inside(make: Any, dtype: str) -> None:
    found, lost = report(model_step(make, dtype), RUN)
    assert lost == ""
    assert {one["quantity"] for one in found} == {"grad", "weight"}
    bounded = [one for one in found if one["bound"] is not None]
    assert all(one["within"] and one["measured"] <= one["bound"] for one in bounded)
    assert len(bounded) == len(found) or (make, dtype) == (mlp, "bfloat16")
    assert any(one["measured"] > 0 for one in bounded) or not bounded


def test_adamw_moves_inside_its_bound() -> None:
    found, _ = report(model_step(linear, "float32", "AdamW"), RUN)
    assert [one["within"] for one in found] == [True] * 4


def test_a_linear_bound_is_tight() -> None:
    found = [one for one in report(model_step(linear, "float32"), RUN)[0] if one["quantity"] == "grad"]
    assert max(one["bound"] for one in found) <= 100 * max(one["measured"] for one in found)


@pytest.mark.parametrize("make", [linear, mlp, attention])
def test_a_bound_that_is_too_small_is_found_out(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Domain, "scale", 2.0**-10)
    assert not all(one["within"] for one in report(model_step(make, "float32"), RUN)[0])


def test_a_rule_that_forgets_an_operand_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "addmm", lambda k, bias, a, b: k.lift(a) @ k.lift(b))
    found, _ = report(model_step(linear, "float32"), RUN)
    assert not any(one["within"] for one in found)


def test_operators_that_contribute_are_named() -> None:
    shares = [part for one in report(model_step(attention, "float32"), RUN)[0] for part in one["top"]]
    assert shares
    assert all(0 < part["share"] <= 1 and "test_shadow_rounding.py:" in part["location"] for part in shares)


def test_an_operator_without_a_bound_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RULES, "addmm")
    found, _ = report(model_step(linear, "float32"), RUN)
    assert all(one["bound"] is None and "aten.addmm" in one["reason"] for one in found)


def test_a_write_that_is_no_operator_is_found_out() -> None:
    def step(run: Run) -> None:
        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(torch.randn(2, 2)).sum().backward()
        assert net.weight.grad is not None
        torch._C.TensorBase.numpy(net.weight.grad)[:] = 3.0
        optimizer.step()

    found, lost = report(step, RUN)
    assert found == []
    assert "no operator" in lost
    assert "test_shadow_rounding.py:" in lost


def test_an_error_of_the_function_is_kept() -> None:
    def step(run: Run) -> None:
        raise ValueError("seventeen")

    found, lost = report(step, RUN)
    assert found == []
    assert "ValueError: seventeen" in lost


def test_views_and_writes_in_place_alias() -> None:
    def step(run: Run) -> None:
        flat = nn.Parameter(torch.randn(6))
        optimizer = torch.optim.SGD([flat], lr=0.1)
        (flat.view(2, 3)[0] * torch.randn(3)).sum().backward()
        assert flat.grad is not None
        flat.grad[2:4].mul_(3.0)
        flat.grad.view(3, 2).t()[1].add_(0.3)
        optimizer.step()

    run = follow(step, RUN, Domain())
    assert run.lost == ""
    assert run.outside == []
    for seen in run.seen.values():
        assert isinstance(seen.value, Box)
        assert seen.value.around(seen.numbers)


def test_ranges_are_by_kind_and_name() -> None:
    wide = {text: report(model_step(linear, "float32"), RUN, ranges=[text])[0] for text in ("data=0.5", "bias=10%")}
    plain = report(model_step(linear, "float32"), RUN)[0]
    for found in wide.values():
        assert all(one["within"] for one in found)
        assert sum(one["bound"] for one in found) > sum(one["bound"] for one in plain)
    with pytest.raises(GradproofError, match="GP406"):
        report(model_step(linear, "float32"), RUN, ranges=["nobody=1"])


def test_every_machine_run_in_range_stays_inside() -> None:
    ranges = {"param": Radius(absolute=0.5)}
    maker = Maker(0, "float32")
    from tests.operator_examples import T

    first, second = nn.Parameter(maker.made(T((3, 4)))), nn.Parameter(maker.made(T((4, 2))))
    run = Follow(Domain(ranges))
    with torch.no_grad(), run.running():
        out = first @ second
    low, high, err = (part.numpy() for part in run.read(out).parts)
    rng = np.random.default_rng(0)
    for _ in range(50):
        a, b = (p.detach().double().numpy() + rng.uniform(-0.5, 0.5, tuple(p.shape)) for p in (first, second))
        a, b = torch.tensor(a, dtype=torch.float32), torch.tensor(b, dtype=torch.float32)
        exact = a.double().numpy() @ b.double().numpy()
        assert np.all((exact >= low - 1e-12) & (exact <= high + 1e-12))
        assert np.all(np.abs((a @ b).double().numpy() - exact) <= err)


def leaf(domain: Domain, values: Any, dtype: torch.dtype = torch.float16) -> Box:
    domain.set_format(dtype)
    return domain.leaf("data", "x", dtype, torch.as_tensor(values, dtype=torch.float64))


@pytest.mark.parametrize("order", range(20))
def test_sums_in_any_order(order: int) -> None:
    rng = np.random.default_rng(order)
    x = (rng.uniform(-1, 1, 64) * 10.0 ** rng.integers(-3, 3, 64)).astype(np.float16)
    err = leaf(Domain(), x).sum().parts[2]
    total = np.float16(0)
    for value in rng.permutation(x):
        total = np.float16(total + value)
    assert abs(float(total) - float(x.astype(np.float64).sum())) <= float(err)


def test_powers_of_two_are_free_and_underflow_is_not() -> None:
    domain = Domain()
    x = leaf(domain, [1.5, 2.0**-14])
    assert float((x * 4.0).parts[2].max()) == 0
    assert float((x * 2.0**-11).parts[2].max()) >= 2.0**-25
    assert float(domain.lift(0.1).parts[2]) >= abs(0.1 - float(np.float16(0.1)))


def test_overflow_and_division_by_zero_have_no_bound() -> None:
    domain = Domain()
    big = leaf(domain, [60000.0])
    with pytest.raises(NoBound, match="overflow"):
        domain.stored(big + big, torch.float16)
    domain.reason = ""
    with pytest.raises(NoBound, match="zero"):
        domain.stored(big / (big - big), torch.float16)
    safe = torch.where(torch.tensor([False]), big / (big - big), big)
    assert float(domain.stored(safe, torch.float16).parts[2][0]) == 0


def test_products_are_added_onto_a_summand_that_is_larger() -> None:
    """Each partial sum is as large as the summand: its rounding is not that of the sum of the products."""
    for seed in range(20):
        torch.manual_seed(seed)
        bias, weight, data = nn.Parameter(torch.randn(5) * 3), nn.Parameter(torch.randn(6, 5) * 0.03), torch.randn(4, 6)
        run = Follow(Domain())
        with torch.no_grad(), run.running():
            torch.addmm(bias, data * 0.03, weight)
        assert run.outside == []


def test_a_layer_norm_over_all_axes_sums_no_rows() -> None:
    def step(run: Run) -> None:
        norm = nn.LayerNorm((3, 4))
        optimizer = torch.optim.SGD(norm.parameters(), lr=0.5)
        (norm(torch.randn(3, 4)) ** 2).sum().backward()
        optimizer.step()

    assert [one["within"] for one in report(step, RUN)[0]] == [True] * 4


def test_the_gradients_of_a_closure_are_those_that_it_leaves() -> None:
    def step(run: Run) -> None:
        w = nn.Parameter(torch.tensor([0.3, 0.7]))
        optimizer = torch.optim.SGD([w], lr=0.5)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (w * w * 0.3).sum()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)

    found, lost = report(step, RUN)
    assert lost == ""
    assert [(one["quantity"], one["window"], one["within"]) for one in found] == [
        (quantity, window, True) for quantity in ("grad", "weight") for window in (1, 2)
    ]


def test_an_operator_in_place_is_none_of_enclosures() -> None:
    x = leaf(Domain(), [1.5])
    with pytest.raises(NoBound, match="add_"):
        x.add_(1.0)


def test_an_undecided_branch_carries_both_sides() -> None:
    domain = Domain({"data": Radius(box=1.0)})
    x = leaf(domain, [0.5], torch.float64)
    lo, hi, err = torch.where(x < 0.0, domain.lift(-3.0), domain.lift(2.0)).parts
    assert (float(lo[0]), float(hi[0])) == (-3.0, 2.0)
    assert float(err[0]) >= 5.0


def test_the_larger_of_two_is_no_farther_off_than_they_are() -> None:
    """A bound that is no number of the format is rounded by the machine."""
    domain = Domain({"data": Radius(box=1.0)})
    x = leaf(domain, [0.5], torch.float16)
    found = x.clamp(max=0.1)
    assert float(found.parts[2][0]) >= abs(0.1 - float(np.float16(0.1)))


def test_a_layer_norm_in_bf16_throughout_has_no_bound() -> None:
    norm = nn.LayerNorm(8).bfloat16()
    run = Follow(Domain())
    with torch.no_grad(), run.running():
        out = norm(nn.Parameter(torch.full((2, 8), 5.0).bfloat16()))
    assert isinstance(run.read(out), NoBound)


def test_losses_and_layers_of_a_language_model() -> None:
    def step(run: Run) -> None:
        net = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 4), nn.GELU(), nn.Dropout(0.1), nn.Linear(4, 7))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            tokens = torch.randint(0, 7, (2, 5))
            functional.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten(), ignore_index=3).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()

    found, lost = report(step, RUN)
    assert lost == ""
    assert [one["within"] for one in found] == [True] * 10


# -- Finds of an adversarial reading: values that left the bound, or came back without their error.


def of_numpy(w: torch.Tensor) -> torch.Tensor:
    """A function of the user's that computes in NumPy."""

    class Root(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return torch.from_numpy(np.exp(x.detach().numpy()))

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            return grads[0] * ctx.saved_tensors[0].exp()

    found: torch.Tensor = Root.apply(w)
    return found


def in_a_thread(w: torch.Tensor) -> torch.Tensor:
    """A forward pass in a thread of its own, where no mode sees it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: w.exp()).result()


LEAVING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "attention": lambda w: functional.scaled_dot_product_attention(*[w[None, None]] * 3)[0, 0],
    "random function of the parameter": lambda w: torch.normal(w / 3, 0.0),
    "complex": lambda w: torch.fft.irfft(torch.fft.rfft(w) * 0.3, n=w.shape[-1]),
    "numpy": of_numpy,
    "thread": in_a_thread,
    "whole numbers": lambda w: w * (w.detach() * 100).to(torch.int32).to(w.dtype) / 7,
    "wider scalar": lambda w: w * torch.tensor(0.3, dtype=torch.float64) + torch.tensor(1e3 + 0.1, dtype=torch.float64),
    "comparison": lambda w: torch.where(w > 0.29, w * 3, w),
    "sigmoid": lambda w: torch.sigmoid(w * 40 - 20) + functional.silu(w * 40 - 25),
    "counts of truths": lambda w: w * ((w > 0).long() + (w > 0.1).long()),
    "a mask that is computed": lambda w: w.masked_fill(w > 0.3, 0.1),
}


@pytest.mark.parametrize("name", LEAVING)
def test_no_value_leaves_the_bound(name: str) -> None:
    """The gradient of a factor is the value itself: its error is bounded, or there is no bound."""
    start = torch.tensor([[0.29, 0.31, -0.7], [0.11, 0.5, 0.9], [0.3, -0.2, 0.77]])

    def step(run: Run) -> None:
        w, factor = nn.Parameter(start.clone()), nn.Parameter(torch.ones(()))
        optimizer = torch.optim.SGD([factor], lr=0.5)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            (LEAVING[name](w) * factor).sum().backward()
        optimizer.step()

    found, lost = report(step, RUN)
    grad = next((one for one in found if one["quantity"] == "grad"), None)
    assert lost or grad is not None
    if grad is not None and grad["bound"] is not None:
        torch.manual_seed(0)
        exact = float(LEAVING[name](start.double()).sum())
        torch.manual_seed(0)
        real = float(LEAVING[name](start).sum())
        assert grad["within"]
        assert abs(real - exact) <= grad["bound"]
    undecided = {"attention", "random function of the parameter", "complex", "numpy", "thread", "whole numbers"}
    assert (grad is None or grad["bound"] is None) == (name in undecided)


def once(data: torch.Tensor) -> torch.Tensor:
    data[0] = 1.0
    return data


@pytest.mark.parametrize(
    "made",
    [lambda x: once(x), lambda x: x.requires_grad_(), lambda x: torch.stack([x[i] for i in range(4)]), lambda x: x * 2],
)
def test_a_range_of_data_is_the_range_of_what_is_made_of_them(made: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def step(run: Run) -> None:
        w = nn.Parameter(torch.full((4,), 0.3))
        optimizer = torch.optim.SGD([w], lr=0.5)
        (w * made(torch.rand(4))).sum().backward()
        optimizer.step()

    plain, wide = (report(step, RUN, ranges=ranges)[0] for ranges in ([], ["data=0.5"]))
    sizes = [next(one["bound"] for one in found if one["quantity"] == "weight") for found in (plain, wide)]
    assert sizes[1] > 1.3 * sizes[0]


def test_the_storages_of_the_user_stay_as_they_are() -> None:
    def step(run: Run) -> None:
        w = nn.Parameter(torch.rand(2))
        optimizer = torch.optim.SGD([w], lr=0.5)
        (w * 3).sum().backward()
        optimizer.step()
        w.untyped_storage().resize_(16)

    assert report(step, RUN)[1] == ""


def test_a_function_that_does_something_else_when_it_is_called_again_has_no_bound() -> None:
    kept = nn.Linear(2, 1)

    def step(run: Run) -> None:
        optimizer = torch.optim.SGD(kept.parameters(), lr=0.5)
        kept(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    assert "called again" in report(step, RUN, ranges=["data=0.5"])[1]


def test_a_sparse_gradient_has_no_bound() -> None:
    def step(run: Run) -> None:
        table = nn.Embedding(5, 2, sparse=True)
        optimizer = torch.optim.SGD(table.parameters(), lr=0.5)
        table(torch.tensor([1, 3])).sum().backward()
        optimizer.step()

    found, lost = report(step, RUN)
    assert found == []
    assert "sparse" in lost


def test_what_ran_before_a_step_does_not_round_its_gradients() -> None:
    """The format of the last operator is not that of the gradients."""

    def steps(also: bool) -> Step:
        def step(run: Run) -> None:
            w = nn.Parameter(torch.tensor([0.3, 0.7]))
            optimizer = torch.optim.SGD([w], lr=0.5)
            (w * w * 0.3).sum().backward()
            with torch.no_grad():
                half = w.half() if also else w
                _ = half * half
            optimizer.step()

        return step

    plain, other = (report(steps(also), RUN)[0] for also in (False, True))
    assert [one["bound"] for one in other] == [one["bound"] for one in plain]


def test_another_tensor_over_the_memory_of_a_gradient_has_no_bound() -> None:
    def step(run: Run) -> None:
        w = nn.Parameter(torch.tensor([0.3, 0.7]))
        optimizer = torch.optim.SGD([w], lr=0.5)
        (w * w * 0.3).sum().backward()
        assert w.grad is not None
        w.grad = torch.from_dlpack(w.grad) * w.detach()
        optimizer.step()

    found, lost = report(step, RUN)
    assert found == []
    assert "shares the memory" in lost


def test_the_default_device_of_the_user_is_not_that_of_enclosures() -> None:
    def step(run: Run) -> None:
        w = nn.Parameter(torch.tensor([0.3, 0.7], device="cpu"))
        optimizer = torch.optim.SGD([w], lr=0.5)
        torch.set_default_device("meta")
        try:
            torch.cat([w * w, w]).sum().backward()
            optimizer.step()
        finally:
            torch.set_default_device(None)

    assert [one["within"] for one in report(step, RUN)[0]] == [True, True]
