"""Who has approved which act, and until when it waits: plain calls, and laws over every remediation."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from healthd.core.model import Action, Mode, Refusal, Refused, Remedy, Step
from healthd.remediation.decide.approval import (
    approve,
    ask,
    awaited,
    needs_approval,
    next_act,
    objection,
    undo_objection,
)
from healthd.remediation.decide.commands import Command, Verb
from healthd.remediation.decide.policy import Rules
from healthd.remediation.decide.remediation import ACTS, Approval, End, Phase, Remediation, shifted
from healthd.remediation.decide.rules import OWN_REMEDY, REBOOT, REPLACE, RESET, STEPS, Policy, Rule
from tests.support.judgement import GPU, UNCONTAINED, a_remediation, at

STEP_OF = {remedy: step for step, remedy in ACTS.items()}
ASKS = Rules(mode=Mode.APPROVE)
NO_TIME, AN_HOUR = timedelta(), timedelta(hours=1)


def at_the_act(remedy: Remedy = Remedy.RESET_GPU, **changes: Any) -> Remediation:
    """A remediation that stands at its act."""
    steps = STEPS[remedy]
    made = a_remediation(steps=steps, index=steps.index(STEP_OF[remedy]), ladder=(remedy,))
    made = replace(made, code=UNCONTAINED.code, component=str(UNCONTAINED.component))
    return replace(made, **changes)


def given_for(remediation: Remediation, remedy: Remedy, **changes: Any) -> Approval:
    made = Approval(
        remedy=remedy, code=remediation.code, component=remediation.component, asked=at(0), given=at(5), by="me"
    )
    return replace(made, **changes)


@pytest.mark.parametrize("remedy", STEPS)
def test_an_act_is_asked_for_once_and_waits(remedy: Remedy) -> None:
    """The same remediation comes out of a second asking: since when it waits is not moved, and nothing is news."""
    first = ask(at_the_act(remedy), ASKS, (UNCONTAINED,), at(10))
    assert first.waits is not None
    assert (first.waits.kind, first.news) == (Refusal.APPROVAL, f"asks for approval of {remedy}")
    again = ask(first.remediation, ASKS, (UNCONTAINED,), at(99_999))
    assert (again.remediation, again.waits, again.news) == (first.remediation, first.waits, "")
    approval = awaited(first.remediation)
    assert approval is not None
    assert (approval.remedy, approval.asked) == (remedy, at(10))


def test_by_default_it_goes_when_its_time_is_over() -> None:
    """Not a second before; and who has approved it is written down."""
    rules = replace(ASKS, approvals={Remedy.RESET_GPU: AN_HOUR})
    first = ask(at_the_act(), rules, (), at(0))
    assert first.waits is not None
    assert "it goes ahead at" in first.waits.reason
    assert ask(first.remediation, rules, (), at(3599)).waits is not None
    gone = ask(first.remediation, rules, (), at(3600))
    assert (gone.waits, gone.news) == (None, "approved by default: reset_gpu")
    assert gone.remediation.approval is not None
    assert gone.remediation.approval.by == "by default, without an answer"
    assert awaited(gone.remediation) is None
    assert objection(gone.remediation, rules, ()) is None


def test_the_smallest_of_mode_and_rule_decides() -> None:
    """A rule that asks does so in a fleet that repairs; a setting that lets one go holds for every rule."""
    asking = Rule(name="ask", codes=("gpu.*",), reason="r", source="s", mode=Mode.APPROVE)
    by_rule = Rules(mode=Mode.REPAIR, policy=Policy(rules=(asking, OWN_REMEDY)))
    about = at_the_act()
    assert needs_approval(about, Remedy.RESET_GPU, by_rule, (UNCONTAINED,))
    assert not needs_approval(about, Remedy.RESET_GPU, by_rule, ()), "the fault is not open: the mode tells"
    assert not needs_approval(about, Remedy.RESET_GPU, replace(by_rule, policy=Policy()), (UNCONTAINED,))
    assert not needs_approval(
        about, Remedy.RESET_GPU, replace(by_rule, approvals={Remedy.RESET_GPU: NO_TIME}), (UNCONTAINED,)
    )
    assert not needs_approval(replace(about, command="x (uid 0)"), Remedy.RESET_GPU, ASKS, (UNCONTAINED,))
    elsewhere = replace(UNCONTAINED, component=GPU[1])
    assert not needs_approval(about, Remedy.RESET_GPU, by_rule, (elsewhere,))


def test_where_none_is_needed_nothing_is_written() -> None:
    """The remediation is as it was."""
    about = at_the_act()
    outcome = ask(about, Rules(mode=Mode.REPAIR), (UNCONTAINED,), at(0))
    assert (outcome.remediation, outcome.waits, outcome.news) == (about, None, "")
    assert objection(about, Rules(mode=Mode.REPAIR), (UNCONTAINED,)) is None


def test_an_approval_that_is_needed_by_now_is_missing() -> None:
    """The mode was lowered between the question and the act."""
    why = objection(at_the_act(), ASKS, (UNCONTAINED,))
    assert why is not None
    assert why.kind is Refusal.APPROVAL


@pytest.mark.parametrize(
    ("index", "phase", "changes", "act"),
    [
        (Step.WAIT_IDLE, Phase.PLANNED, {}, Remedy.RESET_GPU),
        (Step.RESET, Phase.PLANNED, {}, Remedy.RESET_GPU),
        (Step.RESET, Phase.INTENDED, {}, None),
        (Step.VERIFY, Phase.PLANNED, {}, None),
        (Step.WAIT_IDLE, Phase.PLANNED, {"release_command": "x"}, None),
        (Step.WAIT_IDLE, Phase.PLANNED, {"end": End.LOST}, None),
    ],
)
def test_the_act_that_is_before_it(index: Step, phase: Phase, changes: dict[str, Any], act: Remedy | None) -> None:
    """And none once it was begun, or is not wanted any more."""
    about = at_the_act(index=RESET.index(index), phase=phase, **changes)
    assert next_act(about) is act
    assert awaited(about) is None


def test_none_waits_without_a_remediation_or_before_its_act() -> None:
    """An approval that was asked for before the remediation went back to wait for the node is not what it waits for."""
    assert awaited(None) is None
    about = at_the_act(index=RESET.index(Step.WAIT_IDLE))
    assert awaited(replace(about, approval=given_for(about, Remedy.RESET_GPU, given=None))) is None


def answer(about: Remediation, remedy: Remedy | None, rules: Rules = ASKS) -> Remediation | Refused | str:
    return approve(about, remedy, "seen (uid 0)", rules=rules, diagnoses=(UNCONTAINED,), now=at(50))


def test_an_approval_keeps_since_when_it_was_asked_for() -> None:
    """And names who gave it, and when."""
    waiting = ask(at_the_act(), ASKS, (UNCONTAINED,), at(10)).remediation
    approved = answer(waiting, Remedy.RESET_GPU)
    assert isinstance(approved, Remediation)
    assert approved.approval == given_for(waiting, Remedy.RESET_GPU, asked=at(10), given=at(50), by="seen (uid 0)")
    assert ask(approved, ASKS, (UNCONTAINED,), at(60)).waits is None
    assert answer(approved, Remedy.RESET_GPU) == "approved already: seen (uid 0)"
    begun = replace(approved, phase=Phase.INTENDED)
    assert answer(begun, Remedy.RESET_GPU) == "approved already: seen (uid 0)"


def test_an_early_approval_is_asked_for_now() -> None:
    """While the job still runs."""
    approved = answer(at_the_act(index=RESET.index(Step.WAIT_IDLE)), Remedy.RESET_GPU)
    assert isinstance(approved, Remediation)
    assert approved.approval is not None
    assert (approved.approval.asked, approved.approval.given) == (at(50), at(50))


@pytest.mark.parametrize(
    ("about", "remedy", "rules", "kind", "words"),
    [
        (at_the_act(), Remedy.REBOOT_NODE, ASKS, Refusal.APPROVAL, "its next act is reset_gpu, not reboot_node"),
        (at_the_act(), None, ASKS, Refusal.APPROVAL, "name the act: `healthd approve"),
        (at_the_act(), Remedy.RESET_GPU, Rules(mode=Mode.REPAIR), Refusal.NOT_NEEDED, "needs no approval here"),
        (at_the_act(phase=Phase.INTENDED), Remedy.RESET_GPU, ASKS, Refusal.NOT_NEEDED, "has no act before it"),
    ],
)
def test_what_cannot_be_approved_is_refused(
    about: Remediation, remedy: Remedy | None, rules: Rules, kind: Refusal, words: str
) -> None:
    """With what could be."""
    refused = answer(about, remedy, rules)
    assert isinstance(refused, Refused)
    assert refused.kind is kind
    assert words in refused.reason


@given(
    approved=st.sampled_from(list(STEPS)),
    code=st.sampled_from([UNCONTAINED.code, "gpu.xid.79"]),
    component=st.sampled_from([str(GPU[0]), str(GPU[1])]),
    remedy=st.sampled_from(list(STEPS)),
    given=st.booleans(),
    seconds=st.integers(0, 10_000_000),
)
def test_no_act_goes_by_the_approval_of_another(
    *, approved: Remedy, code: str, component: str, remedy: Remedy, given: bool, seconds: int
) -> None:
    """Remedy, code and component have to be the same, and it has to be given; time alone approves nothing."""
    approval = Approval(
        remedy=approved, code=code, component=component, asked=at(0), given=at(5) if given else None, by="me"
    )
    outcome = ask(at_the_act(remedy, approval=approval), ASKS, (UNCONTAINED,), at(seconds))
    is_its_own = given and (approved, code, component) == (remedy, UNCONTAINED.code, str(UNCONTAINED.component))
    assert (outcome.waits is None) is is_its_own
    assert (objection(at_the_act(remedy, approval=approval), ASKS, (UNCONTAINED,)) is None) is is_its_own


def test_a_clock_that_is_set_moves_the_wait_with_it() -> None:
    """What waits for an hour waits for as long as before."""
    about = ask(at_the_act(), ASKS, (), at(0)).remediation
    moved = shifted(about, timedelta(hours=3), at(10_800))
    assert moved.approval is not None
    assert moved.approval.asked == at(10_800)


@pytest.mark.parametrize(
    ("about", "untaken", "words"),
    [
        (at_the_act(), False, ""),
        (at_the_act(phase=Phase.INTENDED, acts=(Remedy.RESET_GPU,)), False, "reset_gpu was begun at"),
        (at_the_act(phase=Phase.INTENDED, acts=(Remedy.RESET_GPU,)), True, ""),
        (at_the_act(Remedy.REBOOT_NODE, acts=(Remedy.RESET_GPU,)), False, "reset_gpu was made"),
        (at_the_act(stopped=("nvidia-fabricmanager",)), False, "the services nvidia-fabricmanager are stopped"),
    ],
)
def test_what_can_be_undone(about: Remediation, untaken: bool, words: str) -> None:
    """Everything before an act, and a request that nobody has begun."""
    message = undo_objection(about, request_untaken=untaken)
    assert message.startswith(words)
    assert bool(message) == bool(words)


@pytest.mark.parametrize(
    ("verb", "action"),
    [
        (Verb.QUARANTINE, Action.QUARANTINE),
        (Verb.REPAIR, Action.REPAIR),
        (Verb.APPROVE, Action.REPAIR),
        (Verb.RELEASE, Action.RELEASE),
        (Verb.UNDO, Action.RELEASE),
    ],
)
def test_what_a_command_comes_to(verb: Verb, action: Action) -> None:
    """For the metric of decisions."""
    assert Command(verb=verb, who="uid 0").action is action


def test_the_ladders_have_one_act_each() -> None:
    """So that the act before it is the one that is shown."""
    for steps in (RESET, REBOOT, REPLACE):
        assert len([step for step in steps if step in ACTS]) == 1
