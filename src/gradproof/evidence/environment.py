"""What a run ran on: versions read from package metadata, so that nothing heavy is imported."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gradproof import __version__
from gradproof.core.check import digest_of
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Kind

# -- Installed distributions: which one a file belongs to, and which are the solvers, PyTorch and what those need.
LIGHT = "gradproof-light"
"""The distribution with the same files as `gradproof` and fewer requirements."""
ROOTS = ("z3-solver", "crosshair-tool", "torch", "hypothesis", "numpy", "gradproof", LIGHT, "tqdm")
"""torch imports tqdm where it finds it."""
_TOP = re.compile(r"^([^/,\n]+)[/,]", re.MULTILINE)
_VERSION = re.compile(r"^Version:[ \t]*(\S+)[ \t]*$", re.MULTILINE | re.IGNORECASE)
_STARTED = ("__main__", "sitecustomize", "usercustomize")
COMMON = frozenset({"tests", "test", "docs", "examples", "benchmarks", "tools", "scripts"})
"""Nobody's own names, though packages install folders that are called so."""
_FOLDERS = ("site-packages", "dist-packages")


def normal(name: str) -> str:
    """A distribution's name as packaging tools compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def stack() -> frozenset[str]:
    """The solvers, PyTorch and everything that they require, by normal name."""
    import importlib.metadata  # 10 ms, which a command that asks for no version does not wait for

    found: set[str] = set()
    left = list(ROOTS)
    while left:
        name = normal(left.pop())
        if name in found:
            continue
        found.add(name)
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        left += [m[0] for need in needs if "extra ==" not in need and (m := re.match(r"[\w.-]+", need))]
    return frozenset(found)


@cache
def _owners(folder: Path) -> Mapping[str, frozenset[tuple[str, str]]]:
    """First part of a path in an installation folder -> the distributions (name, version) that put it there."""
    owners: dict[str, set[tuple[str, str]]] = {}
    for info in sorted(folder.glob("*.dist-info")):
        name, _, version = info.name.removesuffix(".dist-info").partition("-")
        try:
            text = (info / "RECORD").read_text(encoding="utf-8")
        except OSError:
            continue
        for top in set(_TOP.findall(text)):
            owners.setdefault(top, set()).add((normal(name), version))
    return {top: frozenset(found) for top, found in owners.items()}


def owner_of(path: Path) -> frozenset[tuple[str, str]]:
    """The distributions that an installed file may belong to; none for a file that nobody's metadata names."""
    parts = path.parts
    at = max((i for i, part in enumerate(parts) if part in _FOLDERS), default=None)
    if at is None or at + 1 >= len(parts):
        return frozenset()
    return _owners(Path(*parts[: at + 1])).get(parts[at + 1], frozenset())


def owned(folder: Path, name: str) -> frozenset[tuple[str, str]]:
    """The distributions that have a module or package of this name in an installation folder."""
    owners = _owners(folder)
    return owners.get(name) or owners.get(f"{name}.py") or frozenset()


def generated() -> Path | None:
    """The module that torch before 2.10 writes into a temporary folder when it is imported: it is torch's own.

    None where torch has written none, or is not imported.
    """
    module = sys.modules.get("torch.distributed.nn.jit.instantiator")
    folder = getattr(module, "INSTANTIATED_TEMPLATE_DIR_PATH", None)
    return None if folder is None else Path(os.path.realpath(folder)) / "_remote_module_non_scriptable.py"


def in_stack(owners: frozenset[tuple[str, str]]) -> bool:
    """Whether every owner is one of the solvers, PyTorch or what they need."""
    return bool(owners) and all(name in stack() for name, _ in owners)


def taken(name: str) -> str | None:
    """Whose module of this name is loaded before a user's own, in words; None for a name that is free."""
    if name in COMMON:
        return None
    if name in sys.stdlib_module_names or name in _STARTED:
        return "Python itself"
    homes = [Path(p) for p in sys.path if any(part in _FOLDERS for part in Path(p).parts)]
    owners = {owner for home in homes if in_stack(found := owned(home, name)) for owner, _ in found}
    if owners or name in (*PACKAGES, "gradproof", "tqdm"):
        return f"the package {', '.join(sorted(owners)) or name}, which gradproof needs"
    return None


def imported() -> dict[str, str]:
    """Name and version of every distribution of which this process has imported a module."""
    found: set[tuple[str, str]] = set()
    for module in list(sys.modules.values()):
        origin: Any = getattr(module, "__file__", None)
        if isinstance(origin, str):
            found |= owner_of(Path(origin))
    return dict(sorted(found))


def changed(recorded: Mapping[str, Any]) -> list[str]:
    """Which of the recorded distributions, the stack's apart, have another version now or are gone."""
    return [
        f"{name} {was} then, {now} now"
        for name, was in recorded.items()
        if (now := version_of(name)) != was and normal(name) not in stack()
    ]


@cache
def version_of(name: str) -> str | None:
    """Installed version of a distribution, None when it is absent.

    Read from the head of its metadata, a tenth of the time of `importlib.metadata.version`, which parses all of it.
    """
    import importlib.metadata

    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    head = (distribution.read_text("METADATA") or "").partition("\n\n")[0]
    found = _VERSION.search(head)
    return found[1] if found else distribution.version


KNOWN = {"z3": "z3-solver", "crosshair": "crosshair-tool", "yaml": "pyyaml"} | {
    name: name for name in ("hypothesis", "jinja2", "junitparser", "numpy", "psutil", "pydantic", "rich", "torch")
}
ALSO = {"distributed": "distributed"} | dict.fromkeys(("cryptography", "securesystemslib"), "securesystemslib")
"""Module that gradproof brings, or PyTorch -> what pip installs; and what only some commands need."""
PACKAGES = {name: KNOWN[name] for name in ("z3", "crosshair", "torch", "hypothesis", "numpy")}
"""Those of which a record of a run has the version."""

KEYS: Mapping[Kind, tuple[str, ...]] = {
    Kind.STUB: ("python", "z3", "numpy"),
    Kind.SMT: ("python", "z3", "numpy"),
    Kind.CROSSHAIR: ("python", "crosshair", "z3"),
    Kind.TRACE: ("python", "machine", "torch", "z3", "numpy"),
    Kind.TORCH: ("python", "machine", "torch", "hypothesis", "numpy"),
    Kind.GATE: ("python", "machine", "z3", "torch", "hypothesis", "numpy"),
}

if set(KEYS) != set(Kind):
    raise ImportError("the table of key versions is not total")


STEP = ("psutil", "torch")
"""What verifies a training step."""
EXTRAS = {"z3": "proofs", "crosshair": "proofs", "hypothesis": "tests", "distributed": "dask"} | dict.fromkeys(
    ("cryptography", "securesystemslib"), "sign"
)
"""Module -> the extra that brings it; `gradproof` itself requires those of proofs and tests."""


def installing(modules: Iterable[str]) -> str:
    """The command that installs modules by their own names: gradproof may come from a file, and be on no index."""
    import importlib.metadata

    own, names = "gradproof" if version_of(LIGHT) is None else LIGHT, {**KNOWN, **ALSO}
    rows = [] if version_of(own) is None else importlib.metadata.requires(own) or []
    asked = {re.split(r"[^\w-]", row)[0]: row.partition(";")[0].strip() for row in rows}
    lost = {names[module] for module in modules}
    return shlex.join(["python", "-m", "pip", "install", *sorted(asked.get(name, name) for name in lost)])


def need(modules: Iterable[str], what: str) -> None:
    """Raises GradproofError GP409 where one of these modules is not installed. None is imported."""
    lost = [name for name in sorted(modules) if sys.modules.get(name) is None and find_spec(name) is None]
    if lost:
        listed, verb = " and ".join(lost), "is" if len(lost) == 1 else "are"
        raise GradproofError("GP409", f"{listed} {verb} not installed", f"{listed}, {what}", installing(lost))


STARTUP = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "startup")
# To start Python; a CPU worker hides these from the workspace's code as soon as it runs.
START = ("PATH", "HOME", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
LIBRARIES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
GPU = ("CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "HIP_", "ROCR_", "HSA_")
FIXED: Mapping[str, str] = {
    "PYTHONHASHSEED": "0",
    "PYTHONUNBUFFERED": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
}


def worker_environ(layer: str, scratch: str) -> dict[str, str]:
    """The whole environment of a worker: what is fixed, what Python needs to start, and GPU settings for a GPU."""
    passed = {k: v for k, v in os.environ.items() if k in (*START, *LIBRARIES)}
    places = [os.path.abspath(p) for p in passed.get("PYTHONPATH", "").split(os.pathsep) if p]
    passed["PYTHONPATH"] = os.pathsep.join([STARTUP, *places])
    if layer == "cuda":
        passed |= {k: v for k, v in os.environ.items() if k.startswith(GPU)}
    return {**passed, **FIXED, "TMPDIR": scratch}


def hide(layer: str) -> None:
    """Take the variables that started this process away, so that no answer can depend on them unseen."""
    if layer == "cuda":
        return
    for name in START:
        os.environ.pop(name, None)
    os.environ |= {"PATH": os.defpath, "HOME": os.environ.get("TMPDIR", os.sep)}


def variables(layer: str) -> dict[str, str]:
    """The variables that pass into a run and that could matter to it. A value that is a path is shown by its digest."""
    names = [k for k in os.environ if k in LIBRARIES or (layer == "cuda" and k.startswith(GPU))]
    found = {k: os.environ[k] for k in sorted(names)}
    return {k: digest_of(v)[:16] if os.sep in v else v for k, v in found.items()}


def environment() -> dict[str, Any]:
    """Versions and machine of this process. Packages that are absent are left out."""
    data: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": f"{platform.system()}-{platform.machine()}",
        "machine": platform.machine(),
        "gradproof": __version__,
    }
    for name, distribution in PACKAGES.items():
        version = version_of(distribution)
        if version is not None:
            data[name] = version
    return data


def differences(kind: Kind, recorded: Mapping[str, Any]) -> list[str]:
    """How the recorded environment differs from this one in what matters to a check of this kind."""
    here = environment()
    pairs = [(key, recorded.get(key), here.get(key)) for key in KEYS[kind]]
    if (then := recorded.get("variables")) is not None:
        now = variables("")
        pairs += [(key, then.get(key), now.get(key)) for key in sorted({*then, *now})]
    found = [f"{key} {was} then, {is_} now" for key, was, is_ in pairs if differ(key, was, is_)]
    return found + changed(recorded.get("distributions", {}))


def differ(name: str, was: Any, now: Any) -> bool:
    """Whether two versions differ. Python counts by its minor version, everything else in full."""
    return str(was).split(".")[:2] != str(now).split(".")[:2] if name == "python" else bool(was != now)


def torch_device(layer: str) -> dict[str, Any]:
    """Device and driver of a run, if the check imported torch. Asks the module that is loaded, imports none."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    data: dict[str, Any] = {"threads": int(torch.get_num_threads())}
    if layer == "cuda" and torch.cuda.is_available():
        data["device"] = str(torch.cuda.get_device_name(0))
        data["capability"] = ".".join(str(n) for n in torch.cuda.get_device_capability(0))
        data["cuda"] = str(torch.version.cuda)
        data["driver"] = _driver()
    else:
        data["device"] = f"cpu {torch.backends.cpu.get_cpu_capability()}"
    return data


def _driver() -> str:
    """Driver version from nvidia-smi, "unknown" when it cannot be asked."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "unknown"
    query = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return answer.stdout.strip().splitlines()[0] if answer.returncode == 0 and answer.stdout.strip() else "unknown"


@lru_cache(maxsize=1)
def cuda_absent() -> str | None:
    """Why no CUDA run is possible here, or None when a worker should try. Loads the driver, not torch."""
    torch = version_of("torch")
    if torch is None:
        return "torch is not installed"
    if torch.endswith("+cpu"):
        return f"torch {torch} is built without CUDA"
    if "+rocm" in torch:
        return None
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every device"
    try:
        driver = ctypes.CDLL("libcuda.so.1" if os.name == "posix" else "nvcuda.dll")
    except OSError:
        return "no CUDA driver on this machine"
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "the CUDA driver finds no device"
    return None


def present(device: str) -> None:
    """Raises GradproofError GP406 when a CUDA device is asked for and there is none."""
    why = cuda_absent() if device.startswith("cuda") else None
    if why is not None:
        raise GradproofError("GP406", f"device {device}: {why}", "a device of this machine", "use --device cpu")
