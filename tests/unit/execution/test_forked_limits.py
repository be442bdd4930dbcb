"""The limits of waiting for a fork server, and systems that have none: a worker is never waited for for ever."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from toy_workspace import check

from gradproof.core.workspace import Workspace
from gradproof.execution import local, worker as engine
from gradproof.execution.local import LOST, Forked, ForkServer, Worker

Untold = tuple[Forked, socket.socket]


def test_a_start_waits_no_longer_than_its_limit(toy: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that this test turns: whoever waits without a limit waits for ever."""
    asked: list[float] = []

    def late(reading: Any, writing: Any, failing: Any, seconds: float) -> Any:
        asked.append(seconds)
        return [], [], []

    monkeypatch.setattr(local.select, "select", late)
    silent = ForkServer(toy.root)
    assert silent.start(["sh", "-c", "exec sleep 600"], {**os.environ, "TMPDIR": str(toy.root)}) is None
    silent.close()
    assert asked == [local.STARTS_WITHIN]


@pytest.fixture
def untold() -> Iterator[Untold]:
    """A worker whose end nobody tells, and the socket on which it could be stated."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    (given, stdin), (stdout, printed) = ((os.fdopen(r, "rb"), os.fdopen(w, "wb")) for r, w in (os.pipe(), os.pipe()))
    printed.close()
    yield Forked(0, mine, stdin, stdout), theirs
    for end in (given, stdin, stdout, mine, theirs):
        end.close()


def test_a_worker_that_cannot_be_killed_is_lost_and_holds_nobody_up(
    untold: Untold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "DIES_WITHIN", 0.05)
    worker, _ = untold
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(0.01)
    assert worker.poll() is None
    assert worker.wait() == LOST
    assert (worker.poll(), worker.wait(), worker.wait(1.0)) == (LOST, LOST, LOST)
    assert worker._report.fileno() == -1


@pytest.mark.parametrize(("stated", "code"), [(b"0", 0), (b"-9", -9), (b"", LOST)])
def test_an_exit_code_is_what_was_told_and_its_absence_is_none(untold: Untold, stated: bytes, code: int) -> None:
    worker, theirs = untold
    if stated:
        theirs.send(stated)
    theirs.close()
    assert (worker.wait(), worker.poll()) == (code, code)


def test_two_threads_may_ask_for_one_end(untold: Untold, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one was reported between this one's first look and its wait, and closed the socket."""
    worker, _ = untold

    def told_elsewhere(*asked: Any) -> Any:
        worker.returncode = 7
        raise ValueError("file descriptor cannot be a negative integer (-1)")

    monkeypatch.setattr(local.select, "select", told_elsewhere)
    assert worker.poll() == 7


def test_an_end_that_cannot_be_read_is_lost(untold: Untold) -> None:
    """The server ended with something of the worker's unread."""
    worker, theirs = untold
    worker._report.send(b"unread")
    theirs.close()
    assert worker.wait() == LOST


def test_a_check_whose_worker_cannot_be_killed_is_no_answer(
    toy: Workspace, untold: Untold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is there and in a group of its own; that it ended is never stated."""
    monkeypatch.setattr(local, "DIES_WITHIN", 0.05)
    body = subprocess.Popen(["sleep", "600"], start_new_session=True)
    stuck, _ = untold
    stuck.pid = body.pid

    class Stuck(ForkServer):
        def start(self, *asked: Any) -> Forked:
            return stuck

    worker = Worker(check(), toy, 0.1)
    worker.server = Stuck(toy.root)
    finding = worker.run().finding
    assert (finding.outcome, body.wait()) == ("TIMEOUT", -signal.SIGTERM)
    assert stuck.returncode == LOST


@pytest.mark.parametrize("missing", [(os, "pidfd_open"), (socket, "recv_fds")], ids=["pidfd_open", "recv_fds"])
def test_a_system_that_lacks_a_call_starts_every_worker_from_nothing(
    toy: Workspace, monkeypatch: pytest.MonkeyPatch, missing: tuple[Any, str]
) -> None:
    monkeypatch.delattr(*missing)
    server = ForkServer(toy.root)
    worker = Worker(check(), toy, 30.0)
    worker.server = server
    assert worker.run().finding.outcome == "HOLDS"
    assert not isinstance(worker.process, Forked)
    assert server._process is None


def test_another_system_has_no_fork_server(toy: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local.sys, "platform", "darwin")
    server = ForkServer(toy.root)
    assert server.start([sys.executable], {"TMPDIR": "/x"}) is None
    assert server._process is None


@pytest.mark.parametrize("read", [False, True], ids=["unread", "read"])
def test_a_server_outlives_whoever_no_longer_listens(monkeypatch: pytest.MonkeyPatch, read: bool) -> None:
    """Its other workers are not to be lost because the end of one can be stated to nobody."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.send(b"17")
    if read:
        assert mine.recv(64) == b"17"
    mine.close()
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {})
    monkeypatch.setattr(engine, "adopt", lambda: None)
    here = engine._Server(theirs)
    monkeypatch.setattr(here, "_end_orphans", lambda: None)
    ended = os.pidfd_open(pid)
    here._children[ended] = pid, theirs.detach()
    here._bury(ended)
    assert here._children == {}
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(ended)
