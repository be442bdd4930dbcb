"""A certificate of a right loop is confirmed; a wrong loop's is refused, and so is each that was tampered with."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import certificates
import pytest
import torch
import whole_models
from certificates import Records, consistent, number, operators, places, records_of, sealed, statuses, text
from torch import nn

from gradproof.core.errors import GradproofError
from gradproof.evidence import certificate
from gradproof.evidence.certificate import CONFIRMED, MALFORMED, OBLIGATIONS, OPEN, REFUSED, checked, main
from gradproof.shadow.follow.facts import Hints
from gradproof.shadow.judge.two_runs import logged
from gradproof.shadow.request import Request, function_of, load
from tests.loops.mutants import MUTANTS, apply

DATA, EQUAL, STALE, WIDTH, CLIP = OBLIGATIONS
LOOPS = Path(__file__).parents[2] / "loops"
WRONG: Mapping[str, tuple[str, ...]] = {
    "share": (EQUAL,), "tail": (EQUAL,), "last": (EQUAL,), "twice": (EQUAL,), "clip": (EQUAL, CLIP), "narrow": (WIDTH,),
    "stale": (EQUAL, STALE, CLIP), "same": (EQUAL, DATA),
}  # fmt: skip
"""Bugs of the small loop, and the obligations that are refused."""


@pytest.mark.parametrize(
    ("bug", "options"),
    [
        ("", {}), ("", {"fake": True}), ("view", {}), ("", {"tail": 3}), ("", {"reduction": "sum"}),
        ("", {"micro_batch": 1}),
    ],
)  # fmt: skip
def test_a_right_loop_is_confirmed(bug: str, options: dict[str, Any]) -> None:
    data = text(bug, **options)
    assert statuses(data) == dict.fromkeys(OBLIGATIONS, CONFIRMED)
    assert consistent(records_of(data)) == records_of(data), "the tests' own count is that of the writer"


@pytest.mark.parametrize("bug", WRONG)
def test_a_wrong_loop_is_refused(bug: str) -> None:
    found = statuses(text(bug, tail=3 if bug == "tail" else 0))
    assert [name for name in OBLIGATIONS if found[name] == REFUSED] == [n for n in OBLIGATIONS if n in WRONG[bug]]


def test_a_clip_over_some_parameters_is_not_checked() -> None:
    found = statuses(text("some"))
    assert (found[CLIP], found[EQUAL]) == (OPEN, OPEN)


def test_memory_may_be_handed_out_after_a_step() -> None:
    def shown(run: Any) -> None:
        certificates.small(run)
        torch.zeros(2).numpy()

    assert statuses(certificates.text_of(shown)) == dict.fromkeys(OBLIGATIONS, CONFIRMED)


def test_the_weights_are_exact() -> None:
    steps = checked(text("", tail=3)).steps
    assert [sorted({str(by) for by in step.values()}) for step in steps] == [["1/8"], ["1/8"], ["1/6"]]
    assert [sorted(step) for step in steps] == [[*range(8)], [*range(8, 16)], [*range(16, 22)]]


def test_a_gpt_is_confirmed_and_without_1_over_n_refused() -> None:
    """Embeddings, layer norm, attention, cross entropy, AdamW and clipping by norm."""
    loops = [whole_models.loop(lambda: whole_models.Gpt(layers=1), bug=bug) for bug in ("", "share")]
    found = [certificates.text_of(one, fake=True) for one in loops]
    assert statuses(found[0]) == dict.fromkeys(OBLIGATIONS, CONFIRMED)
    assert statuses(found[1]) == dict.fromkeys(OBLIGATIONS, CONFIRMED) | {EQUAL: REFUSED}


@pytest.mark.parametrize("loop", ["plain", "plain_mlp", "plain_third", "plain_ema", "plain_master", "plain_checkpoint"])
def test_the_loops_are_confirmed(loop: str) -> None:
    path = LOOPS / f"{loop}.py"
    data = certificates.text_of(function_of(load(path), "train", str(path)), accum_steps=3, tail=2)
    assert statuses(data) == dict.fromkeys(OBLIGATIONS, CONFIRMED)


@pytest.mark.parametrize("loop", ["plain", "plain_mlp"])
def test_no_bug_of_the_loops_is_confirmed(loop: str, tmp_path: Path) -> None:
    """Every bug of the catalogue that concerns an obligation, but for writes that no operator makes."""
    mutants = [one for one in MUTANTS if one.loop == loop and one.obligation in OBLIGATIONS]
    found = {}
    for mutant in mutants:
        path = tmp_path / f"{loop}_{mutant.name}.py"
        path.write_text(apply(mutant), encoding="utf-8")
        options = {"tail": 3} if mutant.tail else {}
        if mutant.name != "scaled_through_numpy":
            data = certificates.text_of(function_of(load(path), "train", str(path)), **options)
            found[mutant.name] = statuses(data)[mutant.obligation]
    assert len(found) > 15
    assert {name: status for name, status in found.items() if status == CONFIRMED} == {}


def test_labels_that_may_be_ignored_are_not_checked() -> None:
    data = certificates.text_of(whole_models.loop(lambda: whole_models.Llama(layers=1)), fake=True)
    assert set(statuses(data).values()) == {OPEN}


def closure(run: Any) -> None:
    """Backward passes inside of the step."""
    net = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x in torch.randn(run.samples, 3).split(run.effective_batch_size):

        def losses(x: torch.Tensor = x) -> float:
            optimizer.zero_grad()
            for part in x.split(run.micro_batch_size):
                (net(part).mean() / run.accum_steps).backward()
            return 0.0

        optimizer.step(losses)


def plain_loop(run: Any, how: str) -> None:
    """A loop that is right, or may be, in a way that the checker does not follow."""
    layers = {"norm": nn.BatchNorm1d(4), "whole": Whole()}
    net = nn.Sequential(nn.Linear(3, 4), layers.get(how, nn.Identity()), nn.Linear(4, 2))
    if how == "words":
        net = nn.Sequential(nn.Embedding(5, 4, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(12, 2))
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in ((net[0], net[2]) if how == "two" else (net,))]
    for p in net.parameters() if how == "hook" else ():
        p.register_hook(lambda grad: grad / run.accum_steps)
    x = torch.randint(5, (run.samples, 3)) if how == "words" else torch.randn(run.samples, 3)
    for i, part in enumerate(x.split(run.micro_batch_size)):
        loss = (Doubled.apply(net(part)) if how == "custom" else net(part)).square().mean()
        if how == "mean":
            loss = net(part).mean(0).square().sum()
        elif how == "penalty":
            loss = loss + net[0].weight.square().sum()
        elif how == "position":
            loss = (net(part).square().mean(1) * torch.arange(1, len(part) + 1)).mean()
        whole = torch.full((), float(run.accum_steps), dtype=torch.bool)
        one = torch.ones((), dtype=torch.bool)
        by = {"hook": 1, "divided": 1, "bool": whole, "either": one + one + one + one}
        (loss / by.get(how, run.accum_steps)).backward()
        if how == "zeroed" and i % run.accum_steps:
            net[0].bias.grad.zero_()
        if (i + 1) % run.accum_steps == 0:
            scaled(list(net.parameters()), how, run.accum_steps)
            for optimizer in optimizers:
                optimizer.step()
            net.zero_grad()


def scaled(parameters: list[nn.Parameter], how: str, steps: int) -> None:
    """What the loop does to its gradients before a step."""
    if how == "divided":
        nn.utils.clip_grad_norm_(parameters, 0.1)
    by = torch.stack([p.grad.norm() for p in parameters]).norm().item() if how == "item" else steps
    for p in parameters if how in ("divided", "item") else ():
        p.grad /= by


class Doubled(torch.autograd.Function):
    """A gradient that is another one than that of the function."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return 2 * gradient


class Whole(nn.Module):
    """Layer norm over the samples as well."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.layer_norm(x, x.shape)


HOWS = (
    "closure", "norm", "two", "hook", "mean", "penalty", "position", "divided", "item", "custom", "words", "whole",
    "zeroed", "bool", "either",
)  # fmt: skip


@pytest.mark.parametrize("how", HOWS)
def test_what_the_checker_does_not_follow_is_not_checked(how: str) -> None:
    data = certificates.text_of(closure if how == "closure" else lambda run: plain_loop(run, how))
    found = statuses(data)
    assert found[EQUAL] == OPEN
    assert REFUSED not in found.values()


def test_the_loop_of_these_tests_is_confirmed_where_nothing_is_in_the_way() -> None:
    assert statuses(certificates.text_of(lambda run: plain_loop(run, ""))) == dict.fromkeys(OBLIGATIONS, CONFIRMED)


# -- Records that were tampered with. Each kind is tried as it is, and with versions and counts made consistent again.


def passes(records: Records) -> list[tuple[int, int]]:
    """The first and the last record of each backward pass."""
    return list(zip(places(records, "backward"), places(records, "ended"), strict=True))


def drop(records: Records, first: int, last: int = -1) -> None:
    """Leave out records, but for the tensors that they name."""
    last = max(first, last)
    records[first : last + 1] = [one for one in records[first : last + 1] if one[0] == "tensor"]


def drop_pass(records: Records) -> None:
    """A micro-batch of the first window has no backward pass."""
    drop(records, *passes(records)[1])


def coefficient(records: Records) -> None:
    """The last loss of a window is divided by another number."""
    for at in list(operators(records, "div"))[6:8]:
        records[at][2]["other"] = 5


def swap_samples(records: Records) -> None:
    """Two samples of different windows change places."""
    for at in places(records, "source"):
        if records[at][2] == "data":
            owners = records[at][5]
            owners[0], owners[8] = owners[8], owners[0]


def swap_labels(records: Records) -> None:
    """Two samples of a micro-batch have each other's labels."""
    at = [at for at in places(records, "source") if records[at][2] == "data"][1]
    records[at][5][:2] = records[at][5][1::-1]


def repeat_micro_batch(records: Records) -> None:
    """The third micro-batch has the rows of the second."""
    tensors = [records[at] for at in places(records, "tensor")]
    layers, losses = (list(operators(records, name)) for name in ("addmm", "mse_loss"))
    for second, third in ((layers[2], layers[4]), (losses[1], losses[2])):
        read, other = (number([*records[at][2].values()][1]) for at in (third, second))
        tensors[read][2] = tensors[other][2]


def never_zeroed(records: Records) -> None:
    """The gradients are not zeroed after the first step."""
    for at in reversed([at for at in operators(records, "zero") if at < places(records, "step")[1]]):
        drop(records, at)


def early_step(records: Records) -> None:
    """The first step comes before the last micro-batch of its window."""
    at = places(records, "step")[0]
    step = [records[at]]
    drop(records, at)
    first = passes(records)[3][0]
    tensors = [one for one in records[first:] if one[0] == "tensor"]
    records[first:] = tensors + step + [one for one in records[first:] if one[0] != "tensor"]


def other_axis(records: Records) -> None:
    """The gradient of a bias is a sum over its features."""
    for at in operators(records, "sum"):
        records[at][2]["dim"] = [1]


def forged_law(records: Records) -> None:
    """A product of matrices is called a function of elements."""
    at = list(operators(records, "mm"))[4]
    records[at][1] = "tanh"


def forged_view(records: Records) -> None:
    """After the first micro-batch, a view of a weight is called a function of it."""
    weight = records[next(operators(records, "addmm"))][2]["mat2"]
    records.insert(passes(records)[0][1] + 1, ["operator", "tanh", {"self": weight}, [weight]])


def other_version(records: Records) -> None:
    """The second step is said to be at the first version of a parameter."""
    records[places(records, "step")[1]][2]["0.weight"] = 0


def older_parameter(records: Records) -> None:
    """The first step leaves a parameter as it was."""
    records[places(records, "step")[0]][4].pop(0)


def write_through_view(records: Records) -> None:
    """The gradient of a parameter is not zeroed through its view."""
    drop(records, next(operators(records, "zero")))


def other_region(records: Records) -> None:
    """A view that is written lies elsewhere in its storage."""
    written = records[next(operators(records, "zero"))][3][0]
    records[places(records, "tensor")[number(written)]][2] = 1


def part_of_clip(records: Records) -> None:
    """The norm is that of some of the gradients."""
    drop(records, list(operators(records, "norm"))[3])
    records[next(operators(records, "stack"))][2]["tensors"].pop()


def scales(records: Records) -> list[int]:
    """The places where the gradients of the first window are scaled."""
    first = places(records, "step")[0]
    return [at for at in operators(records, "mul") if records[at][2]["self"] == records[at][3][0] and at < first]


def clip_twice(records: Records) -> None:
    """The gradients are scaled twice by one number."""
    at = scales(records)[-1] + 1
    records[at:at] = json.loads(json.dumps([records[at] for at in scales(records)]))


def clip_early(records: Records) -> None:
    """The norm is made before the last micro-batch."""
    first, norm, last = passes(records)[3][0], next(operators(records, "norm")), scales(records)[0]
    moved = [one for one in records[norm:last] if one[0] != "tensor"]
    drop(records, norm, last - 1)
    tensors = [one for one in records[first:] if one[0] == "tensor"]
    records[first:] = tensors + moved + [one for one in records[first:] if one[0] != "tensor"]


def narrow_sum(records: Records) -> None:
    """A gradient is a bfloat16."""
    graded = records[places(records, "step")[0]][3][0][1]
    storage = records[places(records, "tensor")[number(graded)]][1]
    for at in places(records, "tensor"):
        if records[at][1] == storage:
            records[at][5] = "bfloat16"


def drop_read(records: Records) -> None:
    """Python read no number."""
    drop(records, places(records, "read")[0])


def drop_end(records: Records) -> None:
    """A backward pass has no end."""
    drop(records, places(records, "ended")[2])


def drop_operator(records: Records) -> None:
    """A ReLU is left out, and its result has no origin."""
    drop(records, next(operators(records, "relu")))


def reorder(records: Records) -> None:
    """A ReLU comes before the layer that it follows."""
    at = next(operators(records, "relu"))
    layer = max(i for i in operators(records, "addmm") if i < at)
    tensors = [one for one in records[layer:] if one[0] == "tensor"]
    rest = [one for one in records[layer:] if one[0] != "tensor"]
    records[layer:] = [*tensors, rest[1], rest[0], *rest[2:]]


def summed_loss(records: Records) -> None:
    """The losses of micro-batches are sums, and claimed to be means."""
    for at in operators(records, "mse_loss"):
        records[at][2]["reduction"] = 2


def other_run(records: Records) -> None:
    """Twice as many micro-batches are claimed for a window."""
    records[0][1]["accum_steps"] = 8


def hidden_gradient(records: Records) -> None:
    """A parameter is said to have no gradient."""
    records[places(records, "step")[0]][3].pop(1)


def forged_zero(records: Records) -> None:
    """A gradient is a number that no operator wrote."""
    at = next(operators(records, "zero"))
    records[at] = ["source", records[at][2]["self"], "number", [0]]


def other_alpha(records: Records) -> None:
    """The gradient of a micro-batch is added twice."""
    records[list(operators(records, "add"))[2]][2]["alpha"] = 2


def scaled_gradient(records: Records) -> None:
    """A gradient is doubled before its step."""
    step = places(records, "step")[0]
    reference = records[step][3][0][1]
    records.insert(step, ["operator", "mul", {"self": reference, "other": 2.0}, [reference]])


def absurd_shape(records: Records) -> None:
    """The bias of a layer has more elements than its result has features."""
    bias = records[next(operators(records, "addmm"))][2]["self"]
    records[places(records, "tensor")[number(bias)]][3] = [7]


def unstepped(records: Records) -> None:
    """The first step says nothing of a parameter."""
    _, _, versions, gradients, written = records[places(records, "step")[0]]
    del versions["0.weight"], gradients[0], written[0]


def lost_sight(records: Records) -> None:
    """The recorder lost sight of a value."""
    records.insert(places(records, "step")[0], ["lost", "x.py:1", "a value"])


TAMPERED: Mapping[Callable[[Records], None], tuple[str, str, str]] = {
    drop_pass: ("", REFUSED, DATA), coefficient: ("", REFUSED, EQUAL), swap_samples: ("", REFUSED, DATA),
    swap_labels: ("", OPEN, EQUAL), repeat_micro_batch: ("", REFUSED, DATA), never_zeroed: ("", REFUSED, STALE),
    early_step: ("", REFUSED, DATA), other_axis: ("", OPEN, EQUAL), forged_law: ("", OPEN, EQUAL),
    forged_view: ("", REFUSED, EQUAL), other_version: ("", REFUSED, EQUAL), older_parameter: ("", REFUSED, EQUAL),
    write_through_view: ("view", REFUSED, STALE), other_region: ("view", OPEN, STALE),
    part_of_clip: ("", OPEN, CLIP), clip_early: ("", REFUSED, CLIP),
    narrow_sum: ("", REFUSED, WIDTH), drop_read: ("", REFUSED, EQUAL), drop_operator: ("", OPEN, EQUAL),
    reorder: ("", OPEN, EQUAL), summed_loss: ("", REFUSED, EQUAL),
    other_run: ("", REFUSED, DATA), hidden_gradient: ("", OPEN, EQUAL),
    forged_zero: ("", REFUSED, STALE), other_alpha: ("", REFUSED, EQUAL), scaled_gradient: ("", REFUSED, EQUAL),
    lost_sight: ("", OPEN, EQUAL), drop_end: ("", OPEN, EQUAL), clip_twice: ("", OPEN, CLIP),
    absurd_shape: ("", OPEN, EQUAL), unstepped: ("", REFUSED, EQUAL),
}  # fmt: skip
"""Each with the loop, and what becomes of one obligation at least where everything else was made consistent."""


@pytest.mark.parametrize("tamper", TAMPERED, ids=lambda f: f.__name__)
def test_a_tampered_certificate_is_not_confirmed(tamper: Callable[[Records], None]) -> None:
    bug, status, name = TAMPERED[tamper]
    records = records_of(text(bug))
    tamper(records)
    assert set(statuses(sealed(records)).values()) != {CONFIRMED}
    found = statuses(sealed(consistent(records)))
    assert found[name] == status, checked(sealed(consistent(records))).verdicts()


def test_a_cut_file_and_another_digest_are_no_certificates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = text()
    records = records_of(whole)
    body = sealed(records[:-1])
    for at, data in enumerate(
        (b"", b"x", whole[:-9], whole + b"x", whole[: len(whole) // 2], body, sealed([[], *records]))
    ):
        path = tmp_path / f"{at}"
        path.write_bytes(data)
        assert main([str(path)]) == MALFORMED
        assert "GP415" in capsys.readouterr().err
    (tmp_path / "digest").write_bytes(
        certificates.zlib.compress(certificates.zlib.decompress(whole).replace(b"relu", b"tanh"))
    )
    assert main([str(tmp_path / "digest")]) == MALFORMED
    assert main([str(tmp_path / "none")]) == MALFORMED
    assert main([]) == MALFORMED


@pytest.mark.parametrize("seed", range(2))
def test_whatever_a_record_holds_there_is_an_answer(seed: int) -> None:
    """Random values in random records: the checker refuses, or says that it cannot read them."""
    draw = random.Random(seed)
    original = records_of(text())
    for _ in range(40):
        records = json.loads(json.dumps(original))
        row = draw.choice(records)
        row[draw.randrange(len(row))] = draw.choice(
            [None, -1, 10**30, 0.5, "x", [], {}, [[]], {"0": 1}, {"9": "y"}, True]
        )
        assert set(statuses(sealed(records)).values()) <= {CONFIRMED, OPEN, REFUSED, "malformed"}


HEAD, FIRST = "gradproof-step-log/1", {"accum_steps": 4, "micro_batch_size": 2, "windows": 2, "tail": 0}


@pytest.mark.parametrize(
    "line",
    [
        "{", "null", "[]", "[[1]]", "[" * 99_999, '["operator"]', '["tensor",0,0,[2],[-1],"float32"]',
        '["tensor",0,0,[],[]]',
        '["source",{"tensor":0},"number",["1e999999999"]]', '["source",{"tensor":7},"number",[1]]', f'["{HEAD}",{{}}]',
        '["operator","full",{"fill_value":' + "9" * 5_000 + '},[{"tensor":0}]]',
    ],
    ids=range(12),
)  # fmt: skip
def test_a_record_that_cannot_be_read_is_named(line: str) -> None:
    body = [json.dumps([HEAD, FIRST]), '["tensor",0,0,[],[],"float32"]', line]
    data = "".join(f"{one}\n" for one in body).encode()
    sealed_so = certificates.zlib.compress(certificates.hashlib.sha256(data).hexdigest().encode() + b"\n" + data)
    with pytest.raises(certificate.Malformed, match="record 2 "):
        checked(sealed_so)


@pytest.mark.parametrize(
    "changed", [{"accum_steps": -4, "micro_batch_size": -2}, {"accum_steps": 4.0}, {"windows": None}]
)
def test_a_run_of_no_micro_batches_is_no_certificate(changed: dict[str, Any]) -> None:
    assert statuses(sealed([[HEAD, FIRST | changed], *records_of(text())[1:]])) == {"": "malformed"}


def test_numbers_that_grow_end_soon() -> None:
    """A number that is squared sixty times, and a window of more samples than there are."""
    square = ["operator", "mul", {"self": {"tensor": 0}, "other": {"tensor": 0}}, [{"tensor": 0}]]
    start = [[HEAD, FIRST], ["tensor", 0, 0, [], [], "float32"], ["source", {"tensor": 0}, "number", [3]]]
    assert set(statuses(sealed([*start, *[square] * 60, ["end", 63]])).values()) == {OPEN}
    records = records_of(text())
    records[0][1]["accum_steps"] = 10**15
    assert statuses(sealed(records))[DATA] == REFUSED


def test_the_checker_needs_nothing_but_the_standard_library() -> None:
    code = "import sys; import gradproof.evidence.certificate; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    own = {"gradproof", "gradproof.evidence", "gradproof.evidence.certificate", "gradproof.evidence.step_laws"}
    assert {name for name in loaded if name.startswith("gradproof")} == own
    assert not loaded & {"torch", "numpy", "z3", "pydantic", "click"}
    assert certificate.FORMAT.startswith("gradproof-step-log/")


def test_check_writes_a_certificate_that_the_checker_accepts(tmp_path: Path) -> None:
    path = tmp_path / "step.cert"
    command = [sys.executable, "-m", "gradproof", "check", f"{LOOPS / 'plain.py'}:train", "--format", "json"]
    done = subprocess.run([*command, "--certificate", str(path)], capture_output=True, text=True, check=True)
    (note,) = [one for one in json.loads(done.stdout)["notes"] if one.startswith("certificate ")]
    assert certificates.hashlib.sha256(path.read_bytes()).hexdigest() in note
    assert str(path) in note
    checker = [sys.executable, "-m", "gradproof.evidence.certificate", str(path)]
    judged = subprocess.run(checker, capture_output=True, text=True, check=False)
    assert judged.returncode == 0
    assert [line.split()[1] for line in judged.stdout.splitlines()[: len(OBLIGATIONS)]] == [CONFIRMED] * len(
        OBLIGATIONS
    )
    assert len(judged.stdout.splitlines()) <= 12


def test_a_run_that_ends_with_an_error_has_no_certificate(tmp_path: Path) -> None:
    def fails(run: Any) -> None:
        raise ValueError("no data")

    path = tmp_path / "step.cert"
    note = logged(fails, Request(certificate=str(path)), Hints())
    assert note.startswith("no certificate: ")
    assert not path.exists()


def test_a_certificate_of_several_ranks_is_not_asked_for() -> None:
    with pytest.raises(GradproofError) as refused:
        Request(ranks=2, certificate="x")
    assert refused.value.code == "GP406"
