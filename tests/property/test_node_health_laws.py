"""A handoff record survives its way through a NodeHealth: whatever a line of text can say, its fields say."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from healthd.core.model import Remedy
from healthd.remediation.orchestrators.kubernetes.objects.node_health import (
    TEXT_CHARACTERS,
    read_record,
    record_of,
    record_patch,
    text_of,
    without_nulls,
)
from healthd.remediation.records.handoff import HandoffRecord, PastAct, PastRepair, RepairResult, RequestAnswer, parse

TEXTS = st.text(max_size=12)
TIMES = st.datetimes(timezones=st.just(__import__("datetime").UTC)) | st.none()
REMEDIES = st.sampled_from(Remedy) | st.none()
HISTORY = st.lists(
    st.builds(
        PastRepair,
        act=st.sampled_from(PastAct),
        at=TIMES.filter(bool),
        code=TEXTS,
        outcome=st.sampled_from(RepairResult),
        back=TIMES,
    ),
    max_size=20,
).map(tuple)
MARKS = st.builds(
    HandoffRecord,
    remediation_id=TEXTS,
    machine=TEXTS,
    remedy=REMEDIES,
    asks=st.booleans(),
    withdrawn=REMEDIES,
    attempt=st.integers(0, 10**12),
    asked=TIMES,
    following=st.lists(st.sampled_from(Remedy), max_size=3).map(tuple),
    became=TEXTS,
    answer=st.sampled_from(RequestAnswer) | st.none(),
    answered=TIMES,
    boot=TEXTS,
    evidence=TEXTS,
    replaced=TIMES,
    slept=TIMES,
    awake=TIMES,
    watched=TIMES,
    given_up=TEXTS,
    code=TEXTS,
    since=TIMES,
    driver=TEXTS,
    kernel=TEXTS,
    image=TEXTS,
    history=HISTORY,
    message=st.text(max_size=300),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | TEXTS,
    lambda each: st.lists(each, max_size=3) | st.dictionaries(TEXTS, each, max_size=3),
    max_leaves=6,
)


@given(MARKS)
def test_what_a_line_can_say_survives_as_fields(made: HandoffRecord) -> None:
    """As JSON on the wire, too; and a second time nothing changes."""
    handoff = parse(made.text)
    assert handoff is not None
    record = msgspec.json.decode(msgspec.json.encode(record_of(handoff)))
    assert read_record(record).odd == ""
    assert read_record(record).handoff == handoff
    assert text_of(record) in (handoff.text, "")
    if len(handoff.text) <= TEXT_CHARACTERS:
        assert without_nulls(record_patch("n1", handoff.text))["record"] == record_of(handoff)


@given(
    st.dictionaries(
        st.sampled_from(sorted(record_of(HandoffRecord(remediation_id="x")) | {"history": 1, "asked": 1})), JSON
    )
)
def test_whatever_stands_there_is_read(record: dict[str, object]) -> None:
    """And what comes of it is a line that healthd can read."""
    text = text_of(record)
    assert text == "" or parse(text) is not None
