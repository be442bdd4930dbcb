"""One check in one process: `python -m gradproof.execution.worker` with a job on the first line of stdin.

The job is JSON: check, root, reports, package, result, and `queries`, a file for the solver's queries, where they are
wanted. The evidence goes to the file `result`, which appears complete or not at all. With `lifeline`, the end of stdin
means that the parent is gone: the process group ends. `since` is when the process started that this one was forked
from (seconds, epoch): the engine must not have been edited after it. With `--serve` it is that process itself.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from gradproof.core.check import Check, Finding
from gradproof.core.errors import GradproofError
from gradproof.core.files import write_json
from gradproof.core.outcome import Layer, Outcome
from gradproof.core.processes import SERVE, data_held, job_of_stdin, limit_memory
from gradproof.core.workspace import PACKAGE, Workspace
from gradproof.evidence.claim import claim_of, edited, reads, watch
from gradproof.evidence.environment import environment, hide, imported, torch_device, variables
from gradproof.evidence.record import now, record
from gradproof.evidence.seal import Seal, shadowed
from gradproof.execution import methods

TAIL = 4000
OUT_OF_MEMORY = "the check ran out of memory"


def attempt(check: Check, workspace: Workspace, memory: int | None = None) -> Finding:
    """Run the backend. Whatever it raises is an ERROR with the end of the traceback. `memory`: the limit, in MiB."""
    try:
        finding = methods.run(check, workspace)
    except GradproofError as e:
        return Finding(Outcome.ERROR, f"{e.code}: {e.found}; expected {e.expected}", stats={"error": e.render()})
    except MemoryError:
        return Finding(Outcome.ERROR, OUT_OF_MEMORY + (f" ({memory} MiB, --memory-limit)" if memory else ""))
    except BaseException as e:
        tail = "".join(traceback.format_exception(e))[-TAIL:]
        return Finding(Outcome.ERROR, f"the backend raised {type(e).__name__}: {e}", stats={"traceback": tail})
    if not isinstance(finding, Finding):
        return Finding(Outcome.ERROR, f"the backend returned a {type(finding).__name__}, not a Finding")
    return finding


def perform(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run the job's check and return its evidence."""
    began, started_at, clock = time.time(), now(), time.monotonic()
    check = Check.from_json(job["check"])
    workspace = Workspace(place_of_job(job, "root").resolve(), place_of_job(job, "reports"))
    if place_of_job(job, "package") != PACKAGE:
        return record(check, Finding(Outcome.ERROR, f"the worker imported another gradproof, from {PACKAGE}"))
    finding, claim = Finding(Outcome.ERROR, "no run"), {}
    set_variables, here = variables(str(check.layer)), environment()
    start = list(sys.path)
    foreign = [workspace.root, *(Path(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p)]
    hide(str(check.layer))
    watch()
    memory = None if check.layer is Layer.CUDA else job.get("memory")
    limit_memory(memory, data_held() if "since" in job else 0)
    seal, written = Seal(workspace.root), record
    exchanged, rewritten = seal.broken, seal.rewritten
    try:
        finder = workspace.enter()
        finder.first, finder.during = seal.close, seal.importing
        finding = attempt(check, workspace, memory)
        read = reads(workspace.root, workspace.reports, tempfile.gettempdir())
        if changed := rewritten():
            said = f"models or harnesses were changed while the check ran: {', '.join(changed[:5])}"
            finding = Finding(Outcome.ERROR, f"{said}; a module may rebind its own names alone, with `global`")
        if changed := exchanged():
            said = f"the engine was changed while the check ran: {', '.join(changed[:5])}"
            finding = Finding(Outcome.ERROR, said)
        if strange := shadowed(foreign):
            finding = Finding(Outcome.ERROR, f"not the installed package: {', '.join(strange[:5])}")
        also = finding.stats.get("files_read", ())
        claim = claim_of(check, workspace.root, finder, start, also, read)
        late = edited(claim["files"], workspace.root, began, min(began, job.get("since", began)))
        if late:
            finding = Finding(Outcome.ERROR, f"edited while the check ran: {', '.join(late[:5])}")
    except (GradproofError, OSError) as e:
        finding = Finding(Outcome.ERROR, f"{type(e).__name__}: {e}")
    seen = {**here, **torch_device(str(check.layer))}
    seen |= {"variables": set_variables, "distributions": imported()}
    return written(
        check, finding, claim=claim, environment=seen, started_at=started_at, seconds=time.monotonic() - clock
    )


def place_of_job(job: Mapping[str, Any], name: str) -> Path:
    """A path of the job. Its bytes count: the parent's locale may decode them to other characters."""
    return Path(os.fsdecode(os.fsencode(job[name])))


def _recorded(job: Mapping[str, Any]) -> dict[str, Any]:
    """Perform the job, and write the solver's queries first."""
    from gradproof.execution.queries import Recorder

    recorder = Recorder.attached()
    evidence = perform(job)
    write_json(Path(job["queries"]), recorder.to_json())
    return evidence


def main() -> None:
    """Be a worker or, where the command line says so, the process that workers are forked from."""
    if SERVE not in sys.argv:
        _work()
    before = set(sys.modules)
    from gradproof.execution import forkserver

    forkserver.serve(int(sys.argv[sys.argv.index(SERVE) + 1]), before, _work)


def _work() -> NoReturn:
    """Read the job, run it, write the evidence, and end without the interpreter's own teardown."""
    job = job_of_stdin()
    write_json(place_of_job(job, "result"), _recorded(job) if "queries" in job else perform(job))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
