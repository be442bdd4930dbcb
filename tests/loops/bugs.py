"""The bugs that the loops are given: obligation, public thread, and what a loop must have to express them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

EQ, LOSS, ZERO, STEP = "GA-EQ-001", "GA-INV-001", "GA-INV-002", "GA-INV-003"
BUFFER, CLIP, DATA, SYNC = "GA-INV-004", "GA-INV-005", "GA-DATA-001", "GA-SYNC-001"

Edit = tuple[str, str]
Blame = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Bug:
    """A bug that somebody shipped."""

    obligation: str
    reference: str
    needs: str


@dataclass(frozen=True, slots=True)
class LoopMutant:
    """A bug in a loop.

    `line_text` is a part of the line that must be blamed for `obligation`; `also` are other right answers, as pairs of
    obligation and text. `expected` is `refuted`, `opaque` (written where no operator sees it), `error` (PyTorch
    raises) or `unknown` (right where it is meant, as a fixed normaliser is).
    `tail` says that the bug shows in a short last window only.
    """

    name: str
    loop: str
    edits: tuple[Edit, ...]
    obligation: str
    line_text: str
    reference: str
    also: tuple[Blame, ...] = ()
    expected: str = "refuted"
    tail: bool = False


_SCALE = "a share that is a micro-batch's loss over the number of micro-batches"
_TOKENS = "micro-batches of unequal numbers of valid tokens"
_TEST = "a test for the boundary over an index of micro-batches"
_CLIP = "clipping by norm that the loop calls itself"
_ZERO = "a call of zero_grad at the window's boundary"
_LOG = "a loss of the window that the loop adds up itself"
_BACKWARD = "a call of backward in the loop"
_RANKS = "ranks"
_SCHEDULE = "a schedule that the loop steps itself"
_BUFFER = "a buffer that the loop adds up itself"
_SCALER = "a GradScaler"
_FETCH = "micro-batches that the loop takes by an index"

_ROWS: tuple[tuple[str, str, str, str], ...] = (
    ("missing_scale", EQ, "nanoGPT#206", _SCALE),
    ("divided_twice", EQ, "Megatron-DeepSpeed#42", _SCALE),
    ("rescaled_buffer", EQ, "torchtitan#1732", _BACKWARD),
    ("tail_by_configured_n", EQ, "transformers#38837", _SCALE),
    ("mean_of_means", EQ, "transformers#34191", _TOKENS),
    ("samples_for_tokens", EQ, "verl#5625", _TOKENS),
    ("padding_counted", EQ, "composer#3677", _TOKENS),
    ("labels_before_shift", EQ, "transformers#46204", "a causal shift"),
    ("labels_shifted_twice", EQ, "transformers#46903", "a causal shift"),
    ("shrunk_single", EQ, "nanoGPT#605", _SCALE),
    ("divided_by_index", EQ, "nanoGPT#605", "an index of the micro-batch beside the share"),
    ("fused_forgets_scale", EQ, "pytorch#96755", "a fused optimizer"),
    ("scale_first_element_only", EQ, "keras#19534", _BACKWARD),
    ("scaled_after_backward", EQ, "transformers#35207", _BACKWARD),
    ("scaled_in_hook", EQ, "transformers#35808", _BACKWARD),
    ("hook_on_parameter", EQ, "DeepSpeed#1107", _BACKWARD),
    ("hook_after_accumulate", EQ, "torchtitan#1732", _BACKWARD),
    ("scaled_through_numpy", EQ, "torchtitan#1732", _BACKWARD),
    ("part_detached", EQ, "pytorch#73784", "an output that the loop sees before the loss"),
    ("list_averaged_wrongly", EQ, "mlx-lm#1413", "gradients or losses that the loop keeps in a list"),
    ("last_only_backward", EQ, "pytorch#73784", _BACKWARD),
    ("kwargs_ignored", EQ, "transformers#47690", "a Trainer that reads the model's signature"),
    ("loss_sum", LOSS, "axolotl#2262", _LOG),
    ("loss_divided_twice", LOSS, "pytorch-lightning#2569", _LOG),
    ("last_loss_only", LOSS, "minimind#632", _LOG),
    ("last_loss_unscaled", LOSS, "DeepSpeed#3367", _LOG),
    ("loss_not_reset", LOSS, "GPT2-Chinese#70", "a loss that is reset by hand"),
    ("zero_skipped", ZERO, "DeepSpeed#5154", _ZERO),
    ("zero_first_cycle_only", ZERO, "ignite#583", _ZERO),
    ("zero_per_micro_batch", ZERO, "torchtitan#3575", _BACKWARD),
    ("zero_after_backward", ZERO, "accelerate#1299", _ZERO),
    ("zero_in_block", ZERO, "accelerate#1299", "an `accumulate` block"),
    ("zero_first_element_only", ZERO, "keras#19534", _ZERO),
    ("zero_first_param_only", ZERO, "DeepSpeed#5154", _ZERO),
    ("zero_irregular", ZERO, "mmf#747", "an index of the micro-batch"),
    ("step_per_micro_batch", STEP, "trl#2618", _BACKWARD),
    ("step_twice", STEP, "spaCy#12450", "a call of step"),
    ("boundary_at_index", STEP, "LLMs-from-scratch#300", _TEST),
    ("step_at_n_minus_1", STEP, "minimind#691", _TEST),
    ("irregular_windows", STEP, "yolov5#3722", _TEST),
    ("tail_dropped", STEP, "transformers#14309", _TEST),
    ("no_move", STEP, "DeepSpeed#5154", "a call of step"),
    ("schedule_per_micro_batch", STEP, "accelerate#963", _SCHEDULE),
    ("ema_per_micro_batch", STEP, "F5-TTS#631", "an average of the weights"),
    ("decay_per_micro_batch", STEP, "keras#19990", _BACKWARD),
    ("state_per_micro_batch", STEP, "DeepSpeed#8443", "an optimizer with state"),
    ("inner_loader_ends", STEP, "accelerate#1050", "Accelerate's loaders"),
    ("fp16_buffer", BUFFER, "DeepSpeed#1800", _BUFFER),
    ("bf16_buffer", BUFFER, "optax#1567", _BUFFER),
    ("fp16_sum", BUFFER, "mxnet#17703", _BACKWARD),
    ("bf16_sum", BUFFER, "optax#1567", _BACKWARD),
    ("clip_per_micro_batch", CLIP, "transformers#986", _CLIP),
    ("clip_value_per_micro_batch", CLIP, "lingua#59", _BACKWARD),
    ("clip_before_unscale", CLIP, "waifu-diffusion#64", _SCALER),
    ("clip_before_last", CLIP, "nano-world-model#22", _CLIP),
    ("clip_after_step", CLIP, "nano-world-model#22", _CLIP),
    ("clip_first_param_only", CLIP, "tt-metal#17568", _CLIP),
    ("clip_not_for_adamw", CLIP, "transformers#887", _CLIP),
    ("unscale_twice", CLIP, "Swin-Transformer#311", _SCALER),
    ("unscale_per_micro_batch", CLIP, "pytorch-lightning#4441", _SCALER),
    ("inputs_fetched_once", DATA, "URSA#10", _FETCH),
    ("loader_restarted", DATA, "InstructLLaMA#6", _FETCH),
    ("sample_lost", DATA, "transformers#5605", _FETCH),
    ("targets_of_another", DATA, "transformers#5605", _FETCH),
    ("no_sync_on_last", SYNC, "FunASR#3472", _RANKS),
    ("sync_flag_after_forward", SYNC, "build-nanogpt#30", _RANKS),
    ("tail_never_synced", SYNC, "accelerate#1562", _RANKS),
    ("never_synced", SYNC, "pytorch-lightning#18086", _RANKS),
    ("static_graph", SYNC, "pytorch#143580", _RANKS),
    ("per_rank_token_means", EQ, "transformers#34242", _RANKS),
    ("world_forgotten", EQ, "transformers#37474", _RANKS),
    ("ranks_read_the_same", DATA, "horovod#1676", _RANKS),
)

BUGS: Mapping[str, Bug] = {name: Bug(*row) for name, *row in _ROWS}


def mutant(
    name: str,
    loop: str,
    edits: Edit | tuple[Edit, ...],
    line_text: str,
    *,
    also: tuple[Blame, ...] = (),
    expected: str = "refuted",
    tail: bool = False,
) -> LoopMutant:
    """A bug of the table in a loop."""
    bug = BUGS[name]
    pairs: tuple[Edit, ...] = (edits,) if isinstance(edits[0], str) else edits
    return LoopMutant(name, loop, pairs, bug.obligation, line_text, bug.reference, also, expected, tail)
