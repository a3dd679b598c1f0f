"""`healthd doctor` and `healthd init` of an agent on a real API server: what is there, and whatever may be missing.

The token is the agent's own, bound to a pod of its node; rights and policies are those of packaging/kubernetes.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from healthd.remediation.orchestrators.kubernetes.objects.budget import LEASE
from healthd.remediation.orchestrators.kubernetes.objects.incident_notes import INCIDENTS_LEASE
from tests.live.kubernetes.agent_node import AgentNode
from tests.live.kubernetes.agent_rig import BUDGET, ROOT, add_leases, install_policies, note, write_kubeconfig
from tests.live.kubernetes.control_plane import NAMESPACE, ControlPlane
from tests.live.kubernetes.kubelet_socket import pod

pytestmark = [pytest.mark.kubernetes, pytest.mark.process]

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodehealths.healthd.io"

ABOUT = ("Kubernetes", "token", "rights", "NodeHealth", "admission policies", "budget", "pod resources")
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
Lines = dict[str, list[dict[str, Any]]]


@pytest.fixture
def node(control_plane: ControlPlane, tmp_path: Path) -> Iterator[AgentNode]:
    control_plane.add_node("n1")
    add_leases(control_plane, limit=1, total=2)
    made = AgentNode(control_plane, "n1", tmp_path)
    with made.kubelet:
        yield made


def asked(node: AgentNode) -> Lines:
    """The lines about Kubernetes, by what they are about."""
    done = node.daemon.healthd("doctor", "--json", "--config", str(node.daemon.config), timeout_s=120)
    found: Lines = {name: [] for name in ABOUT}
    for line in json.loads(done.stdout)["lines"]:
        if line["about"] in found:
            found[line["about"]].append(line)
    return found


def told(lines: Lines) -> dict[str, str]:
    """The worst word of each, in brackets where healthd works without."""
    rank = ["ok", "not needed", "could not tell", "missing"]
    worst = {name: max(each, key=lambda line: rank.index(line["status"])) for name, each in lines.items() if each}
    return {name: f"({line['status']})" if line["optional"] else line["status"] for name, line in worst.items()}


def versions(plane: ControlPlane) -> list[str]:
    """Of everything that an agent may write."""
    leases = plane.admin.get(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases").must()["items"]
    objects = [plane.admin.get("/api/v1/nodes/n1").must(), *leases]
    return [each["metadata"]["resourceVersion"] for each in objects]


def test_an_agent_that_has_everything_misses_nothing_and_changes_nothing(
    control_plane: ControlPlane, node: AgentNode
) -> None:
    """Token, rights, all four policies, budget and kubelet; what is tried dry leaves no trace. With a claim of its own
    the policy that wants one first is not tried."""
    node.kubelet.pods.append(pod("train-1", devices={"nvidia.com/gpu": 8}))
    before = versions(control_plane)
    lines = asked(node)
    assert told(lines) == dict.fromkeys(ABOUT, "ok")
    assert versions(control_plane) == before
    assert lines["token"][0]["why"].endswith("healthd-agent, of a pod on n1")
    assert "healthd-agent-claim-first" in lines["admission policies"][0]["why"]
    assert lines["budget"][0]["why"] == "cluster: 0 of 2 nodes are out, at most 1 may be, as installed"
    assert "1 pods hold" in lines["pod resources"][0]["why"]
    note(control_plane, {"claim.healthd.io/n1": '{"node": "n1", "index": 0}'})
    lines = asked(node)
    assert told(lines)["admission policies"] == "ok"
    assert "healthd-agent-claim-first" not in lines["admission policies"][0]["why"]
    assert lines["budget"][0]["why"].startswith("cluster: 1 of 2 nodes are out")


def test_what_is_missing_of_the_budget_and_the_kubelet(control_plane: ControlPlane, node: AgentNode) -> None:
    """A count that nobody renews, a limit of none, no Lease; no socket, and one that says no."""
    note(control_plane, {"healthd.io/counted": "2026-01-01T00:00:00Z"})
    node.kubelet.hangs_s = 60
    lines = asked(node)
    assert (told(lines)["budget"], "`healthd controller` runs" in lines["budget"][0]["fix"]) == ("missing", True)
    assert told(lines)["pod resources"] == "could not tell"
    note(control_plane, {"healthd.io/counted": None, "healthd.io/limit": "0"})
    node.kubelet.hangs_s = 0
    node.daemon.config.write_text(node.daemon.config.read_text().replace("n1.sock", "none.sock"))
    lines = asked(node)
    assert "healthd takes no node out" in lines["budget"][0]["why"]
    assert (told(lines)["pod resources"], "agent.mounts" in lines["pod resources"][0]["fix"]) == ("missing", True)
    control_plane.admin.delete(BUDGET).must()
    lines = asked(node)
    assert (told(lines)["budget"], "controller.enabled" in lines["budget"][0]["fix"]) == ("missing", True)
    assert told(lines)["admission policies"] == "could not tell", "without the Lease they cannot be tried"


@contextmanager
def without(plane: ControlPlane, *paths: str) -> Iterator[None]:
    """For as long as this lasts these objects are not there. Nodes and Leases are gone after it."""
    for path in paths:
        plane.admin.delete(path).must()
    try:
        yield
    finally:
        plane.reset()
        install_policies(plane)


def test_a_right_that_is_missing_is_named(control_plane: ControlPlane, node: AgentNode) -> None:
    """Of the Events, of which one line each tells; in observe mode what only acts can be done without."""
    bindings = (
        f"{RBAC}/namespaces/default/rolebindings/healthd-agent-events",
        f"{RBAC}/namespaces/{NAMESPACE}/rolebindings/healthd-agent-budget",
    )
    with without(control_plane, *bindings):
        control_plane.wait(lambda: told(asked(node))["rights"] == "missing", 60, "the server to go by it")
        lines = asked(node)
        node.daemon.config.write_text(node.daemon.config.read_text().replace('"quarantine"', '"observe"'))
        observing = asked(node)
    words = " ".join(line["why"] for line in lines["rights"])
    assert "it may not create events in namespace default: it cannot write Events about faults" in words
    assert f"it may not patch leases healthd-budget in namespace {NAMESPACE}" in words
    assert {line["optional"] for line in lines["rights"]} == {False}
    leases = (LEASE, INCIDENTS_LEASE)
    optional = {each: line["optional"] for each in leases for line in observing["rights"] if each in line["why"]}
    assert optional == {LEASE: True, INCIDENTS_LEASE: False}, "messages are held by incidents in each mode"
    assert "agent-rbac.yaml" in lines["rights"][0]["fix"]


def test_rights_on_nodehealths_that_are_missing_are_named(control_plane: ControlPlane, node: AgentNode) -> None:
    """Each verb, and what does not work without it."""
    with without(control_plane, f"{RBAC}/clusterrolebindings/healthd-agent"):
        control_plane.wait(lambda: told(asked(node))["rights"] == "missing", 60, "the server to go by it")
        lines = asked(node)
    words = " ".join(line["why"] for line in lines["rights"])
    for verb in ("get", "create", "patch", "delete"):
        assert f"it may not {verb} nodehealths {node.name}: it cannot write its NodeHealth" in words
    assert "it may not list nodehealths: it cannot keep to the limits of the fleet" in words
    assert told(lines)["NodeHealth"] == "could not tell"


def test_a_kind_that_is_missing_is_named_with_what_brings_it(control_plane: ControlPlane, node: AgentNode) -> None:
    """The CustomResourceDefinition is not there."""
    assert told(asked(node))["NodeHealth"] == "ok"
    with without(control_plane, CRD):
        control_plane.wait(lambda: control_plane.admin.get(CRD).status == 404, 30, "the kind to be gone")
        lines = asked(node)
    (line,) = lines["NodeHealth"]
    assert lines["admission policies"][0]["fix"] == "see the line about NodeHealth"
    assert (line["status"], "does not serve nodehealths.healthd.io" in line["why"]) == ("missing", True)
    assert "nodehealths.yaml" in line["fix"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("revision:", "formerly:"), "it drops history.revision, revision from each handoff record"),
        (("refused, denied]", "refused]"), "it refuses a handoff record: "),
    ],
)
def test_a_kind_of_an_older_healthd_is_named(
    control_plane: ControlPlane, node: AgentNode, tmp_path: Path, change: tuple[str, str], why: str
) -> None:
    """Of a field that its schema lacks the server keeps nothing and says nothing; a word that it lacks, it refuses."""
    text = (ROOT / "packaging" / "kubernetes" / "nodehealths.yaml").read_text()
    assert change[0] in text
    (tmp_path / "older.yaml").write_text(text.replace(*change))
    with without(control_plane):
        control_plane.apply(tmp_path / "older.yaml")
        control_plane.wait(lambda: told(asked(node))["NodeHealth"] == "missing", 60, "the server to go by it")
        (line,) = asked(node)["NodeHealth"]
    assert f"is of another version of healthd: {why}" in line["why"]
    assert "nodehealths.yaml" in line["fix"]
    control_plane.wait(lambda: told(asked(node))["NodeHealth"] == "ok", 60, "the server to go by the newer one")


def test_a_policy_that_is_missing_is_seen_by_what_passes(control_plane: ControlPlane, node: AgentNode) -> None:
    """One of three: it is named, and the others still refuse. Nothing of what passed is kept."""
    before = versions(control_plane)
    binding = f"{ADMISSION}/validatingadmissionpolicybindings/healthd-agent-own-node"
    with without(control_plane, binding):
        control_plane.wait(lambda: told(asked(node))["admission policies"] == "missing", 60, "the policy to go")
        (line,) = asked(node)["admission policies"]
        assert versions(control_plane) == before
    assert line["why"] == "healthd-agent-own-node did not refuse a forbidden write (dry run)"
    assert "packaging/kubernetes/policies" in line["fix"]


def test_a_token_that_is_no_agents_of_this_node(control_plane: ControlPlane, node: AgentNode, tmp_path: Path) -> None:
    """Another node's, one that names no node, the administrator's: each is told as what the policies make of it."""
    control_plane.add_node("n2")
    tokens = {
        "other": control_plane.agent_token("n2"),
        "unbound": control_plane.unbound_token(),
        "admin": control_plane.admin_token,
    }
    text = node.daemon.config.read_text()
    found: dict[str, Lines] = {}
    for name, token in tokens.items():
        kubeconfig = write_kubeconfig(control_plane, "n1", tmp_path / name, token=token)
        node.daemon.config.write_text(text.replace(f"{tmp_path}/n1-account/kubeconfig", str(kubeconfig)))
        found[name] = asked(node)
    assert {name: told(lines)["token"] for name, lines in found.items()} == {
        "other": "missing",
        "unbound": "missing",
        "admin": "(missing)",
    }
    assert "a pod on n2, and this node is n1" in found["other"]["token"][0]["why"]
    assert "it names no node" in found["unbound"]["token"][0]["why"]
    assert told(found["admin"])["admission policies"] == "(could not tell)"


def test_an_api_server_that_hangs_is_no_missing_right(control_plane: ControlPlane, node: AgentNode) -> None:
    """Every question to it could not be told, in time; the kubelet is asked all the same."""
    control_plane.hang_api_server()
    try:
        lines = asked(node)
    finally:
        control_plane.resume_api_server()
    assert told(lines) == {**dict.fromkeys(ABOUT, "could not tell"), "pod resources": "ok"}
    assert "check the network to the API server" in lines["rights"][0]["fix"]


def test_init_writes_what_the_doctor_finds_nothing_wrong_with(
    control_plane: ControlPlane, node: AgentNode, tmp_path: Path
) -> None:
    """On a node of Kubernetes the file names it, in mode observe; with its own connection the doctor loads it, and sees
    the same cluster."""
    path, account = tmp_path / "etc/config.toml", tmp_path / "n1-account/kubeconfig"
    environ = {
        "HEALTHD_NODE_NAME": "n1",
        "HEALTHD_ORCHESTRATOR_KIND": "kubernetes",
        "HEALTHD_ORCHESTRATOR_KUBERNETES_KUBECONFIG": str(account),
        "HEALTHD_ORCHESTRATOR_KUBERNETES_POD_RESOURCES": str(node.kubelet.path),
    }
    done = node.daemon.healthd("init", "--output", str(path), timeout_s=120, **environ)
    assert done.returncode == 0, done.stderr
    written = tomllib.loads(path.read_text())
    assert (written["orchestrator"]["kind"], written["remediation"]["mode"]) == ("kubernetes", "observe")
    assert str(ROOT) not in path.read_text()
    node.daemon.config = path
    done = node.daemon.healthd("doctor", "--json", "--config", str(path), timeout_s=120, **environ)
    lines = {line["about"]: line for line in json.loads(done.stdout)["lines"]}
    assert lines["configuration"]["status"] == "ok"
    assert [lines[name]["status"] for name in ABOUT] == ["ok"] * len(ABOUT)
