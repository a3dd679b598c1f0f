"""The acts that repair a node: GPU reset, reboot, replacement. And the next one where one did not help.

Each is written down before it is done and is done once: after that only its evidence counts, which is another boot id,
another instance id, or for a reset its own end and what the checks see then. A repair whose answer is unknown may have
been applied, so it is waited for, never repeated; a reset alone may be, because on an idle node it harms nothing. It
counts each time: one that the daemon does not live to see the end of must not be made for ever.

A repair must not decide that the node is healthy: the step that verifies does.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Protocol

from msgspec.structs import replace

from healthd.core.errors import (
    BackendBusy,
    BackendDenied,
    BackendError,
    BackendHalfDone,
    BackendRefused,
    BackendUnknown,
)
from healthd.core.model import NODE, Clearance, ClearsBy, Event, Refusal, Refused, Remedy, Step
from healthd.remediation.decide.adoption import repair_record
from healthd.remediation.decide.approval import needs_approval
from healthd.remediation.decide.drive import is_replaced
from healthd.remediation.decide.remediation import ACTS, End, Phase, Remediation, has_entry, is_begun
from healthd.remediation.decide.rules import STEPS, without_drain
from healthd.remediation.engine.dependencies import Dependencies, Resetter, Timeouts
from healthd.remediation.engine.step_result import StepJournal, StepResult, at_next, ended, waits
from healthd.remediation.ports import NodeView, Provisioner, StateOwner
from healthd.remediation.records.handoff import UNASKED_S, HandoffRecord, instance_of, parse, without_act, word

_REPEATS_AFTER = timedelta(minutes=1)
_TRIES_AFTER = timedelta(seconds=30)
"""How long it holds that too many machines were replaced: the fleet is not read at each call, for hours."""


class RepairPort(Protocol):
    """The part of an Orchestrator by which a repair reads its node and leaves the handoff record. May raise
    BackendError."""

    def view(self, *, jobs: bool = False) -> NodeView:
        """Read the node's state."""

    def write_record(self, text: str) -> None:
        """Leave the handoff record."""

    def read_record(self) -> str:
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

    def reason_against(self, remedy: Remedy) -> str:
        """Why a remedy cannot be carried out here, or ""."""

    def too_many(self, *, by_command: bool, is_counted: bool = False) -> str:
        """Why no machine of the fleet may be replaced now, or "", by an operator's command or not. ``is_counted``: this
        one is among those that are counted."""

    def watched(self, remediation: Remediation, view: NodeView, now: datetime) -> StepResult | None:
        """None while the node is as it was left, and it is kept awake; else what that comes to."""

    def no_repair_now(self, remediation: Remediation, view: NodeView) -> Refused | None:
        """The objection to a repair by this reading: work, an opt-out, a mode that was lowered."""

    def is_over(self, remediation: Remediation) -> str:
        """Why the remediation is needless, or ""."""

    def has_lost_slot(self, remediation: Remediation) -> bool:
        """Whether the node is out by our own drain and has no budget slot: it must take one before it is repaired."""


class Intents(Protocol):
    """How an act is announced before it is made. May raise BackendError, StoreError; then it is not made."""

    def intend(self, remediation: Remediation, now: datetime, act: str) -> Remediation:
        """Write on disk that this act is begun now; returns the remediation with that."""

    def record_of(self, remediation: Remediation, now: datetime) -> tuple[str | None, str]:
        """The handoff record to leave with the cluster for this act, behind the one that is there and is left again
        where the act is not begun; None for none."""


class OwnIntents:
    """Those of a node's own daemon: what ``healthd controller`` and the daemon of the next machine need to go on from
    there."""

    def __init__(self, dependencies: Dependencies, journal: StepJournal) -> None:
        self._orchestrator, self._provisioner = dependencies.orchestrator, dependencies.provisioner
        self._dependencies, self._journal = dependencies, journal

    def intend(self, remediation: Remediation, now: datetime, act: str) -> Remediation:
        return self._journal.intend(remediation, now, act)

    def record_of(self, remediation: Remediation, now: datetime) -> tuple[str | None, str]:
        before = self._orchestrator.read_record()
        rules, diagnoses = self._dependencies.rules(), self._dependencies.judgement.diagnoses()
        canary = self._dependencies.canary(remediation)
        able = [remedy for remedy in remediation.ladder[1:] if not self._dependencies.reason_against(remedy)]
        # the controller goes on by what is written here, so only up to what an operator has to approve
        following = list(
            takewhile(lambda remedy: not needs_approval(remediation, remedy, rules, diagnoses, canary), able)
        )
        return before, repair_record(
            remediation,
            now,
            before=before,
            following=following,
            delegated=self._provisioner.delegates,
            revision=rules.revision,
        )


def before_the_act(remediation: Remediation, now: datetime) -> Remediation:
    """The remediation where it waits for its node to be idle, before its act is made, or made again."""
    return replace(
        remediation, index=remediation.steps.index(Step.WAIT_IDLE), phase=Phase.PLANNED, since=now, good_since=None
    )


class Repairs:
    """The repairs of one node's remediations."""

    def __init__(
        self,
        *,
        orchestrator: RepairPort,
        provisioner: Provisioner,
        resetter: Resetter,
        judgement: Witness,
        gates: Permission,
        intents: Intents,
        timeouts: Timeouts,
    ) -> None:
        self._orchestrator, self._provisioner, self._resetter = orchestrator, provisioner, resetter
        self._judgement, self._gates, self._intents, self._timeouts = judgement, gates, intents, timeouts
        self._resetting = ""
        self._answered = ("", 0)  # the last request that its platform has answered: its remediation, and which attempt
        self._repeated = (datetime.min.replace(tzinfo=UTC), "")  # when one was repeated last, or was to be, and how
        self._rate = (("", ""), datetime.min.replace(tzinfo=UTC), "")  # of what too many were last, when, and why
        self._before: str | None = None  # the record before the act that is about to be begun

    def take(self, remediation: Remediation, now: datetime) -> StepResult:
        """The act at which the remediation stands."""
        match remediation.step:
            case Step.RESET:
                return self.reset(remediation, now)
            case Step.REBOOT:
                return self.reboot(remediation, now)
            case _:
                return self._repeated_if_undecided(self.replace(remediation, now), now)

    def reset(self, remediation: Remediation, now: datetime) -> StepResult:
        """Reset the GPUs, with every holder stopped; the caller starts them again after. One that was
        interrupted is made again, and is another attempt."""
        if remediation.phase is Phase.PLANNED:
            begun = self._kept_from(remediation, now, "GPU reset") or self._begun(remediation, now, "GPU reset")
        else:
            begun = self._against_reset(remediation, now) or self._taken_up(remediation, now)
        if isinstance(begun, StepResult):
            return begun
        remediation, self._resetting = begun, ""
        if why := self._resetter.reason_against():
            return self.again_or_fail(self._refused(remediation, now), now, f"no GPU reset: {why}")
        try:
            done = self._resetter.reset(remediation.stopped)
        except BackendBusy as error:
            if now - remediation.since <= timedelta(seconds=self._timeouts.let_go_s):
                self._resetting = remediation.id
                return StepResult(
                    remediation=remediation, message=f"GPU reset waits: {error}", refusal=Refusal.NOT_IDLE
                )
            why = f"no GPU reset: {error}, {self._timeouts.let_go_s:g} s later"
            return self.again_or_fail(self._refused(remediation, now), now, why)
        except (BackendRefused, BackendUnknown) as error:
            return self.again_or_fail(remediation, now, f"the GPU reset did not succeed: {error}")
        self._judgement.clear(
            Clearance(by=ClearsBy.GPU_RESET, component=NODE, note=f"remediation {remediation.id}: {done}"), now
        )
        return StepResult(remediation=at_next(remediation, now), message=f"GPUs reset: {done}", go_on=True)

    def reboot(self, remediation: Remediation, now: datetime) -> StepResult:
        """Ask for a reboot, once, and wait for another boot id."""
        if remediation.phase is Phase.INTENDED:
            return self._await_new_boot(self._taken_over(remediation), now)
        begun = self._kept_from(remediation, now, "reboot") or self._begun(remediation, now, "reboot")
        if isinstance(begun, StepResult):
            return begun
        try:
            self._provisioner.reboot()
        except BackendBusy as error:
            return waits(self._put_off(begun, now), "reboot", Refused(kind=Refusal.MANAGED, reason=str(error)))
        except BackendRefused as error:
            return self.after_no(self._refused(begun, now), now, "reboot", error)
        except BackendUnknown as error:  # whether it took our drain's place, the next reading tells
            return StepResult(remediation=begun, message=f"reboot: no answer, waiting for a new boot id: {error}")
        message = f"reboot {self._asked}; waiting for a new boot id"
        return StepResult(remediation=self._handed_over(begun), message=message, asked=True)

    def replace(self, remediation: Remediation, now: datetime) -> StepResult:
        """Ask for another machine, once, and wait for another instance id behind the name.

        Most often the one that waits is no longer this daemon: the new machine's finds the hold and goes on from there.
        """
        if remediation.phase is Phase.INTENDED:
            return self._await_new_machine(self._taken_over(remediation), now)
        begun = (
            self._kept_from(remediation, now, "replacement")
            or self._too_many(remediation, now)
            or self._begun(remediation, now, "replacement")
        )
        if isinstance(begun, StepResult):
            return begun
        try:
            self._provisioner.replace()
        except BackendBusy as error:
            return waits(self._put_off(begun, now), "replacement", Refused(kind=Refusal.MANAGED, reason=str(error)))
        except BackendRefused as error:
            return self.after_no(self._refused(begun, now), now, "replacement", error)
        except BackendUnknown as error:
            message = f"replacement: no answer, waiting for another instance id: {error}"
            return StepResult(remediation=begun, message=message)
        self._answered = (begun.id, begun.attempts)
        message = f"replacement of {begun.machine} {self._asked}; waiting for another instance"
        return StepResult(remediation=self._handed_over(begun), message=message, asked=True)

    def _repeated_if_undecided(self, result: StepResult, now: datetime) -> StepResult:
        """A replacement whose fate is not known, asked for once more every minute: where asked twice it comes to what
        it does asked once, and everything is as it was. A node whose request was lost would wait for hours."""
        remediation = result.remediation
        if not self._is_undecided(remediation):
            return result
        at, message = self._repeated
        if now - max(remediation.since, at) < _REPEATS_AFTER:
            return replace(result, message=f"{result.message}{message if at > remediation.since else ''}")
        try:
            why = self._gates.is_over(remediation) or self._provisioner.stands_down()
            if not why and (against := self._still_allowed(remediation, remediation, now, "replacement")) is not None:
                if against.go_on:  # it is ours, and is read again as it is by now
                    return replace(against, remediation=replace(against.remediation, phase=Phase.INTENDED))
                why = against.message
        except BackendError as error:
            why = str(error)
        if why:
            after = replace(result, message=f"{result.message}; not asked for again: {why}")
        else:
            self._note(remediation, now, "asks again for the replacement: it is not known whether it was asked for")
            after = self.ask_again(result, now)
        self._repeated = (now, after.message.removeprefix(result.message))
        return after

    def _is_undecided(self, remediation: Remediation) -> bool:
        """Whether it is not known if the platform was asked for a replacement, and a second request is safe."""
        is_awaited = remediation.step is Step.REPLACE and remediation.phase is Phase.INTENDED and not remediation.end
        if not is_awaited or self._provisioner.delegates:
            return False
        is_safe = self._provisioner.repeats_after_s(Remedy.REPLACE_NODE) == 0
        return is_safe and self._answered != (remediation.id, remediation.attempts)

    def ask_again(self, result: StepResult, now: datetime) -> StepResult:
        """Ask once more, where nothing is against it."""
        remediation = result.remediation
        is_reboot = remediation.step is Step.REBOOT
        act = "reboot" if is_reboot else "replacement"
        request = (remediation.id, remediation.attempts)
        if not is_reboot and (why := self._moved(remediation)):
            return replace(result, message=f"{result.message}; not asked for again: {why}")
        try:
            self._provisioner.reboot() if is_reboot else self._provisioner.replace()
        except BackendBusy as error:  # it is at it, for the first request or for somebody else's; or has no time now
            return replace(result, message=f"{result.message}; asked for again: {error}")
        except BackendUnknown as error:  # a reboot that is queued now must not be queued once more
            return replace(result, message=f"{result.message}; asked for again: {error}", asked=is_reboot)
        except BackendRefused as error:
            return self.after_no(remediation, now, act, error)
        self._answered = request
        return replace(result, message=f"{act} asked for again; its evidence is awaited", asked=True)

    def _moved(self, remediation: Remediation) -> str:
        """Why a second request might meet the machine that came of the first one, or "": the reading before this one
        may have had no answer."""
        try:
            machine = self._provisioner.machine()
        except BackendError as error:
            return str(error)
        return f"{machine} is there by now" if machine != remediation.machine else ""

    def let_rest(self, result: StepResult, now: datetime) -> StepResult:
        """A remediation that is paused, its reset not under way any more: what that had stopped is started again,
        whatever forbids the reset. Its record stays as it is: nothing is written now. A request that its platform
        leaves alone for long is withdrawn: the act would come in spite of the pause."""
        remediation = result.remediation
        if self.stands(remediation) and not remediation.has_ended:
            self._provisioner.take_back(carried_out=True)
            return replace(result, remediation=before_the_act(self._not_begun(remediation), now))
        if not (remediation.stopped or remediation.id == self._resetting):
            return result
        planned, self._resetting = self._not_made(remediation), ""
        return replace(result, remediation=planned)

    def stands(self, remediation: Remediation) -> bool:
        """Whether a request may stand with a platform that leaves it alone for long."""
        is_asked = remediation.phase is Phase.INTENDED and remediation.step in (Step.REBOOT, Step.REPLACE)
        return is_asked and self._provisioner.acts_late

    def again_or_fail(self, remediation: Remediation, now: datetime, why: str) -> StepResult:
        """A repair that did not help is tried again, then the next remedy of the ladder; at its end an operator is
        needed. A right that healthd lacks shows nothing about the machine, and calls for no more far-reaching act."""
        again = before_the_act(remediation, now)
        if remediation.release_command:  # it waited for this act alone, and is obeyed from where it ended
            return StepResult(
                remediation=again, message=f"not tried again, {remediation.release_command}: {why}", go_on=True
            )
        if is_replaced(remediation):
            return ended(remediation, End.FAILED, f"another machine did not help, an operator is needed: {why}")
        if remediation.attempts < self._timeouts.max_attempts:
            return StepResult(remediation=again, message=f"attempt {remediation.attempts} failed, trying again: {why}")
        following = [remedy for remedy in remediation.ladder[1:] if not self._gates.reason_against(remedy)]
        if not following or remediation.denied:
            return ended(
                remediation, End.FAILED, f"given up after {remediation.attempts} attempts, an operator is needed: {why}"
            )
        drained = Step.DRAIN in remediation.steps
        steps = STEPS[following[0]] if drained else without_drain(STEPS[following[0]])
        up = replace(again, ladder=tuple(following), steps=steps, index=steps.index(Step.WAIT_IDLE), attempts=0)
        was_made = remediation.step is Step.VERIFY and remediation.ladder[0] in remediation.acts
        did_not_help = f"{remediation.ladder[0]} did not help, " if was_made else ""
        return StepResult(remediation=up, message=f"{did_not_help}{following[0]} is next: {why}")

    def after_no(self, remediation: Remediation, now: datetime, act: str, error: BackendRefused) -> StepResult:
        """The platform said no."""
        is_denied = isinstance(error, BackendDenied)
        why = f"the {act} {'is not permitted' if is_denied else 'was refused'}: {error}"
        return self.again_or_fail(replace(remediation, denied=is_denied), now, why)

    def _against_reset(self, remediation: Remediation, now: datetime) -> StepResult | None:
        """Why a reset that is intended is not made now. One that this process only waits to make was none."""
        result = self._still_allowed(remediation, self._not_made(remediation), now, "GPU reset")
        if result is not None:
            self._forget_reset(remediation, now)
        return result

    def _not_made(self, remediation: Remediation) -> Remediation:
        """The remediation with its reset planned: without that attempt, where this process only waits to make it."""
        is_waiting = remediation.id == self._resetting
        return self._not_begun(remediation) if is_waiting else replace(remediation, phase=Phase.PLANNED)

    def _forget_reset(self, remediation: Remediation, now: datetime) -> None:
        """Take a reset that this process only waited to make out of the node's record again."""
        if remediation.id == self._resetting:
            self._resetting = ""
            self._unmark(remediation, now)

    def _taken_up(self, remediation: Remediation, now: datetime) -> Remediation | StepResult:
        """A reset that is intended: the one that this process waits to make; else one that an earlier daemon may have
        been ended in the middle of, or whose end could not be written down."""
        if remediation.id == self._resetting:
            return remediation
        if remediation.attempts >= self._timeouts.max_attempts:
            return self.again_or_fail(remediation, now, "the GPU reset was interrupted, and its end is not known")
        self._before = None  # it may have been made: its entry stays
        return self._intents.intend(
            replace(remediation, attempts=remediation.attempts + 1), now, "interrupted GPU reset"
        )

    # -- before an act ------------------------------------------------------------------------------------------------

    def _kept_from(self, remediation: Remediation, now: datetime, act: str) -> StepResult | None:
        """Why an act is not begun, by a reading of everything; None where nothing is against it."""
        view = self._orchestrator.view(jobs=True)
        if (result := self._gates.watched(remediation, view, now)) is not None:
            return result
        if remediation.attempts >= self._timeouts.max_attempts:
            return self.again_or_fail(remediation, now, "no attempt is left")
        if (why := self._gates.no_repair_now(remediation, view)) is not None:
            return waits(remediation, act, why)
        if other := self._provisioner.stands_down():
            return waits(remediation, act, Refused(kind=Refusal.MANAGED, reason=other))
        return None

    def _too_many(self, remediation: Remediation, now: datetime) -> StepResult | None:
        """Why no machine of the fleet may be replaced now; None for one that was let through already."""
        if remediation.attempts or self._has_its_record(remediation):
            return None
        asked, (of, at, why) = (remediation.id, remediation.command), self._rate
        if not (why and of == asked and timedelta() <= now - at < _TRIES_AFTER):
            at, why = now, self._gates.too_many(by_command=bool(remediation.command))
        self._rate = (asked, at, why)
        if not why:
            return None
        return waits(remediation, "replacement", Refused(kind=Refusal.RATE, reason=why), page=True)

    def _begun(self, remediation: Remediation, now: datetime, act: str) -> Remediation | StepResult:
        """The remediation with the intent of an act written down and everything read again after; else why it is not
        begun."""
        acts = (*remediation.acts, ACTS[remediation.step])
        attempt = replace(self._prepared(remediation), attempts=remediation.attempts + 1, acts=acts, denied=False)
        begun = self._intents.intend(attempt, now, act)
        try:
            result = (
                self._unmarked(begun, now, act)
                or self._too_many_began(begun, act)
                or self._still_allowed(begun, remediation, now, act)
            )
        except BackendError as error:  # a remediation that stays as intended would not show that nothing was done
            message = f"the last reading before it got no answer: {error}"
            result = waits(self._not_begun(begun), act, Refused(kind=Refusal.UNREADABLE, reason=message))
        if result is not None:
            self._unmark(begun, now)
        return result or begun

    def _too_many_began(self, begun: Remediation, act: str) -> StepResult | None:
        """The rate of replacements once more, by what the others have written down meanwhile: nodes of one job are idle
        at one moment, and each would find that none was replaced yet. Where too many wrote at once, each takes its own
        back, and asks again at its own time: rather none for a moment than one too many. The record of an attempt that
        could not be taken back has been let through already."""
        before = parse(self._before or "")
        is_known = before is not None and before.remediation_id == begun.id and before.replaced is not None
        if begun.step is not Step.REPLACE or begun.attempts > 1 or is_known:
            return None
        is_counted = not self._provisioner.delegates  # the controller makes the entry
        if not (why := self._gates.too_many(by_command=bool(begun.command), is_counted=is_counted)):
            return None
        return waits(self._not_begun(begun), act, Refused(kind=Refusal.RATE, reason=why))

    def _prepared(self, remediation: Remediation) -> Remediation:
        """The remediation with what only a reading before its act can tell: whom to stop, which boot or machine is to
        end."""
        match remediation.step:
            case Step.RESET:
                return replace(remediation, stopped=self._resetter.holders())
            case Step.REBOOT:
                return self._with_boot(remediation)
            case _:
                return self._with_machine(remediation)

    def _still_allowed(
        self, remediation: Remediation, planned: Remediation, now: datetime, act: str
    ) -> StepResult | None:
        """The last reading before an act, of the jobs too: a suspended one shows nowhere else. Where it forbids, the
        remediation is as it was ``planned``: nothing was done."""
        planned = replace(planned, phase=Phase.PLANNED)
        view = self._orchestrator.view(jobs=True)
        if (result := self._gates.watched(planned, view, now)) is not None:
            return result
        why = self._gates.no_repair_now(planned, view)
        return None if why is None else waits(planned, act, why)

    def _unmarked(self, begun: Remediation, now: datetime, act: str) -> StepResult | None:
        """Leave the record that must outlive this machine. A reset or a reboot leaves the disk as it is, and goes on
        without one."""
        self._before = None
        try:
            before, text = self._intents.record_of(begun, now)
            self._orchestrator.write_record(text)
        except (BackendRefused, BackendUnknown) as error:
            message = f"no record could be written to the node: {error}"
            needed = begun.step is Step.REPLACE or self._provisioner.delegates or isinstance(error, BackendUnknown)
            if needed and begun.step is not Step.RESET:
                return waits(self._not_begun(begun), act, Refused(kind=Refusal.REFUSED, reason=message), page=True)
            self._note(begun, now, f"{message}; what is not in its history is not counted after this disk is lost")
            return None
        self._before = before
        return None

    def _unmark(self, remediation: Remediation, now: datetime) -> None:
        """Take an act that was not begun out of the node's record again: what the node shows of itself by now stays.
        Where that fails, the next one finds it."""
        before, self._before = self._before, None
        if before is None:
            return
        try:
            self._orchestrator.write_record(without_act(before, self._orchestrator.read_record()))
        except BackendError as error:
            self._note(remediation, now, f"an act that was not begun stays in the node's history: {error}")

    def _note(self, remediation: Remediation, now: datetime, message: str) -> None:
        self._judgement.record(Event(at=now, kind="step", text=f"[{remediation.id}] {message}"))

    def _has_its_record(self, remediation: Remediation) -> bool:
        """Whether this remediation was let through already: the record of it is counted, and must not hold it up. A
        machine that came for another is let through by none: it is one more."""
        record = parse(self._orchestrator.read_record())
        if (
            record is None
            or record.remediation_id != remediation.id
            or record.replaced is None
            or not record.is_of_replacement
        ):
            return False
        return record.machine == word(instance_of(self._provisioner.machine()))

    @property
    def _asked(self) -> str:
        return "asked of healthd controller" if self._provisioner.delegates else "asked for"

    def _not_begun(self, remediation: Remediation) -> Remediation:
        """Nothing was done, so the attempt does not count."""
        return replace(remediation, phase=Phase.PLANNED, attempts=remediation.attempts - 1, acts=remediation.acts[:-1])

    def _put_off(self, remediation: Remediation, now: datetime) -> Remediation:
        """The same of an act for which the platform has no time now: until it has, nothing is counted."""
        self._unmark(remediation, now)
        return self._not_begun(remediation)

    def _refused(self, remediation: Remediation, now: datetime) -> Remediation:
        """An attempt, and no repair: the answer was no."""
        self._unmark(remediation, now)
        return replace(remediation, acts=remediation.acts[:-1])

    def _handed_over(self, remediation: Remediation) -> Remediation:
        """Where the request itself took our drain's place, the budget slot is what is left of ours."""
        if self._provisioner.state_owner is not StateOwner.AFTER_ASKING or Step.DRAIN not in remediation.steps:
            return remediation
        return replace(remediation, steps=without_drain(remediation.steps), index=remediation.index - 1, hold=None)

    def _taken_over(self, remediation: Remediation, *, came: bool = False) -> Remediation:
        """The same where a kill came between the request and its record: another text in the place of our drain, or
        once what was asked for ``came``, none, is the platform's doing, and no undoing by an operator."""
        if self._handed_over(remediation) is remediation:
            return remediation
        hold = self._orchestrator.view().hold
        if hold is None:
            return self._handed_over(remediation) if came else remediation
        is_ours = hold.automatic or (remediation.hold is not None and hold.is_still(remediation.hold))
        return remediation if is_ours else self._handed_over(remediation)

    def _with_boot(self, remediation: Remediation) -> Remediation:
        """The same before a reboot. Which machine it is matters to the controller alone, should it not come back."""
        try:
            return self._with_machine(remediation)
        except BackendError:
            if self._provisioner.delegates:
                raise
            return replace(remediation, machine="", boot_id=self._judgement.boot_id)

    def _with_machine(self, remediation: Remediation) -> Remediation:
        return replace(remediation, machine=self._provisioner.machine(), boot_id=self._judgement.boot_id)

    # -- waiting for the evidence -------------------------------------------------------------------------------------

    def _await_new_boot(self, remediation: Remediation, now: datetime) -> StepResult:
        """Only another boot id says that the reboot happened. Until then it may still come, and nothing is done. Where
        it is not known which boot was to end, none proves it."""
        boot_id = self._judgement.boot_id
        if remediation.boot_id and boot_id != remediation.boot_id:
            message = f"rebooted: boot id {remediation.boot_id[:8]} became {boot_id[:8]}"
            remediation = self._taken_over(self._without_untaken(remediation), came=True)
            self._provisioner.take_back(carried_out=True)
            return StepResult(remediation=at_next(remediation, now), message=message, go_on=True)
        if (result := self._taken_back(remediation, now, "reboot")) is not None:
            return result
        # asked of the controller it may be refused; asked of the platform, only the boot tells
        progress = self._progress(remediation, now, "reboot") if self._provisioner.delegates else ""
        if isinstance(progress, StepResult):
            return progress
        if now - remediation.since > timedelta(seconds=self._timeouts.reboot_timeout_s):
            return self._came_to_nothing(
                remediation, now, "the reboot that was asked for never showed as a new boot id"
            )
        waits_for = "waiting for a new boot id"
        if not remediation.boot_id:
            waits_for = "which boot it had is not known: its own daemon tells when it is back"
        return StepResult(remediation=remediation, message=f"reboot {self._asked}; {progress or waits_for}")

    def _await_new_machine(self, remediation: Remediation, now: datetime) -> StepResult:
        """Only another instance id says that the replacement happened. No capacity is a wait, not an end."""
        try:
            machine, unread, is_refused = self._provisioner.machine(), "", False
        except BackendError as error:  # a refused reading says of no request that it failed
            is_refused = isinstance(error, BackendRefused)
            machine, unread = remediation.machine, f"it is not known how far it is: {error}"
        if machine != remediation.machine:
            message = f"replaced: {remediation.machine} became {machine}"
            remediation = self._taken_over(remediation, came=True)
            return StepResult(
                remediation=at_next(replace(remediation, machine=machine), now), message=message, go_on=True
            )
        if (result := self._taken_back(remediation, now, "replacement")) is not None:
            return result
        progress = unread or self._progress(remediation, now, "replacement")
        if isinstance(progress, StepResult):
            return progress
        if now - remediation.since > timedelta(seconds=self._timeouts.replace_timeout_s):
            return self._came_to_nothing(
                remediation, now, f"no other machine came: {progress or 'no progress was reported'}"
            )
        message = f"replacement of {remediation.machine} {self._asked}; {progress or 'waiting for another instance'}"
        return StepResult(remediation=remediation, message=message, page=is_refused)

    def _progress(self, remediation: Remediation, now: datetime, act: str) -> str | StepResult:
        """How far it is; else what it comes to that it failed, or is held up."""
        try:
            return self._unasked(remediation, now) or self._provisioner.progress()
        except BackendRefused as error:
            return self._refused_by(remediation, now, act, error)
        except BackendUnknown as error:
            return f"it is not known how far it is: {error}"

    def _unasked(self, remediation: Remediation, now: datetime) -> str:
        """That the node's record shows no request of this remediation to the controller, or "". The daemon before this
        one was killed before it left one, which is known a minute later: raises BackendRefused then. The record of an
        earlier request is no answer to this one."""
        record = self._record()
        if record is None or (record.remediation_id, record.attempt) == (remediation.id, remediation.attempts):
            return ""
        if now - remediation.since > timedelta(seconds=UNASKED_S):
            raise BackendRefused("the request was never left with the cluster")
        return "the request is not visible in the handoff record yet"

    def _refused_by(self, remediation: Remediation, now: datetime, act: str, why: BackendRefused) -> StepResult:
        """For now: it is waited for, and pages. Or for good."""
        if isinstance(why, BackendBusy):
            return self._held_up(remediation, now, act, why)
        is_denied = isinstance(why, BackendDenied)
        message = f"the {act} {'is not permitted' if is_denied else 'failed'}: {why}"
        return self._came_to_nothing(replace(remediation, denied=is_denied), now, message)

    def _taken_back(self, remediation: Remediation, now: datetime, act: str) -> StepResult | None:
        """The act is not needed any more, or its drain is gone, and its platform lets it be taken back in time; else
        None."""
        changed = self._untaken_changed(remediation, now)
        why = self._gates.is_over(remediation) if changed is None else changed.message
        if not why or not self._provisioner.take_back(carried_out=changed is not None):  # late is better than never
            return None
        message = f"the {act} was taken back before it began: {why}"
        if changed is not None and changed.remediation.end is None:
            return replace(changed, message=message)
        return StepResult(remediation=at_next(self._not_begun(remediation), now), message=message, go_on=True)

    def _untaken_changed(self, remediation: Remediation, now: datetime) -> StepResult | None:
        """The result of a node that is not ours any more, or of a drain that is lost and is made again, where no
        controller has begun the request, or its platform acts late; else None. Once one has begun it, the act itself
        may have taken our drain away, and a request that waits must not meet a job."""
        record = self._record()
        is_untaken = record is not None and record.remediation_id == remediation.id and not is_begun(record)
        if not (is_untaken or self._provisioner.acts_late):
            return None
        result = self._gates.watched(self._not_begun(remediation), self._orchestrator.view(jobs=True), now)
        if result is None or (result.remediation.end is None and result.remediation.index >= remediation.index):
            return None
        return result

    def _came_to_nothing(self, remediation: Remediation, now: datetime, why: str) -> StepResult:
        """The act that was awaited failed, or took too long. A request that the node itself withdrew, or that no
        controller began, is not even an attempt: it shows nothing about the machine."""
        record, left = self._record(), self._without_untaken(remediation)
        is_own = record is not None and record.remediation_id == remediation.id
        not_made = self._not_begun(remediation)
        if record is not None and is_own and record.is_withdrawn:
            return StepResult(remediation=before_the_act(not_made, now), message=f"{why}; judged again")
        is_refused = record is not None and is_own and record.is_refused
        if left is not remediation and not is_refused and not remediation.release_command:
            return StepResult(remediation=replace(not_made, since=now), message=f"{why}; asked for again", page=True)
        changed = self._untaken_changed(remediation, now) if is_refused else None
        if changed is not None and changed.remediation.end is None:  # it was refused for that, and not for the machine
            return replace(changed, message=f"{why}; {changed.message}")
        if is_refused and changed is None and left is not remediation and self._gates.has_lost_slot(remediation):
            return StepResult(remediation=before_the_act(not_made, now), message=f"{why}; its slot was gone")
        return self.again_or_fail(left, now, why)

    def _without_untaken(self, remediation: Remediation) -> Remediation:
        """A request that no controller took is no repair: also where another did it meanwhile. A record in which the
        request never stood has it in its history, if any controller began it."""
        record = self._record()
        if record is None or not remediation.acts:
            return remediation
        stands = record.remediation_id == remediation.id and record.asks
        was_begun = is_begun(record) if stands else has_entry(record, remediation.acts[-1], remediation.since)
        return remediation if was_begun else replace(remediation, acts=remediation.acts[:-1])

    def _record(self) -> HandoffRecord | None:
        """The node's record, where a controller acts for it."""
        return parse(self._orchestrator.read_record()) if self._provisioner.delegates else None

    def _held_up(self, remediation: Remediation, now: datetime, act: str, why: BackendBusy) -> StepResult:
        """Asked for, and held up by what an operator must see to. It is waited for as long as for the act itself;
        without end for one that is half done, since none but healthd would see to a machine that it has stopped."""
        timeouts = self._timeouts
        timeout_s = timeouts.reboot_timeout_s if remediation.step is Step.REBOOT else timeouts.replace_timeout_s
        is_too_long = now - remediation.since > timedelta(seconds=timeout_s)
        if is_too_long and not isinstance(why, BackendHalfDone):
            return self._came_to_nothing(remediation, now, f"{act} was held up for too long: {why}")
        return StepResult(remediation=remediation, message=f"{act} {self._asked}; held up: {why}", page=True)
