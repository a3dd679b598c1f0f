"""The Nodes of a cluster for a reader of the fleet: what each shows of itself, and what the cluster shows of it. Pure.

A Node's summary is made of what its agent writes anyway: conditions, labels, and its NodeHealth. Words of Kubernetes
become those of the port:

    rack       the first of RACKS that the Node has as a label
    partition  the value of ``scope_label`` where one is set, else the first of POOLS
    DRAIN      our hold; or, of another owner: a cordon, a taint that jobs do not tolerate, a Node that is being deleted
    DOWN       not Ready; NOT_RESPONDING beside it where the kubelet is silent
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from healthd.remediation.decide.remediation import PREFIX
from healthd.remediation.orchestrators.kubernetes.objects.conditions import (
    TYPES,
    WITH_WARNINGS,
    faults_in,
    stamp_of,
    time_of,
)
from healthd.remediation.orchestrators.kubernetes.objects.labels import SHOWN, STOPPED, labels_on
from healthd.remediation.orchestrators.kubernetes.objects.node import (
    CLAIMED,
    Condition,
    KubeNode,
    Taint,
    features_of,
    hold_of,
    view_of,
)
from healthd.remediation.orchestrators.kubernetes.objects.node_health import HealthStatus, NodeHealth
from healthd.remediation.ports import Hold, ListedNode
from healthd.remediation.records.domain_fence import KUBE_TAINT
from healthd.remediation.records.summary import NodeState, NodeSummary

RACKS = ("nvidia.com/gpu.clique", "topology.k8s.aws/ultraserver-id", "topology.k8s.aws/network-node-layer-3")
"""The labels that say which nodes are one rack, the closest first. NVIDIA's DRA driver and GPU Feature Discovery: the
NVLink domain as clusterUuid.cliqueId. AWS, SageMaker HyperPod, "Topology-aware scheduling": the UltraServer, and the
network node that is next to the instance."""
POOLS = (
    "sagemaker.amazonaws.com/instance-group-name",
    "eks.amazonaws.com/nodegroup",
    "karpenter.sh/nodepool",
    "cloud.google.com/gke-nodepool",
)
"""The labels that name the pool of a node."""
INSTANCE_TYPE = "node.kubernetes.io/instance-type"

SILENT_AFTER_S = 700.0
"""After how many seconds an agent without a heartbeat is silent: two heartbeats, which come every 300 to 330 seconds.
``kubectl healthd`` has the same."""
_OWN = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")  # the taints that Kubernetes sets by itself
_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_OF_READINESS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_LINE_BYTES = 2000
_STATUSES = {"True": NodeState.OK, "False": NodeState.CRITICAL, "Unknown": NodeState.UNKNOWN}
_WORST_FIRST = (NodeState.CRITICAL, NodeState.UNKNOWN, NodeState.WARNING, NodeState.OK)


def listed_node(
    node: KubeNode,
    health: NodeHealth | None,
    *,
    claimed: bool,
    message: str = "",
    tolerated: Collection[str] = (),
    scope_label: str = "",
    opt_out_label: str = "",
) -> ListedNode:
    """One Node. ``health``: its NodeHealth. ``claimed``: it holds a claim on the budget. ``message``: the
    controller's about it. ``tolerated``: as of ``view_of``."""
    view = view_of(node, tolerated=tolerated)
    by_domain = view.fenced and node.taint(KUBE_TAINT) is not None  # the budget of nodes does not count it
    kept_off = _kept_off_by(node, view.flags, is_fenced=view.fenced and not by_domain and not claimed)
    is_ready, ready = node.is_ready, _ready(node)
    is_silent = not is_ready and ready.status == "Unknown"
    flags = view.flags | ({"DRAIN"} if kept_off is not None else set())
    flags |= (set() if is_ready else {"DOWN"}) | ({"NOT_RESPONDING"} if is_silent else set())
    summary = summary_in(node, health.status if health is not None else None, message)
    return ListedNode(
        name=node.name,
        state=_state(node, opt_out_label),
        flags=frozenset(flags),
        out=not view.in_service and not by_domain,
        dead=is_silent,
        hold=kept_off or (None if is_ready else _unready_hold(ready)),
        partitions=_first(node.labels, (scope_label, *POOLS)),
        record=health.text if health is not None else "",
        summary=summary.line(_LINE_BYTES) if summary is not None else "",
        group="".join(_first(node.labels, RACKS)),
        instance_type=node.labels.get(INSTANCE_TYPE, ""),
        orchestrator="Kubernetes",
        agentless=summary is None and health is None and not labels_on(node).state,
    )


def summary_in(node: KubeNode, status: HealthStatus | None, message: str = "") -> NodeSummary | None:
    """The summary of a node by its agent's conditions, labels and NodeHealth; None where no agent has written a
    condition. ``message``: the controller's."""
    ours = {kind: each for kind in TYPES if (each := node.condition(kind)) is not None}
    written = [at for each in ours.values() if (at := time_of(each.lastHeartbeatTime)) is not None]
    if not written:
        return None
    labels, shown = labels_on(node), status or HealthStatus()
    acting = NodeState(labels.state) if labels.state in SHOWN and labels.state != NodeState.OK else None
    verdicts = {kind: _verdict(ours.get(kind)) for kind in TYPES}
    worst = min(TYPES, key=lambda kind: _WORST_FIRST.index(verdicts[kind]))
    faults = [fault for kind in sorted(ours, key=lambda kind: kind != worst) for fault in faults_in(ours[kind].message)]
    code, component = _named(labels.code, faults)
    is_told = bool(shown.since) and (acting is not None or bool(labels.code))
    since = time_of(shown.since) if is_told else _moved(ours.get(worst), verdicts[worst])
    stopped = time_of(node.annotations.get(STOPPED))
    return NodeSummary(
        state=acting or verdicts[worst],
        at=max(written) if stopped is None else max(stopped, *written),
        stopped=stopped is not None and stopped >= max(written),
        code=code,
        component=component,
        more=max(len(faults) - 1, 0),
        since=since,
        step=shown.step,
        note=message or shown.waits_for or _undecided(ours.get(worst), verdicts[worst]),
    )


def _verdict(condition: Condition | None) -> NodeState:
    """A condition as a verdict; one that is not there, or is none of healthd's, is unknown."""
    if condition is None:
        return NodeState.UNKNOWN
    found = _STATUSES.get(condition.status, NodeState.UNKNOWN)
    return NodeState.WARNING if found is NodeState.OK and condition.reason == WITH_WARNINGS else found


def _named(code: str, faults: Collection[tuple[str, str]]) -> tuple[str, str]:
    """The code of the label with its component, else the first fault of the worst condition."""
    if not code:
        return next(iter(faults), ("", ""))
    return code, next((component for each, component in faults if each == code), "")


def _moved(condition: Condition | None, verdict: NodeState) -> datetime | None:
    """Since when a condition is not ok; a warning has no time of its own."""
    if condition is None or verdict not in (NodeState.CRITICAL, NodeState.UNKNOWN):
        return None
    return time_of(condition.lastTransitionTime)


def _undecided(condition: Condition | None, verdict: NodeState) -> str:
    """Why a node is unknown, where no check is named."""
    if verdict is not NodeState.UNKNOWN:
        return ""
    if condition is None:
        return "a condition of healthd's is missing"
    return "" if faults_in(condition.message) else condition.message


# -- the cluster's own view -------------------------------------------------------------------------------------------


def _kept_off_by(node: KubeNode, flags: Collection[str], *, is_fenced: bool) -> Hold | None:
    """The hold that keeps new pods off a machine that may be sound: our own, another owner's, or a fence of ours that
    has no claim."""
    if (held := hold_of(node)) is not None:
        return held.as_hold
    foreign = _foreign_taints(node, flags)
    if node.unschedulable or foreign or node.deleting:
        return _foreign_hold(node, foreign)
    if is_fenced:
        return Hold(text=f"{PREFIX}fenced by the taint {CLAIMED}", user="healthd", stamp=_added(node.taint(CLAIMED)))
    return None


def _unready_hold(ready: Condition) -> Hold:
    stamp = stamp_of(time_of(ready.lastTransitionTime))
    return Hold(text=ready.reason or "no condition Ready", user="", stamp=stamp, automatic=True)


def _foreign_hold(node: KubeNode, foreign: Collection[Taint]) -> Hold:
    """Kubernetes records of no cordon and no taint who set it."""
    texts = ["cordoned"] if node.unschedulable else []
    texts += ["the Node is being deleted"] if node.deleting else []
    taints = dict.fromkeys(f"{each.key}{f'={each.value}' if each.value else ''}" for each in foreign)
    texts += [f"taint {each}" for each in taints]
    known = [_added(each) for each in (node.taint(_UNSCHEDULABLE), *foreign)]
    is_own = not node.unschedulable and not node.deleting and all(each.key.startswith(_OWN) for each in foreign)
    since = min((each for each in known if each), default=0)
    return Hold(text=", ".join(texts), user="", stamp=since, automatic=is_own)


def _foreign_taints(node: KubeNode, flags: Collection[str]) -> list[Taint]:
    """The taints for which the node is out, without those that only repeat a cordon or the kubelet's state."""
    repeated = (_UNSCHEDULABLE, *_OF_READINESS)
    return [each for each in node.taints if f"TAINTED:{each.key}" in flags and each.key not in repeated]


def _added(taint: Taint | None) -> int:
    """When a taint was set, in epoch seconds; 0 where that is not known."""
    return stamp_of(time_of(taint.timeAdded)) if taint is not None else 0


def _ready(node: KubeNode) -> Condition:
    return node.condition("Ready") or Condition(type="Ready", status="Unknown")


def _state(node: KubeNode, opt_out_label: str) -> str:
    """The STATUS of ``kubectl get nodes``, and whether the node is opted out."""
    words = ["Ready" if node.is_ready else "NotReady"]
    words += ["SchedulingDisabled"] if node.unschedulable else []
    words += ["opted out"] if opt_out_label and opt_out_label in features_of(node) else []
    return ",".join(words)


def _first(labels: Mapping[str, str], keys: Collection[str]) -> tuple[str, ...]:
    return next(((labels[key],) for key in keys if labels.get(key)), ())
