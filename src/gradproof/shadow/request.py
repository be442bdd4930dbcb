"""What a user asks of `check`: the numbers, judged before anything runs, and what an empty answer is worth.

No torch and no solver is loaded here. A mistake is a GradproofError with code GP404 to GP406.
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any

from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Outcome
from gradproof.shadow.locations import Location
from gradproof.shadow.result import OBLIGATIONS, WHERE_DUE, Result, Verification

DTYPES = ("float32", "float64", "float16", "bfloat16")
DEVICE = re.compile(r"cpu|cuda(:\d+)?")
NUMBER = r"\d+(?:\.\d*)?(?:e[+-]?\d+)?"
RANGE = re.compile(rf"(?P<name>[^=]+)=(?:(?P<absolute>{NUMBER})|(?P<relative>{NUMBER})%|max:(?P<box>{NUMBER}))", re.I)
"""`data=0.1`: within 0.1 of what was recorded; `param=5%`: within 5 % of it; `data=max:2`: anywhere in [-2, 2]."""
LEAST: Mapping[str, int] = {
    "accum_steps": 1, "micro_batch": 1, "windows": 1, "tail": 0, "ranks": 1, "seed": 0,
}  # fmt: skip
QUIET = frozenset({"ranks", "optimizer", "rounding", "ranges", "fake", "certificate", "tables"})
SYNC = "GA-SYNC-001"


@dataclass(frozen=True, slots=True)
class Request:
    """How a step is verified; the fields are keyword arguments of `testing.check`.

    `tail` micro-batches form a short last window. `optimizer`, when given, is what the user's function reads as
    `run.optimizer`. `rounding`: bound the rounding error of each gradient too. `ranges` are the numbers for which it is
    bounded, by kind (data, param, buffer) or name of a parameter, as in `RANGE`. `fake`: tensors have no numbers, so
    that a model of any size fits. `certificate`: the file that the log of the run goes to. `tables`: what has more
    rows than the full batch is a table of samples.
    Raises GradproofError GP406 for a value out of range.
    """

    accum_steps: int = 4
    micro_batch: int = 2
    windows: int = 2
    tail: int = 0
    device: str = "cpu"
    dtype: str = "float32"
    seed: int = 0
    ranks: int = 1
    optimizer: str | None = None
    rounding: bool = False
    ranges: tuple[str, ...] = ()
    fake: bool = False
    certificate: str = ""
    tables: bool = False

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int) or number < least:
                raise refused(name, number, f"a whole number, {least} or more")
        object.__setattr__(self, "ranges", tuple(self.ranges))
        ranges = [text for text in self.ranges if not isinstance(text, str) or not RANGE.fullmatch(text)]
        device, beside_fake = self.device, "no such option beside --fake"
        for name, found, wrong, expected in (
            ("tail", self.tail, 0 < self.accum_steps <= self.tail, f"fewer micro-batches than {self.accum_steps}"),
            ("dtype", self.dtype, self.dtype not in DTYPES, f"one of {', '.join(DTYPES)}"),
            ("device", device, not isinstance(device, str) or not DEVICE.fullmatch(device), "cpu, cuda or cuda:N"),
            ("range", ranges, ranges, "NAME=0.1, NAME=5% or NAME=max:2, of data, param, buffer or a parameter"),
            ("range", self.ranges, self.fake and self.ranges, beside_fake),
            ("ranks", self.ranks, self.fake and self.ranks != 1, beside_fake),
            ("device", device, self.fake and device != "cpu", beside_fake),
            ("rounding", self.rounding, self.fake and self.rounding, beside_fake),
            ("range", self.ranges, self.ranges and not self.rounding, "--rounding beside it, which alone reads ranges"),
            ("ranks", self.ranks, self.certificate and self.ranks > 1, "1 beside --certificate: it logs one process"),
            ("ranks", self.ranks, self.rounding and self.ranks > 1, "1 beside --rounding: it bounds one process"),
        ):
            if wrong:
                raise refused(name, found, expected)

    def options(self) -> dict[str, Any]:
        """Keyword arguments of a `Request`; those of `QUIET` are among them only where they say something."""
        plain = {f.name: f.default for f in fields(self)}
        return {name: said for name, said in asdict(self).items() if name not in QUIET or said != plain[name]}


def refused(name: str, found: object, expected: str) -> GradproofError:
    """GP406: a number or word of a user that does not fit."""
    return GradproofError("GP406", f"{name.replace('_', '-')} is {found!r}", expected, "change the number or the word")


def allowed(names: Iterable[str]) -> list[str]:
    """The obligations of --allow-undecided, each once. Raises GradproofError GP406 for a name that is none."""
    found = list(dict.fromkeys(names))
    for name in found:
        if name not in OBLIGATIONS:
            raise refused("allow-undecided", name, f"an obligation: {', '.join(OBLIGATIONS)}")
    return found


LAST = "last"


def chosen(text: str) -> frozenset[int | str]:
    """The windows of `--windows-at`: numbers from 0, and `last`, the last of the first epoch. Raises as a `Request`."""
    words = [word.strip() for word in text.split(",")]
    if any(word != LAST and not (word.isascii() and word.isdigit()) for word in words):
        raise refused("windows-at", text, "numbers of windows, counted from 0, and `last`, with commas between")
    return frozenset(word if word == LAST else int(word) for word in words)


# -- The function of `check`.


def function_of(module: ModuleType, name: str, where: str) -> Callable[..., Any]:
    """The function of a module. Raises GradproofError GP404 when there is none, GP405 when it takes no Run."""
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        own = [k for k, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
        near = difflib.get_close_matches(name, own, n=3) or own[:8]
        expected = f"one of {', '.join(near)}" if near else "a function of one argument in that file"
        raise GradproofError(
            "GP404", f"no function called {name!r}", expected, "correct the name after the colon", where
        )
    return takes_run(found, f"{where}:{name}")


def takes_run(function: Any, where: str = "") -> Callable[..., Any]:
    """The function itself, if it can be called with one argument. Raises GradproofError GP405."""
    help = "write `def step(run): ...` and train with run.accum_steps and run.micro_batch_size"

    def refused(found: str) -> GradproofError:
        return GradproofError("GP405", found, "a function that takes one Run and trains", help, where)

    if not callable(function) or isinstance(function, type):
        raise refused("a class" if isinstance(function, type) else f"a {type(function).__name__}, which is no function")
    called = function if inspect.isroutine(function) else type(function).__call__
    if inspect.iscoroutinefunction(called) or inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise refused("a coroutine or generator: calling it runs nothing")
    try:
        inspect.signature(function).bind(object())
    except (TypeError, ValueError) as e:  # it takes others, or they cannot be seen
        raise refused(f"a function that cannot be called with one argument: {e}") from e
    made: Callable[..., Any] = function
    return made


def expected_obligations(ranks: int) -> list[str]:
    """Obligations that a verification has to say something about: the ranks' own only where there are ranks."""
    return [name for name in OBLIGATIONS if name not in WHERE_DUE or (name == SYNC and ranks > 1)]


def complete(verification: Verification, ranks: int) -> Verification:
    """The same, with a NOT_RUN result for every obligation that nobody judged: silence is never green."""
    said = {result.obligation for result in verification.results}
    for name in expected_obligations(ranks):
        if name not in said:
            verification.results.append(Result(name, Outcome.NOT_RUN, "nothing was said about this obligation"))
    order = {name: location for location, name in enumerate(OBLIGATIONS)}
    verification.results.sort(key=lambda result: order.get(result.obligation, len(order)))
    return verification


def undecided(
    subject: str,
    config: Mapping[str, Any],
    outcome: Outcome,
    reason: str,
    location: Location | None = None,
    help: str = "",
) -> Verification:
    """A verification in which nothing was decided, each obligation for the same reason.

    Raises ValueError for HOLDS and REFUTED, which are answers.
    """
    if outcome in (Outcome.HOLDS, Outcome.REFUTED):
        raise ValueError(f"{outcome} is an answer")
    names = expected_obligations(int(config.get("ranks", 1)))
    results = [Result(name, outcome, reason, location, help) for name in names]
    return Verification(subject, dict(config), results)


# -- The user's file.


def load(path: Path) -> ModuleType:
    """The user's file as a module, its folder first on the import path. Raises GradproofError GP403; lets others pass.

    A file inside a package is imported by its dotted name, so that relative imports work.
    """
    folder, names = path.parent, [path.stem]
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        names.insert(0, folder.name)
        folder = folder.parent
    sys.path[:0] = [str(path.parent)] if folder == path.parent else [str(path.parent), str(folder)]
    name = ".".join(names)
    if name in sys.modules or not all(part.isidentifier() for part in names):
        name = f"gradproof_subject_{len(sys.modules)}"
    elif len(names) > 1:
        importlib.import_module(name.rpartition(".")[0])
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise GradproofError("GP403", f"{path} cannot be imported", "a Python file", "give the path of a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
