"""A user's script, watched: `python FLAGS -P -m gradproof.shadow.watch_job JOBFILE`.

The job is JSON: script (see `script`), accum_steps and epoch_batches (or null), windows, mode, result. The script runs
as Python would run it, in this process: its output, exit code, threads and exit handlers are its own. When it ends,
however it ends, what the watcher saw is written to `result`. A script that kills its process leaves nothing there.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradproof.core import Outcome
from gradproof.files import write_json
from gradproof.shadow.request import complete, undecided
from gradproof.shadow.script import Script, run
from gradproof.shadow.verdict import Verification
from gradproof.shadow.wire import to_json


def perform(job: Mapping[str, Any]) -> None:
    """Run the script under the watcher. Whatever the script raises passes through, after the answer is written."""
    script = script_from(job["script"])
    own, result = os.getpid(), Path(job["result"])
    watcher = watcher_of(job)
    try:
        with watcher:
            run(script)
    finally:
        if os.getpid() == own:
            write_json(result, {"verification": to_json(seen(watcher, script, job))})


def script_from(data: Mapping[str, Any]) -> Script:
    """A script from its JSON form."""
    return Script(tuple(data["flags"]), data["name"], bool(data["module"]), tuple(data["arguments"]))


def watcher_of(job: Mapping[str, Any]) -> Any:
    """A watcher, not yet begun."""
    from gradproof.shadow.watch import Watch

    options = {name: job[name] for name in ("accum_steps", "windows", "mode", "epoch_batches")}
    return Watch(**options, opened=opened)


def opened(monitor: Any) -> None:
    """Tell the effective batch at start-up, when the first window is complete."""
    from gradproof.render.monitoring import effective as words
    from gradproof.shadow.monitored import effective

    print(f"gradproof watch: {words(effective(monitor))}", file=sys.stderr, flush=True)


def seen(watcher: Any, script: Script, job: Mapping[str, Any]) -> Verification:
    """What the watcher says; an ERROR when it cannot say anything."""
    config = {name: job[name] for name in ("accum_steps", "windows", "mode")}
    try:
        found = watcher.verification()
        if not isinstance(found, Verification):
            raise TypeError(f"the watcher returned a {type(found).__name__}")
        to_json(found)
    except Exception as e:
        return undecided(script.shown, config, Outcome.ERROR, f"gradproof itself raised {type(e).__name__}: {e}")
    found.subject = script.shown
    return complete(found, 1)


def main() -> None:
    """Read the job and do it."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    perform(job)


if __name__ == "__main__":
    main()
