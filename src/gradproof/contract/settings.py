"""What a release asks beyond a verdict, and what it excuses: of a contract's `qa_gate` and of `[tool.gradproof]`.

Two demands add up to the stricter one; neither takes anything away from the contract. A waiver excuses an obligation
that is OPEN: never one that is BROKEN, and never a crash. It has an owner, a reason and a last day, and after that day
it is as if it were not there, but named.

`[tool.gradproof]` in the workspace's pyproject.toml also says how to run:

    [tool.gradproof]
    profile = "release"
    jobs = 2
    time-limit = 120
    memory-limit = 8192
    baseline = "reports/baseline.json"
    gpu-max-age-days = 30

    [tool.gradproof.require.GA-EQ-001]
    layers = ["cuda"]
    reach = {smt = "bounded"}
    bounds = {micro_batches = 4}

    [[tool.gradproof.waivers]]
    obligation = "GA-MEM-001"
    layer = "cuda"
    owner = "release@example.org"
    reason = "no GPU in this CI"
    expires = 2027-01-31

Precedence: command line, environment, file, default. What is required adds to the contract and never takes away, and a
baseline of the command line or the environment is added to that of the file.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gradproof.contract.schema import KEYS, Least, SettingsShape, Waiver
from gradproof.contract.yaml_reader import meant
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Layer, Reach

REACHES = tuple(Reach)
"""From the furthest."""


@dataclass(frozen=True)
class Demands:
    """All that is asked and waived. `gpu_max_age` None asks for no age; `now` None judges nothing by the clock."""

    least: Mapping[str, Least] = field(default_factory=dict)
    gpu_max_age: timedelta | None = None
    waivers: tuple[Waiver, ...] = ()
    now: datetime | None = None

    def in_force(self, waiver: Waiver) -> bool:
        """Whether a waiver holds today. Without a clock none does."""
        return self.now is not None and self.now.astimezone(UTC).date() <= waiver.expires

    def waived(self, obligation: str, layer: Layer) -> Waiver | None:
        """The waiver in force for a cell."""
        return next((w for w in self.waivers if w.covers(obligation, layer) and self.in_force(w)), None)

    def lapsed(self, obligation: str, layer: Layer) -> Waiver | None:
        """A waiver for a cell that holds no longer."""
        return next((w for w in self.waivers if w.covers(obligation, layer) and not self.in_force(w)), None)


NONE = Demands()
PROOFS = (Layer.SMT, Layer.CROSSHAIR, Layer.STEP)
"""The layers of which a bound is asked."""


def stricter(one: Least, other: Least) -> Least:
    """Both demands at once."""
    reach = dict(one.reach)
    for layer, asked in other.reach.items():
        reach[layer] = min(asked, reach.get(layer, asked), key=REACHES.index)
    bounds = {n: max(one.bounds.get(n, 0), other.bounds.get(n, 0)) for n in {*one.bounds, *other.bounds}}
    layers = list(dict.fromkeys([*one.layers, *other.layers]))
    return Least(layers=layers, reach=reach, bounds=dict(sorted(bounds.items())))


def together(parts: Iterable[Demands], now: datetime | None) -> Demands:
    """Demands of several sources as one."""
    least: dict[str, Least] = {}
    ages: list[timedelta] = []
    waivers: list[Waiver] = []
    for part in parts:
        for name, asked in part.least.items():
            least[name] = stricter(least.get(name, Least()), asked)
        ages += [part.gpu_max_age] if part.gpu_max_age is not None else []
        waivers += part.waivers
    return Demands(least, min(ages, default=None), tuple(dict.fromkeys(waivers)), now)


def demands_of(least: Mapping[str, Least], gpu_max_age_days: int | None, waivers: Sequence[Waiver]) -> Demands:
    """Demands as they stand in a contract or in a file."""
    return Demands(least, timedelta(days=gpu_max_age_days) if gpu_max_age_days else None, tuple(waivers))


FILE = "pyproject.toml"
DEMANDS = ("gpu_max_age_days", "require", "waivers")
OPTIONS = [name for name in SettingsShape.model_fields if name not in DEMANDS]
MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Settings:
    """What the file says: `options` by name of the option, `demands`, and the place of each key, file:line.

    `obligations`: each one that is named, with file:line:col of the name.
    """

    path: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    demands: Demands = field(default_factory=Demands)
    places: Mapping[str, str] = field(default_factory=dict)
    obligations: Sequence[tuple[str, str]] = ()


def load(root: Path) -> Settings:
    """The settings of a workspace; empty without a file or a table. Raises GradproofError GP490 and GP491."""
    path = root / FILE
    if not os.path.lexists(path):
        return Settings()
    try:
        if not path.is_file():  # a pipe would keep the reader waiting, a device would never end
            raise OSError("a link that leads nowhere" if not path.exists() else "it is no file")
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        found = str(error.strerror or error)
        raise GradproofError("GP490", found, "a file that can be read", "correct it", f"{path}:1:1") from error
    text = _text(path, data)
    table = _table(path, text)
    return Settings() if table is None else _settings(path, text, table)


def _text(path: Path, data: bytes) -> str:
    if len(data) > MAX_BYTES:
        raise GradproofError("GP490", f"more than {MAX_BYTES} bytes", "a smaller file", "split it", f"{path}:1:1")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise GradproofError(
            "GP490", "bytes that are no UTF-8", "UTF-8", "save it as UTF-8", f"{path}:{line}:1"
        ) from None
    return text


def _table(path: Path, text: str) -> dict[str, Any] | None:
    try:
        tool = tomllib.loads(text).get("tool", {})
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        found = re.search(r"line (\d+), column (\d+)", str(error))
        line, col = found.groups() if found else ("1", "1")
        where = f"{path}:{line}:{col}"
        raise GradproofError("GP490", f"it is no TOML: {error}", "a TOML document", "correct it", where) from None
    table = tool.get("gradproof") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise GradproofError("GP491", "tool.gradproof is no table", "[tool.gradproof]", "correct it", f"{path}:1:1")
    return table


def _settings(path: Path, text: str, table: dict[str, Any]) -> Settings:
    try:
        shaped = SettingsShape.model_validate(table)
    except ValidationError as error:
        raise _wrong(path, text, error.errors(include_url=False)) from None
    keys = [*(key for key in table if key != "require"), *(f"require.{name}" for name in shaped.require)]
    places = {
        key.replace("-", "_") if "." not in key else key: f"{path}:{line_of(text, key.split('.', 1))}" for key in keys
    }
    options = {name: value for name in OPTIONS if (value := getattr(shaped, name)) is not None}
    demands = demands_of(shaped.require, shaped.gpu_max_age_days, shaped.waivers)
    named = [(name, _place_of(path, text, name, ("require", name))) for name in demands.least]
    named += [(w.obligation, _place_of(path, text, w.obligation, ("waivers",))) for w in demands.waivers]
    return Settings(path, options, demands, places, named)


def _place_of(path: Path, text: str, name: str, keys: Sequence[str]) -> str:
    """file:line:col of the first time that a name stands in a table or below it; column 1 where it is not seen."""
    start = line_of(text, keys)
    for number, line in enumerate(text.splitlines()[start - 1 :], start):
        if found := re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", line):
            return f"{path}:{number}:{found.start() + 1}"
    return f"{path}:{start}:1"


def line_of(text: str, path: Sequence[Any]) -> int:
    """Line (from 1) of a key below tool.gradproof, or of the nearest table that can be found by its header."""
    lines, best, inside = text.splitlines(), 1, False
    names = [str(step) for step in path if not isinstance(step, int)]
    for number, line in enumerate(lines, 1):
        header = re.fullmatch(r"\s*\[{1,2}\s*tool\.gradproof(?:\.(.+?))?\s*\]{1,2}\s*(#.*)?", line)
        if header:
            below = [part.strip().strip("\"'") for part in (header[1] or "").split(".")] if header[1] else []
            inside = below == names[: len(below)]
            best = number if inside else best
            left = names[len(below) :]
            continue
        if re.match(r"\s*\[", line):
            inside = False
        key = re.match(r"\s*[\"']?([\w.-]+)[\"']?\s*=", line)
        if inside and key and left and key[1].split(".")[0] == left[0]:
            return number
    return best


def _wrong(path: Path, text: str, errors: Sequence[Any]) -> GradproofError:
    """GP491 for the first mistake, with how many more there are."""
    first = errors[0]
    loc = [step for step in first["loc"] if step != "[key]"]
    where = f"{path}:{line_of(text, loc)}:1"
    name = ".".join(str(step) for step in loc)
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    if first["type"] == "extra_forbidden":
        help = meant(str(loc[-1]), KEYS, "remove it")
        return GradproofError("GP491", f"the unknown key {name!r}{more}", f"one of {', '.join(KEYS)}", help, where)
    expected = str((first.get("ctx") or {}).get("expected") or first["msg"])
    found = f"{name} is missing" if first["type"] == "missing" else f"{name} = {first['input']!r}"
    return GradproofError("GP491", f"{found}{more}", expected, "correct the value", where)
