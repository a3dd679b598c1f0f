"""The service manager: its signals, end (SIGTERM, SIGINT) or take the new configuration (SIGHUP), and news for systemd.

A reload is the same program started again in this process, in order and only once the new configuration is known to
load, and to be one that a service could start with here. So every setting can be changed by it, nothing of the old one
lingers, and the process id stays, by which systemd knows that this was no end. Any other configuration changes nothing.

systemd takes news by sd_notify(3): one datagram to the socket that it names. Nothing is sent without systemd.
"""

from __future__ import annotations

import enum
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from healthd.core.errors import HealthdError, SourceTimeout
from healthd.probe.supervise import passed_on

_LOAD_TIMEOUT_S = 30.0  # a platform of AWS that has to be found out takes half of it
_KEEPS_WATCHDOG_S = 1.0
_AGAIN_S = 300.0


class SignalRequest(enum.Enum):
    """The request of a signal."""

    END = enum.auto()
    RELOAD = enum.auto()


class Signals:
    """The signals of one service. ``load`` raises HealthdError where the configuration cannot be used as it is now; one
    that takes longer than ``load_timeout_s`` cannot be used either."""

    def __init__(
        self, manager: str, log: Any, load: Callable[[], object], *, load_timeout_s: float = _LOAD_TIMEOUT_S
    ) -> None:
        self._manager, self._log, self._load, self._load_timeout_s = manager, log, load, load_timeout_s
        # A handler runs in the middle of whatever the main thread does; an Event's lock may be its own just then.
        self._requests: SimpleQueue[SignalRequest] = SimpleQueue()
        self._rehearsal: _Rehearsal | None = None
        self._refused_s: float | None = None
        self.reloads = False
        """Whether the end that is due is for a new configuration: `start_again` follows it."""

    def listen(self) -> None:
        """Take the signals from now on. In the main thread only."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.end())
        signal.signal(signal.SIGHUP, lambda *_: self._requests.put(SignalRequest.RELOAD))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

    def end(self) -> None:
        """Have the main thread end the service. Any thread may ask for that."""
        self._requests.put(SignalRequest.END)

    def reload(self) -> None:
        """Have the main thread start the service again, as a SIGHUP does. Any thread may ask for that."""
        self._requests.put(SignalRequest.RELOAD)

    @property
    def may_reload(self) -> bool:
        """Whether the service itself may ask for a reload: after one that was refused it waits for some minutes, since
        the next one most likely is refused as well. A SIGHUP counts at any time."""
        return self._refused_s is None or time.monotonic() - self._refused_s >= _AGAIN_S

    def wait(self, timeout_s: float) -> bool:
        """Wait for a request; whether the service is to end. False after ``timeout_s`` seconds, or for a bad reload."""
        try:
            request = self._requests.get(timeout=timeout_s)
        except Empty:
            return False
        self.reloads = request is SignalRequest.RELOAD and self._loads()
        return self.reloads or request is SignalRequest.END

    def say_ending(self) -> None:
        """Send STOPPING=1 to the service manager, unless it knows of a reload already."""
        if not self.reloads:
            notify(self._manager, "STOPPING=1")

    def start_again(self) -> None:
        """After the end in order: replace this program by its next start if that was for a reload. An end that came
        in between wins; a reload after that waits for the next start to listen."""
        # By default a SIGHUP would end the new program until it listens: one that is blocked is pending there.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        while self.reloads and not self._requests.empty():
            self.reloads = self._requests.get() is SignalRequest.RELOAD
        if not self.reloads:
            return
        notify(self._manager, "WATCHDOG=1")  # the whole interval for the start
        manager = {"NOTIFY_SOCKET": self._manager} if self._manager else {}
        environ = {**os.environ, **manager, **passed_on()}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)  # noqa: S606  # itself

    def _loads(self) -> bool:
        """Whether the configuration loads as it is now. systemd hears of the reload, and of its end if it is none."""
        notify(self._manager, f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            self._rehearse()
        except HealthdError as error:
            self._refused_s = time.monotonic()
            self._log.error("reload.refused", error=str(error))
            notify(self._manager, "READY=1")
            return False
        self._log.info("reload.taken")
        return True

    def _rehearse(self) -> None:
        """Load the configuration in a thread: its files, a policy or Slurm's folder may lie on a file system that
        hangs. Raises what that raises, and SourceTimeout; beside one that hangs there is no second."""
        if self._rehearsal is None or not self._rehearsal.is_alive():
            self._rehearsal = _Rehearsal(self._load)
            self._rehearsal.start()
            self._rehearsal.wait(self._load_timeout_s, lambda: notify(self._manager, "WATCHDOG=1"))
        if self._rehearsal.is_alive():
            what = "the configuration, or what it names, cannot be read"
            raise SourceTimeout(f"{what} within {self._load_timeout_s:g} s: a file system hangs")
        if self._rehearsal.failure is not None:
            raise self._rehearsal.failure


class _Rehearsal(threading.Thread):
    """One attempt to load a configuration. ``failure``: of one that has ended."""

    def __init__(self, load: Callable[[], object]) -> None:
        super().__init__(name="reload", daemon=True)
        self._load = load
        self.failure: Exception | None = None

    def run(self) -> None:
        """Load it."""
        try:
            self._load()
        except Exception as error:  # noqa: BLE001 - the thread that waits raises it
            self.failure = error

    def wait(self, timeout_s: float, tick: Callable[[], None]) -> None:
        """Wait for its end, at most so long, and call ``tick`` meanwhile."""
        until_s = time.monotonic() + timeout_s
        while self.is_alive() and (left_s := until_s - time.monotonic()) > 0:
            tick()
            self.join(min(left_s, _KEEPS_WATCHDOG_S))


def take_address() -> str:
    """The socket's address, or "" without systemd. Taken out of the environment: what we run must not speak for us.

    (systemctl reports its own errors there, as ``ERRNO=``: seen with systemd 252.)
    """
    return os.environ.pop("NOTIFY_SOCKET", "")


def watchdog_every_s(at_most_s: float) -> float:
    """How often ``WATCHDOG=1`` is to be sent, in seconds: at half of the time after which systemd ends a silent
    service, if that is sooner (sd_watchdog_enabled(3))."""
    word = os.environ.get("WATCHDOG_USEC", "")
    ends_after_us = int(word) if word.isdecimal() else 0
    return min(at_most_s, ends_after_us / 2e6) if ends_after_us else at_most_s


def notify(address: str, state: str) -> None:
    """Send ``READY=1``, ``WATCHDOG=1`` or ``STOPPING=1``. An abstract socket is named with a leading ``@``.

    A socket that does not take it is ignored on purpose: systemd's own time-out is what reports a silent service.
    """
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        try:
            channel.sendto(state.encode(), address)
        except OSError:
            return
