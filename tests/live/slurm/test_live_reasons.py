"""What Slurm writes into a reason by itself, on the Slurm that runs here, and what a real daemon makes of it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator
from healthd.remediation.orchestrators.slurm.reasons import AUTOMATIC, REBOOTS, SlurmText
from healthd.remediation.ports import Hold
from healthd.sim.machine import SimulatedMachine
from tests.live.slurm.slurm_lab import TOOL_DIRS, SlurmLab
from tests.live.slurm.test_spine import Nodes, quarantine
from tests.support.kernel_objects import FuseDisk, NotHere, fuse_disk
from tests.support.running import RunningNode

pytestmark = [pytest.mark.slurm, pytest.mark.process]

NODE = "n0001"
KTF = "Kill task failed"
# linuxproc of 26.05 waits for the process as long as it lives.
KILLS_SOON = {"UnkillableStepTimeout": "5", "MessageTimeout": "1", "ProctrackType": "proctrack/pgid"}


@pytest.fixture(scope="module")
def binaries() -> bytes:
    """Everything that Slurm's daemons here may say."""
    tools = [shutil.which(tool, path=TOOL_DIRS) for tool in ("slurmctld", "slurmd")]
    files = [Path(os.path.realpath(tool)) for tool in tools if tool]
    files += Path("/usr/lib").glob("*/slurm*/libslurmfull.so")
    return b"\n".join(file.read_bytes() for file in files)


@pytest.mark.parametrize("row", AUTOMATIC, ids=lambda row: row.printed)
def test_each_text_of_the_table_is_in_the_slurm_that_runs(binaries: bytes, row: SlurmText) -> None:
    """To the letter."""
    assert row.printed.encode() in binaries


def test_the_words_about_reboots_are_in_the_slurm_that_runs(binaries: bytes) -> None:
    """What ``scontrol reboot`` appends."""
    assert all(word.encode() in binaries for word in REBOOTS)


def _script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture(scope="module")
def faulty(slurm_lab_factory: Callable[..., SlurmLab], tmp_path_factory: pytest.TempPathFactory) -> SlurmLab:
    """A cluster in which the hooks fail on the nodes that their names say, and one node lacks what it should have."""
    folder = tmp_path_factory.mktemp("hooks")
    folder.chmod(0o755)
    conf = {
        "Prolog": _script(folder / "prolog", '[ "$SLURMD_NODENAME" != n0001 ]'),
        "Epilog": _script(folder / "epilog", '[ "$SLURMD_NODENAME" != n0002 ]'),
        "PrologFlags": "Alloc",
    }
    return slurm_lab_factory(nodes=3, conf=conf)


def _hold(lab: SlurmLab, node: str) -> Hold | None:
    return SlurmOrchestrator(node=node, conf=str(lab.conf)).view().hold


@pytest.mark.parametrize(("node", "text"), [("n0001", "Prolog error"), ("n0002", "Epilog error")])
def test_a_hook_that_fails_drains_the_node_by_slurms_own_hand(faulty: SlurmLab, node: str, text: str) -> None:
    """Automatic, though its user is root."""
    faulty.submit(node, "true")
    faulty.wait(lambda: "DRAIN" in faulty.state(node), 20, f"{node} is drained")
    hold = _hold(faulty, node)
    assert hold is not None
    assert (hold.text, hold.user, hold.automatic) == (text, "root", True)
    assert SlurmOrchestrator(node=node, conf=str(faulty.conf)).view().drained_by_itself


def test_a_node_that_lacks_what_it_should_have_is_out_by_slurms_own_hand(
    slurm_lab_factory: Callable[..., SlurmLab],
) -> None:
    """Less memory than slurm.conf says, and fewer devices: several texts in one reason."""
    lab = slurm_lab_factory(nodes=2, conf={"GresTypes": "gpu"})
    text = lab.conf.read_text()
    text = text.replace("SlurmdParameters=config_overrides\n", "")
    first, second = (f"NodeName={name} " for name in lab.nodes)
    text = text.replace(first, f"{first}Gres=gpu:2 ").replace("RealMemory=1000", "RealMemory=100", 1)
    head, _, tail = text.partition(second)
    lab.ctld_stop()
    lab.conf.write_text(f"{head}{second}{tail.replace('RealMemory=1000', 'RealMemory=99000000', 1)}")
    (lab.root / "gres.conf").write_text("")
    lab.ctld_start()
    for name in lab.nodes:
        lab.slurmd_stop(name)
        lab.slurmd_start(name)
    found = {}
    for name, words in zip(lab.nodes, ("gres/gpu count", "Low RealMemory"), strict=True):
        lab.wait(lambda name=name, words=words: words in lab.shows(name, "Reason"), 20, f"{name}: {words}")  # type: ignore[misc]
        hold = _hold(lab, name)
        found[name] = hold is not None and (hold.automatic, hold.shown)
    assert all(each and each[0] for each in found.values()), found


# ---------------------------------------------------------------------------------------------------------------------
# Kill task failed


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[FuseDisk]:
    """A file system on which a process can be made to hang where no signal reaches it."""
    folder = tmp_path / "mounts"
    folder.mkdir()
    try:
        with fuse_disk(folder) as disk:
            yield disk
    except NotHere as why:
        pytest.skip(str(why))


def _repairing(machine: SimulatedMachine) -> str:
    """A node that may be rebooted, by the machine's own command."""
    reboot = [sys.executable, "-m", "healthd.sim.machine", str(machine.folder)]
    provisioner = f'[provisioner]\nkind = "local"\n[provisioner.local]\nreboot_command = {json.dumps(reboot)}\n'
    return quarantine().replace('mode = "quarantine"', 'mode = "repair"') + provisioner + machine.sections()


@pytest.mark.slow
def test_kill_task_failed_during_a_case_ends_in_a_repair_and_a_release(
    slurm_lab_factory: Callable[..., SlurmLab], tmp_path: Path, hanging: FuseDisk
) -> None:
    """XID 79 under a job, whose process hangs as one does in the driver: slurmstepd gives up and writes over our drain.
    The node reboots, comes back, and no reservation of ours is left."""
    lab = slurm_lab_factory(nodes=2, conf=KILLS_SOON)
    machine = SimulatedMachine(tmp_path / "machine")
    node = Nodes(lab, tmp_path).add(NODE, _repairing(machine), start=False)
    try:
        node.start()
        node.well()
        hanging.becomes("hang:statfs")
        stat = ["stat", "--file-system", str(hanging.point)]
        job = lab.run_job(NODE, f"{' '.join(stat)}; true")
        lab.wait(lambda: stat in [each.info["cmdline"] for each in psutil.process_iter(["cmdline"])], 20, "it hangs")
        machine.gpu_falls_off_the_bus(3)
        node.wait(lambda: f"waiting for {job}" in node.log_text(), 15.0, "drained, and the job goes on")
        lab.cancel(job)
        lab.wait(lambda: KTF in lab.shows(NODE, "Reason"), 60.0, "slurmstepd gives the process up")
        assert ("(JobId=" in lab.shows(NODE, "Reason")) is lab.has("job in Kill task failed")
        hanging.becomes()
        node.wait(lambda: f'the cluster wrote "{KTF}' in node.log_text(), 15.0, "the remark")
        _reboots_when_asked(lab, node, machine)
        lab.wait_state(NODE, "IDLE", within_s=40.0)
        node.wait(lambda: "released: back in service" in node.log_text(), 10.0, "released")
        assert "No reservations" in lab.scontrol("show", "reservation").stdout
    finally:
        node.stop()


@pytest.mark.slow
def test_a_node_that_slurm_drained_is_repaired_where_a_fault_calls_for_it(
    slurm_lab_factory: Callable[..., SlurmLab], tmp_path: Path
) -> None:
    """Slurm's text stays until the node comes back from its reboot, and nobody else's is ever undone."""
    epilog = _script(tmp_path / "epilog", "exit 1")
    lab = slurm_lab_factory(nodes=2, conf={"Epilog": epilog, "SlurmdTimeout": "30"})
    machine = SimulatedMachine(tmp_path / "machine")
    node = Nodes(lab, tmp_path).add(NODE, _repairing(machine), start=False)
    try:
        node.start()
        node.well()
        lab.submit(NODE, "true")
        lab.wait(lambda: "Epilog error" in lab.shows(NODE, "Reason"), 20.0, "Slurm drains the node")
        stands = lab.shows(NODE, "Reason")
        machine.gpu_falls_off_the_bus(3)
        node.wait(lambda: "goes on with the cluster's own drain" in node.log_text(), 20.0, "it is adopted")
        assert lab.shows(NODE, "Reason") == stands
        _reboots_when_asked(lab, node, machine)
        lab.wait_state(NODE, "IDLE", within_s=40.0)
        node.wait(lambda: "released: back in service" in node.log_text(), 10.0, "released")
        assert "No reservations" in lab.scontrol("show", "reservation").stdout
    finally:
        node.stop()


def _reboots_when_asked(lab: SlurmLab, node: RunningNode, machine: SimulatedMachine) -> None:
    """The machine goes down as it was asked to, and slurmctld sees a node that is gone and boots."""
    node.wait(lambda: "waiting for a new boot id" in node.log_text(), 30.0, "the reboot is asked for")
    node.kill()
    lab.reboot(NODE)
    machine.reboot()
    node.start()
