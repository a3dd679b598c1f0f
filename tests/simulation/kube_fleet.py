"""A Kubernetes fleet in memory: production's engines and back end on every node, two controllers, one budget.

Where ``fleet`` simulates slurmctld behind the Orchestrator, here the server is simulated and the Orchestrator is
production's: its claims, taints, counts and evictions are what is judged. Requests fail before or behind their effect,
lists are old, agents and controllers are killed at any request, nodes reboot, and people cordon, undo and delete. With
a ``platform`` (``kube_platform``) nodes ask the controller for reboots and replacements, and production's provisioners
call the platform.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Any

from msgspec.structs import replace

from healthd.agent.wiring import Cluster as ClusterParts
from healthd.agent.wiring import timeouts_of
from healthd.api.controller_stats import SYNC_RESULTS, ControllerStats
from healthd.config.schema.config import Config
from healthd.controller.dependencies import controller_timeouts, make_controller
from healthd.controller.kube_watch import KubeWatch, WatchSettings
from healthd.controller.kubernetes import KubernetesSync
from healthd.core.check import judged
from healthd.core.errors import BackendError, BackendUnknown, StoreError
from healthd.core.model import CLUSTER, Action, Component, Finding, Mode, Outcome, Remedy, Severity
from healthd.notify.notifier import Notifier
from healthd.remediation.controller.controller import Controller as RequestController
from healthd.remediation.controller.node_status import merged
from healthd.remediation.decide.ledger import repairs_of
from healthd.remediation.decide.policy import Rules
from healthd.remediation.decide.remediation import ACTS, End, Phase, Remediation
from healthd.remediation.decide.rules import LABEL
from healthd.remediation.engine.dependencies import Dependencies, Heartbeat
from healthd.remediation.engine.engine import Engine
from healthd.remediation.engine.slots import SlotKeeper
from healthd.remediation.orchestrators.kubernetes.api import ResourceKind
from healthd.remediation.orchestrators.kubernetes.drain import KubeDrain
from healthd.remediation.orchestrators.kubernetes.fleet import KubeFleet
from healthd.remediation.orchestrators.kubernetes.from_config import poll_fence
from healthd.remediation.orchestrators.kubernetes.leader_election import Leadership
from healthd.remediation.orchestrators.kubernetes.lease_notes import LeaseNotes
from healthd.remediation.orchestrators.kubernetes.objects.budget import CLAIM, LEASE, lease_name
from healthd.remediation.orchestrators.kubernetes.objects.drain_record import RECORDS
from healthd.remediation.orchestrators.kubernetes.objects.eviction import EvictionRule, EvictMode, GangMode
from healthd.remediation.orchestrators.kubernetes.objects.gangs import GangLabels
from healthd.remediation.orchestrators.kubernetes.objects.node import CLAIMED, UNHEALTHY, hold_of, node_of
from healthd.remediation.orchestrators.kubernetes.objects.platform_signals import HYPERPOD_LABEL
from healthd.remediation.orchestrators.kubernetes.objects.silent_nodes import SILENT
from healthd.remediation.orchestrators.kubernetes.orchestrator import KubernetesOrchestrator
from healthd.remediation.orchestrators.kubernetes.remote_node import KubeClaims, RemoteKubeNode
from healthd.remediation.orchestrators.kubernetes.reporter import AgentState, KubeReporter
from healthd.remediation.ports import NodeView, Provisioner
from healthd.remediation.provisioners.from_config import open_for_kubernetes
from healthd.state.monitor import Monitor
from healthd.state.store import IN_MEMORY, Store
from tests.simulation.daemon import CHECKS, LEVEL, LOG, BootAlone
from tests.simulation.kube_messages import Pager, agent_notifier, leader_notifier
from tests.simulation.kube_platform import OWN_NODE, Instance, Kind, provider_id
from tests.simulation.kube_room import MachineRoom
from tests.simulation.kube_server import NAMESPACE, Client, Server
from tests.simulation.timeline import Timeline, WallClock, shown
from tests.support.engine_wire import Killed
from tests.support.fake_repairs import FakeProvisioner, FakeResetter

OURS = (UNHEALTHY, CLAIMED)
CODES = ("gpu.xid.79", "gpu.count.missing", "gpu.nvlink.down")
JOB_SET = "jobset.sigs.k8s.io/jobset-name"
GROUP = "example.com/group"
"""The label by which a Node is in a scope of the budget."""
WORN_OUT = "gpu.remap.failure"
"""Only another machine ends it."""
AGENT_S, IDLE_S, CONTROLLER_S = 5.0, 60.0, 10.0
EVICTED_AFTER_S = 600.0
GUARDED, GUARDED_S = 0.1, 600.0
"""How likely a PodDisruptionBudget keeps a pod, and for how long at a time, in seconds."""
_STANDS_STILL = 0.0003
REACTS_S, SETTLED_S = 1800.0, 5400.0
"""From a fault, with room and without trouble, to the drain; and from the end of all trouble to a fleet as it was."""


class Violation(AssertionError):
    """An invariant does not hold."""


class SimNode(KubernetesOrchestrator):
    """The orchestrator, whose jobs are the pods that the server shows on its node: no kubelet runs here."""

    def __init__(self, api: Client, server: Server, **parts: Any) -> None:
        super().__init__(api, **parts)
        self._server, self._who = server, parts["node"]

    def view(self, *, jobs: bool = False) -> NodeView:
        found = super().view()
        return replace(found, jobs=tuple(pods_on(self._server, self._who))) if jobs else found


def pods_on(server: Server, node: str) -> list[str]:
    return [
        name
        for (kind, name), pod in server.objects.items()
        if kind is ResourceKind.POD and pod["spec"]["nodeName"] == node
    ]


class Machine:
    """A node: its disk, its faults, its agent. ``instance``: its id at the platform; "": it has none."""

    def __init__(self, name: str, fleet: KubeSimulation, instance: str = "") -> None:
        self.name, self._fleet, self.instance = name, fleet, instance
        self.good_since_s, self.started_s, self.needs = 0.0, 0.0, set[Remedy]()
        self.has_power = True
        self.store, self.boot, self.up, self.reboots = Store(IN_MEMORY, now=fleet.wall.now()), 1, True, 0
        self.faults: dict[str, float] = {}
        self.engine: Engine | None = None
        self.idle_until_s = 0.0
        self.start()

    def start(self) -> None:
        """A new process on the same disk."""
        self.started_s = self._fleet.timeline.s
        fleet, now = self._fleet, self._fleet.wall.now()
        self.monitor = Monitor(CHECKS, self.store)
        self.monitor.begin_instance(self.instance or f"i-{self.name}", now)
        self.monitor.begin_boot(f"{self.name}-{self.boot}", now)
        client = Client(fleet.server, self.name, fleet.trouble)
        orchestrator = fleet.orchestrator(
            client,
            fleet.server,
            node=self.name,
            namespace=NAMESPACE,
            cordon=fleet.cordons,
            scopes=tuple(fleet.scopes),
            scope_label=GROUP,
            lately_s=0.5,
            clock=fleet.wall.now,
            monotonic_s=fleet.timeline,
            sleep=lambda _: None,
            chance=fleet.random.random,
        )
        cluster = ClusterParts(settle_s=10.0, quotas=orchestrator.quotas, opt_out=("healthd.io/opt-out", LABEL))
        self.engine = Engine(
            Dependencies(
                orchestrator=orchestrator,
                provisioner=fleet.asked_by(self, orchestrator),
                resetter=FakeResetter(),
                slots=SlotKeeper(
                    orchestrator=orchestrator,
                    node=self.name,
                    quotas=cluster.quotas,
                    monotonic_s=fleet.timeline,
                    random=fleet.random.random,
                    settle_s=cluster.settle_s,
                ),
                judgement=self.monitor,
                remediations=self.store,
                rules=fleet.rules,
                ledger=lambda: repairs_of(self.store.remediations()),
                collect=lambda remediation: f"bundles/{remediation.id}",
                recheck=lambda _: self.look(),
                hindsight=BootAlone(booted_at=lambda: None),
                timeouts=timeouts_of(fleet.config, cluster),
                new_id=lambda: f"{fleet.random.getrandbits(32):08x}",
                clock=fleet.wall.now,
                monotonic_s=fleet.timeline,
                beat=Heartbeat(fleet.timeline),
            )
        )
        self.reporter = KubeReporter(
            Client(fleet.server, self.name, fleet.trouble),
            node=self.name,
            known=self._known,
            verified=orchestrator.verified,
            fenced=lambda: poll_fence(orchestrator, self._fenced),
            kubelet=lambda: self.boot,
            monotonic_s=fleet.timeline,
            clock=fleet.wall.now,
            chance=fleet.random.random,
        )
        self.notifier = fleet.notifier(fleet.pager, self.name, self.monitor, self.engine, self.store)
        self.look()

    def _known(self) -> AgentState:
        assert self.engine is not None
        return AgentState(
            diagnoses=self.monitor.diagnoses(),
            outcomes=self.monitor.outcomes(),
            expected=frozenset({LEVEL, LOG}),
            decision=self.engine.decision,
            remediation=self.engine.remediation,
            has_decided=self.engine.has_decided,
        )

    def _fenced(self, message: str) -> None:
        assert self.engine is not None
        self.engine.fenced(message)

    def breaks(self, code: str) -> None:
        """A fault, until the machine or an operator ends it."""
        self.faults.setdefault(code, self._fleet.timeline.s)
        self.needs.add(remedy_of(code))

    def heals(self) -> None:
        """All faults are over."""
        if self.faults:
            self.good_since_s = self._fleet.timeline.s
        self.faults.clear()

    def look(self) -> None:
        """Its checks run."""
        found = [finding(code) for code in sorted(self.faults)]
        for check, findings in ((LEVEL, found), (LOG, [])):
            outcome = Outcome(check=check, result=judged(findings), at=self._fleet.wall.now(), duration_s=0.01)
            self.monitor.absorb(outcome)

    def reconcile(self) -> None:
        """The agent's turn, where it is up."""
        if self.engine is None:
            return
        s = self._fleet.timeline.s
        if s % 60.0 < AGENT_S:
            self.look()
        try:
            self.reporter.tick()
            if self.remediation is not None or self.faults or s >= self.idle_until_s:
                self.idle_until_s = s + IDLE_S
                self.engine.reconcile(self._fleet.wall.now())
                self.notifier.tick(self._fleet.wall.now())
        except Killed:
            self.kill()

    @property
    def remediation(self) -> Remediation | None:
        return self.store.open_remediation()

    def kill(self, for_s: float = 20.0) -> None:
        """kill -9; it starts again after a while."""
        self.engine = None
        self._fleet.timeline.after(for_s, self._starts_again)

    def _starts_again(self) -> None:
        if self.up and self.engine is None:
            self.start()

    def reboot(self) -> None:
        """The machine reboots by its own agent."""
        fleet = self._fleet
        if pods_on(fleet.server, self.name):
            raise Violation(f"{self.name} reboots under {pods_on(fleet.server, self.name)}")
        self.reboots += self.up
        self.power_cycles()

    def power_cycles(self) -> None:
        """It goes down, with its pods, and comes up healed, most often."""
        if self.up:
            self.up = False
            self._fleet.timeline.after(5.0, self._down)

    def _down(self) -> None:
        if not self._fleet.is_there(self):
            return
        self.goes_down()
        self._fleet.timeline.after(60.0 + self._fleet.random.random() * 300.0, self._booted)

    def goes_down(self) -> None:
        """Its agent ends, and its kubelet falls silent."""
        self.up, self.engine = False, None
        self._fleet.ready(self.name, is_ready=False)

    def loses_power(self) -> None:
        """It goes down, and boots no more by itself."""
        self.has_power = False
        self.goes_down()

    def _booted(self) -> None:
        if self._fleet.is_there(self) and self.has_power:
            self.comes_up(heals=self._fleet.random.random() < 0.8 and WORN_OUT not in self.faults)

    def comes_up(self, *, heals: bool) -> None:
        """It boots, and its agent starts."""
        self.boot, self.up, self.has_power = self.boot + 1, True, True
        if heals:
            self.heals()
        self._fleet.ready(self.name, is_ready=True)
        self.start()


def finding(code: str) -> Finding:
    return Finding(
        code=code,
        severity=Severity.CRITICAL,
        component=Component(kind="gpu", id="GPU-1"),
        message=f"{code} was seen",
        remedy=remedy_of(code),
    )


def remedy_of(code: str) -> Remedy:
    return Remedy.REPLACE_NODE if code == WORN_OUT else Remedy.REBOOT_NODE


class Controller:
    """One of two processes of ``healthd controller``."""

    def __init__(self, name: str, fleet: KubeSimulation) -> None:
        self._name, self._fleet = name, fleet
        self._store = Store(IN_MEMORY, now=fleet.wall.now())
        self.start()

    def start(self) -> None:
        fleet = self._fleet
        self._api, self._is_turning = Client(fleet.server, f"controller {self._name}", self._meets), False
        identity = f"{self._name}-{fleet.random.getrandbits(32):08x}"
        self._lead = Leadership(self._api, namespace=NAMESPACE, identity=identity, monotonic_s=fleet.timeline)
        self.notes = partial(LeaseNotes, self._api, namespace=NAMESPACE, leads=self._lead.check)
        self.alive, self._leads = True, False
        self._stats = ControllerStats(
            orchestrator="kubernetes", provisioner="none", mode=fleet.mode, leads=lambda: self._leads
        )
        self._sync = self._new_sync()

    def _new_sync(self) -> KubernetesSync:
        fleet, api, lead, notes = self._fleet, self._api, self._lead, self.notes
        counted = fleet.counts(
            api,
            namespace=NAMESPACE,
            quotas={CLUSTER: fleet.granted, **fleet.scopes},
            scope_label=GROUP,
            leads=lead.check,
            monotonic_s=fleet.timeline,
            clock=fleet.wall.now,
        )
        drain = KubeDrain(
            api,
            rules=(EvictionRule(name="jobs", mode=EvictMode.EVICT_AFTER, after_s=EVICTED_AFTER_S, gang=fleet.evicts),),
            leads=lead.check,
            clock=fleet.wall.now,
            records=notes(key=RECORDS),
            gangs=GangLabels(),
            timeout_s=3600.0,
            opt_out_label="healthd.io/opt-out",
        )
        settings = WatchSettings(
            namespace=NAMESPACE,
            timeout_s=1200.0,
            gap_s=60.0,
            all_nodes=False,
            policies=False,
            tolerated=(),
            opt_out_label="healthd.io/opt-out",
            reports=True,
            takes_s=fleet.takes_s,
        )
        watch = KubeWatch(
            api,
            settings,
            kept=notes(key=SILENT),
            leads=lead.check,
            clock=fleet.wall.now,
            monotonic_s=fleet.timeline,
        )
        by_node = fleet.room is None or fleet.room.platform.kind in OWN_NODE
        requests = None if by_node else self._requests(counted)
        return KubernetesSync(counted, drain, requests, mode=fleet.mode, watch=watch)

    def _requests(self, counted: KubeFleet) -> RequestController:
        """As ``healthd.controller.kubernetes`` puts it together."""
        fleet = self._fleet
        return make_controller(
            fleet.config,
            self._store,
            fleet=counted,
            node=self._remote_node,
            booted=lambda _: None,
            opt_out="healthd.io/opt-out",
            feature_is=LABEL,
            boot_id=lambda name: self._remote_node(name).boot_id(),
            provisioner=self._provisioner,
            stats=self._stats.repair_stats,
            monotonic_s=fleet.timeline,
            clock=fleet.wall.now,
        )

    def _remote_node(self, name: str) -> RemoteKubeNode:
        api, lead = self._api, self._lead
        clock = self._fleet.wall.now
        return RemoteKubeNode(api, node=name, namespace=NAMESPACE, leads=lead.check, resources=("*",), clock=clock)

    def _provisioner(self, node: str, instance: str) -> Provisioner:
        fleet, afar = self._fleet, self._remote_node(node)
        assert fleet.room is not None
        opened = open_for_kubernetes(
            fleet.config,
            node,
            instance,
            lambda _: None,
            machine=afar.machine,
            label=lambda: afar.label(HYPERPOD_LABEL),
            claims=KubeClaims(self._api, leads=self._lead.check),
            leads=self._lead.check,
            run=fleet.room.platform.run,
            monotonic_s=fleet.timeline,
        )
        return fleet.acts(opened)

    def _meets(self, boundary: str) -> None:
        self._fleet.trouble(boundary)
        if self._fleet.room is not None and self._fleet.random.random() < _STANDS_STILL:
            self._fleet.stands_still()

    def turn(self) -> None:
        if not self.alive or self._is_turning:
            return
        self._is_turning = True
        try:
            self._take_turn()
        finally:
            self._is_turning = False

    def _take_turn(self) -> None:
        try:
            led, self._leads = self._leads, self._lead.attempt()
            if self._leads:
                self._lead_on(begins=not led)
            elif led:
                self._stats.left_lead()
        except BackendError:
            return  # the next turn
        except Killed:
            self.alive, self._leads = False, False
            if self._fleet.room is not None and self._fleet.random.random() < 0.5:  # with its pod
                self._store = Store(IN_MEMORY, now=self._fleet.wall.now())
            self._fleet.timeline.after(30.0, self.start)

    def _lead_on(self, *, begins: bool) -> None:
        stats, now = self._stats, self._fleet.wall.now()
        if begins:
            self._sync = self._new_sync()
            stats.took_lead()
            stats.notifier = None
        if stats.notifier is None:
            with contextlib.suppress(StoreError):  # asked for again by the next turn
                stats.notifier = leader_notifier(self._fleet.pager, stats, self.notes())
        try:
            stats.statuses = merged(self._sync(now))
            stats.ended(SYNC_RESULTS[0], 0.0, "")
        except (BackendError, StoreError) as error:
            stats.ended(SYNC_RESULTS[1], 0.0, str(error))
        if stats.notifier is not None:
            stats.notifier.tick(now)


class KubeSimulation:
    """``seed`` decides all. ``live`` lets it live for so many hours, then ends all trouble and waits until the fleet is
    as it was. Raises Violation. ``orchestrator`` and ``notifier``: another one, and ``granted``: another limit for the
    controllers, with a fault that is to be found. ``platform``: behind the nodes; None: a node reboots itself.
    ``counts``, ``acts``: another count of the controllers, and another provisioner around theirs; ``evicts``: another
    treatment of gangs."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 8,
        max_out: int = 2,
        granted: int = 2,
        orchestrator: type[SimNode] = SimNode,
        notifier: Callable[[Pager, str, Monitor, Engine, Store], Notifier] = agent_notifier,
        platform: Kind | None = None,
        counts: type[KubeFleet] = KubeFleet,
        acts: Callable[[Provisioner], Provisioner] = lambda opened: opened,
        evicts: GangMode | None = None,
    ) -> None:
        self.seed, self.counts, self.acts = seed, counts, acts
        self.orchestrator, self.notifier, self.granted = orchestrator, notifier, granted
        self.random, self.timeline, self.server = Random(seed), Timeline(), Server()  # noqa: S311 - a fleet, no secret
        self.wall, self.max_out = WallClock(self.timeline), max_out
        self.mode = self.random.choice((Mode.QUARANTINE, Mode.REPAIR))
        self.cordons = self.random.random() < 0.5
        self.codes: tuple[str, ...] = CODES
        self.scopes: dict[str, int] = {}
        self.gang = GangMode.WAIT
        self.relabelled: set[str] = set()
        self.config, self.takes_s = Config(), dict[Remedy, float]()
        self.room = None if platform is None else MachineRoom(platform, self, seed)
        if self.room is not None:
            self.scopes, self.gang = self.room.scopes, self.room.gang
            self.mode, self.config, self.codes = Mode.REPAIR, self.room.config(), self.room.codes or (*CODES, WORN_OUT)
            takes = controller_timeouts(self.config)
            self.takes_s = {Remedy.REBOOT_NODE: takes.reboot_timeout_s, Remedy.REPLACE_NODE: takes.replace_timeout_s}
        self.evicts = evicts or self.gang
        self.calm, self._is_still, self.outage_until_s = True, False, 0.0
        self.by_admin: dict[str, set[str]] = {}
        self.unclaimed_s: dict[str, float] = {}
        """When an operator last took the claim of a Node away."""
        self.trail: list[str] = []
        self.pager = Pager(self.random, lambda: not self.calm, self.note)
        self.drains = self.evictions = self.kills = self._pods = 0
        self.server.written, self.server.is_guarded = self._written, self._is_guarded
        self.server.put(ResourceKind.LEASE, {"metadata": {"name": LEASE}, "spec": {}})
        self.controllers = [Controller(name, self) for name in "ab"]
        self.machines: dict[str, Machine] = {}
        for number in range(nodes):
            self.add(f"n{number}") if self.room is None else self.room.joins(self.room.platform.launch())
        self.count = nodes
        self._begins_trouble()

    # -- what happens -------------------------------------------------------------------------------------------------

    def _begins_trouble(self) -> None:
        self.calm = False
        if self.room is not None:
            self.room.platform.calm = False

    def rules(self) -> Rules:
        budget = self.config.budget
        return Rules(
            mode=self.mode,
            opt_out_feature="healthd.io/opt-out",
            feature_is=LABEL,
            replacements_per_hour=budget.replacements_per_hour,
            replacements_per_day=budget.replacements_per_day,
        )

    def asked_by(self, machine: Machine, orchestrator: KubernetesOrchestrator) -> Provisioner:
        """The provisioner of a node's agent."""
        if self.room is None:
            return FakeProvisioner(machine.reboot)
        return self.room.platform.of_node(machine.name, machine.instance, orchestrator)

    def add(self, name: str, instance: Instance | None = None) -> None:
        provider = f"aws:///{name}" if instance is None else provider_id(instance)
        self._register(name, provider)
        if self.scopes:
            self.relabel(name)
            self.relabelled.discard(name)
        self.by_admin[name] = set()
        self.machines[name] = Machine(name, self, instance.id if instance is not None else "")

    def _register(self, name: str, provider: str, boot: int = 1) -> None:
        status = {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"bootID": f"{name}-{boot}"}}
        labels = {} if self.room is None else self.room.platform.labels
        body = {"metadata": {"name": name, "labels": labels}, "spec": {"providerID": provider}, "status": status}
        self.server.put(ResourceKind.NODE, body, by="kubelet")

    def relabel(self, name: str, group: str = "") -> None:
        """Its Node is in a scope of the budget, or in none."""
        if (ResourceKind.NODE, name) in self.server.objects:
            group = group or self.random.choice((*self.scopes, "other"))
            self.relabelled.add(name)
            self.server.change(ResourceKind.NODE, name, {"metadata": {"labels": {GROUP: group}}})

    def ready(self, name: str, *, is_ready: bool) -> None:
        if (ResourceKind.NODE, name) in self.server.objects:
            conditions = [{"type": "Ready", "status": "True" if is_ready else "Unknown"}]
            boot = {"nodeInfo": {"bootID": f"{name}-{self.machines[name].boot}"}} if is_ready else {}
            body = {"status": {"conditions": conditions, **boot}}
            self.server.change(ResourceKind.NODE, name, body, by="kubelet", strategic=True)

    def trouble(self, boundary: str) -> None:
        """What a request may meet."""
        if self.calm:
            return
        if self.timeline.s < self.outage_until_s and boundary.startswith("before"):
            raise BackendUnknown("no answer within 5 s")
        chance = self.random.random()
        if boundary.endswith("delete NODE_CLAIM"):
            chance /= 20
        if chance < 0.003:
            raise BackendUnknown(f"no answer within 5 s ({boundary})")
        if chance < 0.0035:
            self.kills += 1
            raise Killed

    def live(self, hours: float, *, settles: bool = True) -> None:
        """The life, and the end of it, where it ``settles``."""
        self._turns(hours * 3600.0, self._befall)
        if not settles:
            return
        self.calm = True
        if self.room is not None:
            self.room.platform.settle()
            self.room.gangs.end_all()
        for machine in self.machines.values():
            if machine.up and machine.engine is None:
                machine.start()
        for name, kinds in self.by_admin.items():
            if kinds:
                self._uncordon(name)
        self._turns(REACTS_S, lambda: None)
        if self.mode is Mode.QUARANTINE:  # in repair the slots go from node to node
            self._is_acted_on()
        for machine in self.machines.values():
            machine.heals()
        self._turns(SETTLED_S / 2, lambda: None)
        for name, machine in self.machines.items():
            if (remediation := machine.remediation) is not None and remediation.end is End.FAILED:
                self._undo(name)  # it was given up, and waits for an operator
        self._turns(SETTLED_S / 2, lambda: None)
        self._is_as_it_was()

    def stands_still(self) -> None:
        """The controller that asks now stands still for a while, at this request, and another one may lead."""
        if not self.calm and not self._is_still:
            self._is_still = True
            self.note("a controller stands still")
            self._turns(self.random.uniform(10.0, 180.0), self._befall)
            self._is_still = False

    def _turns(self, seconds: float, befalls: Callable[[], None]) -> None:
        until_s = self.timeline.s + seconds
        while self.timeline.s < until_s:
            self.timeline.run(self.timeline.s + AGENT_S)
            if self.random.random() < 0.7:
                self.server.refresh()
            befalls()
            self._jobs()
            for machine in tuple(self.machines.values()):
                machine.reconcile()
            if self.timeline.s % CONTROLLER_S < AGENT_S:
                for controller in self.controllers:
                    controller.turn()
            if self.room is not None and self.timeline.s % 60.0 < AGENT_S:
                self.room.sweep()

    def _befall(self) -> None:
        """Each kind comes by itself, so many times a day."""
        name = self.random.choice(sorted(self.machines))
        machine = self.machines[name]
        kinds: tuple[tuple[Callable[[], object], int], ...] = (
            (lambda: machine.breaks(self.random.choice(self.codes)), 60),
            (machine.heals, 40),
            (lambda: machine.kill(self.random.random() * 3600.0), 10),
            (lambda: self._cordon(name), 8),
            (lambda: self._uncordon(name), 12),
            (lambda: self._undo(name), 6),
            (lambda: self._unclaim(name), 3),
            (lambda: self._replaced(name), 4 if self.room is None else 0),
            (lambda: self._registered_again(name), 4),
            (lambda: self._opt_out(name), 4),
            (self._without_lease, 1),
            (self._outage, 4),
            (lambda: self._of_platform(name), 0 if self.room is None else 12),
            (lambda: self.relabel(name), 6 if self.scopes else 0),
            (lambda: machine.breaks(self.random.choice(self.codes)), 0 if self.room is None else 60),
        )
        for each, a_day in kinds:
            if a_day and self.random.random() < a_day * AGENT_S / 86_400.0:
                each()

    def _outage(self) -> None:
        self.outage_until_s = self.timeline.s + self.random.random() * 600.0
        self.note("the API server does not answer")

    def _of_platform(self, name: str) -> None:
        if self.room is not None:
            self.room.befalls(name)

    def _cordon(self, name: str) -> None:
        node = self.node(name)
        if self.random.random() < 0.5:
            taints = [*node["spec"].get("taints", []), {"key": "example.com/check", "effect": "NoSchedule"}]
            if all(each["key"] != "example.com/check" for each in node["spec"].get("taints", [])):
                self.server.change(ResourceKind.NODE, name, {"spec": {"taints": taints}})
                self.by_admin[name].add("taint")
        elif not node["spec"].get("unschedulable"):
            self.server.change(ResourceKind.NODE, name, {"spec": {"unschedulable": True}})
            self.by_admin[name].add("cordon")
        self.note(f"{name}: cordoned by the administrator: {self.by_admin[name]}")

    def _uncordon(self, name: str) -> None:
        node, kinds = self.node(name), self.by_admin[name]
        if "taint" in kinds:
            taints = [each for each in node["spec"].get("taints", []) if each["key"] != "example.com/check"]
            self.server.change(ResourceKind.NODE, name, {"spec": {"taints": taints}})
        if "cordon" in kinds:
            self.server.change(ResourceKind.NODE, name, {"spec": {"unschedulable": None}})
        if "opt-out" in kinds:
            self._opt_out(name)
        kinds.clear()

    def _undo(self, name: str) -> None:
        """An operator takes healthd's taint away, and its cordon."""
        node = self.node(name)
        if any(each["key"] == UNHEALTHY for each in node["spec"].get("taints", [])):
            taints = [each for each in node["spec"]["taints"] if each["key"] != UNHEALTHY]
            self.server.change(ResourceKind.NODE, name, {"spec": {"taints": taints, "unschedulable": None}})
            self.by_admin[name].discard("cordon")
            self.note(f"{name}: healthd's drain undone by an operator")

    def _unclaim(self, name: str) -> None:
        """An operator takes the claim out of the Lease."""
        if name not in _claims(self._lease()):
            return
        self.server.change(ResourceKind.LEASE, LEASE, {"metadata": {"annotations": {f"{CLAIM}{name}": None}}})
        self.unclaimed_s[name] = self.timeline.s
        self.note(f"{name}: claim removed by an operator")

    def _replaced(self, name: str) -> None:
        """The Node goes for good, and another joins."""
        self.remove(name)
        self.add(f"n{self.server.version}")

    def remove(self, name: str) -> None:
        """A Node is deleted, with its machine."""
        self.machines.pop(name).engine = None
        for pod in pods_on(self.server, name):
            self.server.drop(ResourceKind.POD, pod, by="gc")
        self.server.drop(ResourceKind.NODE, name)
        self.by_admin.pop(name)
        self.pager.forget(name)
        self.note(f"{name}: deleted")

    def _registered_again(self, name: str) -> None:
        """The kubelet makes its Node again, under another UID: what was written on it is lost."""
        provider, group = self.node(name)["spec"]["providerID"], self.node(name)["metadata"]["labels"].get(GROUP, "")
        self.server.drop(ResourceKind.NODE, name, by="kubelet")
        self._register(name, provider, self.machines[name].boot)
        if self.scopes:
            self.timeline.after(20.0, lambda: self.relabel(name, group))
        self.by_admin[name] = set()
        self.note(f"{name}: registered again")

    def _without_lease(self) -> None:
        """An operator deletes the Lease, with all claims."""
        self.server.drop(ResourceKind.LEASE, LEASE)
        if self.room is not None:
            self.room.gangs.drains_are_forgotten()
        self.note("the Lease is deleted")

    def _opt_out(self, name: str) -> None:
        label = "true" if "opt-out" not in self.by_admin[name] else None
        self.server.change(ResourceKind.NODE, name, {"metadata": {"labels": {"healthd.io/opt-out": label}}})
        self.by_admin[name] ^= {"opt-out"}
        self.note(f"{name}: opt-out {label}")

    def _jobs(self) -> None:
        """Pods start where a node takes them, and end after a while."""
        for name, machine in self.machines.items():
            node = node_of(self.node(name))
            running = pods_on(self.server, name)
            if running and self.random.random() < AGENT_S / 3600.0:
                self._ends(running[0])
            takes_pods = machine.up and not node.taints and not node.unschedulable
            if not running and takes_pods and self.random.random() < AGENT_S / 600.0:
                self.begins(name)
        if self.room is not None:
            self.room.gangs.may_begin()

    def _ends(self, pod: str) -> None:
        self.drop_pods((pod,)) if self.room is None else self.room.gangs.end(pod)

    def begins(self, node: str, gang: str = "") -> str:
        """A pod starts there; of a ``gang``, where one is named. Returns its name."""
        self._pods += 1
        owner = {"kind": "Job", "name": f"job-{self._pods}", "apiVersion": "batch/v1", "controller": True}
        meta = {
            "name": f"pod-{self._pods}",
            "namespace": "team",
            "ownerReferences": [owner],
            "labels": {JOB_SET: gang} if gang else {},
            "creationTimestamp": f"{self.wall.now():%Y-%m-%dT%H:%M:%SZ}",
        }
        container = {"name": "train", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
        body = {"metadata": meta, "spec": {"nodeName": node, "containers": [container]}, "status": {"phase": "Running"}}
        self.server.put(ResourceKind.POD, body, by="scheduler")
        return f"pod-{self._pods}"

    def _is_guarded(self, pod: str) -> bool:
        """Whether a PodDisruptionBudget has no room for the eviction of this pod, in these minutes."""
        if self.calm:
            return False
        gang = self.server.objects[ResourceKind.POD, pod]["metadata"]["labels"].get(JOB_SET, "")
        if self.room is not None and gang and self.room.gangs.is_guarded(gang):
            return True
        minutes = int(self.timeline.s // GUARDED_S)
        return Random(f"{self.seed} {pod} {minutes}").random() < GUARDED  # noqa: S311 - as above

    # -- what must be true --------------------------------------------------------------------------------------------

    def _written(
        self, who: str, kind: ResourceKind, before: dict[str, Any] | None, after: dict[str, Any] | None
    ) -> None:
        """Judge each write at its moment."""
        if kind is ResourceKind.POD and who.startswith("controller"):
            self._evicted(who, before)
        if kind is ResourceKind.NODE and before is not None and after is not None:
            self._node_written(who, before, after)
            if self.room is not None:
                self.room.platform.node_written(before, after)
        if kind is ResourceKind.LEASE and before is not None and after is not None:
            self._lease_written(who, before, after)
        is_ended = before is not None and "deletionTimestamp" not in before["metadata"]
        if kind is ResourceKind.NODE_CLAIM and is_ended and after is not None and self.room is not None:
            self.room.platform.claim_deleted(after)

    def _evicted(self, who: str, pod: dict[str, Any] | None) -> None:
        assert pod is not None
        node = node_of(self.node(pod["spec"]["nodeName"]))
        self.evictions += 1
        if self.room is not None and (gang := pod["metadata"]["labels"].get(JOB_SET, "")):
            self.room.gangs.evicted(gang, pod["metadata"]["name"])
        elif hold_of(node) is None:
            raise Violation(
                self._story(f"{who} evicts {pod['metadata']['name']} from a node that healthd does not hold")
            )

    def _node_written(self, who: str, before: dict[str, Any], after: dict[str, Any]) -> None:
        name = after["metadata"]["name"]
        if who.startswith("n") and who != name:
            raise Violation(self._story(f"{who} writes the Node {name}"))
        if who not in self.machines:
            return
        left, right = node_of(before), node_of(after)
        foreign = {each.key for each in left.taints} - {each.key for each in right.taints} - set(OURS)
        if foreign:
            raise Violation(self._story(f"{name}: healthd removes {foreign}"))
        if "cordon" in self.by_admin[name] and left.unschedulable and not right.unschedulable:
            raise Violation(self._story(f"{name}: healthd undoes the administrator's cordon"))
        if hold_of(left) is None and hold_of(right) is not None:
            self.drains += 1
            group = left.labels.get(GROUP, "")
            scopes = () if name in self.relabelled else (each for each in self.scopes if each == group)
            for scope in (CLUSTER, *scopes):
                if name not in _claims(self._lease(scope)):
                    raise Violation(self._story(f"{name}: drained without a claim in {lease_name(scope)}"))
        elif hold_of(left) is not None and hold_of(right) is None:
            self.relabelled.discard(name)
        for word in ("taken out" if hold_of(right) else "released",) if hold_of(left) != hold_of(right) else ():
            self.note(f"{name}: {word} by healthd")

    def _lease_written(self, who: str, before: dict[str, Any], after: dict[str, Any]) -> None:
        limits = {lease_name(CLUSTER): self.max_out, **{lease_name(scope): most for scope, most in self.scopes.items()}}
        if (lease := after["metadata"]["name"]) not in limits:
            return
        claims, were = _claims(after), _claims(before)
        if who in self.machines and (claims ^ were) - {who}:
            raise Violation(self._story(f"{who} changes the claims {claims ^ were} of {lease}"))
        if claims - were and len(claims) > limits[lease]:
            raise Violation(self._story(f"{sorted(claims)} hold claims in {lease}, {limits[lease]} may"))

    def _is_acted_on(self) -> None:
        """No faulty node is in service while the budget has room, but one whose fault an operator acknowledged."""
        out = {name for name in self.machines if hold_of(node_of(self.node(name))) is not None}
        room = self.max_out - len(out | _claims(self._lease()))
        for name, machine in self.machines.items():
            self._is_told(name, machine)
        for name, machine in self.machines.items() if room > 0 else ():
            known = [fault for fault in machine.monitor.history.faults.values() if not fault.acknowledged]
            is_held = hold_of(node_of(self.node(name))) is not None or machine.remediation is not None
            if machine.faults and known and not is_held and machine.up:
                raise Violation(self._story(f"{name} is in service with {sorted(machine.faults)}: {self.why(machine)}"))

    def _is_told(self, name: str, machine: Machine) -> None:
        """A fault is reported, and that an operator is needed is paged."""
        diagnoses = [each for each in machine.monitor.diagnoses() if not machine.monitor.is_acknowledged(each)]
        if not machine.up or machine.engine is None:
            return
        if diagnoses and not self.pager.of(name):
            raise Violation(self._story(f"{name} has {diagnoses[0].code}, and says nothing: {self.why(machine)}"))
        if machine.engine.decision.action is Action.PAGE and not self.pager.is_paged(name):
            raise Violation(self._story(f"{name} does not page: {machine.engine.decision.reason}"))

    def _is_as_it_was(self) -> None:
        if len(self.machines) != self.count:
            raise Violation(self._story(f"{len(self.machines)} machines are there of {self.count}"))
        if standing := {who: said for who, said in self.pager.standing.items() if said}:
            raise Violation(self._story(f"messages are not over: {standing}"))
        for name, machine in self.machines.items():
            node, notes = self.node(name), self.node(name)["metadata"].get("annotations") or {}
            left = [each["key"] for each in node["spec"].get("taints", [])]
            if left or node["spec"].get("unschedulable"):
                raise Violation(self._story(f"{name} stays out: {left} {node['spec']}: {self.why(machine)}"))
            if ours := [key for key in notes if "hold" in key]:
                raise Violation(self._story(f"{name} keeps {ours}: {self.why(machine)}"))
            if (remediation := machine.remediation) is not None:
                raise Violation(self._story(f"{name}: {remediation.id} stays open: {self.why(machine)}"))
        if claims := self.claims():
            raise Violation(self._story(f"claims are left: {claims}"))

    def is_asked_for(self, machine: Machine, *, within_s: float) -> bool:
        """Whether its platform, which acts late, was asked for an act so long ago at most."""
        remediation = machine.remediation
        if remediation is None or remediation.phase is not Phase.INTENDED or remediation.step not in ACTS:
            return False
        return (self.wall.now() - remediation.since).total_seconds() < within_s

    def why(self, machine: Machine) -> str:
        remediation = machine.remediation
        at = f"{remediation.id} at {remediation.step}, {remediation.end}: {remediation.note}" if remediation else "none"
        last = "; ".join(f"{each.at:%d %H:%M:%S} {each.text}" for each in machine.store.events()[-6:])
        return f"boot {machine.boot}, {'up' if machine.up else 'down'}; remediation {at}; {last}"

    def node(self, name: str) -> dict[str, Any]:
        return self.server.objects[ResourceKind.NODE, name]

    def _lease(self, scope: str = CLUSTER) -> dict[str, Any]:
        return self.server.objects.get((ResourceKind.LEASE, lease_name(scope)), {"metadata": {}})

    def is_there(self, machine: Machine) -> bool:
        """Whether its name is still this machine's."""
        return self.machines.get(machine.name) is machine

    def has(self, name: str) -> bool:
        return name in self.machines

    def takes_pods(self, name: str) -> bool:
        """Whether a job may start there: it is in service, and free."""
        node = node_of(self.node(name))
        return self.machines[name].up and not node.taints and not node.unschedulable and not self.pods(name)

    def drop_pods(self, pods: Iterable[str]) -> None:
        for each in pods:
            self.server.drop(ResourceKind.POD, each, by="kubelet")

    def pods(self, name: str) -> list[str]:
        return pods_on(self.server, name)

    def claims(self) -> set[str]:
        """Those that hold one in any scope."""
        return {name for scope in (CLUSTER, *self.scopes) for name in _claims(self._lease(scope))}

    def violation(self, text: str) -> Violation:
        return Violation(self._story(text))

    def note(self, text: str) -> None:
        self.trail.append(f"{shown(self.timeline.s)} {text}")

    def _story(self, text: str) -> str:
        return "\n".join([*self.trail[-25:], f"{shown(self.timeline.s)} {text}"])


def _claims(lease: dict[str, Any]) -> set[str]:
    return {key.removeprefix(CLAIM) for key in lease["metadata"].get("annotations") or {} if key.startswith(CLAIM)}
