"""The process between healthd and an active test: when it ends, every process of the test is gone.

Run by path, ``python -S -P guard.py PARENT DEADLINE_S COMMAND…``, in a session of its own. It ends the test at the
deadline, when healthd dies (also by SIGKILL), and after the test has ended by itself, and then kills every process of
the test in any session: as a child subreaper it becomes the parent of every orphan. If this process itself is killed,
the kernel kills the test. It passes on the test's output and exit status and judges nothing.

Sources: prctl(2), PR_SET_PDEATHSIG (kept over execve of a program that is not set-uid; it is sent when the thread that
created the child ends, which is the one that waits for it) and PR_SET_CHILD_SUBREAPER.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NoReturn

SAYS = "healthd-guard: "
"""The beginning of each line that this process itself writes to standard error."""

NO_END = f"{SAYS}no end within "
"""The beginning of the line at the deadline, whatever the exit status is."""

TIMED_OUT, NOT_STARTED = 124, 127  # as timeout(1) and sh(1) have them

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_ENDS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_SWEEP_S = 2.0  # a killed process that is still there after this is in uninterruptible sleep


def main(arguments: Sequence[str]) -> NoReturn:
    """Run the command until it ends, the deadline comes, or the parent is gone."""
    parent, deadline_s, *command = arguments
    until_s = time.monotonic() + float(deadline_s)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, *_ENDS})
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    end_with_parent(int(parent), signal.SIGTERM)
    code = _watch(_start(command), until_s)
    if code is None and time.monotonic() >= until_s:
        _say(f"{NO_END}{deadline_s} s")
    left = _sweep()
    if left:
        _say(f"{SAYS}{left} processes do not die (uninterruptible sleep); left alone")
    os._exit(TIMED_OUT if code is None else code)


def end_with_parent(parent: int, sent: signal.Signals = signal.SIGKILL) -> None:
    """Make the kernel send a signal when the parent ends; end at once if the parent has ended already."""
    _prctl(_PR_SET_PDEATHSIG, sent)
    if os.getppid() != parent:
        os._exit(TIMED_OUT)


def _start(command: list[str]) -> int:
    """The pid of the command. This process has one thread, so a plain fork is safe."""
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    end_with_parent(guard)
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        _say(f"{SAYS}{command[0]}: could not be started: {error}")
    os._exit(NOT_STARTED)


def _watch(child: int, until_s: float) -> int | None:
    """The exit status of the child, as a shell returns it; None where it must be ended."""
    while (status := _reaped(child)) is None:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            return None
        event = signal.sigtimedwait({signal.SIGCHLD, *_ENDS}, left_s)
        if event is not None and event.si_signo in _ENDS:
            return None
    return status


def _reaped(child: int) -> int | None:
    """Reap every child that has ended; the status of ``child`` if it is among them."""
    status = None
    for pid, ended in _ended():
        if pid == child:
            code = os.waitstatus_to_exitcode(ended)
            status = code if code >= 0 else 128 - code
    return status


def _ended() -> Iterator[tuple[int, int]]:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def _sweep() -> int:
    """Kill all children, and the orphans that they leave. Returns the number that does not die."""
    until_s = time.monotonic() + _SWEEP_S
    while True:
        for _ in _ended():
            pass
        children = _children()
        if not children or time.monotonic() > until_s:
            return len(children)
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _children() -> list[int]:
    """The live children of this process, read from /proc: ``children`` there is not built into every kernel."""
    own, found = os.getpid(), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stat:
                    state, parent = stat.read().rpartition(")")[2].split()[:2]
            except (FileNotFoundError, ProcessLookupError):
                continue  # ended meanwhile
            if int(parent) == own and state not in "ZX":
                found.append(int(name))
    return found


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def _say(text: str) -> None:
    os.write(2, f"{text}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1:])
