"""Pods that their node's fault ends, and the real controllers of JobSet and Kubeflow: what counts and what does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.live.kubernetes.agent_rig import Agents, install_policies
from tests.live.kubernetes.control_plane import CONTROLLER_NAMES, ControlPlane
from tests.live.kubernetes.find_binaries import Unavailable
from tests.live.kubernetes.fleet_controller import Fleet, Start, drained
from tests.live.kubernetes.job_controllers import jobset, trainer, training_operator
from tests.live.kubernetes.test_pod_failure_policy import conditions, ends, notes, pods

pytestmark = [pytest.mark.kubernetes, pytest.mark.process]
PROGRAMS = ("jobset", "training-operator", "trainer")
EXAMPLES = Path(__file__).resolve().parents[3] / "packaging/kubernetes/examples"
PATHS = {
    "Job": "/apis/batch/v1/namespaces/default/jobs",
    "JobSet": "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets",
    "PyTorchJob": "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs",
    "TrainJob": "/apis/trainer.kubeflow.org/v1alpha1/namespaces/default/trainjobs",
    "ClusterTrainingRuntime": "/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes",
}
JOBSET, PYTORCHJOB, TRAINJOB = (f"{PATHS[kind]}/training" for kind in ("JobSet", "PyTorchJob", "TrainJob"))
RULES = """
[budget]
max_out = 2
[[controller.drain]]
name = "dead"
mode = "evict"
labels = ["app=trainer"]
ends_process = true
gang = "whole"
"""
SIGTERM, SIGABRT = 143, 134


@pytest.fixture(scope="module")
def shared_control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One with the controllers of Job, JobSet, PyTorchJob and TrainJob."""
    with ExitStack() as stack:
        try:
            plane = stack.enter_context(ControlPlane(controllers=(*CONTROLLER_NAMES, "job-controller")))
            install_policies(plane)
            for name, controller in (("jobset", jobset), ("operator", training_operator), ("trainer", trainer)):
                stack.enter_context(controller(plane, tmp_path_factory.mktemp(name)))
        except Unavailable as error:
            pytest.skip(f"no control plane of Kubernetes with JobSet and Kubeflow here: {error}")
        yield plane


@pytest.fixture(autouse=True)
def _without_jobs(control_plane: ControlPlane) -> Iterator[None]:
    """Their controllers would start pods again while the next test clears them away."""
    yield
    admin = control_plane.admin
    for kind in ("TrainJob", "ClusterTrainingRuntime", "PyTorchJob", "JobSet", "Job"):
        path = PATHS[kind]
        for each in admin.get(path).must()["items"]:
            admin.delete(f"{path}/{each['metadata']['name']}", {"propagationPolicy": "Background"})

    def none_left() -> bool:
        return not any(admin.get(path).must()["items"] for path in PATHS.values())

    control_plane.wait(none_left, 60, "no job to be left")


class Owned:
    """The pods of one owner, and the kubelets of the nodes that they are bound to."""

    def __init__(self, plane: ControlPlane, agents: Agents) -> None:
        self.plane, self.agents = plane, agents

    def submit(self, example: str, change: Callable[[dict[str, Any]], object] = bool) -> set[str]:
        """The example, its two pods bound to n1 and n2; the uids of the pods. ``change``: of each object's spec."""
        for each in yaml.safe_load_all((EXAMPLES / example).read_text()):
            change(each["spec"])
            self.plane.admin.post(PATHS[each["kind"]], each).must()
        return self.bind("n1", "n2")

    def bind(self, *nodes: str) -> set[str]:
        """Wait for as many new pods, and have them run on these nodes; their uids."""
        self.plane.wait(lambda: len(self.waiting()) == len(nodes), 60, f"{len(nodes)} new pods")
        found = sorted(self.waiting(), key=lambda each: str(each["metadata"]["name"]))
        for pod, node in zip(found, nodes, strict=True):
            path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"
            target = {"apiVersion": "v1", "kind": "Node", "name": node}
            name = {"name": pod["metadata"]["name"]}
            self.plane.admin.post(f"{path}/binding", {"metadata": name, "target": target}).must()
            self.plane.admin.patch(f"{path}/status", {"status": {"phase": "Running"}}).must()
        return {str(each["metadata"]["uid"]) for each in found}

    def waiting(self) -> list[dict[str, Any]]:
        """The pods that no node has."""
        self.end_deleted()
        return [each for each in pods(self.plane) if "nodeName" not in each["spec"]]

    def end_deleted(self) -> None:
        """The pods that are deleted are gone: their kubelets have ended them."""
        for each in pods(self.plane):
            if "deletionTimestamp" in each["metadata"]:
                options = {"gracePeriodSeconds": 0, "preconditions": {"uid": each["metadata"]["uid"]}}
                self.plane.admin.delete(f"/api/v1/namespaces/default/pods/{each['metadata']['name']}", options)

    def fault(self, code: int = SIGTERM) -> None:
        """n1 has XID 79 and is drained, the gang is evicted for it, and its pods end with this code."""
        evicted = self.names()
        drained(self.agents, "n1")
        path = "/api/v1/namespaces/default/pods"

        def all_evicted() -> bool:
            return all("DisruptionTarget" in conditions(self.plane, f"{path}/{name}") for name in evicted)

        self.plane.wait(all_evicted, 30, "the eviction of the gang")
        self.plane.wait(lambda: all(notes(self.plane, name) for name in evicted), 15, "an Event of each pod")
        for name in evicted:
            ends(self.plane, name, code)

    def names(self) -> list[str]:
        """The names of the pods."""
        return sorted(str(each["metadata"]["name"]) for each in pods(self.plane))

    def wait_for(self, condition: str, path: str) -> None:
        """Wait until the owner has this condition."""

        def there() -> bool:
            self.end_deleted()
            return condition in conditions(self.plane, path)

        self.plane.wait(there, 60, f"{path} to be {condition}")

    def wait_for_event(self, reason: str, path: str) -> None:
        """Wait until the owner has an Event of this reason; a condition of a moment may pass unseen."""
        uid = self.plane.admin.get(path).must()["metadata"]["uid"]

        def there() -> bool:
            self.end_deleted()
            found = self.plane.admin.get("/apis/events.k8s.io/v1/namespaces/default/events").must()["items"]
            return any((each["reason"], each["regarding"].get("uid")) == (reason, uid) for each in found)

        self.plane.wait(there, 60, f"an Event {reason} of {path}")

    def runs_again(self, before: set[str], path: str) -> dict[str, Any]:
        """Both pods are others and run on the nodes without the fault, and the owner has not failed. Its status."""
        after = self.bind("n3", "n4")
        assert len(after) == 2
        assert not after & before
        status: dict[str, Any] = (
            self.plane.admin.get(path).must().get("status") or {}
        )  # a TrainJob has none while it runs
        assert ("Failed", "True") not in {(each["type"], each["status"]) for each in status.get("conditions") or []}
        return status


@pytest.fixture
def owned(control_plane: ControlPlane, fleet: Fleet, start: Start, agents: Agents) -> Owned:
    """Four nodes, and healthd's controller with the how-to's rule."""
    fleet.add(["n1", "n2", "n3", "n4"])
    start(RULES)
    control_plane.wait(lambda: fleet.numbers()[0] == "2", 60, "the counts")
    return Owned(control_plane, agents)


def job_of(spec: dict[str, Any]) -> dict[str, Any]:
    """The Job's spec in a JobSet's."""
    found: dict[str, Any] = spec["replicatedJobs"][0]["template"]["spec"]
    return found


def ignoring(spec: dict[str, Any]) -> None:
    """The JobSet's Job goes on with other pods."""
    del spec["failurePolicy"]["rules"]
    job_of(spec)["podFailurePolicy"]["rules"][0]["action"] = "Ignore"


def without_policy(spec: dict[str, Any]) -> None:
    """Neither the Job nor the JobSet knows disruptions."""
    del spec["failurePolicy"]["rules"], job_of(spec)["podFailurePolicy"]


def replicas(**settings: Any) -> Callable[[dict[str, Any]], None]:
    """Settings of both replica specs of a PyTorchJob."""

    def change(spec: dict[str, Any]) -> None:
        for each in spec["pytorchReplicaSpecs"].values():
            each.update(settings)

    return change


def backoff_limit(most: int) -> Callable[[dict[str, Any]], None]:
    """A PyTorchJob's."""
    return lambda spec: spec.update(runPolicy={"backoffLimit": most})


def test_a_jobset_restarts_whole_for_a_nodes_fault_without_counting_it(owned: Owned) -> None:
    """All pods of its gang are evicted, the Job fails for the disruption, and maxRestarts of 0 allows the restart."""
    before = owned.submit("training-jobset.yaml")
    owned.fault()
    status = owned.runs_again(before, JOBSET)
    assert (status["restarts"], status.get("restartsCountTowardsMax", 0)) == (1, 0)


def test_a_jobset_whose_job_ignores_disruptions_does_not_restart(owned: Owned) -> None:
    """The Job goes on with other pods."""
    before = owned.submit("training-jobset.yaml", ignoring)
    owned.fault()
    assert owned.runs_again(before, JOBSET)["restarts"] == 0


def test_a_jobset_without_those_policies_counts_a_nodes_fault(owned: Owned) -> None:
    """The counterpart: with maxRestarts of 0 it has failed."""
    owned.submit("training-jobset.yaml", without_policy)
    owned.fault()
    owned.wait_for("Failed", JOBSET)


def test_a_jobset_counts_an_error_of_its_own(owned: Owned) -> None:
    """Without an eviction the rule of the example does not apply."""
    owned.submit("training-jobset.yaml")
    ends(owned.plane, owned.names()[0], 1)
    owned.wait_for("Failed", JOBSET)


def test_a_trainjob_restarts_for_a_nodes_fault_without_counting_it(owned: Owned) -> None:
    """Its JobSet has the policies of its runtime."""
    before = owned.submit("training-trainjob.yaml")
    owned.fault()
    owned.runs_again(before, TRAINJOB)
    status = owned.plane.admin.get(JOBSET).must()["status"]
    assert (status["restarts"], status.get("restartsCountTowardsMax", 0)) == (1, 0)


@pytest.mark.parametrize(
    "change",
    [bool, backoff_limit(1), replicas(restartPolicy="OnFailure")],
    ids=["ExitCode", "backoffLimit of 1", "OnFailure"],
)
def test_a_pytorchjob_starts_evicted_pods_again(owned: Owned, change: Callable[[dict[str, Any]], object]) -> None:
    """All of its gang: two failures do not exceed a backoffLimit of 1."""
    before = owned.submit("training-pytorchjob.yaml", change)
    owned.fault()
    owned.runs_again(before, PYTORCHJOB)


def test_a_pytorchjob_with_the_policy_never_fails_by_an_eviction(owned: Owned) -> None:
    """Its operator knows no disruptions: the first pod that it sees fail ends it."""
    owned.submit("training-pytorchjob.yaml", replicas(restartPolicy="Never"))
    owned.fault()
    owned.plane.wait(lambda: "Failed" in conditions(owned.plane, PYTORCHJOB), 60, "it to have failed")


@pytest.mark.parametrize(("code", "then"), [(1, "PyTorchJobFailed"), (SIGABRT, "PyTorchJobRestarting")])
def test_a_pytorchjob_judges_a_pod_that_fails_before_its_eviction_by_its_exit_code(
    owned: Owned, code: int, then: str
) -> None:
    """An exception after a lost GPU ends with 1, which ends the job; NCCL's watchdog aborts, which restarts the pod."""
    owned.submit("training-pytorchjob.yaml")
    ends(owned.plane, owned.names()[0], code)
    owned.wait_for_event(then, PYTORCHJOB)


def test_an_evicted_pod_that_exits_with_0_has_succeeded(owned: Owned) -> None:
    """A handler of SIGTERM that exits in order after its checkpoint tells the owner that the work is done."""
    owned.submit("training-pytorchjob.yaml")
    owned.fault(0)
    owned.wait_for("Succeeded", PYTORCHJOB)


def test_a_jobset_whose_evicted_pods_exit_with_0_is_completed(owned: Owned) -> None:
    """Its Job takes them for completions, for all its podFailurePolicy."""
    owned.submit("training-jobset.yaml")
    owned.fault(0)
    owned.wait_for("Completed", JOBSET)
