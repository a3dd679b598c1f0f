"""Carries a decision out, one step at a time, so that a kill -9 at any point leaves nothing half done or done twice.

While no remediation is open it decides; while one is open it takes its steps. It decides again only about a node that a
remediation keeps out without a repair, which may be repaired by now. Each call returns the sentence that says what it
did: that sentence is the log line, the audit record and what a test asserts.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from msgspec.structs import replace

from healthd.core.errors import BackendError, BackendRefused, StoreError
from healthd.core.model import Action, Decision, Diagnosis, Event, Mode, Refusal, Refused, Step
from healthd.judge.diagnose import roots_of
from healthd.remediation.decide.commands import Command, CommandOutcome
from healthd.remediation.decide.drive import (
    continued_as,
    decided_about,
    is_due,
    lowered,
    may_be_lowered,
    only_out,
    own,
    takes_over,
    why_lowered,
    why_turned,
)
from healthd.remediation.decide.fleet import Scope
from healthd.remediation.decide.ledger import many_returns, returns_of
from healthd.remediation.decide.on_job import JobOutcome
from healthd.remediation.decide.paging import STUCK_AFTER_S, wanted
from healthd.remediation.decide.policy import Considered, Rules
from healthd.remediation.decide.remediation import Phase, Remediation, ended_last, reason_text
from healthd.remediation.decide.rules import without_drain
from healthd.remediation.engine.commands import CommandChecks, CommandExecution
from healthd.remediation.engine.deciding import ClusterView, Decider, unsearched
from healthd.remediation.engine.dependencies import Dependencies, TestsEndedEarly
from healthd.remediation.engine.orphans import OrphanDrains, OrphanSlots
from healthd.remediation.engine.step_result import EngineStats, StepJournal, StepResult
from healthd.remediation.engine.steps import Steps
from healthd.remediation.ports import FleetSnapshot, StateOwner

_ORDER_WAITS_S = 20.0  # for a turn that is under way
_ENDING = "healthd is stopping: nothing more is begun; what is left is done once it is back"
_TOUCH_NOTHING = frozenset({Refusal.OBSERVE, Refusal.OPTED_OUT})
_REREAD_EVERY_S = 60.0  # whether a reset can be made is asked of the machine
_AT_REST = 6  # so much rarer are the calls where nothing is open: a fault calls at once


class Engine:
    """One node's engine. ``reconcile`` is called whenever something changed and every few seconds; no two at once."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        self._provisioner, self._slots = dependencies.provisioner, dependencies.slots
        self._judgement = dependencies.judgement
        self._remediations = dependencies.remediations
        self._rules = dependencies.rules
        self._clock = dependencies.clock
        self._cluster = ClusterView(
            orchestrator=dependencies.orchestrator,
            slots=dependencies.slots,
            versions=dependencies.versions,
            clock=dependencies.clock,
            monotonic_s=dependencies.monotonic_s,
        )
        self._decider, self._journal = Decider(dependencies, self._cluster), StepJournal(dependencies)
        self._steps = Steps(dependencies, cluster=self._cluster, decider=self._decider, journal=self._journal)
        self._orphan_slots, self._orphan_drains = OrphanSlots(dependencies, self._journal), OrphanDrains(dependencies)
        self._checks = CommandChecks(dependencies, self._decider)
        self._lock, self._asking, self._ending = threading.Lock(), threading.Lock(), threading.Event()
        self._command_waits = threading.Event()
        self._steps.tick = self._tick
        self._limits = dependencies.timeouts.limits
        self._stands, self._rests, self._last_noted = False, False, ""
        self._asked: frozenset[tuple[str, str]] = frozenset()
        self._asked_s = float("-inf")
        self._decided_last = Decision(action=Action.HOLD, reason="nothing has been decided yet")
        self._result: StepResult | None = None
        self._ended: Remediation | None = None
        self._has_remediation = False
        self._failing_since_s: float | None = None
        self.decision = self._decided_last
        """The last decision; or while a remediation is open, or none of the calls succeeds, why an operator is
        needed."""
        self.has_decided = False
        """Whether a call has come through: until then nothing says that what a daemon before this one paged is over."""
        self.stats = EngineStats()
        self._execution = CommandExecution(
            dependencies, checks=self._checks, steps=self._steps, journal=self._journal, stats=self.stats
        )

    def reconcile(self, now: datetime, *, wait_s: float = -1, hurry: bool = False) -> str:
        """Decide or go on, as far as it goes now. Returns what was done and why; never raises a HealthdError.

        ``wait_s``: how long to wait for a call that is under way elsewhere; -1 for as long as it takes. ``hurry``: a
        job is about to start here, so a drain does not wait until the node's slot has settled.
        """
        if not self._lock.acquire(timeout=wait_s):
            return "another reconcile is still under way"
        problem = ""
        try:
            self._dependencies.beat.begin()
            if self._ending.is_set():
                return _ENDING
            self._steps.hurry = hurry
            remediation = self._resumed(now)
            message = self._consider(now) if remediation is None else self._go_on(remediation, now)
            self._watch()
        except StoreError as error:
            message = problem = f"nothing was done: {error}"
        except BackendError as error:
            answer = "refused" if isinstance(error, BackendRefused) else "gave no answer"
            message = problem = f"a call {answer}, so nothing more was done; healthd tries again: {error}"
            if self._note(message, Event(at=self._clock(), kind="step", text=message)):
                self.stats.refuse(Refusal.UNREADABLE)
        finally:
            self._steps.hurry = False
            self._update_decision(now, problem)
            self._stands = self._steps.stood(now) > timedelta(seconds=2 * self._dependencies.timeouts.calm_s)
            self._rests = not problem and not self._has_remediation and self._has_nothing()
            self._dependencies.beat.end()
            self._lock.release()
        return message

    def execute(self, command: Command, now: datetime) -> CommandOutcome:
        """Begin to execute a command, or refuse it. The calls of ``reconcile`` that follow do what is left.

        Raises StoreError: then nothing was done.
        """
        self._command_waits.set()
        is_acquired = self._lock.acquire(timeout=_ORDER_WAITS_S)
        self._command_waits.clear()
        if not is_acquired:
            message = f"the engine has been at work for {_ORDER_WAITS_S:g} s; see `healthd status`, and ask again"
            return self._execution.refuse(command, Refused(kind=Refusal.REMEDIATION_OPEN, reason=message))
        try:
            self._dependencies.beat.begin()
            if self._ending.is_set():
                return self._execution.refuse(
                    command, Refused(kind=Refusal.REMEDIATION_OPEN, reason=f"{_ENDING}; ask again then")
                )
            remediation = self._resumed(now)
            if remediation is None and self._orphan_slots.unknown:
                message = f"the cluster did not answer, and {self._orphan_slots.unknown}"
                return self._execution.refuse(command, Refused(kind=Refusal.UNREADABLE, reason=message))
            begun = self._execution.begin(command, remediation, now)
            if isinstance(begun, CommandOutcome):
                return begun
            self.decision = self._decided_last = Decision(action=command.action, reason=command.title)
            self.stats.decided[self.decision.action] += 1
            return self._execution.first_step(begun, now)
        finally:
            self._dependencies.beat.end()
            self._lock.release()

    def _tick(self) -> None:
        self._dependencies.beat()
        if self._ending.is_set() or self._command_waits.is_set():
            raise TestsEndedEarly

    def end(self, within_s: float) -> bool:
        """Begin nothing more. Whether what is under way came to its end within that time, in seconds: a
        step is not broken off, and the one after it is not begun."""
        self._ending.set()
        if not self._lock.acquire(timeout=within_s):
            return False
        self._lock.release()
        return True

    def rehearse(self, command: Command, now: datetime) -> CommandOutcome:
        """The effect of a command, step by step. Nothing is done, noted or counted. Raises StoreError."""
        with self._asking:
            remediation = self._remediations.open_remediation()
            if remediation is None and self._orphan_slots.unknown:
                message = f"the cluster did not answer, and {self._orphan_slots.unknown}"
                return CommandOutcome(done=False, message=message, refusal=Refusal.UNREADABLE)
            return self._execution.rehearse(command, remediation, now)

    def opted_out(self) -> str:
        """Why healthd only observes here, or "": as the node says now, and the cluster said when it was last read."""
        return self._rules().hands_off(self._steps.viewed or self._cluster.viewed)

    def opted_out_now(self) -> str:
        """The same, and the cluster is asked where it has not been of late: of a healthy node nothing else reads what
        its cluster says. Raises BackendError."""
        rules = self._rules()
        if rules.opted_out or not rules.opt_out_feature:
            return rules.opted_out
        with self._asking:
            return rules.hands_off(self._cluster.own_lately())

    def next_in_s(self, at_most_s: float) -> float:
        """In how many seconds the next call is of use: when a slot has settled, if that is sooner; later for a
        remediation that stands still, whose node others may have touched, and nothing else can have happened to; later
        also for a node with no diagnosis, whose next fault calls at once."""
        if due_s := min(filter(None, (self._slots.due_in_s(), self._steps.job_due_in_s)), default=0.0):
            return min(at_most_s, due_s)
        if self._rests:
            return at_most_s * _AT_REST
        return max(at_most_s, self._dependencies.timeouts.calm_s) if self._stands else at_most_s

    def fenced(self, message: str) -> None:
        """The cluster shows a fence of ours, as this text; "" for none. Unless a remediation is open it is the
        reason to hold, and its claim is searched. Called from another thread than ``reconcile``."""
        is_left = bool(message) and self.remediation is None
        self._orphan_drains.fence = message if is_left else ""
        if is_left:
            self._orphan_slots.search(again=True)

    def learn(self, *, while_open: bool = False) -> FleetSnapshot | None:
        """Read the fleet, where it is time for that and nothing is going on; None where it was not read.
        ``while_open``: also while a remediation is open, which reads what it needs itself.

        Raises StoreError, BackendUnknown.
        """
        if not self._slots.wants_to_learn() or not self._lock.acquire(blocking=False):
            return None
        try:
            is_open = self._remediations.open_remediation() is not None
            return self._slots.learn() if while_open or not is_open else None
        finally:
            self._lock.release()

    def holds_node(self) -> Remediation | None:
        """The open remediation whose drain was read back, or None. Raises StoreError."""
        remediation = self._remediations.open_remediation()
        return remediation if remediation is not None and remediation.hold is not None else None

    @property
    def remediation(self) -> Remediation | None:
        """The open remediation as the last call left it, or None. Read from memory: a store that fails does not hide
        it."""
        return self._result.remediation if self._result is not None and self._result.remediation.is_open else None

    @property
    def ended(self) -> Remediation | None:
        """The remediation that ended last since this process began, or None. A slot that was found alone is none: what
        had the node out before is."""
        return self._ended

    def budget(self) -> tuple[Scope, ...]:
        """How many nodes are out and may be, as the fleet was read last; nothing where that is of no use any more."""
        return self._slots.budget()

    @property
    def job_outcomes(self) -> Mapping[JobOutcome, int]:
        """The acts on jobs that cannot go on, since the process began."""
        return self._steps.job_outcomes

    @property
    def rules(self) -> Rules:
        """The rules as they are now: what the operator allows, and the policy."""
        return self._rules()

    def considered(self) -> tuple[Considered, ...]:
        """Decide about each diagnosis by itself, as if no remediation were open. Nothing is done, noted or counted.

        A call that is under way is not waited for. Raises StoreError.
        """
        diagnoses = self._judgement.diagnoses()
        return self._considered(diagnoses, self._decider.acknowledged(diagnoses), self._rules())

    def considered_in(self, diagnoses: Sequence[Diagnosis], mode: Mode) -> tuple[Considered, ...]:
        """The same at this level, if these were all that is wrong and none was acknowledged: for a drill."""
        return self._considered(diagnoses, frozenset(), replace(self._rules(), mode=mode))

    def planned_effects(self, decision: Decision, diagnosis: Diagnosis, remediation_id: str) -> tuple[str, ...]:
        """The effect of each step of a decision now, in the words of a command's dry run. Raises BackendError."""
        now = self._clock()
        remediation = replace(
            self._opened(decision, diagnosis, now), id=remediation_id, text=reason_text(diagnosis, remediation_id)
        )
        with self._asking:
            return tuple(message for message, _ in self._checks.rehearsed(remediation))

    def fleet(self) -> FleetSnapshot | None:
        """The fleet as it is read for such questions; None where it cannot be."""
        with self._asking:
            return self._cluster.lately().snapshot

    def _considered(
        self, diagnoses: Sequence[Diagnosis], acknowledged: frozenset[Diagnosis], rules: Rules
    ) -> tuple[Considered, ...]:
        with self._asking:
            return self._decider.considered(diagnoses, acknowledged, rules, self._orphan_slots.unknown)

    def _resumed(self, now: datetime) -> Remediation | None:
        """The open remediation, on disk or found with the cluster. Raises StoreError."""
        remediation = self._steps.resume()
        self._orphan_slots.search(again=remediation is not None)
        if remediation is not None:
            self._orphan_drains.search()
        return remediation or self._orphan_slots.found(now)

    # -- deciding -----------------------------------------------------------------------------------------------------

    def _consider(self, now: datetime) -> str:
        self._has_remediation = False
        if self.remediation is not None:  # a command ended it since the last turn
            self._result = None
        decision = self._decide(now)
        if not decision.steps or decision.diagnosis is None:
            return "; ".join(filter(None, (decision.reason, self._show_held(decision))))
        remediation = self._opened(decision, decision.diagnosis, now)
        self._journal.write(remediation, f"intends to take a slot and to drain: {decision.reason}")
        return self._go_on(remediation, now)

    def _decide(self, now: datetime) -> Decision:
        unknown = self._orphan_slots.unknown
        decision = self._decider.given(unsearched(unknown), now) if unknown else self._decider.by_memory(now)
        decision = self._orphan_drains.named(decision, now)
        self._tell(decision)
        return decision

    def _show_held(self, decision: Decision) -> str:
        """Let the others see what this node is held for because many have it; what it is not held for any more, they
        see no more. Returns why they cannot be shown it, or ""."""
        diagnosis = decision.diagnosis
        if decision.refusal is Refusal.CORRELATED and diagnosis is not None:
            since = next(root.since for root in roots_of(diagnosis) if root.code == diagnosis.code)
            return self._cluster.show(diagnosis.code, since, holds=False)
        if decision.refusal in _TOUCH_NOTHING or self._orphan_slots.unknown:
            return ""
        unseen = (each for each in self._judgement.diagnoses() if not self._judgement.is_acknowledged(each))
        return self._cluster.withdraw(unless={root.code for each in unseen for root in roots_of(each)})

    def _has_nothing(self) -> bool:
        """Whether there is nothing that a later call could decide otherwise about, or find."""
        is_held = self._decided_last.action is Action.HOLD and self._decided_last.refusal is None
        return is_held and not self._orphan_slots.unknown and not self._judgement.diagnoses()

    def _tell(self, decision: Decision) -> None:
        """Put the decision or the refusal into the audit trail once, not every few seconds."""
        self._decided_last, diagnosis = decision, decision.diagnosis
        if diagnosis is None and decision.refusal is None:
            self._last_noted = ""  # the same refusal, of a fault that comes back, is news
            return
        about = {"code": diagnosis.code, "component": str(diagnosis.component)} if diagnosis is not None else {}
        data = {"action": decision.action, **about}
        if self._note(decision.reason, Event(at=self._clock(), kind="decision", text=decision.reason, data=data)):
            self.stats.decided[decision.action] += 1
            self.stats.refuse(decision.refusal)

    def _opened(self, decision: Decision, diagnosis: Diagnosis, now: datetime) -> Remediation:
        """A new remediation, its slot already intended: the decision has just read what an intent must be read from.

        Raises BackendError.
        """
        remediation_id, bounds = self._dependencies.new_id(), self._rules().bounds
        returns = returns_of(self._cluster.record().history, diagnosis.code, now)
        return Remediation(
            id=remediation_id,
            opened=now,
            since=now,
            mode=self._rules().mode,
            code=diagnosis.code,
            component=str(diagnosis.component),
            remedy=diagnosis.remedy,
            why="; ".join(diagnosis.reasons),
            text=reason_text(diagnosis, remediation_id),
            steps=self._fitting(decision.steps),
            ladder=decision.ladder,
            fenced=True,
            asks=_asks(decision, many_returns(returns, diagnosis.code, bounds)),
            returns=returns,
        )

    def _fitting(self, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        return without_drain(steps) if self._provisioner.state_owner is StateOwner.PLATFORM else steps

    def _note(self, message: str, event: Event) -> bool:
        """Record a reason that is new; whether it was."""
        if message == self._last_noted:
            return False
        self._last_noted = message
        self._judgement.record(event)
        return True

    # -- going on -----------------------------------------------------------------------------------------------------

    def _go_on(self, remediation: Remediation, now: datetime) -> str:
        self._has_remediation = True
        if self._result is None or self._result.remediation.id != remediation.id:
            self._result = StepResult(remediation=remediation, message=remediation.note)
        started, started_s = now, self._dependencies.monotonic_s()
        remediation = self._turned(remediation, now)
        while True:
            self._dependencies.beat()
            result = self._steps.take(self._fitted(remediation), now)
            self.stats.time(remediation, result.remediation, self._clock())
            before, remediation = remediation, result.remediation
            self.stats.wait(result)
            self._result = result
            self._ended = ended_last(remediation, self._ended)
            if not result.go_on or remediation.end is not None or self._ending.is_set():
                return result.message
            # Collecting evidence and a reset take minutes. A clock that is set meanwhile moves every time later.
            now = started + timedelta(seconds=self._dependencies.monotonic_s() - started_s)
            if remediation.index != before.index and remediation.phase is Phase.PLANNED:
                remediation = replace(remediation, since=now)

    def _turned(self, remediation: Remediation, now: datetime) -> Remediation:
        """The remediation, turned to what is open now: its mode may have been raised since, its own fault may be over
        while another is open, or a more serious one may have arrived."""
        seen, now_s = self._steps.seen(remediation, now), self._dependencies.monotonic_s()
        asked = frozenset((answer.root.code, str(answer.diagnosis.component)) for answer in seen.open)
        is_asked = asked == self._asked and now_s - self._asked_s < _REREAD_EVERY_S
        if not is_due(remediation, seen) or is_asked or self.opted_out():
            return remediation
        self._asked, self._asked_s = asked, now_s
        decision = self._decider.about_held(remediation, seen)
        is_reported = bool(decision.steps) or decision.action is Action.PAGE
        if is_reported and decision.reason != self._decided_last.reason:
            self._tell(decision)
        if not takes_over(remediation, decision, seen) or decision.diagnosis is None:
            many = many_returns(remediation.returns, remediation.code, self._rules().bounds)
            return (
                replace(remediation, asks=_asks(decision, many))
                if is_reported and only_out(remediation)
                else remediation
            )
        new = replace(
            self._opened(decision, decision.diagnosis, now), text=reason_text(decision.diagnosis, remediation.id)
        )
        goes_on = (
            decided_about(decision, seen.open) is own(remediation, seen.open)
            and remediation.ladder[:1] == decision.ladder[:1]
        )
        turned = continued_as(remediation, replace(new, attempts=remediation.attempts if goes_on else 0))
        unseen = "" if turned.step is Step.SLOT else self._steps.show(turned)
        self._journal.write(turned, "; ".join(filter(None, (why_turned(remediation, turned, decision.reason), unseen))))
        self._asked = frozenset()
        return turned

    def _fitted(self, remediation: Remediation) -> Remediation:
        """The remediation as far as it may still go: a mode or a rule that was lowered since lowers it too. In observe
        mode it rests as it is."""
        rules = self._rules()
        if rules.mode is Mode.OBSERVE or not may_be_lowered(remediation):
            return remediation
        if not (why := why_lowered(remediation, rules, self._judgement.diagnoses())):
            return remediation
        remediation = lowered(remediation)
        self._journal.write(remediation, f"is not repaired any more: {why}")
        self.stats.refuse(Refusal.LOWERED)
        return remediation

    def _watch(self) -> None:
        """Tell the other daemons, after a call that came through, that this one watches over the node."""
        decided = self._decided_last
        pages = decided.action is Action.PAGE or decided.refusal is Refusal.ORPHAN
        held = self.remediation is not None if self._has_remediation else pages
        if self._rules().mode is not Mode.OBSERVE:
            self._cluster.watch(holds=held)

    def _update_decision(self, now: datetime, problem: str) -> None:
        """Recompute what an operator is wanted for. ``problem``: why this turn did not succeed, or ""."""
        now_s = self._dependencies.monotonic_s()
        began_s = self._failing_since_s if self._failing_since_s is not None else now_s
        self._failing_since_s = began_s if problem else None
        self.has_decided = self.has_decided or not problem
        stuck = problem if now_s - began_s >= STUCK_AFTER_S else ""
        stands = self._result.stands if self._result is not None and self._has_remediation else None
        before, self.decision = (
            self.decision,
            wanted(self._decided_last, stands, stuck, now, self._limits, was=self.decision),
        )
        is_new = (self.decision.action, self.decision.refusal) != (before.action, before.refusal)
        if self.decision.action is Action.PAGE and is_new and self.decision is not self._decided_last:
            self.stats.decided[Action.PAGE] += 1


def _asks(decision: Decision, many: str) -> Refused | None:
    """Why a remediation waits for an operator, where it was opened for that, or because it comes back too often."""
    if decision.action is Action.PAGE and decision.refusal is not None:
        return Refused(kind=decision.refusal, reason=decision.reason)
    return Refused(kind=Refusal.LEMON, reason=many) if many else None
