"""The cause that drives an open remediation: its own fault, another fault, a mode that was lowered, a command.

Pure. The law of acts: no act whose remedy is not in the ladder of a fault that is open on the node, now. A remediation
is about one fault, and its ladder goes up only while that fault is open. Another open fault is decided by its own rule:
it takes the remediation over where it is more serious, or where its own fault is over. A replay decides by the same
functions.

Where the mode or its rule was lowered since, what may no longer be repaired is only kept out. A command is its own
mode; and what was asked of the machine is waited for all the same: it may come at any moment, and must not meet a job.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from healthd.checklib.xids import ends_process
from healthd.core.model import REMEDY_RANK, REPAIRS, Action, Decision, Diagnosis, Mode, Remedy, Severity, Step
from healthd.judge.diagnose import roots_of
from healthd.remediation.decide.ledger import closed
from healthd.remediation.decide.on_job import WAIT, OnJob
from healthd.remediation.decide.policy import Rules
from healthd.remediation.decide.remediation import REPAIR_CODE, Phase, Remediation
from healthd.remediation.decide.rules import QUARANTINE, RuleAnswer, without_drain


class KnownFaults(Struct, frozen=True, kw_only=True):
    """The facts by which another fault is considered.

    ``open``: the answers of the policy to what is open, most far-reaching first; neither what is acknowledged nor what
    is in shadow. ``looked``: every check has looked since the remediation came to its present step. ``waited``: for how
    long the remediation has stood there, watched by this daemon. ``settle`` and ``verify_timeout``: as the settings
    say.
    """

    now: datetime
    open: tuple[RuleAnswer, ...]
    looked: bool
    waited: timedelta
    settle: timedelta
    verify_timeout: timedelta


def own(remediation: Remediation, open_: Sequence[RuleAnswer]) -> RuleAnswer | None:
    """The fault that the remediation is about, if it is open."""
    return next((answer for answer in open_ if _is_own(remediation, answer)), None)


def undriven(remediation: Remediation, open_: Sequence[RuleAnswer]) -> str:
    """Why the law forbids the act whose turn it is, or "". An operator's command needs no fault."""
    remedy = _remedy(remediation)
    if remediation.command or any(_calls_for(answer, remedy) for answer in open_):
        return ""
    return f"no open fault calls for {remedy}"


def not_helped(remediation: Remediation, open_: Sequence[RuleAnswer]) -> str:
    """The open fault that the repair of the remediation has not ended, in words, or "". Anything else that is open is
    decided by its own rule, and says nothing of the repair. A command for no fault in particular is measured by those
    that were there before it."""
    if remediation.code == REPAIR_CODE:
        was_there = (answer for answer in open_ if not _is_since(remediation, answer))
        found = next((answer for answer in was_there if _calls_for(answer, _remedy(remediation))), None)
    else:
        found = own(remediation, open_)
    return f"{found.root.code} on {found.diagnosis.component} is still open" if found else ""


def may_turn(remediation: Remediation) -> bool:
    """Whether another fault may take the remediation over: no operator began it, and nothing is under way."""
    is_begun = remediation.phase is Phase.INTENDED and remediation.step in REPAIRS
    return not (remediation.by_command or remediation.end or is_begun or remediation.step in (Step.STAY, Step.RELEASE))


def is_due(remediation: Remediation, seen: KnownFaults) -> bool:
    """Whether it is time to ask what would be decided now."""
    if not seen.open or not may_turn(remediation):
        return False
    mine, first = own(remediation, seen.open), seen.open[0]
    is_larger = first is not mine and _rank(first.ladder) > _rank(_ahead(remediation))
    if remediation.step is not Step.VERIFY:
        return mine is None or is_larger
    if only_out(remediation):
        return _is_late(remediation, seen) or (mine is None and (seen.looked or _is_new(remediation, first, seen)))
    if mine is not None:
        return is_larger and _is_new(remediation, first, seen)
    return seen.looked or _is_new(remediation, first, seen) or _is_late(remediation, seen)


def takes_over(remediation: Remediation, decision: Decision, seen: KnownFaults) -> bool:
    """Whether what is decided now takes the remediation over; ``decision``: as for a node that is out already."""
    mine, about = own(remediation, seen.open), decided_about(decision, seen.open)
    if about is None or not decision.steps:
        return False
    if decision.action is not Action.REPAIR:
        return mine is None
    if remediation.step is not Step.VERIFY:
        return mine is None or (about is not mine and _rank(decision.ladder) > _rank(_ahead(remediation)))
    if mine is None or only_out(remediation):
        return _is_late(remediation, seen) or (about is not mine and _is_new(remediation, about, seen))
    return (
        about is not mine and _rank(decision.ladder) > _rank(_ahead(remediation)) and _is_new(remediation, about, seen)
    )


def is_untried(remediation: Remediation, decision: Decision, open_: Sequence[RuleAnswer]) -> bool:
    """Whether what is decided about began after the last repair of the remediation, which then says nothing of it."""
    about = decided_about(decision, open_)
    return about is None or (about is not own(remediation, open_) and _is_since(remediation, about))


def decided_about(decision: Decision, open_: Sequence[RuleAnswer]) -> RuleAnswer | None:
    """The open fault that a decision is about."""
    about = decision.diagnosis
    if about is None:
        return None
    named = ((answer.root.code, answer.diagnosis.component) for answer in open_)
    return next((a for a, name in zip(open_, named, strict=True) if name == (about.code, about.component)), None)


def why_turned(remediation: Remediation, turned: Remediation, reason: str) -> str:
    """Why a remediation became the one that it is now, for the audit trail."""
    if (turned.code, turned.component) == (remediation.code, remediation.component):
        return f"goes on to repair it: {reason}"
    seen = f'; the reason that is shown stays "{turned.text}"' if turned.text == remediation.text else ""
    return f"goes on for {turned.code} on {turned.component}, which is open: {reason}{seen}"


def is_replaced(remediation: Remediation) -> bool:
    """Whether the remediation verifies the machine that came for another; a daemon without a memory knows no ladder."""
    is_successor = bool(remediation.attempts) and not remediation.ladder
    is_given_away = Remedy.REPLACE_NODE in remediation.acts or is_successor
    return remediation.step is Step.VERIFY and Step.REPLACE in remediation.steps and is_given_away


# ---------------------------------------------------------------------------------------------------------------------


def _is_own(remediation: Remediation, answer: RuleAnswer) -> bool:
    """By its code on its component, by any of its names. Another machine has other parts: there the code tells, and
    where that is not known either, any fault may be the one."""
    if is_replaced(remediation):
        return remediation.code in ("", answer.root.code)
    return remediation.code == answer.root.code and remediation.component in answer.diagnosis.component.all_names()


def _calls_for(answer: RuleAnswer, remedy: Remedy) -> bool:
    return answer.rule.mode.repairs and remedy in answer.ladder


def _remedy(remediation: Remediation) -> Remedy:
    return remediation.ladder[0] if remediation.ladder else remediation.remedy


def _ahead(remediation: Remediation) -> tuple[Remedy, ...]:
    """The remedies that the remediation has before it; none where it only keeps its node out."""
    return remediation.ladder if REPAIRS.intersection(remediation.steps) else ()


def _rank(ladder: Sequence[Remedy]) -> int:
    return REMEDY_RANK[ladder[0]] if ladder else 0


def _is_since(remediation: Remediation, answer: RuleAnswer) -> bool:
    return is_replaced(remediation) or answer.root.since >= remediation.since


def _is_new(remediation: Remediation, answer: RuleAnswer, seen: KnownFaults) -> bool:
    """Whether it began after the last repair, and has been open for the settle time."""
    lasts = (
        seen.now - max(answer.root.since, remediation.since)
        if is_replaced(remediation)
        else seen.now - answer.root.since
    )
    return _is_since(remediation, answer) and lasts >= seen.settle


def _is_late(remediation: Remediation, seen: KnownFaults) -> bool:
    """Whether what is open has had its time to end. A node that was repaired, perhaps by a daemon before this one, may
    show for a while what it had before."""
    was_repaired = remediation.attempts or remediation.earlier or remediation.remedy is Remedy.NONE
    return seen.waited >= (seen.verify_timeout if was_repaired else seen.settle)


def ending_jobs(open_: Sequence[RuleAnswer]) -> list[RuleAnswer]:
    """The open faults after which a job on the node cannot go on, and whose rule says more than to wait."""
    return [answer for answer in open_ if answer.on_job.after_s is not None and _ends_job(answer)]


def ending_job(open_: Sequence[RuleAnswer]) -> RuleAnswer | None:
    """The first of them, or None."""
    return next(iter(ending_jobs(open_)), None)


def planned_on_job(answers: Sequence[RuleAnswer], diagnosis: Diagnosis) -> OnJob:
    """The act on a job that cannot go on after this fault, once the node is drained."""
    of_it = [answer for answer in answers if answer.diagnosis is diagnosis]
    ending = ending_job(of_it)
    return ending.on_job if ending is not None else WAIT


def _ends_job(answer: RuleAnswer) -> bool:
    return answer.root.severity is Severity.CRITICAL and ends_process(answer.root.code, answer.diagnosis.codes)


# ---------------------------------------------------------------------------------------------------------------------
# the remediation that goes on otherwise


def only_out(remediation: Remediation) -> bool:
    """Whether the policy keeps its node out until what is open there is over, and nothing is done to repair it."""
    return remediation.step is Step.VERIFY and not (
        remediation.end or remediation.by_command or REPAIRS.intersection(remediation.steps)
    )


def continued_as(remediation: Remediation, new: Remediation) -> Remediation:
    """A remediation that goes on as another one would: drain, slot and id stay, and so does a text that may be seen
    already.

    One that has not taken its node out yet stays where it is; one that has begins after that. Unless its attempts go
    on, they count as a repair of the fault that it was about. A job that is waited for under a fault of the same remedy
    is waited for since then. A command to release the node before is over.
    """
    steps = new.steps if Step.DRAIN in remediation.steps else without_drain(new.steps)
    if remediation.step in (Step.SLOT, Step.DRAIN) and not remediation.end:
        is_seen = (
            remediation.hold is not None
            or remediation.drain_unanswered is not None
            or remediation.phase is Phase.INTENDED
        )
        where = replace(remediation, text=remediation.text if is_seen else new.text, steps=steps)
    else:
        first = Step.WAIT_IDLE if Step.WAIT_IDLE in steps else Step.VERIFY
        waits_on = (
            remediation.step is first is Step.WAIT_IDLE
            and remediation.remedy is new.remedy
            and not (remediation.end or new.command)
        )
        where = replace(
            remediation,
            steps=steps,
            index=steps.index(first),
            phase=Phase.PLANNED,
            since=remediation.since if waits_on else new.since,
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
        command=new.command,
        release_command=new.release_command,
        forced_at=new.forced_at,
        ladder=new.ladder,
        attempts=new.attempts,
        denied=remediation.denied and bool(new.attempts),
        earlier=remediation.earlier if new.attempts else closed(remediation),
        acts=remediation.acts if new.attempts else (),
        asks=new.asks,
        returns=new.returns,
        approval=remediation.approval if new.attempts or not remediation.acts else None,
    )


def heading_back(remediation: Remediation, now: datetime) -> Remediation:
    """A release is carried out from wherever the remediation stands: verified first, or at once where it was
    forced. Before the node is out there is nothing to go back from; what was asked of the machine has to come first.
    """
    asked = remediation.step in REPAIRS and remediation.phase is Phase.INTENDED
    if (
        not remediation.release_command
        or remediation.has_ended
        or asked
        or remediation.step in (Step.SLOT, Step.DRAIN, Step.RELEASE)
    ):
        return remediation
    step = Step.RELEASE if remediation.forced else Step.VERIFY
    if remediation.step is step:
        return remediation
    return replace(remediation, index=remediation.steps.index(step), phase=Phase.PLANNED, since=now, good_since=None)


# ---------------------------------------------------------------------------------------------------------------------
# a mode or a rule that was lowered


def may_be_lowered(remediation: Remediation) -> bool:
    """Whether it has a repair before it that was not begun. A reset that was first starts what it had stopped."""
    is_begun = remediation.step in REPAIRS and remediation.phase is Phase.INTENDED
    return not (remediation.by_command or is_begun or remediation.end) and bool(REPAIRS.intersection(remediation.steps))


def why_lowered(remediation: Remediation, rules: Rules, diagnoses: Sequence[Diagnosis]) -> str:
    """Why what the remediation is about may no longer be repaired as it was decided, or "". Where it is not open any
    more only the mode tells: what that means the remediation's own steps see.
    """
    if remediation.command:
        return ""
    if not rules.mode.repairs:
        return "the mode was lowered"
    here = [each for each in diagnoses if remediation.component in each.component.all_names()]
    answers = [each for each in rules.policy.answers(diagnoses) if each.diagnosis in here]
    objections = [_objection(remediation, each) for each in answers if each.root.code == remediation.code]
    if objections:
        return "" if "" in objections else objections[0]
    is_open = any(root.code == remediation.code for each in here for root in roots_of(each))
    return "no rule takes a node out for it any more" if is_open else ""


def lowered(remediation: Remediation) -> Remediation:
    """The same remediation, which from here on only keeps its node out."""
    steps = QUARANTINE if Step.DRAIN in remediation.steps else without_drain(QUARANTINE)
    if remediation.step in steps:
        return replace(remediation, mode=Mode.QUARANTINE, steps=steps, index=steps.index(remediation.step))
    return replace(
        remediation,
        mode=Mode.QUARANTINE,
        steps=steps,
        index=steps.index(Step.VERIFY),
        phase=Phase.PLANNED,
        good_since=None,
    )


def _objection(remediation: Remediation, answer: RuleAnswer) -> str:
    """The objection of the rule that now answers to the next remedy, or ""."""
    who = f"rule {answer.rule.name}" if answer.rule.name else "the finding itself"
    if not answer.rule.mode.repairs:
        return f"{who} goes no further than {answer.rule.mode}"
    if remediation.ladder and remediation.ladder[0] not in answer.ladder:
        return f"{who} does not say {remediation.ladder[0]} any more"
    return ""
