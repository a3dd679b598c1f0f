"""A drill on a node of a real Slurm cluster: what slurmctld knows of the node is what it knew before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from healthd.drill.chain import DrillStage
from healthd.sim.machine import SimulatedMachine
from tests.live.slurm.slurm_lab import SlurmLab
from tests.support.running import RunningNode

pytestmark = [pytest.mark.slurm, pytest.mark.process]

SECTIONS = """
[remediation]
mode = "quarantine"
settle_s = 0.5
opt_out_file = ""
[budget]
max_out = 2
settle_s = 0.2
[orchestrator]
kind = "slurm"
[orchestrator.slurm]
timeout_s = 5
report = false
"""
NAME = "n0002"


@pytest.fixture
def node(slurm: SlurmLab, tmp_path: Path) -> Iterator[RunningNode]:
    """A node of the cluster that may be drained, with the hardware of a simulated p5.48xlarge."""
    machine = SimulatedMachine(tmp_path / "machine")
    sections = SECTIONS + machine.sections()
    made = RunningNode(tmp_path / "node", NAME, sections=sections, environ=slurm.env(), kmsg=str(machine.kmsg))
    made.start()
    yield made
    made.stop()


def drill(node: RunningNode, *arguments: str) -> tuple[int, dict[str, Any]]:
    answer = node.healthd("drill", *arguments, "--json", "--socket", str(node.socket))
    return answer.returncode, json.loads(answer.stdout)


def known(slurm: SlurmLab) -> tuple[str, ...]:
    """All that a drain, a slot or a record would change, on a node that does not report its own state."""
    reservations = slurm.scontrol("-o", "show", "reservations").stdout
    shown = (slurm.shows(NAME, key) for key in ("State", "Reason", "Comment", "Extra"))
    return (*shown, reservations)


def test_slurmctld_never_hears_of_a_drill(slurm: SlurmLab, node: RunningNode) -> None:
    """The decision reads the real budget, the plan names the drain; no reservation, no drain, no comment is made."""
    before = known(slurm)
    code, report = drill(node, "xid", "79", "--gpu", "3")
    assert (code, [each["link"] for each in report["links"]]) == (0, list(DrillStage)), report
    assert report["levels"][1]["action"] == "quarantine"
    assert report["budget"] == {"out": 0, "limit": 2, "nodes": 8}
    assert any("[drill " in each for each in report["plan"]["steps"])
    assert known(slurm) == before
    assert "IDLE" in slurm.state(NAME)


def test_a_node_with_a_slurm_job_is_not_drilled_unless_forced(slurm: SlurmLab, node: RunningNode) -> None:
    """The job is named; with --force it is drilled, and the job never knows."""
    job = slurm.run_job(NAME)
    code, report = drill(node, "xid")
    assert (code, report["result"]) == (2, "refused")
    assert f"slurm runs jobs on this node: {job}" in report["missing"]["why"]
    forced, report = drill(node, "xid", "--force")
    assert (forced, report["result"]) == (0, "complete")
    assert slurm.job(job)["JobState"] == "RUNNING"
    assert "DRAIN" not in slurm.state(NAME)


def test_a_controller_that_does_not_answer_is_the_link_that_is_missing(slurm: SlurmLab, node: RunningNode) -> None:
    """Observe mode would hide until the day that nobody could be asked; a drill shows it."""
    slurm.ctld_stop()
    try:
        code, report = drill(node, "xid", "--force", "--timeout", "12")
    finally:
        slurm.ctld_start()
    assert (code, report["missing"]["link"]) == (1, "decision")
    assert "could not be read, so nothing is taken out" in report["missing"]["why"]
