"""All options of all commands: one thing has one name and one help text, and a word that is nearly right is named."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from gradproof.cli import COMMANDS, GROUPS, cli, dispatch
from gradproof.core.outcome import EXIT_CODE, Exit

DIFFERENT = {
    "--format": "verify, report and gate take several, each with a file",
    "--out": "of claims it is a folder of three files",
    "-k": "claims have no obligations",
    "--seed": "watch draws windows by it, the others what is random in a run",
    "--windows": "check makes them, watch records them",
    "--device": "check hands it to your function; run and sweep choose among those that they know",
    "--quiet": "some have no verdict to print",
    "--time-limit": "check has one run, verify one for each check",
    "--certificate": "check logs a run, bound writes a proof",
    "--wheel": "attest describes it, verify-bundle compares it",
}
"""Options whose name means something else in another command, and why."""


def command(name: str) -> click.Command:
    """The command of this name."""
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


def options() -> Iterator[tuple[str, click.Option, str, str]]:
    """Command, option, its shown long name, and its help without what depends on the command."""
    for name in COMMANDS:
        for option in command(name).params:
            if isinstance(option, click.Option) and not option.hidden:
                long = next((o for o in option.opts if o.startswith("--")), option.opts[0])
                yield name, option, long, re.sub(r"\s*\[default: .*?\]", "", option.help or "")


def test_a_name_means_one_thing_in_every_command() -> None:
    texts: dict[str, dict[str, str]] = {}
    for name, _, long, help in options():
        texts.setdefault(long, {})[name] = help
    several = {long: found for long, found in texts.items() if len(set(found.values())) > 1}
    assert {long: found for long, found in several.items() if long not in DIFFERENT} == {}
    assert set(DIFFERENT) == set(several)


def test_a_thing_has_one_name_in_every_command() -> None:
    names: dict[str, set[str]] = {}
    for _, _, long, help in options():
        names.setdefault(help, set()).add(long)
    assert {help: found for help, found in names.items() if len(found) > 1} == {}


def test_every_option_has_a_help() -> None:
    assert [(name, long) for name, _, long, help in options() if not help.endswith(".") and ":" not in help] == []


def test_what_prints_json_takes_format_and_json() -> None:
    for name in COMMANDS:
        long = {o for p in command(name).params for o in p.opts}
        assert ("--json" not in long) or ("--format" in long), name


@pytest.mark.parametrize(("old", "new"), [("--accum", "--accum-steps"), ("--micro", "--micro-batch")])
def test_a_former_name_is_refused_with_the_present_one(old: str, new: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["plan-batch", old, "4"]) == EXIT_CODE[Exit.USAGE]
    assert f"{old!r}. Did you mean {new!r}?" in capsys.readouterr().err


def nearly() -> Iterator[tuple[str, str, str]]:
    """Command, an option with one letter left out, the option."""
    for name, _, long, _ in options():
        if len(long) > 7:
            yield name, long[:5] + long[6:], long


def test_a_word_that_is_nearly_an_option_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    seen = 0
    for name, wrong, right in nearly():
        known = {o for p in command(name).params for o in (*p.opts, *p.secondary_opts)}
        if wrong in known:
            continue
        assert dispatch([name, wrong]) == EXIT_CODE[Exit.USAGE], (name, wrong)
        err = capsys.readouterr().err
        assert "id you mean" in err, (name, wrong, err)
        assert right in err, (name, wrong, err)
        seen += 1
    assert seen > 100


@pytest.mark.parametrize("name", list(COMMANDS))
def test_a_word_that_is_nearly_a_command_is_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = name[0] + name[2] + name[1] + name[3:]
    assert dispatch([wrong]) == EXIT_CODE[Exit.USAGE]
    assert f"Did you mean '{name}'" in capsys.readouterr().err or wrong in COMMANDS


@pytest.mark.parametrize(
    ("word", "meant"),
    [("train.py:train", "gradproof check train.py:train"), ("train.py", "gradproof watch -- python train.py"),
     ("zzzz", "See 'gradproof --help'")],
)  # fmt: skip
def test_a_loop_instead_of_a_command(word: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch([word]) == EXIT_CODE[Exit.USAGE]
    assert meant in capsys.readouterr().err


def test_the_help_begins_with_what_a_newcomer_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["--help"]) == 0
    out = capsys.readouterr().out
    titles = [out.index(f"\n{title}:\n") for title in GROUPS]
    assert titles == sorted(titles)
    assert [next(iter(group)) for group in GROUPS.values()][:2] == ["check", "verify"]
    assert list(COMMANDS)[:3] == ["check", "watch", "demo"]
