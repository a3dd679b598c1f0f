"""What is news: once when it lasts, once when it is over, and nothing of what comes and goes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from healthd.model import Action, Component, Decision, Diagnosis, Remedy, Severity, Step, Verdict
from healthd.notifications.news import LASTS_S, MOST_LINES, UNKNOWN_LASTS_S, Piece, Seen, Topic, lines, tell, topics
from healthd.remediation.case import Case, End
from healthd.remediation.ports import Hold
from tests.judgement import a_case

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
CASE = a_case(
    component="gpu:GPU-1",
    steps=(Step.SLOT, Step.DRAIN, Step.REBOOT),
    index=2,
    hold=Hold(text="t", user="root", stamp=1),
)
HOLD = Decision(action=Action.HOLD, reason="nothing is wrong")


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


class Teller:
    """Tells, one moment after the other."""

    def __init__(self) -> None:
        self.memory: dict[str, Seen] = {}

    def hears(self, seconds: float, *wrong: Topic) -> list[str]:
        self.memory, news = tell(self.memory, wrong, at(seconds))
        return [f"{'over' if piece.over else 'wrong'} {piece.key}" for piece in news]


A, B = Topic(key="a", words="a is bad"), Topic(key="b", words="b is bad")


def test_what_lasts_is_told_once_and_its_end_once() -> None:
    """Told when it has lasted, silent while it stays, told when it has been over for as long."""
    teller = Teller()
    assert teller.hears(0, A) == []
    assert teller.hears(LASTS_S, A) == ["wrong a"]
    assert teller.hears(10_000, A) == []
    assert teller.hears(10_001) == []
    assert teller.hears(10_001 + LASTS_S) == ["over a"]
    assert (teller.memory, teller.hears(20_000)) == ({}, [])


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
    """What was known later, as a case that has moved on, is what people read."""
    memory, _ = tell({}, [A], T0)
    _, (piece,) = tell(memory, [replace(A, words="a is worse")], at(LASTS_S))
    assert piece.line == "WRONG: a is worse (since 2026-01-01 03:00:00 UTC)"


def told(
    *,
    verdict: Verdict = Verdict.OK,
    diagnoses: tuple[Diagnosis, ...] = (),
    acknowledged: tuple[Diagnosis, ...] = (),
    decision: Decision | None = HOLD,
    case: Case | None = None,
    least: Severity = Severity.CRITICAL,
) -> tuple[Topic, ...]:
    return topics(
        verdict=verdict, diagnoses=diagnoses, acknowledged=acknowledged, decision=decision, case=case, least=least
    )


def test_only_what_is_severe_enough_and_not_acknowledged_is_worth_telling() -> None:
    """A warning waits for the morning unless it is asked for; what somebody has seen is told to nobody."""
    both = (XID, WARM)
    assert [each.key for each in told(diagnoses=both)] == ["gpu.xid.79 gpu:GPU-1"]
    assert len(told(diagnoses=both, least=Severity.WARNING)) == 2
    assert told(diagnoses=both, acknowledged=(XID,)) == ()
    (topic,) = told(diagnoses=(XID,))
    assert topic.words == "gpu.xid.79 on gpu:GPU-1: critical, calls for reboot_node: fell off the bus"


def test_a_node_that_cannot_be_told_to_be_well_is_worth_it_after_minutes() -> None:
    """Unknown is not healthy; a driver that restarts takes minutes."""
    (topic,) = told(verdict=Verdict.UNKNOWN, decision=None)
    assert (topic.key, topic.lasts_s) == ("unknown", UNKNOWN_LASTS_S)


@pytest.mark.parametrize(
    ("case", "ending"),
    [
        (CASE, "at reboot"),
        (replace(CASE, end=End.FAILED), "at reboot, given up"),
        (replace(CASE, steps=(Step.STAY,), index=0), "at stay, until `healthd release`"),
    ],
)
def test_a_node_that_is_out_by_our_act_is_told_at_once(case: Case, ending: str) -> None:
    """With the case, and where it stands; one that holds no drain yet is not out."""
    (topic,) = told(case=case)
    assert (topic.key, topic.lasts_s) == ("case c1", 0)
    assert topic.words == f"out of service [c1] for gpu.xid.79 on gpu:GPU-1; {ending}"
    assert told(case=replace(case, hold=None)) == ()


def test_what_asks_for_a_person_is_told_at_once() -> None:
    """Once for each thing that is paged for, whatever the sentence says by the minute."""
    page = Decision(action=Action.PAGE, reason="nothing is left to try", diagnosis=XID)
    (topic,) = told(decision=page)
    assert (topic.key, topic.lasts_s) == ("page gpu.xid.79 gpu:GPU-1", 0)
    assert topic.words == "a person is needed: nothing is left to try"
    assert [each.key for each in told(decision=replace(page, diagnosis=None), case=CASE)] == ["case c1", "page c1"]
    assert [each.key for each in told(decision=replace(page, diagnosis=None))] == ["page "]


def test_a_message_has_a_bounded_number_of_lines_what_is_wrong_first() -> None:
    """Of more pieces than fit it says how many there are."""
    pieces = [Piece(key=str(number), words=f"w{number}", since=T0) for number in range(MOST_LINES + 5)]
    assert lines([]) == []
    assert lines(pieces)[-1] == "and 5 more"
    over = replace(pieces[0], over=T0)
    assert lines([over, pieces[1]]) == [pieces[1].line, over.line]
    assert over.line.startswith("over: w0")
