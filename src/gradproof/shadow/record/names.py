"""Names of parameters: from modules that run, from optimizers that name their parameters, else by order of first use.

One registry a process, emptied when recording begins. It holds weak references only.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from gradproof.shadow.tape import COLLATE, FETCH, TORCH, USER, frames, owner


def functional(tensor: Tensor) -> bool:
    """Whether torch.func wrapped the tensor."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


class Names:
    """Parameters by identity, in the order in which they became known."""

    def __init__(self) -> None:
        self._held: dict[int, weakref.ref[Tensor]] = {}
        self._names: dict[int, str] = {}
        self._taken: dict[str, int] = {}
        self._modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._outer: list[weakref.ref[nn.Module]] = []
        self._built: list[weakref.ref[nn.Module]] = []
        self.optimized: set[int] = set()  # ids of the parameters that optimizers were given
        self.housed: set[int] = set()  # ids of the parameters of modules that ran
        self.edition = 0

    def clear(self) -> None:
        """Forget everything. `edition` changes with the set of parameters, and never goes back."""
        self.edition += 1
        self._held.clear()
        self._names.clear()
        self._taken.clear()
        self._modules.clear()
        self._outer.clear()
        self._built.clear()
        self.optimized.clear()
        self.housed.clear()

    def know(self, tensor: Tensor) -> None:
        """A parameter that has no name yet."""
        key = id(tensor)
        if key not in self._held:
            self.edition += 1
            self._held[key] = weakref.ref(tensor, functools.partial(self._gone, key))

    def _gone(self, key: int, _: object) -> None:
        self.edition += 1
        self._held.pop(key, None)
        self._names.pop(key, None)

    def forget(self, tensor: Tensor) -> None:
        """Know nothing of a parameter any more, and hold no reference to it."""
        self._gone(id(tensor), None)

    def name(self, tensor: Tensor, name: str) -> None:
        """Name a parameter, once. A name that another live parameter has gets a number."""
        self.know(tensor)
        if id(tensor) in self._names:
            return
        free, number = name, 2
        while self._live(free):
            free, number = f"{name}#{number}", number + 1
        self._names[id(tensor)] = free
        self._taken[free] = id(tensor)

    def module(self, module: nn.Module) -> None:
        """Name the parameters of a module that no outer module named before."""
        if module in self._modules:
            return
        self._modules.update(module.modules())
        self._outer.append(weakref.ref(module))
        for name, tensor in module.named_parameters():
            self.housed.add(id(tensor))
            below = self.behind(tensor)
            if below is not None:
                self.name(below, name)

    def built(self, module: nn.Module, name: str, part: Any) -> None:
        """A module is given a parameter, a buffer or a module: it may hold state although it never runs itself."""
        if not self._built or self._built[-1]() is not module:
            self._built.append(weakref.ref(module))

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Every buffer of the modules that ran, by its name in the outermost one and the number of that module.

        Then those of modules that were made and did not run, with the weights in them that nothing trains.
        """
        seen: set[int] = set()
        for number, held in enumerate(self._outer):
            module = held()
            for name, buffer in module.named_buffers() if module is not None else ():
                seen.add(id(buffer))
                yield (f"{name}#{number + 1}" if number else name), buffer
        for number, held in enumerate(self._built):
            module = held()
            if module is None or module in self._modules:
                continue
            for name, part in (*module.named_buffers(), *module.named_parameters()):
                if id(part) not in seen and not self.knows(part):
                    seen.add(id(part))
                    yield f"{type(module).__name__}.{name}#{number + 1}", part

    def moved(self, module: nn.Module) -> None:
        """Name the parameters of a module before something is done to all of them, where one of them is known."""
        if module not in self._modules and any(map(self.knows, module.parameters())):
            self.module(module)

    def behind(self, tensor: Tensor) -> Tensor | None:
        """The known parameter of which torch.func holds an alias, by its memory; any other tensor is itself."""
        if not functional(tensor):
            return tensor
        below = torch._C._functorch.get_unwrapped(tensor)
        if functional(below):
            return None
        address = torch._C.TensorBase.data_ptr
        same = (p for p in self.params() if p.shape == below.shape and address(p) == address(below))
        return next(same, None)

    def knows(self, tensor: Tensor) -> bool:
        """Whether the tensor is a parameter that something named, or an optimizer holds."""
        return id(tensor) in self._held

    def name_of(self, tensor: Tensor) -> str | None:
        """The name of a parameter, or None."""
        return self._names.get(id(tensor))

    def claim(self, tensor: Tensor) -> str:
        """The name of a parameter; one that has none becomes `paramK`, by order."""
        found = self.name_of(tensor)
        if found is None:
            number = 0
            while self._live(f"param{number}"):
                number += 1
            self.name(tensor, f"param{number}")
            found = self._names[id(tensor)]
        return found

    def params(self) -> Iterator[Tensor]:
        """Every known parameter that is still alive."""
        for held in list(self._held.values()):
            tensor = held()
            if tensor is not None:
                yield tensor

    def _live(self, name: str) -> bool:
        key = self._taken.get(name)
        return key is not None and self._names.get(key) == name


NAMES = Names()


def name_of(tensor: Tensor) -> str | None:
    """The name of a parameter, or None where nothing named it (yet)."""
    return NAMES.name_of(tensor)


def claim(tensor: Tensor) -> str:
    """The name of a parameter; one that nothing named becomes `param0`, `param1`, by order of first use."""
    return NAMES.claim(tensor)


# -- Where data comes from: the name of a site, and how far its stream has come.
class Sites:
    """Names sites, and counts the elements that came from each."""

    def __init__(self) -> None:
        self.stream: dict[str, int] = {}
        self.loaders: list[Any] = []
        self.by_callers = False
        self._callers: dict[str, set[str]] = {}
        self._unit: FrameType | None = None
        self._fields: dict[str, list[FrameType]] = {}

    def close(self) -> None:
        """Let go of the frames and data sets that were kept."""
        self._unit, self._fields = None, {}
        self.loaders.clear()

    def advance(self, site: str, count: int) -> int:
        """The position of the next element of a site's stream, which then moves on by `count`."""
        first = self.stream.get(site, 0)
        self.stream[site] = first + count
        return first

    def here(self, tensor: torch.Tensor) -> str:
        """The site of the caller's stack that makes this tensor."""
        inner, fetch = inside(frames())
        chain: list[str] = []
        user = ""
        outer: list[FrameType] = []
        for depth, frame in enumerate(inner, 1):
            kind = owner(frame.f_code.co_filename)
            if kind == USER:
                user, outer = f"{frame.f_code.co_filename}:{frame.f_lineno}+{frame.f_lasti}", inner[depth:]
                break
            chain.append(f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}")
        if fetch is None and user:
            user = self._called(user, chain, tensor, outer)
        if fetch is not None:
            chain += self._fetched(inner, "/".join([user, *chain, shape_of(tensor)]))
            user = f"{user} loader {self._loader(fetch.f_locals.get('self'))}".strip()
        return " < ".join([*chain, user]) + " " + shape_of(tensor)

    def _called(self, user: str, chain: list[str], tensor: torch.Tensor, outer: list[FrameType]) -> str:
        """The user's line, with the lines that called it where these tell sources apart."""
        lines = [f"{f.f_lineno}+{f.f_lasti}" for f in outer if owner(f.f_code.co_filename) == USER]
        callers = " for " + ",".join(lines) if lines else ""
        self._callers.setdefault(" < ".join([*chain, user, shape_of(tensor)]), set()).add(callers)
        return user + callers if self.by_callers else user

    def shared(self) -> bool:
        """Whether a line made data for several callers."""
        return any(len(callers) > 1 for callers in self._callers.values())

    def _fetched(self, inner: list[FrameType], site: str) -> list[str]:
        """What tells apart the fields of a batch that the same line makes: a key, or a count in torch's own collate."""
        found = []
        for frame in inner:
            if owner(frame.f_code.co_filename) != TORCH:
                found += strings(frame)
        fields = [f for f in inner if f.f_code.co_filename.endswith(COLLATE) and not f.f_code.co_name.startswith("<")]
        if fields:
            found.append(f"field {self._ordinal(inner[-1], fields[0], site)}")
        return [f"[{word}]" for word in found]

    def _loader(self, fetcher: Any) -> int:
        data = getattr(fetcher, "dataset", None)
        for number, known in enumerate(self.loaders):
            if known is data:
                return number
        self.loaders.append(data)
        return len(self.loaders) - 1

    def _ordinal(self, unit: FrameType, field: FrameType, site: str) -> int:
        """Which field of the batch a call inside torch's collate function, which `unit` is, collates."""
        if self._unit is not unit:
            self._unit, self._fields = unit, {}
        known = self._fields.setdefault(site, [])
        if all(frame is not field for frame in known):
            known.append(field)
        return next(i for i, frame in enumerate(known) if frame is field)


def inside(stack: Iterable[FrameType]) -> tuple[list[FrameType], FrameType | None]:
    """The frames within a loader's fetch, innermost first, and the fetch; all frames and None outside of one."""
    inner: list[FrameType] = []
    for frame in stack:
        if frame.f_code.co_filename.endswith(FETCH) and owner(frame.f_code.co_filename) == TORCH:
            return inner, frame
        inner.append(frame)
    return inner, None


def strings(frame: FrameType) -> list[str]:
    """Short texts in a frame's variables: the key of a field, in a loop over the fields of a batch."""
    return [
        f"{k}={v}" for k, v in sorted(frame.f_locals.items()) if isinstance(v, str) and len(v) <= 40 and k != "self"
    ]


def shape_of(tensor: torch.Tensor) -> str:
    """The shape of one sample, and the dtype."""
    return f"{tuple(tensor.shape[1:])} {str(tensor.dtype).removeprefix('torch.')}"
