"""Notices of open incidents as an annotation of the Lease ``healthd-incidents``. Pure.

The controller that leads writes it, and each write holds all notices, which end together. An agent may read this Lease
and nothing more, so that no node's token holds another node's messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import msgspec

from healthd.core.encodable import NOT_JSON
from healthd.core.hostlist import folded, unfolded
from healthd.remediation.records.incident_notices import LASTS, IncidentNotice, IncidentNotices

INCIDENTS_LEASE, INCIDENTS = "healthd-incidents", "healthd.io/incidents"
MOST_HOSTS, MOST_TEXT = 60_000, 180_000
"""Characters of one host list and of the whole annotation: an object has 256 KiB for all of its annotations. Nodes
beyond it send their own messages."""
_Time = Annotated[datetime, msgspec.Meta(tz=True)]


class _Notice(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    root: str
    began: _Time
    nodes: str
    critical: bool = False


class _Notices(msgspec.Struct, frozen=True, kw_only=True):
    until: _Time
    open: tuple[_Notice, ...] = ()


_READS_NOTICES = msgspec.json.Decoder(_Notices)  # made by one thread, see ``node``


def notices_text(notices: Sequence[IncidentNotice], now: datetime) -> str:
    """The annotation with these notices, which hold for ``LASTS`` from now on; also without any: a controller looks for
    incidents."""
    kept, left = [], MOST_TEXT
    for each in notices:
        notice = _Notice(id=each.id, root=each.root, began=each.began, nodes=_hosts(each.nodes), critical=each.critical)
        left -= len(msgspec.json.encode(notice))
        if left >= 0:
            kept.append(notice)
    return msgspec.json.encode(_Notices(until=now + LASTS, open=tuple(kept))).decode()


def notices_in(text: str) -> IncidentNotices:
    """The notices in an annotation; none in a text that is none of a controller's: nodes then send their messages."""
    try:
        read = _READS_NOTICES.decode(text)
    except NOT_JSON:
        return IncidentNotices()
    found = (
        IncidentNotice(
            id=each.id,
            root=each.root,
            began=each.began,
            nodes=frozenset(unfolded(each.nodes)),
            critical=each.critical,
            until=read.until,
        )
        for each in read.open
    )
    return IncidentNotices(watched_until=read.until, open=tuple(found))


def _hosts(nodes: frozenset[str]) -> str:
    names = sorted(nodes)
    while len(hosts := folded(names)) > MOST_HOSTS:
        names = names[: len(names) * MOST_HOSTS // len(hosts)]
    return hosts
