"""What a cluster says: Slurm's text, objects of Kubernetes, and the records that other agents left there."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from healthd.agent.wiring import fleet_of
from healthd.core.errors import BackendUnknown
from healthd.core.hostlist import unfolded
from healthd.remediation.controller import requests as asked
from healthd.remediation.orchestrators.kubernetes import device_plugin, leader_election
from healthd.remediation.orchestrators.kubernetes.objects import budget as kube_budget
from healthd.remediation.orchestrators.kubernetes.objects import conditions as kube_conditions
from healthd.remediation.orchestrators.kubernetes.objects import count as kube_count
from healthd.remediation.orchestrators.kubernetes.objects import events as kube_events
from healthd.remediation.orchestrators.kubernetes.objects import eviction as kube_eviction
from healthd.remediation.orchestrators.kubernetes.objects import gangs as kube_gangs
from healthd.remediation.orchestrators.kubernetes.objects import (
    listed_leases,
    listed_nodes,
    node_health,
    platform_signals,
)
from healthd.remediation.orchestrators.kubernetes.objects import node as kube_node
from healthd.remediation.orchestrators.kubernetes.remote_node import _claims_in
from healthd.remediation.orchestrators.slurm import jobs as slurm_jobs
from healthd.remediation.orchestrators.slurm import orchestrator as slurm
from healthd.remediation.orchestrators.slurm import slots as slurm_slots
from healthd.remediation.orchestrators.slurm.reasons import as_written, hold_of, is_automatic, without_remarks
from healthd.remediation.provisioners.slurm_node import our_slot, read_node
from healthd.remediation.records import handoff
from healthd.remediation.records.summary import parse_summary
from tests.fuzz.target import Target, each_takes, text

T = TypeVar("T")
NOW = datetime(2026, 11, 1, tzinfo=UTC)

_NODE_LINE = (
    b"NodeName=n1 Arch=x86_64 CoresPerSocket=1 CPUAlloc=0 CPUEfctv=2 CPUTot=2 CPULoad=0.10 AvailableFeatures=(null) "
    b"ActiveFeatures=gpu,efa Gres=(null) NodeAddr=n1 NodeHostName=h Version=22.05.8 OS=Linux 6.18 #1 SMP RealMemory=1 "
    b"State=IDLE+DRAIN ThreadsPerCore=1 Owner=N/A MCS_label=N/A Partitions=p,q BootTime=1 SlurmdStartTime=2 "
    b"CfgTRES=cpu=2 Reason=healthd: gpu.xid.79 case=ab [root@1700000000] "
    b"Comment=healthd case=ab machine=i-1 asks=reboot_node asked=1700000000 said=x "
    b'Extra={"healthd":"healthd state=ok"}'
)
_VIEWS = (
    b"n1|idle+drain|0/4/0/4|root|1700000000|(null)|gpu,efa|healthd: gpu.xid.79 [case]|\n",
    b"n1|idle|0/4/0/4|Unknown|Unknown|a|b|none|\nn1|idle|0/4/0/4|Unknown|Unknown|a|b|none|\n",
)
_SLOTS = (
    (
        b"ReservationName=healthd-cluster-0 StartTime=1 EndTime=2 Duration=3 Nodes=n[1-3,7] NodeCnt=1 CoreCnt=2 "
        b"Features=(null) PartitionName=(null) Flags=MAINT,OVERLAP,IGNORE_JOBS,SPEC_NODES TRES=cpu=2 Users=root "
        b"Accounts=(null) State=ACTIVE\n"
    ),
    b"No reservations in the system\n",
)
_REASONS = (
    b"healthd: gpu.xid.79 gpu:GPU-1 [ab]",
    b"Kill task failed",
    b"healthd: a [b] : reboot issued",
    b"Prolog error",
)
_MARKS = (
    (
        b"healthd case=ab machine=i-1@2026-01-01T00:00:00+00:00 asks=reboot_node attempt=1 asked=1700000000 "
        b"next=replace_node done=1700000001 boot=x code=gpu.xid.79 since=1 said=hello"
    ),
    b"healthd replaced=1700000000 history=reset:1700000000:gpu.xid.95:helped,return:1700000000:gpu.xid.79:no",
    b"healthd watched=1700000000",
    b"healthd revision=0a1b2c3d history=reboot:1700000000:gpu.xid.79:helped:1700000900:0a1b2c3d,reset:1:a:::0a1b2c3d",
)
_JOBS = (
    b"17 alice n[1-2]\n18 bob n1\n",
    b"17|alice|n1\n",
    b"17|train|urgent|ml|64\n18|debug|(null)|N/A|1\n",
    b"12_3|14|RUNNING|alice|n[1-4]|0|1|1|N/A|1795541456|NONE|1|N/A|None|\n",
)


def _slurm_node(data: bytes) -> None:
    message = text(data)
    each_takes(
        data,
        lambda _: slurm.parse_snapshot("n1", message),
        lambda _: list(slurm.parse_nodes(message)),
        parse_summary,
        lambda _: read_node(lambda *_: message, "n1"),
        slurm.parse_jobs,
        slurm.parse_running,
        lambda _: slurm_jobs.parse_node_jobs(message, "n1"),
        slurm.parse_partitions,
        slurm.parse_boot_time,
        slurm.parse_slurm_user,
        lambda _: slurm.update_error("x", message),
    )


def _slurm_slots(data: bytes) -> None:
    message = text(data)
    each_takes(
        data,
        slurm_slots.parse_slots,
        slurm_slots.slot_times,
        lambda _: slurm_slots.parse_maintenance(message, "n1"),
        lambda _: "n1" in unfolded(message[:500]),
        lambda _: our_slot(lambda *_: message, "n1"),
    )


def _reasons(data: bytes) -> None:
    message = text(data)
    hold_of(message, "root", 1700000000)
    is_automatic(message)
    without_remarks(message)
    as_written(message)


def _handoff_record(data: bytes) -> None:
    """What was read is written in one line, and read again as the same."""
    record = handoff.parse(text(data))
    if record is None:
        return
    assert not set(record.text) & set("\n|"), record.text
    assert handoff.parse(record.text) is not None, record.text
    handoff.launched_after(record.machine, NOW)
    handoff.by_now(record, NOW)
    asked.wanted("n1", record, NOW, reboot_timeout_s=600.0)
    asked.withdrawn("n1", record)
    asked.needs_person(record, NOW)


# -- Kubernetes -------------------------------------------------------------------------------------------------------

_META = {"name": "n1", "uid": "u-1", "resourceVersion": "7", "labels": {"a": "b"}}
_HELD = {"text": "healthd: gpu.xid.79", "user": "healthd", "stamp": 1700000000, "cordoned": True}
_NODE: dict[str, Any] = {
    "metadata": {
        **_META,
        "annotations": {
            kube_node.HOLD: json.dumps(_HELD),
            device_plugin.ASKED: "r1 1700000000",
            "sagemaker.amazonaws.com/node-health-status": "Schedulable",
        },
    },
    "spec": {
        "unschedulable": True,
        "providerID": "aws:///us-west-2a/i-0abcdef1234567890",
        "taints": [{"key": kube_node.UNHEALTHY, "value": "x", "effect": "NoSchedule"}],
    },
    "status": {
        "nodeInfo": {"bootID": "b"},
        "capacity": {"nvidia.com/gpu": "8"},
        "allocatable": {"nvidia.com/gpu": "7"},
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "KubeletReady",
                "message": "m",
                "lastHeartbeatTime": "2026-01-01T00:00:00Z",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ],
    },
}
_LEASE: dict[str, Any] = {
    "metadata": {
        **_META,
        "annotations": {
            kube_budget.LIMIT: "2",
            kube_budget.NODES: "40",
            kube_budget.OUT: "n1 n2",
            kube_budget.COUNTED: "2026-10-31T23:59:00+00:00",
            f"{kube_budget.CLAIM}n1": json.dumps({"index": 0, "at": "2026-10-31T23:59:00+00:00"}),
        },
    },
    "spec": {
        "holderIdentity": "a",
        "renewTime": "2026-10-31T23:59:00.000000Z",
        "leaseDurationSeconds": 15,
        "leaseTransitions": 3,
    },
}
_POD: dict[str, Any] = {
    "metadata": {
        "name": "p",
        "namespace": "ns",
        "uid": "u",
        "labels": {"kueue.x-k8s.io/pod-group-name": "g"},
        "annotations": {"scheduling.k8s.io/group-name": "g"},
        "creationTimestamp": "2026-10-31T23:59:00Z",
        "ownerReferences": [{"kind": "DaemonSet", "name": "d", "uid": "o", "controller": True}],
    },
    "spec": {"nodeName": "n1", "priority": 3, "containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}]},
    "status": {"phase": "Running"},
}
_CLAIMS = {
    "items": [
        {
            "metadata": {"name": "c", "uid": "u", "deletionTimestamp": "2026-10-31T23:59:00Z"},
            "status": {"nodeName": "n1", "providerID": "aws:///a/i-1"},
        }
    ]
}

_HEALTH = {
    "metadata": {"name": "n1", "uid": "u-1", "resourceVersion": "7"},
    "status": {"state": "repairing", "code": "gpu.xid.79", "since": "2026-11-21T00:00:00Z", "step": "reboot"},
    "record": node_health.record_of(handoff.parse(_MARKS[0].decode()) or handoff.HandoffRecord()),
}

_NO_JSON = (msgspec.MsgspecError, ValueError, RecursionError)  # what kube_api makes BackendUnknown of


def _object(data: bytes) -> dict[str, Any]:
    """As KubeApi hands an object on."""
    try:
        return dict(msgspec.json.decode(data))
    except (*_NO_JSON, TypeError) as error:
        raise BackendUnknown("no object") from error


def _page(decode: Callable[[bytes], tuple[T, ...]], data: bytes) -> tuple[T, ...]:
    """As KubeApi hands a page on."""
    try:
        return decode(b'{"items":[' + data + b"]}")
    except _NO_JSON:
        return ()


def _kube_node(data: bytes) -> None:
    """An object as it comes through the transport, which refuses what is no JSON object."""
    _page(kube_node.nodes_in, data)
    node = kube_node.node_of(_object(data))
    for read in (
        kube_node.view_of,
        kube_node.hold_of,
        kube_node.was_undone,
        kube_node.features_of,
        kube_node.away_by,
        kube_node.instance_id_of,
        kube_node.release_patch,
        kube_node.unfence_patch,
        kube_node.fence_patch,
        kube_conditions.shown_on,
        lambda node: listed_nodes.listed_node(node, None, claimed=False),
        device_plugin.asked_of,
        platform_signals.SIGNALS["eks"].owner,
        platform_signals.SIGNALS["hyperpod"].owner,
    ):
        read(node)


def _kube_lease(data: bytes) -> None:
    lease = _object(data)
    each_takes(data, lambda _: leader_election.record_of(lease), lambda _: kube_count.budget_before("c", lease))
    _, notes = kube_budget.annotations_of(lease)
    kube_count.named_in(notes)
    listed_leases.read_leases([lease], NOW, counts_age_s=600.0)
    budget = kube_budget.budget_of("c", lease)
    kube_budget.check_counted(budget, NOW, max_age_s=600.0)


def _kube_health(data: bytes) -> None:
    """A NodeHealth, which any administrator may have written."""
    page = _page(node_health.healths_in, data)
    for each in (*page, node_health.health_of(_object(data))):
        node_health.read_record(each.record, NOW)
        if text := each.text:
            assert handoff.parse(text) is not None


def _kube_pods(data: bytes) -> None:
    for pod in _page(kube_eviction.pods_in, data):
        kube_gangs.gang_of(pod, kube_gangs.GangLabels(labels=("app",), devices=("*",)))
        kube_eviction.owner_of(pod)
        device_plugin.the_plugin([pod], "n1")


def _kube_other(data: bytes) -> None:
    kube_events.count_in(_object(data))
    _page(_claims_in, data)


_KEPT = (b'2026-10-31T23:59:00+00:00 {"total":4,"out":["n1"],"limit":1}', b"2026-10-31T23:59:00+00:00 {}")

TARGETS = (
    Target(
        name="slurm-nodes",
        parse=_slurm_node,
        seeds=(*(b"\n".join([_NODE_LINE] * many) for many in (1, 2, 3)), *_JOBS),
        units=(b" Comment=", b" State=", b"Partitions=", b"NodeName=n1 State=IDLE Reason= Comment= Extra=\n"),
    ),
    Target(name="slurm-view", parse=lambda data: slurm.parse_view("n1", text(data)), seeds=_VIEWS, units=(b"|",)),
    Target(
        name="slurm-slots",
        parse=_slurm_slots,
        seeds=_SLOTS,
        units=(b"ReservationName=healthd-cluster-0 Nodes=n1\n", b"n[", b"1-3,"),
    ),
    Target(name="slurm-reasons", parse=_reasons, seeds=_REASONS, units=(b" : ", b"[a] "), longest=1 << 13),
    Target(
        name="handoff-records", parse=_handoff_record, seeds=_MARKS, units=(b"a=b ", b" said=", b"history=a:1:b:no,")
    ),
    Target(name="kept-fleet", parse=lambda data: fleet_of(text(data), NOW), seeds=_KEPT, units=(b'{"out":',)),
    Target(
        name="kube-nodes",
        parse=_kube_node,
        seeds=(json.dumps(_NODE).encode(),),
        units=(b'{"metadata":',),
        json=True,
    ),
    Target(
        name="kube-leases",
        parse=_kube_lease,
        seeds=(json.dumps(_LEASE).encode(),),
        units=(b'{"spec":',),
        json=True,
    ),
    Target(
        name="kube-healths",
        parse=_kube_health,
        seeds=(json.dumps(_HEALTH).encode(),),
        units=(b'{"record":', b'{"history":[{"act":"reboot","at":"2026-11-21T00:00:00Z"}]}'),
        json=True,
    ),
    Target(
        name="kube-pods",
        parse=_kube_pods,
        seeds=(json.dumps(_POD).encode(),),
        units=(b'{"items":[',),
        json=True,
    ),
    Target(
        name="kube-other",
        parse=_kube_other,
        seeds=(b'{"series":{"count":3}}', json.dumps(_CLAIMS["items"][0]).encode()),
        units=(b'{"series":',),
        json=True,
    ),
)
