"""The parent's side of `watch_job`: start the user's script, wait for it, read what was seen of it.

Nothing is limited or killed here: it is the user's own run. Its exit code is reported beside the verification.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gradproof.core import EXIT_CODE, Exit, Outcome
from gradproof.processes import PREFIX
from gradproof.shadow.child import answered
from gradproof.shadow.request import undecided
from gradproof.shadow.script import Script
from gradproof.shadow.verdict import Verification

PATIENCE = 30.0
"""Seconds for an interrupted script to end by itself."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What was seen, the script's own exit code (negative for a signal), and whether it was interrupted."""

    verification: Verification
    status: int
    interrupted: bool = False

    @property
    def code(self) -> int:
        """The exit code: a refutation first, then a script that failed, then the verification's own."""
        broken, crash = EXIT_CODE[Exit.BROKEN], EXIT_CODE[Exit.CRASH]
        if self.verification.code == broken or self.status == 0:
            return self.verification.code
        return crash


def command(script: Script, job: Path) -> list[str]:
    """How the script is started: with its own flags of Python."""
    return [sys.executable, *script.flags, "-P", "-m", "gradproof.shadow.watch_job", str(job)]


def watch(
    script: Script,
    accum_steps: int | None,
    windows: int,
    mode: str,
    stdout: int | None = None,
    epoch_batches: int | None = None,
) -> Watched:
    """Run a script to its end. `stdout` is where its output goes instead. Raises GradproofError for a mistake."""
    config: dict[str, Any] = {"accum_steps": accum_steps, "windows": windows, "mode": mode}
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as folder:
        job, result = Path(folder) / "job.json", Path(folder) / "result.json"
        asked = {"script": asdict(script), "result": str(result), "epoch_batches": epoch_batches, **config}
        job.write_text(json.dumps(asked), encoding="utf-8")
        process = subprocess.Popen(command(script, job), stdout=stdout)
        status, interrupted = _wait(process)
        try:
            found = answered(result, script.shown)
        except ValueError as e:
            reason = f"the script's process ended with exit code {status} and left no answer: {e}"
            found = undecided(script.shown, config, Outcome.ERROR, reason)
    return Watched(found, status, interrupted)


def _wait(process: subprocess.Popen[bytes]) -> tuple[int, bool]:
    """Exit code, and whether it was interrupted; an interrupted script has a while to end, as it got the signal too."""
    try:
        return process.wait(), False
    except KeyboardInterrupt:
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            return process.wait(PATIENCE), True
        process.kill()
        return process.wait(), True
