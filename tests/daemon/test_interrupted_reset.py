"""A daemon that was killed in the middle of its GPU reset: the next one knows what the reset brings about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from healthd.agent.agent import Agent, acting_agent
from healthd.config.load import load
from healthd.core.check import discover
from healthd.core.model import Event, Step
from healthd.core.node import KernelRecord
from healthd.remediation.decide.remediation import Phase
from healthd.sim.machine import SimulatedMachine
from healthd.sim.tree import new_boot
from tests.support.judgement import a_remediation

LINK_DOWN = "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"


@contextmanager
def agent_on(machine: SimulatedMachine) -> Iterator[Agent]:
    checks = {name: check.settings for name, check in discover().items()}
    config = load(machine.config, checks=checks, environ={}).config
    made = acting_agent(config, source="daemon", environ={}, changed=lambda: None)
    yield made
    made.close()


def found_after(
    machine: SimulatedMachine, *, phase: Phase, ago: timedelta, line_after: timedelta, reboots: bool
) -> list[str]:
    """The codes of a kernel line that a daemon reads, whose predecessor began a reset so long ago and was killed."""
    began = datetime.now(UTC) - ago
    left = a_remediation(steps=(Step.RESET, Step.VERIFY, Step.RELEASE), phase=phase, since=began)
    with agent_on(machine) as agent:
        assert agent.store is not None
        agent.store.save_remediation(left, Event(at=began, kind="step", text="intends to reset the GPUs"))
    if reboots:
        new_boot(machine.root)
    with agent_on(machine) as agent:
        boot_id = agent.machine.boot_id
        record = KernelRecord(boot_id=boot_id, sequence=1, time=began + line_after, text=LINK_DOWN)
        agent.checkup.judge_kernel((record,), None)
        return sorted(code for diagnosis in agent.monitor.diagnoses() for code in diagnosis.codes)


@pytest.mark.parametrize(
    ("phase", "minutes_ago", "line_after_s", "reboots", "is_own"),
    [
        (Phase.INTENDED, 2, 30.0, False, True),
        (Phase.INTENDED, 60, 1200.0, False, False),
        (Phase.INTENDED, 2, 30.0, True, False),
        (Phase.PLANNED, 2, 30.0, False, False),
    ],
)
def test_lines_of_an_interrupted_reset_are_its_own(
    tmp_path: Path, phase: Phase, minutes_ago: int, line_after_s: float, *, reboots: bool, is_own: bool
) -> None:
    """As faults they would turn a reset into a reboot. Long after it, in a later boot, and without one they are
    faults."""
    found = found_after(
        SimulatedMachine(tmp_path / "machine"),
        phase=phase,
        ago=timedelta(minutes=minutes_ago),
        line_after=timedelta(seconds=line_after_s),
        reboots=reboots,
    )
    assert found == ([] if is_own else ["nvswitch.sxid.20034"])
