"""Runs with one determinism flag left out: `python -m models.sampling.flags FLAG SIZE N STEPS DEVICE`.

The child trains twice with the same seeds, in one process, and prints the digest of each run as JSON. Whoever starts it
sets the variables of the environment and starts it twice. Flags that a CPU cannot see are left out all the same.
Source: PyTorch, Reproducibility (notes/randomness).
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from models.sampling.measured import digest, one_thread, setup, texts
from models.sampling.torch_training import CharTraining, Job, Report
from models.sampling.transformer import Shape

NOTHING = "nothing"
ALGORITHMS, DETERMINISTIC, BENCHMARK = (
    "torch.use_deterministic_algorithms",
    "torch.backends.cudnn.deterministic",
    "torch.backends.cudnn.benchmark",
)
CUBLAS, HASH = "CUBLAS_WORKSPACE_CONFIG", "PYTHONHASHSEED"
MODEL_SEED, DATA_SEED, THREADS = "torch.manual_seed", "Generator.manual_seed", "torch.set_num_threads"
VARIABLES: Mapping[str, str] = {CUBLAS: ":4096:8", HASH: "0"}


@dataclass(frozen=True)
class Flag:
    """A flag, and what stands in its place where it is left out."""

    name: str
    left_out: str


FLAGS: Sequence[Flag] = (
    Flag(NOTHING, "every flag is set and every generator is seeded"),
    Flag(ALGORITHMS, "False"),
    Flag(DETERMINISTIC, "False"),
    Flag(BENCHMARK, "True"),
    Flag(CUBLAS, "not in the environment"),
    Flag(HASH, "not in the environment: hashes of texts are random"),
    Flag(MODEL_SEED, "not called: weights and dropout come from the global generator as it is"),
    Flag(DATA_SEED, "Generator.seed() in its place: data are drawn by a seed of the machine"),
    Flag(THREADS, "not called: as many threads as torch takes"),
)


class LeavesOut(CharTraining):
    """The reference with one flag left out."""

    def __init__(self, flag: str) -> None:
        self.flag = flag

    def train(self, job: Job) -> Report:
        """Undo the flag where the reference has set it, and train."""
        if self.flag == ALGORITHMS:
            torch.use_deterministic_algorithms(False)
        elif self.flag == DETERMINISTIC:
            torch.backends.cudnn.deterministic = False
        elif self.flag == BENCHMARK:
            torch.backends.cudnn.benchmark = True
        elif self.flag == MODEL_SEED:
            job = replace(job, build=self.unseeded(job))
        return super().train(job)

    def unseeded(self, job: Job) -> Callable[[Shape], nn.Module]:
        """Build the model from the generator's state of before the run, as if it had not been seeded."""
        before = torch.get_rng_state()

        def build(shape: Shape) -> nn.Module:
            torch.set_rng_state(before)
            return job.build(shape)

        return build

    def seeded(self, seed: int) -> torch.Generator:
        """A generator with this seed, or with one of the machine."""
        generator = super().seeded(seed)
        if self.flag == DATA_SEED:
            generator.seed()
        return generator


def bits(report: Report) -> str:
    """SHA-256 over logged losses, validation loss and weights."""
    losses = torch.tensor([*report.logged, report.validation or 0.0], dtype=torch.float64)
    parts: list[Tensor] = [losses, *report.weights]
    return hashlib.sha256(digest(parts).encode()).hexdigest()


def twice(flag: str, size: int, n: int, steps: int, device: str) -> tuple[str, str]:
    """The digests of two runs of this process. Raises ValueError for an unknown flag."""
    if flag not in {f.name for f in FLAGS}:
        raise ValueError(f"no flag {flag!r}")
    restore: Callable[[], None] = _nothing if flag == THREADS else one_thread()
    text, held_out, _ = texts()
    try:
        runs = [LeavesOut(flag).run(Job(setup(size, n, steps, device), text, held_out)) for _ in range(2)]
    finally:
        restore()
    return bits(runs[0]), bits(runs[1])


def _nothing() -> None:
    """Leave the number of threads alone."""


def main(arguments: Sequence[str]) -> int:
    """Run twice and print both digests."""
    flag, size, n, steps, device = arguments
    print(json.dumps(twice(flag, int(size), int(n), int(steps), device)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
