"""Limits the rate of messages that any user can cause, so that no user can fill the log or the audit trail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

MOST = 256
"""The most messages that are remembered. A further one is dropped until one of them is old."""


@dataclass(slots=True)
class _Said:
    at_s: float
    since: int = 0


class RateLimit:
    """Remembers when each message was last due. ``every_s``: the shortest time between two. Safe to use from
    threads."""

    def __init__(self, every_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s, self._clock = every_s, clock
        self._lock = threading.Lock()
        self._said: dict[Hashable, _Said] = {}

    def due(self, thing: Hashable) -> int | None:
        """How many were suppressed since the last one, if the message is due now; None if it is not."""
        with self._lock:
            now_s, said = self._clock(), self._said.get(thing)
            if said is not None and now_s - said.at_s < self._every_s:
                said.since += 1
                return None
            if said is None and len(self._said) >= MOST:
                self._forget(now_s)
                if len(self._said) >= MOST:
                    return None
            self._said[thing] = _Said(at_s=now_s)
            return said.since if said is not None else 0

    def _forget(self, now_s: float) -> None:
        self._said = {thing: said for thing, said in self._said.items() if now_s - said.at_s < self._every_s}
