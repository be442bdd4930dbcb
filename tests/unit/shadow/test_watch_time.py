"""`watch` answers in time: recurrences in which samples meet, and a limit that keeps what was decided before it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset

from gradproof.core.outcome import Outcome
from gradproof.shadow.follow import terms as clock
from gradproof.shadow.judge.one_run import OneRun
from gradproof.shadow.process.watch import ScriptWatch
from gradproof.shadow.result import Verification

WORDS, STEPS = 11, 8


class Clocked:
    """A clock on which each look takes `rate` seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rate, self.now = 0.0, 0.0
        monkeypatch.setattr(clock, "perf_counter", self.read)
        monkeypatch.setattr(clock, "thread_time", lambda: self.now)

    def read(self) -> float:
        """The time."""
        self.now += self.rate
        return self.now


class Language(nn.Module):
    """Two recurrent layers over words, with time first or samples first."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, 4), nn.Linear(4, WORDS)
        self.layers = nn.LSTM(4, 4, 2, dropout=0.2, batch_first=first)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Scores of the next words."""
        return self.head(self.layers(self.embedding(words))[0]).flatten(0, 1)


def language(first: bool, divide: float = 2) -> tuple[Verification, int]:
    """What is said of a language model of which the layers have, or have not, samples first; and how many terms."""
    torch.manual_seed(0)
    watch, model = ScriptWatch(2, 1), Language(first)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch:
        rows = (8, STEPS) if first else (4 * STEPS, 3)
        for at, (words,) in enumerate(DataLoader(TensorDataset(torch.randint(0, WORDS, rows)), rows[0] // 4)):
            (cross_entropy(model(words[:, :-1]), words[:, 1:].reshape(-1)) / divide).backward()
            if at % 2:
                nn.utils.clip_grad_norm_(model.parameters(), 0.25)
                optimizer.step()
                optimizer.zero_grad()
    return watch.verification(), len(watch.engine.terms)


def test_samples_that_meet_in_two_recurrent_layers_are_followed_in_few_terms() -> None:
    found, terms = language(False)
    assert found.result("GA-EQ-001").outcome not in (Outcome.HOLDS, Outcome.REFUTED)
    assert terms < 40_000


def test_a_recurrent_language_model_is_decided() -> None:
    found, terms = language(True)
    assert found.result("GA-EQ-001").outcome is Outcome.HOLDS
    assert language(True, 1)[0].result("GA-EQ-001").outcome is Outcome.REFUTED
    assert terms < 12_000


def train(clocked: Clocked, slow: int, divide: int = 4, rate: float = 100.0, windows: int = 5, **options: Any) -> Any:
    """The watch of a loop of which following takes long from the window `slow` on."""
    torch.manual_seed(0)
    model, data = nn.Linear(3, 1), TensorDataset(torch.randn(8 * windows, 3), torch.randn(8 * windows, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (watch := ScriptWatch(4, **options)):
        for at, (x, y) in enumerate(DataLoader(data, 2)):
            clocked.rate = rate * (at >= 4 * slow)
            (mse_loss(model(x), y) / divide).backward()
            if at % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
    clocked.rate = 0.0
    return watch


@pytest.mark.parametrize(("divide", "outcome"), [(4, Outcome.HOLDS), (1, Outcome.REFUTED)])
def test_what_was_decided_before_the_limit_stays(
    divide: int, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = train(Clocked(monkeypatch), 2, divide)
    found = watch.verification()
    assert (found.result("GA-EQ-001").outcome, watch.run.recorded) == (outcome, {0, 1})
    assert divide == 1 or "windows 1 to 2 of 5" in found.result("GA-EQ-001").reach
    note = next(one for one in found.notes if "--time-limit" in one)
    assert note.startswith("the time limit of 120 s passed before an answer came in window 3, at ")


def test_a_limit_that_passes_in_the_first_window_leaves_all_undecided_with_its_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = train(Clocked(monkeypatch), 0).verification().result("GA-EQ-001")
    assert (result.outcome, result.help) == (Outcome.TIMEOUT, clock.HELP)
    assert result.location is not None
    assert result.location.function == "train"


def test_the_limit_is_that_of_each_window(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = train(Clocked(monkeypatch), 9).engine.facts.operators // 3 * 8
    assert train(Clocked(monkeypatch), 0, rate=120 / looks).verification().result("GA-EQ-001").outcome is Outcome.HOLDS
    assert train(Clocked(monkeypatch), 0, time_limit=1e9).verification().result("GA-EQ-001").outcome is Outcome.HOLDS


def test_judging_has_the_limit_too_and_keeps_what_was_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    clocked = Clocked(monkeypatch)
    watch, judged = train(clocked, 9), OneRun.clipping

    def clipping(self: OneRun) -> Any:
        clocked.rate = 1000.0
        self.terms.clock.look()
        return judged(self)

    monkeypatch.setattr(OneRun, "clipping", clipping)
    found = watch.verification()
    outcomes = {name: found.result(name).outcome for name in ("GA-DATA-001", "GA-EQ-001", "GA-INV-005")}
    assert outcomes == {"GA-DATA-001": Outcome.HOLDS, "GA-EQ-001": Outcome.HOLDS, "GA-INV-005": Outcome.TIMEOUT}
    found = watch.verification()  # from its first look on it takes too long
    assert found.result("GA-EQ-001").outcome is Outcome.TIMEOUT
