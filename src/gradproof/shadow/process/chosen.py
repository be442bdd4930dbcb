"""Which windows of a watched run are recorded: the first few, or those that the user names."""

from __future__ import annotations

from dataclasses import dataclass

from gradproof.core.errors import GradproofError

LAST = "last"


@dataclass(frozen=True, slots=True)
class Chosen:
    """Numbers of windows, counted from 0. `last`: the last of the first epoch as well."""

    numbers: frozenset[int]
    last: bool = False

    @property
    def words(self) -> list[int | str]:
        """The choice as plain data."""
        return [*sorted(self.numbers), *[LAST] * self.last]


def first(windows: int) -> Chosen:
    """The first few windows."""
    return Chosen(frozenset(range(windows)))


def chosen(text: str) -> Chosen:
    """The windows of `--windows-at`: numbers and `last`, with commas. Raises GradproofError GP406 for anything else."""
    words = [word.strip() for word in text.split(",")]
    numbers = [word for word in words if word != LAST]
    if any(not (word.isascii() and word.isdigit()) for word in numbers):
        raise GradproofError(
            "GP406", f"windows-at is {text!r}", "numbers of windows, counted from 0, and `last`, with commas between",
            "write it as: --windows-at 0,1,last",
        )  # fmt: skip
    return Chosen(frozenset(map(int, numbers)), LAST in words)
