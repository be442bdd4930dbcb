"""How long to fuzz: a few derandomized examples in CI; GRADPROOF_FUZZ=N tries N random ones a test."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

WANTED = int(os.environ.get("GRADPROOF_FUZZ", "0"))


def few(examples: int) -> settings:
    """Settings of a test that tries this many examples in CI."""
    return settings(
        max_examples=WANTED or examples,
        derandomize=not WANTED,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
