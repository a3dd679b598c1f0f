"""The counts of ``healthd controller`` from one reading of all Nodes and Leases: limits, gone nodes, oddities. Pure.

Only here a percentage becomes a number, and a node without a claim counts as out. A claim never ends by time: it is
removed when its Node is gone, which one list does not prove (the server's cache may be behind).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from msgspec import Struct

from healthd.core.model import CLUSTER, ClusterTrouble
from healthd.remediation.decide.fleet import out_limit
from healthd.remediation.orchestrators.kubernetes.objects.budget import (
    CLAIM,
    COUNTED,
    FIXED_LIMIT,
    LIMIT,
    NODES,
    Budget,
    annotations_of,
    budget_of,
    lease_name,
)
from healthd.remediation.orchestrators.kubernetes.objects.node import CLAIMED, HOLD, UNHEALTHY, KubeNode, away_by
from healthd.remediation.orchestrators.kubernetes.objects.node_health import AHEAD
from healthd.remediation.orchestrators.kubernetes.objects.stray_claims import RELABELLED_S, Stray, is_tainted
from healthd.remediation.ports import FleetSnapshot, NodeRecord

UNSHOWN_S = 900.0
"""How long a claim may stand without a taint on its Node before that is reported: longer than every settle time."""

FENCE_HEALS_S = 420.0
"""How long a fence may stand without a claim before it pages: its agent sees it with its next heartbeat, 330 s later at
the latest, and removes it when it polls its fence next."""


class ScopeCount(Struct, frozen=True, kw_only=True):
    """One scope as it is to be written. ``out``: the nodes that are out and hold no claim."""

    limit: int
    total: int
    out: frozenset[str]


class Oddity(Struct, frozen=True, kw_only=True):
    """A state that no healthd leaves for long: ``kind`` is a trouble of one node; ``node`` as the key names it;
    ``scope``: of the Lease where it stands; ``about``: what of a record is odd."""

    node: str
    kind: ClusterTrouble
    scope: str = CLUSTER
    about: str = ""

    @property
    def message(self) -> str:
        """The message for the operator on call, with the next step."""
        match self.kind:
            case ClusterTrouble.NO_CLAIM:
                return (
                    f"the node has a taint of healthd's but no claim on the budget, so one node more than the limit may"
                    f" be out. Check that its agent runs; if none does: kubectl taint node {self.node} {UNHEALTHY}-"
                    f" {CLAIMED}-"
                )
            case ClusterTrouble.LEFT_FENCE:
                return (
                    f"the taint {CLAIMED} keeps pods off, but the node holds no claim on the budget. Its agent removes"
                    f" the taint within about six minutes; to remove it now, or where no agent runs: kubectl taint node"
                    f" {self.node} {CLAIMED}-"
                )
            case ClusterTrouble.NO_TAINT:
                return (
                    "the node holds a claim on the budget but has no taint of healthd's, so a slot is wasted. Check"
                    f" that its agent runs; if none does, remove its claim from the Lease {lease_name(self.scope)}"
                )
            case ClusterTrouble.STRAY_CLAIM:
                return (
                    f"the node had a claim in the Lease {lease_name(self.scope)}, but its label does not name that"
                    f" scope. The controller removes such a claim (of a node that is out, after {RELABELLED_S:g} s). If"
                    f" you did not change the label, its agent's token may be stolen"
                )
            case ClusterTrouble.ODD_CLAIM:
                lease, key = lease_name(self.scope), f"{CLAIM}{self.node}"
                return (
                    f"the annotation {key} of the Lease {lease} was not written by that node's healthd, and healthd"
                    f" ignores it. Find its writer; to remove it: `kubectl -n healthd annotate lease {lease} {key}-`"
                )
            case _ if self.about == AHEAD:
                return (
                    f"the record of NodeHealth {self.node} has {AHEAD} by the controller's clock, and healthd ignores"
                    " it. Compare the clocks of the node and of the controller (`timedatectl`); where they agree, find"
                    " the writer of the record"
                )
            case _:
                return (
                    f"the record of NodeHealth {self.node} was not written by that node's healthd"
                    f"{f' ({self.about})' if self.about else ''}, and healthd ignores its odd fields. Find its writer;"
                    f" to remove it: `kubectl patch nodehealth {self.node} --type=merge -p '{{\"record\":null}}'`"
                )


class CountedNodes(Struct, frozen=True, kw_only=True):
    """The Nodes that count for the budget, by name, as one LIST had them."""

    nodes: Mapping[str, KubeNode]

    def in_scope(self, scope: str, label: str) -> list[KubeNode]:
        """The Nodes of a scope: all in the cluster's, else those whose ``label`` names it."""
        return [node for node in self.nodes.values() if scope == CLUSTER or (label and node.labels.get(label) == scope)]


def budget_before(scope: str, lease: Mapping[str, Any]) -> Budget:
    """The claims in a Lease whose numbers may be missing, or make no sense. Raises BackendUnknown for no Lease."""
    version, notes = annotations_of(lease)
    for key in (COUNTED, FIXED_LIMIT):
        notes.pop(key, None)
    counted = {"resourceVersion": version, "annotations": {**notes, LIMIT: "0", NODES: "0"}}
    return budget_of(scope, {"metadata": counted})


def count(
    seen: CountedNodes, budget: Budget, max_out: str | int, *, scope_label: str = "", tolerated: Collection[str] = ()
) -> ScopeCount:
    """The numbers of one scope. A percentage is rounded down, and one node may always be out."""
    nodes = seen.in_scope(budget.scope, scope_label)
    holders = {claim.node for claim in budget.claims.values()}
    out = {node.name for node in nodes if node.name not in holders and away_by(node, tolerated)}
    return ScopeCount(limit=out_limit(max_out, len(nodes)), total=len(nodes), out=frozenset(out))


def uncovered(nodes: Iterable[KubeNode], seen: CountedNodes, budgets: Collection[Budget]) -> dict[str, KubeNode]:
    """Of all Nodes those that do not count, and that healthd keeps out, or that hold a claim."""
    holders = {claim.node for budget in budgets for claim in budget.claims.values()}
    outside = (node for node in nodes if node.name not in seen.nodes)
    return {node.name: node for node in outside if is_tainted(node) or HOLD in node.annotations or node.name in holders}


def named_in(notes: Iterable[str]) -> set[str]:
    """The nodes that have a claim among these annotations."""
    return {key.removeprefix(CLAIM) for key in notes if key.startswith(CLAIM)}


def suspected(
    seen: CountedNodes, named: Collection[str], before: Collection[str]
) -> tuple[frozenset[str], tuple[str, ...]]:
    """The nodes with a claim or a handoff record that are not in the list; and of them those that were not in the
    previous list either, which are worth a request each."""
    absent = frozenset(name for name in named if name not in seen.nodes)
    return absent, tuple(sorted(absent & set(before)))


def rejoined(seen: CountedNodes, provider_id: str, *, old: str) -> str:
    """The Node under which the machine of a gone one has come back, by its providerID, or ""."""
    if not provider_id:
        return ""
    return next((node.name for node in seen.nodes.values() if node.provider_id == provider_id and node.name != old), "")


def snapshot_of(
    seen: CountedNodes, budget: Budget, records: Mapping[str, str], *, tolerated: Collection[str] = ()
) -> FleetSnapshot:
    """The fleet as the controller's own questions need it."""
    return FleetSnapshot(
        out=frozenset(node.name for node in seen.nodes.values() if away_by(node, tolerated)),
        total=len(seen.nodes),
        records=tuple(NodeRecord(node=name, text=text) for name, text in sorted(records.items())),
        held=budget.held,
    )


def oddities(
    seen: CountedNodes,
    budgets: Collection[Budget],
    odd_records: Mapping[str, str] | None = None,
    astray: Collection[Stray] = (),
) -> frozenset[Oddity]:
    """The contradictions in this reading; most of them pass by themselves. ``odd_records``: node to what of its handoff
    record is odd. ``astray``: claims that are reported as astray, and not otherwise."""
    found = {
        Oddity(node=name, kind=ClusterTrouble.ODD_RECORD, about=about) for name, about in (odd_records or {}).items()
    }
    for budget in budgets:
        scope, strays = budget.scope, {each.node for each in astray if each.scope == budget.scope}
        holders = {claim.node for claim in budget.claims.values()} - strays
        found |= {Oddity(node=name, kind=ClusterTrouble.ODD_CLAIM, scope=scope) for name in budget.odd - strays}
        untainted = (name for name in holders - budget.odd if name in seen.nodes and not is_tainted(seen.nodes[name]))
        found |= {Oddity(node=name, kind=ClusterTrouble.NO_TAINT, scope=scope) for name in untainted}
        if scope == CLUSTER:
            tainted = (node for node in seen.nodes.values() if is_tainted(node) and node.name not in holders)
            found |= {
                Oddity(node=node.name, kind=ClusterTrouble.LEFT_FENCE if _is_fence(node) else ClusterTrouble.NO_CLAIM)
                for node in tainted
            }
    return frozenset(found)


def lasting(
    now_there: Collection[Oddity], since_s: Mapping[Oddity, float], now_s: float
) -> tuple[dict[Oddity, float], tuple[Oddity, ...]]:
    """Since when each is there, and those to be reported: a claim without a taint after ``UNSHOWN_S``, a fence alone
    after ``FENCE_HEALS_S``, the others once they were there twice, because Nodes and Leases are not read at one
    moment."""
    known = {each: since_s.get(each, now_s) for each in now_there}
    lasts = {ClusterTrouble.NO_TAINT: UNSHOWN_S, ClusterTrouble.LEFT_FENCE: FENCE_HEALS_S}
    reported = [each for each in known if each in since_s and now_s - known[each] >= lasts.get(each.kind, 0.0)]
    return known, tuple(sorted(reported, key=lambda each: (each.node, each.kind, each.scope)))


def left_fences(since_s: Mapping[Oddity, float], now_s: float) -> dict[str, str]:
    """The nodes with a fence that their agents are about to remove, with a message each: seen twice, and not reported
    yet."""
    fences = {each: at_s for each, at_s in since_s.items() if each.kind is ClusterTrouble.LEFT_FENCE}
    return {each.node: each.message for each, at_s in fences.items() if 0 < now_s - at_s < FENCE_HEALS_S}


def _is_fence(node: KubeNode) -> bool:
    """Whether the fence is all that healthd has on the Node."""
    return node.taint(UNHEALTHY) is None and HOLD not in node.annotations
