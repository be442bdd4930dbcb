"""What a run ran on: versions read from package metadata, so that nothing heavy is imported."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from gradproof import __version__
from gradproof.core import Kind, digest_of
from gradproof.packages import changed, version_of

PACKAGES: Mapping[str, str] = {
    "z3": "z3-solver",
    "crosshair": "crosshair-tool",
    "torch": "torch",
    "hypothesis": "hypothesis",
    "numpy": "numpy",
}

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


STARTUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")
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
    """The variables that pass into a run and that could matter to it. A value that is a path is told by its digest."""
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
    pairs += _pairs(recorded.get("variables", {}), variables("")) if "variables" in recorded else []
    found = [f"{key} {was} then, {now} now" for key, was, now in pairs if _key(key, was) != _key(key, now)]
    return found + changed(recorded.get("distributions", {}))


def _pairs(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    return [(key, then.get(key), now.get(key)) for key in sorted({*then, *now})]


def _key(name: str, version: Any) -> Any:
    """Python counts by its minor version, everything else in full."""
    return ".".join(str(version).split(".")[:2]) if name == "python" else version


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
