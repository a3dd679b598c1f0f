"""The inventory that a node's daemon tells the fleet's ledger."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from healthd.api.inventory import NodeInventory
from healthd.core.check import judged
from healthd.core.model import NODE, Finding, Outcome, Severity
from healthd.sim.nvml import write_state
from healthd.sim.nvml_state import healthy_state, with_line
from healthd.testing import FakeClock
from tests.support.resting_agent import resting_agent

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.process
def test_an_inventory_has_every_gpu_by_uuid_and_serial(tmp_path: Path) -> None:
    """Of a simulated p5.48xlarge, and again where the driver may not be asked."""
    clock = FakeClock()
    with resting_agent(tmp_path) as agent:
        inventory = NodeInventory(agent, clock=clock)
        data = json.loads(inventory.text())
        agent.machine.nvml.pause(1000.0, "of this test")
        clock.advance(60)
        again = json.loads(inventory.text())
    assert (data["schema"], data["instance_type"]) == ("healthd.inventory/v1", "p5.48xlarge")
    assert len({each["serial"] for each in data["gpus"]} - {""}) == 8
    assert all(each["uuid"].startswith("GPU-") for each in data["gpus"])
    assert again["gpus"] == data["gpus"]


@pytest.mark.process
def test_the_driver_is_asked_rarely(tmp_path: Path) -> None:
    """Any user may request inventories, as fast as they like: the checks find the worker free."""
    clock, state = FakeClock(), healthy_state()
    with resting_agent(tmp_path) as agent:
        inventory = NodeInventory(agent, clock=clock)
        for serial, waited_s in (("1", 0), ("2", 1), ("3", 10)):
            write_state(tmp_path / "machine" / "nvml.sim", with_line(state, "gpu0.nvmlDeviceGetSerial", serial))
            clock.advance(waited_s)
            gpus = json.loads(inventory.text())["gpus"]
            assert gpus[0]["serial"] == ("1" if waited_s < 10 else "3")


@pytest.mark.process
def test_an_inventory_has_every_open_fault_of_a_part(tmp_path: Path) -> None:
    """Not the worst alone: a fault of the node that a worse one joins is not over."""
    with resting_agent(tmp_path) as agent:
        for check, code in (("host.memory", "host.memory.swap"), ("host.clock", "host.clock.offset")):
            found = judged([Finding(code=code, severity=Severity.WARNING, component=NODE, message="m")])
            agent.monitor.absorb(Outcome(check=check, result=found, at=NOW, duration_s=0.0))
        faults = json.loads(NodeInventory(agent).text())["faults"]
        shown = {(each.code, str(each.component)) for each in agent.monitor.history.faults.values()}
    assert len(shown) > 1
    assert {(each["code"], each["component"]) for each in faults} == shown
