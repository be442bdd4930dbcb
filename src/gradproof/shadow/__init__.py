"""Symbolic execution of a real PyTorch training step: recorder, tape, operator table and domains.

`register` adds an operator to the table (see `table`). Importing this package imports neither torch nor a solver.
"""

from gradproof.shadow.ops.table import Example, Ops, register

__all__ = ["Example", "Ops", "register"]
