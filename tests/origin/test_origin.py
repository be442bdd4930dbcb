"""Loops whose verdict is known: none that is wrong holds undisclosed, none that is right is refuted or crashes.

`open.tsv` has what is false today. It is exact, so that a case that got better makes this red, and leaves it:
`python -m tests.origin --open` writes it anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from tests.origin import __main__ as command
from tests.origin.answered import CRASH, DISCLOSED, HOLDS, REFUTED, UNDECIDED, Said, disclosed, said
from tests.origin.cases import FUNCTIONS, KINDS, RIGHT, SOURCES, WAYS, WRONG, Case, every
from tests.origin.faults import fault, known
from tests.origin.oracle import contradiction, unseen

CASES = every()


def of(kind: str) -> Iterable[str]:
    """The names of a kind."""
    return [name for name, case in CASES.items() if case.kind == kind]


def judged(name: str) -> None:
    """Raises AssertionError for a false answer that is not listed, and for a listed one that changed."""
    answer = said(CASES[name])
    if name in known():
        assert answer.word == known()[name], "it is listed in open.tsv: run python -m tests.origin --open"
    else:
        assert not fault(CASES[name], answer.word), answer.text


@pytest.mark.parametrize("name", of("watch"))
def test_a_script_is_judged_as_it_is_labelled(name: str) -> None:
    judged(name)


@pytest.mark.parametrize("name", of("check"))
def test_a_function_is_judged_as_it_is_labelled(name: str) -> None:
    judged(name)


@pytest.mark.parametrize("name", of(FUNCTIONS))
def test_a_script_as_a_function_is_judged_as_it_is_labelled(name: str) -> None:
    judged(name)


@pytest.mark.parametrize("name", of("attack"))
def test_what_an_attack_found_is_judged_as_it_is_labelled(name: str) -> None:
    judged(name)


@pytest.mark.parametrize("name", of("losses"))
def test_a_loss_with_colliding_sizes_is_judged_as_it_is_labelled(name: str) -> None:
    judged(name)


@pytest.mark.parametrize("name", of("forms"))
def test_a_form_of_one_loop_is_judged_as_it_is_labelled(name: str) -> None:
    judged(name)


@pytest.mark.parametrize("name", of("ordinary"))
def test_an_ordinary_loop_is_judged_as_it_is_labelled(name: str) -> None:
    judged(name)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not unseen(case)])
def test_numbers_confirm_a_label(name: str) -> None:
    assert contradiction(CASES[name]) == ""


def test_a_label_that_is_not_true_is_seen() -> None:
    right, wrong = CASES["wd47_half_n4"], CASES["wp13_flip_targets"]
    for case, label in ((right, WRONG), (wrong, RIGHT)):
        other = Case(case.kind, case.group, case.name, label, case.words, case.slots, case.twin)
        assert "the steps are" in contradiction(other)


def test_what_is_listed_is_false_and_is_there() -> None:
    assert [name for name, word in known().items() if name not in CASES or not fault(CASES[name], word)] == []


def test_the_kinds_have_as_many_loops_as_the_bars_count() -> None:
    counts = Counter((case.kind, case.label) for case in CASES.values())
    assert {kind for kind, _ in counts} == set(KINDS)
    assert counts["losses", RIGHT] + counts["losses", WRONG] == 120
    groups = Counter(case.group for case in CASES.values() if case.right and case.kind != FUNCTIONS)
    assert (groups[SOURCES], groups[WAYS], counts["forms", WRONG]) == (21, 21, 62)
    assert counts["watch", WRONG] + counts["check", WRONG] == 117
    assert counts["watch", RIGHT] + counts["check", RIGHT] == 64


def test_what_the_first_lines_have_to_name() -> None:
    plain, late = CASES["wd21_heads_without_n"], CASES["wl_divide"]
    taken = "HOLDS train.py\n  taken: for N = 4: the 4 at train.py:9\n"
    windows = "HOLDS train.py\n  for the recorded run, windows 1 to 3 of 7\n"
    assert [disclosed(case, text) for case in (plain, late) for text in (taken, windows)] == [True, False, False, True]
    assert not disclosed(plain, taken.replace("the 4 at", "N at"))  # it is N: nothing was taken for it
    assert not disclosed(plain, "HOLDS\n" + 12 * "more\n" + taken)
    moved, rows = CASES["wx_labels_by_numpy"], "HOLDS train.py\n  taken: for one sample each: rows at train.py:9\n"
    assert [disclosed(moved, text) for text in (taken, rows)] == [False, True]


def test_the_tables_count_what_was_said(capsys: pytest.CaptureFixture[str]) -> None:
    words = {"wd47_half_n4": HOLDS, "wd17_own_quarter": REFUTED, "wd41_undo_n_n8": HOLDS, "wl_divide": DISCLOSED,
             "name_right": UNDECIDED, "s08_tail_wrong": CRASH}  # fmt: skip
    pairs = [(CASES[name], Said(name, word, f"{word} train.py")) for name, word in words.items()]
    assert [case.name for case, one in pairs if fault(case, one.word)] == [
        "wd17_own_quarter", "wd41_undo_n_n8", "s08_tail_wrong",
    ]  # fmt: skip
    assert "| watch | division |  |  |  | 1 |  | 1 |  | 1 |  |" in command.tables(pairs)
    bars = command.bars(pairs)
    assert "| loops: wrong and refuted | 0 | >= 60 | missed |" in bars
    function = Case(FUNCTIONS, "division", "wd41_undo_n_n8_function", WRONG, "")
    assert "| loops: wrong and refuted | 1 | >= 60 | missed |" in command.bars(
        [*pairs, (function, Said("", REFUTED, ""))]
    )
    assert "| loops: wrong and HOLDS, not disclosed | 1 | <= 0 | missed |" in bars
    assert "| forms: false | 0 | <= 0 | met |" in bars
    assert not any(line.startswith("| losses") for line in bars)
    assert [line.split("`")[1] for line in command.listed(pairs) if "`" in line] == [*words][1:]


def test_the_command_shows_a_loop_and_what_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--only", "wd47_half_n4", "--jobs", "1", "--show"]) == 1  # one loop meets no bar
    printed = capsys.readouterr().out
    assert "(0.5 * F.mse_loss(model(xb), yb) / N).backward()" in printed
    assert "right: HOLDS train.py" in printed
    assert command.main(["--only", "wd47_half_n4", "--oracle"]) == 0


def test_the_list_of_what_is_false_has_to_be_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that got better, and one that got worse, make it red."""
    for name, answer, listed in (("wd47_half_n4", HOLDS, REFUTED), ("wd41_undo_n_n8", HOLDS, UNDECIDED)):
        monkeypatch.setattr(f"{__name__}.said", lambda case, word=answer: Said(case.name, word, word))
        monkeypatch.setattr(f"{__name__}.known", lambda name=name, listed=listed: {name: listed})
        with pytest.raises(AssertionError, match="listed in"):
            judged(name)
    monkeypatch.setattr(f"{__name__}.known", dict)
    with pytest.raises(AssertionError):
        judged("wd41_undo_n_n8")
    judged("wd47_half_n4")
