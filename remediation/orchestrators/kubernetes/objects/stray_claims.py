"""Claims that waste a slot of the budget, and when the controller removes them. Pure.

    astray   in a scope that the label of its node does not name: a stolen token can write it, because an admission
             policy does not see the Node; or the label was changed while the node was out
    idle     of a node that healthd does not keep out, and whose agent says ``ok``: an operator wrote it by hand

Neither is of any use to the node that holds it. A node that is out counts in the scope that its label names, with or
without a claim there, and an agent reads its claims again before each step and claims what is missing. So removing a
claim puts no node back, and no such claim lasts longer than these times.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from healthd.core.model import CLUSTER
from healthd.remediation.orchestrators.kubernetes.objects.budget import Budget
from healthd.remediation.orchestrators.kubernetes.objects.labels import STATE
from healthd.remediation.orchestrators.kubernetes.objects.node import CLAIMED, HOLD, UNHEALTHY, KubeNode
from healthd.remediation.records.summary import NodeState

RELABELLED_S = 60.0
"""How long the claim of a node that is out may stand in a scope that its label does not name: a Node that is registered
again has no labels for some seconds."""
IDLE_S = 60.0
"""How long a claim of a node in service may stand: longer than a claim is without its fence."""
REMEMBERED_S = 900.0
"""For how long a claim that was astray is remembered: one that is written again is removed at once, and a page about it
does not come and go with it."""


class Stray(Struct, frozen=True, kw_only=True):
    """A claim of ``node`` in the Lease of ``scope``."""

    node: str
    scope: str


def strays(nodes: Mapping[str, KubeNode], budgets: Collection[Budget], label: str) -> frozenset[Stray]:
    """The claims that are astray. ``label``: the key of the label that names a node's scope; without one no claim is
    astray."""
    return frozenset(
        Stray(node=claim.node, scope=budget.scope)
        for budget in budgets
        if label and budget.scope != CLUSTER
        for claim in budget.claims.values()
        if claim.node in nodes and is_astray(nodes[claim.node], budget.scope, label)
    )


def is_astray(node: KubeNode, scope: str, label: str) -> bool:
    """Whether a node does not belong to this scope."""
    return node.labels.get(label) != scope


def idle_claims(nodes: Mapping[str, KubeNode], budgets: Collection[Budget]) -> frozenset[Stray]:
    """The claims of nodes that healthd does not keep out, and whose agents report them healthy."""
    return frozenset(
        Stray(node=claim.node, scope=budget.scope)
        for budget in budgets
        for claim in budget.claims.values()
        if claim.node in nodes and is_left_in(nodes[claim.node])
    )


def is_left_in(node: KubeNode) -> bool:
    """Whether healthd neither keeps a node out nor is about to: no taint and no hold, and its agent says ``ok``, which
    it never says while it has a remediation."""
    return (
        not is_tainted(node)
        and HOLD not in node.annotations
        and node.is_ready
        and not node.deleting
        and node.labels.get(STATE) == NodeState.OK
    )


def is_tainted(node: KubeNode) -> bool:
    """Whether a taint of healthd's keeps pods off: the drain or the fence."""
    return node.taint(UNHEALTHY) is not None or node.taint(CLAIMED) is not None


class StrayClaims:
    """How long claims have been astray or idle, as one controller saw them. No clock and no I/O; times are monotonic,
    in seconds."""

    def __init__(self) -> None:
        self._astray: dict[Stray, tuple[float, float]] = {}  # first and last seen
        self._idle: dict[Stray, float] = {}

    def astray(
        self, found: Collection[Stray], nodes: Mapping[str, KubeNode], now_s: float
    ) -> tuple[tuple[Stray, ...], tuple[Stray, ...]]:
        """The claims to report, and of them those to remove now: of a node that is not out at the second reading,
        because Nodes and Leases are not read at one moment."""
        kept = {each: at for each, at in self._astray.items() if now_s - at[1] < REMEMBERED_S}
        due = [
            each
            for each in found
            if each in kept and now_s - kept[each][0] >= (RELABELLED_S if is_tainted(nodes[each.node]) else 0.0)
        ]
        reported = [each for each, (first_s, last_s) in kept.items() if each in found or last_s > first_s]
        self._astray = kept | {each: (kept.get(each, (now_s, now_s))[0], now_s) for each in found}
        return _sorted(reported), _sorted(due)

    def idle(self, found: Collection[Stray], now_s: float) -> tuple[Stray, ...]:
        """The claims to remove now. The time of a claim that was not seen in between begins again."""
        self._idle = {each: self._idle.get(each, now_s) for each in found}
        return _sorted(each for each, since_s in self._idle.items() if now_s - since_s >= IDLE_S)


def _sorted(each: Iterable[Stray]) -> tuple[Stray, ...]:
    return tuple(sorted(each, key=lambda one: (one.node, one.scope)))
