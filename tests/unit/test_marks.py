"""The mark at a node: what is written is read back, whatever was put in; what others wrote harms nothing."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthd.model import Remedy
from healthd.remediation.marks import Answer, CaseMark, instance_of, launched_after, parse, plain, showing, word

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
WORDS = st.text(max_size=30)
REMEDIES = st.sampled_from([Remedy.REBOOT_NODE, Remedy.REPLACE_NODE])


@st.composite
def marks(draw: st.DrawFn) -> CaseMark:
    """Any mark that a caller could ask for, with any text in it."""
    remedy = draw(st.none() | REMEDIES)
    answer = draw(st.none() | st.sampled_from(list(Answer)))
    recent = st.integers(0, 4_000_000_000).map(lambda s: datetime.fromtimestamp(s, UTC))
    return CaseMark(
        case=draw(WORDS),
        machine=draw(WORDS),
        remedy=remedy,
        asks=remedy is not None and draw(st.booleans()),
        attempt=draw(st.integers(0, 99)),
        asked=draw(st.none() | recent),
        following=tuple(draw(st.lists(REMEDIES, max_size=3))),
        became=draw(WORDS),
        answer=answer,
        answered=draw(recent) if answer else None,
        boot=draw(WORDS),
        replaced=draw(st.none() | recent),
        code=draw(WORDS),
        since=draw(st.none() | recent),
        said=draw(st.text(max_size=400)),
    )


@given(marks())
def test_what_is_written_is_read_back(mark: CaseMark) -> None:
    """Every field, with texts as the grammar can hold them; the line is one that Slurm keeps as it is."""
    back = parse(mark.text)
    assert back is not None
    assert back.text == mark.text
    assert mark.text.isascii()
    assert mark.text.isprintable()
    assert "|" not in mark.text
    assert mark.text.strip(' "') == mark.text
    assert " Comment=" not in mark.text
    assert " Extra=" not in mark.text
    assert (back.case, back.machine, back.became) == (word(mark.case), word(mark.machine), word(mark.became))
    assert back.said == plain(mark.said)
    for name in ("remedy", "asks", "attempt", "asked", "following", "answer", "answered", "replaced", "since"):
        assert getattr(back, name) == getattr(mark, name), name


@given(st.text(alphabet="healthd =,.0123456789-askdoertnxwi|\n", max_size=120))
def test_any_comment_is_read_without_a_complaint(text: str) -> None:
    """Somebody else's comment is none of ours; a torn one of ours says what is left of it."""
    mark = parse(text)
    assert (mark is None) == (text.split(" ", 1)[0] != "healthd")


def test_a_mark_of_the_first_healthd_is_understood() -> None:
    """It said only whose machine was given away, and when."""
    old = parse("healthd case=k3 machine=i-1 replaced=1795226977")
    assert old is not None
    assert (old.case, old.machine, old.is_of_replacement) == ("k3", "i-1", True)
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
    """The time of the last replacement is carried on for the rate, and is no claim about this case."""
    mark = parse(text)
    assert mark is not None
    assert mark.is_of_replacement is is_of_replacement


def test_a_sentence_cannot_pretend_to_be_more() -> None:
    """What a platform says goes last, on one line, and no word of it is taken for one of ours."""
    mark = CaseMark(case="k3", said='no "capacity" | replaced=1795226977\nasks=replace_node Comment=x')
    back = parse(mark.text)
    assert back is not None
    assert (back.replaced, back.asks) == (None, False)
    assert back.said == "no 'capacity' / replaced:1795226977 asks:replace_node Comment:x"


def test_a_launch_time_is_no_part_of_an_instance() -> None:
    """A machine that moves keeps its id."""
    assert instance_of("i-1@2026-11-21 12:00:00") == instance_of("i-1") == "i-1"


def test_what_a_node_shows_of_itself_leaves_the_rest_alone() -> None:
    """A finding comes and goes beside a request; with neither there is no mark."""
    request = CaseMark(case="k3", machine="i-1", remedy=Remedy.REBOOT_NODE, asks=True).text
    shown = showing(request, "gpu.xid.79", NOW)
    assert "code=gpu.xid.79" in shown
    assert showing(shown, "", None) == request
    assert showing(showing("", "gpu.xid.79", NOW), "", None) == ""


@pytest.mark.parametrize(
    ("machine", "at", "is_after"),
    [
        ("i-1@2026-11-21 12:00:01+00:00", NOW, True),
        ("i-1@2026-11-21 12:00:00+00:00", NOW, False),
        ("i-1@2026-11-21 12:00:01+00:00", None, False),
        ("i-1", NOW, False),
        ("i-1@soon", NOW, False),
    ],
)
def test_when_a_machine_was_launched(machine: str, at: datetime | None, is_after: bool) -> None:
    """As EC2's provisioner names one that can move, by what the AWS child writes of a time."""
    assert launched_after(machine, at) is is_after
