"""What a proof without numbers costs: `python -m tests.bench_whole` prints seconds and memory for each model.

One process a model. Each is checked as `gradproof check --fake` does: AdamW, clipping, 4 micro-batches of 2 samples, 2
windows, and the full batch. The bars are those of the project's plan, on 2 cores without a GPU.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tests.unit.whole_models import Gpt, Llama, loop

Shape = tuple[int, int, int, int, int]
"""Width, heads, layers, length, words."""
MODELS: dict[str, tuple[str, Shape, int, str]] = {
    "GPT, width 64": ("gpt", (64, 4, 2, 16, 128), 0, "2 s"),
    "GPT, width 256": ("gpt", (256, 4, 2, 16, 128), 0, ""),
    "GPT, width 1024": ("gpt", (1024, 4, 2, 16, 128), 0, ""),
    "GPT, width 4096": ("gpt", (4096, 4, 2, 16, 128), 0, ""),
    "GPT, width 16384": ("gpt", (16384, 4, 2, 16, 128), 0, ""),
    "GPT-2 124M": ("gpt", (768, 12, 12, 1024, 50257), 0, "15 s, 1 GB"),
    "Llama 8B": ("llama", (4096, 32, 32, 8192, 128256), 8, "30 s"),
    "Llama 405B": ("llama", (16384, 128, 126, 8192, 128256), 8, "90 s, 2 GB"),
}
BUGS = ("", "share", "clip", "stale")


def model_of(kind: str, shape: Shape, groups: int) -> Callable[[], nn.Module]:
    """A model of a shape."""
    width, heads, layers, length, words = shape
    if kind == "gpt":
        return lambda: Gpt(width, heads, layers, length, words)
    return lambda: Llama(width, heads, groups, layers, words, hidden=7 * width // 2)


def measured(name: str, bug: str) -> dict[str, Any]:
    """Check one model in this process."""
    from gradproof.shadow.request import Request
    from gradproof.shadow.verify.check import check_whole

    kind, shape, groups, _ = MODELS[name]
    length, words = shape[3], shape[4]

    def data(run: Any) -> tuple[Tensor, Tensor]:
        return torch.randint(words, (run.samples, length)), torch.randint(words, (run.samples, length))

    start = time.perf_counter()
    found = check_whole(loop(model_of(kind, shape, groups), data, bug), name, Request(fake=True))
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    refuted = [r.obligation for r in found.results if str(r.outcome) == "REFUTED"]
    return {
        "model": name, "bug": bug or "none", "outcome": str(found.outcome), "refuted": refuted, "seconds": seconds,
        "megabytes": peak, "size": found.notes[0],
    }  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    """Print the table; with --one, one row as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench_whole", description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "BUG"))
    parser.add_argument("--only", nargs="+", metavar="MODEL", choices=list(MODELS))
    given = parser.parse_args(words)
    if given.one:
        print(json.dumps(measured(*given.one)))
        return 0
    print("| model | bug | outcome | refuted | seconds | MB | bar | size |\n|---|---|---|---|---|---|---|---|")
    for name in given.only or MODELS:
        for bug in BUGS if name == "GPT-2 124M" else BUGS[:1]:
            command = [sys.executable, "-m", "tests.bench_whole", "--one", name, bug]
            row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            cells = [row["model"], row["bug"], row["outcome"], ", ".join(row["refuted"]) or "none"]
            print(
                "|",
                " | ".join([*cells, f"{row['seconds']:.1f}", f"{row['megabytes']:.0f}", MODELS[name][3], row["size"]]),
                "|",
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
