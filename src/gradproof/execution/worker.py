"""One check in one process: `python -m gradproof.execution.worker` with a job on the first line of stdin.

The job is JSON: check, root, reports, package, result, and `queries`, a file for the solver's queries, where they are
wanted. The file `result` appears complete or not at all. With `lifeline`, the end of stdin means that the parent is
gone: the process group ends. `since` is when the process started that this one was forked from (seconds, epoch): the
engine must not have been edited after it. With `--serve` it is that process itself, with a descriptor of its channel
and the libraries that it imports in advance. A worker has a session and a scratch folder of its own, like one that was
started from nothing.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.abc
import importlib.util
import os
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from gradproof.core.check import Check, Finding
from gradproof.core.errors import GradproofError
from gradproof.core.files import write_json
from gradproof.core.outcome import Layer, Outcome
from gradproof.core.processes import SERVE, data_held, end_strays, job_of_stdin, limit_memory
from gradproof.core.workspace import PACKAGE, Locator, Workspace, installed
from gradproof.evidence.environment import environment, hide, imported, taken, torch_device, variables
from gradproof.evidence.import_path import searched
from gradproof.evidence.inputs import ABSENT, edited, inputs_of, reads, watch
from gradproof.evidence.record import now, record
from gradproof.evidence.seal import Seal, shadowed
from gradproof.execution import methods
from gradproof.execution.engine import CALL

TAIL = 4000
OUT_OF_MEMORY = "the check ran out of memory"


def attempt(check: Check, workspace: Workspace, memory: int | None = None) -> Finding:
    """Run the backend. Whatever it raises is an ERROR with the end of the traceback. `memory`: the limit, in MiB."""
    try:
        finding = (_called if check.strategy == CALL else methods.run)(check, workspace)
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


def _called(check: Check, workspace: Workspace) -> Finding:
    """What a function returns, which is no answer to anything. Raises what it raises."""
    value = workspace.resolve(check.harness)(check.params["argument"])
    return Finding(Outcome.UNKNOWN, "a call decides nothing", stats={"value": value})


def perform(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run the job's check and return its evidence."""
    began, started_at, clock = time.time(), now(), time.monotonic()
    check = Check.from_json(job["check"])
    workspace = Workspace(place_of_job(job, "root").resolve(), place_of_job(job, "reports"))
    if place_of_job(job, "package") != PACKAGE:
        return record(check, Finding(Outcome.ERROR, f"the worker imported another gradproof, from {PACKAGE}"))
    finding, inputs = Finding(Outcome.ERROR, "no run"), {}
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
        finder.asked |= {(name, False, tuple(start)): set() for name in LOOKED_FOR}
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
        inputs = inputs_of(check, workspace.root, also, read)
        inputs["imports"] = searched(workspace.root, start, finder)
        found = {key: ABSENT for search in inputs["imports"] for key in search["names"].values() if ":" in key}
        late = edited(found | inputs["files"], workspace.root, began, min(began, job.get("since", began)))
        if late:
            finding = Finding(Outcome.ERROR, f"edited while the check ran: {', '.join(late[:5])}")
    except (GradproofError, OSError) as e:
        finding = Finding(Outcome.ERROR, f"{type(e).__name__}: {e}")
    seen = {**here, **torch_device(str(check.layer))}
    seen |= {"variables": set_variables, "distributions": imported()}
    return written(
        check, finding, inputs=inputs, environment=seen, started_at=started_at, seconds=time.monotonic() - clock
    )


def place_of_job(job: Mapping[str, Any], name: str) -> Path:
    """A path of the job. Its bytes count: the parent's locale may decode them to other characters."""
    return Path(os.fsdecode(os.fsencode(job[name])))


def _recorded(job: Mapping[str, Any]) -> dict[str, Any]:
    """Perform the job, and write the solver's queries first."""
    from gradproof.execution.queries import QueryRecorder

    recorder = QueryRecorder.attached()
    evidence = perform(job)
    write_json(Path(job["queries"]), recorder.to_json())
    return evidence


def main() -> None:
    """Be a worker or, where the command line says so, the process that workers are forked from."""
    if SERVE not in sys.argv:
        _work()
    at = sys.argv.index(SERVE)
    _Server(socket.socket(fileno=int(sys.argv[at + 1])), sys.argv[at + 2 :]).run()


def _work() -> NoReturn:
    """Read the job, run it, write the evidence, and end without the interpreter's own teardown."""
    job = job_of_stdin()
    run = _recorded if "queries" in job else perform
    write_json(place_of_job(job, "result"), run(job))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


# -- The process that workers are forked from. It imports libraries once, and runs no check.
LOOKED_FOR: set[str] = set()
"""Top-level names that the preloaded libraries looked for: a workspace that has one is judged without them."""
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: what loses its parent becomes a child of this process


class _Recorder(importlib.abc.MetaPathFinder):
    """Notes the names of modules that an import looks for, and finds none."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if path is None:
            LOOKED_FOR.add(fullname)


def preload(libraries: Iterable[str]) -> None:
    """Import what is installed of these libraries. sys.path stays as it is. Raises what an import raises."""
    recorder, path = _Recorder(), list(sys.path)
    sys.meta_path.insert(0, recorder)
    for name in libraries:
        spec = importlib.util.find_spec(name.partition(".")[0])
        if spec is not None and spec.origin is not None and installed(Path(spec.origin).resolve()):
            importlib.import_module(name)
    sys.meta_path.remove(recorder)
    sys.path[:] = path


def adopt() -> None:
    """Become the parent of whatever a descendant leaves without one. Raises OSError where the system refuses."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


class _Server:
    """Forks a worker for each message. The end of the channel is the end of the run.

    Raises OSError where the system refuses what reports the end of a worker (pidfd, Linux 5.3).
    """

    def __init__(self, channel: socket.socket, libraries: Iterable[str] = ()) -> None:
        os.close(os.pidfd_open(os.getpid()))
        adopt()
        preload(libraries)
        environment()
        taken("")  # reads what every worker asks for: which distribution owns what, and which of them gradproof needs
        gc.freeze()
        self._channel = channel
        self._children: dict[int, tuple[int, int]] = {}  # a process's descriptor -> its id, and the socket for its end

    def run(self) -> NoReturn:
        while True:
            for ready in select.select([self._channel.fileno(), *self._children], [], [])[0]:
                if ready in self._children:
                    self._bury(ready)
                else:
                    self._answer()

    def _answer(self) -> None:
        scratch, descriptors, _, _ = socket.recv_fds(self._channel, 1 << 16, 3)
        if not scratch:
            end_strays(os.environ["TMPDIR"])
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            self._become(os.fsdecode(scratch), descriptors)
        os.close(descriptors[0])
        os.close(descriptors[1])
        self._children[os.pidfd_open(pid)] = pid, descriptors[2]

    def _bury(self, ended: int) -> None:
        """Report the exit code of a worker: negative, the signal, as in subprocess. End what it left."""
        pid, report = self._children.pop(ended)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._end_orphans()
        with suppress(BrokenPipeError, ConnectionResetError):
            os.write(report, str(code).encode())
        os.close(report)
        os.close(ended)

    def _end_orphans(self) -> None:
        """Kill the children that are no workers: workers that have ended left them."""
        import psutil

        known = {pid for pid, _ in self._children.values()}
        with suppress(OSError, psutil.Error):
            while left := [p for p in psutil.Process().children() if p.pid not in known]:
                for process in left:
                    with suppress(ProcessLookupError, ChildProcessError):
                        os.kill(process.pid, signal.SIGKILL)
                        os.waitpid(process.pid, 0)

    def _become(self, scratch: str, descriptors: list[int]) -> NoReturn:
        """In the new process: be a worker, and never come back."""
        try:
            os.setsid()
            adopt()
            for descriptor, (_, report) in self._children.items():
                os.close(descriptor)
                os.close(report)
            self._channel.close()
            stdin, stdout, report = descriptors
            for old, new in ((stdin, 0), (stdout, 1), (stdout, 2)):
                os.dup2(old, new)
            os.close(stdin)
            os.close(stdout)
            os.write(report, str(os.getpid()).encode())
            os.close(report)
            os.environ["TMPDIR"], tempfile.tempdir = scratch, None
            if shadowing(Path.cwd()):
                at = sys.orig_argv.index(SERVE)
                os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:at]])
            del sys.argv[sys.argv.index(SERVE) :]
            _work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)


def shadowing(root: Path) -> list[str]:
    """Modules at the root of a workspace for which a preloaded library looked: it would have found them there."""
    locator = Locator(root)
    names = LOOKED_FOR & {place.name.partition(".")[0] for place in root.iterdir()}
    return sorted(name for name in names if locator.file(name, [str(root)]) is not None)


if __name__ == "__main__":
    main()
