"""The cause that drives an open remediation: its own fault, another fault, a mode that was lowered, a command.

Pure. The law of acts: no act whose remedy is not in the ladder of a fault that is open on the node, now. A case is
about one fault, and its ladder goes up only while that fault is open. Another open fault is decided by its own rule: it
takes the case over where it is more serious, or where its own fault is over. A replay decides by the same functions.

Where the mode or its rule was lowered since, what may no longer be repaired is only kept out. A command is its own
mode; and what was asked of the machine is waited for all the same: it may come at any moment, and must not meet a job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from healthd.core.model import REMEDY_RANK, Action, Decision, Diagnosis, Mode, Remedy, Step
from healthd.remediation.decide.ledger import closed
from healthd.remediation.decide.policy import Rules
from healthd.remediation.decide.remediation import REPAIR_CODE, Phase, Remediation
from healthd.remediation.decide.rules import QUARANTINE, REPAIRS, RuleAnswer, roots_of, without_drain


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownFaults:
    """The facts by which another fault is considered.

    ``open``: the answers of the policy to what is open, most far-reaching first; neither what is acknowledged nor what
    is in shadow. ``looked``: every check has looked since the case came to its present step. ``waited``: for how long
    the case has stood there, watched by this daemon. ``settle`` and ``verify_timeout``: as the settings say.
    """

    now: datetime
    open: tuple[RuleAnswer, ...]
    looked: bool
    waited: timedelta
    settle: timedelta
    verify_timeout: timedelta


def own(case: Remediation, open_: Sequence[RuleAnswer]) -> RuleAnswer | None:
    """The fault that the case is about, if it is open."""
    return next((answer for answer in open_ if _is_own(case, answer)), None)


def undriven(case: Remediation, open_: Sequence[RuleAnswer]) -> str:
    """Why the law forbids the act whose turn it is, or "". An operator's command needs no fault."""
    remedy = _remedy(case)
    if case.order or any(_calls_for(answer, remedy) for answer in open_):
        return ""
    return f"no open fault calls for {remedy}"


def not_helped(case: Remediation, open_: Sequence[RuleAnswer]) -> str:
    """The open fault that the repair of the case has not ended, in words, or "". Anything else that is open is decided
    by its own rule, and says nothing of the repair. A command for no fault in particular is measured by those that were
    there before it."""
    if case.code == REPAIR_CODE:
        was_there = (answer for answer in open_ if not _is_since(case, answer))
        found = next((answer for answer in was_there if _calls_for(answer, _remedy(case))), None)
    else:
        found = own(case, open_)
    return f"{found.root.code} on {found.diagnosis.component} is still open" if found else ""


def may_turn(case: Remediation) -> bool:
    """Whether another fault may take the case over: no operator began it, and nothing is under way."""
    is_begun = case.phase is Phase.INTENDED and case.step in REPAIRS
    return not (case.by_order or case.end or is_begun or case.step in (Step.STAY, Step.RELEASE))


def is_due(case: Remediation, seen: KnownFaults) -> bool:
    """Whether it is time to ask what would be decided now."""
    if not seen.open or not may_turn(case):
        return False
    mine, first = own(case, seen.open), seen.open[0]
    is_larger = first is not mine and _rank(first.ladder) > _rank(_ahead(case))
    if case.step is not Step.VERIFY:
        return mine is None or is_larger
    if only_out(case):
        return _is_late(case, seen) or (mine is None and (seen.looked or _is_new(case, first, seen)))
    if mine is not None:
        return is_larger and _is_new(case, first, seen)
    return seen.looked or _is_new(case, first, seen) or _is_late(case, seen)


def turns(case: Remediation, decision: Decision, seen: KnownFaults) -> bool:
    """Whether what is decided now takes the case over; ``decision``: as for a node that is out already."""
    mine, about = own(case, seen.open), decided_about(decision, seen.open)
    if about is None or not decision.steps:
        return False
    if decision.action is not Action.REPAIR:
        return mine is None
    if case.step is not Step.VERIFY:
        return mine is None or (about is not mine and _rank(decision.ladder) > _rank(_ahead(case)))
    if mine is None or only_out(case):
        return _is_late(case, seen) or (about is not mine and _is_new(case, about, seen))
    return about is not mine and _rank(decision.ladder) > _rank(_ahead(case)) and _is_new(case, about, seen)


def is_untried(case: Remediation, decision: Decision, open_: Sequence[RuleAnswer]) -> bool:
    """Whether what is decided about began after the last repair of the case, which then says nothing of it."""
    about = decided_about(decision, open_)
    return about is None or (about is not own(case, open_) and _is_since(case, about))


def decided_about(decision: Decision, open_: Sequence[RuleAnswer]) -> RuleAnswer | None:
    """The open fault that a decision is about."""
    about = decision.diagnosis
    if about is None:
        return None
    named = ((answer.root.code, answer.diagnosis.component) for answer in open_)
    return next((a for a, name in zip(open_, named, strict=True) if name == (about.code, about.component)), None)


def why_turned(case: Remediation, turned: Remediation, reason: str) -> str:
    """Why a remediation became the one that it is now, for the audit trail."""
    if (turned.code, turned.component) == (case.code, case.component):
        return f"goes on to repair it: {reason}"
    seen = f'; the reason that is shown stays "{turned.text}"' if turned.text == case.text else ""
    return f"goes on for {turned.code} on {turned.component}, which is open: {reason}{seen}"


def is_replaced(case: Remediation) -> bool:
    """Whether the case verifies the machine that came for another; a daemon without a memory knows no ladder."""
    is_successor = bool(case.attempts) and not case.ladder
    is_given_away = Remedy.REPLACE_NODE in case.acts or is_successor
    return case.step is Step.VERIFY and Step.REPLACE in case.steps and is_given_away


# ---------------------------------------------------------------------------------------------------------------------


def _is_own(case: Remediation, answer: RuleAnswer) -> bool:
    """By its code on its component, by any of its names. Another machine has other parts: there the code tells, and
    where that is not known either, any fault may be the one."""
    if is_replaced(case):
        return case.code in ("", answer.root.code)
    return case.code == answer.root.code and case.component in answer.diagnosis.component.all_names()


def _calls_for(answer: RuleAnswer, remedy: Remedy) -> bool:
    return answer.rule.mode.repairs and remedy in answer.ladder


def _remedy(case: Remediation) -> Remedy:
    return case.ladder[0] if case.ladder else case.remedy


def _ahead(case: Remediation) -> tuple[Remedy, ...]:
    """The remedies that the case has before it; none where it only keeps its node out."""
    return case.ladder if REPAIRS.intersection(case.steps) else ()


def _rank(ladder: Sequence[Remedy]) -> int:
    return REMEDY_RANK[ladder[0]] if ladder else 0


def _is_since(case: Remediation, answer: RuleAnswer) -> bool:
    return is_replaced(case) or answer.root.since >= case.since


def _is_new(case: Remediation, answer: RuleAnswer, seen: KnownFaults) -> bool:
    """Whether it began after the last repair, and has been open for the settle time."""
    lasts = seen.now - max(answer.root.since, case.since) if is_replaced(case) else seen.now - answer.root.since
    return _is_since(case, answer) and lasts >= seen.settle


def _is_late(case: Remediation, seen: KnownFaults) -> bool:
    """Whether what is open has had its time to end. A node that was repaired, perhaps by a daemon before this one, may
    show for a while what it had before."""
    was_repaired = case.attempts or case.earlier or case.remedy is Remedy.NONE
    return seen.waited >= (seen.verify_timeout if was_repaired else seen.settle)


# ---------------------------------------------------------------------------------------------------------------------
# the remediation that goes on otherwise


def only_out(case: Remediation) -> bool:
    """Whether the policy keeps its node out until what is open there is over, and nothing is done to repair it."""
    return case.step is Step.VERIFY and not (case.end or case.by_order or REPAIRS.intersection(case.steps))


def instead(case: Remediation, new: Remediation) -> Remediation:
    """A case that goes on as another one would: drain, slot and id stay, and so does a text that may be seen already.

    One that has not taken its node out yet stays where it is; one that has begins after that. Unless its attempts go
    on, they count as a repair of the fault that it was about. A job that is waited for under a fault of the same remedy
    is waited for since then.
    """
    steps = new.steps if Step.DRAIN in case.steps else without_drain(new.steps)
    if case.step in (Step.SLOT, Step.DRAIN) and not case.end:
        is_seen = case.hold is not None or case.drain_unanswered is not None or case.phase is Phase.INTENDED
        where = replace(case, text=case.text if is_seen else new.text, steps=steps)
    else:
        first = Step.WAIT_IDLE if Step.WAIT_IDLE in steps else Step.VERIFY
        waits_on = case.step is first is Step.WAIT_IDLE and case.remedy is new.remedy and not (case.end or new.order)
        where = replace(
            case,
            steps=steps,
            index=steps.index(first),
            phase=Phase.PLANNED,
            since=case.since if waits_on else new.since,
            good_since=None,
            end=None,
        )
    return replace(
        where,
        mode=new.mode,
        code=new.code,
        component=new.component,
        remedy=new.remedy,
        why=new.why,
        order=new.order,
        ladder=new.ladder,
        attempts=new.attempts,
        earlier=case.earlier if new.attempts else closed(case),
        acts=case.acts if new.attempts else (),
        asks=new.asks,
        returns=new.returns,
        approval=case.approval if new.attempts or not case.acts else None,
    )


def heading_back(case: Remediation, now: datetime) -> Remediation:
    """A release is carried out from wherever the remediation stands: verified first, or at once where it was
    forced. Before the node is out there is nothing to go back from; what was asked of the machine has to come first.
    """
    asked = case.step in REPAIRS and case.phase is Phase.INTENDED
    if not case.release_order or case.has_ended or asked or case.step in (Step.SLOT, Step.DRAIN, Step.RELEASE):
        return case
    step = Step.RELEASE if case.forced else Step.VERIFY
    if case.step is step:
        return case
    return replace(case, index=case.steps.index(step), phase=Phase.PLANNED, since=now, good_since=None)


# ---------------------------------------------------------------------------------------------------------------------
# a mode or a rule that was lowered


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
    if not rules.mode.repairs:
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
    if not answer.rule.mode.repairs:
        return f"{who} goes no further than {answer.rule.mode}"
    if case.ladder and case.ladder[0] not in answer.ladder:
        return f"{who} does not say {case.ladder[0]} any more"
    return ""
