"""healthd as the fork of a process that has it loaded: loading it takes most of what a daemon under test costs.

As a program this is that process, one for each process of pytest. Each connection to its socket asks for one healthd,
by arguments, environment and its three streams; it gets the process id, and the exit status at the end. What the fork
runs is ``healthd.__main__.main``, in a session of its own; another ``program`` may fork something else. ``python -m
healthd`` itself is started by the tests about its start and its end (``Running.as_program``), and by those whose
environment is for the interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.limits import limit_s

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "tests.support.forked_healthd"
_OF_THE_INTERPRETER = ("LD_", "PYTHON", "MALLOC_", "GLIBC_")
_CHANGES_NOTHING = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
_LARGEST_BYTES = 1 << 17
_STARTING = threading.Lock()


def fits(environ: Mapping[str, str]) -> bool:
    """Whether a fork is what a program with this environment would be: nothing in it is for the interpreter's start,
    but for where AWS's child finds its sitecustomize, which a fork does not read."""
    given, ours = (
        {name: each[name] for name in each if name.startswith(_OF_THE_INTERPRETER) and name not in _CHANGES_NOTHING}
        for each in (environ, os.environ)
    )
    folders = [Path(text) for text in environ.get("PYTHONPATH", "").split(os.pathsep) if text]
    return given == ours and all(folder == ROOT or _is_of_a_child(folder) for folder in folders)


def _is_of_a_child(folder: Path) -> bool:
    return {path.name for path in folder.iterdir()} <= {"sitecustomize.py", "__pycache__"}


class ForkedHealthd:
    """One healthd. ``pid``; the rest as of subprocess.Popen. ``program``: the module that forks it."""

    def __init__(
        self, arguments: Sequence[str], environ: Mapping[str, str], streams: Sequence[int], *, program: str = PROGRAM
    ) -> None:
        self.returncode: int | None = None
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with _STARTING:
            path = server_of(program)
        self._connection.connect(path)
        socket.send_fds(self._connection, [order_of(arguments, environ)], list(streams))
        self.pid = int(self._connection.recv(100))

    def poll(self) -> int | None:
        """Its exit status, or None while it runs."""
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, once it has ended."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"healthd, process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Nothing is sent to one that has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended since, and its parent has reaped it
                os.kill(self.pid, number)

    def _ended(self, within_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._connection], [], [], within_s)[0]:
            told = self._connection.recv(100)
            assert told, "the process that forks healthd is gone"
            self.returncode = int(told)
            self._connection.close()
        return self.returncode


def run(arguments: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """A command line, from its start to its end, with nothing on its standard input."""
    with TemporaryDirectory(prefix="healthd-") as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        with out.open("wb") as stdout, err.open("wb") as stderr, Path(os.devnull).open("rb") as stdin:
            streams = [stdin.fileno(), stdout.fileno(), stderr.fileno()]
            process = ForkedHealthd(arguments, environ, streams)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            raise
        return subprocess.CompletedProcess(list(arguments), code, out.read_text(), err.read_text())


def order_of(arguments: Sequence[str], environ: Mapping[str, str]) -> bytes:
    """What a process that forks is asked for."""
    return json.dumps({"arguments": [str(each) for each in arguments], "environ": dict(environ)}).encode()


@cache
def server_of(program: str) -> str:
    """The socket of this process's own process that forks."""
    folder = TemporaryDirectory(prefix="healthd-forks-")
    path = f"{folder.name}/s"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", program, path]
    # It ends when this end of its stdin is closed, by whatever end of this process.
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, cwd="/", env=environ, start_new_session=True)
    atexit.register(_end, process, folder)
    until_s = time.monotonic() + limit_s(60.0)
    while not os.path.exists(path):
        assert process.poll() is None, "the process that forks healthd has ended"
        assert time.monotonic() < until_s, "the process that forks healthd has not started"
        time.sleep(0.02)
    return path


def _end(process: subprocess.Popen[bytes], folder: TemporaryDirectory[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait()
    folder.cleanup()


# ---------------------------------------------------------------------------------------------------------------------
# the process that forks


def load() -> None:
    """What a daemon, a controller and most commands load."""
    from healthd.config.keys import allowed_table, variables
    from healthd.config.schema.config import PolicySection
    from healthd.core.check import discover
    from healthd.remediation.policy_files import policy_of

    for module in (
        "agent.job_verdicts",
        "cli.controller",
        "cli.fleet",
        "cli.main",
        "cli.run",
        "controller.run",
        "daemon.daemon",
        "daemon.trial",
        "state.recent_readings",
    ):
        importlib.import_module(f"healthd.{module}")
    policy_of(PolicySection(), None)  # the checks, too
    variables(allowed_table({name: check.settings for name, check in discover().items()}), ())  # all of them


def fork_for_each(path: str) -> tuple[bytes, list[int]]:
    """Fork for each connection. Returns in the forks alone: what each was asked, and its streams."""
    connections: dict[int, tuple[int, socket.socket]] = {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server, select.epoll() as waiting:
        server.bind(f"{path}.new")
        server.listen(64)
        os.rename(f"{path}.new", path)  # who sees it can connect
        waiting.register(server, select.EPOLLIN)
        waiting.register(0, select.EPOLLIN)
        while True:
            for ready, _ in waiting.poll():
                if ready == 0:
                    os._exit(0)  # whoever asked is gone
                elif ready in connections:
                    pid, connection = connections.pop(ready)
                    # Its close alone does not end that: a fork that has just begun may still have a copy of it.
                    waiting.unregister(ready)
                    os.close(ready)
                    _tell(connection, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                    connection.close()
                else:
                    connection, _ = server.accept()
                    order, streams, _, _ = socket.recv_fds(connection, _LARGEST_BYTES, 3)
                    if (pid := os.fork()) == 0:
                        return order, streams
                    for stream in streams:
                        os.close(stream)
                    handle = os.pidfd_open(pid)
                    connections[handle] = (pid, connection)
                    waiting.register(handle, select.EPOLLIN)
                    _tell(connection, pid)


def _tell(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # who does not wait for this one
        connection.send(str(number).encode())


def become(order: bytes, streams: Sequence[int]) -> list[str]:
    """This process is a healthd as its start would have made it. Returns its arguments."""
    asked = json.loads(order)
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    # Those of the server may seek, where it writes to a file.
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115 - as long as the process
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(asked["environ"])
    time.tzset()
    own: list[str] = asked["arguments"]
    sys.argv[1:] = own
    sys.orig_argv[:] = [sys.executable, "-m", "healthd", *own]  # what a daemon becomes when it starts again
    return own


if __name__ == "__main__":
    load()
    gc.freeze()  # what all share stays shared
    own = become(*fork_for_each(sys.argv[1]))
    from healthd.__main__ import main

    sys.exit(main(own))
