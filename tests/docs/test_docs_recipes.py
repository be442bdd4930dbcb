"""docs/recipes.md and docs/index.md, followed to the letter; each recipe with one line changed is refuted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.tutorial import Block, Reader, blocks

REPOSITORY = Path(__file__).resolve().parents[2]
NEEDS = {
    "Hydra": "hydra", "Hugging Face Trainer": "transformers", "Accelerate": "accelerate", "Lightning": "lightning",
}  # fmt: skip
WRONG = {
    "A flat script": ("flat.py", "(loss / ACCUMULATE)", "(loss)", "GA-EQ-001"),
    "A script with arguments": ("arguments.py", "            optimizer.zero_grad()\n", "", "GA-INV-002"),
    "Hydra": ("hydra_train.py", "(loss / config.accumulate)", "(loss)", "GA-EQ-001"),
    "Hugging Face Trainer": ("trainer.py", "Trainer(model=model,", "Summed(model=model,", "GA-EQ-001"),
    "Accelerate": (
        "accelerated.py",
        "mse_loss(model(x), y)",
        'mse_loss(model(x), y, reduction="sum")',
        "GA-EQ-001",
    ),
    "Lightning": (
        "lit.py",
        "self.model(batch[0]), batch[1])",
        "self.model(batch[0]), batch[1]) * self.trainer.accumulate_grad_batches",
        "GA-EQ-001",
    ),
    "DistributedDataParallel": (
        "ddp.py",
        "if last else model.no_sync()",
        "if not last else model.no_sync()",
        "GA-SYNC",
    ),
    "A notebook": ("notebook.py", "(loss / run.accum_steps)", "(loss)", "GA-EQ-001"),
    "Like nanoGPT": ("nano.py", "loss = model(x, y) / gradient_accumulation_steps", "loss = model(x, y)", "GA-EQ-001"),
    "A step function in a test suite": ("steps.py", "(loss / len(batches))", "(loss)", "GA-EQ-001"),
}
"""Of each recipe: the file, what stands there once, what stands there instead, and what is refuted then."""
SUMMED = """
class Summed(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return model(**inputs).loss * 4


"""


def sections(page: str) -> dict[str, list[Block]]:
    """Heading to the blocks of its section; sections without a block left out."""
    text = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
    parts = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)
    found = {heading: blocks(body) for heading, body in zip(parts[1::2], parts[2::2], strict=True)}
    return {heading: page for heading, page in found.items() if page}


RECIPES = sections("recipes.md")


def reader(folder: Path) -> Reader:
    """Somebody at a desk, whose commands are those of this Python."""
    (folder / "bin").mkdir()
    for name, module in (("gradproof", "gradproof"), ("torchrun", "torch.distributed.run")):
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    path = f"{folder / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "COLUMNS", "PYTEST_ADDOPTS")}
    home = folder / "home"
    home.mkdir()
    return Reader(home, {**kept, "PATH": path, "PYTHONWARNINGS": "ignore"})


def at_hand(heading: str) -> None:
    """Skip a recipe whose package is not installed."""
    package = NEEDS.get(heading)
    if package and find_spec(package) is None:
        pytest.skip(f"{package} is not installed: its recipe was not followed")


def test_every_recipe_has_a_wrong_form() -> None:
    assert set(RECIPES) == set(WRONG)
    assert len(RECIPES) == 10


@pytest.mark.slow
@pytest.mark.parametrize("heading", RECIPES)
def test_a_recipe_does_what_it_says(heading: str, tmp_path: Path) -> None:
    at_hand(heading)
    assert list(reader(tmp_path).follow(RECIPES[heading])) == []


@pytest.mark.slow
@pytest.mark.parametrize("heading", RECIPES)
def test_a_recipe_with_one_line_changed_is_refuted(heading: str, tmp_path: Path) -> None:
    at_hand(heading)
    name, right, wrong, obligation = WRONG[heading]
    user = reader(tmp_path)
    page = RECIPES[heading]
    assert list(user.follow([b for b in page if b.kind == "python"])) == []
    text = (user.folder / name).read_text(encoding="utf-8")
    assert text.count(right) == 1
    changed = text.replace(right, wrong)
    changed = changed.replace("\n\ntorch.manual_seed(0)\nmodel = GPT2", f"\n{SUMMED}torch.manual_seed(0)\nmodel = GPT2")
    (user.folder / name).write_text(changed, encoding="utf-8")
    command = next(b.text for b in page if b.kind == "sh")
    done = subprocess.run(
        ["bash", "-c", command], cwd=user.folder, env=user.environ, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=600, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert "REFUTED" in said, said
    assert obligation in said, said
    assert done.returncode == 1 or heading == "A notebook"


@pytest.mark.slow
def test_the_first_page_does_what_it_says(tmp_path: Path) -> None:
    """But for the installation, which `make installed` tries."""
    user = reader(tmp_path)
    assert list(user.follow(sections("index.md")["A first verdict"])) == []


IMPORTED = {
    "hydra": "hydra-core", "transformers": "transformers", "accelerate": "accelerate", "lightning": "lightning",
    "pytest": "pytest",
}  # fmt: skip
"""A package that gradproof does not bring, and what pip installs."""


@pytest.mark.parametrize("heading", RECIPES)
def test_a_recipe_says_what_it_needs(heading: str) -> None:
    page = (REPOSITORY / "docs/recipes.md").read_text(encoding="utf-8")
    head = page.partition(f"## {heading}\n")[2].partition("```")[0]
    code = "\n".join(block.text for block in RECIPES[heading] if block.kind == "python")
    imported = set(re.findall(r"^(?:from|import) (\w+)", code, re.MULTILINE))
    own = {block.file.removesuffix(".py") for block in RECIPES[heading] if block.file}
    assert imported - own - {*sys.stdlib_module_names, "torch", "numpy", "gradproof"} <= {*IMPORTED}
    for package in imported & {*IMPORTED}:
        assert re.search(rf"Needs `pip install [^`]*\b{IMPORTED[package]}", head), package
