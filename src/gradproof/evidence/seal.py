"""Whether the engine that judged a check is still the one that was started: no function of it was exchanged meanwhile.

A worker runs the workspace's code beside the engine. The seal notes every function, class and method of the engine, the
solver and the entry points of torch just before the first file of the workspace is imported, and compares afterwards; a
module of the engine that was loaded later is compared with its own file. It shows careless and curious patches. Code in
the same process can undo whatever it likes, this too: what a workspace imports has to be read before it is trusted.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fractions import Fraction
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from gradproof.core.workspace import STDLIB, installations_in, installed
from gradproof.evidence.environment import COMMON, in_stack, owned

ENGINE = "gradproof"
STACK = ("z3", "torch", "numpy", "crosshair", "hypothesis")
OTHERS = (
    "z3.z3", "z3.z3core", "torch", "torch.functional", "torch._tensor", "torch.linalg", "torch.testing", "math",
    "fractions", "hypothesis", "hypothesis.core", "json", "builtins", "contextlib", "operator", "random", "time",
    "copy", "numpy", "statistics", "itertools", "functools", "torch.nn", "torch.optim", "torch.autograd", "torch.amp",
)  # fmt: skip
FAMILIES = ("torch.nn.", "torch.optim.", "torch.autograd.", "torch.amp.")
CONTENT, HARNESSES = ("models", "symbolic"), "symbolic"
_FIXED = (bool, int, float, str, bytes, tuple, frozenset, Fraction)
_PLAIN = (bool, int, float, str, bytes, type(None))
_LAYERS = (FunctionType, MethodType, staticmethod, classmethod, type(cache(len)))
_WRAPPING = (  # files of torch that wrap what is there already
    ("torch", "_compile.py"), ("optim", "optimizer.py"), ("_dynamo", "eval_frame.py"), ("_dynamo", "mutation_guard.py"),
)  # fmt: skip
_WRAPPED = ("fn", "func", "init", "setstate")  # what their wrappers call it
_DEEP, _MOST = 4, 16
Parts = dict[str, Any]
"""What a value is made of, by name, the value itself under an empty one."""


class Seal:
    """What the engine was, and each module of the workspace once it was imported.

    `close` is called before anything of a workspace is imported, `importing` around the import of each module of it.
    `root`: a workspace whose files may not trace the engine either: a tracer can change what it computes.
    """

    def __init__(self, root: Path | None = None) -> None:
        self._held: dict[str, dict[str, Parts]] | None = None
        self._meddled: set[str] = set()
        self._imported: dict[str, tuple[ModuleType, object, CodeType, dict[str, Parts]]] = {}
        self._under_way: list[tuple[ModuleType, CodeType]] = []
        self._rewritten: set[str] = set()
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
        """Note the engine as it is now, and later what came since of the solver and of torch."""
        if self._held is None:
            self._held = {name: dict(_named(module)) for name, module in _watched()}
        for name, module in _watched():
            if name not in self._held and name.partition(".")[0] != ENGINE and not _begun(module):
                self._held[name] = dict(_named(module))

    @contextmanager
    def importing(self, module: ModuleType, code: CodeType) -> Iterator[None]:
        """Around the run of a module of the workspace, which may change no module whose import is under way."""
        self.close()
        before = [(m, c, dict(_named(m, whole=True))) for m, c in self._under_way]
        self._under_way.append((module, code))
        try:
            yield
        finally:
            self._under_way.pop()
            for outer, text, parts in before:
                self._rewritten.update(_changed(outer, text, parts))
        self.close()
        self._rewritten.update(f"{module.__name__}.{k}" for k in _hiding(vars(module)) if k not in _stored(code, True))
        held = (module, sys.modules.get(module.__name__), code, dict(_named(module, whole=True)))
        self._imported.setdefault(module.__name__, held)

    def broken(self) -> list[str]:
        """Names of the engine's that were exchanged since, in order; none when nothing of a workspace was imported."""
        if self._held is None:
            return []
        found = [*self._meddled]
        for name, module in _watched():
            now = dict(_named(module))
            if name in self._held:
                was = self._held[name]
                found += [f"{name}.{k}" for k, parts in was.items() if not _same(parts, now.get(k))]
                found += [f"{name}.{k}" for k in _added(module, was, now)]
            elif name.partition(".")[0] == ENGINE:
                found += [f"{name}.{k}" for k in _strange(module, now)]
        return [name.removeprefix("z3.") if name.startswith("z3.z3.") else name for name in sorted(found)]

    def rewritten(self) -> list[str]:
        """Names of the workspace's modules that something else than the module's own `global` exchanged, in order.

        A helper beside models and harnesses may be taken out of `sys.modules` again.
        """
        found = set(self._rewritten)
        for name, (module, known, code, parts) in self._imported.items():
            absent = None if name.partition(".")[0] in CONTENT else known
            found |= {name} if sys.modules.get(name, absent) is not known else set()
            found.update(_changed(module, code, parts))
        return sorted(found)


def _begun(module: ModuleType) -> bool:
    """Whether the import of a module is under way."""
    return bool(getattr(module.__spec__, "_initializing", False))


def _watched() -> list[tuple[str, ModuleType]]:
    """The modules that are loaded and count; the reference workspace is no part of the engine."""
    loaded = dict(sys.modules)
    names = [n for n in loaded if n.partition(".")[0] == ENGINE and not n.startswith(f"{ENGINE}._reference")]
    names += [n for n in loaded if n.startswith(FAMILIES)]
    return [(n, m) for n in (*names, *OTHERS) if isinstance(m := loaded.get(n), ModuleType)]


def _named(module: ModuleType, *, whole: bool = False) -> Iterator[tuple[str, Parts]]:
    """What can be called under the names of a module, the methods of the classes that it defines, and constants.

    With `whole` every name counts, methods that an object has for itself, and what tables of an upper-case name hold.
    """
    yield "__class__", {"": type(module)}
    for name, value in list(vars(module).items()):
        constant = name.isupper() and isinstance(value, _FIXED)
        if name == "__builtins__" or constant or _called(value) or (whole and not _dunder(name)):
            yield name, _parts(value, module.__name__ if whole else "", name)
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield f"{name}.__mro__", {"": value.__mro__}
            for method, inner in list(vars(value).items()):
                if _called(inner) or (whole and method.isupper()):
                    yield f"{name}.{method}", _parts(inner, module.__name__ if whole else "", method)
        elif whole and not isinstance(value, (ModuleType, FunctionType)):
            for method, inner in _own_of(value).items():
                if isinstance(inspect.getattr_static(type(value), method, None), FunctionType):
                    yield f"{name}.{method}", _parts(inner)


def _own_of(value: Any) -> dict[str, Any]:
    """What an object holds for itself."""
    try:
        held = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return {}
    return {k: v for k, v in held.items() if isinstance(k, str)} if type(held) is dict else {}


def _called(value: Any) -> bool:
    return callable(value) or isinstance(value, (staticmethod, classmethod, property))


def _dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _parts(value: Any, of: str = "", name: str = "") -> Parts:
    """The value, the code and defaults of the functions below it, and what they enclose or a table holds.

    `of`: the module of the workspace that has it under this name.
    """
    found: Parts = {"": value}
    for depth, function in enumerate(_functions(value, enclosed=bool(of))):
        found |= {f"{depth}.code": function.__code__, f"{depth}.defaults": function.__defaults__}
        found |= {f"{depth}.{key}": v for key, v in (function.__kwdefaults__ or {}).items()}
        found |= {f"{depth}.cell.{key}": v for key, v in (_cells(function) if of else {}).items()}
    if of and name.isupper():
        found |= _entries(value, "", numbers=of.partition(".")[0] == HARNESSES)
    return found


def _cells(function: FunctionType) -> dict[str, Any]:
    """The variables around a function that it uses."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # an empty cell
            found[name] = cell.cell_contents
    return found


def _entries(value: Any, place: str, *, numbers: bool, depth: int = 0) -> Parts:
    """What a table holds, and the tables in it. `numbers`: numbers and texts, too, which a model may count with."""
    rows: Iterable[tuple[Any, Any]] = ()
    if type(value) is dict:
        rows = [(k, v) for k, v in value.items() if isinstance(k, _FIXED)]
    elif type(value) in (list, tuple):
        rows = enumerate(value)
    found: Parts = {}
    for key, inner in rows if depth < _DEEP else ():
        if numbers or not isinstance(inner, _PLAIN):
            found[f"{place}[{key!r}]"] = inner
        found |= _entries(inner, f"{place}[{key!r}]", numbers=numbers, depth=depth + 1)
    return found


def _functions(value: Any, *, enclosed: bool = False) -> Iterator[FunctionType]:
    """The functions below staticmethod, classmethod, property and wrappers, outermost first, and what they enclose."""
    left: list[Any] = [value.fget, value.fset] if isinstance(value, property) else [value]
    seen: set[int] = set()
    while left and len(seen) < _MOST:
        one = left.pop(0)
        if id(one) in seen or not isinstance(one, _LAYERS):
            continue
        seen.add(id(one))
        if isinstance(one, FunctionType):
            yield one
            left += _cells(one).values() if enclosed else ()
        left += [getattr(one, "__func__", None), getattr(one, "__wrapped__", None)]


def _same(was: Parts, now: Parts | None) -> bool:
    """Whether a value is what it was. A table may have grown."""
    if now is None:
        return False
    if was[""] is not now[""] and any(layer is was[""] for layer in _layers(now[""])):
        now = _parts(was[""], "the workspace" if any(".cell." in k for k in was) else "")
    return all(k in now and (v is now[k] or _equal(v, now[k])) for k, v in was.items())


def _equal(was: Any, now: Any) -> bool:
    """Whether two numbers or texts are one, which a module may hold as two objects."""
    return type(was) is type(now) and isinstance(was, _PLAIN) and repr(was) == repr(now)


def _layers(value: Any) -> Iterator[Any]:
    """A value, and what is below torch's own wrappers: the compiler wraps torch.manual_seed, optimizers `step`."""
    yield value
    while isinstance(value, FunctionType) and Path(value.__code__.co_filename).parts[-2:] in _WRAPPING:
        cells = _cells(value)
        value = next((cells[name] for name in _WRAPPED if name in cells), None)
        yield value


def _innermost(value: Any) -> Any:
    *_, last = _layers(value)
    return last


def _added(module: ModuleType, was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Names that a module or a class has now, and that hide a builtin or a method of a base class."""
    top = {k for k in was if "." not in k}
    yield from (k for k in _hiding(vars(module)) if k not in top and k in now)
    for name in (k for k in now if k not in was and "." in k):
        owner, _, method = name.partition(".")
        held = was[owner][""] if owner in was else None
        bases = held.__mro__[1:] if isinstance(held, type) else type(held).__mro__
        hidden = next((vars(base)[method] for base in bases if method in vars(base)), None)
        if _called(hidden) and _innermost(hidden) is not _innermost(now[name][""]):
            yield name


def _hiding(names: Mapping[str, Any]) -> list[str]:
    """Names of a module that hide a builtin."""
    return [k for k, v in list(names.items()) if hasattr(builtins, k) and not (_dunder(k) or isinstance(v, ModuleType))]


def _changed(module: ModuleType, code: CodeType, was: Mapping[str, Parts]) -> list[str]:
    """Names of a module of the workspace that its own code did not rebind, and that are not what they were."""
    now = dict(_named(module, whole=True))
    found = [k for k, parts in was.items() if not _same(parts, now.get(k))] + list(_added(module, was, now))
    if not found:
        return []
    own = _stored(code)
    return [f"{module.__name__}.{k}" for k in found if k not in own and not _by_itself(was.get(k), now.get(k), own)]


def _by_itself(was: Parts | None, now: Parts | None, own: Collection[str]) -> bool:
    """Whether a function differs only in variables around it that it rebinds with `nonlocal`."""
    if was is None or now is None:
        return False
    left = {k: v for k, v in was.items() if not (".cell." in k and k.rpartition(".")[2] in own)}
    return _same(left, now)


def _stored(code: CodeType, top: bool = False) -> set[str]:
    """Names that functions of a file rebind with `global` or `nonlocal`; with `top` all that the file defines."""
    found: set[str] = set()
    left = [code]
    while left:
        one = left.pop()
        left += [c for c in one.co_consts if isinstance(c, CodeType)]
        if top and one is code and ("*",) in one.co_consts:
            found.update(dir(builtins))
        free = set(one.co_freevars)
        for step in dis.get_instructions(one):
            kind = step.opname.partition("_")
            if kind[0] in ("STORE", "DELETE") and (
                kind[2] == "GLOBAL" or (kind[2] == "DEREF" and step.argval in free) or (top and kind[2] == "NAME")
            ):
                found.add(str(step.argval))
    return found


def _strange(module: ModuleType, now: Mapping[str, Parts]) -> list[str]:
    """Names of a late module whose function is not the one that its file defines under this name."""
    written = _written(module)
    functions = [(k, list(_functions(v))) for k, parts in now.items() if not isinstance(v := parts[""], type)]
    return [k for k, found in functions if k in written and not (found and found[-1].__code__ in written[k])]


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
