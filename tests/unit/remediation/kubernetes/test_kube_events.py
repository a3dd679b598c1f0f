"""What is told as Events, and how often."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from healthd.core.model import Action, Component, Decision, Diagnosis, Remedy, Severity
from healthd.remediation.orchestrators.kubernetes.objects.events import (
    ClusterEvent,
    WrittenEvents,
    count_in,
    event_name,
    event_of,
    news_of,
    series_of,
)

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
NEWS = ClusterEvent(reason="GpuXid79", action="Diagnosed", about="gpu.xid.79", note="n")


def diagnosis(code: str = "gpu.xid.79", severity: Severity = Severity.CRITICAL, gpu: str = "0") -> Diagnosis:
    return Diagnosis(
        code=code,
        component=Component(kind="gpu", id=gpu),
        severity=severity,
        remedy=Remedy.REBOOT_NODE,
        since=NOW,
        reasons=("r",),
    )


def test_open_faults_and_what_was_decided_are_news() -> None:
    """Not what is only information, and not that nothing is done."""
    found = (diagnosis(), diagnosis("gpu.xid.43", Severity.INFO))
    hold = Decision(action=Action.HOLD, reason="observe mode")
    assert [each.reason for each in news_of(found, hold)] == ["GpuXid79"]
    assert [each.reason for each in news_of(found, None)] == ["GpuXid79"]
    page = Decision(action=Action.PAGE, reason="at the limit", diagnosis=diagnosis())
    told = news_of((), page)
    assert [(each.reason, each.about, each.warning) for each in told] == [("Page", "gpu.xid.79", True)]
    back = news_of((), Decision(action=Action.RELEASE, reason="by order"))
    assert [(each.reason, each.about, each.warning) for each in back] == [("Release", "", False)]


def test_one_fault_on_many_parts_is_one_event() -> None:
    """Four parts are named, the others counted; another code is another Event."""
    many = [diagnosis("gpu.ecc.volatile", gpu=str(number)) for number in range(8)]
    told = news_of((*many, diagnosis()), None)
    assert [each.note for each in told] == [
        "gpu.ecc.volatile on gpu:0, gpu:1, gpu:2, gpu:3 and 4 more calls for reboot_node",
        "gpu.xid.79 on gpu:0 calls for reboot_node",
    ]


def test_the_same_news_has_the_same_name() -> None:
    """Whatever its note says; another code is other news; a long node's name is cut."""
    assert event_name("n1", NEWS) == event_name("n1", replace(NEWS, note="other"))
    assert event_name("n1", NEWS) != event_name("n1", replace(NEWS, about="gpu.xid.95"))
    assert len(event_name("n" * 253, NEWS)) == 253


def test_an_event_keeps_to_what_the_api_demands() -> None:
    """Lengths, time with microseconds, and a note that is never empty."""
    event = event_of(
        ClusterEvent(reason="R", action="A", about="", note="x\n" * 2000, warning=False),
        node="n" * 200,
        uid="u1",
        now=NOW,
    )
    assert (len(event["note"]), len(event["reportingInstance"]), event["type"]) == (1024, 128, "Normal")
    assert event["eventTime"] == "2026-11-21T12:00:00.000000Z"
    assert series_of(1, NOW) == {"series": {"count": 2, "lastObservedTime": "2026-11-21T12:00:00.000000Z"}}
    assert event_of(replace(NEWS, note="\n"), node="n1", uid="u1", now=NOW)["note"] == "-"


@pytest.mark.parametrize(
    ("event", "count"), [({}, 1), ({"series": {"count": 7}}, 7), ({"series": {"count": "7"}}, 1), ({"series": None}, 1)]
)
def test_an_event_says_how_often_it_was_told(event: dict[str, object], count: int) -> None:
    """Once, without a series."""
    assert count_in(event) == count


def test_news_is_told_at_growing_gaps_until_it_is_over() -> None:
    """At 0, 1, 6 and 21 minutes, then hourly; after it was over it is new."""
    telling, told = WrittenEvents(), []
    for second in range(4 * 3600):
        if (due := telling.due([NEWS], float(second))) is not None:
            telling.told(due, telling.count(due) + 1, float(second))
            told.append(second)
    assert told == [0, 60, 360, 1260, 4860, 8460, 12060]
    assert telling.count(NEWS) == 7
    assert telling.due([], 14_400.0) is None
    assert telling.count(NEWS) == 0
    assert telling.due([NEWS], 14_401.0) == NEWS


def test_what_was_not_told_waits_a_minute() -> None:
    """The rest as well: conditions and the budget come first."""
    telling = WrittenEvents()
    telling.failed(0.0)
    assert telling.due([NEWS], 59.0) is None
    assert telling.due([NEWS], 60.0) == NEWS
