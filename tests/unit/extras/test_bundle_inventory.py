"""What a bundle says of the installation that evidence was made with, and of the wheel that is named for it."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gradproof.core.errors import GradproofError
from gradproof.extras.attest.manifest import ran_on, wheel_of


def one(name: str | None, version: str, record: str | None) -> Any:
    """A distribution as importlib.metadata has it."""
    return SimpleNamespace(metadata={"Name": name}, version=version, read_text=lambda file: record)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_each_distribution_once_as_python_finds_it_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A nameless one is a folder that an installer left; one without a list of files has none to be held to."""
    held = [one("Some_Thing", "1", "a"), one("some-thing", "2", "b"), one(None, "3", "c"), one("bare", "4", None)]
    monkeypatch.setattr("importlib.metadata.distributions", lambda: iter(held))
    assert ran_on()["distributions"] == {
        "bare": {"version": "4", "record_sha256": None},
        "some-thing": {"version": "1", "record_sha256": sha256("a")},
    }


FILES: dict[str, tuple[dict[str, str], bool]] = {
    "the same": ({"gp:a.py": sha256("a")}, True),
    "another content": ({"gp:a.py": sha256("b")}, False),
    "a file that the wheel has not": ({"gp:a.py": sha256("a"), "gp:b.py": sha256("")}, False),
    "a file that was looked for in vain": ({"gp:b.py": ""}, True),
    "files of others": ({"ws:models/a.py": sha256("x"), "ext:/b.py": sha256("y")}, True),
}


@pytest.mark.parametrize("name", FILES)
def test_a_wheel_holds_every_file_of_the_engine_as_it_ran(tmp_path: Path, name: str) -> None:
    files, held = FILES[name]
    with zipfile.ZipFile(tmp_path / "g.whl", "w") as wheel:
        wheel.writestr("gradproof/a.py", "a")
    if held:
        assert wheel_of(tmp_path / "g.whl", files).bytes == (tmp_path / "g.whl").stat().st_size
    else:
        with pytest.raises(GradproofError, match=r"g\.whl: GP442\n.* 1 files"):
            wheel_of(tmp_path / "g.whl", files)
