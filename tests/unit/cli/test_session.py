"""Which contracts one session may hold: every contract is judged by its own checks and by no other's."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_workspace import CONTRACT

from gradproof import cli
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, Exit
from gradproof.core.workspace import Workspace
from gradproof.session import Options, Session

USAGE = EXIT_CODE[Exit.USAGE]
MET = EXIT_CODE[Exit.MET]


@pytest.fixture
def stricter(toy: Workspace) -> Path:
    """A second contract in a folder that is called toy too, which no evidence of the first can discharge."""
    place = toy.root / "elsewhere/toy/contract.yaml"
    place.parent.mkdir(parents=True)
    place.write_text(CONTRACT.replace("a_is_one", "a_is_two").replace("b_is_one", "b_is_two"), encoding="utf-8")
    return place


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("command", ["gate", "verify", "report", "list", "prove"])
def test_two_contracts_of_one_name_are_a_usage_error(
    toy: Workspace, stricter: Path, capsys: pytest.CaptureFixture[str], command: str, swapped: bool
) -> None:
    assert cli.dispatch(["verify", "-q"]) == MET
    names = ["toy", str(stricter)][:: -1 if swapped else 1]
    capsys.readouterr()
    assert cli.dispatch([command, "--contract", names[0], "--contract", names[1]]) == USAGE
    said = capsys.readouterr()
    assert "GP217" in said.err
    assert str(stricter) in said.err
    assert "gate is met" not in said.out


def test_each_of_the_two_alone_is_judged_by_its_own_checks(toy: Workspace, stricter: Path) -> None:
    assert cli.dispatch(["verify", "-q"]) == MET
    assert cli.dispatch(["gate", "--contract", "toy"]) == MET
    assert cli.dispatch(["gate", "--contract", str(stricter)]) == EXIT_CODE[Exit.OPEN]


def test_a_contract_that_is_named_twice_is_one_contract(toy: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    (toy.root / "link").symlink_to(toy.root / "proofs", target_is_directory=True)
    names = ("toy", "proofs/toy/contract.yaml", str(toy.root / "proofs/../link/toy/contract.yaml"), "toy")
    session = Session(Options(workspace=toy.root, contracts=names))
    assert [c.id for c in session.contracts] == ["toy"]
    assert session.report_path(session.contracts[0], "json") == toy.reports / "report.json"


def test_the_same_checks_under_another_name_are_an_error(toy: Workspace) -> None:
    other = toy.root / "proofs/other/contract.yaml"
    other.parent.mkdir()
    other.write_text((toy.root / "proofs/toy/contract.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(GradproofError, match="GP210"):
        Session(Options(workspace=toy.root))
