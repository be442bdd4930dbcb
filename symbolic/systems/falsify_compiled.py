"""Accumulation under torch.compile with its default backend, inductor: FALSIFY-GT-412 of the training contract.

It generates code and compiles it: C++ on the CPU, Triton on CUDA. On the CPU that takes longer than the gate may, so
there it is run by `make compiled`, which is `python -m symbolic.systems.falsify_compiled`. Exit codes are those of
gradproof: 0 where the reference holds and every wrong loop is refuted, 1 where not, 4 where there is no compiler.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec

from gradproof.harness import EXIT_CODE, Case, Cell, Exit, NoKernel, Place, Refutation
from models.systems.torch_layouts import FEATURED, Layout, NoLayout
from symbolic.systems.falsify_compatible import WithEachFeature

COMPILERS = ("g++", "c++", "clang++")
CLAUSE = "GA-COMPAT-001"
LOOPS = ("featured_missing_scale", "featured_divided_twice", "featured_last_only")
TOLERANCE = 1e-4
"""The contract's."""


def compiler(device: str) -> str | None:
    """What inductor compiles with on a device, or None."""
    if device == "cuda":
        return "triton" if find_spec("triton") is not None else None
    named = (os.environ.get("CXX"), *COMPILERS)
    return next((found for name in named if name and (found := shutil.which(name)) is not None), None)


class WithInductor(WithEachFeature):
    """FALSIFY-GT-412: the compiled net under accumulation, which was really compiled."""

    reached = ("inductor",)

    def probe(self, cell: Cell, place: Place) -> None:
        """Raises NoKernel where inductor has no compiler."""
        super().probe(cell, place)
        if compiler(place.device) is None:
            raise NoKernel(f"inductor has no compiler here for {place.device}")


with_inductor = WithInductor()


def verdict(say: Callable[[str], object] = print) -> Exit:
    """Run the check on the CPU outside of a gate, with its controls, and tell what was found."""
    place = Place("cpu", "fp32", {CLAUSE: TOLERANCE}, frozenset({CLAUSE}))
    cell = Cell("inductor", 4)
    try:
        with_inductor.probe(cell, place)
    except NoKernel as e:
        say(f"NOT_RUN: {e}")
        return Exit.OPEN
    case = Case(cell.net, cell.n)
    found = with_inductor.test(Layout, case, place)
    if found.covers != {"inductor"}:
        say("VACUOUS: no graph was captured")
        return Exit.BROKEN
    wrong = {"the empty body": NoLayout, **{name: FEATURED[name].subject for name in LOOPS}}
    for name, subject in wrong.items():
        try:
            with_inductor.test(subject, case, place)
        except Refutation:
            continue
        say(f"WEAK: {name} survives")
        return Exit.BROKEN
    for row in found.rows:
        say(f"{row['note'] or row['column']}: {row['measured']:.3g} at most {row['bound']:.3g}")
    say(f"HOLDS on torch cpu fp32, sampled: 16 samples as 4 x 4 under inductor; {len(wrong)} controls killed")
    return Exit.MET


def main() -> int:
    """The verdict as an exit code; a refutation is reported."""
    try:
        return EXIT_CODE[verdict()]
    except Refutation as e:
        print(f"REFUTED: {e}")
        return EXIT_CODE[Exit.BROKEN]


if __name__ == "__main__":
    sys.exit(main())
