"""The events of a node on EventBridge: real boto3 in its child, and moto's EventBridge."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from moto.events.models import EventPattern

from healthd.notify.delivery import NotDeliveredError
from healthd.notify.eventbridge import DRAINED, DRILL, HANDED_OVER, RELEASED, REPAIR, to_eventbridge
from healthd.notify.message import Message, NewsItem
from healthd.notify.news import NewsKind
from healthd.remediation.provisioners.aws import Aws
from healthd.remediation.provisioners.iam import EVENT_SOURCE
from tests.live.aws.aws_endpoint import DENIED_JSON, REGION, THROTTLED_JSON, AwsEndpoint, Fault
from tests.support.notifications import NOW, SINCE, a_message
from tests.support.running import ROOT

BUS = f"arn:aws:events:{REGION}:123456789012:event-bus/healthd"
NODE_EVENTS = (DRAINED, REPAIR, RELEASED, HANDED_OVER)


def told(state: NewsKind, step: str) -> Message:
    """A message about the node's own state, which healthd took out."""
    node = NewsItem(key="node", state=state, message="out", since=SINCE, over=None, next_step="", out=True)
    return a_message(step=step, news=(node,))


@pytest.fixture
def events(moto: tuple[str, int], endpoint: AwsEndpoint) -> Any:
    """EventBridge with the site's bus."""
    client = boto3.client("events", region_name=REGION, endpoint_url="http://{}:{}".format(*moto))
    client.create_event_bus(Name="healthd")
    return client


def put(endpoint: AwsEndpoint) -> list[dict[str, Any]]:
    """The entries that EventBridge accepted, one for each call."""
    entries = []
    for operation, asked in endpoint.applied:
        assert operation == "PutEvents"
        (entry,) = asked["Entries"]
        entries.append({**entry, "Detail": json.loads(entry["Detail"])})
    return entries


@pytest.mark.process
def test_a_drain_a_repair_and_a_release_are_events_of_the_sites_bus(
    events: Any, endpoint: AwsEndpoint, aws: Aws
) -> None:
    """Each is an entry of a call of its own, with the document that a webhook gets; verification is none."""
    deliver = to_eventbridge(BUS, aws)
    deliver(told(NewsKind.WRONG, "reboot"))
    deliver(told(NewsKind.STEP, "verify"))
    deliver(told(NewsKind.OVER, ""))
    kinds = [each["DetailType"] for each in put(endpoint)]
    assert kinds == ["healthd Node Drained", "healthd Node Repair Begun", "healthd Node Released"]
    drained = put(endpoint)[0]
    assert (drained["EventBusName"], drained["Source"], drained["Resources"]) == (BUS, "healthd", ["i-0a1b"])
    assert datetime.fromtimestamp(drained["Time"], UTC) == NOW
    assert drained["Detail"] == told(NewsKind.WRONG, "reboot").data


@pytest.mark.process
def test_an_event_without_an_answer_counts_as_not_delivered(events: Any, endpoint: AwsEndpoint, aws: Aws) -> None:
    """It is sent once by this call, which says that AWS may have applied it, and by the next one again."""
    endpoint.fail("PutEvents", Fault(lost=True))
    with pytest.raises(NotDeliveredError, match=r"events:PutEvents: .*; AWS may have applied it"):
        to_eventbridge(BUS, aws)(told(NewsKind.OVER, ""))
    to_eventbridge(BUS, aws)(told(NewsKind.OVER, ""))
    first, second = put(endpoint)
    assert first == second


@pytest.mark.process
def test_a_throttled_event_is_sent_again_and_a_right_that_is_missing_is_named(
    events: Any, endpoint: AwsEndpoint, aws: Aws
) -> None:
    """A throttled call was not applied, so the same child repeats it."""
    endpoint.fail("PutEvents", THROTTLED_JSON, DENIED_JSON)
    with pytest.raises(NotDeliveredError, match="the role needs the IAM action events:PutEvents, see packaging/iam"):
        to_eventbridge(BUS, aws)(told(NewsKind.OVER, ""))
    assert endpoint.count("PutEvents") == 2
    assert put(endpoint) == []


@pytest.mark.process
def test_a_drill_is_an_event_that_says_so(events: Any, endpoint: AwsEndpoint, aws: Aws) -> None:
    """`healthd drill --notify` proves the role, the bus and the rule before anything is wrong."""
    to_eventbridge(BUS, aws)(a_message(drill=True))
    (event,) = put(endpoint)
    assert (event["DetailType"], event["Detail"]["drill"]) == ("healthd Drill", True)


class Refusing(Aws):
    """EventBridge that accepts the call and not its entry."""

    def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        return {"FailedEntryCount": 1, "Entries": [{"ErrorCode": "InternalFailure", "ErrorMessage": "try again"}]}


def test_an_entry_that_failed_is_not_delivered() -> None:
    """EventBridge answers 200 for it."""
    with pytest.raises(NotDeliveredError, match="events:PutEvents: InternalFailure: try again"):
        to_eventbridge(BUS, Refusing(region=REGION))(told(NewsKind.OVER, ""))


def test_news_of_faults_alone_is_no_event() -> None:
    """Nothing is sent: a call would raise."""
    to_eventbridge(BUS, Refusing(region=REGION))(a_message())


def test_the_rule_of_the_page_matches_the_nodes_and_no_drill() -> None:
    """By moto's own matching of patterns."""
    page = (ROOT / "docs" / "how-to" / "messages.md").read_text(encoding="utf-8")
    (rule,) = (text for text in re.findall(r"```json\n(.*?)```", page, re.DOTALL) if '"source"' in text)
    pattern = EventPattern.load(rule)
    for kind in (*NODE_EVENTS, DRILL):
        event: Any = {"source": EVENT_SOURCE, "detail-type": kind, "detail": told(NewsKind.OVER, "").data}
        assert pattern.matches_event(event) is (kind != DRILL)
        assert f"| `{kind}` |" in page
