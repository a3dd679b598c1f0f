"""The driver's version is read once for each fault, and again while there is none to read."""

from __future__ import annotations

from datetime import UTC, datetime

from healthd.agent.driver_at_fault import DriverAtFault
from healthd.core.model import Component, Remedy, Severity
from healthd.judge.history import Fault, FaultKey

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)


def faults(*codes: str) -> dict[FaultKey, Fault]:
    return {("gpu:0", code): FAULT for code in codes}


FAULT = Fault(
    check="kernel.xid",
    code="gpu.xid.79",
    severity=Severity.CRITICAL,
    component=Component(kind="gpu", id="0"),
    remedy=Remedy.REBOOT_NODE,
    message="m",
    first=NOW,
    last=NOW,
    boot_id="b",
)


class Driver:
    """A driver that is loaded again under another version."""

    def __init__(self) -> None:
        self.version, self.reads = "580.1", 0

    def __call__(self) -> str:
        self.reads += 1
        return self.version


def test_it_is_read_at_the_start_and_when_a_fault_opens() -> None:
    """Not at each reconcile, and not when a fault ends; a driver that was loaded since counts at the next fault."""
    driver = Driver()
    known, quiet, one = DriverAtFault(driver), faults(), faults("gpu.xid.79")
    assert [known(quiet) for _ in range(100)] == ["580.1"] * 100
    driver.version = "590.2"
    assert (known(faults()), driver.reads) == ("580.1", 1)
    assert [known(one) for _ in range(100)] == ["590.2"] * 100
    assert (known(dict(one)), driver.reads) == ("590.2", 2)
    assert (known(faults("gpu.xid.79", "gpu.xid.95")), driver.reads) == ("590.2", 3)
    assert (known(one), known(quiet), driver.reads) == ("590.2", "590.2", 3)


def test_a_driver_that_is_not_there_yet_is_read_again_while_a_fault_is_open() -> None:
    """A fault may open while it is unloaded."""
    driver = Driver()
    driver.version = ""
    known, one = DriverAtFault(driver), faults("driver.missing")
    assert (known(faults()), known(faults()), driver.reads) == ("", "", 1)
    assert (known(one), known(one), driver.reads) == ("", "", 3)
    driver.version = "580.1"
    assert (known(one), known(one), driver.reads) == ("580.1", "580.1", 4)
