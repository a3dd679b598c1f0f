"""The acts that repair a node: GPU reset, reboot, replacement. And the next one where one did not help.

Each is written down before it is done and is done once: after that only its evidence counts, which is another boot id,
another instance id, or for a reset its own end and what the checks see then. A repair whose answer is unknown may have
been applied, so it is waited for, never repeated; a reset alone may be, because on an idle node it harms nothing. It
counts each time: one that the daemon does not live to see the end of must not be made for ever.

A repair must not decide that the node is healthy: the step that verifies does.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Protocol

from healthd.core.errors import BackendBusy, BackendError, BackendRefused, BackendUnknown
from healthd.core.model import NODE, Clearance, ClearsBy, Event, Refusal, Refused, Remedy, Step
from healthd.remediation.decide.adoption import repair_mark
from healthd.remediation.decide.approval import needs_approval
from healthd.remediation.decide.drive import is_replaced
from healthd.remediation.decide.handoff import UNASKED_S, HandoffRecord, instance_of, parse, word
from healthd.remediation.decide.remediation import ACTS, End, Phase, Remediation, has_entry, is_begun
from healthd.remediation.decide.rules import STEPS, without_drain
from healthd.remediation.engine.dependencies import Dependencies, Resetter, Timeouts
from healthd.remediation.engine.step_result import StepJournal, StepResult, at_next, ended, waits
from healthd.remediation.ports import NodeView, Provisioner, StateOwner


class Door(Protocol):
    """The part of an Orchestrator by which a repair reads its node and leaves the handoff record. May raise
    BackendError."""

    def view(self, *, jobs: bool = False) -> NodeView:
        """Read the node's state."""

    def mark(self, text: str) -> None:
        """Leave the handoff record."""

    def marked(self) -> str:
        """Read it."""


class Witness(Protocol):
    """The witness of the machine around an act: the monitor on the node itself, slurmctld from elsewhere."""

    @property
    def boot_id(self) -> str:
        """The current boot. May raise BackendUnknown."""

    def clear(self, clearance: Clearance, now: datetime) -> None:
        """Take evidence that faults are over."""

    def record(self, event: Event) -> None:
        """Add to the audit trail."""


class Permission(Protocol):
    """The permission for an act: Gates on the node itself, the controller's own from elsewhere."""

    def why_not(self, remedy: Remedy) -> str:
        """Why a remedy cannot be carried out here, or ""."""

    def too_many(self, *, by_order: bool) -> str:
        """Why no machine of the fleet may be replaced now, or "", by an operator's command or not."""

    def watched(self, case: Remediation, view: NodeView, now: datetime) -> StepResult | None:
        """None while the node is as it was left, and it is kept awake; else what that comes to."""

    def no_repair_now(self, case: Remediation, view: NodeView) -> Refused | None:
        """The objection to a repair by this reading: work, an opt-out, a mode that was lowered."""

    def is_over(self, case: Remediation) -> str:
        """Why the remediation is needless, or ""."""


class Intents(Protocol):
    """How an act is announced before it is made. May raise BackendError, StoreError; then it is not made."""

    def intend(self, case: Remediation, now: datetime, act: str) -> Remediation:
        """Write on disk that this act is begun now; returns the remediation with that."""

    def record_of(self, case: Remediation, now: datetime) -> tuple[str | None, str]:
        """The handoff record to leave with the cluster for this act, behind the one that is there and is left again
        where the act is not begun; None for none."""


class OwnIntents:
    """Those of a node's own daemon: what ``healthd controller`` and the daemon of the next machine need to go on from
    there."""

    def __init__(self, parts: Dependencies, journal: StepJournal) -> None:
        self._orchestrator, self._provisioner = parts.orchestrator, parts.provisioner
        self._parts, self._journal = parts, journal

    def intend(self, case: Remediation, now: datetime, act: str) -> Remediation:
        """See Intents."""
        return self._journal.intend(case, now, act)

    def record_of(self, case: Remediation, now: datetime) -> tuple[str | None, str]:
        """See Intents."""
        before = self._orchestrator.marked()
        rules, diagnoses = self._parts.rules(), self._parts.judgement.diagnoses()
        able = [remedy for remedy in case.ladder[1:] if not self._parts.why_not(remedy)]
        # the controller goes on by what is written here, so only up to what an operator has to approve
        following = list(takewhile(lambda remedy: not needs_approval(case, remedy, rules, diagnoses), able))
        delegated = self._provisioner.delegates
        return before, repair_mark(case, now, before=before, following=following, delegated=delegated)


def before_the_act(case: Remediation, now: datetime) -> Remediation:
    """The case where it waits for its node to be idle, before its act is made, or made again."""
    return replace(case, index=case.steps.index(Step.WAIT_IDLE), phase=Phase.PLANNED, since=now, good_since=None)


class Repairs:
    """The repairs of one node's remediations."""

    def __init__(
        self,
        *,
        orchestrator: Door,
        provisioner: Provisioner,
        resetter: Resetter,
        judgement: Witness,
        gates: Permission,
        intents: Intents,
        patience: Timeouts,
    ) -> None:
        self._orchestrator, self._provisioner, self._resetter = orchestrator, provisioner, resetter
        self._judgement, self._gates, self._intents, self._patience = judgement, gates, intents, patience
        self._resetting = ""
        self._before: str | None = None  # the record before the act that is about to be begun

    def reset(self, case: Remediation, now: datetime) -> StepResult:
        """Reset the GPUs, with every holder stopped; the caller starts them again after. One that was
        interrupted is made again, and is another attempt."""
        if case.phase is Phase.PLANNED:
            begun = self._kept_from(case, now, "GPU reset") or self._begun(case, now, "GPU reset")
        else:
            begun = self._still_allowed(case, case, now, "GPU reset") or self._taken_up(case, now)
        if isinstance(begun, StepResult):
            return begun
        case, self._resetting = begun, ""
        if why := self._resetter.why_not():
            return self.again_or_fail(self._refused(case, now), now, f"no GPU reset: {why}")
        try:
            done = self._resetter.reset(case.stopped)
        except BackendBusy as error:
            if now - case.since <= timedelta(seconds=self._patience.let_go_s):
                self._resetting = case.id
                return StepResult(case=case, said=f"GPU reset waits: {error}", refusal=Refusal.NOT_IDLE)
            why = f"no GPU reset: {error}, {self._patience.let_go_s:g} s later"
            return self.again_or_fail(self._refused(case, now), now, why)
        except (BackendRefused, BackendUnknown) as error:
            return self.again_or_fail(case, now, f"the GPU reset did not succeed: {error}")
        self._judgement.clear(Clearance(by=ClearsBy.GPU_RESET, component=NODE, note=f"case {case.id}: {done}"), now)
        return StepResult(case=at_next(case, now), said=f"GPUs reset: {done}", go_on=True)

    def reboot(self, case: Remediation, now: datetime) -> StepResult:
        """Ask for a reboot, once, and wait for another boot id."""
        if case.phase is Phase.INTENDED:
            return self._await_new_boot(self._taken_over(case), now)
        begun = self._kept_from(case, now, "reboot") or self._begun(case, now, "reboot")
        if isinstance(begun, StepResult):
            return begun
        try:
            self._provisioner.reboot()
        except BackendBusy as error:
            return waits(self._put_off(begun, now), "reboot", Refused(kind=Refusal.MANAGED, words=str(error)))
        except BackendRefused as error:
            return self.again_or_fail(self._refused(begun, now), now, f"the reboot was refused: {error}")
        except BackendUnknown as error:
            return StepResult(case=self._handed_over(begun), said=f"reboot: no answer, the boot id will tell: {error}")
        said = f"reboot {self._asked}; waiting for a new boot id"
        return StepResult(case=self._handed_over(begun), said=said, asked=True)

    def replace(self, case: Remediation, now: datetime) -> StepResult:
        """Ask for another machine, once, and wait for another instance id behind the name.

        Most often the one that waits is no longer this daemon: the new machine's finds the hold and goes on from there.
        """
        if case.phase is Phase.INTENDED:
            return self._await_new_machine(self._taken_over(case), now)
        if (
            case.attempts == 0
            and not self._has_its_mark(case)
            and (why := self._gates.too_many(by_order=bool(case.order)))
        ):
            return waits(case, "replacement", Refused(kind=Refusal.RATE, words=why), page=True)
        begun = self._kept_from(case, now, "replacement") or self._begun(case, now, "replacement")
        if isinstance(begun, StepResult):
            return begun
        try:
            self._provisioner.replace()
        except BackendBusy as error:
            return waits(self._put_off(begun, now), "replacement", Refused(kind=Refusal.MANAGED, words=str(error)))
        except BackendRefused as error:
            return self.again_or_fail(self._refused(begun, now), now, f"the replacement was refused: {error}")
        except BackendUnknown as error:
            said = f"replacement: no answer, the instance id will tell: {error}"
            return StepResult(case=self._handed_over(begun), said=said)
        said = f"replacement of {begun.machine} {self._asked}; waiting for another instance"
        return StepResult(case=self._handed_over(begun), said=said, asked=True)

    def let_rest(self, turn: StepResult) -> StepResult:
        """A case that is paused, its reset not under way any more: what that had stopped is started again,
        whatever forbids the reset."""
        return replace(turn, case=replace(turn.case, phase=Phase.PLANNED)) if turn.case.stopped else turn

    def again_or_fail(self, case: Remediation, now: datetime, why: str) -> StepResult:
        """A repair that did not help is tried again, then the next remedy of the ladder; at its end an operator is
        needed."""
        again = before_the_act(case, now)
        if case.release_order:  # it waited for this act alone, and is obeyed from where it ended
            return StepResult(case=again, said=f"not tried again, {case.release_order}: {why}", go_on=True)
        if is_replaced(case):
            return ended(case, End.FAILED, f"another machine did not help, an operator is needed: {why}")
        if case.attempts < self._patience.max_attempts:
            return StepResult(case=again, said=f"attempt {case.attempts} failed, trying again: {why}")
        following = [remedy for remedy in case.ladder[1:] if not self._gates.why_not(remedy)]
        if not following:
            return ended(case, End.FAILED, f"given up after {case.attempts} attempts, an operator is needed: {why}")
        drained = Step.DRAIN in case.steps
        steps = STEPS[following[0]] if drained else without_drain(STEPS[following[0]])
        up = replace(again, ladder=tuple(following), steps=steps, index=steps.index(Step.WAIT_IDLE), attempts=0)
        was_made = case.step is Step.VERIFY and case.ladder[0] in case.acts
        did_not_help = f"{case.ladder[0]} did not help, " if was_made else ""
        return StepResult(case=up, said=f"{did_not_help}{following[0]} is next: {why}")

    def _taken_up(self, case: Remediation, now: datetime) -> Remediation | StepResult:
        """A reset that is intended: the one that this process waits to make; else one that an earlier daemon may have
        been ended in the middle of, or whose end could not be written down."""
        if case.id == self._resetting:
            return case
        if case.attempts >= self._patience.max_attempts:
            return self.again_or_fail(case, now, "the GPU reset was interrupted, and its end is not known")
        return self._intents.intend(replace(case, attempts=case.attempts + 1), now, "interrupted GPU reset")

    # -- before an act ------------------------------------------------------------------------------------------------

    def _kept_from(self, case: Remediation, now: datetime, act: str) -> StepResult | None:
        """Why an act is not begun, by a reading of everything; None where nothing is against it."""
        view = self._orchestrator.view(jobs=True)
        if (turn := self._gates.watched(case, view, now)) is not None:
            return turn
        if case.attempts >= self._patience.max_attempts:
            return self.again_or_fail(case, now, "no attempt is left")
        if (why := self._gates.no_repair_now(case, view)) is not None:
            return waits(case, act, why)
        if other := self._provisioner.stands_down():
            return waits(case, act, Refused(kind=Refusal.MANAGED, words=other))
        return None

    def _begun(self, case: Remediation, now: datetime, act: str) -> Remediation | StepResult:
        """The case with the intent of an act written down and everything read again after; else why it is not begun."""
        acts = (*case.acts, ACTS[case.step])
        begun = self._intents.intend(replace(self._prepared(case), attempts=case.attempts + 1, acts=acts), now, act)
        try:
            turn = self._unmarked(begun, now, act) or self._still_allowed(begun, case, now, act)
        except BackendError as error:  # nothing was done, which nobody would know of a case that stays as intended
            words = f"the last reading before it got no answer: {error}"
            turn = waits(self._not_begun(begun), act, Refused(kind=Refusal.UNREADABLE, words=words))
        if turn is not None:
            self._unmark(begun, now)
        return turn or begun

    def _prepared(self, case: Remediation) -> Remediation:
        """The case with what only a reading before its act can tell: whom to stop, which boot or machine is to end."""
        match case.step:
            case Step.RESET:
                return replace(case, stopped=self._resetter.holders())
            case Step.REBOOT:
                return self._with_boot(case)
            case _:
                return self._with_machine(case)

    def _still_allowed(self, case: Remediation, planned: Remediation, now: datetime, act: str) -> StepResult | None:
        """The last reading before an act, of the jobs too: a suspended one shows nowhere else. Where it forbids, the
        case is as it was ``planned``: nothing was done."""
        planned = replace(planned, phase=Phase.PLANNED)
        view = self._orchestrator.view(jobs=True)
        if (turn := self._gates.watched(planned, view, now)) is not None:
            return turn
        why = self._gates.no_repair_now(planned, view)
        return None if why is None else waits(planned, act, why)

    def _unmarked(self, begun: Remediation, now: datetime, act: str) -> StepResult | None:
        """Leave the record that must outlive this machine. A reset or a reboot leaves the disk as it is, and goes on
        without one."""
        self._before = None
        try:
            before, text = self._intents.record_of(begun, now)
            self._orchestrator.mark(text)
        except (BackendRefused, BackendUnknown) as error:
            said = f"no mark could be left with the node: {error}"
            needed = begun.step is Step.REPLACE or self._provisioner.delegates or isinstance(error, BackendUnknown)
            if needed and begun.step is not Step.RESET:
                return waits(self._not_begun(begun), act, Refused(kind=Refusal.REFUSED, words=said), page=True)
            self._note(begun, now, f"{said}; what is not in its history is not counted after this disk is lost")
            return None
        self._before = before
        return None

    def _unmark(self, case: Remediation, now: datetime) -> None:
        """Take an act that was not begun out of the node's history again. Where that fails, the next one finds it."""
        before, self._before = self._before, None
        if before is None:
            return
        try:
            self._orchestrator.mark(before)
        except BackendError as error:
            self._note(case, now, f"an act that was not begun stays in the node's history: {error}")

    def _note(self, case: Remediation, now: datetime, said: str) -> None:
        self._judgement.record(Event(at=now, kind="step", text=f"[{case.id}] {said}"))

    def _has_its_mark(self, case: Remediation) -> bool:
        """Whether this case was let through already: the record of it is counted, and must not hold it up. A machine
        that came for another is let through by none: it is one more."""
        mark = parse(self._orchestrator.marked())
        if mark is None or mark.case != case.id or mark.replaced is None or not mark.is_of_replacement:
            return False
        return mark.machine == word(instance_of(self._provisioner.machine()))

    @property
    def _asked(self) -> str:
        return "asked of healthd controller" if self._provisioner.delegates else "asked for"

    def _not_begun(self, case: Remediation) -> Remediation:
        """Nothing was done, so the attempt does not count."""
        return replace(case, phase=Phase.PLANNED, attempts=case.attempts - 1, acts=case.acts[:-1])

    def _put_off(self, case: Remediation, now: datetime) -> Remediation:
        """The same of an act for which the platform has no time now: until it has, nothing is counted."""
        self._unmark(case, now)
        return self._not_begun(case)

    def _refused(self, case: Remediation, now: datetime) -> Remediation:
        """An attempt, and no repair: the answer was no."""
        self._unmark(case, now)
        return replace(case, acts=case.acts[:-1])

    def _handed_over(self, case: Remediation) -> Remediation:
        """Where the request itself took our drain's place, the budget slot is what is left of ours."""
        if self._provisioner.state_owner is not StateOwner.AFTER_ASKING or Step.DRAIN not in case.steps:
            return case
        return replace(case, steps=without_drain(case.steps), index=case.index - 1, hold=None)

    def _taken_over(self, case: Remediation, *, came: bool = False) -> Remediation:
        """The same where a kill came between the request and its record: another text in the place of our drain, or
        once what was asked for ``came``, none, is the platform's doing, and no undoing by an operator."""
        if self._handed_over(case) is case:
            return case
        hold = self._orchestrator.view().hold
        if hold is None:
            return self._handed_over(case) if came else case
        is_ours = hold.automatic or (case.hold is not None and hold.is_still(case.hold))
        return case if is_ours else self._handed_over(case)

    def _with_boot(self, case: Remediation) -> Remediation:
        """The same before a reboot. Which machine it is matters to the controller alone, should it not come back."""
        try:
            return self._with_machine(case)
        except BackendError:
            if self._provisioner.delegates:
                raise
            return replace(case, machine="", boot_id=self._judgement.boot_id)

    def _with_machine(self, case: Remediation) -> Remediation:
        return replace(case, machine=self._provisioner.machine(), boot_id=self._judgement.boot_id)

    # -- waiting for the evidence -------------------------------------------------------------------------------------

    def _await_new_boot(self, case: Remediation, now: datetime) -> StepResult:
        """Only another boot id says that the reboot happened. Until then it may still come, and nothing is done. Where
        it is not known which boot was to end, none proves it."""
        boot_id = self._judgement.boot_id
        if case.boot_id and boot_id != case.boot_id:
            said = f"rebooted: boot id {case.boot_id[:8]} became {boot_id[:8]}"
            case = self._taken_over(self._without_untaken(case), came=True)
            self._provisioner.take_back(carried_out=True)
            return StepResult(case=at_next(case, now), said=said, go_on=True)
        if (turn := self._taken_back(case, now, "reboot")) is not None:
            return turn
        # asked of the controller it may be refused; asked of the platform, only the boot tells
        progress = self._progress(case, now, "reboot") if self._provisioner.delegates else ""
        if isinstance(progress, StepResult):
            return progress
        if now - case.since > timedelta(seconds=self._patience.reboot_timeout_s):
            return self._came_to_nothing(case, now, "the reboot that was asked for never showed as a new boot id")
        waits_for = "waiting for a new boot id"
        if not case.boot_id:
            waits_for = "which boot it had is not known: its own daemon tells when it is back"
        return StepResult(case=case, said=f"reboot {self._asked}; {progress or waits_for}")

    def _await_new_machine(self, case: Remediation, now: datetime) -> StepResult:
        """Only another instance id says that the replacement happened. No capacity is a wait, not an end."""
        try:
            machine, unread = self._provisioner.machine(), ""
        except BackendRefused as error:
            return self._said_no(case, now, "replacement", error)
        except BackendUnknown as error:
            machine, unread = case.machine, f"it is not known how far it is: {error}"
        if machine != case.machine:
            said = f"replaced: {case.machine} became {machine}"
            case = self._taken_over(case, came=True)
            return StepResult(case=at_next(replace(case, machine=machine), now), said=said, go_on=True)
        if (turn := self._taken_back(case, now, "replacement")) is not None:
            return turn
        progress = unread or self._progress(case, now, "replacement")
        if isinstance(progress, StepResult):
            return progress
        if now - case.since > timedelta(seconds=self._patience.replace_timeout_s):
            return self._came_to_nothing(case, now, f"no other machine came: {progress or 'no progress was reported'}")
        said = f"replacement of {case.machine} {self._asked}; {progress or 'waiting for another instance'}"
        return StepResult(case=case, said=said)

    def _progress(self, case: Remediation, now: datetime, act: str) -> str | StepResult:
        """How far it is; else what it comes to that it failed, or is held up."""
        try:
            return self._unasked(case, now) or self._provisioner.progress()
        except BackendRefused as error:
            return self._said_no(case, now, act, error)
        except BackendUnknown as error:
            return f"it is not known how far it is: {error}"

    def _unasked(self, case: Remediation, now: datetime) -> str:
        """That the node's record shows no request of this case to the controller, or "". The daemon before this one was
        killed before it left one, which is known a minute later: raises BackendRefused then. The record of an
        earlier request is no answer to this one."""
        mark = self._record()
        if mark is None or (mark.case, mark.attempt) == (case.id, case.attempts):
            return ""
        if now - case.since > timedelta(seconds=UNASKED_S):
            raise BackendRefused("the request was never left with the cluster")
        return "the request is not visible in the handoff record yet"

    def _said_no(self, case: Remediation, now: datetime, act: str, why: BackendRefused) -> StepResult:
        """For now: it is waited for, and pages. Or for good."""
        if isinstance(why, BackendBusy):
            return self._held_up(case, now, act, why)
        return self._came_to_nothing(case, now, f"the {act} failed: {why}")

    def _taken_back(self, case: Remediation, now: datetime, act: str) -> StepResult | None:
        """The act is not needed any more, and its platform lets it be taken back in time; else None."""
        if not (over := self._gates.is_over(case)) or not self._provisioner.take_back(carried_out=False):
            return None
        said = f"the {act} was taken back before it began: {over}"
        return StepResult(case=at_next(self._not_begun(case), now), said=said, go_on=True)

    def _came_to_nothing(self, case: Remediation, now: datetime, why: str) -> StepResult:
        """The act that was awaited failed, or took too long. A request that the node itself withdrew is not even an
        attempt."""
        if self._is_withdrawn(case):
            return StepResult(case=before_the_act(self._not_begun(case), now), said=f"{why}; judged again")
        return self.again_or_fail(self._without_untaken(case), now, why)

    def _without_untaken(self, case: Remediation) -> Remediation:
        """A request that no controller took is an attempt, and no repair: also where another did it meanwhile. A record
        in which the request never stood has it in its history, if any controller began it."""
        mark = self._record()
        if mark is None or not case.acts:
            return case
        stands = mark.case == case.id and mark.asks
        was_begun = is_begun(mark) if stands else has_entry(mark, case.acts[-1], case.since)
        return case if was_begun else replace(case, acts=case.acts[:-1])

    def _is_withdrawn(self, case: Remediation) -> bool:
        mark = self._record()
        return mark is not None and mark.case == case.id and mark.is_withdrawn

    def _record(self) -> HandoffRecord | None:
        """The node's record, where a controller acts for it."""
        return parse(self._orchestrator.marked()) if self._provisioner.delegates else None

    def _held_up(self, case: Remediation, now: datetime, act: str, why: BackendBusy) -> StepResult:
        """Asked for, and held up by what an operator must see to. It is waited for as long as for the act itself."""
        patience = self._patience
        patience_s = patience.reboot_timeout_s if case.step is Step.REBOOT else patience.replace_timeout_s
        if now - case.since > timedelta(seconds=patience_s):
            return self._came_to_nothing(case, now, f"{act} was held up for too long: {why}")
        return StepResult(case=case, said=f"{act} {self._asked}; held up: {why}", page=True)
