"""Steps that gradproof answers wrongly today. The list is exact: an answer that is put right must leave it."""

from __future__ import annotations

from collections.abc import Mapping

from tests.soundness.answers import BESIDE

KNOWN: Mapping[str, str] = {
    # GA-INV-005 is refuted. Both runs make the same mistake, so that their gradients are equal.
    "clipped_before_it_is_unscaled": BESIDE,
}
