"""What healthd relies on of a real API server, shown on one; and that the fixture's own tools do what they say."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from healthd.remediation.orchestrators.kubernetes.api import FIELD_MANAGER
from tests.live.kubernetes.api_client import ApiClient
from tests.live.kubernetes.control_plane import ControlPlane, agent_pod
from tests.support.limits import limit_s

pytestmark = pytest.mark.kubernetes

NODE = "/api/v1/nodes/n1"
THEIRS = {"key": "example.com/theirs", "value": "yes", "effect": "NoSchedule"}
OURS = {"key": "healthd.io/unhealthy", "value": "gpu.xid.79", "effect": "NoSchedule"}
UNHEALTHY = {"type": "HealthdGpu", "status": "True", "reason": "XidSeventyNine", "message": "gpu 3 is off the bus"}


@pytest.fixture
def admin(control_plane: ControlPlane) -> ApiClient:
    """The administrator of a control plane with one node, n1."""
    control_plane.add_node("n1")
    return control_plane.admin


def conditions(node: dict[str, Any]) -> dict[str, str]:
    return {each["type"]: each["status"] for each in node["status"]["conditions"]}


def taints(node: dict[str, Any]) -> set[str]:
    return {each["key"] for each in node["spec"].get("taints", [])}


# ---------------------------------------------------------------------------------------------------------------------
# patches


def test_a_strategic_merge_of_conditions_keeps_those_of_others(admin: ApiClient) -> None:
    """Conditions are merged by type: ours appears, Ready and the kubelet's other three stay as they were."""
    before = admin.get(NODE).must()["status"]["conditions"]
    after = admin.patch(f"{NODE}/status", {"status": {"conditions": [UNHEALTHY]}}).must()["status"]["conditions"]
    assert [each for each in after if each["type"] != "HealthdGpu"] == before
    assert [each["status"] for each in after if each["type"] == "HealthdGpu"] == ["True"]


def test_a_merge_patch_of_conditions_wipes_ready(admin: ApiClient) -> None:
    """The same body as a JSON merge patch replaces the list, and the server lets that happen."""
    node = admin.patch(f"{NODE}/status", {"status": {"conditions": [UNHEALTHY]}}, kind="merge").must()
    assert conditions(node) == {"HealthdGpu": "True"}


def test_a_condition_is_deleted_by_its_type(admin: ApiClient) -> None:
    """`$patch: delete` takes one condition away and no other."""
    admin.patch(f"{NODE}/status", {"status": {"conditions": [UNHEALTHY]}}).must()
    gone = {"status": {"conditions": [{"$patch": "delete", "type": "HealthdGpu"}]}}
    node = admin.patch(f"{NODE}/status", gone).must()
    assert set(conditions(node)) == {"MemoryPressure", "DiskPressure", "PIDPressure", "Ready"}


@pytest.mark.parametrize("kind", ["strategic", "merge", "apply"])
def test_taints_are_replaced_as_a_whole(admin: ApiClient, kind: Any) -> None:
    """Whatever the patch type, a taint list without theirs removes theirs."""
    admin.patch(NODE, {"spec": {"taints": [THEIRS]}}).must()
    patch = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "spec": {"taints": [OURS]}}
    query = "?fieldManager=tests&force=true" if kind == "apply" else ""
    assert taints(admin.patch(NODE + query, patch, kind=kind).must()) == {OURS["key"]}


def test_a_stale_resource_version_is_a_conflict(admin: ApiClient) -> None:
    """A patch that names the version it was made from is refused with 409 once that is not the newest."""
    version = admin.get(NODE).must()["metadata"]["resourceVersion"]
    admin.patch(NODE, {"spec": {"taints": [THEIRS]}}).must()
    answer = admin.patch(NODE, {"metadata": {"resourceVersion": version}, "spec": {"taints": [OURS]}})
    assert (answer.status, answer.body["reason"]) == (409, "Conflict")
    assert taints(admin.get(NODE).must()) == {THEIRS["key"]}


def test_twenty_who_add_taints_at_once_lose_none(control_plane: ControlPlane, admin: ApiClient) -> None:
    """Read, patch with the version read, again on 409: every writer's taint is there at the end."""

    def add(number: int) -> int:
        client = control_plane.client(control_plane.admin_token)
        for attempt in range(1, 200):
            node = client.get(NODE).must()
            mine = {"key": f"example.com/t{number}", "effect": "NoSchedule"}
            version = {"resourceVersion": node["metadata"]["resourceVersion"]}
            patch = {"metadata": version, "spec": {"taints": [*node["spec"].get("taints", []), mine]}}
            answer = client.patch(NODE, patch)
            if answer.ok:
                client.close()
                return attempt
            assert answer.status == 409, answer
        raise AssertionError("200 conflicts in a row")

    with ThreadPoolExecutor(20) as pool:
        attempts = list(pool.map(add, range(20)))
    assert taints(admin.get(NODE).must()) == {f"example.com/t{number}" for number in range(20)}
    assert max(attempts) > 1, "nobody ever met anybody: this showed nothing"


# ---------------------------------------------------------------------------------------------------------------------
# evictions


@pytest.fixture
def protected(control_plane: ControlPlane, admin: ApiClient) -> Iterator[ControlPlane]:
    """Two ready pods job-0 and job-1 on n1, of which a budget wants two; and a reaper."""
    for number in range(2):
        control_plane.add_pod(f"job-{number}", "n1")
    spec = {"minAvailable": 2, "selector": {"matchLabels": {"app": "job"}}}
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    admin.post(budgets, {"metadata": {"name": "job"}, "spec": spec}).must()
    observed = f"{budgets}/job"
    control_plane.wait(
        lambda: admin.get(observed).must().get("status", {}).get("currentHealthy") == 2, 30, "the budget to be observed"
    )
    with control_plane.reaping():
        yield control_plane


def evict(admin: ApiClient, pod: str) -> Any:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": "default"}}
    return admin.post(f"/api/v1/namespaces/default/pods/{pod}/eviction", body)


def test_an_exhausted_budget_is_a_429_with_its_cause(protected: ControlPlane) -> None:
    """The cause DisruptionBudget tells it from overload; and no Retry-After is sent."""
    answer = evict(protected.admin, "job-0")
    assert answer.status == 429
    assert [each["reason"] for each in answer.body["details"]["causes"]] == ["DisruptionBudget"]
    assert "retry-after" not in answer.headers


def test_an_evicted_pod_is_gone_after_its_grace(protected: ControlPlane) -> None:
    """A budget with room lets one go, the reaper ends it as a kubelet would, and then there is no more room."""
    budget = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/job"
    protected.admin.patch(budget, {"spec": {"minAvailable": 1}}, kind="merge").must()
    allowed = lambda: protected.admin.get(budget).must()["status"].get("disruptionsAllowed") == 1  # noqa: E731
    protected.wait(allowed, 30, "the budget to have room")
    evict(protected.admin, "job-0").must()
    path = "/api/v1/namespaces/default/pods/job-0"
    protected.wait(lambda: protected.admin.get(path).status == 404, 30, "job-0 to be gone")
    assert evict(protected.admin, "job-1").status == 429


# ---------------------------------------------------------------------------------------------------------------------
# identities


def test_a_kubelet_writes_its_own_node_only(control_plane: ControlPlane, admin: ApiClient) -> None:
    """NodeRestriction and the Node authorizer are in force, so rights on this server are what they are elsewhere."""
    control_plane.add_node("n2")
    kubelet = control_plane.acting_as("system:node:n1", "system:nodes")
    beat = {
        "status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]}
    }
    assert kubelet.patch("/api/v1/nodes/n1/status", beat).ok
    assert kubelet.patch("/api/v1/nodes/n2/status", beat).status == 403
    assert kubelet.patch("/api/v1/nodes/n1", {"spec": {"taints": [OURS]}}).status == 403


def test_the_agents_token_names_its_node(control_plane: ControlPlane, admin: ApiClient) -> None:
    """The server reads the node out of a pod-bound token, and finds none in another."""
    review = "/apis/authentication.k8s.io/v1/tokenreviews"
    key = "authentication.kubernetes.io/node-name"
    bound = admin.post(review, {"spec": {"token": control_plane.agent_token("n1")}}).must()["status"]
    assert bound["user"]["username"] == "system:serviceaccount:healthd:healthd-agent"
    assert bound["user"]["extra"][key] == ["n1"]
    unbound = admin.post(review, {"spec": {"token": control_plane.unbound_token()}}).must()["status"]
    assert key not in unbound["user"].get("extra", {})


@pytest.mark.slow
def test_a_token_dies_with_its_pod(control_plane: ControlPlane, admin: ApiClient) -> None:
    """Once the pod is gone its token is answered with 401; the server remembers a good one for 10 s."""
    agent = control_plane.client(control_plane.agent_token("n1"))
    agent.get(NODE).must()
    path = f"/api/v1/namespaces/healthd/pods/{agent_pod('n1')}"
    admin.delete(path, {"gracePeriodSeconds": 0}).must()
    control_plane.wait(lambda: agent.get(NODE).status == 401, 60, "the token to be refused")


def test_lightkube_finds_the_server_as_in_a_pod(
    control_plane: ControlPlane, admin: ApiClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library of the back end, with a pod's files and variables, patches conditions without wiping Ready."""
    from lightkube import Client, KubeConfig
    from lightkube.resources.core_v1 import NodeStatus

    folder = control_plane.account_folder(tmp_path / "account", control_plane.agent_token("n1"))
    for name, value in control_plane.pod_environment().items():
        monkeypatch.setenv(name, value)
    kubeconfig = KubeConfig.from_service_account(folder)
    with Client(kubeconfig, field_manager=FIELD_MANAGER, trust_env=False) as client:
        client.patch(NodeStatus, "n1", {"status": {"conditions": [UNHEALTHY]}})
    found = conditions(admin.get(NODE).must())
    assert (found["Ready"], found["HealthdGpu"]) == ("True", "True")


# ---------------------------------------------------------------------------------------------------------------------
# the fixture's own trouble


def test_a_killed_api_server_comes_back_with_its_data(control_plane: ControlPlane, admin: ApiClient) -> None:
    """kill -9: connections are refused; started again on the same port it knows the node and the agent's token."""
    agent = control_plane.client(control_plane.agent_token("n1"))
    control_plane.kill_api_server()
    with pytest.raises(OSError, match="refused"):
        agent.get(NODE)
    control_plane.start_api_server()
    assert agent.get(NODE).must()["metadata"]["name"] == "n1"


def test_a_hung_api_server_answers_nobody_and_then_goes_on(control_plane: ControlPlane, admin: ApiClient) -> None:
    """Stopped: a client waits until its own deadline. Resumed: the same request is answered."""
    hasty = control_plane.client(control_plane.admin_token, timeout_s=0.5)
    control_plane.hang_api_server()
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        hasty.get(NODE)
    assert 0.4 < time.monotonic() - started < limit_s(3)
    control_plane.resume_api_server()
    control_plane.wait(lambda: hasty.get(NODE).ok, 30, "an answer after the hang")


def test_reset_leaves_nothing_of_a_test_and_all_rules(control_plane: ControlPlane, admin: ApiClient) -> None:
    """Nodes, pods, budgets and leases go; the agent's rights and the policies stay."""
    control_plane.add_pod("job-0", "n1")
    control_plane.add_lease("healthd-budget", {"healthd.io/limit": "1"})
    control_plane.kill_api_server()
    control_plane.reset()
    for path in ("/api/v1/nodes", "/api/v1/pods", "/apis/coordination.k8s.io/v1/namespaces/healthd/leases"):
        assert admin.get(path).must()["items"] == []
    policies = admin.get("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies").must()["items"]
    assert {each["metadata"]["name"] for each in policies} == {
        "healthd-agent-claim-first",
        "healthd-agent-events",
        "healthd-agent-node-health",
        "healthd-agent-own-node",
        "healthd-budget",
        "healthd-controller-domain-fence",
    }
