"""The rows that gradproof ships, one module a family of operators."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module

MODULES: tuple[str, ...] = (
    "pointwise",
    "fill",
    "activation",
    "reduce",
    "linalg",
    "foreach",
    "optim",
    "movement",
    "index",
    "losses",
    "norm",
    "conv",
    "embedding",
    "attention",
)


@lru_cache(maxsize=1)
def load() -> None:
    """Import every module of rows; each registers its own."""
    for name in MODULES:
        import_module(f"{__name__}.{name}")
