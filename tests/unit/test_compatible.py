"""Accumulation beside other features: the right loop holds with each, and each was really on."""

from __future__ import annotations

import pytest

from gradproof.backends.torch_property import Case, Cell, Place, Refutation
from models import layouts
from symbolic.compatible import FEATURES, with_each_feature

PLACE = Place("cpu", "fp32", {"GA-COMPAT-001": 1e-4}, frozenset({"GA-COMPAT-001"}))


@pytest.mark.parametrize("feature", FEATURES)
def test_each_feature_was_on_and_changes_nothing(feature: str) -> None:
    (case,) = with_each_feature.cases(Cell(feature, 4), PLACE)
    assert with_each_feature.test(layouts.Layout, case, PLACE).covers == {feature}


def test_a_feature_that_is_off_is_not_covered() -> None:
    assert with_each_feature.test(layouts.Layout, Case("plain", 4), PLACE).covers == {"plain"}
    assert "plain" not in with_each_feature.covers(PLACE)


@pytest.mark.parametrize("feature", ["autocast", "one_cycle", "checkpoint", "fused"])
@pytest.mark.parametrize("name", layouts.FEATURED)
def test_a_wrong_loop_is_refuted_with_each_feature(feature: str, name: str) -> None:
    with pytest.raises(Refutation, match=feature):
        with_each_feature.test(layouts.FEATURED[name].subject, Case(feature, 4), PLACE)
