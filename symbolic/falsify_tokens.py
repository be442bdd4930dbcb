"""GA-TOK-001 and GA-TOK-002 on real PyTorch: the gradient that a window hands to its optimizer, against fp64.

The right gradient is that of the mean loss over the window's valid tokens, taken as one batch in fp64 on the same
weights. A window without a valid token must leave the optimizer alone: it has momentum and weight decay, so that a step
on a zero gradient would move the weights.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradproof.harness import Case, Observed, Place, Refutation
from models.cross_entropy import IGNORED
from models.torch_tokens import Window, summed, valid
from symbolic.falsify_drawn import Drawn, row

VOCABULARY, WIDTH, TOKENS = 7, 8, 9
CLOSE = 1e-4
RAGGED, HOLE, NOTHING = "unequal counts", "a micro-batch without a target", "no valid target"
EQUAL = "equal counts"


def net(seed: int) -> nn.Module:
    """A small language model: token ids to logits."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.Tanh(), nn.Linear(WIDTH, VOCABULARY))


def window(case: Case) -> list[tuple[Tensor, Tensor]]:
    """K micro-batches of TOKENS tokens, of which as many are valid as the mode says."""
    generator = torch.Generator().manual_seed(case.seed)
    made = []
    for m in range(case.n):
        inputs, targets = torch.randint(0, VOCABULARY, (2, TOKENS), generator=generator)
        kept = {RAGGED: TOKENS - 2 * m % TOKENS, HOLE: (m % 2) * (TOKENS - m), NOTHING: 0, EQUAL: 4}[case.mode]
        targets[kept:] = IGNORED
        made.append((inputs, targets))
    return made


def right(model: nn.Module, batches: Window) -> Tensor:
    """The fp64 gradient of the mean loss over all valid tokens, in one vector."""
    wide = copy.deepcopy(model).double()
    total = sum(valid(t) for _, t in batches)
    loss = torch.stack([summed(wide(i), t) for i, t in batches]).sum() / total
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(wide.parameters()))])


def vector(tensors: Sequence[Tensor]) -> Tensor:
    """All elements in one vector, in fp64."""
    return torch.cat([t.detach().double().flatten() for t in tensors])


class TokenWeights(Drawn):
    """FALSIFY-GT-202: what the optimizer consumes, with unequal counts, empty micro-batches and empty windows."""

    clause = "GA-TOK-001"
    modes: tuple[str, ...] = (RAGGED, HOLE, NOTHING)

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        """Refutes another gradient than the window's mean over valid tokens, and a step where there is none."""
        model, batches = net(case.seed), window(case)
        parameters = list(model.parameters())
        optimizer = torch.optim.SGD(parameters, lr=0.5, momentum=0.9, weight_decay=0.1)
        taken: list[Tensor] = []

        def note(*_: Any) -> None:
            taken.append(vector([torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]))

        optimizer.register_step_pre_hook(note)
        before = vector(parameters)
        subject().train(model, batches, optimizer)
        moved = not torch.equal(vector(parameters), before)
        if sum(valid(t) for _, t in batches) == 0:
            if taken or moved:
                raise Refutation(self.clause, "a window without a valid token was stepped")
            return Observed({case.mode})
        if len(taken) != 1 or not moved:
            raise Refutation(self.clause, f"{len(taken)} steps, weights moved: {moved}")
        want = right(model_at(model, before), batches)
        error = float((taken[0] - want).norm() / want.norm())
        if not error <= CLOSE:
            raise Refutation(self.clause, f"{case.mode}: {error:.6g} away from the fp64 gradient", {"error": error})
        return Observed({case.mode}, [row(case, place, error, f"{case.mode}: relative distance to fp64")])


def model_at(model: nn.Module, flat: Tensor) -> nn.Module:
    """A copy of the model with these weights."""
    other = copy.deepcopy(model)
    torch.nn.utils.vector_to_parameters(flat.float(), other.parameters())
    return other


class EqualCounts(TokenWeights):
    """FALSIFY-GT-203: with equal counts each valid token weighs 1 / (N K)."""

    clause = "GA-TOK-002"
    modes = (EQUAL,)


token_weights = TokenWeights()
equal_counts = EqualCounts()
