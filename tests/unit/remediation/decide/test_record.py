"""What a remediation leaves in the history of its node: plain calls."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from healthd.core.model import Remedy, Step
from healthd.remediation.decide.adoption import repair_record
from healthd.remediation.decide.remediation import (
    QUARANTINE_CODE,
    End,
    after,
    begun,
    is_begun,
    with_act,
)
from healthd.remediation.decide.rules import QUARANTINE, REBOOT, REPLACE, RESET
from healthd.remediation.records.handoff import (
    HandoffRecord,
    PastAct,
    PastRepair,
    RepairResult,
    RequestAnswer,
    parse,
    showing,
    withdrawing,
    without_act,
)
from tests.support.judgement import START, a_remediation

REMEDIATION = a_remediation(index=REBOOT.index(Step.REBOOT), attempts=1, acts=(Remedy.REBOOT_NODE,), opened=START)
LATER = START + timedelta(minutes=5)


def words(text: str) -> list[str]:
    record = parse(text)
    return [f"{each.act} {each.code} {each.outcome}".strip() for each in record.history] if record else []


def test_an_act_that_is_begun_is_an_entry_with_its_code() -> None:
    """A reset, a reboot, and a replacement; the history before it stays."""
    text = ""
    for step, steps in ((Step.RESET, RESET), (Step.REBOOT, REBOOT), (Step.REPLACE, REPLACE)):
        remediation = replace(REMEDIATION, id=str(step), steps=steps, index=steps.index(step))
        text = repair_record(remediation, START, before=text)
    assert words(text) == ["reset gpu.xid.79", "reboot gpu.xid.79", "replace gpu.xid.79"]


def test_what_follows_in_the_same_case_says_that_the_one_before_failed() -> None:
    """A second attempt is a second act."""
    first = repair_record(REMEDIATION, START)
    second = repair_record(replace(REMEDIATION, attempts=2), LATER, before=first)
    assert words(second) == ["reboot gpu.xid.79 failed", "reboot gpu.xid.79"]


def test_what_follows_for_another_fault_says_nothing_of_the_one_before() -> None:
    """The remediation was turned: whether the first act helped is not known by that."""
    first = repair_record(replace(REMEDIATION, code="gpu.xid.95"), START)
    second = repair_record(REMEDIATION, LATER, before=first)
    assert words(second) == ["reboot gpu.xid.95", "reboot gpu.xid.79"]


def test_a_remediation_without_a_code_has_that_of_the_record() -> None:
    """A successor that lost its disk knows the code by what the node shows."""
    entries = begun(HandoffRecord(code="gpu.xid.95"), replace(REMEDIATION, code=""), Remedy.REBOOT_NODE, START)
    assert [each.code for each in entries] == ["gpu.xid.95"]


def test_what_the_controller_is_asked_for_is_its_entry_to_make() -> None:
    """A request that waits counts for nothing; a reset is the node's own act all the same."""
    assert words(repair_record(REMEDIATION, START, delegated=True)) == []
    reset = replace(REMEDIATION, steps=RESET, index=RESET.index(Step.RESET))
    assert words(repair_record(reset, START, delegated=True)) == ["reset gpu.xid.79"]


def test_a_reset_gives_no_machine_away() -> None:
    """Its record names no machine that a successor could be the successor of."""
    reset = replace(REMEDIATION, steps=RESET, index=RESET.index(Step.RESET), machine="i-1")
    record = parse(repair_record(reset, START, before="healthd case=k1 machine=i-0 replaced=1795226977"))
    assert record is not None
    assert (record.machine, record.is_of_replacement, record.asks) == ("", False, False)
    assert record.replaced is not None


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({"end": End.RELEASED}, ["reboot gpu.xid.79 helped"]),
        ({"end": End.FAILED}, ["reboot gpu.xid.79 failed"]),
        ({"end": End.LOST}, ["reboot gpu.xid.79"]),
        ({"end": End.RELEASED, "forced_at": LATER}, ["reboot gpu.xid.79"]),
    ],
)
def test_the_end_of_a_case_says_what_its_act_came_to(changes: dict[str, object], left: list[str]) -> None:
    """RepairResult where the node was proven healthy, failed where it was given up, and else nobody can say."""
    assert words(after(repair_record(REMEDIATION, START), replace(REMEDIATION, **changes))) == left


def test_a_repair_that_helped_says_when_the_node_was_let_in() -> None:
    """That may be a day later: the node waited for its other faults. It is told once."""
    remediation = replace(REMEDIATION, end=End.RELEASED, since=START + timedelta(hours=20))
    left = after(repair_record(REMEDIATION, START), remediation)
    assert [(each.at, each.back) for each in parse(left).history] == [(START, remediation.since)]  # type: ignore[union-attr]
    assert after(left, remediation) == left


def test_a_node_that_was_given_up_and_is_well_by_itself_has_returned() -> None:
    """What was done failed, and the node came back all the same: as much a return as one without a repair."""
    given_up = after(repair_record(REMEDIATION, START), replace(REMEDIATION, end=End.FAILED))
    remediation = replace(REMEDIATION, end=End.RELEASED, since=LATER)
    left = after(given_up, remediation)
    assert words(left) == ["reboot gpu.xid.79 failed", "return gpu.xid.79"]
    assert after(left, remediation) == left
    assert words(after(given_up, replace(remediation, settling=True))) == ["reboot gpu.xid.79 failed"]


def test_a_repair_for_another_finding_is_no_repair_of_the_last_one() -> None:
    """The GPU was reset for one fault, and the link that came and went is why the node was out: it has returned."""
    before = repair_record(replace(REMEDIATION, code="gpu.xid.95"), START)
    remediation = replace(REMEDIATION, code="gpu.pcie.degraded", end=End.RELEASED, since=LATER)
    left = after(before, remediation)
    assert words(left) == ["reboot gpu.xid.95 helped", "return gpu.pcie.degraded"]
    assert after(left, remediation) == left


def test_only_the_case_whose_act_it_was_says_what_it_came_to() -> None:
    """A later remediation that is given up says nothing about an older repair."""
    before = repair_record(REMEDIATION, START)
    assert words(after(before, replace(REMEDIATION, id="other", end=End.FAILED))) == ["reboot gpu.xid.79"]


OUT = a_remediation(steps=QUARANTINE, opened=START, end=End.RELEASED)


@pytest.mark.parametrize(
    ("changes", "is_one"),
    [
        ({}, True),
        ({"end": End.ABANDONED}, False),
        ({"end": End.ACKNOWLEDGED}, False),
        ({"acts": (Remedy.REBOOT_NODE,)}, True),
        ({"settling": True}, False),
        ({"release_command": "psu was changed (uid 0)"}, False),
        ({"code": QUARANTINE_CODE}, False),
        ({"forced_at": LATER}, False),
    ],
)
def test_a_node_that_came_back_without_a_repair_has_returned(changes: dict[str, object], is_one: bool) -> None:
    """Out for a finding, by healthd's own decision, and back by it: else a person was there, or nothing was."""
    remediation = replace(OUT, **changes)
    left = after("healthd code=gpu.xid.79 since=1795226977", remediation)
    assert words(left) == (["return gpu.xid.79"] if is_one else [])
    assert words(after(left, remediation)) == words(left), "told twice, it is one return"


def test_a_case_that_was_given_up_is_out_for_its_finding_all_the_same() -> None:
    """The others see the finding for as long as the node is out."""
    given_up = parse(after("healthd code=gpu.xid.79 since=1795226977", replace(OUT, end=End.FAILED)))
    over = after("healthd code=gpu.xid.79 since=1795226977", replace(OUT, end=End.LOST))
    assert given_up is not None
    assert (given_up.code, given_up.given_up, over) == ("gpu.xid.79", OUT.id, "")
    assert after(given_up.text, replace(OUT, end=End.LOST)) == "", "an operator has decided"
    assert showing(given_up.text, "gpu.xid.48", START) == HandoffRecord(code="gpu.xid.48", since=START).text


REQUEST = HandoffRecord(
    remediation_id=REMEDIATION.id, machine="i-1", remedy=Remedy.REBOOT_NODE, asks=True, attempt=1, asked=START
)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (REQUEST, False),
        (replace(REQUEST, answer=RequestAnswer.WAITS, answered=LATER), False),
        (replace(REQUEST, answer=RequestAnswer.REFUSED, answered=LATER), False),
        (replace(REQUEST, answer=RequestAnswer.TAKEN, answered=LATER), True),
        (replace(REQUEST, asks=False), True),
        (withdrawing(REQUEST), False),
        (replace(REQUEST, withdrawn=Remedy.REBOOT_NODE, answer=RequestAnswer.TAKEN, answered=LATER), True),
        (HandoffRecord(), True),
    ],
)
def test_a_request_is_begun_once_it_was_taken(record: HandoffRecord, expected: bool) -> None:
    """What waits, and what was refused at once, is no act; what the node does itself is one when it is written."""
    assert is_begun(record) is expected


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (PastRepair(act=PastAct.REBOOT, at=LATER, code="gpu.xid.79"), True),
        (PastRepair(act=PastAct.REPLACE, at=LATER, code="gpu.xid.79"), False),
        (PastRepair(act=PastAct.REBOOT, at=START - timedelta(days=1), code="gpu.xid.79"), False),
    ],
)
def test_a_refusal_after_it_was_taken_is_told_by_the_history(entry: PastRepair, expected: bool) -> None:
    """The controller's entry of this act, made since it was asked for, says that it was begun before it failed."""
    record = replace(REQUEST, answer=RequestAnswer.REFUSED, answered=LATER, history=(entry,))
    assert is_begun(record) is expected


def test_a_request_that_was_never_taken_leaves_a_return_and_fails_nothing() -> None:
    """The node came back by itself: an entry of its own, and none before it is said to have helped or failed."""
    earlier = PastRepair(act=PastAct.REBOOT, at=START - timedelta(days=1), code="gpu.xid.79")
    before = replace(REQUEST, history=(earlier,))
    returned = replace(REMEDIATION, acts=(), end=End.RELEASED, since=LATER)
    assert words(after(before.text, returned)) == ["reboot gpu.xid.79", "return gpu.xid.79"]
    assert words(after(before.text, replace(returned, end=End.FAILED))) == ["reboot gpu.xid.79"]
    assert words(repair_record(replace(REMEDIATION, attempts=2), LATER, before=before.text, delegated=True)) == [
        "reboot gpu.xid.79"
    ]


def test_an_act_that_was_not_made_leaves_no_trace() -> None:
    """The record is as it was, but for what the node has shown of itself since."""
    past = PastRepair(act=PastAct.REBOOT, at=START, code="gpu.xid.79", outcome=RepairResult.FAILED)
    before = HandoffRecord(
        remediation_id="k1", remedy=Remedy.REBOOT_NODE, attempt=1, code="gpu.xid.79", history=(past,)
    )
    there = HandoffRecord(
        remediation_id="k2", remedy=Remedy.RESET_GPU, attempt=1, code="gpu.xid.95", watched=LATER, awake=LATER
    )
    expected = replace(before, code="gpu.xid.95", watched=LATER, awake=LATER)
    assert parse(without_act(before.text, there.text)) == expected
    assert without_act("", HandoffRecord(remediation_id="k2", driver="580").text) == ""


def test_the_controllers_act_is_entered_once_however_often_it_is_written() -> None:
    """With the boot that it is to end; of a replacement, when the machine was given away."""
    asked = replace(REQUEST, code="efa.missing")
    rebooted = with_act(asked, Remedy.REBOOT_NODE, LATER, boot_id="b 1")
    assert words(rebooted.text) == ["reboot efa.missing"]
    assert (rebooted.boot, rebooted.replaced) == ("b_1", None)
    assert with_act(rebooted, Remedy.REBOOT_NODE, LATER, boot_id="b 1") == rebooted
    replaced = with_act(
        replace(rebooted, code="gpu.xid.79"), Remedy.REPLACE_NODE, LATER, boot_id="", after_silence=True
    )
    assert words(replaced.text) == ["reboot efa.missing failed", "replace gpu.xid.79"]
    assert (replaced.boot, replaced.replaced) == ("", LATER)
    again = with_act(replaced, Remedy.REPLACE_NODE, LATER, boot_id="", after_silence=True)
    assert words(again.text) == words(replaced.text)


def test_a_node_whose_request_was_withdrawn_has_returned() -> None:
    """No repair was made: the entry before it gets no outcome."""
    earlier = PastRepair(act=PastAct.REBOOT, at=START - timedelta(days=1), code="gpu.xid.79")
    before = withdrawing(replace(REQUEST, history=(earlier,)))
    returned = replace(REMEDIATION, acts=(), end=End.RELEASED, since=LATER)
    assert words(after(before.text, returned)) == ["reboot gpu.xid.79", "return gpu.xid.79"]
