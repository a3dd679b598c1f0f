"""Requests in marks: no two of one node have the same time, and an answer never makes another request of one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from healthd.model import Mode, Remedy
from healthd.remediation.asked import wanted
from healthd.remediation.case import Case
from healthd.remediation.marks import Answer, CaseMark, parse
from healthd.remediation.playbook import STEPS
from healthd.remediation.successor import repair_mark

BEGAN = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
STEPS_OF_REPLACE = STEPS[Remedy.REPLACE_NODE]
CASE = Case(
    id="k3",
    opened=BEGAN,
    since=BEGAN,
    mode=Mode.REPAIR,
    code="gpu.xid.79",
    component="gpu:0",
    remedy=Remedy.REPLACE_NODE,
    why="",
    text="",
    steps=STEPS_OF_REPLACE,
    index=len(STEPS_OF_REPLACE) - 3,
    machine="i-1",
    attempts=1,
)


def request(now: datetime, before: str) -> str:
    """What the engine leaves and its provisioner turns into a request."""
    mark = parse(repair_mark(CASE, now, before=before, delegated=True))
    assert mark is not None
    return replace(mark, asks=True).text


def request_id(text: str, now: datetime) -> str:
    mark = parse(text)
    found = wanted("n1", mark, now, reboot_timeout_s=1800.0) if mark is not None else None
    assert found is not None
    return found.id


@given(st.lists(st.floats(min_value=0.0, max_value=3.0), min_size=1, max_size=20))
def test_no_two_requests_of_a_node_have_the_same_id(pauses: list[float]) -> None:
    """However fast orders follow each other, at whatever fraction of a second: each has an id of its own."""
    now, text, ids = BEGAN, "", []
    for pause in pauses:
        now += timedelta(seconds=pause)
        text = request(now, text)
        ids.append(request_id(text, now))
    assert len(set(ids)) == len(ids)


@given(back=st.floats(min_value=0.0, max_value=86_400.0))
def test_a_clock_that_goes_back_makes_no_earlier_request_again(back: float) -> None:
    """Set back by any time between two orders: the second one is another request, and not one of the far future."""
    first = request(BEGAN, "")
    now = BEGAN - timedelta(seconds=back)
    mark = parse(request(now, first))
    assert mark is not None
    assert mark.asked is not None
    assert mark.asked.replace(microsecond=0) != BEGAN
    assert abs(mark.asked - now) <= timedelta(seconds=62)


@given(
    answer=st.sampled_from([Answer.TAKEN, Answer.WAITS]),
    after=st.integers(min_value=0, max_value=100_000),
    said=st.text(max_size=40),
    became=st.sampled_from(["", "i-2"]),
)
def test_whatever_is_answered_it_is_the_same_request(answer: Answer, after: int, said: str, became: str) -> None:
    """No word that the controller or the node writes beside a request changes its id."""
    text = request(BEGAN, "")
    now = BEGAN + timedelta(seconds=after)
    answered = replace(
        parse(text) or CaseMark(),
        answer=answer,
        answered=now,
        said=said,
        became=became,
        replaced=now,
        code="x",
        since=now,
    )
    assert request_id(answered.text, now) == request_id(text, now)
