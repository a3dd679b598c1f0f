"""Feeds the ledger: asks the nodes that changed in a reading of the fleet for details, and writes what is new.

It runs beside the controller's syncs and stops none of them. Time without a reading is a gap, and no exposure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from healthd.ledger.changes import NodeMemory, NodeReading, gone_changes, node_changes, placed
from healthd.ledger.database import Ledger
from healthd.ledger.entries import MachineIdentity
from healthd.remediation.provisioners.instance_topology import InstancePlace

GAP = 3.0
"""Of intervals: after so many without a reading the time between counts as not watched."""
_FORGET = timedelta(days=1)


class LedgerFeed:
    """``completed``: of readings, those whose node answered, completed by it. ``interval_s``: between two readings.
    ``keep_days``: older entries are deleted. ``asks``: how many nodes are asked in one reading at most; ``again_s``:
    after how long a node is asked without a change. Raises StoreError; the next reading then finds the same."""

    def __init__(
        self,
        ledger: Ledger,
        completed: Callable[[Sequence[NodeReading]], Mapping[str, NodeReading]] = lambda _: {},
        *,
        interval_s: float,
        keep_days: float,
        asks: int = 64,
        again_s: float = 86_400.0,
    ) -> None:
        self._ledger, self._completed = ledger, completed
        self._gap, self._keep = timedelta(seconds=GAP * interval_s), timedelta(days=keep_days)
        self._asks, self._again = asks, timedelta(seconds=again_s)
        self._memories: dict[str, NodeMemory] = ledger.memories()
        self._last: dict[str, NodeReading] = {}
        self._ask_at: dict[str, datetime] = {}
        self._forget_at: datetime | None = None
        self.places: dict[str, InstancePlace] = {
            each.machine.instance: InstancePlace(
                network=each.machine.network, capacity_block=each.machine.capacity_block
            )
            for each in self._memories.values()
            if each.machine.instance and each.machine.network
        }

    @property
    def machines(self) -> dict[str, MachineIdentity]:
        """The machine behind each node's name, as far as it is known."""
        return {name: each.machine for name, each in self._memories.items()}

    def read(self, listed: Mapping[str, NodeReading], now: datetime) -> int:
        """One reading: every node as the cluster shows it. Returns how many nodes had something new."""
        listed = {name: self._placed(each) for name, each in listed.items()}
        watched = self._ledger.watched_until(now)
        known_until = watched if watched is not None and not now - watched <= self._gap else None
        news = {name: each for name, each in listed.items() if not each.tells_the_same(self._last.get(name))}
        asked = self._due(news, listed, now)
        answered = self._completed([listed[name] for name in asked])
        changed = {
            name: node_changes(
                self._memories.get(name, NodeMemory()), answered.get(name, listed[name]), now, known_until=known_until
            )
            for name in {*news, *answered}
        }
        gone = [name for name in self._memories if name not in listed]
        changed |= {name: gone_changes(self._memories[name], known_until or now) for name in gone}
        self._ledger.write(changed, now, gap=self._gap, gone=gone)
        self._memories |= {name: each.after for name, each in changed.items()}
        for name in gone:
            del self._memories[name]
        self._last = listed
        self._ask_at |= {name: now + self._again * (1.0 if name in answered else 1 / 144) for name in asked}
        self._ask_at |= {name: now for name in news if name not in asked}
        self._ask_at = {name: at for name, at in self._ask_at.items() if name in listed}
        self._forget(now, watched or now)
        return len(changed)

    def _placed(self, reading: NodeReading) -> NodeReading:
        known = self._memories.get(reading.node, NodeMemory()).machine
        place = self.places.get(reading.machine.instance or known.instance)
        if place is None:
            return reading
        return placed(reading, known, network=place.network, capacity_block=place.capacity_block)

    def _due(self, news: Mapping[str, NodeReading], listed: Mapping[str, NodeReading], now: datetime) -> list[str]:
        """The nodes to ask: those with news first, then those that were not asked for longest, or by a clock that was
        ahead."""
        due = [
            name for name in listed if name not in news and not now < self._ask_at.get(name, now) <= now + self._again
        ]
        due.sort(key=lambda name: self._ask_at.get(name, now))
        return [*news, *due][: self._asks]

    def _forget(self, now: datetime, watched: datetime) -> None:
        """Once a day, by the reading before this one: a clock that is ahead has what is too old for it kept a day."""
        if self._forget_at is None or not now < self._forget_at <= now + _FORGET:
            self._ledger.forget(watched - self._keep)
            self._forget_at = now + _FORGET
