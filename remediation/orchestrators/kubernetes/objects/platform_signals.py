"""Labels and conditions of a Node that a managed cluster reads as a request, and their owners. Pure.

    EKS node auto-repair       condition AcceleratedHardwareReady=False with the reason of an XID, after 10 minutes
    Karpenter's NodeRepair     the same condition, whatever its reason: always another machine, never a reboot
    SageMaker HyperPod         label sagemaker.amazonaws.com/node-health-status, where NodeRecovery is Automatic

All are acts: a replacement destroys the node's disks. They are for a provisioner that the engine asks after its own
drain, never for a report. Where eks-node-monitoring-agent or HyperPod's own agent sets them, healthd does not: two
programs that repair one node undo each other, and the agent overwrites our value every few seconds.

The patch that writes a request shows that it is healthd's: the condition by the beginning of its message, the label by
the annotation healthd.io/asked with the same value. The admission policy holds every agent to the same rules.

Facts: docs.aws.amazon.com, EKS node-repair and node-health, HyperPod resiliency labels (read 2026-11);
eks-node-monitoring-agent v1.7.0 (its condition types and its affinity away from HyperPod nodes); Karpenter,
pkg/controllers/node/health (a RepairPolicy is a type and a status).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Protocol

from healthd.core.errors import BackendRefused
from healthd.core.model import Remedy
from healthd.remediation.orchestrators.kubernetes.objects.conditions import reason_of, time_of
from healthd.remediation.orchestrators.kubernetes.objects.node import KubeNode, code_in, hold_of, rfc3339

EKS_CONDITION = "AcceleratedHardwareReady"
HYPERPOD_LABEL, SCHEDULABLE = "sagemaker.amazonaws.com/node-health-status", "Schedulable"
ASKED = "healthd.io/asked"
"""The annotation that makes HyperPod's label ours: it has the label's value."""
SIGNAL = "healthd: "
"""The beginning of the message of a condition that healthd wrote under a type of EKS's."""

EKS_REPLACES = frozenset({64, 74, 79, 119, 120, 142, 151})
EKS_REBOOTS = frozenset({46, 48, 54, 62, 63, 95, 109, 110, 136, 140, 143, 155, 156, 158})
"""The XIDs that node auto-repair answers by another machine, and by a reboot."""
EKS_WAITS = timedelta(minutes=10)
"""How long node auto-repair leaves such a condition alone before it acts."""

KARPENTERS = frozenset({"karpenter.sh/nodepool", "karpenter.sh/registered"})
"""The labels of a Node that Karpenter made: its NodePool, and that Karpenter registered it, which a NodeClaim without a
NodePool has as well."""
AUTO_MODE = ("eks.amazonaws.com/compute-type", "auto")
"""The label of a Node of EKS Auto Mode, which is AWS's own Karpenter."""

# What eks-node-monitoring-agent writes beside AcceleratedHardwareReady, whatever the hardware.
_EKS_AGENT_TYPES = ("ContainerRuntimeReady", "KernelReady", "NetworkingReady", "StorageReady")
_HYPERPOD_VALUES = {
    Remedy.REBOOT_NODE: "UnschedulablePendingReboot",
    Remedy.REPLACE_NODE: "UnschedulablePendingReplacement",
}
_XID = re.compile(r"gpu\.xid\.([0-9]{1,3})")
# The loss that the driver calls XID 79, as NVML and the PCI bus report it: the check that ran first must not decide.
_SAME_AS_79 = frozenset({"gpu.lost", "gpu.count.off_bus", "gpu.count.driver_lost"})


class Signal(Protocol):
    """One way in which a node asks its platform, by a label or a condition. ``platform``: its name in messages.

    ``on_status``: whether its patches are strategic-merge patches of the node's status, else merge patches of the node.
    ``acts_late``: whether the platform leaves a request alone for many minutes, and acts on none that is withdrawn.
    """

    platform: str
    on_status: bool
    acts_late: bool

    def owner(self, node: KubeNode) -> str:
        """The other agent that sets it, or why the node is not this platform's; "" where healthd may ask."""

    def reason_against(self, node: KubeNode, remedy: Remedy) -> str:
        """Why the platform never carries out this remedy on such a node, or ""."""

    def patch(self, node: KubeNode, remedy: Remedy, now: datetime) -> dict[str, Any]:
        """The patch that asks for this remedy. Raises BackendRefused where it must not or cannot be asked for."""

    def stands(self, node: KubeNode, remedy: Remedy) -> bool:
        """Whether the node shows this request, as healthd made it."""

    def shown(self, node: KubeNode) -> str:
        """The label or condition as the node shows it now, of any writer."""

    def can_be_recalled(self, node: KubeNode, now: datetime) -> bool:
        """Whether the platform cannot have begun yet."""

    def recalled(self, node: KubeNode, now: datetime) -> dict[str, Any] | None:
        """The patch that withdraws a request of ours while the node is still out, or None where none is needed."""

    def ended(self, node: KubeNode, now: datetime) -> dict[str, Any] | None:
        """The patch that removes everything of ours when the node is released, or None where none is needed."""


class EksCondition:
    """EKS node auto-repair: the condition AcceleratedHardwareReady."""

    platform = "EKS node auto-repair"
    on_status = acts_late = True

    def owner(self, node: KubeNode) -> str:
        """eks-node-monitoring-agent, or another writer of the condition."""
        there = [kind for kind in _EKS_AGENT_TYPES if node.condition(kind) is not None]
        if there:
            return f"eks-node-monitoring-agent, which writes {', '.join(there)}"
        condition = node.condition(EKS_CONDITION)
        if condition is not None and not condition.message.startswith(SIGNAL):
            return f"another writer, which set {EKS_CONDITION}={condition.status} ({condition.reason})"
        return ""

    def reason_against(self, node: KubeNode, remedy: Remedy) -> str:
        """Karpenter answers the condition with another machine: a request for a reboot would be a replacement."""
        if remedy is Remedy.REPLACE_NODE or not replaces_only(node):
            return ""
        return f"Karpenter made {node.name}, and replaces it on any request: no {remedy}"

    def patch(self, node: KubeNode, remedy: Remedy, now: datetime) -> dict[str, Any]:
        """The reason is that of the finding for which the node is out, as its own annotation names it."""
        held = hold_of(node)
        if held is None:
            raise BackendRefused(f"{node.name}: {remedy} not requested: healthd does not hold the node")
        if owner := self.owner(node):
            raise BackendRefused(
                f"{node.name}: {remedy} not requested: the condition {EKS_CONDITION} belongs to {owner}"
            )
        code = code_in(held.text)
        reason = eks_reason(code, remedy, always_replaces=replaces_only(node))
        if not reason:
            raise BackendRefused(f"{node.name}: EKS node auto-repair has no reason that means {remedy} for {code}")
        return _eks(node, "False", reason, f"{SIGNAL}{code} calls for {remedy}", now)

    def stands(self, node: KubeNode, remedy: Remedy) -> bool:
        """Ours, False, and with a reason that means this remedy."""
        there, held = node.condition(EKS_CONDITION), hold_of(node)
        if there is None or there.status != "False" or self.owner(node) or held is None:
            return False
        return there.reason == eks_reason(code_in(held.text), remedy, always_replaces=replaces_only(node))

    def shown(self, node: KubeNode) -> str:
        there = node.condition(EKS_CONDITION)
        return f"{EKS_CONDITION}={there.status} ({there.reason})" if there is not None else f"no {EKS_CONDITION}"

    def can_be_recalled(self, node: KubeNode, now: datetime) -> bool:
        """In the first half of its ten minutes: the other half is for clocks, and for what it does before it acts."""
        there = node.condition(EKS_CONDITION)
        since = time_of(there.lastTransitionTime) if there is not None and there.status == "False" else None
        return since is not None and timedelta() <= now - since < EKS_WAITS / 2

    def recalled(self, node: KubeNode, now: datetime) -> dict[str, Any] | None:
        """Unknown: auto-repair acts on False alone, and whether the node is healthy is not known yet."""
        there = node.condition(EKS_CONDITION)
        if there is None or there.status != "False" or self.owner(node):
            return None
        return _eks(node, "Unknown", "BeingVerified", f"{SIGNAL}no request, the node is being verified", now)

    def ended(self, node: KubeNode, now: datetime) -> dict[str, Any] | None:
        condition = node.condition(EKS_CONDITION)
        if condition is None or condition.status == "True" or self.owner(node):
            return None
        return _eks(node, "True", "AcceleratedHardwareIsReady", f"{SIGNAL}no request, the node is released", now)


class HyperPodLabel:
    """SageMaker HyperPod on EKS: the label that its own agent writes as well."""

    platform = "HyperPod"
    on_status = acts_late = False

    def owner(self, node: KubeNode) -> str:
        """HyperPod's agent, or another writer that set the label to anything but Schedulable."""
        value = node.labels.get(HYPERPOD_LABEL)
        if value is None:
            return f"the node has no label {HYPERPOD_LABEL}: it is not a node of HyperPod"
        if value not in (SCHEDULABLE, _ours(node)):
            return f"HyperPod acts on the node already: {HYPERPOD_LABEL}={value}"
        return ""

    def reason_against(self, node: KubeNode, remedy: Remedy) -> str:
        return ""

    def patch(self, node: KubeNode, remedy: Remedy, now: datetime) -> dict[str, Any]:
        if why := self.owner(node):
            raise BackendRefused(f"{node.name}: {remedy} not requested: {why}")
        if remedy not in _HYPERPOD_VALUES:
            raise BackendRefused(f"{node.name}: {remedy} not requested: HyperPod has no label for it")
        return _hyperpod(node, _HYPERPOD_VALUES[remedy], _HYPERPOD_VALUES[remedy])

    def stands(self, node: KubeNode, remedy: Remedy) -> bool:
        """Ours, and with the value that means this remedy."""
        value = _HYPERPOD_VALUES.get(remedy)
        return value is not None and node.labels.get(HYPERPOD_LABEL) == value == node.annotations.get(ASKED)

    def shown(self, node: KubeNode) -> str:
        return f"{HYPERPOD_LABEL}={node.labels.get(HYPERPOD_LABEL, '')}"

    def can_be_recalled(self, node: KubeNode, now: datetime) -> bool:
        """Never: HyperPod acts within minutes, and does not say when it has begun."""
        return False

    def recalled(self, node: KubeNode, now: datetime) -> dict[str, Any] | None:
        """Nothing: after its reboot HyperPod sets the label back itself."""
        return None

    def ended(self, node: KubeNode, now: datetime) -> dict[str, Any] | None:
        """A label that is still ours becomes Schedulable again; one that HyperPod has moved on from is HyperPod's."""
        if ASKED not in node.annotations:
            return None
        value = node.labels.get(HYPERPOD_LABEL)
        is_ours = value is not None and value == _ours(node)
        return _hyperpod(node, SCHEDULABLE if is_ours else value, None)


SIGNALS: Mapping[str, Signal] = {"eks": EksCondition(), "hyperpod": HyperPodLabel()}
"""By the kind of provisioner that uses them."""


def replaces_only(node: KubeNode) -> bool:
    """Whether the answer to the condition is another machine, whatever its reason: Karpenter made the node."""
    key, value = AUTO_MODE
    return not KARPENTERS.isdisjoint(node.labels) or node.labels.get(key) == value


def eks_reason(code: str, remedy: Remedy, *, always_replaces: bool = False) -> str:
    """The reason by which node auto-repair does this for this finding, or "": then it has no such reason.

    ``always_replaces``: the platform reads the status alone, see ``replaces_only``; the reason only informs then.
    """
    found = _XID.fullmatch(code)
    number = 79 if code in _SAME_AS_79 else int(found[1]) if found is not None else 0
    reason = f"NvidiaXID{number}Error" if number else reason_of(code)
    if always_replaces:
        return reason if remedy is Remedy.REPLACE_NODE else ""
    fits = {Remedy.REPLACE_NODE: EKS_REPLACES, Remedy.REBOOT_NODE: EKS_REBOOTS}.get(remedy, frozenset())
    return reason if number in fits else ""


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


def _ours(node: KubeNode) -> str | None:
    """The value of the label that healthd asked for, or None."""
    asked = node.annotations.get(ASKED)
    return asked if asked in _HYPERPOD_VALUES.values() else None


def _hyperpod(node: KubeNode, value: str | None, asked: str | None) -> dict[str, Any]:
    metadata: dict[str, Any] = {"resourceVersion": node.version, "annotations": {ASKED: asked}}
    if value != node.labels.get(HYPERPOD_LABEL):
        metadata["labels"] = {HYPERPOD_LABEL: value}
    return {"metadata": metadata}
