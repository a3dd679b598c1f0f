"""Each row of the table of differences, tried on the Slurm that runs here."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.slurm.slurm_lab import SlurmLab
from tests.support.slurm_versions import DIFFERENCES, TESTED, Difference

pytestmark = pytest.mark.slurm

NODE = "n0003"


def _created(lab: SlurmLab, *words: str) -> bool:
    reservation = ("reservationname=tried", "starttime=now", "duration=60", f"nodes={NODE}", "flags=MAINT,IGNORE_JOBS")
    return lab.scontrol("create", "reservation", *reservation, *words).returncode == 0


def _accepts(lab: SlurmLab, folder: Path, line: str) -> bool:
    """Whether slurmctld reads a slurm.conf with this line. It cannot start: the ports are the lab's own."""
    conf = folder / "slurm.conf"
    conf.write_text(f"{lab.conf.read_text()}\nHealthCheckProgram=/bin/true\nHealthCheckInterval=60\n{line}\n")
    argv = ["scontrol", "show", "hostnames", NODE]
    ran = subprocess.run(argv, env=lab.env(SLURM_CONF=str(conf)), capture_output=True, text=True, check=False)
    return ran.returncode == 0 and "error" not in ran.stderr.lower()


def _undrained_unregistered(lab: SlurmLab) -> bool:
    lab.update(NODE, "state=drain", "reason=tried")
    lab.slurmd_stop(NODE)  # it would register within seconds
    lab.ctld_stop()
    lab.ctld_start()
    assert "UNKNOWN" in lab.state(NODE)
    return lab.scontrol("update", f"nodename={NODE}", "state=undrain").returncode == 0


def _appended(lab: SlurmLab) -> bool:
    lab.update(NODE, "state=drain", "reason=tried")
    lab.slurmd_stop(NODE)
    lab.wait(lambda: lab.state(NODE).startswith("DOWN"), 60, "slurmctld gives the node up")
    return lab.shows(NODE, "Reason").partition(" [")[0] == "tried : Not responding"


def _drained_after_reboot(lab: SlurmLab, node: str) -> bool:
    lab.update(node, "state=drain", "reason=tried")
    assert lab.scontrol("reboot", "ASAP", node).returncode == 0
    lab.wait(lambda: "REBOOT_ISSUED" in lab.state(node), 30, "the reboot to be issued")
    lab.reboot(node)
    lab.wait(lambda: lab.state(node) in ("IDLE", "IDLE+DRAIN"), 30, "the node to be back")
    return lab.state(node) == "IDLE+DRAIN" and lab.shows(node, "Reason").partition(" [")[0] == "tried : reboot issued"


def _kept_awake(lab: SlurmLab) -> bool:
    return lab.scontrol("update", f"SuspendExcNodes+={NODE}").returncode == 0


def _reason_stays(lab: SlurmLab) -> bool:
    lab.update(NODE, "state=drain", "reason=tried")
    lab.update(NODE, "state=idle")
    lab.wait_state(NODE, "IDLE")
    return lab.shows(NODE, "Reason").startswith("tried [")


def _expedites(lab: SlurmLab) -> bool:
    """Whether sbatch knows the option. slurmctld refuses such a job where slurm.conf does not enable it (26.05.5)."""
    done = lab.client("sbatch", "--requeue=expedite", "--test-only", "--wrap", "true")
    return "doesn't allow an argument" not in done.stderr


def _extra(lab: SlurmLab) -> bool:
    lab.update(NODE, "extra=tried")
    shown = lab.shows(NODE, "Extra")
    lab.update(NODE, "extra=")
    return shown == "tried"


def _json_by_group(lab: SlurmLab) -> bool:
    found = json.loads(lab.client("sinfo", "--json").stdout)
    assert ("sinfo" in found) is not ("nodes" in found)
    return "sinfo" in found


@pytest.fixture(scope="module")
def restless(slurm_lab_factory: Callable[..., SlurmLab]) -> SlurmLab:
    """A cluster that gives a node up soon, and reboots nodes."""
    return slurm_lab_factory(nodes=3, conf={"SlurmdTimeout": "6", "RebootProgram": "/bin/true"})


SEEN_ELSEWHERE = "job in Kill task failed"  # test_live_reasons.py, where a process hangs


@pytest.mark.parametrize("row", [row for row in DIFFERENCES if row.name != SEEN_ELSEWHERE], ids=lambda row: row.name)
def test_the_slurm_that_runs_here_has_what_the_table_says(
    slurm: SlurmLab, row: Difference, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """It has what came with its version or before, and nothing that came later."""
    tries: dict[str, Callable[[], bool]] = {
        "appends to a reason": lambda: _appended(request.getfixturevalue("restless")),
        "reason of a node that is back": lambda: _reason_stays(slurm),
        "drain over a reboot with ASAP": lambda: _drained_after_reboot(request.getfixturevalue("restless"), "n0001"),
        "undrains unregistered nodes": lambda: _undrained_unregistered(slurm),
        "refuses the user `nobody` in a reservation": lambda: not _created(slurm, "users=nobody"),
        "comment of a reservation": lambda: _created(slurm, "users=root", "comment=tried"),
        "extra of a node": lambda: _extra(slurm),
        "SuspendExcNodes at run time": lambda: _kept_awake(slurm),
        "JSON of scontrol": lambda: slurm.scontrol("show", "node", NODE, "--json").returncode == 0,
        "JSON of sinfo by group": lambda: _json_by_group(slurm),
        "HealthCheckNodeState=START_ONLY": lambda: _accepts(slurm, tmp_path, "HealthCheckNodeState=START_ONLY"),
        "expedited requeue": lambda: _expedites(slurm),
        "HealthCheckTimeout": lambda: _accepts(slurm, tmp_path, "HealthCheckTimeout=10"),
    }
    assert {*tries, SEEN_ELSEWHERE} == {each.name for each in DIFFERENCES}
    assert tries[row.name]() is slurm.has(row.name)


def test_this_version_is_one_of_those_that_are_tested(slurm: SlurmLab) -> None:
    """Another one has no column in the table yet."""
    assert slurm.version in TESTED
