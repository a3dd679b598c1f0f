"""What was decided and what was refused, counted once each when it is new: for the metrics page."""

from __future__ import annotations

from collections import Counter

from healthd.model import Action, Refusal, Step
from healthd.remediation.turns import Turn


class Tally:
    """The counts of one engine since its daemon began."""

    def __init__(self) -> None:
        self.decided: Counter[Action] = Counter()
        self.refused: Counter[Refusal] = Counter()
        self._waiting: tuple[str, Step, Refusal | None] | None = None

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
