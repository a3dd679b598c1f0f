"""The inventory that a node's daemon tells the fleet's ledger."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from healthd.api.inventory import NodeInventory
from healthd.sim.nvml import write_state
from healthd.sim.nvml_state import healthy_state, with_line
from healthd.testing import FakeClock
from tests.support.resting_agent import resting_agent


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
