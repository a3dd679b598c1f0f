"""A pod that a fault of its node ends, and the Job's real controller: evicted in time it does not count."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.live.kubernetes.agent_rig import Agents, install_policies
from tests.live.kubernetes.control_plane import CONTROLLER_NAMES, ControlPlane
from tests.live.kubernetes.find_binaries import Unavailable
from tests.live.kubernetes.fleet_controller import Fleet, FleetController, Start, drained

pytestmark = [pytest.mark.kubernetes, pytest.mark.process]
EXAMPLE = Path(__file__).resolve().parents[3] / "packaging/kubernetes/examples/training-job.yaml"
JOB = "/apis/batch/v1/namespaces/default/jobs/training"
RULES = """
[budget]
max_out = 2
[[controller.drain]]
name = "dead"
mode = "evict"
labels = ["app=trainer"]
ends_process = true
[[controller.drain]]
name = "training"
mode = "complete"
labels = ["app=trainer"]
"""
NOT_FATAL = "healthd: gpu.remap.failure gpu:GPU-8e2f [m2x7]"


@pytest.fixture(scope="module")
def shared_control_plane() -> Iterator[ControlPlane]:
    """One with the Job's controller, which that of the other tests leaves out."""
    try:
        plane = ControlPlane(controllers=(*CONTROLLER_NAMES, "job-controller"))
    except Unavailable as error:
        pytest.skip(f"no control plane of Kubernetes here: {error}")
    with plane:
        install_policies(plane)
        yield plane


@pytest.fixture(autouse=True)
def _without_job(control_plane: ControlPlane) -> Iterator[None]:
    """Its controller would start pods again while the next test clears them away."""
    yield
    control_plane.admin.delete(JOB, {"propagationPolicy": "Background"})
    control_plane.wait(lambda: control_plane.admin.get(JOB).status == 404, 60, "the Job to be gone")


def pods(plane: ControlPlane) -> list[dict[str, Any]]:
    items = plane.admin.get("/api/v1/namespaces/default/pods?labelSelector=app%3Dtrainer").must()["items"]
    return list(items)


def counted(plane: ControlPlane, fleet: Fleet, start: Start) -> FleetController:
    """A controller that has counted two nodes."""
    fleet.add(["n1", "n2"])
    controller = start(RULES)
    plane.wait(lambda: fleet.numbers()[0] == "2", 60, "the counts")
    return controller


def submitted(plane: ControlPlane, node: str) -> str:
    """The example's Job, its first pod bound to this node, and the name of that pod."""
    plane.admin.post(JOB.rpartition("/")[0], yaml.safe_load(EXAMPLE.read_text())).must()
    plane.wait(lambda: len(pods(plane)) == 1, 60, "the Job's first pod")
    name = str(pods(plane)[0]["metadata"]["name"])
    target = {"metadata": {"name": name}, "target": {"apiVersion": "v1", "kind": "Node", "name": node}}
    plane.admin.post(f"/api/v1/namespaces/default/pods/{name}/binding", target).must()
    status = {"phase": "Running"}
    plane.admin.patch(f"/api/v1/namespaces/default/pods/{name}/status", {"status": status}).must()
    return name


def ends(plane: ControlPlane, name: str, code: int) -> None:
    """What a kubelet reports of a pod whose container has ended with this code."""
    ended = {
        "terminated": {
            "exitCode": code,
            "reason": "Error" if code else "Completed",
            "finishedAt": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        }
    }
    spec = plane.admin.get(f"/api/v1/namespaces/default/pods/{name}").must()["spec"]
    container = {
        "name": spec["containers"][0]["name"],
        "image": "i",
        "imageID": "i",
        "ready": False,
        "restartCount": 0,
        "state": ended,
    }
    status = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [container]}
    plane.admin.patch(f"/api/v1/namespaces/default/pods/{name}/status", {"status": status}).must()


def conditions(plane: ControlPlane, path: str) -> set[str]:
    """The types of the conditions that are True."""
    found = plane.admin.get(path).must()["status"].get("conditions") or []
    return {each["type"] for each in found if each["status"] == "True"}


def notes(plane: ControlPlane, pod: str) -> list[str]:
    items = plane.admin.get("/apis/events.k8s.io/v1/namespaces/default/events").must()["items"]
    return [each["note"] for each in items if (each["reason"], each["regarding"]["name"]) == ("NodeFault", pod)]


def test_a_pod_that_is_evicted_with_its_nodes_fault_does_not_count(
    control_plane: ControlPlane, fleet: Fleet, start: Start, agents: Agents
) -> None:
    """It has DisruptionTarget before it fails and an Event; the Job goes on with another pod, with a backoffLimit of
    0."""
    counted(control_plane, fleet, start)
    name = submitted(control_plane, "n1")
    path = f"/api/v1/namespaces/default/pods/{name}"
    drained(agents, "n1")
    control_plane.wait(lambda: "DisruptionTarget" in conditions(control_plane, path), 30, "the eviction")
    control_plane.wait(lambda: notes(control_plane, name), 15, "the Event")
    ends(control_plane, name, 137)
    control_plane.wait(lambda: {each["metadata"]["name"] for each in pods(control_plane)} - {name}, 60, "another pod")
    assert "Failed" not in conditions(control_plane, JOB)
    assert control_plane.admin.get(JOB).must()["status"].get("failed", 0) == 0
    (note,) = notes(control_plane, name)
    assert note.startswith("evicted from n1, which has gpu.xid.79 on gpu:"), note


def test_a_pod_whose_eviction_got_no_answer_has_an_event(
    control_plane: ControlPlane, fleet: Fleet, start: Start, agents: Agents
) -> None:
    """A controller that was killed, or timed out, right after its request finds the pod as one that is going."""
    counted(control_plane, fleet, start)
    name = submitted(control_plane, "n1")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}
    control_plane.admin.post(f"/api/v1/namespaces/default/pods/{name}/eviction", eviction).must()
    drained(agents, "n1")
    control_plane.wait(lambda: notes(control_plane, name), 30, "the Event")
    assert notes(control_plane, name)[0].startswith("evicted from n1, which has gpu.xid.79 on gpu:")


def test_a_pod_that_fails_before_its_eviction_counts_and_has_an_event(
    control_plane: ControlPlane, fleet: Fleet, start: Start, agents: Agents
) -> None:
    """The counterpart: without the condition the same Job has failed. The Event says whose fault it was."""
    counted(control_plane, fleet, start)
    name = submitted(control_plane, "n1")
    ends(control_plane, name, 1)
    control_plane.wait(lambda: "Failed" in conditions(control_plane, JOB), 60, "the Job to have failed")
    drained(agents, "n1")
    control_plane.wait(lambda: notes(control_plane, name), 30, "the Event")
    assert notes(control_plane, name)[0].startswith("failed on n1, which has gpu.xid.79 on gpu:")


def test_a_fault_that_ends_no_process_evicts_nothing(
    control_plane: ControlPlane, fleet: Fleet, start: Start, agents: Agents
) -> None:
    """The rule is passed over, and the next one waits for the pod's end."""
    one = counted(control_plane, fleet, start)
    name = submitted(control_plane, "n1")
    agent = agents("n1")
    agent.claim("cluster", 0)
    agent.quarantine(NOT_FATAL)
    control_plane.wait(lambda: "healthd waits for its end, rule training" in one.log, 30, "the next rule")
    assert "DisruptionTarget" not in conditions(control_plane, f"/api/v1/namespaces/default/pods/{name}")
    assert notes(control_plane, name) == []
