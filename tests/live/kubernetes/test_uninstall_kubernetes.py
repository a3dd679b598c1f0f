"""`healthd uninstall` on a real API server, with the rights that the chart's hook gives it and no other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from healthd.remediation.orchestrators.kubernetes.objects.budget import LEASE
from healthd.remediation.orchestrators.kubernetes.objects.node import (
    OwnershipAnnotation,
    fence_patch,
    node_of,
    quarantine_patch,
)
from tests.live.kubernetes.agent_rig import ROOT, add_leases, note
from tests.live.kubernetes.control_plane import NAMESPACE, ControlPlane
from tests.live.kubernetes.hook_pods import HookPods

pytestmark = [pytest.mark.kubernetes, pytest.mark.process]

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
CONFIG = f'[orchestrator]\nkind = "kubernetes"\n[orchestrator.kubernetes]\nnamespace = "{NAMESPACE}"\n'
POD = "healthd-uninstall-1"


@pytest.fixture
def pods(control_plane: ControlPlane, tmp_path: Path) -> HookPods:
    """Three nodes: n1 is drained, n2 fenced, n3 in service and with a condition; both hold claims."""
    for name in ("n1", "n2", "n3"):
        control_plane.add_node(name)
    control_plane.add_namespace(NAMESPACE)
    control_plane.apply(ROOT / "packaging" / "kubernetes" / "uninstall.yaml")
    add_leases(control_plane, limit=2, total=3)
    claims = {
        f"claim.healthd.io/{name}": json.dumps({"node": name, "index": at}) for at, name in enumerate(("n1", "n2"))
    }
    note(control_plane, claims)
    for name in ("n1", "n9"):
        control_plane.add_health(name, status={"state": "held"}, record={"remediationID": "k3v9"})
    held = OwnershipAnnotation(text="healthd: gpu.xid.79 GPU 3", by="healthd", stamp=1)
    changed(control_plane, "n1", quarantine_patch(read(control_plane, "n1"), held, effect="NoSchedule", cordon=True))
    changed(control_plane, "n2", fence_patch(read(control_plane, "n2")))
    condition = {"type": "HealthdGPU", "status": "False", "reason": "GpuXid79", "message": "x"}
    control_plane.admin.patch("/api/v1/nodes/n3/status", {"status": {"conditions": [condition]}}).must()
    control_plane.add_pod(POD, "n3", namespace=NAMESPACE, serviceAccountName="healthd-uninstall")
    return HookPods(plane=control_plane, folder=tmp_path, node="n3")


def read(plane: ControlPlane, name: str) -> Any:
    return node_of(plane.admin.get(f"/api/v1/nodes/{name}").must())


def changed(plane: ControlPlane, name: str, patch: Any) -> None:
    plane.admin.patch(f"/api/v1/nodes/{name}", patch, kind="merge").must()


def ours(plane: ControlPlane) -> dict[str, list[str]]:
    """What of healthd's is on each Node."""
    nodes = [read(plane, name) for name in ("n1", "n2", "n3")]
    found = {
        node.name: [
            *(taint.key for taint in node.taints),
            *node.annotations,
            *(each.type for each in node.conditions if each.type.startswith("Healthd")),
            *(["cordon"] if node.unschedulable else []),
        ]
        for node in nodes
    }
    return {name: each for name, each in found.items() if each}


def test_every_node_is_let_in_and_it_may_be_done_twice(control_plane: ControlPlane, pods: HookPods) -> None:
    """Taints, cordon, annotations and conditions of healthd's are gone, its claims and records with them; the kubelet's
    own conditions are as they were. The limit stays. A second time there is nothing to do."""
    ready = [each for each in read(control_plane, "n3").conditions if not each.type.startswith("Healthd")]
    done = pods.command("healthd-uninstall", POD, ["uninstall", "--yes"], CONFIG)
    assert (done.returncode, done.stdout) == (0, "2 nodes put back in service\n"), done.stderr
    assert ours(control_plane) == {}
    assert list(read(control_plane, "n3").conditions) == ready
    assert control_plane.claims() == set()
    assert control_plane.health("n1") == control_plane.health("n9") == {}
    assert control_plane.notes(LEASE)["healthd.io/limit"] == "2"
    again = pods.command("healthd-uninstall", POD, ["uninstall", "--yes"], CONFIG)
    assert (again.returncode, again.stdout) == (0, "0 nodes put back in service\n")


def test_nothing_is_done_unless_it_is_confirmed(control_plane: ControlPlane, pods: HookPods) -> None:
    """`--dry-run` names the nodes; without a terminal and without --yes it refuses. Neither changes anything."""
    before = ours(control_plane)
    dry = pods.command("healthd-uninstall", POD, ["uninstall", "--dry-run"], CONFIG)
    assert dry.returncode == 0, dry.stderr
    assert dry.stdout == (
        "n1  healthd.io/unhealthy\nn2  healthd.io/claimed\n"
        "2 nodes would be put back in service; healthd has written to 3\n"
    )
    refused = pods.command("healthd-uninstall", POD, ["uninstall"], CONFIG)
    assert "refusing to act without confirmation" in refused.stderr
    assert refused.returncode != 0
    assert ours(control_plane) == before
    assert control_plane.claims() == {"n1", "n2"}


@pytest.fixture
def untouchable(control_plane: ControlPlane) -> Iterator[str]:
    """A node that a policy of somebody else's lets nobody write."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]}
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "request.name != 'n2'", "message": "n2 is mine"}],
    }
    policies, bindings = f"{ADMISSION}/validatingadmissionpolicies", f"{ADMISSION}/validatingadmissionpolicybindings"
    control_plane.admin.post(policies, {"metadata": {"name": "mine"}, "spec": spec}).must()
    bound = {"policyName": "mine", "validationActions": ["Deny"]}
    control_plane.admin.post(bindings, {"metadata": {"name": "mine"}, "spec": bound}).must()
    control_plane.wait(lambda: _is_refused(control_plane, "n2"), 30, "the policy to be in force")
    yield "n2"
    for path in (bindings, policies):
        control_plane.admin.delete(f"{path}/mine").must()
    # The server denies for a moment what the policy did: the next test's n2 is another.
    control_plane.wait(lambda: not _is_refused(control_plane, "n2"), 30, "the policy to be gone")


def _is_refused(plane: ControlPlane, node: str) -> bool:
    """Whether admission refuses a write of this Node."""
    patch = {"metadata": {"labels": {"a": "b"}}}
    return plane.admin.patch(f"/api/v1/nodes/{node}?dryRun=All", patch, kind="merge").status == 422


def test_a_node_that_cannot_be_let_in_is_named_and_keeps_its_claim(
    control_plane: ControlPlane, pods: HookPods, untouchable: str
) -> None:
    """The others are let in; exit 1 with the server's own words, so that `helm uninstall` stops and says so."""
    done = pods.command("healthd-uninstall", POD, ["uninstall", "--yes"], CONFIG)
    assert done.returncode == 1
    assert "n2  NOT cleared" in done.stdout
    assert "n2 is mine" in done.stdout
    assert ours(control_plane) == {"n2": ["healthd.io/claimed"]}
    assert control_plane.claims() == {"n2"}
