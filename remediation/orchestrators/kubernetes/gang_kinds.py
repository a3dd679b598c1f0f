"""The gang of a pod: pods that only work together, by the labels of what made or scheduled them. Pure.

The owner's own unit comes first, so that launcher and workers, or all Jobs of a JobSet, are one gang: labels of
operators, then those of schedulers, then the controller that owns the pod, where it is of a kind that runs gangs.

Sources of the names, read in November 2026:

    Kueue               kubernetes-sigs/kueue, docs/reference/labels-and-annotations, pkg/controller/constants
    JobSet, TrainJob    kubernetes-sigs/jobset, api/jobset/v1alpha2/jobset_types.go JobSetNameKey; a TrainJob makes one
    PyTorchJob, TFJob…  kubeflow/training-operator, pkg/apis/kubeflow.org/v1/common_types.go JobNameLabel
    MPIJob v2beta1      kubeflow/mpi-operator, pkg/apis/kubeflow/v2beta1/constants.go JobNameLabel, the same; before it
                        ``mpi-job-name`` (v1alpha2, labelMPIJobName)
    LeaderWorkerSet     kubernetes-sigs/lws, api/leaderworkerset/v1 GroupUniqueHashLabelKey: leader and workers of one
                        replica; the replicas are each for themselves
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

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from healthd.remediation.orchestrators.kubernetes.eviction import Pod, owner_of

_KUEUE_GROUP, _KUEUE_SERVING = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-serving"
_KUEUE_WORKLOAD, _KUEUE_PODSET = "kueue.x-k8s.io/workload", "kueue.x-k8s.io/podset"
_LWS_NAME, _LWS_INDEX, _LWS_KEY = (f"leaderworkerset.sigs.k8s.io/{key}" for key in ("name", "group-index", "group-key"))
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Gang:
    """One gang, as its owner or scheduler names it. ``selector``: a label that all its members have, "" for none."""

    scheduler: str
    namespace: str
    name: str
    selector: str = ""

    @property
    def words(self) -> str:
        """The gang's name in messages."""
        return f"gang {self.namespace}/{self.name} of {self.scheduler}"


@dataclass(frozen=True, kw_only=True, slots=True)
class GangLabels:
    """The configured gangs, beside the kinds that this module knows. ``labels``: keys; pods of a namespace with one
    value belong together. ``devices``: globs of resources; an Indexed Job is a gang where its pods hold one."""

    labels: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()


def gang_of(pod: Pod, marks: GangLabels) -> Gang | None:
    """The gang of a pod, or None: pods of a serving group, a ReplicaSet or a StatefulSet without such labels are each
    for themselves."""
    return next(_gangs(pod, marks), None)


def _gangs(pod: Pod, marks: GangLabels) -> Iterator[Gang]:
    """Every gang that a label or an owner gives the pod, the one that counts first."""
    labels, notes = pod.metadata.labels or {}, pod.metadata.annotations or {}
    yield from _by_label(pod, ((key, "gang_labels") for key in marks.labels))
    if notes.get(_KUEUE_SERVING) != "true":
        yield from _by_label(pod, [(_KUEUE_GROUP, "Kueue")])
    yield from _by_label(pod, _LABELS)
    if key := labels.get(_LWS_KEY, ""):
        name = f"{labels.get(_LWS_NAME, key)}/{labels.get(_LWS_INDEX, '')}"
        yield _gang(pod, "LeaderWorkerSet", name, f"{_LWS_KEY}={key}")
    for key, scheduler in _ANNOTATIONS:
        if name := notes.get(key, ""):
            yield _gang(pod, scheduler, name)
    if _YUNIKORN_TASKS in notes and (name := _application(labels, notes)):
        yield _gang(pod, "YuniKorn", name)
    yield from _native(pod)
    yield from _by_owner(pod, marks)


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


def _by_owner(pod: Pod, marks: GangLabels) -> Iterator[Gang]:
    labels, owner = pod.metadata.labels or {}, owner_of(pod)
    if owner is None:
        return
    name = f"{owner.kind}/{owner.name}"
    if _KUEUE_PODSET in labels and owner.kind not in _OF_SINGLE_PODS:
        yield _gang(pod, "Kueue", name, _KUEUE_PODSET)
    if (owner.kind, owner.group) in _OWNERS:
        yield _gang(pod, owner.kind, name)
    is_indexed = _JOB_INDEX in labels or _JOB_INDEX in (pod.metadata.annotations or {})
    if (owner.kind, owner.group) == ("Job", "batch") and is_indexed and pod.holds(marks.devices):
        yield _gang(pod, "Job", name, f"{_JOB_NAME}={labels[_JOB_NAME]}" if _JOB_NAME in labels else "")


def _gang(pod: Pod, scheduler: str, name: str, selector: str = "") -> Gang:
    return Gang(scheduler=scheduler, namespace=pod.metadata.namespace, name=name, selector=selector)
