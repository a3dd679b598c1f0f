"""A drain of ours that stands while no case of it is open: applied late, or left by a store that is lost.

The text alone proves nothing, since anybody can write it. So it is looked for and said, and undone by an operator's
`healthd release` alone. It is looked for after a start, and for a day after each case: a drain comes from nowhere else.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from healthd.errors import BackendError
from healthd.model import Action, Decision, Refusal
from healthd.remediation.case import case_of
from healthd.remediation.parts import Parts
from healthd.remediation.ports import Hold, is_drain

_EVERY_S = 1800.0  # one reading of this node
_FOR_S = 86_400.0


class Orphans:
    """The search of one node. Asked in turns in which no case is open."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.fence = ""
        """What fences the node for a place of ours, in words, or "": as the cluster showed it last."""
        self._found: Hold | None = None
        self._due_s = parts.monotonic_s() + parts.patience.unanswered_s
        self._until_s = self._due_s

    def search(self) -> None:
        """A case is open: look for what may come of it once it has ended."""
        now_s = self._parts.monotonic_s()
        self._found, self._due_s, self._until_s = None, now_s + _EVERY_S, now_s + _FOR_S

    def named(self, decision: Decision, now: datetime) -> Decision:
        """The same, unless such a drain keeps the node out: then that is said, and paged for once it is overdue."""
        if decision.action is Action.HOLD and self.fence:
            return replace(decision, reason=self.fence, refusal=Refusal.ORPHAN)
        if decision.action is not Action.HOLD or (hold := self._looked()) is None:
            return decision
        since = datetime.fromtimestamp(hold.stamp, UTC)
        late = now - since >= timedelta(seconds=self._parts.patience.overdue_s)
        words = f'held since {since:%Y-%m-%d %H:%M} UTC by "{hold.text}", a drain of ours without an open case'
        return Decision(
            action=Action.PAGE if late else Action.HOLD,
            reason=f"{words}; `healthd release` undoes it",
            diagnosis=decision.diagnosis,
            refusal=Refusal.ORPHAN,
        )

    def _looked(self) -> Hold | None:
        now_s = self._parts.monotonic_s()
        if self._due_s > now_s or (self._found is None and self._due_s > self._until_s):
            return self._found
        self._due_s = now_s + _EVERY_S
        try:
            view = self._parts.orchestrator.view()
        except BackendError:  # as it was seen last, until an answer comes
            self._until_s = max(self._until_s, self._due_s)
            return self._found
        is_ours = view.hold is not None and is_drain(view.flags) and bool(case_of(view.hold.text))
        self._found = view.hold if is_ours else None
        return self._found
