"""Jobs that Slurm preempts, requeues or holds, on a real slurmctld: acted on once, and whose fault that was."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from healthd.remediation.orchestrators.slurm.jobs import SlurmJobs
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator
from tests.live.slurm.slurm_lab import TOOL_DIRS, SlurmLab
from tests.live.slurm.test_blamed_epilog import EXPEDITES, Head, gpu_lost, judged_by_all
from tests.live.slurm.test_hooks import Hooked, wrapped_hooks
from tests.live.slurm.test_slurm_on_job import GANG, PCI, SECTIONS, traps_set
from tests.live.slurm.test_spine import quarantine, reason
from tests.support.limits import limit_s
from tests.support.running import OFF_THE_BUS, RunningNode
from tests.support.slurm_versions import version_in

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


def knows_the_limit() -> bool:
    """Whether slurm.conf may have MaxBatchRequeue: 22.05 refuses it."""
    done = subprocess.run(
        ["slurmctld", "-V"], env={"PATH": TOOL_DIRS}, capture_output=True, text=True, timeout=limit_s(30), check=True
    )
    return version_in(done.stdout) >= "24.11"


@pytest.fixture(scope="module")
def preempting(
    slurm_lab_factory: Callable[..., SlurmLab], tmp_path_factory: pytest.TempPathFactory
) -> tuple[SlurmLab, Path]:
    """One cluster for this file: a job of partition ``urgent`` preempts those of the others, each in its own way."""
    conf, hooks = wrapped_hooks(tmp_path_factory.mktemp("preempting"), "Prolog", "Epilog")
    del conf["HealthCheckProgram"], conf["HealthCheckInterval"], conf["HealthCheckNodeState"]
    conf |= {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"}
    conf["SlurmctldParameters"] = "enable_expedited_requeue"
    if knows_the_limit():
        conf["MaxBatchRequeue"] = "1"
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
    hooked.lab.wait(lambda: traps_set(hooked.folder / "heard", ["n0001", "n0002"]), 20.0, "the traps of its steps")
    return job


def preempts(hooked: Hooked) -> str:
    """A job that wants n0002 now."""
    return hooked.lab.submit("n0002", "exec sleep 600", "--partition=urgent", "-N1", "--exclusive")


def acts_on_jobs(hooked: Hooked, on_job: str = SIGNAL) -> RunningNode:
    """The daemon of n0001. A job that failed up to two seconds before a fault may have failed by it, so that none is
    requeued: the job of the test before is older."""
    time.sleep(2.0)
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


def expedite(lab: SlurmLab) -> str:
    """The option of a job that Slurm runs again where its node is to blame."""
    return "--requeue=expedite" if lab.has(EXPEDITES) else "--requeue"


def comment(lab: SlurmLab, job: str) -> str:
    """Its AdminComment; "" for none."""
    found = re.search(r"AdminComment=(.*)", lab.scontrol("show", "job", job).stdout)
    return found[1].strip() if found else ""


@pytest.mark.parametrize("partition", ["requeues", "hasty"])
def test_a_preempted_job_is_the_fault_of_no_one(hooked: Hooked, partition: str) -> None:
    """Its steps end by SIGKILL, or by the SIGTERM of the grace; there is no finding. No verdict on it, no comment, and
    its owner reads what happened."""
    lab = hooked.lab
    node = hooked.node("n0001", quarantine())
    judged_by_all(node)
    job = runs(hooked, partition, expedite(lab))
    preempts(hooked)
    lab.wait(lambda: bool(hooked.calls("n0001", "epilog")), 30.0, "its epilog")
    lab.wait(lambda: lab.job(job)["JobState"] not in ("RUNNING", "COMPLETING"), 30.0, "it has ended")
    assert hooked.calls("n0001", "epilog")[0][0] == 0
    assert f"job {job} of root ended" not in node.log_text()
    assert comment(lab, job) == ""
    told = node.healthd("job", job).stdout
    if partition == "requeues":
        assert (lab.job(job)["JobState"], lab.job(job)["Restarts"]) == ("PENDING", "1")
        assert "next      nothing: the job has not ended" in told
    else:
        assert "verdict   none\n" in told
        assert "next      submit the job again: Slurm preempted it, and does not run it again" in told


@pytest.mark.parametrize("partition", ["requeues", "hasty"])
def test_a_preempted_job_never_blames_its_node(hooked: Hooked, partition: str) -> None:
    """Behind a drain for XID 79 and with blame_in_epilog the Epilog passes, and the reason stays healthd's."""
    lab = hooked.lab
    node = hooked.node("n0001", quarantine(more="blame_in_epilog = true"))
    job = runs(hooked, partition, expedite(lab))
    gpu_lost(hooked, node)
    preempts(hooked)
    lab.wait(lambda: bool(hooked.calls("n0001", "epilog")), 30.0, "its epilog")
    lab.wait(lambda: lab.job(job)["JobState"] not in ("RUNNING", "COMPLETING"), 30.0, "it has ended")
    assert hooked.calls("n0001", "epilog")[0][0] == 0
    assert reason(lab, "n0001").startswith("healthd: gpu.xid.79")
    assert lab.job(job)["Restarts"] == ("1" if partition == "requeues" else "0")
    assert "blames this node to Slurm" not in node.log_text()


def test_a_requeue_of_on_job_has_the_verdict_of_its_node(hooked: Hooked) -> None:
    """The Epilog of the requeued run has exit code 0:0 and the number of the next run; audit trail and AdminComment say
    what happened all the same."""
    lab = hooked.lab
    job = runs(hooked, "main", "--requeue")
    node = acts_on_jobs(hooked, "requeue after 0s")
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    node.wait(lambda: lab.job(job)["Restarts"] == "1", 30.0, "requeued")
    node.wait(lambda: f"job {job} of root ended (requeued): node: XID 79" in node.log_text(), 30.0, "the verdict")
    lab.wait(lambda: "; requeued" in comment(lab, job), 30.0, "the AdminComment")
    assert re.search(rf"healthd: node n0001 gpu:{PCI} XID 79 \S+; drained; requeued$", comment(lab, job))
    assert hooked.calls("n0001", "epilog")[0][0] == 0
    told = node.healthd("job", job).stdout
    assert "verdict   node\n" in told
    assert "next      nothing: Slurm runs the job again" in told
    assert lab.job(job)["Restarts"] == "1"


@pytest.mark.parametrize("by", ["its time limit", "scancel"])
def test_a_job_that_hangs_on_a_lost_gpu_until_slurm_ends_it_is_the_nodes(hooked: Hooked, by: str) -> None:
    """Its Epilog has exit code 0:0, as that of a job that completed. The verdict is the node's; the node is not blamed
    by the Epilog, since Slurm shall not run such a job again, and its drain keeps healthd's reason. Slurm 26.05.5,
    which expedites requeues, holds one that reached its time limit; its owner reads how to release it."""
    lab = hooked.lab
    node = hooked.node("n0001", quarantine(more="blame_in_epilog = true"))
    job = runs(hooked, "main", expedite(lab), "--time=10")
    gpu_lost(hooked, node)
    if by == "scancel":
        lab.client("scancel", job)
    else:
        lab.scontrol("update", f"jobid={job}", "endtime=now+2")
    lab.wait(lambda: bool(hooked.calls("n0001", "epilog")), 120.0, "its epilog")
    node.wait(lambda: f"job {job} of root ended (ended by Slurm): node: XID 79" in node.log_text(), 30.0, "the verdict")
    is_held = by != "scancel" and lab.has(EXPEDITES)
    ends_as = "CANCELLED" if by == "scancel" else "REQUEUE_HOLD" if is_held else "TIMEOUT"
    lab.wait(lambda: lab.job(job)["JobState"] not in ("RUNNING", "COMPLETING"), 60.0, "it has ended")
    assert lab.job(job)["JobState"] == ends_as
    assert hooked.calls("n0001", "epilog")[0][0] == 0
    assert reason(lab, "n0001").startswith("healthd: gpu.xid.79")
    told = node.healthd("job", job, "--socket", str(node.socket)).stdout
    assert "verdict   node\n" in told
    if is_held:
        assert f"next      release it by `scontrol release {job}`: Slurm holds it" in told
        lab.wait(lambda: re.search(r"XID 79 \S+; drained; held$", comment(lab, job)) is not None, 30.0, "its comment")
    else:
        assert "next      submit the job again, from its last checkpoint: the fault was the node's" in told


def test_a_job_that_slurm_holds_after_too_many_launches_is_released_by_what_is_printed(hooked: Hooked) -> None:
    """healthd's own prolog refuses it once more than MaxBatchRequeue allows. AdminComment, ``healthd job``, ledger and
    notice have hold, reason and release, and with that it runs elsewhere."""
    if not knows_the_limit():
        pytest.skip(f"Slurm {hooked.lab.version} has no MaxBatchRequeue (24.11 and newer)")
    lab, opt_out = hooked.lab, hooked.folder / "opt-out"
    opt_out.touch()
    node = hooked.node("n0001", quarantine().replace('opt_out_file = ""', f'opt_out_file = "{opt_out}"'))
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    node.wait(lambda: "opted out" in node.log_text(), 10.0, "the fault is open, and held")
    hooked.before_each_hook("n0001", f"/usr/bin/rm -f {opt_out}")
    head = Head(lab, hooked.folder)
    try:
        job = lab.submit("", "exec sleep 600", "--requeue", "--exclusive")
        held = "launch failure limit exceeded requeued held"
        release = f"release it by `scontrol release {job}`"
        lab.wait(lambda: lab.job(job)["JobState"] == "REQUEUE_HOLD", 30.0, "slurmctld holds it")
        lab.wait(lambda: f"; healthd: held ({held}): {release}" in comment(lab, job), 30.0, "the AdminComment")
        assert f"healthd: node n0001 is not fit for job {job}: healthd: gpu.xid.79" in comment(lab, job)
        told = node.healthd("job", job).stdout
        assert f"job       {job} of root: REQUEUE_HOLD, held ({held})" in told
        assert f"next      {release}: Slurm holds it" in told
        lab.wait(lambda: job in head.told(), 60.0, "its owner is told")
        text = head.told()[job]["text"]
        assert text.startswith(
            f"your job {job} did not start (node n0001 is not fit for job {job}: healthd: gpu.xid.79"
        )
        assert text.endswith(f", and Slurm holds it ({held}): {release}")
        (end,) = head.job(job)["ledger"]
        assert (end["state"], end["ending"], end["verdict"]) == ("REQUEUE_HOLD", held, "node")
        assert end["sentence"].endswith(f"; held ({held}): {release}")
    finally:
        head.stop()
    printed = re.findall(r"`(scontrol release .*)`", told)
    assert lab.client(*printed[0].split()).returncode == 0
    assert "held" not in node.healthd("job", job).stdout.splitlines()[0]
    lab.start_requeued(job)
    assert lab.wait_job(job, "RUNNING", within_s=30.0)["BatchHost"] != "n0001"
