"""Mutants of the loops of this folder: bugs that somebody shipped, each as an edit of the text of a correct loop.

A bug is a row of `BUGS`; a mutant is a bug in a loop. Most come from `common`, which knows the few lines that all loops
share; the others are written out in `mutants_plain`, `mutants_hand` and `mutants_frameworks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.loops.bugs import BUGS, LoopMutant
from tests.loops.catalogue import LOOPS
from tests.loops.mutants_common import FAMILIES, NOT_IN_FAMILY, common
from tests.loops.mutants_frameworks import FRAMEWORK_MUTANTS
from tests.loops.mutants_hand import HAND_MUTANTS
from tests.loops.mutants_plain import PLAIN_MUTANTS

MUTANTS: list[LoopMutant] = [
    *(mutant for parts in FAMILIES for mutant in common(parts)),
    *PLAIN_MUTANTS,
    *HAND_MUTANTS,
    *FRAMEWORK_MUTANTS,
]

NOWHERE: Mapping[str, str] = {
    "clip_not_for_adamw": "a loop that does not clip is another correct loop; nothing in it says that it should",
    "clip_first_param_only": "a clip of some of the parameters, in both runs, is code that people write on purpose",
    "static_graph": "PyTorch 2.13 stops with INTERNAL ASSERT, and its processes then hang",
}
"""Bugs of the PyTorch steps that no single loop can express, with the reason."""


def _excluded() -> Iterator[tuple[tuple[str, str], str]]:
    made = {(mutant.name, mutant.loop) for mutant in MUTANTS}
    for name, bug in BUGS.items():
        for loop in LOOPS.values():
            if (name, loop.name) in made:
                continue
            if loop.control:
                reason = "a negative control"
            else:
                reason = NOT_IN_FAMILY.get((name, loop.name)) or NOWHERE.get(name) or bug.needs
            yield (name, loop.name), reason


EXCLUDED: Mapping[tuple[str, str], str] = dict(_excluded())
"""Every cell of bugs by loops that has no mutant, with what the bug needs and the loop lacks."""


def apply(mutant: LoopMutant) -> str:
    """The source of the mutated loop. Raises ValueError where an old text is not found exactly once.

    A line of the new text that begins with `@` gets the indentation of the line in which the old text stands.
    """
    text = LOOPS[mutant.loop].path.read_text(encoding="utf-8")
    for old, new in mutant.edits:
        if text.count(old) != 1:
            raise ValueError(f"{mutant.name} in {mutant.loop}: {old!r} is found {text.count(old)} times")
        line = text[text.rindex("\n", 0, text.index(old)) + 1 :]
        indent = line[: len(line) - len(line.lstrip())]
        text = text.replace(old, new.replace("\n@", f"\n{indent}"))
    return text
