"""Messages of a node that wait for an incident, or that an incident of many nodes has said already. Pure.

A message is held only while a notice covers this node and this fault. In doubt it is sent: where no controller reports
incidents, where its notice has ended, and where anything else of the node is critical.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from healthd.notify.news import Topic, TopicMemory
from healthd.remediation.records.incident_notices import IncidentNotice, IncidentNotices

WAITS = ""
"""In the place of an incident's id: the message waits for whether there is one."""


def held(
    topics: Sequence[Topic],
    memory: Mapping[str, TopicMemory],
    notices: IncidentNotices,
    *,
    node: str,
    now: datetime,
    wait: timedelta,
) -> dict[str, str]:
    """The keys of the topics whose first message is held now, each with the incident that covers it, or ``WAITS``.

    ``wait``: how long at most a message waits for an incident to be reported.
    """
    found: dict[str, str] = {}
    for topic in topics:
        if topic.last:
            continue
        covered = _covering(topic, notices, node, now)
        if covered is None and not _waits(topic, memory, notices, now, wait):
            if topic.critical:
                return {}
            continue
        if is_new(topic, memory):
            found[topic.key] = covered.id if covered is not None else WAITS
    return found


def may_wait(topics: Sequence[Topic], memory: Mapping[str, TopicMemory]) -> bool:
    """Whether any topic is worth reading the notices for: one of a single fault that was not reported yet."""
    return any(topic.code and not topic.last and is_new(topic, memory) for topic in topics)


def is_new(topic: Topic, memory: Mapping[str, TopicMemory]) -> bool:
    """Whether it was not reported yet."""
    seen = memory.get(topic.key)
    return seen is None or not seen.reported


def _covering(topic: Topic, notices: IncidentNotices, node: str, now: datetime) -> IncidentNotice | None:
    return notices.covering(node, topic.code, topic.component, critical=topic.critical, now=now)


def _waits(
    topic: Topic, memory: Mapping[str, TopicMemory], notices: IncidentNotices, now: datetime, wait: timedelta
) -> bool:
    """Whether a topic is so new that an incident of it may not be known yet, and a controller looks for incidents."""
    seen = memory.get(topic.key)
    since = now if seen is None or seen.gone is not None else seen.since
    return bool(topic.code) and is_new(topic, memory) and notices.is_watched(now) and now - since < wait
