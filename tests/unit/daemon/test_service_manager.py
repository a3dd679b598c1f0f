"""The words of the service manager that the daemon reads. What it sends: tests/daemon/test_daemon_life.py."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from healthd.core.errors import ConfigError
from healthd.daemon.service_manager import Signals, watchdog_every_s
from tests.support.limits import limit_s


@pytest.mark.parametrize(
    ("usec", "every_s"), [("60000000", 15.0), ("20000000", 10.0), ("1", 5e-7), ("0", 15.0), ("", 15.0), ("soon", 15.0)]
)
def test_the_watchdog_is_kept_in_half_of_its_time(usec: str, every_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where systemd waits for longer than twice our own interval, or sets no time at all, that interval holds."""
    monkeypatch.setenv("WATCHDOG_USEC", usec)
    assert watchdog_every_s(15.0) == every_s


class Log:
    """What a service logs."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def error(self, event: str, *, error: str) -> None:
        self.lines.append(f"{event}: {error}")

    def info(self, event: str) -> None:
        self.lines.append(event)


def test_a_configuration_on_a_file_system_that_hangs_is_refused(tmp_path: Path) -> None:
    """The main thread goes on, and keeps the watchdog meanwhile; a second reload waits for nothing, and begins once the
    first has ended."""
    answers, begun, log = threading.Event(), list[int](), Log()

    def load() -> None:
        begun.append(threading.get_ident())
        answers.wait(limit_s(60))

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(limit_s(5))
        signals = Signals(str(tmp_path / "notify"), log, load, load_timeout_s=0.2)
        for _ in range(2):
            signals.reload()
            assert not signals.wait(limit_s(5))
        sent = [manager.recv(100).partition(b"\n")[0]]
        while sent.count(b"READY=1") < 2:
            sent.append(manager.recv(100).partition(b"\n")[0])
    assert sent[:2] == [b"RELOADING=1", b"WATCHDOG=1"]
    assert sent[-3:] == [b"READY=1", b"RELOADING=1", b"READY=1"]
    (refused,) = set(log.lines)
    assert refused.endswith("cannot be read within 0.2 s: a file system hangs")
    assert (len(begun), threading.get_ident() in begun) == (1, False)
    answers.set()
    for thread in [each for each in threading.enumerate() if each.ident in begun]:
        thread.join(limit_s(5))
    signals.reload()
    assert signals.wait(limit_s(5))
    assert (signals.reloads, len(begun)) == (True, 2)


def test_why_a_configuration_is_refused_is_logged() -> None:
    """All of it, as a start would print it."""

    def load() -> None:
        raise ConfigError(("daemon.group: no such group",))

    log = Log()
    signals = Signals("", log, load)
    assert signals.may_reload
    signals.reload()
    assert not signals.wait(limit_s(5))
    assert log.lines == ["reload.refused: daemon.group: no such group"]
    assert not signals.may_reload, "the service itself does not ask again at once"
