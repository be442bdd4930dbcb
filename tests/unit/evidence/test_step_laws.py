"""Each law of the checker against torch's own kernel, in float64 with samples on an axis; changed laws are found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from gradproof.evidence.step_laws import (
    FLASH,
    LAWS,
    NOBODY,
    Contents,
    Laws,
    OperatorCall,
    SampleLaw,
    TensorRecord,
    Unfollowed,
)

SAMPLES = 3


def r(*shape: int) -> Tensor:
    """Random numbers."""
    return torch.randn(shape, dtype=torch.float64)


def heads() -> Tensor:
    """Samples, heads, positions, features."""
    return r(SAMPLES, 2, 6, 6)


def attended() -> tuple[Any, ...]:
    """Arguments of the backward operator of attention, with what the forward one makes of them."""
    q, k, v = heads(), heads(), heads()
    out, lse = op(FLASH)(q, k, v, 0.0, True)
    return r(*out.shape), q, k, v, out, lse, 0.0, True


def op(name: str) -> Any:
    """An operator of torch."""
    return getattr(torch.ops.aten, name)


def labels() -> Tensor:
    """A label for each row."""
    return torch.randint(5, (SAMPLES * 2,))


N, M = SAMPLES * 2, (SAMPLES, 6)
EXAMPLES: Sequence[tuple[str, Callable[[], tuple[Any, ...]]]] = [
    ("relu", lambda: (r(*M),)), ("gelu", lambda: (r(*M),)), ("sigmoid", lambda: (r(*M),)), ("pow", lambda: (r(*M), 2)),
    ("where", lambda: (r(*M) > 0, r(*M), r(6))), ("clamp", lambda: (r(*M), 0.1)),
    ("masked_fill", lambda: (r(*M), r(6) > 0, 0)), ("masked_fill", lambda: (r(*M), r(6) > 0, 2.0)),
    ("threshold_backward", lambda: (r(*M), r(*M), 0)), ("gelu_backward", lambda: (r(*M), r(*M))),
    ("silu_backward", lambda: (r(*M), r(*M))), ("tanh_backward", lambda: (r(*M), r(*M))),
    ("sigmoid_backward", lambda: (r(*M), r(*M))), ("div", lambda: (r(*M), r(6))), ("neg", lambda: (r(*M),)),
    ("mul", lambda: (r(*M), r(SAMPLES, 1))), ("add", lambda: (r(*M), r(6))), ("sub", lambda: (r(*M), r(*M))),
    ("_softmax", lambda: (r(*M), 1, False)), ("_log_softmax", lambda: (r(*M), -1, False)),
    ("_softmax_backward_data", lambda: (r(*M), r(*M), 1, torch.float64)),
    ("_log_softmax_backward_data", lambda: (r(*M), r(*M), 1, torch.float64)),
    ("sum", lambda: (r(*M), [0], True)), ("sum", lambda: (r(SAMPLES, 2, 6), [0, 2])), ("sum", lambda: (r(*M), [1])),
    ("mean", lambda: (r(*M), [0, 1])), ("mean", lambda: (r(*M), [1], True)),
    ("mm", lambda: (r(*M), r(6, 5))), ("mm", lambda: (r(5, SAMPLES), r(*M))), ("addmm", lambda: (r(5), r(*M), r(6, 5))),
    ("bmm", lambda: (r(SAMPLES, 2, 6), r(SAMPLES, 6, 5))),
    ("native_layer_norm", lambda: (r(SAMPLES, 2, 6), [6], r(6), r(6), 1e-5)),
    ("native_layer_norm_backward",
     lambda: (r(SAMPLES, 2, 6), r(SAMPLES, 2, 6), [6], r(SAMPLES, 2, 1), r(SAMPLES, 2, 1), r(6), r(6), [True] * 3)),
    ("embedding", lambda: (r(7, 6), torch.randint(7, (SAMPLES, 2)))),
    ("embedding_dense_backward", lambda: (r(SAMPLES, 2, 6), torch.randint(7, (SAMPLES, 2)), 7, -1, False)),
    ("nll_loss_forward", lambda: (r(N, 5), labels(), None, 1, -100)),
    ("nll_loss_forward", lambda: (r(N, 5), labels(), None, 2, -100)),
    ("nll_loss_backward",
     lambda: (r(), r(N, 5), labels(), None, 1, -100, torch.tensor(float(N), dtype=torch.float64))),
    ("mse_loss", lambda: (r(*M), r(*M))), ("mse_loss", lambda: (r(*M), r(*M), 2)),
    ("mse_loss", lambda: (r(*M), r(*M), 0)),
    ("smooth_l1_loss_backward", lambda: (r(), r(*M), r(*M), 1, 1.0)),
    ("mse_loss_backward", lambda: (r(), r(*M), r(*M), 1)), ("mse_loss_backward", lambda: (r(), r(*M), r(*M), 2)),
    ("smooth_l1_loss", lambda: (r(*M), r(*M), 1)),
    ("select_backward", lambda: (r(SAMPLES), [SAMPLES, 6], 1, 2)),
    ("slice_backward", lambda: (r(SAMPLES, 2), [SAMPLES, 6], 1, 1, 3, 1)), ("cat", lambda: ([r(*M), r(*M)], 1)),
    ("stack", lambda: ([r(*M), r(*M)], 0)), ("stack", lambda: ([r(*M), r(*M)], -1)),
    (FLASH, lambda: (heads(), heads(), heads(), 0.0, True)), (f"{FLASH}_backward", attended),
]  # fmt: skip
UNTRIED = set(
    """
    silu tanh exp log sqrt rsqrt reciprocal abs sign sin cos eq ne lt le gt ge logical_not leaky_relu elu softplus
    clamp_min    leaky_relu_backward elu_backward softplus_backward
    """.split()  # noqa: SIM905
)
"""Operators on elements like those above, and others in which an example would say nothing new."""


def tensors(args: Sequence[Any]) -> list[Tensor]:
    """The tensors of arguments."""
    return [t for a in args for t in (a if isinstance(a, list) else [a]) if isinstance(t, Tensor)]


def with_tensors(args: Sequence[Any], given: Sequence[Tensor]) -> list[Any]:
    """The same arguments with other tensors."""
    left = iter(given)
    put: Callable[[Any], Any] = lambda a: next(left) if isinstance(a, Tensor) else a  # noqa: E731
    return [[put(x) for x in a] if isinstance(a, list) else put(a) for a in args]


def run(name: str, args: Sequence[Any], samples: int) -> list[Tensor]:
    """The results of an operator. Sizes among the arguments are those of so many samples."""
    sizes = {"select_backward": 1, "slice_backward": 1}
    args = [[samples, *a[1:]] if sizes.get(name) == at else a for at, a in enumerate(args)]
    if name == "nll_loss_backward" and samples == 1:
        args[6] = args[6] / SAMPLES
    made = op(name)(*args)
    return [
        one for one in (made if isinstance(made, tuple | list) else [made]) if isinstance(one, Tensor) and one.numel()
    ]


def arguments(name: str, args: Sequence[Any]) -> dict[str, Any]:
    """The arguments by the names that the operator gives them, with what it takes for those that were left out."""
    every = [getattr(op(name), overload)._schema.arguments for overload in op(name).overloads()]
    own = next((one for one in every if name in ("sum", "mean") and one[1].name == "dim"), every[0])
    return {a.name: args[at] if at < len(args) else a.default_value for at, a in enumerate(own)}


def wrong(name: str, args: Sequence[Any], law: SampleLaw) -> str:
    """In what a law says something else than the kernel does; empty where it is right."""
    whole, given = run(name, args, SAMPLES), tensors(args)
    outs = [tuple(one.shape) for one in whole]
    named = arguments(name, args)
    ins, results = law.letters(OperatorCall(name, [], [tuple(t.shape) for t in given], named, outs))
    average = name == "mean" or named.get("reduction") == 1
    back = name.endswith("_backward")
    letters = {
        x
        for text in ins
        for x, n in zip(text, given[ins.index(text)].shape, strict=False)
        if x.islower() and n % SAMPLES == 0
    }
    for letter in sorted(letters):
        pieces = [
            [
                t.chunk(SAMPLES, text.index(letter))[i] if letter in text and t.shape[text.index(letter)] > 1 else t
                for t, text in zip(given, ins, strict=False)
            ]
            for i in range(SAMPLES)
        ]
        parts = [run(name, with_tensors(args, own), 1) for own in pieces]
        for at, (text, one) in enumerate(zip(results, whole, strict=False)):
            if name == "nll_loss_forward" and at == 1:
                continue
            own = [part[at] for part in parts]
            made = torch.cat(own, text.index(letter)) if letter in text else torch.stack(own).sum(0)
            made = made / SAMPLES if average and (back or letter not in text) else made
            if made.shape != one.shape or not torch.allclose(made, one, rtol=1e-7, atol=1e-9):
                return f"result {at} along {letter}"
    for at in [{one} for one in law.linear] + [set(range(len(given)))] * law.joint:
        others = [r(*t.shape) if i in at else t for i, t in enumerate(given)]
        both = [a + b if i in at else a for i, (a, b) in enumerate(zip(given, others, strict=True))]
        apart, joined = (run(name, with_tensors(args, own), SAMPLES) for own in (others, both))
        if any(not torch.allclose(a + b, c) for a, b, c in zip(whole, apart, joined, strict=True)):
            return f"not linear in {at}"
    return "" if letters else "no axis for samples"


@pytest.mark.parametrize(("name", "make"), EXAMPLES, ids=[f"{at}-{name}" for at, (name, _) in enumerate(EXAMPLES)])
def test_a_law_is_what_the_kernel_does(name: str, make: Callable[[], tuple[Any, ...]]) -> None:
    torch.manual_seed(0)
    assert wrong(name, make(), LAWS[name]) == ""


def test_every_law_is_tried() -> None:
    assert {name for name, _ in EXAMPLES} | UNTRIED == set(LAWS)


def opened(law: SampleLaw) -> SampleLaw:
    """The law with small letters for large ones: rows that meet are taken for rows that do not."""
    return law._replace(text=law.text.replace("|", ".").lower())


CHANGED: Sequence[tuple[str, Callable[[SampleLaw], SampleLaw]]] = [
    ("_softmax", opened), ("_log_softmax_backward_data", opened), ("native_layer_norm", opened), (FLASH, opened),
    ("cat", lambda law: law._replace(text="ab->ab")), ("select_backward", lambda law: law._replace(text="a->ba")),
    ("relu", lambda law: law._replace(linear=(0,))), ("pow", lambda law: law._replace(linear=(0,))),
    ("div", lambda law: law._replace(linear=(0, 1))), ("addmm", lambda law: law._replace(joint=True)),
    ("gelu_backward", lambda law: law._replace(linear=(0, 1))), ("where", lambda law: law._replace(linear=(1,))),
    ("native_layer_norm_backward", lambda law: law._replace(text=".N,.N,.1,.1,N->.N,b")),
    ("mm", lambda law: law._replace(text="nk,km->nk")), ("sum", lambda law: law._replace(text=".->.")),
    ("embedding_dense_backward", lambda law: law._replace(text=".D,.->bD")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change"), CHANGED, ids=[f"{at}-{name}" for at, (name, _) in enumerate(CHANGED)])
def test_a_changed_law_is_found(name: str, change: Callable[[SampleLaw], SampleLaw]) -> None:
    torch.manual_seed(0)
    examples = [make for one, make in EXAMPLES if one == name]
    found = []
    for make in examples:
        try:
            found.append(wrong(name, make(), change(LAWS[name])))
        except (RuntimeError, IndexError, ValueError, Unfollowed) as error:
            found.append(str(error))
    assert any(found)


def placed(tensor: Tensor) -> TensorRecord:
    """Where a tensor lies."""
    return TensorRecord(0, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), "float32")


PARTS: Sequence[Callable[[Tensor], Tensor]] = [
    lambda x: x[2:5], lambda x: x.view(12, 2, 8), lambda x: x.view(6, 32), lambda x: x.view(24, 8)[4:12],
    lambda x: x.permute(2, 0, 1), lambda x: x.view(24, 8).t(), lambda x: x[:, 1:3], lambda x: x[:, 2], lambda x: x[1:2],
    lambda x: x[3:, :, ::2], lambda x: x.unsqueeze(1).expand(6, 5, 4, 8), lambda x: x[:, :, 3], lambda x: x[3],
    lambda x: x[:, None, 1:], lambda x: x.view(-1), lambda x: x.view(24, 8)[::2],
]  # fmt: skip
MIXED: Sequence[Callable[[Tensor], Tensor]] = [
    lambda x: x[::2], lambda x: x.view(24, 8)[2:10], lambda x: x[:, :0], lambda x: x.view(-1)[1:],
    lambda x: x.as_strided((5, 4, 8), (32, 8, 1), 8), lambda x: x.as_strided((5, 5, 8), (32, 8, 1)),
    lambda x: x.as_strided((3, 64), (32, 1)), lambda x: x.view(2, 3, 4, 8).transpose(0, 1), lambda x: x[::2, 0].t(),
]  # fmt: skip


LIKE_ROWS = {1, 2, 3, 5, 14, 15}
"""Parts that are no view of a tensor whose samples are not its outermost rows."""


@pytest.mark.parametrize(
    ("at", "axis"), [(at, axis) for at in range(len(PARTS)) for axis in (0, 1) if not axis or at not in LIKE_ROWS]
)
def test_a_part_has_the_samples_that_lie_there(at: int, axis: int) -> None:
    """Rows of samples in order, each with one term: the numbers that name the samples say the same."""
    whole = torch.arange(6).repeat_interleave(32).view(6, 4, 8)
    laws = Laws()
    value = Contents({(laws.make("data"), owner): Fraction(1) for owner in range(6)}, 0)
    if axis:
        whole = whole.transpose(0, 1).contiguous().transpose(0, 1)
    part = PARTS[at](whole)
    found = laws.viewed(value, placed(whole), placed(part))
    owners = torch.tensor(found.owners).repeat_interleave(part.shape[found.axis] // len(found.owners))
    shape = [1] * part.dim()
    shape[found.axis] = len(owners)
    assert bool((part == owners.view(shape)).all())


@pytest.mark.parametrize("at", range(len(MIXED)))
def test_a_part_that_mixes_samples_is_not_followed(at: int) -> None:
    whole = torch.arange(6 * 32.0).view(6, 4, 8)
    laws = Laws()
    value = Contents({(laws.make("data"), owner): Fraction(1) for owner in range(6)}, 0)
    with pytest.raises(Unfollowed):
        laws.viewed(value, placed(whole), placed(MIXED[at](whole)))


def test_parts_that_lie_otherwise_are_other_terms() -> None:
    laws, whole = Laws(), torch.zeros(4, 4)
    value = Contents({(laws.make("sum"), NOBODY): Fraction(1)})
    parts = [whole.t(), whole.view(16), whole[1:], whole[:3], whole[:, :1], whole[:, 1:2], whole.view(2, 8)]
    terms = [next(iter(laws.viewed(value, placed(whole), placed(one)).items)) for one in parts]
    assert len(set(terms)) == len(parts)
    assert laws.viewed(value, placed(whole), placed(whole)) is value
    with pytest.raises(Unfollowed):
        laws.viewed(value, placed(whole[:, :2]), placed(whole[:, :1]))
