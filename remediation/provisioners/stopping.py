"""Whether a stopped instance could be started again, and its capacity be kept meanwhile. Pure.

Amazon EC2 User Guide, "Stop and start", "Capacity Reservations", "Capacity Blocks for ML" (2026): a Capacity Block
returns freed capacity after minutes of cleaning, and no launch into it succeeds near its end; any matching launch of
the account may take freed capacity of an open reservation; Spot and Dedicated Hosts have rules of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from healthd.remediation.provisioners.instances import managed_by, tags_of

NEAR_END = timedelta(hours=2)
"""How long a reservation must still last. A move takes minutes; the rest of the reservation must be worth the move."""

_GROUP = "aws:autoscaling:groupName"


def why_not_stop(
    instance: Mapping[str, Any], reservation: Mapping[str, Any] | None, at_any_risk: bool, now: datetime
) -> str:
    """Why the instance must not be stopped to be started elsewhere, or "". ``at_any_risk``: capacity may be lost."""
    return _of_its_kind(instance) or (
        ("" if at_any_risk else "it has no capacity reservation, and its capacity could be lost")
        if reservation is None
        else _of_its_reservation(reservation, at_any_risk, now)
    )


def _of_its_kind(instance: Mapping[str, Any]) -> str:
    if manager := managed_by(instance):
        return f"{manager} manages it"
    if lifecycle := instance.get("InstanceLifecycle"):
        return f"its lifecycle is {lifecycle}, and only an On-Demand instance can always be started again"
    if group := tags_of(instance).get(_GROUP):
        return f"the Auto Scaling group {group} would take it for broken: set [provisioner] kind = autoscaling"
    if instance.get("RootDeviceType", "ebs") != "ebs":
        return f"its root device is {instance['RootDeviceType']}: it can be terminated only"
    if (instance.get("Placement") or {}).get("Tenancy") == "host":
        return "it is on a Dedicated Host, and would start on the same one"
    return ""


def _of_its_reservation(reservation: Mapping[str, Any], at_any_risk: bool, now: datetime) -> str:
    name, state = reservation["CapacityReservationId"], reservation.get("State")
    if reservation.get("ReservationType") == "capacity-block":
        return f"{name} is a Capacity Block, which returns freed capacity late: stop and start the instance yourself"
    if state != "active":
        return f"its reservation {name} is {state}"
    end = reservation.get("EndDate")
    if end and datetime.fromisoformat(str(end)) - now < NEAR_END:
        return f"its reservation {name} ends at {end}, within {NEAR_END.total_seconds() / 3600:g} hours"
    is_open = reservation.get("InstanceMatchCriteria") == "open"
    if is_open and not reservation.get("AvailableInstanceCount") and not at_any_risk:
        return f"its reservation {name} is open and full: any launch of the account could take its capacity"
    return ""
