"""How many nodes may be blamed for the end of a job within an hour, over the whole fleet. Pure.

No memory of a daemon takes part: healthd blames a node only behind its own drain, so the nodes that it drained within
the hour, or repaired, bound those that it blamed. Each node is ranked among them by the stamp of its drain: nodes
that fail at the same moment all read the same list, and the first so many are blamed.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from healthd.remediation.ports import FleetSnapshot
from healthd.remediation.records.handoff import by_now, parse

WINDOW = timedelta(hours=1)


def drained_before(fleet: FleetSnapshot, node: str, now: datetime) -> int:
    """How many other nodes healthd drained or repaired within the hour, earlier than this one."""
    since = (now - WINDOW).timestamp()
    own = max((each.stamp for each in fleet.held if each.node == node), default=int(now.timestamp()))
    held = {each.node for each in fleet.held if since <= each.stamp and (each.stamp, each.node) < (own, node)}
    repaired = {
        each.node
        for each in fleet.records
        if (record := parse(each.text)) is not None
        and any((past.back or past.at).timestamp() >= since for past in by_now(record, now).history)
    }
    return len((held | repaired) - {node})
