"""Results of operators on fake tensors that are made again by the form of the arguments are those that torch makes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from gradproof.core.outcome import Outcome
from gradproof.shadow.follow import runs
from gradproof.shadow.judge.two_runs import check_whole
from gradproof.shadow.ops.schema import Forms, Spec, spec_of, tensors_in
from gradproof.shadow.request import Request
from tests.unit.whole_models import Gpt, Llama, Pictures, loop, pictures, tokens

MODELS: dict[str, tuple[Any, Any]] = {
    "GPT": (Gpt, tokens),
    "Llama": (Llama, tokens),
    "pictures": (lambda: Pictures(lambda: torch.nn.GroupNorm(2, 4)), pictures),
}


def described(made: Any, given: list[torch.Tensor]) -> list[Any]:
    """All that there is to a fake tensor; of its storage, whose it is."""
    found = []
    for one in tensors_in(made):
        assert isinstance(one, FakeTensor)
        storage = one.untyped_storage()
        shared = [at for at, other in enumerate(given) if other.untyped_storage()._cdata == storage._cdata]
        form = (one.shape, one.stride(), one.storage_offset(), one.dtype, one.device, one.layout, one.is_conj())
        found.append((*form, shared, storage.nbytes(), one.requires_grad, sorted(vars(one)), one.constant is None))
    return found


class Crossed(Forms):
    """Asks torch as well, each time. A second write of a fake tensor changes nothing."""

    compared = 0

    def call(self, func: Any, spec: Spec, args: Any, kwargs: Any) -> Any:
        """The results of an operator."""
        given, before = tensors_in((args, kwargs)), len(self.known)
        made = super().call(func, spec, args, kwargs)
        if before == len(self.known) and all(one.constant is None for one in given) and not spec.moves:
            assert described(made, given) == described(func(*args, **kwargs), given), spec.name
            type(self).compared += 1
        return made


class Blind(Crossed):
    """Does not see how a tensor lies in its storage."""

    def _form(self, value: Any, given: list[torch.Tensor]) -> Any:
        form = super()._form(value, given)
        return form[::3] if type(value) is FakeTensor else form


@pytest.mark.parametrize("name", MODELS)
def test_results_are_those_that_torch_makes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "Forms", Crossed)
    Crossed.compared = 0
    found = check_whole(loop(*MODELS[name]), "step", Request(fake=True))
    assert found.outcome is Outcome.HOLDS, [result.reason for result in found.results]
    assert Crossed.compared > 500


def test_a_form_that_leaves_strides_out_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "Forms", Blind)
    found = check_whole(loop(Gpt), "step", Request(fake=True))
    assert any("AssertionError" in result.reason for result in found.results)


def test_what_depends_on_numbers_is_asked_anew() -> None:
    aten = torch.ops.aten
    with FakeTensorMode() as mode:
        forms, x = Forms(mode), torch.zeros(4)
        number, mask = torch.tensor(2.0), torch.zeros(4, dtype=torch.bool)

        def call(func: Any, *args: Any) -> Any:
            spec = spec_of(func)
            assert spec is not None
            return forms.call(func, spec, args, {})

        call(aten.add.Tensor, number, number)
        assert call(aten.add.Tensor, number, number).item() == 4
        with pytest.raises(Exception, match="nonzero"):
            call(aten.index.Tensor, x, [mask])
        call(aten.unsqueeze_.default, x, 0)
        assert not forms.known
        assert x.shape == (1, 4)


def test_an_argument_that_an_operator_resizes_is_resized_each_time() -> None:
    spec = spec_of(torch.ops.aten.add.out)
    assert spec is not None
    with FakeTensorMode() as mode:
        forms, x = Forms(mode), torch.zeros(3)
        for _ in range(3):
            made = torch.empty(0)
            forms.call(torch.ops.aten.add.out, spec, (x, x), {"out": made})
            assert made.shape == (3,)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
def test_the_default_type_and_the_type_of_a_number_are_parts_of_a_form(kind: torch.dtype) -> None:
    spec = spec_of(torch.ops.aten.mul.Tensor)
    assert spec is not None
    with FakeTensorMode() as mode:
        forms, whole = Forms(mode), torch.zeros(3, dtype=torch.int64)
        for number, wanted in ((2, torch.int64), (2.0, kind), (True, torch.int64), (2, torch.int64), (2.0, kind)):
            before = torch.get_default_dtype()
            torch.set_default_dtype(kind)
            try:
                assert forms.call(torch.ops.aten.mul.Tensor, spec, (whole, number), {}).dtype is wanted
            finally:
                torch.set_default_dtype(before)
