"""Operators that training meets, and why some of them have no law.

`covered.txt` has those that the element-wise judge of earlier versions knew, and that the example loops dispatch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gradproof.shadow.follow import engine as engine
from gradproof.shadow.follow.laws import LAWS, RULES

NAMES = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").split()

COPIES = "torch.compile alone makes it, of a view"
STEP = "an optimizer's or a loss scaler's: what it writes is a new leaf, defined by the gradients as wholes"
SCALER = "the engine has a rule of its own: gradients are divided by a scale"
DRAWN = "the engine draws its mask, of each sample or of all, and multiplies"
BATCH = "samples meet: the statistics are those of the batch"
COMPOSITE = "torch decomposes it"
SHAPE = "the numbers decide the shape of the result: a condition on the path"
RARE = "no loop was met that puts samples into it; a run with numbers tries it on the kernel"

REASONS: Mapping[str, str] = {
    **dict.fromkeys(
        ["_reshape_copy", "alias_copy", "diagonal_copy", "diagonal_scatter", "expand_copy", "lift_fresh_copy",
         "permute_copy", "select_copy", "select_scatter", "slice_copy", "slice_scatter", "split_copy",
         "split_with_sizes_copy", "squeeze_copy", "t_copy", "transpose_copy", "unbind_copy", "unsqueeze_copy",
         "unsafe_split_with_sizes", "view_copy", "_native_batch_norm_legit_functional", "_unsafe_index"], COPIES,
    ),
    **dict.fromkeys(["_fused_adagrad", "_fused_adam", "_fused_adamw", "_fused_sgd"], STEP),
    **dict.fromkeys(["_amp_foreach_non_finite_check_and_unscale", "_amp_update_scale"], SCALER),
    "native_dropout": DRAWN,
    "_native_batch_norm_legit": BATCH,
    **dict.fromkeys(["ger", "isclose", "linear", "native_channel_shuffle", "outer"], COMPOSITE),
    **dict.fromkeys(["masked_select", "nonzero"], SHAPE),
    **dict.fromkeys(
        ["_addmm_activation", "_embedding_bag_forward_only",
         "_masked_softmax", "_masked_softmax_backward", "_prelu_kernel_backward", "addbmm", "addr", "aminmax",
         "channel_shuffle", "col2im", "diag_embed", "diagonal_backward", "im2col", "index_add", "index_copy",
         "index_fill", "kthvalue", "masked_scatter", "masked_scatter_backward", "multi_margin_loss",
         "multi_margin_loss_backward", "nansum", "put", "scatter_reduce", "take", "trace",
         "unfold_backward", "vdot"], RARE,
    ),
}  # fmt: skip
"""Operator without a law to why it has none."""


def bare(name: str) -> str:
    """An operator as the table of laws calls it: out of place, and of one tensor."""
    return (name if name.endswith("__") else name.rstrip("_")).removeprefix("_foreach_")


def lawless() -> list[str]:
    """The operators of the list that have neither a law nor a rule."""
    return sorted({bare(name) for name in NAMES} - set(LAWS) - set(RULES))
