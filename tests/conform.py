"""Every piece of evidence and every report of a whole run, against the published schemas: `python -m tests.conform`.

Takes folders of reports, `reports` by default. Exit code 0 only if there was something, and all of it conforms.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jsonschema

SCHEMAS = Path(__file__).resolve().parents[1] / "reports"
PLACES = {"evidence": "evidence/*/*.json", "report": "*/report.json"}


def faults(folder: Path) -> tuple[int, list[str]]:
    """How many files were read, and what is wrong with them, at most one thing each."""
    read, found = 0, []
    for name, pattern in PLACES.items():
        schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))
        validator = jsonschema.Draft202012Validator(schema)
        files = sorted(folder.glob(pattern))
        found += [] if files else [f"{folder}: no {name}"]
        for path in files:
            read += 1
            errors = validator.iter_errors(json.loads(path.read_text(encoding="utf-8")))
            found += [f"{path}: {e.json_path}: {e.message[:200]}" for e in errors][:1]
    return read, found


def main(folders: list[str]) -> int:
    """Print what does not conform, and the sum."""
    wrong = 0
    for folder in folders or ["reports"]:
        read, found = faults(Path(folder))
        wrong += len(found)
        print("\n".join([*found, f"{folder}: {read} files read, {len(found)} do not conform"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
