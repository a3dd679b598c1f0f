"""Power saving by a real slurmctld: names without a machine, and what healthd holds under them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from healthd.core.errors import BackendRefused
from healthd.core.model import Mode
from healthd.remediation.decide.fleet import TakeSlot, plan, scopes_of
from healthd.remediation.decide.policy import Rules
from healthd.remediation.engine.absent import AbsentNodes
from healthd.remediation.engine.dependencies import Timeouts
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator
from healthd.remediation.records.handoff import HandoffRecord, parse
from tests.live.slurm.controller_lab import RunningController
from tests.live.slurm.slurm_lab import SlurmLab
from tests.support.running import ROOT

pytestmark = pytest.mark.slurm

POWER = {
    "SuspendProgram": "/bin/true",
    "ResumeProgram": "/bin/true",
    "SuspendTime": "3",
    "SuspendTimeout": "2",
    "ResumeTimeout": "20",
    "SuspendRate": "0",
    "ResumeRate": "0",
}
TEXT = "healthd: gpu.xid.79 gpu:0000:05:00 [abcd1234]"
OPERATORS = "psu is being changed"
CONTROLLER = """
[remediation]
mode = "repair"
[orchestrator]
kind = "slurm"
[orchestrator.slurm]
conf = "{conf}"
[provisioner]
kind = "hyperpod"
act_from = "controller"
[provisioner.hyperpod]
how = "scontrol"
cluster = "ml"
[provisioner.aws]
region = "us-east-1"
"""


def _of(lab: SlurmLab, node: str) -> SlurmOrchestrator:
    return SlurmOrchestrator(node=node, conf=str(lab.conf))


@pytest.fixture
def asleep(slurm_lab_factory: Callable[..., SlurmLab]) -> Iterator[SlurmLab]:
    """Four nodes, held as daemons hold them, and powered down since: n0001 with drain and slot, n0002 with a slot
    alone, n0003 drained by an operator. n0004 stays awake."""
    lab = slurm_lab_factory(nodes=4, conf={**POWER, "SuspendExcNodes": "n0004"})
    for index, name in enumerate(("n0001", "n0002")):
        _of(lab, name).claim("cluster", index)
    _of(lab, "n0001").quarantine(TEXT)
    lab.update("n0003", "state=drain", f"reason={OPERATORS}")
    _of(lab, "n0001").write_record(HandoffRecord(remediation_id="abcd1234", code="gpu.xid.79").text)
    sleepers = {"n0001", "n0002", "n0003"}
    lab.wait(
        lambda: _of(lab, "n0004").snapshot().asleep == sleepers and _is_down(lab), 60, "three nodes to be powered down"
    )
    yield lab
    lab.stop()


def _is_down(lab: SlurmLab) -> bool:
    return all("POWERED_DOWN" in lab.state(name) for name in ("n0001", "n0002", "n0003"))


def test_four_machines_and_480_sleeping_names_let_one_out(slurm_lab_factory: Callable[..., SlurmLab]) -> None:
    """Every other name is a cloud node that sleeps: 5 % of four machines, and at least one."""
    cloud = "NodeName=c[001-480] NodeAddr=127.0.0.1 Port=9 CPUs=4 RealMemory=1000 State=CLOUD"
    lines = [cloud, "PartitionName=burst Nodes=c[001-480],n0001 State=UP"]
    more = {**POWER, "SuspendTime": "-1", "PrivateData": "cloud", "MaxNodeCount": "1024"}
    lab = slurm_lab_factory(nodes=4, conf=more, lines=lines)
    snapshot = _of(lab, "n0001").snapshot()
    assert (snapshot.total, len(snapshot.asleep), snapshot.out) == (4, 480, frozenset())
    scopes = scopes_of(snapshot, {"cluster": "5%", "burst": "50%"})
    assert [(scope.name, scope.total, scope.limit) for scope in scopes] == [("cluster", 4, 1), ("burst", 1, 1)]


def test_prometheus_scrapes_the_machines_and_no_name_that_sleeps(
    slurm_lab_factory: Callable[..., SlurmLab], tmp_path: Path
) -> None:
    """The line of docs/how-to/prometheus.md, as ParallelCluster configures Slurm. A machine that is drained, in a
    hidden partition or in one called powerful is there; where Slurm does not answer, the file stays as it is."""
    page = (ROOT / "docs/how-to/prometheus.md").read_text(encoding="utf-8").splitlines()
    (line,) = (each for each in page if each.strip().startswith("sinfo "))
    lines = [
        "NodeName=c[1-3] NodeAddr=127.0.0.1 Port=9 CPUs=4 RealMemory=1000 State=CLOUD",
        "PartitionName=powerful Nodes=c[1-3],n0001,n0002 State=UP",
        "PartitionName=secret Nodes=n0001,n0003 State=UP Hidden=YES",
    ]
    more = {**POWER, "SuspendTime": "-1", "PrivateData": "cloud"}
    lab = slurm_lab_factory(nodes=3, conf=more, lines=lines)
    lab.update("n0002", "state=drain", "reason=power supply")
    lab.update("c2", "state=drain", "reason=x")
    for script, code in ((line, 0), (f"sinfo() {{ return 1; }}; {line}", 1)):
        done = subprocess.run(["sh", "-c", script], check=False, capture_output=True, env=lab.env(), cwd=tmp_path)
        assert (done.returncode, done.stderr) == (code, b"")
        targets = yaml.safe_load((tmp_path / "nodes.yaml").read_text())
        assert [each["targets"] for each in targets] == [[f"n000{number}:9809"] for number in (1, 2, 3)]
        assert {each["labels"]["partition"] for each in targets} <= {"main", "powerful", "secret"}


def test_what_sleeps_keeps_no_place_and_can_be_woken(asleep: SlurmLab) -> None:
    """Another node's daemon releases both slots and our drain, and leaves the operator's. Its own repair has room
    again, and a job wakes the node."""
    lab, me = asleep, _of(asleep, "n0004")
    absent = AbsentNodes(
        node=lambda name: _of(lab, name),
        rules=lambda: Rules(mode=Mode.REPAIR),
        timeouts=Timeouts(),
        monotonic_s=time.monotonic,
        settle_s=1.0,
    )
    assert absent.release(me.snapshot(), me.slots(), datetime.now(UTC)) == ()
    time.sleep(1.1)
    found = {each.node: each.message for each in absent.release(me.snapshot(), me.slots(), datetime.now(UTC))}
    assert set(found) == {"n0001", "n0002"}
    assert me.slots() == ()
    assert "DRAIN" not in lab.state("n0001")
    assert lab.shows("n0003", "Reason").startswith(OPERATORS)
    record = parse(_of(lab, "n0001").read_record())
    assert record is not None
    assert record.slept is not None
    assert (record.remediation_id, record.code) == ("abcd1234", "gpu.xid.79")
    scopes = scopes_of(me.snapshot(), {"cluster": 1})
    move = plan(node="n0004", scopes=scopes, slots=me.slots(), since_s=None, now_s=0.0)
    assert move == TakeSlot(scope="cluster", index=0)
    lab.submit("n0001")
    lab.wait(lambda: "POWERING_UP" in lab.state("n0001"), 20, "a job to wake n0001")


def test_a_held_node_stays_awake_where_slurm_can_be_told(slurm_lab_factory: Callable[..., SlurmLab]) -> None:
    """Added once, shown by the next reading, and still there when the others sleep; what is taken back is gone. A name
    that is listed already, or not at all, is no error."""
    lab = slurm_lab_factory(nodes=2, conf=POWER)
    held = _of(lab, "n0001")
    assert held.view(jobs=True).may_sleep
    assert not held.view().may_sleep
    if "No valid entity" in lab.scontrol("update", "SuspendExcNodes+=n0002").stderr:  # 22.05
        with pytest.raises(BackendRefused, match="no such update"):
            held.keep_awake(on=True)
        assert held.view(jobs=True).may_sleep
        return
    assert not _of(lab, "n0002").view(jobs=True).may_sleep
    lab.scontrol("update", "SuspendExcNodes-=n0002")
    held.keep_awake(on=True)
    held.keep_awake(on=True)
    assert not held.view(jobs=True).may_sleep
    assert _of(lab, "n0002").view(jobs=True).may_sleep
    lab.wait(lambda: "POWERED_DOWN" in lab.state("n0002"), 60, "n0002 to be powered down")
    assert "POWER" not in lab.state("n0001")
    lab.scontrol("reconfigure")
    lab.wait(lambda: held.view(jobs=True).may_sleep, 20, "the entry to be forgotten")
    held.keep_awake(on=True)
    held.keep_awake(on=False)
    held.keep_awake(on=False)
    assert held.view(jobs=True).may_sleep


def test_the_controller_releases_what_sleeps(asleep: SlurmLab, tmp_path: Path) -> None:
    """A process of its own, at its own pace, with its trail."""
    sections = CONTROLLER.format(conf=asleep.conf)
    controller = RunningController(tmp_path / "c", sections, tmp_path / "state", dict(os.environ)).start()
    try:
        me = _of(asleep, "n0004")
        asleep.wait(lambda: me.slots() == (), 150, "the slots to be released")
        asleep.wait(lambda: "n0002: Slurm powered it down" in controller.audit(), 20, "the trail")
        assert f'released its drain "{TEXT}", slot cluster 0' in controller.audit()
        assert asleep.shows("n0003", "Reason").startswith(OPERATORS)
    finally:
        controller.stop()


def test_a_node_of_an_excepted_partition_stays_awake_by_itself(slurm_lab_factory: Callable[..., SlurmLab]) -> None:
    """It needs no entry of healthd's: Slurm powers down the other node alone."""
    lines = ["PartitionName=kept Nodes=n0001 State=UP"]
    lab = slurm_lab_factory(nodes=2, conf={**POWER, "SuspendExcParts": "kept"}, lines=lines)
    assert not _of(lab, "n0001").view(jobs=True).may_sleep
    assert _of(lab, "n0002").view(jobs=True).may_sleep
    lab.wait(lambda: "POWERED_DOWN" in lab.state("n0002"), 60, "n0002 to be powered down")
    assert "POWER" not in lab.state("n0001")
