"""A Node and healthd's Leases as a reader of the fleet sees them: lists as the API server gave them, values out."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from healthd.fleet.nodes import FleetNode, FleetState, fleet_nodes
from healthd.remediation.decide.freeze import Freeze
from healthd.remediation.orchestrators.kubernetes.objects.budget import (
    FIXED_LIMIT,
    FIXED_NODES,
    FREEZE,
    LEASE,
    STATUS,
    STATUS_LEASE,
    counts,
    freeze_patch,
)
from healthd.remediation.orchestrators.kubernetes.objects.conditions import NOT_LOOKED, TYPES, faults_in
from healthd.remediation.orchestrators.kubernetes.objects.listed_leases import ReadLeases, leases_in, read_leases
from healthd.remediation.orchestrators.kubernetes.objects.listed_nodes import SILENT_AFTER_S, listed_node, summary_in
from healthd.remediation.orchestrators.kubernetes.objects.node import KubeNode, node_of, rfc3339
from healthd.remediation.orchestrators.kubernetes.objects.node_health import HealthStatus, NodeHealth
from healthd.remediation.ports import Hold, ListedNode, Slot
from healthd.remediation.records.summary import NodeState, NodeSummary

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
HOUR_AGO = NOW - timedelta(hours=1)
STAMP = int(HOUR_AGO.timestamp())
HEALTHY = ("True", "Healthy", "no fault is open")
FAULT = ("False", "GpuXid79", "gpu.xid.79 on gpu:GPU-8e2f: replace_node; gpu.ecc on gpu:GPU-1: reset_gpu")
HOLD = json.dumps({"text": "healthd: gpu.xid.79 gpu:0 [k3v9]", "by": "healthd-agent", "stamp": STAMP})
HELD = {"healthd.io/hold": HOLD}
UNHEALTHY = {"key": "healthd.io/unhealthy", "effect": "NoSchedule"}


def kube_node(
    ours: dict[str, tuple[str, str, str]] | None = None,
    *,
    ready: str | None = "True",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    taints: list[dict[str, str]] | None = None,
    cordoned: bool = False,
    deleting: bool = False,
    beat: datetime | None = NOW,
) -> KubeNode:
    """``ours``: conditions that differ from healthy; None: no agent has written one."""
    written = dict.fromkeys(TYPES, HEALTHY) | ours if ours is not None else {}
    conditions: list[dict[str, Any]] = [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": rfc3339(HOUR_AGO),
            "lastHeartbeatTime": rfc3339(beat) if beat is not None else None,
        }
        for kind, (status, reason, message) in written.items()
    ]
    if ready is not None:
        at = rfc3339(HOUR_AGO)
        conditions.append({"type": "Ready", "status": ready, "reason": "Kubelet", "lastTransitionTime": at})
    metadata: dict[str, Any] = {"name": "n1", "labels": labels, "annotations": annotations}
    metadata |= {"deletionTimestamp": rfc3339(NOW)} if deleting else {}
    spec = {"taints": taints, "unschedulable": cordoned}
    return node_of({"metadata": metadata, "spec": spec, "status": {"conditions": conditions}})


def listed(node: KubeNode, health: NodeHealth | None = None, *, claimed: bool = False, message: str = "") -> ListedNode:
    return listed_node(node, health, claimed=claimed, message=message, opt_out_label="healthd.io/opt-out")


def shown(of: ListedNode, *slots: Slot) -> FleetNode:
    (found,) = fleet_nodes([of], slots, {}, NOW, silent_after_s=SILENT_AFTER_S)
    return found


def summary(node: KubeNode, status: HealthStatus | None = None, message: str = "") -> NodeSummary:
    found = summary_in(node, status, message)
    assert found is not None
    return found


SLOT = Slot(scope="cluster", index=0, node="n1")
PRESSURE = {"key": "node.kubernetes.io/memory-pressure", "effect": "NoSchedule", "timeAdded": rfc3339(HOUR_AGO)}
OTHER = {"key": "vendor.io/bad", "value": "gpu", "effect": "NoExecute"}
FENCE = {"key": "healthd.io/claimed", "effect": "NoSchedule", "timeAdded": rfc3339(HOUR_AGO)}
CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": rfc3339(HOUR_AGO)}
UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}


def test_an_agent_that_was_stopped_on_purpose_is_not_silent() -> None:
    """From its annotation, which a later heartbeat voids; another text in it is none."""
    beat = NOW - timedelta(seconds=SILENT_AFTER_S + 60)

    def stopped(at: datetime) -> KubeNode:
        return kube_node({}, beat=beat, annotations={"healthd.io/stopped": rfc3339(at)})

    assert shown(listed(stopped(beat))).state is FleetState.STOPPED
    assert shown(listed(stopped(beat - timedelta(seconds=1)))).state is FleetState.SILENT
    recent = stopped(NOW - timedelta(seconds=30))
    assert (shown(listed(recent)).state, summary(recent).stopped) == (FleetState.OK, True)
    assert shown(listed(kube_node({}, beat=beat, annotations={"healthd.io/stopped": "now"}))).state is FleetState.SILENT


@pytest.mark.parametrize(
    ("node", "state", "hold"),
    [
        (kube_node({}), "ok", None),
        (kube_node({TYPES[0]: ("True", "HealthyWithWarnings", "x on y: watch")}), "warning", None),
        (kube_node({TYPES[0]: FAULT}), "critical", None),
        (
            kube_node({TYPES[0]: ("Unknown", "CouldNotTell", "checks that could not decide: gpu.count")}),
            "unknown",
            None,
        ),
        (kube_node({TYPES[0]: ("Maybe", "", "")}), "unknown", None),
        (kube_node({}, labels={"healthd.io/state": "draining"}), "draining", None),
        (kube_node({}, labels={"healthd.io/state": "needs-operator"}), "needs-operator", None),
        (kube_node({}, labels={"healthd.io/state": "odd"}), "ok", None),
        (kube_node({}, beat=NOW - timedelta(seconds=SILENT_AFTER_S + 1)), "silent", None),
        (kube_node(), "no-agent", None),
        (kube_node(labels={"healthd.io/state": "ok"}), "silent", None),
        (kube_node({}, beat=None), "no-agent", None),
        (
            kube_node({}, annotations=HELD, taints=[UNHEALTHY]),
            "held",
            Hold(text=json.loads(HOLD)["text"], user="healthd-agent", stamp=STAMP),
        ),
        (kube_node({}, cordoned=True), "drained", Hold(text="cordoned", user="", stamp=0)),
        (kube_node(cordoned=True, taints=[CORDON]), "drained", Hold(text="cordoned", user="", stamp=STAMP)),
        (kube_node({}, deleting=True), "drained", Hold(text="the Node is being deleted", user="", stamp=0)),
        (kube_node({}, taints=[OTHER]), "drained", Hold(text="taint vendor.io/bad=gpu", user="", stamp=0)),
        (
            kube_node({}, taints=[PRESSURE]),
            "drained",
            Hold(text="taint node.kubernetes.io/memory-pressure", user="", stamp=STAMP, automatic=True),
        ),
        (
            kube_node({}, taints=[FENCE]),
            "held",
            Hold(text="healthd: fenced by the taint healthd.io/claimed", user="healthd", stamp=STAMP),
        ),
        (kube_node({}, ready="False"), "down", Hold(text="Kubelet", user="", stamp=STAMP, automatic=True)),
        (kube_node(ready="False"), "down", Hold(text="Kubelet", user="", stamp=STAMP, automatic=True)),
        (
            kube_node({}, ready="Unknown", taints=[UNREACHABLE]),
            "silent",
            Hold(text="Kubelet", user="", stamp=STAMP, automatic=True),
        ),
        (kube_node(ready=None), "silent", Hold(text="no condition Ready", user="", stamp=0, automatic=True)),
    ],
)
def test_each_node_is_in_its_state(node: KubeNode, state: str, hold: Hold | None) -> None:
    """By its label and conditions, unless it is silent or another owner keeps it out; with what keeps pods off."""
    found = shown(listed(node))
    assert (found.state.value, found.listed.hold) == (state, hold)
    assert found.listed.out is (hold is not None)


def test_a_fence_with_its_claim_is_no_drain() -> None:
    """healthd keeps it out by the slot; the same fence without a claim is an oddity."""
    fenced = kube_node({}, taints=[FENCE])
    found = shown(listed(fenced, claimed=True), SLOT)
    assert (found.listed.hold, found.is_ours, found.state) == (None, True, FleetState.HELD)
    assert shown(listed(fenced)).oddity == "healthd's drain without a slot"


def test_a_hold_of_which_the_cordon_was_lifted_is_undone() -> None:
    """Its taint is left, and the fence of healthd's: it is not another's."""
    hold = json.dumps({**json.loads(HOLD), "cordoned": True})
    found = shown(listed(kube_node({}, annotations={"healthd.io/hold": hold}, taints=[UNHEALTHY])))
    assert (found.is_ours, found.listed.out) == (True, True)


def test_a_node_is_listed_with_its_places_and_its_record() -> None:
    """Rack, pool and type by their labels, the configured label first; the record by its NodeHealth."""
    labels = {
        "node.kubernetes.io/instance-type": "p5.48xlarge",
        "eks.amazonaws.com/nodegroup": "train",
        "topology.k8s.aws/network-node-layer-3": "nn-1",
        "nvidia.com/gpu.clique": "u.0",
        "pool": "a",
        "healthd.io/opt-out": "true",
    }
    health = NodeHealth(name="n1", uid="u", version="1", status=None, record={"remediationID": "k3v9"})
    node = kube_node(labels=labels, cordoned=True)
    found = listed(node, health)
    assert (found.partitions, found.group, found.instance_type) == (("train",), "u.0", "p5.48xlarge")
    assert (found.record, found.agentless) == ("healthd case=k3v9", False)
    assert found.state == "Ready,SchedulingDisabled,opted out"
    assert listed_node(node, None, claimed=False, scope_label="pool").partitions == ("a",)
    assert listed(kube_node(ready=None)).state == "NotReady"


def test_the_summary_names_fault_and_component() -> None:
    """Of the label's code where there is one, else of the worst condition; further faults are counted."""
    node = kube_node({TYPES[0]: FAULT, TYPES[3]: ("True", "HealthyWithWarnings", "host.cpu on node: watch")})
    found = summary(node)
    assert (found.code, found.component, found.more) == ("gpu.xid.79", "gpu:GPU-8e2f", 2)
    assert (found.state, found.at, found.since, found.note) == (NodeState.CRITICAL, NOW, HOUR_AGO, "")
    other = summary(kube_node({TYPES[0]: FAULT}, labels={"healthd.io/code": "gpu.ecc"}))
    assert (other.code, other.component) == ("gpu.ecc", "gpu:GPU-1")
    gone = summary(kube_node({}, labels={"healthd.io/code": "gpu.ecc", "healthd.io/state": "repairing"}))
    assert (gone.code, gone.component, gone.more) == ("gpu.ecc", "", 0)


def test_step_and_wait_come_from_the_nodehealth() -> None:
    """The controller's message about the node goes before the wait; the time is that of the state."""
    status = HealthStatus(
        state="repairing", code="gpu.xid.79", since=rfc3339(NOW), step="reboot", waits_for="the reboot"
    )
    node = kube_node({TYPES[0]: FAULT}, labels={"healthd.io/state": "repairing", "healthd.io/code": "gpu.xid.79"})
    found = summary(node, status)
    assert (found.step, found.note, found.since) == ("reboot", "the reboot", NOW)
    assert summary(node, status, "refused: no time").note == "refused: no time"
    assert summary(kube_node({}), status).since is None


def test_what_an_unknown_waits_for_is_said() -> None:
    """The checks by name; else the condition's own words; a condition that is missing."""
    assert summary(kube_node({TYPES[0]: ("Unknown", "x", "checks that could not decide: a, b")})).code == "a"
    fresh = summary(kube_node({TYPES[0]: ("Unknown", NOT_LOOKED.reason, NOT_LOOKED.message)}))
    assert (fresh.code, fresh.note) == ("", NOT_LOOKED.message)
    node = kube_node({})
    lacking = msgspec.structs.replace(node, conditions=tuple(c for c in node.conditions if c.type != TYPES[0]))
    found = summary(lacking)
    assert (found.state, found.note, found.since) == (NodeState.UNKNOWN, "a condition of healthd's is missing", None)
    assert faults_in("no fault is open") == ()


# -- the Leases -------------------------------------------------------------------------------------------------------


def lease(name: str, notes: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": "7", "annotations": notes}}


def read(*leases: dict[str, Any]) -> ReadLeases:
    page = json.dumps({"metadata": {}, "items": leases}).encode()
    return read_leases(leases_in(page), NOW, counts_age_s=900)


COUNTED = counts(limit=3, total=9, out=(), at=NOW)


def claim(node: str, index: int, at: str = "") -> dict[str, str]:
    return {f"claim.healthd.io/{node}": json.dumps({"node": node, "index": index, "at": at})}


def test_the_budget_and_every_claim_are_read() -> None:
    """Of each scope, with the times; another's Lease is left aside."""
    found = read(
        lease(LEASE, {**COUNTED, **claim("n1", 0, rfc3339(HOUR_AGO))}),
        lease(f"{LEASE}-p5", claim("n1", 1)),
        lease("healthd-controller", {}),
    )
    assert (found.limit, found.only_slots, found.remarks) == (3, False, ())
    assert found.slots == (SLOT, Slot(scope="p5", index=1, node="n1"))
    assert found.times == {("cluster", 0): STAMP, ("p5", 1): 0}


@pytest.mark.parametrize("at", ["", "soon", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_forged_time_of_a_claim_hides_no_node(at: str) -> None:
    """Every agent may write its own claim; the slot stays, without its age."""
    found = read(lease(LEASE, {**COUNTED, **claim("n1", 0, at)}))
    (node,) = fleet_nodes([listed(kube_node({}))], found.slots, found.times, NOW, silent_after_s=SILENT_AFTER_S)
    assert (node.slot, node.slot_since) == (SLOT, None)


def test_a_budget_that_stops_healthd_is_said() -> None:
    """No Lease, no number, an old count; Helm's fixed numbers hold slots alone and do not age."""
    none = read()
    assert (none.limit, none.slots) == (None, ())
    assert none.remarks[0].startswith("there is no Lease healthd-budget")
    blank = read(lease(LEASE, {}))
    assert (blank.limit, "has no healthd.io/limit" in blank.remarks[0]) == (None, True)
    old = read(lease(LEASE, counts(limit=3, total=9, out=(), at=HOUR_AGO)))
    assert (old.limit, old.remarks[0].endswith("healthd takes no further node out")) == (3, True)
    fixed = read(lease(LEASE, {FIXED_LIMIT: "5", FIXED_NODES: "9"}))
    assert (fixed.limit, fixed.only_slots, fixed.remarks) == (5, True, ())


def test_the_freeze_of_the_fleet_is_read() -> None:
    """As the agents read it before each act: one that cannot be read is one."""
    freeze = Freeze(reason="rollout", by="alice", until=NOW + timedelta(hours=1))
    notes = {key: str(text) for key, text in freeze_patch(freeze)["metadata"]["annotations"].items()}
    assert read(lease(LEASE, {**COUNTED, **notes})).freeze == freeze
    assert read(lease(LEASE, COUNTED)).freeze is None
    assert read().freeze is None
    torn = read(lease(LEASE, {**COUNTED, FREEZE: "until tomorrow"})).freeze
    assert torn is not None
    assert torn.until is None


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"nodes": 3}', '{"nodes": ["n1"]}', '{"nodes": "n1"}'])
def test_a_status_that_cannot_be_read_says_nothing(text: str) -> None:
    """Any client may have written it."""
    found = read(lease(LEASE, COUNTED), lease(STATUS_LEASE, {STATUS: text} if text else {}))
    assert (found.messages, found.remarks) == ({}, ())


def test_the_controllers_messages_are_read() -> None:
    """By node; those without a node are of the cluster; an empty one is none."""
    nodes = [{"node": "n1", "message": "refused"}, {"node": "", "message": "a policy is missing"}, {"node": "n2"}, {}]
    found = read(lease(LEASE, COUNTED), lease(STATUS_LEASE, {STATUS: json.dumps({"nodes": nodes})}))
    assert (found.messages, found.remarks) == ({"n1": "refused"}, ("a policy is missing",))
