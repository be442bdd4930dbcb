"""Sums that are scattered, index_add_ and scatter_add_: within the bound for every order, and repeatable when asked.

Each place receives n terms |x| <= b, added in storage in whatever order; the bound is `any_order_bound`. Under
torch.use_deterministic_algorithms(True) eight runs must give the same bits; without it whether they do is a fact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradproof.arith.bounds import accumulation_witness
from gradproof.extras.conformance import special
from gradproof.extras.conformance.elementwise import DTYPES, TORCH, to_bits, to_tensor
from gradproof.extras.conformance.machine import Bits, decode, encode, exact_sum, known
from gradproof.extras.conformance.matmul import Flags, applied
from gradproof.extras.conformance.report import Result, hexadecimal, not_run
from gradproof.extras.conformance.trials import Row, Trial, bounded, sample, shown, value
from gradproof.rounding.bound import any_order_bound

KINDS = ("uniform", "positive", "ones", "small")
LENGTHS = (1, 2, 3, 7, 64, 250, 1000, 4099)
WITNESSES = (2, 4, 8)
MANY, PLACES, RUNS = 2**16, 5, 8
CLAIM = "bound: any order of additions in storage"

Scatter = Callable[[Tensor, Tensor, Tensor], Tensor]


def _columns(total: Tensor, index: Tensor, x: Tensor) -> Tensor:
    """scatter_add_ of rows, whose index is expanded: another kernel."""
    wide = total.unsqueeze(1).repeat(1, 3)
    return wide.scatter_add_(0, index.unsqueeze(1).expand(-1, 3), torch.stack([x, x, x], 1))[:, 1]


OPERATORS: tuple[tuple[str, Scatter], ...] = (
    ("index_add_ (scattered)", lambda total, index, x: total.index_add_(0, index, x)),
    ("scatter_add_", lambda total, index, x: total.scatter_add_(0, index, x)),
    ("scatter_add_ (rows)", _columns),
)


def scattered(scatter: Scatter, x: Bits, index: Any, places: int, dtype: str, device: str) -> Bits:
    """Bit patterns of `places` sums from zero; `index` (int64, as long as x) says where each term goes."""
    total = torch.zeros(places, dtype=TORCH[dtype], device=device)
    return to_bits(scatter(total, torch.from_numpy(index).to(device), to_tensor(x, dtype, device)))


def inputs(dtype: str, repeats: int, seed: int) -> Iterator[tuple[Bits, Any, int, str]]:
    """Terms, their places, the number of places, and a note; no place receives more than 2^p terms."""
    for kind in KINDS:
        for length in LENGTHS:
            for again in range(repeats):
                rng = np.random.default_rng([seed, length, again, KINDS.index(kind)])
                places = PLACES * -(-2 * length // 2 ** known(dtype).p)
                index = rng.integers(0, places, length)
                yield (
                    sample(kind, dtype, length, rng),
                    index,
                    places,
                    f"{kind}, n={length}, repeat={again}, seed={seed}",
                )
    for n in WITNESSES:
        terms = encode(np.array([float(g / n) for g in accumulation_witness(n, dtype)]), dtype)
        yield terms, np.zeros(n, dtype=np.int64), 1, f"the witness, n={n}"


def trials(scatter: Scatter, dtype: str, device: str, repeats: int, seed: int) -> Iterator[Trial]:
    """The sum in every place against the bound for its terms."""
    for x, index, places, note in inputs(dtype, repeats, seed):
        got = scattered(scatter, x, index, places, dtype, device)
        for place in np.unique(index):
            own = x[index == place]
            reach = Fraction(float(np.abs(decode(own, dtype)).max()))
            bound = any_order_bound(dtype, len(own), reach) if reach else Fraction(0)
            error = abs(value(got[place : place + 1], dtype) - exact_sum(own, dtype))
            pattern = hexadecimal(got[place], known(dtype).bits)
            told = f"{note}, place {place}, {len(own)} terms"
            yield Trial(error, bound, shown(own, dtype), pattern, f"within {float(bound):.6g}", told, len(own))


def repeated(scatter: Scatter, dtype: str, device: str, seed: int) -> Trial:
    """2^16 terms into five places, eight times: the error counts sums whose bits are not those of the first run."""
    rng = np.random.default_rng([seed, MANY])
    x, index = sample("uniform", dtype, MANY, rng), rng.integers(0, PLACES, MANY)
    runs = [scattered(scatter, x, index, PLACES, dtype, device) for _ in range(RUNS)]
    off = [(r, p) for r in range(RUNS) for p in range(PLACES) if runs[r][p] != runs[0][p]]
    run, place = off[0] if off else (0, 0)
    width = known(dtype).bits
    told = f"{RUNS} runs of {MANY} terms, seed={seed}; run {run}, place {place}"
    return Trial(Fraction(len(off)), Fraction(0), shown(x, dtype), hexadecimal(runs[run][place], width),
                 hexadecimal(runs[0][place], width), told, MANY)  # fmt: skip


def rows(device: str, full: bool = False, seed: int = 0) -> list[Result]:
    """Every scattered sum of a device, with deterministic algorithms off and on."""
    choices = [(name, scatter, dtype) for name, scatter in OPERATORS for dtype in DTYPES]
    return [row(*choice, device, full, seed, on) for choice in choices for on in (False, True)]


def row(name: str, scatter: Scatter, dtype: str, device: str, full: bool, seed: int, deterministic: bool) -> Result:
    """One row; the setting of deterministic algorithms that was there before comes back. Never raises."""
    told, claim = {"deterministic": deterministic}, CLAIM + (", the same bits in 8 runs" if deterministic else "")
    if device == "cuda" and not torch.cuda.is_available():
        return not_run(name, dtype, device, claim, "no CUDA device is at hand", **told)

    def one_place(x: Tensor) -> Tensor:
        index = torch.zeros(len(x), dtype=torch.int64, device=device)
        return scatter(torch.zeros(1, dtype=x.dtype, device=device), index, x)

    with applied(Flags(deterministic=deterministic)):
        try:
            again = repeated(scatter, dtype, device, seed)
        except RuntimeError as e:
            return not_run(name, dtype, device, claim, f"{type(e).__name__}: {e}"[:300], **told)
        return bounded(
            Row(name, dtype, device, claim, told),
            lambda: [*trials(scatter, dtype, device, 10 if full else 1, seed), *([again] if deterministic else [])],
            lambda: special.named(one_place, dtype, device),
            facts={f"same bits in {RUNS} runs": again.error == 0},
        )
