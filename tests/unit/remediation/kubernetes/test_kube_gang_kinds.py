"""How the pods of a gang are known: by the exact labels, annotations, owners and fields of what made them."""

from __future__ import annotations

from typing import Any

import pytest

from healthd.remediation.orchestrators.kubernetes.objects.eviction import Pod
from healthd.remediation.orchestrators.kubernetes.objects.gangs import Gang, GangLabels, gang_of
from tests.unit.remediation.kubernetes.test_kube_eviction import pod

MARKS = GangLabels(labels=("example.com/job",), devices=("nvidia.com/*",))
GPU = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}]}
PODSET = {"kueue.x-k8s.io/podset": "main"}
INDEXED = {"batch.kubernetes.io/job-name": "train", "batch.kubernetes.io/job-completion-index": "3"}


def owner(kind: str, version: str, name: str = "train") -> list[dict[str, Any]]:
    return [{"apiVersion": version, "kind": kind, "name": name, "uid": "u", "controller": True}]


OF_JOB = owner("Job", "batch/v1")
OF_STATEFUL_SET = owner("StatefulSet", "apps/v1")


def gang(scheduler: str, name: str, selector: str = "") -> Gang:
    return Gang(scheduler=scheduler, namespace="team-a", name=name, selector=selector)


def by_label(scheduler: str, key: str, name: str = "train") -> Gang:
    return gang(scheduler, name, f"{key}={name}")


KUEUE, JOBSET, KUBEFLOW = (
    "kueue.x-k8s.io/pod-group-name",
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/job-name",
)
LWS = {"leaderworkerset.sigs.k8s.io/name": "l", "leaderworkerset.sigs.k8s.io/group-index": "1"}
TASKS = {"yunikorn.apache.org/task-group-name": "workers"}


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        pytest.param(pod(labels={KUEUE: "train"}), by_label("Kueue", KUEUE), id="Kueue, a group of pods"),
        pytest.param(pod(annotations={"kueue.x-k8s.io/workload": "w"}), gang("Kueue", "w"), id="Kueue, a workload"),
        pytest.param(
            pod(labels=PODSET, ownerReferences=OF_JOB),
            gang("Kueue", "Job/train", "kueue.x-k8s.io/podset"),
            id="Kueue, a job that it admitted",
        ),
        pytest.param(
            pod(
                labels={JOBSET: "train", "jobset.sigs.k8s.io/replicatedjob-name": "w", **INDEXED},
                ownerReferences=OF_JOB,
            ),
            by_label("JobSet", JOBSET),
            id="JobSet, and so TrainJob",
        ),
        pytest.param(
            pod(labels={JOBSET: "train", **PODSET}, ownerReferences=OF_JOB),
            by_label("JobSet", JOBSET),
            id="JobSet, Kueue",
        ),
        *(
            pytest.param(
                pod(
                    labels={KUBEFLOW: "train", "training.kubeflow.org/replica-type": "worker"},
                    ownerReferences=owner(kind, "kubeflow.org/v1"),
                ),
                by_label("Kubeflow", KUBEFLOW),
                id=kind,
            )
            for kind in ("PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "MPIJob", "JAXJob")
        ),
        pytest.param(
            pod(labels={KUBEFLOW: "train", "training.kubeflow.org/job-role": "launcher"}, ownerReferences=OF_JOB),
            by_label("Kubeflow", KUBEFLOW),
            id="MPIJob v2beta1, its launcher",
        ),
        pytest.param(pod(labels={"mpi-job-name": "train"}), by_label("MPIJob", "mpi-job-name"), id="MPIJob, before"),
        pytest.param(
            pod(ownerReferences=owner("HyperPodPyTorchJob", "sagemaker.amazonaws.com/v1")),
            gang("HyperPodPyTorchJob", "HyperPodPyTorchJob/train"),
            id="HyperPodPyTorchJob",
        ),
        pytest.param(
            pod(labels={"ray.io/cluster": "train"}, ownerReferences=owner("RayCluster", "ray.io/v1")),
            by_label("RayCluster", "ray.io/cluster"),
            id="RayCluster, and so RayJob",
        ),
        pytest.param(
            pod(ownerReferences=owner("TrainJob", "trainer.kubeflow.org/v1alpha1")),
            gang("TrainJob", "TrainJob/train"),
            id="TrainJob without JobSet",
        ),
        pytest.param(
            pod(labels=LWS, ownerReferences=OF_STATEFUL_SET),
            gang("LeaderWorkerSet", "l/1", ",".join(f"{key}={value}" for key, value in LWS.items())),
            id="LeaderWorkerSet, one of its groups",
        ),
        *(
            pytest.param(pod(labels={key: "train"}, ownerReferences=OF_JOB), by_label("coscheduling", key), id=key)
            for key in (
                "scheduling.x-k8s.io/pod-group",
                "pod-group.scheduling.sigs.k8s.io",
                "pod-group.scheduling.sigs.k8s.io/name",
            )
        ),
        *(
            pytest.param(pod(annotations={key: "vj"}), gang("Volcano", "vj"), id=key)
            for key in ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
        ),
        pytest.param(pod(annotations={"pod-group-name": "pg-x"}), gang("KAI", "pg-x"), id="KAI"),
        pytest.param(
            pod(labels={"applicationId": "a"}, annotations=TASKS), gang("YuniKorn", "a"), id="YuniKorn, label"
        ),
        pytest.param(
            pod(annotations={**TASKS, "yunikorn.apache.org/app-id": "a"}),
            gang("YuniKorn", "a"),
            id="YuniKorn, annotation",
        ),
        pytest.param(
            pod(spec={"workloadRef": {"name": "w", "podGroup": "workers"}}), gang("Workload", "w"), id="Kubernetes 1.35"
        ),
        pytest.param(
            pod(spec={"workloadRef": {"name": "w", "podGroup": "decode", "podGroupReplicaKey": "2"}}),
            gang("Workload", "w/2"),
            id="Kubernetes 1.35, a replica",
        ),
        pytest.param(pod(spec={"schedulingGroup": {"podGroupName": "g"}}), gang("PodGroup", "g"), id="Kubernetes 1.36"),
        pytest.param(
            pod(labels=INDEXED, ownerReferences=OF_JOB, spec=GPU),
            gang("Job", "Job/train", "batch.kubernetes.io/job-name=train"),
            id="an Indexed Job with GPUs",
        ),
        pytest.param(
            pod(annotations={"batch.kubernetes.io/job-completion-index": "3"}, ownerReferences=OF_JOB, spec=GPU),
            gang("Job", "Job/train"),
            id="an Indexed Job with GPUs, before 1.27",
        ),
        pytest.param(
            pod(labels={"example.com/job": "mine", JOBSET: "train"}),
            by_label("gang_labels", "example.com/job", "mine"),
            id="a site's",
        ),
    ],
)
def test_a_gang_is_known_by_the_marks_of_its_owner_or_scheduler(which: Pod, expected: Gang) -> None:
    """The owner's unit comes first: a launcher and its workers, and all Jobs of a JobSet, are one."""
    assert gang_of(which, MARKS) == expected


@pytest.mark.parametrize(
    "which",
    [
        pytest.param(pod(), id="a pod"),
        pytest.param(pod(ownerReferences=None), id="a bare pod"),
        pytest.param(pod(labels={KUEUE: "s"}, annotations={"kueue.x-k8s.io/pod-group-serving": "true"}), id="serving"),
        pytest.param(pod(labels=PODSET, ownerReferences=OF_STATEFUL_SET), id="a StatefulSet that Kueue admitted"),
        pytest.param(pod(labels=PODSET, ownerReferences=[{"kind": "Node"}]), id="no controller"),
        pytest.param(pod(ownerReferences=OF_JOB, spec=GPU), id="a Job whose pods have no index"),
        pytest.param(pod(labels=INDEXED, ownerReferences=OF_JOB), id="an Indexed Job without GPUs"),
        pytest.param(
            pod(labels=INDEXED, ownerReferences=owner("Job", "batch.volcano.sh/v1"), spec=GPU), id="other Job"
        ),
        pytest.param(pod(ownerReferences=owner("PyTorchJob", "example.com/v1")), id="a kind of another group"),
        pytest.param(pod(labels={"applicationId": "a"}), id="YuniKorn without task groups"),
        pytest.param(pod(annotations=TASKS), id="YuniKorn without an application"),
        pytest.param(pod(spec={"schedulingGroup": {}}), id="no PodGroup"),
        pytest.param(
            pod(labels=PODSET, annotations={"x": "y"}, ownerReferences=owner("ReplicaSet", "apps/v1")), id="web"
        ),
    ],
)
def test_what_is_for_itself_is_no_gang(which: Pod) -> None:
    """So a rule for it needs no word about gangs."""
    assert gang_of(which, MARKS) is None


def test_a_gang_is_told_by_name_and_by_whose_it_is() -> None:
    """As a person finds it."""
    assert by_label("JobSet", JOBSET).title == "gang team-a/train of JobSet"
