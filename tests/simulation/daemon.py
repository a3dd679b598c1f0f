"""One daemon of a simulated node: production's judgement, policy, ledger, engine, slots, records and notifier.

Put together as ``healthd.agent`` does it, over a store that outlives it and a cluster that is
simulated. Where production polls every few seconds, this is turned when something happened, and else ever more rarely
while nothing moves (five seconds, then up to five minutes, or fifteen without a remediation): a healthy node costs
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from healthd.agent.hindsight import ends_by
from healthd.agent.node_rules import rules_of
from healthd.agent.wiring import Cluster, timeouts_of
from healthd.config.schema.config import Config
from healthd.core.check import Check, NoSettings, judged, unknown
from healthd.core.errors import BackendError, StoreError
from healthd.core.model import CLUSTER, ClearsBy, Event, Finding, Mode, Outcome, Result
from healthd.core.node import Node
from healthd.judge.clock import ClockWatch, was_set
from healthd.notify.delivery import Deliver, Receiver
from healthd.notify.message import Sender
from healthd.notify.node import node_notifier
from healthd.notify.notifier import NEWS, Hold
from healthd.remediation.decide.ledger import repairs_of
from healthd.remediation.decide.policy import Rules
from healthd.remediation.decide.rules import FEATURE, Policy
from healthd.remediation.engine.absent import AbsentNodes, AbsentWatch
from healthd.remediation.engine.dependencies import Dependencies, Heartbeat, Hindsight, Resetter
from healthd.remediation.engine.engine import Engine
from healthd.remediation.engine.slots import SlotKeeper
from healthd.remediation.ports import Provisioner
from healthd.remediation.provisioners.slurm_node import MANAGERS_TEXTS, OUR_TEXTS
from healthd.state.monitor import Monitor
from healthd.state.store import Store
from tests.simulation.changes import Change
from tests.simulation.gangs import Gangs
from tests.simulation.slurm import Door, Slurm
from tests.simulation.timeline import Timeline, WallClock
from tests.support.engine_wire import (
    Killed,
    Wire,
    WiredJobs,
    WiredOrchestrator,
    WiredProvisioner,
    WiredRemediations,
    WiredResetter,
    kill,
)

POLL_S, STILL_POLL_S, IDLE_POLL_S, GROWS = 5.0, 300.0, 900.0, 1.7
STAYS_UP_S = 420.0
"""How long a node is turned on after its last fault or remediation, or after it asked a cluster that hangs: longer than
an update without an answer may come late."""
_LOOK_TAKES_S = 2.0


def _runs_elsewhere(node: Node, settings: NoSettings) -> Result:
    raise AssertionError("the simulation absorbs outcomes itself")


def _check(name: str, interval: bool) -> Check:
    return Check(
        name=name,
        run=_runs_elsewhere,
        title=name,
        doc=name,
        interval_s=60.0,
        timeout_s=10.0,
        settings=NoSettings,
        on="interval" if interval else "kernel",
    )


LEVEL, LOG = "sim.level", "sim.log"
CHECKS = {LEVEL: _check(LEVEL, True), LOG: _check(LOG, False)}


class Fuse(Wire):
    """The boundaries that a daemon passes: at one of those to come something may happen, once."""

    def __init__(self) -> None:
        super().__init__()
        self._left = 0
        self._then: Callable[[], None] = kill
        self._names: tuple[str, ...] = ()

    def arm(self, boundaries: int, then: Callable[[], None], names: tuple[str, ...] = ()) -> None:
        """``names``: count only boundaries whose names end so."""
        self._left, self._then, self._names = boundaries, then, names

    def boundary(self, name: str) -> None:
        if not self._left or (self._names and not name.endswith(self._names)):
            return
        self._left -= 1
        if not self._left:
            self._then()


_ends_by = cache(ends_by)


class BootAlone(Struct, frozen=True, kw_only=True):
    """The hindsight of a machine whose journal is lost with its disk: it knows since when it runs.

    ``booted_at``: by the clock as it is set now, as the kernel has it.
    """

    booted_at: Callable[[], datetime | None]

    def ends_by(self, code: str) -> ClearsBy | None:
        return _ends_by(code)

    def reread_log(self, code: str, since: datetime) -> str:
        return "the journal could not be read: it is lost"


class Ground(Struct, frozen=True, kw_only=True):
    """What every daemon of a fleet stands on. ``gangs``: its jobs of several nodes; None where on_job has no effect."""

    timeline: Timeline
    slurm: Slurm
    config: Config
    policy: Policy
    change: Change
    random: Callable[[], float]
    new_id: Callable[[], str]
    gangs: Gangs | None = None

    def cluster(self) -> Cluster:
        config = self.config
        return Cluster(
            settle_s=config.budget.settle_s,
            quotas=lambda: {CLUSTER: config.budget.max_out},
            opt_out=(config.remediation.opt_out_feature, FEATURE),
            unanswered_s=config.orchestrator.slurm.unanswered_s,
        )

    def head_rules(self) -> Rules:
        """The controller's, as ``healthd.controller.dependencies`` makes them."""
        return Rules(mode=Mode.REPAIR, replacements_per_hour=self.config.budget.replacements_per_hour)


class Disk(Struct, kw_only=True):
    """What outlives a daemon on its machine. ``read``: how many lines of this boot's kernel log were judged."""

    store: Store
    boot: str = ""
    read: int = 0


class Daemon:
    """One process. ``levels`` and ``ring`` are the machine's as the checks find them; ``blind``: why one cannot look.
    ``hold``: which of its messages wait for an incident.

    ``turn`` raises Killed where its fuse says so.
    """

    def __init__(
        self,
        name: str,
        ground: Ground,
        disk: Disk,
        *,
        wall: WallClock,
        instance: str,
        boot: str,
        provisioner: Provisioner,
        resetter: Resetter,
        hindsight: Hindsight,
        fuse: Fuse,
        levels: Callable[[], Sequence[Finding]],
        ring: Sequence[Finding],
        blind: Callable[[], str],
        deliver: Deliver,
        died: Callable[[], None],
        hold: Hold | None = None,
    ) -> None:
        self.name, self._ground, self.disk, self._wall, self._died = name, ground, disk, wall, died
        self._levels, self._ring, self._blind = levels, ring, blind
        self.alive, self._due_s, self._poll_s = True, float("inf"), POLL_S
        self._looks_at_s, self._awake_s = float("inf"), ground.timeline.s + STAYS_UP_S
        self.message, self.turns, self.began_s = "", 0, ground.timeline.s
        now, store = wall.now(), disk.store
        self._clock_watch = ClockWatch(now, ground.timeline())
        self.monitor = Monitor(CHECKS, store, changed=self.wake, policy=ground.policy)
        self.monitor.retire(now)
        self.monitor.begin_instance(instance, now)
        self.monitor.begin_boot(boot, now)
        if disk.boot != boot:
            disk.boot, disk.read = boot, 0
        dependencies = replace(self._dependencies(provisioner, resetter, fuse), hindsight=hindsight)
        self.engine = Engine(ground.change.dependencies(dependencies, name))
        self.notifier = node_notifier(
            {"oncall": Receiver(deliver=ground.change.deliver(deliver))},
            ground.config.notify,
            self.monitor,
            engine=self.engine,
            store=store,
            about=lambda: Sender(node=name),
            absent=lambda: self.absent.paged,
            absent_pages=lambda: self.absent.pages,
            hold=hold,
        )
        self.read_log()
        self.look_soon(_LOOK_TAKES_S)
        self.wake()

    # -- when it is turned --------------------------------------------------------------------------------------------

    def wake(self, in_s: float = 0.0) -> None:
        """Have it turned then, if that is sooner than it would be; what woke it may move it further."""
        timeline = self._ground.timeline
        self._poll_s = POLL_S
        if (s := timeline.s + in_s) < self._due_s:
            self._due_s = s
            timeline.at(s, lambda: self._turn_at(s))

    def _turn_at(self, s: float) -> None:
        if self.alive and s == self._due_s:
            self._due_s = float("inf")
            self._died_of(self.reconcile)

    def _died_of(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Killed:
            self.alive = False
            self._died()

    def reconcile(self) -> None:
        """One turn of the engine and one of the notifier, and when the next is of use."""
        now = self._wall.now()
        self._look_at_clock(now)
        before, self.turns = self.message, self.turns + 1
        self.message = self.engine.reconcile(now)
        now = self._wall.now()
        self.monitor.flush(now)
        self.notifier.tick(now)
        has_remediation = self.disk.store.open_remediation() is not None
        most_s = STILL_POLL_S if has_remediation else IDLE_POLL_S
        self._poll_s = POLL_S if self.message != before else min(most_s, self._poll_s * GROWS)
        if has_remediation or self._knows_something() or self._ground.slurm.hung:
            self._awake_s = self._ground.timeline.s + STAYS_UP_S
        if self._ground.timeline.s < self._awake_s:
            poll_s = self._poll_s
            self.wake(self.engine.next_in_s(poll_s))
            self._poll_s = poll_s

    def learn(self) -> None:
        """As ``Agent.learn_fleet``: what it finds of other nodes' is released, and told where it has to be."""
        self._died_of(self._learn)

    def _learn(self) -> None:
        before, now = self.absent.paged, self._wall.now()
        try:
            fleet = self.engine.learn(while_open=bool(before))
            for message in self.absent.reconcile(fleet, now) if fleet is not None else ():
                self.monitor.record(Event(at=now, kind="decision", text=message))
        except (BackendError, StoreError):
            return  # it is read again
        if before or self.absent.paged:
            self.notifier.tick(now)

    def _knows_something(self) -> bool:
        return bool(self.monitor.history.faults) or '"told":true' in self.disk.store.fact(NEWS)

    def _look_at_clock(self, now: datetime) -> None:
        if by := self._clock_watch.was_set_by(now, self._ground.timeline()):
            self.monitor.clock_was_set(by, now, was_set(by))
            self.notifier.clock_was_set(by, now)

    # -- what it sees -------------------------------------------------------------------------------------------------

    def read_log(self) -> None:
        """Judge the lines of the kernel log that are new."""
        new, self.disk.read = self._ring[self.disk.read :], len(self._ring)
        self._absorb(LOG, judged(list(new)))

    def look_soon(self, in_s: float) -> None:
        """Have the levels looked at then, unless that is to be sooner."""
        timeline = self._ground.timeline
        if (s := timeline.s + in_s) < self._looks_at_s:
            self._looks_at_s = s
            timeline.at(s, lambda: self._look_at(s))

    def _look_at(self, s: float) -> None:
        if self.alive and s == self._looks_at_s:
            self._looks_at_s = float("inf")
            self._absorb(LEVEL, unknown(why) if (why := self._blind()) else judged(list(self._levels())))

    def _recheck(self, since: datetime) -> None:
        outcome = self.monitor.outcomes().get(LEVEL)
        if outcome is None or outcome.at < since:
            self.look_soon(_LOOK_TAKES_S)

    def _absorb(self, check: str, result: Result) -> None:
        self.monitor.absorb(Outcome(check=check, result=result, at=self._wall.now(), duration_s=0.01))

    # -- what it is put together from ---------------------------------------------------------------------------------

    def _dependencies(self, provisioner: Provisioner, resetter: Resetter, fuse: Fuse) -> Dependencies:
        ground, store, wall = self._ground, self.disk.store, self._wall
        cluster = ground.cluster()
        rules = rules_of(ground.config, ground.policy, cluster.opt_out)  # no operator changes the settings of a fleet
        door = ground.change.orchestrator(Door(ground.slurm, self.name), self.name)
        orchestrator = WiredOrchestrator(door, fuse, lambda _: None, lambda: None)
        absent = AbsentNodes(
            node=lambda other: WiredOrchestrator(Door(ground.slurm, other), fuse, lambda _: None, lambda: None),
            rules=lambda: rules,
            timeouts=timeouts_of(ground.config, cluster),
            monotonic_s=ground.timeline,
        )
        self.absent = AbsentWatch(absent, orchestrator, self.name)
        return Dependencies(
            orchestrator=orchestrator,
            provisioner=WiredProvisioner(provisioner, fuse, lambda _: None),
            resetter=WiredResetter(resetter, fuse, lambda _: None),
            slots=SlotKeeper(
                orchestrator=orchestrator,
                node=self.name,
                quotas=cluster.quotas,
                monotonic_s=ground.timeline,
                random=ground.random,
                settle_s=cluster.settle_s,
            ),
            jobs=WiredJobs(ground.gangs.of(self.name), fuse, lambda _: None) if ground.gangs is not None else None,
            judgement=self.monitor,
            remediations=WiredRemediations(store, fuse),
            rules=lambda: rules,
            ledger=lambda: repairs_of(store.remediations()),
            collect=lambda remediation: fuse.around("collect", lambda: f"bundles/{remediation.id}"),
            recheck=self._recheck,
            timeouts=timeouts_of(ground.config, cluster),
            platform_texts=OUR_TEXTS | MANAGERS_TEXTS,
            new_id=ground.new_id,
            clock=wall.now,
            monotonic_s=ground.timeline,
            beat=Heartbeat(ground.timeline),
        )

    def record(self, text: str) -> None:
        """A line of the trail that says what the world did."""
        self.monitor.record(Event(at=self._wall.now(), kind="sim", text=text))
