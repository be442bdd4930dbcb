"""GA-LR-001 on real PyTorch: where a run without 1/K ends, against runs with it at the same rate and at K times it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradproof.harness import Case, Observed, Place, Refutation
from symbolic.tokens.falsify import VOCABULARY, Drawn, net, row, vector

WINDOWS, TOKENS, RATE = 12, 16, 1e-2
CLOSE, APART = 1e-4, 0.1
SGD, ADAMW = "SGD", "AdamW"


def stream(seed: int, batches: int, tokens: int = TOKENS) -> list[tuple[Tensor, Tensor]]:
    """Micro-batches of token ids and of what follows each: a fixed stream, the next id with noise."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(batches):
        inputs, noise = torch.randint(0, VOCABULARY, (2, tokens), generator=generator)
        targets = torch.where(noise == 0, noise, (3 * inputs + 1) % VOCABULARY)
        made.append((inputs, targets))
    return made


class MissingScale(Drawn):
    """FALSIFY-GT-204: SGD ends where K times the rate ends, AdamW where the same rate does."""

    clause = "GA-LR-001"
    modes = (SGD, ADAMW)

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        """Refutes runs that end elsewhere, and an AdamW that ends where K times the rate does."""
        start = vector(list(net(case.seed).parameters()))
        without = self.ended(subject, case, RATE, False)
        same, larger = (self.ended(subject, case, rate, True) for rate in (RATE, case.n * RATE))
        wanted, other = (larger, same) if case.mode == SGD else (same, larger)
        way = float((wanted - start).norm())
        if not way > 0:
            raise Refutation(self.clause, f"{case.mode}: the run with 1/K does not move")
        near, far = (float((without - end).norm()) / way for end in (wanted, other))
        values = {"near": near, "far": far}
        if not near <= CLOSE:
            raise Refutation(self.clause, f"{case.mode}: ends {near:.4g} of the way off", values)
        if not far >= APART:
            raise Refutation(self.clause, f"{case.mode}: the rate makes no difference, {far:.4g}", values)
        return Observed({case.mode}, [row(case, place, near, f"{case.mode}: distance over the way from the start")])

    def ended(self, subject: Any, case: Case, rate: float, scaled: bool) -> Tensor:
        """The weights after the run."""
        model = net(case.seed)
        subject().train(case.mode, model, stream(case.seed, WINDOWS * case.n), case.n, rate, scaled)
        return vector(list(model.parameters()))


missing_scale = MissingScale()
