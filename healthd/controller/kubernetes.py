"""``healthd controller`` on Kubernetes: a Lease elects the leader, and each sync counts, drains and repairs.

This module decides nothing. Its disk may be lost with its pod: requests are in the handoff records, and nodes that are
out in the budget's Leases. Without a provisioner the controller counts and drains, and answers no request.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from healthd.api.controller_stats import ControllerStats
from healthd.config.schema.config import Config
from healthd.controller.dependencies import controller_timeouts, make_controller, metadata_of
from healthd.controller.fleet_reader import SharedReading
from healthd.controller.kube_watch import KubeWatch, WatchSettings
from healthd.controller.progress import Progress
from healthd.controller.status import StatusNote
from healthd.core.errors import BackendUnknown, ConfigError, StoreError
from healthd.core.model import ClusterTrouble, Mode, Refusal, Remedy
from healthd.core.node import CommandResult
from healthd.fleet.kubernetes import read_fleet
from healthd.remediation.controller.controller import Controller
from healthd.remediation.controller.node_status import NodeStatus
from healthd.remediation.decide.fleet import Scope
from healthd.remediation.decide.rules import LABEL
from healthd.remediation.orchestrators.kubernetes.api import KubeApi, connect
from healthd.remediation.orchestrators.kubernetes.device_plugin import KubePlugins
from healthd.remediation.orchestrators.kubernetes.domain_fencer import KubeFencer
from healthd.remediation.orchestrators.kubernetes.drain import KubeDrain
from healthd.remediation.orchestrators.kubernetes.fleet import KubeFleet, SyncView
from healthd.remediation.orchestrators.kubernetes.leader_election import LEASE, RENEW_S, Leadership, Renewal
from healthd.remediation.orchestrators.kubernetes.lease_notes import TOLD, LeaseNotes
from healthd.remediation.orchestrators.kubernetes.objects.budget import STATUS, STATUS_LEASE
from healthd.remediation.orchestrators.kubernetes.objects.domain_fences import FENCES
from healthd.remediation.orchestrators.kubernetes.objects.drain_record import RECORDS
from healthd.remediation.orchestrators.kubernetes.objects.eviction import EvictionRule, EvictMode, GangMode
from healthd.remediation.orchestrators.kubernetes.objects.gangs import GangLabels
from healthd.remediation.orchestrators.kubernetes.objects.incident_notes import INCIDENTS, INCIDENTS_LEASE, notices_text
from healthd.remediation.orchestrators.kubernetes.objects.node import hold_of
from healthd.remediation.orchestrators.kubernetes.objects.platform_signals import HYPERPOD_LABEL
from healthd.remediation.orchestrators.kubernetes.objects.silent_nodes import SILENT
from healthd.remediation.orchestrators.kubernetes.remote_node import KubeClaims, RemoteKubeNode
from healthd.remediation.orchestrators.kubernetes.transport import Pace
from healthd.remediation.ports import Provisioner
from healthd.remediation.provisioners.from_config import channel_of, found_by_controller, open_for_kubernetes
from healthd.remediation.provisioners.registry import KINDS, RepairChannel
from healthd.remediation.records.incident_notices import IncidentNotice
from healthd.remediation.request_stats import RequestStats
from healthd.sources.command import run_command
from healthd.state.store import Store

_MANAGER = "healthd-controller"
_LIST_S = 30.0  # a server that answers from its cache may give 10,000 nodes in one piece
_GAP_S = 60.0  # between two syncs: the nodes count as watched without a gap
READING_S = 60.0
"""How often the whole fleet is read at most, in seconds: Nodes, NodeHealths and Leases, for incidents and ledger."""
_COUNTS_IN_AN_AGE = 15  # so many counts may be missed before agents consider the last one stale


def connect_controller(
    config: Config, environ: Mapping[str, str], *, timeout_s: float, calls: RequestStats | None = None
) -> KubeApi:
    """A connection to the configured cluster, as the controller. Raises ConfigError."""
    return connect(
        kubeconfig=config.orchestrator.kubernetes.kubeconfig,
        timeout_s=timeout_s,
        pace=Pace(),
        environ=environ,
        manager=_MANAGER,
        calls=calls,
    )


class KubeIncidents:
    """Leaves the notices of incidents with the cluster, for its agents."""

    def __init__(self, notes: LeaseNotes) -> None:
        self._notes = notes

    def show_incidents(self, notices: Sequence[IncidentNotice], now: datetime) -> None:
        try:
            self._notes.keep(notices_text(notices, now))
        except StoreError as error:
            raise BackendUnknown(str(error)) from error


class KubernetesWork:
    """The work of one controller. ``run`` runs the child that calls AWS; ``opened`` connects to the API server, as
    ``connect_controller`` does. Tests count both."""

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        *,
        run: Callable[..., CommandResult] = run_command,
        opened: Callable[..., KubeApi] = connect_controller,
    ) -> None:
        section = config.orchestrator.kubernetes
        self._config, self._run = config, run
        self.reading = self._shared_reading(environ)
        self.jobs = None
        self._metadata = metadata_of(config)
        self._repairs = channel_of(config.provisioner) not in (RepairChannel.COMMAND, RepairChannel.OWN_NODE)
        self.about = self._checked()
        kind, mode = config.provisioner.kind, config.remediation.mode
        # In observe mode no node is held to a limit, and a cluster with many cordons has not spent one.
        limits = mode is not Mode.OBSERVE
        self.stats = ControllerStats(orchestrator="kubernetes", provisioner=kind, mode=mode, limits=limits)
        self._api = opened(config, environ, timeout_s=max(section.timeout_s, _LIST_S), calls=self.stats.calls)
        # A connection of its own, so that no long answer delays the renewal.
        self._lead = Leadership(
            opened(config, environ, timeout_s=min(section.timeout_s, RENEW_S / 2), calls=self.stats.calls),
            namespace=section.namespace,
            identity=f"{socket.gethostname()}_{os.urandom(4).hex()}",
        )
        self.incident_backend = KubeIncidents(self._notes(key=INCIDENTS, lease=INCIDENTS_LEASE))
        fences = self._notes(key=FENCES, lease=INCIDENTS_LEASE)
        self.fence_backend = KubeFencer(self._api, fences, leads=self._lead.check)

    def _notes(self, *, key: str = TOLD, lease: str = LEASE) -> LeaseNotes:
        """Notes in a Lease. Agents may read that about incidents, and write none of them."""
        namespace = self._config.orchestrator.kubernetes.namespace
        return LeaseNotes(self._api, namespace=namespace, leads=self._lead.check, key=key, lease=lease)

    def _shared_reading(self, environ: Mapping[str, str]) -> SharedReading:
        """The list that ``healthd fleet`` reads, once a minute at most: three LISTs are not free."""
        config = self._config
        kubeconfig = config.orchestrator.kubernetes.kubeconfig
        return SharedReading(
            lambda: read_fleet(config, environ, _now, kubeconfig=kubeconfig, calls=self.stats.calls), every_s=READING_S
        )

    @property
    def leader(self) -> str:
        """The holder of the Lease, or its last error."""
        return self._lead.leader or self._lead.message or "no leader yet"

    def take_lead(self, held: contextlib.ExitStack, progress: Progress) -> bool:
        """Try to take the Lease. A thread renews it for as long as ``progress`` is not stuck."""
        if not self._lead.attempt():
            return False
        held.enter_context(Renewal(self._lead, stuck=progress.stuck))
        return True

    def leads(self) -> bool:
        """Whether the last renewal is recent enough."""
        return self._lead.holds()

    def status(self) -> StatusNote:
        """In a Lease of its own, which has more writes and more readers than the leader's Lease."""
        return _status_in(self._api, self._config, self._lead.check)

    def told(self, store: Store) -> LeaseNotes:
        """In the Lease: the store is the pod's own."""
        return self._notes()

    def sync(self, store: Store) -> KubernetesSync:
        """Count, then evict, then answer requests."""
        config, section = self._config, self._config.orchestrator.kubernetes
        fleet = KubeFleet(
            self._api,
            namespace=section.namespace,
            quotas=config.budget.quotas,
            leads=self._lead.check,
            monotonic_s=time.monotonic,
            clock=_now,
            scope_label=section.scope_label,
            selector=config.controller.selector,
            tolerated=section.tolerated_taints,
            recount_s=section.counts_age_s / _COUNTS_IN_AN_AGE,
        )
        drain = KubeDrain(
            self._api,
            rules=drain_rules(config),
            leads=self._lead.check,
            clock=_now,
            records=self._notes(key=RECORDS),
            gangs=GangLabels(labels=config.controller.gang_labels, devices=section.job_resources),
            timeout_s=config.controller.drain_timeout_s,
            opt_out_label=config.remediation.opt_out_label,
        )
        plugins = KubePlugins(
            self._api,
            selector=section.device_plugin,
            namespace=section.device_plugin_namespace,
            leads=self._lead.check,
            clock=_now,
            monotonic_s=time.monotonic,
            opt_out_label=config.remediation.opt_out_label,
        )
        controller = self._controller(fleet, store) if self._repairs else None
        return KubernetesSync(
            fleet,
            drain,
            controller,
            mode=config.remediation.mode,
            watch=self._watch(),
            plugins=plugins if section.device_plugin else None,
        )

    def _watch(self) -> KubeWatch:
        config, acts = self._config, controller_timeouts(self._config)
        settings = WatchSettings(
            namespace=config.orchestrator.kubernetes.namespace,
            timeout_s=config.controller.silence_timeout_s,
            gap_s=max(_GAP_S, 2 * config.controller.interval_s),
            all_nodes=bool(config.controller.selector),
            policies=config.controller.policies,
            tolerated=config.orchestrator.kubernetes.tolerated_taints,
            opt_out_label=config.remediation.opt_out_label,
            reports=config.orchestrator.kubernetes.report,
            takes_s={Remedy.REBOOT_NODE: acts.reboot_timeout_s, Remedy.REPLACE_NODE: acts.replace_timeout_s},
        )
        kept, leads = self._notes(key=SILENT), self._lead.check
        return KubeWatch(self._api, settings, kept=kept, leads=leads, clock=_now, monotonic_s=time.monotonic)

    def _controller(self, fleet: KubeFleet, store: Store) -> Controller:
        return make_controller(
            self._config,
            store,
            fleet=fleet,
            node=self._remote_node,
            booted=lambda _: None,
            opt_out=self._config.remediation.opt_out_label,
            feature_is=LABEL,
            boot_id=lambda name: self._remote_node(name).boot_id(),
            provisioner=self._provisioner,
            stats=self.stats.repair_stats,
        )

    def _remote_node(self, name: str) -> RemoteKubeNode:
        section = self._config.orchestrator.kubernetes
        return RemoteKubeNode(
            self._api,
            node=name,
            namespace=section.namespace,
            leads=self._lead.check,
            resources=section.job_resources,
            tolerated=section.tolerated_taints,
        )

    def _provisioner(self, node: str, instance: str) -> Provisioner:
        afar = self._remote_node(node)
        return open_for_kubernetes(
            self._config,
            node,
            instance,
            self._metadata,
            machine=afar.machine,
            label=lambda: afar.label(HYPERPOD_LABEL),
            claims=KubeClaims(self._api, leads=self._lead.check),
            leads=self._lead.check,
            run=self._run,
            calls=self.stats.calls,
        )

    def _checked(self) -> str:
        """The platform that replaces machines, for the log. Raises ConfigError for one that cannot work here."""
        kind, channel = self._config.provisioner.kind, channel_of(self._config.provisioner)
        if kind in KINDS and KINDS[kind].needs_slurm:
            raise ConfigError((f"provisioner.kind = {kind} needs Slurm, and this is Kubernetes; set another kind",))
        if channel is RepairChannel.OWN_NODE:
            return f"Kubernetes; counts and drains, answers no request: nodes ask {kind} through their own Node object"
        if not self._repairs:
            return "Kubernetes; counts and drains, answers no request: [provisioner] kind is none"
        if channel is RepairChannel.NODE_CLAIM:
            return f"Kubernetes, {KINDS[kind].title}, as configured"
        found = found_by_controller(self._config.provisioner, self._metadata)
        return f"Kubernetes, {found.platform}, {found.why}"


def read_status(config: Config, environ: Mapping[str, str]) -> dict[str, Any] | None:
    """The last status of the controller that leads this cluster. Raises StoreError where the cluster does not
    answer."""
    api = connect_controller(config, environ, timeout_s=config.orchestrator.kubernetes.timeout_s)
    try:
        return _status_in(api, config, lambda: None).shown()
    finally:
        api.close()


def _status_in(api: KubeApi, config: Config, leads: Callable[[], None]) -> StatusNote:
    namespace = config.orchestrator.kubernetes.namespace
    return StatusNote(LeaseNotes(api, namespace=namespace, leads=leads, key=STATUS, lease=STATUS_LEASE))


class KubernetesSync:
    """One sync, as often as it is called. ``controller`` None: it answers no requests. ``plugins`` None: it restarts no
    device plugin."""

    def __init__(
        self,
        fleet: KubeFleet,
        drain: KubeDrain,
        controller: Controller | None,
        *,
        mode: Mode,
        watch: KubeWatch,
        plugins: KubePlugins | None = None,
    ) -> None:
        self._fleet, self._drain, self._controller, self._mode = fleet, drain, controller, mode
        self._watch, self._plugins = watch, plugins

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """The budgets as the last sync counted them."""
        return self._fleet.scopes

    def __call__(self, now: datetime) -> Sequence[NodeStatus]:
        """The statuses of the nodes; one may have several. Raises BackendError where the cluster does not answer,
        StoreError."""
        counted = self._fleet.count()
        statuses = [
            NodeStatus(node=name, message=why) for name, why in (*counted.gone.items(), *counted.remarks.items())
        ]
        if self._mode is not Mode.OBSERVE:
            statuses += self._drained(counted)
        if self._mode is not Mode.OBSERVE and self._plugins is not None:
            reported = self._plugins.sync(counted.seen.nodes)
            statuses += [NodeStatus(node=name, message=message) for name, message in reported.items()]
        if self._controller is not None:
            for name, why in counted.gone.items():
                self._controller.gone(name, why)
            statuses += self._controller.sync(now)
        statuses += self._watch.sync(counted, self._fleet.fleet().records, statuses, now)
        return statuses

    def _drained(self, counted: SyncView) -> list[NodeStatus]:
        drained = {node.name for node in counted.seen.nodes.values() if hold_of(node) is not None}
        claimed = {claim.node for claim in counted.budget.claims.values()}
        stuck = (ClusterTrouble.DRAIN_STUCK,)
        return [
            NodeStatus(node=name, message=state.message, page=True, refusal=Refusal.OVERDUE, troubles=stuck)
            if state.stuck
            else NodeStatus(node=name, message=state.message)
            for name, state in self._drain.sync(drained, claimed).items()
        ]


def drain_rules(config: Config) -> tuple[EvictionRule, ...]:
    """The configured drain rules, in the form of the evictor."""
    return tuple(
        EvictionRule(
            name=rule.name,
            mode=EvictMode(rule.mode),
            namespaces=rule.namespaces,
            labels={key: glob for key, _, glob in (label.partition("=") for label in rule.labels)},
            after_s=rule.after_s,
            grace_s=rule.grace_s,
            empty_dir=rule.empty_dir,
            unmanaged=rule.unmanaged,
            tolerating=rule.tolerating,
            ends_process=rule.ends_process,
            gang=GangMode(rule.gang),
        )
        for rule in config.controller.drain
    )


def _now() -> datetime:
    return datetime.now(UTC)
