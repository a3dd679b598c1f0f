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

from msgspec.structs import replace

from healthd.core.errors import BackendError, StoreError
from healthd.core.model import Action, Diagnosis, Event, Refusal, Refused, Remedy, Step
from healthd.remediation.decide.adoption import has_booted, orphaned
from healthd.remediation.decide.approval import approve, needs_approval, undo_objection
from healthd.remediation.decide.commands import (
    Command,
    CommandOutcome,
    Verb,
    may_be_repaired,
    quarantined,
    release_by_command,
    repaired,
    repaired_meanwhile,
)
from healthd.remediation.decide.drive import continued_as, heading_back
from healthd.remediation.decide.policy import holder
from healthd.remediation.decide.remediation import ACTS, QUARANTINE_CODE, End, Remediation, is_begun, remediation_id_of
from healthd.remediation.engine.deciding import Decider
from healthd.remediation.engine.dependencies import Dependencies
from healthd.remediation.engine.step_result import EngineStats, StepJournal
from healthd.remediation.engine.steps import Steps
from healthd.remediation.ports import NodeView, StateOwner
from healthd.remediation.records.handoff import parse


class CommandChecks:
    """The commands of one node."""

    def __init__(self, dependencies: Dependencies, decider: Decider) -> None:
        self._orchestrator = dependencies.orchestrator
        self._provisioner = dependencies.provisioner
        self._resetter = dependencies.resetter
        self._slots, self._judgement, self._rules = dependencies.slots, dependencies.judgement, dependencies.rules
        self._dependencies, self._decider = dependencies, decider

    def wanted(
        self, command: Command, remediation: Remediation | None, now: datetime, remediation_id: str
    ) -> Remediation | Refused | str:
        """The remediation that carries the command out, why it is refused, or in words that it is so already.

        ``remediation``: the one that is open. Raises BackendError where the cluster could not be read.
        """
        view = self._orchestrator.view(jobs=True)
        if why := self._rules().hands_off(view):
            drained = remediation is not None and remediation.hold is not None and Step.DRAIN in remediation.steps
            instead = ", or undo our drain by hand: that works all the same" if drained else ""
            return Refused(kind=Refusal.OPTED_OUT, reason=f"opted out: {why}; take that back first{instead}")
        match command.verb:
            case Verb.QUARANTINE:
                return self._quarantine(command, remediation, view, now, remediation_id)
            case Verb.REPAIR:
                return self._repair(command, remediation, view, now, remediation_id)
            case Verb.RELEASE:
                return self._release(command, remediation, view, now, remediation_id)
            case Verb.APPROVE:
                return self._approve(command, remediation, view, now)
            case Verb.UNDO:
                return self._undo(command, remediation, view, now, remediation_id)

    def rehearsed(self, remediation: Remediation) -> Iterator[tuple[str, Refusal | None]]:
        """Each step that is left: its effect in words, and what is known to be against it. Raises BackendError."""
        for step in remediation.steps[remediation.index :]:
            message, refusal = self._rehearsal(step, remediation)
            yield f"{step:<9}  {message}", refusal

    # -- the three ----------------------------------------------------------------------------------------------------

    def _quarantine(
        self, command: Command, remediation: Remediation | None, view: NodeView, now: datetime, remediation_id: str
    ) -> Remediation | Refused | str:
        if (
            remediation is not None
            and remediation.code == QUARANTINE_CODE
            and not (remediation.release_command or remediation.has_ended)
        ):
            return f"quarantined already, {remediation.command}: remediation {remediation.id} is at {remediation.step}"
        return (
            self._open_already(remediation)
            or self._cannot_go_out(view)
            or quarantined(command, remediation_id, now, drains=self._drains)
        )

    def _repair(
        self, command: Command, remediation: Remediation | None, view: NodeView, now: datetime, remediation_id: str
    ) -> Remediation | Refused:
        is_out = remediation is not None and may_be_repaired(remediation, command)
        if not is_out and (no := self._open_already(remediation) or self._cannot_go_out(view)) is not None:
            return no
        if remediation is not None and (foreign := self._foreign(remediation, view)) is not None:
            return foreign
        rungs = self._rungs(command, remediation, now)
        if isinstance(rungs, Refused):
            return rungs
        ladder, about = rungs
        if (no := self._cannot_repair(ladder[0])) is not None:
            return no
        if remediation is not None and remediation.code == QUARANTINE_CODE:
            return repaired_meanwhile(remediation, command, ladder[0], now)
        new = repaired(command, remediation_id, now, ladder=ladder, about=about, drains=self._drains)
        return new if remediation is None else continued_as(remediation, new)

    def _rungs(
        self, command: Command, remediation: Remediation | None, now: datetime
    ) -> tuple[tuple[Remedy, ...], Diagnosis | None] | Refused:
        """The remedies to try in turn, and the diagnosis: the one remedy that was named, or the policy's."""
        if command.remedy is not None:
            return (command.remedy,), None
        decision = self._decider.by_command(remediation, now)
        if decision.action is Action.REPAIR:
            return decision.ladder, decision.diagnosis
        message = f"{decision.reason}; to have one remedy all the same, name it with --step"
        return Refused(kind=decision.refusal or Refusal.NOT_NEEDED, reason=message)

    def _release(
        self, command: Command, remediation: Remediation | None, view: NodeView, now: datetime, remediation_id: str
    ) -> Remediation | Refused | str:
        if remediation is None:
            return self._orphan(command, view, now, remediation_id) or self._nothing_of_ours(view)
        if remediation.has_ended:
            return f"remediation {remediation.id} has ended already: {remediation.note}"
        if (foreign := self._foreign(remediation, view)) is not None:
            return foreign
        never_out = remediation.code == QUARANTINE_CODE and remediation.step in (Step.SLOT, Step.DRAIN)
        trouble = "" if command.forced or never_out else self._judgement.trouble(None)
        return release_by_command(remediation, command, trouble, now)

    def _approve(
        self, command: Command, remediation: Remediation | None, view: NodeView, now: datetime
    ) -> Remediation | Refused | str:
        if remediation is None or command.target not in (remediation.id, view.name):
            return self._not_that_one(command, remediation)
        if (foreign := self._foreign(remediation, view)) is not None:
            return foreign
        return approve(
            remediation,
            command.remedy,
            command.reason,
            rules=self._rules(),
            diagnoses=self._judgement.diagnoses(),
            now=now,
            canary=self._dependencies.canary(remediation),
        )

    def _undo(
        self, command: Command, remediation: Remediation | None, view: NodeView, now: datetime, remediation_id: str
    ) -> Remediation | Refused | str:
        """A release without a verification, for as long as nothing was done that would have to be verified."""
        if remediation is None or command.target not in (remediation.id, view.name):
            return self._not_that_one(command, remediation)
        if message := undo_objection(remediation, request_untaken=self._request_is_untaken(remediation)):
            return Refused(kind=Refusal.CANNOT, reason=message)
        return self._release(command, remediation, view, now, remediation_id)

    def _request_is_untaken(self, remediation: Remediation) -> bool:
        """Whether what the remediation asks for stands with the cluster, and no controller has begun it."""
        if not self._provisioner.delegates:
            return False
        record = parse(self._orchestrator.read_record())
        return record is not None and record.remediation_id == remediation.id and not is_begun(record)

    def _not_that_one(self, command: Command, remediation: Remediation | None) -> Refused:
        open_ = (
            "none is open here"
            if remediation is None
            else f"open here is {remediation.id}, for {remediation.code} on {remediation.component}"
        )
        message = f"no remediation {command.target!r}: {open_}; see `healthd status`"
        return Refused(kind=Refusal.NOT_NEEDED, reason=message)

    # -- what is against it -------------------------------------------------------------------------------------------

    @property
    def _drains(self) -> bool:
        return self._provisioner.state_owner is not StateOwner.PLATFORM

    def _open_already(self, remediation: Remediation | None) -> Refused | None:
        if remediation is None:
            return None
        finding = f"{remediation.code} on {remediation.component}"
        about = f"remediation {remediation.id} is open for {finding}, at {remediation.step}"
        message = f"{about}; it has to end first: `healthd status`, and `healthd release` to end it"
        return Refused(kind=Refusal.REMEDIATION_OPEN, reason=message)

    def _cannot_go_out(self, view: NodeView) -> Refused | None:
        if not view.in_service and not (view.fenced and self._slots.held()):
            message = f"already out of service, held by {holder(view)}: left alone"
            return Refused(kind=Refusal.FOREIGN_HOLD, reason=message)
        if full := self._slots.no_room():
            message = f"{full}; a node that you take out in the cluster counts as well, and healthd does not undo that"
            return Refused(kind=Refusal.BUDGET, reason=message)
        return None

    def _cannot_repair(self, remedy: Remedy) -> Refused | None:
        if why := self._dependencies.reason_against(remedy):
            return Refused(kind=Refusal.CANNOT, reason=f"no {remedy} here: {why}")
        if other := self._provisioner.stands_down():
            return Refused(kind=Refusal.MANAGED, reason=other)
        if remedy is Remedy.REPLACE_NODE and (many := self._dependencies.too_many(by_command=True)):
            return Refused(kind=Refusal.RATE, reason=many)
        return None

    def _foreign(self, remediation: Remediation, view: NodeView) -> Refused | None:
        """Whether another holds the node of the remediation: its next step finds that too, and ends it."""
        ours, hold = {remediation.text, *self._dependencies.platform_texts}, view.hold
        is_over_ours = view.drained_by_itself and remediation.hold is not None
        if view.undrained or is_over_ours or (hold is not None and hold.text in ours):
            return None
        return Refused(
            kind=Refusal.FOREIGN_HOLD, reason=f"held by {holder(view)}, not by remediation {remediation.id}: left alone"
        )

    def _orphan(
        self, command: Command, view: NodeView, now: datetime, remediation_id: str
    ) -> Remediation | Refused | None:
        """The remediation that undoes a drain of ours for which none is open. Its own id, unless that has ended."""
        named = remediation_id_of(view.hold.text) if view.hold is not None else ""
        new_id = remediation_id if self._dependencies.remediations.knows(named) else ""
        mode, boot_id = self._rules().mode, self._judgement.boot_id
        remediation = orphaned(view, new_id, mode=mode, boot_id=boot_id, now=now)
        if remediation is None:
            return None
        if has_booted(remediation, self._dependencies.hindsight.booted_at()):  # which explains that the node is DOWN
            remediation = replace(remediation, drain_boot_id="")
        trouble = "" if command.forced else self._judgement.trouble(None)
        return release_by_command(remediation, command, trouble, now)

    def _nothing_of_ours(self, view: NodeView) -> Refused | str:
        if view.in_service:
            return f"{view.name} is in service, and no remediation is open: there is nothing to release"
        message = f"held by {holder(view)}, and no remediation of ours is open: left alone; its holder releases it"
        return Refused(kind=Refusal.FOREIGN_HOLD, reason=message)

    # -- the rehearsal ------------------------------------------------------------------------------------------------

    def _rehearsal(self, step: Step, remediation: Remediation) -> tuple[str, Refusal | None]:
        match step:
            case Step.SLOT:
                return "takes a slot of the fleet's budget, which keeps new jobs off; there is room", None
            case Step.DRAIN:
                return f'drains the node, with "{remediation.text}" for all to see', None
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
                return self._after_approval(remediation, Remedy.RESET_GPU, *self._reset_refusal())
            case Step.REBOOT | Step.REPLACE:
                return self._after_approval(remediation, ACTS[step], *self._asked(ACTS[step]))
            case Step.STAY:
                return "keeps it out until `healthd release`", None
            case Step.VERIFY:
                return "has every check run again, and waits until the node has stayed good", None
            case Step.RELEASE:
                return "undoes what it did, if that stands as it was made, and gives the slot back", None

    def _after_approval(
        self, remediation: Remediation, remedy: Remedy, message: str, refusal: Refusal | None
    ) -> tuple[str, Refusal | None]:
        is_given = (
            remediation.approval is not None
            and remediation.approval.given is not None
            and remediation.approval.is_of(remediation, remedy)
        )
        canary, diagnoses = self._dependencies.canary(remediation), self._judgement.diagnoses()
        asks = not is_given and needs_approval(remediation, remedy, self._rules(), diagnoses, canary)
        return self._after_maintenance(
            f"waits for an operator's approval; then {message}" if asks else message, refusal
        )

    def _after_maintenance(self, words: str, refusal: Refusal | None) -> tuple[str, Refusal | None]:
        view = self._orchestrator.view(jobs=True)
        words = (
            f"waits for the end of maintenance window {view.maintenance}; then {words}" if view.maintenance else words
        )
        return (f"waits for the end of a {view.freeze}; then {words}" if view.freeze else words), refusal

    def _reset_refusal(self) -> tuple[str, Refusal | None]:
        if why := self._resetter.reason_against():
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
        self,
        dependencies: Dependencies,
        *,
        checks: CommandChecks,
        steps: Steps,
        journal: StepJournal,
        stats: EngineStats,
    ) -> None:
        self._checks, self._steps, self._journal, self._stats = checks, steps, journal, stats
        self._judgement, self._new_id, self._clock = dependencies.judgement, dependencies.new_id, dependencies.clock

    def begin(self, command: Command, remediation: Remediation | None, now: datetime) -> Remediation | CommandOutcome:
        """Write the command down as the remediation to go on with; else what came of it without one. ``remediation``:
        the open one. Raises StoreError: then nothing was done.
        """
        try:
            wanted = self._checks.wanted(command, remediation, now, self._new_id())
        except BackendError as error:
            message = f"the cluster did not answer, so nothing was done: {error}"
            return self.refuse(command, Refused(kind=Refusal.UNREADABLE, reason=message))
        if isinstance(wanted, Refused):
            return self.refuse(command, wanted)
        if isinstance(wanted, str):
            self._judgement.record(Event(at=self._clock(), kind="command", text=f"{command.title}: {wanted}"))
            return CommandOutcome(done=True, message=wanted)
        self._journal.write(wanted, command.title)
        return wanted

    def first_step(self, wanted: Remediation, now: datetime) -> CommandOutcome:
        """Take the first step of what was written down. The command stands, whatever comes of that."""
        try:
            result = self._steps.take(wanted, now)
        except (BackendError, StoreError) as error:
            message = f"remediation {wanted.id} is open, and goes on once this is over: {error}"
            return CommandOutcome(done=True, message=message, refusal=Refusal.UNREADABLE)
        self._stats.wait(result)
        is_lost = result.remediation.end is End.LOST
        return CommandOutcome(
            done=not is_lost, message=f"remediation {wanted.id}: {result.message}", refusal=result.refusal
        )

    def refuse(self, command: Command, refused: Refused) -> CommandOutcome:
        """Not done: counted, and in the trail with who asked and why not."""
        self._stats.refuse(refused.kind)
        text = f"refused: {command.verb} by command, {command.reason}: {refused.reason}"
        data = {"verb": command.verb, "refusal": refused.kind}
        self._judgement.record(Event(at=self._clock(), kind="command", text=text, data=data))
        return CommandOutcome(done=False, message=refused.reason, refusal=refused.kind)

    def rehearse(self, command: Command, remediation: Remediation | None, now: datetime) -> CommandOutcome:
        """The beginning and each step of it, in words. Nothing is done, noted or counted."""
        try:
            wanted = self._checks.wanted(command, remediation, now, "…")
            if isinstance(wanted, Refused):
                return CommandOutcome(done=False, message=wanted.reason, refusal=wanted.kind)
            if isinstance(wanted, str):
                return CommandOutcome(done=True, message=wanted)
            steps = tuple(self._checks.rehearsed(heading_back(wanted, now)))
        except BackendError as error:
            text = f"the cluster did not answer: {error}"
            return CommandOutcome(done=False, message=text, refusal=Refusal.UNREADABLE)
        against = next((refusal for _, refusal in steps if refusal is not None), None)
        message = f"{wanted.code} on {wanted.component}, {command.reason}"
        return CommandOutcome(
            done=against is None, message=message, lines=tuple(text for text, _ in steps), refusal=against
        )
