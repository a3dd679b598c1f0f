"""A drain evicts a gang whole, or waits: a gang is a set of pods that only work together. Pure.

The eviction of one member ends the work of all the others, which then hold their GPUs until a collective times out. So
a gang that has members on other nodes is left alone unless its rule says ``whole`` or ``members``; and whole means
every member, wherever it runs, or none: the rules must allow each eviction now. Its owner or its scheduler starts a
gang again: Kueue by waitForPodsReady or the job itself, Volcano by the job's ``policies``, KAI by its action
stalegangeviction.

The labels of what made or scheduled a pod name its gang. The owner's own unit comes first, so that launcher and
workers, or all Jobs of a JobSet, are one gang: labels of operators, then those of schedulers, then the controller that
owns the pod, where it is of a kind that runs gangs.

Sources of the names, read in November 2026:

    Kueue               kubernetes-sigs/kueue, docs/reference/labels-and-annotations, pkg/controller/constants
    JobSet, TrainJob    kubernetes-sigs/jobset, api/jobset/v1alpha2/jobset_types.go JobSetNameKey; a TrainJob makes one
    PyTorchJob, TFJob…  kubeflow/training-operator, pkg/apis/kubeflow.org/v1/common_types.go JobNameLabel
    MPIJob v2beta1      kubeflow/mpi-operator, pkg/apis/kubeflow/v2beta1/constants.go JobNameLabel, the same; before it
                        ``mpi-job-name`` (v1alpha2, labelMPIJobName)
    LeaderWorkerSet     kubernetes-sigs/lws, api/leaderworkerset/v1 SetNameLabelKey and GroupIndexLabelKey: leader and
                        workers of one replica; the replicas are each for themselves
    RayCluster, RayJob  ray-project/kuberay, ray-operator/controllers/ray/utils/constant.go RayClusterLabelKey
    coscheduling        kubernetes-sigs/scheduler-plugins, apis/scheduling/v1alpha1/types.go PodGroupLabel; before v0.22
                        ``pod-group.scheduling.sigs.k8s.io``, and lightweight coscheduling with ``/name`` after it
    Volcano             volcano-sh/apis, scheduling/v1beta1 KubeGroupNameAnnotationKey
    KAI                 NVIDIA/KAI-Scheduler, pkg/common/constants PodGroupAnnotationForPod
    YuniKorn            apache/yunikorn-k8shim, pkg/common/constants: AnnotationTaskGroupName, LabelApplicationID,
                        CanonicalLabelApplicationID, AnnotationApplicationID
    Kubernetes          PodSpec ``workloadRef`` (1.35, alpha: KEP-4671 WorkloadReference), ``schedulingGroup`` (1.36 on:
                        PodSchedulingGroup)
    HyperPodPyTorchJob  Amazon SageMaker developer guide, sagemaker-eks-operator-usage: sagemaker.amazonaws.com/v1. Its
                        operator is not public; the owner of its pods is taken for it
    Job                 k8s.io/api batch/v1 JobCompletionIndexAnnotation (a label too since 1.28), JobNameLabel
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from healthd.remediation.orchestrators.kubernetes.objects.eviction import (
    Drain,
    EvictionRule,
    GangMode,
    Plan,
    Pod,
    PodState,
    came_after,
    owner_of,
    planned,
    rule_of,
)

_KUEUE_GROUP, _KUEUE_SERVING = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-serving"
_KUEUE_WORKLOAD, _KUEUE_PODSET = "kueue.x-k8s.io/workload", "kueue.x-k8s.io/podset"
_LWS_NAME, _LWS_INDEX = (f"leaderworkerset.sigs.k8s.io/{key}" for key in ("name", "group-index"))
_YUNIKORN_TASKS = "yunikorn.apache.org/task-group-name"
_YUNIKORN_APP = ("yunikorn.apache.org/app-id", "applicationId")
_JOB_NAME, _JOB_INDEX = "batch.kubernetes.io/job-name", "batch.kubernetes.io/job-completion-index"

_LABELS = (
    ("jobset.sigs.k8s.io/jobset-name", "JobSet"),
    ("training.kubeflow.org/job-name", "Kubeflow"),
    ("mpi-job-name", "MPIJob"),
    ("ray.io/cluster", "RayCluster"),
    ("scheduling.x-k8s.io/pod-group", "coscheduling"),
    ("pod-group.scheduling.sigs.k8s.io", "coscheduling"),
    ("pod-group.scheduling.sigs.k8s.io/name", "coscheduling"),
)
_ANNOTATIONS = (
    (_KUEUE_WORKLOAD, "Kueue"),
    ("scheduling.k8s.io/group-name", "Volcano"),
    ("scheduling.volcano.sh/group-name", "Volcano"),
    ("pod-group-name", "KAI"),
)
_OWNERS = frozenset(
    {
        *((kind, "kubeflow.org") for kind in ("PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob", "MXJob")),
        ("MPIJob", "kubeflow.org"),
        ("TrainJob", "trainer.kubeflow.org"),
        ("JobSet", "jobset.x-k8s.io"),
        ("HyperPodPyTorchJob", "sagemaker.amazonaws.com"),
        ("RayCluster", "ray.io"),
        ("RayJob", "ray.io"),
    }
)
_OF_SINGLE_PODS = ("ReplicaSet", "StatefulSet")


class Gang(Struct, frozen=True, kw_only=True):
    """One gang, as its owner or scheduler names it. ``selector``: of labels that all its members have, "" for none."""

    scheduler: str
    namespace: str
    name: str
    selector: str = ""

    @property
    def title(self) -> str:
        """The gang's name in messages."""
        return f"gang {self.namespace}/{self.name} of {self.scheduler}"


class GangLabels(Struct, frozen=True, kw_only=True):
    """The configured gangs, beside the kinds that this module knows. ``labels``: keys; pods of a namespace with one
    value belong together. ``devices``: globs of resources; an Indexed Job is a gang where its pods hold one."""

    labels: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()


def gang_of(pod: Pod, records: GangLabels) -> Gang | None:
    """The gang of a pod, or None: pods of a serving group, a ReplicaSet or a StatefulSet without such labels are each
    for themselves."""
    return next(_gangs(pod, records), None)


def _gangs(pod: Pod, records: GangLabels) -> Iterator[Gang]:
    """Every gang that a label or an owner gives the pod, the one that counts first."""
    labels, notes = pod.metadata.labels or {}, pod.metadata.annotations or {}
    yield from _by_label(pod, ((key, "gang_labels") for key in records.labels))
    if notes.get(_KUEUE_SERVING) != "true":
        yield from _by_label(pod, [(_KUEUE_GROUP, "Kueue")])
    yield from _by_label(pod, _LABELS)
    if (name := labels.get(_LWS_NAME, "")) and (index := labels.get(_LWS_INDEX, "")):
        yield _gang(pod, "LeaderWorkerSet", f"{name}/{index}", f"{_LWS_NAME}={name},{_LWS_INDEX}={index}")
    for key, scheduler in _ANNOTATIONS:
        if name := notes.get(key, ""):
            yield _gang(pod, scheduler, name)
    if _YUNIKORN_TASKS in notes and (name := _application(labels, notes)):
        yield _gang(pod, "YuniKorn", name)
    yield from _native(pod)
    yield from _by_owner(pod, records)


def _by_label(pod: Pod, known: Iterable[tuple[str, str]]) -> Iterator[Gang]:
    for key, scheduler in known:
        if name := (pod.metadata.labels or {}).get(key, ""):
            yield _gang(pod, scheduler, name, f"{key}={name}")


def _application(labels: Mapping[str, str], notes: Mapping[str, str]) -> str:
    """The application of YuniKorn's that a pod is of, or ""."""
    return next((name for key in _YUNIKORN_APP if (name := labels.get(key, "") or notes.get(key, ""))), "")


def _native(pod: Pod) -> Iterator[Gang]:
    """By Kubernetes's own word: a Workload, of which each replica is for itself, or a PodGroup."""
    if (ref := pod.spec.workloadRef) is not None:
        name = f"{ref.name}/{ref.podGroupReplicaKey}" if ref.podGroupReplicaKey else ref.name
        yield _gang(pod, "Workload", name)
    if (group := pod.spec.schedulingGroup) is not None and group.podGroupName:
        yield _gang(pod, "PodGroup", group.podGroupName)


def _by_owner(pod: Pod, records: GangLabels) -> Iterator[Gang]:
    labels, owner = pod.metadata.labels or {}, owner_of(pod)
    if owner is None:
        return
    name = f"{owner.kind}/{owner.name}"
    if _KUEUE_PODSET in labels and owner.kind not in _OF_SINGLE_PODS:
        yield _gang(pod, "Kueue", name, _KUEUE_PODSET)
    if (owner.kind, owner.group) in _OWNERS:
        yield _gang(pod, owner.kind, name)
    is_indexed = _JOB_INDEX in labels or _JOB_INDEX in (pod.metadata.annotations or {})
    if (owner.kind, owner.group) == ("Job", "batch") and is_indexed and pod.holds(records.devices):
        yield _gang(pod, "Job", name, f"{_JOB_NAME}={labels[_JOB_NAME]}" if _JOB_NAME in labels else "")


def _gang(pod: Pod, scheduler: str, name: str, selector: str = "") -> Gang:
    return Gang(scheduler=scheduler, namespace=pod.metadata.namespace, name=name, selector=selector)


def gangs_to_see(plans: Sequence[Plan], rules: Sequence[EvictionRule], records: GangLabels) -> tuple[Gang, ...]:
    """The gangs whose members must be known before these plans are carried out."""
    leaving = [plan for plan in plans if plan.state is PodState.EVICT and _mode(plan, rules) is not GangMode.MEMBERS]
    found = dict.fromkeys(gang_of(plan.pod, records) for plan in leaving)
    return tuple(gang for gang in found if gang is not None)


def with_gangs(
    plans: Sequence[Plan],
    members: Mapping[Gang, Collection[Pod]],
    rules: Sequence[EvictionRule],
    records: GangLabels,
    *,
    drain: Drain,
    now: datetime,
) -> tuple[Plan, ...]:
    """The plans of a drain's node with each of these gangs evicted whole or not at all. Members on other nodes come
    first: should one of those evictions be refused, the members here are requested again."""
    elsewhere: list[Plan] = []
    here = list(plans)
    for gang, pods in members.items():
        part = [number for number, plan in enumerate(here) if plan.state is not PodState.STAYS]
        ours = [number for number in part if gang_of(here[number].pod, records) == gang]
        others = [pod for pod in pods if pod.spec.nodeName not in ("", drain.node)]
        there = [plan for plan in planned(others, rules, drain, now) if plan.state is not PodState.STAYS]
        away = [plan for plan in there if not came_after(plan.pod, drain)]
        running = sum(plan.state is not PodState.LEAVES for plan in there)
        blocked = _blocked(gang, [here[number] for number in ours], away, rules, running)
        for number in ours:
            here[number] = _in_gang(here[number], gang, blocked)
        elsewhere += [] if blocked else [_in_gang(plan, gang, None) for plan in away if plan.state is PodState.EVICT]
    return (*elsewhere, *here)


def _blocked(
    gang: Gang, ours: Sequence[Plan], away: Sequence[Plan], rules: Sequence[EvictionRule], running: int
) -> tuple[PodState, str] | None:
    """Why no member is evicted now, or None. A member that is being deleted blocks no other; a member that runs
    elsewhere blocks a gang that is to be left alone, however young it is."""
    alone = [plan for plan in ours if plan.state is PodState.EVICT and _mode(plan, rules) is GangMode.WAIT]
    if running and alone:
        wants = 'it needs gang = "whole", or "members" where its job goes on without some'
        return PodState.WAITS, f"{alone[0].why}: {gang.title} has {running} members on other nodes, so {wants}"
    stuck = next((plan for plan in (*ours, *away) if plan.state in (PodState.WAITS, PodState.FORBIDDEN)), None)
    if stuck is None:
        return None
    return (
        PodState.WAITS,
        f"{gang.title} is evicted whole or not at all, and {stuck.pod.name} {stuck.state}: {stuck.why}",
    )


def _in_gang(plan: Plan, gang: Gang, blocked: tuple[PodState, str] | None) -> Plan:
    if plan.state is not PodState.EVICT:
        return plan
    if blocked is not None:
        return replace(plan, state=blocked[0], why=blocked[1])
    return replace(plan, why=f"{plan.why}, with {gang.title}")


def _mode(plan: Plan, rules: Sequence[EvictionRule]) -> GangMode:
    rule = rule_of(plan.pod, rules)
    return rule.gang if rule is not None else GangMode.WAIT
