"""The CI example of shards: valid for the linter of workflows, and of commands and options that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from house_rules import REPOSITORY
from test_house_claims import unknown_commands

PAGE = REPOSITORY / "docs/ci.md"
COMMANDS = {"verify", "merge", "gate"}


def example() -> str:
    """The YAML block of the page that has shards."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    [block] = [block for block in blocks if "matrix.shard" in block]
    return str(block)


def lint(folder: Path, text: str) -> int:
    """Exit code of the linter of GitHub's workflows."""
    path = folder / "workflow.yml"
    path.write_text(text, encoding="utf-8")
    command = [sys.executable, "-W", "ignore", "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    return subprocess.run([*command, str(path)], capture_output=True, timeout=600, check=False).returncode


def test_the_example_is_a_workflow_and_a_mistake_is_seen(tmp_path: Path) -> None:
    assert lint(tmp_path, example()) == 0
    for good, bad in (("runs-on: ubuntu-latest", "runs_on: ubuntu-latest"), ("needs: shard", "needs: {shard: 1}")):
        assert good in example()
        assert lint(tmp_path, example().replace(good, bad, 1)) != 0


def test_its_commands_exist() -> None:
    assert unknown_commands(PAGE.read_text(encoding="utf-8")) == []
    assert set(re.findall(r"run: gradproof (\w+)", example())) == COMMANDS
    assert unknown_commands("`gradproof verify --shart 1/2`") == ["gradproof verify --shart"]


def test_no_expression_is_pasted_into_a_script_and_the_numbers_agree() -> None:
    """What the matrix says reaches the script through the environment, and every shard of it is run."""
    assert not [line for line in example().splitlines() if "run:" in line and "${{" in line]
    [listed] = re.findall(r"shard: \[([\d, ]+)\]", example())
    [of] = re.findall(r"matrix\.shard \}\}/(\d+)\"", example())
    assert [int(x) for x in listed.split(",")] == list(range(1, int(of) + 1))
