"""GA-TOK-001 and GA-TOK-002 on real PyTorch: the gradient that a window hands to its optimizer, against fp64.

The right gradient is that of the mean loss over the window's valid tokens, taken as one batch in fp64 on the same
weights. A window without a valid token must leave the optimizer alone: it has momentum and weight decay, so that a step
on a zero gradient would move the weights.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor, nn

from gradproof.harness import Bound, Case, Cell, Observed, Place, Refutation
from models.tokens.cross_entropy import IGNORED
from models.tokens.torch_window import Window, summed, valid

# -- What the falsification properties of the training contract share: a grid of names and sizes, seeds and modes.

SEEDS = 63


class Drawn:
    """Base of the properties. A mode is one of the property's situations; each runs in each cell."""

    clause = ""
    modes: tuple[str, ...] = ()

    def covers(self, place: Place) -> Sequence[str]:
        """Every mode."""
        return self.modes

    def cells(self, place: Place, params: Mapping[str, Any]) -> Sequence[Cell]:
        """The claim's `nets` with each `n`."""
        return [Cell(str(net), int(n)) for net in params["nets"] for n in params["n"]]

    def examples(self, cell: Cell, place: Place, turn: int, turns: int) -> Sequence[Case]:
        """Each mode once."""
        return [Case(cell.net, cell.n, mode=mode, seed=turn) for mode in self.modes]

    def strategy(self, cell: Cell, place: Place) -> SearchStrategy[Case]:
        """Any mode and seed."""
        modes, seeds = st.sampled_from(self.modes), st.integers(0, SEEDS)
        return st.builds(Case, net=st.just(cell.net), n=st.just(cell.n), mode=modes, seed=seeds)

    def absent(self, place: Place) -> Mapping[str, str]:
        """No form is missing: none is asked for."""
        return {}

    def probe(self, cell: Cell, place: Place) -> None:
        """Every cell can run."""

    def bounds(self, place: Place) -> Sequence[Bound]:
        """None beside the claim's own."""
        return ()

    def outside(self, subject: Any, place: Place, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Nothing is measured outside the assumptions."""
        return []


def row(case: Case, place: Place, measured: float, note: str) -> dict[str, Any]:
    """A measurement that has no proven bound."""
    return {
        "column": "end_to_end", "device": place.device, "dtype": place.dtype, "net": case.net, "n": case.n,
        "measured": measured, "l2": None, "relative": None, "bound": None, "ratio": None, "tolerance": None,
        "note": note,
    }  # fmt: skip


# -- The harnesses

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


# -- GA-CE-001 measured: the gradient of cross-entropy at the logits against (p - one_hot) / N in fp64.
#
# The fp64 side starts from the very logits that the kernel was given. What is judged is N times the error, because the
# elements of N times the gradient lie in [-1, 1] whatever N is.

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
LOGITS = 16.0
SOME, NONE, ALL = "some rows ignored", "no row ignored", "every row ignored"


def drawn(case: Case, place: Place) -> tuple[Tensor, Tensor]:
    """Logits (rows, classes) in the place's dtype, and targets (rows,)."""
    generator = torch.Generator().manual_seed(case.seed)
    classes = int(case.net.rpartition(" ")[2])
    logits = (torch.rand(case.n, classes, generator=generator) * 2 - 1) * LOGITS
    targets = torch.randint(0, classes, (case.n,), generator=generator)
    if case.mode == SOME:
        targets[1::2] = IGNORED
    if case.mode == ALL:
        targets[:] = IGNORED
    return logits.to(place.device, DTYPES[place.dtype]), targets.to(place.device)


def closed_form(logits: Tensor, targets: Tensor) -> Tensor:
    """(p - one_hot) / N in fp64, zeros in ignored rows."""
    wide, valid = logits.double(), targets != IGNORED
    hot = torch.nn.functional.one_hot(targets.clamp(min=0), logits.shape[1])
    rows = (wide.softmax(1) - hot) * valid.unsqueeze(1)
    return rows / max(int(valid.sum()), 1)


class GradientAtLogits(Drawn):
    """FALSIFY-GT-201: PyTorch's backward pass, in each dtype, with no, some and all rows ignored."""

    clause = "GA-CE-001"
    modes = (SOME, NONE, ALL)

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        """Refutes a gradient that is not finite, not zero where it is ignored, or too far from the closed form."""
        logits, targets = drawn(case, place)
        got, want = subject().backward(logits, targets), closed_form(logits, targets)
        ignored = targets == IGNORED
        if not bool(got.isfinite().all()):
            raise Refutation(self.clause, f"{case.mode}: a gradient is not finite")
        if bool((got[ignored] != 0).any()):
            raise Refutation(self.clause, f"{case.mode}: an ignored row has a gradient")
        count = int((~ignored).sum())
        error = float(((got.double() - want) * count).abs().max())
        if place.exceeded(self.clause, error):
            limit = place.tolerances[self.clause]
            raise Refutation(
                self.clause, f"{case.mode}: N times the error is {error:.6g} > {limit:g}", {"error": error}
            )
        return Observed({case.mode}, [row(case, place, error, f"{case.mode}: N times the error, against fp64")])


gradient_at_logits = GradientAtLogits()
