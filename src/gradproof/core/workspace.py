"""A workspace on disk: its root, its contracts, and guarded imports of its content.

Content is imported from the workspace root (`models`, `symbolic`), so a process serves one workspace. Source
files below the root are compiled from the text that is there, never from a cached `.pyc`: a cache entry is
chosen by time stamp and size, and evidence must speak about the bytes that ran.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any
from zipimport import ZipImportError, zipimporter

from gradproof.core.errors import GradproofError
from gradproof.core.outcome import NO_WORKSPACE

INSTALLED = ("lib", "lib32", "lib64", "bin", "include", "share")  # below sys.prefix
CONTENT = ("models", "symbolic")
FOLDERS = ("proofs", *CONTENT)
PACKAGE = Path(__file__).resolve().parents[1]
CI = ("CI", "TF_BUILD", "TEAMCITY_VERSION", "JENKINS_URL", "CODEBUILD_BUILD_ID")
"""CI services set one of these: where nobody is there to read a warning, nothing stands in for a workspace."""

STDLIB = Path(os.__file__).resolve().parent
_LIBRARY = Path(os.__file__).parent  # as the paths of its own packages and frames name it
_NAME = re.compile(r"(?P<module>\w+(?:\.\w+)*)(?::(?P<attribute>\w+(?:\.\w+)*)(?:\[(?P<key>[^\]]+)\])?)?")


def sha256_of(path: Path) -> str:
    """sha256 in hex of a file's bytes. Raises OSError."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


class _Loader(SourceFileLoader):
    """Compiles from source every time.

    Bytecode that lies beside a file is known by the file's size and its time in whole seconds: a second edit within one
    second would be taken for the first.
    """

    during: Callable[[ModuleType, CodeType], AbstractContextManager[object]] = staticmethod(lambda *of: nullcontext())
    """Entered around the run of a module's own code."""

    def get_code(self, fullname: str) -> CodeType:
        return compiled(self, fullname)

    def exec_module(self, module: ModuleType) -> None:
        code = self.get_code(module.__name__)
        with self.during(module, code):
            exec(code, vars(module))


_KINDS: tuple[tuple[Any, list[str]], ...] = (
    (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
    (_Loader, importlib.machinery.SOURCE_SUFFIXES),
    (importlib.machinery.SourcelessFileLoader, importlib.machinery.BYTECODE_SUFFIXES),
)


def compiled(loader: SourceFileLoader, fullname: str) -> CodeType:
    """A module's code from its source, whose digest is noted. Raises ImportError, OSError, SyntaxError."""
    path = loader.get_filename(fullname)
    data = loader.get_data(path)
    Finder.loaded[str(Path(path).resolve())] = hashlib.sha256(data).hexdigest()
    code: CodeType = loader.source_to_code(data, path)
    return code


class Locator:
    """Finds modules along folders and archives as Python does, without importing anything."""

    def __init__(self, root: Path) -> None:
        self._inside = f"{root}{os.sep}"
        self._finders: dict[str, FileFinder | zipimporter] = {}

    def spec(self, name: str, folders: Iterable[str]) -> ModuleSpec | None:
        """Spec of the first module of this name; else of its folders without code, which has no loader."""
        inner: list[str] = []
        for folder in folders:
            try:
                spec = self._finder(folder).find_spec(name)
            except Exception:  # an archive with a module that does not compile
                continue
            if spec is not None and spec.loader is not None:
                return spec
            inner += (spec.submodule_search_locations or ()) if spec is not None else ()
        found = ModuleSpec(name, None, is_package=True)
        found.submodule_search_locations = inner
        return found if inner else None

    def file(self, name: str, folders: Iterable[str]) -> str | None:
        """File of a dotted name, each part below the one before; None when there is none."""
        spec = None
        for part in name.split("."):
            spec = self.spec(part, folders)
            folders = self.own_first((spec.submodule_search_locations or ()) if spec is not None else ())
        return spec.origin if spec is not None and spec.loader is not None else None

    def own_first(self, folders: Iterable[str]) -> list[str]:
        """The folders of a package in the order in which a run looks into them: those below the root come first."""
        return sorted(folders, key=lambda folder: not folder.startswith(self._inside))

    def _finder(self, folder: str) -> FileFinder | zipimporter:
        if folder not in self._finders:
            try:
                self._finders[folder] = zipimporter(folder)
            except ZipImportError:
                self._finders[folder] = FileFinder(folder, *_KINDS)
        return self._finders[folder]


class Finder(importlib.abc.MetaPathFinder):
    """Finds the workspace's modules first, and remembers what it was asked for.

    It imports nothing itself: what it imports, it would be asked for. `first` is called before a module of the
    workspace is loaded, `during` is entered around the run of its own code. `asked`: a name, whether it was looked for
    in the folders of a package, and the folders; and the files that asked. A folder that the workspace put before its
    root on sys.path comes first.
    """

    loaded: dict[str, str] = {}  # noqa: RUF012  (one process, one workspace)

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: dict[tuple[str, bool, tuple[str, ...]], set[str]] = {}
        self.first: Callable[[], object] = lambda: None
        self.during = _Loader.during
        self._locator = Locator(root)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Spec of a module below the root; None leaves the name to Python's own finders."""
        within = isinstance(path, (list, tuple))  # a package without code has neither: its parts depend on sys.path
        places = tuple(p for p in (path if path is not None and within else sys.path) if isinstance(p, str))
        self.asked.setdefault((fullname, within, places), set()).add(_asker())
        if path is None and self._before(fullname):
            return None
        folders = [str(self.root)] if path is None else [p for p in path if self._own(Path(p))]
        spec = self._locator.spec(fullname, folders)
        if spec is None or spec.loader is None:
            return None
        self.first()
        if isinstance(spec.loader, _Loader):
            spec.loader.during = self.during
        return spec

    def _before(self, name: str) -> bool:
        """Whether a folder that comes before the root on sys.path has the name; content is the root's alone."""
        if name in CONTENT or str(self.root) not in sys.path:
            return False
        earlier = [p for p in sys.path[: sys.path.index(str(self.root))] if isinstance(p, str)]
        spec = self._locator.spec(name, earlier)
        return spec is not None and spec.loader is not None

    def _own(self, folder: Path) -> bool:
        """Below the root, and not in a virtual environment there: its packages keep their own loaders."""
        return _below(folder, self.root) and not installed(folder.resolve().relative_to(self.root))

    def invalidate_caches(self) -> None:
        """Look at the folders anew."""
        self._locator = Locator(self.root)


def _asker() -> str:
    """The file of the code that imports a name, or asks Python's own library for it."""
    frame = sys._getframe(2)
    while frame.f_back is not None and _pythons(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename


def _pythons(file: str) -> bool:
    path = Path(file)
    return file.startswith("<frozen ") or (path.is_relative_to(_LIBRARY) and not installed(path))


def pythons(folder: Path) -> bool:
    """Whether a folder is one of Python's own, one of installed packages, or the engine's."""
    return installed(folder) or folder.is_relative_to(_LIBRARY) or folder.is_relative_to(PACKAGE)


def _below(path: Path, root: Path) -> bool:
    return path.resolve().is_relative_to(root)


def installed(path: Path) -> bool:
    """Whether a path, given relative to a root, lies in a package installation."""
    return "site-packages" in path.parts or "dist-packages" in path.parts


def installations() -> frozenset[str]:
    """Where this Python and its packages lie, as they are named and as they are.

    Not all that lies below sys.prefix is installed: that may be /usr, and `pip install -e` keeps sources in a
    virtual environment's src/.
    """
    homes = {place for home in (sys.prefix, sys.base_prefix) for place in (home, os.path.realpath(home))}
    parts = {os.path.join(home, part) for home in homes for part in INSTALLED}
    return frozenset({*parts, str(STDLIB)})


def installations_in(root: Path) -> tuple[str, ...]:
    """Beginnings of the paths of whatever is installed below a root, as in a virtual environment that lies there."""
    return tuple(f"{p}{os.sep}" for p in installations() if p.startswith(f"{root}{os.sep}"))


@dataclass(frozen=True)
class Workspace:
    """A folder with proofs/, models/ and symbolic/, and the folder that its reports go to."""

    root: Path
    reports: Path
    packaged: bool = False
    _finders: list[Finder] = field(default_factory=list, repr=False, compare=False)

    @property
    def warning(self) -> str | None:
        """What whoever reads a verdict on this workspace has to know first."""
        return NO_WORKSPACE if self.packaged else None

    def contracts(self) -> list[Path]:
        """Every contract, sorted. Raises GradproofError GP208 when there is none."""
        found = sorted(self.root.glob("proofs/*/contract.yaml"))
        if not found:
            raise GradproofError(
                "GP208",
                f"no proofs/*/contract.yaml in {self.root}",
                "at least one contract",
                "write proofs/<name>/contract.yaml, or name another workspace with --workspace",
            )
        return found

    def enter(self) -> Finder:
        """Put the root first in the import order, once. Raises GradproofError GP206 for a stranger's content."""
        self._guard()
        if not self._finders:
            finder = Finder(self.root)
            self._finders.append(finder)
            sys.meta_path.insert(0, finder)
            if sys.path[:1] != [str(self.root)]:
                sys.path.insert(0, str(self.root))
        return self._finders[0]

    def leave(self) -> None:
        """Undo `enter`: for programs that visit several workspaces in turn, such as tests."""
        while self._finders:
            finder = self._finders.pop()
            if finder in sys.meta_path:
                sys.meta_path.remove(finder)
        if str(self.root) in sys.path:
            sys.path.remove(str(self.root))
        for name, module in list(sys.modules.items()):
            origin = getattr(module, "__file__", None)
            if origin and name.partition(".")[0] in CONTENT and _below(Path(origin), self.root):
                del sys.modules[name]

    def resolve(self, name: str) -> Any:
        """The object called `module` or `module:attribute`, or `module:REGISTRY[name]` for the subject of a mutant.

        Raises GradproofError: GP202 malformed name, GP203 no such module, GP204 no such attribute, GP205 the
        module does not import, GP206 and GP207 a stranger's `models` or `symbolic`, GP209 no such mutant.
        """
        match = _NAME.fullmatch(name)
        if match is None:
            raise GradproofError("GP202", repr(name), "module:attribute", "write it as package.module:name")
        self.enter()
        value: Any = self._module(match["module"])
        for part in match["attribute"].split(".") if match["attribute"] else ():
            value = self._attribute(value, part, name)
        return value if match["key"] is None else _mutant(value, match["key"], name)

    def _attribute(self, value: Any, part: str, name: str) -> Any:
        if not hasattr(value, part):
            names = sorted(n for n in dir(value) if not n.startswith("_"))
            raise GradproofError(
                "GP204",
                f"{name}: no {part!r}",
                f"one of {', '.join(names[:12]) or 'no names at all'}",
                "correct the name",
            )
        return getattr(value, part)

    def _module(self, name: str) -> ModuleType:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as e:
            if e.name is not None and (name == e.name or name.startswith(f"{e.name}.")):
                place = self.root / (name.replace(".", "/") + ".py")
                raise GradproofError(
                    "GP203", f"no module {name!r}", f"{place}", "correct the name or add the file"
                ) from e
            raise _unimportable(name, e, self.root) from e
        except SyntaxError as e:
            where = f"{e.filename}:{e.lineno}:{e.offset}"
            raise GradproofError(
                "GP205", f"{name} does not compile: {e.msg}", "a Python module", "correct the syntax", where
            ) from e
        except (Exception, SystemExit) as e:
            raise _unimportable(name, e, self.root) from e
        self._guard()
        self._placed(name, module)
        return module

    def _placed(self, name: str, module: ModuleType) -> None:
        """Content must lie below the root."""
        if name.partition(".")[0] in CONTENT and not all(_below(p, self.root) for p in _places(module)):
            raise GradproofError(
                "GP207",
                f"{name} was found at {_places(module)[0]}",
                f"below {self.root}",
                "take the other folder off PYTHONPATH",
            )

    def _guard(self) -> None:
        for top in CONTENT:
            module = sys.modules.get(top)
            if module is None:
                continue
            strangers = [p for p in _places(module) if not _below(p, self.root / top)]
            if strangers:
                raise GradproofError(
                    "GP206",
                    f"a foreign {top!r} is loaded from {strangers[0]}",
                    f"{self.root / top}",
                    "run each workspace in a process of its own, with no other 'models' or 'symbolic' on the path",
                )


def _places(module: ModuleType) -> list[Path]:
    origin = getattr(module, "__file__", None)
    return [Path(origin)] if origin else [Path(p) for p in getattr(module, "__path__", [])] or [Path("built-in")]


def _mutant(registry: Any, key: str, name: str) -> Any:
    try:
        return registry[key].subject
    except (KeyError, TypeError, AttributeError) as e:
        known = ", ".join(sorted(registry)) if isinstance(registry, dict) else "a mapping of mutants"
        raise GradproofError("GP209", f"{name}: no mutant {key!r}", known, "correct the mutant's name") from e


def _unimportable(name: str, error: BaseException, root: Path) -> GradproofError:
    """GP205, at the deepest line of the workspace that the traceback passes."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _below(Path(f.filename), root)]
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    found = f"importing {name} raised {type(error).__name__}: {error}"
    return GradproofError("GP205", found, "a module that imports", "correct the module", where)


def is_workspace(folder: Path) -> bool:
    """Whether `folder` holds proofs/, models/ and symbolic/."""
    return all(os.path.isdir(folder / name) for name in FOLDERS)


def reference() -> Path | None:
    """Root of the reference workspace: carried in the wheel, or the checkout that this package runs from."""
    packaged, checkout = PACKAGE / "_reference", PACKAGE.parent.parent
    return next((p for p in (packaged, checkout) if is_workspace(p)), None)


def find(start: Path | None = None, explicit: bool = False) -> Workspace:
    """The workspace at or above `start` (the current folder), else the reference workspace.

    With `explicit`, `start` itself must be one. Nothing stands in for a workspace in CI, nor for one of which a part is
    there. Raises GradproofError GP201.
    """
    start = Path(os.path.realpath(start or Path.cwd()))
    candidates = [start] if explicit else [start, *start.parents]
    for folder in candidates:
        if is_workspace(folder):
            return Workspace(folder, folder / "reports")
    part = _part(candidates)
    in_ci = next((name for name in CI if os.environ.get(name)), None)
    root = None if explicit or part is not None or in_ci is not None else reference()
    if root is None:
        raise _no_workspace(part or start, part is not None, None if explicit else in_ci)
    return Workspace(root, Path.cwd() / "reports", packaged=True)


def _part(folders: Sequence[Path]) -> Path | None:
    """The first folder with a part of a workspace: above the project, where one part says little, with two of them."""
    inner = _project(folders)
    return next((p for p in folders if sum(os.path.lexists(p / n) for n in FOLDERS) > (p not in inner)), None)


def _project(folders: Sequence[Path]) -> Sequence[Path]:
    """The first of these folders, and those above it up to the repository, or else the last with a pyproject.toml."""
    git = next((i for i, p in enumerate(folders) if os.path.lexists(p / ".git")), None)
    ends = [i for i, p in enumerate(folders) if os.path.lexists(p / "pyproject.toml")]
    return folders[: (git if git is not None else max(ends, default=0)) + 1]


def _no_workspace(start: Path, in_part: bool, in_ci: str | None) -> GradproofError:
    """GP201, with what is missing of a workspace that is there in part."""
    missing = ", ".join(f"{name}/" for name in FOLDERS if not (start / name).is_dir())
    found = f"{start} is no workspace" + (f": it lacks {missing}" if in_part else "")
    if in_ci and not in_part:
        found += f", and where {in_ci} is set, as CI services do, the packaged reference is not judged in its place"
    expected = "a folder with " + ", ".join(f"{name}/" for name in FOLDERS)
    return GradproofError("GP201", found, expected, "change to such a folder or name it with --workspace")
