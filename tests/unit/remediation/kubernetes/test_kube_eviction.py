"""Which pods are evicted from a node that is out, when, and why the others are not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from healthd.remediation.orchestrators.kubernetes.objects.drain_record import record_of
from healthd.remediation.orchestrators.kubernetes.objects.eviction import (
    Drain,
    EvictionRule,
    EvictMode,
    GangMode,
    Plan,
    Pod,
    PodState,
    died_with,
    eviction_of,
    is_lost,
    planned,
    pods_in,
    rules_for,
    told,
    was_evicted,
)
from healthd.remediation.orchestrators.kubernetes.objects.node import UNHEALTHY, OwnershipAnnotation, Taint

SINCE = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
HELD = OwnershipAnnotation(text="healthd: gpu.xid.79 gpu:GPU-8e2f [k3v9]", by="healthd", stamp=int(SINCE.timestamp()))
OWNED = {"ownerReferences": [{"kind": "Job", "controller": True}]}


def drain(*, began: datetime = SINCE, young: tuple[str, ...] = (), **taint: str) -> Drain:
    """A drain of n1 that the controller first saw when it began; ``young``: uids that were new then."""
    record = record_of(HELD, dict.fromkeys(young, began), began)
    taints = (Taint(**{"key": UNHEALTHY, "effect": "NoSchedule", "value": "gpu.xid.79", **taint}),)
    return Drain(node="n1", since=SINCE, record=record, taints=taints)


def pod(name: str = "train-0", *, spec: Any = None, phase: str = "Running", **meta: Any) -> Pod:
    body = {
        "metadata": {"name": name, "namespace": "team-a", "uid": f"u-{name}", **OWNED, **meta},
        "spec": spec or {},
        "status": {"phase": phase},
    }
    return msgspec.convert(body, Pod)


def state(which: Pod, *rules: EvictionRule, after_s: float = 0.0) -> tuple[PodState, str]:
    (plan,) = planned([which], rules, drain(), SINCE + timedelta(seconds=after_s))
    return plan.state, plan.why


def rule(mode: EvictMode = EvictMode.EVICT, **settings: Any) -> EvictionRule:
    return EvictionRule(name="r", mode=mode, **settings)


@pytest.mark.parametrize(
    ("which", "why"),
    [
        (pod(phase="Succeeded"), "it has ended"),
        (pod(phase="Failed"), "it has ended"),
        (pod(annotations={"kubernetes.io/config.mirror": "x"}), "a mirror pod"),
        (pod(ownerReferences=[{"kind": "DaemonSet", "controller": True}]), "of a DaemonSet"),
    ],
)
def test_some_pods_are_no_part_of_a_drain(which: Pod, why: str) -> None:
    """Whatever the rules say."""
    assert state(which, rule(unmanaged=True, empty_dir=True)) == (PodState.STAYS, why)


@pytest.mark.parametrize(
    ("ready", "over_s", "lost"), [(False, 60.0, True), (False, 59.0, False), (True, 1e6, False), (False, None, False)]
)
def test_a_pod_past_its_grace_on_a_node_that_is_not_ready_is_no_work(
    ready: bool, over_s: float | None, lost: bool
) -> None:
    """Nothing tells that it ended, and nothing will; where the kubelet answers, it is still ending."""
    now = SINCE + timedelta(hours=1)
    gone = None if over_s is None else (now - timedelta(seconds=over_s)).isoformat()
    which = pod(deletionTimestamp=gone)
    assert is_lost(which, now, ready=ready) is lost
    (plan,) = planned([which], [rule()], replace(drain(), ready=ready), now)
    assert (plan.state is PodState.STAYS) is lost
    assert bool(told([plan])) is not lost


def test_a_pod_that_no_rule_names_ends_by_itself() -> None:
    """So does every pod where there is no rule, and one that a rule names as never."""
    assert state(pod()) == (PodState.WAITS, "it runs until it ends, no rule names it")
    assert state(pod(), rule(namespaces=("team-b",))) == (PodState.WAITS, "it runs until it ends, no rule names it")
    assert state(pod(), rule(EvictMode.NEVER)) == (PodState.WAITS, "it runs until it ends, rule r")


def test_the_first_rule_that_fits_decides() -> None:
    """Namespaces are any of the globs, labels all of them."""
    keep = EvictionRule(name="keep", mode=EvictMode.NEVER, labels={"app": "train*", "team": "a"})
    which = pod(labels={"app": "trainer", "team": "a"})
    assert state(which, keep, rule())[0] is PodState.WAITS
    assert state(pod(labels={"app": "trainer"}), keep, rule())[0] is PodState.EVICT
    assert state(pod(labels={"app": "web", "team": "a"}), keep, rule(namespaces=("x", "team-*")))[0] is PodState.EVICT


@pytest.mark.parametrize(
    ("mode", "after_s", "at_s", "expected"),
    [
        (EvictMode.EVICT, 0.0, 0.0, PodState.EVICT),
        (EvictMode.EVICT_AFTER, 600.0, 599.0, PodState.WAITS),
        (EvictMode.EVICT_AFTER, 600.0, 600.0, PodState.EVICT),
        (EvictMode.COMPLETE, 0.0, 1e6, PodState.WAITS),
        (EvictMode.COMPLETE, 600.0, 599.0, PodState.WAITS),
        (EvictMode.COMPLETE, 600.0, 601.0, PodState.EVICT),
    ],
)
def test_when(mode: EvictMode, after_s: float, at_s: float, expected: PodState) -> None:
    """At once, after a time, at a deadline, or never; and until then it says until when."""
    found, why = state(pod(), rule(mode, after_s=after_s), after_s=at_s)
    assert found is expected
    assert "rule r" in why


def test_what_would_be_lost_needs_a_word() -> None:
    """A bare pod and an emptyDir, as kubectl's --force and --delete-emptydir-data; an owner that is no controller is
    none."""
    bare = pod(ownerReferences=[{"kind": "Node"}])
    scratch = pod(spec={"volumes": [{"name": "x"}, {"name": "s", "emptyDir": {}}]})
    assert state(bare, rule())[0] is PodState.FORBIDDEN
    assert state(pod(ownerReferences=None), rule())[0] is PodState.FORBIDDEN
    assert state(scratch, rule())[0] is PodState.FORBIDDEN
    assert state(bare, rule(unmanaged=True))[0] is PodState.EVICT
    assert state(scratch, rule(empty_dir=True))[0] is PodState.EVICT


def test_what_is_being_deleted_is_not_asked_again() -> None:
    """It is on its way."""
    assert state(pod(deletionTimestamp="2026-11-21T10:00:00Z"), rule()) == (PodState.LEAVES, "it is being deleted")


@pytest.mark.parametrize("medium", ["Memory", "HugePages", "HugePages-2Mi"])
def test_shared_memory_is_no_data(medium: str) -> None:
    """The /dev/shm of every NCCL job is an emptyDir in memory; one on a disk beside it still counts."""
    shm = {"name": "shm", "emptyDir": {"medium": medium, "sizeLimit": "64Gi"}}
    assert state(pod(spec={"volumes": [shm]}), rule())[0] is PodState.EVICT
    assert (
        state(pod(spec={"volumes": [shm, {"name": "d", "emptyDir": {"medium": ""}}]}), rule())[0] is PodState.FORBIDDEN
    )


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "effect": "NoSchedule"}, True),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": UNHEALTHY, "operator": "Exists"}, True),
        ({"key": "nvidia.com/gpu", "operator": "Exists"}, False),
        ({"key": UNHEALTHY, "value": "gpu.xid.79"}, True),
        ({"key": UNHEALTHY, "operator": "Equal", "value": "gpu.xid.79"}, True),
        ({"key": UNHEALTHY, "operator": "Equal", "value": "gpu.lost"}, False),
        ({"key": UNHEALTHY, "operator": "Gt", "value": "79"}, False),
    ],
)
def test_a_pod_that_tolerates_the_taint_is_left_unless_its_rule_says_otherwise(
    toleration: dict[str, str], tolerates: bool
) -> None:
    """Who tolerates the drain is meant to stay; the table is the scheduler's own."""
    which = pod(spec={"tolerations": [{"key": "other", "operator": "Exists"}, toleration]})
    assert (state(which, rule())[0] is PodState.FORBIDDEN) is tolerates
    assert ("needs tolerating = true" in state(which, rule())[1]) is tolerates
    assert state(which, rule(tolerating=True))[0] is PodState.EVICT


def made(name: str, after_s: float, **more: Any) -> Pod:
    return pod(name, creationTimestamp=(SINCE + timedelta(seconds=after_s)).isoformat(), **more)


def test_a_pod_that_comes_back_is_left_alone() -> None:
    """Whatever its rule allows; one that was there at the first look is none, however young, and neither is an old one
    that was bound late."""
    everything = rule(tolerating=True, unmanaged=True, empty_dir=True)
    again = made("again", 3.0)
    assert state(again, everything) == (PodState.CAME, "made after the node was taken out")
    assert state(made("within the clocks' error", -5.0), everything)[0] is PodState.CAME
    assert state(made("bound late", -6.0), everything)[0] is PodState.EVICT
    young = drain(young=("u-again",))
    assert [plan.state for plan in planned([again], [everything], young, SINCE)] == [PodState.EVICT]
    assert state(again, rule(EvictMode.NEVER)) == (PodState.WAITS, "it runs until it ends, rule r")


def test_what_comes_back_is_told_by_where_it_comes_from() -> None:
    """So the sentence stays the same when it comes again under another name."""
    owner: dict[str, Any] = {"ownerReferences": [{"kind": "ReplicaSet", "name": "web", "controller": True}]}

    def answered(*names: str) -> str:
        return told([Plan(pod=pod(name, **owner), state=PodState.CAME, why="") for name in names])

    assert answered("web-1", "web-2") == "left alone, made after the node was taken out: ReplicaSet team-a/web"
    assert answered("web-1") == answered("web-3")
    bare = [Plan(pod=pod(f"p-{number}", ownerReferences=None), state=PodState.CAME, why="") for number in range(7)]
    assert told(bare).endswith("pod team-a/p-3, pod team-a/p-4 and 2 more")


@pytest.mark.parametrize("grace_s", [None, 0, 30])
def test_an_eviction_holds_for_this_very_pod(grace_s: int | None) -> None:
    """By its uid; the grace is the pod's own unless the rule has one, and 0 is one."""
    (plan,) = planned([pod()], [rule(grace_s=grace_s)], drain(), SINCE)
    body = eviction_of(plan)
    assert body["deleteOptions"]["preconditions"] == {"uid": "u-train-0"}
    assert body["deleteOptions"].get("gracePeriodSeconds") == grace_s
    assert body["metadata"] == {"name": "train-0", "namespace": "team-a"}
    assert "dryRun" not in body["deleteOptions"]
    assert eviction_of(plan, dry_run=True)["deleteOptions"] == {**body["deleteOptions"], "dryRun": ["All"]}


def test_how_far_a_drain_is_in_one_sentence() -> None:
    """Pods that are no part of it are not told; of many, five."""
    stays = Plan(pod=pod("ds-0"), state=PodState.STAYS, why="of a DaemonSet")
    assert told([stays]) == ""
    waiting = [Plan(pod=pod(f"p-{number}"), state=PodState.WAITS, why="rule r") for number in range(7)]
    assert told([stays, waiting[0]]) == "1 pods are left: team-a/p-0 (waits: rule r)"
    assert told(waiting).endswith("and 2 more")


@pytest.mark.parametrize(
    ("spec", "holds"),
    [
        ({"containers": [{"resources": {"limits": {"cpu": "1", "nvidia.com/gpu": "8"}}}]}, True),
        ({"containers": [{"resources": {"limits": {"nvidia.com/gpu": 8}}}]}, True),
        ({"containers": [{"resources": {"limits": {"cpu": "1"}}}, {}]}, False),
        ({"resourceClaims": [{"name": "gpus"}]}, True),
        ({"containers": [{}], "initContainers": [{"resources": {"limits": {"nvidia.com/gpu": 1}}}]}, True),
        ({"containers": [{}], "initContainers": None}, False),
        ({}, False),
    ],
)
def test_a_job_is_what_holds_a_device(spec: dict[str, Any], holds: bool) -> None:
    """A limit of a device plugin's resource, or a claim of dynamic allocation."""
    assert pod(spec=spec).holds(["nvidia.com/*"]) is holds


def test_a_page_of_pods_is_read_as_it_comes() -> None:
    """What is not asked for is passed over."""
    page = b'{"kind":"PodList","items":[{"metadata":{"name":"a","namespace":"b","uid":"c","x":1},"spec":{"y":2}}]}'
    assert [each.name for each in pods_in(page)] == ["b/a"]


def failed(*ended_s: float | None, phase: str = "Failed", disrupted: str = "False") -> Pod:
    """A pod with a container for each of these times, in seconds after the drain; None for one that still runs."""
    states: list[dict[str, Any]] = [
        {"running": {}}
        if each is None
        else {"terminated": {"finishedAt": (SINCE + timedelta(seconds=each)).isoformat()}}
        for each in ended_s
    ]
    status = {
        "phase": phase,
        "conditions": [{"type": "DisruptionTarget", "status": disrupted}],
        "containerStatuses": [{"state": each} for each in states],
    }
    body = {"metadata": {"name": "train-0", "namespace": "team-a", "uid": "u"}, "spec": {}, "status": status}
    return msgspec.convert(body, Pod)


@pytest.mark.parametrize(
    ("which", "died"),
    [
        (failed(-120.0), True),
        (failed(-120.5), False),  # before its node had the fault
        (failed(-500.0, 30.0), True),  # the last container counts
        (failed(-500.0, None), False),
        (failed(30.0, phase="Running"), False),
        (failed(30.0, phase="Succeeded"), False),
        (failed(30.0, disrupted="True"), False),  # evicted: its owner knows already
        (failed(), False),  # it does not say when
    ],
)
def test_a_pod_that_failed_under_its_node_s_fault_died_with_it(which: Pod, died: bool) -> None:
    """Within the two minutes before the drain, or later, unless it was evicted."""
    assert died_with(which, drain()) is died


def going(node: str = "n1", *, reason: str = "EvictionByEvictionAPI", made: str = "2026-11-21T09:00:00Z") -> Pod:
    """A pod that its eviction, or another disruption, ends."""
    gone = pod(spec={"nodeName": node}, creationTimestamp=made)
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    return msgspec.structs.replace(gone, status=msgspec.convert({"conditions": [condition]}, type(gone.status)))


@pytest.mark.parametrize(
    ("which", "by", "evicted"),
    [
        (going(), rule(), True),
        (going("n2"), rule(gang=GangMode.WHOLE), True),
        (going("n2"), rule(), False),  # by another drain
        (going(reason="PreemptionByScheduler"), rule(), False),
        (going(), rule(EvictMode.NEVER), False),
        (going(), rule(labels={"app": "other"}), False),
        (going(made="2026-11-21T10:00:01Z"), rule(), False),  # after the drain began
        (pod(spec={"nodeName": "n1"}), rule(), False),
    ],
)
def test_a_pod_that_was_evicted_is_known_by_its_condition(which: Pod, by: EvictionRule, evicted: bool) -> None:
    """With an answer or without: by the eviction API, in this drain, where a rule has it evicted."""
    assert was_evicted(which, [by], drain()) is evicted


def test_a_rule_for_faults_that_end_processes_holds_for_no_other() -> None:
    """The other rules hold for both."""
    always, dead_only = rule(), rule(ends_process=True)
    assert rules_for((always, dead_only), ends_process=True) == (always, dead_only)
    assert rules_for((always, dead_only), ends_process=False) == (always,)
