"""What people are told, over any history of states: on time, each day again, another cause too, and no untruth."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from healthd.core.model import Action, Component, Decision, Diagnosis, Refusal, Refused, Remedy, Severity, Step, Verdict
from healthd.notify.news import (
    AGAIN_S,
    COMES_AND_GOES_S,
    KNOWN_CHANGES_EVERY_S,
    LASTS_S,
    NODE_KEY,
    PAGED,
    NewsKind,
    Topic,
    TopicMemory,
    tell,
    topics,
)
from healthd.remediation.decide.paging import Limits, RemediationStatus, due, wanted
from healthd.remediation.decide.remediation import End, Phase
from healthd.remediation.decide.rules import STEPS, kept_out
from healthd.remediation.ports import Hold
from tests.support.judgement import a_remediation

T0 = datetime(2026, 1, 1, tzinfo=UTC)
KEYS = ("page a", "b", "node")
LIMITS = Limits()

# ---------------------------------------------------------------------------------------------------------------------
# any history of topics


class Moment(Struct, frozen=True, kw_only=True):
    """One tick: how long after the one before, and for each key its cause, or "" where nothing stands."""

    after_s: float
    causes: tuple[str, ...]


MOMENTS = st.lists(
    st.builds(
        Moment,
        after_s=st.sampled_from((1.0, 5.0, LASTS_S, 60.0, KNOWN_CHANGES_EVERY_S, 40_000.0, AGAIN_S)),
        causes=st.tuples(*(st.sampled_from(("", "one", "two")) for _ in KEYS)),
    ),
    max_size=40,
)


class Teller:
    """Tells moment after moment, and knows for each key how long what stands has stood."""

    def __init__(self) -> None:
        self.now, self.memory = T0, dict[str, TopicMemory]()
        self.stood: dict[str, datetime] = {}
        self.same: dict[str, tuple[str, datetime]] = {}
        self.gone: dict[str, datetime] = {}
        self.told: dict[str, tuple[str, datetime]] = {}

    def lives(self, moment: Moment) -> list[tuple[str, NewsKind]]:
        self.now += timedelta(seconds=moment.after_s)
        causes = {key: cause for key, cause in zip(KEYS, moment.causes, strict=True) if cause}
        wrong = [
            Topic(key=key, message=f"{key} {cause}", cause=cause, again_s=AGAIN_S) for key, cause in causes.items()
        ]
        self.memory, pieces = tell(self.memory, wrong, self.now)
        self.stood = {key: self.stood.get(key, self.now) for key in causes}
        self.same = {
            key: self.same[key] if self.same.get(key, ("",))[0] == cause else (cause, self.now)
            for key, cause in causes.items()
        }
        self.gone = {key: self.gone.get(key, self.now) for key in KEYS if key not in causes}
        for piece in pieces:
            if piece.closes:
                self.told.pop(piece.key)
            else:
                self.told[piece.key] = (causes[piece.key], self.now)
        return [(piece.key, piece.news) for piece in pieces]

    def lasted(self, since: datetime, seconds: float) -> bool:
        return self.now - since >= timedelta(seconds=seconds)


@given(MOMENTS)
def test_over_is_true_at_that_moment_and_said_of_what_was_told(moments: list[Moment]) -> None:
    """It has been gone for as long as it must, and people knew of it."""
    teller = Teller()
    for moment in moments:
        before = dict(teller.told)
        for key, news in teller.lives(moment):
            if news is NewsKind.OVER:
                assert key in before
                assert teller.lasted(teller.gone[key], LASTS_S)
            else:
                assert key in teller.stood


@given(MOMENTS)
def test_what_lasts_is_told_and_again_each_day_and_ends_with_its_cause(moments: list[Moment]) -> None:
    """After each moment: what has stood long enough is known, was told within a day, and what is gone is closed."""
    teller = Teller()
    for moment in moments:
        teller.lives(moment)
        for key, since in teller.stood.items():
            known = key in teller.told
            assert known or not teller.lasted(since, LASTS_S)
            assert not known or not teller.lasted(teller.told[key][1], AGAIN_S)
        assert not any(
            key in teller.told and teller.lasted(since, COMES_AND_GOES_S) for key, since in teller.gone.items()
        )


@given(st.floats(20.0, 7_200.0), st.floats(20.0, 7_200.0))
def test_what_comes_and_goes_is_told_a_few_times_a_day(wrong_s: float, over_s: float) -> None:
    """However long it stays and is away: where it is away for less than an hour each time, six times a day."""
    teller, told, day = Teller(), 0, timedelta(days=1)
    until = teller.now + day
    while teller.now < until:
        for after_s, cause in ((LASTS_S, ""), (over_s, "one"), (LASTS_S, "one"), (wrong_s, "")):
            heard = teller.lives(Moment(after_s=after_s, causes=("", cause, cause)))
            told += sum(news is NewsKind.WRONG for key, news in heard if key != NODE_KEY)
    assert told <= (6 if over_s < COMES_AND_GOES_S - LASTS_S else 24)


@given(MOMENTS)
def test_another_cause_is_told_and_two_that_take_turns_are_no_stream(moments: list[Moment]) -> None:
    """What stands for longer than the known causes wait is what people know; a cause that they were told of before is
    no news again within that time."""
    teller, heard = Teller(), dict[tuple[str, str], datetime]()
    for moment in moments:
        for key, news in teller.lives(moment):
            if news is NewsKind.NOW:
                cause, last = teller.same[key][0], heard.get((key, teller.same[key][0]))
                assert last is None or teller.lasted(last, KNOWN_CHANGES_EVERY_S), cause
            if news is NewsKind.OVER:
                heard = {known: at for known, at in heard.items() if known[0] != key}
            else:
                heard[key, teller.same[key][0]] = teller.now
        for key, (cause, since) in teller.same.items():
            told = teller.told.get(key)
            lasted = told is not None and teller.lasted(max(since, told[1]), KNOWN_CHANGES_EVERY_S + LASTS_S)
            assert not lasted or teller.told[key][0] == cause


# ---------------------------------------------------------------------------------------------------------------------
# any state of a remediation

XID = Diagnosis(
    code="gpu.xid.79",
    component=Component(kind="gpu", id="GPU-1"),
    severity=Severity.CRITICAL,
    remedy=Remedy.REBOOT_NODE,
    reasons=("fell off the bus",),
    since=T0,
)
SECONDS = st.sampled_from((0.0, 60.0, 3_599.0, 3_600.0, 14_399.0, 14_400.0, 86_399.0, 86_400.0, 1e6))


@st.composite
def stands(draw: st.DrawFn) -> RemediationStatus:
    """A remediation anywhere in any playbook, however old, held up or ended, as its last turn left it."""
    steps = draw(st.sampled_from([*STEPS.values(), *(kept_out(each) for each in STEPS.values())]))
    since = T0 - timedelta(seconds=draw(SECONDS))
    remediation = replace(
        a_remediation(steps=steps, index=draw(st.integers(0, len(steps) - 1))),
        code=XID.code,
        component=str(XID.component),
        since=since,
        opened=since - timedelta(seconds=draw(SECONDS)),
        phase=draw(st.sampled_from(Phase)),
        remedy=draw(st.sampled_from((Remedy.RESET_GPU, Remedy.REBOOT_NODE, Remedy.REPLACE_NODE))),
        hold=draw(st.sampled_from((None, Hold(text="t", user="healthd", stamp=1)))),
        end=draw(st.sampled_from((None, None, None, *End))),
        fenced=draw(st.booleans()),
        good_since=draw(st.sampled_from((None, since))),
        asks=draw(st.sampled_from((None, Refused(kind=Refusal.PERSON, reason="only an operator can repair it")))),
        command=draw(st.sampled_from(("", "uid 0"))),
        note="as it is",
    )
    return RemediationStatus(
        remediation=remediation, page=draw(st.booleans()), refusal=draw(st.sampled_from((None, *Refusal)))
    )


def said_of(each: RemediationStatus, decision: Decision) -> dict[str, Topic]:
    remediation = each.remediation if each.remediation.is_open else None
    found = topics(
        verdict=Verdict.CRITICAL,
        diagnoses=(XID,),
        acknowledged=(),
        decision=decision,
        remediation=remediation,
        least=Severity.CRITICAL,
        ended=None if remediation else each.remediation,
    )
    return {topic.key: topic for topic in found if not topic.last}


DECIDED = st.sampled_from(
    [
        Decision(action=Action.REPAIR, reason="repair"),
        Decision(action=Action.HOLD, reason="nothing"),
        Decision(action=Action.PAGE, reason="at the limit", refusal=Refusal.BUDGET, diagnosis=XID),
    ]
)


@given(stands(), DECIDED, st.sampled_from(("", "no answer")))
def test_nothing_is_out_longer_than_its_bound_without_a_page_that_comes_again(
    each: RemediationStatus, decided: Decision, problem: str
) -> None:
    """Whatever it waits for, whoever is asked: an open remediation that is overdue pages, and the page is told each
    day."""
    decision = wanted(decided, each, problem, T0, LIMITS)
    message = said_of(each, decision)
    pages = [topic for key, topic in message.items() if key.startswith(PAGED)]
    if each.remediation.is_open and due(each.remediation, LIMITS) <= T0:
        assert decision.action is Action.PAGE
    assert len(pages) == (decision.action is Action.PAGE)
    assert all(page.again_s == AGAIN_S for page in pages)


@given(stands(), DECIDED)
def test_a_page_of_a_case_has_a_cause_in_that_case(each: RemediationStatus, decided: Decision) -> None:
    """What was wanted before it was opened does not outlive that: somebody is asked for by its turn, its end, what it
    was opened for, or its age."""
    decision = wanted(decided, each, "", T0, LIMITS)
    remediation = each.remediation
    causes = (
        each.page,
        remediation.end is End.FAILED,
        remediation.asks is not None,
        remediation.is_open and due(remediation, LIMITS) <= T0,
    )
    assert decision.action is not Action.PAGE or any(causes)


@given(stands(), DECIDED)
def test_a_node_that_our_drain_holds_is_said_to_be_out(each: RemediationStatus, decided: Decision) -> None:
    """Its own topic stands for as long as the remediation has its drain, so that none says that it is over."""
    message = said_of(each, wanted(decided, each, "", T0, LIMITS))
    if each.remediation.is_open and each.remediation.hold is not None:
        story = (
            f"the cluster's own drain, {each.remediation.code}"
            if each.remediation.adopted
            else f"remediation {each.remediation.id}"
        )
        assert message[NODE_KEY].cause == story
        assert Step.DRAIN in each.remediation.steps or message[NODE_KEY].message
