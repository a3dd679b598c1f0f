"""The canary: by the records of the fleet alone, and only what has ended well counts."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from healthd.core.model import Decision, Mode, Refused, Remedy
from healthd.remediation.decide.approval import approve, ask, needs_approval, objection, waiting_words
from healthd.remediation.decide.canary import canary, revision_of, worked
from healthd.remediation.decide.ledger import Bounds, FleetRecords
from healthd.remediation.decide.policy import Needs, Question, Readings, Rules, Situation, decide, question
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.decide.rules import BY_REMEDY, RESET, Policy, Rule
from healthd.remediation.ports import FleetSnapshot, NodeRecord, NodeView
from healthd.remediation.records.handoff import HandoffRecord, PastAct, PastRepair, RepairResult, parse
from tests.support.judgement import START, UNCONTAINED, a_remediation, at

BOUNDS = Bounds()
NOW, OLD = "0a1b2c3d", "99999999"
WHY = canary(FleetRecords(records={}, held={}, total=1), NOW, BOUNDS)


def entry(
    revision: str = NOW, outcome: RepairResult = RepairResult.HELPED, act: PastAct = PastAct.REBOOT
) -> PastRepair:
    return PastRepair(act=act, at=START, code="gpu.xid.79", outcome=outcome, revision=revision)


def fleet(*nodes: tuple[PastRepair, ...]) -> FleetRecords:
    records = {f"n{number}": HandoffRecord(history=history) for number, history in enumerate(nodes)}
    return FleetRecords(records=records, held={}, total=100)


def at_the_act(**changes: object) -> Remediation:
    made = a_remediation(steps=RESET, index=4, ladder=(Remedy.RESET_GPU,))
    return replace(made, code=UNCONTAINED.code, component=str(UNCONTAINED.component), **changes)


@pytest.mark.parametrize(
    ("records", "asks"),
    [
        (fleet(), True),
        (fleet((entry(),), (entry(),)), True),
        (fleet((entry(),), (entry(),), (entry(),)), False),
        (fleet((entry(), entry(), entry())), False),  # a fleet may be one node
        (fleet((entry(), entry(), entry(outcome=RepairResult.FAILED))), True),
        (fleet((entry(), entry(), entry(outcome=RepairResult.NOT_KNOWN))), True),  # under way on another node
        (fleet((entry(), entry(), entry(act=PastAct.RETURN))), True),
        (fleet((entry(OLD),) * 8, (entry(""),) * 8), True),
    ],
)
def test_it_asks_until_enough_repairs_of_this_revision_have_worked(records: FleetRecords, asks: bool) -> None:
    """On whichever nodes. What failed, is under way, or another revision did, proves nothing."""
    assert bool(canary(records, NOW, BOUNDS)) is asks


def test_off_or_without_a_revision_none_asks() -> None:
    """``canary_repairs = 0``; and a replay of the past counts nothing."""
    assert canary(fleet(), NOW, replace(BOUNDS, canary_repairs=0)) == ""
    assert canary(fleet(), "", BOUNDS) == ""
    assert "the first repair of the fleet asks" in canary(fleet(), NOW, replace(BOUNDS, canary_repairs=1))


def test_the_words_do_not_change_from_one_repair_to_the_next() -> None:
    """Each change would be news, and another page."""
    assert canary(fleet((entry(),)), NOW, BOUNDS) == WHY
    assert worked(fleet((entry(),)), NOW) == 1


def test_a_revision_changes_with_what_decides_and_with_nothing_else() -> None:
    """Version, rules, limits, driver; not the number of repairs that ask."""
    rule = Rule(name="mine", codes=("gpu.*",), reason="r", source="s")
    same = revision_of("1.0", BY_REMEDY, BOUNDS, "580")
    assert revision_of("1.0", Policy(), replace(BOUNDS, canary_repairs=0), "580") == same
    others = {
        revision_of("1.1", BY_REMEDY, BOUNDS, "580"),
        revision_of("1.0", Policy(rules=(rule, *BY_REMEDY.rules)), BOUNDS, "580"),
        revision_of("1.0", BY_REMEDY, replace(BOUNDS, lemon_repairs=9), "580"),
        revision_of("1.0", BY_REMEDY, BOUNDS, "581"),
        revision_of("1.0", BY_REMEDY, BOUNDS, ""),
    }
    assert same not in others
    assert len(others) == 5
    record = HandoffRecord(revision=same, history=(entry(same), replace(entry(same), back=START + timedelta(hours=1))))
    assert parse(record.text) == record, "a record carries it, and its history too"


def test_an_act_of_the_canary_waits_in_any_mode_and_says_why() -> None:
    """An approval lets it go; a command needs none, nor a remedy that is set to go."""
    rules = Rules(mode=Mode.REPAIR)
    asked = ask(at_the_act(), rules, (UNCONTAINED,), at(10), WHY)
    assert asked.waits is not None
    assert WHY in asked.waits.reason
    assert WHY in waiting_words(asked.remediation, rules), "a plan says so without a reading of the fleet"
    assert objection(asked.remediation, rules, (UNCONTAINED,), WHY) is not None
    given = approve(
        asked.remediation, Remedy.RESET_GPU, "seen", rules=rules, diagnoses=(UNCONTAINED,), now=at(20), canary=WHY
    )
    assert isinstance(given, Remediation)
    assert objection(given, rules, (UNCONTAINED,), WHY) is None
    assert ask(given, rules, (UNCONTAINED,), at(30), WHY).waits is None
    assert not needs_approval(at_the_act(command="mine"), Remedy.RESET_GPU, rules, (UNCONTAINED,), WHY)
    goes = replace(rules, approvals={Remedy.RESET_GPU: timedelta()})
    assert not needs_approval(at_the_act(), Remedy.RESET_GPU, goes, (UNCONTAINED,), WHY)


def test_once_the_canary_is_over_what_waited_for_it_goes_on() -> None:
    """And an approval of it is not needed any more."""
    rules = Rules(mode=Mode.REPAIR)
    waiting = ask(at_the_act(), rules, (UNCONTAINED,), at(10), WHY).remediation
    assert ask(waiting, rules, (UNCONTAINED,), at(20)).waits is None
    late = approve(waiting, Remedy.RESET_GPU, "seen", rules=rules, diagnoses=(UNCONTAINED,), now=at(20))
    assert isinstance(late, Refused)


def test_what_leaves_no_record_is_no_part_of_it() -> None:
    """Else the first three would never be over."""
    rules = Rules(mode=Mode.REPAIR, revision=NOW, uncounted=frozenset({Remedy.RESET_GPU}))
    assert not needs_approval(at_the_act(), Remedy.RESET_GPU, rules, [UNCONTAINED], WHY)
    assert needs_approval(at_the_act(), Remedy.REBOOT_NODE, rules, [UNCONTAINED], WHY)


def test_in_the_mode_approve_the_mode_is_the_reason() -> None:
    """The canary adds nothing to it."""
    rules = Rules(mode=Mode.APPROVE)
    asked = ask(at_the_act(), rules, (UNCONTAINED,), at(10), WHY)
    assert asked.waits is not None
    assert "canary" not in asked.waits.reason


@pytest.mark.parametrize(
    ("records", "tail"),
    [((), f", after approval; {WHY}"), ((HandoffRecord(history=(entry(),) * 3),), "")],
)
def test_a_plan_says_that_it_will_ask(records: tuple[HandoffRecord, ...], tail: str) -> None:
    """Before anything is done."""
    read = tuple(NodeRecord(node=f"n{number}", text=record.text) for number, record in enumerate(records))
    snapshot = FleetSnapshot(out=frozenset(), total=100, records=read)
    asked = question((UNCONTAINED,), (), Rules(mode=Mode.REPAIR, revision=NOW), at(0))
    assert isinstance(asked, Question)
    view = NodeView(name="n1", in_service=True, flags=frozenset(), hold=None)
    cannot = dict.fromkeys(Remedy, "")
    readings = Readings(situation=Situation(view=view, snapshot=snapshot), repairs=(), cannot=cannot)
    decision = decide(asked, readings)
    assert isinstance(decision, Decision)
    assert decision.reason == f"repair for {UNCONTAINED.code} on {UNCONTAINED.component} (reset_gpu){tail}"


def test_of_a_node_that_is_out_the_fleet_is_read_before_it_is_said() -> None:
    """The decision about a held node asks for that reading first; a command needs no approval."""
    rules = Rules(mode=Mode.REPAIR, revision=NOW)
    unread = Readings(repairs=(), cannot=dict.fromkeys(Remedy, ""))
    held = question((UNCONTAINED,), (), rules, at(0), is_held=True)
    assert isinstance(held, Question)
    assert decide(held, unread) == Needs(situation=True)
    by_command = question((UNCONTAINED,), (), rules, at(0), is_held=True, by_command=True)
    assert isinstance(by_command, Question)
    decision = decide(by_command, unread)
    assert isinstance(decision, Decision)
    assert decision.reason.endswith("(reset_gpu)")


def test_a_plan_in_the_mode_approve_names_no_canary() -> None:
    """The mode asks already."""
    asked = question((UNCONTAINED,), (), Rules(mode=Mode.APPROVE, revision=NOW), at(0), is_held=True, by_command=False)
    assert isinstance(asked, Question)
    view = NodeView(name="n1", in_service=True, flags=frozenset(), hold=None)
    situation = Situation(view=view, snapshot=FleetSnapshot(out=frozenset(), total=100))
    decision = decide(asked, Readings(situation=situation, repairs=(), cannot=dict.fromkeys(Remedy, "")))
    assert isinstance(decision, Decision)
    assert decision.reason.endswith("(reset_gpu), after approval")
