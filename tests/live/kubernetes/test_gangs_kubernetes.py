"""Gangs on a real API server: evicted whole, or waited for. Their pods carry the marks that their schedulers and
operators leave; nothing else of them is needed."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.live.kubernetes.agent_rig import Agents
from tests.live.kubernetes.control_plane import ControlPlane
from tests.live.kubernetes.fleet_controller import Fleet, Start, drained

pytestmark = [pytest.mark.kubernetes, pytest.mark.process]
RULE = """
[[controller.drain]]
name = "{app}"
mode = "evict"
labels = ["app={app}"]
unmanaged = true
gang = "{gang}"
"""
KUEUE = {"labels": {"kueue.x-k8s.io/pod-group-name": "train"}}
VOLCANO = {"annotations": {"scheduling.k8s.io/group-name": "train"}}
KAI = {"annotations": {"pod-group-name": "train"}}


def gang(plane: ControlPlane, app: str, records: dict[str, Any], *nodes: str) -> set[str]:
    """One pod of it on each of these nodes."""
    names = {f"{app}-{number}" for number in range(len(nodes))}
    for number, node in enumerate(nodes):
        plane.add_pod(f"{app}-{number}", node)
        path = f"/api/v1/namespaces/default/pods/{app}-{number}"
        plane.admin.patch(path, {"metadata": records}, kind="merge").must()
    return names


def rules(**modes: str) -> str:
    return "[budget]\nmax_out = 2\n" + "".join(RULE.format(app=app, gang=mode) for app, mode in modes.items())


def test_whole_members_or_wait(control_plane: ControlPlane, fleet: Fleet, start: Start, agents: Agents) -> None:
    """A gang of each scheduler on two nodes, of which one goes out. Whole: the pod on the healthy node goes as well.
    Wait, the default: both stay, and it is said why. Members: only the one on the node that is out goes."""
    fleet.add(["n1", "n2"])
    whole = gang(control_plane, "kueue", KUEUE, "n1", "n2")
    waits = gang(control_plane, "volcano", VOLCANO, "n1", "n2")
    gang(control_plane, "kai", KAI, "n1", "n2")
    here = gang(control_plane, "here", {"annotations": {"pod-group-name": "small"}}, "n1", "n1")
    with control_plane.reaping():
        one = start(rules(kueue="whole", volcano="wait", kai="members", here="wait"))
        control_plane.wait(lambda: fleet.numbers()[0] == "2", 60, "the counts")
        drained(agents, "n1")
        control_plane.wait(lambda: not (whole | here | {"kai-0"}) & fleet.pods(), 15, "what may go to be gone")
        time.sleep(1.5)
        assert fleet.pods() == waits | {"kai-1"}
        why = "gang default/train of Volcano has 1 members on other nodes"
        control_plane.wait(lambda: why in one.log, 15, "the reason")


def test_a_gang_of_which_one_is_protected_is_not_begun_with(
    control_plane: ControlPlane, fleet: Fleet, start: Start, agents: Agents
) -> None:
    """The server is asked by a dry run first: a PodDisruptionBudget that protects the member on the healthy node keeps
    all of them, until it has room."""
    fleet.add(["n1", "n2", "n3"])
    both = gang(control_plane, "kueue", KUEUE, "n1", "n2")
    body = {"metadata": {"labels": {"app": "guarded"}}}
    rule = rules(kueue="whole", guarded="whole")
    control_plane.admin.patch("/api/v1/namespaces/default/pods/kueue-1", body, kind="merge").must()
    fleet.protect("guarded")
    with control_plane.reaping():
        one = start(rule)
        control_plane.wait(lambda: fleet.numbers()[0] == "2", 60, "the counts")
        drained(agents, "n1")
        control_plane.wait(lambda: "is evicted whole or not at all, and default/kueue-1" in one.log, 15, "the no")
        time.sleep(1.5)
        assert fleet.pods() == both
        control_plane.admin.delete("/apis/policy/v1/namespaces/default/poddisruptionbudgets/guarded").must()
        control_plane.wait(lambda: not fleet.pods(), 15, "the gang to go once nothing protects it")


def test_a_gang_with_a_member_on_a_node_that_opted_out_is_left_alone(
    control_plane: ControlPlane, fleet: Fleet, start: Start, agents: Agents
) -> None:
    """Whose node it is has the last word, about the pods that run there too."""
    fleet.add(["n1", "n2"])
    both = gang(control_plane, "volcano", VOLCANO, "n1", "n2")
    fleet.label("n2", "healthd.io/opt-out", "")
    with control_plane.reaping():
        one = start(rules(volcano="whole"))
        control_plane.wait(lambda: fleet.numbers()[0] == "2", 60, "the counts")
        drained(agents, "n1")
        control_plane.wait(lambda: "a member on n2, which opted out" in one.log, 15, "the refusal")
        time.sleep(1.5)
        assert fleet.pods() == both
        fleet.label("n2", "healthd.io/opt-out", None)
        control_plane.wait(lambda: not fleet.pods(), 15, "the gang to go once the node opted in")


def test_the_next_life_of_a_gang_is_not_ended(
    control_plane: ControlPlane, fleet: Fleet, start: Start, agents: Agents
) -> None:
    """Its scheduler starts it anew on other nodes: those pods are younger than the drain, and none of it."""
    fleet.add(["n1", "n2"])
    gang(control_plane, "kueue", KUEUE, "n1", "n2")
    with control_plane.reaping():
        start(rules(kueue="whole"))
        control_plane.wait(lambda: fleet.numbers()[0] == "2", 60, "the counts")
        drained(agents, "n1")
        control_plane.wait(lambda: not fleet.pods(), 15, "the gang to go")
        time.sleep(1.1)  # the API server's times have whole seconds
        again = gang(control_plane, "kueue", KUEUE, "n2", "n2")
        time.sleep(2.0)
        assert fleet.pods() == again


LABELS: dict[str, tuple[dict[str, str], tuple[str, str]]] = {
    "jobset": (
        {"jobset.sigs.k8s.io/jobset-name": "train", "jobset.sigs.k8s.io/replicatedjob-name": "w"},
        ("batch/v1", "Job"),
    ),
    "pytorchjob": (
        {"training.kubeflow.org/job-name": "train", "training.kubeflow.org/replica-type": "worker"},
        ("kubeflow.org/v1", "PyTorchJob"),
    ),
    "hyperpod": ({}, ("sagemaker.amazonaws.com/v1", "HyperPodPyTorchJob")),
    "indexed": (
        {"batch.kubernetes.io/job-name": "train", "batch.kubernetes.io/job-completion-index": "0"},
        ("batch/v1", "Job"),
    ),
    "site": ({"example.com/job": "train"}, ("example.com/v1", "Sweep")),
    "alone": ({"ray.io/cluster": "alone"}, ("ray.io/v1", "RayCluster")),
}
"""By app: what its operator puts on pods, and of which kind their owner is."""


def owners(plane: ControlPlane) -> dict[str, str]:
    """The uid of a real object of each kind that the API server knows; of the others, which no garbage collector
    can look up, any will do."""
    template = {"spec": {"containers": [{"name": "c", "image": "registry.invalid/none"}], "restartPolicy": "Never"}}
    made = plane.admin.post(
        "/apis/batch/v1/namespaces/default/jobs", {"metadata": {"name": "train"}, "spec": {"template": template}}
    ).must()
    return {"batch/v1": str(made["metadata"]["uid"])}


def worker(plane: ControlPlane, app: str, number: int, node: str, uids: dict[str, str]) -> None:
    """One pod as its operator makes it: its labels, its owner, a GPU, and a /dev/shm."""
    labels, (version, kind) = LABELS[app]
    owner = {
        "apiVersion": version,
        "kind": kind,
        "name": "train",
        "uid": uids.get(version, f"{app}-uid"),
        "controller": True,
    }
    container = {
        "name": "main",
        "image": "registry.invalid/none",
        "resources": {"limits": {"nvidia.com/gpu": "8"}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    spec = {
        "nodeName": node,
        "containers": [container],
        "terminationGracePeriodSeconds": 1,
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    meta = {"name": f"{app}-{number}", "labels": {"app": app, **labels}, "ownerReferences": [owner]}
    plane.admin.post("/api/v1/namespaces/default/pods", {"metadata": meta, "spec": spec}).must()


def test_a_gang_of_any_owner_waits_by_default_and_its_shared_memory_is_no_data(
    control_plane: ControlPlane, fleet: Fleet, start: Start, agents: Agents
) -> None:
    """Of each owner two pods on two nodes, and a rule that evicts everything without a word about gangs, shared memory
    or bare pods: none goes, and it is said why. One that is all on the node that is out goes."""
    fleet.add(["n1", "n2"])
    uids = owners(control_plane)
    try:
        for app in LABELS:
            for number, node in enumerate(("n1", "n1" if app == "alone" else "n2")):
                worker(control_plane, app, number, node, uids)
        everyone = {f"{app}-{number}" for app in LABELS for number in (0, 1) if app != "alone"}
        rule = '[[controller.drain]]\nname = "all"\nmode = "evict"\n'
        with control_plane.reaping():
            one = start(f'gang_labels = ["example.com/job"]\n[budget]\nmax_out = 2\n{rule}')
            control_plane.wait(lambda: fleet.numbers()[0] == "2", 60, "the counts")
            drained(agents, "n1")
            control_plane.wait(lambda: fleet.pods() == everyone, 15, "the gang that is all here to go")
            time.sleep(1.5)
            assert fleet.pods() == everyone
            for words in ("JobSet", "Kubeflow", "HyperPodPyTorchJob", "Job", "gang_labels"):
                why = f"of {words} has 1 members on other nodes"
                control_plane.wait(lambda why=why: why in one.log, 15, why)  # type: ignore[misc]
    finally:
        at_once = {"propagationPolicy": "Background"}
        control_plane.admin.delete("/apis/batch/v1/namespaces/default/jobs/train", at_once).must()
