"""Write docs/operators.md: the operator table as users read it. `python -m tests.operators [FILE]`.

An overload counts when an example of its row runs it against the real kernel in the tests. Needs torch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from gradproof.shadow.domains.rounding_kernels import table as rounding_table
from gradproof.shadow.ops.rows import load
from gradproof.shadow.ops.table import TABLE, Bool, Example, Int, OperatorRow, T

HEAD = """# Operators that shadow execution knows

Written by `python -m tests.operators`. On its examples, `tests/unit/shadow/test_shadow_rows.py` compares
every row with the real kernel, in float64 and, where a bound is claimed, inside the rounding bound. Forms in place
(`add_`) and with `out=` follow from the row and are not counted. `gradproof check --rounding` gives no bound for a step
with another operator, and names it. To add a row: `gradproof.shadow.register`.
"""


ELSEWHERE = (
    "aten.cudnn_", "aten.miopen_", "aten._scaled_dot_product_cudnn", "aten._scaled_dot_product_efficient",
    "aten._scaled_dot_product_flash_attention", "aten._fused_rms_norm_backward", "aten.convolution_overrideable",
    "aten._scaled_dot_product_fused_attention_overrideable",
)  # fmt: skip
"""Operators whose kernels are another device's than the CPU's, where the tests run."""


def elsewhere(op: str) -> bool:
    """Whether the kernel of a row is not the CPU's."""
    return op.startswith(ELSEWHERE) and not op.endswith("_for_cpu") and "_for_cpu_" not in op


def tensor(spec: Any) -> Any:
    """A tensor of an example without content, for picking an overload."""
    import torch

    if isinstance(spec, T | Int):
        return torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype))
    if isinstance(spec, Bool):
        return torch.zeros(spec.shape, dtype=torch.bool)
    if isinstance(spec, list | tuple):
        return [tensor(s) for s in spec]
    found = getattr(torch, spec, None) if isinstance(spec, str) else None
    return found if isinstance(found, torch.dtype) else spec


def overload(row: OperatorRow, example: Example) -> str:
    """The overload that torch picks for an example, or that the row or the example names."""
    import torch

    space, base, *rest = row.op.split(".")
    if rest or example.overload:
        return rest[0] if rest else example.overload
    args, kwargs = [tensor(a) for a in example.args], {key: tensor(a) for key, a in example.kwargs.items()}
    resolve: Any = torch._C._jit_resolve_packet
    return str(resolve(f"{space}::{base}", *args, **kwargs)) or "default"


def lines() -> list[str]:
    """The document, line by line."""
    load()
    rounding = rounding_table()
    rows = [row for row in TABLE.values() if row.module.startswith("gradproof.")]
    rows = [row for row in rows if not elsewhere(row.op)]
    found = {row.op: sorted({overload(row, e) for e in row.examples}) for row in rows}
    bounded = {op for op in found if "unknown" not in rounding[op].rule.__qualname__}
    schemas = sum(len(v) for v in found.values())
    out = [HEAD, f"{len(found)} operators, {schemas} overloads, {len(bounded)} with a rounding bound.", ""]
    for module in sorted({row.module for row in rows}):
        out += [
            f"## {module.rsplit('.', 1)[-1]}",
            "",
            "| operator | overloads run | examples | rounding bound |",
            "|---|---|---|---|",
        ]
        for row in sorted((r for r in rows if r.module == module), key=lambda r: r.op):
            bound = "yes" if row.op in bounded else "no"
            out.append(f"| `{row.op}` | {', '.join(found[row.op])} | {len(row.examples)} | {bound} |")
        out.append("")
    others = sorted(f"`{op}`" for op in TABLE if elsewhere(op))
    return [
        *out,
        f"Not counted, for their kernels are another device's and were not run: {', '.join(others) or 'none'}.",
        "",
    ]


def main(argv: list[str]) -> int:
    """Write the document to `argv[0]`, or to docs/operators.md."""
    path = Path(argv[0] if argv else "docs/operators.md")
    path.write_text("\n".join(lines()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
