"""Whether a mutant that no check kills does the same as the original, on everything that can be observed.

The original and the mutant run on the same inputs: first on numbers drawn at random, which finds a difference fast;
then with free inputs, path by path, where the solver must show that everything observable is the same. What is run,
and within which bounds, stands in `equivalence_runs`. The answers: `equivalent`, with the bounds; `different`, with
inputs that tell them apart; `undecided`.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import importlib.util
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from operator import and_
from pathlib import Path
from types import ModuleType
from typing import Any

from gradproof.core import workspace as content
from gradproof.core.check import Check
from gradproof.core.outcome import Kind, Layer
from gradproof.execution.methods.explore import Explorer, Limits
from gradproof.execution.methods.harness import ConcreteKit, SymbolicKit
from tests.mutation.run import let_pass
from tests.mutation.subjects import module_of

DRAWS = 60
SECONDS = 60.0
CHECK = Check("EQUIVALENCE", Kind.SMT, Layer.SMT, ("EQ",), "", "")

Observe = Callable[[ModuleType], Any]


class _Skip(Exception):
    """The drawn inputs do not meet an assumption."""


class Drawn:
    """A kit whose inputs are drawn: rationals, which are computed with exactly but for roots."""

    def __init__(self, seed: int) -> None:
        self.draws, self.values = random.Random(seed), dict[str, Any]()
        self.concrete = ConcreteKit(CHECK, {}, (), "fraction")

    def real(self, name: str, lo: Any = None, hi: Any = None) -> Fraction:
        """A rational of the range."""
        low, high = Fraction(-8 if lo is None else lo), Fraction((8 if lo is None else lo + 8) if hi is None else hi)
        return self._kept(name, low + (high - low) * Fraction(self.draws.randint(0, 64), 64))

    def int(self, name: str, lo: int | None = None, hi: int | None = None) -> int:
        """An integer of the range."""
        low = -4 if lo is None else lo
        return self._kept(name, self.draws.randint(low, low + 6 if hi is None else hi))

    def choose(self, name: str, options: Sequence[Any]) -> Any:
        """One of the options."""
        return self._kept(name, self.draws.choice(list(options)))

    def assume(self, condition: Any) -> None:
        """Raises _Skip where the condition does not hold."""
        if not condition:
            raise _Skip

    def _kept(self, name: str, value: Any) -> Any:
        self.values[name] = value
        return value


def judge(root: str, path: str, text: str, seconds: float = SECONDS) -> dict[str, str]:
    """What is known of a mutant of a file: `answer` and `why`. To be called in a process of its own."""
    from tests.mutation.equivalence_runs import RUNS

    content.Workspace(Path(root), Path(root) / "reports").enter()
    original = importlib.import_module(module_of(path))
    try:
        mutant = loaded(path, text, Path(root, path).read_text(encoding="utf-8"))
    except Exception as error:
        return {"answer": "different", "why": f"its import raises {type(error).__name__}"}
    rows, bounds = RUNS.get(path, ()), []
    for name, run, _ in rows:
        apart, works = told_apart(run, original, mutant)
        if apart:
            return {"answer": "different", "why": f"{name}: {apart}"}
        if not works:
            return {"answer": "undecided", "why": f"{name}: the original raises on all inputs that were drawn"}
    for name, run, bound in rows:
        if unknown := undecided(run, original, mutant, seconds):
            return {"answer": unknown[0], "why": f"{name}: {unknown[1]}"}
        bounds.append(f"{name}, {bound}")
    return {"answer": "equivalent" if rows else "undecided", "why": "; ".join(bounds) or "there is no run of this file"}


def loaded(path: str, text: str, original: str) -> ModuleType:
    """The mutant as a module beside the original; what fails in it at import without being mutated is let pass."""
    tree = ast.parse(text)
    same = {ast.dump(node) for node in ast.parse(original).body}
    let_pass(tree, {node.lineno for node in tree.body if ast.dump(node) in same})
    name = f"{module_of(path)}_mutant"
    module = ModuleType(name)
    sys.modules[name] = module
    module.__file__ = path
    code = compile(ast.fix_missing_locations(tree), f"{path} (mutant)", "exec", dont_inherit=True)
    exec(code, vars(module))
    return module


def told_apart(run: Callable[[Any], Observe], original: ModuleType, mutant: ModuleType) -> tuple[str, bool]:
    """Inputs on which the two differ, in words, empty where none was drawn; and whether the original worked on one."""
    works = False
    for seed in range(DRAWS):
        kit = Drawn(seed)
        try:
            observe = run(kit)
            ours, theirs = outcome(observe, original), outcome(observe, mutant)
        except _Skip:
            continue
        works = works or not raised(ours)
        if said := difference(ours, theirs, kit.concrete.same):
            inputs = ", ".join(f"{k} = {shown(v)}" for k, v in kit.values.items()) or "no inputs"
            return f"{said}, on {inputs}", works
        if not kit.values:
            break
    return "", works


def undecided(
    run: Callable[[Any], Observe], original: ModuleType, mutant: ModuleType, seconds: float
) -> tuple[str, str] | None:
    """None where the solver shows that the two are the same on every path; else an answer and its reason."""
    explorer, worked = Explorer(Limits(4000, 20000, seconds, time.process_time() + seconds), None), False

    def body() -> None:
        nonlocal worked
        kit = SymbolicKit(CHECK, explorer)
        observe = run(kit)
        first = outcome(observe, original)
        worked = worked or not raised(first)
        ours, theirs = leaves(first), leaves(outcome(observe, mutant))
        if [p for p, _ in ours] != [p for p, _ in theirs]:
            kit.check("EQ", False, "the shape of what is observed")
        pairs = [(a, b) for (_, a), (_, b) in zip(ours, theirs, strict=True) if not same_text(a, b)]
        if any(not is_number(a) or not is_number(b) for a, b in pairs):
            kit.check("EQ", False, "what is observed")
        kit.check("EQ", reduce(and_, (kit.same(a, b) for a, b in pairs)) if pairs else True, "what is observed")

    found = explorer.run(body)
    if found.violation is not None:
        values = {**{str(i): c for i, c in enumerate(found.violation.choices)}, **found.violation.values}
        return "different", ", ".join(f"{k} = {v}" for k, v in values.items())
    if found.stopped is not None:
        return "undecided", f"{found.stopped.outcome}: {found.stopped.reason}"
    return None if worked else ("undecided", "the original raises on every path")


def raised(seen: Any) -> bool:
    """Whether an observation is an exception."""
    return isinstance(seen, str) and seen.startswith("raises ")


def outcome(observe: Observe, module: ModuleType) -> Any:
    """What is observed, as plain data; an exception is an observation."""
    try:
        return plain(observe(module))
    except _Skip:
        raise
    except Exception as error:
        return f"raises {type(error).__name__}"


def plain(x: Any) -> Any:
    """Data classes as dictionaries, members of enumerations as texts; a reason that only people read is left out."""
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        fields = {f.name: plain(getattr(x, f.name)) for f in dataclasses.fields(x) if f.name != "why"}
        return {"a": type(x).__name__, **fields}
    if isinstance(x, enum.Enum):
        return str(x.value)
    if isinstance(x, Mapping):
        return {str(k): plain(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [plain(v) for v in x]
    if isinstance(x, (set, frozenset)):
        return sorted(plain(v) for v in x)
    return x


def leaves(x: Any, at: str = "") -> list[tuple[str, Any]]:
    """Every value with its place."""
    if isinstance(x, dict):
        return [leaf for k, v in x.items() for leaf in leaves(v, f"{at}.{k}")]
    if isinstance(x, list):
        return [(f"{at}#", len(x)), *(leaf for i, v in enumerate(x) for leaf in leaves(v, f"{at}[{i}]"))]
    return [(at, x)]


def difference(one: Any, two: Any, same: Callable[[Any, Any], Any]) -> str:
    """The first place where two observations differ, in words; empty where they are the same."""
    ours, theirs = leaves(one), leaves(two)
    for (at, a), (place, b) in zip(ours, theirs, strict=False):
        if at != place:
            return f"{at} and {place}"
        if is_number(a) and is_number(b) and not isinstance(a, bool) and not isinstance(b, bool):
            if not same(a, b):
                return f"{at.lstrip('.')} is {shown(a)} and not {shown(b)}"
        elif type(a) is not type(b) or a != b:
            return f"{at.lstrip('.')} is {a!r} and not {b!r}"
    return "" if len(ours) == len(theirs) else "their lengths"


def shown(x: Any) -> str:
    """A number, shortened where its fraction is long."""
    text = str(x)
    return f"about {float(x):.9g}" if isinstance(x, Fraction) and len(text) > 24 else text


def is_number(x: Any) -> bool:
    """Whether a value is compared as a number."""
    return not isinstance(x, (str, type(None))) and hasattr(x, "__sub__")


def same_text(a: Any, b: Any) -> bool:
    """Whether two values are one without a question to the solver."""
    from gradproof.arith import smt
    from gradproof.arith.symbolic import Sym, SymBool

    if isinstance(a, (Sym, SymBool)) and isinstance(b, (Sym, SymBool)):
        return bool(a.term.eq(b.term)) or smt.key(a.term) == smt.key(b.term)
    if isinstance(a, (Sym, SymBool)) or isinstance(b, (Sym, SymBool)):
        return False
    return bool(a == b)
