"""The Kubernetes back end as a pod on a node has it: its token, its rights, the policies; and the Leases of a fleet."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from healthd.remediation.orchestrators.kubernetes.api import FIELD_MANAGER, KubeApi, connect
from healthd.remediation.orchestrators.kubernetes.objects.budget import LEASE, counts
from healthd.remediation.orchestrators.kubernetes.objects.events import ClusterEvent, event_of
from healthd.remediation.orchestrators.kubernetes.orchestrator import KubernetesOrchestrator
from healthd.remediation.orchestrators.kubernetes.transport import Pace
from tests.live.kubernetes.api_client import Answer
from tests.live.kubernetes.control_plane import HEALTHS, LEASES, NAMESPACE, ControlPlane

ROOT = Path(__file__).resolve().parents[3]
BUDGET = f"{LEASES}/{LEASE}"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


def install_policies(plane: ControlPlane) -> None:
    """Apply the agent's rights and the policies, and return once the server enforces each of them."""
    folder = ROOT / "packaging" / "kubernetes"
    plane.add_namespace(NAMESPACE)
    install_resource(plane)
    plane.apply(folder / "agent-rbac.yaml", *sorted((folder / "policies").glob("*.yaml")))
    plane.add_node("probe-1")
    plane.add_node("probe-2")
    plane.add_lease("healthd-budget", {"healthd.io/limit": "0"})
    agent = plane.client(plane.agent_token("probe-1"))
    mine = {"metadata": {"labels": {"healthd.io/probe": "1"}}}
    cordon = {"spec": {"unschedulable": True}}
    claim = {"metadata": {"annotations": {"claim.healthd.io/probe-1": "now"}}}
    as_agent = f"?fieldManager={FIELD_MANAGER}&dryRun=All"
    for policy, path, patch in (
        ("healthd-agent-own-node", "/api/v1/nodes/probe-2", mine),
        ("healthd-agent-claim-first", "/api/v1/nodes/probe-1", cordon),
        ("healthd-budget", BUDGET, claim),
    ):
        _await(policy, lambda path=path, patch=patch: agent.patch(f"{path}{as_agent}", patch, kind="merge"))  # type: ignore[misc]
    elsewhere = {"apiVersion": "healthd.io/v1alpha1", "kind": "NodeHealth", "metadata": {"name": "probe-2"}}
    _await("healthd-agent-node-health", lambda: agent.post(f"{HEALTHS}{as_agent}", elsewhere))
    event = event_of(
        ClusterEvent(reason="Probe", action="Probe", about="", note="-"),
        node="probe-2",
        uid="",
        now=datetime.now(UTC),
    )
    _await("healthd-agent-events", lambda: agent.post(f"{EVENTS}?dryRun=All", event))
    agent.close()


def install_resource(plane: ControlPlane) -> None:
    """Apply the CustomResourceDefinition, and return once the server serves it."""
    plane.apply(ROOT / "packaging" / "kubernetes" / "nodehealths.yaml")
    plane.wait(lambda: plane.admin.get(HEALTHS).ok, 30, "NodeHealths to be served")


def _await(policy: str, ask: Callable[[], Answer]) -> None:
    started = time.monotonic()
    while f"'{policy}'" not in (answer := ask()).message:
        assert time.monotonic() < started + 30, f"{policy} is not in force after 30 s: {answer}"
        time.sleep(0.05)


def open_api(
    plane: ControlPlane, node: str, folder: Path, *, token: str = "", timeout_s: float = 5.0, environ: Any = None
) -> KubeApi:
    """A connection with the token of the agent's pod on this node, in no hurry to be slow."""
    plane.account_folder(folder, token or plane.agent_token(node))
    return connect(
        kubeconfig="",
        timeout_s=timeout_s,
        pace=Pace(rate_per_s=1000.0, burst=1000),
        environ=environ or plane.pod_environment(),
        account=str(folder),
    )


def write_kubeconfig(
    plane: ControlPlane, node: str, folder: Path, *, token: str = "", url: str = "", ca_file: Path | None = None
) -> Path:
    """A kubeconfig that signs with the file of the agent's token, for a daemon that is in no pod. ``url`` and
    ``ca_file``: of a proxy in front of the API server."""
    account = plane.account_folder(folder, token or plane.agent_token(node))
    cluster = {"server": url or plane.url, "certificate-authority": str(ca_file or account / "ca.crt")}
    config = {
        "current-context": "pod",
        "clusters": [{"name": "pod", "cluster": cluster}],
        "users": [{"name": "pod", "user": {"tokenFile": str(account / "token")}}],
        "contexts": [{"name": "pod", "context": {"cluster": "pod", "user": "pod"}}],
    }
    (folder / "kubeconfig").write_text(json.dumps(config), encoding="utf-8")
    return folder / "kubeconfig"


def add_leases(plane: ControlPlane, *, limit: int = 1, total: int = 4, **scopes: int) -> None:
    """The Leases as the chart and the controller make them; ``scopes``: further scopes, with dashes for underscores."""
    plane.add_lease(LEASE, counts(limit=limit, total=total, out=(), at=None))
    for scope, most in scopes.items():
        plane.add_lease(f"{LEASE}-{scope.replace('_', '-')}", counts(limit=most, total=total, out=(), at=None))


def note(plane: ControlPlane, notes: Mapping[str, str | None], *, lease: str = LEASE) -> None:
    """Set annotations of a Lease, as the administrator."""
    plane.admin.patch(f"{LEASES}/{lease}", {"metadata": {"annotations": dict(notes)}}, kind="merge").must()


def administrator(
    plane: ControlPlane, node: str, *, timeout_s: float, namespace: str = NAMESPACE, **settings: Any
) -> KubernetesOrchestrator:
    """The Orchestrator of a node with all rights, by a kubeconfig."""
    pace = Pace(rate_per_s=1000.0, burst=1000)
    api = connect(kubeconfig=str(plane.kubeconfig), timeout_s=timeout_s, pace=pace, environ={})
    return KubernetesOrchestrator(api, node=node, namespace=namespace, timeout_s=timeout_s, **settings)


class Agents:
    """The Orchestrators of some nodes; close ends their connections."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self._plane, self._folder = plane, folder
        self._open: list[KubeApi] = []

    def __call__(self, node: str, *, timeout_s: float = 5.0, **settings: Any) -> KubernetesOrchestrator:
        """The Orchestrator of this node, which asks each time: tests change things in between."""
        api = self.api(node, timeout_s=timeout_s)
        return KubernetesOrchestrator(api, node=node, namespace=NAMESPACE, **{"lately_s": 0.0, **settings})

    def api(self, node: str, **settings: Any) -> KubeApi:
        """The connection of this node's agent."""
        self._open.append(open_api(self._plane, node, self._folder / node, **settings))
        return self._open[-1]

    def close(self) -> None:
        """End every connection."""
        for each in self._open:
            each.close()
