"""gpu.processes: ended, of no job, memory without anybody. /proc and NVML's answers are constructed, not recorded."""

from __future__ import annotations

from typing import Any

import pytest

from healthd.checks.gpu_processes import GpuProcessesSettings, gpu_processes
from healthd.checks.kernel_xid import KernelXidSettings, kernel_xid
from healthd.core.errors import SourceUnreadable
from healthd.core.model import REMEDY_RANK, Remedy, Result, Severity, Status
from healthd.core.node import GpuAnswer
from healthd.judge.history import History
from healthd.testing import (
    NOT_SUPPORTED,
    UNKNOWN,
    Entry,
    FakeLink,
    FakeNode,
    FakeNvml,
    codes,
    failed_gpu,
    fake_pci,
    gpu_uuid,
    gpu_with,
    healthy_gpu,
    pci_tree,
)
from tests.support.judgement import answered, fold, kernel_says

COMPUTE, GRAPHICS = "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"
MEMORY = "nvmlDeviceGetMemoryInfo"
SLURM_V2 = "0::/system.slice/slurmstepd.scope/job_1234/step_0/user/task_0"
SLURM_26 = "0::/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0"
SLURM_V1 = "5:devices:/slurm/uid_1000/job_77/step_batch\n3:cpuset:/slurm/uid_1000/job_77/step_batch"
UID = "0a" * 16
POD = f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID}.slice/cri-containerd-aa.scope"
OLD_POD = f"4:memory:/kubepods/besteffort/pod{UID}/aa"
LOGIN = "0::/user.slice/user-1000.slice/session-3.scope"


def run(*gpus: GpuAnswer, proc: dict[str, Entry] | None = None, **settings: Any) -> Result:
    node = FakeNode(sys=pci_tree(gpus=[fake_pci(0)]), nvml=FakeNvml(*gpus), proc=proc or {})
    result = gpu_processes(node, GpuProcessesSettings(**settings))
    for finding in result.findings:  # nothing left behind is worth a node
        assert finding.severity is Severity.WARNING
        assert REMEDY_RANK[finding.remedy] < REMEDY_RANK[Remedy.RESET_GPU]
    return result


def held(index: int, *pids: int, call: str = COMPUTE) -> GpuAnswer:
    rows = [{"pid": pid, "usedGpuMemory": 1 << 30, "gpuInstanceId": 0, "computeInstanceId": 0} for pid in pids]
    return gpu_with(index, {call: rows})


def process(pid: int, *, state: str = "R (running)", cgroup: str = LOGIN) -> dict[str, Entry]:
    return {
        f"{pid}/status": f"Name:\tpython\nState:\t{state}\nTgid:\t{pid}",
        f"{pid}/cgroup": cgroup,
        f"{pid}/comm": "python",
    }


def test_nobody() -> None:
    """An idle GPU is ok: no process, and the driver's own memory is a reading."""
    result = run(healthy_gpu(0))
    assert result.status is Status.OK
    assert {reading.name: reading.value for reading in result.readings} == {
        "gpu_process_count": 0,
        "gpu_memory_used_bytes": 491_782_144,
    }


def test_a_running_process_is_no_fault() -> None:
    """As shipped, somebody who computes is a reading; one process in both lists counts once."""
    both = gpu_with(0, {COMPUTE: [{"pid": 7}], GRAPHICS: [{"pid": 7}]})
    result = run(both, proc=process(7))
    assert result.status is Status.OK
    assert next(reading.value for reading in result.readings) == 1


@pytest.mark.parametrize("state", ["Z (zombie)", "X (dead)", None])
@pytest.mark.parametrize("call", [COMPUTE, GRAPHICS])
def test_ended(state: str | None, call: str) -> None:
    """A process that is gone, or a zombie, and still holds its GPU is found on that GPU."""
    proc = process(7, state=state) if state else {}
    result = run(healthy_gpu(0), held(1, 7, call=call), proc=proc, jobs_only=True)
    assert codes(result) == ["gpu.processes.ended"]
    assert result.findings[0].component.id == gpu_uuid(1)
    assert result.findings[0].evidence["pids"] == [7]


@pytest.mark.parametrize("cgroup", [SLURM_V2, SLURM_26, SLURM_V1, POD, OLD_POD])
def test_jobs_and_pods_belong(cgroup: str) -> None:
    """Each form of a Slurm job's cgroup, and of a pod's, is a job."""
    assert run(held(0, 7), proc=process(7, cgroup=cgroup), jobs_only=True).status is Status.OK


@pytest.mark.parametrize(
    "cgroup", [LOGIN, f"{LOGIN}/job_7/x", "0::/", "0::/system.slice/job_maker.service", "0::/x/job_/y"]
)
def test_leftover(cgroup: str) -> None:
    """Where only jobs may compute, any other process is named, with its state; elsewhere it is fine."""
    proc = process(7, cgroup=cgroup, state="D (disk sleep)")
    result = run(held(0, 7), proc=proc, jobs_only=True)
    assert codes(result) == ["gpu.processes.leftover"]
    assert result.findings[0].evidence == {"names": {"7": "python"}, "states": {"7": "D"}}
    assert run(held(0, 7), proc=proc).status is Status.OK


def test_memory_without_a_process() -> None:
    """Memory above the site's number with nobody on the GPU is found; with somebody it is theirs."""
    used = {MEMORY: {"total": 80 << 30, "free": 70 << 30, "used": 10 << 30}}
    assert codes(run(gpu_with(0, used), idle_memory_mib=1024)) == ["gpu.processes.memory"]
    assert run(gpu_with(0, used)).status is Status.OK
    assert run(healthy_gpu(0), idle_memory_mib=1024).status is Status.OK
    busy = gpu_with(0, {**used, COMPUTE: [{"pid": 7}]})
    assert run(busy, proc=process(7), idle_memory_mib=1024).status is Status.OK


def test_memory_of_an_unseen_process_is_not_nobodys() -> None:
    """If the processes could not be listed, memory in use says nothing, and the outcome is unknown."""
    used = {MEMORY: {"total": 80 << 30, "free": 70 << 30, "used": 10 << 30}, COMPUTE: UNKNOWN}
    result = run(gpu_with(0, used), idle_memory_mib=1024)
    assert (result.status, result.findings) == (Status.UNKNOWN, ())


def test_an_unreadable_proc_is_unknown() -> None:
    """A /proc that fails is no ended process."""
    with pytest.raises(SourceUnreadable):
        run(held(0, 7), proc={"7/status": SourceUnreadable("EIO")})


def test_a_gpu_without_a_process_ends_the_faults_of_its_jobs() -> None:
    """On Kubernetes no hook reports the end of a job, and the line of XID 31 may name no process: months later the GPU
    that no process holds is the evidence. A GPU that a process holds keeps its fault, and so does every GPU where the
    lists are not whole: in a container without the host's process ids, or after an error."""
    line = "NVRM: Xid (PCI:{}): 31, pid='<unknown>', name=<unknown>, MMU Fault: ENGINE GRAPHICS"
    log = FakeNode(kernel_records=kernel_says(*(line.format(fake_pci(index)) for index in (0, 1))))
    known = fold(History(), [answered(kernel_xid(log, KernelXidSettings()), check="kernel.xid")])
    mine = {"self/ns/pid": FakeLink("pid:[4026531836]"), **process(7)}
    of_container = {**mine, "self/ns/pid": FakeLink("pid:[4026532201]")}

    def open_after(*gpus: GpuAnswer, proc: dict[str, Entry]) -> set[str]:
        look = answered(run(*gpus, proc=proc), check="gpu.processes", seconds=7e6)
        return {str(fault.component) for fault in fold(known, [look]).faults.values()}

    both = {f"gpu:{gpu_uuid(index)}" for index in (0, 1)}
    assert open_after(healthy_gpu(0), held(1, 7), proc=mine) == {f"gpu:{gpu_uuid(1)}"}
    assert open_after(healthy_gpu(0), held(1, 7, call=GRAPHICS), proc=mine) == {f"gpu:{gpu_uuid(1)}"}
    assert open_after(healthy_gpu(0), healthy_gpu(1), proc=of_container) == both
    assert open_after(healthy_gpu(0), healthy_gpu(1), proc=process(7)) == both
    unlisted = (gpu_with(0, {COMPUTE: UNKNOWN}), gpu_with(1, {COMPUTE: NOT_SUPPORTED}))
    assert open_after(*unlisted, proc=mine) == both


def test_gpus_that_do_not_say() -> None:
    """Not supported is out of scope; a GPU that fails to answer is unknown beside its siblings."""
    refused = gpu_with(0, dict.fromkeys((COMPUTE, GRAPHICS), NOT_SUPPORTED))
    assert run(refused).status is Status.NOT_APPLICABLE
    assert run(healthy_gpu(0), failed_gpu(1, UNKNOWN)).status is Status.UNKNOWN
