"""Whether anybody works on this node: asked before an active test puts load on its GPUs.

Two witnesses: NVML lists who holds a GPU, and the cluster lists its jobs. What cannot be told is not idle. It decides
nothing else, and it stops nobody.
"""

from __future__ import annotations

from collections.abc import Iterator

from healthd.checklib.pci import pci_gpus
from healthd.core.errors import BackendError, SourceError, SourceMissing
from healthd.core.node import Node
from healthd.remediation.ports import Orchestrator

_HOLDERS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")


def why_not_idle(node: Node, orchestrator: Orchestrator | None, *, own_job: str = "") -> str:
    """Why no active test may run now, or "" where nobody works here.

    ``own_job``: the job that asks, whose allocation may be the only work of the cluster here. ``orchestrator`` None:
    no cluster was found.
    """
    try:
        holders = tuple(_holders(node))
    except SourceError as error:
        return f"who holds the GPUs cannot be told: {error}"
    if holders:
        return f"the GPUs are in use: {', '.join(holders)}"
    return "" if orchestrator is None or orchestrator.kind == "local" else _cluster_work(orchestrator, own_job)


def _holders(node: Node) -> Iterator[str]:
    """Who holds a GPU. Without NVML nobody can tell, but on a machine whose bus has no GPU that could be held."""
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
        return f"the jobs of this node cannot be told: {error}"
    others = [job for job in view.jobs if job != own_job]
    if others:
        return f"{orchestrator.kind} runs jobs here: {', '.join(others)}"
    if not view.jobs and not view.idle:
        flags = ", ".join(sorted(view.flags)) or "CPUs are allocated"
        return f"{orchestrator.kind} says this node is not idle: {flags}"
    return ""
