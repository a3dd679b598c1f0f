"""What was decided and refused, counted once each when it is new, and how long steps took: for the metrics page."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from healthd.model import Action, Refusal, Step
from healthd.remediation.case import Case
from healthd.remediation.turns import Turn


class Tally:
    """The counts of one engine since its daemon began."""

    def __init__(self) -> None:
        self.decided: Counter[Action] = Counter()
        self.refused: Counter[Refusal] = Counter()
        self.steps: Counter[Step] = Counter()
        self.steps_s: dict[Step, float] = dict.fromkeys(Step, 0.0)
        """Steps that came to their end, and how many seconds they took all together, the waiting among them."""
        self._waiting: tuple[str, Step, Refusal | None] | None = None
        self._under_way: tuple[str, Step, datetime] | None = None

    def refuse(self, kind: Refusal | None) -> None:
        """Count a refusal, if it is one."""
        if kind is not None:
            self.refused[kind] += 1

    def wait(self, turn: Turn) -> None:
        """Count what a case waits for, when it begins to."""
        waiting = (turn.case.id, turn.case.step, turn.refusal)
        if waiting != self._waiting:
            self.refuse(turn.refusal)
        self._waiting = waiting

    def time(self, before: Case, after: Case, now: datetime) -> None:
        """Time the step that a case stood at, if it has left it. One that an earlier daemon began counts from what that
        wrote down last."""
        if self._under_way is None or self._under_way[:2] != (before.id, before.step):
            self._under_way = (before.id, before.step, min(before.since, now))
        if before.has_ended or (after.index == before.index and not after.has_ended):
            return
        self.steps[before.step] += 1
        self.steps_s[before.step] += (now - self._under_way[2]).total_seconds()
        self._under_way = (after.id, after.step, now)
