"""Carries a decision out, one step at a time, so that a kill -9 at any point leaves nothing half done or done twice.

Every step first looks at the cluster: what is already so is adopted, what somebody else did is respected. Then the intent
is written down, then the act is done, then its effect is read back from outside. An act without an answer is *unknown*
and is read back on the next turn. A turn returns the sentence that says what it did: that sentence is the log line, the
audit record and what a test asserts.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from healthd.errors import BackendError, BackendRefused, BackendUnknown, HealthdError, StoreError
from healthd.model import Action, Decision, Diagnosis, Mode, Step
from healthd.remediation.case import Case, End, Phase, reason_text
from healthd.remediation.playbook import QUARANTINE, takes_node_out
from healthd.remediation.policy import Rules, Situation, decide
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

    def acknowledge(self, component: str, now: datetime, why: str) -> None:
        """Mark a component's faults as seen."""

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


class Engine:
    """One node's engine. ``turn`` is called whenever something changed and every few seconds; calls never overlap."""

    def __init__(
        self,
        *,
        orchestrator: Orchestrator,
        provisioner: Provisioner,
        judgement: Judgement,
        cases: Cases,
        rules: Callable[[], Rules],
        collect: Callable[[Case], str],
        look_again: Callable[[datetime], None],
        patience: Patience,
        new_id: Callable[[], str] = lambda: secrets.token_hex(4),
    ) -> None:
        self._orchestrator, self._provisioner = orchestrator, provisioner
        self._judgement, self._cases, self._rules = judgement, cases, rules
        self._collect, self._look_again = collect, look_again
        self._patience, self._new_id = patience, new_id
        self._lock = threading.Lock()
        self._last_said = ""
        self.decision = Decision(action=Action.HOLD, reason="nothing has been decided yet")
        self.decided: Counter[Action] = Counter()
        self._steps: Mapping[Step, Callable[[Case, datetime], Turn]] = {
            Step.DRAIN: self._drain,
            Step.WAIT_IDLE: self._wait_idle,
            Step.COLLECT: self._collect_evidence,
            Step.REBOOT: self._reboot,
            Step.VERIFY: self._verify,
            Step.RELEASE: self._release,
        }

    def turn(self, now: datetime, *, wait_s: float = -1) -> str:
        """Decide or go on, as far as it goes now. Returns what was done and why; never raises a HealthdError.

        ``wait_s``: how long to wait for a turn that is under way elsewhere; -1 for as long as it takes.
        """
        if not self._lock.acquire(timeout=wait_s):
            return "another turn of the engine is still under way"
        try:
            case = self._cases.open_case()
            said = self._consider(now) if case is None else self._go_on(self._fit_to_mode(case), now)
        except StoreError as error:
            said = f"nothing was done: {error}"
        except BackendError as error:
            said = f"the cluster did not answer, so nothing more was done: {error}"
        finally:
            self._lock.release()
        return said

    def holds_node(self) -> Case | None:
        """The open case whose drain was read back, or None. Raises StoreError."""
        case = self._cases.open_case()
        return case if case is not None and case.hold is not None else None

    # -- deciding -----------------------------------------------------------------------------------------------------

    def _consider(self, now: datetime) -> str:
        decision = decide(
            self._judgement.diagnoses(),
            self._judgement.is_acknowledged,
            self._situation,
            self._rules(),
            self._provisioner.can,
        )
        self._note(decision, now)
        if decision.action not in (Action.QUARANTINE, Action.REPAIR) or decision.diagnosis is None:
            return decision.reason
        case = self._opened(decision, decision.diagnosis, now)
        self._cases.save_case(case, _event(case, now, f"intends to drain: {decision.reason}"))
        return self._go_on(case, now)

    def _situation(self) -> Situation:
        try:
            view = self._orchestrator.view()
        except BackendError as error:
            return Situation(view=None, level=None, problem=str(error))
        try:
            return Situation(view=view, level=self._orchestrator.level() if view.in_service else None)
        except BackendError as error:
            return Situation(view=view, level=None, problem=str(error))

    def _opened(self, decision: Decision, diagnosis: Diagnosis, now: datetime) -> Case:
        """A new case, its drain already intended: the decision has just read what an intent must be read from."""
        case_id = self._new_id()
        return Case(
            id=case_id,
            opened=now,
            since=now,
            mode=self._rules().mode,
            code=diagnosis.code,
            component=str(diagnosis.component),
            remedy=diagnosis.remedy,
            why="; ".join(diagnosis.reasons),
            text=reason_text(diagnosis, case_id),
            steps=decision.steps,
            phase=Phase.INTENDED,
            drain_boot_id=self._judgement.boot_id,
        )

    def _note(self, decision: Decision, now: datetime) -> None:
        """Every decision and every refusal goes to the audit trail, once, not every few seconds."""
        self.decision = decision
        if decision.diagnosis is None or decision.reason == self._last_said:
            return
        self._last_said = decision.reason
        self.decided[decision.action] += 1
        data = {"action": decision.action, "code": decision.diagnosis.code, "component": str(decision.diagnosis.component)}
        self._judgement.record(Event(at=now, kind="decision", text=decision.reason, data=data))

    def _fit_to_mode(self, case: Case) -> Case:
        """A mode that was lowered since lowers an open case: what may no longer be repaired stays quarantined."""
        mode = self._rules().mode
        if mode is not Mode.REPAIR and Step.REBOOT in case.steps:
            index = QUARANTINE.index(case.step) if case.step in QUARANTINE else QUARANTINE.index(Step.VERIFY)
            return replace(case, steps=QUARANTINE, index=index, mode=mode, phase=Phase.PLANNED)
        return case

    # -- the machine --------------------------------------------------------------------------------------------------

    def _go_on(self, case: Case, now: datetime) -> str:
        if self._rules().mode is Mode.OBSERVE or self._rules().opted_out:
            return f"case {case.id} rests at {case.step}: in observe mode, or opted out, nothing is touched"
        while True:
            turn = self._steps[case.step](case, now)
            if turn.case != case:
                self._cases.save_case(turn.case, _event(turn.case, now, turn.said))
            case = turn.case
            if not turn.go_on or case.end is not None:
                return turn.said

    def _drain(self, case: Case, now: datetime) -> Turn:
        """Take the node out, unless it is out already: by us (adopt it) or by others (leave it)."""
        resumed = case.since != now
        view = self._orchestrator.view()
        if view.hold is not None and view.hold.text == case.text:
            return self._drained(case, view, now)
        if not view.in_service:
            return self._lost(case, view)
        if resumed and (why_not := self._no_longer(case)):
            return _ended(case, End.ABANDONED, f"drain abandoned, nothing was touched: {why_not}")
        if resumed and (refusal := self._situation_forbids(view)):
            return Turn(case=case, said=f"drain waits: {refusal}")
        if case.phase is Phase.PLANNED:
            case = self._intend(case, now, "drain")
            view = self._orchestrator.view()
            if not view.in_service:
                return self._lost(case, view)
        try:
            self._orchestrator.quarantine(case.text)
        except BackendUnknown as error:
            return Turn(case=case, said=f"drain: no answer, will be read back: {error}")
        view = self._orchestrator.view()
        if view.hold is not None and view.hold.text == case.text:
            return self._drained(case, view, now)
        return Turn(case=case, said="drain: not to be seen yet, will be read back")

    def _drained(self, case: Case, view: NodeView, now: datetime) -> Turn:
        hold = view.hold
        assert hold is not None  # noqa: S101 - the callers compared its text
        case = replace(_next(case, now), hold=hold, controller=view.controller)
        return Turn(case=case, said=f'drained: "{hold.text}" by {hold.user}, {case.why}', go_on=True)

    def _wait_idle(self, case: Case, now: datetime) -> Turn:
        view = self._orchestrator.view(jobs=True)
        if (turn := self._not_ours_any_more(case, view, now)) is not None:
            return turn
        if not view.idle:
            return Turn(case=_seen(case, view), said=f"drained; waiting for {', '.join(view.jobs) or 'completing work'} to end")
        return Turn(case=_next(_seen(case, view), now), said="idle: no job and no holder of a GPU is left", go_on=True)

    def _collect_evidence(self, case: Case, now: datetime) -> Turn:
        """Save the evidence before anything changes it. What cannot be saved is said, and does not stop the repair."""
        try:
            said = f"evidence collected in {self._collect(case)}"
        except (HealthdError, OSError) as error:
            said = f"evidence could not be collected in full: {error}"
        return Turn(case=_next(case, now), said=said, go_on=True)

    def _reboot(self, case: Case, now: datetime) -> Turn:
        boot_id = self._judgement.boot_id
        if case.phase is Phase.INTENDED:
            if boot_id != case.boot_id:
                said = f"rebooted: boot id {case.boot_id[:8]} became {boot_id[:8]}"
                return Turn(case=_next(case, now), said=said, go_on=True)
            if now - case.since > timedelta(seconds=self._patience.reboot_timeout_s):
                return self._again_or_fail(case, now, "the reboot that was asked for never showed as a new boot id")
            return Turn(case=case, said="reboot asked for; waiting for a new boot id")
        view = self._orchestrator.view(jobs=True)
        if (turn := self._not_ours_any_more(case, view, now)) is not None:
            return turn
        if not view.idle:
            return Turn(case=case, said="reboot waits: the node is no longer idle")
        case = self._intend(replace(case, boot_id=boot_id, attempts=case.attempts + 1), now, "reboot")
        try:
            self._provisioner.reboot()
        except BackendRefused as error:
            return self._again_or_fail(case, now, f"the reboot was refused: {error}")
        except BackendUnknown as error:
            return Turn(case=case, said=f"reboot: no answer, the boot id will tell: {error}")
        return Turn(case=case, said="reboot asked for; waiting for a new boot id")

    def _verify(self, case: Case, now: datetime) -> Turn:
        """Trust is earned back: nothing open, every check fresh, and so for the settle time."""
        view = self._orchestrator.view(jobs=True)
        if (turn := self._not_ours_any_more(case, view, now)) is not None:
            return turn
        case = _seen(case, view)
        self._look_again(case.since)
        trouble = self._judgement.trouble(case.since)
        if trouble:
            case = replace(case, good_since=None)
            late = now - case.since > timedelta(seconds=self._patience.verify_timeout_s)
            if Step.REBOOT in case.steps and late:
                return self._again_or_fail(case, now, f"not healthy after the repair: {trouble}")
            return Turn(case=case, said=f"out until it is well: {trouble}")
        good_since = case.good_since or now
        if now - good_since < timedelta(seconds=self._patience.settle_s):
            return Turn(case=replace(case, good_since=good_since), said="well again; settling")
        return Turn(case=_next(case, now), said=f"verified: well since {good_since:%H:%M:%S}", go_on=True)

    def _release(self, case: Case, now: datetime) -> Turn:
        view = self._orchestrator.view()
        if case.phase is Phase.INTENDED and view.in_service:
            return _ended(case, End.RELEASED, "released: back in service")
        if (turn := self._not_ours_any_more(case, view, now)) is not None:
            return turn
        if trouble := self._judgement.trouble(case.opened):
            verify = case.steps.index(Step.VERIFY)
            case = replace(case, index=verify, phase=Phase.PLANNED, since=now, good_since=None)
            return Turn(case=case, said=f"release taken back: {trouble}")
        resume = "DOWN" in view.flags
        if resume and self._judgement.boot_id == case.drain_boot_id:
            return Turn(case=case, said="release waits: the node is DOWN, and no reboot since our drain explains it")
        case = self._intend(case, now, "release")
        view = self._orchestrator.view()
        if (turn := self._not_ours_any_more(case, view, now)) is not None:
            return turn
        try:
            self._orchestrator.release(resume=resume)
        except BackendUnknown as error:
            return Turn(case=case, said=f"release: no answer, will be read back: {error}")
        if self._orchestrator.view().in_service:
            return _ended(case, End.RELEASED, "released: back in service")
        return Turn(case=case, said="release: not to be seen yet, will be read back")

    # -- what stops it ------------------------------------------------------------------------------------------------

    def _intend(self, case: Case, now: datetime, act: str) -> Case:
        case = replace(case, phase=Phase.INTENDED, since=now)
        self._cases.save_case(case, _event(case, now, f"intends to {act}"))
        return case

    def _not_ours_any_more(self, case: Case, view: NodeView, now: datetime) -> Turn | None:
        """None while the cluster shows our drain exactly as we left it: text, user and stamp."""
        if view.hold == case.hold and not view.in_service:
            return None
        if view.hold is not None and not view.in_service:
            return self._lost(case, view)
        if case.controller and view.controller and view.controller != case.controller:
            case = replace(case, index=0, phase=Phase.PLANNED, hold=None, since=now)
            return Turn(case=case, said="the controller restarted and lost our drain: it is made again")
        why = "our drain was undone by a person: that is an order"
        self._judgement.acknowledge(case.component, now, why)
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

    def _no_longer(self, case: Case) -> str:
        for diagnosis in self._judgement.diagnoses():
            calls = takes_node_out(diagnosis.remedy) and not self._judgement.is_acknowledged(diagnosis)
            if calls and case.component in diagnosis.component.all_names():
                return ""
        return f"{case.code} on {case.component} is over"

    def _situation_forbids(self, view: NodeView) -> str:
        """Look at the fleet again before a drain that was interrupted; the decision behind it may be old."""
        decision = decide(
            self._judgement.diagnoses(),
            self._judgement.is_acknowledged,
            lambda: replace(self._situation(), view=view),
            self._rules(),
            self._provisioner.can,
        )
        return "" if decision.action in (Action.QUARANTINE, Action.REPAIR) else decision.reason


def _next(case: Case, now: datetime) -> Case:
    return replace(case, index=case.index + 1, phase=Phase.PLANNED, since=now, good_since=None)


def _seen(case: Case, view: NodeView) -> Case:
    """Remember which run of the controller showed us our drain: only a later restart may have lost it."""
    return replace(case, controller=case.controller or view.controller)


def _ended(case: Case, end: End, said: str) -> Turn:
    return Turn(case=replace(case, end=end, note=said), said=said)


def _event(case: Case, now: datetime, said: str) -> Event:
    data = {"case": case.id, "step": case.step, "phase": case.phase, "end": case.end, "code": case.code}
    return Event(at=now, kind="step", text=f"[{case.id}] {said}", data=data)
