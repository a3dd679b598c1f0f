"""The words of the service manager that the daemon reads. What it sends: tests/daemon/test_daemon_life.py."""

from __future__ import annotations

import pytest

from healthd.daemon.service_manager import watchdog_every_s


@pytest.mark.parametrize(
    ("usec", "every_s"), [("60000000", 15.0), ("20000000", 10.0), ("1", 5e-7), ("0", 15.0), ("", 15.0), ("soon", 15.0)]
)
def test_the_watchdog_is_kept_in_half_of_its_time(usec: str, every_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where systemd waits for longer than twice our own interval, or sets no time at all, that interval holds."""
    monkeypatch.setenv("WATCHDOG_USEC", usec)
    assert watchdog_every_s(15.0) == every_s
