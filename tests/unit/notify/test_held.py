"""A message of a node is held while an incident of many nodes says as much, and no longer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from healthd.core.errors import BackendUnknown
from healthd.core.model import Action, Component, Decision, Diagnosis, Refusal, Remedy, Severity, Verdict
from healthd.notify.delivery import NotDeliveredError, Receiver
from healthd.notify.held import held
from healthd.notify.incident_hold import HELD_S, WAITING_S, IncidentHold
from healthd.notify.message import Message, Sender
from healthd.notify.news import PAGED, Topic, topics
from healthd.notify.notifier import Notifier
from healthd.remediation.records.incident_notices import LASTS, IncidentNotice, IncidentNotices

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
LOST = Topic(key="lost", message="/fsx is not mounted", code="lustre.missing", component="mount:/fsx", critical=True)
OTHER = Topic(key="other", message="GPU 3 fell off", code="gpu.xid.79", component="gpu:GPU-3", critical=True)
FAILED = Topic(key=f"{PAGED}x", message="the repair failed", critical=True, lasts_s=0.0)
INCIDENT = IncidentNotice(
    id="1124-3f2a9c", root="lustre mount:/fsx", began=NOW, nodes=frozenset({"gpu-1"}), critical=True, until=NOW + LASTS
)
NOTICES = IncidentNotices(watched_until=NOW + LASTS, open=(INCIDENT,))
MINUTE = timedelta(minutes=1)


class Head:
    """A notifier of ``gpu-1`` over notices that a test sets. ``read``: how often they were."""

    def __init__(self, *wrong: Topic, notices: IncidentNotices = NOTICES) -> None:
        self.wrong, self.notices, self.now, self.reads = list(wrong), notices, NOW, 0
        self.messages: list[Message] = []
        self.answers = self.accepts = True
        self.hold = IncidentHold("gpu-1", self._read, wait_s=90.0, monotonic_s=self._elapsed_s)
        self.notifier = Notifier(
            {"chat": Receiver(deliver=self._deliver)},
            per_hour=100,
            wrong=lambda: self.wrong,
            about=lambda: Sender(node="gpu-1", verdict="critical"),
            keep=lambda _: None,
            hold=self.hold,
        )

    def _elapsed_s(self) -> float:
        return (self.now - NOW).total_seconds()

    def _read(self) -> IncidentNotices:
        self.reads += 1
        if not self.answers:
            raise BackendUnknown("slurmctld does not answer")
        return self.notices

    def _deliver(self, message: Message) -> None:
        if not self.accepts:
            raise NotDeliveredError("no")
        self.messages.append(message)

    def accepted(self) -> frozenset[str] | None:
        return self.notifier.accepted

    def run(self, lasts: timedelta) -> list[str]:
        before, end = len(self.messages), self.now + lasts
        while self.now < end:
            self.notifier.tick(self.now)
            self.now += timedelta(seconds=5)
        return [piece["key"] for each in self.messages[before:] for piece in each.data["news"]]


def test_what_an_incident_covers_is_held_and_shown() -> None:
    """No message while the notice holds; `healthd status` shows the message and the incident. Its end, within the
    incident, is no news either."""
    head = Head(LOST)
    assert head.run(9 * MINUTE) == []
    assert head.notifier.held == ("message held: incident 1124-3f2a9c reports it: /fsx is not mounted",)
    head.wrong.clear()
    assert head.run(timedelta(seconds=50)) == []
    assert not head.notifier.held


def test_a_notice_that_ends_lets_the_message_go() -> None:
    """Because the incident ended without this node, or because no controller renews it any more."""
    ended = Head(LOST)
    ended.run(2 * MINUTE)
    ended.notices = IncidentNotices(watched_until=NOW + LASTS)
    assert ended.run(timedelta(seconds=HELD_S + 10)) == ["lost"]
    died = Head(LOST)
    assert died.run(LASTS) == []
    assert died.run(MINUTE) == ["lost"]


def test_a_clock_that_runs_behind_holds_no_message_for_longer() -> None:
    """A notice from far ahead counts as long as one may last, by the node's own uptime."""
    far = replace(INCIDENT, until=NOW + timedelta(days=9))
    head = Head(LOST, notices=IncidentNotices(watched_until=far.until, open=(far,)))
    head.run(MINUTE)
    head.answers = False
    head.run(LASTS)
    assert [piece["key"] for each in head.messages for piece in each.data["news"]] == ["lost"]


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ([LOST, OTHER], ["lost", "other"]),
        ([LOST, FAILED], ["lost", f"{PAGED}x"]),
        ([LOST, Topic(key="mild", message="", code="gpu.count")], ["mild"]),
    ],
)
def test_beside_anything_else_that_is_critical_all_is_sent(wrong: list[Topic], expected: list[str]) -> None:
    """A fault of its own waits at most ninety seconds; a page of a repair that failed waits for nothing. A warning
    beside it goes alone."""
    head = Head(*wrong)
    assert sorted(head.run(3 * MINUTE)) == sorted(expected)


def test_what_was_sent_before_the_incident_is_not_held() -> None:
    """It stands as it is, and its end is sent; only first messages are held."""
    head = Head(LOST, notices=IncidentNotices())
    assert head.run(MINUTE) == ["lost"]
    second = replace(LOST, key="second")
    head.notices = NOTICES
    head.wrong.append(second)
    assert head.run(MINUTE) == []
    assert len(head.notifier.held) == 1
    head.wrong.clear()
    assert head.run(2 * MINUTE) == ["lost"]


def test_a_milder_incident_covers_nothing_critical_and_another_node_nothing_at_all() -> None:
    """In doubt it is sent."""
    mild = replace(INCIDENT, critical=False)
    elsewhere = replace(INCIDENT, nodes=frozenset({"gpu-2"}))
    for notice in (mild, elsewhere):
        head = Head(LOST, notices=IncidentNotices(open=(notice,)))
        assert head.run(MINUTE) == ["lost"]
    assert Head(replace(LOST, critical=False), notices=IncidentNotices(open=(mild,))).run(MINUTE) == []


def test_it_waits_for_an_incident_only_where_a_controller_watches() -> None:
    """Ninety seconds at most; a fault that ends before is reported with its end."""
    assert Head(LOST, notices=IncidentNotices()).run(timedelta(seconds=25)) == ["lost"]
    watched = IncidentNotices(watched_until=NOW + LASTS)
    head = Head(LOST, notices=watched)
    assert head.run(timedelta(seconds=85)) == []
    assert head.notifier.held == ("message held: an incident of many nodes may report it: /fsx is not mounted",)
    assert head.run(timedelta(seconds=15)) == ["lost"]
    short = Head(LOST, notices=watched)
    assert short.run(timedelta(seconds=40)) == []
    short.wrong.clear()
    assert short.run(timedelta(seconds=10)) == ["lost"]
    assert short.messages[0].data["news"][0]["state"] == "over"


def test_the_cluster_is_read_only_while_a_message_may_be_held() -> None:
    """Every 15 s while one waits, every two minutes while all are covered, never for what no incident can cover."""
    assert _reads(Head(Topic(key="unknown", message="", lasts_s=600.0))) == 0
    assert _reads(Head(LOST)) == 8 * 60 // HELD_S
    alone = Head(LOST, notices=IncidentNotices())
    assert _reads(alone) == 1 + 15 // WAITING_S


def _reads(head: Head) -> int:
    head.run(8 * MINUTE)
    return head.reads


def test_an_unread_cluster_holds_nothing() -> None:
    """Nothing is known, so that every message goes as ever."""
    head = Head(LOST)
    head.answers = False
    assert head.run(timedelta(seconds=25)) == ["lost"]


def test_a_message_that_a_receiver_has_not_accepted_counts_as_none() -> None:
    """No node is asked to hold its own for it."""
    head = Head(FAILED, notices=IncidentNotices())
    assert head.accepted() is None
    head.accepts = False
    head.run(MINUTE)
    assert head.accepted() == frozenset()
    head.accepts = True
    head.run(5 * MINUTE)
    assert head.accepted() == frozenset({FAILED.key})


def test_pages_of_the_fault_may_be_held_and_those_of_its_repair_may_not() -> None:
    """That many nodes have it is the incident's to say; that a repair failed, is overdue or asks is the node's."""
    fault = Diagnosis(
        component=Component(kind="gpu", id="GPU-3"),
        code="gpu.xid.79",
        severity=Severity.CRITICAL,
        remedy=Remedy.REBOOT_NODE,
        reasons=("it fell off",),
        codes=("gpu.xid.79",),
        since=NOW,
    )
    pages = {}
    for refusal in (None, *Refusal):
        decision = Decision(action=Action.PAGE, reason="why", refusal=refusal, diagnosis=fault)
        found = topics(
            verdict=Verdict.CRITICAL,
            diagnoses=[fault],
            acknowledged=[],
            decision=decision,
            remediation=None,
            least=Severity.CRITICAL,
        )
        pages[refusal] = next(each for each in found if each.key.startswith(PAGED))
    assert all(each.critical for each in pages.values())
    of_fault = {refusal for refusal, page in pages.items() if page.code}
    assert of_fault >= {None, Refusal.HELD_BACK, Refusal.BUDGET}
    assert not of_fault & {Refusal.OVERDUE, Refusal.STUCK, Refusal.APPROVAL, Refusal.EXHAUSTED, Refusal.LEMON}


def test_what_ended_in_another_way_is_not_held() -> None:
    """A topic that only says how one ended is nobody's first message."""
    ending = replace(LOST, last=True)
    assert held([ending], {}, NOTICES, node="gpu-1", now=NOW, wait=MINUTE) == {}
