"""An operator's commands on one node: whether one can be carried out now, what that would take, and its beginning.

``CommandChecks`` reads, and changes nothing. The same questions are asked for the command and for its dry run, so that
the one tells what the other will do. A command passes nothing that a decision does not pass: another's hold, the
budget, an opt-out, a manager that is at the machine already, the rate of replacements. It needs neither a fault nor a
mode that would allow it.

``CommandExecution`` writes a command down before anything is done, as a remediation like any other, so that a kill -9
does not lose it; the turns that follow do what is left. The engine's lock is held meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from healthd.core.errors import BackendError
from healthd.core.model import Action, Diagnosis, Event, Refusal, Refused, Remedy, Step
from healthd.remediation.decide.adoption import orphaned
from healthd.remediation.decide.approval import approve, needs_approval, undo_objection
from healthd.remediation.decide.commands import (
    Command,
    CommandOutcome,
    Verb,
    let_in,
    may_be_mended,
    mended_meanwhile,
    quarantined,
    repaired,
)
from healthd.remediation.decide.drive import heading_back, instead
from healthd.remediation.decide.handoff import parse
from healthd.remediation.decide.policy import holder
from healthd.remediation.decide.remediation import QUARANTINE_CODE, End, Remediation, case_of, is_begun
from healthd.remediation.engine.deciding import Decider
from healthd.remediation.engine.dependencies import Dependencies
from healthd.remediation.engine.step_result import EngineStats, StepJournal
from healthd.remediation.engine.steps import Steps
from healthd.remediation.ports import NodeView, StateOwner


class CommandChecks:
    """The commands of one node."""

    def __init__(self, parts: Dependencies, decider: Decider) -> None:
        self._orchestrator, self._provisioner, self._resetter = parts.orchestrator, parts.provisioner, parts.resetter
        self._slots, self._judgement, self._rules = parts.slots, parts.judgement, parts.rules
        self._parts, self._decider = parts, decider

    def wanted(
        self, order: Command, case: Remediation | None, now: datetime, case_id: str
    ) -> Remediation | Refused | str:
        """The case that carries the order out, why it is refused, or in words that it is so already.

        ``case``: the one that is open. Raises BackendError where the cluster could not be read.
        """
        view = self._orchestrator.view(jobs=True)
        if why := self._rules().hands_off(view):
            drained = case is not None and case.hold is not None and Step.DRAIN in case.steps
            instead = ", or undo our drain by hand: that works all the same" if drained else ""
            return Refused(kind=Refusal.OPTED_OUT, words=f"opted out: {why}; take that back first{instead}")
        match order.verb:
            case Verb.QUARANTINE:
                return self._quarantine(order, case, view, now, case_id)
            case Verb.REPAIR:
                return self._repair(order, case, view, now, case_id)
            case Verb.RELEASE:
                return self._release(order, case, view, now, case_id)
            case Verb.APPROVE:
                return self._approve(order, case, view, now)
            case Verb.UNDO:
                return self._undo(order, case, view, now, case_id)

    def rehearsed(self, case: Remediation) -> Iterator[tuple[str, Refusal | None]]:
        """Each step that is left: its effect in words, and what is known to be against it. Raises BackendError."""
        for step in case.steps[case.index :]:
            words, refusal = self._rehearsal(step, case)
            yield f"{step:<9}  {words}", refusal

    # -- the three ----------------------------------------------------------------------------------------------------

    def _quarantine(
        self, order: Command, case: Remediation | None, view: NodeView, now: datetime, case_id: str
    ) -> Remediation | Refused | str:
        if case is not None and case.code == QUARANTINE_CODE and not (case.release_order or case.has_ended):
            return f"ordered already, {case.order}: case {case.id} is at {case.step}"
        return (
            self._open_already(case)
            or self._cannot_go_out(view)
            or quarantined(order, case_id, now, drains=self._drains)
        )

    def _repair(
        self, order: Command, case: Remediation | None, view: NodeView, now: datetime, case_id: str
    ) -> Remediation | Refused:
        is_out = case is not None and may_be_mended(case, order)
        if not is_out and (no := self._open_already(case) or self._cannot_go_out(view)) is not None:
            return no
        if case is not None and (foreign := self._foreign(case, view)) is not None:
            return foreign
        rungs = self._rungs(order, case, now)
        if isinstance(rungs, Refused):
            return rungs
        ladder, about = rungs
        if (no := self._cannot_mend(ladder[0])) is not None:
            return no
        if case is not None and case.code == QUARANTINE_CODE:
            return mended_meanwhile(case, order, ladder[0], now)
        new = repaired(order, case_id, now, ladder=ladder, about=about, drains=self._drains)
        return new if case is None else instead(case, new)

    def _rungs(
        self, order: Command, case: Remediation | None, now: datetime
    ) -> tuple[tuple[Remedy, ...], Diagnosis | None] | Refused:
        """The remedies to try in turn, and the diagnosis: the one remedy that was named, or the policy's."""
        if order.remedy is not None:
            return (order.remedy,), None
        decision = self._decider.by_order(case, now)
        if decision.action is Action.REPAIR:
            return decision.ladder, decision.diagnosis
        words = f"{decision.reason}; to have one remedy all the same, name it with --step"
        return Refused(kind=decision.refusal or Refusal.NOT_NEEDED, words=words)

    def _release(
        self, order: Command, case: Remediation | None, view: NodeView, now: datetime, case_id: str
    ) -> Remediation | Refused | str:
        if case is None:
            return self._orphan(order, view, now, case_id) or self._nothing_of_ours(view)
        if case.has_ended:
            return f"case {case.id} has ended already: {case.note}"
        if (foreign := self._foreign(case, view)) is not None:
            return foreign
        never_out = case.code == QUARANTINE_CODE and case.step in (Step.SLOT, Step.DRAIN)
        return let_in(case, order, "" if order.forced or never_out else self._judgement.trouble(None))

    def _approve(
        self, order: Command, case: Remediation | None, view: NodeView, now: datetime
    ) -> Remediation | Refused | str:
        if case is None or order.target not in (case.id, view.name):
            return self._not_that_one(order, case)
        if (foreign := self._foreign(case, view)) is not None:
            return foreign
        diagnoses = self._judgement.diagnoses()
        return approve(case, order.remedy, order.words, rules=self._rules(), diagnoses=diagnoses, now=now)

    def _undo(
        self, order: Command, case: Remediation | None, view: NodeView, now: datetime, case_id: str
    ) -> Remediation | Refused | str:
        """A release without a verification, for as long as nothing was done that would have to be verified."""
        if case is None or order.target not in (case.id, view.name):
            return self._not_that_one(order, case)
        if words := undo_objection(case, request_untaken=self._request_is_untaken(case)):
            return Refused(kind=Refusal.CANNOT, words=words)
        return self._release(order, case, view, now, case_id)

    def _request_is_untaken(self, case: Remediation) -> bool:
        """Whether what the remediation asks for stands with the cluster, and no controller has begun it."""
        if not self._provisioner.delegates:
            return False
        record = parse(self._orchestrator.marked())
        return record is not None and record.case == case.id and not is_begun(record)

    def _not_that_one(self, order: Command, case: Remediation | None) -> Refused:
        open_ = "none is open here" if case is None else f"open here is {case.id}, for {case.code} on {case.component}"
        words = f"no remediation {order.target!r}: {open_}; see `healthd status`"
        return Refused(kind=Refusal.NOT_NEEDED, words=words)

    # -- what is against it -------------------------------------------------------------------------------------------

    @property
    def _drains(self) -> bool:
        return self._provisioner.state_owner is not StateOwner.PLATFORM

    def _open_already(self, case: Remediation | None) -> Refused | None:
        if case is None:
            return None
        about = f"case {case.id} is open for {case.code} on {case.component}, at {case.step}"
        words = f"{about}; it has to end first: `healthd status`, and `healthd release` to end it"
        return Refused(kind=Refusal.CASE_OPEN, words=words)

    def _cannot_go_out(self, view: NodeView) -> Refused | None:
        if not view.in_service and not (view.fenced and self._slots.held()):
            words = f"already out of service, held by {holder(view)}: left alone"
            return Refused(kind=Refusal.FOREIGN_HOLD, words=words)
        if full := self._slots.no_room():
            words = f"{full}; a drain of your own with scontrol is not ours to count, nor to undo"
            return Refused(kind=Refusal.BUDGET, words=words)
        return None

    def _cannot_mend(self, remedy: Remedy) -> Refused | None:
        if why := self._parts.why_not(remedy):
            return Refused(kind=Refusal.CANNOT, words=f"no {remedy} here: {why}")
        if other := self._provisioner.stands_down():
            return Refused(kind=Refusal.MANAGED, words=other)
        if remedy is Remedy.REPLACE_NODE and (many := self._parts.too_many(by_order=True)):
            return Refused(kind=Refusal.RATE, words=many)
        return None

    def _foreign(self, case: Remediation, view: NodeView) -> Refused | None:
        """Whether another holds the node of the remediation: its next step finds that too, and ends it."""
        ours, hold = {case.text, *self._parts.platform_texts}, view.hold
        is_over_ours = view.drained_by_itself and case.hold is not None
        if view.standing or is_over_ours or (hold is not None and hold.text in ours):
            return None
        return Refused(kind=Refusal.FOREIGN_HOLD, words=f"held by {holder(view)}, not by case {case.id}: left alone")

    def _orphan(self, order: Command, view: NodeView, now: datetime, case_id: str) -> Remediation | Refused | None:
        """The case that undoes a drain of ours for which none is open. Its own id, unless that has ended."""
        named = case_of(view.hold.text) if view.hold is not None else ""
        new_id = case_id if self._parts.cases.knows(named) else ""
        mode, boot_id = self._rules().mode, self._judgement.boot_id
        case = orphaned(view, new_id, mode=mode, boot_id=boot_id, now=now)
        return None if case is None else let_in(case, order, "" if order.forced else self._judgement.trouble(None))

    def _nothing_of_ours(self, view: NodeView) -> Refused | str:
        if view.in_service:
            return f"{view.name} is in service, and no remediation is open: there is nothing to release"
        words = f"held by {holder(view)}, and no remediation of ours is open: left alone; its holder releases it"
        return Refused(kind=Refusal.FOREIGN_HOLD, words=words)

    # -- the rehearsal ------------------------------------------------------------------------------------------------

    def _rehearsal(self, step: Step, case: Remediation) -> tuple[str, Refusal | None]:
        match step:
            case Step.SLOT:
                return "takes a slot of the fleet's budget, which keeps new jobs off; there is room", None
            case Step.DRAIN:
                return f'drains the node, with "{case.text}" for all to see', None
            case Step.WAIT_IDLE:
                view = self._orchestrator.view(jobs=True)
                return (
                    f"waits for {', '.join(view.work or view.jobs) or 'work'} to end"
                    if not view.idle
                    else "it is idle now"
                ), None
            case Step.COLLECT:
                return "saves the evidence", None
            case Step.RESET:
                return self._after_approval(case, Remedy.RESET_GPU, *self._reset_words())
            case Step.REBOOT:
                return self._after_approval(case, Remedy.REBOOT_NODE, *self._asked(Remedy.REBOOT_NODE))
            case Step.REPLACE:
                return self._after_approval(case, Remedy.REPLACE_NODE, *self._asked(Remedy.REPLACE_NODE))
            case Step.STAY:
                return "keeps it out until `healthd release`", None
            case Step.VERIFY:
                return "has every check run again, and waits until the node has stayed good", None
            case Step.RELEASE:
                return "undoes what it did, if that stands as it was made, and gives the slot back", None

    def _after_approval(
        self, case: Remediation, remedy: Remedy, words: str, refusal: Refusal | None
    ) -> tuple[str, Refusal | None]:
        is_given = case.approval is not None and case.approval.given is not None and case.approval.is_of(case, remedy)
        asks = not is_given and needs_approval(case, remedy, self._rules(), self._judgement.diagnoses())
        return self._after_maintenance(f"waits for an operator's approval; then {words}" if asks else words, refusal)

    def _after_maintenance(self, words: str, refusal: Refusal | None) -> tuple[str, Refusal | None]:
        view = self._orchestrator.view(jobs=True)
        words = (
            f"waits for the end of maintenance window {view.maintenance}; then {words}" if view.maintenance else words
        )
        return (f"waits for the end of a {view.freeze}; then {words}" if view.freeze else words), refusal

    def _reset_words(self) -> tuple[str, Refusal | None]:
        if why := self._resetter.why_not():
            return f"cannot: {why}", Refusal.CANNOT
        services = ", ".join(self._resetter.holders()) or "no service"
        return f"stops {services}, resets all GPUs, and starts again what it stopped", None

    def _asked(self, remedy: Remedy) -> tuple[str, Refusal | None]:
        try:
            return self._provisioner.dry_run(remedy), None
        except BackendError as error:
            return f"cannot: {error}", Refusal.CANNOT


class CommandExecution:
    """The commands of one node."""

    def __init__(
        self, parts: Dependencies, *, checks: CommandChecks, steps: Steps, journal: StepJournal, stats: EngineStats
    ) -> None:
        self._checks, self._steps, self._journal, self._stats = checks, steps, journal, stats
        self._judgement, self._new_id, self._clock = parts.judgement, parts.new_id, parts.clock

    def begin(self, order: Command, case: Remediation | None, now: datetime) -> Remediation | CommandOutcome:
        """Write the command down as the remediation to go on with; else what came of it without one. ``case``: the open
        one. Raises StoreError: then nothing was done.
        """
        try:
            wanted = self._checks.wanted(order, case, now, self._new_id())
        except BackendError as error:
            words = f"the cluster did not answer, so nothing was done: {error}"
            return self.refuse(order, Refused(kind=Refusal.UNREADABLE, words=words))
        if isinstance(wanted, Refused):
            return self.refuse(order, wanted)
        if isinstance(wanted, str):
            self._judgement.record(Event(at=self._clock(), kind="order", text=f"{order.title}: {wanted}"))
            return CommandOutcome(done=True, said=wanted)
        self._journal.write(wanted, order.title)
        return wanted

    def first_step(self, wanted: Remediation, now: datetime) -> CommandOutcome:
        """Take the first step of what was written down. Raises StoreError."""
        try:
            turn = self._steps.take(wanted, now)
        except BackendError as error:
            said = f"case {wanted.id} is open; the cluster did not answer yet, and it goes on: {error}"
            return CommandOutcome(done=True, said=said, refusal=Refusal.UNREADABLE)
        self._stats.wait(turn)
        is_lost = turn.case.end is End.LOST
        return CommandOutcome(done=not is_lost, said=f"case {wanted.id}: {turn.said}", refusal=turn.refusal)

    def refuse(self, order: Command, refused: Refused) -> CommandOutcome:
        """Not done: counted, and in the trail with who asked and why not."""
        self._stats.refuse(refused.kind)
        text = f"refused: {order.verb} by command, {order.words}: {refused.words}"
        data = {"verb": order.verb, "refusal": refused.kind}
        self._judgement.record(Event(at=self._clock(), kind="order", text=text, data=data))
        return CommandOutcome(done=False, said=refused.words, refusal=refused.kind)

    def rehearse(self, order: Command, case: Remediation | None, now: datetime) -> CommandOutcome:
        """The beginning and each step of it, in words. Nothing is done, noted or counted."""
        try:
            wanted = self._checks.wanted(order, case, now, "…")
            if isinstance(wanted, Refused):
                return CommandOutcome(done=False, said=wanted.words, refusal=wanted.kind)
            if isinstance(wanted, str):
                return CommandOutcome(done=True, said=wanted)
            steps = tuple(self._checks.rehearsed(heading_back(wanted, now)))
        except BackendError as error:
            words = f"the cluster did not answer: {error}"
            return CommandOutcome(done=False, said=words, refusal=Refusal.UNREADABLE)
        against = next((refusal for _, refusal in steps if refusal is not None), None)
        said = f"{wanted.code} on {wanted.component}, {order.words}"
        return CommandOutcome(
            done=against is None, said=said, lines=tuple(words for words, _ in steps), refusal=against
        )
