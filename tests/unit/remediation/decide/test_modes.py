"""What a mode or a rule that was changed makes of an open remediation: plain calls."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from healthd.core.model import Mode, Remedy, Root, Severity, Step
from healthd.remediation.decide.drive import lowered, may_be_lowered, why_lowered
from healthd.remediation.decide.policy import Rules
from healthd.remediation.decide.remediation import End, Phase
from healthd.remediation.decide.rules import OWN_REMEDY, QUARANTINE, REBOOT, Policy, Rule, without_drain
from tests.support.judgement import GPU, START, a_remediation, diagnosis

SICK = diagnosis(code="gpu.xid.79", remedy=Remedy.REBOOT_NODE)
REMEDIATION = a_remediation(ladder=(Remedy.REBOOT_NODE, Remedy.REPLACE_NODE), index=REBOOT.index(Step.WAIT_IDLE))


def ruled(**changes: object) -> Rules:
    rule = Rule(name="ours", codes=("gpu.xid.79",), reason="we know it", source="ticket 7")
    rules = (replace(rule, **changes), OWN_REMEDY)
    return Rules(mode=Mode.REPAIR, policy=Policy(name="site", rules=rules))


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        (Rules(mode=Mode.REPAIR), ""),
        (ruled(), ""),
        (ruled(ladder=(Remedy.REBOOT_NODE,)), ""),
        (Rules(mode=Mode.QUARANTINE), "the mode was lowered"),
        (Rules(mode=Mode.OBSERVE), "the mode was lowered"),
        (ruled(mode=Mode.QUARANTINE), "rule ours goes no further than quarantine"),
        (ruled(mode=Mode.OBSERVE), "rule ours goes no further than observe"),
        (ruled(ladder=(Remedy.REPLACE_NODE,)), "rule ours does not say reboot_node any more"),
        (ruled(ladder=(Remedy.ASK_HUMAN,)), "rule ours does not say reboot_node any more"),
        (ruled(ladder=()), "no rule takes a node out for it any more"),
    ],
)
def test_a_mode_or_a_rule_that_was_lowered_is_named(rules: Rules, why: str) -> None:
    """The mode before the rule; an order is its own mode and its own rule."""
    assert why_lowered(REMEDIATION, rules, (SICK,)) == why
    assert why_lowered(replace(REMEDIATION, command="kernel (uid 0)"), rules, (SICK,)) == ""


def test_only_the_rule_for_this_fault_on_this_component_counts() -> None:
    """Another code, another GPU, and a fault that is over say nothing of the remediation; a root of a diagnosis
    does."""
    rules = ruled(mode=Mode.QUARANTINE)
    elsewhere = diagnosis(code="gpu.xid.79", remedy=Remedy.REBOOT_NODE, component=GPU[1])
    assert why_lowered(REMEDIATION, rules, ()) == ""
    assert why_lowered(REMEDIATION, rules, (diagnosis(), elsewhere)) == ""
    root = Root(code="gpu.xid.79", severity=Severity.CRITICAL, remedy=Remedy.REBOOT_NODE, since=START)
    assert why_lowered(REMEDIATION, rules, (replace(diagnosis(), roots=(root,)),)) != ""


def test_what_the_finding_itself_no_longer_calls_for_is_not_done() -> None:
    """It got worse since: what it calls for now is decided anew. A remediation that knows no ladder has none to be
    lowered."""
    worse = diagnosis(Remedy.REPLACE_NODE, code="gpu.xid.79")
    words = "the finding itself does not say reboot_node any more"
    assert why_lowered(REMEDIATION, Rules(mode=Mode.REPAIR), (worse,)) == words
    assert why_lowered(replace(REMEDIATION, ladder=()), Rules(mode=Mode.REPAIR), (worse,)) == ""


def test_one_name_that_allows_it_is_enough() -> None:
    """Two diagnoses may know the component, by its UUID and by its address: what either allows goes on."""
    worse = diagnosis(Remedy.REPLACE_NODE, code="gpu.xid.79")
    assert why_lowered(REMEDIATION, Rules(mode=Mode.REPAIR), (worse, SICK)) == ""


def test_what_was_begun_or_ordered_or_is_over_is_not_lowered() -> None:
    """Only a remediation that has a repair before it, and not the one that it is in the middle of."""
    assert may_be_lowered(REMEDIATION)
    at_reboot = replace(REMEDIATION, index=REBOOT.index(Step.REBOOT))
    assert may_be_lowered(at_reboot)
    others = (
        replace(at_reboot, phase=Phase.INTENDED),
        replace(REMEDIATION, command="x"),
        replace(REMEDIATION, release_command="x"),
        replace(REMEDIATION, end=End.FAILED),
        replace(REMEDIATION, steps=QUARANTINE),
    )
    assert not any(may_be_lowered(remediation) for remediation in others)


@pytest.mark.parametrize("drains", [True, False])
@pytest.mark.parametrize("step", list(REBOOT))
def test_lowered_it_only_keeps_its_node_out(step: Step, drains: bool) -> None:
    """Where it was, with its intent, if a quarantine has that step; else at the one that verifies."""
    steps = REBOOT if drains else without_drain(REBOOT)
    if step not in steps:
        return
    low = lowered(replace(REMEDIATION, steps=steps, index=steps.index(step), phase=Phase.INTENDED, good_since=START))
    assert low.steps == (QUARANTINE if drains else without_drain(QUARANTINE))
    assert low.mode is Mode.QUARANTINE
    kept = step in QUARANTINE
    assert (low.step, low.phase) == ((step, Phase.INTENDED) if kept else (Step.VERIFY, Phase.PLANNED))
    assert low.good_since == (START if kept else None)
