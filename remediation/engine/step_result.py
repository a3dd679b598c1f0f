"""The result of one step of a remediation: the few ways in which it ends or waits, how it is put on disk and
counted."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from healthd.core.model import Action, Event, Refusal, Refused, Step
from healthd.remediation.decide.paging import RemediationStatus
from healthd.remediation.decide.remediation import End, Phase, Remediation
from healthd.remediation.engine.dependencies import Dependencies


class StepResult(Struct, frozen=True, kw_only=True):
    """The result of one step: the remediation as it is now, the sentence, and whether the next step may follow at once.

    ``page``: an operator has to know. ``refusal``: what it waits for, or why it is paused; None where it moved.
    ``asked``: the platform has answered in this step that it was asked.
    """

    remediation: Remediation
    message: str
    go_on: bool = False
    page: bool = False
    refusal: Refusal | None = None
    asked: bool = False

    @property
    def stands(self) -> RemediationStatus:
        """Where the remediation stands."""
        return RemediationStatus(remediation=self.remediation, page=self.page, refusal=self.refusal)


def at_next(remediation: Remediation, now: datetime) -> Remediation:
    """The remediation at the step after this one."""
    return replace(remediation, index=remediation.index + 1, phase=Phase.PLANNED, since=now, good_since=None)


def is_out(remediation: Remediation, now: datetime) -> Remediation:
    """The remediation whose node is out now: at the step after, or where it was repaired before its drain or place got
    lost, where it would be after that. From there a repair that did not help is tried again."""
    if not remediation.attempts:
        return at_next(remediation, now)
    repaired = Step.STAY if Step.STAY in remediation.steps else Step.VERIFY
    return replace(at_next(remediation, now), index=remediation.steps.index(repaired))


def ended(remediation: Remediation, end: End, message: str) -> StepResult:
    """The remediation ends."""
    return StepResult(remediation=replace(remediation, end=end), message=message)


def left_to_cluster(remediation: Remediation) -> StepResult:
    """The end of a remediation that nothing was repaired for, on a node that the cluster's controller drained by
    itself."""
    why = "nothing was repaired; the node stays drained by the cluster itself, whose drain is not ours"
    return ended(remediation, End.ABANDONED, why)


def paused(remediation: Remediation, why: Refused) -> StepResult:
    """A remediation that goes on when the operator allows it."""
    message = f"remediation {remediation.id} is paused at {remediation.step}: {why.reason}, nothing is touched"
    return StepResult(remediation=remediation, message=message, refusal=why.kind)


def lingers(remediation: Remediation, why: str, until: datetime) -> StepResult:
    """A remediation that would be at its end, had every update of its own been answered."""
    message = f"{why}; its slot is kept until {until:%H:%M:%S} UTC: an update without an answer may still be applied"
    return StepResult(remediation=remediation, message=message, refusal=Refusal.UNREADABLE)


def waits(remediation: Remediation, act: str, why: Refused, *, page: bool = False) -> StepResult:
    """An act that is tried again."""
    return StepResult(remediation=remediation, message=f"{act} waits: {why.reason}", page=page, refusal=why.kind)


_TO_DO = {
    "GPU reset": "reset the GPUs",
    "interrupted GPU reset": "reset the GPUs once more: a reset was begun, and its end is not known",
    "replacement": "replace the machine",
}


class StepJournal:
    """The remediations of one node. Each call may raise StoreError; then nothing was written."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._remediations, self._clock = dependencies.remediations, dependencies.clock
        self.last: Remediation | None = None
        """As it was written or read last."""

    def read(self) -> Remediation | None:
        """The open remediation as the disk has it, or None."""
        self.last = self._remediations.open_remediation()
        return self.last

    def write(self, remediation: Remediation, message: str) -> None:
        """Put it and the sentence why it moved on disk."""
        self._remediations.save_remediation(remediation, step_event(remediation, message, self._clock()))
        self.last = remediation

    def intend(self, remediation: Remediation, now: datetime, act: str) -> Remediation:
        remediation = replace(remediation, phase=Phase.INTENDED, since=now)
        self.write(remediation, f"intends to {_TO_DO.get(act, act)}")
        return remediation


def step_event(remediation: Remediation, message: str, at: datetime) -> Event:
    """The line of the audit trail about a step; ``message``: why it moved."""
    data = {
        "remediation_id": remediation.id,
        "step": remediation.step,
        "phase": remediation.phase,
        "end": remediation.end,
        "code": remediation.code,
    }
    return Event(at=at, kind="step", text=f"[{remediation.id}] {message}", data=data)


# ---------------------------------------------------------------------------------------------------------------------
# stats for the metrics page


class EngineStats:
    """The counts of one engine, or of the controller, since its process began."""

    def __init__(self) -> None:
        self.decided: Counter[Action] = Counter()
        self.refused: Counter[Refusal] = Counter()
        self.steps: Counter[Step] = Counter()
        self.steps_s: dict[Step, float] = dict.fromkeys(Step, 0.0)
        """Steps that came to their end, and how many seconds they took all together, the waiting among them."""
        self._waiting: tuple[str, Step, Refusal | None] | None = None
        self._under_way: dict[str, tuple[Step, datetime]] = {}

    def refuse(self, kind: Refusal | None) -> None:
        """Count a refusal, if it is one."""
        if kind is not None:
            self.refused[kind] += 1

    def wait(self, result: StepResult) -> None:
        """Count what a remediation waits for, when it begins to."""
        waiting = (result.remediation.id, result.remediation.step, result.refusal)
        if waiting != self._waiting:
            self.refuse(result.refusal)
        self._waiting = waiting

    def time(self, before: Remediation, after: Remediation, now: datetime) -> None:
        """Time the step that a remediation stood at, if it has left it. One that an earlier daemon began counts from
        what that wrote down last."""
        known = self._under_way.pop(before.id, None)
        if known is None or known[0] is not before.step:
            known = (before.step, min(before.since, now))
        if not after.has_ended:
            self._under_way[after.id] = known if after.index == before.index else (after.step, now)
        if before.has_ended or (after.index == before.index and not after.has_ended):
            return
        self.steps[before.step] += 1
        self.steps_s[before.step] += max(0.0, (now - known[1]).total_seconds())  # the clock may have been set back
