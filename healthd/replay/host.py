"""One node of a replay: the daemon's own judgement and engine, on a simulated cluster and machine.

The daemon's own code decides: checks, history, policy, engine, handoff record, messages. Only events that no log has
are assumed here (``[replay]``): the end of the job, the end of a repair, the arrival of an operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from random import Random

from healthd.core.model import (
    CLUSTER,
    NODE,
    REPAIRS,
    Action,
    Clearance,
    ClearsBy,
    Outcome,
    Refusal,
    Remedy,
    Severity,
    Status,
)
from healthd.core.node import KernelRecord
from healthd.judge.history import Change, Fault, FaultKey
from healthd.notify.news import NewsKind, TopicMemory, tell
from healthd.notify.node import wrong_with
from healthd.remediation.decide.commands import Command, Verb
from healthd.remediation.decide.ledger import repairs_of
from healthd.remediation.decide.paging import due
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.engine.dependencies import Dependencies
from healthd.remediation.engine.engine import Engine
from healthd.remediation.engine.slots import SlotKeeper
from healthd.replay.machine import PastMachine
from healthd.replay.node import BOOTED, PastNode, ReplayBatch, outcomes_of
from healthd.replay.remediations import PastRemediations
from healthd.replay.story import NOTHING, Account, Story
from healthd.replay.world import PastMonitor, PastOrchestrator, World
from healthd.sim.cluster import FakeClusterNode

_JOB = "a job"
_FIRST_PAUSE_S, _LONGER = 5.0, 4.0
_WAITING_PAUSE_S = 60.0  # for a budget slot: no daemon polls more rarely
_OUT_PAUSE_S = 7_200.0
_QUIET_PAUSE_S = 86_400.0
_OF_OTHERS = frozenset({Refusal.BUDGET, Refusal.CORRELATED, Refusal.RATE, Refusal.UNREADABLE})
_OPERATOR = Command(verb=Verb.RELEASE, who="an operator", why="assumed to have repaired it ([replay] person_s)")


class PastHost:
    """One node. ``due``: the time of its next event, if no line comes first; None for never."""

    def __init__(self, name: str, world: World, *, instance_type: str | None) -> None:
        self.name, self._world, self._assumed = name, world, world.config.replay
        self.batch = ReplayBatch()
        self._past = PastNode(name=name, instance_type=instance_type)
        self._node = world.cluster.nodes[name] = FakeClusterNode(jobs=[_JOB])
        self._machine = PastMachine(self._assumed, world.clock.now)
        self._account = Account(name)
        self._boot, self._boots = "", 0
        self._is_out = False
        self._job_ends: datetime | None = None
        self._person_comes: datetime | None = None
        self._turns_at: datetime | None = None
        self._last_message, self._pause_s = "", _FIRST_PAUSE_S
        self._begin_machine()

    def _begin_machine(self) -> None:
        """Begin a machine with an empty disk: no finding, and no decision of its daemon."""
        self.monitor = PastMonitor(self._world.checks, None, policy=self._world.rules.policy)
        self._remediations, self._news = PastRemediations(), dict[str, TopicMemory]()
        self._engine: Engine | None = None

    @property
    def due(self) -> datetime | None:
        """The time of the next reconcile, end of the job, end of a repair, or arrival of an operator."""
        times = (self._turns_at, self._job_ends, self._machine.due, self._person_comes)
        return min((at for at in times if at is not None), default=None)

    @property
    def is_settled(self) -> bool:
        """Whether no event follows from the findings, until another line comes."""
        return self._remediations.open_remediation() is None and self._person_comes is None

    # -- the log ------------------------------------------------------------------------------------------------------

    def judge(self, records: tuple[KernelRecord, ...]) -> None:
        """Judge a batch. The engine reconciles if it changed a fault."""
        before = self.monitor.diagnoses()
        self._enter_boot(records[0])
        settings = self._world.config.checks
        outcomes = tuple(outcomes_of(self._world.kernel_checks, settings, self._past, records))
        for outcome in [each for each in outcomes if _says(each)] or outcomes[:1]:
            self._account.changes(self.monitor.absorb(outcome), outcome.at)
        now = self._world.clock.come_to(records[-1].time)
        if self.monitor.diagnoses() is not before:
            self.go_on(now)

    def absorb(self, outcome: Outcome) -> None:
        """Fold in the outcome of a check run from an event store, which names no boot."""
        if not self._boots:
            self._enter(outcome.at)
        self._account.changes(self.monitor.absorb(outcome), outcome.at)
        self.go_on(self._world.clock.come_to(outcome.at))

    def _enter_boot(self, first: KernelRecord) -> None:
        """A line of another boot, or the kernel's own first line, is evidence of a reboot."""
        if first.boot_id in ("", self._boot) and not first.text.startswith(BOOTED) and self._boots:
            return
        if self._boots:
            self._machine.was_rebooted()
            self._end_job(first.time)
        self._boot = first.boot_id or self._boot
        self._enter(first.time)

    # -- assumptions, and the engine ----------------------------------------------------------------------------------

    def go_on(self, now: datetime) -> None:
        """Play all events that are due, and reconcile once."""
        if self._job_ends is not None and now >= self._job_ends:
            self._end_job(now)
        self._arrive(self._machine.arrived(now), now)
        if self._person_comes is not None and now >= self._person_comes:
            self._see_to_it(now)
        engine = self._engine = self._engine or self._new_engine()
        held = engine.stats.refused[Refusal.CORRELATED]
        before = self.monitor.history.faults
        message = engine.reconcile(now)
        self._ended(before, now, "the repair is assumed to have worked")
        remediation = self._remediations.open_remediation()
        if engine.stats.refused[Refusal.CORRELATED] > held:
            self._account.holds(remediation.code if remediation else self._code_of(engine))
        self._follow(engine, now)
        self._tell(engine, now)
        self._wait(engine, remediation, message, now)

    def _follow(self, engine: Engine, now: datetime) -> None:
        """Record the result of the reconcile. A node that goes out keeps its job for a while; one that is back gets a
        job."""
        decision = engine.decision
        self._account.decision(decision, now)
        moves = tuple(self._remediations.moved)
        self._remediations.moved.clear()
        self._account.moves(moves, now)
        if (is_out := bool(self._node.flags)) == self._is_out:
            return
        self._is_out = is_out
        if is_out:
            self._account.goes_out(now, decision.action, self._code_of(engine), self._machine.made)
            self._job_ends = now + timedelta(seconds=self._assumed.drain_s)
        else:
            self._account.comes_back(now, self._machine.made)
            self._job_ends, self._node.jobs[:] = None, [_JOB]

    def _tell(self, engine: Engine, now: datetime) -> None:
        least = Severity(self._world.config.notify.severity)
        wrong = wrong_with(self.monitor, engine, least)
        self._news, pieces = tell(self._news, wrong, now)
        critical = [each for each in self.monitor.diagnoses() if each.severity is Severity.CRITICAL]
        is_wrong = self._is_out or not all(map(self.monitor.is_acknowledged, critical))
        self._account.message(now, wrong=is_wrong, reported=any(each.news is not NewsKind.STEP for each in pieces))

    def _wait(self, engine: Engine, remediation: Remediation | None, message: str, now: datetime) -> None:
        """Set the next reconcile: as often as in the daemon at first, and ever more rarely while nothing changes."""
        if not _asks(engine, remediation):
            self._person_comes = None
        elif self._person_comes is None:
            self._person_comes = now + timedelta(seconds=self._assumed.person_s)
        if remediation is None and not self._news and engine.decision.diagnosis is None:
            self._turns_at = None
            return
        longest_s = _longest_s(engine, remediation)
        longer_s = _LONGER * self._pause_s if self._pause_s < _WAITING_PAUSE_S else longest_s
        self._pause_s = min(longest_s, longer_s) if message == self._last_message else _FIRST_PAUSE_S
        self._last_message = message
        pause = timedelta(seconds=max(1.0, engine.next_in_s(self._pause_s)))
        self._turns_at = min([now + pause, *(at for at in self._bounds(remediation) if at > now)])

    def _bounds(self, remediation: Remediation | None) -> Iterator[datetime]:
        """The times at which a freeze ends, or a timeout changes a remediation."""
        yield from (freeze.until for freeze in self._world.rules_now().freezes if freeze.until is not None)
        if remediation is not None:
            timeouts = self._world.timeouts
            yield due(remediation, timeouts.limits)
            for timeout_s in (timeouts.verify_timeout_s, timeouts.reboot_timeout_s, timeouts.replace_timeout_s):
                yield remediation.since + timedelta(seconds=timeout_s + 1)
            if remediation.good_since is not None:
                yield remediation.good_since + timedelta(seconds=timeouts.settle_s)

    # -- events -------------------------------------------------------------------------------------------------------

    def _end_job(self, now: datetime) -> None:
        """End the job, and the faults that end with it."""
        self._job_ends = None
        self._node.jobs.clear()
        self._account.is_idle(now)
        before = self.monitor.history.faults
        self.monitor.clear(Clearance(by=ClearsBy.JOB_END, component=NODE), now)
        self._ended(before, now, "the job has ended")

    def _arrive(self, remedy: Remedy | None, now: datetime) -> None:
        """Complete a request: another boot, or another machine with an empty disk."""
        if remedy is Remedy.REBOOT_NODE:
            self._enter(now)
            before = self.monitor.history.faults
            self.monitor.repaired(remedy, now)
            self._ended(before, now, "the reboot is assumed to have worked")
        elif remedy is Remedy.REPLACE_NODE:
            over = self.monitor.history.faults.values()
            why = "the new machine is assumed to be healthy"
            self._account.changes([Change(fault=fault, opened=False, why=why) for fault in over], now)
            self._begin_machine()
            self._enter(now)

    def _enter(self, now: datetime) -> None:
        """Begin another boot."""
        self._boots += 1
        before = self.monitor.history.faults
        self.monitor.begin_boot(f"boot-{self._boots}", now)
        self._ended(before, now, "rebooted")

    def _see_to_it(self, now: datetime) -> None:
        """Let an operator come: all faults end, and the operator releases the node."""
        self._person_comes = None
        self._account.note(now, "done", "an operator is assumed to have repaired it")
        before = self.monitor.history.faults
        self.monitor.clear(Clearance(by=ClearsBy.REPLACE, component=NODE), now)
        self.monitor.repaired(Remedy.ASK_HUMAN, now)
        self._ended(before, now, "an operator is assumed to have repaired it")
        remediation = self._remediations.open_remediation()
        if self._engine is not None and remediation is not None and remediation.hold is not None:
            self._engine.execute(_OPERATOR, now)

    def _ended(self, before: Mapping[FaultKey, Fault], now: datetime, why: str) -> None:
        """Record which of these faults have ended."""
        after = self.monitor.history.faults
        over = [fault for key, fault in before.items() if key not in after]
        self._account.changes([Change(fault=fault, opened=False, why=why) for fault in over], now)

    # -- the end ------------------------------------------------------------------------------------------------------

    def log_ends(self, now: datetime) -> None:
        """Record the end of the log."""
        decision = self._engine.decision if self._engine else NOTHING
        remediation = self._remediations.open_remediation()
        place = (
            "" if remediation is None else f" [remediation {remediation.id} at {remediation.step}: {remediation.note}]"
        )
        stands = f"{decision.reason}{place}"
        self._account.log_ends(now, decision, tuple(self.monitor.history.faults.values()), stands)

    def story(self, now: datetime) -> Story:
        """The story of this node."""
        return self._account.story(now, self._machine.made)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _code_of(self, engine: Engine) -> str:
        remediation, about = self._remediations.open_remediation(), engine.decision.diagnosis
        return remediation.code if remediation is not None else about.code if about is not None else ""

    def _new_engine(self) -> Engine:
        """The daemon's engine, over the simulated cluster and machine."""
        world, remediations = self._world, self._remediations
        orchestrator = PastOrchestrator(world, self.name)
        return Engine(
            Dependencies(
                orchestrator=orchestrator,
                provisioner=self._machine,
                resetter=self._machine,
                slots=SlotKeeper(
                    orchestrator=orchestrator,
                    node=self.name,
                    quotas=lambda: {CLUSTER: world.rules.max_out},
                    monotonic_s=world.clock.seconds,
                    random=Random(self.name).random,  # noqa: S311  for jitter between nodes, not for a secret
                    settle_s=world.config.budget.settle_s,
                ),
                judgement=self.monitor,
                remediations=remediations,
                rules=world.rules_now,
                collect=lambda _: "no folder in a replay",
                recheck=lambda _: None,
                timeouts=world.timeouts,
                ledger=lambda: repairs_of(remediations.remediations()),
                new_id=lambda: f"r{next(world.ids)}",
                clock=world.clock.now,
                monotonic_s=world.clock.seconds,
            )
        )


def _asks(engine: Engine, remediation: Remediation | None) -> bool:
    """Whether the node waits for an operator: one who was paged, or who alone can release it."""
    is_kept_out = (
        remediation is not None and remediation.hold is not None and not REPAIRS.intersection(remediation.steps)
    )
    return is_kept_out or engine.decision.action is Action.PAGE


def _longest_s(engine: Engine, remediation: Remediation | None) -> float:
    """The longest pause between two reconciles: a node that waits for others may go on when they are back."""
    if engine.decision.refusal in _OF_OTHERS or (remediation is not None and remediation.hold is None):
        return _WAITING_PAUSE_S
    return _OUT_PAUSE_S if remediation is not None or engine.decision.action is Action.PAGE else _QUIET_PAUSE_S


def _says(outcome: Outcome) -> bool:
    """Whether folding this outcome in changes a fault. A log fault does not end because a check no longer finds it."""
    result = outcome.result
    return bool(result.findings or result.clearances or result.readings) or result.status is not Status.OK
