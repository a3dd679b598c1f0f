"""The readings of the last forty minutes that the nodes of a job are compared by, in memory.

A restart of the daemon empties it: the samples are no evidence about the node, and a comparison says where it has too
few. The values of a counter become its growth a second where they are read.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from itertools import pairwise

from msgspec import Struct, field

from healthd.core.model import Component, Outcome, Reading, ReadingKind

KEPT = timedelta(minutes=40)
_MOST_SAMPLES = 64
"""Of one reading, for a check that runs more often than once a minute."""


class RecentSeries(Struct, frozen=True, kw_only=True):
    """One reading of one component: (age in seconds, value), the oldest first; of a counter its growth a second."""

    component: Component
    name: str
    samples: tuple[tuple[float, float], ...]


class _Kept(Struct, kw_only=True):
    """The samples of one reading; of a counter those of its present epoch."""

    component: Component
    kind: ReadingKind
    epoch: str
    at_s: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def add(self, at_s: float, reading: Reading) -> None:
        """One more sample. A counter that went backwards, or of another epoch, has no growth to show yet."""
        is_new = reading.epoch != self.epoch or (bool(self.values) and reading.value < self.values[-1])
        if self.kind is ReadingKind.COUNTER and is_new:
            del self.at_s[:], self.values[:]
        self.component, self.epoch = reading.component, reading.epoch  # the driver may have numbered the GPUs again
        self.at_s.append(at_s)
        self.values.append(reading.value)
        del self.at_s[:-_MOST_SAMPLES], self.values[:-_MOST_SAMPLES]

    def samples(self, now_s: float) -> Iterator[tuple[float, float]]:
        """The samples that are not too old, with their ages."""
        found = zip(self.at_s, self.values, strict=True)
        recent = [(at_s, value) for at_s, value in found if 0 <= now_s - at_s <= KEPT.total_seconds()]
        if self.kind is ReadingKind.GAUGE:
            yield from ((now_s - at_s, value) for at_s, value in recent)
            return
        for (was_s, before), (at_s, value) in pairwise(recent):
            if at_s > was_s:
                yield now_s - at_s, (value - before) / (at_s - was_s)


class RecentReadings:
    """The recent readings of one node. ``names``: those that are kept."""

    def __init__(self, names: Collection[str]) -> None:
        self._names, self._lock = frozenset(names), threading.Lock()
        self._kept: dict[tuple[str, str], _Kept] = {}

    def add(self, outcome: Outcome) -> None:
        """Keep the readings of a check run."""
        at_s = outcome.at.timestamp()
        with self._lock:
            for reading in outcome.result.readings:
                if reading.name in self._names:
                    key = (str(reading.component), reading.name)
                    if (kept := self._kept.get(key)) is None:
                        kept = _Kept(component=reading.component, kind=reading.kind, epoch=reading.epoch)
                        self._kept[key] = kept
                    kept.add(at_s, reading)

    def shift(self, by: timedelta) -> None:
        """Move every time with the wall clock, which was set by ``by``."""
        with self._lock:
            for kept in self._kept.values():
                kept.at_s = array("d", [at_s + by.total_seconds() for at_s in kept.at_s])

    def series(self, now: datetime) -> tuple[RecentSeries, ...]:
        """Every reading that has a sample of the last forty minutes; what is older is forgotten."""
        now_s = now.timestamp()
        with self._lock:
            found = {key: (kept, tuple(kept.samples(now_s))) for key, kept in self._kept.items()}
            oldest_s = now_s - KEPT.total_seconds()
            self._kept = {key: kept for key, kept in self._kept.items() if kept.at_s[-1] >= oldest_s}
        return tuple(
            RecentSeries(component=kept.component, name=key[1], samples=samples)
            for key, (kept, samples) in sorted(found.items())
            if samples
        )
