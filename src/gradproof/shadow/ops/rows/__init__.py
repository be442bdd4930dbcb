"""The rows that gradproof ships, one module a family of operators."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module

from gradproof.shadow.ops.table import TABLE, OperatorRow, names

MODULES: tuple[str, ...] = (
    "pointwise",
    "activation",
    "reduce",
    "optim",
    "movement",
    "index",
    "losses",
    "norm",
    "conv",
    "attention",
)


@lru_cache(maxsize=1)
def load() -> None:
    """Import every module of rows; each registers its own."""
    for name in MODULES:
        import_module(f"{__name__}.{name}")


def lookup(op: str, table: Mapping[str, OperatorRow] | None = None) -> OperatorRow | None:
    """The row of an operator by its full schema name, or None."""
    load()
    rows = TABLE if table is None else table
    return next((rows[name] for name in names(op) if name in rows), None)
