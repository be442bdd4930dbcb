"""The pytest plugin: the fixture `gradproof`. Neither torch nor the engine is loaded before a test uses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gradproof.shadow.verdict import Verification


class Gradproof:
    """What the fixture hands to a test."""

    def check(self, function: Callable[[Any], Any], **options: Any) -> Verification:
        """The verification of a training function, whatever its outcome (see gradproof.testing.check)."""
        from gradproof import testing

        return testing.check(function, **options)

    def assert_accumulates(self, function: Callable[[Any], Any], **options: Any) -> Verification:
        """Raise AssertionError unless every obligation HOLDS (see gradproof.testing.assert_accumulates)."""
        from gradproof import testing

        __tracebackhide__ = True
        return testing.assert_accumulates(function, **options)


@pytest.fixture(scope="session")
def gradproof() -> Gradproof:
    """Verify that a training function accumulates gradients correctly: `gradproof.assert_accumulates(train)`."""
    return Gradproof()
