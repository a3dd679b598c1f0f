"""Limits the rate of messages that any user can cause, so that no user can fill the log or the audit trail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable

from msgspec import Struct

MOST = 256
"""The most messages that are remembered. A further one is dropped until one of them is old."""


class _Seen(Struct):
    at_s: float
    since: int = 0


class RateLimit:
    """Remembers when each message was last due. ``every_s``: the shortest time between two. Safe to use from
    threads."""

    def __init__(self, every_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s, self._clock = every_s, clock
        self._lock = threading.Lock()
        self._seen: dict[Hashable, _Seen] = {}

    def due(self, thing: Hashable) -> int | None:
        """How many were suppressed since the last one, if the message is due now; None if it is not."""
        with self._lock:
            now_s, seen = self._clock(), self._seen.get(thing)
            if seen is not None and now_s - seen.at_s < self._every_s:
                seen.since += 1
                return None
            if seen is None and len(self._seen) >= MOST:
                self._forget(now_s)
                if len(self._seen) >= MOST:
                    return None
            self._seen[thing] = _Seen(at_s=now_s)
            return seen.since if seen is not None else 0

    def _forget(self, now_s: float) -> None:
        self._seen = {thing: seen for thing, seen in self._seen.items() if now_s - seen.at_s < self._every_s}
