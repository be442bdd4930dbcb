"""Terms as straight-line code, for a solver or an evaluator, and the domain of machine numbers.

Terms as straight-line code: what a solver translates and an evaluator runs.

`Raw` builds such terms without any normal form, so that a proof about them does not trust `terms.Pool`.

The domain of machine numbers: one float64 component, with infinities and NaN. It computes what the step computes, up
to the rounding of float64: for tests of the rows against the real kernels, and to replay a counterexample. It proves
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradproof.shadow.algebra import Array, Beyond, Parts
from gradproof.shadow.domains.terms import Atom, Coefficient, Poly, TermPool, Truth
from gradproof.shadow.tape import Source

Floats64 = NDArray[np.float64]
Leaves = Mapping[tuple[str, str], Floats64]

LOGIC: dict[str, Callable[..., Array]] = {"not": np.logical_not, "and": np.logical_and, "or": np.logical_or}


def _one(f: Callable[..., Array]) -> Callable[[Parts, Parts], Parts]:
    """A NumPy function of two arrays as one of components, in silence about infinities and NaN."""

    def applied(a: Parts, b: Parts) -> Parts:
        with np.errstate(all="ignore"):
            return (np.asarray(f(a[0], b[0])),)

    return applied


def _each(f: Callable[[float], float]) -> Callable[[Floats64], Floats64]:
    """A function of a Python float, elementwise."""
    lifted = np.frompyfunc(f, 1, 1)
    return lambda x: np.asarray(lifted(x), dtype=np.float64)


def inverse_erf(y: float) -> float:
    """The x with erf(x) = y, to float64: Winitzki's approximation (2008), then Newton on erf or erfc."""
    if math.isnan(y) or abs(y) > 1:
        return math.nan
    if abs(y) == 1:
        return math.copysign(math.inf, y)
    size = abs(y)
    near = math.log1p(-size * size)
    half = 2 / (math.pi * 0.147) + near / 2
    x = math.sqrt(max(0.0, math.sqrt(half * half - near / 0.147) - half))
    for _ in range(4):
        error = math.erf(x) - size if size < 0.5 else (1 - size) - math.erfc(x)
        x -= error / (2 / math.sqrt(math.pi) * math.exp(-x * x))
    return math.copysign(x, y)


def sigmoid(x: Floats64) -> Floats64:
    """1 / (1 + exp(-x)), without overflow."""
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1.0, small) / (1.0 + small))


def softplus(x: Floats64) -> Floats64:
    """log(1 + exp(x)), without overflow."""
    return np.asarray(np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0.0))


COMPUTED: dict[str, Callable[..., Any]] = {
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "log1p": np.log1p,
    "expm1": np.expm1, "atan": np.arctan, "pow": np.power, "floor": np.floor, "round": np.round, "erf": _each(math.erf),
    "erfinv": _each(inverse_erf), "sigmoid": sigmoid, "softplus": softplus,
}  # fmt: skip
"""One meaning for every name of `algebra.FUNCTIONS`; `round` is to even, as torch's."""


class Floats:
    """An `algebra.Domain` of float64 arrays (one component; bool for truth values).

    `leaves`: values to put in place of what the leaves were, flat float64 arrays by (source.kind, source.name); a leaf
    takes the elements from `source.first` on. A leaf that is not named keeps its recorded value.
    """

    name = "value"

    def __init__(self, leaves: Leaves | None = None) -> None:
        self.leaves = dict(leaves or {})

    def const(self, x: Array) -> Parts:
        """An array of numbers. Raises Beyond for an integer that float64 may not hold exactly."""
        values = np.asarray(x, dtype=np.float64)
        if x.dtype.kind in "iu" and np.any(np.abs(values) >= 2.0**53):
            raise Beyond("an integer constant of 2^53 or more may not be exact in float64")
        return (values,)

    def truth(self, x: Array) -> Parts:
        """An array of truth values."""
        return (np.asarray(x, dtype=bool),)

    add = staticmethod(_one(np.add))
    sub = staticmethod(_one(np.subtract))
    mul = staticmethod(_one(np.multiply))
    div = staticmethod(_one(np.divide))
    matmul = staticmethod(_one(np.matmul))
    less = staticmethod(_one(np.less))
    equal = staticmethod(_one(np.equal))

    def neg(self, a: Parts) -> Parts:
        """Minus a."""
        return (np.asarray(-a[0]),)

    def sum(self, a: Parts, axes: tuple[int, ...]) -> Parts:
        """Sum over axes."""
        with np.errstate(all="ignore"):
            return (np.asarray(a[0].sum(axis=axes)),)

    def function(self, name: str, args: Sequence[Parts]) -> Parts:
        """A function of `COMPUTED`."""
        with np.errstate(all="ignore"):
            return (np.asarray(COMPUTED[name](*(a[0] for a in args))),)

    def logic(self, name: str, args: Sequence[Parts]) -> Parts:
        """`not`, `and`, `or`."""
        return (np.asarray(LOGIC[name](*(a[0] for a in args))),)

    def where(self, c: Parts, a: Parts, b: Parts) -> Parts:
        """Selection; the value not selected may be NaN."""
        return (np.where(c[0], a[0], b[0]),)

    def leaf(self, source: Source, shape: tuple[int, ...], value: Array) -> Parts:
        """The recorded value, or the substituted one. Raises Beyond when too few were given."""
        given = self.leaves.get((source.kind, source.name))
        if given is None:
            return (np.asarray(value, dtype=np.float64).reshape(shape),)
        count = math.prod(shape)
        chosen = np.asarray(given, dtype=np.float64).reshape(-1)[source.first : source.first + count]
        if chosen.size != count:
            raise Beyond(f"{source.kind} {source.name}: elements from {source.first} on wanted, {chosen.size} given")
        return (chosen.reshape(shape),)

    def rounded(self, a: Parts, dtype: str, entry: Any) -> Parts:
        """Float64 throughout: nothing is rounded to `dtype`."""
        return a


@dataclass(frozen=True, slots=True)
class ProgramStep:
    """One instruction: `op`, its payload (a number, a name or None), and the places of its arguments.

    `op`: number, variable, add, mul, div, apply, ite, positive, zero, true, false, not, and, or, sub.
    """

    op: str
    payload: Fraction | str | None
    args: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """Steps in an order in which arguments come first; `outputs` are places in `steps`."""

    steps: list[ProgramStep]
    outputs: list[int]

    def variables(self) -> list[str]:
        """Names of the variables."""
        return [str(step.payload) for step in self.steps if step.op == "variable"]


class RawNode:
    """A term of `Raw`."""

    __slots__ = ("args", "id", "op", "payload")

    def __init__(self, number: int, op: str, payload: Fraction | str | None, args: tuple[RawNode, ...]) -> None:
        self.id, self.op, self.payload, self.args = number, op, payload, args

    @property
    def constant(self) -> Coefficient | None:
        """The value of a literal, else None."""
        return self.payload if isinstance(self.payload, Fraction) else None


class Raw:
    """The constructors of `Pool` with hash-consing and nothing else: no folding, no reordering."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], RawNode] = {}
        self.zero, self.one = self.number(0), self.number(1)
        self.true, self.false = self._node("true"), self._node("false")

    def _node(self, op: str, payload: Fraction | str | None = None, *args: RawNode) -> RawNode:
        key = (op, payload, *(a.id for a in args))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = RawNode(len(self._known), op, payload, args)
        return found

    def number(self, x: Coefficient) -> RawNode:
        """A literal."""
        return self._node("number", Fraction(x))

    def variable(self, name: str) -> RawNode:
        """A real variable."""
        return self._node("variable", name)

    def combine(self, parts: Iterable[tuple[Coefficient, RawNode]]) -> RawNode:
        """A sum of multiples."""
        terms = [a if c == 1 else self.mul(self.number(c), a) for c, a in parts]
        return self._node("add", None, *terms) if terms else self.zero

    def mul(self, a: RawNode, b: RawNode) -> RawNode:
        """a b."""
        return self._node("mul", None, a, b)

    def div(self, a: RawNode, b: RawNode) -> RawNode:
        """a / b. Raises ZeroDivisionError for the literal 0."""
        if b.constant == 0:
            raise ZeroDivisionError
        return self._node("div", None, a, b)

    def apply(self, name: str, args: Sequence[RawNode]) -> RawNode:
        """An uninterpreted function."""
        return self._node("apply", name, *args)

    def less(self, a: RawNode, b: RawNode) -> RawNode:
        """a < b."""
        return self._node("positive", None, self.combine(((1, b), (-1, a))))

    def equal(self, a: RawNode, b: RawNode) -> RawNode:
        """a = b."""
        return self._node("zero", None, self.combine(((1, b), (-1, a))))

    def negate(self, a: RawNode) -> RawNode:
        """not a."""
        return self._node("not", None, a)

    def junction(self, kind: str, args: Iterable[RawNode]) -> RawNode:
        """`and` or `or`."""
        return self._node(kind, None, *args)

    def ite(self, c: RawNode, a: RawNode, b: RawNode) -> RawNode:
        """a where c holds, else b."""
        if c.op in ("true", "false"):
            return a if c.op == "true" else b
        return self._node("ite", None, c, a, b)


class Compiler:
    """Turns terms of a `Pool` or of `Raw` into a `Program`; each shared term once."""

    def __init__(self, pool: TermPool | Raw) -> None:
        self.pool = pool
        self.steps: list[ProgramStep] = []
        self.places: dict[Any, int] = {}
        self._emitted: dict[ProgramStep, int] = {}

    def compile(self, roots: Sequence[Any]) -> Program:
        """The program of some numbers and truth values."""
        for root in roots:
            stack = [root]
            while stack:
                node = stack[-1]
                missing = [] if node in self.places else [c for c in self._below(node) if c not in self.places]
                if missing:
                    stack.extend(missing)
                    continue
                if node not in self.places:
                    self.places[node] = self._write(node)
                stack.pop()
        return Program(self.steps, [self.places[root] for root in roots])

    def _emit(self, op: str, args: Sequence[int] = (), payload: Fraction | str | None = None) -> int:
        step = ProgramStep(op, payload, tuple(args))
        if step not in self._emitted:
            self._emitted[step] = len(self.steps)
            self.steps.append(step)
        return self._emitted[step]

    def _factors(self, monomial: int) -> list[tuple[Atom, int]]:
        assert isinstance(self.pool, TermPool)
        return [(self.pool.atoms[i], n) for i, n in self.pool.monomials[monomial]]

    def _below(self, node: Any) -> list[Any]:
        if not isinstance(node, Poly):
            return list(node.args)
        atoms = [atom for monomial, _ in node.terms for atom, _ in self._factors(monomial)]
        return [atom.args[0] if atom.kind == "indicator" else atom for atom in atoms]

    def _write(self, node: Any) -> int:
        args = [] if isinstance(node, Poly) else [self.places[a] for a in node.args]
        if isinstance(node, RawNode):
            return self._emit(node.op, args, node.payload)
        if isinstance(node, Truth):
            return self._emit(node.kind, args)
        if isinstance(node, Poly):
            return self._polynomial(node)
        if node.kind == "inverse":
            return self._emit("div", (self._emit("number", (), Fraction(1)), args[0]))
        return args[0] if node.kind == "sum" else self._emit(node.kind, args, node.name)

    def _polynomial(self, node: Poly) -> int:
        terms = [self._term(monomial, Fraction(c)) for monomial, c in node.terms]
        if len(terms) == 1:
            return terms[0]
        return self._emit("add", terms) if terms else self._emit("number", (), Fraction(0))

    def _term(self, monomial: int, c: Fraction) -> int:
        factors: list[int] = [] if c == 1 and monomial else [self._emit("number", (), c)]
        conditions: list[int] = []
        for atom, n in self._factors(monomial):
            if atom.kind == "indicator":
                conditions.append(self.places[atom.args[0]])
            else:
                factors += [self.places[atom]] * n
        if not factors:
            factors = [self._emit("number", (), Fraction(1))]
        product = factors[0] if len(factors) == 1 else self._emit("mul", factors)
        zero = self._emit("number", (), Fraction(0))
        for condition in conditions:
            product = self._emit("ite", (condition, product, zero))
        return product


Apply = Callable[[str, Sequence[Fraction]], Fraction]


def exact(program: Program, at: Mapping[str, Fraction], apply: Apply) -> list[Fraction | bool]:
    """The outputs at a rational point, with the reciprocal of 0 taken as 0."""
    held: list[Any] = []
    for step in program.steps:
        args = [held[i] for i in step.args]
        if step.op == "number":
            held.append(step.payload)
        elif step.op == "variable":
            held.append(at[str(step.payload)])
        elif step.op == "apply":
            held.append(apply(str(step.payload), args))
        else:
            held.append(RATIONAL[step.op](*args))
    return [held[i] for i in program.outputs]


def _product(*args: Fraction) -> Fraction:
    total = Fraction(1)
    for a in args:
        total *= a
    return total


RATIONAL: dict[str, Callable[..., Any]] = {
    "add": lambda *args: sum(args, Fraction(0)),
    "mul": _product,
    "div": lambda a, b: a / b if b else Fraction(0),
    "ite": lambda c, a, b: a if c else b,
    "positive": lambda a: a > 0,
    "zero": lambda a: a == 0,
    "true": lambda: True,
    "false": lambda: False,
    "not": lambda a: not a,
    "and": lambda *args: all(args),
    "or": lambda *args: any(args),
}

UNIT = 2.0**-52
"""Error charged to one float64 operation, twice the unit roundoff."""


class Doubtful(Exception):
    """A float evaluation cannot tell which branch is taken, or leaves the finite numbers."""


@dataclass(frozen=True, slots=True)
class Near:
    """A float64 and a bound on its distance from the exact value (first order; for functions by their ends)."""

    value: float
    error: float


def near(program: Program, at: Mapping[str, float]) -> list[Near | bool | None]:
    """The outputs at a point, with the real functions, and a running error bound.

    None is an output that has no finite value here, or is too close to a branch. Raises Doubtful for a truth value so.
    """
    held: list[Any] = []
    for step in program.steps:
        args = [held[i] for i in step.args]
        if step.op == "ite" and args[0] is not None:
            held.append(args[1] if args[0] else args[2])
        elif None in args:
            held.append(None)
        else:
            held.append(_stepped(step, args, at))
    truths = {"positive", "zero", "not", "and", "or"}
    if any(held[i] is None and program.steps[i].op in truths for i in program.outputs):
        raise Doubtful("a condition on the path is not decided here")
    return [held[i] for i in program.outputs]


def _stepped(step: ProgramStep, args: list[Any], at: Mapping[str, float]) -> Near | bool | None:
    try:
        if step.op == "number":
            number = float(Fraction(step.payload or 0))
            result: Near | bool = Near(number, abs(number) * UNIT)
        elif step.op == "variable":
            result = Near(at[str(step.payload)], 0.0)
        elif step.op == "apply":
            result = _applied(str(step.payload), args)
        else:
            result = ROUNDED[step.op](*args) if step.op in ROUNDED else RATIONAL[step.op](*args)
    except (Doubtful, OverflowError):
        return None
    lost = isinstance(result, Near) and not np.isfinite(result.value + result.error)
    return None if lost else result


def _applied(name: str, args: Sequence[Near]) -> Near:
    f = COMPUTED[name]
    with np.errstate(all="ignore"):
        middle = float(f(*(np.float64(a.value) for a in args)))
        ends = [float(f(*(np.float64(a.value + sign * a.error) for a in args))) for sign in (-1, 1)]
    spread = max(abs(end - middle) for end in ends)
    return Near(middle, spread + 8 * abs(middle) * UNIT)


def _added(*args: Near) -> Near:
    total, error = 0.0, 0.0
    for a in args:
        total += a.value
        error += a.error + abs(total) * UNIT
    return Near(total, error)


def _multiplied(*args: Near) -> Near:
    product = Near(1.0, 0.0)
    for a in args:
        value = product.value * a.value
        error = abs(product.value) * a.error + abs(a.value) * product.error + product.error * a.error
        product = Near(value, error + abs(value) * UNIT)
    return product


def _divided(a: Near, b: Near) -> Near:
    if abs(b.value) <= 2 * b.error or b.value == 0:
        raise Doubtful("a divisor near 0")
    value = a.value / b.value
    return Near(value, (a.error + abs(value) * b.error) / (abs(b.value) - b.error) + abs(value) * UNIT)


def _positive(a: Near) -> bool:
    if a.error and abs(a.value) <= a.error:
        raise Doubtful("a branch at its edge")
    return a.value > 0


def _zero(a: Near) -> bool:
    if a.error and abs(a.value) <= a.error:
        raise Doubtful("a branch at its edge")
    return a.value == 0


ROUNDED: dict[str, Callable[..., Any]] = {
    "add": _added, "mul": _multiplied, "div": _divided, "positive": _positive, "zero": _zero,
}  # fmt: skip
