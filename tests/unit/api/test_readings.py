"""The recent readings that a node's daemon tells the fleet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from healthd.agent.agent import Agent
from healthd.api.readings import readings_json
from healthd.judge.peers import COMPARED
from tests.support.limits import limit_s
from tests.support.resting_agent import resting_agent


def ran(agent: Agent, names: Sequence[str]) -> None:
    for name in names:
        agent.checkup.start(name).result(limit_s(60))


@pytest.mark.process
def test_what_the_checks_read_is_told_with_its_age(tmp_path: Path) -> None:
    """Of a simulated p5.48xlarge every gauge after one run, and every counter after two, each GPU by UUID and index."""
    names = ["gpu.power", "gpu.throttle", "gpu.nvlink", "efa.counters", "host.cpu"]
    with resting_agent(tmp_path) as agent:
        ran(agent, names)
        first = json.loads(readings_json(agent))
        ran(agent, names)
        second = json.loads(readings_json(agent))
    assert (first["schema"], first["node"]) == ("healthd.readings/v1", "simulated-p5-48xlarge")
    power = {each["index"]: each for each in first["series"] if each["name"] == "gpu_power_w"}
    assert sorted(power) == list(range(8))
    assert power[3]["component"] == "gpu:GPU-51a1a7ed-0000-4000-8000-000000000003"
    ((age_s, watts),) = power[3]["samples"]
    assert (watts, 0 <= age_s < 600) == (71.0, True)
    assert not any(each["name"].endswith("_total") for each in first["series"])
    assert {each["name"] for each in second["series"]} == COMPARED
