"""Counts decisions and refusals, once each when they are new, and times the steps: for the metrics page."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from healthd.core.model import Action, Refusal, Step
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.engine.step_result import StepResult


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

    def wait(self, turn: StepResult) -> None:
        """Count what a case waits for, when it begins to."""
        waiting = (turn.case.id, turn.case.step, turn.refusal)
        if waiting != self._waiting:
            self.refuse(turn.refusal)
        self._waiting = waiting

    def time(self, before: Remediation, after: Remediation, now: datetime) -> None:
        """Time the step that a case stood at, if it has left it. One that an earlier daemon began counts from what that
        wrote down last."""
        known = self._under_way.pop(before.id, None)
        if known is None or known[0] is not before.step:
            known = (before.step, min(before.since, now))
        if not after.has_ended:
            self._under_way[after.id] = known if after.index == before.index else (after.step, now)
        if before.has_ended or (after.index == before.index and not after.has_ended):
            return
        self.steps[before.step] += 1
        self.steps_s[before.step] += max(0.0, (now - known[1]).total_seconds())  # the clock may have been set back
