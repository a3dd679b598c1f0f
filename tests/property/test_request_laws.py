"""Requests in records: no two of one node are the same, an answer makes no other request of one, and each is one
act."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from healthd.core.errors import HealthdError
from healthd.core.model import Mode, Remedy
from healthd.remediation.controller.requests import wanted
from healthd.remediation.decide.adoption import repair_record
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.decide.rules import STEPS
from healthd.remediation.records.handoff import HandoffRecord, RequestAnswer, parse
from tests.support.controller_rig import AskedWorld
from tests.support.engine_wire import kill, no_answer
from tests.support.sampling import examples

BEGAN = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
STEPS_OF_REPLACE = STEPS[Remedy.REPLACE_NODE]
REMEDIATION = Remediation(
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
    record = parse(repair_record(REMEDIATION, now, before=before, delegated=True))
    assert record is not None
    return replace(record, asks=True).text


def request_id(text: str, now: datetime) -> str:
    record = parse(text)
    found = wanted("n1", record, now, reboot_timeout_s=1800.0) if record is not None else None
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
    record = parse(request(now, first))
    assert record is not None
    assert record.asked is not None
    assert record.asked.replace(microsecond=0) != BEGAN
    assert abs(record.asked - now) <= timedelta(seconds=62)


@given(
    answer=st.sampled_from([RequestAnswer.TAKEN, RequestAnswer.WAITS]),
    after=st.integers(min_value=0, max_value=100_000),
    message=st.text(max_size=40),
    became=st.sampled_from(["", "i-2"]),
)
def test_whatever_is_answered_it_is_the_same_request(
    answer: RequestAnswer, after: int, message: str, became: str
) -> None:
    """No word that the controller or the node writes beside a request changes its id."""
    text = request(BEGAN, "")
    now = BEGAN + timedelta(seconds=after)
    answered = replace(
        parse(text) or HandoffRecord(),
        answer=answer,
        answered=now,
        message=message,
        became=became,
        replaced=now,
        code="x",
        since=now,
    )
    assert request_id(answered.text, now) == request_id(text, now)


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_however_often_leaders_die_a_request_is_one_act(data: st.DataObject) -> None:
    """Orders, kills, lost stores and lost answers, in any order and anywhere: each order is carried out exactly once,
    and none is answered from the memory of another."""
    with TemporaryDirectory(dir=MEMORY) as folder:
        world = AskedWorld(Path(folder)).repeats(0.0)
        for order in range(1, data.draw(st.integers(min_value=1, max_value=3)) + 1):
            for after in data.draw(st.lists(st.integers(min_value=0, max_value=60), max_size=3, unique=True)):
                world.wire.at[len(world.wire.passed) + after] = data.draw(st.sampled_from([kill, no_answer]))
            loses_store = data.draw(st.booleans())
            for _ in range(30):
                kills = world.kills
                with suppress(HealthdError):
                    world.run(1)
                if loses_store and world.kills > kills:
                    world.forget()
            assert (world.acts, world.record.answer, world.record.became) == (order, RequestAnswer.TAKEN, "i-2")
            world.wire.at.clear()
            world.provisioner.instance = "i-1"
            world.clock.advance(data.draw(st.sampled_from([1.0, 60.0, 86_400.0])))
            world.ask(replace(world.record, answer=None, answered=None, message="", became="", replaced=None))
        world.close()
