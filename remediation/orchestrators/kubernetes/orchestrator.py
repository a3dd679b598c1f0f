"""Kubernetes: one node's own Node object, its NodeHealth, and its claims on the fleet's budget.

It changes its own Node, the record of its own NodeHealth and its own annotations of the budget's Leases, nothing else.
``healthd controller`` alone counts the nodes that are out; an agent reads them from the Lease, and lists no nodes.
Before it acts it lists the handoff records of the fleet, by which acts are bounded. The controller alone evicts. The
kubelet says, over its own socket, which pods use the GPUs.

The node's request to its platform, a label or a condition (``platform_signals``), is written here too. It goes with
the drain or the last slot, however the remediation ends.

Every write is one patch with the resourceVersion of the object that was read before, built again from a new reading
after a 409. A write without an answer is *unknown*, and the caller reads back.

Several questions of one step are one reading: an object that was read or written within ``lately_s`` serves for the
next question, but for ``view``, which always reads now. The budget then comes whole from one version of its Lease, and
an older one can grant nothing: the server compares each claim.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from msgspec.structs import replace

from healthd.core.errors import BackendBusy, BackendDenied, BackendRefused, BackendUnknown
from healthd.core.model import CLUSTER
from healthd.remediation.decide.freeze import Freeze, in_words
from healthd.remediation.orchestrators.kubernetes.api import (
    FIELD_MANAGER,
    KubeApi,
    Missing,
    PatchKind,
    ResourceKind,
    compare_and_swap,
)
from healthd.remediation.orchestrators.kubernetes.device_plugin import asking_patch
from healthd.remediation.orchestrators.kubernetes.gpu_clients import resumed_patch
from healthd.remediation.orchestrators.kubernetes.node_health_api import NodeHealths
from healthd.remediation.orchestrators.kubernetes.objects import budget as leases
from healthd.remediation.orchestrators.kubernetes.objects import node as nodes
from healthd.remediation.orchestrators.kubernetes.objects.budget import Budget
from healthd.remediation.orchestrators.kubernetes.objects.node import KubeNode, OwnershipAnnotation
from healthd.remediation.orchestrators.kubernetes.objects.platform_signals import SIGNALS
from healthd.remediation.orchestrators.kubernetes.pod_resources import GPU_RESOURCES, SOCKET, pods_with
from healthd.remediation.ports import FleetSnapshot, NodeRecord, NodeView, ScopeSnapshot, Slot

RECORDS_S = 60.0
"""How old the handoff records of others may be for a node that waits for a slot."""
_UNTIL_CLAIM_IS_SEEN_S = (0.05, 0.2, 0.5)
_RANDOM = random.SystemRandom()

NodePatch = Callable[[KubeNode], dict[str, Any] | None]
Notes = dict[str, str | None]


class Fence(StrEnum):
    """The result of ``heal_fence``. CLAIMED: this node has a claim, so that the fence stays."""

    NONE = "none"
    CLAIMED = "claimed"
    TAKEN_AWAY = "taken away"


class KubernetesOrchestrator:
    """The Orchestrator of a node that runs a kubelet.

    ``namespace``: where the Leases are. ``scopes``: the further scopes that have a budget; the node is in the one that
    its label ``scope_label`` names. ``tolerated``: globs of taints that this fleet's jobs tolerate. ``effect``: of the
    taint, NoSchedule or NoExecute; ``cordon``: whether ``unschedulable`` is set as well. ``resources``: globs of what a
    job holds; ``pod_resources``: the kubelet's socket. ``counts_age_s``: how old a count of who is out may be.
    ``lately_s``: as above. ``clock`` gives aware UTC, ``monotonic_s`` the age of a reading; ``sleep`` and ``chance``,
    a number in [0, 1), serve compare-and-swap.
    """

    kind = "kubernetes"

    def __init__(
        self,
        api: KubeApi,
        *,
        node: str,
        namespace: str,
        scopes: Collection[str] = (),
        scope_label: str = "",
        tolerated: Collection[str] = (),
        effect: str = "NoSchedule",
        cordon: bool = False,
        resources: Collection[str] = GPU_RESOURCES,
        pod_resources: str = SOCKET,
        counts_age_s: float = 900.0,
        timeout_s: float = 5.0,
        lately_s: float = 0.5,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = _RANDOM.random,
    ) -> None:
        self._api, self._name, self._namespace = api, node, namespace
        self._wanted_scopes, self._scope_label = frozenset(scopes), scope_label
        self._tolerated, self._effect, self._cordon = tuple(tolerated), effect, cordon
        self._resources, self._pod_resources, self._timeout_s = tuple(resources), pod_resources, timeout_s
        self._counts_age_s, self._clock, self._sleep, self._chance = counts_age_s, clock, sleep, chance
        self._monotonic_s = monotonic_s
        self._lately_s, self._lately = lately_s, dict[tuple[ResourceKind, str], tuple[float, dict[str, Any]]]()
        self._healths = NodeHealths(api, self._pause)
        self._scopes: tuple[str, ...] = ()
        self._limits: dict[str, int] = {}
        self._records_then: tuple[float, dict[str, str]] = (float("-inf"), {})

    def close(self) -> None:
        """Give the connection back."""
        self._api.close()

    # -- reading ------------------------------------------------------------------------------------------------------

    def view(self, *, jobs: bool = False) -> NodeView:
        """Read this node; ``jobs`` adds the pods that hold GPUs. Raises BackendRefused for a Node that is not there."""
        freeze = in_words(self._freezes()) if jobs else ""
        node = self._node(fresh=True)
        held = pods_with(self._resources, path=self._pod_resources, timeout_s=self._timeout_s) if jobs else ()
        return replace(nodes.view_of(node, tolerated=self._tolerated, jobs=held), freeze=freeze)

    def _freezes(self) -> tuple[Freeze, ...]:
        """The freeze of the fleet; none where there is no Lease, without which no node is taken out either."""
        try:
            lease = self._api.get(ResourceKind.LEASE, leases.LEASE, namespace=self._namespace)
        except Missing:
            return ()
        freeze = leases.freeze_in(leases.annotations_of(lease)[1], self._clock())
        return () if freeze is None else (freeze,)

    def snapshot(self) -> FleetSnapshot:
        """Read the nodes that are out from the Leases, and this node from its own Node, which is newer.

        The handoff records come from one LIST of the server's cache, as new as what this node has written. Where the
        budget is full and this node has no slot, those of others may be ``RECORDS_S`` old: the node acts on none of
        them then, and a thousand nodes that wait for the same slot would keep the server busy with lists.
        """
        node = self._node()
        budgets = [self._budget(scope) for scope in self._scopes_of(node)]
        for budget in budgets:
            leases.check_counted(budget, self._clock(), max_age_s=self._counts_age_s)
        self._limits = {budget.scope: budget.limit for budget in budgets}
        own = frozenset({self._name} if nodes.away_by(node, self._tolerated) else ())
        first, *others = budgets
        return FleetSnapshot(
            out=_out(first) | own,
            total=first.total,
            scopes=tuple(ScopeSnapshot(scope=each.scope, out=_out(each) | own, total=each.total) for each in others),
            records=tuple(NodeRecord(node=name, text=text) for name, text in sorted(self._records(budgets).items())),
            held=first.held,
            limit=first.limit,
        )

    def quotas(self) -> Mapping[str, int]:
        """Scope to how many nodes may be out, as the Leases had it when the fleet was read last: the controller, which
        counts the nodes, resolves percentages. Empty before that, so that no node is taken out."""
        return dict(self._limits)

    def slots(self) -> tuple[Slot, ...]:
        """Every claim in the scopes of this node."""
        scopes = self._scopes or self._scopes_of(self._node())
        return tuple(slot for scope in scopes for slot in self._budget(scope).slots)

    def read_record(self) -> str:
        seen = self._healths.read(self._name)
        return seen.text if seen is not None else ""

    # -- taking out and putting back ----------------------------------------------------------------------------------

    def quarantine(self, text: str) -> None:
        """Write the reason into the claim, for other nodes to see, then taint this node with ``text`` as the reason.

        A crash between the two leaves a claim with a drain that is not there, which still counts once.
        """
        stamp = int(self._clock().timestamp())
        held = OwnershipAnnotation(text=text, by=FIELD_MANAGER, stamp=stamp)

        def patch(node: KubeNode) -> dict[str, Any] | None:
            there = nodes.hold_of(node)
            if there is not None and there.text == text:
                return None
            return nodes.quarantine_patch(node, held, effect=self._effect, cordon=self._cordon)

        if patch(self._node(fresh=True)) is None:
            return
        self._show_reason(text, stamp)
        self._taint(patch)

    def release(self, *, resume: bool) -> None:
        """Remove what is ours by the annotation. ``resume`` has no meaning here: a kubelet that is not ready says so
        itself. A request to the platform goes first, because it must not remain while a job runs. GPU clients that a
        reset stopped start again, should the process that stopped them have been lost."""
        self._end_requests()
        self.change_own(resumed_patch)
        self.change_own(nodes.release_patch)

    def verified(self) -> bool:
        """Remove the start-up taint, after the first full verdict on this node; whether it was there."""
        if self._node(fresh=True).taint(nodes.UNVERIFIED) is None:
            return False
        self.change_own(lambda node: nodes.without_taint_patch(node, nodes.UNVERIFIED))
        return True

    # -- requests to the platform -------------------------------------------------------------------------------------

    def own(self, *, fresh: bool = False) -> KubeNode:
        """This node's Node. Raises BackendUnknown, also where it is gone: its machine may be on its way out."""
        try:
            return nodes.node_of(self._read(ResourceKind.NODE, self._name, fresh=fresh))
        except Missing as error:
            raise BackendUnknown(f"the node {self._name} is no longer in the cluster") from error

    def _end_requests(self) -> None:
        for signal in SIGNALS.values():
            self.change_own(lambda node, by=signal: by.ended(node, self._clock()), status=signal.on_status)  # type: ignore[misc]

    # -- slots and handoff records ------------------------------------------------------------------------------------

    def claim(self, scope: str, index: int) -> None:
        """Take a slot, then fence the node: new pods would otherwise start on it during the settle time."""
        self._change_budget(scope, lambda budget: leases.claimed(budget, self._name, index, self._clock()))
        self.fence()

    def keep_awake(self, *, on: bool) -> None:
        """Do nothing: no view of Kubernetes has a node that may be powered down for being idle."""

    def fence(self) -> None:
        """Set the fence, which is a write of its own after the claim."""
        self._taint(nodes.fence_patch)

    def give_back(self, slot: Slot) -> None:
        """Give a slot back; before the last one goes the fence, and a drain of which the operator undid a part."""
        if slot.node != self._name:
            raise BackendRefused(f"slot {slot.scope} {slot.index} not given back: {slot.node} holds it")
        own = [other for other in self.slots() if other.node == self._name]
        is_last = all((other.scope, other.index) == (slot.scope, slot.index) for other in own)
        if is_last:
            self._end_requests()
            self.change_own(resumed_patch)
            self.change_own(nodes.unfence_patch)
        self._change_budget(slot.scope, lambda budget: leases.given_back(budget, self._name, slot.index))
        if is_last:
            self._leave_former_scopes()

    def heal_fence(self) -> Fence:
        """Remove a fence for which this node has no claim in any scope: the operator removed the claim from the Lease,
        or deleted the Lease. May run beside a claim that is made meanwhile, whose fence then comes back."""
        if nodes.unfence_patch(self._node(fresh=True)) is None:
            return Fence.NONE
        if self._has_claim():
            return Fence.CLAIMED
        self.change_own(nodes.unfence_patch)
        if self._has_claim():
            self.fence()
            return Fence.CLAIMED
        return Fence.TAKEN_AWAY

    def write_record(self, text: str) -> None:
        """Set the record of this node's NodeHealth. No other node's is touched, so no version is compared."""
        self._healths.leave(self._name, text)

    def ask_plugin_restart(self, reset: str, at: datetime) -> None:
        """Ask ``healthd controller`` to restart this node's device plugin after a GPU reset, which ``reset`` names."""
        self._patch(ResourceKind.NODE, self._name, asking_patch(reset, at))

    # -- parts --------------------------------------------------------------------------------------------------------

    def _node(self, *, fresh: bool = False) -> KubeNode:
        try:
            return nodes.node_of(self._read(ResourceKind.NODE, self._name, fresh=fresh))
        except Missing as error:
            help_ = "check [node] name: in a pod, spec.nodeName by the downward API"
            raise BackendRefused(f"the cluster has no node {self._name}: {help_}") from error

    def _scopes_of(self, node: KubeNode) -> tuple[str, ...]:
        mine = node.labels.get(self._scope_label, "") if self._scope_label else ""
        self._scopes = (CLUSTER, mine) if mine in self._wanted_scopes else (CLUSTER,)
        return self._scopes

    def _budget(self, scope: str, *, fresh: bool = False) -> Budget:
        return leases.budget_of(scope, self._lease(leases.lease_name(scope), fresh=fresh))

    def _records(self, budgets: Collection[Budget]) -> dict[str, str]:
        """Node to handoff record."""
        waits = any(budget.of(self._name) is None and budget.room(self._name) < 1 for budget in budgets)
        listed_s, texts = self._records_then
        if waits and self._monotonic_s() - listed_s < RECORDS_S:
            own = self.read_record()
            return {**{name: text for name, text in texts.items() if name != self._name}, **_of(self._name, own)}
        asked_s = self._monotonic_s()
        there = self._healths.all()
        found = {name: text for name, each in there.items() if (text := each.text)}
        self._records_then = (asked_s, found)
        return found

    def _lease(self, name: str, *, fresh: bool = False) -> dict[str, Any]:
        try:
            return self._read(ResourceKind.LEASE, name, fresh=fresh)
        except Missing as error:
            help_ = "the Helm chart or `healthd controller` makes it; check [orchestrator.kubernetes] namespace"
            raise BackendUnknown(f"there is no Lease {self._namespace}/{name}: {help_}") from error

    def _leave_former_scopes(self) -> None:
        """Give back a claim in a scope that the node's label named before: ``slots`` no longer lists it. Comes after
        everything else, so that a Lease that cannot be read keeps no remediation open; it is logged once."""
        key = leases.key_of(self._name)
        for scope in sorted(self._wanted_scopes.difference(self._scopes)):
            name = leases.lease_name(scope)
            if key in leases.annotations_of(self._lease(name))[1]:
                self._patch(ResourceKind.LEASE, name, {"metadata": {"annotations": {key: None}}})

    def _has_claim(self) -> bool:
        """Whether this node's key is there in any scope. A Lease that is gone holds no claim."""
        key = leases.key_of(self._name)
        for scope in sorted({CLUSTER, *self._wanted_scopes}):
            try:
                lease = self._read(ResourceKind.LEASE, leases.lease_name(scope), fresh=True)
            except Missing:
                continue
            if key in leases.annotations_of(lease)[1]:
                return True
        return False

    def _show_reason(self, text: str, stamp: int) -> None:
        scopes = self._scopes or self._scopes_of(self._node())
        for scope in scopes:
            self._change_budget(scope, lambda budget: leases.drained(budget, self._name, text, stamp))

    def _taint(self, patch: NodePatch) -> None:
        """Change the Node by a patch that needs a claim. The admission policy reads claims through a cache, so that it
        may refuse what was claimed milliseconds ago."""
        for pause_s in _UNTIL_CLAIM_IS_SEEN_S:
            try:
                return self.change_own(patch)
            except (BackendBusy, BackendDenied, Missing):
                raise
            except BackendRefused:
                self._sleep(pause_s)
        return self.change_own(patch)

    def change_own(self, patch: NodePatch, *, status: bool = False) -> None:
        """Read this node's Node and patch it, or the status of it, as it was read, until no other client was faster. No
        patch: write nothing."""

        def once(fresh: bool) -> None:
            if (body := patch(self._node(fresh=fresh))) is not None:
                self._patch(ResourceKind.NODE, self._name, body, status=status)

        compare_and_swap(f"node {self._name}", once, self._pause)

    def _change_budget(self, scope: str, change: Callable[[Budget], Notes]) -> None:
        """The same of a scope's Lease."""
        name = leases.lease_name(scope)

        def once(fresh: bool) -> None:
            budget = self._budget(scope, fresh=fresh)
            if notes := change(budget):
                body = {"metadata": {"resourceVersion": budget.version, "annotations": notes}}
                self._patch(ResourceKind.LEASE, name, body)

        compare_and_swap(f"Lease {self._namespace}/{name}", once, self._pause)

    def _read(self, kind: ResourceKind, name: str, *, fresh: bool) -> dict[str, Any]:
        at_s, there = self._lately.get((kind, name), (0.0, None))
        if there is not None and not fresh and self._monotonic_s() - at_s < self._lately_s:
            return there
        asked_s = self._monotonic_s()
        # patched at once after a fresh reading: with a second of our own rate between, other clients always win
        there = self._api.get(kind, name, namespace=self._namespace_of(kind), ahead=1 if fresh else 0)
        self._lately[kind, name] = (asked_s, there)
        return there

    def _patch(self, kind: ResourceKind, name: str, body: Mapping[str, Any], *, status: bool = False) -> None:
        self._lately.pop((kind, name), None)
        asked_s = self._monotonic_s()
        how = (
            PatchKind.STRATEGIC if status else PatchKind.MERGE
        )  # a merge patch would replace the conditions of all writers
        there = self._api.patch(kind, name, body, how=how, namespace=self._namespace_of(kind), status=status)
        self._lately[kind, name] = (asked_s, there)

    def _namespace_of(self, kind: ResourceKind) -> str | None:
        return self._namespace if kind is ResourceKind.LEASE else None

    def _pause(self, longest_s: float) -> None:
        self._sleep(self._chance() * longest_s)


def _of(node: str, text: str) -> dict[str, str]:
    return {node: text} if text else {}


def _out(budget: Budget) -> frozenset[str]:
    """The nodes that are out: those that were counted, and the holders of claims that show a drain."""
    return budget.out | {claim.node for claim in budget.claims.values() if claim.text}
