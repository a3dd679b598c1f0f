"""What an command makes of a remediation, and who may opt a node out: plain calls."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from healthd.core.model import Mode, Refusal, Refused, Remedy, Step
from healthd.remediation.decide.commands import (
    REMEDIES,
    Command,
    Verb,
    may_be_repaired,
    quarantined,
    release_by_command,
    repaired,
    repaired_meanwhile,
    stays,
)
from healthd.remediation.decide.drive import continued_as, heading_back, only_out
from healthd.remediation.decide.policy import Rules, Situation, question
from healthd.remediation.decide.remediation import End, Phase, Remediation
from healthd.remediation.decide.rules import LABEL, QUARANTINE, STEPS, by_feature, by_label, kept_out, without_drain
from healthd.remediation.ports import FleetSnapshot, NodeView
from tests.support.judgement import START, a_remediation, all_read, decided_by, diagnosis

OUT = Command(verb=Verb.QUARANTINE, who="uid 0", why="psu looks odd")
REPAIR_IT = Command(verb=Verb.REPAIR, who="uid 0")
IN = Command(verb=Verb.RELEASE, who="uid 7", why="it is new")
SICK = diagnosis(code="gpu.xid.79", remedy=Remedy.REBOOT_NODE)
LATER = START + timedelta(minutes=5)


def test_a_quarantine_says_who_and_why_and_stays() -> None:
    """The text names the remediation and no person; the remediation has both, and a step that no step leaves by
    itself."""
    remediation = quarantined(OUT, "c1", START, drains=True)
    assert remediation.text == "healthd: operator.quarantine node [c1]"
    assert (remediation.command, remediation.why) == ("psu looks odd (uid 0)", "by command: psu looks odd (uid 0)")
    assert OUT.title == "quarantine by command: psu looks odd (uid 0)"
    assert remediation.steps == (Step.SLOT, Step.DRAIN, Step.STAY, Step.VERIFY, Step.RELEASE)
    assert quarantined(OUT, "c1", START, drains=False).steps == without_drain(remediation.steps)
    assert (remediation.by_command, remediation.mode, remediation.fenced) == (True, Mode.QUARANTINE, True)


def test_a_repair_is_of_a_fault_or_of_none() -> None:
    """Of a fault it bears its name, so that the ledger counts it; by name of a remedy it bears its own."""
    ladder = (Remedy.REBOOT_NODE, Remedy.REPLACE_NODE)
    of_fault = repaired(REPAIR_IT, "c1", START, ladder=ladder, about=SICK, drains=True)
    assert (of_fault.code, of_fault.ladder, of_fault.command) == ("gpu.xid.79", ladder, "no reason given (uid 0)")
    of_none = repaired(REPAIR_IT, "c1", START, ladder=ladder[:1], about=None, drains=True)
    assert (of_none.code, of_none.component, of_none.remedy) == ("operator.repair", "node", Remedy.REBOOT_NODE)


@pytest.mark.parametrize("remedy", REMEDIES.values())
@pytest.mark.parametrize("drains", [True, False])
def test_what_is_out_by_command_is_repaired_where_it_stands(remedy: Remedy, drains: bool) -> None:
    """From waiting until idle on, and back to staying out; without a drain where there was none."""
    remediation = replace(quarantined(OUT, "c1", START, drains=drains), index=2 if drains else 1)
    continued = repaired_meanwhile(remediation, REPAIR_IT, remedy, LATER)
    steps = kept_out(STEPS[remedy])
    assert continued.steps == (steps if drains else without_drain(steps))
    assert (continued.step, continued.since, continued.ladder) == (Step.WAIT_IDLE, LATER, (remedy,))
    assert continued.command == "psu looks odd (uid 0); then repair, no reason given (uid 0)"
    assert continued.text == remediation.text


@pytest.mark.parametrize("drains", [True, False])
def test_what_the_policy_only_keeps_out_is_repaired_where_it_stands(drains: bool) -> None:
    """Whatever the other remediation is, the drain, its text, the place and the id are those that the cluster shows."""
    steps = QUARANTINE if drains else without_drain(QUARANTINE)
    remediation = a_remediation(
        steps=steps, index=steps.index(Step.VERIFY), good_since=START, fenced=True, controller="start 1"
    )
    new = repaired(REPAIR_IT, "c2", LATER, ladder=(Remedy.REBOOT_NODE,), about=None, drains=True)
    continued = continued_as(remediation, new)
    assert (continued.id, continued.text, continued.opened, continued.fenced) == (
        remediation.id,
        remediation.text,
        remediation.opened,
        True,
    )
    assert (continued.code, continued.command, continued.ladder) == (new.code, new.command, new.ladder)
    assert continued.steps == (STEPS[Remedy.REBOOT_NODE] if drains else without_drain(STEPS[Remedy.REBOOT_NODE]))
    assert (continued.step, continued.since, continued.good_since) == (Step.WAIT_IDLE, LATER, None)


@pytest.mark.parametrize("drains", [True, False])
def test_a_case_that_has_not_taken_its_node_out_stays_where_it_is(drains: bool) -> None:
    """What it is about may change; its text does too, unless somebody may have seen it."""
    steps = STEPS[Remedy.RESET_GPU] if drains else without_drain(STEPS[Remedy.RESET_GPU])
    remediation = a_remediation(steps=steps, fenced=True)
    new = a_remediation(id="c2", code="gpu.xid.95", text="healthd: another", since=LATER, ladder=(Remedy.REBOOT_NODE,))
    turned = continued_as(remediation, new)
    assert (turned.id, turned.step, turned.since, turned.text) == ("c1", Step.SLOT, remediation.since, new.text)
    assert turned.steps == (STEPS[Remedy.REBOOT_NODE] if drains else without_drain(STEPS[Remedy.REBOOT_NODE]))
    for seen in ({"drain_unanswered": START}, {"phase": Phase.INTENDED}):
        assert continued_as(replace(remediation, **seen), new).text == remediation.text


@pytest.mark.parametrize(("remedy", "waits_on"), [(Remedy.REBOOT_NODE, True), (Remedy.REPLACE_NODE, False)])
def test_a_job_is_waited_for_since_the_first_fault_of_the_same_remedy(remedy: Remedy, waits_on: bool) -> None:
    """Faults that take turns give the job no more time; one that calls for more begins anew, and so does an command."""
    steps = STEPS[Remedy.REBOOT_NODE]
    remediation = a_remediation(steps=steps, index=steps.index(Step.WAIT_IDLE), remedy=Remedy.REBOOT_NODE)
    new = a_remediation(id="c2", since=LATER, steps=STEPS[remedy], remedy=remedy, ladder=(remedy,))
    assert continued_as(remediation, new).since == (remediation.since if waits_on else LATER)
    assert continued_as(remediation, replace(new, command="by uid 0")).since == LATER
    assert continued_as(replace(remediation, end=End.FAILED), new).since == LATER
    assert continued_as(replace(remediation, index=steps.index(Step.VERIFY)), new).since == LATER


def test_what_a_case_did_for_another_fault_is_kept() -> None:
    """An act that was begun is a repair of that fault; what was refused, or goes on, is none."""
    steps = STEPS[Remedy.RESET_GPU]
    remediation = a_remediation(steps=steps, index=steps.index(Step.VERIFY), attempts=1, acts=(Remedy.RESET_GPU,))
    new = a_remediation(id="c2", code="gpu.xid.95", ladder=(Remedy.REBOOT_NODE,))
    turned = continued_as(remediation, new)
    assert [(each.code, each.remedy) for each in turned.earlier] == [(remediation.code, Remedy.RESET_GPU)]
    assert (turned.acts, turned.attempts) == ((), 0)
    goes_on = continued_as(remediation, replace(new, attempts=1))
    assert (goes_on.acts, goes_on.earlier) == (remediation.acts, ())
    assert continued_as(replace(remediation, acts=(), attempts=0), new).earlier == ()


def test_only_what_the_policy_keeps_out_without_repair_it_is_only_out() -> None:
    """Not before it is out, not with a repair of its own, not by command, and not when it is over."""
    remediation = a_remediation(steps=QUARANTINE, index=QUARANTINE.index(Step.VERIFY))
    assert only_out(remediation)
    others = (
        {"index": 0},
        {"steps": STEPS[Remedy.REBOOT_NODE], "index": 5},
        {"command": "x"},
        {"release_command": "x"},
        {"end": End.FAILED},
    )
    assert not any(only_out(replace(remediation, **other)) for other in others)


@pytest.mark.parametrize("remedy", [None, Remedy.REPLACE_NODE])
def test_an_order_to_repair_takes_over_what_nothing_is_done_to(remedy: Remedy | None) -> None:
    """Kept out, verified, or given up; what is out by command only by name. Not what is under repair, nor what is not
    out yet."""
    repair = replace(REPAIR_IT, remedy=remedy)
    kept = a_remediation(steps=QUARANTINE, index=QUARANTINE.index(Step.VERIFY))
    under_repair = a_remediation(index=STEPS[Remedy.REBOOT_NODE].index(Step.REBOOT), phase=Phase.INTENDED, attempts=2)
    given_up = replace(under_repair, end=End.FAILED)
    by_command = quarantined(OUT, "c1", START, drains=True)
    staying = replace(by_command, index=by_command.steps.index(Step.STAY))
    assert may_be_repaired(kept, repair)
    assert may_be_repaired(given_up, repair)
    assert not may_be_repaired(under_repair, repair)
    verified = replace(under_repair, index=under_repair.steps.index(Step.VERIFY), phase=Phase.PLANNED)
    for held in (verified, replace(verified, command="x"), replace(verified, release_command="x")):
        assert may_be_repaired(held, repair)
        assert not may_be_repaired(replace(held, end=End.RELEASED), repair)
    assert not may_be_repaired(by_command, repair)
    for out in (staying, replace(by_command, steps=kept_out(STEPS[Remedy.REBOOT_NODE]), index=4, end=End.FAILED)):
        assert may_be_repaired(out, repair) == (remedy is not None)
    new = repaired(repair, "c2", LATER, ladder=(Remedy.REPLACE_NODE,), about=None, drains=True)
    assert (continued_as(given_up, new).end, continued_as(given_up, new).attempts) == (None, 0)
    released = continued_as(replace(verified, release_command="x", forced_at=START), new)
    assert (released.release_command, released.forced_at, released.step) == ("", None, Step.WAIT_IDLE)
    assert repaired_meanwhile(replace(staying, end=End.FAILED), repair, Remedy.REPLACE_NODE, LATER).end is None


def test_only_a_quarantine_at_its_place_stays() -> None:
    """Not before it is out, not once it was released, and no other remediation."""
    remediation = quarantined(OUT, "c1", START, drains=True)
    at_stay = replace(remediation, index=2)
    assert stays(at_stay)
    assert not stays(remediation)
    assert not stays(replace(at_stay, release_command="x"))
    assert not stays(replace(at_stay, code="gpu.xid.79"))


def test_trouble_refuses_a_release_unless_it_is_forced() -> None:
    """What is wrong is in the sentence, and what would do it all the same."""
    remediation = quarantined(OUT, "c1", START, drains=True)
    refused = release_by_command(remediation, IN, "gpu.xid.79 on gpu:0 is still open", LATER)
    assert isinstance(refused, Refused)
    assert refused.kind is Refusal.NOT_WELL
    assert "gpu.xid.79 on gpu:0 is still open; to release it all the same" in refused.reason
    forced = release_by_command(remediation, replace(IN, forced=True), "gpu.xid.79 on gpu:0 is still open", LATER)
    assert isinstance(forced, Remediation)
    assert (forced.forced_at, forced.release_command) == (LATER, "it is new (uid 7)")


@pytest.mark.parametrize(("end", "after"), [(None, None), (End.FAILED, None), (End.RELEASED, End.RELEASED)])
def test_a_case_that_was_given_up_is_taken_up_again(end: End | None, after: End | None) -> None:
    """And one that is over stays over; what was forced stays forced."""
    remediation = repaired(REPAIR_IT, "c1", START, ladder=(Remedy.REBOOT_NODE,), about=SICK, drains=True)
    remediation = replace(
        remediation, index=remediation.steps.index(Step.REBOOT), phase=Phase.INTENDED, end=end, forced_at=START
    )
    let = release_by_command(remediation, IN, "", LATER)
    assert isinstance(let, Remediation)
    assert (let.end, let.forced_at) == (after, START)
    assert let.phase is (Phase.PLANNED if end is End.FAILED else Phase.INTENDED)


@st.composite
def remediations(draw: st.DrawFn) -> Remediation:
    """A remediation of any repair, at any of its steps, ended or not, ordered back or not."""
    ladder = (draw(st.sampled_from(list(REMEDIES.values()))),)
    remediation = repaired(REPAIR_IT, "c1", START, ladder=ladder, about=SICK, drains=draw(st.booleans()))
    steps = kept_out(remediation.steps) if draw(st.booleans()) else remediation.steps
    command = draw(st.sampled_from(["", "it is new (uid 7)"]))
    return replace(
        remediation,
        steps=steps,
        index=draw(st.integers(0, len(steps) - 1)),
        phase=draw(st.sampled_from(list(Phase))),
        end=draw(st.sampled_from([None, End.RELEASED, End.LOST])),
        release_command=command,
        forced_at=START if command and draw(st.booleans()) else None,
    )


@given(remediations())
def test_heading_back_never_goes_to_an_act(remediation: Remediation) -> None:
    """Without an command nothing moves. With one nothing but verifying and releasing is ahead, except where the node is
    not out yet, where the machine was asked for something, and where it is over; and a second look changes nothing."""
    back = heading_back(remediation, LATER)
    asked = remediation.phase is Phase.INTENDED and remediation.step in (Step.RESET, Step.REBOOT, Step.REPLACE)
    if not remediation.release_command or remediation.has_ended or asked or remediation.step in (Step.SLOT, Step.DRAIN):
        assert back == remediation
    else:
        assert back.step in ((Step.RELEASE,) if remediation.forced else (Step.VERIFY, Step.RELEASE))
        assert back == remediation or (back.phase, back.since) == (Phase.PLANNED, LATER)
    assert heading_back(back, LATER + timedelta(hours=1)) == back


def test_a_case_that_is_verified_is_not_begun_anew_by_the_order() -> None:
    """It goes on from where it stands: what it has proved counts."""
    remediation = repaired(REPAIR_IT, "c1", START, ladder=(Remedy.REBOOT_NODE,), about=SICK, drains=True)
    ordered = replace(remediation, index=remediation.steps.index(Step.VERIFY), release_command="it is new (uid 7)")
    assert heading_back(ordered, LATER) is ordered
    assert heading_back(replace(ordered, forced_at=LATER), LATER).step is Step.RELEASE


# ---------------------------------------------------------------------------------------------------------------------
# opt-out


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ((), ""),
        (("pool=train",), ""),
        (("healthd.io/opt-out=true",), "[node] labels has healthd.io/opt-out=true"),
        (("pool=train", "healthd.io/opt-out="), "[node] labels has healthd.io/opt-out="),
        (("healthd.io/opt-out=False",), ""),
        (("healthd.io/opt-out-not=true",), ""),
    ],
)
def test_a_label_opts_out(labels: tuple[str, ...], words: str) -> None:
    """Its key, with any value but false; and no key means that none does."""
    assert by_label(labels, "healthd.io/opt-out") == words
    assert by_label(labels, "") == ""


def test_a_feature_opts_out() -> None:
    """The very word, and no word means that none does."""
    assert by_feature(frozenset({"efa", "healthd-opt-out"}), "healthd-opt-out") == (
        "the node has the feature healthd-opt-out"
    )
    assert by_feature(frozenset({"efa"}), "healthd-opt-out") == ""
    assert by_feature(frozenset({"a/b"}), "a/b", LABEL) == "the node has the label or annotation a/b"
    assert by_feature(frozenset({""}), "") == ""


@pytest.mark.parametrize("mode", [Mode.QUARANTINE, Mode.REPAIR])
def test_a_feature_holds_a_decision(mode: Mode) -> None:
    """Before anything else that the cluster shows: somebody else's hold included."""
    rules = Rules(mode=mode, opt_out_feature="mine")
    view = NodeView(name="n1", in_service=False, flags=frozenset({"DRAIN"}), hold=None, features=frozenset({"mine"}))
    situation = Situation(view=view, snapshot=FleetSnapshot(out=frozenset(), total=9))
    decision, _ = decided_by(question([SICK], (), rules, START), all_read(situation))
    assert (decision.refusal, decision.reason) == (Refusal.OPTED_OUT, "opted out: the node has the feature mine")
    assert rules.hands_off(None) == ""
    assert replace(rules, opted_out="/x exists").hands_off(None) == "/x exists"
