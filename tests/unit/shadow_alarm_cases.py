"""Each right loop that looks wrong, with its wrong twin and its full batch by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shadow_accumulators import (
    flat_buffer,
    flat_by_cat,
    foreach_lists,
    listed,
    listed_by_hand,
    main_grad,
    main_grad_views,
    padded_buffer,
    sharpness_aware,
    sharpness_aware_by_hand,
    sharpness_aware_class,
)
from shadow_false_alarms import (
    Loss,
    Train,
    binary,
    class_weights,
    classes,
    counted_right,
    drawn_in_turn,
    entropy,
    fixed_normaliser,
    full_batch,
    gate_times_loss,
    image_mean,
    image_mean_numpy,
    index_list,
    labelled_rows,
    labels_ahead,
    looped,
    mask_times_loss,
    picked,
    picked_globally,
    picked_globally_rows,
    picked_rows,
    pos_weight,
    pos_weight_alone,
    prefetched,
    prefetched_and_read,
    python_list,
    regression,
    rows_in_turn,
    rows_of,
    share_of_a_number,
    shuffled_epochs,
    shuffled_epochs_by_hand,
    squared,
    two_epochs,
    validated,
    validated_by_rows,
    validated_from_one_line,
)
from torch import Tensor, nn


@dataclass(frozen=True)
class Case:
    """A right loop, its wrong twin, and the full batch by hand."""

    right: Train
    wrong: Train
    full: Callable[[Any], nn.Module]


def of_loss(loss: Loss, data: Callable[[Any], tuple[Tensor, Tensor]] = regression) -> Case:
    """A plain loop with a loss that is a mean over the samples; the twin does not divide by N."""
    return Case(looped(loss, data), looped(loss, data, factor=1.0), lambda run: full_batch(run, loss, data))


def of_loop(
    train: Train, loss: Loss = squared, data: Callable[[Any], tuple[Tensor, Tensor]] = regression, epochs: int = 1
) -> Case:
    """A loop that can leave its scale out."""

    def wrong(run: Any) -> None:
        train(run, scale=False)

    return Case(train, wrong, lambda run: full_batch(run, loss, data, epochs))


CASES = {
    "pos_weight": of_loss(pos_weight, binary),
    "pos_weight_alone": of_loss(pos_weight_alone, binary),
    "python_list": of_loss(python_list),
    "index_list": of_loss(index_list),
    "class_weights": of_loss(class_weights, classes),
    "image_mean": of_loss(image_mean),
    "image_mean_numpy": of_loss(image_mean_numpy),
    "mask_times_loss": of_loss(mask_times_loss),
    "gate_times_loss": of_loss(gate_times_loss, classes),
    "fixed_normaliser": of_loss(fixed_normaliser, classes),
    "share_of_a_number": Case(
        looped(share_of_a_number, classes, factor=1.0),
        looped(share_of_a_number, classes),
        lambda run: full_batch(run, share_of_a_number, classes),
    ),
    "prefetched": of_loop(prefetched, data=rows_of),
    "prefetched_and_read": of_loop(prefetched_and_read, data=rows_of),
    "validated": of_loop(validated),
    "validated_by_rows": of_loop(validated_by_rows, data=rows_of),
    "counted_right": of_loop(counted_right, entropy, classes),
    "two_epochs": of_loop(two_epochs, epochs=2),
    "sharpness_aware": Case(sharpness_aware, of_loop(sharpness_aware).wrong, sharpness_aware_by_hand),
    "sharpness_aware_class": Case(sharpness_aware_class, of_loop(sharpness_aware_class).wrong, sharpness_aware_by_hand),
    "shuffled_epochs": Case(shuffled_epochs, of_loop(shuffled_epochs).wrong, shuffled_epochs_by_hand),
    "validated_from_one_line": of_loop(validated_from_one_line, data=rows_of),
    "labels_ahead": of_loop(labels_ahead, entropy, labelled_rows),
    "drawn_in_turn": of_loop(drawn_in_turn, data=rows_in_turn),
    "picked": of_loop(picked, data=picked_rows),
    "picked_globally": of_loop(picked_globally, data=picked_globally_rows),
    "listed_by_hand": of_loop(listed_by_hand),
    "main_grad_views": of_loop(main_grad_views),
    "foreach_lists": of_loop(foreach_lists),
    "flat_buffer": of_loop(flat_buffer),
    "flat_by_cat": of_loop(flat_by_cat),
    "listed": of_loop(listed),
    "main_grad": of_loop(main_grad),
    "padded_buffer": of_loop(padded_buffer),
}
