"""The check ``cloud.events``: what EC2 has announced for this instance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from healthd.checklib.host_text import json_object, json_objects
from healthd.core.check import FindingCode, NoSettings, check, judged, not_applicable
from healthd.core.errors import SourceMissing
from healthd.core.model import NODE, Finding, Remedy, Result, Severity
from healthd.core.node import Node

_SCHEDULED = "events/maintenance/scheduled"
_REBALANCE = "events/recommendations/rebalance"
_SPOT = "spot/instance-action"
_LIFECYCLE = "autoscaling/target-lifecycle-state"
_OVER = frozenset({"completed", "canceled"})
_ENDS = frozenset({"instance-retirement", "instance-stop"})
_ENDED = frozenset({"Terminated", "Warmed:Terminated"})  # Standby, Detached and the like leave the instance running

MAINTENANCE = FindingCode(
    code="cloud.maintenance",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="EC2 has scheduled a reboot or maintenance of this instance",
)
RETIREMENT = FindingCode(
    code="cloud.retirement",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="EC2 will stop or end this instance on a date that it has announced",
)
REBALANCE = FindingCode(
    code="cloud.rebalance",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="EC2 expects to interrupt this Spot instance",
)
SPOT = FindingCode(
    code="cloud.spot_interruption",
    severity=Severity.CRITICAL,
    remedy=Remedy.WATCH,
    meaning="EC2 ends this Spot instance within two minutes",
)
LEAVING = FindingCode(
    code="cloud.leaving",
    severity=Severity.CRITICAL,
    remedy=Remedy.WATCH,
    meaning="The Auto Scaling group is about to end this instance",
)


@check("cloud.events", interval_s=30, codes=(MAINTENANCE, RETIREMENT, REBALANCE, SPOT, LEAVING))
def cloud_events(node: Node, _settings: NoSettings) -> Result:
    """EC2 has announced nothing that ends or interrupts this instance.

    The check asks the instance metadata service and nothing else: 1,000 nodes that asked the EC2 API would use up the
    account's rate. An item that the service does not have is no event. A certain and near end (a Spot interruption, an
    Auto Scaling group that ends the instance) keeps new jobs off; an event with a date is a warning with that date.
    Without such a service the check does not apply; without an answer it is unknown.

    Sources: EC2 user guide, "View scheduled events", "Spot Instance interruption notices", "EC2 instance rebalance
    recommendations"; EC2 Auto Scaling user guide, "Retrieve the target lifecycle state through instance metadata".
    """
    try:
        scheduled = node.metadata(_SCHEDULED)
    except SourceMissing as error:
        return not_applicable(str(error))
    findings = list(_scheduled(json_objects(scheduled, _SCHEDULED) if scheduled else ()))
    if spot := node.metadata(_SPOT):
        notice = json_object(spot, _SPOT)
        when, action = notice.get("time", "soon"), notice.get("action", "end")
        findings.append(SPOT.at(NODE, f"EC2 will {action} this Spot instance at {when}", notice=dict(notice)))
    if rebalance := node.metadata(_REBALANCE):
        notice = json_object(rebalance, _REBALANCE)
        findings.append(
            REBALANCE.at(
                NODE,
                f"EC2 recommends to move work off this Spot instance (rebalance, {notice.get('noticeTime')})",
                notice=dict(notice),
            )
        )
    if (state := node.metadata(_LIFECYCLE)) in _ENDED:
        message = f"the Auto Scaling group is ending this instance (target state {state})"
        findings.append(LEAVING.at(NODE, message, target_lifecycle_state=state))
    return judged(findings)


def _scheduled(events: tuple[Mapping[str, Any], ...]) -> Iterator[Finding]:
    """Events still to come, one finding of each kind: message and evidence have the first three."""
    open_events = [event for event in events if event.get("State", "active") not in _OVER]
    for code, ends in ((RETIREMENT, True), (MAINTENANCE, False)):
        mine = [event for event in open_events if (event.get("Code") in _ENDS) is ends]
        if mine:
            message = "; ".join(f"{event.get('Code')} not before {event.get('NotBefore')}" for event in mine[:3])
            yield code.at(NODE, message, events=[dict(event) for event in mine[:3]], count=len(mine))
