"""What other agents of a managed cluster read as an order about a node, and who owns it already. Pure.

    EKS node auto-repair       condition AcceleratedHardwareReady=False with the reason of an XID, after 10 minutes
    SageMaker HyperPod         label sagemaker.amazonaws.com/node-health-status, where NodeRecovery is Automatic

Both are acts: a replacement destroys the node's disks. They are for a provisioner that the engine asks after its own
drain, never for a report. Where eks-node-monitoring-agent or HyperPod's own agent speaks for the node, healthd does
not: two that repair one node undo each other, and the agent writes its own value over ours every few seconds.

Facts: docs.aws.amazon.com, EKS node-repair and node-health, HyperPod resiliency labels (read 2026-11);
eks-node-monitoring-agent v1.7.0 (its condition types and its affinity away from HyperPod nodes).
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from healthd.errors import BackendRefused
from healthd.model import Remedy
from healthd.remediation.orchestrators.kube_conditions import rfc3339
from healthd.remediation.orchestrators.kube_node import KubeNode

EKS_CONDITION = "AcceleratedHardwareReady"
HYPERPOD_LABEL = "sagemaker.amazonaws.com/node-health-status"
SIGNAL = "healthd: "
"""How the message of a condition begins that healthd wrote under another's type."""

EKS_REPLACES = frozenset({64, 74, 79, 119, 120, 142, 151})
EKS_REBOOTS = frozenset({46, 48, 54, 62, 63, 95, 109, 110, 136, 140, 143, 155, 156, 158})
"""The XIDs that node auto-repair answers by another machine, and by a reboot."""

# What eks-node-monitoring-agent writes beside AcceleratedHardwareReady, whatever the hardware.
_EKS_AGENT_TYPES = ("ContainerRuntimeReady", "KernelReady", "NetworkingReady", "StorageReady")
_HYPERPOD_VALUES = {
    Remedy.REBOOT_NODE: "UnschedulablePendingReboot",
    Remedy.REPLACE_NODE: "UnschedulablePendingReplacement",
}
_XID = re.compile(r"gpu\.xid\.([0-9]{1,3})")


def eks_reason(code: str, remedy: Remedy) -> str:
    """The reason by which node auto-repair does this for this finding, or "": then it has no such reason."""
    found = _XID.fullmatch(code)
    number = int(found[1]) if found is not None else 0
    fits = {Remedy.REPLACE_NODE: EKS_REPLACES, Remedy.REBOOT_NODE: EKS_REBOOTS}.get(remedy, frozenset())
    return f"NvidiaXID{number}Error" if number in fits else ""


def eks_owner(node: KubeNode) -> str:
    """Who speaks for the node in EKS's conditions already, or ""."""
    there = [kind for kind in _EKS_AGENT_TYPES if node.condition(kind) is not None]
    if there:
        return f"eks-node-monitoring-agent, which writes {', '.join(there)}"
    condition = node.condition(EKS_CONDITION)
    if condition is not None and not condition.message.startswith(SIGNAL):
        return f"somebody who wrote {EKS_CONDITION}={condition.status} ({condition.reason})"
    return ""


def eks_patch(node: KubeNode, code: str, remedy: Remedy, now: datetime) -> dict[str, Any]:
    """The strategic-merge patch of the node's status by which auto-repair does this. Raises BackendRefused where it has
    no reason for it, or somebody else owns the condition."""
    if owner := eks_owner(node):
        raise BackendRefused(f"{node.name}: not asked for {remedy}: the condition {EKS_CONDITION} belongs to {owner}")
    reason = eks_reason(code, remedy)
    if not reason:
        raise BackendRefused(f"{node.name}: EKS node auto-repair has no reason by which it does {remedy} for {code}")
    return _eks(node, "False", reason, f"{SIGNAL}{code} calls for {remedy}", now)


def eks_taken_back(node: KubeNode, now: datetime) -> dict[str, Any] | None:
    """The patch that says that all is well again; None where the condition is not ours, or says so."""
    condition = node.condition(EKS_CONDITION)
    if condition is None or condition.status == "True" or eks_owner(node):
        return None
    return _eks(node, "True", "AcceleratedHardwareIsReady", f"{SIGNAL}verified", now)


def hyperpod_owner(node: KubeNode) -> str:
    """Why the label must not be written here, or ""."""
    value = node.labels.get(HYPERPOD_LABEL)
    if value is None:
        return f"the node has no label {HYPERPOD_LABEL}: it is none of HyperPod's"
    if value != "Schedulable":
        return f"HyperPod acts on the node already: {HYPERPOD_LABEL}={value}"
    return ""


def hyperpod_patch(node: KubeNode, remedy: Remedy) -> dict[str, Any]:
    """The merge patch by which HyperPod reboots or replaces the node. Raises BackendRefused where it must not be."""
    if why := hyperpod_owner(node):
        raise BackendRefused(f"{node.name}: not asked for {remedy}: {why}")
    if remedy not in _HYPERPOD_VALUES:
        raise BackendRefused(f"{node.name}: HyperPod has no label for {remedy}")
    labels = {HYPERPOD_LABEL: _HYPERPOD_VALUES[remedy]}
    return {"metadata": {"resourceVersion": node.version, "labels": labels}}


def _eks(node: KubeNode, status: str, reason: str, message: str, now: datetime) -> dict[str, Any]:
    before = node.condition(EKS_CONDITION)
    moved = before.lastTransitionTime if before is not None and before.status == status else None
    condition = {
        "type": EKS_CONDITION,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": moved or rfc3339(now),
        "lastHeartbeatTime": rfc3339(now),
    }
    return {"metadata": {"resourceVersion": node.version}, "status": {"conditions": [condition]}}
