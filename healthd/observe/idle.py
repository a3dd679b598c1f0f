"""Whether this node is idle: read before an active test puts load on its GPUs.

Two sources: NVML lists the processes that hold a GPU, and the cluster lists its jobs. A node of which they report
nothing is not idle. The module decides nothing else, and stops no process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from healthd.checklib.gpus import NO_SUCH_QUESTION
from healthd.checklib.nvml_codes import NvmlReturn
from healthd.checklib.pci import pci_gpus
from healthd.core.errors import BackendError, SourceError, SourceMissing
from healthd.core.node import Node, NvmlFailure

if TYPE_CHECKING:
    from healthd.remediation.ports import Orchestrator

_WHEN_IDLE = "run it again when the node is idle"
_HOLDERS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
_HELD_BY_NOBODY = NO_SUCH_QUESTION | {NvmlReturn.GPU_IS_LOST}


class NotIdle(Struct, frozen=True):
    """Why no active test may run now. ``do``: the operator's next step, "" where `healthd doctor` names it."""

    why: str
    do: str = _WHEN_IDLE


def not_idle(node: Node, orchestrator: Orchestrator | None, *, own_job: str = "") -> NotIdle | None:
    """Why no active test may run now; None on an idle node.

    ``own_job``: the job that requests the test, whose own allocation does not count. ``orchestrator`` None: no cluster
    was found.
    """
    try:
        holders = tuple(_holders(node))
    except SourceError as error:
        return NotIdle(f"cannot read which processes hold the GPUs: {error}", error.do)
    if holders:
        return NotIdle(f"the GPUs are in use: {', '.join(holders)}")
    return None if orchestrator is None or orchestrator.kind == "local" else _cluster_work(orchestrator, own_job)


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
            rows = gpu.values.get(call, ())
            if not isinstance(rows, NvmlFailure):
                yield from (f"GPU {gpu.index} by process {row['pid']}" for row in rows)
            elif rows.code not in _HELD_BY_NOBODY:
                yield f"GPU {gpu.index} by processes that NVML does not list ({rows.name})"


def _cluster_work(orchestrator: Orchestrator, own_job: str) -> NotIdle | None:
    try:
        view = orchestrator.view(jobs=True)
    except BackendError as error:
        return NotIdle(f"cannot read the jobs of this node: {error}", "")
    others = [job for job in view.jobs if job != own_job]
    if others:
        return NotIdle(f"{orchestrator.kind} runs jobs on this node: {', '.join(others)}")
    if not view.jobs and not view.idle:
        flags = ", ".join(sorted(view.flags)) or "CPUs are allocated"
        return NotIdle(f"{orchestrator.kind} reports that this node is not idle: {flags}")
    return None
