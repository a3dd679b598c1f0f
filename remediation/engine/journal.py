"""Puts the open remediation on disk, with the sentence why it moved, before anything is done for it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from healthd.core.model import Event
from healthd.remediation.decide.remediation import Phase, Remediation
from healthd.remediation.engine.dependencies import Dependencies

_TO_DO = {
    "GPU reset": "reset the GPUs",
    "interrupted GPU reset": "reset the GPUs once more: a reset was begun, and its end is not known",
    "replacement": "replace the machine",
}


class StepJournal:
    """The remediations of one node. Each call may raise StoreError; then nothing was written."""

    def __init__(self, parts: Dependencies) -> None:
        self._cases, self._clock = parts.cases, parts.clock
        self.last: Remediation | None = None
        """As it was written or read last."""

    def read(self) -> Remediation | None:
        """The open remediation as the disk has it, or None."""
        self.last = self._cases.open_case()
        return self.last

    def write(self, case: Remediation, said: str) -> None:
        """Put it and the sentence why it moved on disk."""
        data = {"case": case.id, "step": case.step, "phase": case.phase, "end": case.end, "code": case.code}
        self._cases.save_case(case, Event(at=self._clock(), kind="step", text=f"[{case.id}] {said}", data=data))
        self.last = case

    def intend(self, case: Remediation, now: datetime, act: str) -> Remediation:
        """Write down that this act is begun now; returns the remediation with that."""
        case = replace(case, phase=Phase.INTENDED, since=now)
        self.write(case, f"intends to {_TO_DO.get(act, act)}")
        return case
