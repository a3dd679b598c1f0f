"""A hostile agent with its own token, on a real API server: what it tries, and what the server answers."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from healthd.remediation.orchestrators.kubernetes.api import FIELD_MANAGER
from healthd.remediation.orchestrators.kubernetes.objects.events import ClusterEvent, event_of
from healthd.remediation.orchestrators.kubernetes.objects.labels import CODE, SHOWN, STATE, Labels
from tests.live.kubernetes.agent_rig import BUDGET, EVENTS
from tests.live.kubernetes.api_client import Answer, ApiClient, PatchKind
from tests.live.kubernetes.control_plane import ACCOUNT, NAMESPACE, ControlPlane
from tests.support.limits import limit_s

pytestmark = pytest.mark.kubernetes

OWN, OTHER = "/api/v1/nodes/n1", "/api/v1/nodes/n2"
PLUGIN, DRIVER = (f"nvidia.com/gpu.deploy.{name}" for name in ("device-plugin", "driver"))
PAUSED = "paused-for-gpu-reset"
AS_AGENT = f"?fieldManager={FIELD_MANAGER}"
LONGEST = 4096  # bytes of one claim or record
MANIFESTS = Path(__file__).resolve().parents[3] / "packaging" / "kubernetes"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
HYPERPOD = "sagemaker.amazonaws.com/node-health-status"
REPLACE, REBOOT = "UnschedulablePendingReplacement", "UnschedulablePendingReboot"
CORDON = {"spec": {"unschedulable": True}}
THEIRS = {"key": "example.com/theirs", "value": "yes", "effect": "NoSchedule"}
HELD = json.dumps({"text": "healthd: gpu.xid.79 gpu:0 [k3v9]", "by": "healthd-agent", "stamp": 1, "cordoned": True})
KEEP = "karpenter.sh/do-not-disrupt"
UNCORDONED = HELD.replace("true", "false")
OURS = {"key": "healthd.io/unhealthy", "value": "gpu.xid.79", "effect": "NoSchedule"}
TAINTED = {"taints": [THEIRS, OURS]}


class Attempt(Struct, frozen=True, kw_only=True):
    """One request of the agent on n1, and the status and the words with which it is refused.

    ``claimed``: it is made while n1 holds a place in the budget, so that this is not what it is refused for.
    """

    name: str
    path: str
    body: Any = None
    status: int
    says: str
    method: str = "PATCH"
    kind: PatchKind = "strategic"
    claimed: bool = False


def condition(kind: str, status: str = "True", reason: str = "Because", message: str = "") -> dict[str, Any]:
    made = {"type": kind, "status": status, "reason": reason, "message": message}
    return {"status": {"conditions": [made]}}


def event(node: str, **changes: Any) -> dict[str, Any]:
    """An Event as the agent of this node tells it."""
    news = ClusterEvent(reason="GpuOffTheBus", action="Quarantine", about="gpu.xid.79", note="XID 79")
    told = event_of(news, node=node, uid="", now=datetime(2026, 1, 1, tzinfo=UTC))
    return {**told, **changes}


def asked_of_eks(
    status: str = "False", reason: str = "NvidiaXID79Error", message: str = "healthd: x"
) -> dict[str, Any]:
    """EKS's condition; as it stands, as healthd asks for another machine."""
    return condition("AcceleratedHardwareReady", status, reason, message)


def asked_of_hyperpod(value: str | None, asked: str | None = None) -> dict[str, Any]:
    """HyperPod's label, with the annotation that makes it healthd's own."""
    return {"metadata": {"labels": {HYPERPOD: value}, "annotations": {"healthd.io/asked": asked}}}


def labelled(key: str, value: str | None, *, is_out: bool = True) -> dict[str, Any]:
    """A label of the GPU Operator's, on a node that goes out by the same request."""
    spec = {"spec": {"taints": [THEIRS, OURS]}} if is_out else {}
    return {"metadata": {"labels": {key: value}}, **spec}


def annotated(**changes: str | None) -> dict[str, Any]:
    """A merge patch of annotations; ``claim_n1`` stands for ``claim.healthd.io/n1``, ``limit`` for the limit."""
    keys = {"limit": "healthd.io/limit", "freeze": "healthd.io/freeze"}
    return {"metadata": {"annotations": {keys.get(k, k.replace("_", ".healthd.io/")): v for k, v in changes.items()}}}


def claim_of(node: str, text: str = "") -> str:
    """A claim as the agent of this node writes it."""
    message = {"text": text, "stamp": 1} if text else {}
    return json.dumps({"node": node, "index": 0, "at": "2026-01-01T00:00:00Z", **message}, ensure_ascii=False)


def filled(value: Callable[[str, str], str], node: str, *, characters: str = "x", more: int = 0) -> str:
    """A claim of as many bytes as one may have, and as many ``more``."""
    room = LONGEST + more - len(value(node, "-").encode()) + 1
    return value(node, characters * (room // len(characters.encode())))


BY_POLICY, BY_RBAC = 422, 403
EVICTION = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "job-0", "namespace": "default"}}
OWNER = [{"apiVersion": "v1", "kind": "Pod", "name": "gone", "uid": "00000000-0000-0000-0000-000000000001"}]

ATTEMPTS = (
    # another node
    Attempt(
        name="cordon another node",
        path=OTHER,
        body={"spec": {"unschedulable": True}},
        status=BY_POLICY,
        says="the agent on n1 may not write node n2",
    ),
    Attempt(
        name="taint another node",
        path=OTHER,
        body={"spec": {"taints": [OURS]}},
        status=BY_POLICY,
        says="the agent on n1 may not write node n2",
    ),
    Attempt(
        name="ask for the restart of another node's device plugin",
        path=OTHER,
        body={"metadata": {"annotations": {"healthd.io/restart-device-plugin": "r1 1"}}},
        status=BY_POLICY,
        says="the agent on n1 may not write node n2",
    ),
    Attempt(
        name="the same by its status",
        path=f"{OTHER}/status",
        body={"metadata": {"annotations": {"healthd.io/restart-device-plugin": "r1 1"}}},
        status=BY_POLICY,
        says="the agent on n1 may not write node n2",
    ),
    Attempt(
        name="restart its own device plugin itself",
        path="/api/v1/namespaces/kube-system/pods/plugin-n1/eviction",
        method="POST",
        body={**EVICTION, "metadata": {"name": "plugin-n1", "namespace": "kube-system"}},
        status=BY_RBAC,
        says="pods/eviction",
    ),
    Attempt(
        name="own condition on another node",
        path=f"{OTHER}/status",
        body=condition("HealthdGpu"),
        status=BY_POLICY,
        says="the agent on n1 may not write node n2",
    ),
    Attempt(
        name="annotate another node through its status",
        path=f"{OTHER}/status",
        body={"metadata": {"annotations": {"healthd.io/x": "1"}}},
        status=BY_POLICY,
        says="the agent on n1 may not write node n2",
    ),
    Attempt(name="delete another node", method="DELETE", path=OTHER, status=BY_RBAC, says="cannot delete resource"),
    Attempt(name="delete its node", method="DELETE", path=OWN, status=BY_RBAC, says="cannot delete resource"),
    Attempt(
        name="create a node",
        method="POST",
        path="/api/v1/nodes",
        body={"metadata": {"name": "n9"}},
        status=BY_RBAC,
        says="cannot create resource",
    ),
    # its own node: what is not healthd's
    Attempt(
        name="a foreign taint",
        path=OWN + AS_AGENT,
        body={"spec": {"taints": [THEIRS, {**THEIRS, "key": "example.com/mine-too"}]}},
        status=BY_POLICY,
        says="taints whose key starts with healthd.io/",
    ),
    Attempt(
        name="remove a foreign taint",
        path=OWN + AS_AGENT,
        body={"spec": {"taints": []}},
        kind="merge",
        status=BY_POLICY,
        says="taints whose key starts with healthd.io/",
    ),
    Attempt(
        name="replace a foreign taint by its own",
        path=OWN + AS_AGENT,
        body={"spec": {"taints": [OURS]}},
        status=BY_POLICY,
        says="taints whose key starts with healthd.io/",
        claimed=True,
    ),
    Attempt(
        name="evict everybody by NoExecute",
        path=OWN + AS_AGENT,
        body={"spec": {"taints": [THEIRS, {**OURS, "effect": "NoExecute"}]}},
        status=BY_POLICY,
        says="NoExecute",
        claimed=True,
    ),
    Attempt(
        name="say not ready",
        path=f"{OWN}/status{AS_AGENT}",
        body=condition("Ready", "False"),
        status=BY_POLICY,
        says="conditions whose type starts with Healthd",
    ),
    Attempt(
        name="a foreign condition",
        path=f"{OWN}/status{AS_AGENT}",
        body=condition("KernelDeadlock"),
        status=BY_POLICY,
        says="conditions whose type starts with Healthd",
    ),
    Attempt(
        name="wipe Ready by a merge patch",
        path=f"{OWN}/status{AS_AGENT}",
        body=condition("HealthdGpu"),
        kind="merge",
        status=BY_POLICY,
        says="conditions whose type starts with Healthd",
    ),
    Attempt(
        name="a foreign label",
        path=OWN + AS_AGENT,
        body={"metadata": {"labels": {"pool": "mine"}}},
        status=BY_POLICY,
        says="only change the labels healthd.io/state and healthd.io/code",
    ),
    Attempt(
        name="a foreign label through the status",
        path=f"{OWN}/status{AS_AGENT}",
        body={"metadata": {"labels": {"pool": "mine"}}},
        status=BY_POLICY,
        says="only change the labels healthd.io/state and healthd.io/code",
    ),
    Attempt(
        name="remove a foreign label",
        path=OWN + AS_AGENT,
        body={"metadata": {"labels": {"kubernetes.io/hostname": None}}},
        status=BY_POLICY,
        says="only change the labels healthd.io/state and healthd.io/code",
    ),
    Attempt(
        name="a foreign annotation",
        path=OWN + AS_AGENT,
        body={"metadata": {"annotations": {"example.com/x": "1"}}},
        status=BY_POLICY,
        says="annotations whose key starts with healthd.io/",
    ),
    Attempt(
        name="a finalizer",
        path=OWN + AS_AGENT,
        body={"metadata": {"finalizers": ["healthd.io/for-ever"]}},
        status=BY_POLICY,
        says="owners or finalizers",
    ),
    Attempt(
        name="an owner whose end deletes the node",
        path=OWN + AS_AGENT,
        body={"metadata": {"ownerReferences": OWNER}},
        status=BY_POLICY,
        says="owners or finalizers",
    ),
    Attempt(
        name="fewer GPUs",
        path=f"{OWN}/status{AS_AGENT}",
        body={"status": {"capacity": {"nvidia.com/gpu": "0"}}},
        status=BY_POLICY,
        says="never capacity, allocatable or addresses",
    ),
    Attempt(
        name="more memory",
        path=f"{OWN}/status{AS_AGENT}",
        body={"status": {"allocatable": {"memory": "8Ti"}}},
        status=BY_POLICY,
        says="never capacity, allocatable or addresses",
    ),
    Attempt(
        name="somebody else's address",
        path=f"{OWN}/status{AS_AGENT}",
        body={"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.66"}]}},
        kind="merge",
        status=BY_POLICY,
        says="never capacity, allocatable or addresses",
    ),
    Attempt(
        name="somebody else's kubelet port",
        path=f"{OWN}/status{AS_AGENT}",
        body={"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 6666}}}},
        status=BY_POLICY,
        says="never capacity, allocatable or addresses",
    ),
    Attempt(
        name="another machine's identity",
        path=OWN + AS_AGENT,
        body={"spec": {"podCIDR": "10.9.0.0/24", "podCIDRs": ["10.9.0.0/24"]}},
        status=BY_POLICY,
        says="of the spec the agent may only change taints and unschedulable",
    ),
    # what the GPU Operator runs there
    Attempt(
        name="stop the device plugin of another node",
        path=OTHER,
        body=labelled(PLUGIN, PAUSED, is_out=False),
        status=BY_POLICY,
        says="the agent on n1 may not write node n2",
    ),
    Attempt(
        name="stop its own device plugin in service, so that nobody gets a GPU",
        path=OWN + AS_AGENT,
        body=labelled(PLUGIN, PAUSED, is_out=False),
        status=BY_POLICY,
        says="may pause the GPU Operator's clients on a node that is out",
        claimed=True,
    ),
    Attempt(
        name="switch its device plugin off for good",
        path=OWN + AS_AGENT,
        body=labelled(PLUGIN, "false"),
        status=BY_POLICY,
        says="may pause the GPU Operator's clients on a node that is out",
        claimed=True,
    ),
    Attempt(
        name="take the device plugin's label away",
        path=OWN + AS_AGENT,
        body=labelled(PLUGIN, None),
        status=BY_POLICY,
        says="only change the labels healthd.io/state and healthd.io/code",
        claimed=True,
    ),
    Attempt(
        name="unload the driver",
        path=OWN + AS_AGENT,
        body=labelled(DRIVER, PAUSED),
        status=BY_POLICY,
        says="only change the labels healthd.io/state and healthd.io/code",
        claimed=True,
    ),
    # out without a claim
    Attempt(
        name="taint without a claim",
        path=OWN + AS_AGENT,
        body={"spec": {"taints": [THEIRS, OURS]}},
        status=BY_POLICY,
        says="node n1 has no claim on the budget",
    ),
    Attempt(
        name="cordon without a claim",
        path=OWN + AS_AGENT,
        body={"spec": {"unschedulable": True}},
        status=BY_POLICY,
        says="node n1 has no claim on the budget",
    ),
    Attempt(
        name="HyperPod's replacement without a claim",
        path=OWN + AS_AGENT,
        body=asked_of_hyperpod(REPLACE, REPLACE),
        status=BY_POLICY,
        says="node n1 has no claim on the budget",
    ),
    Attempt(
        name="EKS's replacement without a claim",
        path=f"{OWN}/status{AS_AGENT}",
        body=asked_of_eks(),
        status=BY_POLICY,
        says="node n1 has no claim on the budget",
    ),
    # what its platform takes for an order
    Attempt(
        name="HyperPod's replacement of another node",
        path=OTHER,
        body=asked_of_hyperpod(REPLACE, REPLACE),
        status=BY_POLICY,
        says="the agent on n1 may not write node n2",
        claimed=True,
    ),
    Attempt(
        name="HyperPod's replacement through the status, which nobody would know for its own",
        path=f"{OWN}/status{AS_AGENT}",
        body=asked_of_hyperpod(REPLACE),
        status=BY_POLICY,
        says="may ask HyperPod for a reboot or a replacement",
        claimed=True,
    ),
    Attempt(
        name="a state that only HyperPod sets",
        path=OWN + AS_AGENT,
        body=asked_of_hyperpod("Unschedulable", "Unschedulable"),
        status=BY_POLICY,
        says="may ask HyperPod for a reboot or a replacement",
        claimed=True,
    ),
    Attempt(
        name="take HyperPod's label away",
        path=OWN + AS_AGENT,
        body=asked_of_hyperpod(None),
        status=BY_POLICY,
        says="may ask HyperPod for a reboot or a replacement",
        claimed=True,
    ),
    Attempt(
        name="call HyperPod's order one's own",
        path=OWN + AS_AGENT,
        body={"metadata": {"annotations": {"healthd.io/asked": "Schedulable"}}},
        status=BY_POLICY,
        says="belongs to the label that the same request sets",
        claimed=True,
    ),
    Attempt(
        name="EKS's condition for what is no XID",
        path=f"{OWN}/status{AS_AGENT}",
        body=asked_of_eks(reason="DiskIsUgly"),
        status=BY_POLICY,
        says="may ask EKS by a condition of its own",
        claimed=True,
    ),
    Attempt(
        name="EKS's condition in somebody else's words",
        path=f"{OWN}/status{AS_AGENT}",
        body=asked_of_eks(message="as the monitoring agent says"),
        status=BY_POLICY,
        says="may ask EKS by a condition of its own",
        claimed=True,
    ),
    Attempt(
        name="call the hardware ready where nobody did",
        path=f"{OWN}/status{AS_AGENT}",
        body=asked_of_eks("True", "Ready"),
        status=BY_POLICY,
        says="may ask EKS by a condition of its own",
        claimed=True,
    ),
    Attempt(
        name="a condition that EKS's own agent writes",
        path=f"{OWN}/status{AS_AGENT}",
        body=condition("StorageReady", "False", "x", "healthd: x"),
        status=BY_POLICY,
        says="conditions whose type starts with Healthd",
        claimed=True,
    ),
    # the budget
    Attempt(
        name="claim for another node",
        path=BUDGET + AS_AGENT,
        body=annotated(claim_n2=claim_of("n2")),
        kind="merge",
        status=BY_POLICY,
        says="only change the claim of its own node",
    ),
    Attempt(
        name="release another node's claim",
        path=BUDGET + AS_AGENT,
        body=annotated(claim_n3=None),
        kind="merge",
        status=BY_POLICY,
        says="only change the claim of its own node",
    ),
    Attempt(
        name="raise the limit",
        path=BUDGET + AS_AGENT,
        body=annotated(limit="1000"),
        kind="merge",
        status=BY_POLICY,
        says="only change the claim of its own node",
    ),
    Attempt(
        name="freeze the fleet",
        path=BUDGET + AS_AGENT,
        body=annotated(freeze='{"until":"2099-01-01T00:00:00Z","reason":"x","by":"n1"}'),
        kind="merge",
        status=BY_POLICY,
        says="only change the claim of its own node",
    ),
    Attempt(
        name="raise the limit and claim in one",
        path=BUDGET + AS_AGENT,
        body=annotated(limit="1000", claim_n1=claim_of("n1")),
        kind="merge",
        status=BY_POLICY,
        says="only change the claim of its own node",
    ),
    Attempt(
        name="claim above the limit",
        path=BUDGET + AS_AGENT,
        body=annotated(claim_n1=claim_of("n1")),
        kind="merge",
        status=BY_POLICY,
        says="budget exhausted: 1 of 1 nodes are out already",
    ),
    Attempt(
        name="hold the budget's lease",
        path=BUDGET + AS_AGENT,
        body={"spec": {"holderIdentity": "me"}},
        kind="merge",
        status=BY_POLICY,
        says="only change the claim of its own node",
    ),
    Attempt(
        name="an owner whose end deletes the budget",
        path=BUDGET + AS_AGENT,
        body={"metadata": {"ownerReferences": OWNER}},
        kind="merge",
        status=BY_POLICY,
        says="only change the claim of its own node",
    ),
    Attempt(
        name="fill the budget, so that nobody else may claim",
        path=BUDGET + AS_AGENT,
        body=annotated(claim_n1=filled(claim_of, "n1", more=1)),
        kind="merge",
        status=BY_POLICY,
        says="at most 4096 bytes",
        claimed=True,
    ),
    Attempt(
        name="fill it with few characters of many bytes",
        path=BUDGET + AS_AGENT,
        body=annotated(claim_n1=filled(claim_of, "n1", characters="\U0001f525", more=4)),
        kind="merge",
        status=BY_POLICY,
        says="at most 4096 bytes",
        claimed=True,
    ),
    Attempt(
        name="fill it with further keys",
        path=BUDGET + AS_AGENT,
        body={"metadata": {"annotations": {f"claim.healthd.io/n1-{number}": "x" for number in range(1000)}}},
        kind="merge",
        status=BY_POLICY,
        says="only change the claim of its own node",
        claimed=True,
    ),
    Attempt(
        name="fill it with another kind of key",
        path=BUDGET + AS_AGENT,
        body=annotated(mark_n1=claim_of("n1")),
        kind="merge",
        status=BY_POLICY,
        says="only change the claim of its own node",
        claimed=True,
    ),
    Attempt(
        name="fill it with the names of field managers",
        path=f"{BUDGET}?fieldManager=healthd-agent-2",
        body=annotated(claim_n1=claim_of("n1")),
        kind="merge",
        status=BY_POLICY,
        says="under no other name",
        claimed=True,
    ),
    Attempt(
        name="the same by server-side apply, which keeps an entry of each for ever",
        path=f"{BUDGET}?fieldManager=healthd-agent-2",
        body={"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **annotated(claim_n1=claim_of("n1"))},
        kind="apply",
        status=BY_POLICY,
        says="under no other name",
        claimed=True,
    ),
    Attempt(name="delete the budget", method="DELETE", path=BUDGET, status=BY_RBAC, says="cannot delete resource"),
    Attempt(
        name="a claim under its own key that names another node",
        path=BUDGET + AS_AGENT,
        body=annotated(claim_n1=claim_of("n2")),
        kind="merge",
        status=BY_POLICY,
        says="that names its own node",
        claimed=True,
    ),
    Attempt(
        name="a claim that no agent can read and give back",
        path=BUDGET + AS_AGENT,
        body=annotated(claim_n1="garbage"),
        kind="merge",
        status=BY_POLICY,
        says="that names its own node",
        claimed=True,
    ),
    Attempt(
        name="an empty claim",
        path=BUDGET + AS_AGENT,
        body=annotated(claim_n1=""),
        kind="merge",
        status=BY_POLICY,
        says="that names its own node",
        claimed=True,
    ),
    Attempt(
        name="have the budget forget who wrote it",
        path=BUDGET + AS_AGENT,
        body={"metadata": {"managedFields": [{}]}},
        kind="merge",
        status=BY_POLICY,
        says="empty managedFields",
    ),
    Attempt(
        name="have its node forget who wrote it",
        path=OWN + AS_AGENT,
        body={"metadata": {"managedFields": [{}], "annotations": {"healthd.io/x": "1"}}},
        kind="merge",
        status=BY_POLICY,
        says="empty managedFields",
    ),
    Attempt(
        name="write its node under another's name",
        path=f"{OWN}/status?fieldManager=kubelet",
        body=condition("HealthdGpu"),
        status=BY_POLICY,
        says="as the field manager healthd-agent",
    ),
    Attempt(
        name="a label of healthd's that an administrator sets, such as the scope of a budget",
        path=OWN + AS_AGENT,
        body={"metadata": {"labels": {"healthd.io/rack": "r2"}}},
        status=BY_POLICY,
        says="only change the labels healthd.io/state and healthd.io/code",
    ),
    Attempt(
        name="a state that is none",
        path=f"{OWN}/status{AS_AGENT}",
        body={"metadata": {"labels": {STATE: "fine"}}},
        status=BY_POLICY,
        says="the label healthd.io/state is ok, held, draining, repairing or needs-operator",
    ),
    Attempt(
        name="another node's state",
        path=f"{OTHER}/status",
        body={"metadata": {"labels": {STATE: "needs-operator", CODE: "gpu.xid.79"}}},
        status=BY_POLICY,
        says="the agent on n1 may not write node n2",
    ),
    Attempt(
        name="opt its node out",
        path=OWN + AS_AGENT,
        body={"metadata": {"labels": {"healthd.io/opt-out": "yes"}}},
        status=BY_POLICY,
        says="opt its node out, or in",
    ),
    Attempt(
        name="keep its node from autoscalers while it is not out",
        path=OWN + AS_AGENT,
        body={"metadata": {"annotations": {KEEP: "true"}}},
        status=BY_POLICY,
        says="keep its node from autoscalers by a hold that says so",
    ),
    Attempt(
        name="keep it so by a hold that does not name the annotation",
        path=OWN + AS_AGENT,
        body={"metadata": {"annotations": {KEEP: "true", "healthd.io/hold": UNCORDONED}}, "spec": TAINTED},
        status=BY_POLICY,
        says="keep its node from autoscalers by a hold that says so",
        claimed=True,
    ),
    Attempt(
        name="call a hold its own that no taint of the request belongs to",
        path=OWN + AS_AGENT,
        body={"metadata": {"annotations": {"healthd.io/hold": HELD}}},
        status=BY_POLICY,
        says="belongs to the taint that the same request sets",
    ),
    Attempt(
        name="call a cordon its own that it does not set",
        path=OWN + AS_AGENT,
        body={"metadata": {"annotations": {"healthd.io/hold": HELD}}, "spec": {"taints": [THEIRS, OURS]}},
        status=BY_POLICY,
        says="call a cordon its own only where the same request sets it",
        claimed=True,
    ),
    Attempt(
        name="a taint of a name that healthd has not",
        path=OWN + AS_AGENT,
        body={"spec": {"taints": [THEIRS, {**OURS, "key": "healthd.io/mine"}]}},
        status=BY_POLICY,
        says="only write unhealthy, claimed and unverified",
        claimed=True,
    ),
    # events
    Attempt(
        name="an event about another node",
        path=EVENTS,
        method="POST",
        body=event("n2"),
        status=BY_POLICY,
        says="only tell events about its own node",
    ),
    Attempt(
        name="an event about a pod",
        path=EVENTS,
        method="POST",
        body=event("n1", regarding={"kind": "Pod", "name": "n1", "namespace": "default"}),
        status=BY_POLICY,
        says="only tell events about its own node",
    ),
    Attempt(
        name="an event under a name of another node's agent",
        path=EVENTS,
        method="POST",
        body=event("n1", metadata={"name": "n1.n2.0123456789abcdef"}),
        status=BY_POLICY,
        says="the name of its node and 16 hexadecimal digits",
    ),
    Attempt(
        name="an event in the kubelet's name",
        path=EVENTS,
        method="POST",
        body=event("n1", reportingController="kubelet"),
        status=BY_POLICY,
        says="tells events as healthd.io/agent",
    ),
    Attempt(
        name="an event that nobody can delete",
        path=EVENTS,
        method="POST",
        body=event("n1", metadata={"name": "n1.0123456789abcdef", "finalizers": ["healthd.io/for-ever"]}),
        status=BY_POLICY,
        says="no annotations, labels, finalizers or owners",
    ),
    # everything else
    Attempt(name="list nodes", method="GET", path="/api/v1/nodes", status=BY_RBAC, says="cannot list resource"),
    Attempt(
        name="watch nodes", method="GET", path="/api/v1/nodes?watch=1", status=BY_RBAC, says="cannot watch resource"
    ),
    Attempt(name="list pods", method="GET", path="/api/v1/pods", status=BY_RBAC, says="cannot list resource"),
    Attempt(
        name="read secrets",
        method="GET",
        path=f"/api/v1/namespaces/{NAMESPACE}/secrets",
        status=BY_RBAC,
        says="cannot list resource",
    ),
    Attempt(
        name="evict a pod of its own node",
        method="POST",
        path="/api/v1/namespaces/default/pods/job-0/eviction",
        body=EVICTION,
        status=BY_RBAC,
        says="cannot create resource",
    ),
    Attempt(
        name="a token of another account",
        method="POST",
        path="/api/v1/namespaces/kube-system/serviceaccounts/default/token",
        body={"spec": {}},
        status=BY_RBAC,
        says="cannot create resource",
    ),
    Attempt(
        name="another node's lease",
        path="/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n2",
        body={"spec": {"holderIdentity": "me"}},
        status=BY_RBAC,
        says="cannot patch resource",
    ),
    Attempt(
        name="switch a policy off", method="DELETE", path=f"{POLICIES}/healthd-budget", status=BY_RBAC, says="cannot"
    ),
)

# As much as a kubelet reports at most (50 images of 5 names), and more labels and annotations than add-ons leave: what
# an expression may cost is bounded by the server, and past that it would refuse every agent.
NAMES = [f"registry.invalid/{'very/long/path/of/an/image/' * 4}name-{number}" for number in range(5)]
LARGE = {
    "metadata": {
        "labels": {f"example.com/label-{number}": "x" * 60 for number in range(60)},
        "annotations": {f"example.com/note-{number}": "x" * 1000 for number in range(60)},
    },
    "status": {"images": [{"names": [*NAMES, f"n{number}"], "sizeBytes": number} for number in range(50)]},
}


@pytest.fixture
def agent(control_plane: ControlPlane) -> Iterator[ApiClient]:
    """The agent on n1, beside n2 and a node n3 that holds the one place in the budget; n1 has a foreign taint."""
    for name in ("n1", "n2", "n3"):
        labels = {HYPERPOD: "Schedulable", PLUGIN: "true", DRIVER: "true"}
        control_plane.add_node(name, labels=labels, taints=[THEIRS] if name == "n1" else ())
    control_plane.admin.patch(f"{OWN}/status", LARGE).must()
    control_plane.add_pod("job-0", "n1")
    control_plane.add_lease("healthd-budget", {"healthd.io/limit": "1", "claim.healthd.io/n3": claim_of("n3")})
    client = control_plane.client(control_plane.agent_token("n1"))
    _await_budget(client)
    yield client
    client.close()


def _await_budget(agent: ApiClient) -> None:
    """Until the API server's cache of the Lease knows the new one: before, no claim is asked for (see the policy)."""
    _await(
        lambda: agent.patch(f"{OWN}{AS_AGENT}&dryRun=All", {"spec": {"unschedulable": True}}),
        lambda answer: not answer.ok,
    )


def _await(ask: Any, enough: Any) -> Answer:
    end = time.monotonic() + limit_s(10)
    while not enough(answer := ask()):
        assert time.monotonic() < end, answer
        time.sleep(0.01)
    assert isinstance(answer, Answer)
    return answer


def state(admin: ApiClient) -> Mapping[str, Any]:
    """All that the attempts aim at."""
    nodes = admin.get("/api/v1/nodes").must()["items"]
    return {
        "nodes": {each["metadata"]["name"]: _without_bookkeeping(each) for each in nodes},
        "budget": _without_bookkeeping(admin.get(BUDGET).must()),
        "policies": [each["metadata"]["name"] for each in admin.get(POLICIES).must()["items"]],
        "pods": [each["metadata"]["name"] for each in admin.get("/api/v1/pods").must()["items"]],
    }


def _without_bookkeeping(thing: dict[str, Any]) -> dict[str, Any]:
    return {**thing, "metadata": {k: v for k, v in thing["metadata"].items() if k != "managedFields"}}


@pytest.mark.parametrize("claimed", [False, True])
def test_every_attempt_is_refused_and_changes_nothing(
    control_plane: ControlPlane, agent: ApiClient, claimed: bool
) -> None:
    """Each request of the table gets the status and the sentence it names, and afterwards everything is as before."""
    if claimed:
        control_plane.admin.patch(BUDGET, annotated(limit="2", claim_n1=claim_of("n1")), kind="merge").must()
        cordon = {"spec": {"unschedulable": True}}
        _await(lambda: agent.patch(f"{OWN}{AS_AGENT}&dryRun=All", cordon), lambda answer: answer.ok)
    before = state(control_plane.admin)
    wrong = []
    for attempt in (each for each in ATTEMPTS if each.claimed == claimed):
        if attempt.method == "PATCH":
            answer = agent.patch(attempt.path, attempt.body, kind=attempt.kind)
        else:
            answer = agent.request(attempt.method, attempt.path, attempt.body)
        if answer.status != attempt.status or attempt.says not in answer.message:
            wrong.append(f"{attempt.name}: {answer.status} {answer.message}")
    assert wrong == []
    assert state(control_plane.admin) == before


NOT_TWICE = (
    # what stands there, of whom; what the agent tries over it; what the server says
    (f"{OWN}/status", condition("KernelReady"), f"{OWN}/status", asked_of_eks(), "eks-node-monitoring-agent speaks"),
    (
        f"{OWN}/status",
        condition("AcceleratedHardwareReady", "True", "Ready", "Monitoring is active"),
        f"{OWN}/status",
        asked_of_eks(),
        "may ask EKS by a condition of its own",
    ),
    (
        f"{OWN}/status",
        condition("AcceleratedHardwareReady", "False", "NvidiaXID79Error", "as the monitoring agent says"),
        f"{OWN}/status",
        asked_of_eks("True", "Ready"),
        "may ask EKS by a condition of its own",
    ),
    (OWN, asked_of_hyperpod(REBOOT), OWN, asked_of_hyperpod(REPLACE, REPLACE), "may ask HyperPod"),
    (OWN, asked_of_hyperpod(REPLACE), OWN, asked_of_hyperpod("Schedulable"), "may ask HyperPod"),
    (OWN, asked_of_hyperpod(REPLACE), OWN, asked_of_hyperpod("Schedulable", REPLACE), "may ask HyperPod"),
    (OWN, asked_of_hyperpod(REPLACE), OWN, asked_of_hyperpod(REPLACE, REPLACE), "belongs to the label"),
    (OWN, asked_of_hyperpod(None), OWN, asked_of_hyperpod(REPLACE, REPLACE), "may ask HyperPod"),
)


@pytest.mark.parametrize(("where", "there", "path", "attempt", "says"), NOT_TWICE, ids=range(len(NOT_TWICE)))
def test_who_speaks_for_the_node_already_is_not_talked_over(
    control_plane: ControlPlane, agent: ApiClient, *, where: str, there: Any, path: str, attempt: Any, says: str
) -> None:
    """EKS's own agent, HyperPod's, or a person: no order is given over theirs, and none of theirs is taken back."""
    control_plane.admin.patch(BUDGET, annotated(limit="2", claim_n1=claim_of("n1")), kind="merge").must()
    _await(lambda: agent.patch(f"{OWN}{AS_AGENT}&dryRun=All", CORDON), lambda answer: answer.ok)
    control_plane.admin.patch(where, there).must()
    before = state(control_plane.admin)
    answer = agent.patch(path, attempt)
    assert answer.status == BY_POLICY
    assert says in answer.message
    assert state(control_plane.admin) == before


KEEPING = json.dumps({**json.loads(UNCORDONED), "keeps": [KEEP]})
"""A hold that names the annotation as its own."""


@pytest.mark.parametrize(
    ("done", "attempt"),
    [
        (  # an administrator's own is called the hold's, to be taken away with it
            {"metadata": {"annotations": {KEEP: "true"}}},
            {"metadata": {"annotations": {"healthd.io/hold": KEEPING}}, "spec": TAINTED},
        ),
        (  # what healthd set outlives its hold
            {"metadata": {"annotations": {KEEP: "true", "healthd.io/hold": KEEPING}}, "spec": TAINTED},
            {"metadata": {"annotations": {"healthd.io/hold": None}}, "spec": {"taints": [THEIRS]}},
        ),
        (  # an administrator's word since is taken away with it
            {"metadata": {"annotations": {KEEP: "false", "healthd.io/hold": KEEPING}}, "spec": TAINTED},
            {"metadata": {"annotations": {KEEP: None, "healthd.io/hold": None}}, "spec": {"taints": [THEIRS]}},
        ),
    ],
    ids=["theirs", "left", "changed"],
)
def test_a_hold_keeps_autoscalers_off_for_as_long_as_it_stands(
    control_plane: ControlPlane, agent: ApiClient, *, done: Any, attempt: Any
) -> None:
    """Neither longer, nor in the place of an administrator's word."""
    control_plane.admin.patch(BUDGET, annotated(limit="2", claim_n1=claim_of("n1")), kind="merge").must()
    _await(lambda: agent.patch(f"{OWN}{AS_AGENT}&dryRun=All", CORDON), lambda answer: answer.ok)
    control_plane.admin.patch(OWN, {"metadata": {"annotations": {}}, "spec": {"taints": [THEIRS]}}, kind="merge").must()
    control_plane.admin.patch(OWN, done, kind="merge").must()
    before = state(control_plane.admin)
    answer = agent.patch(OWN, attempt, kind="merge")
    assert answer.status == BY_POLICY
    assert "keep its node from autoscalers by a hold that says so" in answer.message
    assert state(control_plane.admin) == before


@pytest.mark.parametrize(
    ("method", "path", "body", "says"),
    [
        ("DELETE", OWN, None, "may not create or delete nodes"),
        ("DELETE", OTHER, None, "may not create or delete nodes"),
        ("POST", "/api/v1/nodes", {"metadata": {"name": "n9"}}, "may not create or delete nodes"),
        ("DELETE", BUDGET, None, "agents may only update the budget"),
    ],
)
def test_the_policies_hold_where_the_rights_are_too_wide(
    control_plane: ControlPlane, agent: ApiClient, *, method: str, path: str, body: Any, says: str
) -> None:
    """An account that somebody made cluster-admin still neither makes nor deletes a node or the budget."""
    bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    subjects = [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}]
    too_wide = {"metadata": {"name": "too-wide"}, "roleRef": role, "subjects": subjects}
    control_plane.admin.post(bindings, too_wide).must()
    try:
        _await(lambda: agent.get("/api/v1/pods"), lambda answer: answer.ok)
        answer = agent.request(method, path, body)
    finally:
        control_plane.admin.delete(f"{bindings}/too-wide").must()
    assert answer.status == BY_POLICY
    assert says in answer.message


def test_a_token_without_a_node_writes_nothing(control_plane: ControlPlane, agent: ApiClient) -> None:
    """`kubectl create token healthd-agent` makes no agent: no node, no budget."""
    unbound = control_plane.client(control_plane.unbound_token())
    for path, patch in (
        (f"{OWN}/status", condition("HealthdGpu")),
        (BUDGET + AS_AGENT, annotated(claim_n1=claim_of("n1"))),
    ):
        answer = unbound.patch(path, patch, kind="merge")
        assert answer.status == BY_POLICY
        assert "token" in answer.message


def test_an_honest_agent_is_let_through(control_plane: ControlPlane, agent: ApiClient) -> None:
    """Claim, then taint, cordon, annotate, label and condition; then all of it back: each is what its work needs."""
    control_plane.admin.patch(BUDGET, annotated(limit="2"), kind="merge").must()
    agent.patch(f"{OWN}/status{AS_AGENT}", condition("HealthdGpu")).must()
    for state in SHOWN:
        labels = Labels(state=state, code="gpu.xid.79").metadata
        shown = agent.patch(f"{OWN}/status{AS_AGENT}", {"metadata": {"labels": labels}}).must()
        assert {key: shown["metadata"]["labels"][key] for key in labels} == labels
    agent.patch(f"{OWN}/status{AS_AGENT}", {"metadata": {"labels": Labels().metadata}}).must()
    agent.patch(BUDGET + AS_AGENT, annotated(claim_n1=claim_of("n1")), kind="merge").must()
    out = {
        "metadata": {
            "annotations": {"healthd.io/hold": HELD, "healthd.io/asked": REBOOT},
            "labels": {HYPERPOD: REBOOT},
        },
        "spec": {"unschedulable": True, "taints": [THEIRS, OURS]},
    }
    # The server's cache of the Lease may be some milliseconds behind.
    _await(lambda: agent.patch(OWN + AS_AGENT, out), lambda answer: answer.ok)
    agent.patch(OWN + AS_AGENT, labelled(PLUGIN, PAUSED, is_out=False)).must()
    agent.patch(OWN + AS_AGENT, asked_of_hyperpod(REPLACE, REPLACE)).must()
    agent.patch(f"{OWN}/status{AS_AGENT}", asked_of_eks()).must()
    agent.patch(f"{OWN}/status{AS_AGENT}", asked_of_eks("Unknown", "BeingVerified")).must()
    agent.patch(f"{OWN}/status{AS_AGENT}", asked_of_eks("True", "Ready")).must()
    back = {
        "metadata": {
            "annotations": {"healthd.io/hold": None, "healthd.io/asked": None},
            "labels": {HYPERPOD: "Schedulable"},
        },
        "spec": {"unschedulable": False, "taints": [THEIRS]},
    }
    agent.patch(OWN + AS_AGENT, back).must()
    agent.patch(OWN + AS_AGENT, labelled(PLUGIN, "true", is_out=False)).must()
    agent.patch(BUDGET + AS_AGENT, annotated(claim_n1=filled(claim_of, "n1")), kind="merge").must()
    agent.patch(BUDGET + AS_AGENT, annotated(claim_n1=None), kind="merge").must()
    told = agent.post(EVENTS, event("n1")).must()
    series = {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:01:00.000000Z"}}
    agent.patch(f"{EVENTS}/{told['metadata']['name']}", series, kind="merge").must()


Entry = dict[str, Any]
Forge = Callable[[list[Entry]], list[Entry]]


def changed(whose: str, **changes: Any) -> Forge:
    """managedFields in which the entries of this manager are otherwise."""
    return lambda found: [{**each, **changes} if each["manager"] == whose else each for each in found]


def with_fields(manager: str, change: Callable[[dict[str, Any]], object]) -> Forge:
    """managedFields in which the fields of this manager's entries were changed in place."""

    def forge(found: list[Entry]) -> list[Entry]:
        for each in found:
            if each["manager"] == manager:
                change(each["fieldsV1"])
        return found

    return forge


def added(name: str, fields: dict[str, Any], **more: Any) -> Forge:
    """managedFields with one entry more."""
    entry = {"operation": "Update", "fieldsType": "FieldsV1", "time": "2026-01-01T00:00:00Z"}
    return lambda found: [
        *found,
        {"apiVersion": found[0]["apiVersion"], "manager": name, **entry, "fieldsV1": fields, **more},
    ]


def noted(*keys: str) -> dict[str, Any]:
    return {"f:metadata": {"f:annotations": {f"f:{key}": {} for key in keys}}}


FORGED: Mapping[str, Forge] = {
    "gone": lambda found: [each for each in found if each["manager"] != "theirs"],
    "empty": changed("theirs", fieldsV1={}),
    "less": with_fields("theirs", lambda fields: fields["f:metadata"]["f:annotations"].pop("f:example.com/a")),
    "more": with_fields("theirs", lambda fields: fields["f:metadata"].update({"f:finalizers": {}})),
    "more of the agent's": with_fields(
        "theirs", lambda fields: fields["f:metadata"]["f:annotations"].update({"f:claim.healthd.io/n2": {}})
    ),
    "renamed": changed("theirs", manager="others"),
    "renamed as the agent": changed("theirs", manager=FIELD_MANAGER),
    "as ancient": changed("theirs", manager="ancient-changes"),
    "all ancient": lambda found: added("ancient-changes", noted("example.com/a", "example.com/b"))(found)[-1:],
    "applied": changed("theirs", operation="Apply"),
    "of the status": changed("theirs", subresource="status"),
    "of another version": changed("theirs", apiVersion="v9"),
    "older": changed("theirs", time="2020-01-01T00:00:00Z"),
    "another's": added("helm", noted("claim.healthd.io/n2")),
    "the agent's": added(FIELD_MANAGER, noted("example.com/b")),
    "the agent's applied": added(FIELD_MANAGER, noted("healthd.io/limit"), operation="Apply"),
}
"""What an agent may try of managedFields in which a manager ``theirs`` has two annotations."""
WHERE = {"node": (OWN, {"healthd.io/x": "1"}), "lease": (BUDGET, {"claim.healthd.io/n1": claim_of("n1")})}
"""Where, and what an agent may write there."""


def managed(plane: ControlPlane, path: str) -> list[Entry]:
    found: list[Entry] = plane.admin.get(path).must()["metadata"]["managedFields"]
    return found


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("forge", FORGED)
def test_who_else_wrote_which_field_stays_known(
    control_plane: ControlPlane, agent: ApiClient, *, where: str, forge: str
) -> None:
    """Nobody's entry is shrunk, grown, renamed, replaced, dated back or made up, beside a write that is allowed, which
    passes without that. What the server itself does not take has no effect."""
    path, notes = WHERE[where]
    theirs = {"metadata": {"annotations": {"example.com/a": "1", "example.com/b": "1"}}}
    control_plane.admin.patch(f"{path}?fieldManager=theirs", theirs, kind="merge").must()
    control_plane.admin.patch(BUDGET, annotated(limit="2"), kind="merge").must()
    before = managed(control_plane, path)
    entries = FORGED[forge](managed(control_plane, path))
    body = {"metadata": {"annotations": notes, "managedFields": entries}}
    answer = agent.patch(path + AS_AGENT, body, kind="merge")
    others = [each for each in managed(control_plane, path) if each["manager"] != FIELD_MANAGER]
    assert others == [each for each in before if each["manager"] != FIELD_MANAGER], answer
    if answer.status != BY_POLICY:
        assert (forge, answer.status) in (("of another version", 200), ("of another version", 400)), answer
    else:
        assert "managedFields" in answer.message
    agent.patch(path + AS_AGENT, {"metadata": {"annotations": notes}}, kind="merge").must()


@pytest.mark.parametrize("where", WHERE)
def test_an_agent_writes_what_a_dozen_others_wrote_before_it(
    control_plane: ControlPlane, agent: ApiClient, *, where: str
) -> None:
    """The server joins the oldest entries as `ancient-changes`, which is no forgery; nor is it that a field of an
    administrator's becomes the agent's with its value. What is joined holds all the fields."""
    path, notes = WHERE[where]
    control_plane.admin.patch(BUDGET, annotated(limit="2"), kind="merge").must()
    for number in range(12):
        body = {"metadata": {"annotations": {f"example.com/{number}": "1"}}}
        control_plane.admin.patch(f"{path}?fieldManager=m{number}", body, kind="merge").must()
    mine = {"metadata": {"annotations": dict.fromkeys(notes, "by hand")}}
    control_plane.admin.patch(f"{path}?fieldManager=m13", mine, kind="merge").must()
    assert len([each for each in managed(control_plane, path) if each["operation"] == "Update"]) == 10
    time.sleep(1.1)  # times are in whole seconds, and the oldest are joined
    agent.patch(path + AS_AGENT, {"metadata": {"annotations": notes}}, kind="merge").must()
    entries = managed(control_plane, path)
    fields = {key for each in entries for key in each["fieldsV1"].get("f:metadata", {}).get("f:annotations", {})}
    assert fields >= {f"f:example.com/{number}" for number in range(12)}
    assert FIELD_MANAGER in {each["manager"] for each in entries}
    (ancient,) = (each for each in entries if each["manager"] == "ancient-changes")
    ancient["fieldsV1"]["f:metadata"]["f:annotations"].popitem()
    answer = agent.patch(path + AS_AGENT, {"metadata": {"managedFields": entries}}, kind="merge")
    assert (answer.status, "managedFields" in answer.message) == (BY_POLICY, True), answer
    agent.patch(path + AS_AGENT, {"metadata": {"annotations": dict.fromkeys(notes)}}, kind="merge").must()


OF_A_PERSON: tuple[tuple[Any, Any, str], ...] = (
    # what a person did to the node; what the agent tries over it; what the server says
    ({"spec": {"unschedulable": True}}, {"spec": {"unschedulable": None}}, "lift a cordon that it did not set"),
    ({"spec": {"taints": [OURS]}}, {"spec": {"taints": []}}, "a taint healthd.io/unhealthy that it did not set"),
    (
        {"spec": {"taints": [OURS]}},
        {"spec": {"taints": [{**OURS, "value": "mine"}]}},
        "a taint healthd.io/unhealthy that it did not set",
    ),
    (
        {"spec": {"taints": [OURS]}},
        {"metadata": {"annotations": {"healthd.io/hold": HELD}}},
        "belongs to the taint that the same request sets",
    ),
    (
        {"spec": {"taints": [{**OURS, "key": "healthd.io/mine"}]}},
        {"spec": {"taints": []}},
        "only write unhealthy, claimed and unverified",
    ),
    (
        {"metadata": {"labels": {"healthd.io/opt-out": "yes"}}},
        {"metadata": {"labels": {"healthd.io/opt-out": None}}},
        "opt its node out, or in",
    ),
    (
        {"metadata": {"annotations": {KEEP: "true"}}},
        {"metadata": {"annotations": {KEEP: None}}},
        "keep its node from autoscalers by a hold that says so",
    ),
    (
        {"metadata": {"annotations": {"healthd.io/opt-out": "yes"}}},
        {"metadata": {"annotations": {"healthd.io/opt-out": "false"}}},
        "opt its node out, or in",
    ),
)


@pytest.mark.parametrize(("done", "attempt", "says"), OF_A_PERSON, ids=range(len(OF_A_PERSON)))
def test_what_a_person_did_to_the_node_stays(
    control_plane: ControlPlane, *, done: Any, attempt: Any, says: str
) -> None:
    """Cordon, taint and opt-out of an administrator: the node's own agent neither lifts nor takes them over."""
    control_plane.add_node("n1")
    control_plane.add_lease("healthd-budget", {"healthd.io/limit": "2", "claim.healthd.io/n1": claim_of("n1")})
    agent = control_plane.client(control_plane.agent_token("n1"))
    control_plane.admin.patch(OWN, done, kind="merge").must()
    before = control_plane.admin.get(OWN).must()
    answer = agent.patch(OWN, attempt, kind="merge")
    assert (answer.status, says in answer.message) == (BY_POLICY, True), answer
    assert control_plane.admin.get(OWN).must() == before


def test_an_event_that_another_told_is_not_added_to_and_not_read(control_plane: ControlPlane, agent: ApiClient) -> None:
    """Under a name of the agent's own form as well: what counts is which node it is about. A patch of nothing, whose
    answer is the Event, is a write like any other; of its own the agent reads the count by one."""
    of_another = event("n2", metadata={"name": event("n1")["metadata"]["name"]})
    for each in (event("n2"), of_another):
        there = control_plane.admin.post(EVENTS, each).must()
        series = {"series": {"count": 999, "lastObservedTime": "2026-01-01T00:01:00.000000Z"}}
        path = f"{EVENTS}/{there['metadata']['name']}"
        for body in (series, {}):
            answer = agent.patch(path, body, kind="merge")
            assert (answer.status, "only tell events about its own node" in answer.message) == (BY_POLICY, True), answer
        assert agent.get(path).status == BY_RBAC
        control_plane.admin.delete(path).must()
    own = agent.post(EVENTS, event("n1")).must()
    assert agent.patch(f"{EVENTS}/{own['metadata']['name']}", {}, kind="merge").must() == own


def test_twenty_who_claim_at_once_get_five_places(control_plane: ControlPlane) -> None:
    """The cap holds in the server's own compare-and-swap: patches without a resourceVersion, five winners, not six."""
    names = [f"c{number}" for number in range(20)]
    control_plane.add_lease("healthd-budget", {"healthd.io/limit": "5"})
    tokens = {}
    for name in names:
        control_plane.add_node(name)
        tokens[name] = control_plane.agent_token(name)

    def claim(name: str) -> Answer:
        client = control_plane.client(tokens[name])
        try:
            patch = {"metadata": {"annotations": {f"claim.healthd.io/{name}": claim_of(name)}}}
            # 409 is the server's own retries used up; whoever gets it asks again, as the back end does.
            return _await(
                lambda: client.patch(BUDGET + AS_AGENT, patch, kind="merge"), lambda answer: answer.status != 409
            )
        finally:
            client.close()

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(claim, names))
    assert sorted(answer.status for answer in answers) == [200] * 5 + [BY_POLICY] * 15
    assert all("budget exhausted" in answer.message for answer in answers if not answer.ok)
    claims = [key for key in control_plane.admin.get(BUDGET).must()["metadata"]["annotations"] if "claim." in key]
    assert len(claims) == 5


def test_a_budget_of_the_longest_claims_takes_another(control_plane: ControlPlane, agent: ApiClient) -> None:
    """Fifty hostile agents that hold the longest claims there are leave room for an honest one, and the policy, which
    reads all of them, may still cost what it costs."""
    others = {f"claim.healthd.io/o{number}": filled(claim_of, f"o{number}") for number in range(50)}
    notes = {"metadata": {"annotations": {**others, "healthd.io/limit": "60"}}}
    control_plane.admin.patch(BUDGET, notes, kind="merge").must()
    agent.patch(BUDGET + AS_AGENT, annotated(claim_n1=filled(claim_of, "n1")), kind="merge").must()


@pytest.mark.parametrize("limit", [None, "", "five"])
def test_a_budget_without_a_number_allows_nothing(control_plane: ControlPlane, limit: str | None) -> None:
    """No limit, or one that is no number: no claim is taken."""
    control_plane.add_node("n1")
    control_plane.add_lease("healthd-budget", {} if limit is None else {"healthd.io/limit": limit})
    agent = control_plane.client(control_plane.agent_token("n1"))
    assert agent.patch(BUDGET + AS_AGENT, annotated(claim_n1=claim_of("n1")), kind="merge").status == BY_POLICY


def test_helms_limit_comes_before_the_controllers(control_plane: ControlPlane) -> None:
    """Where no controller counts, what one left behind allows no claim, and what Helm says does."""
    control_plane.add_node("n1")
    control_plane.add_lease("healthd-budget", {"healthd.io/limit": "0", "healthd.io/fixed-limit": "1"})
    agent = control_plane.client(control_plane.agent_token("n1"))
    assert agent.patch(BUDGET + AS_AGENT, annotated(claim_n1=claim_of("n1")), kind="merge").ok
    second = control_plane.client(control_plane.agent_token("n2"))
    refused = second.patch(BUDGET + AS_AGENT, annotated(claim_n2=claim_of("n2")), kind="merge")
    assert "budget exhausted: 1 of 1" in refused.message


def test_the_manifests_pass_a_dry_run_of_the_server(control_plane: ControlPlane, kubectl: Path) -> None:
    """The agent's rights, the resource and the policies hold no field that this server does not know."""
    files = [
        MANIFESTS / "agent-rbac.yaml",
        MANIFESTS / "nodehealths.yaml",
        *sorted((MANIFESTS / "policies").glob("*.yaml")),
    ]
    named = [word for file in files for word in ("-f", str(file))]
    argv = [str(kubectl), "apply", "--server-side", "--force-conflicts", "--dry-run=server", *named]
    env = {"KUBECONFIG": str(control_plane.kubeconfig), "HOME": str(control_plane.root)}
    done = subprocess.run(argv, env=env, check=False, capture_output=True, text=True, timeout=limit_s(60))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("(server dry run)") == 20


@pytest.mark.parametrize(
    "name", ["healthd-agent-own-node", "healthd-agent-claim-first", "healthd-agent-events", "healthd-budget"]
)
def test_no_expression_is_warned_of(control_plane: ControlPlane, name: str) -> None:
    """The controller manager checks the types of every expression against the server's schema, and finds nothing."""
    path = f"{POLICIES}/{name}"
    checked = lambda: control_plane.admin.get(path).must().get("status", {}).get("observedGeneration")  # noqa: E731
    control_plane.wait(checked, 30, f"the expressions of {name} to be checked")
    assert control_plane.admin.get(path).must()["status"]["typeChecking"] == {}


def test_others_are_not_concerned(control_plane: ControlPlane, agent: ApiClient) -> None:
    """A kubelet's heartbeat and an administrator's cordon pass the three policies untouched."""
    kubelet = control_plane.acting_as("system:node:n2", "system:nodes")
    kubelet.patch(f"{OTHER}/status", condition("Ready")).must()
    control_plane.admin.patch(OTHER, {"spec": {"unschedulable": True, "taints": [THEIRS]}}).must()


def test_without_a_budget_kubelets_still_write(control_plane: ControlPlane) -> None:
    """A deleted Lease concerns nobody but the agents."""
    control_plane.add_node("n1")
    kubelet = control_plane.acting_as("system:node:n1", "system:nodes")
    for _ in range(5):
        kubelet.patch(f"{OWN}/status", condition("Ready")).must()
        time.sleep(0.1)


def test_deny_where_the_budget_is_missing_would_stop_the_kubelets(control_plane: ControlPlane) -> None:
    """Why parameterNotFoundAction is Allow: with Deny the server refuses a kubelet before it asks who writes."""
    binding = control_plane.admin.get(f"{BINDINGS}/healthd-agent-claim-first").must()
    ref = {**binding["spec"]["paramRef"], "parameterNotFoundAction": "Deny", "name": "no-such-lease"}
    policy = control_plane.admin.get(f"{POLICIES}/healthd-agent-claim-first").must()
    strict = {"metadata": {"name": "strict"}, "spec": {**policy["spec"], "failurePolicy": "Fail"}}
    control_plane.add_node("n1")
    kubelet = control_plane.acting_as("system:node:n1", "system:nodes")
    kubelet.patch(f"{OWN}/status", condition("Ready")).must()
    try:
        control_plane.admin.post(POLICIES, strict).must()
        spec = {**binding["spec"], "policyName": "strict", "paramRef": ref}
        control_plane.admin.post(BINDINGS, {"metadata": {"name": "strict"}, "spec": spec}).must()
        answer = _await(lambda: kubelet.patch(f"{OWN}/status", condition("Ready")), lambda each: not each.ok)
        assert "strict" in answer.message
    finally:
        for path in (BINDINGS, POLICIES):
            control_plane.admin.delete(f"{path}/strict")
        _await(lambda: control_plane.admin.patch(f"{OWN}/status", condition("Ready")), lambda each: each.ok)
