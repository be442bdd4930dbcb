"""The character transformer's training loop, and what its properties see beyond the mutants that have a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradproof.execution.methods.counterexample import FLOATS, events_during as heard, timeline
from gradproof.execution.methods.property import Case, Cell, Place, Refutation
from models.sampling.mutants import MUTANTS as MODELS
from models.sampling.torch_mutants import MUTANTS, TORCH_ONLY
from models.sampling.torch_training import CharTraining, EmptyTraining, Job
from models.sampling.transformer import CharTransformer, Shape, encoded, text_of
from symbolic.sampling import falsify
from symbolic.sampling.falsify import NET, data, due, observe, setup_of

CPU = Place("cpu", "fp32")
CASE = Case(NET, 2, size=2, windows=2, tail=1)
PROPERTIES = {
    p.clause: p
    for p in (
        falsify.micro_batches_partition,
        falsify.data_apart_from_model,
        falsify.validation_of_one_size,
        falsify.logged_is_mean,
        falsify.runs_agree,
    )
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Strided(CharTraining):
    """A partition that is not in order."""

    def micro_batch(self, job: Job, starts: Tensor, i: int, data: torch.Generator) -> Tensor:
        return starts[i :: job.setup.n]


class ValidatesInTraining(CharTraining):
    """Dropout stays on in validation."""

    def validate(self, job: Job, model: nn.Module, generator: torch.Generator) -> float:
        model.eval = model.train  # type: ignore[method-assign,assignment]
        return super().validate(job, model, generator)


class LogsNothing(CharTraining):
    """Zero is logged."""

    def log(self, logged: Tensor, loss: Tensor, n: int) -> Tensor:
        return logged


class SharesDropout(CharTraining):
    """The data's generator is used for one mask more in each micro-batch."""

    def micro_batch(self, job: Job, starts: Tensor, i: int, data: torch.Generator) -> Tensor:
        if job.setup.shape.dropout:
            torch.rand(1, generator=data)
        return super().micro_batch(job, starts, i, data)


class Remembers(CharTraining):
    """A second run goes on from where the first one left the weights' seed."""

    runs = 0

    def run(self, job: Job) -> Any:
        Remembers.runs += 1
        return super().run(replace(job, setup=replace(job.setup, seed=job.setup.seed + Remembers.runs)))


UNTHREADED = [
    ("GA-DATA-001", Strided),
    ("GA-VAL-001", ValidatesInTraining),
    ("GA-LOG-001", LogsNothing),
    ("GA-RNG-001", SharesDropout),
    ("GA-DET-001", Remembers),
]


@pytest.mark.parametrize(("clause", "subject"), [*UNTHREADED, *((clause, EmptyTraining) for clause in PROPERTIES)])
def test_a_bug_without_a_thread_is_refuted(clause: str, subject: Any) -> None:
    with pytest.raises(Refutation) as caught:
        PROPERTIES[clause].test(subject, CASE, CPU)
    assert caught.value.clause == clause


@pytest.mark.parametrize("clause", PROPERTIES)
def test_the_reference_reaches_what_it_must(clause: str) -> None:
    seen = PROPERTIES[clause].test(CharTraining, CASE, CPU)
    assert seen.covers >= set(PROPERTIES[clause].covers(CPU))


@pytest.mark.parametrize("name", [name for name in MUTANTS if MUTANTS[name].obligation == "GA-VAL-001"])
def test_validation_is_told_batch_by_batch_beside_the_reference(name: str) -> None:
    def wrong() -> None:
        with pytest.raises(Refutation):
            falsify.validation_of_one_size.test(MUTANTS[name].subject, CASE, CPU)

    right = heard(lambda: falsify.validation_of_one_size.test(CharTraining, CASE, CPU))
    assert {(s.event, s.after) for s in right} == {("validation batch", (4, 8)), ("validation batch", (1, 8))}
    line = timeline("", heard(wrong), right, "breaks", FLOATS)
    assert line is not None
    assert [tick.event for tick in line.ticks if tick.refused] == ["validation batch"]


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_refuted_on_its_clause_and_is_its_models_twin(name: str) -> None:
    mutant = MUTANTS[name]
    assert (mutant.obligation, mutant.reference) == (MODELS[name].obligation, MODELS[name].reference)
    with pytest.raises(Refutation):
        PROPERTIES[mutant.obligation].test(mutant.subject, CASE, CPU)


@pytest.mark.parametrize("name", ["drawn_apart", "inputs_reused", "empty"])
def test_parity_of_training_needs_the_same_samples(name: str) -> None:
    [case] = falsify.trains_alike.examples(Cell(NET, 4), CPU, 0, 3)
    seen = falsify.trains_alike.test(CharTraining, case, CPU)
    assert seen.covers >= set(falsify.trains_alike.covers(CPU))
    assert [row["measured"] < falsify.PARITY.value / 10**6 for row in seen.rows] == [True, True]
    subject = EmptyTraining if name == "empty" else MUTANTS[name].subject
    with pytest.raises(Refutation) as caught:
        falsify.trains_alike.test(subject, case, CPU)
    assert caught.value.clause == "GA-DATA-001"


def test_parity_refuses_a_validation_loss_that_is_no_number() -> None:
    class Unmeasured(CharTraining):
        def validate(self, job: Job, model: nn.Module, generator: torch.Generator) -> float:
            return float("nan")

    with pytest.raises(Refutation, match="validation loss"):
        falsify.trains_alike.test(Unmeasured, CASE, CPU)


def test_every_mutant_of_the_model_has_a_twin() -> None:
    assert set(MODELS) == set(MUTANTS)
    assert TORCH_ONLY == {}


def test_a_logged_loss_one_unit_beyond_the_bound_is_refuted() -> None:
    falsify.logged_is_mean.judge(2, 0, 2.5, [2.0, 3.0])
    with pytest.raises(Refutation):
        falsify.logged_is_mean.judge(2, 0, 2.5 + 2**-19, [2.0, 3.0])


def test_another_net_is_an_error() -> None:
    assert falsify.runs_agree.cells(CPU, {"nets": [NET], "n": [1, 4]}) == [Cell(NET, 1), Cell(NET, 4)]
    with pytest.raises(ValueError, match="one net"):
        falsify.runs_agree.cells(CPU, {"nets": ["mlp"], "n": [1]})


def test_torch_s_integers_hide_micro_batches_drawn_apart_on_a_cpu_and_its_permutations_do_not() -> None:
    def drawn(draw: Callable[[int, torch.Generator], Tensor], counts: tuple[int, ...]) -> Tensor:
        generator = torch.Generator().manual_seed(3)
        return torch.cat([draw(count, generator) for count in counts])

    for hidden, draw in (
        (True, lambda count, g: torch.randint(1000, (count,), generator=g)),
        (False, lambda count, g: torch.randperm(1000, generator=g)[:count]),
    ):
        assert torch.equal(drawn(draw, (16,) * 4), drawn(draw, (64,))) is hidden


def test_flags_are_as_they_were_afterwards() -> None:
    class Stops(CharTraining):
        def train(self, job: Job) -> Any:
            assert torch.are_deterministic_algorithms_enabled()
            raise RuntimeError("stop")

    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    with pytest.raises(RuntimeError, match="stop"):
        observe(Stops, setup_of(CASE, CPU))
    assert before == (torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark)


def test_the_text_is_the_same_everywhere_and_every_window_lies_in_it() -> None:
    text = text_of(3)
    assert text.count("\n") == 3
    assert text == text_of(5)[: len(text)]
    numbers, characters = encoded(text)
    assert numbers.shape == (len(text),)
    assert int(numbers.max()) == characters - 1
    setup = setup_of(CASE, CPU)
    assert [len(parts) for parts in due(setup)] == [2, 2]
    assert setup.effective < len(data()[0]) - setup.shape.block


def test_a_prediction_does_not_see_the_future() -> None:
    torch.manual_seed(0)
    model = CharTransformer(Shape(5, 8, 1, 2, 6)).eval()
    one, two = torch.zeros(1, 6, dtype=torch.long), torch.zeros(1, 6, dtype=torch.long)
    two[0, 4] = 3
    with torch.no_grad():
        a, b = model(one), model(two)
    assert torch.equal(a[:, :4], b[:, :4])
    assert not torch.equal(a[:, 4:], b[:, 4:])


def test_what_the_bench_saw_is_what_the_run_did() -> None:
    run = observe(CharTraining, setup_of(CASE, CPU))
    assert [[tuple(x.shape) for x in window] for window in run.trained] == [[(2, 8), (2, 8)]] * 2
    assert [tuple(x.shape) for x in run.validated] == [(4, 8), (4, 8), (1, 8)]
    assert len(run.report.weights) > 0
