"""Whether the engine that judged a check is still the one that was started: no function of it was exchanged meanwhile.

A worker runs the workspace's code beside the engine. The seal notes every function, class and method of the engine, the
solver and the entry points of torch just before the first file of the workspace is imported, and compares afterwards; a
module of the engine that was loaded later is compared with its own file. It shows careless and curious patches. Code in
the same process can undo whatever it likes, this too: what a workspace imports has to be read before it is trusted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from fractions import Fraction
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from gradproof.packages import COMMON, in_stack, owned
from gradproof.workspace import STDLIB, installations_in, installed

ENGINE = "gradproof"
STACK = ("z3", "torch", "numpy", "crosshair", "hypothesis")
OTHERS = (
    "z3.z3", "z3.z3core", "torch", "torch.functional", "torch._tensor", "torch.nn.functional", "torch.linalg",
    "torch.autograd", "torch.testing", "torch.optim.optimizer", "math", "fractions", "hypothesis.core", "json",
    "builtins", "contextlib", "operator", "random", "time", "copy",
)  # fmt: skip
SHOWN = {"z3.z3": "z3"}
_FIXED = (bool, int, float, str, bytes, tuple, frozenset, Fraction)
_CALLED = (FunctionType, BuiltinFunctionType, staticmethod, classmethod, property, type)
Held = tuple[Any, CodeType | None, Any]


class Seal:
    """What the engine was. `close` is called once, before anything of a workspace is imported.

    `root`: a workspace whose files may not trace the engine either: a tracer can change what it computes.
    """

    def __init__(self, root: Path | None = None) -> None:
        self._held: dict[str, dict[str, Held]] | None = None
        self._meddled: set[str] = set()
        self._root = None if root is None else f"{root}{os.sep}"
        self._homes = () if root is None else installations_in(root)
        if root is not None:
            sys.addaudithook(self._note)

    def _note(self, event: str, args: tuple[Any, ...]) -> None:
        """The audit hook: who asks to trace, or gives an object of the engine another class, is the frame below."""
        retyped = event == "object.__setattr__" and args[1] == "__class__"
        if retyped and type(args[0]).__module__.partition(".")[0] != ENGINE:
            return
        if not retyped and event not in ("sys.settrace", "sys.setprofile"):
            return
        place = sys._getframe(1).f_code.co_filename
        if self._root is not None and place.startswith(self._root) and not place.startswith(self._homes):
            self._meddled.add(f"{type(args[0]).__name__}.__class__" if retyped else event)

    def close(self) -> None:
        """Note the engine as it is now; a second call changes nothing."""
        if self._held is None:
            self._held = {name: dict(_named(module)) for name, module in _watched()}

    def broken(self) -> list[str]:
        """Names of what was exchanged since, in order; none when nothing of a workspace was imported."""
        if self._held is None:
            return []
        found = [*self._meddled]
        for name, module in _watched():
            now = dict(_named(module))
            if name in self._held:
                found += [f"{name}.{k}" for k, was in self._held[name].items() if not _same(was, now.get(k))]
            elif name.partition(".")[0] == ENGINE:
                found += [f"{name}.{k}" for k in _strange(module, now)]
        return [_shown(name) for name in sorted(found)]


def _watched() -> list[tuple[str, ModuleType]]:
    """The modules that are loaded and count; the reference workspace is no part of the engine."""
    loaded = dict(sys.modules)
    names = [n for n in loaded if n.partition(".")[0] == ENGINE and not n.startswith(f"{ENGINE}._reference")]
    return [(n, m) for n in (*names, *OTHERS) if isinstance(m := loaded.get(n), ModuleType)]


def _named(module: ModuleType) -> Iterator[tuple[str, Held]]:
    """Functions and classes under the names of a module, the methods of the classes that it defines, and constants."""
    for name, value in list(vars(module).items()):
        if isinstance(value, _FIXED) and name.isupper():
            yield name, (value, None, None)
        if isinstance(value, _CALLED):
            yield name, _held(value)
        if isinstance(value, type) and value.__module__ in (module.__name__, module.__name__.partition(".")[0]):
            for method, inner in list(vars(value).items()):
                if isinstance(inner, _CALLED):
                    yield f"{name}.{method}", _held(inner)


def _held(value: Any) -> Held:
    inner = _plain(value)
    return value, getattr(inner, "__code__", None), getattr(inner, "__defaults__", None)


def _plain(value: Any) -> Any:
    """The function below staticmethod, classmethod, property and wrappers."""
    value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    for _ in range(8):
        value = getattr(value, "__wrapped__", value)
    return value


def _same(was: Held, now: Held | None) -> bool:
    if now is None or was[1] is not now[1] or was[2] is not now[2]:
        return False
    return was[0] is now[0] or _compilers(was[0], now[0])


def _compilers(was: Any, now: Any) -> bool:
    """Whether this is torch's own wrapper, which torch._dynamo puts around torch.manual_seed when it is imported."""
    code = getattr(now, "__code__", None)
    made = Path(code.co_filename).parts[-2:] if isinstance(code, CodeType) else ()
    return made == ("torch", "_compile.py") and getattr(now, "__wrapped__", None) is was


def _strange(module: ModuleType, now: dict[str, Held]) -> list[str]:
    """Names of a late module whose function is not the one that its file defines under this name."""
    written = _written(module)
    functions = [(k, code) for k, (value, code, _) in now.items() if k in written and not isinstance(value, type)]
    return [k for k, code in functions if code not in written[k]]


def _written(module: ModuleType) -> dict[str, list[CodeType]]:
    """Code objects of a module's file by qualified name, those inside functions left out."""
    loader = module.__spec__.loader if module.__spec__ is not None else None
    top = loader.get_code(module.__name__) if isinstance(loader, SourceFileLoader) else None
    found: dict[str, list[CodeType]] = {}
    left = [top] if top is not None else []
    while left:
        code = left.pop()
        inner = [c for c in code.co_consts if isinstance(c, CodeType)]
        left += inner
        for one in inner:
            if "<" not in one.co_qualname:
                found.setdefault(one.co_qualname, []).append(one)
    classes = {name.rpartition(".")[0] for name in found}
    return {name: codes for name, codes in found.items() if name not in classes}


def shadowed(places: Iterable[Path]) -> list[str]:
    """Packages of the STACK, what these need and modules of Python's own that were loaded from below one of these
    folders and are no installation, with their file.

    A solver that lies in the workspace or on PYTHONPATH answers as its author likes, and so does what it imports.
    """
    found, places = [], list(places)
    for name in (*STACK, *sorted(_needed(set(sys.modules) - {*STACK, ENGINE}))):
        module = sys.modules.get(name)
        for origin in {getattr(module, "__file__", None), getattr(getattr(module, "__spec__", None), "origin", None)}:
            path = Path(origin).resolve() if isinstance(origin, str) and os.path.isabs(origin) else None
            own = path is None or installed(path) or path.is_relative_to(STDLIB)
            if path is not None and not own and any(path.is_relative_to(p) for p in places):
                found.append(f"{name} from {path.parent.name}/{path.name}")
                break
    return found


def _needed(names: set[str]) -> Iterator[str]:
    """Those of the names that Python, or an installed package that the STACK needs, has for itself."""
    homes = [Path(p) for p in sys.path if installed(Path(p))]
    for name in names - COMMON:
        if name in sys.stdlib_module_names or any(in_stack(owned(home, name)) for home in homes):
            yield name


def _shown(name: str) -> str:
    for module, short in SHOWN.items():
        if name.startswith(f"{module}."):
            return short + name[len(module) :]
    return name
