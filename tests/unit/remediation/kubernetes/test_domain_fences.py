"""The fence of an NVLink domain on Kubernetes: many taints that are made, completed and lifted as one."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from healthd.core.errors import BackendError, BackendRefused, BackendUnknown
from healthd.fleet.nodes import FleetState, fleet_nodes
from healthd.remediation.orchestrators.kubernetes.api import Conflict, KubeApi, Missing, ResourceKind
from healthd.remediation.orchestrators.kubernetes.domain_fencer import KubeFencer
from healthd.remediation.orchestrators.kubernetes.lease_notes import LeaseNotes
from healthd.remediation.orchestrators.kubernetes.objects.count import CountedNodes, budget_before, count
from healthd.remediation.orchestrators.kubernetes.objects.domain_fences import (
    FENCES,
    WrittenFence,
    domain_fences,
    fences_in,
)
from healthd.remediation.orchestrators.kubernetes.objects.incident_notes import INCIDENTS_LEASE
from healthd.remediation.orchestrators.kubernetes.objects.listed_leases import read_leases
from healthd.remediation.orchestrators.kubernetes.objects.listed_nodes import SILENT_AFTER_S, listed_node
from healthd.remediation.orchestrators.kubernetes.objects.node import KubeNode, node_of, view_of
from healthd.remediation.orchestrators.kubernetes.objects.uninstall_patches import leaving_patch
from healthd.remediation.records.domain_fence import KUBE_TAINT, DomainFence
from tests.unit.remediation.kubernetes.test_kube_listed_nodes import NOW, kube_node

FENCE = DomainFence(domain="clu.1", incident="1124-3f2a9c", nodes=frozenset({"n1", "n2", "n3"}))
TAINT = {"key": KUBE_TAINT, "value": "1124-3f2a9c", "effect": "NoSchedule"}
THEIRS = {"key": "example.com/theirs", "effect": "PreferNoSchedule"}


class Server(KubeApi):
    """Nodes and one Lease in memory. ``ends_after``: so many patches are made, and every later one gets no answer.
    ``conflicts``: so many patches of a Node come too late."""

    def __init__(self, *names: str) -> None:
        self.nodes = {name: self._registered(name, "1") for name in names}
        self.notes: dict[str, str] = {}
        self.ends_after, self.conflicts, self.lacking = 999, 0, set[str]()

    def _registered(self, name: str, uid: str) -> dict[str, Any]:
        labels = {"nvidia.com/gpu.clique": "clu.1"}
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        return {"metadata": {"name": name, "uid": uid, "labels": labels}, "spec": {"taints": [THEIRS]}, "status": ready}

    def register(self, name: str, uid: str) -> None:
        self.nodes[name] = self._registered(name, uid)

    def get(self, kind: ResourceKind, name: str, *, namespace: str | None = None, ahead: int = 0) -> dict[str, Any]:
        if kind is ResourceKind.LEASE:
            return {"metadata": {"name": name, "resourceVersion": "1", "annotations": dict(self.notes)}}
        if name not in self.nodes:
            raise Missing(f"get node {name}: 404")
        return copy.deepcopy(self.nodes[name])

    def patch(self, kind: ResourceKind, name: str, body: Mapping[str, Any], **how: Any) -> dict[str, Any]:
        if name in self.lacking:
            raise BackendRefused(f"patch node {name}: refused")
        if kind is ResourceKind.NODE and self.conflicts:
            self.conflicts -= 1
            raise Conflict("409")
        if not self.ends_after:
            raise BackendUnknown("no answer within 5 s")
        self.ends_after -= 1
        if kind is ResourceKind.LEASE:
            self.notes |= body["metadata"]["annotations"]
        else:
            self.nodes[name]["spec"] |= body["spec"]
        return self.get(kind, name)

    def taints(self, name: str) -> list[Any]:
        found: list[Any] = self.nodes[name]["spec"]["taints"]
        return found

    @property
    def fenced(self) -> set[str]:
        return {name for name in self.nodes if TAINT in self.taints(name)}


def fencer_of(server: Server) -> KubeFencer:
    notes = LeaseNotes(server, namespace="healthd", leads=lambda: None, key=FENCES, lease=INCIDENTS_LEASE)
    return KubeFencer(server, notes, leads=lambda: None, sleep=lambda _: None)


def fences(server: Server) -> tuple[DomainFence, ...]:
    """As the controller and `healthd fleet` read them."""
    nodes = [node_of(each) for each in server.nodes.values()]
    lease = server.get(ResourceKind.LEASE, INCIDENTS_LEASE)
    listed = [listed_node(each, None, claimed=False) for each in nodes]
    return domain_fences(nodes, listed, read_leases([lease], NOW, counts_age_s=900).fences)


def test_all_nodes_are_tainted_and_put_back_and_what_others_set_stays() -> None:
    """Each act may be repeated; a Node that is gone stops neither."""
    server = Server("n1", "n2", "other")
    server.conflicts = 1
    for _ in range(2):
        fencer_of(server).fence_domain(FENCE)
        assert server.fenced == {"n1", "n2"}
        assert fences(server) == (replace(FENCE, nodes=frozenset({"n1", "n2"})),)
    assert server.taints("n1") == [THEIRS, TAINT]
    for _ in range(2):
        fencer_of(server).lift_fence(FENCE)
        assert (server.fenced, fences(server)) == (set(), ())
    assert server.taints("n1") == server.taints("other") == [THEIRS]


@pytest.mark.parametrize("ends_after", range(5))
def test_a_fence_that_a_crash_cut_off_is_known_and_completed(ends_after: int) -> None:
    """Before the first write, between any two, before the last: it stands whole once it is repeated."""
    server = Server("n1", "n2", "n3")
    server.ends_after = ends_after
    with pytest.raises(BackendError):
        fencer_of(server).fence_domain(FENCE)
    server.ends_after = 999
    for found in fences(server):
        assert found.nodes | found.missing == FENCE.nodes
        assert found.nodes == server.fenced
        assert found.stands
    fencer_of(server).fence_domain(next(iter(fences(server)), FENCE))
    assert fences(server) == (FENCE,)


@pytest.mark.parametrize("ends_after", range(4))
def test_the_end_of_a_fence_that_a_crash_cut_off_is_repeated(ends_after: int) -> None:
    """A Node that is put back is not tainted again meanwhile."""
    server = Server("n1", "n2", "n3")
    fencer_of(server).fence_domain(FENCE)
    server.ends_after = ends_after
    with pytest.raises(BackendError):
        fencer_of(server).lift_fence(FENCE)
    server.ends_after = 999
    (found,) = fences(server)
    assert (set(found.nodes), found.missing) == (server.fenced, frozenset())
    fencer_of(server).lift_fence(found)
    assert (server.fenced, fences(server)) == (set(), ())


def test_a_node_that_refuses_stops_no_other_and_is_missing() -> None:
    """The error is the caller's, who tries again."""
    server = Server("n1", "n2", "n3")
    server.lacking = {"n1"}
    with pytest.raises(BackendRefused):
        fencer_of(server).fence_domain(FENCE)
    assert fences(server) == (replace(FENCE, nodes=frozenset({"n2", "n3"}), missing=frozenset({"n1"})),)


def test_a_taint_that_an_operator_removed_stays_away() -> None:
    """Of one node or of all; a Node that is registered again, under another UID, is missing until it is tainted."""
    server = Server("n1", "n2", "n3")
    fencer_of(server).fence_domain(FENCE)
    server.nodes["n1"]["spec"]["taints"] = [THEIRS]
    server.register("n2", "2")
    (found,) = fences(server)
    assert (set(found.nodes), set(found.missing)) == ({"n3"}, {"n2"})
    fencer_of(server).fence_domain(found)
    assert server.fenced == {"n2", "n3"}
    for each in server.nodes.values():
        each["spec"]["taints"] = []
    (found,) = fences(server)
    assert not found.stands


def test_a_taint_that_is_not_written_down_is_a_fence_too() -> None:
    """So that it ends: a Lease that is lost, or edited by hand, keeps no node out for good."""
    server = Server("n1", "n2", "n3")
    fencer_of(server).fence_domain(FENCE)
    for text in ("", "none of ours", '[{"domain": 1}]'):
        server.notes[FENCES] = text
        assert fences_in(text) == ()
        assert fences(server) == (FENCE,)
    nowhere = kube_node({}, taints=[TAINT])
    assert domain_fences([nowhere], [], ())[0].domain == "1124-3f2a9c", "no label names its domain"
    assert read_leases([], NOW, counts_age_s=900).fences == ()


def test_a_lease_that_cannot_be_read_or_written_is_the_callers_error() -> None:
    """And no Node is tainted before the fence is written down."""
    server = Server("n1")
    server.lacking = {INCIDENTS_LEASE}
    with pytest.raises(BackendUnknown):
        fencer_of(server).fence_domain(FENCE)
    assert server.fenced == set()

    class Silent(Server):
        def get(self, kind: ResourceKind, name: str, *, namespace: str | None = None, ahead: int = 0) -> dict[str, Any]:
            raise BackendUnknown("no answer within 5 s")

    with pytest.raises(BackendUnknown):
        fencer_of(Silent()).lift_fence(FENCE)


def fenced_node(*more: dict[str, str]) -> KubeNode:
    return kube_node({}, taints=[TAINT, *more])


def test_a_fenced_node_is_held_by_healthd_and_costs_the_budget_nothing() -> None:
    """Its agent begins no repair there; a drain of its own beside it is as everywhere."""
    node = fenced_node()
    view = view_of(node)
    assert (view.in_service, view.fenced, view.hold) == (False, True, None)
    assert view.maintenance == f"{KUBE_TAINT}=1124-3f2a9c"
    written = WrittenFence(domain="clu.1", incident="1124-3f2a9c", nodes={node.name: node.uid})
    listed = listed_node(node, None, claimed=False)
    found = domain_fences([node], [listed], [written])
    (shown,) = fleet_nodes([listed], (), {}, NOW, silent_after_s=SILENT_AFTER_S, fences=found)
    assert (shown.state, listed.out, listed.hold) == (FleetState.HELD, False, None)
    seen = CountedNodes(nodes={node.name: node})
    empty = budget_before("cluster", {"metadata": {"resourceVersion": "1"}})
    assert count(seen, empty, 1).out == frozenset()
    drained = fenced_node({"key": "healthd.io/unhealthy", "effect": "NoSchedule"})
    assert not view_of(drained).fenced
    assert listed_node(drained, None, claimed=True).out


def test_an_uninstallation_removes_the_fence() -> None:
    """With it goes nothing of another owner."""
    patch = leaving_patch(fenced_node(THEIRS), opt_out="healthd.io/opt-out")
    assert patch is not None
    assert patch["spec"]["taints"] == [THEIRS]
