"""Whether a stopped instance could be started again: one rule of EC2 each."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from healthd.remediation.provisioners.ec2 import no_stop_reason

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
PLAIN: dict[str, Any] = {"InstanceId": "i-1", "RootDeviceType": "ebs", "Placement": {"Tenancy": "default"}}
KEPT: dict[str, Any] = {
    "CapacityReservationId": "cr-1",
    "State": "active",
    "InstanceMatchCriteria": "targeted",
    "AvailableInstanceCount": 0,
}


def test_a_place_that_is_kept_is_left_and_taken_again() -> None:
    """A targeted reservation keeps it, full or not; without one only at any risk."""
    assert no_stop_reason(PLAIN, KEPT, False, NOW) == ""
    assert no_stop_reason(PLAIN, None, True, NOW) == ""
    assert "its capacity could be lost" in no_stop_reason(PLAIN, None, False, NOW)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"InstanceLifecycle": "capacity-block"}, "its lifecycle is capacity-block"),
        ({"InstanceLifecycle": "spot"}, "its lifecycle is spot"),
        ({"RootDeviceType": "instance-store"}, "it can be terminated only"),
        ({"Placement": {"Tenancy": "host"}}, "would start on the same one"),
        ({"Operator": {"Managed": True, "Principal": "eks.amazonaws.com"}}, "eks.amazonaws.com manages it"),
        ({"Tags": [{"Key": "aws:autoscaling:groupName", "Value": "g"}]}, "set [provisioner] kind = autoscaling"),
    ],
)
def test_some_instances_are_never_stopped(more: dict[str, Any], why: str) -> None:
    """Whatever risk is accepted, and whatever reservation there is."""
    assert why in no_stop_reason({**PLAIN, **more}, KEPT, True, NOW)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"State": "expired"}, "its reservation cr-1 is expired"),
        ({"State": "not to be found"}, "is not to be found"),
        ({"ReservationType": "capacity-block"}, "a Capacity Block, which returns freed capacity late"),
        ({"EndDate": "2026-11-21 13:30:00+00:00"}, "within 2 hours"),
        ({"InstanceMatchCriteria": "open"}, "any launch of the account could take its capacity"),
    ],
)
def test_some_reservations_keep_no_place(more: dict[str, Any], why: str) -> None:
    """Ended, near its end, a block, or open to everybody and full."""
    assert why in no_stop_reason(PLAIN, {**KEPT, **more}, False, NOW)


def test_a_reservation_that_lasts_or_has_room_is_good() -> None:
    """Half a day to its end, or open with a place to spare."""
    assert no_stop_reason(PLAIN, {**KEPT, "EndDate": "2026-11-22 00:30:00+00:00"}, False, NOW) == ""
    spare = {**KEPT, "InstanceMatchCriteria": "open", "AvailableInstanceCount": 1}
    assert no_stop_reason(PLAIN, spare, False, NOW) == ""
