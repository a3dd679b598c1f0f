"""cloud.events: what EC2 announces; no item is no event, no answer is unknown. Inputs are constructed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial

import pytest

from healthd.checks.cloud_events import cloud_events
from healthd.core.check import NoSettings
from healthd.core.errors import SourceError, SourceMissing, SourceTimeout, SourceUnreadable
from healthd.core.model import Remedy, Result, Severity, Status
from healthd.testing import FakeNode
from healthd.testing import codes as codes_of

SCHEDULED = "events/maintenance/scheduled"
# In the form of the EC2 user guide, "View scheduled events".
EVENT = {
    "NotBefore": "21 Jan 2019 09:00:43 GMT",
    "Code": "system-reboot",
    "Description": "scheduled reboot",
    "EventId": "instance-event-0d59937288b749b32",
    "NotAfter": "21 Jan 2019 09:17:23 GMT",
    "State": "active",
}


def run(items: Mapping[str, str | SourceError] | SourceError) -> Result:
    return cloud_events(FakeNode(metadata_items=items), NoSettings())


def scheduled(*events: dict[str, str]) -> Result:
    return run({SCHEDULED: json.dumps([{**EVENT, **event} for event in events])})


codes = partial(codes_of, family="cloud.")


@pytest.mark.parametrize("items", [{}, {SCHEDULED: "[]"}, {"autoscaling/target-lifecycle-state": "InService"}])
def test_no_event(items: dict[str, str]) -> None:
    """An item that is not there (404), an empty list, and an instance in service are no event."""
    assert run(items).status is Status.OK


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("instance-reboot", "maintenance"),
        ("system-reboot", "maintenance"),
        ("system-maintenance", "maintenance"),
        ("instance-retirement", "retirement"),
        ("instance-stop", "retirement"),
    ],
)
def test_scheduled_events(code: str, found: str) -> None:
    """Maintenance passes, retirement ends the instance: two warnings that name the date and ask a person."""
    (finding,) = scheduled({"Code": code}).findings
    assert (finding.code, finding.severity, finding.remedy) == (f"cloud.{found}", Severity.WARNING, Remedy.ASK_HUMAN)
    assert finding.message == f"{code} not before 21 Jan 2019 09:00:43 GMT"


@pytest.mark.parametrize("state", ["completed", "canceled"])
def test_an_event_that_is_over(state: str) -> None:
    """What was completed or cancelled is no event, beside one that is not."""
    assert scheduled({"State": state}).status is Status.OK
    result = scheduled({"State": state}, {"Code": "instance-retirement"})
    assert codes(result) == ["retirement"]
    assert result.findings[0].evidence["count"] == 1


def test_spot() -> None:
    """An interruption is certain and near, so no job may start; a recommendation is a warning."""
    result = run({"spot/instance-action": '{"action": "terminate", "time": "2026-01-01T00:02:00Z"}'})
    assert codes(result) == ["spot_interruption"]
    assert result.findings[0].severity is Severity.CRITICAL
    assert "terminate this Spot instance at 2026-01-01T00:02:00Z" in result.findings[0].message
    result = run({"events/recommendations/rebalance": '{"noticeTime": "2026-01-01T00:00:00Z"}'})
    assert (codes(result), result.findings[0].severity) == (["rebalance"], Severity.WARNING)


@pytest.mark.parametrize(
    ("state", "found"),
    [("Terminated", ["leaving"]), ("Warmed:Terminated", ["leaving"]), ("Standby", []), ("Detached", [])],
)
def test_auto_scaling(state: str, found: list[str]) -> None:
    """A group that ends the instance keeps jobs off; standby and detachment leave it running."""
    assert codes(run({"autoscaling/target-lifecycle-state": state})) == found


def test_all_at_once() -> None:
    """Each announcement is its own finding."""
    result = run(
        {
            SCHEDULED: json.dumps([EVENT]),
            "spot/instance-action": "{}",
            "events/recommendations/rebalance": "{}",
            "autoscaling/target-lifecycle-state": "Terminated",
        }
    )
    assert codes(result) == ["maintenance", "spot_interruption", "rebalance", "leaving"]


def test_elsewhere() -> None:
    """Where there is no metadata service this does not apply."""
    assert run(SourceMissing("no instance metadata service")).status is Status.NOT_APPLICABLE


@pytest.mark.parametrize("item", [SCHEDULED, "spot/instance-action", "autoscaling/target-lifecycle-state"])
@pytest.mark.parametrize("error", [SourceTimeout("no answer within 1 s"), SourceUnreadable("503")])
def test_no_answer_is_unknown(item: str, error: SourceError) -> None:
    """A service that does not answer, to whatever question, is unknown."""
    with pytest.raises(type(error)):
        run({item: error})


@pytest.mark.parametrize("text", ["{}", "<html>", '["x"]'])
def test_an_odd_answer_is_unknown(text: str) -> None:
    """A list of another form is unknown, not empty."""
    with pytest.raises(SourceUnreadable, match="expected"):
        run({SCHEDULED: text})
