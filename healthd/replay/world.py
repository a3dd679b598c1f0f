"""What all nodes of a replay share: one clock, one simulated cluster, the rules; and how such a node judges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count

from healthd.config.schema.config import Config
from healthd.core.check import Check
from healthd.core.model import REMEDY_RANK, Clearance, ClearsBy, Component, Outcome, Remedy
from healthd.remediation.decide.policy import Rules
from healthd.remediation.engine.dependencies import Timeouts
from healthd.remediation.ports import FleetSnapshot
from healthd.sim.cluster import FakeCluster, FakeOrchestrator
from healthd.state.monitor import Monitor

TOGETHER_S = 2.0
"""Within how many seconds nodes act together: reading a large cluster takes about as long while many ask."""


class PastClock:
    """The time of a replay: that of the lines, and of what falls due between them. It never goes back."""

    def __init__(self) -> None:
        self._now = datetime.min.replace(tzinfo=UTC)

    def now(self) -> datetime:
        """The time."""
        return self._now

    def seconds(self) -> float:
        """The same in seconds since the epoch."""
        return self._now.timestamp()

    def come_to(self, at: datetime) -> datetime:
        """Go on to this time, if it is later; returns the time."""
        self._now = max(self._now, at)
        return self._now


@dataclass(frozen=True, kw_only=True)
class World:
    """What all nodes of a replay share. ``kernel_checks``: the checks that judge lines. ``ids``: of cases.

    ``marked_s``: when each node last wrote its handoff record.
    """

    config: Config
    rules: Rules
    patience: Timeouts
    checks: Mapping[str, Check]
    kernel_checks: Mapping[str, Check]
    cluster: FakeCluster
    clock: PastClock
    ids: Iterator[int] = field(default_factory=lambda: count(1))
    marked_s: dict[str, float] = field(default_factory=dict)


class PastOrchestrator(FakeOrchestrator):
    """The simulated cluster as one node sees it. A real daemon's turn takes its time: nodes that fail within the same
    seconds ask for their budget slots before any of them sees what the others show."""

    def __init__(self, world: World, node: str) -> None:
        super().__init__(world.cluster, node)
        self._marked_s, self._seconds, self._me = world.marked_s, world.clock.seconds, node

    def mark(self, text: str) -> None:
        """Write the handoff record, for others to see a little later."""
        super().mark(text)
        self._marked_s[self._me] = self._seconds()

    def level(self) -> FleetSnapshot:
        """The fleet, without what others wrote at this moment."""
        level, seen_s = super().level(), self._seconds() - TOGETHER_S
        marks = [mark for mark in level.marks if mark.node == self._me or self._marked_s.get(mark.node, 0.0) <= seen_s]
        return replace(level, marks=tuple(marks))


class PastMonitor(Monitor):
    """The judgement of a node at which no check looks but those of the kernel log: the others are not waited for."""

    def not_looked(self, since: datetime | None) -> str:
        """Every check has. A repair is assumed to have worked until the log shows otherwise."""
        return ""

    def not_seen_again(self, code: str, component: Component) -> str:
        """No check looks again: what the log has not ended is open."""
        return ""

    def outcomes(self) -> Mapping[str, Outcome]:
        """None: that a log alone cannot tell everything is no reason to doubt the node."""
        return {}

    def clear(self, clearance: Clearance, now: datetime) -> None:
        """Take evidence that faults are over: of a reset, that the checks see what it mends no longer."""
        super().clear(clearance, now)
        if clearance.by is ClearsBy.GPU_RESET:
            self.repaired(Remedy.RESET_GPU, now)

    def repaired(self, remedy: Remedy, now: datetime) -> None:
        """End the levels that this remedy, or a smaller one, answers: no check looks again and says so."""
        rank = REMEDY_RANK[remedy]
        with self._lock:
            faults = self._history.faults
            left = {
                key: fault
                for key, fault in faults.items()
                if fault.clears_by is not None or REMEDY_RANK[fault.remedy] > rank
            }
            if len(left) < len(faults):
                self._fold(replace(self._history, faults=left), (), now)
