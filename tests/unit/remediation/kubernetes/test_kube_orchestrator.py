"""One node's Orchestrator over an API server in memory: what no real server can be made to do at will."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from healthd.core.errors import BackendUnknown
from healthd.remediation.orchestrators.kubernetes.api import KubeApi, Missing, ResourceKind
from healthd.remediation.orchestrators.kubernetes.objects.budget import LEASE, counts, key_of
from healthd.remediation.orchestrators.kubernetes.orchestrator import KubernetesOrchestrator
from healthd.remediation.ports import Slot


class Server(KubeApi):
    """Objects in memory, changed by merge patches as far as ours need it. ``deaf``: the kind of which a patch gets no
    answer, once."""

    def __init__(self, *scopes: str) -> None:
        self.deaf: ResourceKind | None = None
        self.node: dict[str, Any] = {
            "metadata": {"name": "n1", "labels": {"pool": "a"}},
            "spec": {},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }
        self.leases = dict[str, dict[str, str]]()
        for name in (LEASE, *(f"{LEASE}-{scope}" for scope in scopes)):
            self.leases[name] = counts(limit=2, total=9, out=(), at=None)

    def get(self, kind: ResourceKind, name: str, *, namespace: str | None = None, ahead: int = 0) -> dict[str, Any]:
        if kind is ResourceKind.NODE:
            return {**self.node, "metadata": {**self.node["metadata"], "resourceVersion": "1"}}
        if name not in self.leases:
            raise Missing(f"get lease {name}: 404")
        return {"metadata": {"resourceVersion": "1", "annotations": dict(self.leases[name])}}

    def patch(self, kind: ResourceKind, name: str, body: Mapping[str, Any], **how: Any) -> dict[str, Any]:
        if kind is self.deaf:
            self.deaf = None
            raise BackendUnknown(f"patch {name}: no answer within 5 s")
        if kind is ResourceKind.NODE:
            self.node["spec"] |= body["spec"]
        else:
            merged = {**self.leases[name], **body["metadata"]["annotations"]}
            self.leases[name] = {key: value for key, value in merged.items() if value is not None}
        return self.get(kind, name)

    def claims(self) -> set[str]:
        return {name for name, notes in self.leases.items() if key_of("n1") in notes}


def agent_of(server: Server) -> KubernetesOrchestrator:
    return KubernetesOrchestrator(
        server,
        node="n1",
        namespace="healthd",
        scopes=("a", "b"),
        scope_label="pool",
        lately_s=0.0,
        clock=lambda: datetime(2026, 11, 21, tzinfo=UTC),
    )


def test_a_claim_without_its_fence_is_fenced_by_itself() -> None:
    """The claim stands, the fence had no answer: it is made alone, and once."""
    server = Server("a", "b")
    agent = agent_of(server)
    server.deaf = ResourceKind.NODE
    with pytest.raises(BackendUnknown):
        agent.claim("cluster", 0)
    assert (server.claims(), agent.view().fenced) == ({LEASE}, False)
    agent.fence()
    agent.fence()
    assert server.node["spec"]["taints"] == [{"key": "healthd.io/claimed", "effect": "NoSchedule"}]
    assert agent.view().fenced


def test_a_claim_in_the_scope_that_the_node_was_in_goes_with_the_last_one() -> None:
    """Somebody gave the node another label while it was out: nobody lists that claim, and it was a place for ever."""
    server = Server("a", "b")
    agent = agent_of(server)
    agent.claim("cluster", 0)
    agent.claim("a", 0)
    server.node["metadata"]["labels"]["pool"] = "b"
    after = agent_of(server)  # or this one, once it has read the level again
    assert [slot.scope for slot in after.slots()] == ["cluster"]
    after.give_back(Slot(scope="cluster", index=0, node="n1"))
    assert server.claims() == set()
    assert server.node["spec"]["taints"] == []


def test_a_scope_whose_lease_is_missing_keeps_no_place() -> None:
    """It is said, after the places that there are were given back."""
    server = Server("a")
    agent = agent_of(server)
    agent.claim("cluster", 0)
    with pytest.raises(BackendUnknown, match="no Lease healthd/healthd-budget-b"):
        agent.give_back(Slot(scope="cluster", index=0, node="n1"))
    assert (server.claims(), agent.slots()) == (set(), ())
