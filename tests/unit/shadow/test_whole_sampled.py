"""Operators of the user's own: laws that trials on the kernel find, and laws that are registered, both ways."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, library, nn

from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Outcome
from gradproof.laws import REGISTERED, register_law
from gradproof.shadow.follow import laws
from gradproof.shadow.follow.interpreter import Call
from gradproof.shadow.follow.terms import UNIT
from gradproof.shadow.follow.values import Value, shared
from gradproof.shadow.ops import trials
from gradproof.shadow.ops.trials import undisturbed
from gradproof.shadow.process.check import target_of, verify
from gradproof.shadow.process.watch import ScriptWatch
from gradproof.shadow.request import Request
from gradproof.shadow.result import Verification
from gradproof.shadow.tape.run import Run
from tests.checked import check
from tests.unit.custom_operators import MIXED, MIXED_BACK, RELU, SWISH, Function, Own, step_of

REPOSITORY = Path(__file__).parents[3]
HOLDS, REFUTED = Outcome.HOLDS, Outcome.REFUTED
FORWARD, BACKWARD = ("b...", "D"), ("b...", "b...", "D")


@pytest.fixture
def registered() -> Iterator[dict[str, Any]]:
    """Laws that a test registers are forgotten after it."""
    yield REGISTERED
    REGISTERED.clear()


def assumed(found: Verification) -> list[str]:
    """The laws of the user's operators that a verification rests on, without what they say."""
    return [text.partition(": samples")[0] for text in found.assumptions if "sampled law of own." in text]


def equality(found: Verification) -> Outcome:
    """What was decided of the gradients."""
    return found.result("GA-EQ-001").outcome


# -- Sampled laws.


@pytest.mark.parametrize("micro_batch", [1, 2])
def test_an_operator_that_maps_rows_is_proved_and_its_law_is_named(micro_batch: int) -> None:
    found = check(step_of(SWISH), micro_batch=micro_batch)
    assert equality(found) is HOLDS
    names = ("own.swish", "own.swish_backward")
    assert assumed(found) == [f"holds, assuming the sampled law of {name}" for name in names]


def test_an_autograd_function_of_such_operators_is_proved() -> None:
    found = check(step_of(Function.apply))
    assert equality(found) is HOLDS
    assert assumed(found)[1] == "holds, assuming the sampled law of own.swish_backward"


def test_what_an_operator_of_rows_is_weighed_by_is_refuted() -> None:
    found = check(step_of(SWISH, divided=False))
    assert equality(found) is REFUTED
    assert equality(check(step_of(SWISH, divided=False), fake=True)) is not HOLDS


@pytest.mark.parametrize(
    ("name", "mixing"), [*((n, f"own.{n}") for n in MIXED), *((n, f"own.{n}_backward") for n in MIXED_BACK)]
)
def test_an_operator_that_mixes_rows_is_not_proved(name: str, mixing: str) -> None:
    found = check(step_of({**MIXED, **MIXED_BACK}[name]), micro_batch=2)
    result = found.result("GA-EQ-001")
    assert result.outcome not in (HOLDS, REFUTED)
    assert f"holds, assuming the sampled law of {mixing}" not in assumed(found)
    assert result.location is not None
    assert result.location.file.endswith("custom_operators.py")


NEEDED: dict[str, tuple[str, Any]] = {
    "large": ("EXTREMES", ()), "first_if_large": ("EXTREMES", ()), "noisy": ("_near", lambda *_: None),
    "centred": ("_near", lambda *_: None),
}  # fmt: skip


@pytest.mark.parametrize("name", NEEDED)
def test_without_a_trial_an_operator_that_mixes_rows_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    what, instead = NEEDED[name]
    monkeypatch.setattr(trials, what, instead)
    x, w = torch.randn(2, 3), torch.ones(3)
    parts = Value(({1: UNIT}, {2: UNIT}), 0)
    call = Call("x", (x, w), {}, (), [x, w], [parts, shared({3: UNIT})], [(2, 3), (3,)], [MIXED[name](x, w)])
    func = getattr(torch.ops.own, name).default
    assert laws.sampled(func, call, {0: 0}) is not None
    monkeypatch.undo()
    assert laws.sampled(func, call, {0: 0}) is None


def test_a_name_of_torchs_is_not_torchs_operator() -> None:
    assert equality(check(step_of(RELU))) is not HOLDS
    assert equality(check(step_of(RELU), fake=True)) is not HOLDS


def test_without_numbers_no_law_is_sampled() -> None:
    found = check(step_of(SWISH), fake=True)
    assert equality(found) is not HOLDS
    assert assumed(found) == []


def test_a_trial_moves_no_generator() -> None:
    states = (random.getstate(), torch.get_rng_state(), np.random.get_state()[1])
    with undisturbed([]):
        assert (torch.rand(1), random.random(), np.random.rand()) is not None
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    assert np.array_equal(np.random.get_state()[1], states[2])


# -- On one run of a script.


def script(operator: Any) -> Verification:
    """A loop of two windows, as `watch` sees it."""
    with ScriptWatch(accum_steps=2, windows=2) as watch:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), Own(operator, 4), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(2):
            for _ in range(2):
                a, b = torch.randn(2, 3), torch.randn(2, 1)
                (nn.functional.mse_loss(model(a), b) / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
    return watch.verification()


def test_one_run_uses_sampled_laws() -> None:
    found = script(SWISH)
    assert equality(found) is HOLDS
    assert any("sampled law of own.swish_backward" in text for text in assumed(found))


@pytest.mark.parametrize("name", ["centred", "large", "first_if_large"])
def test_one_run_does_not_prove_an_operator_that_mixes_rows(name: str) -> None:
    assert equality(script(MIXED[name])) is not HOLDS


# -- Registered laws.


@pytest.mark.parametrize("fake", [False, True])
def test_the_example_of_the_handbook_holds(registered: dict[str, Any], tmp_path: Path, fake: bool) -> None:
    text = (REPOSITORY / "docs" / "own-loop.md").read_text(encoding="utf-8")
    example = text.partition("### Operators of your own")[2].partition("```python")[2].partition("```")[0]
    file = tmp_path / "train.py"
    file.write_text(example, encoding="utf-8")
    found = verify(target_of(f"{file}:train"), Request(fake=fake), 60)
    assert equality(found) is HOLDS
    line = next(i for i, row in enumerate(example.splitlines(), 1) if row.startswith("register_law"))
    rest = ", which was not tried here" if fake else ""
    assert f"assumed: the law that {file}:{line} registered for mylib.swish{rest}" in found.assumptions


def test_the_command_line_refuses_a_wrong_law(tmp_path: Path) -> None:
    text = (REPOSITORY / "docs" / "own-loop.md").read_text(encoding="utf-8")
    example = text.partition("### Operators of your own")[2].partition("```python")[2].partition("```")[0]
    file = tmp_path / "train.py"
    file.write_text(example.replace("return x * x.sigmoid()", "return x - x.mean(0)"), encoding="utf-8")
    with pytest.raises(GradproofError, match="GP414"):
        verify(target_of(f"{file}:train"), Request(), 60)


def swish_is_stated() -> None:
    """The right laws."""
    register_law("own::swish", FORWARD, ["b..."])
    register_law(torch.ops.own.swish_backward, BACKWARD, ["b...", "D"], linear=[0])


def test_a_law_is_registered_without_torch() -> None:
    code = "import gradproof.laws, sys; print(sorted({'torch', 'numpy', 'z3'} & set(sys.modules)))"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout == "[]\n"


@pytest.mark.parametrize("fake", [False, True])
def test_a_registered_law_is_used_and_named_with_its_line(registered: dict[str, Any], fake: bool) -> None:
    swish_is_stated()
    found = check(step_of(SWISH), fake=fake)
    assert equality(found) is HOLDS
    for name in ("own.swish", "own.swish_backward"):
        line = registered[name].line
        rest = ", which was not tried here" if fake else ""
        assert f"assumed: the law that {line} registered for {name}{rest}" in found.assumptions
        assert line.startswith(f"{__file__}:")


WRONG = {
    "a map for a sum": ("swish_backward", ("bc", "bc", "c"), ["bc", "B"], [0]),
    "a sum for a map": ("swish", FORWARD, ["BC"], []),
    "map of mixed rows": ("centred", FORWARD, ["b..."], []),
    "map of large rows": ("large", FORWARD, ["b..."], []),
    "linear": ("swish", FORWARD, ["b..."], [0]),
    "axes": ("swish", ("b", "D"), ["b..."], []),
    "number of arguments": ("swish", ("b...",), ["b..."], []),
    "sizes": ("swish", ("bc", "b"), ["bc"], []),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_law_is_refused_at_its_first_use(registered: dict[str, Any], case: str) -> None:
    name, arguments, results, linear = WRONG[case]
    register_law(f"own::{name}", arguments, results, linear=linear)
    base = name.removesuffix("_backward")
    with pytest.raises(GradproofError) as error:
        check(step_of(SWISH if base == "swish" else MIXED[base]))
    assert (error.value.code, error.value.where) == ("GP414", registered[f"own.{name}"].line)
    assert error.value.found.startswith(f"own.{name}: ")


def test_a_step_that_catches_the_error_proves_nothing(registered: dict[str, Any]) -> None:
    register_law("own::centred", FORWARD, ["b..."])

    def caught(x: Tensor, w: Tensor) -> Tensor:
        try:
            return MIXED["centred"](x, w)
        except GradproofError:
            return x

    found = check(step_of(caught)).result("GA-EQ-001")
    assert found.outcome is Outcome.OPAQUE
    assert "own.centred" in found.reason


def test_an_operator_that_writes_its_arguments_takes_no_law(registered: dict[str, Any]) -> None:
    def doubled(x: Tensor, out: Tensor) -> None:
        out.copy_(2 * x)

    library.custom_op("own::doubled", doubled, mutates_args=("out",), schema="(Tensor x, Tensor(a!) out) -> ()")
    register_law("own::doubled", ["b...", "b..."], [])

    def writing(x: Tensor, w: Tensor) -> Tensor:
        torch.ops.own.doubled(x.detach(), torch.empty_like(x))
        return x * w

    with pytest.raises(GradproofError, match="GP414"):
        check(step_of(writing))


def test_one_run_uses_registered_laws(registered: dict[str, Any]) -> None:
    swish_is_stated()
    found = script(SWISH)
    assert equality(found) is HOLDS
    assert f"assumed: {registered['own.swish_backward'].words}" in found.assumptions


def test_a_wrong_law_ends_no_script_and_proves_nothing(registered: dict[str, Any]) -> None:
    register_law("own::centred", FORWARD, ["b..."])
    found = script(MIXED["centred"])
    assert found.result("GA-EQ-001").outcome is Outcome.OPAQUE
    assert "own.centred" in found.result("GA-EQ-001").reason


SENSELESS: dict[str, tuple[Any, ...]] = {
    "no space": ("swish", ["b"], ["b"], []),
    "of torch": ("aten::relu", ["b..."], ["b..."], []),
    "letters": ("own::x", ["b1"], ["b"], []),
    "twice": ("own::x", ["bb"], ["b"], []),
    "from nowhere": ("own::x", ["B"], ["b"], []),
    "nothing mapped": ("own::x", ["B"], ["B"], []),
    "no such argument": ("own::x", ["b"], ["b"], [1]),
}


@pytest.mark.parametrize("case", SENSELESS)
def test_a_law_that_makes_no_sense_is_refused_at_once(registered: dict[str, Any], case: str) -> None:
    operator, arguments, results, linear = SENSELESS[case]
    with pytest.raises(GradproofError, match="GP414"):
        register_law(operator, arguments, results, linear=linear)
    assert registered == {}


def test_one_operator_has_one_law(registered: dict[str, Any]) -> None:
    swish_is_stated()
    swish_is_stated()
    with pytest.raises(GradproofError, match="GP414"):
        register_law("own::swish", ["b...", "b"], ["b..."])
    assert len(registered) == 2


def test_axes_beside_the_samples_are_tried_as_well(registered: dict[str, Any]) -> None:
    def rows(x: Tensor) -> Tensor:
        return x.softmax(-1)

    library.custom_op("own::rows", rows, mutates_args=(), schema="(Tensor x) -> Tensor")
    register_law("own::rows", ["bc"], ["bc"])

    def step(run: Run) -> None:
        model, x = nn.Linear(3, 3), torch.randn(run.samples, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for a in x.split(run.micro_batch_size):
            torch.ops.own.rows(model(a).detach())
            model(a).mean().backward()
            optimizer.step()

    with pytest.raises(GradproofError, match=r"GP414(.|\n)*axis c"):
        check(step)
