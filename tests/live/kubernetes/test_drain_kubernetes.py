"""What a drain does with pods that come back, on a real API server: ReplicaSets whose pods name their node, so that the
real controller puts another there as soon as one is evicted."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.live.kubernetes.agent_rig import Agents
from tests.live.kubernetes.control_plane import LEASES, ControlPlane
from tests.live.kubernetes.fleet_controller import Fleet, Start, drained

pytestmark = [pytest.mark.kubernetes, pytest.mark.process]
RULES = """
[budget]
max_out = 2
[[controller.drain]]
name = "stubborn"
mode = "evict"
labels = ["app=stubborn"]
tolerating = true
[[controller.drain]]
name = "rest"
mode = "evict"
namespaces = ["default"]
unmanaged = true
"""
EVERYTHING = [{"operator": "Exists"}]


def replica_set(plane: ControlPlane, app: str, node: str, *, replicas: int = 1, **spec: Any) -> None:
    """Pods that ignore every taint: the scheduler, which would ask for them, is never asked."""
    pod = {
        "nodeName": node,
        "containers": [{"name": "c", "image": "registry.invalid/none"}],
        "terminationGracePeriodSeconds": 1,
        **spec,
    }
    template = {"metadata": {"labels": {"app": app}}, "spec": pod}
    body = {"replicas": replicas, "selector": {"matchLabels": {"app": app}}, "template": template}
    plane.admin.post("/apis/apps/v1/namespaces/default/replicasets", {"metadata": {"name": app}, "spec": body}).must()
    plane.wait(lambda: len(uids(plane, app)) == replicas, 20, f"the pods of {app}")


def uids(plane: ControlPlane, app: str) -> set[str]:
    """The pods of this app that are there and not on their way out."""
    items = plane.admin.get(f"/api/v1/namespaces/default/pods?labelSelector=app%3D{app}").must()["items"]
    return {each["metadata"]["uid"] for each in items if "deletionTimestamp" not in each["metadata"]}


def events(plane: ControlPlane, reason: str) -> list[tuple[str, str]]:
    """What was told for this reason: the kind and the name of what each Event is about."""
    items = plane.admin.get("/apis/events.k8s.io/v1/events").must()["items"]
    return [(each["regarding"]["kind"], each["regarding"]["name"]) for each in items if each["reason"] == reason]


def test_a_pod_that_comes_back_is_evicted_once_and_told_of_once(
    control_plane: ControlPlane, fleet: Fleet, start: Start, agents: Agents
) -> None:
    """Two that name their node, and one that tolerates everything with a rule that allows it, go once for the hold and
    stay when they are back, also after the controller was started anew; one that tolerates everything never goes.
    The next hold is another: each goes once more."""
    fleet.add(["n1", "n2"])
    replica_set(control_plane, "static", "n1", replicas=2)
    replica_set(control_plane, "stubborn", "n1", tolerations=EVERYTHING)
    replica_set(control_plane, "tolerant", "n1", tolerations=EVERYTHING)
    first = {app: uids(control_plane, app) for app in ("static", "stubborn", "tolerant")}
    back = "left alone, made after the node was taken out: ReplicaSet default/static, ReplicaSet default/stubborn"
    with control_plane.reaping():
        one = start(RULES, name="one")
        control_plane.wait(lambda: fleet.numbers()[0] == "2", 60, "the counts")
        drained(agents, "n1")
        control_plane.wait(lambda: back in one.log, 60, "those that came back to be told of")
        second = {app: uids(control_plane, app) for app in first}
        assert not (second["static"] | second["stubborn"]) & (first["static"] | first["stubborn"])
        assert second["tolerant"] == first["tolerant"]
        assert "it tolerates healthd's taint: rule rest needs tolerating = true" in one.log
        time.sleep(2.0)
        one.stop()
        two = start(RULES, name="two")
        control_plane.wait(lambda: back in two.log, 60, "the next controller to know of them")
        time.sleep(2.0)
        assert {app: uids(control_plane, app) for app in first} == second
        assert [kind for kind, _ in events(control_plane, "PodCameBack")] == ["Node", "Node"]
        assert [kind for kind, _ in events(control_plane, "NodeIsOut")] == ["Pod", "Pod"]
        agents("n1").release(resume=True)
        control_plane.wait(lambda: not fleet.tainted(), 10, "the node to be let in")
        time.sleep(1.1)  # holds have whole seconds
        agents("n1").quarantine("healthd: gpu.lost gpu:GPU-8e2f [m2x7]")
        control_plane.wait(lambda: not uids(control_plane, "static") & second["static"], 20, "the next hold's drain")


def test_without_its_memory_nothing_is_evicted(
    control_plane: ControlPlane, fleet: Fleet, start: Start, agents: Agents
) -> None:
    """An annotation that is no record of drains may hide that they were evicted before: it is said, and a person takes
    it away."""
    fleet.add(["n1", "n2"])
    control_plane.add_pod("batch-0", "n1")
    with control_plane.reaping():
        one = start(RULES)
        control_plane.wait(lambda: fleet.numbers()[0] == "2", 60, "the counts")
        path, note = f"{LEASES}/healthd-controller", {"healthd.io/drains": "garbage"}
        control_plane.admin.patch(path, {"metadata": {"annotations": note}}, kind="merge").must()
        drained(agents, "n1")
        control_plane.wait(lambda: "no pod is evicted: the annotation healthd.io/drains" in one.log, 15, "the refusal")
        assert fleet.pods() == {"batch-0"}
        control_plane.admin.patch(path, {"metadata": {"annotations": {"healthd.io/drains": None}}}, kind="merge").must()
        control_plane.wait(lambda: not fleet.pods(), 15, "the drain to go on")


def test_a_drain_that_cannot_end_pages_after_its_timeout(
    control_plane: ControlPlane, fleet: Fleet, start: Start, agents: Agents
) -> None:
    """Without the right to evict (403), with a finalizer, and with a bare pod that its rule does not allow for: each is
    paged for, and told on the Node and the pod, and not before its timeout. One that is awaited is not."""
    fleet.add(["n1", "n2"])
    control_plane.add_pod("batch-0", "n1")
    control_plane.add_pod("bare-0", "n1")
    control_plane.add_pod("awaited-0", "n1")
    control_plane.add_pod("stuck-0", "n1")
    stuck = "/api/v1/namespaces/default/pods/stuck-0"
    control_plane.admin.patch(stuck, {"metadata": {"finalizers": ["example.com/never"]}}, kind="merge").must()
    rules = """drain_timeout_s = 4
[budget]
max_out = 2
[[controller.drain]]
name = "bare"
mode = "evict"
labels = ["app=bare"]
[[controller.drain]]
name = "awaited"
mode = "complete"
labels = ["app=awaited"]
[[controller.drain]]
name = "rest"
mode = "evict"
namespaces = ["default"]
unmanaged = true
"""
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/healthd-controller"
    try:
        with control_plane.reaping():
            one = start(rules)
            control_plane.wait(lambda: fleet.numbers()[0] == "2", 60, "the counts")
            full = control_plane.admin.get(role).must()["rules"]
            less = [each for each in full if "pods/eviction" not in each["resources"]]
            control_plane.admin.patch(role, {"rules": less}, kind="merge").must()
            control_plane.admin.delete(stuck).must()
            drained(agents, "n1")
            control_plane.wait(lambda: "default/batch-0: not evicted: " in one.log, 20, "the refusal")
            control_plane.wait(lambda: len(events(control_plane, "DrainStuck")) == 3, 30, "those that do not go")
            control_plane.wait(lambda: "the drain is stuck" in one.log, 10, "the page")
            paged = next(line for line in one.log.splitlines() if "the drain is stuck" in line)
            assert '"page": true' in paged
            first = next(line for line in one.log.splitlines() if "default/batch-0: not evicted: " in line)
            assert '"page": false' in first, "before its timeout"
            control_plane.wait(lambda: "healthd_controller_operator_needed 1" in one.page(), 10, "the metric")
            told = {name for kind, name in events(control_plane, "NodeIsOut") if kind == "Pod"}
            assert told == {"batch-0", "bare-0", "stuck-0"}
    finally:
        control_plane.admin.patch(stuck, {"metadata": {"finalizers": None}}, kind="merge")


def test_a_pod_that_is_a_slurm_node_goes_once_slurm_has_drained_it(
    control_plane: ControlPlane, fleet: Fleet, start: Start, agents: Agents
) -> None:
    """A worker of Slinky's with its exact conditions: in service it is left alone and said, while Slurm drains it, too,
    and drained without a job it is evicted by its rule."""
    fleet.add(["n1", "n2"])
    control_plane.add_pod("worker-0", "n1")
    path = "/api/v1/namespaces/default/pods/worker-0"
    owner = {"apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "name": "gpu", "uid": "u-1"}
    owned = {"metadata": {"ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}]}}
    control_plane.admin.patch(path, owned, kind="merge").must()

    def shows(*states: str) -> None:
        kinds = ("Idle", "Mixed", "Drain")
        conditions = [{"type": f"SlurmNodeState{each}", "status": str(each in states)} for each in kinds]
        control_plane.admin.patch(f"{path}/status", {"status": {"conditions": conditions}}).must()

    shows("Mixed")
    with control_plane.reaping():
        one = start(RULES)
        control_plane.wait(lambda: fleet.numbers()[0] == "2", 60, "the counts")
        drained(agents, "n1")
        control_plane.wait(lambda: "a Slurm node that Slurm has not drained" in one.log, 30, "the refusal")
        shows("Mixed", "Drain")
        control_plane.wait(lambda: "Slurm drains it, and its jobs end by themselves" in one.log, 30, "Slurm's drain")
        time.sleep(2.0)
        assert fleet.pods() == {"worker-0"}
        shows("Idle", "Drain")
        control_plane.wait(lambda: not fleet.pods(), 30, "the eviction")
