"""``[[match]]`` by the job on the node, with a real daemon and a real slurmctld: the mode follows the job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.live.slurm.reboot_asked import repairing
from tests.live.slurm.slurm_lab import SlurmLab
from tests.support.limits import limit_s
from tests.support.running import OFF_THE_BUS, RunningNode

pytestmark = [pytest.mark.slurm, pytest.mark.process]

NAME = "n0001"
PCI = "0000:05:00"
LEAVE_JOBS_ALONE = """
[[match]]
job_nodes = 1
[match.remediation]
mode = "observe"
"""
BY_ACCOUNT = LEAVE_JOBS_ALONE.replace("job_nodes = 1", 'job_account = ["ml"]').replace("observe", "quarantine")


def plan(node: RunningNode) -> dict[str, Any]:
    shown = node.healthd("plan", "--json", "--socket", str(node.socket))
    return dict(json.loads(shown.stdout))


def test_the_mode_follows_the_job_that_is_there(slurm: SlurmLab, tmp_path: Path) -> None:
    """Under the job the faulty node is left in service, and the plan names the job; once it has ended, it is drained.
    slurmctld is asked by squeue alone, and only because a fault is open."""
    sections = repairing(tmp_path / "asked", mode="quarantine") + LEAVE_JOBS_ALONE
    node = RunningNode(tmp_path / "node", NAME, sections=sections, environ=slurm.env())
    job = slurm.run_job(NAME)
    node.start()
    try:
        assert (plan(node)["mode"], plan(node)["by_job"]) == ("quarantine", ""), "no fault is open"
        node.kernel_says(OFF_THE_BUS.format(pci=PCI))
        node.wait(lambda: plan(node)["plans"], limit_s(15.0), "the fault is found")
        found = plan(node)
        assert found["mode"] == "observe"
        assert found["by_job"].startswith(f"job {job}, partition "), found["by_job"]
        assert "(match[0]) holds, so that the mode is observe" in found["by_job"]
        assert "observe mode: would take the node out" in found["plans"][0]["message"]
        assert "DRAIN" not in slurm.state(NAME)
        slurm.client("scancel", job)
        slurm.wait(lambda: "DRAIN" in slurm.state(NAME), limit_s(60.0), "drained once the job has ended")
        assert plan(node)["by_job"] == ""
    finally:
        node.stop()


def test_where_the_account_is_not_known_the_lower_mode_applies(slurm: SlurmLab, tmp_path: Path) -> None:
    """Without slurmdbd no job has an account: the node is drained, and its repair is not begun while the job runs."""
    asked = tmp_path / "asked"
    node = RunningNode(
        tmp_path / "node", NAME, sections=repairing(asked, mode="repair") + BY_ACCOUNT, environ=slurm.env()
    )
    job = slurm.run_job(NAME)
    node.start()
    try:
        node.kernel_says(OFF_THE_BUS.format(pci=PCI))
        slurm.wait(lambda: "DRAIN" in slurm.state(NAME), limit_s(15.0), "drained")
        found = plan(node)
        assert (found["mode"], asked.exists()) == ("quarantine", False)
        assert found["by_job"].startswith(f"the account of job {job} is not known: ")
        slurm.client("scancel", job)
        node.wait(asked.exists, limit_s(90.0), "without the job it is repaired")
    finally:
        node.stop()
