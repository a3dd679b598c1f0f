"""The Helm chart on a real API server: each manifest is accepted, and an installed one holds a fleet to its budget."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from healthd.remediation.orchestrators.kubernetes.api import FIELD_MANAGER
from healthd.remediation.orchestrators.kubernetes.objects import budget as kube_budget
from healthd.remediation.orchestrators.kubernetes.objects import node as kube_node
from tests.live.kubernetes.api_client import Answer
from tests.live.kubernetes.control_plane import ControlPlane
from tests.live.kubernetes.find_binaries import Unavailable, program
from tests.packaging.chart import CHART, IMAGE, KUBERNETES, helm
from tests.support.limits import limit_s

pytestmark = pytest.mark.kubernetes

NAMESPACE = "gpu-health"
AN_IMAGE: Mapping[str, Any] = {"image": {"repository": IMAGE}}
EVERYTHING: Mapping[str, Any] = {
    **AN_IMAGE,
    "mode": "quarantine",
    "controller": {"enabled": True, "evict": True, "karpenter": True},
    "budget": {"scopes": {"p5": {"limit": 2, "nodes": 64}}},
    "metrics": {"enabled": True},
    "flowSchema": {"enabled": True},
    "config": {"orchestrator": {"kubernetes": {"taint_effect": "NoExecute"}}},
}
# Another namespace than the chart's default, a budget by hand, and no platform that takes orders from labels.
INSTALLED: Mapping[str, Any] = {
    **AN_IMAGE,
    "mode": "quarantine",
    "budget": {"limit": 1, "nodes": 3},
}


@pytest.fixture(scope="module")
def kubectl() -> str:
    try:
        return str(program("kubectl"))
    except Unavailable as error:
        pytest.skip(str(error))


def ran(argv: list[str], given: str = "") -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HELM_", "KUBE"))}
    return subprocess.run(
        argv, check=False, input=given, capture_output=True, text=True, timeout=limit_s(90), env=environ
    )


@pytest.mark.parametrize(
    "values",
    [None, AN_IMAGE, {**AN_IMAGE, "profile": "restricted"}, EVERYTHING],
    ids=["static", "full", "restricted", "everything"],
)
def test_the_api_server_accepts_every_manifest(
    control_plane: ControlPlane, kubectl: str, values: Mapping[str, Any] | None
) -> None:
    """`kubectl apply --dry-run=server` takes static.yaml and the chart in each profile, with everything on as well: all
    fields are known to the server, strictly, and every CEL expression compiles."""
    text = (KUBERNETES / "static.yaml").read_text(encoding="utf-8")
    if values is not None:
        argv = [helm(), "template", "healthd", str(CHART), "-n", "healthd", "--values", "-"]
        done = ran([*argv, "--kube-version", control_plane.version], json.dumps(values))
        assert done.returncode == 0, done.stderr
        text = done.stdout
    argv = [kubectl, f"--kubeconfig={control_plane.kubeconfig}", "apply", "--dry-run=server", "--validate=strict"]
    done = ran([*argv, "--force-conflicts", "--server-side", "-f", "-"], text)
    assert done.returncode == 0, done.stderr
    accepted = [line for line in done.stdout.splitlines() if "(server dry run)" in line]
    assert len(accepted) == text.count("\nkind: ") - text.count("\nkind: List"), done.stdout + done.stderr


def test_the_api_server_refuses_what_is_misspelt(control_plane: ControlPlane, kubectl: str) -> None:
    """The dry run is one: a field that the server does not know fails it."""
    text = (KUBERNETES / "static.yaml").read_text(encoding="utf-8").replace("maxUnavailable:", "maxUnavailible:")
    argv = [kubectl, f"--kubeconfig={control_plane.kubeconfig}", "apply", "--dry-run=server", "--validate=strict"]
    done = ran([*argv, "--force-conflicts", "--server-side", "-f", "-"], text)
    assert done.returncode != 0
    assert "maxUnavailible" in done.stderr


def test_the_example_is_accepted(control_plane: ControlPlane, kubectl: str) -> None:
    """The pre-flight pod is a valid Pod."""
    path = KUBERNETES / "examples" / "preflight-pod.yaml"
    argv = [kubectl, f"--kubeconfig={control_plane.kubeconfig}", "apply", "--dry-run=server", "--validate=strict"]
    done = ran([*argv, "-f", str(path)])
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------------------------------------------------------------
# installed


class Release(Struct, frozen=True, kw_only=True):
    """healthd as Helm installed it, on a cluster with three nodes."""

    plane: ControlPlane
    values: Path

    def helm(self, *words: str) -> str:
        done = ran([helm(), f"--kubeconfig={self.plane.kubeconfig}", "--namespace", NAMESPACE, *words])
        assert done.returncode == 0, done.stderr
        return done.stdout

    def lease(self, name: str = kube_budget.LEASE) -> dict[str, Any]:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{name}"
        return self.plane.admin.get(path).must()

    def as_agent(self, node: str, path: str, patch: Mapping[str, Any], kind: Any = "merge") -> Answer:
        """What the server answers this node's agent, as the DaemonSet's pod there."""
        client = self.plane.client(self._token(node))
        answer = client.patch(f"{path}{'&' if '?' in path else '?'}fieldManager={FIELD_MANAGER}", patch, kind=kind)
        client.close()
        return answer

    def claim(self, node: str) -> Answer:
        note = json.dumps({"node": node, "index": 0})
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{kube_budget.LEASE}"
        return self.as_agent(node, lease, {"metadata": {"annotations": {kube_budget.key_of(node): note}}})

    def taint(self, node: str, *, dry_run: bool = False) -> Answer:
        taints = [{"key": kube_node.UNHEALTHY, "value": "gpu.xid.79", "effect": "NoSchedule"}]
        query = "?dryRun=All" if dry_run else ""
        return self.as_agent(node, f"/api/v1/nodes/{node}{query}", {"spec": {"taints": taints}})

    def _token(self, node: str) -> str:
        name, admin = f"healthd-agent-{node}", self.plane.admin
        if admin.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}").status == 404:
            self.plane.add_pod(name, node, namespace=NAMESPACE, serviceAccountName="healthd-agent")
        pod = admin.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}").must()
        bound = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod["metadata"]["uid"]}
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/healthd-agent/token"
        made = admin.post(path, {"spec": {"expirationSeconds": 3600, "boundObjectRef": bound}}).must()
        return str(made["status"]["token"])


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """A control plane of its own: the shared one has agents' rights and policies already."""
    try:
        plane = ControlPlane()
    except Unavailable as error:
        pytest.skip(f"no control plane of Kubernetes here: {error}")
    with plane:
        values = tmp_path_factory.mktemp("release") / "values.json"
        values.write_text(json.dumps(INSTALLED))
        for node in ("n1", "n2", "n3"):
            plane.add_node(node)
        made = Release(plane=plane, values=values)
        made.helm("install", "healthd", str(CHART), "--create-namespace", "--values", str(values))
        _wait_for_policies(made)
        yield made


def _wait_for_policies(release: Release) -> None:
    """The server takes a moment to compile them; until then a foreign node can be written."""
    until_s = time.monotonic() + limit_s(30)
    patch = {"metadata": {"labels": {"healthd.io/probe": "1"}}}
    foreign = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{kube_budget.LEASE}?dryRun=All"
    limit = {"metadata": {"annotations": {kube_budget.LIMIT: "9"}}}
    while (
        release.as_agent("n1", "/api/v1/nodes/n2?dryRun=All", patch).ok
        or release.as_agent("n1", foreign, limit).ok
        or release.taint("n1", dry_run=True).ok
    ):
        assert time.monotonic() < until_s, "the policies are not in force after 60 s"
        time.sleep(0.2)


def test_an_installed_agent_is_held_to_its_node_and_the_budget(release: Release) -> None:
    """By the rights and policies that Helm installed, in another namespace and without platform labels: no taint before
    its claim, no claim beyond the limit, nothing on another node, no label that a platform takes for an order."""
    assert "has no claim on the budget" in release.taint("n1").message
    assert release.claim("n1").ok
    until_s = time.monotonic() + limit_s(10)  # the server sees a claim through a cache
    while not (answer := release.taint("n1")).ok:
        assert time.monotonic() < until_s, answer.message
        time.sleep(0.1)
    assert "budget exhausted: 1 of 1" in release.claim("n2").message
    other = release.as_agent("n2", "/api/v1/nodes/n3", {"metadata": {"labels": {"healthd.io/x": "1"}}})
    assert "may not write node n3" in other.message
    pause = {"metadata": {"labels": {"nvidia.com/gpu.deploy.device-plugin": "paused-for-gpu-reset"}}}
    assert "may only change the labels" in release.as_agent("n1", "/api/v1/nodes/n1", pause).message
    order = {"metadata": {"labels": {"sagemaker.amazonaws.com/node-health-status": "UnschedulablePendingReplacement"}}}
    assert "may only change the labels" in release.as_agent("n1", "/api/v1/nodes/n1", order).message


def test_every_expression_has_the_types_that_it_needs(release: Release) -> None:
    """The server's own type check has no word against the policies, with empty lists of platform labels either."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    found: list[dict[str, Any]] = []

    def all_checked() -> bool:
        found[:] = release.plane.admin.get(path).must()["items"]
        return all("typeChecking" in each.get("status", {}) for each in found)

    release.plane.wait(all_checked, 60, "the policies to be type-checked")
    assert {each["metadata"]["name"]: each["status"]["typeChecking"] for each in found} == {
        "healthd-agent-claim-first": {},
        "healthd-agent-events": {},
        "healthd-agent-node-health": {},
        "healthd-agent-own-node": {},
        "healthd-budget": {},
        "healthd-controller-domain-fence": {},
    }


MODE: Mapping[str, Any] = {"remediation": {"mode": "quarantine"}}
STOPPED: Mapping[str, Any] = {"env": {"HEALTHD_REMEDIATION_MODE": "observe"}}


@pytest.mark.parametrize(
    ("values", "mode", "observes"),
    [
        ({}, "observe", True),
        ({"mode": "approve"}, "approve", False),
        ({"config": MODE}, "quarantine", False),
        ({"config": {"match": {"10-p5": {"host": ["p5-*"], **MODE}}}}, "observe", False),
        ({"config": {**MODE, "match": {"10-p5": {"host": ["p5-*"], **MODE}}}, "agent": STOPPED}, "observe", True),
    ],
)
def test_the_notes_name_the_mode_that_is_installed(
    release: Release, tmp_path: Path, values: Mapping[str, Any], mode: str, observes: bool
) -> None:
    """By `mode`, or by what stands over it; that nothing is written, only where that is so of each node."""
    path = tmp_path / "values.json"
    path.write_text(json.dumps({**INSTALLED, "mode": "observe", **values}))
    said = release.helm("upgrade", "healthd", str(CHART), "--dry-run=server", "--values", str(path))
    notes = said.partition("\nNOTES:\n")[2]
    assert f": mode {mode}, profile full" in notes
    assert ("healthd writes only conditions" in notes) is observes


def test_an_upgrade_keeps_the_claims(release: Release) -> None:
    """`helm upgrade` changes the limit and the configuration, and no claim of a node that is out is lost."""
    release.claim("n1").must()
    release.helm("upgrade", "healthd", str(CHART), "--values", str(release.values), "--set", "budget.limit=2")
    notes = release.lease()["metadata"]["annotations"]
    assert notes[kube_budget.FIXED_LIMIT] == "2"
    assert kube_budget.key_of("n1") in notes
    assert release.claim("n2").ok


def test_an_uninstallation_leaves_the_claims(release: Release) -> None:
    """Without its hook, which lets the nodes in: the Leases and the NodeHealths are kept, every right is gone, and the
    release can be installed again."""
    release.helm("uninstall", "healthd", "--no-hooks")
    assert kube_budget.FIXED_LIMIT in release.lease()["metadata"]["annotations"]
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    assert release.plane.admin.get(f"{crds}/nodehealths.healthd.io").ok
    roles = release.plane.admin.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/healthd-agent")
    assert roles.status == 404
    release.helm("install", "healthd", str(CHART), "--values", str(release.values))
    assert kube_budget.FIXED_LIMIT in release.lease()["metadata"]["annotations"]
