"""What was tried on a node, and what that leaves to try."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from healthd.core.model import Remedy, Step
from healthd.remediation.decide.drive import lowered
from healthd.remediation.decide.ledger import Bounds, on_record, recent, repairs_of, rungs_left, same_fault
from healthd.remediation.decide.remediation import End, Repair
from healthd.remediation.decide.rules import QUARANTINE, STEPS
from healthd.remediation.records.handoff import HandoffRecord, PastAct, PastRepair, RepairResult
from tests.support.judgement import START, a_remediation, at

RESET, REBOOT, REPLACE = Remedy.RESET_GPU, Remedy.REBOOT_NODE, Remedy.REPLACE_NODE
REMEDIATION = a_remediation(
    since=at(60),
    code="gpu.xid.95",
    remedy=RESET,
    steps=STEPS[RESET],
    ladder=(RESET, REBOOT),
    attempts=1,
    end=End.RELEASED,
)


def repair(remedy: Remedy, *, seconds: float = 0.0, component: str = "gpu:GPU-0") -> Repair:
    return Repair(code="gpu.xid.95", component=component, remedy=remedy, began=at(seconds))


@pytest.mark.parametrize(
    ("ladder", "tried", "left"),
    [
        ((RESET, REBOOT, REPLACE), (), (RESET, REBOOT, REPLACE)),
        ((RESET, REBOOT, REPLACE), (RESET,), (REBOOT, REPLACE)),
        ((RESET, REBOOT, REPLACE), (REBOOT,), (REPLACE,)),
        ((RESET, RESET, REBOOT), (RESET,), (RESET, REBOOT)),
        ((RESET, RESET, REBOOT), (RESET, RESET), (REBOOT,)),
        ((RESET, RESET, RESET, REBOOT), (RESET, RESET), (REBOOT,)),
        ((RESET, REBOOT), (REPLACE,), ()),
        ((RESET, REBOOT, REPLACE), (RESET, RESET, RESET, RESET), ()),
        ((), (), ()),
    ],
)
def test_what_was_tried_is_over(
    ladder: tuple[Remedy, ...], tried: tuple[Remedy, ...], left: tuple[Remedy, ...]
) -> None:
    """What is smaller than what was tried is over, equal rungs count one by one, and each remedy, as well as all of
    them together, has a bound."""
    assert rungs_left(ladder, [repair(each) for each in tried], Bounds()) == left


def test_a_repair_counts_from_its_end() -> None:
    """One that began before the window and ended inside it counts; one on another part does not."""
    long_one = Repair(code="gpu.xid.95", component="gpu:GPU-0", remedy=RESET, began=at(-9), ended=at(1))
    repairs = [long_one, repair(RESET, seconds=-9), repair(RESET, seconds=5, component="gpu:GPU-1")]
    assert same_fault(repairs, "gpu.xid.95", ("gpu:GPU-0", "gpu:0000:10:1c"), START) == (long_one,)
    assert same_fault(repairs, "gpu.xid.48", ("gpu:GPU-0",), START) == ()


def test_recent_is_so_many_days() -> None:
    """The window of a lemon moves with the day."""
    repairs = [repair(RESET), repair(REBOOT, seconds=86_400)]
    assert recent(repairs, START + timedelta(days=7), 7) == tuple(repairs)
    assert recent(repairs, START + timedelta(days=7.5), 7) == tuple(repairs[1:])


def test_cases_become_repairs() -> None:
    """A remediation that began an act is one repair, by the largest it came to; a quarantine, one that never got so
    far, and one whose attempts were all refused are none."""
    reset = replace(REMEDIATION, acts=(RESET,))
    rebooted = replace(
        REMEDIATION, id="c2", steps=STEPS[REBOOT], ladder=(REBOOT,), acts=(RESET, REBOOT), end=End.FAILED
    )
    drained = replace(REMEDIATION, id="c3", steps=QUARANTINE, ladder=(), attempts=0)
    given_up = replace(REMEDIATION, id="c4", attempts=0, end=End.ABANDONED)
    refused = replace(REMEDIATION, id="c5", end=End.FAILED)
    made = repairs_of([reset, rebooted, drained, given_up, refused])
    assert [(each.remedy, each.outcome) for each in made] == [(RESET, "released"), (REBOOT, "failed")]
    assert (made[0].began, made[0].ended, made[0].at) == (at(0), at(60), at(60))


@pytest.mark.parametrize("step", [Step.REBOOT, Step.VERIFY])
def test_a_case_that_was_lowered_after_its_repair_is_one(step: Step) -> None:
    """It has no repair among its steps any more, and was rebooted all the same. While it is open it is judged by
    itself, and not counted against its own second attempt."""
    steps = STEPS[REBOOT]
    rebooted = replace(REMEDIATION, steps=steps, index=steps.index(step), ladder=(REBOOT,), acts=(REBOOT,), end=None)
    assert repairs_of([lowered(rebooted)]) == ()
    (made,) = repairs_of([replace(lowered(rebooted), end=End.RELEASED)])
    assert (made.remedy, made.outcome) == (REBOOT, "released")


def test_what_a_successor_goes_on_with_is_the_record_s_to_count() -> None:
    """Its store knows nothing of the remediation but that it is one."""
    assert repairs_of([replace(REMEDIATION, remedy=Remedy.NONE, steps=STEPS[REPLACE], ladder=())]) == ()


def test_only_an_act_that_was_begun_is_a_repair() -> None:
    """One that was not needed is none, whatever stood in the ladder; a reset before a reboot that was not needed is
    one reset."""
    assert repairs_of([replace(REMEDIATION, attempts=0)]) == ()
    (made,) = repairs_of([replace(REMEDIATION, steps=STEPS[REBOOT], ladder=(REBOOT,), attempts=0, acts=(RESET, RESET))])
    assert made.remedy is RESET


# -- the record -------------------------------------------------------------------------------------------------------


def past(
    act: PastAct, seconds: float, outcome: RepairResult = RepairResult.HELPED, code: str = "gpu.xid.95"
) -> PastRepair:
    return PastRepair(act=act, at=at(seconds), code=code, outcome=outcome)


def recorded(*entries: PastRepair) -> HandoffRecord:
    return HandoffRecord(history=entries)


def test_what_only_the_record_knows_counts_on_whatever_component() -> None:
    """Another machine has other GPUs: by name and code the fault has come back."""
    (made,) = on_record((), None, recorded(past(PastAct.REPLACE, 0)))
    assert (made.remedy, made.code, made.component) == (REPLACE, "gpu.xid.95", "")
    assert same_fault([made], "gpu.xid.95", ("gpu:GPU-7",), START) == (made,)
    assert same_fault([made], "gpu.xid.79", ("gpu:GPU-7",), START) == ()


def test_the_acts_of_one_case_are_one_repair() -> None:
    """A reset in vain and the reboot after it, of the same code; what helped ends the repair, and a return is none."""
    record = recorded(
        past(PastAct.RESET, 0, RepairResult.FAILED),
        past(PastAct.REBOOT, 100),
        past(PastAct.RETURN, 200),
        past(PastAct.REBOOT, 300, RepairResult.FAILED),
        past(PastAct.REBOOT, 400, code="gpu.xid.79"),
    )
    made = on_record((), None, record)
    assert [(each.code, each.remedy) for each in made] == [
        ("gpu.xid.95", REBOOT),
        ("gpu.xid.95", REBOOT),
        ("gpu.xid.79", REBOOT),
    ]
    assert (made[0].began, made[0].at) == (at(0), at(100))


def test_what_the_store_knows_is_not_counted_twice() -> None:
    """The same code within the time of a repair that the store knows, or of the remediation that is open."""
    known = Repair(code="gpu.xid.95", component="gpu:GPU-0", remedy=RESET, began=at(1000), ended=at(2000))
    record = recorded(past(PastAct.RESET, 100), past(PastAct.RESET, 1500), past(PastAct.REBOOT, 5000))
    made = on_record([known], None, record)
    assert [each.began for each in made] == [at(100), at(1000), at(5000)]
    under_way = replace(REMEDIATION, opened=at(4900), end=None)
    assert [each.began for each in on_record([known], under_way, record)] == [at(100), at(1000)]
    of_another = replace(under_way, code="gpu.xid.79")
    assert len(on_record([known], of_another, record)) == 3


def test_a_record_of_before_there_were_histories_tells_of_one_replacement() -> None:
    """When it was, and for what as far as the node shows it."""
    (made,) = on_record((), None, HandoffRecord(replaced=at(0), code="gpu.xid.79"))
    assert (made.remedy, made.code, made.at) == (REPLACE, "gpu.xid.79", at(0))
    assert len(on_record((), None, replace(recorded(past(PastAct.REPLACE, 0)), replaced=at(0)))) == 1
