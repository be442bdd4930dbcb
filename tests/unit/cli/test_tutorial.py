"""The reader of docs/tutorial.md sees what is not as promised. The page itself is followed by `make installed`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.tutorial import Reader, blocks


def test_a_broken_promise_is_seen(tmp_path: Path) -> None:
    page = blocks("```sh\necho red 1; false\n```\n\n```text\nred\ngreen 1\n```\n")
    stated = list(Reader(tmp_path, os.environ).follow(page))
    assert len(stated) == 2
    assert "ended with 1" in stated[0]
    assert stated[1].startswith("'green 1' is not")


def test_a_help_that_does_not_fit_and_a_block_that_nobody_follows_are_seen(tmp_path: Path) -> None:
    page = blocks("\n```python a.py\nx = 1\n```\n\n```diff a.py\n-y = 1\n+y = 2\n```\n")
    with pytest.raises(ValueError, match="does not stand once"):
        list(Reader(tmp_path, os.environ).follow(page))
    with pytest.raises(ValueError, match="nobody follows"):
        blocks("\n```fish\nls\n```\n")
