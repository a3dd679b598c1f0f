"""Reads the notices of incidents from the cluster while a message of this node may be held for one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from healthd.core.errors import BackendError
from healthd.notify.held import held, may_wait
from healthd.notify.news import Topic, TopicMemory
from healthd.remediation.records.incident_notices import LASTS, IncidentNotices

WAITING_S, HELD_S = 15.0, 120.0
"""How often the notices are read while a message waits for an incident, and while an incident covers all of them."""


class IncidentHold:
    """Which messages of ``node`` are held now. ``read`` reads the notices; it raises BackendError, and then the last
    ones count until they end. ``wait_s``: how long at most a message waits for an incident, in seconds."""

    def __init__(
        self,
        node: str,
        read: Callable[[], IncidentNotices],
        *,
        wait_s: float,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node, self._read, self._wait = node, read, timedelta(seconds=wait_s)
        self._monotonic_s = monotonic_s
        self._notices, self._known_s, self._tried_s = IncidentNotices(), float("-inf"), float("-inf")
        self._every_s = WAITING_S

    def __call__(self, topics: Sequence[Topic], memory: Mapping[str, TopicMemory], now: datetime) -> Mapping[str, str]:
        """The keys of the topics that are held, each with its incident or ""."""
        if not may_wait(topics, memory):
            return {}
        now_s = self._monotonic_s()
        if now_s - self._tried_s >= self._every_s:
            self._tried_s = now_s
            self._refresh(now_s)
        if now_s - self._known_s > LASTS.total_seconds():  # whatever the clocks say
            self._notices = IncidentNotices()
        found = held(topics, memory, self._notices, node=self._node, now=now, wait=self._wait)
        self._every_s = HELD_S if found and all(found.values()) else WAITING_S
        return found

    def _refresh(self, now_s: float) -> None:
        with contextlib.suppress(BackendError):  # the engine reports it; what was read last holds until it ends
            self._notices, self._known_s = self._read(), now_s
