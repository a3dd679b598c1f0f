"""The acts that mend a node: GPU reset, reboot, replacement. And what follows when one did not help.

Each is written down before it is done and is done once: after that only its evidence counts, which is another boot id,
another instance id, or for a reset its own end and what the checks see then. A repair whose answer is unknown may have
been applied, so it is waited for, never repeated; a reset alone may be, because on an idle node it harms nothing.

A repair must not decide that the node is well: the step that verifies does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

from healthd.errors import BackendBusy, BackendRefused, BackendUnknown
from healthd.model import NODE, Clearance, ClearsBy, Remedy, Step
from healthd.remediation.case import Case, End, Phase
from healthd.remediation.guards import Guards
from healthd.remediation.playbook import STEPS, without_drain
from healthd.remediation.ports import Orchestrator, Provisioner, StateOwner
from healthd.remediation.successor import replacement_mark
from healthd.remediation.turns import Judgement, Patience, Turn, at_next, ended


class Resetter(Protocol):
    """Resets all GPUs of this machine. Every call has its own deadline."""

    def why_not(self) -> str:
        """Why a reset cannot help or cannot be made now, or "": no tool, a holder in uninterruptible sleep."""

    def holders(self) -> tuple[str, ...]:
        """The services that run now and hold the GPUs open: they are stopped for the reset and owed a start."""

    def reset(self, stop: tuple[str, ...]) -> str:
        """Stop these services and reset the GPUs; returns what was done. Raises BackendRefused, BackendUnknown."""

    def start(self, services: tuple[str, ...]) -> str:
        """Start what was stopped; returns what could not be started, or ""."""


class Repairs:
    """The repairs of one node's cases.

    ``can``: whether a remedy can be carried out here. ``too_many``: why no machine of the fleet may be replaced now, or
    "". ``intend`` writes an intent down and returns the case with it.
    """

    def __init__(
        self,
        *,
        orchestrator: Orchestrator,
        provisioner: Provisioner,
        resetter: Resetter,
        judgement: Judgement,
        guards: Guards,
        patience: Patience,
        can: Callable[[Remedy], bool],
        too_many: Callable[[], str],
        intend: Callable[[Case, datetime, str], Case],
    ) -> None:
        self._orchestrator, self._provisioner, self._resetter = orchestrator, provisioner, resetter
        self._judgement, self._guards, self._patience = judgement, guards, patience
        self._can, self._too_many, self._intend = can, too_many, intend

    def reset(self, case: Case, now: datetime) -> Turn:
        """Reset the GPUs, with every holder stopped and started again after. One that was interrupted is made again."""
        if case.phase is Phase.PLANNED:
            begun = self._begun(case, now, "GPU reset", lambda: replace(case, stopped=self._resetter.holders()))
            if isinstance(begun, Turn):
                return begun
            case = begun
        elif (turn := self._still_allowed(case, case, now, "GPU reset")) is not None:
            return self._started_again(turn)
        if why := self._resetter.why_not():
            return self._started_again(self.again_or_fail(case, now, f"no GPU reset: {why}"))
        try:
            done = self._resetter.reset(case.stopped)
        except (BackendRefused, BackendUnknown) as error:
            return self._started_again(self.again_or_fail(case, now, f"the GPU reset did not succeed: {error}"))
        self._judgement.clear(Clearance(by=ClearsBy.GPU_RESET, component=NODE, note=f"case {case.id}: {done}"), now)
        return self._started_again(Turn(case=at_next(case, now), said=f"GPUs reset: {done}", go_on=True))

    def reboot(self, case: Case, now: datetime) -> Turn:
        """Ask for a reboot, once, and wait for another boot id."""
        if case.phase is Phase.INTENDED:
            return self._await_new_boot(case, now)
        begun = self._begun(case, now, "reboot", lambda: replace(case, boot_id=self._judgement.boot_id))
        if isinstance(begun, Turn):
            return begun
        try:
            self._provisioner.reboot()
        except BackendBusy as error:
            return Turn(case=self._not_begun(begun), said=f"reboot waits: {error}")
        except BackendRefused as error:
            return self.again_or_fail(begun, now, f"the reboot was refused: {error}")
        except BackendUnknown as error:
            return Turn(case=self._handed_over(begun), said=f"reboot: no answer, the boot id will tell: {error}")
        return Turn(case=self._handed_over(begun), said="reboot asked for; waiting for a new boot id")

    def replace(self, case: Case, now: datetime) -> Turn:
        """Ask for another machine, once, and wait for another instance id behind the name.

        Most often the one that waits is no longer this daemon: the new machine's finds the hold and goes on from there.
        """
        if case.phase is Phase.INTENDED:
            return self._await_new_machine(case, now)
        if case.attempts == 0 and (why := self._too_many()):
            return Turn(case=case, said=f"replacement waits: {why}", page=True)
        begun = self._begun(case, now, "replacement", lambda: self._with_machine(case))
        if isinstance(begun, Turn):
            return begun
        try:
            self._orchestrator.mark(replacement_mark(begun, now))
        except (BackendRefused, BackendUnknown) as error:
            why = f"replacement waits: no mark could be left with the node: {error}"
            return Turn(case=self._not_begun(begun), said=why, page=True)
        try:
            self._provisioner.replace()
        except BackendBusy as error:
            return Turn(case=self._not_begun(begun), said=f"replacement waits: {error}")
        except BackendRefused as error:
            return self.again_or_fail(begun, now, f"the replacement was refused: {error}")
        except BackendUnknown as error:
            said = f"replacement: no answer, the instance id will tell: {error}"
            return Turn(case=self._handed_over(begun), said=said)
        said = f"replacement of {begun.machine} asked for; waiting for another instance"
        return Turn(case=self._handed_over(begun), said=said)

    def again_or_fail(self, case: Case, now: datetime, why: str) -> Turn:
        """What did not help is tried again, then the next remedy of the ladder; at its end a person is needed."""
        again = replace(case, index=case.steps.index(Step.WAIT_IDLE), phase=Phase.PLANNED, since=now, good_since=None)
        if Step.REPLACE in case.steps and case.step is Step.VERIFY:
            return ended(case, End.FAILED, f"another machine did not help, a person is needed: {why}")
        if case.attempts < self._patience.max_attempts:
            return Turn(case=again, said=f"attempt {case.attempts} failed, trying again: {why}")
        following = [remedy for remedy in case.ladder[1:] if self._can(remedy)]
        if not following:
            return ended(case, End.FAILED, f"given up after {case.attempts} attempts, a person is needed: {why}")
        drained = Step.DRAIN in case.steps
        steps = STEPS[following[0]] if drained else without_drain(STEPS[following[0]])
        up = replace(again, ladder=tuple(following), steps=steps, index=steps.index(Step.WAIT_IDLE), attempts=0)
        return Turn(case=up, said=f"{case.ladder[0]} did not help, {following[0]} is next: {why}")

    # -- before an act ------------------------------------------------------------------------------------------------

    def _begun(self, case: Case, now: datetime, act: str, prepared: Callable[[], Case]) -> Case | Turn:
        """The case with the intent of an act written down and everything read again after; else why it is not begun."""
        view = self._orchestrator.view(jobs=True)
        if (turn := self._guards.not_ours_any_more(case, view, now)) is not None:
            return turn
        if case.attempts >= self._patience.max_attempts:
            return self.again_or_fail(case, now, "no attempt is left")
        if case.attempts == 0 and (over := self._guards.is_over(case)):
            return Turn(case=at_next(replace(case, attempts=1), now), said=f"no {act} is needed: {over}", go_on=True)
        if not view.idle:
            return Turn(case=case, said=f"{act} waits: the node is no longer idle")
        if other := self._provisioner.stands_down():
            return Turn(case=case, said=f"{act} waits: {other}")
        begun = self._intend(replace(prepared(), attempts=case.attempts + 1), now, act)
        return self._still_allowed(begun, case, now, act) or begun

    def _still_allowed(self, case: Case, planned: Case, now: datetime, act: str) -> Turn | None:
        """The last look before an act. Where it forbids, the case is as it was ``planned``: nothing was done."""
        planned = replace(planned, phase=Phase.PLANNED)
        view = self._orchestrator.view()
        if (turn := self._guards.not_ours_any_more(planned, view, now)) is not None:
            return turn
        why = self._guards.no_repair_now(view)
        return Turn(case=planned, said=f"{act} waits: {why}") if why else None

    def _not_begun(self, case: Case) -> Case:
        """Nothing was done, so the attempt does not count."""
        return replace(case, phase=Phase.PLANNED, attempts=case.attempts - 1)

    def _handed_over(self, case: Case) -> Case:
        """Where the request itself took our drain's place, the place in the budget is what is left of ours."""
        if self._provisioner.state_owner is not StateOwner.AFTER_ASKING or Step.DRAIN not in case.steps:
            return case
        return replace(case, steps=without_drain(case.steps), index=case.index - 1, hold=None)

    def _with_machine(self, case: Case) -> Case:
        return replace(case, machine=self._provisioner.machine(), boot_id=self._judgement.boot_id)

    # -- waiting for the evidence -------------------------------------------------------------------------------------

    def _await_new_boot(self, case: Case, now: datetime) -> Turn:
        """Only another boot id says that the reboot happened. Until then it may still come, and nothing is done."""
        boot_id = self._judgement.boot_id
        if boot_id != case.boot_id:
            said = f"rebooted: boot id {case.boot_id[:8]} became {boot_id[:8]}"
            return Turn(case=at_next(case, now), said=said, go_on=True)
        if now - case.since > timedelta(seconds=self._patience.reboot_timeout_s):
            return self.again_or_fail(case, now, "the reboot that was asked for never showed as a new boot id")
        return Turn(case=case, said="reboot asked for; waiting for a new boot id")

    def _await_new_machine(self, case: Case, now: datetime) -> Turn:
        """Only another instance id says that the replacement happened. No capacity is a wait, not an end."""
        try:
            machine, progress = self._provisioner.machine(), self._provisioner.progress()
        except BackendRefused as error:
            return self.again_or_fail(case, now, f"the replacement failed: {error}")
        except BackendUnknown as error:
            machine, progress = case.machine, f"it cannot be told how far it is: {error}"
        if machine != case.machine:
            return Turn(case=at_next(case, now), said=f"replaced: {case.machine} became {machine}", go_on=True)
        if now - case.since > timedelta(seconds=self._patience.replace_timeout_s):
            return self.again_or_fail(case, now, f"no other machine came: {progress or 'nothing was said'}")
        said = f"replacement of {case.machine} asked for; {progress or 'waiting for another instance'}"
        return Turn(case=case, said=said)

    def _started_again(self, turn: Turn) -> Turn:
        """Whatever the reset came to, what was stopped for it is started."""
        if not turn.case.stopped:
            return turn
        wrong = self._resetter.start(turn.case.stopped)
        said = f"{turn.said}; not started again: {wrong}" if wrong else turn.said
        return replace(turn, case=replace(turn.case, stopped=()), said=said)
