"""One worker process, seen from its parent: start, send, receive with a deadline, kill. No policy.

Nothing here waits longer than its limit: ``Popen.communicate`` and an unbounded ``wait`` hang on a child in
uninterruptible sleep, so neither is used.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import IO, Any, cast

import healthd
from healthd.probe import wire

REAP_S = 0.3
"""How long a killed child may take to end before it counts as stuck."""

_LAST_OUTPUT_BYTES = 400
_STDERR_KEEP_BYTES = 256 * 1024


class ChildTrouble(Enum):
    """The reason of a missing message."""

    SILENT = "silent"
    ENDED = "ended"
    GARBLED = "garbled"


def kill_group(pid: int) -> None:
    """Send SIGKILL to the process group that a child leads. A missing group is fine; the wait for the child shows
    whether one that may not be signalled (not as root, a set-uid child) has ended.

    The kernel gives the number of a living group to no new process; that of an empty one is reused only after all
    others.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


class Child:
    """A worker of ``module``. Its standard error goes to memory: a worker that never dies would hold a pipe open.

    ``kill`` ends the process group with a given leader. Raises OSError when no process can be started.
    """

    def __init__(
        self, module: str, arguments: Sequence[str], *, idle_s: float, kill: Callable[[int], None] = kill_group
    ) -> None:
        self.ready = False
        self.ending = False
        self._kill = kill
        self._buffer = bytearray()
        self._stderr = os.memfd_create("healthd-probe-stderr")
        fcntl.fcntl(self._stderr, fcntl.F_SETFL, os.O_APPEND)
        script = str(Path(__file__).with_name("worker.py"))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-P", script, module, f"{idle_s:g}", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                bufsize=0,
                cwd="/",
                env=_environment(),
                start_new_session=True,
            )
        except OSError:
            os.close(self._stderr)
            raise
        self._stdin = cast("IO[bytes]", self._process.stdin)
        self._stdout = cast("IO[bytes]", self._process.stdout)
        self.pid = self._process.pid

    def send(self, message: Mapping[str, Any]) -> bool:
        """Send a message; False when the worker has ended. The pipe of an idle worker is empty."""
        try:
            self._stdin.write(wire.encode(message))
        except (BrokenPipeError, ValueError):
            return False
        return True

    def receive(self, until: float) -> dict[str, Any] | ChildTrouble:
        """The next message, or the reason for none by ``until`` (time.monotonic)."""
        poller = select.poll()
        poller.register(self._stdout, select.POLLIN)
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > wire.MAX_LINE_BYTES:
                return ChildTrouble.GARBLED
            if not poller.poll(max(0, math.ceil((until - time.monotonic()) * 1000))):
                return ChildTrouble.SILENT
            chunk = os.read(self._stdout.fileno(), 65536)
            if not chunk:
                return ChildTrouble.ENDED
            self._buffer += chunk
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return wire.decode(line) or ChildTrouble.GARBLED

    def gone(self) -> bool:
        """Whether the process has ended; never blocks. Its pid is not reused before this returned True."""
        return self._process.poll() is not None

    def exit_code(self) -> int | None:
        """Its exit code, after waiting up to REAP_S; None while it lives."""
        try:
            return self._process.wait(REAP_S)
        except subprocess.TimeoutExpired:
            return None

    def interrupt(self) -> None:
        """Kill it from another thread than the one that waits for the answer; that one sees its end."""
        self.ending = True
        if not self.gone():
            self._kill(self.pid)

    def destroy(self) -> bool:
        """Kill it, wait up to REAP_S, and return whether it ended."""
        self.interrupt()
        gone = self.exit_code() is not None
        self._stdin.close()
        self._stdout.close()
        if self._stderr >= 0:
            os.close(self._stderr)
            self._stderr = -1
        return gone

    def last_output(self) -> str:
        """The end of its standard error, on one line."""
        size = os.fstat(self._stderr).st_size
        tail = os.pread(self._stderr, _LAST_OUTPUT_BYTES, max(0, size - _LAST_OUTPUT_BYTES))
        return " ".join(tail.decode(errors="replace").split())

    def forget_output(self) -> None:
        """Keep the memory of a talkative library's standard error bounded."""
        if os.fstat(self._stderr).st_size > _STDERR_KEEP_BYTES:
            os.ftruncate(self._stderr, 0)


def module_path() -> str:
    """PYTHONPATH for a Python child that runs without ``site``: it finds the modules of this process."""
    root = str(Path(healthd.__file__).resolve().parent.parent)
    return os.pathsep.join(dict.fromkeys([root, *(entry for entry in sys.path if entry and os.path.isabs(entry))]))


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": module_path()}
