"""What the steps of a case share: what one step comes to, what the engine asks of others, and how long it waits.

Plain values and Protocols; nothing here acts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from healthd.model import Clearance, Diagnosis
from healthd.remediation.case import Case, End, Phase
from healthd.remediation.fleet import Go, Hold, Settle
from healthd.remediation.ports import Slot
from healthd.store import Event


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long the engine waits, in seconds. ``settle_s``: good for so long before a release."""

    settle_s: float = 30.0
    verify_timeout_s: float = 600.0
    reboot_timeout_s: float = 1800.0
    replace_timeout_s: float = 14_400.0
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

    def clear(self, clearance: Clearance, now: datetime) -> None:
        """Take evidence that faults are over."""

    def trouble(self, since: datetime) -> str:
        """Why the node cannot be trusted yet, or ""."""

    def record(self, event: Event) -> None:
        """Add to the audit trail."""


class Cases(Protocol):
    """Where cases are kept. Raises StoreError; then nothing is done."""

    def open_case(self) -> Case | None:
        """The case that is not at its end."""

    def knows(self, case_id: str) -> bool:
        """Whether a case of this id was ever kept."""

    def save_case(self, case: Case, event: Event) -> None:
        """Write a case and why it moved."""


class Slots(Protocol):
    """The places of this node in the fleet's budget. Every call may raise BackendError."""

    def take(self) -> Hold | Settle | Go:
        """Go on towards holding every slot that is needed, as far as it goes without waiting."""

    def held(self) -> tuple[Slot, ...]:
        """What the cluster lists for this node now."""

    def give_back(self) -> tuple[Slot, ...]:
        """Give back whatever this node holds, and say what that was."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """What one step came to: the case as it is now, the sentence, and whether the next step may follow at once.

    ``page``: a person has to know.
    """

    case: Case
    said: str
    go_on: bool = False
    page: bool = False


def at_next(case: Case, now: datetime) -> Case:
    """The case at the step after this one."""
    return replace(case, index=case.index + 1, phase=Phase.PLANNED, since=now, good_since=None)


def ended(case: Case, end: End, said: str) -> Turn:
    """The case is over."""
    return Turn(case=replace(case, end=end), said=said)
