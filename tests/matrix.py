"""The matrix of supported versions: `python -m tests.matrix [--out FILE.md]`, as `make matrix`.

For each Python of the matrix, and for torch at the declared minimum and at the newest that the index has: the wheel in
an environment of its own, and in empty folders `verify` of one check of each layer, then `check` and `watch` of a
script that knows nothing of gradproof, right and wrong. One environment is on disk at a time. What cannot be installed
is NOT_RUN, with the reason. The table is printed, and put between the marks of FILE.md after each cell. Exit code 0
only if no cell fails and at least one passes.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tests.installed import LIMIT, REPOSITORY, SCRIPT, ends, environ, scripts

PYTHONS = ("3.11", "3.12", "3.13")
CONTRACT = "gradient-accumulation-kernel-v1"
LAYERS = {
    "bounded proof": "KANI-GA-002",
    "CrossHair": "CROSS-GA-002",
    "recorded step": "STEP-GA-003",
    "measured": "FALSIFY-GA-003@cpu-fp32",
}
COLUMNS = (*LAYERS, "check", "watch")
ZEROED = "            optimizer.zero_grad()\n"
WITH = ("z3-solver", "crosshair-tool", "hypothesis", "numpy")
FACTS = (
    "import importlib.metadata as m, json, platform, torch; "
    f"print(json.dumps([platform.python_version(), torch.__version__, {{n: m.version(n) for n in {WITH!r}}}]))"
)
BEGIN, END = "<!-- matrix: begin -->", "<!-- matrix: end -->"
ROOM = 28 * 10**9
"""Bytes that must be free before an environment is made: a torch with its CUDA packages takes some seven billion."""


@dataclass
class Cell:
    """One Python with one torch. `tried`: what is wrong in each column that was tried, empty where nothing is."""

    python: str
    torch: str
    which: str
    reason: str = "the run ended before this cell"
    versions: Mapping[str, str] = field(default_factory=dict)
    tried: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """PASS, FAIL, or NOT_RUN where the wheel could not be installed."""
        if not self.tried:
            return "NOT_RUN"
        return "FAIL" if any(self.tried.values()) or set(self.tried) != set(COLUMNS) else "PASS"

    def row(self) -> str:
        """The row of the table."""
        words = ["-" if c not in self.tried else "FAIL" if self.tried[c] else "PASS" for c in COLUMNS]
        others = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"| {' | '.join([self.python, f'{self.torch} ({self.which})', *words, self.state, others or '-'])} |"

    def reasons(self) -> list[str]:
        """Why the cell did not pass, a line each."""
        found = [f"{column}: {why}" for column, why in self.tried.items() if why] or [self.reason]
        return [] if self.state == "PASS" else [f"- Python {self.python}, torch {self.torch}: {w}" for w in found]


def interpreter(version: str) -> str | None:
    """A Python of this version that starts: of pyenv, or on PATH."""
    own = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for found in (*map(str, reversed(own)), shutil.which(f"python{version}")):
        if found and subprocess.run([found, "--version"], capture_output=True, timeout=60, check=False).returncode == 0:
            return found
    return None


def minimum() -> str:
    """The oldest torch that the project declares. Raises ValueError where it declares none."""
    needs = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    [found] = [m[1] for need in needs if (m := re.fullmatch(r"torch>=([\d.]+)", need))]
    return str(found)


def newest(python: str) -> str | None:
    """The newest torch that the index has for a Python; None where the index does not answer."""
    asked = [python, "-m", "pip", "index", "versions", "torch"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=LIMIT, check=False)
    found = re.search(r"^torch \(([^)]+)\)", done.stdout, re.MULTILINE)
    return found[1] if done.returncode == 0 and found else None


def built(home: Path) -> Path:
    """The wheel, built from a copy of the project's files, so that nothing is written beside the sources."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=REPOSITORY, capture_output=True, text=True, timeout=LIMIT, check=True).stdout
    for name in filter(None, names.split("\0")):
        (home / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(REPOSITORY / name, home / "project" / name)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(home / "dist")]
    subprocess.run([*build, str(home / "project")], stdout=subprocess.DEVNULL, timeout=LIMIT, check=True)
    [wheel] = (home / "dist").glob("*.whl")
    return wheel


def install(python: str, torch: str, wheel: Path, env: Path) -> str:
    """An environment with the wheel and this torch; why there is none, or an empty text."""
    free = shutil.disk_usage(env.parent).free
    if free < ROOM:
        return f"{free / 1e9:.0f} GB of disk are free, and {ROOM / 1e9:.0f} are asked for"
    subprocess.run([python, "-m", "venv", str(env)], timeout=LIMIT, check=True)
    pip = [str(env / "bin/python"), "-m", "pip", "install", "--quiet", "--no-compile", "--no-cache-dir"]
    done = subprocess.run(
        [*pip, str(wheel), f"torch=={torch}"], cwd=env, env=environ(env / "bin"), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()[-1:]
    return "" if done.returncode == 0 else f"pip install: {said[-1] if said else done.returncode}"


def layers(folder: Path, given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What is wrong with the evidence of one check of each layer, as `gate` judges it after the run."""
    chosen = [word for check in LAYERS.values() for word in ("-k", check)]
    limit = ["--time-limit", f"{LIMIT:g}"]
    ran = [*ends(folder, given, 4, "gradproof", "verify", "--quiet", "--contract", CONTRACT, *limit, *chosen)]
    ran += ends(folder, given, 4, "gradproof", "gate", "--contract", CONTRACT, "--format", "json=gate.json")
    rows = {}
    if (folder / "gate.json").is_file():
        said = json.loads((folder / "gate.json").read_text(encoding="utf-8"))
        reports = said if isinstance(said, list) else [said]
        rows = {row["id"]: row for report in reports for row in report["checks"]}
    for column, check in LAYERS.items():
        row = rows.get(check, {})
        held = row.get("outcome") == "HOLDS" and not ran
        yield column, "" if held else f"{check} {row.get('outcome', 'absent')} {row.get('reason', '')} {' '.join(ran)}"


def watched(folder: Path, given: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with `watch` of somebody's script, which is right, and which is refuted where it never zeroes."""
    text = SCRIPT.read_text(encoding="utf-8")
    if text.count(ZEROED) != 1:
        yield f"{ZEROED.strip()!r} does not stand once in the loop of {SCRIPT.name}"
    cases = (("right", (0, 4), "HOLDS", text), ("wrong", (1,), "REFUTED", text.replace(ZEROED, "")))
    for name, codes, wanted, loop in cases:
        (folder / f"{name}.py").write_text(loop, encoding="utf-8")
        result = folder / f"{name}.json"
        command = ["gradproof", "watch", "--accum-steps", "4", "--format", "json", "--out", str(result)]
        done = subprocess.run(
            [*command, "--", "python", f"{name}.py"], cwd=folder, env=dict(given), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=LIMIT, check=False,
        )  # fmt: skip
        rows = json.loads(result.read_text(encoding="utf-8"))["results"] if result.is_file() else []
        found = [row["outcome"] for row in rows if row["obligation"] == "GA-INV-002"]
        if done.returncode not in codes or found != [wanted]:
            said = f"watch of the {name} script ended with {done.returncode} and says {found} of GA-INV-002"
            yield f"{said}; {wanted} is right: {done.stderr[-300:]}"


def attempt(cell: Cell, env: Path, folder: Path) -> None:
    """Try everything in the environment of a cell, and note what is wrong."""
    given = environ(env / "bin")
    facts = [str(env / "bin/python"), "-P", "-c", FACTS]
    done = subprocess.run(facts, cwd=folder, env=given, capture_output=True, text=True, timeout=LIMIT, check=False)
    if done.returncode != 0:
        cell.tried = dict.fromkeys(COLUMNS, f"torch does not import: {done.stderr[-300:]}")
        return
    cell.python, cell.torch, cell.versions = json.loads(done.stdout)
    for name in ("layers", "check", "watch"):
        (folder / name).mkdir()
    cell.tried |= layers(folder / "layers", given)
    cell.tried["check"] = " ".join(scripts(folder / "check", given))
    cell.tried["watch"] = " ".join(watched(folder / "watch", given))


def fill(cell: Cell, python: str | None, wheel: Path, home: Path) -> None:
    """Run one cell in a folder of its own, which is gone afterwards."""
    if python is None or not cell.torch:
        cell.reason = f"Python {cell.python} is not installed here" if python is None else "the index names no torch"
        return
    with tempfile.TemporaryDirectory(dir=home, ignore_cleanup_errors=True) as folder:
        env, place = Path(folder) / "env", Path(folder) / "work"
        place.mkdir()
        try:
            cell.reason = install(python, cell.torch, wheel, env)
            if not cell.reason:
                attempt(cell, env, place)
        except subprocess.TimeoutExpired as e:
            cell.tried |= {c: f"no answer within {e.timeout:g} s" for c in COLUMNS if c not in cell.tried}
        cell.reason = cell.reason.replace(folder, "...")
        cell.tried = {c: " ".join(why.replace(folder, "...").split())[:600] for c, why in cell.tried.items()}


def table(cells: list[Cell]) -> str:
    """The generated part of the page."""
    today = datetime.now(UTC).date().isoformat()
    head = ("Python", "torch", *COLUMNS, "result", "with")
    counts = ", ".join(f"{sum(c.state == s for c in cells)} {s}" for s in ("PASS", "FAIL", "NOT_RUN"))
    libc = " ".join(platform.libc_ver())
    return "\n".join([
        f"{today}, {platform.system()} {platform.machine()}, {libc}, on the CPU: {counts}.", "",
        f"| {' | '.join(head)} |", f"|{'---|' * len(head)}",
        *(cell.row() for cell in cells), "",
        *(line for cell in cells for line in cell.reasons()),
    ]).rstrip()  # fmt: skip


def put(page: Path, text: str) -> None:
    """Put the text between the marks of a page. Raises ValueError where the page does not have both."""
    before, began, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not began or not ended:
        raise ValueError(f"{page} has no {BEGIN} and {END} to put the table between")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def main(words: list[str]) -> int:
    """Run every cell, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", action="append", choices=PYTHONS, help="only this one (repeatable)")
    parser.add_argument("--out", type=Path, help="a page with the marks between which the table is put")
    given = parser.parse_args(words)
    pythons = {version: interpreter(version) for version in given.python or PYTHONS}
    cells = []
    for version, python in pythons.items():
        last = newest(python) if python else None
        cells += [Cell(version, minimum(), "minimum"), Cell(version, last or "", "newest")]
    with tempfile.TemporaryDirectory(prefix="matrix-") as folder:
        wheel = built(Path(folder))
        for cell in cells:
            fill(cell, pythons[cell.python], wheel, Path(folder))
            if given.out:
                put(given.out, table(cells))
    print(table(cells))
    states = [cell.state for cell in cells]
    return 1 if "FAIL" in states or "PASS" not in states else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
