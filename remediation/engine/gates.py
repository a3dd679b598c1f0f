"""The gates of a step: the operator's word, another's hold, a node that is not as we left it.

Every question is answered by a plain reading of the node made just now. Nothing here acts on the node's state in the
cluster. An operator who undid our drain ends the remediation, also while the operator wants nothing done; the step that
ends by it acknowledges the fault.

A node that is ours is kept awake: it is idle, and the cluster's power saving would take its machine away. That is
written into the handoff record first, so that the next daemon takes it back, and nothing that an operator set. A
restart or reconfiguration of the controller forgets it: each reading of the node shows whether it must be set again. A
cluster that refuses is asked once for each run of its controller.
"""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta

from msgspec.structs import replace

from healthd.core.errors import BackendError, BackendRefused
from healthd.core.model import REPAIRS, Event, Mode, Refusal, Refused, Remedy, Step
from healthd.remediation.decide.adoption import has_booted
from healthd.remediation.decide.approval import ApprovalGate, ask, objection
from healthd.remediation.decide.drive import own, undriven, why_lowered
from healthd.remediation.decide.freeze import frozen
from healthd.remediation.decide.paging import out_since
from healthd.remediation.decide.policy import holder
from healthd.remediation.decide.remediation import QUARANTINE_CODE, REPAIR_CODE, End, Phase, Remediation
from healthd.remediation.decide.rules import RuleAnswer
from healthd.remediation.engine.dependencies import Dependencies, Judgement
from healthd.remediation.engine.step_result import StepResult, ended, paused
from healthd.remediation.ports import NodeView, Orchestrator
from healthd.remediation.records.handoff import HandoffRecord, by_now, parse, text_of_record


class Gates:
    """The gates of one node's remediations."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        self._orchestrator = dependencies.orchestrator
        self._slots = dependencies.slots
        self._judgement = dependencies.judgement
        self._rules, self._platform_texts = dependencies.rules, dependencies.platform_texts
        self._unanswered = timedelta(seconds=dependencies.timeouts.unanswered_s)
        self._undrain_holds = timedelta(seconds=dependencies.timeouts.undrain_holds_s)
        self._awake = KeepAwake(dependencies.orchestrator, dependencies.judgement)
        self.viewed: NodeView | None = None

    def at_rest(self, remediation: Remediation, view: NodeView | None = None) -> Refused | None:
        """Why the operator wants nothing done here, as far as it is known without, or with, a reading of the node.

        A command is an operator's word, and no mode is too low for it; an opt-out goes before it.
        """
        rules, self.viewed = self._rules(), view or self.viewed
        if why := rules.hands_off(view):
            return Refused(kind=Refusal.OPTED_OUT, reason=f"opted out: {why}")
        if rules.mode is Mode.OBSERVE and not remediation.by_command:
            return Refused(kind=Refusal.OBSERVE, reason="in observe mode")
        return None

    def no_repair_now(self, remediation: Remediation, view: NodeView) -> Refused | None:
        """The objection to a repair by its last reading, by a mode or a rule that was lowered, or by the law of
        acts."""
        if not view.idle:
            return Refused(kind=Refusal.NOT_IDLE, reason="the node is no longer idle")
        if (why := self.at_rest(remediation, view) or in_maintenance(view)) is not None:
            return why
        if (why := frozen(self._rules().freezes, remediation.step)) is not None:
            return why
        message = why_lowered(remediation, self._rules(), self._judgement.diagnoses())
        if message:
            return Refused(kind=Refusal.LOWERED, reason=message)
        canary = self._dependencies.canary(remediation, max_age_s=None)
        against = objection(remediation, self._rules(), self._judgement.diagnoses(), canary)
        return against or self._undriven(remediation)

    def approval(self, remediation: Remediation, now: datetime) -> ApprovalGate:
        """Whether an operator has approved the act that the remediation stands at, where that is needed."""
        canary = self._dependencies.canary(remediation)
        return ask(remediation, self._rules(), self._judgement.diagnoses(), now, canary)

    def reason_against(self, remedy: Remedy) -> str:
        return self._dependencies.reason_against(remedy)

    def too_many(self, *, by_command: bool, is_counted: bool = False) -> str:
        return self._dependencies.too_many(by_command=by_command, is_counted=is_counted)

    def _undriven(self, remediation: Remediation) -> Refused | None:
        """The law of acts. A level that only the disk remembers drives nothing: an operator may have repaired the node
        while the daemon was away."""
        open_ = self.open_now()
        if message := undriven(remediation, open_):
            return Refused(kind=Refusal.NOT_NEEDED, reason=message)
        driving = [each for each in open_ if not undriven(remediation, [each])]
        stale = [self._judgement.not_seen_again(each.root.code, each.diagnosis.component) for each in driving]
        return (
            Refused(kind=Refusal.UNREADABLE, reason=stale[0])
            if stale and all(stale) and not remediation.command
            else None
        )

    def open_now(self) -> tuple[RuleAnswer, ...]:
        """The answers of the policy to what is open, most far-reaching first: neither to what is acknowledged, nor by a
        rule that is in shadow."""
        answers = self._rules().policy.answers(self._judgement.diagnoses())
        live = (answer for answer in answers if answer.rule.mode is not Mode.OBSERVE)
        return tuple(answer for answer in live if not self._judgement.is_acknowledged(answer.diagnosis))

    def stopped(self, remediation: Remediation, view: NodeView, now: datetime) -> StepResult | None:
        """Why a step stops after its reading: the operator's word, or that the node is no longer as we left it."""
        if (why := self.at_rest(remediation, view)) is not None:
            return self.resting(remediation, why, now, view)
        return self.watched(remediation, view, now)

    def watched(self, remediation: Remediation, view: NodeView, now: datetime) -> StepResult | None:
        """As ``not_ours_any_more``; a node that is ours is kept awake."""
        result = self.not_ours_any_more(remediation, view, now)
        if result is None:
            self._awake.keep(view, now)
        return result

    def let_sleep(self) -> None:
        """The remediation has ended: the cluster may power the node down again. Raises BackendUnknown."""
        self._awake.let_sleep()

    def resting(
        self, remediation: Remediation, why: Refused, now: datetime, view: NodeView | None = None
    ) -> StepResult:
        """Nothing is touched. But an operator who undoes our drain meanwhile ends it as ever, after
        which the budget slot is given back, which would keep jobs off and which is ours.

        Not while an act or a release of ours may have taken the drain away: what was asked for must not meet a job.
        """
        is_acting = remediation.phase is not Phase.PLANNED and remediation.end is None
        if remediation.hold is None or Step.DRAIN not in remediation.steps or is_acting:
            return paused(remediation, why)
        self.viewed = view = view or self._orchestrator.view(jobs=True)
        if self._as_we_left_it(remediation, view):
            return paused(seen(remediation, view), why)
        result = self.not_ours_any_more(remediation, view, now)
        return result if result is not None and result.remediation.end is End.ACKNOWLEDGED else paused(remediation, why)

    def down_unexplained(self, remediation: Remediation, view: NodeView) -> str:
        """Why a node that is DOWN must not be resumed, or ""."""
        if "DOWN" in view.flags and self._judgement.boot_id == remediation.drain_boot_id:
            return "the node is DOWN, and no reboot since our drain explains it"
        return ""

    def not_ours_any_more(self, remediation: Remediation, view: NodeView, now: datetime) -> StepResult | None:
        """None while the node is as we left it: our drain, with text, user and stamp; without one, our budget
        slot."""
        if self._as_we_left_it(remediation, view):
            return None
        view = self._orchestrator.view(jobs=True)  # which run of the controller says so?
        if self._as_we_left_it(remediation, view):
            return None
        if self._is_late_drain(remediation, view, now):
            remediation = replace(remediation, hold=view.hold, controller=view.controller)
            message = "a drain of ours that got no answer was applied late: it is ours as well"
            return StepResult(remediation=remediation, message=message, go_on=True)
        if (result := self._remarked(remediation, view, now)) is not None:
            return result
        if view.hold is not None or not view.undrained:
            return lost(remediation, view)
        if view.controller and view.controller != remediation.controller:
            message = (
                "the controller restarted, or the Node was registered again, which lost our drain: it is made again"
            )
            return _made_again(remediation, now, message)
        if self._slept_since(remediation, now):
            message = "the node was powered down, and what held it was released meanwhile: it is held again"
            return _made_again(remediation, now, message)
        if Step.DRAIN in remediation.steps and self._comes_until(remediation.unanswered, now) is not None:
            message = "an undrain of ours that got no answer was applied late: the drain is made again"
            return _made_again(remediation, now, message)
        what = "our drain was undone" if Step.DRAIN in remediation.steps else "our budget slot was taken away"
        return ended(remediation, End.ACKNOWLEDGED, f"{what} by an operator: that acknowledges the fault")

    def acknowledge(self, remediation: Remediation, now: datetime, why: str) -> None:
        """An operator ended the remediation: what was known of the node then is acknowledged."""
        until = now + self._undrain_holds
        self._judgement.acknowledge_shown(
            remediation.code, remediation.component, by=_out_since(remediation), until=until, now=now, why=why
        )

    def _slept_since(self, remediation: Remediation, now: datetime) -> bool:
        """Whether another daemon released the node because it had no machine: see ``absent``. A record that the daemon
        wrote since it woke, before it read its drain, keeps that."""
        record = parse(self._orchestrator.read_record())
        slept = by_now(record, now).slept if record is not None else None
        held = remediation.since if remediation.hold is None else remediation.hold.at
        return slept is not None and slept > held

    def comes_until(self, remediation: Remediation, now: datetime) -> datetime | None:
        """Until when a drain or an undrain of this remediation that got no answer may still be applied, or None: a
        controller that slept applies what it finds when it wakes up."""
        asked = [at for at in (remediation.unanswered, remediation.drain_unanswered) if at is not None]
        return self._comes_until(max(asked, default=None), now)

    def _comes_until(self, asked: datetime | None, now: datetime) -> datetime | None:
        return asked + self._unanswered if asked is not None and now < asked + self._unanswered else None

    def _is_late_drain(self, remediation: Remediation, view: NodeView, now: datetime) -> bool:
        """Whether what holds the node is our own drain once more: one that got no answer, applied after another."""
        if (
            remediation.hold is None
            or view.hold is None
            or self._comes_until(remediation.drain_unanswered, now) is None
        ):
            return False
        return (view.hold.text, view.hold.user) == (remediation.hold.text, remediation.hold.user) and not view.undrained

    def _remarked(self, remediation: Remediation, view: NodeView, now: datetime) -> StepResult | None:
        """The cluster's controller put a reason of its own in the place of ours, as Slurm does for a process that it
        cannot end: no operator's doing, and the drain is ours while its slot is. None for any other hold."""
        hold = view.hold
        if remediation.hold is None or hold is None or not view.drained_by_itself or not self._slots.held():
            return None
        index = remediation.steps.index(Step.VERIFY) if remediation.step is Step.RELEASE else remediation.index
        phase = Phase.PLANNED if remediation.step is Step.RELEASE else remediation.phase
        message = f'the cluster wrote "{hold.shown}" by itself, as {hold.user}, over our drain: the drain stays ours'
        opened = (
            out_since(remediation) if Step.STAY in remediation.steps else remediation.opened
        )  # a command counts from when it was given
        remediation = replace(
            remediation, opened=opened, hold=hold, controller=view.controller, index=index, phase=phase, good_since=None
        )
        is_of_this_boot = not has_booted(remediation, self._dependencies.hindsight.booted_at())
        boot_id = self._judgement.boot_id if is_of_this_boot else ""
        return StepResult(remediation=replace(remediation, overwritten_boot_id=boot_id), message=message, go_on=True)

    def adopts(self, remediation: Remediation, view: NodeView) -> bool:
        """Whether this remediation may repair a node that the cluster's controller drained by itself. Its text
        stays."""
        return bool(REPAIRS.intersection(remediation.steps)) and self._rules().adopts(view)

    def _as_we_left_it(self, remediation: Remediation, view: NodeView) -> bool:
        if Step.DRAIN in remediation.steps:
            return _is_still(remediation, view) and not view.undrained
        if view.hold is not None and not (view.hold.automatic or view.hold.text in self._platform_texts):
            return False
        return bool(self._slots.held())  # the view shows any maintenance, an administrator's too

    def has_lost_slot(self, remediation: Remediation) -> bool:
        return Step.DRAIN in remediation.steps and not self._slots.held()

    def is_needless(self, remediation: Remediation) -> str:
        """Why it is needless to take the node out, or "". After a repair not that the fault is over: a node whose
        drain got lost then has yet to prove itself."""
        return "" if remediation.attempts and not remediation.forced else self.is_over(remediation)

    def is_over(self, remediation: Remediation) -> str:
        """Why the remediation is needless, or "". A command holds whatever is found, until another takes it back."""
        if remediation.release_command:
            return f"released by command, {remediation.release_command}"
        if remediation.code in (QUARANTINE_CODE, REPAIR_CODE):
            return ""
        return "" if own(remediation, self.open_now()) else f"{remediation.code} on {remediation.component} is over"


def in_maintenance(view: NodeView) -> Refused | None:
    """The objection of another's maintenance window, of a freeze of the fleet, or of a reboot that another has asked
    the cluster for, to a repair. A release is none."""
    if view.freeze:
        return Refused(kind=Refusal.FROZEN, reason=f"{view.freeze}; no reset, reboot or replacement before its end")
    if flag := next((each for each in sorted(view.flags) if each.startswith("REBOOT")), ""):
        return Refused(kind=Refusal.MANAGED, reason=f"the cluster reboots the node already: it is {flag}")
    if not view.maintenance:
        return None
    message = f"maintenance window {view.maintenance} is on the node: no reset, reboot or replacement inside it"
    return Refused(kind=Refusal.MAINTENANCE, reason=message)


def _out_since(remediation: Remediation) -> datetime:
    """When the node went out for all to see: what was open then is what an operator knew of."""
    drained = remediation.hold.at if remediation.hold is not None else remediation.opened
    return max(remediation.opened, drained)


def _made_again(remediation: Remediation, now: datetime, message: str) -> StepResult:
    """Our drain is gone, and no operator undid it. One that was given up needs an operator as before."""
    asks = remediation.asks
    if remediation.end is End.FAILED:
        asks = Refused(kind=Refusal.EXHAUSTED, reason=remediation.note)
    planned = replace(remediation, index=0, phase=Phase.PLANNED, hold=None, since=now, end=None, asks=asks)
    return StepResult(remediation=planned, message=message)


def seen(remediation: Remediation, view: NodeView) -> Remediation:
    """Remember which run of the controller showed us our drain, and how: only a later restart may have lost it."""
    hold = view.hold if _is_still(remediation, view) else remediation.hold
    controller = view.controller or remediation.controller
    if (hold, controller) == (remediation.hold, remediation.controller):  # nearly always: nothing new is made
        return remediation
    return replace(remediation, hold=hold, controller=controller)


def _is_still(remediation: Remediation, view: NodeView) -> bool:
    return remediation.hold is not None and view.hold is not None and view.hold.is_still(remediation.hold)


def lost(remediation: Remediation, view: NodeView) -> StepResult:
    """Another holds the node: it is theirs."""
    result = ended(remediation, End.LOST, f"the node is held by {holder(view)}: not touched")
    return replace(result, refusal=Refusal.FOREIGN_HOLD)


class KeepAwake:
    """Whether one node is kept awake. Calls never overlap."""

    def __init__(self, orchestrator: Orchestrator, judgement: Judgement) -> None:
        self._orchestrator, self._judgement = orchestrator, judgement
        self._refused_by: str | None = None
        self._message = ""

    def keep(self, view: NodeView, now: datetime) -> None:
        """Tell the cluster, where this reading shows that it may power the node down. A failure is recorded once, and
        stops nothing."""
        if not view.may_sleep or view.controller == self._refused_by:
            return
        try:
            self._tell(now)
            message = "kept awake: the cluster's power saving leaves it alone while it is held"
        except BackendRefused as error:
            self._refused_by, message = view.controller, f"the cluster may power it down while it is held: {error}"
        except BackendError as error:
            message = f"the cluster may power it down while it is held, and is asked again: {error}"
        if message != self._message:
            self._judgement.record(Event(at=now, kind="step", text=message))
        self._message = message

    def let_sleep(self) -> None:
        """Take back what this remediation, or a daemon before this one, has told. Raises BackendUnknown."""
        released(self._orchestrator)
        self._refused_by, self._message = None, ""

    def _tell(self, now: datetime) -> None:
        before = self._orchestrator.read_record()
        record = parse(before) or HandoffRecord()
        if record.awake is None:
            self._orchestrator.write_record(replace(record, awake=now).text)
        try:
            self._orchestrator.keep_awake(on=True)
        except BackendRefused:
            if record.awake is None:
                self._orchestrator.write_record(before)
            raise


def released(orchestrator: Orchestrator) -> None:
    """Let the cluster power this node down again, if the record says that healthd kept it awake. Raises BackendUnknown.

    Where the cluster refuses by now, or the record is another's, nothing of ours is left.
    """
    with contextlib.suppress(BackendRefused):
        record = parse(orchestrator.read_record())
        if record is None or record.awake is None:
            return
        with contextlib.suppress(BackendRefused):
            orchestrator.keep_awake(on=False)
        orchestrator.write_record(text_of_record(replace(record, awake=None)))
