"""Running the elementwise rows: every output against the machine that the operator is claimed to be, bit for bit.

Each chunk of inputs runs whole; the first one also with a stride and in pieces of seven, because the vectorised body,
the strided loop and the scalar tail of a kernel are three pieces of code. Each row also runs its control, a machine
that it is not: a comparison that cannot tell the two apart is an ERROR, not an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gradproof.extras.conformance.cases import cases
from gradproof.extras.conformance.deviations import SAMPLE, disagree, explain
from gradproof.extras.conformance.elementwise import OPERATORS, Operator, to_bits, to_tensor
from gradproof.extras.conformance.machine import Bits, Machine, Mask, Program, decode, known, run
from gradproof.extras.conformance.report import (
    ERROR,
    HOLDS,
    REFUTED,
    Fact,
    Result,
    hexadecimal,
    not_run,
)

FULL, QUICK = 10**7, 10**5
STRIDED, PIECES = 20_011, 700

Outputs = Iterator[tuple[list[Bits], float, Bits]]


def outputs(op: Operator, dtype: str, device: str, count: int, seed: int) -> Outputs:
    """Operands, scalar and what the kernel returned, chunk by chunk, in all three layouts."""
    for scalar in op.scalars:
        for index, operands in enumerate(cases(dtype, op.arity, max(1, count // len(op.scalars)), seed)):
            tensors = [to_tensor(b, dtype, device) for b in operands]
            yield operands, scalar, to_bits(op.kernel(tensors, scalar))
            if index:
                continue
            apart = [torch.stack([t[:STRIDED]] * 2, 1)[:, 0] for t in tensors]
            yield [b[:STRIDED] for b in operands], scalar, to_bits(op.kernel(apart, scalar))
            step = max(1, len(operands[0]) // PIECES)
            chosen = [b[::step][:PIECES] for b in operands]
            pieces = zip(*(torch.split(to_tensor(b, dtype, device), 7) for b in chosen), strict=True)
            yield chosen, scalar, np.concatenate([to_bits(op.kernel(list(p), scalar)) for p in pieces])


@dataclass(slots=True)
class Tally:
    """What a comparison of outputs with one machine has seen so far."""

    cases: int = 0
    off: int = 0
    first: Fact | None = None
    kept: dict[float, tuple[list[list[Bits]], list[Bits]]] = field(default_factory=dict)

    def count(
        self, operands: list[Bits], got: Bits, want: Bits, different: Mask, widths: tuple[int, int], scalar: float
    ) -> None:
        """Add one chunk; `widths` are the bits of an operand and of a result."""
        self.cases += len(got)
        if not different.any():
            return
        self.off += int(different.sum())
        at = int(np.argmax(different))
        if self.first is None:
            inputs = tuple(hexadecimal(b[at], widths[0]) for b in operands)
            shown = (hexadecimal(got[at], widths[1]), hexadecimal(want[at], widths[1]))
            self.first = Fact(inputs, *shown, note=f"scalar={scalar!r}")
        seen, results = self.kept.setdefault(scalar, ([[] for _ in operands], []))
        if sum(map(len, results)) < 2 * SAMPLE:
            chosen = np.concatenate([np.flatnonzero(different)[:SAMPLE], np.flatnonzero(~different)[:SAMPLE]])
            for store, b in zip(seen, operands, strict=True):
                store.append(b[chosen])
            results.append(got[chosen])

    def names(self, program: Program, machine: Machine) -> tuple[str, ...]:
        """What detection calls the differences; with several scalars, only the names that fit them all."""
        found: list[tuple[str, ...]] = []
        for scalar, (seen, results) in self.kept.items():
            operands = [np.concatenate(parts) for parts in seen]
            found.append(explain(program, machine, operands, np.concatenate(results), scalar))
        common = [n for n in found[0] if all(n in names for names in found)] if found else []
        return tuple(common) or tuple(dict.fromkeys(n for names in found for n in names))


def compare(
    machine: Machine, program: Program, found: Outputs, dtype: str, second: Machine | None = None, ulps: int = 0
) -> Tally:
    """Compare outputs with what a machine returns for a program, or the operator's second machine."""
    tally = Tally()
    widths = (known(dtype).bits, known(machine.fmt).bits)
    for operands, scalar, got in found:
        want = run(program, machine, operands, scalar)
        different = disagree(got, want, machine.fmt)
        if second is not None and different.any():
            different &= disagree(got, run(program, second, operands, scalar), machine.fmt)
        if ulps and different.any():
            different &= distance(got, want, machine.fmt) > ulps
        tally.count(operands, got, want, different, widths, scalar)
    return tally


def distance(got: Bits, want: Bits, name: str) -> npt.NDArray[np.int64]:
    """How many neighbours of a format lie between two bit patterns; NaN is far from everything."""
    top = 2 ** (known(name).bits - 1)
    places = [np.where(b >= top, top - b.astype(np.int64), b.astype(np.int64)) for b in (got, want)]
    nan = np.isnan(decode(got, name)) != np.isnan(decode(want, name))
    return np.where(nan, np.int64(2**40), np.abs(places[0] - places[1]))


def conform(op: Operator, dtype: str, device: str, count: int = QUICK, seed: int = 0) -> Result:
    """One row: the operator against its claim, `count` random inputs and every structured one; never raises."""
    claim = op.claim(dtype, device)
    if device not in op.devices or dtype not in op.dtypes:
        return not_run(op.name, dtype, device, claim, "no exact claim is made here; see its row with a bound")
    if device == "cuda" and not torch.cuda.is_available():
        return not_run(op.name, dtype, device, claim, "no CUDA device is at hand")
    try:
        machine = op.machine(dtype, device)
        found = outputs(op, dtype, device, count, seed)
        away = op.ulps.get((device, dtype), 0)
        tally = compare(machine, op.program, found, dtype, op.second(dtype, device), away)
        caught = control_is_caught(op, dtype, device, min(count, QUICK), seed)
        names = tally.names(op.program, machine)
        facts = also(op, dtype, device, min(count, QUICK), seed)
    except (RuntimeError, TypeError, ValueError) as e:
        return Result(op.name, dtype, device, claim, ERROR, reason=f"{type(e).__name__}: {e}"[:300])
    result = Result(op.name, dtype, device, claim, REFUTED if tally.off else HOLDS, tally.cases, tally.off,
                    tally.first, names, facts=facts)  # fmt: skip
    if not caught:
        return replace(result, outcome=ERROR, reason="the inputs do not tell this kernel from its control")
    return result


def control_is_caught(op: Operator, dtype: str, device: str, count: int = QUICK, seed: int = 0) -> bool:
    """Whether the row's comparison refutes the control, a machine that this kernel is not claimed to be."""
    machine, program = op.wrong(dtype, device)
    found = outputs(op, dtype, device, count, seed)
    return compare(machine, program, found, dtype, ulps=op.ulps.get((device, dtype), 0)).off > 0


def also(op: Operator, dtype: str, device: str, count: int, seed: int) -> Mapping[str, Any]:
    """How often the kernel differs from operations rounded straight to storage, and from unfused ones."""
    base, facts = op.machine(dtype, device), {}
    rivals = {}
    if op.ulps or (not op.single and dtype != "fp32"):
        rivals[f"differs from operations rounded to {dtype}"] = base if op.ulps else replace(base, work=dtype)
    if base.contract:
        rivals["differs from unfused operations"] = replace(base, contract=False)
    for name, machine in rivals.items():
        tally = compare(machine, op.program, outputs(op, dtype, device, count, seed), dtype)
        facts[name] = f"{tally.off} of {tally.cases}"
    return facts


Progress = Callable[[Result], None]


def all_rows(
    device: str,
    count: int = QUICK,
    seed: int = 0,
    operators: Sequence[Operator] = OPERATORS,
    progress: Progress = lambda r: None,
) -> list[Result]:
    """Every elementwise row of a device."""  # fmt: skip
    results = []
    for op in operators:
        for dtype in op.dtypes:
            results.append(conform(op, dtype, device, count, seed))
            progress(results[-1])
    return results
