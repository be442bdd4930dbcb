"""Random operators: which there are, and by what numbers they draw."""

from __future__ import annotations

from typing import Any

import torch

from gradproof.shadow.whole.interpreter import Call

GENERATORS = frozenset({
    "rand", "randn", "randint", "randperm", "normal", "rand_like", "randn_like", "randint_like", "uniform", "bernoulli",
    "exponential", "random", "cauchy", "log_normal", "geometric",
})  # fmt: skip
"""Random operators whose result depends on no tensor but for its shape, or on the numbers of their first alone."""


def bounds(call: Call) -> tuple[Any, Any]:
    """The least number that a random operator gives and the first above; of others nothing is known."""
    if call.name != "randint":
        return (None, None)
    plain = [arg for arg in call.args if isinstance(arg, int) and not isinstance(arg, bool)]
    return (0, plain[0]) if len(plain) == 1 else (plain[0], plain[1]) if len(plain) == 2 else (None, None)


def settings(call: Call) -> tuple[Any, ...]:
    """The numbers that a random operator is given: a mean, a deviation, a probability, bounds."""
    given = call.attributes[:-1] if call.name != "randperm" else ()
    return tuple(one for one in given if isinstance(one, int) or (isinstance(one, tuple) and one[:1] == ("float",)))


def by_numbers(call: Call, written: list[torch.Tensor]) -> bool:
    """Whether it draws by the numbers of its first tensor: by a mean, or a probability, for each element."""
    first = call.args[0] if call.args else None
    if not isinstance(first, torch.Tensor) or any(first is one for one in written):
        return False
    return call.name == "normal" or (call.name == "bernoulli" and len(call.args) == 1)
