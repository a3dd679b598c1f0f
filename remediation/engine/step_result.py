"""What the steps of a case share: what one step comes to, what the engine asks of others, and how long it waits.

Plain values and Protocols; nothing here acts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from healthd.core.model import Clearance, ClearsBy, Component, Diagnosis, Event, Refusal, Refused, Step
from healthd.remediation.decide.fleet import Go, Scope, Settle, WaitForSlot
from healthd.remediation.decide.paging import Limits, Stands
from healthd.remediation.decide.remediation import End, Phase, Remediation
from healthd.remediation.ports import FleetSnapshot, Slot


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeouts:
    """How long the engine waits, in seconds. ``settle_s``: good for so long before a release. ``unanswered_s``: a
    claim, a drain or an undrain without an answer may be applied for so long. ``let_go_s``: for what was asked to end
    to let the GPUs go, before a reset. ``calm_s``: how often a case is looked at that has stood still for twice as
    long; 0 for as often as any other. ``overdue_s``: a node may be out, or a case stand still, for so long before it
    pages; ``idle_patience_s``: the same of a job that does not end under a fault which only a reboot or a replacement
    ends. ``undrain_holds_s``: how long an operator's undrain of our drain acknowledges a critical fault.
    """

    settle_s: float = 30.0
    verify_timeout_s: float = 600.0
    reboot_timeout_s: float = 1800.0
    replace_timeout_s: float = 14_400.0
    unanswered_s: float = 300.0
    let_go_s: float = 180.0
    max_attempts: int = 2
    calm_s: float = 0.0
    overdue_s: float = 14_400.0
    idle_patience_s: float = 3_600.0
    undrain_holds_s: float = 86_400.0

    @property
    def limits(self) -> Limits:
        """How long a node may be out before that pages."""
        return Limits(
            overdue_s=self.overdue_s,
            idle_patience_s=self.idle_patience_s,
            replace_timeout_s=self.replace_timeout_s,
        )


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

    def acknowledge_shown(
        self, code: str, component: str, *, by: datetime, until: datetime, now: datetime, why: str
    ) -> None:
        """Mark what an operator knew of as seen: this fault, and those that were open ``by`` then; a critical one
        ``until`` then at most."""

    def clear(self, clearance: Clearance, now: datetime) -> None:
        """Take evidence that faults are over."""

    def trouble(self, since: datetime | None) -> str:
        """Why the node cannot be trusted yet, or "". None: as far as anybody has looked."""

    def not_looked(self, since: datetime | None) -> str:
        """The check that cannot tell, or has not looked since then, or ""."""

    def not_seen_again(self, code: str, component: Component) -> str:
        """Why an open fault, which this daemon has only read from its disk, may be over, or ""."""

    def record(self, event: Event) -> None:
        """Add to the audit trail."""


class Hindsight(Protocol):
    """What is asked about a fault that a drain names and nobody sees any more."""

    def ends_by(self, code: str) -> ClearsBy | None:
        """What alone ends faults of this code; None for what a check would see again."""

    def booted_at(self) -> datetime | None:
        """When this boot began, by the machine's own clock; None where that cannot be told."""

    def look_back(self, code: str, since: datetime) -> str:
        """Judge again what was logged since then about this code: what is found is open. Returns what was read, or why
        it could not be, in words."""


class NoHindsight:
    """Where every fault that is there shows again at the next look."""

    def ends_by(self, code: str) -> ClearsBy | None:
        """Nothing has to be shown."""
        return None

    def booted_at(self) -> datetime | None:
        """Not known."""
        return None

    def look_back(self, code: str, since: datetime) -> str:
        """Nothing was kept."""
        return "nothing was read"


class RemediationStore(Protocol):
    """Where cases are kept. Raises StoreError; then nothing is done."""

    def open_case(self) -> Remediation | None:
        """The case that is not at its end."""

    def knows(self, case_id: str) -> bool:
        """Whether a case of this id was ever kept."""

    def save_case(self, case: Remediation, event: Event) -> None:
        """Write a case and why it moved."""


class Slots(Protocol):
    """The places of this node in the fleet's budget. Every call may raise BackendError."""

    def learn(self) -> FleetSnapshot:
        """Read the fleet, and remember it."""

    def wants_to_learn(self) -> bool:
        """Whether it is time to read the fleet in quiet."""

    def recalled(self, *, max_age_s: float | None = None) -> FleetSnapshot | None:
        """The fleet as it was read last, unless that is older than this, or than is of any use."""

    def budget(self) -> tuple[Scope, ...]:
        """Who is out in each scope of this node, and how many may be, as the fleet was read last. Asks nobody."""

    def due_in_s(self) -> float:
        """In how many seconds ``take`` would ask the cluster, and not only repeat what it said last; 0 for now."""

    def take(self, *, committed: bool = False, objection: Callable[[], str] | None = None) -> WaitForSlot | Settle | Go:
        """Go on towards holding every slot that is needed, as far as it goes without waiting.

        ``committed``: the node is out already by our own act. ``objection``: what a fresh reading of the fleet has
        against asking for one, or "".
        """

    def full(self) -> WaitForSlot | None:
        """Why not to ask for a slot now, as the slots alone tell, or None; asked as rarely as ``take``."""

    def stand_back(self, reason: str) -> WaitForSlot:
        """Give back whatever this node holds, and wait as at the limit."""

    def no_room(self) -> str:
        """Why no slot could be asked for now, or "". Nothing is claimed."""

    def held(self) -> tuple[Slot, ...]:
        """What the cluster lists for this node now."""

    def give_back(self) -> tuple[Slot, ...]:
        """Give back whatever this node holds, and say what that was."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """What one step came to: the case as it is now, the sentence, and whether the next step may follow at once.

    ``page``: a person has to know. ``refusal``: what the case waits for, or why it is paused; None where it moved.
    ``asked``: the platform has answered in this step that it was asked.
    """

    case: Remediation
    said: str
    go_on: bool = False
    page: bool = False
    refusal: Refusal | None = None
    asked: bool = False

    @property
    def stands(self) -> Stands:
        """Where its case stands."""
        return Stands(case=self.case, page=self.page, refusal=self.refusal)


def at_next(case: Remediation, now: datetime) -> Remediation:
    """The case at the step after this one."""
    return replace(case, index=case.index + 1, phase=Phase.PLANNED, since=now, good_since=None)


def is_out(case: Remediation, now: datetime) -> Remediation:
    """The case whose node is out now: at the step after, or where it was repaired before its drain or place got lost,
    where it would be after that. What did not help is tried again from there."""
    if not case.attempts:
        return at_next(case, now)
    repaired = Step.STAY if Step.STAY in case.steps else Step.VERIFY
    return replace(at_next(case, now), index=case.steps.index(repaired))


def ended(case: Remediation, end: End, said: str) -> StepResult:
    """The case is over."""
    return StepResult(case=replace(case, end=end), said=said)


def left_to_cluster(case: Remediation, why: str) -> StepResult:
    """The end of a case that nothing was repaired for, on a node that the cluster's controller drained by itself."""
    return ended(case, End.ABANDONED, f"{why}; the node stays drained by the cluster itself, whose drain is not ours")


def paused(case: Remediation, why: Refused) -> StepResult:
    """An open case that goes on when the operator lets it."""
    said = f"case {case.id} is paused at {case.step}: {why.words}, nothing is touched"
    return StepResult(case=case, said=said, refusal=why.kind)


def lingers(case: Remediation, why: str, until: datetime) -> StepResult:
    """A case that would be at its end, had every update of its own been answered."""
    said = f"{why}; its place is kept until {until:%H:%M:%S}: an update without an answer may still be applied"
    return StepResult(case=case, said=said, refusal=Refusal.UNREADABLE)


def waits(case: Remediation, act: str, why: Refused, *, page: bool = False) -> StepResult:
    """An act that is tried again."""
    return StepResult(case=case, said=f"{act} waits: {why.words}", page=page, refusal=why.kind)
