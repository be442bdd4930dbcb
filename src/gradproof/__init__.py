"""gradproof: formal and bounded verification of gradient accumulation.

`gradproof.check(train, accum_steps=4)` verifies a training function, and `with gradproof.watch() as seen:` any code.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradproof.testing import assert_accumulates, check, watch

__all__ = ["__version__", "assert_accumulates", "check", "watch"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("gradproof.testing"), name)  # which takes its time
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
