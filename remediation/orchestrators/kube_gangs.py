"""Pods that only work together: which gang a pod is of, and that a drain evicts a gang whole, or waits. Pure.

One member that is evicted ends the work of all the others, which then hold their GPUs until a collective of theirs
times out. So a gang that has members on other nodes is left alone unless its rule says ``whole`` or ``members``; and
whole means every member, wherever it runs, or none: the rules must let each of them go now.

How the schedulers mark their gangs (read in July to November 2026: Kueue, docs/reference/labels-and-annotations and
pkg/controller/constants; Volcano, scheduling/v1beta1 KubeGroupNameAnnotationKey; KAI, pkg/common/constants
PodGroupAnnotationForPod). Who starts a gang anew is theirs: Kueue by waitForPodsReady or the job itself, Volcano by the
job's ``policies``, KAI by its action stalegangeviction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from healthd.remediation.orchestrators.kube_eviction import (
    Drain,
    Fate,
    GangMode,
    Plan,
    Pod,
    Rule,
    came_after,
    owner_of,
    planned,
    rule_of,
)

_KUEUE_GROUP, _KUEUE_SERVING = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-serving"
_KUEUE_WORKLOAD, _KUEUE_PODSET = "kueue.x-k8s.io/workload", "kueue.x-k8s.io/podset"
_JOBSET = "jobset.sigs.k8s.io/jobset-name"
_ANNOTATIONS = (
    (_KUEUE_WORKLOAD, "Kueue"),
    ("scheduling.k8s.io/group-name", "Volcano"),
    ("scheduling.volcano.sh/group-name", "Volcano"),
    ("pod-group-name", "KAI"),
)
_OF_SINGLE_PODS = ("ReplicaSet", "StatefulSet")


@dataclass(frozen=True, kw_only=True, slots=True)
class Gang:
    """One gang, by whoever schedules it. ``selector``: labels that all its members have, "" where annotations tell."""

    scheduler: str
    namespace: str
    name: str
    selector: str = ""

    @property
    def words(self) -> str:
        """As a person knows it."""
        return f"gang {self.namespace}/{self.name} of {self.scheduler}"


def gang_of(pod: Pod) -> Gang | None:
    """The gang that a pod is of, or None: by Kueue's label of a group, by annotations, or, of a job that Kueue
    admitted, by its owner. Pods of a serving group, a ReplicaSet or a StatefulSet are each for themselves."""
    labels, notes = pod.metadata.labels or {}, pod.metadata.annotations or {}
    namespace = pod.metadata.namespace
    if (name := labels.get(_KUEUE_GROUP, "")) and notes.get(_KUEUE_SERVING) != "true":
        return Gang(scheduler="Kueue", namespace=namespace, name=name, selector=f"{_KUEUE_GROUP}={name}")
    for key, scheduler in _ANNOTATIONS:
        if name := notes.get(key, ""):
            return Gang(scheduler=scheduler, namespace=namespace, name=name)
    owner = owner_of(pod)
    if _KUEUE_PODSET not in labels or owner is None or owner.kind in _OF_SINGLE_PODS:
        return None
    if name := labels.get(_JOBSET, ""):  # its Jobs are one workload
        return Gang(scheduler="Kueue", namespace=namespace, name=name, selector=f"{_JOBSET}={name}")
    return Gang(scheduler="Kueue", namespace=namespace, name=f"{owner.kind}/{owner.name}", selector=_KUEUE_PODSET)


def gangs_to_see(plans: Sequence[Plan], rules: Sequence[Rule]) -> tuple[Gang, ...]:
    """The gangs whose members must be known before these plans are carried out."""
    leaving = [plan for plan in plans if plan.fate is Fate.EVICT and _mode(plan, rules) is not GangMode.MEMBERS]
    found = dict.fromkeys(gang_of(plan.pod) for plan in leaving)
    return tuple(gang for gang in found if gang is not None)


def with_gangs(
    plans: Sequence[Plan],
    members: Mapping[Gang, Collection[Pod]],
    rules: Sequence[Rule],
    drain: Drain,
    now: datetime,
) -> tuple[Plan, ...]:
    """The plans of a drain's node with each of these gangs evicted whole or not at all; what leaves other nodes comes
    first, so that what is here is asked for again should one of those be refused."""
    elsewhere: list[Plan] = []
    here = list(plans)
    for gang, pods in members.items():
        ours = [number for number, plan in enumerate(here) if gang_of(plan.pod) == gang and plan.fate is not Fate.STAYS]
        others = [pod for pod in pods if pod.spec.nodeName not in ("", drain.node)]
        there = [plan for plan in planned(others, rules, drain, now) if plan.fate is not Fate.STAYS]
        away = [plan for plan in there if not came_after(plan.pod, drain)]
        running = sum(plan.fate is not Fate.LEAVES for plan in there)
        blocked = _blocked(gang, [here[number] for number in ours], away, rules, running)
        for number in ours:
            here[number] = _in_gang(here[number], gang, blocked)
        elsewhere += [] if blocked else [_in_gang(plan, gang, None) for plan in away if plan.fate is Fate.EVICT]
    return (*elsewhere, *here)


def _blocked(
    gang: Gang, ours: Sequence[Plan], away: Sequence[Plan], rules: Sequence[Rule], running: int
) -> tuple[Fate, str] | None:
    """Why no member is evicted now, or None. What is being deleted holds up nobody; what runs elsewhere holds up a
    gang that is to be left alone, however young it is."""
    alone = [plan for plan in ours if plan.fate is Fate.EVICT and _mode(plan, rules) is GangMode.WAIT]
    if running and alone:
        wants = 'it needs gang = "whole", or "members" where its job goes on without some'
        return Fate.FORBIDDEN, f"{alone[0].why}: {gang.words} has {running} members on other nodes, so {wants}"
    stuck = next((plan for plan in (*ours, *away) if plan.fate in (Fate.WAITS, Fate.FORBIDDEN)), None)
    if stuck is None:
        return None
    return Fate.WAITS, f"{gang.words} is evicted whole or not at all, and {stuck.pod.name} {stuck.fate}: {stuck.why}"


def _in_gang(plan: Plan, gang: Gang, blocked: tuple[Fate, str] | None) -> Plan:
    if plan.fate is not Fate.EVICT:
        return plan
    if blocked is not None:
        return replace(plan, fate=blocked[0], why=blocked[1])
    return replace(plan, why=f"{plan.why}, with {gang.words}")


def _mode(plan: Plan, rules: Sequence[Rule]) -> GangMode:
    rule = rule_of(plan.pod, rules)
    return rule.gang if rule is not None else GangMode.WAIT
