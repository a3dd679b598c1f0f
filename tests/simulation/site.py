"""A site with a controller that keeps incidents: production's daemons with their summaries, notices, fences, messages.

Each node has production's monitor, engine, policy and notifier (``tests.simulation.daemon``) and its reporter of
summaries; the head node has production's keeper of incidents and its notifier. Between them are the fake slurmctld and
its reservations, as text that production writes and reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from healthd.api.controller_stats import ControllerStats
from healthd.config.schema.config import Config
from healthd.controller.dependencies import fence_rules
from healthd.controller.fleet_reader import SharedReading
from healthd.controller.incidents import IncidentKeeper
from healthd.controller.notifications import about_controller, wrong_with_controller
from healthd.core.hostlist import unfolded
from healthd.core.model import Component, Finding, Mode, Remedy, Severity
from healthd.fleet.incident_memory import rules_of
from healthd.fleet.nodes import FleetNode, FleetPicture, fleet_nodes
from healthd.notify.delivery import Receiver
from healthd.notify.incident_hold import IncidentHold
from healthd.notify.message import Message
from healthd.notify.news import PAGED
from healthd.notify.notifier import Notifier
from healthd.remediation.decide.node_summary import summary_of
from healthd.remediation.orchestrators.slurm.incident_reservations import (
    fence_creation,
    fence_name,
    parse_fences,
    parse_notices,
    updates,
)
from healthd.remediation.orchestrators.slurm.reporter import SlurmReporter
from healthd.remediation.policy_files import policy_of
from healthd.remediation.ports import ListedNode, Slot
from healthd.remediation.records.domain_fence import DomainFence
from healthd.remediation.records.incident_notices import IncidentNotice, IncidentNotices
from healthd.remediation.records.summary import NodeSummary
from healthd.state.store import IN_MEMORY, Store
from tests.simulation.changes import Change
from tests.simulation.daemon import BootAlone, Daemon, Disk, Fuse, Ground
from tests.simulation.slurm import Slurm
from tests.simulation.timeline import BEGINNING, Timeline, WallClock
from tests.support.fake_repairs import FakeProvisioner, FakeResetter

TICK_S, QUIET_S = 5.0, 60.0


class Reservations:
    """Those of slurmctld, by scontrol's own words: created, updated, deleted, listed, and ended by themselves."""

    def __init__(self, wall: WallClock) -> None:
        self._wall = wall
        self.made: dict[str, tuple[float, float, str]] = {}
        self.calls = 0

    def scontrol(self, *args: str) -> None:
        self.calls += 1
        words = dict(each.partition("=")[::2] for each in args if "=" in each)
        name, now = words["reservationname"], self._wall.seconds()
        if args[0] == "delete":
            del self.made[name]
            return
        length = words.get("endtime", "").removeprefix("now+").removesuffix("minutes") or words["duration"]
        end = now + (365 * 86_400 if length == "UNLIMITED" else int(length) * 60)
        _, _, nodes = self.made.get(name, (0, 0, words.get("nodes", "(null)")))
        self.made[name] = (now, end, nodes)

    def answer(self) -> str:
        now = self._wall.seconds()
        self.made = {name: made for name, made in self.made.items() if made[1] > now}
        return "\n".join(
            f"ReservationName={name} StartTime={int(start)} EndTime={int(end)} Duration=0 Nodes={nodes} NodeCnt=0 "
            "CoreCnt=0 Features=(null) PartitionName=(null) Flags=X TRES=(null) Users=root Groups=(null) "
            "Accounts=(null) Licenses=(null) State=ACTIVE BurstBuffer=1"
            for name, (start, end, nodes) in self.made.items()
        )


class SiteNode(Struct, kw_only=True):
    """A node: what is wrong with it, and what it left with the cluster."""

    name: str
    group: str
    instance_type: str
    daemon: Daemon
    levels: list[Finding]
    reporter: SlurmReporter
    driver: str = "580.95.05"
    summary: str = ""
    is_busy: bool = False


class Site:
    """``nodes``: name to rack and instance type. ``holds``: whether the controller leaves notices."""

    def __init__(
        self, nodes: Mapping[str, tuple[str, str]], folder: Path, *, mode: Mode = Mode.REPAIR, holds: bool = True
    ) -> None:
        self.timeline = Timeline()
        self.wall = WallClock(self.timeline)
        self.slurm = Slurm(list(nodes), self.timeline, self.wall)
        self.reservations = Reservations(self.wall)
        config = Config()
        self.config = replace(config, remediation=replace(config.remediation, mode=mode, opt_out_file=""))
        self._ids = 0
        self.ground = Ground(
            timeline=self.timeline,
            slurm=self.slurm,
            config=self.config,
            policy=policy_of(config.policy, None),
            change=Change(),
            random=lambda: 0.5,
            new_id=self._new_id,
        )
        self.messages: list[tuple[str, datetime, Message]] = []
        self.nodes = {name: self._node(name, *about) for name, about in nodes.items()}
        self.stats = ControllerStats(orchestrator="slurm", provisioner="", mode=mode)
        self.notifier = Notifier(
            {"oncall": Receiver(deliver=lambda message: self._heard("controller", message))},
            per_hour=60,
            wrong=lambda: wrong_with_controller(self.stats),
            about=lambda: about_controller(self.stats, "head-1"),
            keep=lambda _: None,
        )
        self.stats.notifier = self.notifier
        self.keeper = IncidentKeeper(
            SharedReading(self._picture, monotonic_s=self.timeline),
            folder=folder,
            rules=rules_of(self.config.policy),
            stats=self.stats,
            cluster=self,
            fencer=self,
            shows_notices=holds,
            fence_rules=lambda now: fence_rules(self.config, now),
            monotonic_s=self.timeline,
            clock=self.wall.now,
        )
        self.problems: list[str] = []
        self.most_fenced = 0

    # -- what happens -------------------------------------------------------------------------------------------------

    def breaks(self, name: str, code: str, component: Component, *, severity: Severity = Severity.CRITICAL) -> None:
        node = self.nodes[name]
        message = f"{code} on {component}"
        remedy = Remedy.ASK_HUMAN if severity is Severity.CRITICAL else Remedy.WATCH
        node.levels.append(Finding(code=code, severity=severity, component=component, message=message, remedy=remedy))
        node.is_busy = True
        node.daemon.look_soon(1.0)

    def repairs(self, name: str) -> None:
        self.nodes[name].levels.clear()
        self.nodes[name].daemon.look_soon(1.0)

    def run(self, minutes: float, *, head: bool = True, tick_s: float = TICK_S) -> None:
        """Live on, without the head node if it is not there. ``tick_s``: a multiple of ``TICK_S``, the seconds between
        two looks at a node with a fault."""
        end_s = self.timeline.s + minutes * 60
        while self.timeline.s < end_s:
            self.timeline.run(self.timeline.s + tick_s)
            for node in self.nodes.values():
                if node.is_busy:
                    node.daemon.wake()
                    node.reporter.tick()
                elif self.timeline.s % QUIET_S == 0:
                    node.reporter.tick()
            if head:
                if self.timeline.s % (2 * TICK_S) == 0 and (problem := self.keeper()):
                    self.problems.append(problem)
                self.notifier.tick(self.wall.now())
            self.most_fenced = max(self.most_fenced, len(self.fences))

    # -- what is seen -------------------------------------------------------------------------------------------------

    @property
    def fences(self) -> tuple[DomainFence, ...]:
        return parse_fences(self.reservations.answer())

    @property
    def fenced(self) -> set[str]:
        return {name for each in self.fences for name in each.nodes}

    def news(self, state: str = "") -> list[tuple[str, str]]:
        """Who sent which topic, in the order of sending."""
        return [
            (who, piece["key"])
            for who, _, message in self.messages
            for piece in message.data["news"]
            if not state or piece["state"] == state
        ]

    @property
    def pages(self) -> set[tuple[str, str]]:
        return {(who, key) for who, key in self.news("wrong") if key.startswith(PAGED)}

    # -- the cluster --------------------------------------------------------------------------------------------------

    def fence_domain(self, fence: DomainFence) -> None:
        self.reservations.scontrol(*fence_creation(fence))
        self.slurm.maintenance = self.fenced

    def lift_fence(self, fence: DomainFence) -> None:
        self.reservations.scontrol("delete", f"reservationname={fence_name(fence)}")
        self.slurm.maintenance = self.fenced

    def show_incidents(self, notices: Sequence[IncidentNotice], now: datetime) -> None:
        for update in updates(self.reservations.answer(), notices, now):
            self.reservations.scontrol(*update)

    def notices(self) -> IncidentNotices:
        return parse_notices(self.reservations.answer())

    def _picture(self) -> FleetPicture:
        now = self.wall.now()
        slots = [Slot(scope=scope, index=index, node=node) for (scope, index), node in self.slurm.slots.items()]
        fences = self.fences
        found: tuple[FleetNode, ...] = fleet_nodes(
            [self._listed(node) for node in self.nodes.values()], slots, {}, now, silent_after_s=1e9, fences=fences
        )
        return FleetPicture(cluster="a", at=now, nodes=found, limit=None, taken=len(slots), fences=fences)

    def _listed(self, node: SiteNode) -> ListedNode:
        there = self.slurm.nodes[node.name]
        return ListedNode(
            name=node.name,
            state="IDLE",
            flags=frozenset(there.flags),
            out=bool(there.flags),
            hold=there.hold,
            partitions=("train",),
            summary=node.summary,
            group=node.group,
        )

    # -- a node -------------------------------------------------------------------------------------------------------

    def _node(self, name: str, group: str, instance_type: str) -> SiteNode:
        levels: list[Finding] = []
        daemon = Daemon(
            name,
            self.ground,
            Disk(store=Store(IN_MEMORY, now=self.wall.now())),
            wall=self.wall,
            instance=f"i-{name}",
            boot=f"boot-{name}",
            provisioner=FakeProvisioner(lambda: None),
            resetter=FakeResetter(lambda: None),
            hindsight=BootAlone(booted_at=lambda: BEGINNING - timedelta(days=1)),
            fuse=Fuse(),
            levels=lambda: tuple(levels),
            ring=[],
            blind=str,
            deliver=lambda message: self._heard(name, message),
            died=lambda: None,
            hold=IncidentHold(name, self.notices, wait_s=self.config.notify.incident_wait_s, monotonic_s=self.timeline),
        )
        reporter = SlurmReporter(
            _Leaves(self, name),
            known=lambda: self._known(name),
            heartbeat_s=self.config.orchestrator.slurm.heartbeat_s,
            monotonic_s=self.timeline,
            clock=self.wall.now,
            chance=lambda: int(name.rpartition("-")[2]) % 10 / 10,
        )
        return SiteNode(
            name=name, group=group, instance_type=instance_type, daemon=daemon, levels=levels, reporter=reporter
        )

    def _known(self, name: str) -> NodeSummary:
        node = self.nodes[name]
        monitor, engine = node.daemon.monitor, node.daemon.engine
        return summary_of(
            monitor.verdict(monitor.outcomes().values()),
            monitor.diagnoses(),
            mode=self.config.remediation.mode,
            remediation=engine.remediation,
            decision=engine.decision,
            instance_type=node.instance_type,
            driver=node.driver,
        )

    def leave(self, name: str, summary: NodeSummary) -> None:
        self.nodes[name].summary = summary.text

    def _heard(self, who: str, message: Message) -> None:
        self.messages.append((who, self.wall.now(), message))

    def _new_id(self) -> str:
        self._ids += 1
        return f"c{self._ids}"


class _Leaves:
    """Where one node leaves its summary."""

    def __init__(self, site: Site, name: str) -> None:
        self._site, self._name = site, name

    def summarize(self, summary: NodeSummary) -> None:
        self._site.leave(self._name, summary)


def named(hosts: str) -> list[str]:
    return list(unfolded(hosts))
