"""The whole fleet as ``healthd controller`` reads and counts it: per sync one LIST of Nodes, one of NodeHealths, and
the Leases.

It writes the controller's part of the Leases (limit and counts; it removes the claims of gone Nodes and idle claims),
creates missing Leases, and clears the NodeHealth of a gone Node but for what the fleet's bounds count. It never writes
a Node. Every write checks first that this controller still leads. ``count`` is the reading of a sync; every question
between two syncs reads again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any

from msgspec import Struct

from healthd.core.errors import BackendUnknown
from healthd.core.model import CLUSTER, ClusterTrouble
from healthd.remediation.decide.fleet import Scope, that_counts
from healthd.remediation.orchestrators.kubernetes.api import Conflict, KubeApi, Missing, ResourceKind, compare_and_swap
from healthd.remediation.orchestrators.kubernetes.node_health_api import NodeHealths
from healthd.remediation.orchestrators.kubernetes.objects import budget as leases
from healthd.remediation.orchestrators.kubernetes.objects import count as counts
from healthd.remediation.orchestrators.kubernetes.objects.budget import Budget
from healthd.remediation.orchestrators.kubernetes.objects.count import CountedNodes, Oddity
from healthd.remediation.orchestrators.kubernetes.objects.node import KubeNode, node_of, nodes_in
from healthd.remediation.orchestrators.kubernetes.objects.node_health import (
    STATUS,
    NodeHealth,
    read_record,
    record_patch,
)
from healthd.remediation.orchestrators.kubernetes.objects.stray_claims import (
    IDLE_S,
    Stray,
    StrayClaims,
    idle_claims,
    is_astray,
    is_left_in,
    strays,
)
from healthd.remediation.ports import FleetSnapshot, Slot

UNCOVERED_S = 60.0
"""How often all Nodes are read where a selector leaves some out."""


class SyncRecords(Struct, frozen=True, kw_only=True, dict=True):
    """The handoff records of one sync."""

    healths: Mapping[str, NodeHealth]

    @cached_property
    def texts(self) -> dict[str, str]:
        """Node to handoff record."""
        return {name: text for name, each in self.healths.items() if (text := each.text)}

    def odd(self, now: datetime) -> dict[str, str]:
        """Node to what of its record is odd."""
        records = {name: each.record for name, each in self.healths.items() if each.record is not None}
        return {name: why for name, each in records.items() if (why := read_record(each, now).odd)}

    def is_kept(self, node: str, now: datetime) -> bool:
        """Whether the whole NodeHealth and record of a node are to be kept once it is gone."""
        text = self.texts.get(node, "")
        is_shown = node in self.healths and self.healths[node].status is not None
        return bool(text) and not is_shown and that_counts(text, now) == text


class SyncView(Struct, frozen=True, kw_only=True):
    """The result of one count. ``gone``: nodes whose claim and handoff record were removed since the previous count,
    with a message each. ``remarks``: the same of nodes whose idle claim was removed, and of those whose fence will go
    by itself. ``uncovered``: the Nodes that the selector does not cover, and that healthd keeps out."""

    seen: CountedNodes
    budget: Budget
    gone: Mapping[str, str]
    remarks: Mapping[str, str]
    uncovered: Mapping[str, KubeNode]
    oddities: tuple[Oddity, ...]


class KubeFleet:
    """The fleet. ``quotas``: scope to a number or percentage. ``selector``: a label selector of the nodes that count,
    "" for all. ``leads``: raises BackendRefused where this controller may not write any more. ``recount_s``: numbers
    that are as they were are written again after so many seconds, for their time. ``monotonic_s`` and ``clock`` as
    everywhere. Calls never overlap, but ``slots`` may come between two syncs."""

    def __init__(
        self,
        api: KubeApi,
        *,
        namespace: str,
        quotas: Mapping[str, str | int],
        leads: Callable[[], None],
        monotonic_s: Callable[[], float],
        clock: Callable[[], datetime],
        scope_label: str = "",
        selector: str = "",
        tolerated: Collection[str] = (),
        recount_s: float = 60.0,
    ) -> None:
        self._api, self._namespace, self._quotas, self._leads = api, namespace, dict(quotas), leads
        self._monotonic_s, self._clock, self._recount_s = monotonic_s, clock, recount_s
        self._healths = NodeHealths(api)
        self._scope_label, self._selector, self._tolerated = scope_label, selector, tuple(tolerated)
        self._absent: frozenset[str] = frozenset()
        self._gone: dict[str, str] = {}  # not reported yet: a count may fail after it
        self._machines: dict[str, str] = {}  # name to providerID, as it was seen last
        self._odd: dict[Oddity, float] = {}
        self._stray_claims = StrayClaims()
        self._outside: dict[str, KubeNode] = {}
        self._outside_s = monotonic_s()
        self._snapshot: FleetSnapshot | None = None
        self._scopes: dict[str, Scope] = {}

    # -- the sync -----------------------------------------------------------------------------------------------------

    def count(self) -> SyncView:
        """Read everything once, and write the counts again. Raises BackendError; agents then use the previous count
        until it is too old, and from then on take no node out."""
        seen = self._seen()
        lists = {scope: self._lease(leases.lease_name(scope)) for scope in self._quotas}
        records, now = self._records(seen), self._clock()
        self._prune(seen, lists, records, now)
        before = [counts.budget_before(scope, lease) for scope, lease in lists.items()]
        uncovered = self._uncovered(seen, before)
        astray, freed = self._free({**uncovered, **seen.nodes}, before, lists)
        budgets = {scope: self._counted(seen, scope, lease) for scope, lease in lists.items()}
        cluster = budgets[CLUSTER]
        left = {name: text for name, text in records.texts.items() if name not in self._gone}
        self._snapshot = counts.snapshot_of(seen, cluster, left, tolerated=self._tolerated)
        odd = counts.oddities(seen, tuple(budgets.values()), records.odd(now), astray)
        now_s = self._monotonic_s()
        self._odd, reported = counts.lasting(odd, self._odd, now_s)
        reported += tuple(Oddity(node=each.node, kind=ClusterTrouble.STRAY_CLAIM, scope=each.scope) for each in astray)
        gone, self._gone = self._gone, {}
        remarks = {**counts.left_fences(self._odd, now_s), **freed}
        return SyncView(seen=seen, budget=cluster, gone=gone, remarks=remarks, uncovered=uncovered, oddities=reported)

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """Each budget of the last count: the nodes that hold a claim, and the nodes that are out without one."""
        return tuple(self._scopes.values())

    # -- what the Controller asks -------------------------------------------------------------------------------------

    def fleet(self) -> FleetSnapshot:
        """Every node of the last count. Raises BackendUnknown before the first."""
        if self._snapshot is None:
            raise BackendUnknown("the controller has not counted the nodes yet")
        return self._snapshot

    def slots(self) -> tuple[Slot, ...]:
        """Every claim in the cluster's Lease, now."""
        return counts.budget_before(CLUSTER, self._get(leases.LEASE)).slots

    # -- parts --------------------------------------------------------------------------------------------------------

    def _seen(self) -> CountedNodes:
        """Through the server's cache (resourceVersion=0), which costs etcd nothing; nodes that it lacks are read
        singly."""
        pages = self._api.pages(ResourceKind.NODE, nodes_in, resourceVersion="0", labelSelector=self._selector)
        seen = CountedNodes(nodes={node.name: node for page in pages for node in page})
        self._machines |= {name: node.provider_id for name, node in seen.nodes.items() if node.provider_id}
        return seen

    def _uncovered(self, seen: CountedNodes, budgets: Collection[Budget]) -> dict[str, KubeNode]:
        """The Nodes that the selector does not cover, and that healthd keeps out. Read through the server's cache."""
        if self._selector and self._monotonic_s() >= self._outside_s:
            self._outside_s = self._monotonic_s() + UNCOVERED_S
            pages = self._api.pages(ResourceKind.NODE, nodes_in, resourceVersion="0")
            self._outside = counts.uncovered((node for page in pages for node in page), seen, budgets)
        return {name: node for name, node in self._outside.items() if name not in seen.nodes}

    def _free(
        self, nodes: Mapping[str, KubeNode], budgets: Collection[Budget], lists: Mapping[str, dict[str, Any]]
    ) -> tuple[tuple[Stray, ...], dict[str, str]]:
        """Remove the claims that waste a slot, each after its Node was read again. Returns the claims that are reported
        as astray, and a message for each node whose claim was idle."""
        now_s, label, freed = self._monotonic_s(), self._scope_label, dict[str, str]()
        reported, due = self._stray_claims.astray(strays(nodes, budgets, label), nodes, now_s)
        for each in due:
            if (node := self._node(each.node)) is not None and is_astray(node, each.scope, label):
                self._unclaim(each, lists)
        for each in self._stray_claims.idle(idle_claims(nodes, budgets), now_s):
            if (node := self._node(each.node)) is not None and is_left_in(node):
                self._unclaim(each, lists)
                freed[each.node] = (
                    f"its claim was removed from the Lease {leases.lease_name(each.scope)}: for over {IDLE_S:g} s the"
                    f" node was in service without a taint of healthd's, and its agent reports it healthy"
                )
        return reported, freed

    def _unclaim(self, stray: Stray, lists: Mapping[str, dict[str, Any]]) -> None:
        note = {leases.key_of(stray.node): None}
        lists[stray.scope].update(self._note(leases.lease_name(stray.scope), note))

    def _records(self, seen: CountedNodes) -> SyncRecords:
        """The records of the Nodes that count, and of Nodes that are gone; not those of Nodes that this controller's
        selector does not cover."""
        healths = self._healths.all()
        if self._selector:
            left = {name for name in healths.keys() - seen.nodes.keys() if not self._is_gone(name)}
            healths = {name: each for name, each in healths.items() if name not in left}
        return SyncRecords(healths=healths)

    def _prune(
        self, seen: CountedNodes, lists: Mapping[str, dict[str, Any]], records: SyncRecords, now: datetime
    ) -> None:
        """Remove the claims and records of Nodes that are gone, and note it for each. Of a node whose machine was
        replaced within the day, what the fleet's bounds count stays: the replacement has another name."""
        notes = {scope: leases.annotations_of(lease)[1] for scope, lease in lists.items()}
        named = counts.named_in(key for each in notes.values() for key in each)
        named |= {name for name in records.healths if not records.is_kept(name, now)}
        self._absent, suspects = counts.suspected(seen, named, self._absent)
        self._machines = {name: each for name, each in self._machines.items() if name in seen.nodes or name in named}
        for name in suspects:
            if not self._is_gone(name):
                continue
            for scope, there in notes.items():
                if (key := f"{leases.CLAIM}{name}") in there:
                    lists[scope].update(self._note(leases.lease_name(scope), {key: None}))
            self._forget(name, records, now)
            machine = self._machines.pop(name, "")
            other = counts.rejoined(seen, machine, old=name)
            came = f"; its machine is back as {other}" if other else ""
            self._gone[name] = f"its Node is gone{came}: healthd removed its claim and its handoff record"

    def _forget(self, name: str, records: SyncRecords, now: datetime) -> None:
        """Keep of a gone Node's record what the bounds count, where it is, and nothing else."""
        seen, left = records.healths.get(name), that_counts(records.texts.get(name, ""), now)
        self._leads()
        with contextlib.suppress(Conflict):  # the server's cache was behind: the next sync has what was written
            if seen is not None and seen.text and left:
                self._healths.replace(seen, {STATUS: None, **record_patch(name, left)})
            elif seen is not None:
                self._healths.delete(seen)

    def _is_gone(self, name: str) -> bool:
        return self._node(name) is None

    def _node(self, name: str) -> KubeNode | None:
        """A Node as it is at this moment, or None for one that is gone."""
        try:
            return node_of(self._api.get(ResourceKind.NODE, name))
        except Missing:
            return None

    def _note(self, lease: str, notes: Mapping[str, str | None]) -> dict[str, Any]:
        self._leads()
        return self._patch(lease, {"metadata": {"annotations": notes}})

    def _counted(self, seen: CountedNodes, scope: str, lease: dict[str, Any]) -> Budget:
        """Write one scope's numbers, counted again against the claims that are there by then; where the Lease has them
        already, only so often that no agent takes them for old."""
        name = leases.lease_name(scope)

        def once(fresh: bool) -> Budget:
            there = self._get(name) if fresh else lease
            before = counts.budget_before(scope, there)
            found = counts.count(
                seen, before, self._quotas[scope], scope_label=self._scope_label, tolerated=self._tolerated
            )
            notes = leases.counts(limit=found.limit, total=found.total, out=found.out, at=self._clock())
            self._leads()
            if not leases.says(there, notes, max_age_s=self._recount_s):
                there = self._patch(name, {"metadata": {"resourceVersion": before.version, "annotations": notes}})
            written = leases.budget_of(scope, there)
            out = found.out | {claim.node for claim in written.claims.values()}
            self._scopes[scope] = Scope(name=scope, out=out, total=found.total, limit=found.limit)
            return written

        return compare_and_swap(f"Lease {self._namespace}/{name}", once)

    def _lease(self, name: str) -> dict[str, Any]:
        """A Lease, created where it is missing; one that another client creates meanwhile is read instead."""
        try:
            return self._get(name)
        except Missing:
            self._leads()
        try:
            return self._api.create(
                ResourceKind.LEASE, {"metadata": {"name": name}, "spec": {}}, namespace=self._namespace
            )
        except Conflict:
            return self._get(name)

    def _get(self, name: str) -> dict[str, Any]:
        return self._api.get(ResourceKind.LEASE, name, namespace=self._namespace)

    def _patch(self, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._api.patch(ResourceKind.LEASE, name, body, namespace=self._namespace)
