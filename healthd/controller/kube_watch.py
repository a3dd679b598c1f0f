"""Watches for troubles that no node reports itself: silent nodes and missing policies, with their Events.

``healthd controller`` reads the policies once a minute, and writes Events and one annotation of its Lease. A policy
that it cannot read is unknown, and pages as that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from healthd.controller.kube_troubles import ClusterFinding, EventsDue, news_of_trouble, statuses_of
from healthd.core.errors import BackendBusy, BackendError, StoreError
from healthd.core.model import ClusterTrouble, Remedy
from healthd.remediation.controller.node_status import NodeStatus
from healthd.remediation.engine.absent import is_acted_on
from healthd.remediation.orchestrators.kubernetes.api import Conflict, KubeApi, Missing, ResourceKind
from healthd.remediation.orchestrators.kubernetes.event_writer import KubeEventWriter
from healthd.remediation.orchestrators.kubernetes.fleet import SyncView
from healthd.remediation.orchestrators.kubernetes.lease_notes import LeaseNotes
from healthd.remediation.orchestrators.kubernetes.objects.admission_policies import POLICIES, policy_problems
from healthd.remediation.orchestrators.kubernetes.objects.node import KubeNode
from healthd.remediation.orchestrators.kubernetes.objects.silent_nodes import (
    SilenceKind,
    Silences,
    Watched,
    quiet_nodes,
    silence_message,
    silent_in,
    silent_text,
)
from healthd.remediation.ports import NodeRecord
from healthd.remediation.records.handoff import parse

POLICIES_S = 60.0
"""How often the policies are read: ten small objects."""
_EVENTS_WAIT_S = 60.0  # after an Event that could not be written


class WatchSettings(Struct, frozen=True, kw_only=True):
    """``timeout_s``: how long silence, or a gap in the policies, lasts before it pages. ``gap_s``: see Silences.
    ``all_nodes``, ``tolerated``, ``opt_out_label``, ``reports``: see Watched. ``policies``: whether the cluster must
    have them. ``takes_s``: how long an act may take."""

    namespace: str
    timeout_s: float
    gap_s: float
    all_nodes: bool
    policies: bool
    tolerated: Collection[str]
    opt_out_label: str
    reports: bool
    takes_s: dict[Remedy, float]


class KubeWatch:
    """``kept``: where the next leader finds the open pages. ``leads`` raises BackendRefused once this controller may no
    longer write. ``clock`` gives aware UTC."""

    def __init__(
        self,
        api: KubeApi,
        settings: WatchSettings,
        *,
        kept: LeaseNotes,
        leads: Callable[[], None],
        clock: Callable[[], datetime],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._settings, self._kept, self._monotonic_s = settings, kept, monotonic_s
        self._silences: Silences | None = None
        self._written = ""
        self._policies = PolicyWatch(api, settings.namespace, monotonic_s) if settings.policies else None
        self._events = KubeTroubleEvents(api, leads=leads, clock=clock, monotonic_s=monotonic_s)

    def sync(
        self, counted: SyncView, records: Sequence[NodeRecord], statuses: Sequence[NodeStatus], now: datetime
    ) -> tuple[NodeStatus, ...]:
        """The statuses that page now. ``records``: the handoff records. ``statuses``: the statuses of this sync so
        far."""
        found = [ClusterFinding(node=odd.node, trouble=odd.kind, message=odd.message) for odd in counted.oddities]
        silent, unread = self._silent(self._quiet(counted, records, statuses, now))
        found += [
            ClusterFinding(node=name, trouble=each.trouble, message=self._message(name, each))
            for name, each in silent.items()
        ]
        problems = (unread, self._keep(silent), self._events.tell(found, {**counted.uncovered, **counted.seen.nodes}))
        return (*statuses_of(found), *(NodeStatus(node="", message=each) for each in problems if each))

    def _quiet(
        self, counted: SyncView, records: Sequence[NodeRecord], statuses: Sequence[NodeStatus], now: datetime
    ) -> dict[str, SilenceKind]:
        """The silent nodes by name; incomplete policies under ""."""
        settings = self._settings
        begun = {record.node for record in records if is_acted_on(parse(record.text), now, settings.takes_s)}
        watched = Watched(
            all_nodes=settings.all_nodes,
            named={claim.node for claim in counted.budget.claims.values()} | {record.node for record in records},
            acted_on=begun | {each.node for each in statuses if each.is_acted_on},
            tolerated=settings.tolerated,
            opt_out_label=settings.opt_out_label,
            reports=settings.reports,
        )
        quiet = quiet_nodes(counted.seen.nodes, watched)
        quiet |= {name: SilenceKind(trouble=ClusterTrouble.UNCOVERED) for name in counted.uncovered}
        if self._policies is not None and self._policies.problem():
            quiet[""] = SilenceKind(trouble=ClusterTrouble.NO_POLICIES)
        return quiet

    def _silent(self, quiet: Mapping[str, SilenceKind]) -> tuple[Mapping[str, SilenceKind], str]:
        """The nodes of these that page, and the problem, or "". If the earlier pages cannot be read, each timeout
        starts again."""
        problem = ""
        if self._silences is None:
            self._silences, problem = self._begun()
        return self._silences.silent(quiet, self._monotonic_s()), problem

    def _begun(self) -> tuple[Silences, str]:
        """Silences with the earlier pages, or why these cannot be read."""
        settings, problem = self._settings, ""
        try:
            self._written = self._kept.kept()
        except StoreError as error:
            problem = f"earlier pages cannot be read; each silent node pages again after its timeout: {error}"
        paging = silent_in(self._written)
        return Silences(timeout_s=settings.timeout_s, gap_s=settings.gap_s, paging=paging), problem

    def _keep(self, silent: Mapping[str, SilenceKind]) -> str:
        """Keep the open pages for the next leader; why that failed, or ""."""
        if (text := silent_text(silent)) == self._written:
            return ""
        try:
            self._kept.keep(text)
        except StoreError as error:
            return f"the list of silent nodes cannot be written for the next leader: {error}"
        self._written = text
        return ""

    def _message(self, name: str, quiet: SilenceKind) -> str:
        if quiet.trouble is ClusterTrouble.NO_POLICIES and self._policies is not None:
            return self._policies.problem()
        return silence_message(name, quiet, self._settings.timeout_s)


class PolicyWatch:
    """The admission policies, read every ``POLICIES_S``. ``namespace``: of the agents."""

    def __init__(self, api: KubeApi, namespace: str, monotonic_s: Callable[[], float]) -> None:
        self._api, self._namespace, self._monotonic_s = api, namespace, monotonic_s
        self._next_s, self._problem = monotonic_s(), ""

    def problem(self) -> str:
        """The problem that the last read found, or ""."""
        now_s = self._monotonic_s()
        if now_s >= self._next_s:
            self._next_s, self._problem = now_s + POLICIES_S, self._read()
        return self._problem

    def _read(self) -> str:
        try:
            policies = {name: self._get(ResourceKind.POLICY, name) for name in POLICIES}
            bindings = {name: self._get(ResourceKind.POLICY_BINDING, name) for name in POLICIES}
        except BackendError as error:
            return f"cannot read the admission policies that limit each agent to its own node: {error}"
        problems = policy_problems(policies, bindings, namespace=self._namespace)
        if not problems:
            return ""
        return (
            f"an agent can change other nodes than its own: {'; '.join(problems)}; apply packaging/kubernetes/policies"
            f" (Kubernetes 1.30 or later), or upgrade the chart"
        )

    def _get(self, kind: ResourceKind, name: str) -> Mapping[str, Any] | None:
        try:
            return self._api.get(kind, name)
        except Missing:
            return None


class KubeTroubleEvents:
    """Events of troubles, each on its Node, and again each hour while the trouble lasts."""

    def __init__(
        self,
        api: KubeApi,
        *,
        leads: Callable[[], None],
        clock: Callable[[], datetime],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._telling, self._monotonic_s = KubeEventWriter(api, leads=leads, clock=clock), monotonic_s
        self._due, self._not_before_s, self._problem = EventsDue(), monotonic_s(), ""

    def tell(self, found: Iterable[ClusterFinding], nodes: Mapping[str, KubeNode]) -> str:
        """Write the Events that are due. Why that failed, or ""."""
        now_s = self._monotonic_s()
        here = ((nodes[each.node], news_of_trouble(each, nodes[each.node].uid)) for each in found if each.node in nodes)
        due = self._due.due(((node.name, news) for node, news in here if news is not None), now_s)
        if now_s < self._not_before_s:
            return self._problem
        self._problem = ""
        try:
            for name, news in due:
                with contextlib.suppress(Conflict):  # the Event still exists
                    self._telling.of_node(news, name=name, uid=nodes[name].uid)
                self._due.told(name, news, now_s)
        except BackendBusy:
            self._not_before_s = now_s + _EVENTS_WAIT_S
        except BackendError as error:
            self._not_before_s = now_s + _EVENTS_WAIT_S
            self._problem = f"Events cannot be written: {error}"
        return self._problem
