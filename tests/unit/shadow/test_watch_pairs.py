"""`watch` on losses of pairs, as of preferences: batches that are put together, and references that do not train."""

from __future__ import annotations

import copy
import linecache

import pytest
import torch
from torch import nn

from gradproof.core.outcome import Outcome
from gradproof.shadow.result import Verification
from gradproof.shadow.tape.run import Run
from tests.checked import check, watch

HOLDS, REFUTED, UNKNOWN, VACUOUS = Outcome.HOLDS, Outcome.REFUTED, Outcome.UNKNOWN, Outcome.VACUOUS
EQ, DATA, STALE = "GA-EQ-001", "GA-DATA-001", "GA-INV-002"
FILE = "watch_pairs_loop.py"
HEAD = """
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
F, N, V = nn.functional, 4, 11
def network(): return nn.Sequential(nn.Embedding(V, 5), nn.Tanh(), nn.Linear(5, V))
policy, ref = network(), network().requires_grad_(False)
{reference}
opt = torch.optim.AdamW(policy.parameters(), lr=0.01)
def drawn(): return torch.randint(0, V, (64, 7))
loader = DataLoader(TensorDataset(drawn(), drawn()), batch_size=4, shuffle=True)
first, second = (DataLoader(TensorDataset(drawn()), batch_size=4, shuffle=True) for _ in range(2))

def logps(model, ids):
    found = F.log_softmax(model(ids[:, :-1]), -1)
    return found.gather(-1, ids[:, 1:, None])[..., 0].sum(-1)
"""
LOOP = """
for i, (chosen, rejected) in enumerate(loader):
    both = {both}
    c, r = {parts}
    {wrong}
    (-F.logsigmoid({margin}){reduced} / {by}).backward()
    if (i + 1) % N == 0:
        opt.step(); opt.zero_grad()
"""
RIGHT = {
    "both": "torch.cat([chosen, rejected])", "parts": "logps(policy, both).chunk(2)", "margin": "c - r",
    "reduced": ".mean()", "by": "N", "wrong": "pass",
}  # fmt: skip


def watched(body: str, reference: str = "") -> Verification:
    """What is said of a loop over 16 batches of four pairs."""
    text = HEAD.format(reference=reference) + body
    linecache.cache[FILE] = (len(text), None, text.splitlines(True), FILE)
    return watch(lambda: exec(compile(text, FILE, "exec"), {"torch": torch, "nn": nn}))


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"parts": "logps(policy, both).split(len(chosen))"},
        {"both": "torch.cat((rejected, chosen), dim=0)", "margin": "r - c"},
        {"reduced": ".sum()", "by": "(4 * N)"},
    ],
)
def test_pairs_of_one_batch_that_are_put_together_hold(form: dict[str, str]) -> None:
    found = watched(LOOP.format(**RIGHT | form))
    assert found.outcome is HOLDS, [(r.obligation, r.reason) for r in found.results]
    assert found.result(EQ).outcome is found.result(DATA).outcome is HOLDS


WRONG = {
    "undivided": {"by": "1"},
    "divided twice": {"by": "N / N"},
    "a sum that is divided by N": {"reduced": ".sum()"},
    "a batch that is left out of the loss": {"reduced": ".mean() * (i % 4 != 1)"},
    "zeroed in each micro-batch": {"wrong": "opt.zero_grad()"},
    "the first pair alone": {"reduced": "[:1].mean()"},
    "pairs of other rows of the micro-batch": {"both": "torch.cat([chosen, rejected.flip(0)])"},
}
SURE = {"undivided", "divided twice", "a sum that is divided by N", "zeroed in each micro-batch"}
"""The others scale some samples, as a weight that is meant does: that is not decided."""


@pytest.mark.parametrize("name", WRONG)
def test_wrong_losses_of_pairs_do_not_hold(name: str) -> None:
    found = watched(LOOP.format(**RIGHT | WRONG[name]))
    assert found.outcome is not HOLDS
    assert (found.outcome is REFUTED) == (name in SURE)


MIXED = {
    "parts of batches": "torch.cat([chosen[:2], rejected, chosen[2:]])",
    "one after the other": "torch.stack([chosen, rejected], 1).flatten(0, 1)",
    "one above the other": "torch.stack([chosen, rejected]).flatten(0, 1)",
}


@pytest.mark.parametrize("by", ["N", "1"])
@pytest.mark.parametrize("name", MIXED)
def test_pairs_of_rows_that_are_not_followed_are_not_decided(name: str, by: str) -> None:
    """Halves are taken of each: in two forms the rows of a pair are of two samples."""
    found = watched(LOOP.format(**RIGHT | {"both": MIXED[name], "by": by}))
    assert not {REFUTED, VACUOUS, HOLDS} & {found.outcome}
    assert found.result(EQ).outcome is not HOLDS


FLOATS = """
model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (x, y) in enumerate(DataLoader(TensorDataset(torch.randn(64, 3), torch.randn(64, 3)), batch_size=4)):
    better, worse = model(torch.cat([x, y])).chunk(2)
    (-F.logsigmoid(better - worse).{reduced} / {by}).backward()
    if (i + 1) % N == 0:
        opt.step(); opt.zero_grad()
"""


@pytest.mark.parametrize(
    ("reduced", "by", "outcome"),
    [("mean()", "N", HOLDS), ("sum()", "(4 * N)", HOLDS), ("mean()", "1", REFUTED), ("sum()", "N", REFUTED)],
)
def test_pairs_of_floats(reduced: str, by: str, outcome: Outcome) -> None:
    assert watched(FLOATS.format(reduced=reduced, by=by)).result(EQ).outcome is outcome


ROWS = """
model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (x, y) in enumerate(DataLoader(TensorDataset(torch.randn(64, 3), torch.randn(64)), batch_size=4)):
    better, worse = model(x.view(-1, 2, 3)).unbind(1)
    (-F.logsigmoid({margin}).{reduced} / {by}).backward()
    if (i + 1) % N == 0:
        opt.step(); opt.zero_grad()
"""


@pytest.mark.parametrize(
    ("reduced", "by", "margin", "outcome"),
    [
        ("mean()", "N", "better - worse", HOLDS),
        ("mean()", "1", "better - worse", REFUTED),
        ("sum()", "(2 * N)", "better - worse", HOLDS),
        ("mean()", "(N * N)", "better - worse", REFUTED),
        ("mean()", "N", "better - worse.flip(0)", UNKNOWN),
        ("mean()", "N", "better - better.mean()", UNKNOWN),
    ],
)
def test_rows_of_one_batch_that_are_pairs(reduced: str, by: str, margin: str, outcome: Outcome) -> None:
    found = watched(ROWS.format(reduced=reduced, by=by, margin=margin)).result(EQ).outcome
    assert found is outcome or (outcome is UNKNOWN and found is Outcome.OUTSIDE)


UNEVEN = """
model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
batches = iter(DataLoader(TensorDataset(torch.randn({size}, 3)), batch_size=4))
for i in range(16):
    x = {made}
    (model(x).pow(2).mean() / N).backward()
    if (i + 1) % N == 0:
        opt.step(); opt.zero_grad()
"""


@pytest.mark.parametrize(
    ("made", "size"),
    [
        ("torch.cat([next(batches)[0] for _ in range(1 + i % 2)])", 96),
        ("torch.cat([next(batches)[0] for _ in range(2 + i % 2)])[:, :3]", 160),
        ("next(batches)[0].view(2, -1, 3)", 62),
    ],
)
def test_a_mean_over_another_number_of_rows_does_not_hold(made: str, size: int) -> None:
    """Rows of a micro-batch that has fewer weigh more, though each micro-batch weighs the same."""
    assert watched(UNEVEN.format(made=made, size=size)).result(EQ).outcome in (REFUTED, UNKNOWN)


TWO = """
for i, ((a,), (b,)) in enumerate(zip(first, second)):
    ids = torch.cat([a, b])
    (F.cross_entropy(policy(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()) / {by}).backward()
    if (i + 1) % N == 0:
        opt.step(); opt.zero_grad()
"""


@pytest.mark.parametrize(("by", "outcome"), [("N", HOLDS), ("1", REFUTED), ("(N * N)", REFUTED)])
def test_batches_of_two_loaders_that_are_put_together(by: str, outcome: Outcome) -> None:
    assert watched(TWO.format(by=by)).result(EQ).outcome is outcome


REFERENCE = RIGHT | {
    "wrong": "with torch.no_grad(): rc, rr = {}\n",
    "margin": "c - r - (rc - rr)",
}
AHEAD = "logps(ref, both).chunk(2)"
COPIES = {
    "loaded": "ref.load_state_dict(policy.state_dict())",
    "copied, frozen": "import copy; ref = copy.deepcopy(policy).requires_grad_(False)",
    "copied": "import copy; ref = copy.deepcopy(policy).eval()",
}


def referred(by: str, reference: str, made: str = AHEAD, **others: str) -> Verification:
    """What is said of a loop whose loss takes a reference model beside the policy."""
    return watched(LOOP.format(**REFERENCE | {"wrong": REFERENCE["wrong"].format(made), "by": by} | others), reference)


@pytest.mark.parametrize("reference", COPIES)
def test_a_reference_model_that_is_a_copy_of_the_policy_holds(reference: str) -> None:
    found = referred("N", COPIES[reference])
    assert found.outcome is HOLDS, [(r.obligation, r.reason) for r in found.results]
    assert found.result(STALE).outcome is HOLDS


@pytest.mark.parametrize(("reference", "by"), [("loaded", "1"), ("copied", "1"), ("copied, frozen", "(N * N)")])
def test_a_loss_with_a_reference_model_that_is_divided_wrongly_is_refuted(reference: str, by: str) -> None:
    assert referred(by, COPIES[reference]).result(EQ).outcome is REFUTED


def test_two_forward_passes_of_a_batch_are_one_micro_batch() -> None:
    form = {"parts": "logps(policy, chosen), logps(policy, rejected)"}
    made = "logps(ref, chosen), logps(ref, rejected)"
    assert referred("N", COPIES["loaded"], made, **form).outcome is HOLDS
    assert referred("1", COPIES["loaded"], made, **form).outcome is REFUTED


STALE_FORMS = {
    "never zeroed": ("opt.step()", "ref.load_state_dict(policy.state_dict())"),
    "a gradient is kept in a copy": (
        "kept = [nn.Parameter(p.grad.clone(), False) for p in policy.parameters()]; opt.step(); opt.zero_grad()\n"
        "        for p, k in zip(policy.parameters(), kept): p.grad = k.detach().clone()",
        "ref.load_state_dict(policy.state_dict())",
    ),
}


@pytest.mark.parametrize("name", STALE_FORMS)
def test_stale_gradients_beside_a_reference_model_do_not_hold(name: str) -> None:
    step, reference = STALE_FORMS[name]
    made = LOOP.format(**REFERENCE | {"wrong": REFERENCE["wrong"].format(AHEAD)})
    found = watched(made.replace("opt.step(); opt.zero_grad()", step), reference)
    assert found.result(STALE).outcome is REFUTED


def train(run: Run, by: int | None = None, renewed: bool = False) -> None:
    """Pairs whose loss takes a copy of the policy, which may be `renewed` after each step."""
    torch.manual_seed(run.seed)
    policy = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    ref = copy.deepcopy(policy).requires_grad_(False)
    opt = torch.optim.SGD(policy.parameters(), lr=0.1)
    both = torch.randn(run.samples, 3), torch.randn(run.samples, 3)
    for i, (a, b) in enumerate(zip(*(t.split(run.micro_batch_size) for t in both), strict=True)):
        c, r = policy(torch.cat([a, b])).chunk(2)
        with torch.no_grad():
            rc, rr = ref(torch.cat([a, b])).chunk(2)
        loss = -nn.functional.logsigmoid(c - r - (rc - rr)).mean()
        (loss / (by or run.accum_steps)).backward()
        if (i + 1) % run.accum_steps == 0:
            opt.step()
            opt.zero_grad()
            ref.load_state_dict((policy if renewed else ref).state_dict())


def test_check_takes_a_copy_of_the_policy_for_a_constant() -> None:
    found = check(train)
    assert found.outcome is HOLDS, [(r.obligation, r.reason) for r in found.results]
    assert check(lambda run: train(run, renewed=True)).result(EQ).outcome is HOLDS


def test_check_refutes_a_loss_with_a_copy_that_is_divided_wrongly() -> None:
    assert check(lambda run: train(run, by=1)).result(EQ).outcome is REFUTED
    assert check(lambda run: train(run, by=run.accum_steps**2, renewed=True)).result(EQ).outcome is REFUTED
