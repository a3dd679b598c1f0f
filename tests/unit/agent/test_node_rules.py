"""The rules are those of the configuration; the driver's version is read once for each fault."""

from __future__ import annotations

from datetime import UTC, datetime

from healthd.agent.node_rules import DriverAtFault, bounds_of
from healthd.config.schema.config import PolicySection
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


def test_the_limits_are_the_settings() -> None:
    """Every setting of the section reaches the decision."""
    section = PolicySection(lemon_repairs=9, lemon_days=3, repairs_per_fault=7, repairs_per_remedy=3, relapse_days=2)
    bounds = bounds_of(section)
    assert (bounds.lemon_repairs, bounds.lemon_days, bounds.repairs_per_fault) == (9, 3, 7)
    assert (bounds.repairs_per_remedy, bounds.relapse_days) == (3, 2)
    assert (bounds.same_fault_nodes, bounds.same_fault_minutes) == (4, 10)
