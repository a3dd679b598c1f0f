"""The events.k8s.io/v1 Events of a node's agent, and of the controller about drains, and how often they repeat. Pure.

An Event is news for an operator who runs ``kubectl describe node``, never a source of truth: the API server forgets it
after an hour. Each code is one object under a stable name, ``<node>.<hash>``, however many components have the fault:
created once, then a series whose count goes up at 1, 5 and 15 minutes and each hour, for as long as it is open.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from healthd.core.model import Action, Decision, Diagnosis, Severity
from healthd.core.name_lists import listed
from healthd.remediation.orchestrators.kubernetes.objects.conditions import reason_of
from healthd.remediation.orchestrators.kubernetes.objects.node import one_line

CONTROLLER = "healthd.io/agent"
NAMESPACE = "default"
"""Of the Events about a Node."""
GAPS_S = (60.0, 300.0, 900.0, 3600.0)
"""The pauses in seconds between the writes of one Event; the last one holds from then on."""
_NOTE_CHARACTERS, _INSTANCE_CHARACTERS, _NAME_CHARACTERS = 1024, 128, 253
_SHOWN_PARTS = 4
_TOLD = (Action.QUARANTINE, Action.REPAIR, Action.RELEASE, Action.PAGE)


class ClusterEvent(Struct, frozen=True, kw_only=True):
    """News to write. ``about``, a code, makes it the same news or another; ``note`` is the message."""

    reason: str
    action: str
    about: str
    note: str
    warning: bool = True


def news_of(diagnoses: Iterable[Diagnosis], decision: Decision | None) -> tuple[ClusterEvent, ...]:
    """The news now: every open fault above info, and the decision, where that is more than to wait.

    One for each code: 32 EFA devices with the same fault would be 32 requests an hour.
    """
    by_code: dict[str, list[Diagnosis]] = {}
    for each in diagnoses:
        if each.severity is not Severity.INFO:
            by_code.setdefault(each.code, []).append(each)
    found = [
        ClusterEvent(reason=reason_of(code), action="Diagnosed", about=code, note=_note(same))
        for code, same in by_code.items()
    ]
    if decision is not None and decision.action in _TOLD:
        about = decision.diagnosis.code if decision.diagnosis is not None else ""
        warning = decision.action is not Action.RELEASE
        word = reason_of(decision.action)
        found.append(ClusterEvent(reason=word, action=word, about=about, note=decision.reason, warning=warning))
    return tuple(found)


def _note(same: Sequence[Diagnosis]) -> str:
    parts = [str(each.component) for each in same]
    return f"{same[0].code} on {listed(parts, _SHOWN_PARTS)} calls for {same[0].remedy}"


def event_name(node: str, news: ClusterEvent) -> str:
    """The stable name of this news."""
    digest = hashlib.sha256(f"{news.reason}\n{news.action}\n{news.about}".encode()).hexdigest()[:16]
    head = node[: _NAME_CHARACTERS - 17].rstrip(".-")
    return f"{head}.{digest}"


def event_of(news: ClusterEvent, *, node: str, uid: str, now: datetime) -> dict[str, Any]:
    """The Event about a Node, as its agent creates it."""
    regarding = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
    return event_about(news, regarding=regarding, namespace=NAMESPACE, controller=CONTROLLER, instance=node, now=now)


def event_about(
    news: ClusterEvent, *, regarding: Mapping[str, str], namespace: str, controller: str, instance: str, now: datetime
) -> dict[str, Any]:
    """The Event about an object, as it is created: ``regarding`` is its reference, ``controller`` and ``instance`` say
    who reports it."""
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": event_name(regarding["name"], news), "namespace": namespace},
        "eventTime": _micro(now),
        "reportingController": controller,
        "reportingInstance": instance[:_INSTANCE_CHARACTERS],
        "action": news.action,
        "reason": news.reason,
        "type": "Warning" if news.warning else "Normal",
        "note": one_line(news.note, _NOTE_CHARACTERS) or "-",
        "regarding": dict(regarding),
    }


def series_of(count: int, now: datetime) -> dict[str, Any]:
    """The merge patch that counts the Event up to ``count``, 2 or more. The note stays the first one: the API server
    refuses every change of it as immutable (1.34.2, events.k8s.io/v1), and with it the count."""
    return {"series": {"count": max(2, count), "lastObservedTime": _micro(now)}}


def count_in(event: Mapping[str, Any]) -> int:
    """The count of an Event: 1 without a series."""
    series = event.get("series")
    count = series.get("count") if isinstance(series, Mapping) else None
    return count if isinstance(count, int) and count > 0 else 1


class _SentEvent(Struct, kw_only=True):
    count: int
    next_s: float


class WrittenEvents:
    """The news that was written and is still true. No clock and no I/O."""

    def __init__(self) -> None:
        self._reported: dict[str, _SentEvent] = {}
        self._not_before_s = 0.0

    def due(self, news: Iterable[ClusterEvent], now_s: float) -> ClusterEvent | None:
        """The news that is to be written next, or None. News that is over is forgotten, and is new when it comes
        back."""
        wanted = {event_name("", each): each for each in news}
        self._reported = {name: reported for name, reported in self._reported.items() if name in wanted}
        if now_s < self._not_before_s:
            return None
        late = [
            each for name, each in wanted.items() if name not in self._reported or now_s >= self._reported[name].next_s
        ]
        return late[0] if late else None

    def count(self, news: ClusterEvent) -> int:
        """How often this news was written."""
        reported = self._reported.get(event_name("", news))
        return reported.count if reported is not None else 0

    def told(self, news: ClusterEvent, count: int, now_s: float) -> None:
        """The API server acknowledged the write that counts ``count``."""
        before = self.count(news)
        gap_s = GAPS_S[min(before, len(GAPS_S) - 1)]
        self._reported[event_name("", news)] = _SentEvent(count=count, next_s=now_s + gap_s)

    def failed(self, now_s: float) -> None:
        """The write failed: events wait a minute, so that conditions and the budget come first."""
        self._not_before_s = now_s + GAPS_S[0]


def _micro(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
