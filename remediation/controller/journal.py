"""What the controller intends and did, on disk and by request: whatever is done is written down first."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from healthd.core.model import Event
from healthd.remediation.controller.node_status import RepairStats
from healthd.remediation.decide.remediation import Remediation


class RequestStore(Protocol):
    """Where the controller keeps what it intends. Raises StoreError; then nothing is done."""

    def cases(self) -> tuple[Remediation, ...]:
        """All cases, oldest first."""

    def save_case(self, case: Remediation, event: Event) -> None:
        """Write a case and why it moved."""


class RequestJournal:
    """The controller's own remediations, one a request. ``clock`` stamps the trail; ``stats``: where they are timed."""

    def __init__(self, kept: RequestStore, *, clock: Callable[[], datetime], stats: RepairStats) -> None:
        self._kept, self._clock, self.stats = kept, clock, stats
        self.known = {case.id: case for case in kept.cases()}

    def write(self, case: Remediation, said: str) -> None:
        """Put it and the sentence why it moved on disk. Raises StoreError; then nothing was written."""
        data = {"case": case.id, "step": case.step, "phase": case.phase, "end": case.end}
        self._kept.save_case(case, Event(at=self._clock(), kind="step", text=f"[{case.id}] {said}", data=data))
        self.stats.time(self.known.get(case.id), case, self._clock())
        self.known[case.id] = case
