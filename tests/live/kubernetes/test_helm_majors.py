"""The chart's whole life on a real API server, by both majors of Helm and by kubectl: installed, upgraded, its
controller switched on and off, rolled back, uninstalled, installed again.

Helm 3 merges what it wrote with what is there, Helm 4 applies on the server as the manager of its fields, which refuses
to change a field that another manager wrote. The other managers write here as they do in a cluster: an agent its claim,
the controller its counts and its lead.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from healthd.remediation.orchestrators.kubernetes.objects import budget as kube_budget
from healthd.remediation.orchestrators.kubernetes.objects.budget import budget_of
from healthd.remediation.orchestrators.kubernetes.objects.node import (
    OwnershipAnnotation,
    fence_patch,
    node_of,
    quarantine_patch,
)
from tests.live.kubernetes.control_plane import HEALTHS, LEASES, NAMESPACE, ControlPlane
from tests.live.kubernetes.find_binaries import Unavailable, program
from tests.live.kubernetes.hook_pods import HookPods
from tests.live.kubernetes.howto_blocks import BLOCKS, has_helm, lines_of
from tests.packaging.chart import CHART, IMAGE, KUBERNETES, ROOT
from tests.support.limits import limit_s
from tests.support.pages import Block

pytestmark = pytest.mark.kubernetes
PROGRAMS = ("helm4", "kubectl")

QUARANTINE: Mapping[str, Any] = {
    "image": {"repository": IMAGE},
    "mode": "quarantine",
    "budget": {"limit": 5, "nodes": 100},
}
COUNTING: Mapping[str, Any] = {
    "image": {"repository": IMAGE},
    "mode": "quarantine",
    "controller": {"enabled": True},
}
COUNTED = {
    kube_budget.LIMIT: "3",
    kube_budget.NODES: "60",
    kube_budget.OUT: "n7",
    kube_budget.COUNTED: "2026-11-22T09:00:00Z",
}


class Cluster(Struct, frozen=True, kw_only=True):
    """A cluster and one tool that installs there."""

    plane: ControlPlane
    tool: Path
    folder: Path

    def run(self, *words: str, **values: Any) -> str:
        """One command of Helm, which must succeed."""
        argv = [str(self.tool), f"--kubeconfig={self.plane.kubeconfig}", "--namespace", NAMESPACE, *words]
        if values:
            (self.folder / "values.json").write_text(json.dumps(values), encoding="utf-8")
            argv += ["--values", str(self.folder / "values.json")]
        return self.ran(argv)

    def ran(self, argv: list[str]) -> str:
        """A command without any setting of whoever runs the tests; it must succeed."""
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("HELM_", "KUBE"))}
        homes = {f"HELM_{kind}_HOME": str(self.folder / kind) for kind in ("CACHE", "CONFIG", "DATA")}
        done = subprocess.run(
            argv, check=False, capture_output=True, text=True, timeout=limit_s(90), env={**kept, **homes}
        )
        assert done.returncode == 0, f"{' '.join(argv[3:])}\n{done.stderr}"
        return done.stdout

    def types(self, line: str) -> None:
        """A command of a page as it stands there, in a checkout beside the operator's own values."""
        programs = self.folder / "bin"
        programs.mkdir(exist_ok=True)
        links = {"bin/helm": self.tool, "bin/kubectl": program("kubectl"), "packaging": ROOT / "packaging"}
        for name, path in links.items():
            (self.folder / name).unlink(missing_ok=True)
            (self.folder / name).symlink_to(path)
        homes = {f"HELM_{kind}_HOME": str(self.folder / kind) for kind in ("CACHE", "CONFIG", "DATA")}
        own = {"KUBECONFIG": str(self.plane.kubeconfig), "HOME": str(self.folder), "PATH": f"{programs}:/usr/bin:/bin"}
        argv = ["sh", "-c", line]
        done = subprocess.run(
            argv,
            cwd=self.folder,
            env={**homes, **own},
            check=False,
            capture_output=True,
            text=True,
            timeout=limit_s(90),
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"

    def note(self, lease: str, manager: str, body: Mapping[str, Any]) -> None:
        """A merge patch of a Lease, as agents and controller write."""
        path = f"{LEASES}/{lease}?fieldManager={manager}"
        self.plane.admin.patch(path, body, kind="merge").must()

    def claim(self, node: str) -> None:
        """A node is out."""
        claim = json.dumps({"node": node, "index": 0})
        self.note(kube_budget.LEASE, "healthd-agent", {"metadata": {"annotations": {kube_budget.key_of(node): claim}}})

    def count(self) -> None:
        """The controller leads, and has counted just now."""
        now = {kube_budget.COUNTED: f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"}
        self.note(kube_budget.LEASE, "healthd-controller", {"metadata": {"annotations": COUNTED | now}})
        self.note("healthd-controller", "healthd-controller", {"spec": {"holderIdentity": "x"}})

    def budget(self) -> kube_budget.Budget:
        """As an agent reads it."""
        return budget_of("cluster", self.plane.admin.get(f"{LEASES}/{kube_budget.LEASE}").must())

    def claims(self) -> set[str]:
        """Who holds a place."""
        return self.plane.claims()

    def limit_and_claims(self) -> tuple[int, set[str]]:
        """What must never be lost."""
        budget = self.budget()
        return budget.limit, {claim.node for claim in budget.claims.values()}


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A control plane of their own: the shared one has agents' rights and policies already."""
    try:
        made = ControlPlane()
    except Unavailable as error:
        pytest.skip(str(error))
    with made:
        yield made


@pytest.fixture
def cluster(request: pytest.FixtureRequest, plane: ControlPlane, tmp_path: Path) -> Iterator[Cluster]:
    """With one tool; nothing of healthd is there before, nor after."""
    try:
        tool = program(request.param)
    except Unavailable as error:
        pytest.skip(str(error))
    plane.add_namespace(NAMESPACE)
    yield Cluster(plane=plane, tool=tool, folder=tmp_path)
    _remove_everything(plane)


def _remove_everything(plane: ControlPlane) -> None:
    plane.admin.delete("/api/v1/nodes").must()
    plane.admin.delete(HEALTHS).must()
    at_once = {"gracePeriodSeconds": 0}  # no kubelet ends them
    plane.admin.delete(f"/api/v1/namespaces/{NAMESPACE}/pods", at_once).must()
    named = "labelSelector=app.kubernetes.io/name=healthd"
    for path in _CLUSTER_WIDE:
        plane.admin.delete(f"{path}?{named}").must()
    for path in ("validatingadmissionpolicies", "validatingadmissionpolicybindings"):
        plane.admin.delete(f"/apis/admissionregistration.k8s.io/v1/{path}").must()
    plane.admin.delete(f"/api/v1/namespaces/{NAMESPACE}").must()
    gone = lambda: plane.admin.get(f"/api/v1/namespaces/{NAMESPACE}").status == 404  # noqa: E731 - one expression
    plane.wait(gone, 60, "the namespace to be gone")
    kind = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodehealths.healthd.io"
    plane.wait(lambda: plane.admin.get(kind).status == 404, 60, "NodeHealths and their kind to be gone")


_CLUSTER_WIDE = (
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles",
    "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
)
HELMS = pytest.mark.parametrize("cluster", ["helm", "helm4"], indirect=True)


@HELMS
def test_a_release_lives_through_everything_and_keeps_its_claims(cluster: Cluster) -> None:
    """Each step is one that operators take. After each the limit is the one that its values ask for, and the node that
    is out holds its claim; an uninstallation without hooks leaves it as it is for the next, and the NodeHealths."""
    run = cluster.run
    run("install", "healthd", str(CHART), image={"repository": IMAGE})
    assert cluster.limit_and_claims() == (0, set())
    run("upgrade", "healthd", str(CHART), **QUARANTINE)
    cluster.claim("n1")
    cluster.plane.wait(lambda: cluster.plane.admin.get(HEALTHS).ok, 30, "NodeHealths to be served")
    cluster.plane.add_health("n1", record={"remediationID": "k3v9"})
    assert cluster.limit_and_claims() == (5, {"n1"})
    run("upgrade", "healthd", str(CHART), **COUNTING)
    cluster.count()
    assert cluster.limit_and_claims() == (3, {"n1"})
    run("upgrade", "healthd", str(CHART), **COUNTING, config={"remediation": {"settle_s": 31}})
    assert cluster.limit_and_claims() == (3, {"n1"})
    run("upgrade", "healthd", str(CHART), **QUARANTINE)
    assert cluster.limit_and_claims() == (5, {"n1"}), "the controller is off, and what it counted is old"
    assert cluster.budget().counted is None
    run("rollback", "healthd")
    assert cluster.limit_and_claims() == (3, {"n1"})
    run("uninstall", "healthd", "--no-hooks")
    assert cluster.budget().claims
    assert cluster.plane.record("n1") == {"remediationID": "k3v9"}
    run("install", "healthd", str(CHART), **QUARANTINE)
    assert cluster.limit_and_claims() == (5, {"n1"})
    run("uninstall", "healthd", "--no-hooks")
    run("install", "healthd", str(CHART), **COUNTING)
    assert cluster.limit_and_claims() == (3, {"n1"}), "until it counts again"
    assert cluster.plane.record("n1") == {"remediationID": "k3v9"}


@HELMS
def test_the_controller_gets_a_volume_and_gives_it_back(cluster: Cluster) -> None:
    """`controller.stateClaim` set in a release that runs, as the page on the fleet's memory asks, and taken away again:
    one pod ends before the next begins while there is a volume."""
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/healthd-controller"
    kinds = []
    for more in ({}, {"stateClaim": "ledger", "replicas": 1}, {}):
        values = {**COUNTING, "controller": {"enabled": True, **more}}
        cluster.run("upgrade", "--install", "healthd", str(CHART), **values)
        kinds.append(cluster.plane.admin.get(path).must()["spec"]["strategy"]["type"])
    assert kinds == ["RollingUpdate", "Recreate", "RollingUpdate"]


@HELMS
def test_it_is_tested_and_taken_out_by_helm(cluster: Cluster, tmp_path: Path) -> None:
    """`helm test` has an agent's token find every policy in force. `helm uninstall` leaves no node kept out: a drain, a
    fence, their claims, the conditions. What a person set stays, and no right of the hook's outlives it."""
    plane = cluster.plane
    for name in ("n1", "n2", "n3"):
        plane.add_node(name)
    pods = HookPods(plane=plane, folder=tmp_path, node="n3")
    cluster.run("install", "healthd", str(CHART), **QUARANTINE)
    with pods.running():
        cluster.run("test", "healthd", "--timeout", "280s")
        (tested,) = pods.done
        assert "healthd-agent-claim-first: each refuses a forbidden write" in tested.stdout
        cluster.claim("n1")
        cluster.claim("n2")
        plane.add_health("n1", status={"state": "held"}, record={"remediationID": "k3v9"})
        held = OwnershipAnnotation(text="healthd: gpu.xid.79 GPU 3", by="healthd", stamp=1)
        node = node_of(plane.admin.get("/api/v1/nodes/n1").must())
        drained = quarantine_patch(node, held, effect="NoSchedule", cordon=True)
        plane.admin.patch("/api/v1/nodes/n1", drained, kind="merge").must()
        fenced = fence_patch(node_of(plane.admin.get("/api/v1/nodes/n2").must()))
        plane.admin.patch("/api/v1/nodes/n2", fenced, kind="merge").must()
        plane.admin.patch("/api/v1/nodes/n3", {"spec": {"unschedulable": True}}, kind="merge").must()
        cluster.run("uninstall", "healthd", "--timeout", "280s")
    nodes = {each["metadata"]["name"]: each for each in plane.admin.get("/api/v1/nodes").must()["items"]}
    left = {name: [taint["key"] for taint in each["spec"].get("taints", [])] for name, each in nodes.items()}
    assert left == {"n1": [], "n2": [], "n3": []}
    assert [name for name, each in nodes.items() if each["spec"].get("unschedulable")] == ["n3"]
    assert [key for key in nodes["n1"]["metadata"].get("annotations", {}) if "healthd" in key] == []
    assert cluster.limit_and_claims() == (5, set())
    assert plane.admin.get(HEALTHS).must()["items"] == []
    for path in (
        "apis/rbac.authorization.k8s.io/v1/clusterroles",
        "apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    ):
        assert plane.admin.get(f"/{path}/healthd-uninstall").status == 404
    cluster.run("install", "healthd", str(CHART), **QUARANTINE)


@HELMS
@pytest.mark.parametrize("block", [each for each in BLOCKS if has_helm(each)], ids=str)
def test_the_commands_of_the_pages_do_what_they_say(cluster: Cluster, block: Block, tmp_path: Path) -> None:
    """Each line of a block with Helm, as it stands on the page, on a release with a controller: a release is changed
    and its claims stay, or it is gone and every node let in. With `mode=observe` the agents are told so."""
    plane = cluster.plane
    plane.add_node("n1")
    plane.add_node("n2")
    pods = HookPods(plane=plane, folder=tmp_path, node="n2")  # n1's claim is nothing that `helm test` calls well
    cluster.run("install", "healthd", str(CHART), **COUNTING)
    (cluster.folder / "your-values.yaml").write_text(json.dumps(COUNTING), encoding="utf-8")
    cluster.count()
    cluster.claim("n1")
    with pods.running():
        for line in lines_of(block):
            cluster.types(line)
    releases = [each["name"] for each in json.loads(cluster.run("list", "--output", "json"))]
    if "uninstall" in block.text:
        assert (releases, cluster.claims()) == ([], set())
        return
    assert (releases, cluster.claims()) == (["healthd"], {"n1"})
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/healthd"
    config = plane.admin.get(path).must()["data"]["config.toml"]
    assert ('mode = "observe"' in config) is ("mode=observe" in block.text)


@pytest.mark.parametrize("cluster", ["kubectl"], indirect=True)
def test_kubectl_applies_twice(cluster: Cluster) -> None:
    """`kubectl apply --server-side` of static.yaml, again after an agent claimed and a controller counted: no conflict,
    and nothing of theirs is lost."""
    words = [str(cluster.tool), f"--kubeconfig={cluster.plane.kubeconfig}", "apply", "--server-side"]
    cluster.ran([*words, "--force-conflicts", "-f", str(KUBERNETES / "static.yaml")])  # the namespace is a test's
    cluster.claim("n1")
    cluster.note(kube_budget.LEASE, "healthd-controller", {"metadata": {"annotations": COUNTED}})
    cluster.ran([*words, "-f", str(KUBERNETES / "static.yaml")])
    notes = cluster.plane.notes()
    assert notes.items() >= COUNTED.items()
    assert cluster.limit_and_claims() == (0, {"n1"}), "static.yaml is in observe mode: none may be out"
