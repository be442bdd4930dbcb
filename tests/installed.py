"""What a user has: the wheel in an environment of its own, tried in empty folders: `python -m tests.installed`.

The suite runs on the sources of the checkout, which an editable installation puts on the import path. Here nothing but
the wheel is installed, in a real site-packages, and from there come `gradproof doctor`, the whole of `gradproof verify`
(cold, on the packaged reference workspace), the tutorial, and `check` of a script that knows nothing of gradproof. The
light wheel gets another environment, without a solver: `check`, `watch` and `demo` run there beside a torch that is
linked from the first one, and what needs more says so. Exit code 0 only if each command ended as it should and
everything that `verify` wrote conforms to its schema. Without `--dist`, the wheels are built and checked here by the
steps of .github/workflows/release.yml.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path

import yaml

from gradproof.core.workspace import CI
from gradproof.evidence.environment import normal
from tests.conform import faults
from tests.tutorial import TUTORIAL, Reader, blocks

REPOSITORY = Path(__file__).resolve().parents[1]
RELEASE = REPOSITORY / ".github/workflows/release.yml"
SCRIPT = REPOSITORY / "tests/data/someones_script.py"
DIVIDED = "loss / args.accum_steps"
OWN = """

def alone(run):
    return train(argparse.Namespace(seed=0, samples=32, micro_batch_size=4, accum_steps=2))
"""
LIMIT = 7200.0


def environ(binaries: Path) -> dict[str, str]:
    """The environment of a user at a desk, whose commands come from one folder."""
    own = (*CI, "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if name not in own}
    return {**kept, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}


def ends(folder: Path, given: Mapping[str, str], code: int, *command: str, said: str = "") -> Iterator[str]:
    """Run a command in a folder; yields what it printed where it does not end with this exit code, or not say this."""
    print("+", *command, flush=True)
    done = subprocess.run(
        command, cwd=folder, env=dict(given), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    print("\n".join(done.stdout.splitlines()[-3:]), flush=True)
    if done.returncode != code or said not in done.stdout:
        yield f"{' '.join(command)!r} ended with {done.returncode}, not {code} and {said!r}:\n{done.stdout[-6000:]}"


def release_steps() -> dict[str, str]:
    """The scripts of the release's first job, by the names of their steps."""
    workflow = yaml.safe_load(RELEASE.read_text(encoding="utf-8"))
    return {step["name"]: step["run"] for step in workflow["jobs"]["build"]["steps"] if "run" in step}


def release(dist: Path) -> Iterator[str]:
    """Source distribution and wheel, the wheel from the former, by the release's own steps: Build, and Check."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    given = {**os.environ, "PATH": path, "DIST": str(dist), "TAG": ""}
    for name in ("Build", "Check"):
        yield from ends(REPOSITORY, given, 0, "bash", "-e", "-c", release_steps()[name])


def install(env: Path, wheel: Path) -> dict[str, str]:
    """Install a wheel in an environment of its own. The variables of somebody who works there."""
    subprocess.run([sys.executable, "-m", "venv", str(env)], timeout=LIMIT, check=True)
    pip = [str(env / "bin/python"), "-m", "pip", "install", "--quiet", "--no-compile"]
    pip += ["--constraint", str(REPOSITORY / "constraints.txt"), str(wheel)]
    subprocess.run(pip, cwd=env, env=environ(env / "bin"), timeout=LIMIT, check=True)
    return environ(env / "bin")


def compiled(env: Path) -> None:
    """Compile what an environment has."""
    command = [str(env / "bin/python"), "-m", "compileall", "-q", "-j", "2", str(env / "lib")]
    subprocess.run(command, stdout=subprocess.DEVNULL, timeout=LIMIT, check=False)  # some files are for other Pythons


def linked(name: str, source: Path, target: Path) -> None:
    """Give an environment what another one has of a distribution, and of what that requires: links, no download."""
    [old], [new] = (list((env / "lib").glob("python3*/site-packages")) for env in (source, target))
    known = {normal(found.name): found for found in distributions(path=[str(old)])}
    left, seen = [name], set[str]()
    while left:
        found = known.get(left.pop())
        if found is None or found.name in seen:  # what it requires on another system
            continue
        seen.add(found.name)
        left += [
            normal(re.split(r"[^\w.-]", need, maxsplit=1)[0]) for need in found.requires or () if "extra ==" not in need
        ]
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if (old / top).is_dir() and not (new / top).exists():
                shutil.copytree(old / top, new / top, copy_function=os.link)
            elif not (new / top).exists():
                os.link(old / top, new / top)


def light(folder: Path, home: Path, wheel: Path) -> Iterator[str]:
    """The light wheel in an environment of its own, without torch at first, then with that of the other environment."""
    given = install(home / "light", wheel)
    (folder / "script.py").write_text(SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")
    check = ("gradproof", "check", "script.py:train")
    yield from ends(folder, given, 2, *check, said="help:     python -m pip install torch\n")
    linked("torch", home / "env", home / "light")
    yield from ends(folder, given, 0, "gradproof", "doctor", "--quick", said="distribution gradproof-light ")
    yield from ends(folder, given, 0, *check)
    yield from ends(folder, given, 0, "gradproof", "watch", "--", "python", "script.py")
    yield from ends(folder, given, 0, "gradproof", "demo")
    for words, package in (
        (("prove", "-k", "KANI-GA-002"), "z3-solver"),
        (("run", "-k", "FALSIFY-GA-003@cpu-fp32"), "hypothesis"),
    ):
        asked = f"python -m pip install '{package}>="
        yield from ends(folder, given, 2, "gradproof", *words, said=asked)


def gate(folder: Path, given: Mapping[str, str]) -> Iterator[str]:
    """`doctor` and a cold `verify` in an empty folder, and what the latter wrote."""
    yield from ends(folder, given, 0, "gradproof", "doctor")
    yield from ends(folder, given, 0, "gradproof", "verify")
    read, wrong = faults(folder / "reports")
    print(f"{read} files read, {len(wrong)} do not conform", flush=True)
    yield from wrong


def tutorial(folder: Path, given: Mapping[str, str], wheel: Path) -> Iterator[str]:
    """The tutorial with the wheel at hand, and what the reader's own CI runs after the commit."""
    (folder / wheel.name).symlink_to(wheel)
    page, reader = blocks(TUTORIAL.read_text(encoding="utf-8")), Reader(folder, given)
    loop = next(b for b in page if b.kind == "python")
    if not 30 <= len([line for line in loop.text.splitlines() if line.strip()]) <= 40:
        yield "the tutorial's loop has not 30 to 40 lines"
    yield from reader.follow(page)
    workflow = yaml.safe_load((reader.folder / ".github/workflows/gradproof.yml").read_text(encoding="utf-8"))
    steps = workflow["jobs"]["gate"]["steps"]
    for step in steps:
        yield from reader.run(step["run"]) if "run" in step else ()
    found = {p.name for p in (reader.folder / "gradproof-reports").iterdir()}
    if found != {"report.junit.xml", "report.sarif"}:
        yield f"the reader's CI wrote {sorted(found)}"


def scripts(folder: Path, given: Mapping[str, str]) -> Iterator[str]:
    """Somebody's script: right, refuted without its division; not proved where it has numbers of its own."""
    text = SCRIPT.read_text(encoding="utf-8")
    if text.count(DIVIDED) != 1:
        yield f"{DIVIDED!r} does not stand once in {SCRIPT.name}"
    for name, code, loop in (("right", 0, text), ("wrong", 1, text.replace(DIVIDED, "loss"))):
        (folder / f"{name}.py").write_text(loop + OWN, encoding="utf-8")
        yield from ends(folder, given, code, "gradproof", "check", f"{name}.py:train")
        yield from ends(folder, given, code or 4, "gradproof", "check", f"{name}.py:alone")


def main(arguments: list[str] | None = None) -> int:
    """Install, try everything, and print what is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dist", type=Path, help="a folder with the wheels; by default they are built")
    dist = parser.parse_args(arguments).dist
    with tempfile.TemporaryDirectory(prefix="installed-") as folder:
        home = Path(folder)
        wrong = [] if dist else list(release(home / "dist"))
        built = sorted((dist.resolve() if dist else home / "dist").glob("*.whl"))
        if wrong or len(built) != 2:
            parser.error("\n".join([*wrong, f"there are {len(built)} wheels, not gradproof and gradproof-light"]))
        for name in ("empty", "reader", "script", "small"):
            (home / name).mkdir()
        given = install(home / "env", built[0])
        compiled(home / "env")
        wrong += [*light(home / "small", home, built[1]), *scripts(home / "script", given)]
        wrong += [*tutorial(home / "reader", given, built[0]), *gate(home / "empty", given)]
    print("\n".join([*wrong, f"installed: {len(wrong)} things are not as they should be"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
