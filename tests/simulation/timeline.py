"""The one clock of a simulated fleet, and what is to happen when. No wall clock, no thread, no sleep.

A machine's wall clock may be set, which a :class:`WallClock` of its own says; seconds go by for all alike.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


class Timeline:
    """Seconds since the beginning, and the happenings in their order; those of one moment in the order of asking."""

    def __init__(self) -> None:
        self.s = 0.0
        self._next: list[tuple[float, int, Callable[[], object]]] = []
        self._count = itertools.count()

    def __call__(self) -> float:
        return self.s

    def at(self, s: float, happening: Callable[[], object]) -> None:
        heapq.heappush(self._next, (max(s, self.s), next(self._count), happening))

    def after(self, s: float, happening: Callable[[], object]) -> None:
        self.at(self.s + s, happening)

    def run(self, until_s: float) -> None:
        """Let everything happen that falls due until then."""
        while self._next and self._next[0][0] <= until_s:
            self.s, _, happening = heapq.heappop(self._next)
            happening()
        self.s = until_s


class WallClock:
    """The wall clock of one machine: right, but for the seconds by which it was set."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline, self.set_by_s = timeline, 0.0

    def now(self) -> datetime:
        return BEGINNING + timedelta(seconds=self._timeline.s + self.set_by_s)

    def seconds(self) -> float:
        return self.now().timestamp()


def shown(s: float) -> str:
    """``day 12 07:31:05``."""
    at = BEGINNING + timedelta(seconds=s)
    return f"day {(at - BEGINNING).days} {at:%H:%M:%S}"
