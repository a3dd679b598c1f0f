"""The active tests of a node that is verified: their findings in a sentence, and why they do not run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from healthd.agent.agent import Agent, acting_agent
from healthd.agent.wiring import found_by_tests
from healthd.config.load import load
from healthd.core.check import discover, judged, unknown
from healthd.core.errors import SourceTimeout
from healthd.core.model import Result
from healthd.sim.machine import SimulatedMachine
from healthd.sources.machine import Machine
from tests.support.judgement import finding

SLOW, BLIND = "nccl.nvlink", "nccl.loopback"


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """One active test finds something, another cannot run."""
    checks = {name: check.settings for name, check in discover().items()}
    made = acting_agent(
        load(SimulatedMachine(tmp_path / "machine").config, checks=checks, environ={}).config,
        source="daemon",
        environ={},
        changed=lambda: None,
    )
    results = {SLOW: judged([finding("nccl.nvlink.slow")]), BLIND: unknown("no way to run NCCL")}

    def returns(result: Result) -> Any:
        return lambda _node, _settings: result

    checks_here = made.checkup.checks
    active = {name: structs.replace(checks_here[name], run=returns(result)) for name, result in results.items()}
    made.checkup.checks = {**{name: check for name, check in checks_here.items() if check.on != "active"}, **active}
    yield made
    made.close()


def found(agent: Agent, machine: Machine) -> str:
    assert agent.orchestrator is not None
    return found_by_tests(machine, agent.orchestrator, agent.checkup, lambda: None)


@pytest.mark.process
def test_what_they_find_is_said_and_what_cannot_run_is_in_the_trail(agent: Agent) -> None:
    """A library that is not installed keeps no node out."""
    assert found(agent, agent.machine) == "nccl.nvlink.slow was found: nccl.nvlink.slow on gpu:GPU-0"
    assert agent.store is not None
    assert "nccl.loopback is unknown: no way to run NCCL" in [event.text for event in agent.store.events()]


@pytest.mark.process
def test_what_was_found_stays_found_while_they_cannot_run(agent: Agent) -> None:
    """Of a test that hung its process may hold the GPUs. An operator's acknowledgement counts."""
    assert found(agent, agent.machine)
    assert found(agent, structs.replace(agent.machine, nvml=Unreadable())) == found(agent, agent.machine)
    agent.monitor.acknowledge(by=datetime.now(UTC), now=datetime.now(UTC), why="it is known")
    assert found(agent, agent.machine) == ""


@pytest.mark.process
def test_on_a_node_in_use_none_begins(agent: Agent) -> None:
    """The trail says why."""

    assert found(agent, structs.replace(agent.machine, nvml=Unreadable())) == ""
    assert agent.store is not None
    text = "the active tests do not run: cannot read which processes hold the GPUs: it hangs"
    assert agent.store.events()[-1].text == text


class Unreadable:
    """An NVML that gives no answer."""

    def ask(self, *_calls: str, **_more: Any) -> Any:
        """No answer."""
        raise SourceTimeout("it hangs")
