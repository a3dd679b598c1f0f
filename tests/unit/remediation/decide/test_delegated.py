"""The provisioner of a node that only asks: what it writes, what it makes of the answer, and that it calls nobody."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from healthd.core.errors import BackendBusy, BackendDenied, BackendRefused, BackendUnknown
from healthd.core.model import Remedy
from healthd.remediation.provisioners.delegated import DelegatedProvisioner
from healthd.remediation.records.handoff import UNASKED_S, UNTAKEN_S, HandoffRecord, RequestAnswer, parse, withdrawing
from healthd.testing import FakeClock
from tests.support.fake_repairs import FakeProvisioner

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
LEFT = HandoffRecord(remediation_id="k3", machine="i-1", remedy=Remedy.REPLACE_NODE, attempt=1, asked=NOW)
ASKED = replace(LEFT, asks=True)


def called() -> None:
    raise AssertionError("a node without rights acted")


class Comment:
    """A node's comment."""

    def __init__(self, record: HandoffRecord | None = None) -> None:
        self.text = record.text if record else ""

    def read(self) -> str:
        return self.text

    def write(self, text: str) -> None:
        self.text = text


def asking(
    comment: Comment, *, after_s: float = 1.0, instance: str = "i-1", monotonic_s: FakeClock | None = None
) -> DelegatedProvisioner:
    inner = FakeProvisioner(called, called)
    inner.others = "it cannot be told what the platform does: no rights"
    return DelegatedProvisioner(
        inner=inner,
        instance_id=instance,
        read=comment.read,
        write=comment.write,
        clock=lambda: NOW + timedelta(seconds=after_s),
        monotonic_s=monotonic_s or FakeClock(),
    )


def test_asking_turns_the_record_into_a_request() -> None:
    """Once: a second time nothing is written, so that an answer that came meanwhile stays."""
    comment = Comment(LEFT)
    asking(comment).replace()
    assert parse(comment.text) == ASKED
    answered = replace(ASKED, answer=RequestAnswer.TAKEN, answered=NOW)
    comment.text = answered.text
    asking(comment).replace()
    assert parse(comment.text) == answered


@pytest.mark.parametrize("there", [None, replace(LEFT, machine="i-2"), replace(LEFT, remedy=Remedy.REBOOT_NODE)])
def test_a_record_that_is_not_ours_is_not_turned_into_a_request(there: HandoffRecord | None) -> None:
    """An admin's comment, another machine's record, another act: refused, and left as it is."""
    comment = Comment(there)
    before = comment.text
    with pytest.raises(BackendRefused, match="no request written"):
        asking(comment).replace()
    assert comment.text == before


def test_its_platform_is_the_controllers_to_ask() -> None:
    """It stands down for nobody, knows its own instance, and can what the platform can."""
    provisioner = asking(Comment())
    assert provisioner.stands_down() == ""
    assert provisioner.machine() == "i-1"
    assert not provisioner.reason_against(Remedy.REPLACE_NODE)
    assert provisioner.reason_against(Remedy.RESET_GPU)
    assert "instance id" in asking(Comment(), instance="").reason_against(Remedy.REPLACE_NODE)
    assert "asks=replace_node machine=i-1" in provisioner.dry_run(Remedy.REPLACE_NODE)
    with pytest.raises(BackendRefused, match="no reset_gpu"):
        provisioner.dry_run(Remedy.RESET_GPU)


def test_a_machine_that_moved_is_another_one_by_the_controllers_word() -> None:
    """Stopped and started it keeps its id: only then does what the controller saw count."""
    assert asking(Comment(replace(ASKED, became="i-1@2026-11-21_12:00:00"))).machine() == "i-1@2026-11-21_12:00:00"
    assert asking(Comment(replace(ASKED, became="i-2"))).machine() == "i-1"


def progress(record: HandoffRecord | None, *, after_s: float = 1.0) -> str:
    return asking(Comment(record), after_s=after_s).progress()


def test_what_the_controller_answers_is_told() -> None:
    """Nothing yet; taken, with what the platform says; refused; waiting for what a person must see to."""
    answered = replace(ASKED, answered=NOW)
    assert progress(ASKED) == "the controller has not taken the request yet"
    assert progress(replace(answered, answer=RequestAnswer.TAKEN)) == "the controller has taken the request"
    message = progress(replace(answered, answer=RequestAnswer.TAKEN, message="HyperPod: i-1 ShuttingDown"))
    assert message == "the controller has taken the request: HyperPod: i-1 ShuttingDown"
    with pytest.raises(BackendRefused, match="healthd controller: no such instance"):
        progress(replace(answered, answer=RequestAnswer.REFUSED, message="no such instance"))
    with pytest.raises(BackendDenied, match="healthd controller: ec2:RebootInstances is missing"):
        progress(replace(answered, answer=RequestAnswer.DENIED, message="ec2:RebootInstances is missing"))
    with pytest.raises(BackendBusy, match="healthd controller waits: in observe mode"):
        progress(replace(answered, answer=RequestAnswer.WAITS, message="in observe mode"))


def test_a_request_that_nobody_takes_pages() -> None:
    """With what to look at."""
    with pytest.raises(BackendBusy, match="more than 3 minutes: check that `healthd controller` runs"):
        progress(ASKED, after_s=UNTAKEN_S + 1)


def test_a_request_that_was_never_left_can_be_made_again() -> None:
    """Killed between its record and its request: not made, after a moment in which a slow update may still come. A
    record that is gone tells nothing."""
    with pytest.raises(BackendUnknown, match="not in the node's handoff record yet"):
        progress(LEFT)
    with pytest.raises(BackendRefused, match="never written"):
        progress(LEFT, after_s=UNASKED_S + 1)
    for gone in (None, replace(ASKED, machine="i-2")):
        with pytest.raises(BackendUnknown, match="not in the node's handoff record"):
            progress(gone, after_s=9_999)


@pytest.mark.parametrize(
    "there", [LEFT, ASKED, replace(ASKED, answer=RequestAnswer.WAITS, answered=NOW, message="no time")]
)
def test_what_nobody_took_is_withdrawn_and_taken_back_a_minute_later(there: HandoffRecord) -> None:
    """A controller that was at it has said so by then. Until then the request may have been begun."""
    comment, clock = Comment(there), FakeClock()
    asked = asking(comment, monotonic_s=clock)
    assert not asked.take_back(carried_out=False)
    assert parse(comment.text) == withdrawing(there)
    clock.advance(UNASKED_S)
    assert not asked.take_back(carried_out=False)
    clock.advance(UNASKED_S - 1)
    assert not asked.take_back(carried_out=False)
    clock.advance(1)
    assert asked.take_back(carried_out=False)
    assert not asking(comment, monotonic_s=clock).take_back(carried_out=False), "a new process waits anew"


@pytest.mark.parametrize("answer", [RequestAnswer.TAKEN, RequestAnswer.REFUSED, RequestAnswer.DENIED])
def test_what_was_answered_is_not_withdrawn(answer: RequestAnswer) -> None:
    """What was taken is waited for, and what was refused is the engine's to go on from; nor is another's request."""
    for there in (replace(ASKED, answer=answer, answered=NOW), replace(ASKED, machine="i-2"), None):
        comment = Comment(there)
        before = comment.text
        assert not asking(comment).take_back(carried_out=False)
        assert comment.text == before


def test_a_controller_that_had_begun_it_starts_the_wait_anew() -> None:
    """Its answer stands over the withdrawal; were that overwritten once more, the minute begins again."""
    comment, clock = Comment(withdrawing(ASKED)), FakeClock()
    asked = asking(comment, monotonic_s=clock)
    assert not asked.take_back(carried_out=False)
    clock.advance(UNASKED_S)
    comment.text = replace(ASKED, withdrawn=ASKED.remedy, answer=RequestAnswer.TAKEN, answered=NOW).text
    assert not asked.take_back(carried_out=False)
    assert asked.progress() == "the controller has taken the request"
    comment.text = withdrawing(ASKED).text
    assert not asked.take_back(carried_out=False)


def test_a_request_that_is_wanted_again_after_its_withdrawal_is_made_anew() -> None:
    """The fault is back while the minute runs: nothing can be told until no controller can have begun the old one."""
    comment, clock = Comment(withdrawing(ASKED)), FakeClock()
    asked = asking(comment, monotonic_s=clock)
    with pytest.raises(BackendUnknown, match="is withdrawn"):
        asked.progress()
    clock.advance(2 * UNASKED_S)
    with pytest.raises(BackendUnknown, match="is withdrawn"):
        asked.progress()
    clock.advance(1)
    with pytest.raises(BackendRefused, match="before any controller began it"):
        asked.progress()
