"""The inventory that a node's daemon tells the fleet's ledger."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from healthd.api.inventory import NodeInventory
from tests.support.resting_agent import resting_agent


@pytest.mark.process
def test_an_inventory_has_every_gpu_by_uuid_and_serial(tmp_path: Path) -> None:
    """Of a simulated p5.48xlarge, and again without a request to the driver."""
    with resting_agent(tmp_path) as agent:
        inventory = NodeInventory(agent)
        data = json.loads(inventory.text())
        agent.machine.nvml.pause(1000.0, "of this test")
        again = json.loads(inventory.text())
    assert (data["schema"], data["instance_type"]) == ("healthd.inventory/v1", "p5.48xlarge")
    assert len({each["serial"] for each in data["gpus"]} - {""}) == 8
    assert all(each["uuid"].startswith("GPU-") for each in data["gpus"])
    assert again["gpus"] == data["gpus"]
