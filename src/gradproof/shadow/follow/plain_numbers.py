"""Numbers that Python reads of a tensor: what they are made of goes along where Python adds, scales and divides."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from fractions import Fraction
from types import MethodDescriptorType, WrapperDescriptorType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from gradproof.shadow.follow.engine import Engine
from gradproof.shadow.follow.runs import Real
from gradproof.shadow.follow.terms import ZERO, Combination, multiplied, plus, times
from gradproof.shadow.follow.unseen import SHOWN, WAYS_OUT, NoNumbers, of_an_object, taken
from gradproof.shadow.follow.values import shared
from gradproof.shadow.locations import NOWHERE, Location, user_location

PLAIN = (int, float)
SCALED = frozenset({
    "mul", "mul_", "div", "div_", "true_divide", "true_divide_", "add", "add_", "sub", "sub_", "__mul__", "__rmul__",
    "__imul__", "__truediv__", "__itruediv__", "__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__",
    "multiply", "multiply_", "divide", "divide_", "__div__", "__rdiv__", "__idiv__", "_foreach_mul_", "_foreach_mul",
    "_foreach_div_", "_foreach_div",
})  # fmt: skip
"""Functions of tensors in which a number may as well be a tensor of one element."""
FILLED = frozenset({"tensor", "as_tensor", "scalar_tensor", "full", "full_like", "fill_", "new_full", "new_tensor"})
"""Functions that make tensors of one number."""


def _followed(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The two methods, for the left side and the right, of an operator whose result keeps what it is made of."""
    plain = getattr(operator, name)

    def method(self: Any, other: Any, right: bool = False) -> Any:
        def number() -> Any:
            return plain(bare(other), bare(self)) if right else plain(bare(self), bare(other))

        own = self._other(other)
        value = None if own is None else self.combined(name, *((own, self.value) if right else (self.value, own)))
        if value is None:
            return self.refused(other, number)
        made = self.kept(value, number)
        if isinstance(made, Carries) and not isinstance(other, Carries):
            made.location = self.location  # a number times a plain one was made where the number was
        return made

    return method, lambda self, other: method(self, other, True)


class Carries:
    """A number that keeps what it is made of where Python adds, scales and divides it."""

    engine: Engine
    value: Combination
    location: Location = NOWHERE
    used = False
    """Whether it was seen what Python did with it. Code in C takes the number, as in `range(n)`, and asks nothing."""

    def kept(self, value: Combination, number: Callable[[], Any]) -> Any:
        """The number that Python makes, and what it is made of."""
        self.used = True
        return known(self.engine, value, number())

    def left(self) -> None:
        """Python makes a plain number of it, which no one follows."""
        self.used = True
        facts, terms = self.engine.facts, self.engine.terms
        own = {terms.operators[terms.bare(term)[0]] for term in self.value}
        facts.free |= not own <= {"state", "one"}  # an optimizer's count of its steps is the same at other numbers
        if self.counts:
            facts.counted = facts.counted or self.location

    @property
    def counts(self) -> bool:
        """Whether it may be a count of labels."""
        terms = self.engine.terms
        whole = isinstance(self, int) and not terms.ordering(self.value)
        return whole or (terms.plain(self.value) and terms.counting(self.value))

    def refused(self, other: Any, number: Callable[[], Any]) -> Any:
        """Arithmetic that is not followed: Python goes on with plain numbers; a tensor is asked itself."""
        if isinstance(other, torch.Tensor):
            return NotImplemented
        self.left()
        return number()

    def _other(self, other: Any) -> Combination | None:
        """What the other number of an operation is made of; None for what is no number."""
        if isinstance(other, Carries):
            other.used = True
            return other.value
        if not isinstance(other, PLAIN) or isinstance(other, bool):
            return None
        held = self.engine.laws.exact(other)
        return None if held is None else {self.engine.terms.one: held} if held else ZERO

    def __reduce__(self) -> Any:
        plain = bare(self)
        self.left()
        return type(plain), (plain,)

    def __format__(self, spec: str) -> str:
        self.used = True
        return format(bare(self), spec)

    def __repr__(self) -> str:
        self.used = True
        return repr(bare(self))

    def __deepcopy__(self, memo: Any = None) -> Any:
        return self

    __copy__ = __deepcopy__
    __add__, __radd__ = _followed("add")
    __sub__, __rsub__ = _followed("sub")
    __mul__, __rmul__ = _followed("mul")
    __truediv__, __rtruediv__ = _followed("truediv")

    def __neg__(self) -> Any:
        return self * -1

    def combined(self, name: str, left: Combination, right: Combination) -> Combination | None:
        """What a sum, a difference, a product or a quotient is made of; None where it is not followed."""
        laws = self.engine.laws
        if name in ("add", "sub"):
            return plus(left, right, Fraction(1 if name == "add" else -1))
        if not right or not left:
            return ZERO if right or name == "mul" else None
        first, second = (right, left) if name == "truediv" or laws.constant(right) else (left, right)
        by, powers = laws.scalar(first)
        if name == "truediv":
            by, powers = 1 / by, multiplied({}, powers, -1)
        return times(self.engine.terms.rescaled(second, powers), by)


def bare(number: Any) -> Any:
    """A number without what it is made of."""
    if isinstance(number, Float):
        return float.__float__(number)
    return int.__int__(number) if isinstance(number, Integer) else number


class UnknownNumber(Carries):
    """A number that was taken from a tensor without numbers: it can be added, scaled and printed, and not compared."""

    __slots__ = ("engine", "location", "value")

    def __init__(self, engine: Engine, value: Combination) -> None:
        self.engine, self.value, self.location = engine, value, NOWHERE

    def kept(self, value: Combination, number: Callable[[], Any]) -> Any:
        """Another number that nobody knows."""
        return UnknownNumber(self.engine, value)

    def refused(self, *_: Any) -> Any:
        """Raises NoNumbers: a number is needed."""
        location = user_location()
        self.engine.facts.reads.append((location, "a number of a tensor"))
        raise NoNumbers(f"{location} needs a number of a tensor, and in a run without numbers there is none")

    def __format__(self, spec: str) -> str:
        return "?"

    def __repr__(self) -> str:
        return "?"

    def combined(self, name: str, left: Combination, right: Combination) -> Combination | None:
        """What it is made of, where one side is a known number, and the divisor is."""
        constant = self.engine.laws.constant
        known = name in ("add", "sub") or constant(right) or (name == "mul" and constant(left))
        return super().combined(name, left, right) if known else None

    __array__ = refused
    __hash__ = None  # type: ignore[assignment]


class Float(Carries, float):
    """A float that was read of a tensor of a real run."""

    __hash__ = float.__hash__


class Integer(Carries, int):
    """An int that was read of a tensor of a real run."""

    __hash__ = int.__hash__


COMPARES = frozenset(f"__{name}__" for name in ("lt", "le", "gt", "ge", "eq", "ne", "bool"))


def _leads(kind: type, name: str) -> Callable[..., Any]:
    """A method of a plain number, after which Python may go another way at other numbers."""
    plain = getattr(kind, name)

    def method(self: Any, *args: Any) -> Any:
        if name in COMPARES:
            self.engine.facts.free = True
        else:
            self.left()
        return plain(self, *args)

    return method


for _kind, _plain in ((Float, float), (Integer, int)):
    for _name, _method in vars(_plain).items():
        own = _name in vars(Carries) or _name in vars(_kind) or _name == "__getattribute__"
        if isinstance(_method, WrapperDescriptorType | MethodDescriptorType) and not own:
            setattr(_kind, _name, _leads(_plain, _name))
            if _name not in ("__getnewargs__", "__sizeof__"):
                setattr(UnknownNumber, _name, UnknownNumber.refused)


def carried(given: Any) -> Iterator[Carries]:
    """The numbers among some arguments that keep what they are made of."""
    if isinstance(given, Carries):
        yield given
    elif isinstance(given, slice):
        yield from carried((given.start, given.stop, given.step))
    elif isinstance(given, list | tuple):
        for one in given:
            yield from carried(one)
    elif isinstance(given, dict):
        yield from carried([*given.values()])


def known(engine: Engine, value: Combination, number: Any) -> Any:
    """A number of a real run with what it is made of."""
    if isinstance(number, bool) or not isinstance(number, PLAIN):
        return number
    made: Any = Float(number) if isinstance(number, float) else Integer(number)
    made.engine, made.value, made.location = engine, value, user_location()
    return made


class Unreading(TorchFunctionMode):
    """What Python reads of a tensor of one element becomes an `Unread`; texts of tensors have no numbers."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.item and args[0].numel() == 1:
            whole = single(self.engine, args[0])
            if not self.engine.laws.constant(whole):
                return UnknownNumber(self.engine, whole)
        name = getattr(func, "__name__", "")
        if name in ("__format__", "__repr__"):
            return "?"
        if name in WAYS_OUT or taken(name, args, kwargs or {}):
            self.engine.read_whole(name, args[0])
        return func(*args, **(kwargs or {}))


def single(engine: Engine, tensor: torch.Tensor) -> Combination:
    """What the one element of a tensor is made of."""
    with engine.aside():
        whole = engine.combination(tensor)
    return engine.laws.single(whole)


class Reading(TorchFunctionMode):
    """Numbers that Python reads keep what they are made of, until Python makes plain numbers of them.

    `plain`: the plain floats that were read, each with what it is made of, for those that the function returns as they
    are.
    """

    def __init__(self, engine: Real) -> None:
        super().__init__()
        self.engine = engine
        self.plain: dict[int, tuple[float, Combination]] = {}
        self.counts: list[Carries] = []

    def end(self) -> None:
        """The function has ended: a count of which nobody saw the use became a plain number."""
        for number in self.counts:
            if not self._drawn(set(number.value)):
                self.engine.facts.shown = number.location
                if not number.used:
                    number.left()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.Tensor.item, torch.Tensor.__float__) and args[0].numel() == 1 and not args[0].is_complex():
            return self._one(func, args[0])
        if func is torch.Tensor.__index__:
            return self._index(args[0])
        name = getattr(func, "__name__", "")
        for tensor in taken(name, args, kwargs):
            self.engine.read_whole(name, tensor)
        if name in SCALED and any(isinstance(arg, Carries) for arg in args):
            wide = any(isinstance(arg, torch.Tensor) and arg.dtype is torch.float64 for arg in args)
            return func(*(self._tensor(arg, wide) for arg in args), **kwargs)
        alpha = kwargs.get("alpha")
        if name in SCALED and isinstance(alpha, Carries) and isinstance(args[-1], torch.Tensor):
            wide = args[-1].dtype is torch.float64
            return func(*args[:-1], args[-1] * self._tensor(alpha, wide), **{**kwargs, "alpha": 1})
        if name not in FILLED | SHOWN:
            for number in carried((args, kwargs)):
                number.left()
        before = self.engine.facts.counted
        made = func(*args, **kwargs)
        if name == "one_hot" or (name == "__getitem__" and self._cuts(args[1])):
            self.engine.facts.counted = before  # the least and the largest label are not handed out; places count none
        if name in FILLED and isinstance(made, torch.Tensor):
            self._filled(made, args, kwargs)
        return made

    def _filled(self, made: torch.Tensor, args: Any, kwargs: Any) -> None:
        """A tensor of one number is made of what the number is made of."""
        given = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Carries)]
        if len(given) == 1 and (made.is_floating_point() or (made.dtype is torch.int64 and isinstance(given[0], int))):
            given[0].used = True
            self.engine.memory.write(made, shared(given[0].value))
        else:
            for number in carried((args, kwargs)):
                number.left()

    def _one(self, func: Any, tensor: torch.Tensor) -> Any:
        facts = self.engine.facts
        before = facts.counted, facts.free
        number = func(tensor)
        whole = self.engine.laws.integers and not tensor.is_floating_point()
        if of_an_object() or isinstance(number, bool) or whole:
            return number
        value = single(self.engine, tensor)
        if func is torch.Tensor.item:
            facts.counted, facts.free = before
            made = known(self.engine, value, number)
            self.counts += [made] if made.counts else []
            line = self.engine.events.line(tensor)
            made.location = line if made.location.via and line is not NOWHERE else made.location
            return made
        self.plain[id(number)] = (number, value)
        return number

    def _index(self, tensor: torch.Tensor) -> Any:
        """A number that was drawn, and is an index as it is, counts nothing."""
        before = self.engine.facts.counted
        number = torch.Tensor.__index__(tensor)
        if self._drawn({term for part in self.engine.value(tensor).parts for term in part}):
            self.engine.facts.counted = before
        return number

    def _cuts(self, index: Any) -> bool:
        """Whether a number that was drawn says where a slice of a plain length lies: `text[i : i + 8]`."""
        slices = [one for one in (index if isinstance(index, tuple) else (index,)) if isinstance(one, slice)]
        pairs = [(one.start, one.stop) for one in slices if torch.Tensor in (type(one.start), type(one.stop))]
        if not pairs or not all(isinstance(one, torch.Tensor) for pair in pairs for one in pair):
            return False
        own = [(single(self.engine, start), single(self.engine, stop)) for start, stop in pairs]
        same = all(self.engine.laws.constant(plus(stop, start, Fraction(-1))) for start, stop in own)
        return same and all(self._drawn(set(start)) for start, _ in own)

    def _drawn(self, made: set[int]) -> bool:
        """Whether a number is one that was drawn, as it is."""
        terms = self.engine.terms
        drawn = [terms.kids[t][0] if terms.operators[t] == "reshape" else t for t in made - {terms.one}]
        named = [(terms.operators[t], str((*terms.attributes[t], "")[0])) for t in drawn]
        return all(kind == "draw" or (kind == "data" and not name.startswith("torch.")) for kind, name in named)

    def _tensor(self, arg: Any, wide: bool) -> Any:
        """A number as a tensor of one element, of a type that makes no result wider than the number does."""
        if not isinstance(arg, Carries):
            return arg
        kind = torch.int64 if isinstance(arg, int) else torch.float64 if wide else torch.get_default_dtype()
        arg.used = True
        with torch.no_grad(), _disable_current_modes():
            made = torch.tensor(bare(arg), dtype=kind)
        self.engine.memory.write(made, shared(arg.value))
        return made
