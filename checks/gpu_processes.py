"""The check ``gpu.processes``: processes that hold the GPUs, and memory that outlived its process."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from healthd.checklib.gpu_driver import has_pids_of_host
from healthd.checklib.gpus import GpuValues, ask_gpus, undecided_of
from healthd.checklib.jobs import owner
from healthd.core.check import FindingCode, check, judged, not_applicable
from healthd.core.errors import SourceMissing
from healthd.core.model import Clearance, ClearsBy, Finding, Reading, Remedy, Result, Severity
from healthd.core.node import Node
from healthd.core.setting_types import Count

_LISTS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
_MEMORY = "nvmlDeviceGetMemoryInfo"
_MIB = 1 << 20
_STATE = re.compile(r"^State:\s+(\S)", re.MULTILINE)

ENDED = FindingCode(
    code="gpu.processes.ended",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="A process that has ended still holds a GPU",
    lasting_s=60.0,
)
LEFTOVER = FindingCode(
    code="gpu.processes.leftover",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="A process outside of any job holds a GPU",
)
MEMORY = FindingCode(
    code="gpu.processes.memory",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="GPU memory is in use although no process holds the GPU",
)


class GpuProcessesSettings(Struct, frozen=True, kw_only=True):
    """When ``gpu.processes`` warns. Both settings are off by default, because they depend on the site."""

    jobs_only: bool = False
    """Whether every process on a GPU must belong to a Slurm job or a pod. Switch it on where jobs are the only way to a
    GPU; where users log in and compute, it would warn about them."""

    idle_memory_mib: Count | None = None
    """How much memory of a GPU, in MiB, the driver itself may hold while no process does. It differs by driver and
    model, so none is assumed: read ``gpu_memory_used_bytes`` of an idle node and add some."""


@check("gpu.processes", interval_s=60, settings=GpuProcessesSettings, codes=(ENDED, LEFTOVER, MEMORY))
def gpu_processes(node: Node, settings: GpuProcessesSettings) -> Result:
    """No ended process, process outside of a job, or memory without a process holds a GPU.

    There are three findings: a process that has ended, or is a zombie, and still holds a GPU (the driver waits for the
    hardware, or a child lives); a process that belongs to no job; and memory without any process. The number of
    processes and their memory are readings. healthd kills no process. A GPU that no process holds ends the faults of
    its jobs, such as XID 31: many of those lines name no process. With MIG, NVML lists processes without their GPU
    instance only to root. In a container without the host's process ids, ``ended`` means nothing, and no fault ends:
    run healthd with hostPID.

    Sources: nvml.h (nvmlDeviceGetComputeRunningProcesses_v3, nvmlDeviceGetMemoryInfo); Meta's gcm searches for orphaned
    processes and memory before a job. A process that ends between two questions seems to hold the GPU in one check run,
    so the finding takes two.
    """
    gpus = ask_gpus(node, *_LISTS, _MEMORY)
    if isinstance(gpus, Result):
        return gpus
    if all(gpu.unsupported.issuperset(_LISTS) for gpu in gpus):
        return not_applicable("no GPU of this node lists its processes")
    findings = [finding for gpu in gpus for finding in _findings(node, gpu, settings)]
    readings = [reading for gpu in gpus for reading in _readings(gpu)]
    return judged(findings, readings, undecided=undecided_of(gpus), clearances=_jobs_over(node, gpus))


def _jobs_over(node: Node, gpus: Sequence[GpuValues]) -> Iterator[Clearance]:
    """Without the host's process ids NVML lists no process of another container."""
    free = [gpu.gpu for gpu in gpus if _LISTS[0] in gpu.values and not gpu.undecided and not _pids(gpu)]
    if free and has_pids_of_host(node):
        note = "no process holds this GPU any more"
        yield from (Clearance(by=ClearsBy.JOB_END, component=gpu, note=note) for gpu in free)


def _pids(gpu: GpuValues) -> list[int]:
    return sorted({row["pid"] for call in _LISTS for row in gpu.values.get(call, ())})


def _findings(node: Node, gpu: GpuValues, settings: GpuProcessesSettings) -> Iterator[Finding]:
    pids = _pids(gpu)
    states = {pid: _state(node, pid) for pid in pids}
    if ended := [pid for pid in pids if states[pid] in ("", "Z", "X")]:
        yield ENDED.at(gpu.gpu, f"ended processes still hold this GPU: pids {', '.join(map(str, ended))}", pids=ended)
    strangers = [pid for pid in pids if pid not in ended and settings.jobs_only and not _is_of_a_job(node, pid)]
    if strangers:
        names = {str(pid): _name(node, pid) for pid in strangers}
        states_of = {str(pid): states[pid] for pid in strangers}
        yield LEFTOVER.at(
            gpu.gpu,
            f"processes outside of any job hold this GPU: {', '.join(f'{names[pid]} (pid {pid})' for pid in names)}",
            names=names,
            states=states_of,
        )
    used_mib = gpu.values.get(_MEMORY, {}).get("used", 0) / _MIB
    limit = settings.idle_memory_mib
    if limit is not None and used_mib > limit and not pids and gpu.values.keys() >= set(_LISTS[:1]):
        message = f"{used_mib:.0f} MiB are in use although no process holds this GPU; at most {limit} MiB expected"
        yield MEMORY.at(gpu.gpu, message, value_mib=used_mib, limit_mib=limit, limit_source="settings.idle_memory_mib")


def _state(node: Node, pid: int) -> str:
    """The letter of proc(5), such as R or Z; "" for a process that does not exist."""
    try:
        found = _STATE.search(node.proc.read(f"{pid}/status"))
    except SourceMissing:
        return ""
    return found[1] if found else "?"


def _is_of_a_job(node: Node, pid: int) -> bool:
    """Whether its cgroup is a job's or a pod's. True also for a process that ends during the check run."""
    try:
        return bool(owner(node.proc.read(f"{pid}/cgroup")))
    except SourceMissing:
        return True


def _name(node: Node, pid: int) -> str:
    try:
        return node.proc.read(f"{pid}/comm")
    except SourceMissing:
        return "ended"


def _readings(gpu: GpuValues) -> Iterator[Reading]:
    if gpu.values.keys() & set(_LISTS):
        yield Reading(component=gpu.gpu, name="gpu_process_count", value=len(_pids(gpu)))
    if _MEMORY in gpu.values:
        yield Reading(component=gpu.gpu, name="gpu_memory_used_bytes", value=gpu.values[_MEMORY]["used"])
