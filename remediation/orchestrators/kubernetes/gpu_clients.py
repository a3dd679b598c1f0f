"""The pods that NVIDIA's GPU Operator keeps on a node for its GPUs, stopped for a GPU reset and started again.

A reset works only when nobody has a GPU open, and the device plugin, feature discovery and DCGM have. Deleting their
pods is no use: a DaemonSet makes them anew. The operator's DaemonSets select nodes by a label each,
``nvidia.com/gpu.deploy.<client>=true``, and NVIDIA's own tools stop these clients by giving it another value, wait for
the pods to go, and set it to ``true`` again (NVIDIA/mig-parted, cmd/nvidia-mig-manager, and k8s-driver-manager: read
2026-11-21). So does this, by the agent's own right to its own Node.

``client`` is the label that the operator sets since 26.7 for those who are not part of it. Whatever has another value
than ``true`` is somebody's wish and left alone; what is ours again is told by the value, which nobody else writes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from healthd.core.errors import BackendError
from healthd.remediation.orchestrators.kubernetes.asking import OwnNode
from healthd.remediation.orchestrators.kubernetes.node import KubeNode

LABEL = "nvidia.com/gpu.deploy."
CLIENTS = tuple(
    f"{LABEL}{name}" for name in ("client", "dcgm", "dcgm-exporter", "device-plugin", "gpu-feature-discovery", "nvsm")
)
RUNS, PAUSED = "true", "paused-for-gpu-reset"


def labelled_patch(node: KubeNode, keys: Collection[str], *, before: str, after: str) -> dict[str, Any] | None:
    """The patch that gives those of these labels another value that have the one ``before``; None where none has."""
    labels = {key: after for key in keys if key in CLIENTS and node.labels.get(key) == before}
    return {"metadata": {"resourceVersion": node.version, "labels": labels}} if labels else None


def resumed_patch(node: KubeNode) -> dict[str, Any] | None:
    """The patch that starts whatever healthd stopped, and no other; None where nothing is."""
    return labelled_patch(node, CLIENTS, before=PAUSED, after=RUNS)


class KubeGpuClients:
    """The clients on one node."""

    def __init__(self, node: OwnNode) -> None:
        self._node = node

    def running(self) -> tuple[str, ...]:
        """The labels of those that are to run here. Raises BackendError."""
        labels = self._node.own(fresh=True).labels
        return tuple(key for key in CLIENTS if labels.get(key) == RUNS)

    def stop(self, clients: Collection[str]) -> None:
        """Have these end, which takes them a while. Raises BackendError."""
        self._node.change_own(lambda node: labelled_patch(node, clients, before=RUNS, after=PAUSED), status=False)

    def start(self, clients: Collection[str]) -> str:
        """Let these come back; why that could not be asked for, or ""."""
        try:
            self._node.change_own(lambda node: labelled_patch(node, clients, before=PAUSED, after=RUNS), status=False)
        except BackendError as error:
            return f"{', '.join(clients)}: {error}"
        return ""
