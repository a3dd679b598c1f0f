"""Leaves this node's summary with slurmctld: when its state changes, as a sparse heartbeat, and at a stop.

It judges nothing. A slurmctld that does not answer costs the agent nothing: the summary is written whole, later.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from msgspec.structs import replace

from healthd.core.backoff import pause_s
from healthd.core.errors import BackendError
from healthd.remediation.records.summary import NodeSummary

GAP_S = 10.0
"""How long a summary is shown at least."""
CHANGES = 6.0
"""How many changes a heartbeat's time may have, a repair's steps among them. The work of a user who makes a check come
and go is written no more often. Each may have one more write for its words: a step begins before it has any."""
SPREAD_S = 3.0
"""Over how long the nodes that change at once spread their writes."""
AGAIN_S, LONGEST_S = 30.0, 600.0
"""The first and the longest pause after a write that failed."""
_RANDOM = random.SystemRandom()


class Summarizes(Protocol):
    """Where the summary is left."""

    def summarize(self, summary: NodeSummary) -> None:
        """Leave it. Raises BackendError."""


class SlurmReporter:
    """The reporter of one node; ``tick`` is called every few seconds, by one thread.

    ``known``: what the agent knows now; None until it knows enough. ``heartbeat_s``: how often, in seconds, a summary
    that is as before is written for its time.
    """

    def __init__(
        self,
        slurm: Summarizes,
        *,
        known: Callable[[], NodeSummary | None],
        heartbeat_s: float,
        monotonic_s: Callable[[], float] = time.monotonic,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        chance: Callable[[], float] = _RANDOM.random,
    ) -> None:
        self._slurm, self._known, self._heartbeat_s = slurm, known, heartbeat_s
        self._monotonic_s, self._clock, self._chance = monotonic_s, clock, chance
        self._shown: NodeSummary | None = None
        self._words_due = False
        self._not_before_s = monotonic_s() + chance() * SPREAD_S
        self._beats_at_s = float("-inf")
        self._failures = 0
        self._changes, self._counted_s = CHANGES, monotonic_s()
        self._problem = ""

    def tick(self) -> str:
        """Write the summary where that is due. Returns a sentence for the log where that fails, or works again; else
        ""."""
        now_s = self._monotonic_s()
        if now_s < self._not_before_s or (summary := self._known()) is None:
            return ""
        same = summary.tells_the_same(self._shown)
        may = self._words_due and summary != self._shown if same else self._may_change(now_s)
        if now_s < self._beats_at_s and not may:
            return ""
        try:
            self._slurm.summarize(replace(summary, at=self._clock()))
        except BackendError as error:
            self._failures += 1
            longest_s = min(LONGEST_S, self._heartbeat_s / 2)  # no node is silent for long after it
            self._not_before_s = now_s + pause_s(self._failures, first_s=AGAIN_S, longest_s=longest_s)
            return self._news(f"the summary of this node is not written: {error}")
        self._changes -= self._shown is not None and not same
        self._shown, self._words_due, self._failures = summary, not same, 0
        self._not_before_s = now_s + GAP_S + self._chance() * SPREAD_S
        self._beats_at_s = now_s + self._heartbeat_s * (0.9 + 0.2 * self._chance())
        return self._news("")

    def stop(self) -> str:
        """Write once that the daemon ends on purpose, beside its last state. Returns a sentence for the log where that
        fails; else ""."""
        if (summary := self._known() or self._shown) is None:
            return ""
        try:
            self._slurm.summarize(replace(summary, at=self._clock(), stopped=True))
        except BackendError as error:
            return f"the stop of this daemon is not written: {error}"
        return ""

    def _may_change(self, now_s: float) -> bool:
        """Whether a change may be written now: a bucket of ``CHANGES``, filled once in a heartbeat's time."""
        gained = (now_s - self._counted_s) * CHANGES / self._heartbeat_s
        self._changes, self._counted_s = min(CHANGES, self._changes + gained), now_s
        return self._changes >= 1

    def _news(self, problem: str) -> str:
        """The line for the log: a problem once, and its end."""
        before, self._problem = self._problem, problem
        if problem == before:
            return ""
        return problem or "the summary of this node is written again"
