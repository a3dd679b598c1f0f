"""Whose fault drives an act: plain calls."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from healthd.core.model import Action, Component, Decision, Diagnosis, Mode, Remedy, Root, Severity, Step
from healthd.remediation.decide.drive import (
    KnownFaults,
    decided_about,
    is_due,
    is_replaced,
    is_untried,
    may_turn,
    not_helped,
    own,
    takes_over,
    undriven,
    why_turned,
)
from healthd.remediation.decide.remediation import REPAIR_CODE, End, Phase, Remediation, Repair
from healthd.remediation.decide.rules import (
    OWN_REMEDY,
    QUARANTINE,
    REBOOT,
    REPLACE,
    RESET,
    Ladder,
    Policy,
    Rule,
    RuleAnswer,
)
from tests.support.judgement import GPU, START, a_remediation, at

RESETS = (Remedy.RESET_GPU, Remedy.REBOOT_NODE, Remedy.REPLACE_NODE)
REBOOTS, REPLACES = RESETS[1:], RESETS[2:]
SETTLE, LONG = timedelta(seconds=30), timedelta(seconds=300)
MOUNT = Component(kind="mount", id="/fsx")
SITE = Rule(name="site", codes=("*",), reason="ours", source="ours", site=True)


def fault(
    code: str = "gpu.xid.95",
    ladder: Ladder = RESETS,
    component: Component = GPU[0],
    *,
    since: float = -60,
    mode: Mode = Mode.REPAIR,
) -> RuleAnswer:
    """What a rule answers to an open fault."""
    remedy = ladder[0] if ladder else Remedy.ASK_HUMAN
    root = Root(code=code, severity=Severity.CRITICAL, remedy=remedy, since=at(since))
    diagnosis = Diagnosis(
        code=code,
        component=component,
        severity=Severity.CRITICAL,
        remedy=remedy,
        reasons=(code,),
        since=root.since,
        roots=(root,),
    )
    return RuleAnswer(diagnosis=diagnosis, root=root, rule=replace(SITE, mode=mode), ladder=ladder)


MINE = fault()
WORSE = fault("gpu.xid.79", REBOOTS, GPU[1])
MISSING = fault("lustre.missing", (), MOUNT)
REMEDIATION = a_remediation(
    code="gpu.xid.95",
    component="gpu:GPU-0",
    remedy=Remedy.RESET_GPU,
    ladder=RESETS,
    steps=RESET,
    index=RESET.index(Step.WAIT_IDLE),
)
VERIFIES = replace(REMEDIATION, index=RESET.index(Step.VERIFY), attempts=1, acts=(Remedy.RESET_GPU,))
KEPT = replace(REMEDIATION, steps=QUARANTINE, ladder=(), index=QUARANTINE.index(Step.VERIFY))
REPLACED = replace(VERIFIES, steps=REPLACE, index=REPLACE.index(Step.VERIFY), ladder=REPLACES, acts=REPLACES)
REPAIRS = Decision(
    action=Action.REPAIR, reason="r", diagnosis=WORSE.about, steps=REBOOT, ladder=REBOOTS, rule=SITE.name
)
KEEPS = Decision(action=Action.PAGE, reason="only a person", diagnosis=MISSING.about, steps=QUARANTINE)


def seen(*open_: RuleAnswer, looked: bool = False, waited: timedelta = timedelta(), now: float = 0) -> KnownFaults:
    return KnownFaults(now=at(now), open=open_, looked=looked, waited=waited, settle=SETTLE, verify_timeout=LONG)


def test_a_case_is_about_its_code_on_its_component() -> None:
    """By any name of it; another GPU with the same code, or another code on it, is another fault."""
    by_pci = replace(REMEDIATION, component="gpu:0000:10:1c")
    assert own(REMEDIATION, (WORSE, MINE)) is own(by_pci, (WORSE, MINE)) is MINE
    assert own(REMEDIATION, (fault(component=GPU[1]), fault("gpu.xid.79"))) is None


def test_on_another_machine_the_code_tells() -> None:
    """Its parts are others; a successor that does not know what the remediation was about takes any fault for it."""
    there = fault(component=GPU[1])
    assert is_replaced(REPLACED)
    assert own(REPLACED, (WORSE, there)) is there
    assert own(replace(REPLACED, code="", ladder=(), acts=()), (WORSE, there)) is WORSE
    refused = replace(REPLACED, acts=())
    assert not is_replaced(refused)
    assert own(refused, (there,)) is None


def test_the_law_of_acts() -> None:
    """An act is in the ladder of an open fault whose rule goes so far; an order needs none."""
    assert undriven(REMEDIATION, (MISSING, MINE)) == ""
    assert undriven(REMEDIATION, (MISSING, WORSE)) == "no open fault calls for reset_gpu"
    assert undriven(REMEDIATION, (fault(mode=Mode.QUARANTINE),)) == "no open fault calls for reset_gpu"
    assert undriven(replace(REMEDIATION, ladder=()), ()) == "no open fault calls for reset_gpu"
    assert undriven(replace(REMEDIATION, command="kernel (uid 0)"), ()) == ""


def test_only_its_own_fault_says_that_a_repair_did_not_help() -> None:
    """A mount that is missing says nothing of a GPU; of an order for no fault, what it would have ended does."""
    assert not_helped(VERIFIES, (MISSING, MINE)) == "gpu.xid.95 on gpu:GPU-0 is still open"
    assert not_helped(VERIFIES, (MISSING, WORSE)) == ""
    ordered = replace(VERIFIES, code=REPAIR_CODE, component="node", command="x", ladder=(Remedy.REBOOT_NODE,))
    assert not_helped(ordered, (MISSING, WORSE)) == "gpu.xid.79 on gpu:GPU-1 is still open"
    assert not_helped(ordered, (MISSING, NEW)) == ""


def test_what_is_under_way_or_ordered_is_not_turned() -> None:
    """Nor what has ended, stays out by order, or is on its way back."""
    assert may_turn(REMEDIATION)
    assert may_turn(VERIFIES)
    at_act = replace(REMEDIATION, index=RESET.index(Step.RESET))
    assert may_turn(at_act)
    others = (
        replace(at_act, phase=Phase.INTENDED),
        replace(REMEDIATION, command="x"),
        replace(REMEDIATION, release_command="x"),
        replace(REMEDIATION, end=End.FAILED),
        replace(REMEDIATION, index=RESET.index(Step.RELEASE)),
    )
    assert not any(may_turn(remediation) for remediation in others)
    assert not is_due(others[0], seen(WORSE))
    assert not is_due(REMEDIATION, seen())


@pytest.mark.parametrize(
    ("open_", "due"), [((MINE,), False), ((MINE, MISSING), False), ((WORSE, MINE), True), ((MISSING,), True)]
)
def test_before_its_act_a_case_is_raised_or_turned_at_once(open_: tuple[RuleAnswer, ...], due: bool) -> None:
    """By a more serious fault, or once its own is over."""
    assert is_due(REMEDIATION, seen(*open_)) is due


def test_before_its_act_only_more_than_its_remedy_raises_it() -> None:
    """A repair that goes further; what a rule only keeps out waits until the fault of the remediation is over."""
    assert takes_over(REMEDIATION, REPAIRS, seen(WORSE, MINE))
    assert not takes_over(REMEDIATION, replace(REPAIRS, ladder=RESETS), seen(WORSE, MINE))
    assert not takes_over(REMEDIATION, replace(REPAIRS, diagnosis=MINE.about), seen(WORSE, MINE))
    assert not takes_over(REMEDIATION, KEEPS, seen(MISSING, MINE))
    assert takes_over(REMEDIATION, KEEPS, seen(MISSING))
    assert takes_over(REMEDIATION, REPAIRS, seen(WORSE))


def test_a_decision_that_takes_nothing_out_turns_nothing() -> None:
    """Observe mode, an opt-out, a fault that many nodes have; nor does one about what is not open any more."""
    assert not takes_over(REMEDIATION, Decision(action=Action.HOLD, reason="observe"), seen(WORSE))
    assert not takes_over(REMEDIATION, replace(REPAIRS, steps=()), seen(WORSE))
    assert not takes_over(REMEDIATION, REPAIRS, seen(MINE))


NEW, FRESH = fault("gpu.xid.79", REBOOTS, GPU[1], since=10), fault("gpu.xid.79", REBOOTS, GPU[1], since=95)


def test_after_its_act_what_is_new_has_the_settle_time_and_what_was_there_before_the_whole_time() -> None:
    """A level that is there for a moment after a boot gives no node away."""
    for open_, now, waited, due in (
        ((NEW,), 100, timedelta(), True),
        ((FRESH,), 100, timedelta(), False),
        ((WORSE,), 100, timedelta(), False),
        ((WORSE,), 100, LONG, True),
    ):
        known = seen(*open_, now=now, waited=waited)
        assert is_due(VERIFIES, known) is due
        assert takes_over(VERIFIES, REPAIRS, known) is due


def test_after_its_act_a_new_and_more_serious_fault_raises_it_although_its_own_is_open() -> None:
    """What was there before, or goes no further, waits."""
    assert is_due(VERIFIES, seen(NEW, MINE, now=100))
    assert takes_over(VERIFIES, REPAIRS, seen(NEW, MINE, now=100))
    for open_ in ((WORSE, MINE), (FRESH, MINE), (MINE, NEW)):
        assert not is_due(VERIFIES, seen(*open_, now=100, waited=LONG, looked=True))
    assert not takes_over(VERIFIES, REPAIRS, seen(WORSE, MINE, now=100))
    assert not takes_over(VERIFIES, replace(REPAIRS, ladder=RESETS), seen(NEW, MINE, now=100))
    assert not takes_over(VERIFIES, replace(REPAIRS, diagnosis=MINE.about), seen(NEW, MINE, now=100))


def test_after_its_act_what_is_only_kept_out_waits_until_every_check_has_looked() -> None:
    """What the store still says of a level may be over since the act."""
    assert not is_due(VERIFIES, seen(MISSING, now=10))
    assert is_due(VERIFIES, seen(MISSING, now=10, looked=True))
    assert takes_over(VERIFIES, KEEPS, seen(MISSING, now=10, looked=True))
    assert not takes_over(VERIFIES, KEEPS, seen(MISSING, MINE, now=10, looked=True))


def test_a_node_that_is_only_kept_out_is_decided_about_once_more() -> None:
    """After the settle time, or where it was repaired the whole time; at once where another fault is all there is."""
    repairs_mine = replace(REPAIRS, diagnosis=MINE.about)
    for remediation, waited, due in (
        (KEPT, SETTLE, True),
        (KEPT, timedelta(seconds=29), False),
        (replace(KEPT, attempts=1), SETTLE, False),
        (replace(KEPT, earlier=(PAST,)), SETTLE, False),
        (replace(KEPT, remedy=Remedy.NONE), SETTLE, False),
        (replace(KEPT, remedy=Remedy.NONE), LONG, True),
    ):
        known = seen(MINE, waited=waited)
        assert is_due(remediation, known) is due
        assert takes_over(remediation, repairs_mine, known) is due
    assert is_due(KEPT, seen(MISSING, looked=True))
    assert not is_due(KEPT, seen(MISSING))
    assert is_due(KEPT, seen(NEW, now=100))
    assert takes_over(KEPT, REPAIRS, seen(NEW, now=100))


PAST = Repair(code="gpu.xid.95", component="gpu:GPU-0", remedy=Remedy.RESET_GPU, began=START)


def test_on_another_machine_everything_but_the_code_of_the_case_is_new() -> None:
    """It is there since the machine is, and is given the settle time from then."""
    known = seen(WORSE, now=100)
    assert is_due(REPLACED, known)
    assert takes_over(REPLACED, REPAIRS, known)
    assert not takes_over(REPLACED, REPAIRS, seen(WORSE, now=10))


def test_what_the_act_of_a_case_says_nothing_of() -> None:
    """What began after it; its own fault, and what it did not end, it was tried against."""
    repairs_mine = replace(REPAIRS, diagnosis=MINE.about)
    assert is_untried(VERIFIES, REPAIRS, (NEW,))
    assert not is_untried(VERIFIES, REPAIRS, (WORSE,))
    assert not is_untried(replace(VERIFIES, since=at(-90)), repairs_mine, (MINE,))
    assert is_untried(VERIFIES, Decision(action=Action.HOLD, reason="nothing"), (WORSE,))
    assert decided_about(REPAIRS, (MINE, WORSE)) is WORSE


def test_the_trail_says_what_drives_a_case_now() -> None:
    """And that the text at the node names what it was about before, where that is so."""
    turned = replace(REMEDIATION, code="gpu.xid.79", component="gpu:GPU-1")
    words = "goes on for gpu.xid.79 on gpu:GPU-1, which is open: r"
    assert why_turned(REMEDIATION, turned, "r") == f'{words}; the reason that is shown stays "{REMEDIATION.text}"'
    assert why_turned(REMEDIATION, replace(turned, text="healthd: new"), "r") == words
    assert why_turned(REMEDIATION, replace(REMEDIATION, steps=REBOOT), "r") == "goes on to repair it: r"


def test_what_a_policy_answers_is_what_drives() -> None:
    """The same by a policy: the finding's own remedy, most far-reaching first."""
    open_ = Policy(rules=(OWN_REMEDY,)).answers((MINE.diagnosis, WORSE.diagnosis))
    assert [answer.root.code for answer in open_] == ["gpu.xid.79", "gpu.xid.95"]
    remediation: Remediation = REMEDIATION
    assert own(remediation, open_) == open_[1]
