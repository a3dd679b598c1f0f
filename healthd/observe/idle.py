"""Whether this node is idle: read before an active test puts load on its GPUs.

Two sources: NVML lists the processes that hold a GPU, and the cluster lists its jobs. A node of which they report
nothing is not idle. The module decides nothing else, and stops no process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from healthd.checklib.pci import pci_gpus
from healthd.core.errors import BackendError, SourceError, SourceMissing
from healthd.core.node import Node

if TYPE_CHECKING:
    from healthd.remediation.ports import Orchestrator

_HOLDERS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")


def not_idle_reason(node: Node, orchestrator: Orchestrator | None, *, own_job: str = "") -> str:
    """Why no active test may run now, or "" on an idle node.

    ``own_job``: the job that requests the test, whose own allocation does not count. ``orchestrator`` None: no cluster
    was found.
    """
    try:
        holders = tuple(_holders(node))
    except SourceError as error:
        return f"cannot read which processes hold the GPUs: {error}"
    if holders:
        return f"the GPUs are in use: {', '.join(holders)}"
    return "" if orchestrator is None or orchestrator.kind == "local" else _cluster_work(orchestrator, own_job)


def _holders(node: Node) -> Iterator[str]:
    """The processes that hold a GPU. Raises SourceMissing without NVML, unless the PCI bus has no GPU."""
    try:
        gpus = node.nvml.ask(*_HOLDERS)
    except SourceMissing:
        if pci_gpus(node):
            raise
        return
    for gpu in gpus:
        for call in _HOLDERS:
            rows = gpu.values.get(call)
            for row in rows if isinstance(rows, list | tuple) else ():
                yield f"GPU {gpu.index} by process {row['pid']}"


def _cluster_work(orchestrator: Orchestrator, own_job: str) -> str:
    try:
        view = orchestrator.view(jobs=True)
    except BackendError as error:
        return f"cannot read the jobs of this node: {error}"
    others = [job for job in view.jobs if job != own_job]
    if others:
        return f"{orchestrator.kind} runs jobs on this node: {', '.join(others)}"
    if not view.jobs and not view.idle:
        flags = ", ".join(sorted(view.flags)) or "CPUs are allocated"
        return f"{orchestrator.kind} reports that this node is not idle: {flags}"
    return ""
