"""`gradproof check` in this process: the whole verification of a function, by all of its judges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradproof.shadow.process.check import verified
from gradproof.shadow.request import Request
from gradproof.shadow.result import Verification


def check(function: Callable[[Any], Any], **options: Any) -> Verification:
    """Verify a training function; the options are those of a `Request`."""
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    return verified(function, Request(**options))
