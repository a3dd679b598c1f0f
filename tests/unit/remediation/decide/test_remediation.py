"""The state of one remediation, and the words by which a drain is known as ours."""

from __future__ import annotations

from datetime import timedelta

import pytest

from healthd.core.model import Component, Step
from healthd.remediation.decide.remediation import (
    End,
    Phase,
    code_of,
    ended_last,
    is_our_text,
    parse_reason,
    reason_text,
    remediation_id_of,
    shifted,
)
from healthd.remediation.decide.rules import REBOOT
from healthd.remediation.ports import Hold
from tests.support.judgement import a_remediation, at, diagnosis


def test_a_new_case_stands_before_its_first_step() -> None:
    """Nothing is intended, tried or held yet."""
    remediation = a_remediation()
    assert (remediation.step, remediation.phase, remediation.attempts, remediation.hold, remediation.end) == (
        Step.SLOT,
        Phase.PLANNED,
        0,
        None,
        None,
    )


@pytest.mark.parametrize(("index", "step"), list(enumerate(REBOOT)))
def test_a_case_names_the_step_it_stands_at(index: int, step: Step) -> None:
    """The index points into the remediation's own steps, so a playbook that changes does not move a remediation that is
    open."""
    assert a_remediation(index=index).step is step


@pytest.mark.parametrize("end", [None, *End])
def test_a_case_is_open_while_our_drain_may_stand(end: End | None) -> None:
    """Without an end, and where it was given up: then the node is out by our hand all the same, and is watched."""
    assert a_remediation(end=end).is_open == (end in (None, End.FAILED))


def test_the_last_end_is_that_of_a_case_that_had_the_node_out() -> None:
    """Neither one that goes on or owes its slot, nor a slot that was found alone, says what became of the node."""
    before, hold = a_remediation(end=End.LOST), Hold(text="t", user="healthd", stamp=1)
    for remediation in (
        a_remediation(),
        a_remediation(end=End.FAILED),
        a_remediation(end=End.LOST, fenced=True),
        a_remediation(end=End.ABANDONED),
    ):
        assert ended_last(remediation, before) is before
    for remediation in (
        a_remediation(end=End.LOST),
        a_remediation(end=End.RELEASED),
        a_remediation(end=End.ABANDONED, hold=hold),
    ):
        assert ended_last(remediation, before) is remediation


def test_the_reason_is_what_the_issue_says() -> None:
    """``healthd: <code> <component> [id]``."""
    assert reason_text(diagnosis(code="gpu.xid.79"), "k3v9") == "healthd: gpu.xid.79 gpu:GPU-0 [k3v9]"


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("/fsx\n2nd line", "/fsx 2nd line"),
        ("/a|b", "/a/b"),
        ("/a\0b", "/a b"),
        ("/\x1b[31mred", "/ [31mred"),
        ("/odd\udcff", "/odd"),
    ],
)
def test_a_mount_point_cannot_break_the_line(place: str, shown: str) -> None:
    """Line ends, column marks, NULs, escapes and undecodable bytes of a name do not reach the cluster."""
    mount = diagnosis(code="lustre.hung", component=Component(kind="mount", id=place))
    assert reason_text(mount, "k3v9") == f"healthd: lustre.hung mount:{shown} [k3v9]"


@pytest.mark.parametrize("place", ["/fsx", "/my data", "/a [b]"])
def test_the_text_names_its_case(place: str) -> None:
    """Whoever finds it with the cluster reads back what was written, whatever a mount is called."""
    text = reason_text(diagnosis(code="lustre.hung", component=Component(kind="mount", id=place)), "k3v9")
    assert parse_reason(text) == ("lustre.hung", f"mount:{place}", "k3v9")
    assert (code_of(text), remediation_id_of(text)) == ("lustre.hung", "k3v9")


@pytest.mark.parametrize("text", ["", "NHC: a b [c]", "healthd: gpu.xid.79 gpu:0", "healthd: gpu.xid.79 [k3v9]"])
def test_any_other_text_names_none(text: str) -> None:
    """Without a code, a component and a remediation id it is none of ours that can be gone on with."""
    assert (parse_reason(text), code_of(text), remediation_id_of(text)) == (None, "", "")


@pytest.mark.parametrize("text", ["", "healthd", "NHC: check_fs", "Healthd: x", " healthd: x", "prolog error"])
def test_other_peoples_words_are_not_ours(text: str) -> None:
    """Only a text that begins with our mark carries it."""
    assert not is_our_text(text)
    assert is_our_text(f"healthd: {text}")


def test_after_the_clock_was_set_a_case_has_waited_as_long_as_before() -> None:
    """Forward, back, and never from a time to come; what has not happened has no time."""
    remediation = a_remediation(opened=at(0), since=at(100), good_since=at(110))
    later = shifted(remediation, timedelta(hours=1), at(3720))
    assert (later.opened, later.since, later.good_since, later.unanswered) == (at(3600), at(3700), at(3710), None)
    assert shifted(later, timedelta(hours=-1), at(120)) == remediation
    assert shifted(a_remediation(since=at(100), unanswered=at(100)), timedelta(), at(50)).unanswered == at(50)
