"""Jobs that Slurm preempts, on a real slurmctld: left to Slurm, acted on once, and nobody's fault."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from healthd.remediation.orchestrators.slurm.jobs import SlurmJobs
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator
from tests.live.slurm.slurm_lab import SlurmLab
from tests.live.slurm.test_hooks import Hooked, wrapped_hooks
from tests.live.slurm.test_slurm_on_job import GANG, PCI, SECTIONS
from tests.support.running import OFF_THE_BUS, RunningNode

pytestmark = [pytest.mark.slurm, pytest.mark.process]

SIGNAL = "signal:USR1 then requeue after 5m"
LEFT = (
    r"(Slurm preempts it \(\w+\)|Slurm preempted it \(PREEMPTED\)|it was requeued by itself or by others); not requeued"
)
PARTITIONS = (
    "PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF",
    "PartitionName=requeues Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE",
    "PartitionName=cancels Nodes=ALL PriorityTier=1 PreemptMode=CANCEL",
    "PartitionName=patient Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=600",
    "PartitionName=hasty Nodes=ALL PriorityTier=1 PreemptMode=CANCEL GraceTime=600",
)


@pytest.fixture(scope="module")
def preempting(
    slurm_lab_factory: Callable[..., SlurmLab], tmp_path_factory: pytest.TempPathFactory
) -> tuple[SlurmLab, Path]:
    """One cluster for this file: a job of partition ``urgent`` preempts those of the others, each in its own way."""
    conf, hooks = wrapped_hooks(tmp_path_factory.mktemp("preempting"), "Prolog", "Epilog")
    del conf["HealthCheckProgram"], conf["HealthCheckInterval"], conf["HealthCheckNodeState"]
    conf |= {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"}
    conf["SlurmctldParameters"] = "enable_expedited_requeue"
    return slurm_lab_factory(nodes=4, conf=conf, lines=PARTITIONS), hooks


@pytest.fixture
def hooked(preempting: tuple[SlurmLab, Path], tmp_path: Path) -> Iterator[Hooked]:
    """The cluster, clean, and no healthd on it yet."""
    lab, hooks = preempting
    lab.reset()
    made = Hooked(lab, tmp_path, hooks)
    yield made
    lab.cancel()
    made.end()


def runs(hooked: Hooked, partition: str, *options: str) -> str:
    """A job on n0001 and n0002 whose steps note each USR1 and end by the SIGTERM of a preemption."""
    script = GANG.format(heard=hooked.folder / "heard")
    job = hooked.lab.run_job(
        "n[0001-0002]", script, f"--partition={partition}", "-N2", "--ntasks=2", "--exclusive", *options
    )
    steps = ("squeue", "-h", "-s", "-j", job)
    hooked.lab.wait(lambda: f"{job}.0" in hooked.lab.client(*steps).stdout, 20.0, "its step runs")
    return job


def preempts(hooked: Hooked) -> str:
    """A job that wants n0002 now."""
    return hooked.lab.submit("n0002", "exec sleep 600", "--partition=urgent", "-N1", "--exclusive")


def acts_on_jobs(hooked: Hooked, on_job: str = SIGNAL) -> RunningNode:
    """The daemon of n0001."""
    return hooked.node("n0001", SECTIONS.format(on_job=on_job, more=""))


@pytest.mark.parametrize("partition", ["requeues", "cancels"])
def test_a_grace_of_healthd_ends_where_slurm_preempts_the_job(hooked: Hooked, partition: str) -> None:
    """XID 79, signal, and in the five minutes before the requeue Slurm preempts the job: one line in the audit trail,
    no second requeue, and a job that waits again is no preempted one."""
    lab = hooked.lab
    job = runs(hooked, partition, "--requeue")
    node = acts_on_jobs(hooked)
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    node.wait(lambda: "signal USR1 sent" in node.log_text(), 20.0, "the signal")
    urgent = preempts(hooked)
    lab.wait_job(urgent, "RUNNING")
    node.wait(lambda: re.search(LEFT, node.log_text()) is not None, 20.0, "the job is left to Slurm")
    restarts = "1" if partition == "requeues" else "0"
    lab.wait_job(job, "PENDING" if partition == "requeues" else "PREEMPTED")
    time.sleep(2.0)
    assert lab.job(job)["Restarts"] == restarts
    assert len(re.findall(rf"\] job {job} of root on \S+ {LEFT}", node.log_text())) == 1
    assert sorted((hooked.folder / "heard").read_text().split()) == ["n0001", "n0002"]
    read = SlurmJobs(SlurmOrchestrator(node="n0001", conf=str(lab.conf))).job(job)
    assert read is not None
    assert read.preempted is (partition == "cancels"), "slurmctld keeps no trace of it in a job that waits again"


@pytest.mark.parametrize("partition", ["patient", "hasty"])
def test_a_job_in_the_grace_of_its_preemption_is_left_to_slurm(hooked: Hooked, partition: str) -> None:
    """XID 79 while Slurm's GraceTime runs: drained, and neither signalled nor requeued."""
    lab = hooked.lab
    # Its batch script gets no SIGTERM, and there is no step: it runs until the end of the grace.
    job = lab.run_job(
        "n[0001-0002]", "exec sleep 600", f"--partition={partition}", "-N2", "--ntasks=2", "--exclusive", "--requeue"
    )
    preempts(hooked)
    reader = SlurmJobs(SlurmOrchestrator(node="n0001", conf=str(lab.conf)))
    lab.wait(lambda: (read := reader.job(job)) is not None and read.preempted, 30.0, "its grace begins")
    node = acts_on_jobs(hooked, "signal:B:USR1 then requeue after 0s")
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    left = f"job {job} of root on n[0001-0002] is left alone: Slurm preempts it (RUNNING)"
    node.wait(lambda: left in node.log_text(), 20.0, "it is left and said")
    lab.wait(lambda: "DRAIN" in lab.state("n0001"), 15.0, "drained")
    assert (lab.job(job)["JobState"], lab.job(job)["Restarts"]) == ("RUNNING", "0")
    assert "healthd-job:" not in lab.scontrol("-o", "show", "reservation").stdout
