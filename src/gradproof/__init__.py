"""gradproof: formal and bounded verification of gradient accumulation.

gradproof.check(train, accum_steps=4)      # a training function, which takes a Run
with gradproof.watch() as seen: ...        # any code that trains, as a cell of a notebook
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradproof.testing import assert_accumulates, check, watch

__all__ = ["__version__", "assert_accumulates", "check", "watch"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """What `gradproof.testing` has of it: imported when it is first asked for."""
    if name in __all__:
        return getattr(import_module("gradproof.testing"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
