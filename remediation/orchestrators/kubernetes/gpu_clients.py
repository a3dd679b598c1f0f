"""The pods that NVIDIA's GPU Operator keeps on a node for its GPUs, stopped for a GPU reset and started again.

A reset works only when no process has a GPU open, and the device plugin, feature discovery and DCGM have. Deleting
their pods is no use: a DaemonSet recreates them. The operator's DaemonSets select nodes by a label each,
``nvidia.com/gpu.deploy.<client>=true``, and NVIDIA's own tools stop these clients by giving it another value, wait for
the pods to go, and set it to ``true`` again (NVIDIA/mig-parted, cmd/nvidia-mig-manager, and k8s-driver-manager: read
2026-11-21). healthd does the same, with the agent's right to its own Node.

``client`` is the label that the operator sets since 26.7 for clients that are not part of it. A label with another
value than ``true`` is an operator's choice and left alone; healthd knows its own labels by their value, which it alone
writes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

from healthd.core.errors import BackendError
from healthd.remediation.orchestrators.kubernetes.objects.node import KubeNode

LABEL = "nvidia.com/gpu.deploy."
CLIENTS = tuple(
    f"{LABEL}{name}" for name in ("client", "dcgm", "dcgm-exporter", "device-plugin", "gpu-feature-discovery", "nvsm")
)
RUNS, PAUSED = "true", "paused-for-gpu-reset"


class OwnNode(Protocol):
    """This node's Node. Both raise BackendError."""

    def own(self, *, fresh: bool = False) -> KubeNode:
        """The Node as it was read last, or read again where ``fresh``."""

    def change_own(self, patch: Callable[[KubeNode], dict[str, Any] | None], *, status: bool) -> None:
        """Patch the Node as it was read; no patch: write nothing."""


def labelled_patch(node: KubeNode, keys: Collection[str], *, before: str, after: str) -> dict[str, Any] | None:
    """The patch that sets those of these labels to ``after`` that have the value ``before``; None where none has."""
    labels = {key: after for key in keys if key in CLIENTS and node.labels.get(key) == before}
    return {"metadata": {"resourceVersion": node.version, "labels": labels}} if labels else None


def resumed_patch(node: KubeNode) -> dict[str, Any] | None:
    """The patch that starts the clients that healthd stopped, and no other; None where none is stopped."""
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
        """Request the end of these clients, which takes a while. Raises BackendError."""
        self._node.change_own(lambda node: labelled_patch(node, clients, before=RUNS, after=PAUSED), status=False)

    def start(self, clients: Collection[str]) -> str:
        """Request the return of these clients; why that could not be requested, or ""."""
        try:
            self._node.change_own(lambda node: labelled_patch(node, clients, before=PAUSED, after=RUNS), status=False)
        except BackendError as error:
            return f"{', '.join(clients)}: {error}"
        return ""
