"""The parts of a daemon at rest, on a simulated node, in this process: what tests of its doors ask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from healthd.agent.agent import Agent, acting_agent
from healthd.config.load import load
from healthd.core.check import discover
from healthd.sim.machine import SimulatedMachine


@contextmanager
def resting_agent(folder: Path) -> Iterator[Agent]:
    """Nothing of it runs by itself. The machine is made in ``folder``."""
    machine = SimulatedMachine(folder / "machine")
    checks = {name: check.settings for name, check in discover().items()}
    config = load(machine.config, checks=checks, environ={}).config
    made = acting_agent(config, source="daemon", environ={}, changed=lambda: None)
    yield made
    made.close()
