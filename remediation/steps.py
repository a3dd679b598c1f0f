"""The steps of a case. Each looks first, writes its intent down, looks again, acts, and reads the effect back.

What is already so is adopted; what somebody else did is respected; an act without an answer is *unknown* and is read
back on a later turn. The last look before an act is one plain reading of the node, with nothing but the operator's own
rules read after it: Slurm has no compare-and-swap, and what happens between that reading and the act is not seen.

A step must not decide whether a node is to be taken out, and must not touch what its own case did not take out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from healthd.errors import BackendRefused, BackendUnknown, HealthdError
from healthd.model import Diagnosis, Mode, Step
from healthd.remediation.case import Case, End, Phase
from healthd.remediation.playbook import takes_node_out
from healthd.remediation.policy import Rules
from healthd.remediation.ports import NodeView, Orchestrator, Provisioner
from healthd.store import Event


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long the engine waits, in seconds. ``settle_s``: good for so long before a release."""

    settle_s: float = 30.0
    verify_timeout_s: float = 600.0
    reboot_timeout_s: float = 1800.0
    max_attempts: int = 2


class Judgement(Protocol):
    """What the engine asks of the monitor."""

    @property
    def boot_id(self) -> str:
        """The current boot."""

    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """What is wrong, most far-reaching first."""

    def is_acknowledged(self, diagnosis: Diagnosis) -> bool:
        """Whether a person has seen it and put the node back."""

    def acknowledge(self, now: datetime, why: str) -> None:
        """Mark every open fault as seen."""

    def trouble(self, since: datetime) -> str:
        """Why the node cannot be trusted yet, or ""."""

    def record(self, event: Event) -> None:
        """Add to the audit trail."""


class Cases(Protocol):
    """Where cases are kept. Raises StoreError; then nothing is done."""

    def open_case(self) -> Case | None:
        """The case that is not at its end."""

    def save_case(self, case: Case, event: Event) -> None:
        """Write a case and why it moved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """What one step came to: the case as it is now, the sentence, and whether the next step may follow at once."""

    case: Case
    said: str
    go_on: bool = False


class Steps:
    """All steps of one node's cases.

    ``forbidden`` says why this node may not be drained now although it was decided, or "": the decision may be old.
    """

    def __init__(
        self,
        *,
        orchestrator: Orchestrator,
        provisioner: Provisioner,
        judgement: Judgement,
        cases: Cases,
        rules: Callable[[], Rules],
        forbidden: Callable[[datetime], str],
        collect: Callable[[Case], str],
        look_again: Callable[[datetime], None],
        patience: Patience,
        clock: Callable[[], datetime],
    ) -> None:
        self._orchestrator, self._provisioner = orchestrator, provisioner
        self._judgement, self._cases, self._rules = judgement, cases, rules
        self._forbidden, self._collect, self._look_again = forbidden, collect, look_again
        self._patience, self._clock = patience, clock
        self._began: datetime | None = None
        self._written: Case | None = None
        self._take: Mapping[Step, Callable[[Case, datetime], Turn]] = {
            Step.DRAIN: self._drain,
            Step.WAIT_IDLE: self._wait_idle,
            Step.COLLECT: self._collect_evidence,
            Step.REBOOT: self._reboot,
            Step.VERIFY: self._verify,
            Step.RELEASE: self._release,
        }

    def take(self, case: Case, now: datetime) -> Turn:
        """Do what the case stands at, as far as it goes now, and write down what came of it. Raises HealthdError."""
        self._began = self._began or now
        if case.end is End.FAILED:
            turn = self._watch(case, now)
        elif why := self._at_rest():
            turn = Turn(case=case, said=f"case {case.id} rests at {case.step}: {why}, nothing is touched")
        else:
            turn = self._take[case.step](case, now)
        moved = replace(turn.case, note=turn.said)
        if moved != self._written:
            self.write(moved, turn.said)
        return replace(turn, case=moved)

    def write(self, case: Case, said: str) -> None:
        """Put a case and the sentence why it moved on disk. Raises StoreError."""
        data = {"case": case.id, "step": case.step, "phase": case.phase, "end": case.end, "code": case.code}
        self._cases.save_case(case, Event(at=self._clock(), kind="step", text=f"[{case.id}] {said}", data=data))
        self._written = case

    def resume(self) -> Case | None:
        """The open case as the disk has it, or None. Raises StoreError."""
        self._written = self._cases.open_case()
        return self._written

    # -- the steps ----------------------------------------------------------------------------------------------------

    def _drain(self, case: Case, now: datetime) -> Turn:
        """Take the node out, unless it is out already: by us (adopt it) or by others (leave it)."""
        resumed = case.since != now
        view = self._orchestrator.view(jobs=resumed)
        if not view.in_service:
            return self._adopted_or_lost(case, view, now)
        if resumed:
            if over := self._is_over(case):
                return _ended(case, End.ABANDONED, f"drain abandoned: {over}")
            if refusal := self._forbidden(now):
                return Turn(case=case, said=f"drain waits: {refusal}")
            case = self._intend_drain(case, now)
            view = self._orchestrator.view()
            if not view.in_service:
                return self._adopted_or_lost(case, view, now)
        if why := self._at_rest():
            return Turn(case=case, said=f"drain waits: {why}")
        return self._quarantine(case, now)

    def _quarantine(self, case: Case, now: datetime) -> Turn:
        try:
            self._orchestrator.quarantine(case.text)
        except BackendRefused as error:
            return Turn(case=case, said=f"drain refused, will be tried again: {error}")
        except BackendUnknown as error:
            return Turn(case=case, said=f"drain: no answer, will be read back: {error}")
        view = self._orchestrator.view(jobs=True)
        if view.in_service:
            return Turn(case=case, said="drain: not to be seen yet, will be read back")
        return self._adopted_or_lost(case, view, now)

    def _adopted_or_lost(self, case: Case, view: NodeView, now: datetime) -> Turn:
        if view.hold is None or view.hold.text != case.text:
            return self._lost(case, view)
        said = f'drained: "{view.hold.text}" by {view.hold.user}, {case.why}'
        case = replace(_next(case, now), hold=view.hold, controller=view.controller)
        return Turn(case=case, said=said, go_on=True)

    def _wait_idle(self, case: Case, now: datetime) -> Turn:
        view = self._orchestrator.view(jobs=True)
        if (turn := self._not_ours_any_more(case, view, now)) is not None:
            return turn
        case = _seen(case, view)
        if not view.idle:
            return Turn(case=case, said=f"drained; waiting for {', '.join(view.jobs) or 'completing work'} to end")
        return Turn(case=_next(case, now), said="idle: no job and no holder of a GPU is left", go_on=True)

    def _collect_evidence(self, case: Case, now: datetime) -> Turn:
        """Save the evidence before anything changes it. What cannot be saved is said, and does not stop the repair."""
        try:
            said = f"evidence collected in {self._collect(case)}"
        except (HealthdError, OSError) as error:
            said = f"evidence could not be collected in full: {error}"
        return Turn(case=_next(case, now), said=said, go_on=True)

    def _reboot(self, case: Case, now: datetime) -> Turn:
        if case.phase is Phase.INTENDED:
            return self._await_new_boot(case, now)
        view = self._orchestrator.view(jobs=True)
        if (turn := self._not_ours_any_more(case, view, now)) is not None:
            return turn
        if case.attempts >= self._patience.max_attempts:
            return self._again_or_fail(case, now, "no attempt is left")
        if case.attempts == 0 and (over := self._is_over(case)):
            return Turn(case=_next(replace(case, attempts=1), now), said=f"no reboot is needed: {over}", go_on=True)
        if not view.idle:
            return Turn(case=case, said="reboot waits: the node is no longer idle")
        planned, case = case, replace(case, boot_id=self._judgement.boot_id, attempts=case.attempts + 1)
        case = self._intend(case, now, "reboot")
        view = self._orchestrator.view()
        if (turn := self._not_ours_any_more(planned, view, now)) is not None:
            return turn
        if why := self._no_reboot_now(view):
            return Turn(case=planned, said=f"reboot waits: {why}")
        try:
            self._provisioner.reboot()
        except BackendRefused as error:
            return self._again_or_fail(case, now, f"the reboot was refused: {error}")
        except BackendUnknown as error:
            return Turn(case=case, said=f"reboot: no answer, the boot id will tell: {error}")
        return Turn(case=case, said="reboot asked for; waiting for a new boot id")

    def _await_new_boot(self, case: Case, now: datetime) -> Turn:
        """Only another boot id says that the reboot happened. Until then it may still come, and nothing is done."""
        boot_id = self._judgement.boot_id
        if boot_id != case.boot_id:
            said = f"rebooted: boot id {case.boot_id[:8]} became {boot_id[:8]}"
            return Turn(case=_next(case, now), said=said, go_on=True)
        if now - case.since > timedelta(seconds=self._patience.reboot_timeout_s):
            return self._again_or_fail(case, now, "the reboot that was asked for never showed as a new boot id")
        return Turn(case=case, said="reboot asked for; waiting for a new boot id")

    def _verify(self, case: Case, now: datetime) -> Turn:
        """Trust is earned back: nothing open, every check has looked anew, so for the settle time, and looked again."""
        view = self._orchestrator.view(jobs=True)
        if (turn := self._not_ours_any_more(case, view, now)) is not None:
            return turn
        case = _seen(case, view)
        self._look_again(case.good_since or case.since)
        if trouble := self._judgement.trouble(case.since):
            return self._not_well(replace(case, good_since=None), now, trouble)
        good_since = case.good_since or now
        case = replace(case, good_since=good_since)
        if now - good_since < timedelta(seconds=self._patience.settle_s):
            return Turn(case=case, said="well again; settling")
        if unseen := self._judgement.trouble(good_since):
            return Turn(case=case, said=f"well again; settling: {unseen}")
        return Turn(case=_next(case, now), said=f"verified: well since {good_since:%H:%M:%S}", go_on=True)

    def _not_well(self, case: Case, now: datetime, trouble: str) -> Turn:
        """Wait, or after a reboot and long enough, try again. A daemon that was away has not been looking meanwhile."""
        since = max(case.since, self._began or now)
        if Step.REBOOT in case.steps and now - since > timedelta(seconds=self._patience.verify_timeout_s):
            return self._again_or_fail(case, now, f"not healthy after the repair: {trouble}")
        return Turn(case=case, said=f"out until it is well: {trouble}")

    def _release(self, case: Case, now: datetime) -> Turn:
        view = self._orchestrator.view()
        if case.phase is Phase.INTENDED and (view.in_service or view.hold is None):
            return _ended(case, End.RELEASED, _released(view))
        if (turn := self._not_ours_any_more(case, view, now)) is not None:
            return turn
        if trouble := self._judgement.trouble(case.opened):
            verify = case.steps.index(Step.VERIFY)
            case = replace(case, index=verify, phase=Phase.PLANNED, since=now, good_since=None)
            return Turn(case=case, said=f"release taken back: {trouble}")
        if why := self._down_unexplained(case, view):
            return Turn(case=case, said=f"release waits: {why}")
        if case.phase is Phase.PLANNED:
            case = self._intend(case, now, "release")
            view = self._orchestrator.view()
            if (turn := self._not_ours_any_more(case, view, now)) is not None:
                return turn
        if why := self._down_unexplained(case, view) or self._at_rest():
            return Turn(case=case, said=f"release waits: {why}")
        try:
            self._orchestrator.release(resume="DOWN" in view.flags)
        except BackendRefused as error:
            return Turn(case=case, said=f"release refused, will be tried again: {error}")
        except BackendUnknown as error:
            return Turn(case=case, said=f"release: no answer, will be read back: {error}")
        view = self._orchestrator.view()
        if view.in_service:
            return _ended(case, End.RELEASED, _released(view))
        return Turn(case=case, said="release: not to be seen yet, will be read back")

    def _watch(self, case: Case, now: datetime) -> Turn:
        """Given up: the node stays out by our drain, and what a person does with that is respected as ever."""
        view = self._orchestrator.view(jobs=True)
        return self._not_ours_any_more(case, view, now) or Turn(case=_seen(case, view), said=case.note)

    # -- what stops them ----------------------------------------------------------------------------------------------

    def _at_rest(self) -> str:
        """Why the operator wants nothing done here, or ""."""
        rules = self._rules()
        if rules.opted_out:
            return f"opted out: {rules.opted_out}"
        return "in observe mode" if rules.mode is Mode.OBSERVE else ""

    def _no_reboot_now(self, view: NodeView) -> str:
        """What the last look before a reboot, or a mode that was lowered, has against it."""
        if not view.idle:
            return "the node is no longer idle"
        return self._at_rest() or ("" if self._rules().mode is Mode.REPAIR else "the mode was lowered")

    def _down_unexplained(self, case: Case, view: NodeView) -> str:
        if "DOWN" in view.flags and self._judgement.boot_id == case.drain_boot_id:
            return "the node is DOWN, and no reboot since our drain explains it"
        return ""

    def _intend(self, case: Case, now: datetime, act: str) -> Case:
        case = replace(case, phase=Phase.INTENDED, since=now)
        self.write(case, f"intends to {act}")
        return case

    def _intend_drain(self, case: Case, now: datetime) -> Case:
        """Write the intent, unless it is written. A node that is DOWN later is judged by the boot it was drained in."""
        if case.phase is Phase.INTENDED and case.drain_boot_id == self._judgement.boot_id:
            return case
        return self._intend(replace(case, drain_boot_id=self._judgement.boot_id), now, "drain")

    def _not_ours_any_more(self, case: Case, view: NodeView, now: datetime) -> Turn | None:
        """None while the cluster shows our drain exactly as we left it: text, user and stamp."""
        if view.hold == case.hold and not view.in_service:
            return None
        view = self._orchestrator.view(jobs=True)  # which run of the controller says so?
        if view.hold == case.hold and not view.in_service:
            return None
        if view.hold is not None:
            return self._lost(case, view)
        if view.controller and view.controller != case.controller:
            case = replace(case, index=0, phase=Phase.PLANNED, hold=None, since=now, end=None)
            return Turn(case=case, said="the controller restarted and lost our drain: it is made again")
        why = "our drain was undone by a person: that is an order"
        self._judgement.acknowledge(now, why)
        return _ended(case, End.ACKNOWLEDGED, why)

    def _lost(self, case: Case, view: NodeView) -> Turn:
        holder = f'{view.hold.user} with "{view.hold.text}"' if view.hold else "/".join(sorted(view.flags))
        return _ended(case, End.LOST, f"the node is held by {holder}: not touched")

    def _again_or_fail(self, case: Case, now: datetime, why: str) -> Turn:
        if case.attempts < self._patience.max_attempts:
            first = case.steps.index(Step.WAIT_IDLE)
            case = replace(case, index=first, phase=Phase.PLANNED, since=now, good_since=None)
            return Turn(case=case, said=f"attempt {case.attempts} failed, trying again: {why}")
        return _ended(case, End.FAILED, f"given up after {case.attempts} attempts, a person is needed: {why}")

    def _is_over(self, case: Case) -> str:
        for diagnosis in self._judgement.diagnoses():
            calls = takes_node_out(diagnosis) and not self._judgement.is_acknowledged(diagnosis)
            if calls and case.component in diagnosis.component.all_names():
                return ""
        return f"{case.code} on {case.component} is over"


def _next(case: Case, now: datetime) -> Case:
    return replace(case, index=case.index + 1, phase=Phase.PLANNED, since=now, good_since=None)


def _seen(case: Case, view: NodeView) -> Case:
    """Remember which run of the controller showed us our drain: only a later restart may have lost it."""
    return replace(case, controller=view.controller or case.controller)


def _ended(case: Case, end: End, said: str) -> Turn:
    return Turn(case=replace(case, end=end), said=said)


def _released(view: NodeView) -> str:
    if view.in_service:
        return "released: back in service"
    return f"released: our drain is gone, what is left is not ours: {'/'.join(sorted(view.flags))}"
