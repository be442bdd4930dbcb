"""Steps that gradproof answers wrongly today. The list is exact: an answer that is put right must leave it."""

from __future__ import annotations

from collections.abc import Mapping

from tests.soundness.answers import BESIDE, FALSE_HOLDS

KNOWN: Mapping[str, str] = {
    "a_flat_buffer_that_is_never_emptied": FALSE_HOLDS,
    "numbers_of_its_own": FALSE_HOLDS,
    "right_numbers_of_its_own": FALSE_HOLDS,
    "never_zeroed": BESIDE,
    "the_bias_is_not_zeroed": BESIDE,
    "the_first_row_is_not_zeroed": BESIDE,
    "gradients_before_the_loop": FALSE_HOLDS,
}
