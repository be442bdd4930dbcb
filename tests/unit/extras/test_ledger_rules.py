"""The rules from evidence to a verdict on a claim: every row of the tables, and no more than was shown."""

from __future__ import annotations

from itertools import product

import pytest

from gradproof.core.outcome import Effect, Outcome, Reach
from gradproof.extras.claims.document import VERDICTS, ClaimAnswer, ClaimVerdict, Part, answer, effect, verdict

ALL, BOUNDED, SAMPLED = ClaimAnswer.PROVED_ALL, ClaimAnswer.PROVED_BOUNDED, ClaimAnswer.SAMPLED
ANSWERS = (Outcome.HOLDS, Outcome.REFUTED)
EXPECTED = tuple(v for v in ClaimVerdict if v is not ClaimVerdict.OPEN)
TRUE = {ClaimVerdict.ALL, ClaimVerdict.BOUNDED, ClaimVerdict.TRUE}
FALSE = {ClaimVerdict.REFUTED, ClaimVerdict.FALSE}
SAID = [
    ({ALL}, ClaimVerdict.ALL),
    ({ALL, SAMPLED}, ClaimVerdict.ALL),
    ({ALL, ClaimAnswer.COMPUTED}, ClaimVerdict.ALL),
    ({BOUNDED}, ClaimVerdict.BOUNDED),
    ({ALL, BOUNDED}, ClaimVerdict.BOUNDED),
    ({BOUNDED, SAMPLED}, ClaimVerdict.BOUNDED),
    ({SAMPLED}, ClaimVerdict.TRUE),
    ({ClaimAnswer.COMPUTED}, ClaimVerdict.TRUE),
    ({ClaimAnswer.FIGURE_INSIDE}, ClaimVerdict.TRUE),
    ({ALL, ClaimAnswer.FIGURE_INSIDE}, ClaimVerdict.TRUE),
    ({ClaimAnswer.FIGURE_OUTSIDE}, ClaimVerdict.FALSE),
    ({ALL, ClaimAnswer.FIGURE_OUTSIDE}, ClaimVerdict.FALSE),
    ({ClaimAnswer.SAMPLED_AGAINST}, ClaimVerdict.FALSE),
    ({ClaimAnswer.COUNTEREXAMPLE}, ClaimVerdict.REFUTED),
    ({ClaimAnswer.CONTRADICTED}, ClaimVerdict.REFUTED),
    ({ClaimAnswer.COMPUTED_OTHERWISE}, ClaimVerdict.REFUTED),
    ({ALL, ClaimAnswer.COUNTEREXAMPLE, ClaimAnswer.NOTHING}, ClaimVerdict.REFUTED),
    ({ClaimAnswer.FIGURE_OUTSIDE, ClaimAnswer.NOTHING}, ClaimVerdict.FALSE),
    ({ALL, ClaimAnswer.NOTHING}, ClaimVerdict.OPEN),
    ({ClaimAnswer.FIGURE_INSIDE, ClaimAnswer.NOTHING}, ClaimVerdict.OPEN),
    (set(), ClaimVerdict.OPEN),
]


@pytest.mark.parametrize(("stated", "said"), SAID, ids=lambda v: " ".join(sorted(v)) if isinstance(v, set) else str(v))
def test_a_verdict_follows_from_what_was_told(stated: set[ClaimAnswer], said: ClaimVerdict) -> None:
    assert verdict(stated) is said


def test_every_rule_is_seen_to_apply_and_each_is_needed() -> None:
    assert {said for _, said in SAID} == {name for name, _ in VERDICTS}
    assert {a for stated, _ in SAID for a in stated} == set(ClaimAnswer)
    for name, _ in VERDICTS:
        fewer = [rule for rule in VERDICTS if rule[0] is not name]
        lost = [
            stated for stated, said in SAID if next((n for n, applies in fewer if applies(stated)), None) is not said
        ]
        assert lost != [], name


@pytest.mark.parametrize("part", Part)
@pytest.mark.parametrize("reach", [*Reach, None])
def test_no_outcome_but_an_answer_tells_anything(part: Part, reach: Reach | None) -> None:
    stated = {o: answer(part, o, reach) for o in Outcome}
    assert {stated[o] for o in Outcome if o not in ANSWERS} == {ClaimAnswer.NOTHING}
    assert (stated[Outcome.HOLDS] is ClaimAnswer.NOTHING) is (reach is None)
    refuted = ClaimAnswer.NOTHING if part is Part.CONTRADICTS else ClaimAnswer.COUNTEREXAMPLE
    assert stated[Outcome.REFUTED] is refuted


def test_the_table_is_total_and_a_sample_is_never_a_proof() -> None:
    for part, outcome, reach in product(Part, Outcome, Reach):
        stated = answer(part, outcome, reach)
        if outcome is Outcome.HOLDS and reach is Reach.SAMPLED:
            assert stated in (ClaimAnswer.SAMPLED, ClaimAnswer.SAMPLED_AGAINST)
    sampled = [answer(p, Outcome.HOLDS, Reach.SAMPLED) for p in (Part.STATES, Part.REFUTES)]
    assert verdict(sampled) is ClaimVerdict.TRUE


@pytest.mark.parametrize(("expect", "found"), list(product(EXPECTED, ClaimVerdict)))
def test_only_the_expected_verdict_is_as_expected(expect: ClaimVerdict, found: ClaimVerdict) -> None:
    made = effect(expect, found, (), False)
    assert (made is Effect.DISCHARGED) is (found is expect)
    opposite = (expect in TRUE and found in FALSE) or (expect in FALSE and found in TRUE)
    assert (made is Effect.BROKEN) is opposite
    assert effect(expect, found, (), True) is Effect.BROKEN


@pytest.mark.parametrize("expect", [v for v in EXPECTED if v is not ClaimVerdict.NOT_TESTABLE])
def test_what_is_half_there_is_never_as_expected(expect: ClaimVerdict) -> None:
    assert effect(expect, expect, (ClaimAnswer.NOTHING,), False) is Effect.OPEN
