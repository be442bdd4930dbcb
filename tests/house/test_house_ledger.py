"""The ledger of this repository: enough rows that count, every system in it, and no verdict in the file itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import pytest
from house_rules import REPOSITORY

from gradproof.contract.model import load as contract_at
from gradproof.core.check import Check
from gradproof.core.outcome import Expect
from gradproof.extras.claims.document import Claims, ClaimVerdict, totals
from gradproof.extras.claims.figures import judged, value_of
from gradproof.extras.claims.load import ClaimLedger, built, can_turn_red, load
from gradproof.session import Options, Session
from gradproof.verdict.plan import plan

FEWEST = 40
SYSTEMS = ("kernel", "adamw", "A", "B", "C", "D")


@cache
def planned() -> tuple[Check, ...]:
    """Every check of every contract of the repository."""
    return tuple(
        check for path in sorted(REPOSITORY.glob("proofs/*/contract.yaml")) for check in plan(contract_at(path))
    )


@cache
def ledger() -> ClaimLedger:
    """The ledger of the repository."""
    return load(REPOSITORY, planned())


def counted(made: ClaimLedger, checks: Iterable[Check]) -> list[str]:
    """Rows that name a check or a figure that can turn red."""
    red = {check.id for check in checks if can_turn_red(check)}
    figures = {row.id for row in made.claims if any(f.compute is None for f in row.figures or ())}
    return [row.id for row in made.claims if row.id in figures or any(c.id in red for _, c in made.named[row.id])]


def test_enough_rows_count() -> None:
    assert len(counted(ledger(), planned())) >= FEWEST


def test_rows_that_nobody_can_turn_red_are_seen() -> None:
    blind = [replace(check, mutants=(), expect=Expect.HOLDS, kind=planned()[0].kind) for check in planned()]
    bare = replace(ledger(), claims=tuple(row.model_copy(update={"figures": None}) for row in ledger().claims))
    assert counted(bare, blind) == []
    assert len(counted(bare, planned())) < len(counted(ledger(), planned()))


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_has_rows(system: str) -> None:
    rows = [row for row in ledger().claims if row.source == system]
    assert len([row for row in rows if row.id in counted(ledger(), planned())]) >= len(rows) // 2 > 2


def test_ids_are_in_order_and_name_their_source() -> None:
    letters = {"kernel": "K", "adamw": "AW"}
    for system in SYSTEMS:
        found = [row.id for row in ledger().claims if row.source == system]
        letter = letters.get(system, system)
        assert found == [f"CLAIM-{letter}-{i:02d}" for i in range(1, len(found) + 1)]


def test_what_cannot_be_tested_is_said_and_does_not_count() -> None:
    silent = [row.id for row in ledger().claims if ClaimVerdict(row.expect) is ClaimVerdict.NOT_TESTABLE]
    assert len(silent) > 0
    assert not set(silent) & set(counted(ledger(), planned()))


@pytest.mark.parametrize(
    ("id_", "content"),
    [
        ("CLAIM-C-15", {"variance": {"slope_low": -9, "slope_high": 7}}),
        ("CLAIM-C-15", {"variance": {"slope_low": -1, "slope_high": -0.5}}),
        (
            "CLAIM-C-16",
            {
                "rows": [{"samples_per_sec_high": 101}, {"samples_per_sec_low": 98}],
                "knee": {"effective_batch": 16},
            },
        ),
    ],
)
def test_a_measurement_that_says_nothing_makes_no_row_true(id_: str, content: Any) -> None:
    """A slope that may be anything; a curve that falls from its first point to its knee."""
    [row] = (r for r in ledger().claims if r.id == id_)
    assert not all(judged(figure, value_of(figure, content)) for figure in row.figures or ())


def flags(**changed: bool) -> Any:
    """The study of determinism flags: every flag alike, but for what is changed of each."""
    names = ("nothing", "torch.use_deterministic_algorithms", "torch.backends.cudnn.deterministic")
    names += ("torch.backends.cudnn.benchmark", "CUBLAS_WORKSPACE_CONFIG", "PYTHONHASHSEED")
    names += ("torch.manual_seed", "Generator.manual_seed", "torch.set_num_threads")
    answers = {"in_process": True, "across_processes": True, "same_bits": True} | changed
    return {"flags": [{"flag": name, "device": "cpu"} | answers for name in names]}


def late(optimizer: str, run: str, **values: float) -> Any:
    """The study of a missing 1/K: one run."""
    return {"late": {"runs": [{"optimizer": optimizer, "run": run} | values]}}


def above(*measured: int) -> Any:
    """Bytes of windows above a window of one, whose gradient has 100."""
    rows = [{"column": "bytes above a window of one", "n": 4, "measured": m, "bound": 100} for m in measured]
    return {"measurements": rows, "controls": [{"name": "keeps_the_sum_twice", "killed": True}]}


def doubling(*medians: float) -> Any:
    """Times of a step of twice as many micro-batches."""
    return {"doubling": [{"accumulate": 16, "times": {"median": median}} for median in medians]}


MISSING, RESTORED = "without 1/K", "1/K restored in the last quarter"
FIRST = {"optimizer": "SGD", "with_scale": 1.0}


@pytest.mark.parametrize(
    ("id_", "content", "inside"),
    [
        ("CLAIM-A-06", flags(), True),
        ("CLAIM-A-06", flags(across_processes=False), False),
        ("CLAIM-A-06", flags(in_process=False), False),
        ("CLAIM-A-17", flags(), False),
        ("CLAIM-A-17", flags(across_processes=False), True),
        ("CLAIM-A-18", flags(), True),
        ("CLAIM-A-18", flags(same_bits=False), False),
        ("CLAIM-A-19", flags(), False),
        ("CLAIM-A-19", flags(in_process=False), True),
        ("CLAIM-A-20", flags(same_bits=False), True),
        ("CLAIM-A-20", flags(), False),
        ("CLAIM-B-22", late("SGD", MISSING, early=1, early_with=1, late=4, late_with=1), True),
        ("CLAIM-B-22", late("SGD", MISSING, early=2, early_with=1, late=4, late_with=1), False),
        ("CLAIM-B-22", late("SGD", MISSING, early=1, early_with=1, late=1, late_with=1), False),
        ("CLAIM-B-24", late("AdamW", MISSING, late=1, late_with=1), False),
        ("CLAIM-B-24", late("AdamW", MISSING, late=4, late_with=1), True),
        ("CLAIM-C-19", {"first_step": {"runs": [FIRST | {"without": 16.0}]}}, True),
        ("CLAIM-C-19", {"first_step": {"runs": [FIRST | {"without": 1.0}]}}, False),
        ("CLAIM-C-20", {"first_step": {"runs": [FIRST | {"optimizer": "AdamW", "without": 1.0}]}}, False),
        ("CLAIM-C-20", {"first_step": {"runs": [FIRST | {"optimizer": "AdamW", "without": 16.0}]}}, True),
        ("CLAIM-D-06", above(0), True),
        ("CLAIM-D-06", above(68), False),
        ("CLAIM-D-22", above(68), True),
        ("CLAIM-D-22", above(101), False),
        ("CLAIM-D-23", doubling(1.95, 2.0), True),
        ("CLAIM-D-23", doubling(1.4, 2.0), False),
        ("CLAIM-D-24", doubling(1.95, 2.0), True),
        ("CLAIM-D-24", doubling(1.4, 2.0), False),
    ],
)
def test_a_row_follows_its_measurement_both_ways(id_: str, content: Any, inside: bool) -> None:
    [row] = (r for r in ledger().claims if r.id == id_)
    assert all(judged(figure, value_of(figure, content)) for figure in row.figures or ()) is inside


@pytest.mark.parametrize(("end", "inside"), [(1.0, True), (3.0, False)])
def test_a_loss_that_does_not_come_down_refutes_the_restored_scale(end: float, inside: bool) -> None:
    """CLAIM-B-23 has figures of two runs; these are of the one whose 1/K is restored."""
    [row] = (r for r in ledger().claims if r.id == "CLAIM-B-23")
    content = late("SGD", RESTORED, end=end, highest=4.0, end_with=1.0)
    own = [f for f in row.figures or () if (f.where or {})["run"] == RESTORED]
    assert len(own) == 2
    assert all(judged(figure, value_of(figure, content)) for figure in own) is inside


STRICT = re.compile(r"published with <")


def test_a_tolerance_that_is_published_strictly_says_so() -> None:
    """And where a proof of at most is said to hold strictly, the bound that is proved lies below the tolerance."""
    named = {row.id: row for row in ledger().claims if STRICT.search(row.form)}
    assert set(named) == {f"CLAIM-K-{i:02d}" for i in range(2, 7)}
    assert Fraction(error_of("fp32", "fp32", 256)) < Fraction("1e-5")
    assert Fraction(error_of("fp16", "fp32", 4096)) < Fraction("1e-3")
    assert Fraction(error_of("fp16", "fp16", 4)) < Fraction("1e-3")
    refuted = [id_ for id_, row in named.items() if "falls with it" in row.form]
    assert [named[id_].expect for id_ in refuted] == ["REFUTED"] * len(refuted) == ["REFUTED"] * 2


def error_of(gradients: str, buffer: str, n: int) -> str:
    """The largest error that the study of rounding has for this many micro-batches, left to right."""
    rows = json.loads((REPOSITORY / "reports/rounding.json").read_text(encoding="utf-8"))["thresholds"]
    wanted = {"gradients": gradients, "buffer": buffer, "order": "sequential", "tolerance_of": gradients}
    [row] = [r for r in rows if all(r[key] == value for key, value in wanted.items())]
    assert row["true"]["n"] >= n
    return str(row["true"]["error"])


def test_no_claim_is_stated_twice() -> None:
    said = [row.claim.casefold() for row in ledger().claims]
    assert sorted(set(said)) == sorted(said)


def test_the_documentation_names_every_key_and_verdict() -> None:
    from gradproof.extras.claims.figures import ClaimShape, FigureShape

    text = (REPOSITORY / "docs/claims.md").read_text(encoding="utf-8")
    keys = [*ClaimShape.model_fields, *FigureShape.model_fields]
    assert [key for key in keys if f"`{key}`" not in text] == []
    assert [str(v) for v in ClaimVerdict if str(v) not in text] == []
    ids = set(re.findall(r"CLAIM-[A-Z]+-[0-9]{2}", text))
    assert ids <= {row.id for row in ledger().claims}


def disagreements(document: Claims, made: ClaimLedger) -> list[str]:
    """What in a document of the ledger is not that of the file."""
    lost = [] if document.ledger == made.digest else ["it was made of another ledger"]
    lost += [] if [r.id for r in document.rows] == [r.id for r in made.claims] else ["it has other rows"]
    return lost + ([] if document.totals.counted >= FEWEST else ["too few of its rows count"])


def test_the_document_is_that_of_the_ledger() -> None:
    """One that is made now, with whatever evidence is here, and one that lies in the reports."""
    document = built(Session(Options(workspace=REPOSITORY)))
    lying = [Claims.model_validate_json(p.read_bytes()) for p in REPOSITORY.glob("reports/claims.json")]
    assert [disagreements(found, ledger()) for found in (document, *lying)] == [[]] * (1 + len(lying))


def test_a_document_of_another_ledger_is_seen() -> None:
    [row, *_] = (r for r in built(Session(Options(workspace=REPOSITORY)), ["CLAIM-K-21"]).rows)
    document = Claims.model_construct(ledger="0" * 64, rows=[row], totals=totals([row]))
    assert len(disagreements(document, ledger())) == 3
