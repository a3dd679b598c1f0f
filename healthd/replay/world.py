"""The shared world of all nodes of a replay: one clock, one simulated cluster, the rules, and the judgement of a
node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import count

from msgspec import Struct, field
from msgspec.structs import replace

from healthd.agent.freezes import freezes_on
from healthd.config.schema.config import Config
from healthd.core.check import Check
from healthd.core.model import REMEDY_RANK, Clearance, ClearsBy, Component, Outcome, Remedy
from healthd.remediation.decide.policy import Rules
from healthd.remediation.engine.dependencies import Timeouts
from healthd.remediation.ports import FleetSnapshot
from healthd.sim.cluster import FakeCluster, FakeOrchestrator
from healthd.state.monitor import Monitor

TOGETHER_S = 2.0
"""The time within which nodes act together, in seconds: about as long as a read of a large cluster that many ask."""


class PastClock:
    """The time of a replay: that of the lines, and of the events between them. It never goes back."""

    def __init__(self) -> None:
        self._now = datetime.min.replace(tzinfo=UTC)

    def now(self) -> datetime:
        """The time."""
        return self._now

    def seconds(self) -> float:
        """The same in seconds since the epoch."""
        return self._now.timestamp()

    def come_to(self, at: datetime) -> datetime:
        """Advance to this time, if it is later; returns the time."""
        self._now = max(self._now, at)
        return self._now


class World(Struct, frozen=True, kw_only=True):
    """The shared world of all nodes. ``rules``: those of any time. ``kernel_checks``: the checks that judge lines.
    ``ids``: of remediations.

    ``written_s``: when each node last wrote its handoff record.
    """

    config: Config
    rules: Rules
    timeouts: Timeouts
    checks: Mapping[str, Check]
    kernel_checks: Mapping[str, Check]
    cluster: FakeCluster
    clock: PastClock
    ids: Iterator[int] = field(default_factory=lambda: count(1))
    written_s: dict[str, float] = field(default_factory=dict)

    def rules_now(self) -> Rules:
        """The rules at the time of the replay: with the freezes of the configuration that were on then."""
        windows = self.config.remediation.freeze
        return replace(self.rules, freezes=freezes_on(windows, self.clock.now())) if windows else self.rules


class PastOrchestrator(FakeOrchestrator):
    """The simulated cluster as one node sees it. A real reconcile takes its time: nodes that fail within the same
    seconds ask for their budget slots before any of them sees the others."""

    def __init__(self, world: World, node: str) -> None:
        super().__init__(world.cluster, node)
        self._written_s, self._seconds, self._me = world.written_s, world.clock.seconds, node

    def write_record(self, text: str) -> None:
        """Write the handoff record; other nodes see it a little later."""
        super().write_record(text)
        self._written_s[self._me] = self._seconds()

    def snapshot(self) -> FleetSnapshot:
        """The fleet snapshot, without the latest writes of other nodes."""
        snapshot, seen_s = super().snapshot(), self._seconds() - TOGETHER_S
        records = [
            record
            for record in snapshot.records
            if record.node == self._me or self._written_s.get(record.node, 0.0) <= seen_s
        ]
        return replace(snapshot, records=tuple(records))


class PastMonitor(Monitor):
    """The judgement of a node on which only the checks of the kernel log run: it waits for no other check."""

    def not_checked(self, since: datetime | None, *, unknowns: bool = True) -> str:
        """Always "": every check counts as run. A repair is assumed to have worked until the log shows otherwise."""
        return ""

    def not_seen_again(self, code: str, component: Component, since: datetime | None = None) -> str:
        """Always "": no check runs again, and a fault stays open until the log ends it."""
        return ""

    def outcomes(self) -> Mapping[str, Outcome]:
        """None: an incomplete log does not make the node unknown."""
        return {}

    def clear(self, clearance: Clearance, now: datetime) -> None:
        """Take evidence that faults are over; after a reset, also of the faults that checks would no longer find."""
        super().clear(clearance, now)
        if clearance.by is ClearsBy.GPU_RESET:
            self.repaired(Remedy.RESET_GPU, now)

    def repaired(self, remedy: Remedy, now: datetime) -> None:
        """End the faults that this remedy, or a smaller one, repairs: no check runs again to end them."""
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
