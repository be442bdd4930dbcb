"""What CrossHair's answers are worth: no way leads from a non-answer to HOLDS."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from crosshair.statespace import AnalysisMessage, MessageType

from gradproof.core.outcome import Outcome
from gradproof.execution.methods import crosshair as ask


def message(state: Any) -> Any:
    return AnalysisMessage(state, "said", "file", 1, 0, "")


def seen(**changes: Any) -> ask.CrosshairWatch:
    return ask.CrosshairWatch(
        **{"entered": 3, "judged": 3, "values": {"x": 1}, "stats": Counter(exhaustion=1, num_paths=3), **changes}
    )


EXPECTED = {
    MessageType.CONFIRMED: Outcome.HOLDS,
    MessageType.CANNOT_CONFIRM: Outcome.UNKNOWN,
    MessageType.PRE_UNSAT: Outcome.VACUOUS,
    MessageType.POST_FAIL: Outcome.REFUTED,
    MessageType.POST_ERR: Outcome.ERROR,
    MessageType.EXEC_ERR: Outcome.ERROR,
    MessageType.SYNTAX_ERR: Outcome.ERROR,
    MessageType.IMPORT_ERR: Outcome.ERROR,
}


@pytest.mark.parametrize("kind", list(MessageType))
def test_each_message_type_has_its_outcome(kind: MessageType) -> None:
    answer = ask.read([message(kind)], seen(entered=0, judged=0) if kind is MessageType.PRE_UNSAT else seen())
    assert answer.outcome is EXPECTED[kind]
    assert (answer.values is not None) == (kind is MessageType.POST_FAIL)


def test_every_message_type_of_this_crosshair_is_known() -> None:
    assert {kind.name for kind in MessageType} == set(ask.ANSWER)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [message(SimpleNamespace(name="SOMETHING_NEW"))],
        [message(MessageType.CONFIRMED), message(MessageType.POST_FAIL)],
    ],
)
def test_nothing_several_or_unknown_is_an_error(messages: list[Any]) -> None:
    assert ask.read(messages, seen()).outcome is Outcome.ERROR


@pytest.mark.parametrize(
    ("watch", "outcome"),
    [
        (seen(stats=Counter(num_paths=3)), Outcome.UNKNOWN),
        (seen(judged=2), Outcome.UNKNOWN),
        (seen(entered=0, judged=0), Outcome.VACUOUS),
        (seen(raised="a pre: line raised NameError"), Outcome.ERROR),
    ],
)
def test_a_confirmation_that_is_not_backed_is_no_answer(watch: ask.CrosshairWatch, outcome: Outcome) -> None:
    assert ask.read([message(MessageType.CONFIRMED)], watch).outcome is outcome


@pytest.mark.parametrize("watch", [seen(), seen(entered=0, stats=Counter(num_paths=3))])
def test_an_exploration_cut_short_is_not_vacuous(watch: ask.CrosshairWatch) -> None:
    """CrossHair says PRE_UNSAT too when every path that met the precondition ran out of time."""
    assert ask.read([message(MessageType.PRE_UNSAT)], watch).outcome is Outcome.UNKNOWN


def test_a_counterexample_without_arguments_is_an_error() -> None:
    assert ask.read([message(MessageType.POST_FAIL)], seen(values=None)).outcome is Outcome.ERROR


def true_claim(x: int, y: int) -> bool:
    """
    pre: 0 <= x <= 5
    post: _
    """
    return x + y == y + x


def false_claim(x: int, flag: bool) -> bool:
    """
    pre: 0 <= x
    post: _
    """
    return x != 1234 or flag


def unsatisfiable(x: int) -> bool:
    """
    pre: x < x
    post: _
    """
    return True


def hard(x: int, y: int, z: int) -> bool:
    """
    pre: x > 1 and y > 1 and z > 1
    post: _
    """
    return x * x * x + y * y * y != z * z * z


def endless(x: int) -> bool:
    """
    pre: x > 0
    post: _
    """
    while x > 1:
        x -= 1
    return x == 1


def crashing(x: int) -> bool:
    """
    pre: True
    post: _
    """
    return 10 // x < 11


def bad_pre(x: int) -> bool:
    """
    pre: 10 // x < 3
    post: _
    """
    return True


def declared(x: int) -> bool:
    """
    pre: True
    post: _

    :raises ValueError: and CrossHair would call that a success
    """
    raise ValueError


def bare(x: int) -> bool:
    return True


def unreadable(x: int) -> bool:
    """
    pre: x <
    post: _
    """
    return True


def twofold(x: int) -> bool:
    """
    post: _
    post: True
    """
    return True


def other_post(x: int) -> bool:
    """
    post: True
    """
    return False


def helper(x: int) -> int:
    """
    post: _ == 0
    """
    return x


def leans_on_helper(x: int) -> bool:
    """
    pre: True
    post: _
    """
    return helper(x) == 0


def test_a_true_claim_is_confirmed_and_samples_agree() -> None:
    answer = ask.consult(true_claim, "_", 10)
    assert (answer.outcome, answer.values) == (Outcome.HOLDS, None)
    assert answer.paths > 0
    assert ask.sampled(true_claim) == (ask.SAMPLES, "")


def test_a_false_claim_gives_its_arguments() -> None:
    answer = ask.consult(false_claim, "_", 10)
    assert answer.outcome is Outcome.REFUTED
    assert answer.values == {"x": 1234, "flag": False}
    assert type(answer.values["x"]) is int
    assert ask.broken(false_claim, answer.values)[0] is True


@pytest.mark.parametrize(
    ("contract", "outcome", "why"),
    [
        (unsatisfiable, Outcome.VACUOUS, "PRE_UNSAT"),
        (crashing, Outcome.ERROR, "ZeroDivisionError"),
        (bad_pre, Outcome.ERROR, "pre: line raised ZeroDivisionError"),
        (declared, Outcome.ERROR, "declares exceptions"),
        (bare, Outcome.ERROR, "no contract"),
        (unreadable, Outcome.ERROR, "cannot read"),
        (twofold, Outcome.ERROR, "2 postconditions"),
        (other_post, Outcome.ERROR, "not '_'"),
    ],
)
def test_what_is_no_claim_is_no_answer(contract: ask.Contract, outcome: Outcome, why: str) -> None:
    answer = ask.consult(contract, "_", 10)
    assert answer.outcome is outcome
    assert why in answer.reason


@pytest.mark.parametrize("contract", [hard, endless])
def test_what_cannot_be_confirmed_is_timeout_or_unknown(contract: ask.Contract) -> None:
    assert ask.consult(contract, "_", 1.0).outcome in (Outcome.TIMEOUT, Outcome.UNKNOWN)
    assert ask.consult(contract, "_", 0.0).outcome is Outcome.TIMEOUT


def test_a_bound_on_paths_is_hit() -> None:
    assert ask.consult(endless, "_", 20.0, 5).outcome is Outcome.BOUND_HIT


def test_contracts_of_called_functions_are_not_believed() -> None:
    """With CrossHair's own reading, a path on which the helper breaks its contract would silently vanish."""
    answer = ask.consult(leans_on_helper, "_", 10)
    assert answer.outcome is Outcome.REFUTED
    assert answer.values is not None
    assert answer.values["x"] != 0


def test_a_failure_inside_crosshair_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(checkables: Any) -> Any:
        raise RuntimeError("internal")

    monkeypatch.setattr(ask, "run_checkables", fail)
    answer = ask.consult(true_claim, "_", 10)
    assert (answer.outcome, answer.reason) == (Outcome.ERROR, "CrossHair failed: RuntimeError: internal")


@pytest.mark.parametrize("said", [[], [message(MessageType.CONFIRMED)]])
def test_an_engine_that_explores_nothing_never_confirms(monkeypatch: pytest.MonkeyPatch, said: list[Any]) -> None:
    monkeypatch.setattr(ask, "run_checkables", lambda checkables: said)
    assert ask.consult(true_claim, "_", 10).outcome in (Outcome.ERROR, Outcome.UNKNOWN)


def test_samples_contradict_a_wrong_confirmation() -> None:
    def wrong(x: int) -> bool:
        """
        pre: x > 0
        post: _
        """
        return x != 3

    count, said = ask.sampled(wrong)
    assert count <= ask.SAMPLES
    assert "'x': 3" in said
