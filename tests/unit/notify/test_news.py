"""What is news: what lasts, what changed, what stands each day, its end, and nothing of what comes and goes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from healthd.core.model import Action, Component, Decision, Diagnosis, Refusal, Remedy, Root, Severity, Step, Verdict
from healthd.judge.devices import device_names
from healthd.judge.history import Fault
from healthd.notify.news import (
    AGAIN_S,
    COMES_AND_GOES_S,
    KNOWN_CHANGES_EVERY_S,
    LASTS_S,
    MOST_LINES,
    NODE_KEY,
    UNKNOWN_LASTS_S,
    UNREADABLE_LASTS_S,
    NewsKind,
    Piece,
    Topic,
    TopicMemory,
    lines,
    shifted,
    tell,
    topics,
    unkept,
)
from healthd.notify.node import for_operators
from healthd.remediation.decide.remediation import End, Remediation
from healthd.remediation.ports import Hold
from tests.support.judgement import a_remediation

T0 = datetime(2026, 1, 1, 3, 0, tzinfo=UTC)
GPU = Component(kind="gpu", id="GPU-1")
XID = Diagnosis(
    code="gpu.xid.79",
    component=GPU,
    severity=Severity.CRITICAL,
    remedy=Remedy.REBOOT_NODE,
    reasons=("fell off the bus",),
    since=T0,
)
WARM = replace(XID, code="gpu.temperature.high", severity=Severity.WARNING, remedy=Remedy.NONE)
REMEDIATION = a_remediation(
    component="gpu:GPU-1",
    steps=(Step.SLOT, Step.DRAIN, Step.REBOOT),
    index=2,
    hold=Hold(text="t", user="root", stamp=1),
    note="waiting for 12 to end",
)
HOLD = Decision(action=Action.HOLD, reason="nothing is wrong")


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


class Teller:
    """Tells, one moment after the other."""

    def __init__(self) -> None:
        self.memory: dict[str, TopicMemory] = {}

    def hears(self, seconds: float, *wrong: Topic) -> list[str]:
        self.memory, news = tell(self.memory, wrong, at(seconds))
        return [f"{piece.news} {piece.key}" for piece in news]


A, B = Topic(key="a", message="a is bad"), Topic(key="b", message="b is bad")


def test_what_lasts_is_told_once_and_its_end_once() -> None:
    """Told when it has lasted, silent while it stays, told when it has been over for as long."""
    teller = Teller()
    assert teller.hears(0, A) == []
    assert teller.hears(LASTS_S, A) == ["wrong a"]
    assert teller.hears(10_000, A) == []
    assert teller.hears(10_001) == []
    assert teller.hears(10_001 + LASTS_S) == ["over a"]
    assert teller.hears(20_000) == []
    assert (teller.hears(10_001 + LASTS_S + AGAIN_S), teller.memory) == ([], {})


def test_what_comes_back_must_be_over_for_longer_each_time() -> None:
    """Within a day, and for an hour at most; what stood for a day begins again."""
    teller, s = Teller(), 0.0
    for over_s in (LASTS_S, 4 * LASTS_S, 16 * LASTS_S, 64 * LASTS_S, COMES_AND_GOES_S, COMES_AND_GOES_S):
        teller.hears(s, A)
        assert teller.hears(s + LASTS_S, A) == ["wrong a"]
        teller.hears(s + 100)
        assert teller.hears(s + 100 + over_s - 1) == []
        s += 100 + over_s
        assert teller.hears(s) == ["over a"]
    teller.hears(s, A)
    teller.hears(s + LASTS_S, A)
    teller.hears(s := s + AGAIN_S, A)
    teller.hears(s)
    assert teller.hears(s + LASTS_S) == ["over a"]


def test_that_a_node_is_in_service_again_is_said_at_once() -> None:
    """However often it went out: how often that may be in a day is the engine's to bound."""
    teller, node = Teller(), Topic(key=NODE_KEY, message="out of service", lasts_s=0.0)
    for s in range(0, 5_000, 1_000):
        assert teller.hears(s, node) == [f"wrong {NODE_KEY}"]
        teller.hears(s + 100)
        assert teller.hears(s + 100 + LASTS_S) == [f"over {NODE_KEY}"]


def test_what_came_back_and_went_before_it_was_told_is_no_return() -> None:
    """A second that nobody heard of makes the next end no later."""
    teller = Teller()
    teller.hears(0, A)
    teller.hears(LASTS_S, A)
    teller.hears(50)
    assert teller.hears(50 + LASTS_S) == ["over a"]
    teller.hears(200, A)
    teller.hears(201)
    teller.hears(300, A)
    assert teller.hears(300 + LASTS_S, A) == ["wrong a"]
    assert teller.memory["a"].returns == 1


def test_what_comes_and_goes_is_nobodys_business() -> None:
    """Over before it was told: nothing is said of it, and nothing remembered."""
    teller = Teller()
    teller.hears(0, A)
    assert (teller.hears(LASTS_S / 2), teller.memory) == ([], {})


def test_what_is_back_before_its_end_was_told_is_no_news() -> None:
    """A fault that flaps is told once, and its end when it stays away."""
    teller = Teller()
    teller.hears(0, A)
    told = teller.hears(LASTS_S, A)
    for step in range(1, 20):
        told += teller.hears(LASTS_S + 5 * step, *(() if step % 2 else (A,)))
    assert told == ["wrong a"]
    assert teller.hears(LASTS_S + 95 + LASTS_S) == ["over a"]


def test_what_breaks_together_is_told_together() -> None:
    """Two faults some seconds apart are each told when they have lasted, and each of them ends alone."""
    teller = Teller()
    teller.hears(0, A, B)
    assert teller.hears(LASTS_S, A, B) == ["wrong a", "wrong b"]
    teller.hears(100, B)
    assert teller.hears(100 + LASTS_S, B) == ["over a"]


def test_the_words_are_those_of_the_moment_it_is_told() -> None:
    """What was known later, as a remediation that has moved on, is what people read."""
    memory, _ = tell({}, [A], T0)
    _, (piece,) = tell(memory, [replace(A, message="a is worse")], at(LASTS_S))
    assert piece.line == "PROBLEM: a is worse (since 2026-01-01 03:00:00 UTC)"


def test_another_cause_is_told_once_it_lasts_and_one_that_was_told_before_not_each_minute() -> None:
    """People who know of it hear that it is another by now; two causes that take turns are no stream of messages."""
    teller, other = Teller(), replace(A, cause="other", message="a is worse")
    teller.hears(0, A)
    assert teller.hears(LASTS_S, A) == ["wrong a"]
    assert teller.hears(20, other) == []
    assert teller.hears(25, A) == [], "it was another for a moment"
    assert teller.hears(30, other) == []
    assert teller.hears(30 + LASTS_S, other) == ["now a"]
    assert teller.memory["a"].message == "a is worse"
    heard = [news for step in range(30) for news in teller.hears(60 + 60 * step, A)]
    assert heard == []
    assert teller.hears(45 + KNOWN_CHANGES_EVERY_S, A) == ["now a"]


def test_what_counts_is_no_other_cause() -> None:
    """The cause makes the news, not the words."""
    teller = Teller()
    teller.hears(0, A)
    teller.hears(LASTS_S, A)
    assert teller.hears(1_000, replace(A, message="a is bad, 7 times")) == []


def test_what_stands_is_told_again_as_often_as_it_says() -> None:
    """Each day for what an operator has to see to, in the words of that day; never for what is told once."""
    teller, daily = Teller(), replace(B, again_s=AGAIN_S)
    assert teller.hears(0, A, daily) == []
    assert teller.hears(LASTS_S, A, daily) == ["wrong a", "wrong b"]
    assert teller.hears(LASTS_S + AGAIN_S - 1, A, daily) == []
    assert teller.hears(LASTS_S + AGAIN_S, A, daily) == ["still b"]
    assert teller.hears(LASTS_S + 2 * AGAIN_S - 1, A, daily) == []
    assert teller.hears(LASTS_S + 2 * AGAIN_S, A, daily) == ["still b"]


def test_what_ended_otherwise_than_well_is_not_said_to_be_over() -> None:
    """Its end is told in its own words, to those who know of it; where it says of which cause, for that one alone."""
    teller, titled = Teller(), replace(A, cause="remediation c1", title="remediation c1")
    ending = Topic(key="a", message="held by root now", cause="remediation c1", last=True)
    assert (teller.hears(0, ending), teller.memory) == ([], {})
    teller.hears(0, titled)
    teller.hears(LASTS_S, titled)
    teller.hears(100, ending)
    _, (piece,) = tell(teller.memory, (ending,), at(100 + LASTS_S))
    assert (piece.line, piece.closes) == ("CLOSED: held by root now (since 2026-01-01 03:00:00 UTC)", True)
    _, (piece,) = tell(teller.memory, (replace(ending, cause="remediation c2"),), at(100 + LASTS_S))
    assert piece.line == "RESOLVED: remediation c1 (since 2026-01-01 03:00:00 UTC)"
    _, (piece,) = tell(teller.memory, (replace(ending, cause=""),), at(100 + LASTS_S))
    assert piece.news is NewsKind.ENDED


def test_the_clock_moves_what_is_remembered() -> None:
    """Nothing is told sooner or later because the clock was set."""
    seen = TopicMemory(message="w", since=at(0), gone=at(5), at=at(3), changed=at(4), over=at(-6))
    hour = timedelta(hours=1)
    assert shifted(seen, hour, at(10) + hour) == replace(
        seen, since=at(0) + hour, gone=at(5) + hour, at=at(3) + hour, changed=at(4) + hour, over=at(-6) + hour
    )
    assert shifted(TopicMemory(message="w", since=at(0)), hour, at(10) + hour) == TopicMemory(
        message="w", since=at(0) + hour
    )


def told(
    *,
    verdict: Verdict = Verdict.OK,
    diagnoses: tuple[Diagnosis, ...] = (),
    acknowledged: tuple[Diagnosis, ...] = (),
    decision: Decision | None = HOLD,
    remediation: Remediation | None = None,
    least: Severity = Severity.CRITICAL,
    ended: Remediation | None = None,
    faults: tuple[Fault, ...] = (),
) -> tuple[Topic, ...]:
    return topics(
        verdict=verdict,
        diagnoses=diagnoses,
        acknowledged=acknowledged,
        decision=decision,
        remediation=remediation,
        least=least,
        ended=ended,
        faults=faults,
    )


def fault(code: str = "gpu.xid.79", **changes: Any) -> Fault:
    plain = Fault(
        code=code,
        component=GPU,
        check="c",
        severity=Severity.CRITICAL,
        remedy=Remedy.REBOOT_NODE,
        message="m",
        first=T0,
        last=T0,
        boot_id="b",
    )
    return replace(plain, **changes)


def test_only_what_is_severe_enough_is_worth_telling() -> None:
    """A warning waits for the morning unless it is asked for; one that was critical is said to be open still."""
    both = (XID, WARM)
    assert [each.key for each in told(diagnoses=both) if not each.last] == ["gpu.xid.79 gpu:GPU-1"]
    assert len(told(diagnoses=both, least=Severity.WARNING)) == 2
    (topic,) = told(diagnoses=(XID,))
    assert topic.message == "gpu.xid.79 on gpu:GPU-1: critical, calls for reboot_node: fell off the bus"
    (lowered,) = told(diagnoses=(WARM,))
    assert (lowered.last, lowered.message) == (
        True,
        "gpu.temperature.high on gpu:GPU-1: still open, now only warning",
    )


def test_an_acknowledged_fault_is_told_as_that_each_day_while_it_is_critical() -> None:
    """It is open; until when the operator's word holds is said where it is known."""
    (topic,) = told(diagnoses=(XID,), acknowledged=(XID,))
    assert topic.message == "gpu.xid.79 on gpu:GPU-1: acknowledged, by an operator; the fault is still open"
    assert (topic.cause, topic.again_s, topic.title) == ("acknowledged critical", AGAIN_S, "gpu.xid.79 on gpu:GPU-1")
    open_now = fault(acknowledged=True, acknowledged_until=at(0))
    (topic,) = told(diagnoses=(XID,), faults=(open_now,))
    assert "acknowledged until 2026-01-01 03:00 UTC, by an operator" in topic.message
    (topic,) = told(diagnoses=(WARM,), acknowledged=(WARM,), least=Severity.WARNING)
    assert topic.again_s == 0


def test_a_critical_fault_that_nothing_is_done_about_is_told_each_day() -> None:
    """An open remediation has a bound of its own, and its page."""
    (topic,) = told(diagnoses=(XID,))
    assert topic.again_s == AGAIN_S
    assert [each.again_s for each in told(diagnoses=(XID,), remediation=REMEDIATION)] == [0, 0]
    assert [each.again_s for each in told(diagnoses=(WARM,), least=Severity.WARNING)] == [0]


def test_each_fault_of_a_part_is_a_topic_of_its_own() -> None:
    """One that is no longer the worst of its part is not over; what another explains by now is said to be open."""
    roots = (
        Root(code="gpu.xid.79", severity=Severity.CRITICAL, remedy=Remedy.REBOOT_NODE, since=T0),
        Root(code="gpu.xid.95", severity=Severity.CRITICAL, remedy=Remedy.RESET_GPU, since=T0),
    )
    both = replace(XID, roots=roots, reasons=("lost", "uncontained", "missing"), codes=("gpu.missing", "gpu.xid.79"))
    found = told(diagnoses=(both,), faults=(fault(), fault("gpu.missing"), fault("odd")))
    assert [each.message for each in found] == [
        "gpu.xid.79 on gpu:GPU-1: critical, calls for reboot_node: lost; missing",
        "gpu.xid.95 on gpu:GPU-1: critical, calls for reset_gpu: uncontained",
        "gpu.missing on gpu:GPU-1: still open, a symptom of gpu.xid.79 on gpu:GPU-1",
        "odd on gpu:GPU-1: still open, a symptom of another fault",
    ]
    assert [each.last for each in found] == [False, False, True, True]


def test_a_node_that_cannot_be_told_to_be_well_is_worth_it_after_minutes() -> None:
    """Unknown is not healthy; a driver that restarts takes minutes."""
    (topic,) = told(verdict=Verdict.UNKNOWN, decision=None)
    assert (topic.key, topic.lasts_s) == ("unknown", UNKNOWN_LASTS_S)


def test_a_node_that_is_out_by_our_act_is_told_at_once() -> None:
    """With the remediation, and what it waits for; one that holds no drain yet is not out, one without a drain step
    is."""
    (topic,) = told(remediation=REMEDIATION)
    assert (topic.key, topic.lasts_s, topic.cause) == ("node", 0, "remediation c1")
    assert topic.message == "out of service for gpu.xid.79 on gpu:GPU-1 [c1]: waiting for 12 to end"
    assert topic.title == "out of service for gpu.xid.79 on gpu:GPU-1 [c1]"
    assert told(remediation=replace(REMEDIATION, hold=None)) == ()
    by_slot = replace(REMEDIATION, hold=None, steps=(Step.SLOT, Step.REPLACE), index=1)
    assert [each.key for each in told(remediation=by_slot)] == ["node"]
    assert told(remediation=replace(by_slot, index=0)) == ()


def test_a_node_that_another_holds_is_told_as_that() -> None:
    """Each day while a critical fault is open on it; it is not over, and not ours."""
    foreign = Decision(action=Action.HOLD, reason="held by root", refusal=Refusal.FOREIGN_HOLD, diagnosis=XID)
    (topic,) = told(decision=foreign)
    assert (topic.message, topic.cause) == ("held by root; gpu.xid.79 on gpu:GPU-1 is still open", "foreign")
    assert topic.again_s == AGAIN_S
    (topic,) = told(decision=replace(foreign, diagnosis=None))
    assert (topic.message, topic.again_s) == ("held by root", 0)
    (topic,) = told(decision=replace(foreign, diagnosis=WARM))
    assert topic.again_s == 0


def test_what_waits_for_a_slot_on_a_node_of_somebody_elses_is_over_by_its_fault() -> None:
    """When that ends, "over" names it: the node may be out all the same."""
    foreign = Decision(
        action=Action.HOLD, reason="waits for a slot: already out of service", refusal=Refusal.FOREIGN_HOLD
    )
    waits = replace(REMEDIATION, index=0, hold=None)
    assert [topic.title for topic in told(decision=foreign, remediation=waits)] == [
        f"{REMEDIATION.code} on {REMEDIATION.component}, on a node of another owner"
    ]


def test_a_machine_that_follows_another_says_that_the_fault_of_that_is_over() -> None:
    """Its disk is empty: it takes up the topic of the fault while it is verified, so that somebody ends it."""
    steps = (Step.SLOT, Step.DRAIN, Step.REPLACE, Step.VERIFY)
    follows = replace(REMEDIATION, steps=steps, index=3)
    topic = told(remediation=follows)[0]
    assert (topic.key, topic.cause) == ("gpu.xid.79 gpu:GPU-1", "replaced")
    assert topic.message == "gpu.xid.79 on gpu:GPU-1: machine replaced, verifying the new one"
    assert [each.key for each in told(remediation=replace(follows, index=2))] == ["node"]
    assert [each.key for each in told(remediation=replace(follows, code=""))] == ["node"]
    assert [each.cause for each in told(remediation=follows, diagnoses=(XID,))] == [
        "critical reboot_node",
        "remediation c1",
    ]


def test_a_drain_of_ours_without_a_case_is_told() -> None:
    """It keeps the node out, whoever left it."""
    (topic,) = told(decision=Decision(action=Action.HOLD, reason="held by ours", refusal=Refusal.ORPHAN))
    assert (topic.key, topic.message, topic.cause) == ("node", "held by ours", "orphan")


def test_how_our_part_ended_is_said_where_the_node_is_not_simply_back() -> None:
    """An operator's order with the fault open, a remediation that somebody took over; a release is over and no more."""
    known = Decision(action=Action.HOLD, reason="acknowledged", refusal=Refusal.ACKNOWLEDGED, diagnosis=XID)
    (topic,) = told(decision=known)
    assert (topic.last, topic.message) == (
        True,
        "back in service by an operator, although gpu.xid.79 on gpu:GPU-1 is still open",
    )
    (topic,) = told(decision=replace(known, diagnosis=None))
    assert topic.message == "back in service by an operator"
    (topic,) = told(ended=replace(REMEDIATION, end=End.LOST, note="held by root"))
    assert (topic.last, topic.cause, topic.message) == (
        True,
        "remediation c1",
        "remediation ended without a release [c1]: held by root",
    )
    left = replace(REMEDIATION, end=End.ABANDONED, note="the node stays drained by the cluster itself")
    for next_case in (None, replace(REMEDIATION, id="c2", hold=None, index=REMEDIATION.steps.index(Step.SLOT))):
        (stays,) = (each for each in told(remediation=next_case, ended=left) if each.key == "node")
        assert (stays.last, stays.message) == (
            True,
            "remediation ended without a release [c1]: the node stays drained by the cluster itself",
        )
    assert told(ended=replace(REMEDIATION, end=End.RELEASED)) == ()


def test_a_fault_that_comes_and_goes_on_a_node_that_the_cluster_drained_is_told_of_a_few_times_a_day() -> None:
    """Each time a remediation goes on with the cluster's own drain, and ends because nothing was repaired: the node is
    out all the while, and that is not told six times an hour. That such a drain is undone by a repair is said at
    once."""
    teller, heard, remediation = Teller(), list[str](), replace(REMEDIATION, adopted=True)
    for number in range(144):
        remediation = replace(remediation, id=f"c{number}")
        heard += teller.hears(600.0 * number, *told(remediation=remediation))
        left = replace(
            remediation, end=End.ABANDONED, note="nothing was repaired; the node stays drained by the cluster itself"
        )
        for s in (240.0, 300.0, 420.0):
            heard += teller.hears(600.0 * number + s, *told(ended=left))
    assert 2 <= len(heard) <= 16
    teller.hears(90_000.0, *told(remediation=remediation))
    assert teller.hears(90_000.0 + 60.0) == []
    assert teller.hears(90_000.0 + 60.0 + LASTS_S) == [f"over {NODE_KEY}"]


def test_what_asks_for_an_operator_is_told_at_once_and_each_day() -> None:
    """One key for a fault, whatever the sentence says by the minute, and another cause where it asks for another
    reason."""
    page = Decision(action=Action.PAGE, reason="2 of 40 are out", diagnosis=XID, refusal=Refusal.CORRELATED)
    (topic,) = told(decision=page)
    assert (topic.key, topic.lasts_s, topic.again_s) == ("page gpu.xid.79 gpu:GPU-1", 0, AGAIN_S)
    assert topic.message == "an operator is needed: 2 of 40 are out"
    assert topic.title == "operator no longer needed for gpu.xid.79 on gpu:GPU-1"
    (counted,) = told(decision=replace(page, reason="3 of 40 are out"))
    assert (counted.key, counted.cause) == (topic.key, topic.cause)
    given_up = Decision(action=Action.PAGE, reason="given up, an operator is needed")
    _, other = told(decision=given_up, remediation=REMEDIATION)
    assert (other.key, other.message) == (topic.key, "given up, an operator is needed")
    assert other.cause != topic.cause
    assert [each.key for each in told(decision=given_up)] == ["page "]


@pytest.mark.parametrize(
    ("refusal", "cause", "lasts_s"),
    [
        (Refusal.STUCK, "stuck", 0),
        (Refusal.UNREADABLE, "unreadable", UNREADABLE_LASTS_S),
        (Refusal.OVERDUE, "overdue reboot", 0),
        (Refusal.BUDGET, "budget", 0),
        (Refusal.CORRELATED, "correlated", 0),
    ],
)
def test_a_page_is_no_other_one_for_the_error_of_the_moment(refusal: Refusal, cause: str, lasts_s: float) -> None:
    """A cluster that answers otherwise each minute is one cause; one that restarts is none. So is a fleet at its limit,
    by its slots or by its nodes, and a fault of many nodes, which names more of them each minute."""
    topic = told(decision=Decision(action=Action.PAGE, reason="no answer", refusal=refusal), remediation=REMEDIATION)[
        -1
    ]
    assert (topic.cause, topic.lasts_s) == (cause, lasts_s)
    assert told(decision=Decision(action=Action.PAGE, reason="no", refusal=Refusal.OVERDUE))[0].cause == "overdue "


def test_what_holds_back_a_whole_fleet_has_one_key_on_every_node() -> None:
    """Whichever GPU it is here."""
    page = Decision(action=Action.PAGE, reason="40 nodes in a day", diagnosis=XID, refusal=Refusal.HELD_BACK)
    elsewhere = replace(page, diagnosis=replace(XID, component=Component(kind="gpu", id="GPU-2")))
    assert [told(decision=each)[0].key for each in (page, elsewhere)] == ["page fleet gpu.xid.79"] * 2


def test_a_state_that_cannot_be_written_asks_for_an_operator() -> None:
    """Once it lasts; nothing is repaired meanwhile."""
    (topic,) = unkept("disk full")
    assert (topic.key, topic.lasts_s, topic.again_s) == ("page state", UNKNOWN_LASTS_S, AGAIN_S)
    assert topic.message.endswith("healthd cannot write its state, so it repairs nothing: disk full")
    assert "it can write there" in topic.next_step
    assert unkept("") == ()


def test_a_page_that_no_fault_explains_says_what_to_do() -> None:
    """A repair that was given up, a silent cluster, a full budget, a cause on many nodes: the message has an operator's
    next step."""
    page = Decision(action=Action.PAGE, reason="no answer", refusal=Refusal.STUCK)
    given_up = replace(REMEDIATION, end=End.FAILED)
    failed = told(decision=replace(page, refusal=None), remediation=given_up)
    steps = [each.next_step for each in for_operators([*told(decision=page), failed[-1]], device_names({}, (), {}))]
    assert ["`healthd doctor`" in steps[0], "`healthd release`" in steps[1]] == [True, True]
    assert "max_out" in told(decision=replace(page, refusal=Refusal.BUDGET))[0].next_step
    assert "incidents" in told(decision=replace(page, refusal=Refusal.HELD_BACK))[0].next_step
    assert told(decision=replace(page, refusal=Refusal.PERSON))[0].next_step == ""


def test_a_message_has_a_bounded_number_of_lines_what_is_wrong_first() -> None:
    """Of more pieces than fit it says how many there are."""
    pieces = [Piece(key=str(number), message=f"w{number}", since=T0) for number in range(MOST_LINES + 5)]
    assert lines([]) == []
    assert lines(pieces)[-1] == "and 5 more"
    over = replace(pieces[0], over=T0, news=NewsKind.OVER)
    assert lines([over, pieces[1]]) == [pieces[1].line, over.line]
    assert over.line.startswith("RESOLVED: w0")
