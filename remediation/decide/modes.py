"""The effect of a mode or a rule that was changed since on an open remediation. Pure.

Lowered, what may no longer be repaired is only kept out. A command is its own mode; and what was asked of the machine
is waited for all the same: it may come at any moment, and must not meet a job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from healthd.core.model import Diagnosis, Mode, Step
from healthd.remediation.decide.policy import Rules
from healthd.remediation.decide.remediation import Phase, Remediation
from healthd.remediation.decide.rules import QUARANTINE, REPAIRS, RuleAnswer, roots_of, without_drain


def may_be_lowered(case: Remediation) -> bool:
    """Whether it has a repair before it that was not begun. A reset that was first starts what it had stopped."""
    is_begun = case.step in REPAIRS and case.phase is Phase.INTENDED
    return not (case.by_order or is_begun or case.end) and bool(REPAIRS.intersection(case.steps))


def why_lowered(case: Remediation, rules: Rules, diagnoses: Sequence[Diagnosis]) -> str:
    """Why what the case is about may no longer be repaired as it was decided, or "". Where it is not open any more only
    the mode tells: what that means the case's own steps see.
    """
    if case.order:
        return ""
    if rules.mode is not Mode.REPAIR:
        return "the mode was lowered"
    here = [each for each in diagnoses if case.component in each.component.all_names()]
    answers = [each for each in rules.policy.answers(diagnoses) if each.diagnosis in here]
    objections = [_objection(case, each) for each in answers if each.root.code == case.code]
    if objections:
        return "" if "" in objections else objections[0]
    is_open = any(root.code == case.code for each in here for root in roots_of(each))
    return "no rule takes a node out for it any more" if is_open else ""


def lowered(case: Remediation) -> Remediation:
    """The same case, which from here on only keeps its node out."""
    steps = QUARANTINE if Step.DRAIN in case.steps else without_drain(QUARANTINE)
    if case.step in steps:
        return replace(case, mode=Mode.QUARANTINE, steps=steps, index=steps.index(case.step))
    return replace(
        case, mode=Mode.QUARANTINE, steps=steps, index=steps.index(Step.VERIFY), phase=Phase.PLANNED, good_since=None
    )


def _objection(case: Remediation, answer: RuleAnswer) -> str:
    """The objection of the rule that now answers to the next remedy, or ""."""
    who = f"rule {answer.rule.name}" if answer.rule.name else "the finding itself"
    if answer.rule.mode is not Mode.REPAIR:
        return f"{who} goes no further than {answer.rule.mode}"
    if case.ladder and case.ladder[0] not in answer.ladder:
        return f"{who} does not say {case.ladder[0]} any more"
    return ""
