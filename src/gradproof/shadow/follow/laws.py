"""Laws of operators: along which axes an operator treats rows apart, in which arguments it is linear, what it sums.

A law is data. Each axis of each tensor argument and of each result has a letter:

* a lower-case letter that arguments share with a result is *mapped*: rows of the result are the operator on those rows;
* a lower-case letter that no result has, for that result, is *summed*: the result is the sum of the operator on rows;
* an upper-case letter is *coupled*: a row of the result may depend on every row;
* a dot stands for an axis of one row that is broadcast.

`linear` are the tensor arguments, by their order among the tensors, in each of which the operator is linear while the
others are held. An operator without a law is an uninterpreted function of whole tensors, which is true of any operator
that is deterministic: its samples are coupled, and no proof needs more of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from gradproof.core.errors import GradproofError
from gradproof.laws import REGISTERED, REST, RegisteredLaw
from gradproof.shadow.follow.interpreter import LETTERS, Call, Interpreter, Law, Letters, rows_of
from gradproof.shadow.follow.terms import Combination, Shape, frozen, multiplied
from gradproof.shadow.follow.values import Value
from gradproof.shadow.ops.schema import Spec
from gradproof.shadow.ops.trials import EXACT, ROUNDED, SAMPLES, SUMMED, Repeated, RowTrial, undisturbed

# -- Letters of the common forms.


def raised(rank: int, *axes: int) -> str:
    """Letters of `rank` axes, of which these are coupled."""
    coupled = {axis % rank for axis in axes} if rank else ()
    return "".join(x.upper() if i in coupled else x for i, x in enumerate(LETTERS[:rank]))


def under(wide: Shape, shapes: Sequence[Shape], letters: str = LETTERS) -> list[str]:
    """Letters of arguments that are broadcast to a shape, of which `letters` are those of its axes."""
    ends = [(shape, len(wide) - len(shape)) for shape in shapes]
    return [
        "".join(
            x if size == full else "." for x, size, full in zip(letters[at : len(wide)], shape, wide[at:], strict=True)
        )
        for shape, at in ends
    ]


def pointwise(call: Call) -> Letters:
    """Every argument is broadcast to the shape of the result."""
    out = call.out_shape()
    return under(out, call.shapes), [LETTERS[: len(out)]] * len(call.out)


def crossed(call: Call) -> bool:
    """Whether rows of samples lie along two axes of what an operator on elements broadcasts."""
    elements = call.name.endswith("_loss") or (call.name in LAWS and LAWS[call.name].letters is pointwise)
    pairs = zip(call.values, call.shapes, strict=True)
    return elements and len({value.axis - len(shape) for value, shape in pairs if not value.shared}) > 1


def broadcast(call: Call) -> Letters:
    """Every argument is broadcast to the shape of the first; the result is a sum over all of it."""
    return under(call.shapes[0], call.shapes), [""]


def fixed(*texts: str) -> Callable[[Call], Letters]:
    """The same letters in each call: `fixed("mk", "kn", "->mn")`. More tensors have the last text.

    Where `...` stands before, the other axes are mapped; a last letter with a star stands for all axes that are left.
    """
    spelled = [[t for t in texts if not t.startswith("->")], [t[2:] for t in texts if t.startswith("->")]]

    def letters(call: Call) -> Letters:
        sizes = call.shapes, [call.out_shape(at) for at in range(len(call.out))]
        return tuple(  # type: ignore[return-value]
            [_spelled(own[min(at, len(own) - 1)], len(shape)) for at, shape in enumerate(shapes)]
            for own, shapes in zip(spelled, sizes, strict=True)
        )

    return letters


def _spelled(text: str, rank: int) -> str:
    """The letters of a tensor of `rank` axes."""
    own = text.removeprefix("...")
    if own != text:
        return LETTERS[: max(rank - len(own), 0)] + own[:rank]
    left = LETTERS[len(text) - 2 : rank].upper() if text.endswith("Z*") else "." * rank
    return (text[:-2] + left)[:rank] if text.endswith("*") else text


def over(name: str = "dim", default: int | tuple[int, ...] = -1) -> Callable[[Call], Letters]:
    """All tensors have as many axes; those that an argument names are coupled, and all where it names none."""

    def letters(call: Call) -> Letters:
        rank, axes = len(call.shapes[0]), call.argument(call.arguments.index(name), name, default)
        own = raised(rank, *([axes] if isinstance(axes, int) else axes or range(rank)))
        return [own] * len(call.values), [own] * len(call.out)

    return letters


def normalised(at: int, *texts: str) -> Callable[[Call], Letters]:
    """Layer and RMS norms: the last axes, which an argument counts, are coupled: `N` stands for them."""
    return lambda call: fixed(*(t.replace("N", "Z" * len(call.argument(at, "normalized_shape"))) for t in texts))(call)


def reduced(call: Call, sums: bool = False) -> Letters:
    """A reduction over the axes of its second argument: these are coupled, or summed."""
    if len(call.values) != 1:
        return ["Z" * len(s) for s in call.shapes], [""] * len(call.out)
    own = raised(len(call.shapes[0]), *reduced_axes(call))
    kept = own if len(call.out_shape()) == len(own) else "".join(x for x in own if x.islower())
    if sums:
        own, kept = own.lower(), "".join("." if x.isupper() else x for x in kept)
    return [own], [kept] * len(call.out)


def reduced_axes(call: Call) -> set[int]:
    """The axes over which a reduction goes; all of them where its arguments name none."""
    rank = len(call.shapes[0])
    dims = call.argument(call.arguments.index("dim"), "dim") if "dim" in call.arguments else None
    if dims is None or dims == []:
        return set(range(rank))
    return {dim % rank for dim in (dims if isinstance(dims, list | tuple) else [dims])} if rank else set()


# -- The table of laws: operator to law. What is not here, and has no rule, is an uninterpreted function.


def chosen(call: Call) -> Letters:
    """`gather` and `scatter`: the axis that is looked up is coupled, others are mapped where all sizes agree."""
    axis = call.args[1] % max(len(call.shapes[0]), 1)
    sizes = enumerate(zip(*call.shapes, strict=True))
    own = "".join(LETTERS[i].upper() if i == axis or len({*at}) > 1 else LETTERS[i] for i, at in sizes)
    return [own] * len(call.values), [own]


def picked(call: Call) -> Letters:
    """`index_select`: the axis that is looked up is coupled."""
    own = raised(len(call.shapes[0]), call.args[1])
    return [own, "Z" * len(call.shapes[1])], [own]


def attention(call: Call) -> Letters:
    """Samples are mapped; a mask may be one for all of them."""
    samples = call.shapes[0][0]

    def letters(shape: tuple[int, ...]) -> str:
        if len(shape) < 3 or shape[0] not in (samples, 1):
            return "Z" * len(shape)
        return ("a" if shape[0] == samples else ".") + "Z" * (len(shape) - 1)

    return [letters(s) for s in call.shapes], [letters(call.out_shape(at)) for at in range(len(call.out))]


def trailing(call: Call) -> tuple[object, ...]:
    """The arguments of a group norm without the number of samples."""
    at = call.arguments.index("N")
    return tuple(frozen(arg) for arg in call.args[at + 1 :])


def enlarged(call: Call) -> tuple[object, ...]:
    """The arguments of the gradient of an interpolation, without the number of samples in the shape of its input."""
    return (*call.attributes[:2], frozen(call.args[2][1:]), *call.attributes[3:])


def whole(call: Call) -> tuple[object, ...]:
    """No attributes, where all arguments are tensors: `addmm` has the product that `mm` makes."""
    return () if len(call.args) == len(call.tensors) and not call.kwargs else call.attributes


SAMPLES_FIRST = fixed("aZ*", "->aZ*")
"""The first axis of each tensor has the samples."""

ROWS: list[tuple[Law, str]] = [
    (Law(pointwise, uniform=True), """
        abs acos add addcdiv addcmul asin atan atan2 bitwise_and bitwise_not bitwise_or bitwise_xor ceil celu
        clamp clamp_max clamp_min cos cosh div elu eq erf erfc erfinv exp exp2 expm1 floor floor_divide fmax
        fmin fmod frac ge gelu gt hardshrink hardsigmoid hardswish hardtanh isfinite isinf isnan le leaky_relu
        lerp log log10 log1p log2 log_sigmoid_forward logical_and logical_not logical_or logical_xor logit lt
        masked_fill maximum minimum mish mul nan_to_num ne pow prelu _prelu_kernel reciprocal relu remainder
        round rsqrt rsub sgn sigmoid sign silu sin sinh softplus softshrink sqrt square sub tan tanh threshold
        trunc where xlogy
    """),
    (Law(pointwise, linear=(0,)), """
        gelu_backward tanh_backward silu_backward sigmoid_backward threshold_backward elu_backward
        leaky_relu_backward hardtanh_backward hardsigmoid_backward hardswish_backward softplus_backward
        log_sigmoid_backward mish_backward native_dropout_backward logit_backward hardshrink_backward
        softshrink_backward _conj resolve_conj
    """),
    (Law(fixed("...", "->...Z"), linear=(0,)), "view_as_real"),
    (Law(fixed("...Z", "->..."), linear=(0,)), "view_as_complex"),
    (Law(fixed("ik", "kj", "->ij"), linear=(0, 1), attributes=whole), "mm"),
    (Law(fixed("bik", "bkj", "->bij"), linear=(0, 1), attributes=whole), "bmm"),
    (Law(fixed("ik", "k", "->i"), linear=(0, 1), attributes=whole), "mv"),
    (Law(fixed("k", "k", "->"), linear=(0, 1)), "dot"),
    (Law(fixed("YZ", "...", "->...Z"), linear=(0,)), "embedding"),
    (Law(over()), "_softmax _log_softmax _safe_softmax sort topk cummax cummin cumprod logcumsumexp glu"),
    (Law(over(), linear=(0,)), """
        _softmax_backward_data _log_softmax_backward_data glu_backward _fft_r2c _fft_c2r _fft_c2c
    """),
    (Law(over("dims", ()), linear=(0,)), "flip roll"),
    (Law(picked, linear=(0,)), "index_select"),
    (Law(chosen, linear=(0,)), "gather"),
    (Law(chosen), "scatter scatter_add"),
    (Law(reduced), """
        all amax amin any argmax argmin count_nonzero linalg_vector_norm logsumexp max mean median min norm prod
        std std_mean sum var var_mean
    """),
    (Law(fixed("...YZ", "->...YZ"), linear=(0,)), "tril triu"),
    (Law(fixed("Z*", "->Z*"), linear=(0,)), "_weight_norm_interface_backward"),
    (Law(normalised(1, "...N", "Z*", "->...N")), "native_layer_norm _fused_rms_norm rms_norm"),
    (Law(normalised(2, *["...N"] * 4, "Z*", "->...N", "->Z*"), linear=(0,)), "native_layer_norm_backward"),
    (Law(fixed("aZ*", "Z*", "->aZ*"), attributes=trailing), "native_group_norm"),
    (Law(fixed(*["aZ*"] * 4, "Z*", "->aZ*", "->Z*"), linear=(0,), attributes=trailing), "native_group_norm_backward"),
    (Law(fixed("aZ*", "Z*", "->aZ*")), "convolution"),
    (Law(fixed("aZ*", "aZ*", "Z*", "->aZ*", "->Z*"), linear=(0,)), "convolution_backward"),
    (Law(SAMPLES_FIRST), """
        max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d avg_pool3d _adaptive_avg_pool2d
        _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d upsample_nearest1d upsample_nearest2d
        upsample_nearest3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d
    """),
    (Law(SAMPLES_FIRST, linear=(0,)), """
        max_pool2d_with_indices_backward max_pool3d_with_indices_backward avg_pool2d_backward
        avg_pool3d_backward _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward
        adaptive_max_pool2d_backward adaptive_max_pool3d_backward reflection_pad1d reflection_pad1d_backward
        reflection_pad2d reflection_pad2d_backward reflection_pad3d reflection_pad3d_backward replication_pad1d
        replication_pad1d_backward replication_pad2d replication_pad2d_backward replication_pad3d
        replication_pad3d_backward
    """),
    (Law(SAMPLES_FIRST, linear=(0,), attributes=enlarged), """
        upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward
        upsample_linear1d_backward upsample_bilinear2d_backward upsample_bicubic2d_backward
    """),
    (Law(fixed("...XYZ", "->...XYZ")), "pixel_shuffle pixel_unshuffle"),
    (Law(attention), "_scaled_dot_product_flash_attention_for_cpu"),
    (Law(attention, linear=(0,)), "_scaled_dot_product_flash_attention_for_cpu_backward"),
]  # fmt: skip
LAWS = {name: law for law, names in ROWS for name in names.split()}
"""Samples are mapped over axes that these leave in lower case. Source: the definitions in torch's own documentation."""


# -- Rules: operators whose values are worked out and not named. `arithmetic` and `losses` enter theirs.

Rule = Callable[[Interpreter, Call], "list[Value] | None"]
RULES: dict[str, Rule] = {}
"""Operator (without the namespace and the underscore of a form in place) to rule."""

FIRST = Law(pointwise, linear=(0,), uniform=True)
BOTH = Law(pointwise, linear=(0, 1), uniform=True, commutes=True)
SUM = Law(partial(reduced, sums=True), linear=(0,))


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enter a rule into the table."""

    def put(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return put


def divided(x: Interpreter, value: Value, count: Combination) -> Value:
    """A value divided by a count."""
    by, powers = x.scalar(count)
    return x.rescaled(value, 1 / by, multiplied({}, powers, -1))


# -- Operators of which the table has no law: it is registered, or trials on the kernel find it.


class Assumed:
    """The laws of operators that the table does not have.

    `tries`: whether there are numbers, and one process. `names`: the operators whose laws were used, and the words.
    `lose`: takes what is wrong with a law, before the error.
    """

    def __init__(self, lose: Callable[[str], None]) -> None:
        self.lose = lose
        self.tries: Callable[[], bool] = lambda: False
        self.known: dict[Any, tuple[Law, str] | None] = {}
        self.names: dict[str, str] = {}

    def law(self, func: Any, spec: Spec, call: Call) -> Law | None:
        """The law of an operator, or None. Raises GradproofError for a registered law that is not true."""
        registered = REGISTERED.get(spec.base)
        if registered is not None:
            try:
                return self._registered(func, spec, registered, call)
            except GradproofError as error:
                self.lose(f"{error.found}, by a law that {error.where} registered")
                raise
        cuts = {i: value.axis for i, value in enumerate(call.values) if not value.shared}
        layouts = {call.values[i].layout[1:] for i in cuts}
        if not self.tries() or spec.written or len(layouts) != 1 or layouts.pop()[1] != 1 or not plain(call):
            return None
        if torch.Tag.dynamic_output_shape in func.tags:
            return None  # how many rows the result has depends on numbers, as in x[x > 0]
        made = tuple(call.out_shape(at) for at in range(len(call.out)))
        rows = call.values[min(cuts)].rows
        key = (str(func), call.attributes, tuple(cuts.items()), *map(_form, call.tensors), rows, made)
        if key not in self.known:
            self.known[key] = sampled(func, call, cuts)
        law, words = self.known[key] or (None, "")
        if law is not None:
            self.names[call.name] = f"holds, assuming the sampled law of {spec.base}: {words}"
        return law

    def _registered(self, func: Any, spec: Spec, law: RegisteredLaw, call: Call) -> Law:
        if spec.written:
            raise law.refused("it writes its arguments, of which no law says anything")
        letters = spelt(law, call)
        key = (law, frozen(call.attributes), *map(_form, call.tensors))
        tried = self.tries() and plain(call)
        if tried and key not in self.known:
            self.known[key] = None
            confirm(func, law, call, letters)
        self.names[call.name] = f"assumed: {law.words}" + ("" if tried else ", which was not tried here")
        return Law(lambda _: letters, linear=law.linear)


def plain(call: Call) -> bool:
    """Whether an operator can be tried: its tensors are real or whole numbers, in a memory of their own."""
    return all(t.layout is torch.strided and not t.is_complex() and not t.is_meta for t in call.tensors)


def _form(tensor: torch.Tensor) -> Any:
    return (tuple(tensor.shape), tensor.dtype)


def sampled(func: Any, call: Call, cuts: Mapping[int, int]) -> tuple[Law, str] | None:
    """The law that trials find along one layout, if they find one.

    In float64 a trial tells the rounding of a kernel from a small share of another sample. A kernel without float64 has
    to give the same numbers for each sample to the last bit.
    """
    counts = range(len(call.values[min(cuts)].parts))
    with undisturbed(call.tensors):
        kernel = Repeated(func, call.args, call.kwargs)
        pieces = [
            [rows_of(t.detach(), v, i).flatten(v.axis, v.axis + 1) for i in counts] if not v.shared else [t.detach()]
            for t, v in zip(call.tensors, call.values, strict=True)
        ]
        few = [each[:SAMPLES] for each in pieces]
        own, wide = RowTrial(kernel, cuts, pieces, False), RowTrial(kernel, cuts, few, True)
        try:
            wide.kinds(1.0)
            double = True
        except Exception:
            double = False
        try:
            found = own.kinds(_allowed(call) if double else 0.0)
            own.run(found, call.out, _allowed(call) if double else 0.0)
            if double:
                wide.run(found, [], EXACT)
        except Exception:
            return None
        linear = [
            i for i, t in enumerate(call.tensors) if double and t.is_floating_point() and wide.linear_in(i, EXACT)
        ]
    kinds = ", ".join("a sum over samples" if kind == SUMMED else f"samples along axis {kind}" for kind in found)
    words = f"{kinds}; linear in {', '.join(map(str, linear))}" if linear else kinds
    ins = [_cut_along(tensor.dim(), cuts.get(i, SUMMED)) for i, tensor in enumerate(call.tensors)]
    letters = ins, [_cut_along(len(call.out_shape(at)), kind) for at, kind in enumerate(found)]
    return Law(lambda _: letters, linear=tuple(linear)), words


def _cut_along(rank: int, axis: int) -> str:
    """Letters of a tensor of which one axis is mapped."""
    return "".join("a" if at == axis else "Z" for at in range(rank))


def _allowed(call: Call) -> float:
    """What rounding may make of the results of the recorded call."""
    kinds = [t.dtype for t in (*call.tensors, *call.out) if t is not None and t.is_floating_point()]
    return max((ROUNDED.get(kind, 1e-1) for kind in kinds), default=EXACT)


# -- Registered laws.


def spelt(law: RegisteredLaw, call: Call) -> Letters:
    """The letters of a registered law for one call. Raises GradproofError where they do not fit its tensors."""
    shapes = [call.shapes, [call.out_shape(at) for at in range(len(call.out))]]
    sizes: dict[str, int] = {}
    found: list[list[str]] = []
    for texts, own, what in ((law.arguments, shapes[0], "argument"), (law.results, shapes[1], "result")):
        if len(texts) != len(own):
            raise law.refused(f"it has {len(own)} tensors as {what}s, and the law {len(texts)}")
        found.append([])
        for at, (text, shape) in enumerate(zip(texts, own, strict=True)):
            letters = text.removesuffix(REST)
            letters += "Z" * (len(shape) - len(letters)) if text.endswith(REST) else ""
            sized = list(zip(letters, shape, strict=False))
            if len(letters) != len(shape) or any(
                size != (1 if x == "." else sizes.setdefault(x, size)) for x, size in sized if not x.isupper()
            ):
                raise law.refused(f"{what} {at} has the shape {list(shape)}, and the law says {text!r}")
            found[-1].append(letters)
    return found[0], found[1]


def confirm(func: Any, law: RegisteredLaw, call: Call, letters: Letters) -> None:
    """Try a registered law on the kernel, along each of its axes. Raises GradproofError that says what differs."""
    ins, outs = letters
    allowed = _allowed(call)
    with undisturbed(call.tensors):
        kernel = Repeated(func, call.args, call.kwargs)
        for letter in sorted({x for text in ins for x in text if x.islower()}):
            cuts = {i: text.index(letter) for i, text in enumerate(ins) if letter in text}
            pieces = [
                list(torch.split(t.detach(), 1, cuts[i])) if i in cuts else [t.detach()]
                for i, t in enumerate(call.tensors)
            ]
            trial = RowTrial(kernel, cuts, pieces, False)
            try:
                trial.run([text.find(letter) for text in outs], [], allowed)
            except Exception as error:
                raise law.refused(f"{error} (axis {letter})") from error
            for at in law.linear:
                if not trial.linear_in(at, allowed):
                    raise law.refused(f"it is not linear in argument {at}")
