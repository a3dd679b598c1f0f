"""The patches that clean a Node when healthd is removed from the cluster. Pure.

They remove the taints healthd.io/unhealthy, claimed, unverified and domain-fence, the cordon and the annotations that a
hold set, every other annotation of healthd's, its labels, its conditions, and its request to EKS. Settings of the
operator stay: the opt-out, a cordon, a taint of another key. So does HyperPod's label, whose request HyperPod may be
carrying out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from healthd.remediation.orchestrators.kubernetes.objects.conditions import TYPES
from healthd.remediation.orchestrators.kubernetes.objects.labels import CODE, STATE
from healthd.remediation.orchestrators.kubernetes.objects.node import (
    CLAIMED,
    UNHEALTHY,
    UNVERIFIED,
    KubeNode,
    release_patch,
    without_taints,
)
from healthd.remediation.orchestrators.kubernetes.objects.platform_signals import EKS_CONDITION, SIGNAL
from healthd.remediation.records.domain_fence import KUBE_TAINT

TAINTS = (UNHEALTHY, CLAIMED, UNVERIFIED, KUBE_TAINT)
LABELS = (STATE, CODE)
_OURS = "healthd.io/"


def kept_off_by(node: KubeNode) -> tuple[str, ...]:
    """The taints of healthd's that keep pods off this node."""
    return tuple(key for key in TAINTS if node.taint(key) is not None)


def leaving_patch(node: KubeNode, *, opt_out: str, labels: Mapping[str, str] | None = None) -> dict[str, Any] | None:
    """The one merge patch of the Node; None where nothing of healthd's is there. ``opt_out``: the operator's key.
    ``labels``: further labels to be set with it."""
    released = release_patch(node) or {"metadata": {}, "spec": {}}
    ours = [key for key in node.annotations if key.startswith(_OURS) and key != opt_out]
    notes = {**dict.fromkeys(ours), **released["metadata"].get("annotations", {})}
    changed = {**dict.fromkeys(key for key in LABELS if key in node.labels), **(labels or {})}
    if not (notes or changed or kept_off_by(node)):
        return None
    metadata = {"resourceVersion": node.version, "annotations": notes, "labels": changed}
    return {"metadata": metadata, "spec": {**released["spec"], "taints": without_taints(node, TAINTS)}}


def leaving_status_patch(node: KubeNode) -> dict[str, Any] | None:
    """The strategic-merge patch of the Node's status; None where no condition of healthd's is there."""
    gone = [each.type for each in node.conditions if each.type in TYPES]
    gone += [c.type for c in node.conditions if c.type == EKS_CONDITION and c.message.startswith(SIGNAL)]
    return {"status": {"conditions": [{"$patch": "delete", "type": kind} for kind in gone]}} if gone else None


def claims_to_drop(notes: Collection[str], prefix: str, kept: Collection[str]) -> dict[str, None]:
    """The annotations to remove from a Lease: those of every node but the ``kept``, which could not be released."""
    return {key: None for key in notes if key.startswith(prefix) and key.removeprefix(prefix) not in kept}
