"""The reference workspace, in part and for real: JSON against its schemas, the cache, and a seeded bug."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from e2e_kit import (
    REFERENCE_CONTRACT,
    REPOSITORY,
    Done,
    barred,
    decoys,
    edit,
    environ,
    evidence_files,
    gradproof,
    read,
    reference_workspace,
    rows,
)

pytestmark = pytest.mark.slow

PROOFS = ("KANI-GA-002", "KANI-GA-009", "CROSS-GA-001")
RUN = "FALSIFY-GA-005@cpu-fp32"
SELECTED = [word for name in (*PROOFS, RUN) for word in ("-k", name)]


def schema(name: str) -> Any:
    """One of the published schemas."""
    return read(REPOSITORY / "reports" / f"{name}.schema.json")


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """A copy of the reference workspace on which a part was run: first the run on PyTorch, without any solver."""
    workspace = reference_workspace(tmp_path_factory.mktemp("reference"))
    path = decoys(tmp_path_factory.mktemp("decoys") / "solvers", "z3", "crosshair")
    ran = gradproof(workspace, "run", "-k", RUN, "--json", path=path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return workspace, gradproof(workspace, "verify", *SELECTED, "--jobs", "2", "--json")


@pytest.fixture
def workspace(verified: tuple[Path, Done], tmp_path: Path) -> Path:
    """A copy of that workspace with its evidence."""
    shutil.copytree(verified[0], tmp_path / "ws")
    return tmp_path / "ws"


def test_a_part_gives_its_answers_and_does_not_meet_the_gate(verified: tuple[Path, Done]) -> None:
    done, found = verified[1], rows(verified[1])
    assert done.returncode == 4, done.stderr
    assert {name: found[name]["outcome"] for name in (*PROOFS, RUN)} == {
        "KANI-GA-002": "HOLDS",
        "KANI-GA-009": "REFUTED",
        "CROSS-GA-001": "HOLDS",
        RUN: "HOLDS",
    }
    assert {row["effect"] for name, row in found.items() if name in (*PROOFS, RUN)} == {"DISCHARGED"}
    assert {row["outcome"] for name, row in found.items() if name not in (*PROOFS, RUN)} == {"NOT_RUN"}


def test_a_run_on_pytorch_needs_no_solver(verified: tuple[Path, Done]) -> None:
    """It ran with z3 and crosshair out of reach; `verify` found its evidence good, and did not run it again."""
    found = rows(verified[1])
    assert (found[RUN]["outcome"], found[RUN]["cached"]) == ("HOLDS", True)
    assert [found[name]["cached"] for name in PROOFS] == [False] * len(PROOFS)


def test_the_report_is_as_its_schema_says(verified: tuple[Path, Done]) -> None:
    workspace, done = verified
    printed = json.loads(done.stdout)
    jsonschema.validate(printed, schema("report"))
    assert read(workspace / "reports" / "report.json") == printed
    assert printed["run_state"] == "partial"
    assert printed["verdict"]["met"] is False
    for ending in ("md", "html"):
        assert "KANI-GA-002" in (workspace / "reports" / f"report.{ending}").read_text(encoding="utf-8")


def test_evidence_is_as_its_schema_says(verified: tuple[Path, Done]) -> None:
    paths = evidence_files(verified[0])
    assert [path.parent.name for path in paths] == sorted((*PROOFS, RUN))
    for path in paths:
        jsonschema.validate(read(path), schema("evidence"))


@pytest.mark.parametrize(("name", "key"), [("report", "verdict"), ("evidence", "claim")])
def test_the_schemas_refuse(verified: tuple[Path, Done], name: str, key: str) -> None:
    workspace = verified[0]
    path = workspace / "reports" / "report.json" if name == "report" else evidence_files(workspace)[0]
    data = read(path)
    for wrong in ({k: v for k, v in data.items() if k != key}, {**data, "more": 1}, {**data, key: "well"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema(name))


def test_an_unchanged_tree_needs_neither_solver_nor_torch(workspace: Path, tmp_path: Path) -> None:
    before = evidence_files(workspace)
    path = barred(tmp_path / "barred", "z3", "crosshair", "torch", "hypothesis")
    again = gradproof(workspace, "verify", *SELECTED, "--json", path=path)
    assert {rows(again)[name]["cached"] for name in (*PROOFS, RUN)} == {True}
    proved = gradproof(workspace, "prove", *SELECTED, "--json", path=path)
    assert proved.returncode == 0, proved.stderr
    assert {row["cached"] for row in rows(proved).values()} == {True}
    assert evidence_files(workspace) == before


def test_the_decoys_would_have_been_seen(workspace: Path, tmp_path: Path) -> None:
    path = decoys(tmp_path / "decoys", "z3")
    done = gradproof(workspace, "prove", "-k", "KANI-GA-009", "--no-cache", "--json", path=path)
    assert done.returncode == 3
    assert "z3 was imported" in rows(done)["KANI-GA-009"]["reason"]


def test_what_is_barred_would_have_been_seen(tmp_path: Path) -> None:
    env = environ(*barred(tmp_path / "barred", "z3"))
    done = subprocess.run([sys.executable, "-c", "import z3"], env=env, capture_output=True, text=True, check=False)
    assert "ImportError: z3 was imported" in done.stderr


def test_a_solver_in_front_of_the_installed_one_makes_evidence_stale(workspace: Path, tmp_path: Path) -> None:
    done = gradproof(workspace, "gate", "--json", path=decoys(tmp_path / "decoys", "z3"))
    [why] = [r for r in json.loads(done.stdout)["verdict"]["reasons"] if r.startswith("KANI-GA-002 is NOT_RUN: ")]
    said = f"its evidence is stale: module z3 is now ext:{tmp_path}/decoys/z3"
    assert said in why
    assert "shadowing the installed one" in why


def test_an_unrelated_change_runs_nothing_again(workspace: Path, tmp_path: Path) -> None:
    nets = workspace / "models" / "accumulation" / "torch_nets.py"
    nets.write_text(nets.read_text(encoding="utf-8") + "\n# A remark.\n", encoding="utf-8")
    path = barred(tmp_path / "barred", "z3", "crosshair", "torch", "hypothesis")
    done = gradproof(workspace, "prove", *SELECTED, "--json", path=path)
    assert done.returncode == 0, done.stderr
    assert {row["cached"] for row in rows(done).values()} == {True}
    assert "torch_nets.py changed" in gate_reason(workspace, RUN)


def gate_reason(workspace: Path, check: str) -> str:
    """What the gate says of one check."""
    reasons = json.loads(gradproof(workspace, "gate", "--json").stdout)["verdict"]["reasons"]
    return " ".join(reason for reason in reasons if reason.startswith(check))


def test_a_changed_line_of_the_model_runs_what_rests_on_it(workspace: Path) -> None:
    edit(
        workspace / "models" / "accumulation" / "loop.py",
        "        return value / len(window)\n",
        "        count = len(window)\n        return value / count\n",
    )
    for name in PROOFS:
        assert "models/accumulation/loop.py changed" in gate_reason(workspace, name)
    assert RUN not in gate_reason(workspace, RUN)
    done = gradproof(workspace, "prove", *SELECTED, "--jobs", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert {name: row["cached"] for name, row in rows(done).items()} == dict.fromkeys(PROOFS, False)


def test_a_missing_division_in_the_model_is_found(workspace: Path) -> None:
    """The gate's own falsification by hand: the 1/N is gone from the reference loop."""
    edit(
        workspace / "models" / "accumulation" / "loop.py",
        "        return value / len(window)\n",
        "        return value\n",
    )
    done = gradproof(workspace, "verify", "-k", "KANI-GA-006", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 1, done.stderr
    assert report["verdict"]["exit"] == "broken"
    obligation = next(row for row in report["obligations"] if row["id"] == "GA-EQ-001")
    assert obligation["effect"] == "BROKEN"
    row = rows(done)["KANI-GA-006"]
    assert row["outcome"] == "REFUTED"
    assert row["counterexample"]["clause"] == "GA-EQ-001"
    assert all(replay["reproduced"] for replay in row["replays"] if replay["on"].startswith("Python model"))
    assert any("GA-EQ-001" in reason for reason in report["verdict"]["reasons"])


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("    mutants: [missing_scale, divided_twice, rescaled_buffer, scale_first_element_only]\n", "", "GP133"),
        (
            "mutants: [missing_scale, divided_twice, rescaled_buffer, scale_first_element_only]\n",
            "mutants: []\n",
            "GP133",
        ),
        ("seeded_bug: missing_scale", "seeded_bug: none_at_all", "GP131"),
    ],
)
def test_a_loosened_contract_is_refused(workspace: Path, old: str, new: str, code: str) -> None:
    contract = workspace / REFERENCE_CONTRACT
    edit(contract, old, new)
    done = gradproof(workspace, "gate")
    assert done.returncode == 2, done.stdout
    assert code in done.stderr
    assert "contract.yaml:" in done.stderr


def test_a_reworded_clause_makes_its_evidence_stale(workspace: Path) -> None:
    assert gate_reason(workspace, "CROSS-GA-001") == ""
    edit(workspace / REFERENCE_CONTRACT, "with epsilon = 1e-5 in fp32 and 1e-3 in fp16", "with epsilon = 1e-1 in fp32")
    assert "the claim changed" in gate_reason(workspace, "CROSS-GA-001")
