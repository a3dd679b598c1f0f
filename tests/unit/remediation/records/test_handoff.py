"""The record at a node: what is written is read back, whatever was put in; what others wrote harms nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from healthd.core.model import Remedy
from healthd.remediation.records.handoff import (
    HandoffRecord,
    PastAct,
    PastRepair,
    RepairResult,
    RequestAnswer,
    Versions,
    by_now,
    instance_of,
    is_ahead,
    launched_after,
    parse,
    plain,
    remembering,
    showing,
    with_outcome,
    withdrawing,
    word,
)

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
WORDS = st.text(max_size=30)
REMEDIES = st.sampled_from([Remedy.REBOOT_NODE, Remedy.REPLACE_NODE])
TIMES = st.integers(0, 4_000_000_000).map(lambda s: datetime.fromtimestamp(s, UTC))
CODES = st.from_regex(r"[a-z0-9_.-]{0,40}", fullmatch=True)
PASTS = st.builds(
    PastRepair,
    act=st.sampled_from(list(PastAct)),
    at=TIMES,
    code=CODES,
    outcome=st.sampled_from(list(RepairResult)),
    back=st.none() | TIMES,
)


def newest(history: Sequence[PastRepair]) -> tuple[PastRepair, ...]:
    """The last eight acts and the last eight returns."""
    left, kept = {True: 8, False: 8}, []
    for each in reversed(history):
        if left[each.act is PastAct.RETURN]:
            left[each.act is PastAct.RETURN] -= 1
            kept.append(each)
    return tuple(reversed(kept))


@st.composite
def records(draw: st.DrawFn) -> HandoffRecord:
    """Any record that a caller could ask for, with any text in it."""
    remedy = draw(st.none() | REMEDIES)
    answer = draw(st.none() | st.sampled_from(list(RequestAnswer)))
    recent = TIMES
    return HandoffRecord(
        remediation_id=draw(WORDS),
        machine=draw(WORDS),
        remedy=remedy,
        asks=remedy is not None and draw(st.booleans()),
        withdrawn=draw(st.none() | REMEDIES),
        attempt=draw(st.integers(0, 99)),
        asked=draw(st.none() | recent),
        following=tuple(draw(st.lists(REMEDIES, max_size=3))),
        became=draw(WORDS),
        answer=answer,
        answered=draw(recent) if answer else None,
        boot=draw(WORDS),
        replaced=draw(st.none() | recent),
        given_up=draw(WORDS),
        code=draw(WORDS),
        since=draw(st.none() | recent),
        driver=draw(WORDS),
        kernel=draw(WORDS),
        image=draw(WORDS),
        history=tuple(draw(st.lists(PASTS, max_size=12))),
        message=draw(st.text(max_size=400)),
    )


@given(records())
def test_what_is_written_is_read_back(record: HandoffRecord) -> None:
    """Every field, with texts as the grammar can hold them; the line is one that Slurm keeps as it is."""
    back = parse(record.text)
    assert back is not None
    assert back.text == record.text
    assert record.text.isascii()
    assert record.text.isprintable()
    assert "|" not in record.text
    assert record.text.strip(' "') == record.text
    assert " Comment=" not in record.text
    assert " Extra=" not in record.text
    assert (back.remediation_id, back.machine, back.became) == (
        word(record.remediation_id),
        word(record.machine),
        word(record.became),
    )
    assert (back.driver, back.kernel, back.image) == (word(record.driver), word(record.kernel), word(record.image))
    assert (back.given_up, back.message) == (word(record.given_up), plain(record.message))
    assert back.history == newest(record.history)
    for name in ("remedy", "asks", "attempt", "asked", "following", "answer", "answered", "replaced", "since"):
        assert getattr(back, name) == getattr(record, name), name


@given(st.text(alphabet="healthd =,.0123456789-askdoertnxwi|\n", max_size=120))
def test_any_comment_is_read_without_a_complaint(text: str) -> None:
    """Somebody else's comment is none of ours; a torn one of ours says what is left of it."""
    record = parse(text)
    assert (record is None) == (text.split(" ", 1)[0] != "healthd")


@pytest.mark.parametrize(
    "odd",
    [
        "",
        "reboot",
        "reboot:1795226977:gpu.xid.79",
        "reboot:1795226977:gpu.xid.79:perhaps",
        "reboot:yesterday:gpu.xid.79:helped",
        "burn:1795226977:gpu.xid.79:helped",
        "reboot:1795226977:gpu.xid.79:helped:more",
    ],
)
def test_an_odd_entry_hides_no_other(odd: str) -> None:
    """A later version, or a person's hand, may write what this one does not know."""
    record = parse(f"healthd history=reset:1795226900:gpu.xid.95:failed,{odd},return:1795226999::")
    assert record is not None
    assert [str(each.act) for each in record.history] == ["reset", "return"]


@pytest.mark.parametrize("later", ["1795226999:0123abcd:more:and:more", "1795226999::more", ":0123abcd:", "::more"])
def test_an_entry_with_more_of_a_later_version_counts(later: str) -> None:
    """While a fleet is upgraded, nodes of this version bound their acts by those of the others too."""
    record = parse(f"healthd history=replace:1795226900:gpu.xid.95:helped:{later}")
    assert record is not None
    assert [(str(each.act), each.code, str(each.outcome)) for each in record.history] == [
        ("replace", "gpu.xid.95", "helped")
    ]


def test_a_code_cannot_pretend_to_be_another_entry() -> None:
    """A plug-in may call its finding what it likes."""
    record = HandoffRecord(history=(PastRepair(act=PastAct.RESET, at=NOW, code="mine:ours,replace:1:x:helped"),))
    back = parse(record.text)
    assert back is not None
    assert [(str(each.act), each.code) for each in back.history] == [("reset", "mine_ours_replace_1_x_helped")]


@given(st.lists(PASTS, max_size=12), PASTS)
def test_a_history_keeps_the_last_eight(before: list[PastRepair], new: PastRepair) -> None:
    """However many were there, the newest stay, and the newest of all is the one that was added."""
    kept = remembering(before, new)
    assert kept == newest((*before, new))
    assert kept[-1] == new
    assert not before or len(kept) >= min(8, len(before))


@given(st.lists(PASTS, max_size=20), st.integers(1, 30))
def test_a_node_that_comes_and_goes_keeps_its_repairs(before: list[PastRepair], times: int) -> None:
    """However often it returns, no act is lost to a return, nor a return to an act."""
    history = newest(before)
    came = PastRepair(act=PastAct.RETURN, at=NOW, code="gpu.pcie.degraded")
    for _ in range(times):
        history = remembering(history, came)
    assert [each for each in history if each.act is not PastAct.RETURN] == [
        each for each in newest(before) if each.act is not PastAct.RETURN
    ]
    assert sum(each == came for each in history) >= min(8, times)


@given(records(), TIMES)
def test_what_is_ahead_counts_for_nothing(record: HandoffRecord, now: datetime) -> None:
    """No time of a record is more than five minutes ahead; what is not stays, and a second reading finds no more."""
    limit, read = now + timedelta(minutes=5), by_now(record, now)
    past = [at for each in read.history for at in (each.at, each.back)]
    assert all(
        at is None or at <= limit for at in (read.since, read.asked, read.replaced, read.slept, read.awake, *past)
    )
    assert [replace(each, back=None) for each in read.history] == [
        replace(each, back=None) for each in record.history if each.at <= limit
    ]
    assert read.code == ("" if is_ahead(record.since, now) else record.code)
    assert by_now(read, now) == read
    assert by_now(record, now + timedelta(days=100_000)) == record


@given(st.lists(PASTS, max_size=8), st.sampled_from([RepairResult.HELPED, RepairResult.FAILED]))
def test_only_the_newest_repair_gets_an_outcome_and_only_once(before: list[PastRepair], outcome: RepairResult) -> None:
    """What is known stays known, a return has no outcome to wait for, and no entry is lost."""
    told = with_outcome(before, outcome)
    assert len(told) == len(before)
    changed = [number for number, (old, new) in enumerate(zip(before, told, strict=True)) if old != new]
    repairs = [number for number, each in enumerate(before) if each.act is not PastAct.RETURN]
    is_waited_for = bool(repairs) and before[repairs[-1]].outcome is RepairResult.NOT_KNOWN
    assert changed == (repairs[-1:] if is_waited_for else [])
    assert with_outcome(told, RepairResult.FAILED) == told or not is_waited_for


@given(st.lists(PASTS, max_size=8), TIMES)
def test_an_outcome_may_say_since_when_the_node_is_back(before: list[PastRepair], back: datetime) -> None:
    """The entry whose outcome is told has the time, and no other one changes."""
    told = with_outcome(before, RepairResult.HELPED, back)
    new = [each for old, each in zip(before, told, strict=True) if old != each]
    assert all((each.outcome, each.back) == (RepairResult.HELPED, back) for each in new)


def test_a_record_of_the_first_healthd_is_understood() -> None:
    """It said only whose machine was given away, and when."""
    old = parse("healthd case=k3 machine=i-1 replaced=1795226977")
    assert old is not None
    assert (old.remediation_id, old.machine, old.is_of_replacement) == ("k3", "i-1", True)
    assert (old.asks, old.remedy, old.answer) == (False, None, None)


@pytest.mark.parametrize(
    ("text", "is_of_replacement"),
    [
        ("healthd case=k3 machine=i-1 does=replace_node", True),
        ("healthd case=k3 machine=i-1 asks=replace_node attempt=1", True),
        ("healthd case=k3 machine=i-1 does=reboot_node replaced=1795226977", False),
        ("healthd case=k3 machine=i-1 does=reset_gpu", False),
        ("healthd", False),
    ],
)
def test_a_reboot_after_a_replacement_is_a_reboot(text: str, is_of_replacement: bool) -> None:
    """The time of the last replacement is carried on for the rate, and is no claim about this remediation."""
    record = parse(text)
    assert record is not None
    assert record.is_of_replacement is is_of_replacement


def test_a_sentence_cannot_pretend_to_be_more() -> None:
    """What a platform says goes last, on one line, and no word of it is taken for one of ours."""
    record = HandoffRecord(
        remediation_id="k3", message='no "capacity" | replaced=1795226977\nasks=replace_node Comment=x'
    )
    back = parse(record.text)
    assert back is not None
    assert (back.replaced, back.asks) == (None, False)
    assert back.message == "no 'capacity' / replaced:1795226977 asks:replace_node Comment:x"


def test_a_launch_time_is_no_part_of_an_instance() -> None:
    """A machine that moves keeps its id."""
    assert instance_of("i-1@2026-11-21 12:00:00") == instance_of("i-1") == "i-1"


def test_what_a_node_shows_of_itself_leaves_the_rest_alone() -> None:
    """A finding comes and goes beside a request; with neither there is no mark."""
    request = HandoffRecord(remediation_id="k3", machine="i-1", remedy=Remedy.REBOOT_NODE, asks=True).text
    shown = showing(request, "gpu.xid.79", NOW)
    assert "code=gpu.xid.79" in shown
    assert showing(shown, "", None) == request
    assert showing(showing("", "gpu.xid.79", NOW), "", None) == ""


def test_a_history_outlives_what_the_node_shows() -> None:
    """A record with nothing but the past is kept; one with nothing but versions is not."""
    past = HandoffRecord(history=(PastRepair(act=PastAct.RETURN, at=NOW, code="gpu.xid.79"),), driver="570").text
    assert showing(showing(past, "gpu.xid.95", NOW), "", None) == past
    assert showing("healthd driver=580 kernel=6.14 image=ami-1", "", None) == ""


def test_a_node_that_shows_a_finding_shows_what_it_runs_now() -> None:
    """Another driver takes the place of the one before; left out, it stays."""
    shown = showing("", "gpu.xid.79", NOW, Versions(driver="580", kernel="6.14"))
    assert shown.endswith(" driver=580 kernel=6.14")
    assert showing(shown, "gpu.xid.79", NOW, Versions(driver="570")).endswith(" driver=570")
    assert showing(shown, "gpu.xid.95", NOW).endswith(" driver=580 kernel=6.14")


@pytest.mark.parametrize(
    ("machine", "at", "is_after"),
    [
        ("i-1@2026-11-21 12:00:01+00:00", NOW, True),
        ("i-1@2026-11-21 12:00:00+00:00", NOW, False),
        ("i-1@2026-11-21 12:00:01+00:00", None, False),
        ("i-1", NOW, False),
        ("i-1@soon", NOW, False),
        ("i-1@2026-11-21 12:00:01", NOW, False),
    ],
)
def test_when_a_machine_was_launched(machine: str, at: datetime | None, is_after: bool) -> None:
    """As EC2's provisioner names one that can move, by what the AWS child writes of a time."""
    assert launched_after(machine, at) is is_after


@given(records())
def test_a_request_that_is_withdrawn_asks_for_nothing_and_stays_known(record: HandoffRecord) -> None:
    """Which request it was can be told, for a controller that has begun it; what the disk forgets is carried on."""
    left = withdrawing(record)
    assert (left.asks, left.remedy, left.answer, left.withdrawn) == (False, None, None, record.remedy)
    assert left.is_withdrawn is (record.remedy is not None)
    assert (left.remediation_id, left.machine, left.attempt, left.asked) == (
        record.remediation_id,
        record.machine,
        record.attempt,
        record.asked,
    )
    assert (left.history, left.replaced, left.code) == (record.history, record.replaced, record.code)
